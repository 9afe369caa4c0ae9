"""Every engine finds the same, to the byte."""

import os
import time
from collections import Counter

import apache_beam as beam
import pytest

from slicebeam.pipelines.run.engine import Engine, runner_config
from tests.pipelines.search.test_same_result import OPTIONS, WAYS
from tests.running import search

pytestmark = pytest.mark.engine

# Chunks and blocks small enough that there is something to spread.
CUT = {"chunk_rows": 4000, "memory_budget": "16MB"}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory, adult_path):
    found = {}

    def once(way):
        if way not in found:
            folder = tmp_path_factory.mktemp(way)
            found[way] = search(folder, data=adult_path, **(OPTIONS | WAYS[way]))
        return found[way]

    return once


def told(found):
    """The document without times and the engine."""
    document = found.timeless()
    document["provenance"]["config"].pop("runner_option", None)
    return document


# The others are in benchmarks/engines.py, which takes a quarter of an hour.
CLUSTER = "(cluster), parallelism 2"
CASES = {
    "prism, 2 threads": [*(("prism", way) for way in ("batch", "iterative", "priority", "baseline")), ("prism--process", "paper")],
    "flink 1.19 (embedded), parallelism 2": [("flink-embedded", "batch"), ("flink-embedded-process", "baseline")],
    f"flink 1.19 {CLUSTER}": [("flink-cluster-process", "batch"), ("flink-cluster-loopback", "priority"), ("flink-cluster-process", "baseline")],
    "spark (embedded), parallelism 2": [("spark-embedded", "batch"), ("spark-embedded", "iterative")],
    f"spark 3.5.0 {CLUSTER}": [("spark-cluster-process", "batch")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "way", "name"), [(*case, name) for name, cases in CASES.items() for case in cases]
)
def test_same_result(tmp_path, adult_path, engines, in_process, engine, way, name):
    options = OPTIONS | WAYS[way] | CUT | engines.options(engine)
    found = search(tmp_path, data=adult_path, **options)
    expected = in_process(way)
    assert found.slices_bytes == expected.slices_bytes
    assert told(found) == told(expected)
    assert found.document["testing"]["significant"] > 5
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
    with Engine(runner_config(options["runner_config"], options["runner_option"])) as started:
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
