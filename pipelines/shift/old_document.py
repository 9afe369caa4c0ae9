"""Reads the document of an earlier shift, whose new confusion matrix is the old one now."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.reading import read_shift
from slicebeam.transforms.encode.predicates import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import ShiftChangeList

# What sums of shares differ from 1 by.
_ROUNDING = 1e-6


def read_old(uri: str) -> ShiftChangeList:
    """Return the document that ``--old-matrix`` names.

    Raises
    ------
    InputError
        It is not a document of a shift, or its matrix can't be right.
    """
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
