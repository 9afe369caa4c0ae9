"""Which examples are in the same of some slices: what a cover of overlapping slices is chosen from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting import Coded, SummedRows
from slicebeam.metrics.counting.membership import Membership

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace

# Patterns that wait to be merged, beside those that are.
_WAITING = 1 << 17


class Overlaps:
    """Sums of the examples that are in the same slices, over row blocks.

    Parameters
    ----------
    keys : int64 [slices]
    lattice : of the slices
    space : the statistics, without score buckets
    singleton_sizes : as in `Membership`
    """

    def __init__(
        self,
        keys: Keys,
        lattice: Lattice,
        space: StatisticSpace,
        singleton_sizes: NDArray[np.int64] | None = None,
    ) -> None:
        self.keys, self.space = keys, space
        self._width = -(-keys.size // 8)
        self._membership = Membership(keys, lattice, singleton_sizes)
        self._patterns = [np.zeros((0, self._width), np.uint8)]
        self._sums = [np.zeros((0, space.raw_columns), np.int64)]
        self._merged = self._size = 0

    def add(self, block: RowBlock) -> None:
        """Add the rows of a block; those in none of the slices are left out."""
        member = np.zeros((block.rows, 8 * self._width), bool)
        for _, slices, rows in self._membership.of(block):
            member[rows, slices] = True
        inside = np.flatnonzero(member.any(axis=1))
        if inside.size == 0:
            return
        packed = np.packbits(member[inside], axis=1)
        patterns, inverse = _distinct(packed)
        sums = np.zeros((1, self.space.raw_columns * len(patterns)), np.int64)
        SummedRows(block, self.space, []).add(sums, Coded(inverse, inside))
        self._patterns.append(patterns)
        self._sums.append(sums.reshape(self.space.raw_columns, -1).T)
        self._size += len(patterns)
        if self._size > 2 * self._merged + _WAITING:
            self.merge()

    def merge(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return patterns [patterns, bytes] and sums [patterns, raw columns]."""
        return self.merge_with([], [])

    def merge_with(
        self, patterns: list[NDArray[np.uint8]], sums: list[NDArray[np.int64]]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Add what others found, and return all as `merge` does."""
        distinct, inverse = _distinct(np.concatenate([*self._patterns, *patterns]))
        merged = np.zeros((len(distinct), self.space.raw_columns), np.int64)
        np.add.at(merged, inverse, np.concatenate([*self._sums, *sums]))
        self._patterns, self._sums = [distinct], [merged]
        self._merged = self._size = len(distinct)
        return distinct, merged

    def members(self, patterns: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which slices the examples of each pattern are in [patterns, slices]."""
        return np.unpackbits(patterns, axis=1)[:, : self.keys.size].astype(bool)


def _distinct(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the distinct rows, sorted, and which of them each row is."""
    rows = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
    distinct, inverse = np.unique(rows, return_inverse=True)
    return distinct.view(np.uint8).reshape(-1, packed.shape[1]), inverse.astype(np.int64)
