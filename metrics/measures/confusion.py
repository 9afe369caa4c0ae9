"""Metrics of the confusion matrix that are not shares: F-beta, balanced accuracy, MCC, macro."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from slicebeam.metrics.intervals import cell_intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.significance import outcome_codes, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Tail
    from slicebeam.metrics.significance.outcome_codes import Tested

    Sums = IntArray


class Confusion(NamedTuple):
    """Entries of the confusion matrix [slices]."""

    tp: NDArray[Any]
    fp: NDArray[Any]
    fn: NDArray[Any]
    tn: NDArray[Any]

    @property
    def positives(self) -> NDArray[Any]:
        """Examples of the positive class."""
        return np.asarray(self.tp + self.fn)

    @property
    def negatives(self) -> NDArray[Any]:
        """Other examples."""
        return np.asarray(self.tn + self.fp)


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    return np.asarray(np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0))


class BinaryMetric(CellMetric):
    """A metric of the four entries of a confusion matrix."""

    needs = base.Needs(indicators=("positive", "predicted"))
    kind: Literal["pointwise", "aggregate"] = "aggregate"
    indivisible = "it combines several shares, so no example has a share of its own in it"
    higher_is_better = True

    def __init__(self, name: str, title: str, limits: tuple[float, float]) -> None:
        self.name, self.title, self.range = name, title, limits

    @staticmethod
    def confusion(cells: NDArray[Any], space: StatisticSpace, *, old: bool = False) -> Confusion:
        """Return the entries [slices] of counts by cell [slices, cells]."""
        positive, predicted = space.holds("positive"), space.holds("predicted", old=old)
        return Confusion(
            cells[:, positive & predicted].sum(axis=1),
            cells[:, ~positive & predicted].sum(axis=1),
            cells[:, positive & ~predicted].sum(axis=1),
            cells[:, ~positive & ~predicted].sum(axis=1),
        )

    @staticmethod
    def _spread(slopes: Confusion, space: StatisticSpace, *, old: bool) -> FloatArray:
        """Return the gradient [slices, cells] of the slopes in each entry [slices]."""
        positive, predicted = space.holds("positive"), space.holds("predicted", old=old)
        entry = np.where(positive, np.where(predicted, 0, 2), np.where(predicted, 1, 3))
        return np.stack(slopes, axis=1)[:, entry]

    @abstractmethod
    def _own_interval(self, entries: Confusion, confidence: float) -> tuple[FloatArray, FloatArray]:
        """Return the interval (low, high) [slices] of examples without weights."""

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
        return self._own_interval(self.confusion(space.weights(sums), space, old=old), confidence)


class FBeta(BinaryMetric):
    """F-beta = (1 + β²)·TP/((1 + β²)·TP + β²·FN + FP), van Rijsbergen (1979)."""

    def __init__(self, beta: float) -> None:
        # All digits where six are too few, so that the name means the same number again.
        digits = f"{beta:g}" if float(f"{beta:g}") == beta else repr(beta)
        super().__init__(f"fbeta:{digits}", f"F-beta ({digits})", (0.0, 1.0))
        self.beta = beta
        self.undefined = "no example has a positive label or is predicted positive"

    def strata(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """See `CellMetric.strata`."""
        return [space.holds("positive") | space.holds("predicted", old=old)]

    def of_cells(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.of_cells`."""
        tp, fp, fn, _ = self.confusion(cells, space, old=old)
        square = self.beta**2
        return _ratio((1 + square) * tp, (1 + square) * tp + square * fn + fp)

    def gradient(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.gradient`."""
        tp, fp, fn, _ = self.confusion(cells, space, old=old)
        square = self.beta**2
        below = (1 + square) * tp + square * fn + fp
        value = self.of_cells(cells, space, old=old)
        unit = np.divide(1.0, below, out=np.zeros(below.shape), where=below > 0)
        value = np.where(below > 0, value, 0.0)
        slopes = Confusion(
            (1 + square) * (1 - value) * unit,
            -value * unit,
            -square * value * unit,
            np.zeros(below.shape),
        )
        return self._spread(slopes, space, old=old)

    def _test_overall(
        self, counts: Sums, totals: Sums, space: StatisticSpace, tail: Tail
    ) -> Tested:
        own = self.confusion(counts, space)
        whole = self.confusion(totals[None, :], space)
        reasons = self.untestable(counts, totals, space)
        union = whole.tp + whole.fp + whole.fn
        reasons[(reasons == 0) & (own.tp + own.fp + own.fn == union)] = outcome_codes.WHOLE
        if np.count_nonzero([whole.tp[0], whole.fp[0], whole.fn[0]]) < 2:
            reasons[reasons == 0] = outcome_codes.CONSTANT
        p = np.ones(len(counts))
        some = reasons == 0
        p[some] = permutation.fbeta_p_value(
            own.tp[some], own.fp[some], own.fn[some], whole.tp, whole.fp, whole.fn, self.beta, tail
        )
        return outcome_codes.Tested.by(outcome_codes.CELL_PERMUTATION, p, reasons)

    def _own_interval(self, entries: Confusion, confidence: float) -> tuple[FloatArray, FloatArray]:
        """See `slicebeam.metrics.intervals.cell_intervals.fbeta`."""
        return cell_intervals.fbeta(entries.tp, entries.fp, entries.fn, self.beta, confidence)


class BalancedAccuracy(BinaryMetric):
    """The mean of recall and specificity."""

    undefined = "all labels are one class"

    def __init__(self) -> None:
        super().__init__("balanced_accuracy", "Balanced accuracy", (0.0, 1.0))

    def strata(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """See `CellMetric.strata`."""
        positive = space.holds("positive")
        return [positive, ~positive]

    def of_cells(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.of_cells`."""
        entries = self.confusion(cells, space, old=old)
        return 0.5 * (_ratio(entries.tp, entries.positives) + _ratio(entries.tn, entries.negatives))

    def gradient(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.gradient`."""
        tp, fp, fn, tn = entries = self.confusion(cells, space, old=old)
        defined = (entries.positives > 0) & (entries.negatives > 0)
        positives = np.where(defined, entries.positives, 1.0) ** 2
        negatives = np.where(defined, entries.negatives, 1.0) ** 2
        slopes = (fn / positives, -tn / negatives, -tp / positives, fp / negatives)
        return self._spread(
            Confusion(*(np.where(defined, 0.5 * slope, 0.0) for slope in slopes)), space, old=old
        )

    def _test_overall(
        self, counts: Sums, totals: Sums, space: StatisticSpace, tail: Tail
    ) -> Tested:
        own = self.confusion(counts, space)
        whole = self.confusion(totals[None, :], space)
        reasons = self.untestable(counts, totals, space)
        constant = (whole.tp[0] * whole.fn[0] == 0) and (whole.tn[0] * whole.fp[0] == 0)
        if constant:
            reasons[reasons == 0] = outcome_codes.CONSTANT
        p = np.ones(len(counts))
        some = reasons == 0
        p[some] = permutation.balanced_accuracy_p_value(
            own.tp[some],
            own.positives[some],
            own.tn[some],
            own.negatives[some],
            whole.tp,
            whole.positives,
            whole.tn,
            whole.negatives,
            tail,
        )
        return outcome_codes.Tested.by(outcome_codes.CELL_PERMUTATION, p, reasons)

    def _own_interval(self, entries: Confusion, confidence: float) -> tuple[FloatArray, FloatArray]:
        """See `slicebeam.metrics.intervals.cell_intervals.balanced_accuracy`."""
        return cell_intervals.balanced_accuracy(
            entries.tp, entries.positives, entries.tn, entries.negatives, confidence
        )


class Matthews(BinaryMetric):
    """Matthews' correlation coefficient, Matthews (1975), Biochim. Biophys. Acta 405:442."""

    undefined = "all labels, or all predictions, are one class"

    def __init__(self) -> None:
        super().__init__("mcc", "Matthews correlation", (-1.0, 1.0))

    def denominator(self, counts: Sums, space: StatisticSpace, *, old: bool = False) -> Sums:
        """See `CellMetric.denominator`: the smallest margin, of which all others are made."""
        tp, fp, fn, tn = self.confusion(counts, space, old=old)
        return np.asarray(np.minimum.reduce([tp + fp, tp + fn, tn + fp, tn + fn]))

    def of_cells(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.of_cells`."""
        tp, fp, fn, tn = (
            entry.astype(np.float64) for entry in self.confusion(cells, space, old=old)
        )
        # As roots, since the product of four margins overflows sooner.
        below = np.sqrt((tp + fp) * (tp + fn)) * np.sqrt((tn + fp) * (tn + fn))
        return np.clip(_ratio(tp * tn - fp * fn, below), -1.0, 1.0)

    def gradient(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.gradient`."""
        tp, fp, fn, tn = self.confusion(cells, space, old=old)
        margins = (tp + fp, tp + fn, tn + fp, tn + fn)
        defined = np.all([margin > 0 for margin in margins], axis=0)
        a, b, c, d = (np.where(defined, margin, 1.0) for margin in margins)
        below = np.sqrt(a * b) * np.sqrt(c * d)
        half = 0.5 * (tp * tn - fp * fn) / below
        slopes = (
            tn / below - half * (1 / a + 1 / b),
            -fn / below - half * (1 / a + 1 / c),
            -fp / below - half * (1 / b + 1 / d),
            tp / below - half * (1 / c + 1 / d),
        )
        return self._spread(
            Confusion(*(np.where(defined, slope, 0.0) for slope in slopes)), space, old=old
        )

    def _own_interval(self, entries: Confusion, confidence: float) -> tuple[FloatArray, FloatArray]:
        """See `slicebeam.metrics.intervals.cell_intervals.mcc`."""
        return cell_intervals.mcc(*entries, confidence)


class MacroAverage(CellMetric):
    """The mean over classes of precision, recall or F1; a class that never occurs is left out.

    As in scikit-learn, a class that occurs and is never predicted has precision 0.
    """

    needs = base.Needs(classes=True)
    kind: Literal["pointwise", "aggregate"] = "aggregate"
    indivisible = "it combines several shares, so no example has a share of its own in it"
    higher_is_better = True
    range = (0.0, 1.0)

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
        return _ratio(np.where(occurs, each, 0.0).sum(axis=1), occurs.sum(axis=1).astype(float))

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
