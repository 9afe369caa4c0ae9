"""Writes the records of a ledger: one thread writes all waiting records together."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from slicebeam.pipelines.paid_api.ledger_segments import Segment
    from slicebeam.pipelines.run.run_lock import RunLock


def of_ledger(error: EngineError) -> EngineError:
    """Return an error of the lock or of storage as one of the ledger, whose flag is another."""
    text = str(error).replace("another --output or --work-dir", "another --ledger")
    text = text.replace("run again without --resume", "choose another --ledger")
    return EngineError(text.replace("--work-dir", "--ledger"))


@dataclass
class Entry:
    """Lines that become durable together, and those who wait for them."""

    lines: list[bytes]
    apply: Callable[[], None]
    future: asyncio.Future[None] | Future[None]


class LedgerWriter:
    """Writes all waiting records together: a thousand records cost one write.

    Parameters
    ----------
    lock : of the folder
    """

    def __init__(self, segment: Segment, head: bytes, lock: RunLock) -> None:
        self._segment, self._head, self._lock = segment, head, lock
        self._waiting: list[Entry] = []
        self._changed = threading.Condition()
        self._closing = False
        self._failure: EngineError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Have lines written; the future resolves once they are durable, or fails with the reason."""
        with self._changed:
            if self._failure is not None:
                raise EngineError(str(self._failure))
            if self._closing:
                raise EngineError("the ledger is closed")
            self._waiting.append(entry)
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, and no more."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._segment.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                group, self._waiting = self._waiting, []
            if not group:
                return
            failure = self._write(group)
            if failure is not None:
                with self._changed:
                    # After one that failed nothing is written, whatever was promised by then.
                    self._failure = failure
                    group += self._waiting
                    self._waiting = []
            _tell(group, failure)

    def _write(self, group: list[Entry]) -> EngineError | None:
        data = b"".join([self._head, *(line for entry in group for line in entry.lines)])
        try:
            self._lock.check()
            self._segment.write(data)
        except EngineError as error:
            return of_ledger(error)
        except Exception as error:  # noqa: BLE001  (whoever waits must get it)
            return EngineError(f"the ledger can't be written: {type(error).__name__}: {error}")
        self._head = b""
        for entry in group:
            entry.apply()
        return None


def _tell(group: list[Entry], failure: EngineError | None) -> None:
    """Wake all who wait; those of one event loop together."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for entry in group:
        if isinstance(entry.future, asyncio.Future):
            by_loop.setdefault(entry.future.get_loop(), []).append(entry.future)
        elif failure is None:
            entry.future.set_result(None)
        else:
            entry.future.set_exception(EngineError(str(failure)))
    for loop, futures in by_loop.items():
        # A loop that is closed has nobody who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, futures, failure)


def _resolve(futures: list[asyncio.Future[None]], failure: EngineError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(EngineError(str(failure)))
