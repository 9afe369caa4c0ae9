"""The cover: of many overlapping slices, the few that explain most of what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.measures.cover import Cover, greedy_cover
from slicebeam.metrics.registry import metric
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.transforms.count.count_overlaps import CountOverlaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.results import Results

# The cover is chosen among so many of the reported slices, the worst ones.
_CANDIDATES = 128
# CPU time of looking at an example, measured with as many candidates.
_SECONDS_PER_ROW = 5e-7
_NOTHING = Cover(np.zeros(0, np.int64), np.zeros(0))


def cover(
    config: RunConfig,
    prepared: EncodedDataset,
    results: Results,
    order: NDArray[np.int64],
    work: WorkFolder,
    engine: Engine,
) -> Cover:
    """Return the cover of the worst reported slices, as positions in the order of the report.

    Empty for a metric whose examples have no share of their own in it, such as AUC.
    """
    own, space = metric(config.metric[0]), prepared.space
    first = results.metrics[0]
    worse = (first.delta[order] > 0) != own.higher_is_better
    # What is better explains nothing of what is worse: it is covered with --alternative better.
    harmful = config.alternative != "better"
    some = np.flatnonzero(worse == harmful)[:_CANDIDATES]
    keys = results.keys[order[some]]
    if keys.size == 0 or own.excess(results.sums[:0], prepared.of_all, space) is None:
        return _NOTHING
    plain = replace(space, ranked=False)
    transform = CountOverlaps(
        keys,
        prepared.lattice,
        prepared.lattice.by_singleton(results.keys, results.sizes),
        plain,
        prepared.scaling,
        prepared.shards,
        engine.workers,
        work.folder("overlaps"),
    )
    noted = run_stage(
        work,
        engine,
        "overlaps",
        lambda pipeline: pipeline | "Count overlaps" >> transform,
        transform.is_written,
        seconds=prepared.rows * _SECONDS_PER_ROW,
        facts=lambda _: {"parts": transform.parts()},
    )
    members, sums = transform.read(noted["parts"])
    # The sums of all examples, without their score buckets too.
    kept = space.cell_columns + len(space.terms)
    totals = np.concatenate([prepared.totals[:kept], prepared.totals[space.raw_columns :]])
    excess = own.excess(sums, totals, plain)
    if excess is None:
        return _NOTHING
    chosen, explained = greedy_cover(members, excess if harmful else -excess)
    return Cover(some[chosen], explained)
