"""The index of all tested slices: their table sorted by how surely each is worse, built once.

``slices.parquet`` is sorted by predicate, and has texts of which a view needs few. The index is a DuckDB
file with numbers of four bytes and the codes of the conditions, in the order in which a reader looks at
slices. It appears under its name when it is whole, and the name has the fingerprint of the table.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.randomness import splitmix64
from slicebeam.pipelines.changelist.reading import local_table
from slicebeam.pipelines.page.index_build import Task, singleton
from slicebeam.pipelines.page.rows import OFFLINE, Totals
from slicebeam.runner_configs.guarded_process import python_module

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import SearchChangeList

_VERSION = 2
# Bytes that DuckDB may hold, besides what the program itself takes.
MEMORY = "128MB"
THREADS = 2


@dataclass(frozen=True)
class IndexedCondition:
    """A singleton predicate.

    ``code``: its number in the table. ``text``: as a reader would say it, with all characters of
    its values. ``key``: what filters name it by: its text with long values cut, or `json` where
    others have the same. ``json``: as the table has it in the predicates of its slices. ``part``:
    field, op and value.
    """

    code: int
    text: str
    key: str
    json: str
    part: dict[str, Any]


class BuildingError(Exception):
    """The index is not ready yet, or can't be made; the message says so."""


class SliceIndex:
    """The index of an output, which is built in the background where it is not there yet."""

    def __init__(self, uri: str, document: SearchChangeList, state: Path) -> None:
        self.uri, self.document = uri, document
        fingerprint = (document.search.slices_fingerprint or "none").rpartition(":")[2]
        self.path = state / f"slices-{_VERSION}-{fingerprint[:16]}.duckdb"
        self.metrics = [metric.key for metric in document.metrics]
        self.conditions: dict[int, IndexedCondition] = {}
        # Texts, with long values cut, that several conditions have.
        self.ambiguous: frozenset[str] = frozenset()
        self.totals: dict[str, Totals] = {}
        self.findings: list[tuple[int, int | None, int | None, int | None]] = []
        self.has_texts = False
        self.seconds = 0.0
        self._began = time.monotonic()
        self._failure = ""
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._is_ready = threading.Event()
        # An interpreter that ends waits for it: a database does not survive that it goes on meanwhile.
        self._thread = threading.Thread(target=self._prepare)

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
        return {"state": "building", "seconds": round(time.monotonic() - self._began, 1)}

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection for one query; it reads the index and nothing else."""
        self._check()
        if self._connection is None:
            raise BuildingError("The index of all tested slices is being built.")
        return self._connection.cursor()

    def places(self, metric: str) -> range:
        """Return the places of a metric's rows: the metrics follow one another."""
        at = self.metrics.index(metric)
        begin = sum(self.totals[one].slices for one in self.metrics[:at])
        return range(begin, begin + self.totals[metric].slices)

    def slice_id(self, codes: list[int]) -> int:
        """Return the id of the slice of some conditions, whether it was tested or not."""
        parts = [singleton(self.conditions[one].part).identity() for one in codes]
        total = np.array([sum(parts) % 2**64], np.uint64)
        return int(splitmix64(total)[0])

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
        known = connection.execute("FROM conditions ORDER BY code").fetchall()
        parts = {code: singleton(json.loads(text)) for code, text in known}
        times = Counter(map(str, parts.values()))
        self.ambiguous = frozenset(text for text, number in times.items() if number > 1)
        for code, text in known:
            short, whole = str(parts[code]), parts[code].whole_text()
            key = text if short in self.ambiguous else short
            self.conditions[code] = IndexedCondition(code, whole, key, text, json.loads(text))
        for metric, content in connection.execute("FROM totals").fetchall():
            self.totals[metric] = Totals(**json.loads(content))
        self.seconds = connection.execute("SELECT seconds FROM built").fetchall()[0][0]
        self.findings = connection.execute(
            "SELECT DISTINCT id, s1, s2, s3 FROM slices WHERE finding > 0 AND level <= 3"
        ).fetchall()
        # Slices of more than three conditions, or of none, have texts.
        texts = connection.execute("SELECT count(slice) > 0 FROM slices").fetchall()
        self.has_texts = texts == [(True,)]
        self._connection = connection

    def _config(self) -> dict[str, str | bool | int | float | list[str]]:
        spilled = self.path.parent / "spilled"
        return {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": str(spilled),
            **OFFLINE,
        }

    def _write(self) -> None:
        """Build the index beside its place, and move it there when it is whole."""
        partial = self.path.with_suffix(".partial")
        # Another server of this output would hold the lock: what is left is of one that was killed.
        self._remove("slices-*")
        try:
            with local_table(self.uri, self.document) as table:
                if table is None:
                    raise InputError(f"slices.parquet is not beside {self.uri}; copy it there")
                signs = {
                    metric.key: 1.0 if metric.higher_is_better else -1.0
                    for metric in self.document.metrics
                }
                fingerprint = self.document.search.slices_fingerprint or ""
                self._build(Task(str(table), fingerprint, signs, str(partial)))
            partial.rename(self.path)
        finally:
            self._remove(f"{partial.name}*")

    def _remove(self, pattern: str) -> None:
        for left in self.path.parent.glob(pattern):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def _build(self, task: Task) -> None:
        command = python_module("slicebeam.pipelines.page.index_build")
        # Ctrl-C is for the server, whose end the process notices.
        with subprocess.Popen(  # noqa: S603  (our own)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            if process.stdin is None or process.stdout is None:
                raise TypeError("a pipe is missing")
            process.stdin.write(task.to_json())
            process.stdin.flush()
            reason = process.stdout.read()
            if process.wait():
                raise InputError(
                    reason or f"the process that builds it ended ({process.returncode})"
                )
