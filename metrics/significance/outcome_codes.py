"""The outcome of a test of many slices: p-values of a tail, by which test, and why a slice has none."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slicebeam.metrics.arrays import FloatArray, NDArray
from slicebeam.metrics.kinds import Tail

if TYPE_CHECKING:
    from typing_extensions import Self

# Fewer examples in a denominator say nothing that holds.
LEAST_DENOMINATOR = 10


class _Code(IntEnum):
    """A small number that arrays hold, with the text that readers see."""

    text: str

    def __new__(cls, text: str) -> Self:
        code = int.__new__(cls, len(cls.__members__))
        code._value_ = len(cls.__members__)
        code.text = text
        return code


class Reason(_Code):
    """Why a slice has no p-value of its own (p is then 1)."""

    TESTED = ""
    WHOLE = "the slice is all examples"
    CONSTANT = "all examples have the same outcome"
    UNCHANGED = "the two models never differ on the slice"
    UNDEFINED_REPLICATES = "too many undefined replicates"
    NO_VARIANCE = "nothing varies, so that there is no standard error"
    UNDEFINED = "the denominator is empty"
    SMALL_DENOMINATOR = f"fewer than {LEAST_DENOMINATOR} examples in the denominator"
    TOO_SKEWED = "too skewed, or weighted too unequally, for so few examples"
    FEW_GROUPS = "fewer than 30 groups"
    NOT_RESAMPLED = "far from significant by the first, quick test, so it was not resampled"
    SMALL_SLICE = "fewer examples than the metric needs"
    NO_EXAMPLES = "no examples satisfy it"
    UNVARYING = "the models differ, without variation that this test could go by"
    FEW_EARLIER = "too few examples in the earlier data; give more by --baseline-data"


class Method(_Code):
    """The test that gave a slice its p-value."""

    NONE = ""
    HYPERGEOMETRIC = "hypergeometric mid-p"
    LIKELIHOOD_RATIO = "signed-root likelihood ratio"
    MCNEMAR = "McNemar mid-p"
    CELL_PERMUTATION = "permutation of cells, Pearson III tail"
    DELTA_METHOD = "delta method, two models"
    RANDOM_SUBSET = "law of random subsets, saddle point"
    HALL_PAIRED = "Hall's paired t"
    AUC_Z = "AUC z, null variance"
    BOOTSTRAP_ROWS = "bootstrap of examples, t"
    PAPER = "AutoSlicer's t"
    BOOTSTRAP_GROUPS = "bootstrap of groups, t"
    SIGN_FLIP = "exact sign flips, constant change"
    SIGN_FLIP_GROUPS = "exact sign flips of whole groups, constant change"
    WEIGHTED_SUBSET = "law of random subsets, weighted counts"
    FEW_CELLS = "law of random subsets, few cells"
    STUDENT = "paired t, law of all changes"
    TWO_SETS = "two samples: Fisher's mid-p, Hall's t or DeLong's z"


# By their position.
REASONS: tuple[str, ...] = tuple(reason.text for reason in Reason)
METHODS: tuple[str, ...] = tuple(method.text for method in Method)


class Tested(NamedTuple):
    """P-values [slices], 1 where degenerate, never NaN; `Reason` and `Method` codes, 0 for none."""

    p: FloatArray
    reasons: NDArray[np.int8]
    methods: NDArray[np.int8]

    @classmethod
    def by(
        cls, method: int | NDArray[Any], p: FloatArray, reasons: int | NDArray[Any] = 0
    ) -> Tested:
        """Return p-values by a method, 1 where there is a reason against a test."""
        codes = np.broadcast_to(reasons, p.shape).astype(np.int8)
        methods = np.where(codes == 0, method, 0).astype(np.int8)
        return cls(np.where(codes == 0, p, 1.0), codes, methods)


def select_tail(upper: FloatArray, lower: FloatArray, tail: Tail) -> FloatArray:
    """Return upper, lower or min(1, 2·min(upper, lower)) of one-sided p-values."""
    if tail == "both":
        return np.minimum(1.0, 2.0 * np.minimum(upper, lower))
    return upper if tail == "upper" else lower
