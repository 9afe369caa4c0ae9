"""What goes wrong on real engines is told in a line, leaves nothing behind, and can be resumed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.runner_configs import portable
from slicebeam.runner_configs.cluster import ask
from tests.running import refused

pytestmark = pytest.mark.engine

COMMON = ["--label=income", "--prediction=prediction", "--quiet", "--chunk-rows=3000"]
# Many blocks, so that there is something to be disturbed.
FEATURES = "age,workclass,education,occupation,hours-per-week,native-country"
SLOW = ["--memory-budget=16MB", "--test=paper", f"--features={FEATURES}"]


@pytest.fixture
def no_folder_left(tmp_path, monkeypatch):
    """The temporary folders of engines' programs are gone afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    end = time.monotonic() + 20
    while list(folder.glob("slicebeam-*")) and time.monotonic() < end:
        time.sleep(0.1)
    assert not list(folder.glob("slicebeam-*"))


@pytest.mark.parametrize(
    "engine", ["prism", "flink-embedded", "flink-cluster-loopback", "spark-embedded"]
)
def test_what_a_worker_finds_wrong_is_told_in_its_words(
    tmp_path, adult_path, engines, engine, capfd, no_folder_left
):
    table = pq.read_table(adult_path)
    ids = table.column("row_id").to_pylist()
    ids[5] = None
    at = table.schema.get_field_index("row_id")
    data = tmp_path / "x.parquet"
    pq.write_table(table.set_column(at, "row_id", pa.array(ids)), data)
    given = ["search", f"--data={data}", f"--output={tmp_path / 'out'}", *COMMON]
    given += ["--features=sex", "--example-id=row_id", "--test=paper"]
    given += engines.arguments(engine)
    # A cluster that is loaded and started for this tells of it.
    capfd.readouterr()
    message = refused(given, capfd, folder=tmp_path)
    assert message == "--example-id has no value in row 6 of DIR/x.parquet"


def command(data, output, *more):
    started = [sys.executable, "-m", "slicebeam.pipelines.cli", "search"]
    return [*started, f"--data={data}", f"--output={output}", *COMMON, *SLOW, *more]


def started(given, is_time):
    """A run that has come to a moment, and the processes that it started."""
    process = subprocess.Popen(given, stderr=subprocess.PIPE, text=True)
    while not is_time():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.02)
    return process, psutil.Process(process.pid).children(recursive=True)


def jobs(address):
    found = ask(f"http://{address}/jobs/overview")["jobs"]
    return sorted(found, key=lambda job: job["start-time"])


def is_counting(address, known):
    """Say whether the first iteration runs on Flink."""
    return any(
        "-iteration-1" in job["name"] and job["tasks"]["running"] > 0 and job["jid"] not in known
        for job in jobs(address)
    )


def test_ctrl_c_ends_the_job_on_the_cluster(tmp_path, adult_path, engines, no_folder_left):
    address = engines.flink.address
    known = {job["jid"] for job in jobs(address)}
    given = command(adult_path, tmp_path, *engines.arguments("flink-cluster-process"))
    process, children = started(given, lambda: is_counting(address, known))
    names = [child.name() for child in children]
    assert "java" in names
    # The job server's guardian.
    assert len([name for name in names if name.startswith("python")]) == 1
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 130, message
    assert len(message.strip().splitlines()) == 1
    assert message.startswith("slicebeam: interrupted")
    assert jobs(address)[-1]["state"] == "CANCELED"
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert not (tmp_path / "changelist.json").exists()


@pytest.mark.parametrize("engine", ["prism--process", "spark-embedded"])
def test_a_killed_run_leaves_no_process_and_goes_on_elsewhere(
    tmp_path, adult_path, engines, engine, no_folder_left
):
    plan = tmp_path / "_work" / "stages" / "iteration-1" / "plan"
    given = command(adult_path, tmp_path, *engines.arguments(engine))
    process, children = started(given, plan.exists)
    assert len(children) >= 2
    process.kill()
    process.communicate(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    # Another engine goes on where this one was.
    subprocess.run([*command(adult_path, tmp_path), "--resume"], check=True)
    subprocess.run(command(adult_path, tmp_path / "plain"), check=True)
    one, two = (path / "slices.parquet" for path in (tmp_path, tmp_path / "plain"))
    assert one.read_bytes() == two.read_bytes()


def test_a_killed_worker_is_a_line_and_the_run_can_be_resumed(
    tmp_path, adult_path, engines, no_folder_left
):
    plan = tmp_path / "_work" / "stages" / "iteration-1" / "plan"
    given = command(adult_path, tmp_path, *engines.arguments("prism--process"))
    process, children = started(given, plan.exists)
    worker = next(child for child in children if child.ppid() in {c.pid for c in children}
                  and child.name().startswith("python"))  # fmt: skip
    worker.kill()
    _, message = process.communicate(timeout=120)
    assert process.returncode == 3, message
    first, second = message.strip().splitlines()
    assert first.startswith("slicebeam: ")
    assert "--resume" in second
    subprocess.run([*given, "--resume"], check=True)
    assert (tmp_path / "changelist.json").exists()


def test_a_worker_pool_that_dies_ends_the_waiting(tmp_path, engines, monkeypatch):
    monkeypatch.setattr(portable, "_SILENCE", 4.0)
    port = portable.free_port()
    program = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"]
    pool = subprocess.Popen(
        [*program, f"--service_port={port}"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    try:
        options = engines.options(
            "prism--external", f"environment_config=127.0.0.1:{port}", "private_network=false"
        )
        while not _listens(port):
            time.sleep(0.05)
        with Engine(runner_config("prism", options["runner_option"])) as engine:
            engine.log_to(tmp_path / "log")
            with pytest.raises(EngineError, match=r"worker pool 127.0.0.1:\d+ does not answer"):
                engine.run(lambda pipeline: _kill_and_wait(pipeline, pool.pid), "test")
    finally:
        _kill_group(pool.pid)
        pool.wait()


def _listens(port):
    try:
        portable.check_answers(f"127.0.0.1:{port}", "", "")
    except EngineError:
        return False
    return True


def _kill_and_wait(pipeline, pid):
    import apache_beam as beam

    def work(number):
        os.kill(number, signal.SIGKILL)
        time.sleep(1000)

    return pipeline | beam.Create([pid]) | beam.Map(work)


def _kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_a_task_manager_that_dies_changes_nothing(tmp_path, adult_path, engines, no_folder_left):
    cluster = engines.flink
    address = cluster.address
    known = {job["jid"] for job in jobs(address)}
    given = command(adult_path, tmp_path, *engines.arguments("flink-cluster-process"))
    process, _ = started(given, lambda: is_counting(address, known))
    cluster.replace_node()
    _, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    # The job was begun again, and found the same.
    history = [
        job for job in jobs(address) if job["jid"] not in known and "-iteration-1" in job["name"]
    ]
    assert [job["state"] for job in history] == ["FINISHED"]
    told = ask(f"http://{address}/jobs/{history[0]['jid']}/exceptions")
    assert told["exceptionHistory"]["entries"]
    subprocess.run(command(adult_path, tmp_path / "plain"), check=True)
    one, two = (path / "slices.parquet" for path in (tmp_path, tmp_path / "plain"))
    assert one.read_bytes() == two.read_bytes()
