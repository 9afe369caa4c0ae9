"""Some examples by their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.transforms.encode.sources import read_split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.transforms.encode.sources import Source


def read_rows(source: Source, rows: IntArray, columns: Sequence[str]) -> pa.Table:
    """Return columns of the examples at some positions, in the order of the positions.

    Only the splits that hold one of them are read.
    """
    pieces = []
    for split in source.splits:
        if not _between(rows, split.start_row, split.rows).size:
            continue
        for chunk in read_split(source, split, columns):
            own = _between(rows, chunk.start_row, chunk.table.num_rows)
            if own.size:
                table = chunk.table.take(pa.array(own - chunk.start_row))
                pieces.append(
                    table.cast(pa.schema([source.schema.field(name) for name in columns]))
                )
    return pa.concat_tables(pieces).combine_chunks()


def _between(rows: IntArray, start: int, number: int) -> IntArray:
    begin, end = np.searchsorted(rows, [start, start + number])
    return rows[begin:end]
