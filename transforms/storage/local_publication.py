"""Publication on a disk: one at a time in a folder, each a few renames."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from slicebeam.metrics.errors import StorageError
from slicebeam.transforms.storage.file_set import FileSet
from slicebeam.transforms.storage.publish import Version, local_conflict, sha256_of, version_of
from slicebeam.transforms.storage.storage import (
    beneath,
    locked,
    remove_abandoned,
    settle,
    storage_errors,
    sync_folder,
    temporary_beside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from slicebeam.transforms.storage.published_files import DocumentFile
    from slicebeam.transforms.storage.storage import StoragePath

# Seconds to wait for another run that is publishing in the same folder, and between two looks.
_PATIENCE, _MOMENT = 60.0, 0.02


class LocalFileSet(FileSet):
    """A set of files on a disk; see `FileSet`.

    `temporaries`: where the streams' files are until they are published, by well-known name.
    """

    def __init__(
        self,
        document: Path,
        streams: Mapping[str, IO[bytes]],
        temporaries: Mapping[str, Path],
        before: Version | None,
        writer: str,
    ) -> None:
        super().__init__(document, streams, before, writer)
        self._path, self._folder, self._temporaries = document, document.parent, temporaries

    def publish(self, content: bytes) -> list[str]:
        """Publish the document, and with it the files."""
        for name, stream in self.streams.items():
            with storage_errors(self._folder / name, "write"):
                settle(stream, self._temporaries[name])
        with temporary_beside(self._path) as (stream, temporary):
            with storage_errors(self._path, "write"):
                stream.write(content)
                settle(stream, temporary)
            with _own_turn(self._path) as is_alone:
                found = version_of(self._path)
                if found not in (self.before, Version(hashlib.sha256(content).hexdigest())):
                    raise local_conflict(self._path)
                self._commit(temporary)
                for name, file in self.files.items():
                    self._bring_up_to_date(name, file)
                with storage_errors(self._folder, "write"):
                    sync_folder(self._folder)
                return self._tidy_up(is_alone=is_alone)

    def _commit(self, temporary: Path) -> None:
        """Give the files their own names, then let the document replace the earlier one."""
        placed = []
        try:
            for name, file in self.files.items():
                path = self._folder / file.name
                with storage_errors(path, "write"):
                    self._temporaries[name].replace(path)
                placed.append(path)
            with storage_errors(self._path, "write"):
                sync_folder(self._folder)
                temporary.replace(self._path)
        except BaseException:
            # An interruption may come when the document is already there.
            if temporary.exists():
                for path in placed:
                    with suppress(OSError):
                        path.unlink()
            raise
        with storage_errors(self._path, "write"):
            sync_folder(self._folder)

    def _bring_up_to_date(self, name: str, file: DocumentFile) -> None:
        """Let the well-known name stand for the file."""
        source, path = self._folder / file.name, self._folder / name
        with storage_errors(path, "write"):
            link = self._folder / f".{name}.{secrets.token_hex(4)}"
            try:
                os.link(source, link)
            except OSError:
                # A file system without links.
                with temporary_beside(path) as (stream, temporary), source.open("rb") as content:
                    shutil.copyfileobj(content, stream)
                    settle(stream, temporary)
                    temporary.replace(path)
                return
            try:
                link.replace(path)
            finally:
                link.unlink(missing_ok=True)

    def _digest(self, path: StoragePath) -> str | None:
        if not path.is_file():
            return None
        try:
            with path.open("rb") as stream:
                return sha256_of(stream)
        except FileNotFoundError:
            return None


@contextmanager
def _own_turn(document: Path) -> Iterator[bool]:
    """Keep others from publishing the document in the meantime; False if the file system knows no locks.

    The system ends the lock with the process, and the next one takes over the file that was left.
    """
    path = _lock_of(document)
    until = time.monotonic() + _PATIENCE
    while True:
        with storage_errors(document, "write"):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        is_free = locked(file)
        if is_free is None or (is_free and _bears_the_name(file, path)):
            break
        os.close(file)
        if time.monotonic() > until:
            raise StorageError(
                f"cannot write {document}: another run has been publishing there for {_PATIENCE:.0f} s; "
                "end it, or choose another --output"
            )
        time.sleep(_MOMENT)
    try:
        yield is_free is not None
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def remove_abandoned_lock(document: Path) -> None:
    """Remove the lock of a run that was killed as it had published; one that is held stays."""
    path = _lock_of(document)
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        if locked(file) and _bears_the_name(file, path):
            path.unlink()
    finally:
        os.close(file)


def _lock_of(document: Path) -> Path:
    return Path(str(beneath(document.parent, f".{document.name}.lock")))


def _bears_the_name(file: int, path: Path) -> bool:
    """Whether an open file is still the one of this name, which its last owner may have removed."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise


@contextmanager
def local_file_set(
    document: Path, names: tuple[str, ...], before: Version | None, writer: str
) -> Iterator[LocalFileSet]:
    """Open files in the folder of a document; unpublished ones are removed."""
    with ExitStack() as stack:
        streams, temporaries = {}, {}
        for name in (*names, document.name):
            with storage_errors(document.parent, "read"):
                remove_abandoned(document.parent / name)
        for name in names:
            path = document.parent / name
            streams[name], temporaries[name] = stack.enter_context(temporary_beside(path))
        yield LocalFileSet(document, streams, temporaries, before, writer)
