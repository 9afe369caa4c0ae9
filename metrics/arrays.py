"""The types of arrays of numbers, by what they hold."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ArrayLike", "BoolArray", "FloatArray", "IntArray", "NDArray", "floats"]

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


def floats(*values: ArrayLike) -> tuple[FloatArray, ...]:
    """Return values as float64 arrays of one shape."""
    return np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
