"""The rows of the page: of all slices those that a reader looks for first, within a bound."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.parts import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.slices import Slice

# Rows are slices times metrics.
MOST_ROWS = 40_000
# Cells of the density of size against delta.
N_CELLS, DELTA_CELLS = 48, 40

NUMBERS = (
    *("value", "value_low", "value_high", "reference", "complement", "complement_error"),
    *("delta", "ci_low", "ci_high", "p_value", "q_value"),
)
TEXTS = ("label", "parent", "test", "reason")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("slice_id", "slice", "predicate")),
        ("n", pa.int64()),
        ("metric", pa.string()),
        *((name, pa.float64()) for name in NUMBERS),
        ("significant", pa.bool_()),
        *((name, pa.string()) for name in TEXTS),
        ("finding", pa.int32()),
    ]
)
_RANKED_BY = ["metric", "n", "delta", "ci_low", "ci_high", "significant", "label", "finding"]
_PART_ROWS = 1 << 15


@dataclass(frozen=True)
class Parts:
    """A table of slices that is read part by part."""

    number: int
    read: Callable[[int, Sequence[str]], pa.Table]


def parts_of_file(stream: pa.NativeFile) -> Parts:
    """Return the row groups of a ``slices.parquet``."""
    file = pq.ParquetFile(stream)
    known = set(file.schema_arrow.names)

    def read(part: int, columns: Sequence[str]) -> pa.Table:
        return _whole(file.read_row_group(part, [c for c in columns if c in known]), columns)

    return Parts(file.num_row_groups, read)


def parts_of_table(table: pa.Table) -> Parts:
    """Return the parts of a table in memory."""

    def read(part: int, columns: Sequence[str]) -> pa.Table:
        rows = table.slice(part * _PART_ROWS, _PART_ROWS)
        return _whole(rows.select([c for c in columns if c in table.column_names]), columns)

    return Parts(-(-table.num_rows // _PART_ROWS), read)


def _whole(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    for name in columns:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, SCHEMA.field(name).type))
    return table.select(columns).cast(pa.schema([SCHEMA.field(name) for name in columns]))


@dataclass
class Kept:
    """What the page keeps of a table.

    ``tables``: of each metric the rows of the same slices, in the same order; see `SCHEMA`.
    ``slices``: how many slices the table has. ``significant``: of each metric, how many of them are
    significant. ``sides``: of each metric, how many of them have a delta below 0, and above.
    ``densities``: of each metric what `Density.content` returns.
    """

    tables: dict[str, pa.Table]
    slices: int = 0
    significant: dict[str, int] = field(default_factory=dict)
    sides: dict[str, tuple[int, int]] = field(default_factory=dict)
    densities: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class _Ranked:
    """Of a metric the best rows so far: their places among its rows, and what they are ordered by."""

    rows: int = 0
    significant: int = 0
    below: int = 0
    above: int = 0
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    tiers: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    bounds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    low: float = np.inf
    high: float = -np.inf
    most: int = 1

    def add(self, table: pa.Table, keep: int) -> None:
        delta = _floats(table, "delta")
        low, high = _floats(table, "ci_low"), _floats(table, "ci_high")
        significant = np.asarray(table.column("significant").fill_null(False))
        inherited = np.asarray(pc.equal(table.column("label"), "inherited").fill_null(False))
        is_finding = np.asarray(table.column("finding").is_valid())
        tier = np.where(significant, np.where(inherited, 2, 1), 3).astype(np.int8)
        tier[is_finding] = 0
        bound = np.where(delta > 0, low, -high)
        bound[np.isnan(bound)] = -np.inf
        tiers = np.concatenate([self.tiers, tier])
        bounds = np.concatenate([self.bounds, bound])
        places = np.concatenate([self.places, self.rows + np.arange(table.num_rows)])
        best = np.lexsort((places, -bounds, tiers))[:keep]
        self.places, self.tiers, self.bounds = places[best], tiers[best], bounds[best]
        self.rows += table.num_rows
        self.significant += int(significant.sum())
        self.below += int((delta < 0).sum())
        self.above += int((delta > 0).sum())
        known = delta[np.isfinite(delta)]
        if known.size:
            self.low, self.high = min(self.low, known.min()), max(self.high, known.max())
        self.most = max(self.most, int(pc.max(table.column("n")).as_py() or 1))


def kept_rows(parts: Parts, metrics: Sequence[str], most_rows: int = MOST_ROWS) -> Kept:
    """Return the rows that the page has, and the density of all.

    Kept are first the findings, then the significant slices that say more than those above them, then
    the other significant ones, then the others; of each the surest first, by the bound of the interval
    of the delta that is nearer to no difference. Memory does not grow with the table.

    ``metrics``: names; the rows of each are of the same slices in the same order.
    """
    keep = max(1, most_rows // max(1, len(metrics)))
    ranked = {name: _Ranked() for name in metrics}
    for part in range(parts.number):
        for name, table in _by_metric(parts.read(part, _RANKED_BY), metrics):
            ranked[name].add(table, keep)
    chosen = _chosen(list(ranked.values()), keep)
    grids = {name: Density(one.most, one.low, one.high) for name, one in ranked.items()}
    seen = dict.fromkeys(metrics, 0)
    found: dict[str, list[pa.Table]] = {name: [SCHEMA.empty_table()] for name in metrics}
    for part in range(parts.number):
        for name, table in _by_metric(parts.read(part, ["metric", "n", "delta"]), metrics):
            grids[name].add(_floats(table, "n"), _floats(table, "delta"))
            begin, end = np.searchsorted(chosen, [seen[name], seen[name] + table.num_rows])
            own = chosen[begin:end] - seen[name]
            seen[name] += table.num_rows
            if own.size:
                whole = parts.read(part, SCHEMA.names)
                rows = whole.filter(pc.equal(whole.column("metric"), name))
                found[name].append(rows.take(pa.array(own)))
    return Kept(
        {name: pa.concat_tables(pieces).combine_chunks() for name, pieces in found.items()},
        max((one.rows for one in ranked.values()), default=0),
        {name: one.significant for name, one in ranked.items()},
        {name: (one.below, one.above) for name, one in ranked.items()},
        {name: grid.content() for name, grid in grids.items()},
    )


def _chosen(ranked: Sequence[_Ranked], keep: int) -> NDArray[np.int64]:
    """Return the places of the slices that are kept, ascending: every metric has a say in turn."""
    first: dict[int, int] = {}
    for one in ranked:
        for order, place in enumerate(one.places.tolist()):
            first[place] = min(order, first.get(place, order))
    best = sorted(first, key=lambda place: (first[place], place))[:keep]
    return np.sort(np.array(best, np.int64))


def _by_metric(table: pa.Table, metrics: Sequence[str]) -> list[tuple[str, pa.Table]]:
    names = table.column("metric").unique().to_pylist()
    return [
        (name, table.filter(pc.equal(table.column("metric"), name)))
        for name in metrics
        if name in names
    ]


def _floats(table: pa.Table, name: str) -> NDArray[np.float64]:
    column = table.column(name).cast(pa.float64()).fill_null(np.nan)
    values: NDArray[np.float64] = column.to_numpy()
    return values


class Density:
    """How many slices there are of each size and delta; sizes are in equal steps of their logarithm."""

    def __init__(self, most: int, low: float, high: float) -> None:
        self.most, self.low, self.high = max(most, 2), low, high
        self._counts = np.zeros((N_CELLS, DELTA_CELLS), np.int64)

    def add(self, n: NDArray[np.float64], delta: NDArray[np.float64]) -> None:
        """Count some slices; those without a delta are nowhere."""
        known = np.isfinite(delta) & (n > 0)
        if self.high > self.low:
            edges = np.linspace(0, np.log(self.most), N_CELLS + 1)
            deltas = np.linspace(self.low, self.high, DELTA_CELLS + 1)
            found, _, _ = np.histogram2d(np.log(n[known]), delta[known], [edges, deltas])
            self._counts += found.astype(np.int64)

    def content(self) -> dict[str, Any]:
        """Return it as JSON values; of no slices nothing."""
        if not self.high > self.low:
            return {}
        cells = [[int(i), int(j), int(self._counts[i, j])] for i, j in np.argwhere(self._counts)]
        return {"most": self.most, "low": self.low, "high": self.high, "cells": cells}


def document_rows(document: ChangeList, but: set[str]) -> dict[str, pa.Table]:
    """Return rows of the slices that a document lists, of each metric, but for some ids."""
    ranks = {(one.metric, one.slice_id): one.rank for one in document.findings}
    slices = [one for one in document.slices if one.slice_id not in but]
    tables = {}
    for metric in document.metrics:
        rows = []
        for one in slices:
            change = next((c for c in one.changes if c.metric == metric.key), None)
            rank = ranks.get((metric.key, one.slice_id))
            rows.append({**_row(one, change), "metric": metric.key, "finding": rank})
        tables[metric.key] = pa.Table.from_pylist(rows, schema=SCHEMA)
    return tables


def _row(one: Slice, change: Change | None) -> dict[str, Any]:
    predicate = None
    if isinstance(one.definition, PredicateDefinition):
        predicate = json.dumps(one.definition.predicate.model_dump(mode="json"))
    row: dict[str, Any] = {"slice_id": one.slice_id, "slice": one.name, "predicate": predicate}
    row["n"] = one.size.n
    if change is None:
        return row
    delta = change.delta or Estimate()
    parent = None if one.refinement is None else one.refinement.parent
    return {
        **row,
        "value": change.after.value,
        "value_low": change.after.lo,
        "value_high": change.after.hi,
        "reference": change.compared_with,
        "complement": change.complement,
        "delta": delta.value,
        "ci_low": delta.lo,
        "ci_high": delta.hi,
        "p_value": change.p_value,
        "q_value": change.p_adjusted,
        "significant": change.significant,
        "label": change.label,
        "parent": parent,
        "test": change.test,
        "reason": change.reason,
    }
