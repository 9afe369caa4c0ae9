"""A pass over the examples for how slices overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting import Coded, SummedRows
from slicebeam.metrics.counting.membership import CandidateLookup
from slicebeam.metrics.discovery.change import OverlapSums
from slicebeam.transforms.discovery.one_thread import one_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicebeam.metrics.arrays import BoolArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.transforms.encode.passes import Found
    from slicebeam.transforms.encode.shards import Scaling, Shard


@dataclass(frozen=True)
class CountOverlaps:
    """Counts the examples that are in both of two slices (ascending keys), and sums their statistics.

    `counted`: bool [denominators, cells] the examples that are counted, for each denominator. The scaling
    has no score buckets. Where `sums_known`, sums are not counted again.
    """

    keys: Keys
    lattice: Lattice
    scaling: Scaling
    counted: BoolArray
    sums_known: bool = False

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``both`` [denominators * slices * slices], and ``sums`` [slices * raw columns]."""
        lookup = CandidateLookup(self.keys, self.lattice)
        slices, space = self.keys.size, self.scaling.space
        sums = np.zeros((1, space.raw_columns * slices), np.int64)
        both = [OverlapSums.zero(slices) for _ in self.counted]
        blocks = (block for shard in shards for block in shard.blocks(self.scaling))
        with one_thread():
            for block in blocks:
                inside = np.zeros((slices, block.rows), np.bool_)
                summed = SummedRows(block, space, [])
                for rows, members in lookup.some_pairs(block):
                    inside[members, rows] = True
                    if not self.sums_known:
                        summed.add(sums, Coded(members.astype(np.int64), rows.astype(np.int64)))
                for at, counted in enumerate(self.counted[:, block.cells]):
                    own = inside if counted.all() else inside[:, counted]
                    both[at] += OverlapSums.of(own)
        return {
            "sums": sums.reshape(space.raw_columns, slices).T.ravel(),
            "both": np.concatenate([one.both.ravel() for one in both]),
        }
