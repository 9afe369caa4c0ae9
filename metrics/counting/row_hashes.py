"""Detects slices with the same examples, by sums of row hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.counting.count_reader import Margins
from slicebeam.metrics.counting.counting import Prefixes, table_cells
from slicebeam.metrics.counting.counting_plan import Budget, blocks, whole_tuples
from slicebeam.metrics.counting.membership import Membership
from slicebeam.metrics.randomness import splitmix64

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import RowBlock, Unit
    from slicebeam.metrics.counting.lattice import Keys, Lattice

# Seconds, as those of tables, of looking a slice up: for all rows, since they come in blocks, and for
# those of its rarest predicate.
_BLOCK_ROW = 0.25e-9
_MEMBER_ROW = 8e-9

# Bytes of the tables of a block.
_BLOCK_BYTES = 1 << 25
# Feature tuples whose slices are looked up in one pass.
_TUPLES_AT_A_TIME = 512


class HashBlock(NamedTuple):
    """Slices that are hashed together."""

    keys: Keys  # [slices]
    # units of joint tables; the rows of slices that are in none of them are looked up
    tables: tuple[Unit, ...]
    seconds: float  # estimated work


def plan_hashes(
    keys: Keys, lattice: Lattice, rows: int, singleton_sizes: IntArray
) -> list[HashBlock]:
    """Return all slices in blocks that fit the memory.

    Many slices of few feature tuples are summed in tables, a few small slices are looked up.
    """
    places = lattice.by_tuple(keys)
    digits = lattice.digits(keys)
    rarest = np.where(digits > 0, singleton_sizes[digits], rows).min(axis=1)
    alone = {
        features: mine.size * rows * _BLOCK_ROW + float(rarest[mine].sum()) * _MEMBER_ROW
        for features, mine in places.items()
    }
    budget = Budget(rows, 1, 1, 1, _BLOCK_BYTES, block_seconds=np.inf)
    worth_it = [
        planned
        for planned in whole_tuples(dict.fromkeys(places), lattice, budget)
        if planned.unit.method == "dense"
        and planned.seconds < sum(alone[features] for features in planned.unit.reported)
    ]

    def keys_of(tuples: Iterable[tuple[int, ...]]) -> Keys:
        # What is left of the places in the end is looked up.
        return np.concatenate([keys[places.pop(features)] for features in tuples])

    found = []
    for together in blocks(worth_it, budget):
        units = tuple(planned.unit for planned in together)
        mine = keys_of(features for unit in units for features in unit.reported)
        found.append(HashBlock(mine, units, sum(planned.seconds for planned in together)))
    others = list(places)
    for begin in range(0, len(others), _TUPLES_AT_A_TIME):
        some = others[begin : begin + _TUPLES_AT_A_TIME]
        block = HashBlock(keys_of(some), (), sum(alone[features] for features in some))
        if begin == 0 and found:
            # Looked up while the rows are read for tables anyway.
            last = found.pop()
            mine = np.concatenate([last.keys, block.keys])
            block = HashBlock(mine, last.tables, last.seconds + block.seconds)
        found.append(block)
    return found


class RowHashSums:
    """The sum modulo 2^64 of the row hashes of each slice, over row blocks.

    Two slices with equal sums hold the same examples, except for a chance of 2^-64.
    """

    def __init__(
        self,
        keys: Keys,
        lattice: Lattice,
        singleton_sizes: IntArray | None = None,
        tables: Sequence[Unit] = (),
    ) -> None:
        self.keys, self._lattice, self._tables = keys, lattice, tables
        self._summed = [
            np.zeros(table_cells(table.features, lattice), np.int64) for table in tables
        ]
        self._places = lattice.by_tuple(keys)
        tabled = {features for table in tables for features in table.reported}
        others = [mine for features, mine in self._places.items() if features not in tabled]
        self._looked_up = np.concatenate([np.zeros(0, np.int64), *others])
        self._membership = Membership(keys[self._looked_up], lattice, singleton_sizes)
        self._sums = np.zeros(keys.size, np.int64)

    def add(self, block: RowBlock) -> None:
        """Add the hashes of a block's rows to the slices that hold them."""
        # Signed sums wrap around as unsigned ones do.
        hashes = splitmix64(block.positions).view(np.int64)
        prefixes = Prefixes(block, self._lattice.radices, np.zeros(block.rows, np.int64))
        for table, summed in zip(self._tables, self._summed, strict=True):
            code, rows = prefixes.coded(table.features)
            np.add.at(summed, code, hashes if rows is None else hashes[rows])
        for _, slices, rows in self._membership.of(block):
            np.add.at(self._sums, self._looked_up[slices], hashes[rows])

    @property
    def sums(self) -> NDArray[np.uint64]:
        """The sums [slices], in the order of the keys."""
        sums = self._sums.copy()
        for table, summed in zip(self._tables, self._summed, strict=True):
            margins = Margins(table.features, summed, self._lattice, (1, 1))
            for features in table.reported:
                mine = self._places[features]
                cells = self._lattice.key_cells(self.keys[mine], features)
                sums[mine] = margins.of(features)[0, 0, cells]
        return sums.view(np.uint64)
