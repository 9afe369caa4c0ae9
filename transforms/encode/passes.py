"""Passes over all examples whose results are parts of a `WriteParts`."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from slicebeam.metrics.errors import ColumnError
from slicebeam.metrics.randomness import repeats
from slicebeam.transforms.encode.column import ChunkColumn, id_hashes, plain_type
from slicebeam.transforms.encode.extract_predictions import weights
from slicebeam.transforms.encode.list_outcomes import NO_RELEVANCE
from slicebeam.transforms.encode.shards import CONTENT, WEIGHT, Shard
from slicebeam.transforms.encode.sources import Split, StoredFile, open_parquet, read_split
from slicebeam.transforms.formats.schemas import storable
from slicebeam.transforms.storage.file_formats import CHUNK_ROWS
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path, written_whole
from slicebeam.transforms.storage.work_files import checksum_of, open_arrow, part_path, write_arrow

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath

# Arrays of one dimension, by name.
Found = dict[str, NDArray[Any]]
Function = Callable[[Iterable[Shard]], Found]


def to_row(found: Found) -> pa.RecordBatch:
    """Return arrays as a row of lists."""
    return pa.record_batch([pa.array([values]) for values in found.values()], names=[*found])


def from_row(row: pa.RecordBatch | pa.Table) -> Found:
    """Return the arrays of `to_row`."""
    return {name: np.array(row.column(name)[0].values) for name in row.schema.names}


def write_found(path: StoragePath, found: Found) -> None:
    """Write arrays of one dimension as one file."""
    row = to_row(found)
    write_arrow(path, row.schema, [row])


def read_found(path: StoragePath) -> Found:
    """Return what `write_found` wrote."""
    return from_row(open_arrow(path).get_batch(0))


def to_arrays(value: Any, name: str = "") -> Found:
    """Return what a value of dataclasses, tuples and mappings holds, without text, as flat arrays."""
    parts = _parts(value)
    if parts is None:
        flat = np.ravel(value)
        return {name: flat.astype(np.uint8) if flat.dtype == bool else flat}
    found: Found = {}
    for key, part in parts.items():
        found |= to_arrays(part, f"{name} {key}")
    return found


def from_arrays(zero: Any, found: Found, name: str = "") -> Any:
    """Return the value of `to_arrays`; the zero has its types and, of as many numbers, its shapes."""
    parts = _parts(zero)
    if parts is None:
        flat = found[name].astype(np.asarray(zero).dtype)
        if not isinstance(zero, np.ndarray):
            return type(zero)(flat[0])
        return flat.reshape(zero.shape) if flat.size == zero.size else flat
    read = {key: from_arrays(part, found, f"{name} {key}") for key, part in parts.items()}
    if is_dataclass(zero):
        return replace(cast("Any", zero), **read)
    return read if isinstance(zero, Mapping) else type(zero)(read.values()) if read else zero


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return what a value is made of; None of a number and an array."""
    if value is None or isinstance(value, str):
        return {}
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    return value if isinstance(value, Mapping) else None


class RowGroup(NamedTuple):
    """Consecutive rows, which may begin and end within a file: which ones of each."""

    paths: tuple[str, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]


def as_row(function: Callable[[Any], Found], item: Any) -> pa.RecordBatch:
    """Return what a function returns of an item as a row."""
    return to_row(function(item))


def over_shards(function: Function, paths: Sequence[str]) -> Found:
    """Return what a function of shards returns of those in some files."""
    return function(Shard(storage_path(path)) for path in paths)


def summed(zero: Any, parts: Sequence[Found]) -> Any:
    """Return the sum of values of `to_arrays`, added in their order to the zero."""
    return functools.reduce(operator.add, (from_arrays(zero, part) for part in parts), zero)


# Of an example, what is in memory while equal ones are numbered.
ROW_BYTES = 72


def _numbers(
    shards: Sequence[str], column: str, parts: int, heaviest: float, part: int
) -> pa.RecordBatchReader:
    """Return the numbers of the examples that equal an earlier one, a batch for each shard."""
    contents, shares, rows = [], [], []
    for shard in map(Shard, map(storage_path, shards)):
        content = shard.contents(heaviest) if column == CONTENT else shard.column(column)
        mine = np.flatnonzero(content % np.uint64(parts) == part) if parts > 1 else None
        contents.append(np.array(content if mine is None else content[mine]))
        rows.append(mine)
        if heaviest > 0:
            weight = shard.column(WEIGHT)
            shares.append(np.array(weight if mine is None else weight[mine]))
    # Weights that differ by less than the hash resolves are numbered by size, in any order the same.
    within = np.concatenate(shares) if shares else None
    again, numbers = repeats(np.concatenate([np.zeros(0, np.uint64), *contents]), within)
    ends = np.cumsum([one.size for one in contents])
    bounds = np.searchsorted(again, np.append(0, ends))
    facts = {"shards": [storage_path(path).name for path in shards]}
    schema = pa.schema(
        [("row", pa.uint32()), ("number", pa.uint64())], {"facts": json.dumps(facts)}
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for at, own in enumerate(rows):
            some = slice(bounds[at], bounds[at + 1])
            row = again[some] - (ends[at] - contents[at].size)
            if own is not None:
                row = own[row]
            columns = [pa.array(row.astype(np.uint32)), pa.array(numbers[some].astype(np.uint64))]
            yield pa.record_batch(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


@dataclass(frozen=True)
class Repeats:
    """How many values several examples have; the shard and row of an example of the first of them."""

    values: int
    shard: int
    row: int


def read_repeats(paths: Sequence[StoragePath]) -> Repeats | None:
    """Return the repeated values from the written parts; None if there are none."""
    values, first = 0, []
    for file in map(open_arrow, paths):
        for shard in range(file.num_record_batches):
            row, number = (column.to_numpy() for column in file.get_batch(shard).columns)
            second = row[number == 1]
            values += second.size
            first += [(shard, int(at)) for at in second[:1]]
    return Repeats(values, *min(first)) if first else None


def number_equal_rows(
    shards: Sequence[StoragePath],
    column: str,
    parts: int,
    folder: StoragePath,
    heaviest: float = 0.0,
) -> WriteParts:
    """Return the transform that writes the numbers of equal examples, of which one is the first."""
    # Equal ones have the same hash in a column, by which `parts` workers share them. `heaviest`: largest
    # weight of all examples; 0 without weights, and for an id.
    function = partial(_numbers, [str(path) for path in shards], column, parts, heaviest)
    return WriteParts(function, range(parts), folder)


def exploded(table: pa.Table) -> pa.Table:
    """Return rows with one element of each list, all combinations; without missing values."""
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        column = column.cast(plain_type(column.type))
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
    """Return the transform that writes the `distinct` values of some columns for each split."""
    # Combinations with a missing value are left out.
    return WriteParts(partial(_of_split, source, columns), source.splits, folder)


@dataclass(frozen=True)
class QueryRows:
    """Rows of results that become rows of queries: apart in `parts` by the query's hash, then together.

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


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which matrix products take one thread of this process.

    A second one takes ten times as long where no processor is free, and sums would differ by a few bits.
    """
    limits: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limits


@cache
def _controller() -> Any:
    # Looking for the libraries takes longer than an iteration on little data.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
