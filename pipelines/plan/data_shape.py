"""What is known about data without reading it: rows, columns, and estimates of their values.

From Parquet files only the footers are read, from others the first block.
"""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import OptionError
from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
from slicebeam.transforms.encode.learn_domains import is_categorical, learn_domain
from slicebeam.transforms.encode.sources import Source, Split, StoredFile, open_parquet
from slicebeam.transforms.encode.value_counts import ColumnCounter, unsupported
from slicebeam.transforms.formats.column_kinds import block_kinds, parse_column
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.formats.json_lines import read_json_blocks
from slicebeam.transforms.formats.raw_text import open_bytes, open_stored
from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks
from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.storage import identity, storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.slices import RunConfig

_BLOCK_BYTES = 4 << 20
_SAMPLE_BYTES = 64 << 20
# Of a value in a dictionary page, besides itself. Compression leaves short pages as they are.
_LENGTH_BYTES = 4
_PAGE_HEADER = 20
_TYPICAL_TEXT = 8.0
# Of row groups that show a column's dictionary so many are looked at.
_DICTIONARIES = 8


@dataclass(frozen=True)
class ColumnShape:
    """A guess at the domain of a column.

    Attributes
    ----------
    size : singleton predicates; 0 for a column that is left out
    has_equal_bins : whether they are about equally frequent, as quantile bins are
    is_list : whether an example may satisfy several
    """

    size: int
    has_equal_bins: bool
    is_list: bool = False


@dataclass(frozen=True)
class DataShape:
    """What is known of the data.

    Attributes
    ----------
    source : with the schema; of other formats than Parquet its splits are made up
    is_sampled : whether rows and types are estimated from the first block of each file
    is_parquet : whether nothing need be converted
    """

    source: Source
    bytes: int
    is_sampled: bool
    is_parquet: bool
    sample: pa.Table | None
    footers: tuple[pq.FileMetaData, ...]

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.source.rows


def read_shape(config: RunConfig, files: Sequence[str]) -> DataShape:
    """Return the shape of files, from their footers or first blocks.

    Raises
    ------
    InputError
        A file can't be read, or formats are mixed.
    """
    kinds = {file_format(path, config.format) for path in files}
    if len(kinds) > 1:
        raise OptionError(
            f"--data mixes formats ({', '.join(sorted(kinds))}); convert them to one format"
        )
    size = sum(int(identity(storage_path(path))[0]) for path in files)
    if kinds == {"parquet"}:
        stored = [StoredFile(path, path) for path in files]
        source = open_parquet(stored)
        footers = []
        for file in stored[:_DICTIONARIES]:
            with file.opened() as opened:
                footers.append(opened.metadata)
        return DataShape(source, size, False, True, None, tuple(footers))
    return _sampled(config, files, size, next(iter(kinds)))


def _rows_for_a_byte(path: str) -> tuple[int, int]:
    """Return how many lines the first block of a file of text holds, and the bytes they take there."""
    streams: list[_Counted] = []

    def opened(name: str) -> Any:
        streams.append(_Counted(open_stored(name)))
        return io.BufferedReader(streams[-1])

    with open_bytes(path, opened) as stream:
        text = stream.read(_BLOCK_BYTES)
        whole = not stream.read(1)
    lines = text.count(b"\n") + (whole and not text.endswith(b"\n"))
    return lines, streams[0].taken


class _Counted(io.RawIOBase):
    """A stream that knows how much of it was read."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.taken = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(len(buffer))
        buffer[: len(data)] = data
        self.taken += len(data)
        return len(data)

    def close(self) -> None:
        self.stream.close()
        super().close()


def _sampled(config: RunConfig, files: Sequence[str], size: int, kind: str) -> DataShape:
    tables: list[pa.Table] = []
    taken, lines, sampled = 0, 0, 0
    for path in files:
        if taken >= _SAMPLE_BYTES:
            break
        if kind == "csv":
            blocks = read_csv_blocks(
                path,
                column_names=config.column_names or None,
                skip_rows=config.skip_rows,
                delimiter=config.delimiter,
                block_bytes=_BLOCK_BYTES,
            )
        elif kind == "jsonl":
            blocks = read_json_blocks(path, block_bytes=_BLOCK_BYTES)
        else:
            blocks = read_tfrecord_blocks(path)
        # What is not read any further is closed.
        with closing(blocks) as reading:  # type: ignore[type-var]
            first = next(reading, None)
        if first is None or not first.num_rows:
            continue
        tables.append(_typed(first) if kind == "csv" else first)
        sampled += first.num_rows
        if kind == "tfrecord":
            # As many bytes a record as the block has in memory, which is about what they take.
            lines, taken = lines + first.num_rows, taken + first.nbytes
        else:
            of_file, bytes_of_file = _rows_for_a_byte(path)
            has_header = kind == "csv" and not config.column_names
            lines += max(1, of_file - has_header - config.skip_rows)
            taken += bytes_of_file
    if not sampled:
        raise OptionError(f"--data {' '.join(config.data)}: there are no examples in it")
    sample = pa.concat_tables(tables, promote_options="permissive")
    rows = max(1, round(lines * size / taken))
    splits = (Split(0, StoredFile(files[0], files[0]), 0, (), 0, rows),)
    source = Source(splits, sample.schema.serialize().to_pybytes(), {})
    return DataShape(source, size, True, False, sample, ())


def _typed(block: pa.Table) -> pa.Table:
    """Return text columns in the types that their values look like."""
    for name, kinds in block_kinds(block).items():
        kind = kinds.resolve()
        if not pa.types.is_string(kind):
            at = block.schema.get_field_index(name)
            block = block.set_column(at, name, parse_column(block.column(name), kind, column=name))
    return block


def column_shapes(
    shape: DataShape, features: Sequence[str], *, bins: int, top_values: int
) -> dict[str, ColumnShape]:
    """Return a guess at the domain of each feature that has one."""
    guesses = {}
    for name in features:
        kind = shape.source.schema.field(name).type
        if unsupported(kind):
            continue
        if shape.sample is not None:
            guess = _of_sample(shape.sample.column(name), name, bins, top_values)
        else:
            guess = _of_footers(shape, name, kind, bins, top_values)
        if guess.size > 1:
            guesses[name] = guess
    return guesses


def _of_sample(column: pa.ChunkedArray, name: str, bins: int, top_values: int) -> ColumnShape:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    counter = ColumnCounter(kind, _SAMPLE_BYTES)
    counter.add(column)
    counted, error = counter.result()
    learned = learn_domain(
        name, counted, bins=bins, top_values=top_values, named=False, error=error
    )
    if isinstance(learned, LeftOutColumn):
        return ColumnShape(0, has_equal_bins=False)
    return shape_of_domain(learned)


def shape_of_domain(domain: FeatureDomain) -> ColumnShape:
    """Return the shape of a column with a known domain."""
    return ColumnShape(domain.size, domain.kind == "numeric", domain.kind == "list")


def _of_footers(
    shape: DataShape, name: str, kind: pa.DataType, bins: int, top_values: int
) -> ColumnShape:
    chunks = list(_chunks(shape.footers, name))
    is_list = pa.types.is_list(kind)
    kind = kind.value_type if is_list or pa.types.is_dictionary(kind) else kind
    distinct = max((_distinct(chunk, kind) for chunk in chunks), default=float(top_values))
    missing = int(any(_nulls(chunk) for chunk in chunks) and not is_list)
    if pa.types.is_string(kind) and distinct > shape.rows / 2:
        return ColumnShape(0, has_equal_bins=False)
    if is_list or is_categorical(kind, round(distinct), bins):
        other = int(distinct > top_values)
        return ColumnShape(
            round(min(distinct, top_values)) + other + missing,
            has_equal_bins=False,
            is_list=is_list,
        )
    return ColumnShape(round(min(distinct, bins)) + missing, has_equal_bins=True)


def _chunks(footers: Sequence[pq.FileMetaData], name: str) -> Any:
    """Yield what some footers say of a column's chunks."""
    seen = 0
    for footer in footers:
        for group in range(footer.num_row_groups):
            row_group = footer.row_group(group)
            for number in range(row_group.num_columns):
                chunk = row_group.column(number)
                if chunk.path_in_schema.split(".")[0] == name:
                    yield chunk
                    seen += 1
            if seen >= _DICTIONARIES:
                return


def _nulls(chunk: Any) -> bool:
    statistics = chunk.statistics
    return bool(statistics is not None and statistics.has_null_count and statistics.null_count)


def _distinct(chunk: Any, kind: pa.DataType) -> float:
    """Return about how many values a column's chunk has."""
    if pa.types.is_boolean(kind):
        return 2.0
    statistics = chunk.statistics
    has_range = statistics is not None and statistics.has_min_max
    most = float(max(chunk.num_values, 1))
    if has_range and pa.types.is_integer(kind):
        most = min(most, float(int(statistics.max) - int(statistics.min) + 1))
    # Without a dictionary there are too many values for one.
    if not chunk.has_dictionary_page or chunk.dictionary_page_offset is None:
        return most
    held = max(1, chunk.data_page_offset - chunk.dictionary_page_offset - _PAGE_HEADER)
    if pa.types.is_string(kind):
        lengths = [len(str(end)) for end in (statistics.min, statistics.max)] if has_range else []
        width = _LENGTH_BYTES + (float(np.mean(lengths)) if lengths else _TYPICAL_TEXT)
    else:
        width = {"INT32": 4.0, "FLOAT": 4.0}.get(chunk.physical_type, 8.0)
    return min(most, max(1.0, held / width))
