"""Counts in how many groups the examples of a slice are, up to `ENOUGH_GROUPS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.membership import Membership

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Keys, Lattice

# A slice of so many groups has enough; it is not looked at any further.
ENOUGH_GROUPS = 100


class DistinctGroups:
    """The number of groups of each slice, over row blocks; `ENOUGH_GROUPS` means that or more."""

    def __init__(
        self, keys: Keys, lattice: Lattice, singleton_sizes: IntArray | None = None
    ) -> None:
        self.keys = keys
        self.sums = np.zeros(keys.size, np.uint64)
        self._membership = Membership(keys, lattice, singleton_sizes)
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.uint64))
        # Slices and groups that were seen together, for each feature tuple.
        self._seen: list[tuple[IntArray, NDArray[np.uint64]]]
        self._seen = [nothing] * self._membership.numbers

    def add(self, block: RowBlock) -> None:
        """Add the groups of a block's rows to the slices that hold them."""
        for number, slices, rows in self._membership.of(block):
            is_open = self.sums[slices] < ENOUGH_GROUPS
            seen_slices, seen_groups = self._seen[number]
            at = np.concatenate([seen_slices, slices[is_open]])
            groups = np.concatenate([seen_groups, block.ids[rows[is_open]]])
            order = np.lexsort((groups, at))
            at, groups = at[order], groups[order]
            first = np.ones(at.size, bool)
            first[1:] = (np.diff(at) != 0) | (groups[1:] != groups[:-1])
            at, groups = at[first], groups[first]
            changed, counted = np.unique(at, return_counts=True)
            self.sums[changed] = np.minimum(counted, ENOUGH_GROUPS)
            rest = self.sums[at] < ENOUGH_GROUPS
            self._seen[number] = at[rest], groups[rest]
