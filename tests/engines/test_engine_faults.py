"""Real engines: the result is the same, and what goes wrong is told in a line and can be resumed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import apache_beam as beam
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.discovery import fitting
from slicebeam.pipelines.prepare import encoded_dataset
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.search import counter
from slicebeam.runner_configs import job_service
from slicebeam.runner_configs.flink import ask
from slicebeam.transforms.count.tables import work_items
from tests.discovered import COLUMNS, discovery, planted_file
from tests.pipelines.search.test_same_result import OPTIONS, WAYS
from tests.running import refused, search
from tests.waiting_jobs import command, search_at_work

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def data(tmp_path_factory, adult_path):
    path = tmp_path_factory.mktemp("data") / "x.parquet"
    pq.write_table(pq.read_table(adult_path).slice(0, 2000), path)
    return path


@pytest.fixture
def no_folder_left(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    end = time.monotonic() + 20
    while list(folder.glob("slicebeam-*")) and time.monotonic() < end:
        time.sleep(0.1)
    assert not list(folder.glob("slicebeam-*"))


@pytest.mark.parametrize("engine", ["prism", "flink-embedded", "flink-cluster", "spark-embedded"])
def test_what_workers_find_is_told_in_words(tmp_path, data, engines, engine, capfd, no_folder_left):
    table = pq.read_table(data)
    ids = table.column("row_id").to_pylist()
    ids[5] = None
    at = table.schema.get_field_index("row_id")
    wrong = tmp_path / "x.parquet"
    pq.write_table(table.set_column(at, "row_id", pa.array(ids)), wrong)
    given = ["search", f"--data={wrong}", f"--output={tmp_path}/out", "--label=income"]
    given += ["--prediction=prediction", "--quiet", "--features=sex"]
    given += ["--example-id=row_id", "--test=paper", *engines.arguments(engine)]
    # A cluster that is loaded and started for this tells of it.
    capfd.readouterr()
    message = refused(given, capfd, folder=tmp_path)
    assert message == "--example-id has no value in row 6 of DIR/x.parquet"


def named(options):
    """The arguments of `runner_config`."""
    options = dict(options)
    return {
        "name": options.pop("runner_config"),
        "overrides": options.pop("runner_option"),
        **options,
    }


def jobs(address):
    return ask(f"http://{address}/jobs/overview")["jobs"]


def plain(folder, data):
    """The table that a run in one process publishes."""
    subprocess.run(command(folder, data, "direct"), check=True)
    return (folder / "slices.parquet").read_bytes()


def test_ctrl_c_ends_the_job_on_the_cluster(tmp_path, data, engines, no_folder_left):
    address = engines.flink.address
    known = {job["jid"] for job in jobs(address)}
    engine = engines.arguments("flink-cluster-process")
    process, children = search_at_work(tmp_path, data, engine, "iteration-1")
    names = [child.name() for child in children]
    assert "java" in names
    # The job server's guardian.
    assert len([name for name in names if name.startswith("python")]) == 1
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 130, message
    assert len(message.strip().splitlines()) == 1
    assert message.startswith("slicebeam: interrupted")
    states = [job["state"] for job in jobs(address) if job["jid"] not in known]
    assert states.count("CANCELED") == 1
    assert set(states) <= {"CANCELED", "FINISHED"}
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert not (tmp_path / "out" / "changelist.json").exists()


def test_a_killed_run_leaves_nothing_and_goes_on_elsewhere(tmp_path, data, engines, no_folder_left):
    engine = engines.arguments("prism--process")
    process, children = search_at_work(tmp_path, data, engine, "iteration-1")
    assert len(children) >= 3
    process.kill()
    process.communicate(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    # Another engine goes on where this one was.
    subprocess.run([*command(tmp_path / "out", data, "direct"), "--resume"], check=True)
    assert (tmp_path / "out" / "slices.parquet").read_bytes() == plain(tmp_path / "plain", data)


def test_a_killed_worker_is_a_line_and_the_run_is_resumed(tmp_path, data, engines, no_folder_left):
    engine = engines.arguments("prism--process")
    process, children = search_at_work(tmp_path, data, engine, "iteration-1")
    worker = next(child for child in children if child.ppid() in {c.pid for c in children}
                  and child.name().startswith("python"))  # fmt: skip
    worker.kill()
    _, message = process.communicate(timeout=120)
    assert process.returncode == 3, message
    first, second = message.strip().splitlines()
    assert first.startswith("slicebeam: ")
    assert "--resume" in second
    subprocess.run([*command(tmp_path / "out", data, engine), "--resume"], check=True)
    assert (tmp_path / "out" / "changelist.json").exists()


def test_a_worker_pool_that_dies_ends_the_waiting(tmp_path, engines, monkeypatch):
    monkeypatch.setattr(job_service, "_SILENCE", 4.0)
    port = job_service.free_port()
    program = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"]
    pool = subprocess.Popen(
        [*program, f"--service_port={port}"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    try:
        pool_address = f"environment_config=127.0.0.1:{port}"
        options = engines.options("prism--external", "private_network=false", beam=[pool_address])
        while not _listens(port):
            time.sleep(0.05)
        with Engine(runner_config(**named(options))) as engine:
            engine.log_to(tmp_path / "log")
            with pytest.raises(EngineError, match=r"worker pool 127.0.0.1:\d+ does not answer"):
                engine.run(lambda pipeline: _kill_and_wait(pipeline, pool.pid), "test")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pool.pid, signal.SIGKILL)
        pool.wait()


def _listens(port):
    try:
        job_service.check_answers(f"127.0.0.1:{port}", "", "", "")
    except EngineError:
        return False
    return True


def _kill_and_wait(pipeline, pid):
    def work(number):
        os.kill(number, signal.SIGKILL)
        time.sleep(1000)

    return pipeline | beam.Create([pid]) | beam.Map(work)


def test_a_task_manager_that_dies_changes_nothing(tmp_path, data, engines, no_folder_left):
    cluster = engines.flink
    known = {job["jid"] for job in jobs(cluster.address)}
    engine = engines.arguments("flink-cluster-process")
    process, _ = search_at_work(tmp_path, data, engine, "iteration-1")
    cluster.replace_node()
    (tmp_path / "begun-may-end").touch()
    _, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    # The job was begun again, and found the same.
    (job,) = (
        job
        for job in jobs(cluster.address)
        if job["jid"] not in known and "-iteration-1" in job["name"]
    )
    assert job["state"] == "FINISHED"
    told = ask(f"http://{cluster.address}/jobs/{job['jid']}/exceptions")
    assert told["exceptionHistory"]["entries"]
    assert (tmp_path / "out" / "slices.parquet").read_bytes() == plain(tmp_path / "plain", data)


SMALL = OPTIONS | {"features": ("age", "education", "occupation"), "chunk_rows": 700}


@pytest.fixture(scope="module")
def planted(tmp_path_factory, adult_path):
    path = tmp_path_factory.mktemp("planted") / "small.parquet"
    pq.write_table(pq.read_table(adult_path).slice(0, 2000), path, row_group_size=700)
    return path


@pytest.fixture(scope="module")
def in_process(tmp_path_factory, planted):
    found = {}

    def once(way):
        if way not in found:
            found[way] = search(tmp_path_factory.mktemp(way), data=planted, **(SMALL | WAYS[way]))
        return found[way]

    return once


def told(found):
    document = found.timeless()
    for name in ("runner_option", "beam"):
        document["provenance"]["config"].pop(name, None)
    return document


# Every kind of job on the cheapest engine, and a job of each kind of worker on each of the others.
CASES = {
    "prism, 2 threads": [*(("prism", way) for way in ("iterative", "priority", "baseline")), ("prism--process", "paper")],
    "flink (embedded), parallelism 2": [("flink-embedded-process", "batch")],
    "flink (cluster), parallelism 2": [("flink-cluster-process", "baseline")],
    "spark (embedded), parallelism 2": [("spark-embedded-process", "batch")],
    "spark (cluster), parallelism 2": [("spark-cluster-process", "batch")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "way", "name"), [(*case, name) for name, cases in CASES.items() for case in cases]
)
def test_same_result(tmp_path, planted, engines, in_process, monkeypatch, engine, way, name):
    expected = in_process(way)
    # As if there were more workers than blocks: the tables of shards are shuffled and summed.
    monkeypatch.setattr(
        counter, "work_items", lambda blocks, shards, *_: work_items(blocks, shards, 99.0, 99)
    )
    found = search(tmp_path, data=planted, **(SMALL | WAYS[way] | engines.options(engine)))
    assert found.slices_bytes == expected.slices_bytes
    assert told(found) == told(expected)
    assert way == "baseline" or found.document["testing"]["significant"] > 5
    assert found.document["search"]["iterations"][0]["shuffled_bytes"] > 0
    assert found.document["provenance"]["runner"] == name


class _Count(beam.DoFn):
    """Says which process did it, and counts that it was done."""

    def __init__(self, folder):
        self.folder = folder
        self.counted = beam.metrics.Metrics.counter("slicebeam", "shuffled_bytes")

    def process(self, number):
        time.sleep(0.5)
        (self.folder / f"{number}-{os.getpid()}").touch()
        self.counted.inc(1000)
        yield number


@pytest.mark.parametrize("engine", ["prism", "flink-cluster-process", "spark-cluster-process"])
def test_work_is_spread_over_the_nodes_and_counted(tmp_path, engines, engine):
    """Each node has one worker process, so that both are at work where both nodes are."""
    done = tmp_path / "done"
    done.mkdir()
    options = engines.options(engine)
    with Engine(runner_config(**named(options))) as started:
        started.log_to(tmp_path / "log")
        cost = started.run(
            lambda pipeline: pipeline | beam.Create(range(8)) | beam.ParDo(_Count(done)), "spread"
        )
    by_process = Counter(path.name.partition("-")[2] for path in done.iterdir())
    assert sum(by_process.values()) == 8
    assert len(by_process) == (1 if engine == "prism" else 2)
    # Committed on the one, attempted on the other; nothing was done twice here.
    assert cost.shuffled_bytes == 8000
    assert cost.wall_seconds > 0.5
    assert cost.cpu_seconds > 0.0


def test_the_same_discovery(tmp_path, engines, monkeypatch):
    monkeypatch.setattr(encoded_dataset, "LEAST_PASS_SECONDS", 0.0)
    monkeypatch.setattr(fitting, "_GROUP_ROWS", 400)
    monkeypatch.setattr(fitting, "MOST_ITERATIONS", 2)
    data = planted_file(tmp_path / "data.parquet", rows=1200, row_groups=3)
    options = {**COLUMNS, "components": (6,), "dimensions": 6, "chunk_rows": 300, "data": (data,)}
    alone = discovery(tmp_path / "alone", **options)
    found = discovery(tmp_path / "found", **options, **engines.options("prism"))
    assert found.slices_bytes == alone.slices_bytes
    for name in ("discovery", "slices", "testing", "global"):
        assert found.document[name] == alone.document[name]
    assert found.document["testing"]["significant"] >= 2
    assert found.document["discovery"]["resolutions"][0]["iterations"] == 2
