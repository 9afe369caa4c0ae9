"""Is a metric worse on slices by more than is tolerated? A test of each slice against the margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.share import Share
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance import hall, margins

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Comparison


def has_margin_test(name: str, comparison: Comparison, *, weighted: bool) -> bool:
    """Return whether a metric can be tested against a margin: shares that count examples, and means."""
    own = metric(name)
    # F1 is another function of its share.
    is_share = type(own) is Share and not weighted
    return isinstance(own, Mean) or (
        is_share and (comparison == "overall" or own.is_within_fixed)  # type: ignore[attr-defined]
    )


def worse_by_more_p(
    name: str,
    sums: IntArray,
    totals: IntArray,
    space: StatisticSpace,
    tolerance: float,
    alternative: Alternative,
) -> FloatArray:
    """Return the p-value [slices] of "not worse by more than the tolerance", in the metric's unit.

    Against all examples, of which the slice is a share f, a difference d is one of d/(1 − f) from the others.
    """
    own = metric(name)
    tail = own.tail("worse")
    margin = np.full(len(sums), -tolerance if own.higher_is_better else tolerance)
    whole = totals[None, : space.columns]
    if isinstance(own, Mean):
        if space.comparison == "baseline":
            moments = own.moments(sums, space, "change")
            t = hall.against_zero(moments, own.of_all(totals, space, "change"))
        else:
            skewness = float(own.of_all(totals, space).skewness)
            parts = (own.moments(some, space, skewness=skewness) for some in (sums, whole - sums))
            t = hall.against_rest(*parts)
            outside = 1.0 - space.weights(sums).sum(axis=1) / space.weights(whole).sum()
            margin = margin / np.where(outside > 0, outside, 1.0)
        p, _ = t._replace(difference=t.difference - margin).p_value(tail)
    else:
        if not isinstance(own, Share):
            raise TypeError(f"{name} has no test against a margin")
        counts, (marked, within) = space.counts(sums), own.parts(space)
        n, x = (counts[:, cells].sum(axis=1) for cells in (within, marked))
        if space.comparison == "baseline":
            before, _ = own.parts(space, old=True)
            gained, lost = (
                counts[:, cells].sum(axis=1) for cells in (marked & ~before, before & ~marked)
            )
            p = margins.paired_p_value(gained, lost, n, margin, tail)
        else:
            everything = space.counts(whole)
            N, K = (int(everything[:, cells].sum()) for cells in (within, marked))
            margin = margin * N / np.maximum(N - n, 1)
            p = margins.unpaired_p_value(x, n, K - x, N - n, margin, tail)
    return np.minimum(2.0 * p, 1.0) if alternative == "both" else p
