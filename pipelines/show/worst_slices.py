"""The worst slices of each metric, and their numbers as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice

MOST_ROWS = 12
# Of several metrics each has a table: so many rows in all, and at least so many each.
MOST_ROWS_IN_ALL = 24
LEAST_ROWS = 4


def reference_of(change: Change) -> float | None:
    """Return what a value is compared with: the other model's, or the one over all examples."""
    return change.before.value if change.before is not None else change.reference


class MetricRows(NamedTuple):
    """What is shown of a metric: slices with its change on each, and how many more there are."""

    metric: str
    rows: list[tuple[Slice, Change]]
    rest: int


def worst_slices(document: SearchChangeList) -> list[MetricRows]:
    """Return what is shown of each metric that has something, the worst slices first."""
    if not document.slices:
        return []
    tests = document.testing.metrics
    if len(tests) < 2:
        # Also of documents of earlier versions, which report by the first metric.
        rows = [(one, one.changes[0]) for one in document.slices]
        # Findings may be slices that one above them explains: they have no place in the table.
        in_table = [row for row in rows if row[1].place is not None or not document.finding_models]
        rows = in_table[:MOST_ROWS]
        if not rows:
            return []
        return [MetricRows(rows[0][1].metric, rows, document.search.reported - MOST_ROWS)]
    with_rows = [one for one in tests if one.reported]
    most = min(MOST_ROWS, max(LEAST_ROWS, MOST_ROWS_IN_ALL // max(len(with_rows), 1)))
    tables = []
    for one in with_rows:
        placed = [
            (change.place, each, change)
            for each in document.slices
            for change in each.changes
            if change.metric == one.metric and change.place is not None
        ]
        placed.sort(key=lambda row: row[0])
        shown = [(each, change) for _, each, change in placed[:most]]
        tables.append(MetricRows(one.metric, shown, one.reported - len(shown)))
    return tables


def number_text(value: float | None) -> str:
    """Return a value as the tables show it."""
    return "" if value is None else f"{value:.3f}"


def signed_text(value: float | None) -> str:
    """Return a difference as the tables show it, with its sign."""
    return "" if value is None else f"{value:+.3f}"
