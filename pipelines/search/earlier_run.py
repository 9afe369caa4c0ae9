"""The run that ``--since`` names: its document, and the metric on its slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.reading import read_search, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

    from slicebeam.pipelines.config.slices import RunConfig

    # A metric on the slices of a run, [slices] by the names of slices.parquet; NaN where undefined.
    Columns = dict[str, NDArray[Any]]

# What must be the same for deltas, and for what is significant, to mean the same.
_SAME = ("label", "compare", "alternative", "positive_class", "threshold", "weight")
# The columns of slices.parquet that runs are compared by.
COLUMNS = (
    *("slice_id", "n", "value", "value_low", "value_high", "delta", "ci_low", "ci_high"),
    *("q_value", "significant"),
)


@dataclass(frozen=True)
class BaselineRun:
    """An earlier run."""

    uri: str
    document: SearchChangeList
    measured: dict[str, Columns]  # all tested slices by metric, or those it reports
    has_all: bool


def earlier_run(config: RunConfig) -> BaselineRun | None:
    """Return the run that ``--since`` names, None without one."""
    if config.since is None:
        return None
    document = read_search(config.since, "--since")
    measured_then = [one.key for one in document.metrics]
    both = [name for name in config.metric if name in measured_then]
    now, then = (
        {key: options.get(key) for key in _SAME}
        for options in (config.options_used(), document.provenance.config)
    )
    if not both:
        now = {"metric": ", ".join(config.metric), **now}
        then = {"metric": ", ".join(measured_then), **then}
    for key, before in then.items():
        if now[key] != before:
            raise OptionError(
                f"--since {config.since}: {key} was {_shown(before)} there and is "
                f"{_shown(now[key])} here, so the runs can't be compared"
            )
    tables = read_table(config.since, document, both, COLUMNS)
    if tables is None:
        measured = {name: _of_document(document, name) for name in both}
    else:
        measured = {name: _of_table(table) for name, table in tables.items()}
    return BaselineRun(config.since, document, measured, tables is not None)


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def _of_table(table: pa.Table) -> Columns:
    # A null is an undefined number.
    return _columns(column.to_numpy(zero_copy_only=False) for column in table.columns)


def _of_document(document: SearchChangeList, metric: str) -> Columns:
    rows = [
        (
            *(one.slice_id, one.size.n),
            *_ends(change.after),
            *_ends(change.delta or Estimate()),
            *(change.p_adjusted, change.significant),
        )
        for one in document.slices
        for change in one.changes
        if change.metric == metric
    ]
    return _columns(zip(*rows, strict=True) if rows else [()] * len(COLUMNS))


def _ends(one: Estimate) -> tuple[float | None, ...]:
    return one.value, one.lo, one.hi


def _columns(columns: Iterable[Any]) -> Columns:
    kinds = {"slice_id": str, "n": np.int64, "significant": bool}
    return {
        name: np.array(column, kinds.get(name, np.float64))
        for name, column in zip(COLUMNS, columns, strict=True)
    }
