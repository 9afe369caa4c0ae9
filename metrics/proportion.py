"""Metrics that are a share of all the slice's examples: accuracy and the error rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics import base, intervals, refinement
from slicebeam.metrics.significance import hypergeometric, likelihood_ratio, mcnemar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.base import Alternative, CellSpace, Tail

# Above this variance of the hypergeometric the signed-root likelihood ratio is as good as the
# exact sum, which would need thousands of terms. The variance, not the expected count, says how
# close to normal the count is; where it is above 1,000 the expected count is too.
EXACT_UP_TO_VARIANCE = 1000.0

_OPPOSITE: dict[Tail, Tail] = {"upper": "lower", "lower": "upper", "both": "both"}


class ShareOfExamples(base.Metric):
    """The share of examples with, or without, an indicator.

    Parameters
    ----------
    name, title : what the metric is called
    indicator : the bit that is counted
    counts_set : whether the examples with the bit count, or those without
    higher_is_better : its direction
    """

    def __init__(
        self, name: str, title: str, indicator: str, *, counts_set: bool, higher_is_better: bool
    ) -> None:
        self.name, self.title = name, title
        self.indicator = indicator
        self.indicators = (indicator,)
        self.counts_set = counts_set
        self.higher_is_better = higher_is_better
        self.range = (0.0, 1.0)

    def _marked(
        self, counts: NDArray[np.int64], space: CellSpace, *, old: bool = False
    ) -> NDArray[np.int64]:
        """Return how many examples [slices] have the indicator."""
        marked: NDArray[np.int64] = counts[:, space.holds(self.indicator, old=old)].sum(axis=1)
        return marked

    def _marked_tail(self, tail: Tail) -> Tail:
        """Return the tail of the marked count that is the tail of the metric."""
        return tail if self.counts_set else _OPPOSITE[tail]

    def _discordant(
        self, counts: NDArray[np.int64], space: CellSpace
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the examples [slices] that only the new, and only the old model marks."""
        new = space.holds(self.indicator)
        old = space.holds(self.indicator, old=True)
        return counts[:, new & ~old].sum(axis=1), counts[:, old & ~new].sum(axis=1)

    def value(
        self, counts: NDArray[np.int64], space: CellSpace, *, old: bool = False
    ) -> NDArray[np.float64]:
        """See `Metric.value`."""
        n = counts.sum(axis=1)
        marked = self._marked(counts, space, old=old)
        counted = marked if self.counts_set else n - marked
        share: NDArray[np.float64] = np.divide(
            counted, n, out=np.full(n.shape, np.nan), where=n > 0
        )
        return share

    def test(
        self,
        counts: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: CellSpace,
        alternative: Alternative,
    ) -> base.Tested:
        """Hypergeometric mid-p or signed-root likelihood ratio; McNemar mid-p for two models."""
        tail = self._marked_tail(self.tail(alternative))
        if space.comparison == "baseline":
            return self._test_paired(counts, space, tail)
        n = counts.sum(axis=1)
        x = self._marked(counts, space)
        N = int(totals.sum())
        K = int(self._marked(totals[None, :], space)[0])
        reasons = np.zeros(n.shape, np.int8)
        reasons[n == N] = base.WHOLE
        if K in (0, N):
            reasons[:] = base.CONSTANT
        p = np.ones(n.shape)
        testable = reasons == 0
        exact = testable & (hypergeometric.variance(n, N, K) <= EXACT_UP_TO_VARIANCE)
        p[exact] = hypergeometric.mid_p(n[exact], x[exact], N, K, tail)
        large = testable & ~exact
        p[large] = likelihood_ratio.p_value(n[large], x[large], N, K, tail)
        return base.Tested(p, reasons)

    def _test_paired(self, counts: NDArray[np.int64], space: CellSpace, tail: Tail) -> base.Tested:
        only_new, only_old = self._discordant(counts, space)
        reasons = np.where(only_new + only_old == 0, base.UNCHANGED, 0).astype(np.int8)
        p = np.ones(reasons.shape)
        testable = reasons == 0
        p[testable] = mcnemar.mid_p(only_new[testable], only_old[testable], tail)
        return base.Tested(p, reasons)

    def delta_interval(
        self,
        counts: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: CellSpace,
        confidence: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Score-based intervals of the difference, see `slicebeam.metrics.intervals`."""
        n = counts.sum(axis=1)
        if space.comparison == "baseline":
            only_new, only_old = self._discordant(counts, space)
            if not self.counts_set:
                only_new, only_old = only_old, only_new
            return intervals.paired_difference(only_new, only_old, n, confidence)
        N = int(totals.sum())
        x, K = self._marked(counts, space), int(self._marked(totals[None, :], space)[0])
        if not self.counts_set:
            x, K = n - x, N - K
        return intervals.difference_from_overall(n, x, N, K, confidence)

    def value_interval(
        self, counts: NDArray[np.int64], space: CellSpace, confidence: float, *, old: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Wilson's score interval."""
        n = counts.sum(axis=1)
        marked = self._marked(counts, space, old=old)
        return intervals.wilson(marked if self.counts_set else n - marked, n, confidence)

    def p_refine(
        self,
        counts: NDArray[np.int64],
        parents: NDArray[np.int64],
        space: CellSpace,
        *,
        worse: bool,
    ) -> NDArray[np.float64]:
        """See `slicebeam.metrics.refinement`."""
        tail = self._marked_tail(self.tail("worse" if worse else "better"))
        n, n_parent = counts.sum(axis=1), parents.sum(axis=1)
        if space.comparison == "baseline":
            b, c = self._discordant(counts, space)
            b_parent, c_parent = self._discordant(parents, space)
            if tail == "lower":
                b, c, b_parent, c_parent = c, b, c_parent, b_parent
            return refinement.p_refine_paired(n, b, c, n_parent, b_parent, c_parent)
        x, x_parent = self._marked(counts, space), self._marked(parents, space)
        return refinement.p_refine_overall(n, x, n_parent, x_parent, worse_is_high=tail == "upper")
