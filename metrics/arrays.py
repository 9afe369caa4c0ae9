"""The types of arrays of numbers, by what they hold."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Of numpy's types those that other modules take from here.
__all__ = ["ArrayLike", "NDArray"]

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
# Such as the ends of intervals, or the upper and lower tail.
Pair: TypeAlias = tuple[FloatArray, FloatArray]


class Ragged(NamedTuple):
    """A list column: the codes of row i are ``codes[offsets[i]:offsets[i + 1]]``."""

    offsets: IntArray
    codes: NDArray[Any]

    def take(self, rows: IntArray) -> Ragged:
        """Return some rows, as `numpy.ndarray.take` does of other columns."""
        begins = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begins
        ends = np.cumsum(lengths)
        at = np.arange(int(lengths.sum())) + np.repeat(begins - (ends - lengths), lengths)
        return Ragged(np.append(0, ends), self.codes[at])


def floats(*values: ArrayLike) -> tuple[FloatArray, ...]:
    """Return values as float64 arrays of one shape."""
    return np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))


def ratio(above: NDArray[Any], below: NDArray[Any], *, otherwise: float = np.nan) -> NDArray[Any]:
    """Return above/below [slices], NaN or another number where the denominator is 0."""
    shape = np.broadcast_shapes(np.shape(above), np.shape(below))
    undefined = np.full(shape, otherwise, np.result_type(above, below, np.float64))
    return np.asarray(np.divide(above, below, out=undefined, where=np.real(below) > 0))
