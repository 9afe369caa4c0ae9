"""Which slices a run reports, and in which order: of each metric the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.pipelines.search.refinement_labels import says_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.search.results import MetricResult, Results


@dataclass(frozen=True)
class Reported:
    """The slices that a run reports, as positions in its `Results`.

    ``positions``: int64 [reported] each slice once: those of the first metric, then those that only
    the second one reports, and so on. ``by_metric``: of each metric int64 [reported by it], the
    worst first.
    """

    positions: NDArray[np.int64]
    by_metric: tuple[NDArray[np.int64], ...]

    def listed(self, most: int, needed: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the slices that a document lists.

        ``needed``: int64 [needed] positions that are listed in any case. Returns in the order of
        ``positions``, those that are not among them last. Where there are more slices than
        ``most``, every metric has as many as any other.
        """
        others = np.setdiff1d(needed, self.positions)
        every = np.concatenate([self.positions, others])
        if every.size <= most:
            return every
        last = max(int(one.max(initial=0)) for one in (every, *self.by_metric))
        best = np.full(last + 1, every.size)
        for order in self.by_metric:
            best[order] = np.minimum(best[order], np.arange(order.size))
        best[needed] = -1
        return every[np.sort(np.argsort(best[every], kind="stable")[:most])]


def joined(orders: Sequence[NDArray[np.int64]]) -> Reported:
    """Return the reported slices from the order of each metric."""
    every = np.concatenate(orders)
    _, first = np.unique(every, return_index=True)
    return Reported(every[np.sort(first)], tuple(orders))


def report_order(results: Results) -> Reported:
    """Return the slices to report, of each metric the worst first.

    These are the significant slices that are *new* or *refine* in a metric, each set of examples
    once, by the confidence bound of the delta that is nearer to no difference: slices that are
    surely bad come before slices that may be very bad.
    """
    return joined([_worst_first(results, measured) for measured in results.metrics])


def said_by(results: Results, measured: MetricResult) -> NDArray[np.int64]:
    """Return the positions of the slices that say more in a metric, each set of examples once."""
    return np.flatnonzero(says_more(measured.label) & (results.same_as == results.keys))


def _worst_first(results: Results, measured: MetricResult) -> NDArray[np.int64]:
    chosen = said_by(results, measured)
    delta = measured.delta[chosen]
    upward = np.where(delta > 0, measured.low[chosen], -measured.high[chosen])
    # With --alternative both the worse slices come first.
    order = np.lexsort(
        (results.keys[chosen], results.levels[chosen], -upward, ~measured.worse[chosen])
    )
    return chosen[order]


def given_order(results: Results) -> Reported:
    """Return all given slices, the significant ones of each metric first, the worst of each first.

    By the confidence bound of the delta that is nearer to no difference, those without one last.
    """
    orders = [_given_first(results, measured) for measured in results.metrics]
    significant = [
        order[measured.significant[order]]
        for order, measured in zip(orders, results.metrics, strict=True)
    ]
    return Reported(joined([*significant, orders[0]]).positions, tuple(orders))


def _given_first(results: Results, measured: MetricResult) -> NDArray[np.int64]:
    worse = measured.worse
    harm = np.where(worse, 1, -1) * np.where(measured.delta > 0, measured.low, -measured.high)
    harm = np.where(np.isnan(harm), -np.inf, harm)
    # Nothing says of a slice without a delta that it is worse, whichever way is better.
    is_unknown = np.isnan(measured.delta)
    return np.lexsort((results.keys, -harm, ~worse, is_unknown, ~measured.significant))
