"""The source of examples: Parquet files in splits, each read in chunks of columns."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import ColumnError, InputError, unknown_name
from slicebeam.transforms.encode.column import Chunk, arrow_type, random_numbers
from slicebeam.transforms.formats.column_kinds import parse_column
from slicebeam.transforms.formats.schemas import conform, unify_schemas, unstorable_reason
from slicebeam.transforms.storage.file_formats import CHUNK_ROWS
from slicebeam.transforms.storage.storage import identity, open_input, storage_path
from slicebeam.transforms.storage.work_files import open_checked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray
    from slicebeam.transforms.encode.conditions import SliceMembership

# Bytes of a column that are read at a time.
_BUFFER = 1 << 20
# A stream of random words apart from those of replicates, which count from 0, and of discovery.
_RESERVED = -5
VARIES = "varies within queries"


@dataclass(frozen=True)
class StoredFile:
    """A Parquet file, and the user's file that it belongs to, from a row of it on.

    `identity`: what it was when the run began (see `storage.identity`); empty where nobody asks.
    `is_earlier`: whether it is of the earlier of two data sets.
    """

    path: str
    origin: str
    origin_row: int = 0
    identity: tuple[int | str, ...] = ()
    checksum: int | None = None
    is_earlier: bool = False

    @contextmanager
    def opened(self, **options: Any) -> Iterator[pq.ParquetFile]:
        """Open the file as it was when the run began."""
        path = storage_path(self.path)
        if self.checksum is not None:
            with (
                open_checked(path, self.checksum) as file,
                pq.ParquetFile(file, **options) as opened,
            ):
                yield opened
            return
        with parquet_errors(self.path):
            if self.identity and self.identity != (now := tuple(identity(path))):
                raise changed(self.path, self.identity, now)
            if isinstance(path, Path):
                # Not mapped: who writes into a mapped file can end this process.
                stream, options = pa.OSFile(str(path)), {**options, "buffer_size": _BUFFER}
            else:
                # What is wanted of a row group is requested at once.
                stream, options = open_input(path), {**options, "pre_buffer": True}
            options["page_checksum_verification"] = True
            with stream, pq.ParquetFile(stream, **options) as opened:
                yield opened


def changed(
    path: str, before: Sequence[int | str] | None, now: Sequence[int | str] | None
) -> InputError:
    """Return the error for a file of the user's that changed since the run began."""
    what = "was rewritten"
    if now is None:
        what = "vanished"
    elif before is None:
        what = "appeared"
    elif before[0] != now[0]:
        what = f"had {before[0]:,} bytes and now has {now[0]:,}: it changed"
    return InputError(
        f"{path}: the file {what} while it was read; run again without --resume when nothing "
        "writes to it"
    )


@dataclass(frozen=True)
class Split:
    """Consecutive row groups of one file: the unit of reading.

    `origin_row` and `start_row` are the positions of its first example in the user's file and among all,
    `left_out` the rows that a source is read without, `left_out_before` those of the splits before it.
    """

    index: int
    file: StoredFile
    origin_row: int
    row_groups: tuple[int, ...]
    start_row: int
    rows: int
    left_out: int = 0
    left_out_before: int = 0


@dataclass(frozen=True)
class ReservedRows:
    """About this share of the examples, or the others, by a hash of a column or of the position.

    Examples with the same value in the column, such as those of a group, stay together.
    """

    share: float
    seed: int
    column: str | None
    option: str
    is_reserved: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""
        return () if self.column is None else (self.column,)

    def holds(self, chunk: Chunk) -> BoolArray:
        """Return which examples [rows] of a chunk of the whole data these are."""
        numbers = random_numbers(chunk, self.seed, _RESERVED, self.column, self.option)
        return np.asarray((numbers < self.share) == self.is_reserved)


@dataclass(frozen=True)
class Source:
    """All the examples of a run.

    `text_types`: column -> Arrow type text, for columns that were written as text (CSV). `within`: the
    examples that are read, others being left out; None for all. `lists`: column -> columns of numbers that are
    also read as one of lists. `varying`: columns that were left out, as they vary within queries.
    """

    splits: tuple[Split, ...]
    schema_bytes: bytes
    text_types: Mapping[str, str]
    chunk_rows: int = CHUNK_ROWS
    within: SliceMembership | ReservedRows | None = None
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    varying: tuple[str, ...] = ()

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The schema of the files."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema_bytes))

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the examples, after text was parsed."""
        fields = [
            field.with_type(arrow_type(kind))
            if (kind := self.text_types.get(field.name))
            else field
            for field in self.stored_schema
        ]
        lists = [pa.field(name, pa.list_(pa.float64(), len(of))) for name, of in self.lists.items()]
        return pa.schema([*fields, *lists])

    @property
    def rows(self) -> int:
        """Number of examples."""
        return sum(split.rows for split in self.splits)

    def with_earlier(self, origins: Collection[str]) -> Source:
        """Return the same examples, where those of some of the user's files are of the earlier data."""
        splits = (
            replace(split, file=replace(split.file, is_earlier=split.file.origin in origins))
            for split in self.splits
        )
        return replace(self, splits=tuple(splits))

    def in_chunks(self, rows: int) -> Source:
        """Return the same examples, read in chunks of this size."""
        return replace(self, chunk_rows=rows)

    def column_type(self, name: str, what: str) -> pa.DataType:
        """Return the type of a column that must exist; ``what`` names the option for the error."""
        where = f"{what}: " if what else ""
        if name in self.varying:
            raise ColumnError(f"{where}column {name!r} {VARIES}; leave it out")
        if name not in self.schema.names:
            raise ColumnError(f"{where}{unknown_name('column', name, self.schema.names)}")
        kind = self.schema.field(name).type
        if reason := unstorable_reason(kind):
            raise ColumnError(f"{where}column {name!r} cannot be read ({reason}); name another one")
        return kind


def plan_splits(
    files: Sequence[tuple[StoredFile, pq.FileMetaData]], split_rows: int
) -> tuple[Split, ...]:
    """Group the row groups of each file so that a split has about ``split_rows`` examples."""
    splits: list[Split] = []
    start = 0
    for file, metadata in files:
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if sum(sizes) != metadata.num_rows:
            raise InputError(
                f"{file.path}: damaged Parquet file ({metadata.num_rows} rows in all, and "
                f"{sum(sizes)} in its row groups); write it again"
            )
        groups: list[int] = []
        rows, row = 0, file.origin_row
        for group, size in enumerate(sizes):
            groups.append(group)
            rows += size
            if rows >= split_rows or group == metadata.num_row_groups - 1:
                if rows:
                    splits.append(Split(len(splits), file, row, tuple(groups), start, rows))
                start, row = start + rows, row + rows
                groups, rows = [], 0
    return tuple(splits)


def open_parquet(
    files: Sequence[StoredFile],
    *,
    text_types: Mapping[str, str] | None = None,
    allow_missing: bool = False,
) -> Source:
    """Read the footers of the files and plan their splits."""
    footers, schemas = [], []
    for file in files:
        with file.opened() as opened:
            footers.append((file, opened.metadata))
            schemas.append((file.origin, opened.schema_arrow.remove_metadata()))
    schema = unify_schemas(schemas, allow_missing=allow_missing).serialize().to_pybytes()
    return Source(plan_splits(footers, CHUNK_ROWS), schema, dict(text_types or {}))


@contextmanager
def parquet_errors(path: str) -> Iterator[None]:
    """Turn Arrow's errors while a Parquet file is read into one line that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: the file vanished while it was read") from error
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        said = f"not readable as Parquet ({reason}); write it again or give --format"
        if "Expected all lists to be of size" in reason:
            said = (
                f"a list of a column of fixed length has no value ({reason}), which Arrow cannot read; "
                "drop such examples, or write lists of any length"
            )
        raise InputError(f"{path}: {said}") from error


def _require_text(batch: pa.RecordBatch, path: str) -> None:
    """Raise an InputError if text is not UTF-8, which neither Parquet nor Arrow checks."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_primitive(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            reason = str(error).rpartition("Invalid: ")[2]
            raise ColumnError(
                f"{path}: column {name!r} cannot be read ({reason}); write it again, text as UTF-8"
            ) from error


def read_split(source: Source, split: Split, columns: Sequence[str]) -> Iterator[Chunk]:
    """Yield the chunks of a split with the given columns, in order, none of them empty.

    Text is read as dictionaries, so that what is done to a value is done once for all rows that hold it.
    """
    if not source.lists.keys().isdisjoint(columns):
        yield from _read_lists(source, split, columns)
        return
    if source.within is not None:
        yield from _read_within(source, source.within, split, columns)
        return
    schema, rows = source.schema, source.chunk_rows
    wanted = pa.schema([schema.field(name) for name in columns])
    stored = pa.schema([source.stored_schema.field(name) for name in columns])
    texts = [field.name for field in stored if pa.types.is_string(field.type)]
    done = 0
    with split.file.opened(read_dictionary=texts) as opened:
        present = set(opened.schema_arrow.names)
        options = {"columns": [name for name in columns if name in present], "use_threads": False}
        tables = (
            table
            for groups in _read_together(opened.metadata, split.row_groups, rows)
            for table in _cut(opened.iter_batches(rows, groups, **options), rows, split.file)
        )
        for index, read in enumerate(tables):
            table = _typed(read, stored, wanted, source.text_types) if columns else read
            yield Chunk(
                split.index,
                index,
                split.file.origin,
                split.origin_row + done,
                split.start_row + done,
                table,
            )
            done += table.num_rows
    if done != split.rows:
        raise InputError(
            f"{split.file.path}: {done:,} rows were read, but its footer says {split.rows:,}; the "
            "file is damaged, write it again"
        )


def _read_lists(source: Source, split: Split, columns: Sequence[str]) -> Iterator[Chunk]:
    """Yield chunks in which several columns of numbers are one of lists."""
    stored = [part for name in columns for part in source.lists.get(name, (name,))]
    for chunk in read_split(replace(source, lists={}), split, list(dict.fromkeys(stored))):
        table = chunk.table
        for name in source.lists.keys() & set(columns):
            # What is missing becomes NaN.
            parts = [
                table.column(part).cast(pa.float64(), safe=False) for part in source.lists[name]
            ]
            flat = pa.array(np.stack([part.to_numpy() for part in parts], axis=1).ravel())
            lists = pa.FixedSizeListArray.from_arrays(flat, len(parts))
            table = table.append_column(name, lists)
        yield chunk.with_table(table.select(columns))


def _read_within(
    source: Source, within: SliceMembership | ReservedRows, split: Split, columns: Sequence[str]
) -> Iterator[Chunk]:
    """Yield the chunks of the examples that a source is read within."""
    everything = replace(source, within=None)
    read = list(dict.fromkeys([*columns, *within.columns])) or source.schema.names[:1]
    done = batch = 0
    position = split.start_row + split.left_out_before
    whole = replace(split, start_row=position, rows=split.rows + split.left_out)
    for chunk in read_split(everything, whole, read):
        places = np.flatnonzero(within.holds(chunk))
        if not places.size:
            continue
        table = chunk.table.take(pa.array(places)).select(columns or read)
        start = split.start_row + done
        yield replace(chunk, batch=batch, start_row=start, table=table, places=places)
        done, batch = done + places.size, batch + 1
    if done != split.rows:
        raise InputError(
            f"{split.file.origin}: {done:,} rows are chosen, and {split.rows:,} were when the run "
            "began; run again without --resume when nothing writes to the file"
        )


def _read_together(
    metadata: pq.FileMetaData, row_groups: Sequence[int], most_rows: int
) -> Iterator[list[int]]:
    """Yield row groups that fit a chunk together, or one that does not."""
    # Reading on into the next row group would cut a chunk there, and leave a small one.
    together: list[int] = []
    rows = 0
    for group in row_groups:
        size = metadata.row_group(group).num_rows
        if together and rows + size > most_rows:
            yield together
            together, rows = [], 0
        together.append(group)
        rows += size
    if together:
        yield together


def _cut(batches: Iterable[pa.RecordBatch], rows: int, file: StoredFile) -> Iterator[pa.Table]:
    """Yield tables of this many rows; the last may be shorter."""
    # Arrow ends a batch where a dictionary ends, so that where it does depends on the columns. What is
    # written of a chunk's embeddings has to fit what is read of its other columns later.
    held: list[pa.RecordBatch] = []
    missing = rows
    for batch in batches:
        # A damaged footer can give a column fewer values than the others.
        batch.validate()
        if file.checksum is None:
            _require_text(batch, file.path)
        rest = batch
        while rest.num_rows:
            held.append(rest.slice(0, missing))
            rest = rest.slice(held[-1].num_rows)
            missing -= held[-1].num_rows
            if not missing:
                yield _joined(held)
                held, missing = [], rows
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table if len(batches) == 1 else table.unify_dictionaries().combine_chunks()


def _typed(
    table: pa.Table, stored: pa.Schema, wanted: pa.Schema, text_types: Mapping[str, str]
) -> pa.Table:
    """Return the columns in the types of the schema; text stays dictionary-encoded."""
    columns = []
    for have, want in zip(stored, wanted, strict=True):
        if have.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, want.type))
            continue
        column = table.column(have.name)
        if have.name in text_types and not pa.types.is_string(want.type):
            columns.append(parse_column(column, want.type, column=have.name))
        elif pa.types.is_dictionary(column.type) and pa.types.is_string(want.type):
            columns.append(column)
        else:
            columns.append(conform(table.select([have.name]), pa.schema([want])).column(0))
    return pa.table(columns, names=wanted.names)
