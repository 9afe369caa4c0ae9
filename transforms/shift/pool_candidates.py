"""The candidates of each stratum: the examples whose ids have the smallest hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray

_LARGEST = np.iinfo(np.uint64).max
# Rows below which choosing again is not worth it.
_FEW_ROWS = 1 << 14
# Bytes of a piece of a column of texts, of which offsets of 32 bits tell 2 GiB apart.
_PIECE_BYTES = 1 << 30


def smallest(
    cell: NDArray[np.int32], hashes: NDArray[np.uint64], row: IntArray, most: int | None
) -> IntArray:
    """Return which rows have the smallest hashes of their cell.

    Parameters
    ----------
    cell : int32 [rows], not negative
    hashes : uint64 [rows]
    row : int64 [rows] decides between equal hashes
    most : how many of a cell; None for all

    Returns
    -------
    int64 [at most rows], ordered by (cell, hash, row)
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
    """Keeps the candidates of tables that come one after another.

    The result is the same as for one table of all rows. Memory: at most about twice the candidates,
    and a table.

    Parameters
    ----------
    cells : number of cells that the strata are among
    """

    def __init__(self, most: int, cells: int) -> None:
        self._most = most
        self._limits = np.full(cells, _LARGEST)
        self._parts: list[pa.Table] = []
        self._kept = self._waiting = 0

    def add(self, table: pa.Table) -> None:
        """Take in rows.

        Parameters
        ----------
        table : with ``cell`` (int32), ``hash`` (uint64), ``row`` (int64), and anything else
        """
        cell, hashes = (table.column(name).to_numpy() for name in ("cell", "hash"))
        within = np.flatnonzero(hashes <= self._limits[cell])
        row = table.column("row").to_numpy()
        chosen = within[smallest(cell[within], hashes[within], row[within], self._most)]
        self._parts.append(plain(table.take(pa.array(chosen))))
        self._waiting += len(chosen)
        if self._waiting > max(self._kept, _FEW_ROWS):
            self._choose()

    def smallest(self) -> pa.Table:
        """Return the candidates so far, ordered by (cell, hash, row)."""
        self._choose()
        return self._parts[0]

    def _choose(self) -> None:
        table = ordered(pa.concat_tables(self._parts), self._most)
        self._parts, self._kept, self._waiting = [table], table.num_rows, 0
        cell, hashes = (table.column(name).to_numpy() for name in ("cell", "hash"))
        last = np.flatnonzero(np.append(cell[1:] != cell[:-1], True))
        full = np.bincount(cell)[cell[last]] >= self._most
        self._limits[cell[last[full]]] = hashes[last[full]]


def ordered(table: pa.Table, most: int | None) -> pa.Table:
    """Return the candidates of a table, ordered by (cell, hash, row); None: all its rows."""
    cell, hashes, row = (table.column(name).to_numpy() for name in ("cell", "hash", "row"))
    return table.take(pa.array(smallest(cell, hashes, row, most)))


def plain(table: pa.Table) -> pa.Table:
    """Return the same rows without dictionaries, texts and binaries with offsets of 64 bits.

    Images of a few thousand candidates may take more than the 2 GiB that 32 bits can distinguish.
    """
    columns = [column.cast(_wide(column.type)) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def narrow(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column of `plain` in the type that it had, in pieces that fit it."""
    if column.type == kind:
        return column
    pieces = [pa.array([], kind)]
    for array in column.chunks:
        lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy()
        # A piece ends where the bytes before the next value pass a multiple of the limit.
        group = np.cumsum(lengths) // _PIECE_BYTES
        begins = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(array)])
        ends = np.append(begins[1:], len(array))
        for begin, end in zip(begins, ends, strict=True):
            # Taken, not cut out: the offsets of a slice continue from those before it.
            pieces.append(array.take(pa.array(np.arange(begin, end))).cast(kind))
    return pa.chunked_array(pieces)
