"""The earlier run that ``--since`` names, and what it measured of slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.reading import read_search, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.metrics.arrays import NDArray
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.slices import RunConfig

    # A metric on slices, [slices] by the names of slices.parquet; NaN where undefined.
    Columns = dict[str, NDArray[Any]]

# What must be the same for deltas, and for what is significant, to mean the same.
_SAME = ("label", "compare", "alternative", "positive_class", "threshold", "weight")
VALUE, DELTA = ("value", "value_low", "value_high"), ("delta", "ci_low", "ci_high")
# The columns of slices.parquet that runs are compared by.
COLUMNS = ("slice_id", "n", *VALUE, *DELTA, "q_value", "significant")
_KINDS = {"slice_id": str, "n": np.int64, "significant": bool}


@dataclass(frozen=True)
class BaselineRun:
    """The earlier run that ``--since`` names."""

    uri: str
    document: SearchChangeList
    measured: dict[str, Columns]  # all tested slices by metric, or those it reports
    has_all: bool


def earlier_run(config: RunConfig, *, by_data: bool = False) -> BaselineRun | None:
    """Return the run that ``--since`` names, None without one; ``by_data``: whether its data may be compared."""
    if config.since is None:
        return None
    document = read_search(config.since, "--since")
    measured_then = [entry.key for entry in document.metrics]
    both = [name for name in config.metric if name in measured_then]
    now, then = (
        {key: options.get(key) for key in _SAME}
        for options in (config.options_used(), document.provenance.config)
    )
    if by_data and then["compare"] == "earlier":
        # Its slices say nothing of how they compare with the other examples.
        then["compare"] = now["compare"]
    if not both:
        now = {"metric": ", ".join(config.metric), **now}
        then = {"metric": ", ".join(measured_then), **then}
    for key, before in then.items():
        if now[key] != before:
            was, is_now = (repr(x) if x is not None else "not given" for x in (before, now[key]))
            raise OptionError(
                f"--since {config.since}: {key} was {was} there and is {is_now} here, so the runs "
                "can't be compared"
            )
    tables = read_table(config.since, document, both, COLUMNS)
    measured: dict[str, Columns] = {}
    for name in both:
        # A null of a table is an undefined number.
        columns: Sequence[Any] = (
            list(zip(*_rows(document, name), strict=True)) or [()] * len(COLUMNS)
            if tables is None
            else [column.to_numpy(zero_copy_only=False) for column in tables[name].columns]
        )
        measured[name] = {
            column: np.array(values, _KINDS.get(column, np.float64))
            for column, values in zip(COLUMNS, columns, strict=True)
        }
    return BaselineRun(config.since, document, measured, tables is not None)


def _rows(document: SearchChangeList, name: str) -> Iterator[tuple[Any, ...]]:
    for slice_ in document.slices:
        for change in slice_.changes:
            if change.metric == name:
                value, delta = change.after, change.delta or Estimate()
                ends = value.value, value.lo, value.hi, delta.value, delta.lo, delta.hi
                called = change.p_adjusted, change.significant
                yield slice_.slice_id, slice_.size.n, *ends, *called
