"""Tells whether slices hold the very same examples, by sums of row hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.count_reader import Margins
from slicebeam.metrics.counting import Prefixes, table_cells
from slicebeam.metrics.joint_tables import JointTable, joint_tables, table_cost
from slicebeam.metrics.membership import Membership
from slicebeam.metrics.randomness import splitmix64

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.counting import RowBlock
    from slicebeam.metrics.lattice import Keys, Lattice

# Seconds, as those of tables, of looking a slice up: for all rows, since they come in blocks, and for
# those of its rarest predicate.
_BLOCK_ROW = 0.25e-9
_MEMBER_ROW = 8e-9

# A table is a megabyte at most, and those of a block thirty-two.
_MOST_CELLS = 1 << 17
_BLOCK_CELLS = 1 << 22
# Feature tuples whose slices are looked up in one pass.
_TUPLES_AT_A_TIME = 512


class HashBlock(NamedTuple):
    """Slices that are hashed together.

    Attributes
    ----------
    keys : int64 [slices]
    tables : joint tables; the rows of slices that are in none of them are looked up
    seconds : estimated work
    """

    keys: Keys
    tables: tuple[JointTable, ...]
    seconds: float


def plan_hashes(
    keys: Keys, lattice: Lattice, rows: int, singleton_sizes: NDArray[np.int64]
) -> list[HashBlock]:
    """Return all slices in blocks that fit the memory.

    Many slices of few feature tuples are summed in tables, a few small slices are looked up.

    Parameters
    ----------
    keys : int64 [slices], distinct
    rows : examples
    singleton_sizes : as in `Membership`
    """
    number, sets = lattice.feature_sets(keys)
    tuples = [tuple(row[row >= 0].tolist()) for row in sets]
    digits = lattice.digits(keys)
    rarest = np.where(digits > 0, singleton_sizes[digits], rows).min(axis=1)
    alone = np.bincount(number, rows * _BLOCK_ROW + rarest * _MEMBER_ROW, len(tuples))
    cost = table_cost(rows, 1, 1, _MOST_CELLS)
    position = {features: at for at, features in enumerate(tuples)}
    is_tabled = np.zeros(len(tuples), bool)
    tabled: list[tuple[JointTable, int, float]] = []
    fitting = [one for one in tuples if table_cells(one, lattice) <= _MOST_CELLS]
    for table in joint_tables(fitting, lattice, cost):
        mine = [position[features] for features in table.tuples]
        cells = table_cells(table.features, lattice)
        seconds = cost.each + len(table.features) * cost.axis
        seconds += cells * (cost.cell + len(mine) * cost.margin)
        if seconds < alone[mine].sum():
            tabled.append((table, cells, seconds))
            is_tabled[mine] = True
    order = np.argsort(number, kind="stable")
    begins = np.searchsorted(number[order], np.arange(len(tuples) + 1))

    def keys_of(some: Sequence[int]) -> Keys:
        return np.concatenate([keys[order[begins[one] : begins[one + 1]]] for one in some])

    blocks = []
    for together in _by_cells(tabled):
        mine = [position[features] for table, *_ in together for features in table.tuples]
        seconds = sum(seconds for *_, seconds in together)
        blocks.append(HashBlock(keys_of(mine), tuple(table for table, *_ in together), seconds))
    others = np.flatnonzero(~is_tabled).tolist()
    for begin in range(0, len(others), _TUPLES_AT_A_TIME):
        mine = others[begin : begin + _TUPLES_AT_A_TIME]
        some, seconds = keys_of(mine), float(alone[mine].sum())
        if begin == 0 and blocks:
            # Looked up while the rows are read for tables anyway.
            last = blocks.pop()
            some, seconds = np.concatenate([last.keys, some]), last.seconds + seconds
            blocks.append(HashBlock(some, last.tables, seconds))
        else:
            blocks.append(HashBlock(some, (), seconds))
    return blocks


def _by_cells(
    tabled: list[tuple[JointTable, int, float]],
) -> Iterator[list[tuple[JointTable, int, float]]]:
    """Yield tables in groups that fit the memory."""
    group: list[tuple[JointTable, int, float]] = []
    size = 0
    for one in tabled:
        if group and size + one[1] > _BLOCK_CELLS:
            yield group
            group, size = [], 0
        group.append(one)
        size += one[1]
    if group:
        yield group


class RowHashSums:
    """The sum modulo 2^64 of the row hashes of each slice, over row blocks.

    Two slices with equal sums hold the same examples, but for a chance of 2^-64.

    Parameters
    ----------
    keys : int64 [slices]
    lattice : of the slices
    singleton_sizes : as in `Membership`
    tables : joint tables; the rows of slices that are in none of them are looked up

    Attributes
    ----------
    keys : int64 [slices]
    """

    def __init__(
        self,
        keys: Keys,
        lattice: Lattice,
        singleton_sizes: NDArray[np.int64] | None = None,
        tables: Sequence[JointTable] = (),
    ) -> None:
        self.keys, self._lattice, self._tables = keys, lattice, tables
        self._summed = [
            np.zeros(table_cells(table.features, lattice), np.int64) for table in tables
        ]
        number, sets = lattice.feature_sets(keys)
        tuples = [tuple(row[row >= 0].tolist()) for row in sets]
        order = np.argsort(number, kind="stable")
        ends = np.searchsorted(number[order], np.arange(1, len(tuples)))
        # Where the slices of each tuple stand among the keys.
        self._slices = dict(zip(tuples, np.split(order, ends), strict=True))
        tabled = {features for table in tables for features in table.tuples}
        others = [mine for features, mine in self._slices.items() if features not in tabled]
        self._looked_up = np.concatenate([order[:0], *others])
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
            for features in table.tuples:
                mine = self._slices[features]
                cells = self._lattice.key_cells(self.keys[mine], features)
                sums[mine] = margins.of(features)[0, 0, cells]
        return sums.view(np.uint64)
