"""What a sample of the data shows: rows, columns, and a guess at their values."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from slicebeam.metrics.errors import OptionError
from slicebeam.transforms.encode.column import plain_type
from slicebeam.transforms.encode.convert import file_blocks
from slicebeam.transforms.encode.domains import FeatureDomain
from slicebeam.transforms.encode.learn_domains import learn_domain
from slicebeam.transforms.encode.sources import Source, Split, StoredFile, open_parquet, read_split
from slicebeam.transforms.encode.value_counts import ColumnCounter, unsupported
from slicebeam.transforms.formats.column_kinds import block_kinds, parse_column
from slicebeam.transforms.formats.raw_text import open_bytes, open_stored
from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.storage import identity, storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.transforms.storage.file_formats import Format

_BLOCK_BYTES = 4 << 20
_SAMPLE_BYTES = 64 << 20
# Of Parquet so many splits are looked into, and so many rows of each.
_SPLITS, _SPLIT_ROWS, _CHUNK_ROWS = 8, 1 << 16, 1 << 12


@dataclass(frozen=True)
class DataSample:
    """What is known of the data."""

    source: Source  # with the schema; of other formats than Parquet its splits are made up
    bytes: int
    is_sampled: bool  # whether rows and types are estimated from the first block of each file
    files: Sequence[str]
    blocks: pa.Table | None = None  # the beginnings of text files; None for Parquet

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.source.rows

    def domains(
        self, features: Sequence[str], *, bins: int, top_values: int
    ) -> dict[str, FeatureDomain]:
        """Return a guess at the domain of each feature that has one."""
        schema = self.source.schema
        features = [name for name in features if not unsupported(schema.field(name).type)]
        columns = (
            _of_parquet(self.source, features)
            if self.blocks is None
            else self.blocks.select(features).columns
        )
        found = {}
        for name, column in zip(features, columns, strict=True):
            kind = schema.field(name).type
            counter = ColumnCounter(plain_type(kind), _SAMPLE_BYTES)
            counter.add(column)
            counted = counter.result()
            learned = learn_domain(name, counted, bins=bins, top_values=top_values, named=False)
            if isinstance(learned, FeatureDomain):
                found[name] = learned
        return found


def read_sample(config: RunConfig, files: Sequence[str]) -> DataSample:
    """Return what footers or first blocks of the files say."""
    kinds = {file_format(path, config.format) for path in files}
    if len(kinds) > 1:
        raise OptionError(
            f"--data mixes formats ({', '.join(sorted(kinds))}); convert them to one format"
        )
    size = sum(int(identity(storage_path(path))[0]) for path in files)
    if kinds == {"parquet"}:
        source = open_parquet([StoredFile(path, path) for path in files])
        sample = DataSample(source, size, False, files)
    else:
        sample = _of_text(config, files, size, kinds.pop())
    if sample.rows == 0:
        raise OptionError(f"--data {' '.join(config.data)}: there are no examples in it")
    return sample


def _of_parquet(source: Source, columns: Sequence[str]) -> list[pa.ChunkedArray]:
    """Return the columns at the beginnings of some splits, evenly spread."""
    tables = []
    chosen = source.splits[:: -(-len(source.splits) // _SPLITS)]
    for split in chosen:
        rows, taken = 0, 0
        with closing(read_split(source.in_chunks(_CHUNK_ROWS), split, columns)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                tables.append(chunk.table)
                rows, taken = rows + chunk.table.num_rows, taken + chunk.table.nbytes
                if rows >= _SPLIT_ROWS or taken >= _SAMPLE_BYTES // len(chosen):
                    break
    pieces = [[table.column(name).chunks for table in tables] for name in columns]
    return [pa.chunked_array([one for chunks in piece for one in chunks]) for piece in pieces]


def _of_text(config: RunConfig, files: Sequence[str], size: int, kind: Format) -> DataSample:
    tables: list[pa.Table] = []
    taken, lines = 0, 0
    for path in files:
        if taken >= _SAMPLE_BYTES:
            break
        # What is not read any further is closed.
        with closing(file_blocks(path, kind, config.csv_layout, _BLOCK_BYTES)) as reading:  # type: ignore[type-var]
            first = next(reading, None)
        if first is None or not first.num_rows:
            continue
        tables.append(_typed(first) if kind == "csv" else first)
        if kind == "tfrecord":
            # As many bytes a record as the block has in memory, which is about what they take.
            lines, taken = lines + first.num_rows, taken + first.nbytes
        else:
            of_file, bytes_of_file = _first_lines(path)
            has_header = kind == "csv" and not config.column_names
            lines += max(1, of_file - has_header - config.skip_rows)
            taken += bytes_of_file
    rows = max(1, round(lines * size / taken)) if tables else 0
    splits = (Split(0, StoredFile(files[0], files[0]), 0, (), 0, rows),)
    sample = pa.concat_tables(tables or [pa.table({})], promote_options="permissive")
    source = Source(splits, sample.schema.serialize().to_pybytes(), {})
    return DataSample(source, size, True, files, sample)


def _first_lines(path: str) -> tuple[int, int]:
    """Return the number of lines at the beginning of a text file, and the bytes they take there."""
    stored = open_stored(path)
    with open_bytes(path, lambda _: stored) as stream:
        text = stream.read(_BLOCK_BYTES)
        whole = not stream.read(1)
        return text.count(b"\n") + (whole and not text.endswith(b"\n")), stored.tell()


def _typed(block: pa.Table) -> pa.Table:
    """Return text columns in the types that their values look like."""
    for name, kinds in block_kinds(block).items():
        kind = kinds.resolve()
        if not pa.types.is_string(kind):
            at = block.schema.get_field_index(name)
            block = block.set_column(at, name, parse_column(block.column(name), kind, column=name))
    return block
