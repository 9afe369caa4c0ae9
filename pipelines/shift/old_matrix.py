"""The old confusion matrix: of the pool's old predictions, or of the document of an earlier shift."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from slicebeam.metrics.errors import OptionError, shortened
from slicebeam.pipelines.changelist.reading import read_shift

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.shift.estimates import Strata
    from slicebeam.pipelines.changelist.document import ShiftChangeList
    from slicebeam.pipelines.shift.pool import LabelledPool

# What sums of shares differ from 1 by.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Old:
    """The old confusion matrix: float64 [L, P], with its standard errors, 0 where it is known."""

    matrix: FloatArray
    errors: FloatArray
    accuracy: float
    accuracy_error: float
    warnings: tuple[str, ...] = ()


def old_of_pool(strata: Strata) -> Old:
    """Return the old matrix from the old predictions of the pool."""
    matrix = strata.old_matrix
    return Old(matrix, np.zeros(matrix.shape), float(strata.accuracy(matrix)), 0.0)


def old_of_document(strata: Strata, pool: LabelledPool, document: ShiftChangeList, uri: str) -> Old:
    """Return the old matrix that an earlier document holds, for the labels of this pool.

    Its rows are scaled to the pool's shares of the labels, which are known.
    """
    shift = document.shift
    named = dict(zip(shift.labels, shift.new_matrix, strict=True))
    errors_of = dict(zip(shift.labels, shift.new_errors, strict=True))
    classes: list[Any] = [*pool.classes, None]
    unknown = [value for value in shift.predictions if value not in classes]
    labels = [pool.classes[code] for code in pool.labels.tolist()]
    missing = [value for value in labels if value not in named]
    if missing or unknown:
        which = f"label {missing[0]!r}" if missing else f"prediction {unknown[0]!r}"
        where = "is not in it" if missing else "is in it only"
        raise OptionError(
            f"--old-matrix {uri}: {which} {where}; give the document of a shift with these classes"
        )
    place = [classes.index(value) for value in shift.predictions]
    matrix, errors = np.zeros(strata.shape), np.zeros(strata.shape)
    for row, label in enumerate(labels):
        matrix[row, place] = named[label]
        errors[row, place] = errors_of[label]
    sums = matrix.sum(axis=1)
    if (sums <= 0).any():
        raise OptionError(
            f"--old-matrix {uri}: label {labels[int(sums.argmin())]!r} does not occur in it; give "
            "a document with every label"
        )
    scale = strata.label_share / sums
    warnings: tuple[str, ...] = ()
    if np.abs(scale - 1).max() > _ROUNDING:
        warnings = (
            "The shares of the labels differ from those of --old-matrix; its rows were rescaled to match.",
        )
    overall = document.global_[0].after
    middle = overall.value or 0.0
    # The wider half, since the other may end at 0 or 1.
    half = max((overall.hi or 0.0) - middle, middle - (overall.lo or 0.0))
    error = float(half / stats.norm.isf((1 - shift.confidence) / 2))
    scaled = matrix * scale[:, None]
    return Old(scaled, errors * scale[:, None], float(strata.accuracy(scaled)), error, warnings)


def read_old(uri: str) -> ShiftChangeList:
    """Return the document that ``--old-matrix`` names; refuse one whose matrix can't be right."""
    document = read_shift(uri, "--old-matrix")
    if wrong := _wrong(document):
        raise OptionError(f"--old-matrix {uri}: {wrong}; give the unchanged document of a shift")
    return document


def _wrong(document: ShiftChangeList) -> str | None:
    """Return what is inconsistent in the matrix and the accuracy."""
    shift, after = document.shift, document.global_[0].after
    for name, classes in (("labels", shift.labels), ("predictions", shift.predictions)):
        if wrong := _wrong_classes(classes, may_be_none=name == "predictions"):
            return f"its {name} contain {wrong}"
    # An error of a matrix of few items may be above 1.
    for name, matrix, largest in (
        ("new_matrix", shift.new_matrix, 1 + _ROUNDING),
        ("new_errors", shift.new_errors, 2.0),
    ):
        shape = [len(row) for row in matrix]
        if shape != [len(shift.predictions)] * len(shift.labels):
            return (
                f"{name} is not a matrix of {len(shift.labels)} labels by "
                f"{len(shift.predictions)} predictions"
            )
        for label, row in zip(shift.labels, matrix, strict=True):
            for prediction, value in zip(shift.predictions, row, strict=True):
                if not 0 <= value <= largest:
                    return (
                        f"{name} has {value:g} for label {label!r} and prediction {prediction!r}, "
                        "which is not a share"
                    )
    total = sum(map(sum, shift.new_matrix))
    if not 1 - _ROUNDING <= total <= 1 + _ROUNDING:
        return f"new_matrix sums to {total:g}, not to 1"
    if not 0 < shift.confidence < 1:
        return f"its confidence is {shift.confidence:g}"
    low, middle, high = after.lo, after.value, after.hi
    if low is None or middle is None or high is None:
        return "its accuracy has no interval"
    ordered = (0.0, low, middle, high, 1.0)
    if any(one > other + _ROUNDING for one, other in pairwise(ordered)):
        return f"its accuracy is {middle:g}, {low:g} to {high:g}"
    return None


def _wrong_classes(classes: Sequence[Any], *, may_be_none: bool) -> str | None:
    for at, one in enumerate(classes):
        if one is None and may_be_none:
            continue
        if not isinstance(one, (str, bool, int, float)) or (
            isinstance(one, float) and not one.is_integer()
        ):
            return f"{shortened(repr(one))}, which is not a class"
        if one in classes[:at]:
            return f"{shortened(repr(one))} twice"
    return "null twice" if list(classes).count(None) > 1 else None
