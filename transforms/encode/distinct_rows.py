"""Distinct combinations of values of some columns: the slices of a check by values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.transforms.encode.sources import Split, read_split
from slicebeam.transforms.storage.parts import WriteParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath


def exploded(table: pa.Table) -> pa.Table:
    """Return rows with one element of each list, all combinations; without missing values."""
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            table = table.take(pc.list_parent_indices(column))
            column = pc.list_flatten(column)
        table = table.set_column(table.column_names.index(name), name, column)
        if pa.types.is_floating(column.type):
            table = table.filter(pc.invert(pc.is_nan(table.column(name))))
    return table.drop_null()


def distinct(tables: Sequence[pa.Table]) -> pa.Table:
    """Return each row of some tables once, sorted."""
    rows = pa.concat_tables(tables)
    found = rows.group_by(rows.column_names).aggregate([])
    return found.sort_by([(name, "ascending") for name in rows.column_names])


def _of_split(source: Source, columns: Sequence[str], split: Split) -> pa.RecordBatchReader:
    chunks = read_split(source, split, columns)
    return distinct([exploded(chunk.table.select(columns)) for chunk in chunks]).to_reader()


def distinct_rows(source: Source, columns: Sequence[str], folder: StoragePath) -> WriteParts:
    """Return the transform that writes the `distinct` values of some columns for each split.

    Combinations with a missing value are left out.
    """
    return WriteParts(partial(_of_split, source, columns), source.splits, folder)
