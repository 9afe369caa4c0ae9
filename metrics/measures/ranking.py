"""AUC, from the slice's counts of scores by bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from slicebeam.metrics.counting.statistic_space import GAINS, Term
from slicebeam.metrics.intervals import auc_intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.significance import auc, hall
from slicebeam.metrics.significance.outcome_codes import LEAST_DENOMINATOR, Method, Reason, Tested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Comparison

    Sums = IntArray


class AreaUnderCurve(base.Metric):
    """P(score of a positive > score of a negative) + ½P(equal), with scores in buckets."""

    name, title = "auc", "AUC"
    higher_is_better = True
    range = (0.0, 1.0)
    kind: Literal["pointwise", "aggregate"] = "aggregate"
    undefined = "all labels are one class"
    indivisible = "it compares pairs of examples, so no example has a share of its own in it"
    needs = base.Needs(indicators=("positive",), ranked=True)

    @staticmethod
    def terms(comparison: Comparison) -> tuple[Term, ...]:
        """Return the sums of the gains in placement, of which two models need the variance."""
        if comparison == "overall":
            return ()
        return tuple(Term("auc", source, power) for source in GAINS for power in (1, 2))

    def needs_rows(self, space: StatisticSpace) -> bool:
        """See `Metric.needs_rows`: bucket counts say nothing of how two scores go together."""
        return space.comparison == "baseline" or space.weighted

    @staticmethod
    def _classes(sums: Sums, space: StatisticSpace) -> tuple[FloatArray, FloatArray]:
        """Return positives and negatives [slices]; Kish's effective numbers with weights."""
        positive = space.holds("positive")
        sizes = []
        for cells in (positive, ~positive):
            n = space.counts(sums)[..., cells].sum(axis=-1).astype(np.float64)
            if space.weighted:
                first = space.weights(sums)[..., cells].sum(axis=-1)
                second = space.weights(sums, 2)[..., cells].sum(axis=-1)
                n = np.divide(first**2, second, out=np.zeros(n.shape), where=second > 0)
            sizes.append(n)
        return sizes[0], sizes[1]

    def value(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """See `Metric.value`."""
        return space.placements(sums, old=old).auc

    def value_of_raw(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """See `Metric.value_of_raw`; the area alone, for thousands of replicates."""
        histogram = space.histogram(sums, old=old).astype(np.float64)
        negatives, positives = histogram[:, 0], histogram[:, 1]
        below = np.cumsum(negatives, axis=1) - 0.5 * negatives
        pairs = positives.sum(axis=1) * negatives.sum(axis=1)
        won = (positives * below).sum(axis=1)
        return np.asarray(np.divide(won, pairs, out=np.full(won.shape, np.nan), where=pairs > 0))

    def complement(self, sums: Sums, totals: Sums, space: StatisticSpace) -> FloatArray:
        """See `Metric.complement`; known since the buckets were counted."""
        return space.complement_auc(sums)

    def value_error(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """See `Metric.value_error`: pairs with scores in the same bucket count one half."""
        return space.auc_error(sums, old=old)

    def complement_error(self, sums: Sums, space: StatisticSpace) -> FloatArray:
        """See `Metric.complement_error`."""
        return space.complement_auc_error(sums)

    def least_test_p(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        alternative: Alternative,
        tested: Tested,
    ) -> FloatArray:
        """See `Metric.least_test_p`: the test is monotone in the AUC, so an end has the smallest."""
        error = self.value_error(sums, space)
        if space.comparison == "baseline":
            error = error + self.value_error(sums, space, old=True)
        p = tested.p.copy()
        rough = np.flatnonzero((error > 0) & (tested.reasons == 0))
        tail = self.tail(alternative)
        for sign, side in ((1.0, "upper"), (-1.0, "lower")):
            if rough.size and tail in ("both", side):
                shifted = self._test(sums[rough], totals, space, alternative, sign * error[rough])
                p[rough] = np.minimum(p[rough], shifted.p)
        return p

    def untestable(self, sums: Sums, totals: Sums, space: StatisticSpace) -> NDArray[np.int8]:
        """Return the reasons [slices] against a test; 0 for none."""
        positives, negatives = self._classes(sums, space)
        fewest = np.minimum(positives, negatives)
        reasons = np.where(fewest < LEAST_DENOMINATOR, Reason.SMALL_DENOMINATOR, 0)
        reasons[fewest == 0] = Reason.UNDEFINED
        if space.comparison == "overall":
            rest = totals[None, : space.columns] - sums
            reasons[~(space.weights(rest).sum(axis=1) > 0)] = Reason.WHOLE
        return reasons.astype(np.int8)

    def test(
        self, sums: Sums, totals: Sums, space: StatisticSpace, alternative: Alternative
    ) -> Tested:
        """Z with the null variance; for two models z by the gains in placement among all examples.

        The latter is quick and near (DeLong, DeLong and Clarke-Pearson 1988, with the placements
        among all examples in place of those in the slice); `needs_rows` has the rest.
        """
        return self._test(sums, totals, space, alternative, np.zeros(len(sums)))

    def _test(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        alternative: Alternative,
        shift: FloatArray,
    ) -> Tested:
        """Test slices whose AUC is by so much [slices] higher."""
        tail = self.tail(alternative)
        reasons = self.untestable(sums, totals, space)
        n1, n0 = self._classes(sums, space)
        own = space.placements(sums)
        ready = reasons == 0
        p = np.ones(len(sums))
        if space.comparison == "baseline":
            variance = self._gain_variance(sums, space)
            delta = self.delta(sums, totals, space) + shift
            unvarying = np.where(delta == 0, Reason.UNCHANGED, Reason.UNVARYING)
            reasons = np.where(ready & ~(variance > 0), unvarying, reasons).astype(np.int8)
            freedom = np.maximum(np.minimum(n1, n0) - 1.0, 1.0)
            p = hall.wald_p_value(delta, variance, freedom, tail)
            return Tested.by(Method.DELTA_METHOD, p, reasons)
        whole = totals[: space.columns]
        of_all = space.placements(whole)
        N1, N0 = self._classes(whole, space)
        if not float(of_all.spread1 + of_all.spread0) > 0:
            reasons[ready] = Reason.CONSTANT
            ready = reasons == 0
        area = own.auc + shift
        p[ready] = auc.z_p_value(area[ready], n1[ready], n0[ready], of_all, N1, N0, tail)
        return Tested.by(Method.AUC_Z, p, reasons)

    def _gain_variance(self, sums: Sums, space: StatisticSpace) -> FloatArray:
        variance = np.zeros(len(sums))
        sizes = self._classes(sums, space)
        for spread, n in zip(self._gain_spreads(sums, space), sizes, strict=True):
            variance += spread / np.maximum(n - 1.0, 1.0)
        return variance

    @staticmethod
    def _gain_spreads(sums: Sums, space: StatisticSpace) -> tuple[FloatArray, FloatArray]:
        """Return the variances [slices] of the gains of positives and of negatives."""
        positive = space.holds("positive")
        spreads = []
        for source, cells in zip(GAINS, (positive, ~positive), strict=True):
            n = np.maximum(space.counts(sums)[..., cells].sum(axis=-1), 1.0)
            first = space.term(sums, Term("auc", source, 1)) / n
            second = space.term(sums, Term("auc", source, 2)) / n
            spreads.append(np.maximum(second - first**2, 0.0))
        return spreads[0], spreads[1]

    def delta_interval(
        self, sums: Sums, totals: Sums, space: StatisticSpace, confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """See `slicebeam.metrics.intervals.auc_intervals`; by the gains for two models."""
        n1, n0 = self._classes(sums, space)
        if space.comparison == "baseline":
            return auc_intervals.gain_interval(
                self.delta(sums, totals, space),
                self._gain_spreads(sums, space),
                self._gain_spreads(totals[None, : space.columns], space),
                n1,
                n0,
                confidence,
            )
        whole = totals[: space.columns]
        N1, N0 = self._classes(whole, space)
        return auc_intervals.delta_interval(
            space.placements(sums), n1, n0, space.placements(whole), N1, N0, confidence
        )

    def value_interval(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """See `slicebeam.metrics.intervals.auc_intervals`."""
        return auc_intervals.value_interval(
            space.placements(sums, old=old), *self._classes(sums, space), confidence
        )

    def p_refine(
        self, sums: Sums, parents: Sums, totals: Sums, space: StatisticSpace, *, worse: bool
    ) -> FloatArray:
        """Z of the child's AUC as that of random positives and negatives of its parent."""
        tail = self.tail("worse" if worse else "better")
        n1, n0 = self._classes(sums, space)
        above1, above0 = self._classes(parents, space)
        if space.comparison == "overall":
            parent = space.placements(parents)
            return auc.z_p_value(self.value(sums, space), n1, n0, parent, above1, above0, tail)
        ahead = self.delta(sums, totals, space) - self.delta(parents, totals, space)
        # The child is part of its parent, so the difference varies by that much less.
        part = np.clip(1.0 - np.minimum(n1, n0) / np.maximum(np.minimum(above1, above0), 1.0), 0, 1)
        variance = self._gain_variance(sums, space) * part
        freedom = np.maximum(np.minimum(n1, n0) - 1.0, 1.0)
        return hall.wald_p_value(ahead, variance, freedom, tail)

    def inputs(self, sums: Sums, totals: Sums, space: StatisticSpace) -> dict[str, float]:
        """Return classes and placements of the slice and of all examples, and the gains' variance."""
        named: dict[str, float] = {}
        for prefix, some in (("slice", sums), ("all", totals[: space.columns])):
            n1, n0 = self._classes(some, space)
            named |= {f"{prefix} positives": float(n1), f"{prefix} negatives": float(n0)}
            for old in (False, True)[: space.sides]:
                own = space.placements(some, old=old)
                side = f"{prefix} old" if old else prefix
                named |= {f"{side} {name}": float(x) for name, x in own._asdict().items()}
        if space.comparison == "baseline":
            named["variance of the delta"] = float(self._gain_variance(sums[None, :], space)[0])
        return named
