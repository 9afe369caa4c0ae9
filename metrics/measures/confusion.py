"""Metrics of the confusion matrix that are not shares: F-beta, balanced accuracy, MCC, macro."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slicebeam.metrics.intervals import cell_intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.measures.cell_metric import CellMetric, ratio
from slicebeam.metrics.significance import outcome_codes, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Tail
    from slicebeam.metrics.significance.outcome_codes import Tested

    Sums = IntArray


class Aggregate(CellMetric):
    """A metric that is not an average over examples."""

    kind: Literal["pointwise", "aggregate"] = "aggregate"
    indivisible = "it combines several shares, so no example has a share of its own in it"
    higher_is_better = True
    range = (0.0, 1.0)


class BinaryMetric(Aggregate):
    """A metric of true and false positives, false and true negatives, in this order."""

    needs = base.Needs(indicators=("positive", "predicted"))

    def parts(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """See `CellMetric.parts`."""
        positive, predicted = space.holds("positive"), space.holds("predicted", old=old)
        return [
            positive & predicted,
            ~positive & predicted,
            positive & ~predicted,
            ~positive & ~predicted,
        ]

    def entries(
        self, cells: NDArray[Any], space: StatisticSpace, *, old: bool = False
    ) -> list[Any]:
        """Return the four entries [slices] of counts [slices, cells]."""
        return [cells[:, part].sum(axis=1) for part in self.parts(space, old=old)]

    def interval(self, entries: list[Any], confidence: float) -> tuple[FloatArray, FloatArray]:
        """Return the interval (low, high) [slices] of examples without weights."""
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
        return self.interval(self.entries(space.weights(sums), space, old=old), confidence)

    def exact_p(self, own: list[Any], whole: list[Any], tail: Tail) -> FloatArray:
        """Return the p-value [slices] of entries if the slice were a random subset, by exact moments."""
        raise NotImplementedError

    def _test_exactly(
        self,
        counts: Sums,
        totals: Sums,
        space: StatisticSpace,
        tail: Tail,
        reasons: NDArray[np.int8],
    ) -> Tested:
        some, p = reasons == 0, np.ones(len(counts))
        own, whole = self.entries(counts[some], space), self.entries(totals[None, :], space)
        p[some] = self.exact_p(own, whole, tail)
        return outcome_codes.Tested.by(outcome_codes.CELL_PERMUTATION, p, reasons)


class FBeta(BinaryMetric):
    """F-beta = (1 + β²)·TP/((1 + β²)·TP + β²·FN + FP), van Rijsbergen (1979)."""

    undefined = "no example has a positive label or is predicted positive"
    is_ratio = True

    def __init__(self, beta: float) -> None:
        # All digits where six are too few, so that the name means the same number again.
        digits = f"{beta:g}" if float(f"{beta:g}") == beta else repr(beta)
        self.name, self.title, self.beta = f"fbeta:{digits}", f"F-beta ({digits})", beta

    def strata(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """See `CellMetric.strata`."""
        return [space.holds("positive") | space.holds("predicted", old=old)]

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """See `CellMetric.formula`."""
        tp, fp, fn, _ = counts
        square = self.beta**2
        return ratio((1 + square) * tp, (1 + square) * tp + square * fn + fp)

    def _test_overall(
        self, counts: Sums, totals: Sums, space: StatisticSpace, tail: Tail
    ) -> Tested:
        reasons = self.untestable(counts, totals, space)
        whole = self.entries(totals[None, :], space)[:3]
        is_whole = self.denominator(counts, space) == sum(whole)
        reasons[(reasons == 0) & is_whole] = outcome_codes.WHOLE
        if np.count_nonzero(whole) < 2:
            reasons[reasons == 0] = outcome_codes.CONSTANT
        return self._test_exactly(counts, totals, space, tail, reasons)

    def exact_p(self, own: list[Any], whole: list[Any], tail: Tail) -> FloatArray:
        """See `permutation.fbeta_p_value`."""
        (tp, fp, fn, _), (TP, FP, FN, _) = own, whole
        return permutation.fbeta_p_value(tp, fp, fn, TP, FP, FN, self.beta, tail)

    def interval(self, entries: list[Any], confidence: float) -> tuple[FloatArray, FloatArray]:
        """See `cell_intervals.fbeta`."""
        tp, fp, fn, _ = entries
        return cell_intervals.fbeta(tp, fp, fn, self.beta, confidence)


class BalancedAccuracy(BinaryMetric):
    """The mean of recall and specificity."""

    name, title = "balanced_accuracy", "Balanced accuracy"
    undefined = "all labels are one class"
    is_ratio = True

    def strata(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """See `CellMetric.strata`."""
        positive = space.holds("positive")
        return [positive, ~positive]

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """See `CellMetric.formula`."""
        tp, fp, fn, tn = counts
        return np.asarray(0.5 * (ratio(tp, tp + fn) + ratio(tn, tn + fp)))

    def _test_overall(
        self, counts: Sums, totals: Sums, space: StatisticSpace, tail: Tail
    ) -> Tested:
        reasons = self.untestable(counts, totals, space)
        tp, fp, fn, tn = self.entries(totals[None, :], space)
        if tp[0] * fn[0] == 0 and tn[0] * fp[0] == 0:
            reasons[reasons == 0] = outcome_codes.CONSTANT
        return self._test_exactly(counts, totals, space, tail, reasons)

    def exact_p(self, own: list[Any], whole: list[Any], tail: Tail) -> FloatArray:
        """See `permutation.balanced_accuracy_p_value`."""
        of_slice, of_all = ((tp, tp + fn, tn, tn + fp) for tp, fp, fn, tn in (own, whole))
        return permutation.balanced_accuracy_p_value(*of_slice, *of_all, tail)

    def interval(self, entries: list[Any], confidence: float) -> tuple[FloatArray, FloatArray]:
        """See `cell_intervals.balanced_accuracy`."""
        tp, fp, fn, tn = entries
        return cell_intervals.balanced_accuracy(tp, tp + fn, tn, tn + fp, confidence)


class Matthews(BinaryMetric):
    """Matthews' correlation coefficient, Matthews (1975), Biochim. Biophys. Acta 405:442."""

    name, title, range = "mcc", "Matthews correlation", (-1.0, 1.0)
    undefined = "all labels, or all predictions, are one class"

    def denominator(self, counts: Sums, space: StatisticSpace, *, old: bool = False) -> Sums:
        """See `CellMetric.denominator`: the smallest margin, of which all others are made."""
        tp, fp, fn, tn = self.entries(counts, space, old=old)
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

    def interval(self, entries: list[Any], confidence: float) -> tuple[FloatArray, FloatArray]:
        """See `cell_intervals.mcc`."""
        tp, fp, fn, tn = entries
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
