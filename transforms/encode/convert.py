"""Files as tables block by block; CSV, JSON Lines and TFRecord become Parquet once, in the work folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.encode.sources import Source, StoredFile, open_parquet
from slicebeam.transforms.formats.column_kinds import ColumnKinds, block_kinds, date_kinds
from slicebeam.transforms.formats.schemas import storable
from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.storage import holds, open_input, storage_path, written_whole
from slicebeam.transforms.storage.work_files import (
    DamagedFileError,
    checksum_of,
    read_facts,
    write_facts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.transforms.storage.file_formats import Format
    from slicebeam.transforms.storage.storage import StoragePath

_BLOCK_BYTES = 16 << 20
_HEAD_BYTES = 1 << 20


class CsvLayout(NamedTuple):
    """The columns of a CSV file without a header, the lines before it, and the delimiter."""

    column_names: Sequence[str] = ()
    skip_rows: int = 0
    delimiter: str = ","


@dataclass(frozen=True)
class Conversion:
    """How files are read; `sparse_keys`: whether one may lack columns that others have, as in JSON Lines."""

    folder: StoragePath
    layout: CsvLayout = field(default_factory=CsvLayout)
    sparse_keys: bool = False


def convert_file(conversion: Conversion, file: tuple[int, str, Format]) -> str:
    """Write the blocks of a file as Parquet parts, and their description as JSON; return its path."""
    # CSV is written as text: what type a column has is known only when all of it was seen.
    number, path, kind = file
    kinds: dict[str, ColumnKinds] = {}
    parts: list[dict[str, Any]] = []
    row = 0
    for block in file_blocks(path, kind, conversion.layout, _BLOCK_BYTES):
        found = {"csv": block_kinds, "jsonl": date_kinds}.get(kind)
        for name, column in (found(block) if found else {}).items():
            kinds[name] = column & kinds.get(name, column)
        part = conversion.folder / f"{number:05d}-{len(parts):06d}.parquet"
        with written_whole(part) as stream:
            pq.write_table(storable(block), stream)
            checksum = checksum_of(stream)
        parts.append({"part": part.name, "row": row, "checksum": checksum})
        row += block.num_rows
    bits = {name: int(column) for name, column in kinds.items()}
    facts = {"path": path, "parts": parts, "kinds": bits}
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
        for part in facts["parts"]:
            stored = str(conversion.folder / part["part"])
            files.append(StoredFile(stored, facts["path"], part["row"], checksum=part["checksum"]))
        for name, bits in facts["kinds"].items():
            column = ColumnKinds(bits)
            kinds[name] = column & kinds.get(name, column)
    text_types = {name: str(column.resolve()) for name, column in kinds.items()}
    typed = {name: kind for name, kind in text_types.items() if kind != "string"}
    # The blocks of JSON Lines and TFRecord hold only the keys that occur in them.
    return open_parquet(files, text_types=typed, allow_missing=conversion.sparse_keys)


def is_converted(conversion: Conversion, files: int) -> bool:
    """Return whether the parts and the notes of so many files, and nothing else, are there."""
    names = [f"{number:05d}.json" for number in range(files)]
    try:
        facts = [read_facts(conversion.folder / name) for name in names]
    except (FileNotFoundError, DamagedFileError):
        return False
    parts = [part["part"] for one in facts for part in one["parts"]]
    return holds(conversion.folder, [*names, *parts])


def first_columns(path: str, form: str | None, layout: CsvLayout) -> list[str]:
    """Return the names of the columns of a file, of JSON Lines those of its first lines."""
    kind = file_format(path, form)
    if kind == "parquet":
        try:
            with open_input(storage_path(path)) as file:
                return list(pq.read_schema(file).names)
        except (pa.ArrowException, OSError):
            # What is wrong with the file is said where it is opened for all that is read of it.
            return list(open_parquet([StoredFile(path, path)]).schema.names)
    if kind == "csv":
        from slicebeam.transforms.formats.csv_columns import read_csv_names

        return read_csv_names(path, *layout)
    return list(next(file_blocks(path, kind, layout, _HEAD_BYTES)).column_names)


def file_blocks(path: str, kind: Format, layout: CsvLayout, block_bytes: int) -> Iterator[pa.Table]:
    """Return the blocks of a file that is not Parquet; CSV as text."""
    if kind == "csv":
        from slicebeam.transforms.formats.csv_columns import read_csv_blocks

        return read_csv_blocks(
            path,
            column_names=layout.column_names or None,
            skip_rows=layout.skip_rows,
            delimiter=layout.delimiter,
            block_bytes=block_bytes,
        )
    if kind == "jsonl":
        from slicebeam.transforms.formats.json_lines import read_json_blocks

        return read_json_blocks(path, block_bytes=block_bytes)
    from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks

    return read_tfrecord_blocks(path)
