"""The rows of the page: of all slices those that a reader looks for first, within a bound."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

from slicebeam.pipelines.changelist.parts import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

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
# What it is looked at first: findings, then significant slices that say more than those above them.
_TIER = """CASE WHEN finding IS NOT NULL THEN 0 WHEN NOT coalesce(significant, false) THEN 3
    WHEN label = 'inherited' THEN 2 ELSE 1 END"""
# The bound of the interval of the delta that is nearer to no difference, the surest first.
_BOUND = "-coalesce(CASE WHEN delta > 0 THEN ci_low ELSE -ci_high END, '-inf'::DOUBLE)"
# DuckDB asks no server for what it has not.
OFFLINE = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


@dataclass(frozen=True)
class Totals:
    """Of a metric, all tested slices.

    ``slices``, ``significant``: how many there are. ``density``: how many there are, and how many of them significant, of each size, in equal steps
    of its logarithm, and delta; empty where these are not known.
    """

    slices: int
    significant: int
    density: dict[str, Any]


@dataclass
class Kept:
    """What the page keeps of a table: of each metric the rows of the same slices, in the same order."""

    tables: dict[str, pa.Table]
    totals: dict[str, Totals] = field(default_factory=dict)


def kept_rows(table: pa.Table | Path, metrics: Sequence[str], most: int = MOST_ROWS) -> Kept:
    """Return the rows that the page has of a table in memory, or a ``slices.parquet``; and its totals.

    Kept are first the findings, then the significant slices that say more than those above them, then
    the other significant ones, then the others; of each the surest first. Every metric has a say in
    turn. Memory does not grow with a file.
    """
    keep = max(1, most // max(1, len(metrics)))
    with duckdb.connect(config={"threads": 1, **OFFLINE}) as connection:
        if isinstance(table, Path):
            # A name may have signs of a pattern.
            name = re.sub(r"[*?\[]", r"[\g<0>]", str(table))
            connection.read_parquet(name, file_row_number=True).create_view("slices")
        else:
            places = pa.array(np.arange(table.num_rows))
            connection.register("slices", table.append_column("file_row_number", places))
        best = [
            connection.execute(
                f"SELECT arg_min(slice_id, ({_TIER}, {_BOUND}), {keep}) FROM slices "  # noqa: S608
                "WHERE metric = ?",
                [metric],
            ).fetchall()[0][0]
            for metric in metrics
        ]
        by_turns = dict.fromkeys(one for some in zip_longest(*filter(None, best)) for one in some)
        chosen = [one for one in by_turns if one is not None][:keep]
        connection.register("chosen", pa.table({"slice_id": pa.array(chosen, pa.string())}))
        query = (
            f"SELECT {', '.join(SCHEMA.names)} FROM slices SEMI JOIN chosen USING (slice_id) "  # noqa: S608
            "WHERE metric = ? ORDER BY file_row_number"
        )
        tables = {
            metric: connection.sql(query, params=[metric]).to_arrow_table().cast(SCHEMA)
            for metric in metrics
        }
        return Kept(tables, {metric: totals_of(connection, metric) for metric in metrics})


def totals_of(connection: duckdb.DuckDBPyConnection, metric: str | int) -> Totals:
    """Return the totals of a metric in the table ``slices`` of a database."""
    slices, significant, most, low, high = connection.execute(
        """
        SELECT count(*), count_if(significant), max(n),
            min(delta) FILTER (isfinite(delta)), max(delta) FILTER (isfinite(delta))
        FROM slices WHERE metric = ?
        """,
        [metric],
    ).fetchall()[0]
    density: dict[str, Any] = {}
    if low is not None and high > low:
        most = max(most, 2)
        cells = connection.execute(
            """
            SELECT least(floor(ln(n) / ln($most) * $across), $across - 1)::INTEGER AS i,
                least(floor((delta - $low) / ($high - $low) * $up), $up - 1)::INTEGER AS j, count(*),
                count_if(significant)
            FROM slices WHERE metric = $metric AND isfinite(delta) AND n > 0
            GROUP BY ALL ORDER BY i, j
            """,
            {
                "most": most,
                "across": N_CELLS,
                "low": low,
                "high": high,
                "up": DELTA_CELLS,
                "metric": metric,
            },
        ).fetchall()
        density = {"most": most, "low": low, "high": high, "across": N_CELLS, "up": DELTA_CELLS}
        density["cells"] = list(map(list, cells))
    return Totals(slices, significant, density)


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
    own = one.predicate
    predicate = None if own is None else json.dumps(own.model_dump(mode="json"))
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
