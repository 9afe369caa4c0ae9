"""Worker processes end with the run that started them, however it ends, and it with them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.worker_processes import WorkerProcesses
from tests.object_stores import ROOT
from tests.waiting_jobs import command, search_at_work


@pytest.fixture
def processes(tmp_path):
    started = WorkerProcesses(2)
    yield started
    started.stop()


def test_they_are_ready_once_and_end_when_stopped(processes, tmp_path):
    address = processes.address(tmp_path / "log")
    assert processes.address(tmp_path / "log") == address
    processes.check()
    assert 0.0 <= processes.cpu_seconds() < 60.0
    every = psutil.Process(processes._process.pid).children()
    assert len(every) == 2
    processes.stop()
    _, alive = psutil.wait_procs(every, timeout=10)
    assert not alive
    with pytest.raises(EngineError, match="a worker process ended"):
        processes.check()


def test_one_that_does_not_start_is_an_error(processes, tmp_path):
    os.kill(processes._process.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"did not start; its output is in .*log"):
        processes.address(tmp_path / "log")


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker(tmp_path, adult_path):
    process, workers = search_at_work(tmp_path, adult_path, "direct_multi", "iteration-1")
    assert len(workers) == 3
    sockets = Path(workers[0].cmdline()[4])
    assert sockets.is_dir()
    process.kill()
    process.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert not sockets.exists()


@pytest.mark.slow
def test_a_killed_worker_is_a_line_and_the_run_can_be_resumed(tmp_path, adult_path):
    output = tmp_path / "out"
    process, workers = search_at_work(tmp_path, adult_path, "direct_multi", "iteration-1")
    workers[-1].kill()
    _, message = process.communicate(timeout=60)
    assert process.returncode == 3, message
    first, second = message.strip().splitlines()
    assert first.startswith("slicebeam: ")
    assert "--resume" in second
    assert not (output / "changelist.json").exists()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    subprocess.run([*command(output, adult_path, "direct_multi"), "--resume"], check=True)
    assert (output / "changelist.json").exists()


def test_nothing_heavy_is_loaded_before_they_start():
    """They load it while this process does."""
    program = "import slicebeam.pipelines.run.engine, sys; print(*sys.modules)"
    path = os.pathsep.join([str(ROOT / ".typing"), str(ROOT)])
    how = {"capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": path}}
    done = subprocess.run([sys.executable, "-c", program], check=True, **how)
    assert {"apache_beam", "numpy", "pyarrow"}.isdisjoint(done.stdout.split())
