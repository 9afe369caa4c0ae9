"""Slices by values, as named by the slicing_specs of an EvalConfig, and their measurements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.prepare.given_slices import SliceRequest, WantedSlices
from slicebeam.pipelines.run.run_stage import run_parts
from slicebeam.transforms.encode.passes import distinct, distinct_rows
from slicebeam.transforms.encode.predicates import Singleton, json_values
from slicebeam.transforms.tfma.eval_config import eval_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.tfma.eval_config import SliceSpec

# More given slices than this are a search: each takes memory of every chunk.
MOST_SLICES = 10_000
_SECONDS_PER_VALUE = 4e-8


def value_slices(uri: str, source: Source, work: WorkFolder, engine: Engine) -> WantedSlices:
    """Return the slices of an EvalConfig that have examples, in the order of its specs."""
    plan = eval_plan(uri)
    found: dict[str, SliceRequest] = {}
    for number, spec in enumerate(plan.specs):
        columns = tuple(sorted({*spec.keys, *(name for name, _ in spec.values)}))
        for name in columns:
            source.column_type(name, f"--eval-config {uri}, slicing_specs")
        stage = f"values-{number}"
        parts = run_parts(
            work,
            engine,
            stage,
            distinct_rows(source, columns, work.folder(stage)),
            seconds=source.rows * len(columns) * _SECONDS_PER_VALUE,
            reads_data=True,
        )
        for conditions in _conditions(spec, distinct(parts), source.schema):
            found.setdefault(
                str(sorted(one.json_text() for one in conditions)),
                SliceRequest(f"slicing_specs {spec}", conditions),
            )
        if len(found) > MOST_SLICES:
            raise OptionError(
                f"--eval-config {uri}: slicing_specs {spec} has {len(found):,} slices so far, "
                f"more than {MOST_SLICES:,}; name fewer values, or use slicebeam search"
            )
    return WantedSlices("eval_config", uri, tuple(found.values()))


def _conditions(
    spec: SliceSpec, table: pa.Table, schema: pa.Schema
) -> Iterator[tuple[Singleton, ...]]:
    """Yield the conditions of each combination of values that a spec names."""
    given = dict(spec.values)
    columns = {
        name: json_values(table.column(name).combine_chunks()) for name in table.column_names
    }
    for row in zip(*columns.values(), strict=True):
        values = dict(zip(columns, row, strict=True))
        if all(_is_value(values[name], value) for name, value in given.items()):
            yield tuple(
                Singleton(
                    name, "contains" if pa.types.is_list(schema.field(name).type) else "==", value
                )
                for name, value in values.items()
            )


def _is_value(value: Any, wanted: str | float) -> bool:
    """Return whether a value is the one of a spec, whose numbers are texts as well."""
    if isinstance(value, str):
        return value == str(wanted)
    return not isinstance(wanted, str) and math.isclose(value, wanted, rel_tol=0.0, abs_tol=0.0)
