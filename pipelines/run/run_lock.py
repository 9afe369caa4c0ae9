"""The lock of a work folder: one run at a time; a dead run does not keep others out.

On file systems the system's lock ends with its process. In a bucket a run shows that it is alive by
renewing its lock, and a lock that is not renewed lapses. Clocks are not trusted: a lock that looks
lapsed is watched for two renewals before it is taken over.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run.lock_files import LostLockError

if TYPE_CHECKING:
    from slicebeam.pipelines.run.lock_files import Held, LockFile
    from slicebeam.transforms.storage.storage import StoragePath

# Seconds between two signs of life of a run.
RENEWED_EVERY = 15.0
# Seconds without one after which another machine may take the folder over. Storage that does not
# answer for two minutes is not yet an error, and must not cost a run its folder.
LAPSES_AFTER = 180.0
# How often one tries to take a lock that others give up and take in the meantime.
_ATTEMPTS = 50


class RunLock:
    """Keeps a work folder for this run until it is released or the process ends."""

    def __init__(
        self,
        folder: StoragePath,
        file: LockFile,
        renewed_every: float = RENEWED_EVERY,
        lapses_after: float = LAPSES_AFTER,
    ) -> None:
        self.folder, self._file = folder, file
        self._renewed_every, self._lapses_after = renewed_every, lapses_after
        self._ended = threading.Event()
        self._lost: LostLockError | None = None
        self._renewed = time.monotonic()
        self._renewing = threading.Lock()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock."""
        try:
            self._take()
        except BaseException:
            self._file.give_up()
            raise
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            if self._file.take():
                return
            held = self._file.look()
            if held is not None and self._is_dead(held) and self._file.take_over(held):
                return
        raise EngineError(f"other runs keep taking {self.folder}; choose another --work-dir")

    def _is_dead(self, held: Held) -> bool:
        """Return whether the owner may be dead; raise where it lives, or lived recently."""
        if held.lives is False:
            return True
        if held.lives or 0.0 <= held.age < self._lapses_after:
            raise self._refused(held)
        # A clock that was set makes a living run look old: whether it continues renewing decides.
        time.sleep(2 * self._renewed_every)
        now = self._file.look()
        if now is not None and now.sign != held.sign:
            raise self._refused(now)
        return now is not None

    def _refused(self, held: Held) -> EngineError:
        who = f"another run ({held.owner})" if held.owner else "another run"
        until = "wait for it"
        if not held.lives:
            until = (
                f"its last sign of life was {max(0.0, held.age):.0f} s ago, and its lock lapses "
                f"{self._lapses_after:.0f} s after that: wait"
            )
        return EngineError(f"{who} is using {self.folder}; {until}, or choose another --work-dir")

    def _keep(self) -> None:
        while not self._ended.wait(self._renewed_every):
            # That storage does not answer now is said by whoever needs it; `check` tries again.
            with suppress(EngineError, OSError):
                self._renew()
            if self._lost is not None:
                return

    def _renew(self) -> None:
        with self._renewing:
            try:
                self._file.renew()
            except LostLockError as error:
                self._lost = error
                raise
            self._renewed = time.monotonic()

    def check(self, *, at_once: bool = False) -> None:
        """Raise LostLockError where the folder is no longer this run's.

        ``at_once``: look now, not only from time to time: for what another run would not survive.
        """
        if self._thread is None:
            return
        # A process may have been stopped for long, or storage did not answer.
        if at_once or time.monotonic() - self._renewed > self._lapses_after / 2:
            # Storage that fails says so where something is written to it.
            with suppress(EngineError):
                self._renew()
        if self._lost is not None:
            raise LostLockError(str(self._lost))

    def release(self) -> None:
        """Give the lock up, if it is held."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        if self._lost is None:
            self._file.give_up()
