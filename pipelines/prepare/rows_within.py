"""Some of the examples: those in at least one finding of an earlier run, or not reserved."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import InputError, NoFindingsError, OptionError
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.document import Within
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.prepare.source import SECONDS_PER_VALUE
from slicebeam.pipelines.run.published_run import hash_of_document
from slicebeam.pipelines.run.run_stage import run_parts
from slicebeam.transforms.encode.conditions import SliceMembership, check_condition
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.sources import ReservedRows, read_split
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.sources import Source, Split

_OPTION = "--within-findings"


def findings_of(uri: str) -> Within:
    """Return the findings of a document, without counts."""
    document = read_search(uri, _OPTION)
    wanted = {one.slice_id for one in document.findings}
    found = [one for one in document.slices if one.slice_id in wanted]
    if not found:
        raise NoFindingsError(
            f"{_OPTION} {uri}: the document has no findings, so there is nothing to examine"
        )
    predicates = []
    for one in found:
        if not isinstance(one.definition, PredicateDefinition):
            raise OptionError(
                f"{_OPTION} {uri}: the finding {one.name!r} is not a predicate; name the document "
                "of a search"
            )
        predicates.append(one.definition.predicate)
    digest = hash_of_document(storage_path(uri, _OPTION))
    return Within(uri=uri, sha256=str(digest), slices=tuple(predicates), n=0, of=0)


def read_within(
    source: Source, within: Within, work: WorkFolder, engine: Engine
) -> tuple[Source, Within]:
    """Return the source of the examples in at least one of the slices, and how many they are."""
    membership = SliceMembership(
        tuple(
            tuple(Singleton(one.field, one.op, one.value) for one in predicate.all)
            for predicate in within.slices
        )
    )
    for one in (one for conditions in membership.predicates for one in conditions):
        kind = source.column_type(one.field, f"{_OPTION} {within.uri}")
        try:
            check_condition(one, kind)
        except InputError as error:
            raise InputError(f"{_OPTION} {within.uri}, '{one}': {error}") from error
    kept = replace(source, within=membership)
    kept = _kept(kept, _rows_within(kept, "within", work, engine))
    if not kept.rows:
        raise InputError(
            f"{_OPTION} {within.uri}: none of the {source.rows:,} examples is in one of its "
            f"{membership.size} findings; name a document about this data"
        )
    return kept, within.model_copy(update={"n": kept.rows, "of": source.rows})


def reserved_rows(
    source: Source, rows: ReservedRows, work: WorkFolder, engine: Engine
) -> tuple[Source, Source]:
    """Return the source of the examples to search, and of those that are reserved for measuring."""
    searched, reserved = (
        replace(source, within=replace(rows, is_reserved=is_reserved))
        for is_reserved in (False, True)
    )
    kept = _rows_within(searched, "searched-rows", work, engine)
    others = [split.rows - n for split, n in zip(source.splits, kept, strict=True)]
    searched, reserved = _kept(searched, kept), _kept(reserved, others)
    if not searched.rows or not reserved.rows:
        raise OptionError(
            f"--confirm {rows.share:g} reserves {reserved.rows:,} of {source.rows:,} examples, and "
            "one at least is needed to search and to measure; give more data"
        )
    return searched, reserved


def searched_rows(
    source: Source, document: SearchChangeList, work: WorkFolder, engine: Engine
) -> Source:
    """Return the source of the examples that the search of a document did not reserve."""
    known = document.confirmation
    if known is None or not source.rows:
        return source
    seed = document.provenance.seed
    rows = ReservedRows(known.share, seed, known.column, "--data", is_reserved=True)
    return reserved_rows(source, rows, work, engine)[0]


def _rows_within(source: Source, stage: str, work: WorkFolder, engine: Engine) -> list[int]:
    """Return how many rows of each split a source is read within."""
    columns = source.within.columns if source.within is not None else ()
    transform = WriteParts(partial(_count, source), source.splits, work.folder(stage))
    seconds = source.rows * max(len(columns), 1) * SECONDS_PER_VALUE
    counted = run_parts(work, engine, stage, transform, seconds=seconds)
    return [part["rows"][0].as_py() for part in counted]


def _kept(source: Source, kept: Sequence[int]) -> Source:
    """Return a source whose splits know how many rows it is read within."""
    splits: list[Split] = []
    start = left_out_before = 0
    for split, rows in zip(source.splits, kept, strict=True):
        left_out = split.rows - rows
        if rows:
            own = replace(split, index=len(splits), start_row=start, rows=rows)
            splits.append(replace(own, left_out=left_out, left_out_before=left_out_before))
            start += rows
        left_out_before += left_out
    return replace(source, splits=tuple(splits))


def _count(source: Source, split: Split) -> pa.RecordBatch:
    """Return how many rows of a split a source is read within."""
    within = source.within
    if within is None:
        raise TypeError("a source that is read whole")
    columns = within.columns or source.schema.names[:1]
    chunks = read_split(replace(source, within=None), split, columns)
    rows = sum(int(np.count_nonzero(within.holds(chunk))) for chunk in chunks)
    return pa.record_batch({"rows": [rows]})
