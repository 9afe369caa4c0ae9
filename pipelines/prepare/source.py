"""The source of a run's examples: all rows of the files, queries, or those within findings or not reserved."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import InputError, NoFindingsError, OptionError, flag
from slicebeam.pipelines.changelist.document import SearchChangeList, Within
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.config.slices import RunConfig
from slicebeam.pipelines.run.open_run import hash_of_document
from slicebeam.transforms.encode.column import is_number
from slicebeam.transforms.encode.convert import (
    Conversion,
    convert_file,
    converted_source,
    is_converted,
)
from slicebeam.transforms.encode.passes import QueryRows
from slicebeam.transforms.encode.sources import ReservedRows, StoredFile, open_parquet, read_split
from slicebeam.transforms.storage.files import expand_paths, file_format, in_both
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.transforms.encode.sources import Source, Split
    from slicebeam.transforms.storage.file_formats import Format


# Options that give a column a part other than that of a feature.
ROLES = (
    *("label", "prediction", "score", "loss", "weight", "group", "query", "example_id"),
    *("baseline_prediction", "baseline_score", "baseline_loss"),
)
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


def read_source(config: DataConfig, run: Workspace) -> Source:
    """Return the source of the data, after converting what is no Parquet; with --query that of the queries."""
    of_earlier: Sequence[str] = getattr(config, "baseline_data", ())
    earlier = expand_paths(of_earlier, "--baseline-data")
    if both := in_both(earlier, run.files):
        raise OptionError(
            f"--baseline-data {both[0]}: --data names this file as well; give earlier data"
        )
    files = (*run.files, *earlier)
    kind, identity_of = format_of(config, files), run.work.identity_of
    if kind == "parquet":
        source = open_parquet(
            [StoredFile(path, path, identity=identity_of(path)) for path in files]
        )
    else:
        folder = run.work.folder("parquet")
        conversion = Conversion(folder, config.csv_layout, sparse_keys=kind != "csv")
        numbered = [(number, path, kind) for number, path in enumerate(files)]
        size = sum(int(identity[0]) for identity in map(identity_of, files) if identity)
        run.stage(
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
    source = source.with_earlier(earlier)
    for option, paths in (("--data", config.data), ("--baseline-data", of_earlier)):
        rows = (
            split.rows
            for split in source.splits
            if split.file.is_earlier == (option == "--baseline-data")
        )
        if paths and not sum(rows):
            raise OptionError(
                f"{option} {' '.join(paths)}: there are no examples in it; name files with some"
            )
    source = source.in_chunks(chunk_rows(config, len(source.schema)))
    if not isinstance(config, RunConfig):
        return source
    source = with_lists(config, source)
    return _by_query(config, config.query, source, run) if config.query else source


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


def _by_query(config: RunConfig, query: str, source: Source, run: Workspace) -> Source:
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
    apart, noted, folder = (run.work.folder(f"{name}-{parts}") for name in (*QUERY_JOBS, "queries"))
    together = queries.together(apart, folder, noted)
    for job, transform in zip(QUERY_JOBS, (queries.apart(apart), together), strict=True):
        run.stage(
            f"{job}-{parts}",
            lambda pipeline, transform=transform: pipeline | "By query" >> transform,  # type: ignore[misc]
            transform.is_written,
            job=job,
            seconds=seconds,
            reads_data=transform is not together,
        )
    grouped = queries.grouped(folder, together.read(parts))
    return grouped.in_chunks(chunk_rows(config, len(grouped.schema)))


def format_of(config: DataConfig, files: Sequence[str]) -> Format:
    """Return the format of the files, after refusing several, and options of another one."""
    kind, *others = sorted({file_format(path, config.format) for path in files})
    if others:
        names = (
            "--data and --baseline-data mix"
            if getattr(config, "baseline_data", ())
            else "--data mixes"
        )
        raise OptionError(
            f"{names} formats ({', '.join([kind, *others])}); convert them to one format"
        )
    if kind != "csv" and (config.column_names or config.skip_rows):
        raise OptionError(f"--column-names and --skip-rows are for CSV, but the data is {kind}")
    if kind != "csv" and config.delimiter != ",":
        raise OptionError(f"--delimiter is for CSV, but the data is {kind}")
    return kind


def chunk_rows(config: DataConfig, columns: int) -> int:
    """Return how many examples are read at a time: fewer where there are many columns."""
    fits = _fitting_rows(config, columns)
    return max(min(config.chunk_rows, fits), min(config.chunk_rows, _SMALLEST_CHUNK))


def _fitting_rows(config: DataConfig, columns: int) -> int:
    return max(config.memory // 2 // (columns * _CELL_BYTES), 1)


def read_rows(source: Source, rows: IntArray, columns: Sequence[str]) -> pa.Table:
    """Return columns of the examples at some positions, in their order; only splits that hold one are read."""
    pieces = []
    schema = pa.schema([source.schema.field(name) for name in columns])
    for split in source.splits:
        if not _between(rows, split.start_row, split.rows).size:
            continue
        for chunk in read_split(source, split, columns):
            own = _between(rows, chunk.start_row, chunk.table.num_rows)
            if own.size:
                pieces.append(chunk.table.take(pa.array(own - chunk.start_row)).cast(schema))
    return pa.concat_tables(pieces).combine_chunks()


def _between(rows: IntArray, start: int, number: int) -> IntArray:
    begin, end = np.searchsorted(rows, [start, start + number])
    return rows[begin:end]


_OPTION = "--within-findings"


def findings_of(uri: str) -> Within:
    """Return the findings of a document, without counts."""
    document = read_search(uri, _OPTION)
    wanted = {finding.slice_id for finding in document.findings}
    predicates = []
    for slice_ in document.slices:
        if slice_.slice_id in wanted:
            if slice_.predicate is None:
                raise OptionError(
                    f"{_OPTION} {uri}: the finding {slice_.name!r} is not a predicate; name the document "
                    "of a search"
                )
            predicates.append(slice_.predicate)
    if not predicates:
        raise NoFindingsError(
            f"{_OPTION} {uri}: the document has no findings, so there is nothing to examine"
        )
    digest = hash_of_document(storage_path(uri, _OPTION))
    return Within(uri=uri, sha256=str(digest), slices=tuple(predicates), n=0, of=0)


def read_within(source: Source, within: Within, run: Workspace) -> tuple[Source, Within]:
    """Return the source of the examples in at least one of the slices, and how many they are."""
    from slicebeam.transforms.encode.conditions import SliceMembership, check_condition

    membership = SliceMembership(tuple(predicate.singletons for predicate in within.slices))
    for condition in (singleton for some in membership.predicates for singleton in some):
        kind = source.column_type(condition.field, f"{_OPTION} {within.uri}")
        try:
            check_condition(condition, kind)
        except InputError as error:
            raise InputError(f"{_OPTION} {within.uri}, '{condition}': {error}") from error
    kept = replace(source, within=membership)
    kept = _kept(kept, _rows_within(kept, "within", run))
    if not kept.rows:
        raise InputError(
            f"{_OPTION} {within.uri}: none of the {source.rows:,} examples is in one of its "
            f"{membership.size} findings; name a document about this data"
        )
    return kept, within.model_copy(update={"n": kept.rows, "of": source.rows})


def reserved_rows(source: Source, rows: ReservedRows, run: Workspace) -> tuple[Source, Source]:
    """Return the source of the examples to search, and of those that are reserved for measuring."""
    searched, reserved = (
        replace(source, within=replace(rows, is_reserved=is_reserved))
        for is_reserved in (False, True)
    )
    kept = _rows_within(searched, "searched-rows", run)
    others = [split.rows - n for split, n in zip(source.splits, kept, strict=True)]
    searched, reserved = _kept(searched, kept), _kept(reserved, others)
    if not searched.rows or not reserved.rows:
        raise OptionError(
            f"--confirm {rows.share:g} reserves {reserved.rows:,} of {source.rows:,} examples, and "
            "one at least is needed to search and to measure; give more data"
        )
    return searched, reserved


def rows_of_document(
    source: Source, document: SearchChangeList, run: Workspace, *, is_own_data: bool = True
) -> tuple[Source, Within | None]:
    """Return the source of a document's examples, of its own data without the reserved ones, and what they are within."""
    within, known = document.dataset.within, document.confirmation
    if within is not None:
        source, within = read_within(source, within, run)
    if known is not None and is_own_data:
        seed = document.provenance.seed
        rows = ReservedRows(known.share, seed, known.column, "--data", is_reserved=True)
        source, _ = reserved_rows(source, rows, run)
    return source, within


def _rows_within(source: Source, stage: str, run: Workspace) -> list[int]:
    columns = source.within.columns if source.within is not None else ()
    transform = WriteParts(partial(_count, source), source.splits, run.work.folder(stage))
    seconds = source.rows * max(len(columns), 1) * SECONDS_PER_VALUE
    counted = run.parts(stage, transform, seconds=seconds)
    return [part["rows"][0].as_py() for part in counted]


def _kept(source: Source, kept: Sequence[int]) -> Source:
    """Return a source whose splits know how many rows it is read within."""
    splits: list[Split] = []
    start = before = 0
    for split, rows in zip(source.splits, kept, strict=True):
        if rows:
            own = replace(split, index=len(splits), start_row=start, rows=rows)
            splits.append(replace(own, left_out=split.rows - rows, left_out_before=before))
        start, before = start + rows, before + split.rows - rows
    return replace(source, splits=tuple(splits))


def _count(source: Source, split: Split) -> pa.RecordBatch:
    """Return how many rows of a split a source is read within."""
    within = source.within
    if within is None:
        raise TypeError("a source that is read whole")
    chunks = read_split(
        replace(source, within=None), split, within.columns or source.schema.names[:1]
    )
    return pa.record_batch({"rows": [sum(int(within.holds(chunk).sum()) for chunk in chunks)]})
