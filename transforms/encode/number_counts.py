"""Counts numbers by sorting: where most values differ that costs a fraction of hashing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray


class NumberCounts:
    """How often each of some numbers occurs.

    Numbers are kept as they come until `compact` sorts them.

    `kind`: of the numbers: integers or floats.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._waiting: list[NDArray[Any]] = []
        self._numbers: NDArray[Any] = pa.array([], kind).to_numpy(zero_copy_only=False)
        self._counts = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of the counts."""
        waiting = sum(numbers.nbytes for numbers in self._waiting)
        return waiting + self._numbers.nbytes + self._counts.nbytes

    def add(self, values: pa.Array, counts: IntArray | None = None) -> None:
        """Add numbers, none of them missing, and how often each occurs; once if not said."""
        numbers = values.to_numpy(zero_copy_only=False)
        # Adding zero makes -0.0 the 0.0 that it equals, and a copy of what may be mapped.
        numbers = numbers + numbers.dtype.type(0)
        if counts is None:
            self._waiting.append(numbers)
        else:
            self._merge(numbers, counts)

    def compact(self) -> None:
        """Sort the added numbers."""
        if self._waiting:
            numbers = np.sort(np.concatenate(self._waiting))
            self._waiting = []
            begins = _begins(numbers)
            self._merge(numbers[begins], np.diff(np.append(begins, numbers.size)))

    def counted(self) -> tuple[pa.Array, IntArray]:
        """Return the distinct numbers, sorted, and their counts, when compact."""
        return pa.array(self._numbers, self._kind), self._counts

    def clear(self) -> None:
        """Forget all numbers."""
        self._waiting = []
        self._numbers, self._counts = self._numbers[:0], self._counts[:0]

    def _merge(self, numbers: NDArray[Any], counts: IntArray) -> None:
        if self._numbers.size:
            numbers = np.concatenate([self._numbers, numbers])
            counts = np.concatenate([self._counts, counts])
        # Stable sorting finds the two runs that are in order already.
        order = np.argsort(numbers, kind="stable")
        numbers, counts = numbers[order], counts[order]
        begins = _begins(numbers)
        self._numbers = numbers[begins]
        self._counts = np.add.reduceat(counts, begins) if begins.size else counts


def _begins(ordered: NDArray[Any]) -> IntArray:
    """Return where each number begins in an ordered array."""
    is_first = np.ones(ordered.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)
