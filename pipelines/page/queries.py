"""What the page asks of the index: windows of the table of slices, and the neighbours of one."""

from __future__ import annotations

import csv
import io
import itertools
import json
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from starlette.responses import Response

from slicebeam.pipelines.attribution.spreadsheet_cells import quoted
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, get, post
from slicebeam.pipelines.page.filters import EVERY, Filter, where
from slicebeam.pipelines.page.index import BuildingError, SliceIndex
from slicebeam.pipelines.page.index_build import singleton
from slicebeam.pipelines.page.overview import chip
from slicebeam.pipelines.page.rows import MOST_ROWS, SCHEMA, Kept
from slicebeam.pipelines.page.tables import packed_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.routing import Route

    from slicebeam.pipelines.page.served import ServedOutput

# Rows that can be scrolled to, and that a file has: nobody reads more, and a filter finds the others.
MOST_SHOWN = 100_000
# Filters of which it is kept how many rows they find.
_MOST_KNOWN = 200
# Features that a facet lists.
_MOST_FACETS = 10
# Queries that run at a time; others wait for their turn.
_AT_ONCE = 2
_ID = r"^[0-9a-f]{16}$"
_NUMBERS = (
    *("value", "value_low", "value_high", "reference", "complement", "complement_error"),
    *("delta", "ci_low", "ci_high", "p_value", "q_value"),
)
_ROW = (
    *("id", "n", "level", "s1", "s2", "s3", *_NUMBERS, "significant", "label", "parent", "test"),
    *("reason", "finding", "slice", "predicate"),
)
_COLUMNS = ", ".join(_ROW)


class Window(PageRequest):
    """Rows of a filtered table."""

    filter: Filter
    tab: Annotated[str, Field(max_length=40)]
    offset: Annotated[int, Field(ge=0, le=MOST_SHOWN)] = 0
    limit: Annotated[int, Field(ge=0, le=500)] = 100


class Beyond(PageRequest):
    """A filter of which it is asked what it leaves out."""

    filter: Filter
    tab: Annotated[str, Field(max_length=40)]


class OneSlice(PageRequest):
    """A slice, and what it is near to."""

    slice_id: Annotated[str, Field(pattern=_ID)]


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of the slices; the index is opened, or begun."""
    document = served.document
    if not isinstance(document, SearchChangeList):
        return []
    index = SliceIndex(served.uri, document, served.state)
    index.start()
    queries = Queries(served, index)
    return [
        get("/index", index.status),
        get("/conditions", queries.conditions),
        get("/totals", queries.totals),
        post("/slices", Window, queries.window),
        post("/slices/beyond", Beyond, queries.beyond),
        post("/slices.csv", Filter, queries.csv),
        post("/slice", OneSlice, queries.around),
    ]


class Turns:
    """Lets a few queries run at a time, and ends those that nobody waits for any more."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._free = threading.BoundedSemaphore(at_once)
        self._last: dict[str, int] = {}
        self._running: dict[str, duckdb.DuckDBPyConnection] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, index: SliceIndex, asker: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection when it is this query's turn."""
        number = next(self._numbers)
        if asker:
            with self._lock:
                self._last[asker] = number
                running = self._running.get(asker)
                if running is not None:
                    running.interrupt()
        with self._free:
            try:
                cursor = index.cursor()
            except BuildingError as error:
                raise RefusedError(str(error), 503) from error
            try:
                with self._lock:
                    if asker and self._last.get(asker) != number:
                        raise _superseded()
                    self._running[asker] = cursor
                yield cursor
            except duckdb.InterruptException as error:
                raise _superseded() from error
            finally:
                with self._lock:
                    if self._running.get(asker) is cursor:
                        del self._running[asker]
                    if self._last.get(asker) == number:
                        del self._last[asker]
                cursor.close()


def _superseded() -> RefusedError:
    return RefusedError("A newer request from this tab replaced this one.", 409)


class Queries:
    """Answers of an index."""

    def __init__(self, served: ServedOutput, index: SliceIndex) -> None:
        self.served, self.index = served, index
        self.turns = Turns()
        self._known: dict[tuple[str, str], int] = {}

    def conditions(self) -> list[dict[str, Any]]:
        """Return all conditions that a slice may have."""
        with self.turns.turn(self.index):
            return [
                {"text": condition.text, "key": condition.key, "field": condition.part["field"]}
                for condition in self.index.conditions.values()
            ]

    def totals(self) -> dict[str, Any]:
        """Return of each metric how many slices there are, also of each size and delta."""
        with self.turns.turn(self.index):
            return {name: asdict(one) for name, one in self.index.totals.items()}

    def window(self, request: Window) -> dict[str, Any]:
        """Return some rows of a filtered table, and how many there are."""
        with self.turns.turn(self.index, request.tab) as cursor:
            places, number = self._places(cursor, request.filter, request.offset, request.limit)
            found = self._at(cursor, places)
        return {
            "found": number,
            "shown": min(number, MOST_SHOWN),
            "rows": list(map(self._row, found)),
        }

    def beyond(self, request: Beyond) -> dict[str, Any]:
        """Return how many slices wider filters find: with those that others explain, of any significance; and facets."""
        wider = request.filter.model_copy(update={"inherited": True})
        every = wider.model_copy(update={"significant": False})
        with self.turns.turn(self.index, request.tab) as cursor:
            return {
                "inherited": self._number(cursor, wider),
                "all": self._number(cursor, every),
                "facets": self._facets(cursor, request.filter),
            }

    def _facets(self, cursor: duckdb.DuckDBPyConnection, filter_: Filter) -> dict[str, Any]:
        """Return how many slices a filter finds of each level, size and feature; as ``facets.tsx`` counts them."""
        clause, values = where(filter_, self.index, self.served.search())
        counts = cursor.execute(
            f"""
            SELECT level, n < 100, n < 1000, s1, s2, s3, count(*) FROM slices WHERE {clause}
            GROUP BY GROUPING SETS ((level), (n < 100, n < 1000), (s1), (s2), (s3))
            """,  # noqa: S608
            values,
        ).fetchall()
        levels, fields, sizes = Counter[int](), Counter[str](), [0, 0, 0]
        for level, is_small, is_medium, *codes, count in counts:
            if level is not None:
                levels[level] = count
            elif is_small is not None:
                sizes[0 if is_small else 1 if is_medium else 2] += count
            for code in codes:
                if code is not None:
                    fields[str(self.index.conditions[code].part["field"])] += count
        all_levels = [levels[level] for level in range(max(levels, default=0) + 1)]
        return {"levels": all_levels, "sizes": sizes, "fields": fields.most_common(_MOST_FACETS)}

    def _keep(self, key: tuple[str, str], number: int) -> None:
        """Keep how many rows a filter finds, for its next window."""
        self._known[key] = number
        while len(self._known) > _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)

    def csv(self, request: Filter) -> Response:
        """Return a file of a filtered table."""
        with self.turns.turn(self.index) as cursor:
            places, _ = self._places(cursor, request, 0, MOST_SHOWN)
            found = self._at(cursor, places)
        text = io.StringIO()
        writer = csv.writer(text)
        numbers = [name for name in _NUMBERS if name != "complement_error"]
        names = ["slice_id", "slice", "n", "metric", *numbers, "significant", "label", "test"]
        writer.writerow([*names, "reason"])
        for one in found:
            row = self._row(one)
            row["metric"] = request.metric
            for name in ("p_value", "q_value"):
                row[name] = _power(row[name])
            cells = [row["name"] if name == "slice" else row[name] for name in [*names, "reason"]]
            writer.writerow(map(_cell, cells))
        return Response(text.getvalue(), media_type="text/csv")

    def around(self, request: OneSlice) -> dict[str, Any]:
        """Return what ``store.ts`` unpacks: a slice, its parents, its children and what it shares with findings."""
        number = int(request.slice_id, 16)
        with self.turns.turn(self.index) as cursor:
            own = cursor.execute(
                f"SELECT {_COLUMNS} FROM slices WHERE id = ? LIMIT 1",  # noqa: S608
                [number],
            ).fetchall()
            if own:
                ids = self._near(cursor, dict(zip(_ROW, own[0], strict=True)))
            else:
                ids = self._above_defined(request.slice_id)
            places = cursor.execute(
                "SELECT rowid FROM slices WHERE id IN (SELECT unnest(?::UBIGINT[])) "
                "ORDER BY metric, id",
                [ids],
            )
            rows = self._at(cursor, _firsts(places))
        table = self._table(rows)
        kept = Kept(
            {metric: table.filter(pc.field("metric") == metric) for metric in self.index.metrics}
        )
        tables = packed_tables(self.served.search(), kept, {}, ambiguous=self.index.ambiguous)
        return {"tables": tables}

    def _near(self, cursor: duckdb.DuckDBPyConnection, own: dict[str, Any]) -> list[int]:
        """Return the ids of a slice, of its parents, of its children, and of it within each finding."""
        found = [own["id"], *([] if own["parent"] is None else [own["parent"]])]
        codes = [own[name] for name in ("s1", "s2", "s3") if own[name] is not None]
        if not codes or own["level"] > 3:
            return found
        # A slice's id is made of its conditions, so that nothing has to be looked for.
        wanted = [[code for code in codes if code != left] for left in codes]
        for finding, *other in self.index.findings:
            found.append(finding)
            wanted.append(sorted({*codes, *(one for one in other if one is not None)}))
        found += [self.index.slice_id(one) for one in wanted if one]
        has = " AND ".join("(s1 = ? OR s2 = ? OR s3 = ?)" for _ in codes)
        found += _firsts(
            cursor.execute(
                f"SELECT id FROM slices WHERE metric = 0 AND level = ? AND {has} LIMIT ?",  # noqa: S608
                [
                    *(len(codes) + 1, *(code for code in codes for _ in range(3))),
                    MOST_ROWS // len(self.index.metrics) // 2,
                ],
            )
        )
        return list(dict.fromkeys(found))

    def _above_defined(self, slice_id: str) -> list[int]:
        """Return the ids of the slices with one condition less than one that is in the document only."""
        known = {condition.json: condition.code for condition in self.index.conditions.values()}
        for slice_ in self.served.search().slices:
            if slice_.slice_id == slice_id and slice_.predicate is not None:
                codes = [known.get(part.json_text()) for part in slice_.conditions]
                wanted = [codes[:at] + codes[at + 1 :] for at in range(len(codes))]
                return [
                    self.index.slice_id([code for code in some if code is not None])
                    for some in wanted
                    if some and None not in some
                ]
        raise RefusedError(f"There is no slice {slice_id} in the table.", 404)

    def _places(
        self, cursor: duckdb.DuckDBPyConnection, request: Filter, offset: int, limit: int
    ) -> tuple[list[int], int]:
        """Return the places of some rows in the index, in their order, and how many there are."""
        clause, values = where(request, self.index, self.served.search())
        last = offset + limit
        if clause == EVERY:
            rows = self.index.places(request.metric)
            if request.sort == "harm":
                return list((rows[::-1] if request.descends else rows)[offset:last]), len(rows)
        key = (clause, repr(values))
        number = len(rows) if clause == EVERY else self._known.get(key)
        if request.sort == "harm" and number is None:
            # A row's place is its harm: the first of them and their number are found in one pass.
            pick = "max" if request.descends else "min"
            number, places = cursor.execute(
                f"SELECT count(*), {pick}(rowid, ?) FROM slices WHERE {clause}",  # noqa: S608
                [max(last, 1), *values],
            ).fetchall()[0]
            self._keep(key, number)
            return (places or [])[offset:last], number
        if number is None:
            number = self._number(cursor, request)
        way = "DESC" if request.descends else "ASC"
        order = f"{request.sort} {way} NULLS LAST, rowid"
        if request.sort == "harm":
            order = f"rowid {way}"
        places = cursor.execute(
            f"SELECT rowid FROM slices WHERE {clause} ORDER BY {order} LIMIT ? OFFSET ?",  # noqa: S608
            [*values, limit, offset],
        )
        return _firsts(places), number

    def _number(self, cursor: duckdb.DuckDBPyConnection, request: Filter) -> int:
        """Return how many rows a filter finds."""
        clause, values = where(request, self.index, self.served.search())
        if clause == EVERY:
            return len(self.index.places(request.metric))
        key = (clause, repr(values))
        if key not in self._known:
            counted = cursor.execute(f"SELECT count(*) FROM slices WHERE {clause}", values)  # noqa: S608
            ((number,),) = counted.fetchall()
            self._keep(key, number)
            return int(number)
        return self._known[key]

    @staticmethod
    def _at(cursor: duckdb.DuckDBPyConnection, places: list[int]) -> list[tuple[Any, ...]]:
        """Return the rows at places of the index, in the order of the places."""
        found = cursor.execute(
            f"SELECT rowid, metric, {_COLUMNS} FROM slices "  # noqa: S608
            "WHERE rowid IN (SELECT unnest(?::BIGINT[]))",
            [places],
        ).fetchall()
        rows = {place: tuple(row) for place, *row in found}
        return [rows[place] for place in places]

    def _row(self, values: tuple[Any, ...]) -> dict[str, Any]:
        row = dict(zip(_ROW, values[1:], strict=True))
        codes = [row.pop(name) for name in ("s1", "s2", "s3")]
        row["slice_id"] = f"{row.pop('id'):016x}"
        text, predicate = row.pop("slice"), row.pop("predicate")
        parts = (
            [self.index.conditions[code].part for code in codes if code is not None]
            if predicate is None
            else json.loads(predicate)["all"]
        )
        row["chips"] = [chip(singleton(part)) for part in parts] or [{"text": text}]
        row["name"] = text or " & ".join(shown["text"] for shown in row["chips"])
        del row["parent"]
        for name in ("p_value", "q_value"):
            # JSON has no infinity: a logarithm below that of any number.
            row[name] = -1e6 if row[name] == float("-inf") else row[name]
        return row

    def _table(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        """Return rows as those of ``slices.parquet``."""
        found = []
        for number, *values in rows:
            row = dict(zip(_ROW, values, strict=True))
            codes = [row[name] for name in ("s1", "s2", "s3") if row[name] is not None]
            parts = ", ".join(self.index.conditions[code].json for code in codes)
            whole = {
                **row,
                **{name: _power(row[name]) for name in ("p_value", "q_value")},
                "slice_id": f"{row['id']:016x}",
                "metric": self.index.metrics[number],
                "parent": None if row["parent"] is None else f"{row['parent']:016x}",
                "finding": row["finding"] or None,
            }
            if codes and row["level"] <= 3:
                whole["predicate"] = f'{{"all": [{parts}]}}'
                whole["slice"] = " & ".join(self.index.conditions[code].text for code in codes)
            found.append({name: whole[name] for name in SCHEMA.names})
        return pa.Table.from_pylist(found, schema=SCHEMA)


def _cell(value: Any) -> Any:
    """Return a cell as the page's own file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else value


def _firsts(found: duckdb.DuckDBPyConnection) -> list[int]:
    return [one for (one,) in found.fetchall()]


def _power(logarithm: float | None) -> float | None:
    """Return the number of a decimal logarithm; None of None."""
    return None if logarithm is None else 10.0 ** float(logarithm)
