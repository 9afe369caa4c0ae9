"""Worker processes end with the run that started them, however it ends, and it with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.worker_processes import WorkerProcesses
from tests.object_stores import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[WorkerProcesses]:
    started = WorkerProcesses(2)
    yield started
    started.stop()


def test_they_are_ready_once_and_end_when_stopped(
    processes: WorkerProcesses, tmp_path: Path
) -> None:
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


def test_one_that_does_not_start_is_an_error(processes: WorkerProcesses, tmp_path: Path) -> None:
    os.kill(processes._process.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"did not start; its output is in .*log"):
        processes.address(tmp_path / "log")


def started_search(output: Path, data: Path, moment: str) -> tuple[Any, list[psutil.Process]]:
    command = [sys.executable, "-m", "slicebeam.pipelines.cli", "search", f"--data={data}"]
    command += [f"--output={output}", "--label=income", "--prediction=prediction", "--quiet"]
    command += ["--memory-budget=16MB", "--runner-config=direct_multi", "--test=paper"]
    command += ["--features=age,education,fnlwgt,hours-per-week,marital-status,occupation"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (output / "_work" / "stages" / moment).exists():
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.3)
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker(tmp_path: Path, adult_path: Path) -> None:
    process, workers = started_search(tmp_path / "out", adult_path, "iteration-1/plan")
    assert len(workers) == 3
    sockets = Path(workers[0].cmdline()[4])
    assert sockets.is_dir()
    process.kill()
    process.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert not sockets.exists()


@pytest.mark.slow
def test_a_killed_worker_is_a_line_and_the_run_can_be_resumed(
    tmp_path: Path, adult_path: Path
) -> None:
    output = tmp_path / "out"
    process, workers = started_search(output, adult_path, "iteration-1/plan")
    workers[-1].kill()
    _, message = process.communicate(timeout=60)
    assert process.returncode == 3, message
    first, second = message.strip().splitlines()
    assert first.startswith("slicebeam: ")
    assert "--resume" in second
    assert not (output / "changelist.json").exists()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    subprocess.run([*process.args, "--resume"], check=True)
    assert (output / "changelist.json").exists()


def test_nothing_heavy_is_loaded_before_they_start() -> None:
    """They load it while this process does."""
    program = "import slicebeam.pipelines.run.engine, sys; print(*sys.modules)"
    path = os.pathsep.join([str(ROOT / ".typing"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"apache_beam", "numpy", "pyarrow"}.isdisjoint(done.stdout.split())
