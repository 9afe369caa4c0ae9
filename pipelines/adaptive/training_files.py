"""Training data in a file: what is read of it, and further rows in its format.

Rows that are taken over keep their values and types. Further rows have values in some columns and null
in the others.
"""

from __future__ import annotations

import gzip
import json
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import FileError, OptionError
from slicebeam.transforms.encode.sources import parquet_errors
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.formats.json_lines import read_json_blocks
from slicebeam.transforms.formats.raw_text import open_bytes
from slicebeam.transforms.formats.tfrecord import (
    encoded_example,
    read_records,
    read_tfrecord_blocks,
    write_records,
)
from slicebeam.transforms.storage.files import expand_paths, file_format
from slicebeam.transforms.storage.storage import open_input, storage_path, written_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.transforms.storage.file_formats import Format


class TrainingFile(ABC):
    """A file of training data.

    Attributes
    ----------
    path : of the file
    names : its columns, as far as blocks were read
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()

    @abstractmethod
    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows in the order of the file, at least with those of some columns that it has.

        Raises
        ------
        InputError
            The file is missing, or can't be read.
        """

    @abstractmethod
    def write(
        self,
        stream: IO[bytes],
        rows: IntArray,
        further: Mapping[str, Sequence[Any]],
        order: IntArray,
    ) -> None:
        """Write rows of the file and further ones, after all blocks were read once.

        Parameters
        ----------
        rows : numbers of rows of the file, ascending; int64 [taken over]
        further : values of the further rows, by column; [further] each
        order : of the further rows and then those of the file, all places once; int64
        """

    def _require(self, found: int, rows: IntArray) -> None:
        if found != len(rows):
            raise FileError(
                f"--data {self.path}: the file changed while it was read; run again when nothing writes to it"
            )

    def _seen(self, table: pa.Table) -> pa.Table:
        self.names = tuple(dict.fromkeys((*self.names, *table.column_names)))
        return table


class _ParquetFile(TrainingFile):
    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        with (
            parquet_errors(self.path),
            open_input(storage_path(self.path)) as stream,
            pq.ParquetFile(stream) as file,
        ):
            self.names = tuple(file.schema_arrow.names)
            known = [name for name in columns if name in self.names]
            for batch in file.iter_batches(columns=known):
                yield pa.Table.from_batches([batch])

    def write(
        self,
        stream: IO[bytes],
        rows: IntArray,
        further: Mapping[str, Sequence[Any]],
        order: IntArray,
    ) -> None:
        with (
            parquet_errors(self.path),
            open_input(storage_path(self.path)) as source,
            pq.ParquetFile(source) as file,
        ):
            schema, compression = file.schema_arrow, _compression(file)
            old_schema = schema
            taken, begin = [], 0
            for batch in file.iter_batches():
                inside = rows[(rows >= begin) & (rows < begin + len(batch))] - begin
                taken.append(batch.take(pa.array(inside)))
                begin += len(batch)
        # A column without a value in the further rows can't go on to forbid nulls.
        for place, field in enumerate(schema):
            if field.name not in further:
                schema = schema.set(place, field.with_nullable(True))
        number = len(next(iter(further.values())))
        columns = [
            pa.array(further[field.name], field.type)
            if field.name in further
            else pa.nulls(number, field.type)
            for field in schema
        ]
        old = pa.Table.from_batches(taken, old_schema)
        self._require(len(old), rows)
        table = pa.concat_tables(
            [
                pa.Table.from_arrays(columns, schema=schema),
                pa.Table.from_arrays(old.columns, schema=schema),
            ]
        )
        mixed = table.unify_dictionaries().take(pa.array(order))
        pq.write_table(mixed, stream, compression=compression)


def _compression(file: pq.ParquetFile) -> str:
    """Return how the first column of a file is compressed, as `pyarrow.parquet.write_table` has it."""
    metadata = file.metadata
    if not metadata.num_row_groups:
        return "snappy"
    name = metadata.row_group(0).column(0).compression.lower()
    return "none" if name == "uncompressed" else str(name)


class _RecordsFile(TrainingFile):
    """A file of one record after another, each of which can be written alone."""

    @abstractmethod
    def records(self, rows: IntArray) -> list[bytes]:
        """Return the records of rows, which ascend."""

    @abstractmethod
    def rendered(self, values: Sequence[Any | None]) -> bytes:
        """Return the record of a row, with a value for each of the `names`."""

    def head(self) -> bytes:
        """Return what is before the first record."""
        return b""

    def write(
        self,
        stream: IO[bytes],
        rows: IntArray,
        further: Mapping[str, Sequence[Any]],
        order: IntArray,
    ) -> None:
        number = len(next(iter(further.values())))
        nothing: Sequence[Any] = [None] * number
        columns = [further.get(name, nothing) for name in self.names]
        new = [self.rendered(values) for values in zip(*columns, strict=True)]
        old = self.records(rows)
        self._require(len(old), rows)
        records = [*new, *old]
        stream.write(self.head())
        self._write_records(stream, [records[place] for place in order.tolist()])

    def _write_records(self, stream: IO[bytes], records: list[bytes]) -> None:
        stream.write(b"".join(records))


class _CsvFile(_RecordsFile):
    def __init__(self, path: str, delimiter: str) -> None:
        super().__init__(path)
        self.delimiter = delimiter
        self.line_end = "\n"

    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        del columns
        with open_bytes(self.path) as stream:
            self.line_end = "\r\n" if stream.readline().endswith(b"\r\n") else "\n"
        for table in read_csv_blocks(self.path, delimiter=self.delimiter):
            yield self._seen(table)

    def records(self, rows: IntArray) -> list[bytes]:
        found, begin = [], 0
        for table in read_csv_blocks(self.path, delimiter=self.delimiter):
            inside = rows[(rows >= begin) & (rows < begin + len(table))] - begin
            begin += len(table)
            columns = [column.to_pylist() for column in table.take(pa.array(inside)).columns]
            found += [self.rendered(values) for values in zip(*columns, strict=True)]
        return found

    def rendered(self, values: Sequence[Any | None]) -> bytes:
        return (self.delimiter.join(map(self._written, values)) + self.line_end).encode()

    def _written(self, value: Any | None) -> str:
        """Return a value as CSV: nothing is null, and what is empty stands in quotes."""
        if value is None:
            return ""
        text = str(value)
        if text and not any(sign in text for sign in (self.delimiter, '"', "\r", "\n")):
            return text
        return '"' + text.replace('"', '""') + '"'

    def head(self) -> bytes:
        return self.rendered(self.names)


class _JsonLinesFile(_RecordsFile):
    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        del columns
        for table in read_json_blocks(self.path):
            yield self._seen(table)

    def records(self, rows: IntArray) -> list[bytes]:
        wanted, found, row = set(rows.tolist()), [], 0
        with open_bytes(self.path) as stream:
            for line in stream:
                text = line.removeprefix(b"\xef\xbb\xbf").strip()
                if text and row in wanted:
                    found.append(text + b"\n")
                row += bool(text)
        return found

    def rendered(self, values: Sequence[Any | None]) -> bytes:
        named = dict(zip(self.names, values, strict=True))
        return json.dumps(named, ensure_ascii=False).encode() + b"\n"


class _TfRecordFile(_RecordsFile):
    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        del columns
        for table in read_tfrecord_blocks(self.path):
            yield self._seen(table)

    def records(self, rows: IntArray) -> list[bytes]:
        wanted = set(rows.tolist())
        return [record for row, record in enumerate(read_records(self.path)) if row in wanted]

    def rendered(self, values: Sequence[Any | None]) -> bytes:
        named = zip(self.names, values, strict=True)
        return encoded_example({name: one for name, one in named if one is not None})

    def _write_records(self, stream: IO[bytes], records: list[bytes]) -> None:
        write_records(stream, records)


def training_file(path: str, format_name: str | None, delimiter: str) -> TrainingFile:
    """Return the file of a name.

    Parameters
    ----------
    format_name : None for what the name shows
    delimiter : between the values of a CSV file

    Raises
    ------
    InputError
        There is no such file, or several, or its format is unknown.
    """
    found = expand_paths([path])
    if len(found) > 1:
        raise FileError(f"--data {path} names {len(found):,} files; name one of them")
    kind = file_format(found[0], format_name)
    if kind == "csv":
        return _CsvFile(found[0], delimiter)
    if delimiter != ",":
        raise OptionError(f"--delimiter is for CSV, and --data {path} is {kind}; leave it out")
    kinds: dict[Format, type[TrainingFile]] = {
        "parquet": _ParquetFile,
        "jsonl": _JsonLinesFile,
        "tfrecord": _TfRecordFile,
    }
    return kinds[kind](found[0])


def write_mixed(
    file: TrainingFile,
    path: str,
    rows: IntArray,
    further: Mapping[str, Sequence[Any]],
    order: IntArray,
) -> None:
    """Write rows of a file and further ones to another file, atomically.

    Parameters
    ----------
    path : of the new file; ``.gz`` is gzip
    rows : numbers of rows of the file; int64
    further : values of the further rows, by column
    order : of the further rows and then those of the file, in the order of ``rows``

    Raises
    ------
    InputError, EngineError
        The file changed since its blocks were read, or the new one can't be written.
    """
    ascending = np.argsort(rows, kind="stable")
    number = len(next(iter(further.values())))
    # Where each of the rows is among those that were sorted.
    place = np.empty(len(rows), np.int64)
    place[ascending] = np.arange(len(rows))
    moved = np.concatenate([np.arange(number), number + place])[order]
    with written_whole(storage_path(path, "--to")) as stream:
        if path.endswith(".gz") and not isinstance(file, _ParquetFile):
            # Without a name and a time, so that the same rows are the same bytes.
            with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
                file.write(cast("IO[bytes]", packed), rows[ascending], further, moved)
        else:
            file.write(stream, rows[ascending], further, moved)
