"""The candidates of each stratum: the examples whose ids have the smallest hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray

_LARGEST = np.iinfo(np.uint64).max
# Rows below which choosing again is not worth it.
_FEW_ROWS = 1 << 14


def smallest(
    cell: NDArray[np.int32], hashes: NDArray[np.uint64], row: IntArray, most: int | None
) -> IntArray:
    """Return the rows with the smallest hashes of their cell, ordered by (cell, hash, row): int64.

    Of each cell ``most``, or all; of equal hashes the row decides.
    """
    order = np.argsort(hashes)
    # A stable sort of numbers of 16 bits counts them, which is many times as fast.
    narrow = cell.astype(np.uint16) if cell.max(initial=0) < 1 << 16 else cell
    order = order[np.argsort(narrow[order], kind="stable")]
    cell_in_order, hash_in_order = cell[order], hashes[order]
    begins = np.ones(order.size, bool)
    np.not_equal(cell_in_order[1:], cell_in_order[:-1], out=begins[1:])
    if (~begins[1:] & (hash_in_order[1:] == hash_in_order[:-1])).any():
        order = np.lexsort((row, hashes, cell))
    if most is None:
        return order
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, order.size))
    place = np.arange(order.size) - np.repeat(first, sizes)
    chosen: IntArray = order[place < most]
    return chosen


class PoolCandidates:
    """The candidates of tables that come one after another: those of one table of all rows.

    Memory: at most about twice the candidates, and a table. A table has ``cell`` (int32, of so many cells),
    ``hash`` (uint64), ``row`` (int64), and anything else; ``most`` of a cell are kept, None for all.
    """

    def __init__(self, most: int | None, cells: int) -> None:
        self._most = most
        self._limits = np.full(cells, _LARGEST)
        self._parts: list[pa.Table] = []
        self._kept = self._waiting = 0

    def add(self, table: pa.Table) -> None:
        """Take in rows."""
        if self._most is not None:
            cell, hashes, row = _keys(table)
            within = np.flatnonzero(hashes <= self._limits[cell])
            chosen = within[smallest(cell[within], hashes[within], row[within], self._most)]
            table = table.take(pa.array(chosen))
        self._parts.append(table)
        self._waiting += table.num_rows
        if self._most is not None and self._waiting > max(self._kept, _FEW_ROWS):
            self._choose()

    def smallest(self) -> pa.Table:
        """Return the candidates so far, ordered by (cell, hash, row)."""
        self._choose()
        return self._parts[0]

    def _choose(self) -> None:
        table = pa.concat_tables(self._parts)
        table = table.take(pa.array(smallest(*_keys(table), self._most)))
        self._parts, self._kept, self._waiting = [table], table.num_rows, 0
        if self._most is not None:
            cell, hashes, _ = _keys(table)
            last = np.flatnonzero(np.append(cell[1:] != cell[:-1], True))
            full = np.bincount(cell)[cell[last]] >= self._most
            self._limits[cell[last[full]]] = hashes[last[full]]


def _keys(table: pa.Table) -> tuple[NDArray[np.int32], NDArray[np.uint64], IntArray]:
    return tuple(table.column(name).to_numpy() for name in ("cell", "hash", "row"))
