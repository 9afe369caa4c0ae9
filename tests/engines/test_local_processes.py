"""Worker processes share a job, and end with the run, however it ends: interrupted, or on a full disk."""

import os
import signal
import subprocess
import sys
from collections import Counter
from functools import reduce
from operator import or_

import apache_beam as beam
import psutil
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.run.engine import Engine, runner_config
from tests.conftest import slow
from tests.object_stores import ROOT
from tests.refusals import refuses
from tests.running import search
from tests.waiting_jobs import command, forked_search_at_work


def children(*, recursive=False):
    return set(psutil.Process().children(recursive=recursive))


@pytest.fixture
def engine(tmp_path):
    before = children(recursive=True)
    with Engine(runner_config("direct_multi", ())) as started:
        started.log_to(tmp_path / "log", note=(tmp_path / "notes").write_text)
        yield started
        processes = children(recursive=True) - before
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


def numbers(*steps):
    return lambda pipeline: reduce(or_, steps, pipeline | beam.Create(range(8)))


class Write(beam.DoFn):
    """Notes which process did an element, and counts it."""

    def __init__(self, folder):
        self.folder = folder
        self.counted = beam.metrics.Metrics.counter("slicebeam", "shuffled_bytes")

    def process(self, number):
        (self.folder / f"{number}-{os.getpid()}").touch()
        self.counted.inc(1000)
        yield number % 2, number


class WriteOfBundles(Write):
    """As the functions of Beam that run models, it works only in a bundle."""

    def setup(self):
        self.is_set_up = True

    def process(self, number):
        assert self.is_set_up
        yield from super().process(number)


def written(folder):
    names = [path.name.partition("-") for path in folder.iterdir()]
    assert sorted(int(number) for number, _, _ in names) == list(range(8))
    return Counter(int(pid) for _, _, pid in names)


def test_they_share_what_is_grouped_and_what_is_not(engine, tmp_path):
    folders = [tmp_path / name for name in ("plain", "bundles", "spread", "grouped", "sums")]
    plain, bundles, spread, grouped, sums = folders
    for folder in folders:
        folder.mkdir()

    def total(element):
        (sums / f"{element[0]}-{sum(element[1])}-{os.getpid()}").touch()

    cost = engine.run(numbers(beam.ParDo(Write(plain))), "a")
    engine.run(numbers(beam.ParDo(WriteOfBundles(bundles))), "bundles")
    engine.run(numbers(beam.Reshuffle(), beam.ParDo(Write(spread))), "b")
    more = engine.run(numbers(beam.ParDo(Write(grouped)), beam.GroupByKey(), beam.Map(total)), "c")
    assert cost.shuffled_bytes == more.shuffled_bytes == 8000
    processes = written(plain) + written(spread) + written(grouped)
    assert len(processes) == 2
    assert sorted(written(bundles).values()) == [4, 4]
    assert written(bundles).keys() == processes.keys()
    assert os.getpid() not in processes
    assert {path.name.rpartition("-")[0] for path in sums.iterdir()} == {"0-12", "1-16"}
    assert 0 < engine._backend.cpu_seconds() < 60
    assert not (tmp_path / "notes").exists()


def test_a_model_is_run_by_all_processes_and_gives_the_same_bytes(tmp_path, adult_path):
    table = pq.read_table(adult_path).slice(0, 900)
    names = ["hours" if name == "hours-per-week" else name for name in table.column_names]
    data = tmp_path / "data.parquet"
    pq.write_table(table.rename_columns(names), data, row_group_size=300)
    options = {"label": "income", "model": "tests.python_models:predicted_class"}
    options |= {"data": data, "features": ("age", "hours", "sex"), "chunk_rows": 300}
    names = ("direct", "direct_multi")
    alone, several = (search(tmp_path / one, runner_config=one, **options) for one in names)
    assert several.slices_bytes == alone.slices_bytes
    assert several.timeless() == alone.timeless()


def test_what_cannot_be_shared_is_done_by_the_driver_which_says_so(engine, tmp_path):
    folder = tmp_path / "sides"
    folder.mkdir()

    def build(pipeline):
        side = pipeline | "Side" >> beam.Create([1])
        numbers = pipeline | beam.Create(range(8)) | beam.ParDo(Write(folder))
        return numbers | beam.Map(lambda pair, more: pair, beam.pvalue.AsSingleton(side))

    assert engine.run(build, "a").shuffled_bytes == 8000
    assert written(folder).keys() == {os.getpid()}
    assert (tmp_path / "notes").read_text().startswith("one process does a job")


class Refuse(beam.DoFn):
    def process(self, number):
        if number == 5:
            raise InputError("the data has a 5")
        yield number


class RefuseOfBundles(Refuse):
    def setup(self):
        pass


# Processes are started again each time.
@pytest.mark.parametrize("function", [Refuse, slow(RefuseOfBundles)])
def test_an_error_arrives_in_its_words(engine, function):
    refuses(InputError, r"^the data has a 5$", engine.run, numbers(beam.ParDo(function())), "a")


@pytest.mark.slow
def test_an_unforeseen_error_arrives_with_a_log(engine, tmp_path):
    def division(number):
        return number / (number - 4)

    with pytest.raises(EngineError, match="ZeroDivisionError: division by zero; more in"):
        engine.run(numbers(beam.Map(division)), "b")
    assert "in division" in (tmp_path / "log").read_text()


def test_one_that_is_killed_is_an_error():
    before = children()
    with Engine(runner_config("direct_multi", ())) as engine:
        (forking,) = children() - before
        # With the workers, where it has forked them already.
        os.killpg(forking.pid, signal.SIGKILL)
        refuses(EngineError, "a worker process ended", engine.run, numbers(beam.Map(str)), "a")


def test_nothing_heavy_is_loaded_before_they_start():
    """They load it while this process does."""
    program = "import slicebeam.pipelines.run.engine, sys; print(*sys.modules)"
    path = os.pathsep.join([str(ROOT / ".typing"), str(ROOT)])
    how = {"capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": path}}
    done = subprocess.run([sys.executable, "-c", program], check=True, **how)
    assert {"apache_beam", "numpy", "pyarrow"}.isdisjoint(done.stdout.split())


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker(commands, tmp_path, adult_path):
    how = "direct_multi", "iteration-1"
    search, workers = forked_search_at_work(commands, tmp_path, adult_path, *how)
    assert len(workers) == 3
    search.send(signal.SIGKILL)
    assert search.ended(60).code == -signal.SIGKILL
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


@pytest.mark.slow
def test_a_killed_worker_is_a_line_and_the_run_is_resumed(commands, tmp_path, adult_path):
    output = tmp_path / "out"
    how = "direct_multi", "iteration-1"
    search, workers = forked_search_at_work(commands, tmp_path, adult_path, *how)
    workers[-1].kill()
    ended = search.ended(60)
    assert ended.code == 3, ended
    first, second = ended.said.strip().splitlines()
    assert first.startswith("slicebeam: ")
    assert "--resume" in second
    assert not (output / "changelist.json").exists()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert run([*command(output, adult_path, "direct_multi")[3:], "--resume"]) == 0
    assert (output / "changelist.json").exists()


@pytest.fixture
def small_disk(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_publishes_nothing_and_can_be_resumed(small_disk, adult_path, capfd):
    output = small_disk / "out"
    command = ["search", f"--data={adult_path}", f"--output={output}", "--label=income"]
    command += ["--prediction=prediction", "--features=age,education,occupation", "--quiet"]
    sizes, codes = [150, 250, 350, 3000], []
    for size in sizes:
        subprocess.run(["mount", "-o", f"remount,size={size}k", str(small_disk)], check=True)
        codes.append(run([*command, "--resume"]))
        if codes[-1] == 0:
            break
        message = capfd.readouterr().err
        assert len(message.splitlines()) == 2
        assert "No space left on device" in message
        assert "--resume" in message
        assert not list(output.glob("*.json"))
        assert not list(output.glob("*.parquet"))
    assert (codes[0], codes[-1]) == (3, 0)
    assert (output / "changelist.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["direct", "direct_multi"])
@pytest.mark.parametrize("stage", ["encode", "iteration-1"])
def test_interrupted(commands, tmp_path, adult_path, engine, stage):
    """Ctrl-C ends with 130 and one line, leaves no process, and the run can be resumed."""
    output = tmp_path / "out"
    search, workers = forked_search_at_work(commands, tmp_path, adult_path, engine, stage)
    # Two workers, and the process that they are forked from.
    assert len(workers) == (3 if engine == "direct_multi" else 0)
    search.send(signal.SIGINT)
    ended = search.ended(60)
    assert ended.code == 130, ended
    said = "slicebeam: interrupted; a search continues with the same options and --resume"
    assert ended.said.strip() == said
    assert not (output / "changelist.json").exists()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    if engine == "direct":
        assert run([*command(output, adult_path, engine)[3:], "--resume"]) == 0
        assert (output / "changelist.json").exists()
