"""Finds the rows of listed slices, feature tuple by feature tuple."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.counting import Prefixes, positions, table_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.counting import RowBlock
    from slicebeam.metrics.lattice import Keys, Lattice


class _Tuple(NamedTuple):
    """The listed slices of a feature tuple: their positions in the list, and what finds them."""

    features: tuple[int, ...]
    slices: NDArray[np.int64]
    select: Callable[[NDArray[np.int64]], NDArray[np.int64]]


class Members(NamedTuple):
    """Rows that are in slices of one feature tuple; a row stands once for each slice it is in.

    Attributes
    ----------
    number : of the tuple
    slices : int64 [members] position of the slice in the list
    rows : int64 [members] row of the block
    """

    number: int
    slices: NDArray[np.int64]
    rows: NDArray[np.int64]


class Membership:
    """Which rows are in which of some slices.

    Parameters
    ----------
    keys : int64 [slices]
    lattice : of the slices
    """

    def __init__(self, keys: Keys, lattice: Lattice) -> None:
        self.lattice = lattice
        number, tuples = lattice.feature_sets(keys)
        order = np.lexsort((keys, number))
        begins = np.searchsorted(number[order], np.arange(len(tuples) + 1))
        self.tuples: list[_Tuple] = []
        for i, row in enumerate(tuples):
            features, mine = tuple(row[row >= 0].tolist()), order[begins[i] : begins[i + 1]]
            wanted = lattice.key_cells(keys[mine], features)
            select = positions(wanted, table_cells(features, lattice))
            self.tuples.append(_Tuple(features, mine, select))

    def of(self, block: RowBlock) -> Iterator[Members]:
        """Yield the members of each feature tuple's slices among the rows of a block."""
        prefixes = Prefixes(block, self.lattice.radices, np.zeros(block.rows, np.int64))
        for number, (features, slices, select) in enumerate(self.tuples):
            code, rows = prefixes.coded(features)
            position = select(code)
            kept = np.flatnonzero(position >= 0)
            yield Members(number, slices[position[kept]], kept if rows is None else rows[kept])
