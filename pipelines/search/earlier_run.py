"""The run that ``--since`` names: its document, and the metric on its slices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.changes import Moment
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.reading import read_search, read_table
from slicebeam.pipelines.search.results import estimate, finite

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from slicebeam.pipelines.config.slices import RunConfig

# What must be the same for deltas, and for what is significant, to mean the same.
_SAME = ("label", "compare", "alternative", "positive_class", "threshold", "weight")
# The columns of the table, in the order of `MetricValues`.
_COLUMNS = (
    *("slice_id", "n", "value", "value_low", "value_high", "delta", "ci_low", "ci_high"),
    *("q_value", "significant"),
)


@dataclass(frozen=True)
class MetricValues:
    """A metric on the slices of a run; every array is [slices].

    ``value``, ``value_low``, ``value_high``: of the metric, with its interval; NaN where undefined
    or not known. ``delta``, ``low``, ``high``, ``q``: of the metric; NaN where undefined.
    """

    ids: NDArray[np.str_]  # slice ids, each once
    n: NDArray[np.int64]
    value: NDArray[np.float64]
    value_low: NDArray[np.float64]
    value_high: NDArray[np.float64]
    delta: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]

    def moment(self, at: int) -> Moment:
        """Return what stands in the document of one slice."""
        has_interval = np.isfinite(self.value_low[at] + self.value_high[at])
        return Moment(
            n=int(self.n[at]),
            value=finite(self.value[at]),
            value_interval=estimate(self.value[at], self.value_low[at], self.value_high[at])
            if has_interval
            else None,
            delta=estimate(self.delta[at], self.low[at], self.high[at]),
            p_adjusted=finite(self.q[at]),
            significant=bool(self.significant[at]),
        )


@dataclass(frozen=True)
class BaselineRun:
    """An earlier run."""

    uri: str
    document: SearchChangeList
    measured: dict[str, MetricValues]  # all tested slices by metric, or those it reports
    has_all: bool


def earlier_run(config: RunConfig) -> BaselineRun | None:
    """Return the run that ``--since`` names, None without one."""
    if config.since is None:
        return None
    document = read_search(config.since, "--since")
    measured_then = [one.key for one in document.metrics]
    both = [name for name in config.metric if name in measured_then]
    now, then = _measures(config.options_used()), _measures(document.provenance.config)
    if not both:
        now = {"metric": ", ".join(config.metric), **now}
        then = {"metric": ", ".join(measured_then), **then}
    for key, before in then.items():
        if now[key] != before:
            raise OptionError(
                f"--since {config.since}: {key} was {_shown(before)} there and is "
                f"{_shown(now[key])} here, so the runs can't be compared"
            )
    tables = read_table(config.since, document, both, _COLUMNS)
    if tables is None:
        measured = {name: _of_document(document, name) for name in both}
    else:
        measured = {name: _of_table(table) for name, table in tables.items()}
    return BaselineRun(config.since, document, measured, tables is not None)


def _measures(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options.get(key) for key in _SAME}


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def _of_table(table: pa.Table) -> MetricValues:
    def numbers(name: str) -> NDArray[Any]:
        # A null is an undefined number.
        return table.column(name).to_numpy(zero_copy_only=False)

    ids, n, *values = map(numbers, _COLUMNS)
    known = MetricValues(ids.astype(str), n, *values)
    return replace(known, significant=known.significant.astype(bool))


def _of_document(document: SearchChangeList, metric: str) -> MetricValues:
    measured = [
        (one, change)
        for one in document.slices
        for change in one.changes
        if change.metric == metric
    ]
    changes = [change for _, change in measured]
    deltas = [change.delta or Estimate() for change in changes]

    def numbers(values: list[float | None]) -> NDArray[np.float64]:
        return np.array([np.nan if value is None else value for value in values], np.float64)

    return MetricValues(
        np.array([one.slice_id for one, _ in measured], str),
        np.array([one.size.n for one, _ in measured], np.int64),
        numbers([change.after.value for change in changes]),
        numbers([change.after.lo for change in changes]),
        numbers([change.after.hi for change in changes]),
        numbers([delta.value for delta in deltas]),
        numbers([delta.lo for delta in deltas]),
        numbers([delta.hi for delta in deltas]),
        numbers([change.p_adjusted for change in changes]),
        np.array([change.significant for change in changes], bool),
    )
