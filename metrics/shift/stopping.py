"""The stopping rule: the error is below a target with the given confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.shift.estimates import MatrixEstimate

_FIRST_CHECK = 100


def first_check(strata: int) -> int:
    """Return the number of calls from which the rule applies: max(100, 2S)."""
    return max(_FIRST_CHECK, 2 * strata)


def error_bound(found: MatrixEstimate, confidence: float = 0.95) -> FloatArray:
    """Return an upper bound of the Frobenius error of W ⊙ Ĉ with the given confidence: float64 [R].

    √((T + z·SE(T) + z²·e₁)·χ²_{h,q}/h) with h = max(½, T²/(2ΣW⁴V²)), where z and χ² are the quantiles
    q of a standard normal and of a chi-squared variable: the squared error is about a scaled
    chi-squared variable (Satterthwaite), and its scale an upper bound that also counts what was not
    seen. Stop as soon as this is at most ε.
    """
    z = stats.norm.ppf(confidence)
    scale = found.loss + z * found.loss_error + z**2 * found.loss_unseen
    spread = found.loss_spread
    degrees = np.maximum(
        0.5, np.divide(np.square(found.loss), spread, out=np.zeros_like(scale), where=spread > 0)
    )
    bound: FloatArray = np.sqrt(scale * stats.chi2.ppf(confidence, degrees) / degrees)
    return bound
