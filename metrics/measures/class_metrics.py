"""Metrics of the whole table of label and predicted class: balanced accuracy, MCC and kappa of all classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.intervals import cell_intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.measures.cell_metric import ratio
from slicebeam.metrics.measures.confusion import Aggregate, CountedInterval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace

# Less is what rounding leaves of nothing.
_ROUNDED = 1e-14


class ClassMetric(Aggregate):
    """A formula of how many examples of each class [classes, slices] are right, labels, and predictions."""

    needs = base.Needs(classes=True)

    def __init__(
        self,
        name: str,
        title: str,
        of_table: Callable[..., NDArray[Any]],
        denominator: Callable[..., NDArray[Any]],
        lowest: float,
        undefined: str,
    ) -> None:
        self.name, self.title, self.range, self.undefined = name, title, (lowest, 1.0), undefined
        self._of_table, self._denominator = of_table, denominator

    def parts(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """See `CellMetric.parts`."""
        classes = np.arange(space.classes)[:, None]
        labels = space.code("label_class") == classes
        predictions = space.code("predicted_class", old=old) == classes
        return [*(labels & predictions), *labels, *predictions]

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """See `CellMetric.formula`."""
        return self._of_table(*_table(counts))

    def denominator(
        self, counts: IntArray, space: StatisticSpace, *, old: bool = False
    ) -> IntArray:
        """See `CellMetric.denominator`."""
        return np.asarray(self._denominator(*_table(self.part_counts(counts, space, old=old))[1:]))


class MeanRecall(CountedInterval, ClassMetric):
    """Balanced accuracy of all classes, whose interval is by those of the recalls."""

    def interval(
        self, counts: Sequence[NDArray[Any]], confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """See `cell_intervals.mean_recall`."""
        right, labels, _ = _table(counts)
        return cell_intervals.mean_recall(right, labels, confidence)


def _table(counts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return counts of `ClassMetric.parts` as [3, classes, slices]."""
    return np.array(counts).reshape(3, len(counts) // 3, *np.shape(counts[0]))


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
    spreads = [1.0 - (one**2).sum(axis=0) for one in (labels, predictions)]
    roots = [np.sqrt(np.where(np.real(one) > _ROUNDED, one, 0.0)) for one in spreads]
    return _defined_ratio(agreement - expected, roots[0] * roots[1])


def _shares(*table: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return the agreement, that by chance, and the shares of labels and predictions: no product overflows."""
    n = table[1].sum(axis=0)
    right, labels, predictions = (ratio(one, n) for one in table)
    return right.sum(axis=0), (labels * predictions).sum(axis=0), labels, predictions


def _defined_ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    return ratio(above, np.where(np.real(below) > _ROUNDED, below, 0.0))


def examples(labels: IntArray, _: IntArray) -> IntArray:
    """Return the number of examples."""
    return np.asarray(labels.sum(axis=0))


def outside_common_class(labels: IntArray, predictions: IntArray) -> IntArray:
    """Return the examples that are not of the class of most labels and predictions."""
    return np.asarray(labels.sum(axis=0) - np.minimum(labels, predictions).max(axis=0))


def outside_largest_class(labels: IntArray, predictions: IntArray) -> IntArray:
    """Return the examples outside the largest class, of labels or of predictions."""
    return np.asarray(labels.sum(axis=0) - np.maximum(labels, predictions).max(axis=0))
