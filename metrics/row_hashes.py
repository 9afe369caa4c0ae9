"""Tells whether slices hold the very same examples, by sums of row hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting import Prefixes, positions, table_cells
from slicebeam.metrics.randomness import splitmix64

if TYPE_CHECKING:
    from slicebeam.metrics.counting import RowBlock
    from slicebeam.metrics.lattice import Keys, Lattice


class RowHashSums:
    """The sum modulo 2^64 of the row hashes of each slice, over row blocks.

    Two slices with equal sums hold the same examples, but for a chance of 2^-64.

    Parameters
    ----------
    keys : int64 [slices]
    lattice : of the slices

    Attributes
    ----------
    keys : int64 [slices], by feature tuple
    sums : uint64 [slices], in the same order
    """

    def __init__(self, keys: Keys, lattice: Lattice) -> None:
        number, tuples = lattice.feature_sets(keys)
        order = np.lexsort((keys, number))
        self.lattice, self.keys = lattice, keys[order]
        self.sums = np.zeros(keys.size, np.uint64)
        begins = np.searchsorted(number[order], np.arange(len(tuples) + 1))
        self._groups = []
        for i, row in enumerate(tuples):
            features, group = tuple(row[row >= 0].tolist()), slice(begins[i], begins[i + 1])
            wanted = lattice.key_cells(self.keys[group], features)
            select = positions(wanted, table_cells(features, lattice))
            self._groups.append((features, group, select))

    def add(self, block: RowBlock) -> None:
        """Add the hashes of a block's rows to the slices that hold them."""
        hashes = splitmix64(block.positions)
        prefixes = Prefixes(block, self.lattice.radices, np.zeros(block.rows, np.int64))
        for features, group, select in self._groups:
            code, rows = prefixes.coded(features)
            position = select(code)
            kept = np.flatnonzero(position >= 0)
            owners = kept if rows is None else rows[kept]
            np.add.at(self.sums[group], position[kept], hashes[owners])
