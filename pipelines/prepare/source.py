"""The source of a run's examples: Parquet files, or others that are converted to it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.option_fields import flag
from slicebeam.pipelines.config.slices import RunConfig
from slicebeam.pipelines.run.stage import run_stage
from slicebeam.transforms.encode.column import is_number
from slicebeam.transforms.encode.convert import (
    Conversion,
    convert_file,
    converted_source,
    is_converted,
)
from slicebeam.transforms.encode.passes import QueryRows
from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split
from slicebeam.transforms.storage.files import file_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.sources import Source

# The options that say which rows are a query's, and what the columns are.
AS_QUERIES = ("query", "label", "score", "baseline_score", "weight", "group")
# Jobs that sort the rows apart by the query, and put them together.
QUERY_JOBS = ("apart", "grouped")
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
    """Return the source of the data, after converting what is no Parquet; with --query that of the queries."""
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
        folder, has_sparse_keys = work.folder("parquet"), kinds[0] != "csv"
        conversion = Conversion(folder, config.csv_layout, sparse_keys=has_sparse_keys)
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
    if source.rows == 0:
        raise OptionError(f"--data {' '.join(config.data)}: there are no examples in it")
    source = source.in_chunks(chunk_rows(config, len(source.schema)))
    if not isinstance(config, RunConfig):
        return source
    source = with_lists(config, source)
    return _by_query(config, config.query, source, work, engine) if config.query else source


def with_lists(config: RunConfig, source: Source) -> Source:
    """Return a source in which several columns that an option names are one of lists."""
    lists: dict[str, tuple[str, ...]] = {}
    for option, name in (("--score", config.score), ("--baseline-score", config.baseline_score)):
        if name and "," in name and name not in source.schema.names:
            lists[name] = tuple(name.split(","))
            for part in lists[name]:
                kind = source.column_type(part, option)
                if not is_number(kind):
                    raise OptionError(
                        f"{option}: column {part!r} is {kind}, but a score is a number; name another one"
                    )
    return replace(source, lists=lists)


def _by_query(
    config: RunConfig, query: str, source: Source, work: WorkFolder, engine: Engine
) -> Source:
    """Return the source of the queries, where the rows are their results."""
    roles = [name for name in AS_QUERIES if getattr(config, name)]
    for name in roles:
        source.column_type(getattr(config, name), flag(name))
    for name in config.features:
        source.column_type(name, "--features")
    names = source.schema.names
    wanted = {*(getattr(config, name) for name in roles), *config.exclude_features}
    # What a discovery embeds is not a feature.
    wanted |= {*((config.command == "search" and config.features) or names)}
    parts = -(-source.rows // _fitting_rows(config, len(wanted)))
    queries = QueryRows(
        source,
        query,
        config.label,
        tuple(filter(None, (config.score, config.baseline_score))),
        config.weight,
        config.group,
        tuple(name for name in names if name in wanted),
        parts,
    )
    seconds = source.rows * len(wanted) * SECONDS_PER_VALUE
    # Who goes on with another memory has other parts.
    apart, noted, folder = (work.folder(f"{name}-{parts}") for name in (*QUERY_JOBS, "queries"))
    together = queries.together(apart, folder, noted)
    for job, transform in zip(QUERY_JOBS, (queries.apart(apart), together), strict=True):
        run_stage(
            work,
            engine,
            f"{job}-{parts}",
            lambda pipeline, transform=transform: pipeline | "By query" >> transform,  # type: ignore[misc]
            transform.is_written,
            job=job,
            seconds=seconds,
            reads_data=transform is not together,
        )
    grouped = queries.grouped(folder, together.read(parts))
    return grouped.in_chunks(chunk_rows(config, len(grouped.schema)))


def _refuse_csv_options(config: DataConfig, kinds: Sequence[str]) -> None:
    if "csv" in kinds:
        return
    if config.column_names or config.skip_rows:
        raise OptionError(f"--column-names and --skip-rows are for CSV, but the data is {kinds[0]}")
    if config.delimiter != ",":
        raise OptionError(f"--delimiter is for CSV, but the data is {kinds[0]}")


def chunk_rows(config: DataConfig, columns: int) -> int:
    """Return how many examples are read at a time: fewer where there are many columns."""
    fits = _fitting_rows(config, columns)
    return max(min(config.chunk_rows, fits), min(config.chunk_rows, _SMALLEST_CHUNK))


def _fitting_rows(config: DataConfig, columns: int) -> int:
    return max(config.memory // 2 // (columns * _CELL_BYTES), 1)


def read_rows(source: Source, rows: IntArray, columns: Sequence[str]) -> pa.Table:
    """Return columns of the examples at some positions, in their order; only splits that hold one are read."""
    pieces = []
    for split in source.splits:
        if not _between(rows, split.start_row, split.rows).size:
            continue
        for chunk in read_split(source, split, columns):
            own = _between(rows, chunk.start_row, chunk.table.num_rows)
            if own.size:
                table = chunk.table.take(pa.array(own - chunk.start_row))
                pieces.append(
                    table.cast(pa.schema([source.schema.field(name) for name in columns]))
                )
    return pa.concat_tables(pieces).combine_chunks()


def _between(rows: IntArray, start: int, number: int) -> IntArray:
    begin, end = np.searchsorted(rows, [start, start + number])
    return rows[begin:end]
