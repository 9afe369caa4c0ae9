"""What a run that finds nothing worse says of itself: its nearest misses, and the falls that it would notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.registry import metric
from slicebeam.metrics.testing.power import POWER, smallest_fall
from slicebeam.pipelines.changelist.testing import Noticeable
from slicebeam.pipelines.search.duplicates import nested_classes
from slicebeam.pipelines.search.second_tests import q_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.search.iteration_records import SearchResult
    from slicebeam.pipelines.search.results import MetricResult, Results

SLICE_SIZES = (100, 1_000, 10_000)
_MOST_MISSES = 3
# So many slices are looked at for misses of which none is a part of another.
_CANDIDATES = 200
_TINY = 1e-30


def noticeable(results: Results, name: str) -> Iterator[Noticeable]:
    """Yield the smallest fall of a metric that is noticed with probability `POWER`, over all examples and on slices.

    Slices by the strictest threshold of any level, at which a single slice is significant.
    """
    config, prepared = results.config, results.prepared
    if config.group or config.resamples_examples:
        return
    measured, everything = metric(name), prepared.slices()
    if everything.is_paired:
        alpha = config.used_alpha / len(config.metric)
        fall = smallest_fall(measured, everything, None, alpha, "both")
        if fall is not None:
            yield Noticeable(n=None, fall=fall, power=POWER)
    alpha = config.used_alpha / _strictness(config, results.searched)
    for n in SLICE_SIZES:
        if n >= prepared.rows:
            return
        fall = smallest_fall(measured, everything, n, alpha, config.alternative)
        if fall is not None:
            yield Noticeable(n=n, fall=fall, power=POWER)


def _strictness(config: RunConfig, searched: SearchResult) -> float:
    """Return by how much the correction raises the p-value of a slice that alone is significant, at most."""
    family, p = searched.tests_per_level, np.array([_TINY])
    levels = np.flatnonzero(family) + 1
    # Each level by itself: a slice that alone has a small p-value.
    q = [q_values(config, p, np.array([level]), family).item() for level in levels]
    return max(q, default=_TINY) / _TINY


def nearest_misses(results: Results, measured: MetricResult) -> NDArray[np.int64]:
    """Return the positions of the worse slices with the smallest p-values; the nearest first.

    None is a part of another, and none has the same examples as another.
    """
    lattice = results.prepared.lattice
    possible = np.flatnonzero(measured.worse & (measured.p_value < 1))
    nearest = possible[np.argsort(measured.p_value[possible], kind="stable")[:_CANDIDATES]]
    conditions = [
        set(digits[digits > 0].tolist()) for digits in lattice.digits(results.keys[nearest])
    ]
    examples = np.arange(nearest.size)
    # Only slices with equal sums can be the same.
    if len(np.unique(results.sums[nearest], axis=0)) < nearest.size:
        examples = nested_classes(results.keys, results.sizes, nearest, lattice)
    chosen: list[int] = []
    for at, mine in enumerate(conditions):
        parts = (mine <= conditions[other] or mine >= conditions[other] for other in chosen)
        if not any(parts) and examples[at] not in examples[chosen]:
            chosen.append(at)
            if len(chosen) == _MOST_MISSES:
                break
    return nearest[chosen]
