"""Combines two one-sided tails into the p-value of the requested tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail


def select_tail(upper: FloatArray, lower: FloatArray, tail: Tail) -> FloatArray:
    """Return upper, lower or min(1, 2·min(upper, lower)) of one-sided p-values."""
    if tail == "upper":
        return upper
    if tail == "lower":
        return lower
    if tail == "both":
        return np.minimum(1.0, 2.0 * np.minimum(upper, lower))
    raise ValueError(f"unknown tail {tail!r}: use 'upper', 'lower' or 'both'")
