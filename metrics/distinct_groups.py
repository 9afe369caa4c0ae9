"""Counts in how many groups the examples of a slice are, as far as it matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting import Prefixes, positions, table_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting import RowBlock
    from slicebeam.metrics.lattice import Keys, Lattice

# A slice of so many groups has enough; it is not looked at any further.
ENOUGH_GROUPS = 100


class DistinctGroups:
    """The number of groups of each slice, over row blocks; `ENOUGH_GROUPS` means that or more.

    Parameters
    ----------
    keys : int64 [slices]
    lattice : of the slices

    Attributes
    ----------
    keys : int64 [slices], by feature tuple
    sums : uint64 [slices], groups, in the same order
    """

    def __init__(self, keys: Keys, lattice: Lattice) -> None:
        number, tuples = lattice.feature_sets(keys)
        order = np.lexsort((keys, number))
        self.lattice, self.keys = lattice, keys[order]
        self.sums = np.zeros(keys.size, np.uint64)
        begins = np.searchsorted(number[order], np.arange(len(tuples) + 1))
        self._tuples = []
        for i, row in enumerate(tuples):
            features, mine = tuple(row[row >= 0].tolist()), slice(begins[i], begins[i + 1])
            wanted = lattice.key_cells(self.keys[mine], features)
            select = positions(wanted, table_cells(features, lattice))
            self._tuples.append((features, mine, select))
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.uint64))
        self._seen: list[tuple[NDArray[np.int64], NDArray[np.uint64]]] = [nothing] * len(tuples)

    def add(self, block: RowBlock) -> None:
        """Add the groups of a block's rows to the slices that hold them."""
        prefixes = Prefixes(block, self.lattice.radices, np.zeros(block.rows, np.int64))
        for i, (features, mine, select) in enumerate(self._tuples):
            code, rows = prefixes.coded(features)
            position = select(code)
            is_open = np.append(self.sums[mine] < ENOUGH_GROUPS, False)
            kept = np.flatnonzero(is_open[position])
            owners = kept if rows is None else rows[kept]
            at = np.concatenate([self._seen[i][0], position[kept].astype(np.int64)])
            groups = np.concatenate([self._seen[i][1], block.ids[owners]])
            order = np.lexsort((groups, at))
            at, groups = at[order], groups[order]
            first = np.ones(at.size, bool)
            first[1:] = (np.diff(at) != 0) | (groups[1:] != groups[:-1])
            at, groups = at[first], groups[first]
            counted = np.bincount(at, minlength=mine.stop - mine.start).astype(np.uint64)
            sums = self.sums[mine]
            sums[:] = np.where(sums < ENOUGH_GROUPS, np.minimum(counted, ENOUGH_GROUPS), sums)
            rest = (sums < ENOUGH_GROUPS)[at]
            self._seen[i] = at[rest], groups[rest]
