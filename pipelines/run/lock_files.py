"""The lock of a work folder: the system's own on a file, or a lease as an object in a bucket."""

from __future__ import annotations

import getpass
import io
import json
import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs import process_stat
from slicebeam.transforms.storage.object_stores import ObjectFacts, VersionConflictError
from slicebeam.transforms.storage.storage import locked, storage_errors

if TYPE_CHECKING:
    from slicebeam.transforms.storage.storage import ObjectPath, StoragePath

LOCK = "lock"
# Seconds in which a process that takes a lock writes its name.
_MOMENT = 0.02
# How often one tries to take a lock that others give up and take in the meantime.
_ATTEMPTS = 50
# Seconds between two signs of life of a run in a bucket.
RENEWED_EVERY = 15.0
# Seconds without one after which another machine may take the folder over. Storage that does not
# answer for two minutes is not yet an error, and must not cost a run its folder.
LAPSES_AFTER = 180.0


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A number without a name, as containers have.
        return f"user {os.getuid()}"


def _process_numbers() -> str:
    """Return what identifies this boot of this machine, and in it the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  (no path)
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode():x}"


@dataclass(frozen=True)
class Owner:
    """Who holds a lock: unless said otherwise this process."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    user: str = field(default_factory=_user)
    # When it took the lock, for people to read.
    started: str = field(
        default_factory=lambda: f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S UTC}"
    )
    # Identifies the set of process numbers that ``pid`` belongs to.
    processes: str = field(default_factory=_process_numbers)
    # When the process was started, since another may get its number afterwards.
    begun: str = field(default_factory=lambda: process_stat.started(os.getpid()) or "")
    # Identifies this taking of the lock.
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def from_json(cls, text: bytes) -> Owner | None:
        """Return the owner that a lock names, None if it names none."""
        try:
            named = json.loads(text)["owner"]
            return cls(*(named[part.name] for part in fields(cls)))
        except (ValueError, TypeError, KeyError):
            return None

    def to_json(self) -> bytes:
        """Return what stands in the lock, which differs each time."""
        return json.dumps({"owner": asdict(self), "written": time.time()}).encode()

    def lives(self) -> bool | None:
        """Return whether the process lives, None if that can't be known from here."""
        if self.processes != _process_numbers():
            return None
        now = process_stat.started(self.pid)
        return now is not None and (now == self.begun or "" in (now, self.begun))

    def __str__(self) -> str:
        return f"{self.user} on {self.host}, process {self.pid}, since {self.started}"


class LostLockError(EngineError):
    """The work folder is no longer this run's."""


def lock_of(
    folder: StoragePath, renewed_every: float = RENEWED_EVERY, lapses_after: float = LAPSES_AFTER
) -> RunLock:
    """Return the lock of a folder, which exists, for this process to take."""
    if isinstance(folder, Path):
        return LocalLock(folder)
    return Lease(folder, renewed_every, lapses_after)


class RunLock(ABC):
    """Keeps a folder for this run until it is released or the process ends."""

    def __init__(self, folder: StoragePath) -> None:
        self.folder, self.owner = folder, Owner()

    def acquire(self) -> None:
        """Take the lock."""
        try:
            is_taken = any(self._take() for _ in range(_ATTEMPTS))
        except BaseException:
            self.release()
            raise
        if not is_taken:
            raise EngineError(f"other runs keep taking {self.folder}; choose another --work-dir")

    @abstractmethod
    def _take(self) -> bool:
        """Take the lock, or raise where another run has it; False where it is just changing."""

    @abstractmethod
    def check(self, *, at_once: bool = False) -> None:
        """Raise LostLockError where the folder is no longer this run's; with ``at_once`` look now."""

    @abstractmethod
    def release(self) -> None:
        """Give the lock up, if it is held."""

    def _refused(self, owner: Owner | None, until: str = "wait for it") -> EngineError:
        who = f"another run ({owner})" if owner else "another run"
        return EngineError(f"{who} is using {self.folder}; {until}, or choose another --work-dir")

    def _loss(self) -> LostLockError:
        owner = None
        with suppress(OSError):
            owner = Owner.from_json((self.folder / LOCK).read_bytes())
        if owner is None:
            return LostLockError(
                f"{self.folder} was removed while a run used it; run again without --resume"
            )
        return LostLockError(
            f"another run ({owner}) took {self.folder} over, because this run gave no sign of life "
            "for too long; wait for it, or choose another --work-dir"
        )


class LocalLock(RunLock):
    """The system's lock (flock) on a file that names its owner; it ends with the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / LOCK
        self._file: int | None = None

    def _take(self) -> bool:
        with storage_errors(self.path, "write"):
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                # A run that ended in the meantime removed the folder: it is made for the next attempt.
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return False
            try:
                is_free = locked(file)
                # The owner before removes the file under its name as it ends.
                if is_free and self._bears_the_name(file):
                    self._sign(file)
                    self._file = file
            finally:
                if self._file is None:
                    os.close(file)
        if is_free is None:
            raise EngineError(
                f"the file system of {self.folder} has no locks (flock); choose another --work-dir"
            )
        if not is_free:
            self._refuse()
        return self._file is not None

    def _sign(self, file: int) -> None:
        try:
            os.ftruncate(file, 0)
            os.write(file, self.owner.to_json())
            os.fsync(file)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise

    def _refuse(self) -> None:
        """Raise an error with the owner of the lock, unless it is just changing."""
        with storage_errors(self.path, "read"), suppress(FileNotFoundError):
            owner = Owner.from_json(self.path.read_bytes())
            if owner is not None and owner.lives() is not False:
                raise self._refused(owner)
            # Another process has just taken it, and is about to write its own name.
            time.sleep(_MOMENT)

    def _bears_the_name(self, file: int) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(file))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def check(self, *, at_once: bool = False) -> None:  # noqa: ARG002  (it costs nothing to look)
        """Raise LostLockError where the folder is no longer this run's."""
        # Storage that fails says so where something is written to it.
        with suppress(OSError):
            if self._file is not None and not self._bears_the_name(self._file):
                raise self._loss()

    def release(self) -> None:
        """Give the lock up, if it is held."""
        if self._file is None:
            return
        # In a folder that can't be written to the file stays; nobody has the system's lock on it.
        with suppress(OSError):
            if self._bears_the_name(self._file):
                self.path.unlink()
        os.close(self._file)
        self._file = None


class Lease(RunLock):
    """A lock in object storage: an object written only over the version last seen, and renewed by a thread."""

    def __init__(self, folder: ObjectPath, renewed_every: float, lapses_after: float) -> None:
        super().__init__(folder)
        self.path = folder / LOCK
        self._renewed_every, self._lapses_after = renewed_every, lapses_after
        self._version: str | None = None
        self._renewed = time.monotonic()
        self._renewing, self._ended = threading.Lock(), threading.Event()
        self._lost: LostLockError | None = None
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock."""
        super().acquire()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _take(self) -> bool:
        if self._write(None):
            return True
        facts, owner = self._read()
        if facts is None or not self._is_dead(facts, owner):
            return False
        return self._write(facts.version)

    def _write(self, expected: str | None) -> bool:
        """Write over a version, or where nothing is, and say whether the lock is this run's."""
        content = io.BytesIO(self.owner.to_json())
        store, bucket, key = self.path.store, self.path.bucket, self.path.key
        # Where another version is there, it may be what a lost answer of this very write left.
        with suppress(VersionConflictError):
            store.write(bucket, key, content, expected=expected, is_new=expected is None)
        facts, owner = self._read()
        if facts is None or owner is None or owner.token != self.owner.token:
            return False
        self._version, self._renewed = facts.version, time.monotonic()
        return True

    def _read(self) -> tuple[ObjectFacts | None, Owner | None]:
        # Facts first: what is written in between is of another version than these say.
        facts = self.path.store.facts(self.path.bucket, self.path.key)
        try:
            return facts, None if facts is None else Owner.from_json(self.path.read_bytes())
        except FileNotFoundError:
            return None, None

    def _is_dead(self, facts: ObjectFacts, owner: Owner | None) -> bool:
        """Return whether the owner is dead; raise where it lives, or lived recently."""
        lives = owner.lives() if owner else None
        if lives is not None:
            if lives:
                raise self._refused(owner)
            return True
        age = (datetime.now(timezone.utc) - facts.modified).total_seconds()
        if not 0.0 <= age < self._lapses_after:
            # A clock that was set makes a living run look old: whether it continues renewing decides.
            time.sleep(2 * self._renewed_every)
            now, owner = self._read()
            if now is None or now.version == facts.version:
                return now is not None
            age = (datetime.now(timezone.utc) - now.modified).total_seconds()
        raise self._refused(
            owner,
            f"its last sign of life was {max(0.0, age):.0f} s ago, and its lock lapses "
            f"{self._lapses_after:.0f} s after that: wait",
        )

    def _keep(self) -> None:
        while self._lost is None and not self._ended.wait(self._renewed_every):
            # That storage does not answer now is said by whoever needs it; `check` tries again.
            with suppress(EngineError, OSError):
                self._renew()

    def _renew(self) -> None:
        """Give a sign of life; LostLockError where the lock is no longer this run's."""
        with self._renewing:
            if not self._write(self._version):
                self._lost = self._loss()
                raise self._lost

    def check(self, *, at_once: bool = False) -> None:
        """Raise LostLockError where the folder is no longer this run's; with ``at_once`` look now."""
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
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
        if self._version is None or self._lost is not None:
            return
        # Deleting asks for no version, but nobody takes over what was renewed a moment ago.
        try:
            self._renew()
        except LostLockError:
            return
        finally:
            self._version = None
        self.path.unlink(missing_ok=True)
