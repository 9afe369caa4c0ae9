"""Every engine finds the same, to the byte; how work is cut, tests/pipelines/search/test_same_result.py shows."""

import os
import time
from collections import Counter

import apache_beam as beam
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.search import slice_counter
from slicebeam.transforms.count.combine_slice_metrics import work_items
from tests.pipelines.search.test_same_result import OPTIONS, WAYS
from tests.running import search

pytestmark = pytest.mark.engine
SMALL = OPTIONS | {"features": ("age", "education", "occupation"), "chunk_rows": 700}


@pytest.fixture(scope="module")
def data(tmp_path_factory, adult_path):
    path = tmp_path_factory.mktemp("data") / "small.parquet"
    pq.write_table(pq.read_table(adult_path).slice(0, 2000), path, row_group_size=700)
    return path


@pytest.fixture(scope="module")
def in_process(tmp_path_factory, data):
    found = {}

    def once(way):
        if way not in found:
            folder = tmp_path_factory.mktemp(way)
            found[way] = search(folder, data=data, **(SMALL | WAYS[way]))
        return found[way]

    return once


def told(found):
    document = found.timeless()
    document["provenance"]["config"].pop("runner_option", None)
    return document


# Every kind of job on the cheapest engine, and a job of each kind of worker on each of the others.
CASES = {
    "prism, 2 threads": [*(("prism", way) for way in ("iterative", "priority", "baseline")), ("prism--process", "paper")],
    "flink 1.19 (embedded), parallelism 2": [("flink-embedded-process", "batch")],
    "flink 1.19 (cluster), parallelism 2": [("flink-cluster-process", "baseline")],
    "spark (embedded), parallelism 2": [("spark-embedded-process", "batch")],
    "spark 3.5.0 (cluster), parallelism 2": [("spark-cluster-process", "batch")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "way", "name"), [(*case, name) for name, cases in CASES.items() for case in cases]
)
def test_same_result(tmp_path, data, engines, in_process, monkeypatch, engine, way, name):
    expected = in_process(way)
    # As if there were more workers than blocks: the tables of shards are shuffled and summed.
    monkeypatch.setattr(
        slice_counter, "work_items", lambda blocks, shards, *_: work_items(blocks, shards, 99.0, 99)
    )
    found = search(tmp_path, data=data, **(SMALL | WAYS[way] | engines.options(engine)))
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
