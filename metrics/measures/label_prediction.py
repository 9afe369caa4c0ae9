"""How well the value of a column alone predicts the label."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, IntArray

# A column predicts the label almost perfectly where it leaves one in so many of the errors.
ERRORS_PER_LEFT = 20
# With fewer examples outside the most frequent class nothing is said.
FEWEST_OTHERS = 20


class LabelPrediction(NamedTuple):
    """Share of examples whose class is predicted from their value, and share of the most frequent class."""

    right: float
    most_frequent: float


def predicts_label(table: IntArray, is_range: BoolArray) -> LabelPrediction | None:
    """Return how much of the label the table [values, classes] predicts if almost all; None elsewhere.

    Each example is predicted to be of the most frequent class among the *others* with its value. Almost all:
    of the errors of always predicting the most frequent class one in `ERRORS_PER_LEFT` is left at most (Goodman
    and Kruskal's lambda of 0.95, J. Am. Stat. Assoc. 49, 1954), also if the range of most errors, where two
    classes may meet within a bin, is left out and half of the other examples remain.

    >>> nothing = np.zeros(2, bool)
    >>> predicts_label(np.array([[700, 2], [3, 295]]), nothing)
    LabelPrediction(right=0.995, most_frequent=0.703)
    >>> predicts_label(np.array([[600, 150], [100, 150]]), nothing)
    """
    found = _judged(table)
    if found is not None or not is_range.any():
        return found
    wrong = np.where(is_range, _errors(table), -1)
    rest = np.delete(table, int(np.argmax(wrong)), axis=0)
    if 2 * _others(rest) < _others(table):
        return None
    return _judged(rest)


def _errors(table: IntArray) -> IntArray:
    """Return the wrong predictions among the examples of each value [values]."""
    size = table.sum(axis=1)
    ordered = np.sort(np.pad(table, ((0, 0), (2, 0))), axis=1)
    first, second = ordered[:, -1], ordered[:, -2]
    # Without itself, an example of the first class may find the second one as frequent.
    wrong: IntArray = np.where(first - 1 > second, size - first, size)
    return wrong


def _others(table: IntArray) -> int:
    """Return the examples that are not of the most frequent class."""
    return int(table.sum() - table.sum(axis=0).max(initial=0))


def _judged(table: IntArray) -> LabelPrediction | None:
    size, others, wrong = int(table.sum()), _others(table), int(_errors(table).sum())
    if others < FEWEST_OTHERS or wrong * ERRORS_PER_LEFT > others:
        return None
    return LabelPrediction((size - wrong) / size, (size - others) / size)
