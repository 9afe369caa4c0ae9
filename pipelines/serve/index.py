"""The index of all tested slices: their table sorted by how surely each is worse, built once.

``slices.parquet`` is sorted by predicate, and has texts of which a view needs few. The index is a DuckDB
file with numbers of four bytes and the codes of the conditions, in the order in which a reader looks at
slices. It appears under its name when it is whole, and the name has the fingerprint of the table.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.reading import TABLE, file_of, opened_table
from slicebeam.pipelines.page.rows import DELTA_CELLS, N_CELLS
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.document import SearchChangeList

_VERSION = 1
# Bytes that DuckDB may hold, besides what the program itself takes.
MEMORY = "160MB"
THREADS = 2
_FLOATS = (
    *("value", "value_low", "value_high", "reference", "complement", "complement_error"),
    *("delta", "ci_low", "ci_high"),
)
_CODES = ("singleton_1", "singleton_2", "singleton_3")


@dataclass(frozen=True)
class Condition:
    """A singleton predicate.

    Attributes
    ----------
    code : its number in the table
    text : as a reader would say it
    json : as the table has it in the predicates of its slices
    part : field, op and value
    """

    code: int
    text: str
    json: str
    part: dict[str, Any]


@dataclass(frozen=True)
class Totals:
    """Of a metric, all tested slices.

    Attributes
    ----------
    slices, significant : how many there are
    density : how many there are of each size and delta, as `page.rows.Density.content` returns it
    largest : absolute delta; 0 where none is known
    """

    slices: int
    significant: int
    density: dict[str, Any]
    largest: float


class BuildingError(Exception):
    """The index is not ready yet, or can't be made; the message says so."""


class SliceIndex:
    """The index of an output, which is built in the background where it is not there yet.

    Parameters
    ----------
    uri : of the document
    document : whose table it is
    state : folder for the index
    """

    def __init__(self, uri: str, document: SearchChangeList, state: Path) -> None:
        self.uri, self.document = uri, document
        fingerprint = (document.search.slices_fingerprint or "none").rpartition(":")[2]
        self.path = state / f"slices-{_VERSION}-{fingerprint[:16]}.duckdb"
        self.metrics = [one.key for one in document.metrics]
        self.conditions: dict[int, Condition] = {}
        self.totals: dict[str, Totals] = {}
        self.seconds = 0.0
        self._began = time.monotonic()
        self._failure = ""
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._build: duckdb.DuckDBPyConnection | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._prepare, daemon=True)

    def start(self) -> None:
        """Open the index, or begin to build it."""
        self._thread.start()

    def wait(self) -> None:
        """Return when the index is ready, or can't be made; an error says so."""
        self._thread.join()
        self._check()

    def status(self) -> dict[str, Any]:
        """Return whether it is ``ready``, ``building`` or ``failed``, with the seconds that it took so far."""
        if self._failure:
            return {"state": "failed", "error": self._failure}
        if self._is_ready.is_set():
            return {"state": "ready", "seconds": round(self.seconds, 1)}
        share = 0.0
        with suppress(duckdb.Error, AttributeError):
            share = max(0.0, self._build.query_progress())  # type: ignore[union-attr]
        return {
            "state": "building",
            "seconds": round(time.monotonic() - self._began, 1),
            "percent": round(share),
        }

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection for one query; it reads the index and nothing else.

        Raises
        ------
        BuildingError
            The index is not ready.
        """
        self._check()
        if self._connection is None:
            raise BuildingError("The index of all tested slices is being built.")
        return self._connection.cursor()

    def _check(self) -> None:
        if self._failure:
            raise BuildingError(self._failure)

    def _prepare(self) -> None:
        try:
            if not self.path.is_file():
                self._write()
            self._open()
            self._is_ready.set()
        except Exception as error:  # noqa: BLE001  (the page shows it, and the thread has no caller)
            reason = str(error).partition("\n")[0]
            self._failure = f"The index of all tested slices could not be built: {reason}"

    def _open(self) -> None:
        connection = duckdb.connect(self.path, read_only=True, config=self._config())
        # From here on it reads no other file, writes none, and takes no other settings. Connections of
        # one process to a file share these.
        setting = "SELECT current_setting('lock_configuration')"
        if connection.execute(setting).fetchall() != [(True,)]:
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        for code, text in connection.execute("FROM conditions ORDER BY code").fetchall():
            part = json.loads(text)
            self.conditions[code] = Condition(code, str(_singleton(part)), text, part)
        for metric, slices, significant, density, largest in connection.execute(
            "FROM totals"
        ).fetchall():
            self.totals[metric] = Totals(slices, significant, json.loads(density), largest)
        self.seconds = connection.execute("SELECT seconds FROM built").fetchall()[0][0]
        self._connection = connection

    def _config(self) -> dict[str, str | bool | int | float | list[str]]:
        spilled = self.path.parent / "spilled"
        return {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": str(spilled),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }

    def _write(self) -> None:
        """Build the index beside its place, and move it there when it is whole."""
        partial = self.path.with_suffix(".partial")
        # Another server of this output would hold the lock: what is left is of one that was killed.
        for left in self.path.parent.glob("slices-*"):
            left.unlink(missing_ok=True)
        with self._local_table() as table:
            self._build = connection = duckdb.connect(partial, config=self._config())
            try:
                quoted = str(table).replace("'", "''")
                connection.execute(f"SET allowed_paths = ['{quoted}']")
                connection.execute("SET enable_external_access = false")
                self._fill(connection, table)
            finally:
                self._build = None
                connection.close()
        partial.rename(self.path)

    @contextmanager
    def _local_table(self) -> Iterator[Path]:
        """Yield the path of the document's table on this machine: a copy, where it is in a bucket."""
        with opened_table(self.uri, self.document) as stream:
            if stream is None:
                raise InputError(
                    f"slices.parquet is not beside {self.uri}, or is another run's; copy it there"
                )
            path = file_of(self.uri, self.document, TABLE)
            if isinstance(path, Path):
                yield path
                return
            copy = self.path.with_suffix(".parquet")
            try:
                with copy.open("wb") as target:
                    while piece := stream.read(1 << 24):
                        target.write(piece)
                yield copy
            finally:
                copy.unlink(missing_ok=True)

    def _fill(self, connection: duckdb.DuckDBPyConnection, table: Path) -> None:
        columns = connection.execute("DESCRIBE FROM read_parquet(?)", [str(table)]).fetchall()
        known = {name for name, *_ in columns}
        if not set(_CODES) <= known:
            raise InputError(
                "slices.parquet is of an earlier version of slicebeam and has no codes of conditions; "
                "run the search again"
            )
        connection.execute("CREATE TABLE given (metric VARCHAR, number UTINYINT, sign FLOAT)")
        for number, one in enumerate(self.document.metrics):
            sign = 1.0 if one.higher_is_better else -1.0
            connection.execute("INSERT INTO given VALUES (?, ?, ?)", [one.key, number, sign])
        floats = ", ".join(f"{one}::FLOAT AS {one}" for one in _FLOATS)
        codes = ", ".join(f"{one} AS s{at + 1}" for at, one in enumerate(_CODES))
        connection.execute(
            f"""
            CREATE TABLE slices AS
            SELECT number AS metric, ('0x' || slice_id)::UBIGINT AS id, n, cross_size AS level, {codes},
                {floats}, {_logarithm("p_value")}, {_logarithm("q_value")},
                coalesce(significant, false) AS significant, label,
                ('0x' || parent)::UBIGINT AS parent, test, reason, coalesce(finding, 0) AS finding,
                CASE WHEN cross_size > 3 OR singleton_1 IS NULL THEN slice END AS slice,
                CASE WHEN cross_size > 3 THEN predicate END AS predicate
            FROM read_parquet(?, file_row_number = true) JOIN given USING (metric)
            ORDER BY number, coalesce(finding, 2147483647),
                sign * CASE WHEN delta > 0 THEN ci_low ELSE ci_high END NULLS LAST, file_row_number
            """,  # noqa: S608  (the names are constants)
            [str(table)],
        )
        self._fill_conditions(connection, table)
        self._fill_totals(connection)
        connection.execute("CREATE TABLE built (seconds DOUBLE)")
        connection.execute("INSERT INTO built VALUES (?)", [time.monotonic() - self._began])

    def _fill_conditions(self, connection: duckdb.DuckDBPyConnection, table: Path) -> None:
        """Keep what each code stands for: the slice of one condition says it, or the first of several."""
        connection.execute("CREATE TABLE conditions (code INTEGER, text VARCHAR)")
        found: dict[int, str] = {}
        places: dict[int, tuple[int, int]] = {}
        for at, name in enumerate(_CODES):
            for code, level, place in connection.execute(
                f"""
                SELECT {name}, min(cross_size), arg_min(file_row_number, cross_size)
                FROM read_parquet(?, file_row_number = true) WHERE {name} IS NOT NULL GROUP BY {name}
                """,  # noqa: S608
                [str(table)],
            ).fetchall():
                if code not in places or level == 1:
                    places[code] = (place, at)
        rows = sorted({place for place, _ in places.values()})
        predicates = dict(
            connection.execute(
                """
                SELECT file_row_number, predicate FROM read_parquet(?, file_row_number = true)
                WHERE file_row_number IN (SELECT unnest(?::BIGINT[]))
                """,
                [str(table), rows],
            ).fetchall()
        )
        for code, (place, at) in places.items():
            part = json.loads(predicates[place])["all"][at]
            found[code] = _singleton(part).json_text()
        for code in sorted(found):
            connection.execute("INSERT INTO conditions VALUES (?, ?)", [code, found[code]])

    def _fill_totals(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute(
            "CREATE TABLE totals (metric VARCHAR, slices BIGINT, significant BIGINT, density VARCHAR, "
            "largest FLOAT)"
        )
        for number, metric in enumerate(self.metrics):
            slices, significant, most, low, high = connection.execute(
                """
                SELECT count(*), count_if(significant), max(n), min(delta), max(delta)
                FROM slices WHERE metric = ?
                """,
                [number],
            ).fetchall()[0]
            density: dict[str, Any] = {}
            if low is not None and high > low:
                most = max(most, 2)
                cells = connection.execute(
                    """
                    SELECT least(floor(ln(n) / ln($most) * $across), $across - 1)::INTEGER AS i,
                        least(floor((delta - $low) / ($high - $low) * $up), $up - 1)::INTEGER AS j,
                        count(*)
                    FROM slices WHERE metric = $metric AND delta IS NOT NULL AND n > 0
                    GROUP BY ALL ORDER BY i, j
                    """,
                    {
                        "most": most,
                        "across": N_CELLS,
                        "low": low,
                        "high": high,
                        "up": DELTA_CELLS,
                        "metric": number,
                    },
                ).fetchall()
                density = {"most": most, "low": low, "high": high, "cells": list(map(list, cells))}
            largest = max(abs(low or 0), abs(high or 0))
            connection.execute(
                "INSERT INTO totals VALUES (?, ?, ?, ?, ?)",
                [metric, slices, significant, json.dumps(density), largest],
            )


def _singleton(part: dict[str, Any]) -> Singleton:
    value = part.get("value")
    return Singleton(part["field"], part["op"], tuple(value) if isinstance(value, list) else value)


def _logarithm(name: str) -> str:
    """Return the SQL of a decimal logarithm: a float of four bytes holds that of 1e-300."""
    return (
        f"CASE WHEN {name} > 0 THEN log10({name}) WHEN {name} = 0 THEN '-inf' END::FLOAT AS {name}"
    )
