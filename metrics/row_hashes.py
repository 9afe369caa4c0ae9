"""Tells whether slices hold the very same examples, by sums of row hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.membership import Membership
from slicebeam.metrics.randomness import splitmix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting import RowBlock
    from slicebeam.metrics.lattice import Keys, Lattice


class RowHashSums:
    """The sum modulo 2^64 of the row hashes of each slice, over row blocks.

    Two slices with equal sums hold the same examples, but for a chance of 2^-64.

    Parameters
    ----------
    keys : int64 [slices]
    lattice : of the slices
    singleton_sizes : as in `Membership`

    Attributes
    ----------
    keys : int64 [slices]
    sums : uint64 [slices], in the same order
    """

    def __init__(
        self, keys: Keys, lattice: Lattice, singleton_sizes: NDArray[np.int64] | None = None
    ) -> None:
        self.keys = keys
        self.sums = np.zeros(keys.size, np.uint64)
        self._membership = Membership(keys, lattice, singleton_sizes)

    def add(self, block: RowBlock) -> None:
        """Add the hashes of a block's rows to the slices that hold them."""
        hashes = splitmix64(block.positions)
        for _, slices, rows in self._membership.of(block):
            np.add.at(self.sums, slices, hashes[rows])
