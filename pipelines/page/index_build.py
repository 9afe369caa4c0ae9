"""Builds the index of all tested slices, in a process of its own.

Sorting tens of millions of rows takes memory that the server need not have. The process ends with the
one that started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.page.rows import OFFLINE, totals_of
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.storage.publish import sha256_of

# Megabytes that DuckDB may hold; what it can't hold goes to the disk. Of 44 million slices the first are
# enough, and where they are not, the next are tried.
_MEMORY, _THREADS = (256, 512, 1024, 4096), 2
_FLOATS = (
    *("value", "value_low", "value_high", "reference", "complement", "complement_error"),
    *("delta", "ci_low", "ci_high"),
)
_CODES = ("singleton_1", "singleton_2", "singleton_3")


@dataclass(frozen=True)
class Task:
    """What is to be built."""

    table: str
    fingerprint: str
    signs: dict[str, float]  # Of each metric 1 where higher is better, -1 otherwise.
    index: str

    def to_json(self) -> str:
        """Return it as a line."""
        return json.dumps(asdict(self)) + "\n"


def build(task: Task) -> None:
    """Write an index."""
    began = time.monotonic()
    with Path(task.table).open("rb") as stream:
        if f"sha256:{sha256_of(stream)}" != task.fingerprint:
            raise InputError(
                f"{task.table} is another run's; copy the one of this run beside the document"
            )
    for memory in _MEMORY:
        try:
            _write(task, memory, began)
        except duckdb.OutOfMemoryException:  # noqa: PERF203  (tried four times at most)
            Path(task.index).unlink(missing_ok=True)
            Path(f"{task.index}.wal").unlink(missing_ok=True)
            if memory == _MEMORY[-1]:
                raise
        else:
            return


def _write(task: Task, memory: int, began: float) -> None:
    with duckdb.connect(
        task.index,
        config={
            "memory_limit": f"{memory}MB",
            "threads": _THREADS,
            "temp_directory": f"{task.index}.spilled",
            **OFFLINE,
        },
    ) as connection:
        quoted = task.table.replace("'", "''")
        connection.execute(f"SET allowed_paths = ['{quoted}']")
        connection.execute("SET enable_external_access = false")
        _fill(connection, task, began)


def _fill(connection: duckdb.DuckDBPyConnection, task: Task, began: float) -> None:
    columns = connection.execute("DESCRIBE FROM read_parquet(?)", [task.table]).fetchall()
    known = {name for name, *_ in columns}
    if not set(_CODES) <= known:
        raise InputError(
            "slices.parquet is of an earlier version of slicebeam and has no codes of conditions; "
            "run the search again"
        )
    connection.execute("CREATE TABLE given (metric VARCHAR, number UTINYINT, sign FLOAT)")
    for number, (metric, sign) in enumerate(task.signs.items()):
        connection.execute("INSERT INTO given VALUES (?, ?, ?)", [metric, number, sign])
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
        [task.table],
    )
    _fill_conditions(connection, task.table)
    _fill_totals(connection, task)
    connection.execute("CREATE TABLE built (seconds DOUBLE)")
    connection.execute("INSERT INTO built VALUES (?)", [time.monotonic() - began])


def _fill_conditions(connection: duckdb.DuckDBPyConnection, table: str) -> None:
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
            [table],
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
            [table, rows],
        ).fetchall()
    )
    for code, (place, at) in places.items():
        part = json.loads(predicates[place])["all"][at]
        found[code] = singleton(part).json_text()
    for code in sorted(found):
        connection.execute("INSERT INTO conditions VALUES (?, ?)", [code, found[code]])


def _fill_totals(connection: duckdb.DuckDBPyConnection, task: Task) -> None:
    connection.execute("CREATE TABLE totals (metric VARCHAR, content VARCHAR)")
    for number, metric in enumerate(task.signs):
        content = json.dumps(asdict(totals_of(connection, number)))
        connection.execute("INSERT INTO totals VALUES (?, ?)", [metric, content])


def singleton(part: dict[str, Any]) -> Singleton:
    """Return a condition of the JSON in ``slices.parquet``."""
    value = part.get("value")
    return Singleton(part["field"], part["op"], tuple(value) if isinstance(value, list) else value)


def _logarithm(name: str) -> str:
    """Return the SQL of a decimal logarithm: a float of four bytes holds that of 1e-300."""
    return (
        f"CASE WHEN {name} > 0 THEN log10({name}) WHEN {name} = 0 THEN '-inf' END::FLOAT AS {name}"
    )


def main() -> None:
    """Build what stands on the first line of stdin, and print the reason where that fails."""
    task = Task(**json.loads(sys.stdin.readline()))

    def follow() -> None:
        # The other end closes when the server ends, however that happens.
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    try:
        build(task)
    except (InputError, duckdb.Error, OSError, ValueError) as error:
        sys.stdout.write(str(error).partition("\n")[0])
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
