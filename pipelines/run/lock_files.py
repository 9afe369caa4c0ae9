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
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs import process_stat
from slicebeam.transforms.storage.object_stores import VersionConflictError
from slicebeam.transforms.storage.storage import locked, storage_errors

if TYPE_CHECKING:
    from slicebeam.transforms.storage.object_stores import ObjectFacts
    from slicebeam.transforms.storage.storage import ObjectPath, StoragePath

LOCK = "lock"
# Seconds in which a process that takes a lock writes its name.
_MOMENT = 0.02


@dataclass(frozen=True)
class Owner:
    """Who holds a lock."""

    host: str
    pid: int
    user: str
    started: str  # when it took the lock, as an ISO time in UTC, for people to read
    machine: str  # this boot of the system; empty where it does not say
    processes: str  # identifies the set of process numbers that ``pid`` belongs to
    begun: str  # when the process was started, since another may get its number afterwards
    token: str  # identifies this taking of the lock

    @classmethod
    def this_process(cls) -> Owner:
        """Return this process as a new owner."""
        pid = os.getpid()
        return cls(
            socket.gethostname(),
            pid,
            _user(),
            datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            _machine(),
            _process_numbers(),
            process_stat.started(pid) or "",
            uuid.uuid4().hex,
        )

    @classmethod
    def from_json(cls, text: bytes) -> Owner | None:
        """Return the owner that a lock names, None if it names none."""
        try:
            fields = json.loads(text)
            return cls(
                pid=int(fields["pid"]),
                **{name: str(fields[name]) for name in cls.__dataclass_fields__ if name != "pid"},
            )
        except (ValueError, TypeError, KeyError):
            return None

    def to_json(self, renewals: int = 0) -> bytes:
        """Return what stands in the lock."""
        return json.dumps({**asdict(self), "renewals": renewals}).encode()

    def is_here(self) -> bool:
        """Whether it is, or was, a process of the running system."""
        return self.machine != "" and self.machine == _machine()

    def lives(self) -> bool | None:
        """Return whether the process lives, None if that can't be known from here."""
        if not self.is_here() or self.processes != _process_numbers():
            return None
        now = process_stat.started(self.pid)
        return now is not None and (now == self.begun or "" in (now, self.begun))

    def __str__(self) -> str:
        return f"{self.user} on {self.host}, process {self.pid}, since {self.started}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A number without a name, as containers have.
        return f"user {os.getuid()}"


def _machine() -> str:
    """Return what identifies this boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode():x}"


def _process_numbers() -> str:
    """Return what identifies the set of process numbers: containers have their own."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  (no path)
    except OSError:
        return ""


@dataclass(frozen=True)
class Held:
    """The visible state of a lock that another run holds."""

    owner: Owner | None  # None if the lock does not say
    lives: bool | None  # whether the owner lives, None if that can't be known from here
    age: float  # seconds since its last sign of life, by the clock of the storage
    sign: Any  # differs after each sign of life


class LostLockError(EngineError):
    """The work folder is no longer this run's."""


def lock_file(folder: StoragePath) -> LocalLock | StoredLock:
    """Return the lock of a folder, which exists, for this process to take."""
    owner = Owner.this_process()
    return LocalLock(folder, owner) if isinstance(folder, Path) else StoredLock(folder, owner)


class LocalLock:
    """The system's lock (flock) on a file that names its owner; it ends with the process."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.path, self.owner = folder / LOCK, owner
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock where nobody has it, and say whether that was so."""
        with storage_errors(self.path, "write"):
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                # A run that ended in the meantime removed the folder: it is made for the next attempt.
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return False
            try:
                if self._is_taken(file):
                    self._file = file
            finally:
                if self._file is None:
                    os.close(file)
        return self._file is not None

    def _is_taken(self, file: int) -> bool:
        is_free = locked(file)
        if is_free is None:
            raise EngineError(
                f"the file system of {self.path.parent} has no locks (flock); choose another --work-dir"
            )
        # The owner before removes the file under its name as it ends.
        if not is_free or not self._bears_the_name(file):
            return False
        try:
            os.ftruncate(file, 0)
            os.write(file, self.owner.to_json())
            os.fsync(file)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        return True

    def look(self) -> Held | None:
        """Return the owner of the lock, None if there is none or it is just changing."""
        with storage_errors(self.path, "read"):
            try:
                owner = Owner.from_json(self.path.read_bytes())
            except FileNotFoundError:
                return None
        if owner is None or owner.lives() is False:
            # Another process has just taken it, and is about to write its own name.
            time.sleep(_MOMENT)
            return None
        return Held(owner, True, 0.0, None)

    def take_over(self, held: Held) -> bool:  # noqa: ARG002  (as in buckets)
        """Say no: the system's lock of a run that is gone is free."""
        return False

    def _bears_the_name(self, file: int) -> bool:
        own = os.fstat(file)
        try:
            named = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)

    def renew(self) -> None:
        """Raise LostLockError where the lock is no longer this run's."""
        if self._file is not None and not self._bears_the_name(self._file):
            raise _lost(self.path)

    def give_up(self) -> None:
        """Remove the lock where it is this run's."""
        if self._file is None:
            return
        # In a folder that can't be written to the file stays; nobody has the system's lock on it.
        with suppress(OSError):
            if self._bears_the_name(self._file):
                self.path.unlink()
        os.close(self._file)
        self._file = None


class StoredLock:
    """A lock in object storage: an object that is only ever written over the version last seen."""

    def __init__(self, folder: ObjectPath, owner: Owner) -> None:
        self.path, self.owner = folder / LOCK, owner
        self._version: str | None = None
        self._renewals = 0

    def take(self) -> bool:
        """Take the lock where nobody has it, and say whether that was so."""
        return self._write(None)

    def _write(self, expected: str | None) -> bool:
        """Write over a version, or where nothing is, and say whether the lock is this run's."""
        content = self.owner.to_json(self._renewals)
        # Where another version is there, it may be what a lost answer of this very write left.
        with suppress(VersionConflictError):
            self.path.store.write(
                self.path.bucket,
                self.path.key,
                io.BytesIO(content),
                expected=expected,
                is_new=expected is None,
            )
        facts, owner = self._read()
        if facts is None or owner is None or owner.token != self.owner.token:
            return False
        self._version = facts.version
        return True

    def _read(self) -> tuple[ObjectFacts | None, Owner | None]:
        # Facts first: what is written in between is of another version than these say.
        facts = self.path.store.facts(self.path.bucket, self.path.key)
        if facts is None:
            return None, None
        try:
            return facts, Owner.from_json(self.path.read_bytes())
        except FileNotFoundError:
            return None, None

    def look(self) -> Held | None:
        """Return the owner of the lock, None if there is none."""
        facts, owner = self._read()
        if facts is None:
            return None
        age = (datetime.now(timezone.utc) - facts.modified).total_seconds()
        return Held(owner, owner.lives() if owner else None, age, facts.version)

    def take_over(self, held: Held) -> bool:
        """Write over the version that was seen."""
        return self._write(held.sign)

    def renew(self) -> None:
        """Give a sign of life; LostLockError where the lock is no longer this run's."""
        if self._version is None:
            return
        self._renewals += 1
        if not self._write(self._version):
            raise _lost(self.path)

    def give_up(self) -> None:
        """Remove the lock where it is this run's."""
        if self._version is None:
            return
        # Deleting asks for no version, but nobody takes over what was renewed a moment ago.
        try:
            self.renew()
        except LostLockError:
            return
        finally:
            self._version = None
        self.path.unlink(missing_ok=True)


def _lost(path: StoragePath) -> LostLockError:
    try:
        owner = Owner.from_json(path.read_bytes())
    except OSError:
        owner = None
    if owner is None:
        return LostLockError(
            f"{path.parent} was removed while a run used it; run again without --resume"
        )
    return LostLockError(
        f"another run ({owner}) took {path.parent} over, because this run gave no sign of life "
        "for too long; wait for it, or choose another --work-dir"
    )


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
        file: LocalLock | StoredLock,
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
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        if self._lost is None:
            self._file.give_up()
