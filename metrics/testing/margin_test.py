"""Is a metric worse on slices by more than is tolerated? A test of each slice against the margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.measures.cell_metric import CellMetric, tells_models_apart
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.share import Share
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance import hall, margins

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Comparison, Tail
    from slicebeam.metrics.measures.base import Metric

# Examples, or their effective number, on which two models differ.
_LEAST_TOLD_APART = 10.0


def has_margin_test(name: str, comparison: Comparison, *, weighted: bool) -> bool:
    """Return whether a metric can be tested against a margin."""
    own = metric(name)
    if comparison == "baseline":
        return isinstance(own, Mean | CellMetric)
    # F1 is another function of its share.
    return isinstance(own, Mean) or (type(own) is Share and not weighted)


def worse_by_more_p(
    name: str,
    sums: IntArray,
    totals: IntArray,
    space: StatisticSpace,
    tolerance: float,
    alternative: Alternative,
) -> FloatArray:
    """Return the p-value [slices] of "not worse by more than the tolerance", in the metric's unit.

    Counts have exact laws where they can, all else Hall's t of the difference less the margin. Against all examples,
    of which the slice is a share f, a difference d is one of d/(1 − f) from the others.
    """
    own = metric(name)
    tail = own.tail("worse")
    margin = np.full(len(sums), -tolerance if own.higher_is_better else tolerance)
    if space.comparison == "baseline":
        p = _paired_p(own, sums, totals, space, margin, tail)
    else:
        p = _unpaired_p(own, sums, totals, space, margin, tail)
    return np.minimum(2.0 * p, 1.0) if alternative == "both" else p


def _paired_p(
    own: Metric,
    sums: IntArray,
    totals: IntArray,
    space: StatisticSpace,
    margin: FloatArray,
    tail: Tail,
) -> FloatArray:
    if isinstance(own, Share) and own.is_within_fixed and not space.weighted:
        counts = space.counts(sums)
        _, n = own.part_counts(counts, space)
        return margins.paired_p_value(*own.discordant(counts, space), n, margin, tail)
    enough = np.ones(len(sums), bool)
    if isinstance(own, CellMetric):
        slices, population = own.own_cells(sums, totals, space)
        t, _ = own.change(slices, population)
        # By simulation: with fewer of them t is too liberal.
        enough = slices.kish(tells_models_apart(slices.space)) >= _LEAST_TOLD_APART
    elif isinstance(own, Mean):
        t = hall.against_zero(
            own.moments(sums, space, "change"), own.of_all(totals, space, "change")
        )
    else:
        raise TypeError(f"{own.name} has no test against a margin")
    p, _ = t._replace(difference=t.difference - margin).p_value(tail)
    return np.where(enough & ~np.isnan(p), p, 1.0)


def _unpaired_p(
    own: Metric,
    sums: IntArray,
    totals: IntArray,
    space: StatisticSpace,
    margin: FloatArray,
    tail: Tail,
) -> FloatArray:
    if isinstance(own, Mean):
        slices, rest, share = own.against_rest(sums, totals, space)
        t, outside = hall.against_rest(slices, rest), 1.0 - share
        apart = t.difference - margin / np.where(outside > 0, outside, 1.0)
        return t._replace(difference=apart).p_value(tail)[0]
    if not isinstance(own, Share):
        raise TypeError(f"{own.name} has no test against a margin")
    x, n = own.part_counts(space.counts(sums), space)
    K, N = (int(number[0]) for number in own.part_counts(space.counts(totals[None, :]), space))
    margin = margin * N / np.maximum(N - n, 1)
    return margins.unpaired_p_value(x, n, K - x, N - n, margin, tail)
