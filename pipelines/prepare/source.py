"""The source of a run's examples: Parquet files, or others that are converted to it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import apache_beam as beam

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.transforms.encode.convert import (
    Conversion,
    convert_file,
    converted_source,
    is_converted,
)
from slicebeam.transforms.encode.file_blocks import CsvLayout
from slicebeam.transforms.encode.sources import StoredFile, open_parquet
from slicebeam.transforms.storage.files import file_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.sources import Source

# CPU time of reading a value and of counting or coding it, measured on a million examples.
SECONDS_PER_VALUE = 4e-8
# The same of reading a byte of text, and writing it as Parquet.
SECONDS_PER_BYTE = 2e-8
# Bytes that a column of a chunk takes while it is read and coded, for the size of a chunk.
_CELL_BYTES = 40
_SMALLEST_CHUNK = 1024


def read_source(
    config: DataConfig, files: Sequence[str], work: WorkFolder, engine: Engine
) -> Source:
    """Return the source of the data; files that are no Parquet are converted first."""
    kinds = [file_format(path, config.format) for path in files]
    _refuse_csv_options(config, kinds)
    if all(kind == "parquet" for kind in kinds):
        source = open_parquet(
            [StoredFile(path, path, identity=work.identity_of(path)) for path in files]
        )
    elif len(set(kinds)) > 1:
        raise OptionError(
            f"--data mixes formats ({', '.join(sorted(set(kinds)))}); convert them to one format"
        )
    else:
        layout = CsvLayout(config.column_names, config.skip_rows, config.delimiter)
        conversion = Conversion(work.folder("parquet"), layout, sparse_keys=kinds[0] != "csv")
        numbered = list(zip(range(len(files)), files, kinds, strict=True))
        size = sum(int(identity[0]) for identity in map(work.identity_of, files) if identity)
        run_stage(
            work,
            engine,
            "parquet",
            lambda pipeline: (
                pipeline
                | "Files" >> beam.Create(numbered)
                | "Convert to Parquet" >> beam.Map(partial(convert_file, conversion))
            ),
            lambda: is_converted(conversion, len(files)),
            job="convert",
            seconds=size * SECONDS_PER_BYTE,
            reads_data=True,
        )
        source = converted_source(conversion, files)
    return source.in_chunks(chunk_rows(config, len(source.schema)))


def _refuse_csv_options(config: DataConfig, kinds: Sequence[str]) -> None:
    if "csv" in kinds:
        return
    if config.column_names or config.skip_rows:
        raise OptionError(f"--column-names and --skip-rows are for CSV, but the data is {kinds[0]}")
    if config.delimiter != ",":
        raise OptionError(f"--delimiter is for CSV, but the data is {kinds[0]}")


def chunk_rows(config: DataConfig, columns: int) -> int:
    """Return how many examples are read at a time: fewer where there are many columns."""
    fits = config.memory // 2 // (columns * _CELL_BYTES)
    return max(min(config.chunk_rows, fits), min(config.chunk_rows, _SMALLEST_CHUNK))
