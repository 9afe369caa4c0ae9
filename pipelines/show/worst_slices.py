"""The worst slices of each metric, and their numbers as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slicebeam.pipelines.changelist.parts import Estimate

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import ChangeList, SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice

MOST_ROWS = 12
# Of several metrics each has a table: so many rows in all, and at least so many each.
MOST_ROWS_IN_ALL = 24
LEAST_ROWS = 4
_MOST_SHARED = 0.5
# Of a metric without findings, the slices of each direction that a page shows in their place.
_MOST_WORST = 10


class MetricRows(NamedTuple):
    """The shown slices of a metric, with its change on each, and the number of others.

    ``folded``: discovered slices left out ahead of the last row, as most of their examples are
    above.
    """

    metric: str
    rows: list[tuple[Slice, Change]]
    rest: int
    folded: int = 0


def worst_slices(document: SearchChangeList) -> list[MetricRows]:
    """Return the rows of each metric that has any, the worst slices first."""
    with_rows = [one for one in document.testing.metrics if one.reported]
    most = min(MOST_ROWS, max(LEAST_ROWS, MOST_ROWS_IN_ALL // max(len(with_rows), 1)))
    tables = []
    for one in with_rows:
        # Findings may be slices that one above them explains: they have no place in the table.
        placed = [
            (change.place, each, change)
            for each in document.slices
            for change in each.changes
            if change.metric == one.metric and change.place is not None
        ]
        placed.sort(key=lambda row: row[0])
        shown, folded = _folded([(each, change) for _, each, change in placed], most)
        if shown:
            rest = one.reported - len(shown) - folded
            tables.append(MetricRows(one.metric, shown, rest, folded))
    return tables


def _folded(rows: list[tuple[Slice, Change]], most: int) -> tuple[list[tuple[Slice, Change]], int]:
    """Return the first rows, and how many were left out between them.

    Of mixtures of two resolutions most slices are there twice: one that shares more than half of its
    examples with a slice above it is left out.
    """
    shown: list[tuple[Slice, Change]] = []
    folded = 0
    for one, change in rows:
        if len(shown) == most:
            break
        shares = _shares_with(one, {other.slice_id: other.size.n for other, _ in shown})
        if max(shares, default=0.0) > _MOST_SHARED:
            folded += 1
        else:
            shown.append((one, change))
    return shown, folded


def _shares_with(one: Slice, sizes: dict[str, int]) -> list[float]:
    """Return which shares of a discovered slice's examples are in some others, by their sizes."""
    overlaps = one.found.overlaps if one.found is not None else ()
    # With the Jaccard index J of sets of a and b examples, J / (1 + J) · (a + b) are in both.
    return [
        other.jaccard / (1 + other.jaccard) * (1 + sizes[other.slice_id] / one.size.n)
        for other in overlaps
        if other.slice_id in sizes
    ]


def shown_slices(document: ChangeList) -> list[str]:
    """Return the ids of the slices of the first view: the findings, or what is in their place."""
    worst = [i for one in document.metrics for i in slices_in_place(document, one.key)]
    return list(dict.fromkeys([*(one.slice_id for one in document.findings), *worst]))


def slices_in_place(document: ChangeList, metric: str) -> list[str]:
    """Return the ids of the slices in place of findings, of each direction the first by their place."""
    if any(one.metric == metric for one in document.findings):
        return []
    placed: dict[str, list[tuple[int, str]]] = {"degraded": [], "improved": []}
    for one in document.slices:
        for change in one.changes:
            if change.metric != metric or change.place is None or not change.significant:
                continue
            if change.direction in placed:
                placed[change.direction].append((change.place, one.slice_id))
    return [i for some in placed.values() for _, i in sorted(some)[:_MOST_WORST]]


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
