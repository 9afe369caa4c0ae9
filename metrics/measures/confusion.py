"""Metrics of the confusion matrix that are not shares: F-beta, balanced accuracy, MCC, macro."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slicebeam.metrics.intervals import cell_intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.measures.cell_metric import CellMetric, SummedCells, ratio
from slicebeam.metrics.significance import few_cells
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Tail

    Sums = IntArray


class Aggregate(CellMetric):
    """A metric that is not an average over examples."""

    kind: Literal["pointwise", "aggregate"] = "aggregate"
    indivisible = "it combines several shares, so no example has a share of its own in it"
    higher_is_better = True
    range = (0.0, 1.0)


class CountedInterval(Aggregate):
    """A metric with an interval of its own where examples have no weights."""

    def interval(
        self, counts: Sequence[NDArray[Any]], confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return the interval (low, high) [slices] of the counts of `parts`."""
        raise NotImplementedError

    def value_interval(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the metric's own interval; the delta method's where there are weights."""
        if space.weighted:
            return super().value_interval(sums, totals, space, confidence, old=old)
        return self.interval(self.part_counts(space.weights(sums), space, old=old), confidence)


class BinaryMetric(CountedInterval):
    """A metric of true and false positives, false and true negatives, in this order."""

    counts = (
        "positive & predicted",
        "~positive & predicted",
        "positive & ~predicted",
        "~positive & ~predicted",
    )

    def _test_overall(
        self, slices: SummedCells, population: SummedCells, tail: Tail, reasons: NDArray[np.int8]
    ) -> Tested:
        p, some = np.ones(reasons.shape), reasons == 0
        p[some] = self._subset_p(slices.counts[some], population.counts, slices.space, tail)
        reasons[some & np.isnan(p)] = Reason.CONSTANT
        return Tested.by(Method.FEW_CELLS, p, reasons)

    def _subset_p(
        self, counts: Sums, population: Sums, space: StatisticSpace, tail: Tail
    ) -> FloatArray:
        def value_and_gradient(cells: FloatArray) -> tuple[FloatArray, FloatArray]:
            return self.of_cells(cells, space), self.gradient(cells, space)

        strata = self.strata(space)
        return few_cells.p_value(value_and_gradient, counts, population, strata, tail)

    def p_refine(
        self, sums: Sums, parents: Sums, totals: Sums, space: StatisticSpace, *, worse: bool
    ) -> FloatArray:
        """Return how likely a random subset of the parent is as extreme, by the same law as the test."""
        if space.weighted or space.comparison == "baseline":
            return super().p_refine(sums, parents, totals, space, worse=worse)
        tail = self.tail("worse" if worse else "better")
        p = self._subset_p(space.counts(sums), space.counts(parents), space, tail)
        return np.nan_to_num(p, nan=1.0)


class FBeta(BinaryMetric):
    """F-beta = (1 + β²)·TP/((1 + β²)·TP + β²·FN + FP), van Rijsbergen (1979)."""

    undefined = "no example has a positive label or is predicted positive"
    denominators = ("positive | predicted",)
    is_ratio = True

    def __init__(self, beta: float) -> None:
        # All digits where six are too few, so that the name means the same number again.
        digits = f"{beta:g}" if float(f"{beta:g}") == beta else repr(beta)
        self.name, self.title, self.beta = f"fbeta:{digits}", f"F-beta ({digits})", beta

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """See `CellMetric.formula`."""
        tp, fp, fn, _ = counts
        square = self.beta**2
        return ratio((1 + square) * tp, (1 + square) * tp + square * fn + fp)

    def interval(
        self, counts: Sequence[NDArray[Any]], confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """See `cell_intervals.fbeta`."""
        tp, fp, fn, _ = counts
        return cell_intervals.fbeta(tp, fp, fn, self.beta, confidence)


class BalancedAccuracy(BinaryMetric):
    """The mean of recall and specificity."""

    name, title = "balanced_accuracy", "Balanced accuracy"
    undefined = "all labels are one class"
    denominators = ("positive", "~positive")
    is_ratio = True

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """See `CellMetric.formula`."""
        tp, fp, fn, tn = counts
        return np.asarray(0.5 * (ratio(tp, tp + fn) + ratio(tn, tn + fp)))

    def interval(
        self, counts: Sequence[NDArray[Any]], confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """See `cell_intervals.balanced_accuracy`."""
        tp, fp, fn, tn = counts
        return cell_intervals.balanced_accuracy(tp, tp + fn, tn, tn + fp, confidence)


class Matthews(BinaryMetric):
    """Matthews' correlation coefficient, Matthews (1975), Biochim. Biophys. Acta 405:442."""

    name, title, range = "mcc", "Matthews correlation", (-1.0, 1.0)
    undefined = "all labels, or all predictions, are one class"

    def denominator(self, counts: Sums, space: StatisticSpace, *, old: bool = False) -> Sums:
        """See `CellMetric.denominator`: the smallest margin, of which all others are made."""
        tp, fp, fn, tn = self.part_counts(counts, space, old=old)
        return np.asarray(np.minimum.reduce([tp + fp, tp + fn, tn + fp, tn + fn]))

    def of_cells(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.of_cells`."""
        return np.clip(super().of_cells(cells, space, old=old), -1.0, 1.0)

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """See `CellMetric.formula`; as roots, since the product of four margins overflows sooner."""
        tp, fp, fn, tn = counts
        below = np.sqrt((tp + fp) * (tp + fn)) * np.sqrt((tn + fp) * (tn + fn))
        return ratio(tp * tn - fp * fn, below)

    def interval(
        self, counts: Sequence[NDArray[Any]], confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """See `cell_intervals.mcc`."""
        tp, fp, fn, tn = counts
        return cell_intervals.mcc(tp, fp, fn, tn, confidence)


class MacroAverage(Aggregate):
    """The mean over classes of precision, recall or F1; a class that never occurs is left out.

    As in scikit-learn, a class that occurs and is never predicted has precision 0.
    """

    needs = base.Needs(classes=True)

    def __init__(self, of: Literal["precision", "recall", "f1"], title: str) -> None:
        self.name, self.title = f"{of}_macro", f"{title}, macro average"
        # Each class' metric is share·TP/(labels·L + predictions·P).
        self.share = 2.0 if of == "f1" else 1.0
        self.labels = 0.0 if of == "precision" else 1.0
        self.predictions = 0.0 if of == "recall" else 1.0

    def _parts(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return TP and denominator of each class, and whether it occurs, [slices, classes]."""
        every = np.arange(space.classes)
        label = space.code("label_class")[:, None] == every
        predicted = space.code("predicted_class", old=old)[:, None] == every
        of_label, of_prediction = cells @ label, cells @ predicted
        below = self.labels * of_label + self.predictions * of_prediction
        return cells @ (label & predicted), below, of_label + of_prediction > 0

    def of_cells(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.of_cells`."""
        hits, below, occurs = self._parts(cells, space, old=old)
        each = np.divide(self.share * hits, below, out=np.zeros(below.shape), where=below > 0)
        return ratio(np.where(occurs, each, 0.0).sum(axis=1), occurs.sum(axis=1).astype(float))

    def gradient(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.gradient`; the set of classes that occur counts as fixed."""
        hits, below, occurs = self._parts(cells, space, old=old)
        unit = np.divide(1.0, below, out=np.zeros(below.shape), where=below > 0)
        unit /= np.maximum(occurs.sum(axis=1), 1)[:, None]
        each = np.divide(self.share * hits, below, out=np.zeros(below.shape), where=below > 0)
        label, predicted = space.code("label_class"), space.code("predicted_class", old=old)
        right = np.where(label == predicted, self.share, 0.0)
        slopes: FloatArray = right * unit[:, label]
        slopes -= self.labels * (each * unit)[:, label]
        slopes -= self.predictions * (each * unit)[:, predicted]
        return slopes
