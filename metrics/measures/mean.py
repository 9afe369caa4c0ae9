"""Metrics that are the mean of a value of each example: losses, errors, any column; and the root of a mean."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray, Pair, ratio
from slicebeam.metrics.counting.counting import RowBlock
from slicebeam.metrics.counting.statistic_space import Source, StatisticSpace, Term
from slicebeam.metrics.kinds import Comparison, Tail
from slicebeam.metrics.measures.metric import ROUNDING, Metric, Movement, Needs, Slices, Target
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.metrics.significance import count_tests, hall, random_subset
from slicebeam.metrics.significance.hall import Moments
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested, select_tail
from slicebeam.metrics.significance.random_subset import Population

PINBALL = "pinball:"
# The label itself, of which R² needs the variance.
LABEL = "label"
# On a lattice a tail begins this part of its span, from a value's middle, nearer to the mean.
_OF_SPAN = 0.3
# The mid-p has half of the chance of the value itself, the tail .8 of it: it is at most 1.6 times as large.
_OF_MID_P = 1.6


class Mean(Metric):
    """The mean of a value over the slice's examples; the name is also that of the value.

    With weights Hájek's (1971) Σwx/Σw, of variance Σw²(x − mean)²/(Σw)² and Kish's (1965) (Σw)²/Σw² examples.
    """

    def __init__(
        self,
        name: str,
        title: str,
        limits: tuple[float, float],
        *,
        compares_models: bool = True,
        higher_is_better: bool = False,
    ) -> None:
        self.name, self.title, self.range = name, title, limits
        self.higher_is_better = higher_is_better
        self.needs = Needs(values=(name,))
        self.compares_models = compares_models

    @staticmethod
    def terms(value: str, comparison: Comparison, *, weighted: bool) -> tuple[Term, ...]:
        """Return the sums that tests and intervals of a value's mean need of each slice."""
        sources: list[tuple[Source, int]] = [("new", 1), ("new", 2)]
        if comparison != "overall":
            sources += [("old", 1), ("old", 2)]
        if comparison == "baseline":
            sources.append(("change", 2))
        # Of weighted squares only the linearised variance needs a sum.
        of_weights = (1, 2) if weighted else (0,)
        return tuple(Term(value, *source, weight) for weight in of_weights for source in sources)

    @staticmethod
    def total_terms(value: str, comparison: Comparison, *, weighted: bool) -> tuple[Term, ...]:
        """Return the sums that are needed of all examples only."""
        sources: tuple[Source, ...] = ("new", "old", "change")
        used = {"overall": sources[:1], "baseline": sources, "earlier": sources[:2]}[comparison]
        powers = range(4) if weighted else (3, 4) if value == LABEL else (3,)
        of_weight = 3 if weighted else 0
        return tuple(Term(value, source, power, of_weight) for source in used for power in powers)

    def _total(
        self, slices: Slices, source: Source, power: int, weight_power: int = 1
    ) -> FloatArray:
        if source == "change" and power == 1:
            new, old = (self._total(slices, model, 1, weight_power) for model in _NEW_AND_OLD)
            return np.asarray(new - old)
        term = Term(self.name, source, power, weight_power if slices.space.weighted else 0)
        return slices.space.term(slices.sums, term)

    def _shift(self, space: StatisticSpace, source: Source) -> float:
        return 0.0 if source == "change" else space.shift(self.name)

    def _mean(self, slices: Slices, source: Source) -> FloatArray:
        """Return the mean [slices] about the shift; NaN without weight."""
        return ratio(self._total(slices, source, 1), slices.weight)

    def value(self, slices: Slices) -> FloatArray:
        source = _NEW_AND_OLD[slices.is_old]
        return self._mean(slices, source) + self._shift(slices.space, source)

    def delta(self, slices: Slices) -> FloatArray:
        """Return the difference without the shift, beside which it may have no digits."""
        if slices.is_paired:
            return self._mean(slices, "change")
        return self._mean(slices, "new") - self._mean(slices.total, "new")

    def moments(self, slices: Slices, source: Source = "new", skewness: float = 0.0) -> Moments:
        """Return the moments [slices], the mean about the shift; a constant has variance 0."""
        weight, squares = slices.weight, slices.squares.sum(axis=-1)
        some = weight > 0
        safe = np.where(some, weight, 1.0)
        centre = self._total(slices, source, 1) / safe
        n = ratio(weight**2, squares, otherwise=0.0)
        # Of single values: n times the linearised variance of the mean.
        first, size = (self._total(slices, source, power, 2) * n / safe**2 for power in (1, 2))
        raw = size - 2 * centre * first + centre**2 * squares * n / safe**2
        varies = some & (n > 1) & (raw > ROUNDING * size)
        variance = np.where(varies, raw * n / np.where(n > 1, n - 1, 1.0), 0.0)
        return Moments(n, np.where(some, centre, 0.0), variance, np.asarray(skewness, np.float64))

    def of_all(self, slices: Slices, source: Source = "new") -> Moments:
        """Return the moments of all examples, 0 for a constant; with weights the skewness of w·(x − mean), scaled to n."""
        whole, space = slices.total, slices.space
        moments = Moments(*(part.reshape(()) for part in self.moments(whole, source)))
        n, centre = float(moments.n), float(moments.mean)
        if not moments.variance > 0:
            return moments

        def cubed(power: int) -> float:
            """Return Σ w³·value^power."""
            if space.weighted or power == 3:
                term = Term(self.name, source, power, 3 if space.weighted else 0)
                return space.total_term(slices.totals, term)
            return float(self._total(whole, source, power)[0]) if power else n

        # Of the weighted deviations, of which the mean is a sum: its own skewness is 1/√n of this.
        third = cubed(3) - 3 * centre * cubed(2) + 3 * centre**2 * cubed(1) - centre**3 * cubed(0)
        spread = float(moments.variance) * (n - 1) / n**2 * float(whole.weight[0]) ** 2
        return moments._replace(skewness=np.asarray(third / spread**1.5 * np.sqrt(n)))

    def against_rest(self, slices: Slices) -> tuple[Moments, Moments, FloatArray]:
        """Return slice, complement, and the slice's share of all weight."""
        skewness = float(self.of_all(slices).skewness)
        own, rest = (self.moments(some, "new", skewness) for some in (slices, slices.rest))
        return own, rest, slices.weight / slices.total.weight

    def change(self, slices: Slices) -> hall.TStatistic:
        """Return Hall's t of the mean change between two models."""
        return hall.against_zero(self.moments(slices, "change"), self.of_all(slices, "change"))

    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        """Test by the law of random subsets."""
        deviations = slices.space.deviations_by_value[self.name]
        excess = self._deviation(slices, deviations.centre)
        p = subset_p(slices.sizes, excess, deviations.population, tail)
        return Tested.by(Method.RANDOM_SUBSET, p)

    def test_change(self, slices: Slices, tail: Tail) -> Tested:
        """Test by Student's t as it varies for all changes, and by sign flips where all of a slice are the same."""
        # There, if large changes the other way are rare, so that the slice may lack them, Hall's t bounds p and may refuse.
        changes, t = self.moments(slices, "change"), self.change(slices)
        constant = ~(changes.variance > 0)
        p, too_skewed = t.p_value(tail)
        one_way = changes.mean * self.of_all(slices, "change").skewness >= 0
        if constant.any():
            flipped = count_tests.constant_change_p(changes.n, changes.mean, tail)
            least = np.where(one_way | ~(t.error > 0), 0.0, p)
            p = np.where(constant, np.maximum(flipped, least), p)
        if (varies := ~constant).any():
            p[varies] = self.change_p(slices.rows(varies), 0.0, tail)
        method = np.where(constant, Method.SIGN_FLIP, Method.STUDENT)
        refused = constant & too_skewed & ~one_way
        return Tested.by(method, p, np.where(refused, Reason.TOO_SKEWED, 0))

    def margin_p(self, slices: Slices, margin: float, tail: Tail) -> FloatArray:
        """Return p of Student's t of the change, or of Hall's t of the difference from the other examples."""
        if slices.is_paired:
            return self.change_p(slices, margin, tail)
        inside, rest, share = self.against_rest(slices)
        t, outside = hall.against_rest(inside, rest), 1.0 - share
        apart = t.difference - ratio(np.array(margin), outside, otherwise=margin)
        return t._replace(difference=apart).p_value(tail)[0]

    def change_p(self, slices: Slices, mean: float, tail: Tail) -> FloatArray:
        """Return the p-value [slices] of Student's t of "the mean change is this", by the law of all; 1 if none varies."""
        if not self.moments(slices.total, "change").variance[0] > 0:
            return np.ones(len(slices))
        of = slices.space.deviations_by_value[self.name].population
        first, crossed = (self._total(slices, "change", 1, power) for power in (1, 2))
        about = mean**2 * slices.squares.sum(axis=-1) - 2.0 * mean * crossed
        squares = self._total(slices, "change", 2, 2) + about
        of_weight = mean * float(slices.total.weight[0] / slices.total.sizes[0])
        total = first - mean * slices.weight
        return hall.student_p(slices.sizes, total, squares, of, of_weight, tail)

    def pooled(self, part: Slices, whole: Slices) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return of slices' weighted values their mean, deviation from it, and the part's sum in such deviations."""
        centre = np.nan_to_num(self._mean(whole, "new"))
        crossed, squares = (self._total(whole, "new", power, 2) for power in (1, 2))
        about = squares - 2.0 * centre * crossed + centre**2 * whole.squares.sum(axis=-1)
        varies = about > ROUNDING * squares
        deviation = np.sqrt(np.where(varies, about, 1.0) / np.maximum(whole.sizes, 1))
        total = (self._total(part, "new", 1) - centre * part.weight) / deviation
        return centre, np.where(varies, deviation, 0.0), np.where(varies, total, 0.0)

    def _deviation(self, slices: Slices, centre: float) -> FloatArray:
        """Return the summed weighted deviation [slices] from the mean of all examples."""
        return np.asarray(self._total(slices, "new", 1) - centre * slices.weight)

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        if slices.is_paired:
            changes = self.moments(slices, "change")
            constant = np.where(self._is_surely_constant(changes, slices), 0, Reason.UNVARYING)
            constant[changes.mean == 0] = Reason.UNCHANGED
            return np.where(changes.variance > 0, 0, constant).astype(np.int8)
        whole = slices.total
        varies = bool(self.moments(whole).variance[0] > 0)
        reasons = np.full(len(slices), 0 if varies else Reason.CONSTANT)
        reasons[slices.weight == 0] = Reason.UNDEFINED
        reasons[slices.sizes == whole.sizes] = Reason.WHOLE
        return reasons.astype(np.int8)

    def _is_surely_constant(self, changes: Moments, slices: Slices) -> BoolArray:
        """Return whether fixed point shows changes [slices] of the other sign, which add mean²/n to the variance."""
        space, sizes, mean = slices.space, slices.sizes, np.abs(changes.mean)
        of_first = space.scale(Term(self.name, "new", 1, int(space.weighted))) * sizes
        of_second = space.scale(Term(self.name, "change", 2, 2 * space.weighted)) * sizes
        return np.asarray(
            (mean * slices.weight > 4 * changes.n * of_first)
            & (mean**2 * slices.squares.sum(axis=-1) > 4 * changes.n * of_second)
        )

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Hall-corrected intervals of the difference from all examples, or of the mean change."""
        if slices.is_paired:
            return self.change(slices).interval(confidence)
        own, rest, share = self.against_rest(slices)
        low, high = hall.difference_from_overall(own, rest, share, confidence)
        # Two constants, of which nothing says how far they would vary.
        apart = (self.untestable(slices) == 0) & (own.variance + rest.variance == 0)
        return np.where(apart, -np.inf, low), np.where(apart, np.inf, high)

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Hall-corrected interval of the mean, with the skewness of all examples."""
        source = _NEW_AND_OLD[slices.is_old]
        t = hall.against_zero(self.moments(slices, source), self.of_all(slices, source))
        low, high = (end + self._shift(slices.space, source) for end in t.interval(confidence))
        return np.maximum(low, self.range[0]), np.minimum(high, self.range[1])

    def p_refine(self, slices: Slices, parents: Slices, tail: Tail) -> FloatArray:
        """Hall-corrected Welch test of child against the rest of its parent; of two constants 1/C(n + m, n)."""
        source = self._source(slices.space)
        skewness = float(self.of_all(slices, source).skewness)
        own, rest = (self.moments(some, source, skewness) for some in (slices, parents - slices))
        p, _ = hall.against_rest(own, rest).p_value(tail)
        apart = (own.n > 0) & (rest.n > 0) & (own.variance + rest.variance == 0)
        # The parent varies only where its two constants differ by more than rounding.
        apart &= self.moments(parents, source).variance > 0
        extreme = own.mean > rest.mean if tail == "upper" else own.mean < rest.mean
        subsets = gammaln(own.n + rest.n + 1) - gammaln(own.n + 1) - gammaln(rest.n + 1)
        return np.where(apart & extreme, np.exp(-subsets), p)

    @staticmethod
    def _source(space: StatisticSpace) -> Source:
        return "change" if space.comparison == "baseline" else "new"

    def target(self, space: StatisticSpace) -> Target | None:
        """Return the value itself about its shift, or its change between two models."""
        is_positive = self.range[0] >= 0.0 or self.name in space.nonnegative
        return Target(
            TargetSums.of(space, "mean"),
            np.ones(space.cells, bool),
            upward=not self.higher_is_better,
            is_share=space.comparison == "overall" and is_positive,
        )

    def target_sums(self, slices: Slices) -> FloatArray:
        space = slices.space
        columns = [
            self._total(slices, self._source(space), power, max(weight, 1))
            if power
            else space.weights(slices.sums, max(weight, 1)).sum(axis=1)
            for weight, power in TargetSums("mean", space.weighted).powers
        ]
        return np.stack(columns, axis=1)

    def weighted_targets(self, block: RowBlock, space: StatisticSpace) -> FloatArray:
        new, old = (Term(self.name, model, 1, int(space.weighted)) for model in _NEW_AND_OLD)
        units = block.terms[space.terms.index(new)]
        if space.comparison == "baseline":
            units = units - block.terms[space.terms.index(old)]
        return np.asarray(units * space.scale(new))

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        return mean + self._shift(space, self._source(space))

    def movement(self, slices: Slices) -> Movement | None:
        if not slices.is_paired or not self.compares_models:
            return None
        first, second = (self._total(slices, "change", power) for power in (1, 2))
        return Movement.of_sums(slices.weight, first, second)

    def inputs(self, slices: Slices) -> dict[str, float]:
        """Return the moments that the test and the interval take, and the slice's sum of deviations S."""
        named: dict[str, float] = {}
        space, shift = slices.space, 0.0
        if slices.is_paired:
            changes, of_all = self.moments(slices, "change"), self.of_all(slices, "change")
            parts = {"change on the slice": changes, "change on all": of_all}
        else:
            shift = space.shift(self.name)
            own, rest, _ = self.against_rest(slices)
            parts = {"slice": own, "complement": rest}
            named["n"], named["N"] = float(slices.sizes[0]), float(slices.total.sizes[0])
            named["mean of all"] = float(Mean.value(self, slices.total)[0])
            if deviations := space.deviations_by_value.get(self.name):
                excess = float(self._deviation(slices, deviations.centre)[0])
                named["S"] = float(np.ldexp(excess, space.weight_exponent))
        for name, about_shift in parts.items():
            moments = about_shift._replace(mean=about_shift.mean + shift)
            for field, column in zip(Moments._fields, moments, strict=True):
                named[f"{name} {field}"] = float(np.broadcast_to(column, (1,))[0])
        return named


_NEW_AND_OLD: tuple[Source, Source] = ("new", "old")


def subset_p(n: IntArray, total: FloatArray, of: Population, tail: Tail) -> FloatArray:
    """Return the tail of the sum of a random subset, on a lattice P(beyond) + .8·P(here): mid-p exceeds the level."""
    if not of.span:
        return random_subset.sum_p_value(n, total, of, tail)

    if tail == "both":
        return select_tail(subset_p(n, total, of, "upper"), subset_p(n, total, of, "lower"), tail)
    step = _OF_SPAN * of.span
    nearer = total - step if tail == "upper" else total + step
    most = _OF_MID_P * random_subset.sum_p_value(n, total, of, tail)
    return np.minimum(np.minimum(random_subset.sum_p_value(n, nearer, of, tail), most), 1.0)


class RootMean(Mean):
    """The root of a mean. Its test is that of the mean; its intervals are the roots of that of the mean."""

    def __init__(self, name: str, title: str) -> None:
        super().__init__(name, title, (0.0, inf))

    def value(self, slices: Slices) -> FloatArray:
        return _root(super().value(slices))

    def delta(self, slices: Slices) -> FloatArray:
        return Metric.delta(self, slices)

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        low, high = super().value_interval(slices, confidence)
        return _root(low), _root(high)

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return the roots of the mean's interval; for two models its arms, to the roots' linearised deviation."""
        low, high = super().delta_interval(slices, confidence)
        before = self.reference(slices)
        if not slices.is_paired:
            return _root(before**2 + low) - before, _root(before**2 + high) - before
        after, delta, ones = self.value(slices), self.delta(slices), np.ones(len(slices))
        sources: tuple[Source, ...] = (*_NEW_AND_OLD, "change")
        new, old, change = (self.moments(slices, source).variance for source in sources)
        slopes = [ratio(ones, 2.0 * root, otherwise=0.0) for root in (after, before)]
        twice_covariance = (new + old - change) * np.prod(slopes, axis=0)
        variance = (np.square(slopes) * [new, old]).sum(axis=0) - twice_covariance
        # Of the mean's arms; where no change varies, the slope between the two roots.
        scale = np.sqrt(ratio(np.maximum(variance, 0.0), change, otherwise=0.0))
        scale = np.where(scale > 0, scale, ratio(ones, after + before, otherwise=1.0))
        middle = np.nan_to_num(after**2 - before**2)
        delta = np.nan_to_num(delta)
        return delta + scale * (low - middle), delta + scale * (high - middle)

    def target(self, space: StatisticSpace) -> Target | None:
        """Return None for two models, whose difference of roots is not a mean."""
        return super().target(space) if space.comparison == "overall" else None

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        return _root(super().of_target(mean, space))

    def change_variance(self, slices: Slices) -> None:
        """Return None: an example has no root of its own."""

    def movement(self, slices: Slices) -> None:
        """Return None, too."""


def _root(mean: FloatArray) -> FloatArray:
    return np.sqrt(np.maximum(mean, 0.0))


class NumberLoss(NamedTuple):
    """A loss [rows] of labels and predictions, which of them it is not defined for, and why (of ``{}``)."""

    of: Callable[[FloatArray, FloatArray], FloatArray]
    wrong_labels: Callable[[FloatArray], BoolArray] | None = None
    wrong_predictions: Callable[[FloatArray], BoolArray] | None = None
    why: str = ""


def number_loss(name: str) -> NumberLoss | None:
    """Return the loss of predicted numbers that a value is, None for another value."""
    if not name.startswith(PINBALL):
        return _LOSSES.get(name)
    share = float(name.removeprefix(PINBALL))
    return NumberLoss(lambda y, p: np.where(y >= p, share * (y - p), (1.0 - share) * (p - y)))


_SQUARE = NumberLoss(lambda y, p: (p - y) ** 2)
_LOSSES = {
    "bias": NumberLoss(lambda y, p: p - y),
    "mae": NumberLoss(lambda y, p: np.abs(p - y)),
    "mse": _SQUARE,
    "rmse": _SQUARE,
    "r2": _SQUARE,
    LABEL: NumberLoss(lambda y, _: y),
    "mape": NumberLoss(
        lambda y, p: np.abs(p - y) / np.abs(y),
        wrong_labels=lambda y: y == 0,
        why="by which {} divides; drop such examples, or use smape",
    ),
    # 0 where both are 0.
    "smape": NumberLoss(
        lambda y, p: ratio(2.0 * np.abs(p - y), np.abs(p) + np.abs(y), otherwise=0.0)
    ),
    "poisson_deviance": NumberLoss(
        lambda y, p: 2.0 * (xlogy(y, y / p) - y + p),
        wrong_labels=lambda y: y < 0,
        wrong_predictions=lambda p: p <= 0,
        why="but {} takes labels of at least 0 and predictions above 0; drop such examples",
    ),
}
