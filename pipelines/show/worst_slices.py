"""The worst slices of each metric, and their numbers as texts."""

from __future__ import annotations

from typing import NamedTuple

from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.document import ChangeList, SearchChangeList
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.slices import Slice

MOST_ROWS = 12
# Of several metrics each has a table: so many rows in all, and at least so many each.
MOST_ROWS_IN_ALL = 24
LEAST_ROWS = 4
# Of a metric without findings, the slices of each direction that a page shows in their place.
_MOST_WORST = 10


class MetricRows(NamedTuple):
    """The shown slices of a metric, with its change on each, and the number of others."""

    metric: str
    rows: list[tuple[Slice, Change]]
    rest: int


def worst_slices(document: SearchChangeList) -> list[MetricRows]:
    """Return the rows of each metric that has any, the worst slices first."""
    reported = {
        tests.metric: tests.reported for tests in document.testing.metrics if tests.reported
    }
    most = min(MOST_ROWS, max(LEAST_ROWS, MOST_ROWS_IN_ALL // max(len(reported), 1)))
    shown = [(metric, _placed(document, metric)[:most]) for metric in reported]
    return [MetricRows(name, rows, reported[name] - len(rows)) for name, rows in shown if rows]


def _placed(document: ChangeList, metric: str) -> list[tuple[Slice, Change]]:
    """Return the slices that have a place for a metric: findings that one above them explains have none."""
    rows = [
        (slice_, change)
        for slice_ in document.slices
        for change in slice_.changes
        if change.metric == metric and change.place is not None
    ]
    return sorted(rows, key=lambda row: row[1].place or 0)


def shown_slices(document: ChangeList) -> list[str]:
    """Return the ids of the slices of the first view: the findings, or what is in their place."""
    ids = [finding.slice_id for finding in document.findings]
    for metric in document.metrics:
        ids += slices_in_place(document, metric.key)
    return list(dict.fromkeys(ids))


def slices_in_place(document: ChangeList, metric: str) -> list[str]:
    """Return the ids of the slices in place of findings, of each direction the first by their place."""
    if any(finding.metric == metric for finding in document.findings):
        return []
    sides: dict[str, list[str]] = {"degraded": [], "improved": []}
    for slice_, change in _placed(document, metric):
        if change.significant and change.direction in sides:
            sides[change.direction].append(slice_.slice_id)
    return [slice_id for ids in sides.values() for slice_id in ids[:_MOST_WORST]]


def number_text(value: float | None) -> str:
    """Return a value as the tables show it."""
    return "" if value is None else f"{value:.3f}"


def signed_text(value: float | None) -> str:
    """Return a difference as the tables show it, with its sign."""
    return "" if value is None else f"{value:+.3f}"


def change_cells(change: Change) -> list[str]:
    """Return the cells of a change: value, what it is compared with, delta, its interval, and q-value."""
    delta = change.delta or Estimate()
    has_interval = delta.lo is not None or delta.hi is not None
    return [
        number_text(change.after.value),
        number_text(change.compared_with),
        signed_text(delta.value),
        f"{signed_text(delta.lo)} … {signed_text(delta.hi)}" if has_interval else "",
        "" if change.p_adjusted is None else f"{change.p_adjusted:.1e}",
    ]
