"""The outcome of a test of many slices: p-values, by which test, and why a slice has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray

# Fewer examples in a denominator say nothing that holds.
LEAST_DENOMINATOR = 10

# Reason codes of `Tested.reasons`: why a slice has no p-value of its own (p is then 1).
REASONS: tuple[str, ...] = (
    "",
    "the slice is all examples",
    "all examples have the same outcome",
    "the two models never differ on the slice",
    "too many undefined replicates",
    "nothing varies, so that there is no standard error",
    "the denominator is empty",
    f"fewer than {LEAST_DENOMINATOR} examples in the denominator",
    "too skewed, or weighted too unequally, for so few examples",
    "fewer than 30 groups",
    "far from significant by the first, quick test, so it was not resampled",
    "fewer examples than the metric needs",
    "no examples satisfy it",
    "the models differ, without variation that this test could go by",
)
(
    WHOLE,
    CONSTANT,
    UNCHANGED,
    UNDEFINED_REPLICATES,
    NO_VARIANCE,
    UNDEFINED,
    SMALL_DENOMINATOR,
    TOO_SKEWED,
    FEW_GROUPS,
    NOT_RESAMPLED,
    SMALL_SLICE,
    NO_EXAMPLES,
    UNVARYING,
) = range(1, len(REASONS))

# What `Tested.methods` counts: the test that gave a slice its p-value.
METHODS: tuple[str, ...] = (
    "",
    "hypergeometric mid-p",
    "signed-root likelihood ratio",
    "McNemar mid-p",
    "permutation of cells, Pearson III tail",
    "delta method, two models",
    "law of random subsets, saddle point",
    "Hall's paired t",
    "AUC z, null variance",
    "linearised t, weighted",
    "bootstrap of examples, t",
    "AutoSlicer's t",
    "bootstrap of groups, t",
    "exchange of the two models",
    "exact sign flips, constant change",
    "exact sign flips of whole groups, constant change",
    "law of random subsets, weighted counts",
    "law of random subsets, few cells",
)
(
    HYPERGEOMETRIC,
    LIKELIHOOD_RATIO,
    MCNEMAR,
    CELL_PERMUTATION,
    DELTA_METHOD,
    RANDOM_SUBSET,
    HALL_PAIRED,
    AUC_Z,
    LINEARISED,
    BOOTSTRAP_ROWS,
    PAPER,
    BOOTSTRAP_GROUPS,
    EXCHANGE,
    SIGN_FLIP,
    SIGN_FLIP_GROUPS,
    WEIGHTED_SUBSET,
    FEW_CELLS,
) = range(1, len(METHODS))


class Tested(NamedTuple):
    """P-values [slices], 1 where degenerate, never NaN; positions in ``REASONS`` and ``METHODS``, 0 for none."""

    p: FloatArray
    reasons: NDArray[np.int8]
    methods: NDArray[np.int8]

    @classmethod
    def by(cls, method: int | NDArray[np.int8], p: FloatArray, reasons: NDArray[np.int8]) -> Tested:
        """Return p-values by one method, 1 where there is a reason against a test."""
        untested = reasons != 0
        methods = np.where(untested, 0, method).astype(np.int8)
        return cls(np.where(untested, 1.0, p), reasons.astype(np.int8), methods)
