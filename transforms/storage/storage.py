"""Places of files, local or in object storage, and how a file is written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import hashlib
import io
import os
import re
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa

from slicebeam.metrics.errors import FileError, InputError, StorageError, unknown_name
from slicebeam.transforms.storage.object_stores import (
    SCHEMES,
    GoogleStore,
    ObjectFacts,
    ObjectStore,
    S3Store,
    VersionConflictError,
    no_object,
    storage_timeout,
)

# Bytes that a read asks for at least: a request takes as long as so many bytes.
_READ_AHEAD = 1 << 20
_DETAIL = re.compile(r".*Detail:\s*(\[errno \d+\])?\s*", re.DOTALL)
# Open local copies of objects that are read again and again.
_MOST_COPIES = 512
_FETCHED_AT_ONCE = 16
# How often, and after how many seconds, a folder is removed into which something is still written.
_REMOVALS, _BETWEEN_REMOVALS = 5, 0.1


@lru_cache(maxsize=8)
def _store(scheme: str, process: int, timeout: float) -> ObjectStore:  # noqa: ARG001
    return GoogleStore(timeout) if scheme == "gs" else S3Store(timeout)


@dataclass(frozen=True, order=True)
class ObjectPath:
    """The place of an object, ``gs://bucket/name`` or ``s3://bucket/name``, as a `pathlib.Path`."""

    uri: str

    def __post_init__(self) -> None:
        scheme, _, rest = self.uri.partition("://")
        if scheme not in SCHEMES or not rest.partition("/")[0]:
            raise InputError(f"{self.uri!r} does not name an object; write it as gs://bucket/name")
        object.__setattr__(self, "uri", self.uri.rstrip("/"))

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.uri}/{name}")

    @property
    def scheme(self) -> str:
        """``gs`` or ``s3``."""
        return self.uri.partition("://")[0]

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.uri.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """Name of the object in the bucket, empty for the bucket itself."""
        return self.uri.partition("://")[2].partition("/")[2]

    @property
    def name(self) -> str:
        """What follows the last ``/``."""
        return self.uri.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The folder that it is in; of a bucket, itself."""
        return ObjectPath(self.uri.rpartition("/")[0]) if self.key else self

    @property
    def store(self) -> ObjectStore:
        """What reads and writes it, made once in a process."""
        # A forked process must not share the connections of the other.
        return _store(self.scheme, os.getpid(), storage_timeout())

    @property
    def _prefix(self) -> str:
        return f"{self.key}/" if self.key else ""

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        return bool(self.key) and self.store.facts(self.bucket, self.key) is not None

    def is_dir(self) -> bool:
        """Whether there are objects below this name."""
        return any(True for _ in self.store.listed(self.bucket, self._prefix, deep=False))

    def exists(self) -> bool:
        """Whether there is an object of this name, or below it."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the entries directly below this name."""
        for key in self.store.listed(self.bucket, self._prefix, deep=False):
            name = key.removeprefix(self._prefix).rstrip("/")
            # Some tools mark a folder by an empty object of its own name.
            if name:
                yield self / name

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the objects whose names below this one match; ``**`` also crosses ``/``."""
        translated = _glob_expression(pattern)
        # Up to the first sign of a pattern the store itself filters by name.
        fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        deep = "/" in pattern or "**" in pattern
        for key in self.store.listed(self.bucket, self._prefix + fixed, deep=deep):
            name = key.removeprefix(self._prefix)
            if not name.endswith("/") and translated.fullmatch(name):
                yield self / name

    def facts(self) -> ObjectFacts:
        """Return the metadata of the object, which must be there."""
        facts = self.store.facts(self.bucket, self.key)
        if facts is None:
            raise no_object(self.uri)
        return facts

    def read_bytes(self, begin: int = 0, end: int | None = None) -> bytes:
        """Return the content, or a part of it."""
        return self.store.read(self.bucket, self.key, begin, end)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content as text."""
        return self.read_bytes().decode(encoding)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete the object."""
        if not missing_ok:
            self.facts()
        self.store.delete(self.bucket, [self.key])

    def open(self, _mode: str = "rb") -> BinaryIO:
        """Open the object for reading."""
        return cast("BinaryIO", io.BufferedReader(_ObjectReader(self), _READ_AHEAD))


StoragePath = Path | ObjectPath


def _glob_expression(pattern: str) -> re.Pattern[str]:
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern):
        signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        if part.startswith("["):
            parts.append(fnmatch.translate(part).removeprefix("(?s:").rpartition(")")[0])
        else:
            parts.append(signs.get(part, re.escape(part)))
    return re.compile("".join(parts), re.DOTALL)


class _ObjectReader(io.RawIOBase):
    """An object as a file that can be read from anywhere."""

    def __init__(self, path: ObjectPath) -> None:
        self.path, self.size, self.position = path, path.facts().size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = max(0, begin + offset)
        return self.position

    def readinto(self, buffer: Any) -> int:
        data = self.path.read_bytes(self.position, min(self.size, self.position + len(buffer)))
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


def storage_path(text: str, what: str = "") -> StoragePath:
    """Return the place that a user named (by an option)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = text.encode("utf-8", "replace").decode()
        raise InputError(
            f"{what} {shown}: the name is not UTF-8 text; rename the file, or set LANG to a UTF-8 locale".strip()
        ) from error
    found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+)://", text)
    scheme = found.group(1) if found else "file"
    if scheme in SCHEMES:
        try:
            return ObjectPath(text)
        except InputError as error:
            raise InputError(f"{what} {error}".strip()) from error
    if scheme != "file":
        known = unknown_name("store", f"{scheme}://", [f"{one}://" for one in SCHEMES])
        raise InputError(f"{what} {text}: {known}".strip())
    if "\0" in text:
        raise InputError(f"{what} {text!r}: a file name cannot contain a null character".strip())
    try:
        return Path(text.removeprefix("file://")).expanduser()
    except RuntimeError as error:
        raise InputError(f"{what} {text}: there is no user with that name".strip()) from error


@contextmanager
def storage_errors(path: StoragePath | str, what: str) -> Iterator[None]:
    """Turn an operating-system error into one line for the user that names the file."""
    try:
        yield
    except OSError as error:
        # Arrow puts the system's reason at the end of a longer sentence.
        reason = _DETAIL.sub("", error.strerror or str(error))
        remedy = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            remedy = "; free some space, or choose another --output or --work-dir"
        elif error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            remedy = "; choose a folder that you can write to"
        raise StorageError(f"cannot {what} {path}: {reason}{remedy}") from error


def named_content(path: StoragePath, where: str, remedy: str = "name a file") -> bytes:
    """Return the content of a file that the user named.

    ``where``: the option and the name, for the errors. ``remedy``: where it is a folder.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileError(f"{where}: no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"{where} is a folder; {remedy}") from error
    except PermissionError as error:
        raise FileError(f"{where}: cannot be read ({error.strerror})") from error
    except OSError:
        with storage_errors(path, "read"):
            raise


def beneath(folder: StoragePath, *names: str) -> StoragePath:
    """Return a path in a folder for what a run writes or removes there.

    The folder itself may be a link, since the user named it; what is in it may come from a stranger.
    """
    path = folder
    for name in names:
        path = path / name
        if isinstance(path, Path) and path.is_symlink():
            raise InputError(
                f"{path} is a link, and nothing is written or removed through a link; remove it, or "
                "put a folder in its place"
            )
    return path


def open_plain(path: Path) -> IO[bytes]:
    """Open a file to append to, without a buffer; a link in its place is refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)


def make_folder(path: StoragePath, *, within: StoragePath | None = None) -> None:
    """Make a folder and those above it, up to one that must be there; object storage has none."""
    if isinstance(path, Path):
        if isinstance(within, Path):
            within.stat()
        path.mkdir(parents=True, exist_ok=True)


def remove_folder(path: StoragePath) -> None:
    """Remove a folder and all that is in it, if it is there; of a link, the link alone."""
    if isinstance(path, ObjectPath):
        path.store.delete(path.bucket, path.store.listed(path.bucket, f"{path.key}/", deep=True))
    elif path.is_symlink():
        path.unlink()
    elif path.exists():
        # A worker that is about to end may still have put a file there.
        for _ in range(_REMOVALS - 1):
            with suppress(OSError):
                shutil.rmtree(path)
                return
            time.sleep(_BETWEEN_REMOVALS)
        shutil.rmtree(path)


def identity(path: StoragePath) -> list[int | str]:
    """Return what changes with a file's content: its size, and time or version."""
    if isinstance(path, ObjectPath):
        facts = path.facts()
        return [facts.size, facts.version]
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def open_input(path: StoragePath) -> pa.NativeFile:
    """Open a file that is read here and there: mapped, or read by ranges from object storage."""
    if isinstance(path, Path):
        return pa.memory_map(str(path))
    return pa.PythonFile(path.open(), mode="r")


class _Copies:
    """Local copies, without names, of objects that do not change while a run uses them."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, tuple[str, IO[bytes]]] = OrderedDict()
        self._changing = threading.Lock()
        self._fetched: set[str] = set()

    def forget(self) -> None:
        """Drop the copies: another run may have other objects under the same names."""
        with self._changing:
            self._fetched.clear()
            while self._files:
                self._files.popitem()[1][1].close()

    def fetch(self, path: ObjectPath) -> None:
        """Copy an object; the next to open it need not ask whether it is still the same."""
        self._current(path).close()
        with self._changing:
            self._fetched.add(path.uri)

    def of(self, path: ObjectPath) -> pa.NativeFile:
        with self._changing:
            if path.uri in self._fetched and path.uri in self._files:
                self._fetched.discard(path.uri)
                return _mapped(self._files[path.uri][1])
        return self._current(path)

    def _current(self, path: ObjectPath) -> pa.NativeFile:
        # A worker that outlives a run meets other objects under the same names in the next one.
        facts = path.facts()
        with self._changing:
            if path.uri in self._files and self._files[path.uri][0] == facts.version:
                return _mapped(self._files[path.uri][1])
        content = path.read_bytes()
        file = tempfile.TemporaryFile(prefix="slicebeam-")  # noqa: SIM115
        file.write(content)
        file.flush()
        with self._changing:
            if path.uri in self._files:
                self._files.pop(path.uri)[1].close()
            self._files[path.uri] = facts.version, file
            while len(self._files) > _MOST_COPIES:
                self._files.popitem(last=False)[1][1].close()
            return _mapped(file)


def _mapped(file: IO[bytes]) -> pa.NativeFile:
    return pa.memory_map(f"/dev/fd/{file.fileno()}")


_copies = _Copies()
forget_copies = _copies.forget


def open_unchanging(path: StoragePath) -> pa.NativeFile:
    """Map a file that a run reads many times; an object is copied once in a process."""
    return pa.memory_map(str(path)) if isinstance(path, Path) else _copies.of(path)


def fetch(paths: Sequence[StoragePath]) -> None:
    """Copy objects, many at once, that `open_unchanging` is about to map one after another."""
    objects = [path for path in paths if isinstance(path, ObjectPath)]
    if objects:
        with ThreadPoolExecutor(_FETCHED_AT_ONCE) as threads:
            list(threads.map(_copies.fetch, objects[:_MOST_COPIES]))


def matching(folder: StoragePath, pattern: str) -> list[StoragePath]:
    """Return the files of a folder whose names match, sorted by name."""
    return sorted(folder.glob(pattern), key=str)


def holds(folder: StoragePath, names: Iterable[str]) -> bool:
    """Return whether a folder holds files of these names and no others, besides hidden ones."""
    found = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    return found == set(names)


def open_whole(path: StoragePath) -> pa.NativeFile:
    """Open a file that is read once: mapped, or fetched as a whole."""
    return (
        pa.memory_map(str(path)) if isinstance(path, Path) else pa.BufferReader(path.read_bytes())
    )


@contextmanager
def written_whole(path: StoragePath) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when all of it was written; it can be read back.

    It is renamed or uploaded at the end: a reader or a crash sees the old file or the new one.
    """
    if isinstance(path, ObjectPath):
        with tempfile.TemporaryFile(prefix="slicebeam-") as stream:
            yield stream
            path.store.write(path.bucket, path.key, stream)
        return
    with temporary_beside(path) as (stream, temporary), storage_errors(path, "write"):
        yield stream
        settle(stream, temporary)
        temporary.replace(path)


def written_new(path: StoragePath, content: bytes) -> bool:
    """Write a file, whole or not at all, where there is none of this name; False where there is one."""
    if isinstance(path, ObjectPath):
        digest = {"sha256": hashlib.sha256(content).hexdigest()}
        try:
            path.store.write(path.bucket, path.key, io.BytesIO(content), digest, is_new=True)
        except VersionConflictError:
            # The answer to the write may have got lost, and the repeated request met its own object.
            found = path.store.facts(path.bucket, path.key)
            return found is not None and found.metadata.get("sha256") == digest["sha256"]
        return True
    remove_abandoned(path)
    with temporary_beside(path) as (stream, temporary), storage_errors(path, "write"):
        stream.write(content)
        settle(stream, temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:
            # A file system without links: an empty file keeps the name until the whole one is there.
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            temporary.replace(path)
        sync_folder(path.parent)
    return True


@contextmanager
def temporary_beside(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Open a new file in the folder of another, which is removed unless it was renamed."""
    with storage_errors(path, "write"):
        descriptor, temporary = _new_file(path)
    stream = os.fdopen(descriptor, "w+b")
    try:
        yield stream, temporary
    finally:
        with suppress(OSError):
            # Closing writes what is buffered once more, and fails where the disk is full.
            stream.close()
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _new_file(path: Path) -> tuple[int, Path]:
    """Return a new file beside another, with a lock that one of a killed run lacks."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        # Who removes what is left may find it before the lock is there.
        if locked(descriptor) is not False and os.path.lexists(name):
            return descriptor, Path(name)
        os.close(descriptor)


def locked(file: int) -> bool | None:
    """Take the system's lock on an open file, if it is free; None if it knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_abandoned(path: Path) -> None:
    """Remove what killed runs left of a file that they were writing."""
    pattern = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}")
    for left in path.parent.iterdir():
        # A pipe would never open, and a link is nobody's temporary file.
        if pattern.fullmatch(left.name) and left.is_file() and not left.is_symlink():
            # One that is gone in the meantime, or someone else's, is not for us.
            with suppress(OSError), left.open("rb") as stream:
                if locked(stream.fileno()):
                    left.unlink()


def settle(stream: IO[bytes], temporary: Path) -> None:
    """Flush a file to disk, with the permissions of new files."""
    stream.flush()
    os.fsync(stream.fileno())
    mask = os.umask(0)
    os.umask(mask)
    temporary.chmod(0o666 & ~mask)


def sync_folder(folder: Path) -> None:
    """Bring to the disk which names the files of a folder have, where the file system can."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(file)
