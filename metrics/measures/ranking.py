"""AUC and average precision, from the slice's counts of scores by bucket."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.special import expit, stdtrit

from slicebeam.metrics.arrays import FloatArray, NDArray, Pair, ratio
from slicebeam.metrics.counting.statistic_space import GAINS, StatisticSpace, Term
from slicebeam.metrics.kinds import Alternative, Comparison, Tail
from slicebeam.metrics.measures.metric import Metric, Needs, OfOneModel, Slices
from slicebeam.metrics.significance import auc, hall, intervals, permutation
from slicebeam.metrics.significance.auc import Area, Sides
from slicebeam.metrics.significance.average_precision import PrecisionLaw, Precisions, log_odds
from slicebeam.metrics.significance.outcome_codes import LEAST_DENOMINATOR, Method, Reason, Tested


class _OfRanks(Metric):
    """What buckets bound."""

    higher_is_better = True
    range = (0.0, 1.0)
    kind: Literal["pointwise", "aggregate"] = "aggregate"

    @abstractmethod
    def area(self, slices: Slices) -> Area | Precisions:
        """Return the value, that outside each slice, and their errors: known since the buckets were counted."""

    def value(self, slices: Slices) -> FloatArray:
        return self.area(slices).value

    def value_error(self, slices: Slices) -> FloatArray:
        return self.area(slices).error

    def complement(self, slices: Slices) -> FloatArray:
        return self.area(slices).complement

    def complement_error(self, slices: Slices) -> FloatArray:
        return self.area(slices).complement_error

    def least_test_p(self, slices: Slices, alternative: Alternative, tested: Tested) -> FloatArray:
        """Return p at an end: the test is monotone in the value."""
        error = self.value_error(slices)
        if slices.is_paired:
            error = error + self.value_error(slices.old)
        p, tail = tested.p.copy(), self.tail(alternative)
        rough = np.flatnonzero((error > 0) & (tested.reasons == 0))
        for sign, side in ((1, "upper"), (-1, "lower")):
            if rough.size and tail in ("both", side):
                ends = replace(slices, sums=slices.space.moved(slices.sums[rough], sign))
                p[rough] = np.minimum(p[rough], self.test(ends, alternative).p)
        return p


class AreaUnderCurve(_OfRanks):
    """P(score of a positive > score of a negative) + ½P(equal), with scores in buckets."""

    name, title = "auc", "AUC"
    undefined = "all labels are one class"
    indivisible = "it compares pairs of examples, so no example has a share of its own in it"
    needs = Needs(indicators=("positive",), ranked=True)

    @staticmethod
    def terms(comparison: Comparison) -> tuple[Term, ...]:
        """Return the sums of the gains in placement, of which two models need the variance."""
        if comparison != "baseline":
            return ()
        return tuple(Term("auc", source, power) for source in GAINS for power in (1, 2))

    def needs_rows(self, space: StatisticSpace) -> bool:
        """Bucket counts say nothing of how two scores go together."""
        return space.comparison == "baseline" or space.weighted

    @staticmethod
    def _classes(slices: Slices) -> Pair:
        """Return Kish's effective numbers of positives and negatives [slices]."""
        return slices.kish(slices.where("positive")), slices.kish(slices.where("~positive"))

    def _sides(self, slices: Slices) -> Sides:
        placed = slices.space.placements(slices.sums, old=slices.is_old)
        return Sides(placed, *self._classes(slices))

    def area(self, slices: Slices) -> Area:
        return slices.space.area(slices.sums, old=slices.is_old)

    def value_of_raw(self, slices: Slices) -> FloatArray:
        """Return the area alone, for thousands of replicates."""
        histogram = slices.space.histogram(slices.sums, old=slices.is_old).astype(np.float64)
        negatives, positives = histogram[:, 0], histogram[:, 1]
        below = np.cumsum(negatives, axis=1) - 0.5 * negatives
        pairs = positives.sum(axis=1) * negatives.sum(axis=1)
        return ratio((positives * below).sum(axis=1), pairs)

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        """Return the reasons [slices] against a test; 0 for none."""
        fewest = np.minimum(*self._classes(slices))
        reasons = np.where(fewest < LEAST_DENOMINATOR, Reason.SMALL_DENOMINATOR, 0)
        reasons[fewest == 0] = Reason.UNDEFINED
        if not slices.is_paired:
            reasons[~(slices.rest.weight > 0)] = Reason.WHOLE
        return reasons.astype(np.int8)

    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        """Test by z with the null variance."""
        of_all = self._sides(slices.total).placements
        varies = float((of_all.spread1 + of_all.spread0)[0]) > 0
        p = auc.z_p_value(self._sides(slices), self._sides(slices.total), tail)
        return Tested.by(Method.AUC_Z, p, 0 if varies else Reason.CONSTANT)

    def test_change(self, slices: Slices, tail: Tail) -> Tested:
        """Test by z of the gains in placement among all examples, quick and near (as DeLong et al. 1988)."""
        variance, freedom = self._gain_variance(slices)
        delta = self.delta(slices)
        unvarying = np.where(delta == 0, Reason.UNCHANGED, Reason.UNVARYING)
        p = hall.wald_p_value(delta, variance, freedom, tail)
        return Tested.by(Method.DELTA_METHOD, p, np.where(variance > 0, 0, unvarying))

    def _gain_variance(self, slices: Slices) -> Pair:
        """Return the variance [slices] of the delta of two models, and its degrees of freedom."""
        left = [np.maximum(size - 1.0, 1.0) for size in self._classes(slices)]
        of_positives, of_negatives = self._gain_spreads(slices)
        return of_positives / left[0] + of_negatives / left[1], np.minimum(*left)

    def variance(self, slices: Slices) -> Pair:
        """Return the variance [slices] of the value, and its degrees of freedom: DeLong's, of the slice's placements."""
        own, ones, zeros = self._sides(slices)
        left = [np.maximum(size - 1.0, 1.0) for size in (ones, zeros)]
        variance = own.spread1 / left[0] + own.spread0 / left[1]
        return variance + own.interaction / np.maximum(ones * zeros, 1.0), np.minimum(*left)

    @staticmethod
    def _gain_spreads(slices: Slices) -> Pair:
        """Return the variances [slices] of the gains of positives and of negatives."""
        spreads = []
        for source, of_class in zip(GAINS, ("positive", "~positive"), strict=True):
            n = np.maximum(slices.count(of_class), 1.0)
            first, second = (
                slices.space.term(slices.sums, Term("auc", source, power)) / n for power in (1, 2)
            )
            spreads.append(np.maximum(second - first**2, 0.0))
        return spreads[0], spreads[1]

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        if not slices.is_paired:
            return auc.delta_interval(self._sides(slices), self._sides(slices.total), confidence)
        spreads = self._gain_spreads(slices), self._gain_spreads(slices.total)
        return auc.gain_interval(self.delta(slices), *spreads, *self._classes(slices), confidence)

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        return auc.value_interval(self._sides(slices), confidence)

    def p_refine(self, slices: Slices, parents: Slices, tail: Tail) -> FloatArray:
        """Z of the child's AUC as that of random positives and negatives of its parent."""
        if slices.is_paired:
            return super().p_refine(slices, parents, tail)
        return auc.z_p_value(self._sides(slices), self._sides(parents), tail)

    def ahead(self, slices: Slices, parents: Slices) -> Pair:
        """Return the variance of the delta less the part of the child in its parent."""
        variance, freedom = self._gain_variance(slices)
        fewest, above = (np.minimum(*self._classes(some)) for some in (slices, parents))
        part = np.clip(1.0 - fewest / np.maximum(above, 1.0), 0, 1)
        return variance * part, freedom

    def inputs(self, slices: Slices) -> dict[str, float]:
        """Return classes and placements of the slice and of all examples, and the gains' variance."""
        named: dict[str, float] = {}
        for prefix, some in (("slice", slices), ("all", slices.total)):
            n1, n0 = self._classes(some)
            named |= {f"{prefix} positives": float(n1[0]), f"{prefix} negatives": float(n0[0])}
            for model in [some, some.old][: slices.space.sides]:
                side = f"{prefix} old" if model.is_old else prefix
                placements = self._sides(model).placements._asdict().items()
                named |= {f"{side} {name}": float(x[0]) for name, x in placements}
        if slices.is_paired:
            named["variance of the delta"] = float(self._gain_variance(slices)[0][0])
        return named


class AveragePrecision(_OfRanks, OfOneModel):
    """Σ (share of the positives with a score)·(precision among scores at least as high), over all scores."""

    name, title = "average_precision", "Average precision"
    resampled = False
    undefined = "no example has a positive label"
    indivisible = "the precision at a score depends on other examples, so no example has a share of its own in it"
    needs = Needs(indicators=("positive",), ranked=True, average_precision=True)

    def area(self, slices: Slices) -> Precisions:
        return slices.precisions

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        """Return the reasons [slices] against a test: among them too few of a class to be expected in a subset."""
        reasons = super().untestable(slices)
        expected = slices.sizes * slices.space.by_class(slices.totals).min()
        small = expected < LEAST_DENOMINATOR * slices.total.sizes
        reasons[small & (reasons == 0)] = Reason.SMALL_DENOMINATOR
        return reasons

    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        """Test by draws of as many of all examples."""
        space, sizes = slices.space, slices.sizes
        coarse = tuple(space.of_several_scores().tolist())
        law = PrecisionLaw(space.by_score, coarse, float(self.value(slices.total)[0]))
        observed = log_odds(self.value(slices), law.half(sizes))
        return permutation.p_of_draws(law.draws, sizes, observed, tail, law.largest_drawn)

    def _log_odds(self, slices: Slices) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return log-odds of the value [slices], p·(1 − p) of the value, and half a positive as a share of them."""
        half = 0.5 / np.maximum(slices.count("positive"), 1)
        value = self.value(slices)
        shrunk = (value + half) / (1.0 + 2.0 * half)
        return log_odds(value, half), shrunk * (1.0 - shrunk), half

    def _variance(self, slices: Slices) -> FloatArray:
        """Return the variance [slices] of the value: of influences, at least that of a share of the positives."""
        _, binomial, half = self._log_odds(slices)
        variance = slices.precisions.variance
        return np.asarray(np.maximum(variance, binomial) * 2.0 * half)

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return t·s to either side of the log-odds (Boyd, Eng and Page 2013); NaN with fewer than ten positives."""
        centre, binomial, half = self._log_odds(slices)
        positives, value = slices.count("positive"), self.value(slices)
        t = -stdtrit(np.maximum(positives - 1.0, 1.0), 0.5 * (1.0 - confidence))
        reach = t * np.sqrt(self._variance(slices)) / binomial
        # Back from log-odds to which half a positive was added on either side.
        low, high = (
            expit(end) * (1.0 + 2.0 * half) - half for end in (centre - reach, centre + reach)
        )
        value = np.where(positives < LEAST_DENOMINATOR, np.nan, value)
        return np.clip(low, 0.0, value), np.clip(high, value, 1.0)

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return the arms of the value's interval, shrunk by the examples that are in both."""
        whole, value = slices.total, self.value(slices)
        low, high = self.value_interval(slices, confidence)
        share = slices.sizes / whole.sizes
        own = self._variance(slices)
        # The influences of all examples, for those outside the slice.
        both = (1.0 - share) ** 2 * own + (1.0 - share) * self._variance(whole)
        parts = (value, low, high), (own, both), self.value(whole)
        below, above = intervals.shrunk_to_delta(*parts, 1.0, confidence)
        return np.where(np.isnan(low), low, below), np.where(np.isnan(low), low, above)

    def p_refine(self, slices: Slices, parents: Slices, tail: Tail) -> FloatArray:
        """Return the tail of t of the log-odds, as of a random part of the parent."""
        own, above, binomial = self._log_odds(slices)[0], *self._log_odds(parents)[:2]
        part = parents.sizes / np.maximum(slices.sizes, 1) - 1.0
        variance = self._variance(parents) * np.maximum(part, 0.0) / binomial**2
        freedom = np.maximum(slices.count("positive") - 1.0, 1.0)
        return hall.wald_p_value(own - above, variance, freedom, tail)
