"""The turns of queries: a few run at a time, and those that nobody waits for any more end."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from slicebeam.pipelines.page.answers import RefusedError
from slicebeam.pipelines.page.index import BuildingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.page.index import SliceIndex

# Queries that run at a time; others wait for their turn.
_AT_ONCE = 2


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
    return RefusedError("A later question superseded this one.", 409)
