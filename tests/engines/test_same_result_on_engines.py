"""Every engine finds the same, to the byte."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pytest

from slicebeam.pipelines.run.engine import Engine, runner_config
from tests.pipelines.search.test_same_result import OPTIONS, WAYS
from tests.running import Found, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.engines.started import Engines

pytestmark = pytest.mark.engine

# Chunks and blocks small enough that there is something to spread.
CUT = {"chunk_rows": 4000, "memory_budget": "16MB"}


@pytest.fixture(scope="module")
def in_process(
    tmp_path_factory: pytest.TempPathFactory, adult_path: Path
) -> Callable[[str], Found]:
    found: dict[str, Found] = {}

    def once(way: str) -> Found:
        if way not in found:
            folder = tmp_path_factory.mktemp(way)
            found[way] = search(folder, data=(str(adult_path),), **(OPTIONS | WAYS[way]))
        return found[way]

    return once


def told(found: Found) -> dict[str, Any]:
    """The document without times and the engine."""
    document = found.timeless()
    document["provenance"]["config"].pop("runner_option", None)
    return document


# The others are in benchmarks/engines.py, which takes a quarter of an hour.
@pytest.mark.parametrize(
    ("engine", "way", "name"),
    [
        ("prism", "batch", "prism, 2 threads"),
        ("prism", "iterative", "prism, 2 threads"),
        ("prism", "priority", "prism, 2 threads"),
        ("prism", "baseline", "prism, 2 threads"),
        ("prism--external", "paper", "prism, 2 threads"),
        ("flink-embedded", "batch", "flink 1.19 (embedded), parallelism 2"),
        ("flink-embedded-external", "baseline", "flink 1.19 (embedded), parallelism 2"),
        ("flink-cluster-external", "batch", "flink 1.19 (cluster), parallelism 2"),
        ("flink-cluster-loopback", "priority", "flink 1.19 (cluster), parallelism 2"),
        ("flink-cluster-process", "baseline", "flink 1.19 (cluster), parallelism 2"),
        ("spark-embedded", "batch", "spark (embedded), parallelism 2"),
        ("spark-embedded", "iterative", "spark (embedded), parallelism 2"),
        ("spark-cluster-external", "batch", "spark 3.5.0 (cluster), parallelism 2"),
    ],
)
def test_same_result(
    tmp_path: Path,
    adult_path: Path,
    engines: Engines,
    in_process: Callable[[str], Found],
    engine: str,
    way: str,
    name: str,
) -> None:
    options = OPTIONS | WAYS[way] | CUT | engines.options(engine)
    found = search(tmp_path, data=(str(adult_path),), **options)
    expected = in_process(way)
    assert found.slices_bytes == expected.slices_bytes
    assert told(found) == told(expected)
    assert found.document["testing"]["significant"] > 5
    assert found.document["provenance"]["runner"] == name


class _Count(beam.DoFn):
    """Says which process did it, and counts that it was done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counted = beam.metrics.Metrics.counter("slicebeam", "shuffled_bytes")

    def process(self, number: int) -> Iterator[int]:
        time.sleep(0.5)
        (self.folder / f"{number}-{os.getpid()}").touch()
        self.counted.inc(1000)
        yield number


@pytest.mark.parametrize("engine", ["prism", "flink-cluster-external", "spark-cluster-external"])
def test_work_is_spread_over_the_nodes_and_counted(
    tmp_path: Path, engines: Engines, engine: str
) -> None:
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
