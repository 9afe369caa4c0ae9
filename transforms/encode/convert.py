"""ConvertToParquet: CSV, JSON Lines and TFRecord files become Parquet once, in the work folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pyarrow.parquet as pq

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.encode.sources import Source, StoredFile, open_parquet
from slicebeam.transforms.formats.column_kinds import ColumnKinds, block_kinds, date_kinds
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.formats.json_lines import read_json_blocks
from slicebeam.transforms.formats.schemas import storable
from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks
from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.storage import holds, storage_path, written_whole
from slicebeam.transforms.storage.work_files import (
    DamagedFileError,
    checksum_of,
    read_facts,
    write_facts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from slicebeam.transforms.storage.file_formats import Format
    from slicebeam.transforms.storage.storage import StoragePath

_BLOCK_BYTES, _HEAD_BYTES = 16 << 20, 1 << 20


@dataclass(frozen=True)
class Conversion:
    """How files are read: names, lines before the header and delimiter of CSV files.

    `sparse_keys`: whether a file may lack columns that others have, as in JSON Lines.
    """

    folder: StoragePath
    column_names: tuple[str, ...] = ()
    skip_rows: int = 0
    sparse_keys: bool = False
    delimiter: str = ","


def first_columns(
    path: str, form: str | None, column_names: Sequence[str], skip_rows: int, delimiter: str
) -> list[str]:
    """Return the names of the columns of a file, of JSON Lines those of its first lines."""
    kind = file_format(path, form)
    if kind == "parquet":
        return list(open_parquet([StoredFile(path, path)]).schema.names)
    conversion = Conversion(storage_path("."), tuple(column_names), skip_rows, False, delimiter)
    return list(next(_blocks(path, kind, conversion, _HEAD_BYTES)).column_names)


def _blocks(
    path: str, kind: Format, conversion: Conversion, block_bytes: int
) -> Iterator[pa.Table]:
    if kind == "csv":
        names = conversion.column_names or None
        return read_csv_blocks(
            path,
            column_names=names,
            skip_rows=conversion.skip_rows,
            delimiter=conversion.delimiter,
            block_bytes=block_bytes,
        )
    if kind == "jsonl":
        return read_json_blocks(path, block_bytes=block_bytes)
    return read_tfrecord_blocks(path)


def convert_file(conversion: Conversion, file: tuple[int, str, Format]) -> str:
    """Write the blocks of a file as Parquet parts, and their description as JSON; return its path."""
    # CSV is written as text: what type a column has is known only when all of it was seen.
    number, path, kind = file
    kinds: dict[str, ColumnKinds] = {}
    parts: list[dict[str, Any]] = []
    row = 0
    for block in _blocks(path, kind, conversion, _BLOCK_BYTES):
        found = {"csv": block_kinds, "jsonl": date_kinds}.get(kind)
        for name, column in (found(block) if found else {}).items():
            kinds[name] = column.merge(kinds.get(name, ColumnKinds()))
        part = conversion.folder / f"{number:05d}-{len(parts):06d}.parquet"
        with written_whole(part) as stream:
            pq.write_table(storable(block), stream)
            checksum = checksum_of(stream)
        parts.append({"part": part.name, "row": row, "checksum": checksum})
        row += block.num_rows
    facts = {
        "path": path,
        "parts": parts,
        "kinds": {name: int(column.kinds) for name, column in kinds.items()},
    }
    write_facts(conversion.folder / f"{number:05d}.json", facts)
    return path


def converted_source(conversion: Conversion, paths: Sequence[str]) -> Source:
    """Return the source of all files that were converted, with the types of their columns."""
    files: list[StoredFile] = []
    kinds: dict[str, ColumnKinds] = {}
    for number, converted in enumerate(paths):
        path = conversion.folder / f"{number:05d}.json"
        try:
            facts = read_facts(path)
        except FileNotFoundError as error:
            raise EngineError(f"{path} is missing; it describes what {converted} became") from error
        files += [
            StoredFile(
                str(conversion.folder / part["part"]),
                facts["path"],
                part["row"],
                checksum=part["checksum"],
            )
            for part in facts["parts"]
        ]
        for name, bits in facts["kinds"].items():
            kinds[name] = ColumnKinds.from_bits(bits).merge(kinds.get(name, ColumnKinds()))
    text_types = {name: str(column.resolve()) for name, column in kinds.items()}
    typed = {name: kind for name, kind in text_types.items() if kind != "string"}
    # The blocks of JSON Lines and TFRecord hold only the keys that occur in them.
    return open_parquet(files, text_types=typed, allow_missing=conversion.sparse_keys)


@dataclass
class ConvertToParquet(beam.PTransform):
    """Convert files: pipeline -> PCollection of the paths that are done."""

    files: Sequence[tuple[str, Format]]
    conversion: Conversion

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[str]:
        """Wire the transform."""
        numbered = [(number, path, kind) for number, (path, kind) in enumerate(self.files)]
        convert = partial(convert_file, self.conversion)
        return pipeline | "Files" >> beam.Create(numbered) | "Convert" >> beam.Map(convert)

    def is_written(self) -> bool:
        """Return whether the parts and the notes of all files, and nothing else, are there."""
        folder = self.conversion.folder
        names = [f"{number:05d}.json" for number in range(len(self.files))]
        try:
            facts = [read_facts(folder / name) for name in names]
        except (FileNotFoundError, DamagedFileError):
            return False
        return holds(folder, [*names, *(part["part"] for one in facts for part in one["parts"])])
