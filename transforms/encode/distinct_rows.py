"""Distinct combinations of values of some columns: the slices of a check by values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.transforms.encode.sources import Split, read_split
from slicebeam.transforms.storage.arrow_files import open_arrow, part_path, write_arrow
from slicebeam.transforms.storage.storage import holds

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def distinct(table: pa.Table) -> pa.Table:
    """Return each row once."""
    return table.group_by(table.column_names).aggregate([])


class _DistinctRows(beam.DoFn):
    def __init__(self, source: Source, columns: tuple[str, ...], folder: StoragePath) -> None:
        self.source, self.columns, self.folder = source, columns, folder

    def process(self, split: Split) -> Iterator[int]:
        parts = [
            distinct(exploded(chunk.table.select(self.columns)))
            for chunk in read_split(self.source, split, self.columns)
        ]
        found = distinct(pa.concat_tables(parts)).combine_chunks()
        path = part_path(self.folder, split.index)
        write_arrow(path, found.schema, found.to_batches())
        yield split.index


@dataclass
class DistinctRows(beam.PTransform):
    """Write the distinct values of some columns, a file for each split: pipeline -> split numbers.

    Attributes
    ----------
    columns : whose combinations are taken, without those with a missing value
    """

    source: Source
    columns: tuple[str, ...]
    folder: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        reading = _DistinctRows(self.source, self.columns, self.folder)
        return (
            pipeline
            | "Splits" >> beam.Create(list(self.source.splits))
            | "Distinct" >> beam.ParDo(reading)
        )

    def is_written(self) -> bool:
        """Return whether the file of each split, and nothing else, is there."""
        return holds(
            self.folder, (part_path(self.folder, one.index).name for one in self.source.splits)
        )

    def read(self) -> pa.Table:
        """Return all distinct combinations, sorted."""
        tables = [
            open_arrow(part_path(self.folder, one.index)).read_all() for one in self.source.splits
        ]
        found = distinct(pa.concat_tables(tables))
        return found.sort_by([(name, "ascending") for name in self.columns])
