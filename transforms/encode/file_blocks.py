"""Files as tables block by block, whatever their format, and the columns of their first block.

Only the reader of the format is imported: an option that names no column is refused without Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slicebeam.transforms.storage.files import file_format
from slicebeam.transforms.storage.storage import open_input, storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from slicebeam.transforms.storage.file_formats import Format

_HEAD_BYTES = 1 << 20


class CsvLayout(NamedTuple):
    """The columns of a CSV file without a header, the lines before it, and the delimiter."""

    column_names: tuple[str, ...] = ()
    skip_rows: int = 0
    delimiter: str = ","


def first_columns(path: str, form: str | None, layout: CsvLayout) -> list[str]:
    """Return the names of the columns of a file, of JSON Lines those of its first lines."""
    kind = file_format(path, form)
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with open_input(storage_path(path)) as file:
                return list(pq.read_schema(file).names)
        except (pa.ArrowException, OSError):
            # What is wrong with the file is said where it is opened for all that is read of it.
            from slicebeam.transforms.encode.sources import StoredFile, open_parquet

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
