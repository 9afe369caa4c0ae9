"""What Prism, Flink and Spark listen at during a run, and that no other user can use it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from slicebeam.runner_configs import private_network
from tests.engines.test_sockets import is_private_possible
from tests.open_sockets import at_work, attacked, needs_root

pytestmark = [pytest.mark.engine, is_private_possible]
EMBEDDED = ["prism", "prism--process", "flink-embedded", "spark-embedded-process"]


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    """A temporary folder that other users can enter, in which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="sb-") as name:
        Path(name).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield
        end = time.monotonic() + 20
        while list(Path(name).glob("slicebeam-*")) and time.monotonic() < end:
            time.sleep(0.1)
        assert not list(Path(name).glob("slicebeam-*"))


NETWORK = Path(private_network.__file__).name


@needs_root
@pytest.mark.parametrize("engine", EMBEDDED)
def test_another_user_can_use_no_socket_of_an_engine(tmp_path, engines, engine):
    options = engines.options(engine)
    with at_work(tmp_path, options["runner_config"], options["runner_option"]) as (_, sockets):
        told = attacked(sockets, tmp_path)
    # Its services are there, where nobody else is.
    assert any(one.is_private and not one.is_unix for one in sockets)
    assert all(one.is_unix or one.is_private for one in sockets)
    assert {one.address for one in sockets if one.is_unix} < told.keys()
    assert all(found == {"connects": False} for found in told.values()), told


@needs_root
def test_without_a_private_network_a_job_server_takes_jobs_and_no_pool_starts(tmp_path, engines):
    """Of which the run warns; and the attack is one that works."""
    options = engines.options("flink-embedded", "private_network=false")
    with at_work(tmp_path, "flink", options["runner_option"]) as (_, sockets):
        told = attacked(sockets, tmp_path)
    assert any(found.get("takes_jobs") for found in told.values()), told
    assert not any(found.get("starts") for found in told.values()), told


@needs_root
def test_beside_a_flink_cluster_there_is_but_a_pool_that_asks_for_a_secret(tmp_path, engines):
    options = engines.options("flink-cluster")
    nodes = set(engines.flink.pids())
    with at_work(tmp_path, "flink", options["runner_option"]) as (started, sockets):
        pool = started._backend._environment().url
        told = attacked({one for one in sockets if nodes.isdisjoint(parents(one.pid))}, tmp_path)
    assert pool.startswith("127.0.0.1:")
    refused = {"connects": True, "reads": "", "starts": False, "takes_jobs": False}
    assert told.pop(pool) == refused
    assert all(found == {"connects": False} for found in told.values()), told


def parents(pid):
    process = psutil.Process(pid)
    return {pid, *(parent.pid for parent in process.parents())}


@pytest.mark.parametrize("engine", ["prism--process", "prism"])
def test_a_run_ends_with_a_line_where_what_leads_into_the_network_is_killed(
    tmp_path, adult_path, engines, engine
):
    given = [sys.executable, "-m", "slicebeam.pipelines.cli", "search", f"--data={adult_path}"]
    given += [f"--output={tmp_path}", "--label=income", "--prediction=prediction", "--quiet"]
    given += ["--memory-budget=16MB", *engines.arguments(engine)]
    run = subprocess.Popen(given, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "_work" / "stages" / "iteration-1" / "plan").exists():
        assert run.poll() is None
        time.sleep(0.02)
    children = psutil.Process(run.pid).children(recursive=True)
    own = [child for child in children if child.ppid() == run.pid]
    (guardian,) = (child for child in own if NETWORK in "".join(child.cmdline()))
    os.kill(guardian.pid, signal.SIGKILL)
    _, message = run.communicate(timeout=120)
    assert run.returncode == 3, message
    first, second = message.strip().splitlines()
    assert first.startswith("slicebeam: ")
    assert "--resume" in second
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
