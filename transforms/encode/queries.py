"""Rows of results become rows of queries, in two passes: rows apart by the hash of the query, then together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slicebeam.metrics.errors import ColumnError
from slicebeam.transforms.encode.column import ChunkColumn, id_hashes
from slicebeam.transforms.encode.extract_predictions import weights
from slicebeam.transforms.encode.list_outcomes import NO_RELEVANCE
from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split
from slicebeam.transforms.formats.schemas import storable
from slicebeam.transforms.storage.file_formats import CHUNK_ROWS
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import written_whole
from slicebeam.transforms.storage.work_files import checksum_of, open_arrow, part_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.transforms.encode.sources import Source, Split
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class QueryRows:
    """Which rows are the results of a query, and in how many `parts` they are sorted by its hash.

    `label` and `scores` become lists; `weight` and `group` must have one value in a query.
    """

    source: Source
    column: str
    label: str
    scores: tuple[str, ...]
    weight: str | None
    group: str | None
    columns: tuple[str, ...]
    parts: int

    def apart(self, folder: StoragePath) -> WriteParts:
        """Return the transform that writes the rows of each split, by parts."""
        return WriteParts(partial(_apart, self), self.source.splits, folder)

    def together(self, apart: StoragePath, folder: StoragePath, noted: StoragePath) -> WriteParts:
        """Return the transform that writes the queries of each part as Parquet, and what it notes of them."""
        paths = [part_path(apart, number) for number in range(len(self.source.splits))]
        return WriteParts(partial(_together, self, paths, folder), range(self.parts), noted)

    def grouped(self, folder: StoragePath, notes: Sequence[pa.Table]) -> Source:
        """Return the source of the queries."""
        origin, noted = f"the queries by {self.column!r}", pa.concat_tables(notes).to_pylist()
        files = [
            StoredFile(str(_parquet(folder, part)), origin, checksum=one["checksum"])
            for part, one in enumerate(noted)
            if one["queries"]
        ]
        source = open_parquet(files)
        varying = {name for one in noted for name in one["varying"]}
        schema = pa.schema([one for one in source.stored_schema if one.name not in varying])
        names = tuple(name for name in self.columns if name in varying)
        return replace(source, schema_bytes=schema.serialize().to_pybytes(), varying=names)


def _parquet(folder: StoragePath, part: int) -> StoragePath:
    return folder / f"{part:06d}.parquet"


def _apart(queries: QueryRows, split: Split) -> pa.RecordBatchReader:
    """Return the rows of a split: for each chunk a batch for each part."""
    source = queries.source
    schema = pa.schema([source.schema.field(name) for name in queries.columns])

    def batches() -> Iterator[pa.RecordBatch]:
        for chunk in read_split(source, split, queries.columns):
            # What is wrong is named by the user's rows: later ones are of queries.
            label = ChunkColumn.of(chunk, queries.label)
            relevance = label.numbers("a relevance")
            label.refuse(~((relevance >= 0) & (relevance < np.inf)), relevance, NO_RELEVANCE)
            for name in queries.scores:
                ChunkColumn.of(chunk, name).numbers("a score")
            if queries.weight:
                weights(chunk, queries.weight)
            if queries.group:
                id_hashes(ChunkColumn.of(chunk, queries.group).array, chunk, "--group")
            ids = ChunkColumn.of(chunk, queries.column).array
            hashes = id_hashes(ids, chunk, f"--query {queries.column}")
            part = hashes % np.uint64(queries.parts)
            order = np.argsort(part, kind="stable")
            (batch,) = chunk.table.cast(schema).take(order).combine_chunks().to_batches()
            ends = np.searchsorted(part[order], np.arange(queries.parts + 1, dtype=np.uint64))
            for begin, end in pairwise(ends):
                yield batch.slice(begin, end - begin)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _together(
    queries: QueryRows, apart: Sequence[StoragePath], folder: StoragePath, part: int
) -> pa.RecordBatch:
    """Write the queries of a part, and return how many there are, and what varies within them."""
    batches = []
    for path in apart:
        file = open_arrow(path, is_unchanging=True)
        own = range(part, file.num_record_batches, queries.parts)
        batches += [file.get_batch(number) for number in own]
    rows = pa.Table.from_batches(batches).combine_chunks()
    ids = rows.column(queries.column).combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(ids, kind="stable")
    rows, ids = rows.take(order), ids[order]
    begins = np.flatnonzero(np.diff(ids, prepend=-1))
    query = np.repeat(np.arange(begins.size), np.diff(begins, append=ids.size))
    offsets = pa.array(np.append(begins, ids.size).astype(np.int32))
    columns: dict[str, pa.Array] = {}
    varying = []
    for name in rows.column_names:
        column = rows.column(name).combine_chunks()
        if name in (queries.label, *queries.scores):
            columns[name] = pa.ListArray.from_arrays(offsets, column)
            continue
        columns[name] = column.take(begins)
        own, first = _plain(column), _plain(columns[name].take(query))
        if own.equals(first):
            continue
        varying.append(name)
        if name in (queries.weight, queries.group):
            pairs = zip(rows.column(queries.column), first, own, strict=True)
            at, before, value = next(one for one in pairs if not one[1].equals(one[2]))
            raise ColumnError(
                f"column {name!r} holds {before} and {value} in query {at.as_py()!r}, but a query has "
                "one; write the same value in all its rows"
            )
    path = _parquet(folder, part)
    with written_whole(path) as stream:
        pq.write_table(storable(pa.table(columns)), stream, row_group_size=CHUNK_ROWS)
        checksum = checksum_of(stream)
    named = pa.array([varying], pa.list_(pa.string()))
    return pa.record_batch({"queries": [begins.size], "checksum": [checksum], "varying": named})


def _plain(column: pa.Array) -> pa.Array:
    """Return a column in which what is not a number is missing, so that it equals itself."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
