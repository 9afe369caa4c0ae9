"""How the lock of a work folder is kept: as a file, or as an object.

Every step is atomic, whoever else tries the same at the same time.
"""

from __future__ import annotations

import io
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run.lock_owner import Owner
from slicebeam.transforms.storage.object_stores import VersionConflictError
from slicebeam.transforms.storage.storage import locked, storage_errors

if TYPE_CHECKING:
    from slicebeam.transforms.storage.object_stores import ObjectFacts
    from slicebeam.transforms.storage.storage import ObjectPath, StoragePath

LOCK = "lock"
# Seconds in which another process takes a dead run's lock over.
_MOMENT = 0.02


@dataclass(frozen=True)
class Held:
    """The visible state of a lock that another run holds.

    ``age``: seconds since its last sign of life by the clock of the storage; below 0 where clocks
    disagree.
    """

    owner: Owner | None  # None if the lock does not say
    lives: bool | None  # whether the owner lives, None if that can't be known from here
    age: float
    sign: Any  # differs after each sign of life


class LostLockError(EngineError):
    """The work folder is no longer this run's."""


class LockFile(Protocol):
    """The lock in one kind of storage."""

    def take(self) -> bool:
        """Take the lock where nobody has it, and say whether that was so."""

    def look(self) -> Held | None:
        """Return the owner of the lock, None if there is none."""

    def take_over(self, held: Held) -> bool:
        """Take the lock from the one that was seen last, unless it changed since."""

    def renew(self) -> None:
        """Give a sign of life; LostLockError where the lock is no longer this run's."""

    def give_up(self) -> None:
        """Remove the lock where it is this run's."""


def lock_file(folder: StoragePath) -> LockFile:
    """Return the lock of a folder, which exists, for this process to take."""
    owner = Owner.this_process()
    return LocalLock(folder, owner) if isinstance(folder, Path) else StoredLock(folder, owner)


class LocalLock:
    """A lock in a folder of the file system, shared between machines or not.

    The lock is a file that is open and locked (flock) before it appears under its name, and what
    replaces it is another such file: whoever has the system's lock on the file that bears the name
    has the work folder. The system ends its lock with the process, however that ends.

    ``folder``: that is locked.
    """

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.path, self.owner = folder / LOCK, owner
        self._temporary = folder / f".{LOCK}.{owner.token[:8]}"
        self._own: int | None = None
        self._seen: int | None = None

    def take(self) -> bool:
        """Take the lock where nobody has it, and say whether that was so."""
        with storage_errors(self.path, "write"):
            try:
                return self._take()
            except FileNotFoundError:
                # A run that ended in the meantime removed the folder: it is made again for the next attempt.
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return False

    def _take(self) -> bool:
        own = self._written(self._temporary, os.O_TRUNC)
        try:
            os.link(self._temporary, self.path)
        except FileExistsError:
            os.close(own)
            return False
        except OSError:
            # A file system without links: the name is free, or opening it says so.
            os.close(own)
            try:
                own = self._written(self.path, os.O_EXCL)
            except FileExistsError:
                return False
        finally:
            self._temporary.unlink(missing_ok=True)
        self._own = own
        return True

    def _written(self, path: Path, flag: int) -> int:
        """Return a new file, open and locked, that names the owner of the lock."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flag, 0o666)
        try:
            locked(file)
            os.write(file, self.owner.to_json())
            os.fsync(file)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        return file

    def look(self) -> Held | None:
        """Return the owner of the lock, None if there is none or it is about to be taken."""
        self._forget()
        with storage_errors(self.path, "read"):
            try:
                file = self._seen = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            free = locked(file)
            if not self._bears_the_name(file):
                self._forget()
                return None
            status = os.fstat(file)
            owner = Owner.from_json(os.pread(file, 1 << 16, 0))
        lives = None
        if free is False:
            if owner is not None and owner.lives() is False:
                # Somebody else is taking it over just now.
                self._forget()
                time.sleep(_MOMENT)
                return None
            lives = True
        elif owner is not None and free is None:
            # A file system without such locks.
            lives = owner.lives()
        elif owner is not None and owner.is_here():
            lives = False
        return Held(
            owner, lives, self._now() - status.st_mtime, (status.st_ino, status.st_mtime_ns)
        )

    def _now(self) -> float:
        """Return the time by the clock that stamps the files there."""
        with storage_errors(self._temporary, "write"):
            self._temporary.touch()
            now = self._temporary.stat().st_mtime
            self._temporary.unlink()
        return now

    def _bears_the_name(self, file: int) -> bool:
        own = os.fstat(file)
        try:
            named = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)

    def take_over(self, held: Held) -> bool:
        """Replace the file that was seen last, on which the system's lock is kept in the meantime."""
        if self._seen is None or not self._bears_the_name(self._seen):
            return False
        status = os.fstat(self._seen)
        if (status.st_ino, status.st_mtime_ns) != held.sign:
            return False
        with storage_errors(self.path, "write"):
            own = self._written(self._temporary, os.O_TRUNC)
            self._temporary.replace(self.path)
        self._own = own
        self._forget()
        return True

    def _forget(self) -> None:
        if self._seen is not None:
            os.close(self._seen)
            self._seen = None

    def renew(self) -> None:
        """Give a sign of life; LostLockError where the lock is no longer this run's."""
        if self._own is None:
            return
        if not self._bears_the_name(self._own):
            raise _lost(self.path)
        # By the clock of the storage. Where even this is refused, the next writing says why.
        with suppress(OSError):
            os.utime(self._own)

    def give_up(self) -> None:
        """Remove the lock where it is this run's."""
        self._forget()
        if self._own is None:
            return
        # In a folder that can't be written to the file stays; nobody has the system's lock on it.
        with suppress(OSError):
            if self._bears_the_name(self._own):
                self.path.unlink()
        os.close(self._own)
        self._own = None


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
