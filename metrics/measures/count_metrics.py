"""The metrics of counts: shares, F-beta, balanced accuracy, correlations, macro averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray, Pair, ratio
from slicebeam.metrics.counting.counting import RowBlock
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.cell_metric import CellMetric, needs_of
from slicebeam.metrics.measures.metric import Movement, Needs, Slices, Target
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.metrics.significance import count_tests, few_cells, intervals
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested

# Which examples are in a denominator, of indicators or, after "~", their opposites, and why it is empty.
_WITHIN: dict[str, tuple[str | None, str]] = {
    "": (None, "there is no example"),
    "positive": ("examples of the positive class", "no example has a positive label"),
    "~positive": ("examples of the negative class", "no example has a negative label"),
    "predicted": ("examples predicted positive", "no example is predicted positive"),
    "~predicted": ("examples predicted negative", "no example is predicted negative"),
    "positive|predicted": (
        "examples that are positive or predicted positive",
        "no example has a positive label or is predicted positive",
    ),
}
# Less is what rounding leaves of nothing.
_ROUNDED = 1e-14


class Share(CellMetric):
    """The share of the examples ``within`` (all without) that are ``marked``, a literal such as ``~predicted``."""

    is_ratio = True

    def __init__(
        self,
        name: str,
        title: str,
        marked: str,
        within: str,
        *,
        higher_is_better: bool,
        compares_models: bool = True,
    ) -> None:
        self.name, self.title = name, title
        self.counts, self.denominators = (marked, within), (within,)
        self.needs = needs_of(marked, within)
        self.higher_is_better, self.compares_models = higher_is_better, compares_models
        self.counted, self.undefined = _WITHIN[within]
        self.range = (0.0, 1.0)
        self.kind = "aggregate" if within else "pointwise"

    @property
    def is_within_fixed(self) -> bool:
        """Whether the denominator is the same for both models."""
        return "predicted" not in self.denominators[0]

    def has_exact_law(self, slices: Slices) -> bool:
        """Whether numbers of examples alone decide."""
        return not slices.space.weighted and (not slices.is_paired or self.is_within_fixed)

    def parts(self, slices: Slices) -> list[BoolArray]:
        """Return the cells [cells] of marked examples, and of the denominator."""
        marked, within = super().parts(slices)
        return [marked & within, within]

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        return self._of_share(ratio(*counts))

    def gradient(self, slices: Slices) -> FloatArray:
        """See `CellMetric.gradient`; exactly 0 where all or none are marked, which parts that overlap are not."""
        marks, inside = self.parts(slices)
        x, within = self.part_counts(slices.weights, slices)
        safe = np.where(within > 0, within, 1.0)
        share = x / safe
        slope = (marks[None, :] - share[:, None] * inside[None, :]) / safe[:, None]
        return np.where((within > 0)[:, None], slope * self._slope(share)[:, None], 0.0)

    def _of_share(self, share: FloatArray) -> FloatArray:
        """Return the metric of the share; F1 is another increasing function of its share."""
        return share

    def _slope(self, share: FloatArray) -> FloatArray:
        return np.ones(share.shape)

    def numbers(self, slices: Slices) -> list[IntArray]:
        """Return the marked examples [slices], and those of the denominator."""
        return self.part_counts(slices.counts, slices)

    def _table(self, slices: Slices) -> tuple[IntArray, IntArray, int, int]:
        """Return `numbers` of the slices, and of all examples."""
        marked, within = (int(number[0]) for number in self.numbers(slices.total))
        x, n = self.numbers(slices)
        return x, n, marked, within

    def discordant(self, slices: Slices) -> tuple[IntArray, IntArray]:
        """Return the examples [slices] that only the new, and only the old model marks."""
        new, old = self.parts(slices)[0], self.parts(slices.old)[0]
        return slices.count(new & ~old), slices.count(old & ~new)

    def test_counts(self, slices: Slices, tail: Tail) -> Tested:
        """Mid-p of X ~ Hypergeom within the denominator; likelihood ratio where that is large."""
        x, n, K, N = self._table(slices)
        exact = count_tests.variance(n, N, K) <= count_tests.EXACT_UP_TO_VARIANCE
        p = np.ones(n.shape)
        for law, some in ((count_tests.mid_p, exact), (count_tests.likelihood_mid_p, ~exact)):
            p[some] = law(n[some], x[some], N, K, tail)
        method = np.where(exact, Method.HYPERGEOMETRIC, Method.LIKELIHOOD_RATIO)
        return Tested.by(method, p, Reason.CONSTANT if K in (0, N) else 0)

    def test_change(self, slices: Slices, tail: Tail) -> Tested:
        """McNemar's mid-p where both models have the same denominator."""
        if not self.has_exact_law(slices):
            return super().test_change(slices, tail)
        only_new, only_old = self.discordant(slices)
        p = count_tests.mcnemar_mid_p(only_new, only_old, tail)
        return Tested.by(Method.MCNEMAR, p, np.where(only_new + only_old == 0, Reason.UNCHANGED, 0))

    def margin_p(self, slices: Slices, margin: float, tail: Tail) -> FloatArray:
        """Return p by the exact laws of `slicebeam.metrics.significance.count_tests`, where counts alone decide."""
        if not self.has_exact_law(slices):
            return super().margin_p(slices, margin, tail)
        if slices.is_paired:
            _, n = self.numbers(slices)
            return count_tests.paired_margin_p(*self.discordant(slices), n, margin, tail)
        x, n, K, N = self._table(slices)
        apart = margin * N / np.maximum(N - n, 1)
        return count_tests.unpaired_margin_p(x, n, K - x, N - n, apart, tail)

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Score-based intervals of the difference, see `slicebeam.metrics.significance.intervals`."""
        if not self.has_exact_law(slices):
            return super().delta_interval(slices, confidence)
        if slices.is_paired:
            _, n = self.numbers(slices)
            return intervals.paired_difference(*self.discordant(slices), n, confidence)
        x, n, K, N = self._table(slices)
        low, high = intervals.difference_from_overall(n, x, N, K, confidence)
        share = np.array([K / max(N, 1)])
        low, high = (self._of_share(np.clip(share + end, 0.0, 1.0)) for end in (low, high))
        return low - self._of_share(share), high - self._of_share(share)

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Agresti and Coull's interval, at Kish's effective number where there are weights."""
        x, n = (number.astype(np.float64) for number in self.numbers(slices))
        if slices.space.weighted:
            n = self.effective_n(slices)
            share = ratio(*self.part_counts(slices.weights, slices), otherwise=0.0)
            # Where marked examples weigh more than others, fewer are effective (Korn and Graubard
            # 1998, Survey Methodology 24:193, whose number is by the linearised variance).
            variance = self.value_variance(slices) / np.square(self._slope(share))
            n = np.minimum(n, ratio(share * (1.0 - share), variance, otherwise=np.inf))
            x = n * share
        low, high = intervals.agresti_coull(x, n, confidence)
        return self._of_share(low), self._of_share(high)

    def p_refine(self, slices: Slices, parents: Slices, tail: Tail) -> FloatArray:
        """Return how likely a random subset of the parent has so many marks, or a change so large."""
        if not self.has_exact_law(slices):
            return super().p_refine(slices, parents, tail)
        if not slices.is_paired:
            (x, n), (K, N) = self.numbers(slices), self.numbers(parents)
            return count_tests.mid_p(n, x, N, K, tail)
        scores = self.cell_targets(slices.space)

        def net(cells: FloatArray) -> Pair:
            return cells @ scores, np.broadcast_to(scores, cells.shape)

        strata = self.strata(slices)
        p = few_cells.p_value(net, slices.counts, parents.counts, strata, tail, span=1.0)
        return np.nan_to_num(p, nan=1.0)

    def target(self, space: StatisticSpace) -> Target | None:
        """Return what counts against the metric, or the change of marks; None for models with own denominators."""
        is_paired = space.comparison == "baseline"
        if is_paired and not self.is_within_fixed:
            return None
        return Target(
            TargetSums.of(space, "mean" if is_paired else "rate"),
            self.parts(Slices(_NO_SUMS, space))[1],
            upward=not (is_paired and self.higher_is_better),
            is_share=not is_paired,
        )

    def cell_targets(self, space: StatisticSpace) -> FloatArray:
        """Return the target of an example in each cell [cells]; 0 outside the denominator."""
        slices = Slices(_NO_SUMS, space)
        marked, within = self.parts(slices)
        if slices.is_paired:
            return marked.astype(np.float64) - self.parts(slices.old)[0]
        return (within & ~marked if self.higher_is_better else marked).astype(np.float64)

    def target_sums(self, slices: Slices) -> FloatArray:
        space = slices.space
        target, values = self.target(space), self.cell_targets(space)
        if target is None:
            return super().target_sums(slices)
        of_counted, values = target.counted, values[target.counted]
        columns = [
            space.weights(slices.sums, max(weight, 1))[:, of_counted] @ values**power
            for weight, power in target.layout.powers
        ]
        return np.stack(columns, axis=1)

    def weighted_targets(self, block: RowBlock, space: StatisticSpace) -> FloatArray:
        values = self.cell_targets(space)[block.cells]
        return values * (block.weights[0] * space.weight_scales[0]) if space.weighted else values

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        if space.comparison == "baseline":
            return mean
        return self._of_share(1.0 - mean if self.higher_is_better else mean)

    def movement(self, slices: Slices) -> Movement | None:
        """See `Metric.movement`; None where the two models have denominators of their own."""
        if not slices.is_paired or not self.is_within_fixed or not self.compares_models:
            return None
        within = self.parts(slices)[1]
        gained, lost = self.discordant(slices)
        weights, change = slices.weights[:, within], self.cell_targets(slices.space)[within]
        sigma = Movement.of_sums(weights.sum(axis=1), weights @ change, weights @ change**2)
        improved, degraded = (gained, lost) if self.higher_is_better else (lost, gained)
        return Movement(sigma.inconsistency, improved, degraded, self.denominator(slices))

    def inputs(self, slices: Slices) -> dict[str, float]:
        """n, x, N and K of the table, or n, b and c of McNemar's test."""
        slices = self.seen(slices)
        if not self.has_exact_law(slices):
            return super().inputs(slices)
        if not slices.is_paired:
            x, n, K, N = self._table(slices)
            return {"n": int(n[0]), "x": int(x[0]), "N": N, "K": K}
        n, (b, c) = self.numbers(slices)[1], self.discordant(slices)
        return {"n": int(n[0]), "b (only new marked)": int(b[0]), "c (only old)": int(c[0])}


_NO_SUMS = np.zeros((0, 0), np.int64)


class FOne(Share):
    """F1 = 2j/(1 + j), an increasing function of the share j = TP/(TP + FP + FN)."""

    def __init__(self) -> None:
        conditions = "positive & predicted", "positive|predicted"
        super().__init__("f1", "F1", *conditions, higher_is_better=True)

    def _of_share(self, share: FloatArray) -> FloatArray:
        return 2.0 * share / (1.0 + share)

    def _slope(self, share: FloatArray) -> FloatArray:
        return np.asarray(2.0 / np.square(1.0 + share))


class Aggregate(CellMetric):
    """A formula that is not an average over examples, mostly with an interval of its own."""

    kind: Literal["pointwise", "aggregate"] = "aggregate"
    indivisible = "it combines several shares, so no example has a share of its own in it"
    higher_is_better = True

    def __init__(
        self,
        name: str,
        title: str,
        of_counts: Callable[..., NDArray[Any]],
        undefined: str,
        interval: Callable[..., Pair] | None = None,
        lowest: float = 0.0,
    ) -> None:
        self.name, self.title, self.range, self.undefined = name, title, (lowest, 1.0), undefined
        self._of_counts, self._interval = of_counts, interval

    def arguments(self, counts: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Return what formula and interval take, of the counts of `parts`."""
        return counts

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        return self._of_counts(*self.arguments(counts))

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return the metric's own interval; the delta method's without, and where there are weights."""
        if self._interval is None or slices.space.weighted:
            return super().value_interval(slices, confidence)
        counts = self.part_counts(slices.weights, slices)
        return self._interval(*self.arguments(counts), confidence)


class BinaryMetric(Aggregate):
    """A formula of true and false positives, false and true negatives; of ratios of them unless it has `margins`."""

    counts = (
        "positive & predicted",
        "~positive & predicted",
        "positive & ~predicted",
        "~positive & ~predicted",
    )

    def __init__(
        self,
        *settings: Any,
        denominators: tuple[str, ...] = ("",),
        margins: tuple[str, ...] = (),
        **named: Any,
    ) -> None:
        super().__init__(*settings, **named)
        self.denominators, self.margins, self.is_ratio = denominators, margins, not margins

    def value(self, slices: Slices) -> FloatArray:
        """See `Metric.value`; within the range, which rounding may leave."""
        return np.clip(super().value(slices), *self.range)

    def test_counts(self, slices: Slices, tail: Tail) -> Tested:
        """Test counts by the law of few cells."""
        p = self._subset_p(slices, slices.total, tail)
        return Tested.by(Method.FEW_CELLS, p, np.where(np.isnan(p), Reason.CONSTANT, 0))

    def _subset_p(self, slices: Slices, population: Slices, tail: Tail) -> FloatArray:
        def value_and_gradient(cells: FloatArray) -> Pair:
            drawn = Slices(cells, slices.space)  # type: ignore[arg-type]
            return self.value(drawn), self.gradient(drawn)

        counts = slices.counts, population.counts
        return few_cells.p_value(value_and_gradient, *counts, self.strata(slices), tail)

    def p_refine(self, slices: Slices, parents: Slices, tail: Tail) -> FloatArray:
        """Return how likely a random subset of the parent is as extreme, by the same law as the test."""
        if slices.space.weighted or slices.is_paired:
            return super().p_refine(slices, parents, tail)
        return np.nan_to_num(self._subset_p(slices, parents, tail), nan=1.0)


def fbeta(beta: float) -> BinaryMetric:
    """Return F-beta = (1 + β²)·TP/((1 + β²)·TP + β²·FN + FP), van Rijsbergen (1979)."""
    # All digits where six are too few, so that the name means the same number again.
    digits, square = f"{beta:g}" if float(f"{beta:g}") == beta else repr(beta), beta**2
    return BinaryMetric(
        f"fbeta:{digits}",
        f"F-beta ({digits})",
        lambda tp, fp, fn, _: ratio((1 + square) * tp, (1 + square) * tp + square * fn + fp),
        _WITHIN["positive|predicted"][1],
        lambda tp, fp, fn, _, confidence: intervals.fbeta(tp, fp, fn, beta, confidence),
        denominators=("positive | predicted",),
    )


BALANCED_ACCURACY = BinaryMetric(
    "balanced_accuracy",
    "Balanced accuracy",
    lambda tp, fp, fn, tn: np.asarray(0.5 * (ratio(tp, tp + fn) + ratio(tn, tn + fp))),
    "all labels are one class",
    intervals.balanced_accuracy,
    denominators=("positive", "~positive"),
)
MATTHEWS = BinaryMetric(
    "mcc",
    "Matthews correlation",
    intervals.matthews,
    "all labels, or all predictions, are one class",
    intervals.mcc,
    lowest=-1.0,
    margins=("predicted", "positive", "~positive", "~predicted"),
)


class ClassMetric(Aggregate):
    """A formula of how many examples of each class [classes, slices] are right, labels, and predictions.

    Not counted in its denominator are ``beside(labels, predictions)`` [slices] of the examples.
    """

    needs = Needs(classes=True)

    def __init__(
        self, *settings: Any, beside: Callable[..., NDArray[Any] | int] = lambda *_: 0, **named: Any
    ) -> None:
        super().__init__(*settings, **named)
        self._beside = beside

    def parts(self, slices: Slices) -> list[BoolArray]:
        classes = np.arange(slices.space.classes)[:, None]
        labels = slices.code("label_class") == classes
        predictions = slices.code("predicted_class") == classes
        return [*(labels & predictions), *labels, *predictions]

    def part_counts(self, cells: NDArray[Any], slices: Slices) -> list[NDArray[Any]]:
        """See `CellMetric.part_counts`; one product, for there may be many classes."""
        return list((cells @ np.transpose(self.parts(slices))).T)

    def arguments(self, counts: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        return list(np.array(counts).reshape(3, len(counts) // 3, *np.shape(counts[0])))

    def denominator(self, slices: Slices) -> IntArray:
        _, labels, predictions = self.arguments(self.part_counts(slices.counts, slices))
        return np.asarray(labels.sum(axis=0) - self._beside(labels, predictions))


def macro_average(
    share: float, of_labels: float, of_predictions: float
) -> Callable[..., NDArray[Any]]:
    """Return the mean of share·right/(labels and predictions so weighted) over the classes that occur."""
    # A class that is never predicted has 0, as in scikit-learn; the set of classes that occur counts as fixed.

    def average(*table: NDArray[Any]) -> NDArray[Any]:
        right, labels, predictions = table
        below = of_labels * labels + of_predictions * predictions
        occurring = (np.real(labels + predictions) > 0).sum(axis=0).astype(float)
        return ratio(ratio(share * right, below, otherwise=0.0).sum(axis=0), occurring)

    return average


def mean_recall(*table: NDArray[Any]) -> NDArray[Any]:
    """Return the mean recall of the classes that are a label; the set of them counts as fixed."""
    right, labels, _ = table
    occurring = (np.real(labels) > 0).sum(axis=0).astype(float)
    return ratio(ratio(right, labels, otherwise=0.0).sum(axis=0), occurring)


def kappa(*table: NDArray[Any]) -> NDArray[Any]:
    """Return the agreement beyond chance: Cohen (1960), Educ. Psychol. Meas. 20:37."""
    agreement, expected, _, _ = _shares(*table)
    return _defined_ratio(agreement - expected, 1.0 - expected)


def correlation(*table: NDArray[Any]) -> NDArray[Any]:
    """Return Matthews' correlation of several classes: Gorodkin (2004), Comput. Biol. Chem. 28:367."""
    agreement, expected, labels, predictions = _shares(*table)
    # One by one: rounding may leave one of them negative.
    spreads = [1.0 - (shares**2).sum(axis=0) for shares in (labels, predictions)]
    roots = [np.sqrt(np.where(np.real(spread) > _ROUNDED, spread, 0.0)) for spread in spreads]
    return _defined_ratio(agreement - expected, roots[0] * roots[1])


def _shares(*table: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return the agreement, that by chance, and the shares of labels and predictions: no product overflows."""
    n = table[1].sum(axis=0)
    right, labels, predictions = (ratio(counts, n) for counts in table)
    return right.sum(axis=0), (labels * predictions).sum(axis=0), labels, predictions


def _defined_ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    return ratio(above, np.where(np.real(below) > _ROUNDED, below, 0.0))
