"""Some rows of blocks, taken out of them and joined."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting import Ragged, RowBlock
from slicebeam.metrics.findings.lookup import rows_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice


def taken_rows(
    block: RowBlock, rows: IntArray, features: Iterable[int], lattice: Lattice
) -> RowBlock:
    """Return some rows of a block, with codes of their own: the block is not kept.

    Codes stay in the width in which they are stored. Ids, positions and buckets are left out.
    """
    stored = {
        feature: _taken(
            block.column(feature) if lattice.is_multi(feature) else block.stored(feature), rows
        )
        for feature in features
    }
    return _block(block, rows, stored.__getitem__)


def rows_of(block: RowBlock, rows: IntArray) -> RowBlock:
    """Return some rows of a block that `taken_rows` or `joined` returned."""
    return _block(block, rows, cache(lambda feature: _taken(block.stored(feature), rows)))


def joined(some: list[RowBlock], features: Iterable[int]) -> RowBlock:
    """Return the rows of several blocks, at least one, that `taken_rows` returned, as one."""
    stored = {
        feature: _joined_column([one.stored(feature) for one in some]) for feature in features
    }

    def of(name: str, axis: int) -> Any:
        return np.concatenate([getattr(one, name) for one in some], axis=axis)

    rows = sum(one.rows for one in some)
    return _made(rows, stored.__getitem__, of("cells", 0), of("weights", 1), of("terms", 1))


def patterns_of(block: RowBlock, findings: Keys, lattice: Lattice) -> IntArray:
    """Return which findings each row of a block is in [rows], a bit for each."""
    masks = np.zeros(block.rows, np.int64)
    for number, key in enumerate(findings.tolist()):
        masks[rows_in(block, lattice, key)] |= np.int64(1) << number
    return masks


def _block(block: RowBlock, rows: IntArray, stored: Callable[[int], Any]) -> RowBlock:
    cells = block.cells[rows].astype(np.int64, copy=False)
    return _made(rows.size, stored, cells, block.weights[:, rows], block.terms[:, rows])


def _made(
    rows: int,
    stored: Callable[[int], Any],
    cells: NDArray[np.int64],
    weights: NDArray[np.int64],
    terms: NDArray[np.int64],
) -> RowBlock:
    @cache
    def column(feature: int) -> NDArray[np.int64] | Ragged:
        codes = stored(feature)
        return codes if isinstance(codes, Ragged) else codes.astype(np.int64)

    none = np.broadcast_to(np.uint64(0), rows)
    buckets = np.zeros((0, rows), np.int64)
    return RowBlock(rows, column, cells, none, none, weights, terms, buckets, stored)


def _taken(column: NDArray[Any] | Ragged, rows: IntArray) -> NDArray[Any] | Ragged:
    if not isinstance(column, Ragged):
        return column[rows]
    begins = column.offsets[rows]
    lengths = column.offsets[rows + 1] - begins
    ends = np.cumsum(lengths)
    at = np.arange(int(lengths.sum())) + np.repeat(begins - (ends - lengths), lengths)
    return Ragged(np.append(0, ends), column.codes[at])


def _joined_column(some: list[Any]) -> NDArray[Any] | Ragged:
    if not isinstance(some[0], Ragged):
        return np.concatenate(some)
    lengths = np.concatenate([np.diff(one.offsets) for one in some])
    return Ragged(np.append(0, np.cumsum(lengths)), np.concatenate([one.codes for one in some]))
