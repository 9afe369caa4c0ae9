"""Files that are published together with the document that names them, or not at all.

On a disk one run at a time publishes in a folder, by a few renames. In object storage there are no
locks: a step that comes too late is detected.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from slicebeam.metrics.errors import ConflictError, EngineError, StorageError
from slicebeam.transforms.storage.publish import (
    SHA256,
    DocumentFile,
    conflict,
    digest_of,
    files_in,
    is_own_name,
    metadata_of,
    own_name,
    publish,
    sha256_of,
    version_of,
    well_known,
)
from slicebeam.transforms.storage.storage import (
    ObjectPath,
    beneath,
    locked,
    remove_abandoned,
    settle,
    storage_errors,
    sync_folder,
    temporary_beside,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from slicebeam.transforms.storage.storage import StoragePath

# Seconds to wait for another run that is publishing in the same folder, and between two looks.
_PATIENCE, _MOMENT = 60.0, 0.02


@dataclass(eq=False)
class FileSet(ABC):
    """Files that are written, then named by a document, then published with it.

    The files appear under names of their own first, which no other content has. Then the document
    replaces the version `before`, or fails as a whole: from here on the set is published. Finally the
    well-known names follow, and files that no document names any more are removed. A process that dies on
    the way leaves either set complete; the next publication cleans up. Streams are by well-known name.
    """

    document: StoragePath
    streams: Mapping[str, IO[bytes]]
    before: str | None
    writer: str
    _replaced: tuple[DocumentFile, ...] | None = field(default=None, init=False)

    @property
    def folder(self) -> StoragePath:
        """Where the files are."""
        return self.document.parent

    def sha256(self, name: str) -> str:
        """Return the hash of a file that is written, by its well-known name."""
        self.streams[name].flush()
        return sha256_of(self.streams[name])

    @cached_property
    def files(self) -> dict[str, DocumentFile]:
        """The files by well-known name, once all are written; the document has to name them."""
        found = {}
        for name, stream in self.streams.items():
            digest, size = self.sha256(name), stream.tell()
            found[name] = DocumentFile(own_name(name, digest, self.before or ""), digest, size)
        return found

    @property
    def replaced(self) -> tuple[DocumentFile, ...]:
        """The files that nobody needs when this set is published; the document has to name them.

        Should the process die before it has removed them, the next publication does.
        """
        # A cached property would let one set wait for another in Python before 3.12.
        if self._replaced is None:
            # Once for all: when this set is published, its own document is there instead.
            named, older = files_in(_content(self.document)) if self.before else ((), ())
            left = [file for file in older if (self.folder / file.name).is_file()]
            self._replaced = tuple(dict.fromkeys((*named, *left)))
        return self._replaced

    @abstractmethod
    def publish(self, content: bytes) -> list[str]:
        """Publish the document, and with it the files; return what could not be tidied up, and why."""

    def _named_now(self) -> set[str]:
        """Return the names of files that the document or a revision of it names."""
        stem, _, kind = self.document.name.partition(".")
        revisions = self.folder.glob(f"{stem}.r*.{kind}")
        # A pipe would never open.
        regular = (path for path in revisions if isinstance(path, ObjectPath) or path.is_file())
        documents = [self.document, *regular]
        return {file.name for path in documents for file in files_in(_content(path))[0]}

    def _tidy_up(
        self, outdated_names: Iterable[StoragePath] = (), *, is_alone: bool = True
    ) -> list[str]:
        """Remove files that no document names any more, unless others may publish them; return the failures."""
        try:
            named = self._named_now()
            outdated = [
                *outdated_names,
                *(self.folder / one.name for one in self.replaced if one.name not in named),
                *(self._unpublished(named) if is_alone else ()),
            ]
        except (OSError, EngineError) as error:
            return [f"{self.folder} could not be cleaned up: {error}"]
        return _removed(outdated)

    def _unpublished(self, named: set[str]) -> Iterator[StoragePath]:
        """Yield the versions written over the replaced document, here or by others."""
        # As that document is replaced by now, nobody can publish it any more.
        kept = named.union(one.name for one in self.files.values())
        for path in self.folder.iterdir():
            if is_own_name(path.name) and path.name not in kept:
                digest = digest_of(path)
                name = digest and own_name(well_known(path.name), digest, self.before or "")
                if name == path.name:
                    yield path


def _content(document: StoragePath) -> bytes:
    """Return a document, empty if it is gone."""
    try:
        return document.read_bytes()
    except FileNotFoundError:
        return b""


def _removed(paths: Iterable[StoragePath]) -> list[str]:
    """Remove files; return what could not be removed, and why."""
    failures = []
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except (OSError, EngineError) as error:  # noqa: PERF203
            failures.append(f"{path} is no longer needed, but could not be removed: {error}")
    return failures


@dataclass(eq=False)
class _LocalFileSet(FileSet):
    """A set of files on a disk, temporary until they are published; see `FileSet`."""

    document: Path
    temporaries: Mapping[str, Path] = field(kw_only=True)

    def publish(self, content: bytes) -> list[str]:
        for name, stream in self.streams.items():
            with storage_errors(self.document.parent / name, "write"):
                settle(stream, self.temporaries[name])
        with temporary_beside(self.document) as (stream, temporary):
            with storage_errors(self.document, "write"):
                stream.write(content)
                settle(stream, temporary)
            with _publication_lock(self.document) as is_alone:
                found = version_of(self.document)
                if found not in (self.before, hashlib.sha256(content).hexdigest()):
                    raise conflict(self.document)
                self._commit(temporary)
                for name, file in self.files.items():
                    self._bring_up_to_date(name, file)
                with storage_errors(self.document.parent, "write"):
                    sync_folder(self.document.parent)
                return self._tidy_up(self._outdated_names(), is_alone=is_alone)

    def _outdated_names(self) -> Iterator[Path]:
        """Yield the well-known names of the replaced set that this one has not."""
        for file in self.replaced:
            path = self.document.parent / file.well_known
            if file.well_known not in self.files and digest_of(path) == file.sha256:
                yield path

    def _commit(self, temporary: Path) -> None:
        """Give the files their own names, then let the document replace the earlier one."""
        placed = []
        try:
            for name, file in self.files.items():
                path = self.document.parent / file.name
                with storage_errors(path, "write"):
                    self.temporaries[name].replace(path)
                placed.append(path)
            with storage_errors(self.document, "write"):
                sync_folder(self.document.parent)
                temporary.replace(self.document)
        except BaseException:
            # An interruption may come when the document is already there.
            if temporary.exists():
                for path in placed:
                    with suppress(OSError):
                        path.unlink()
            raise
        with storage_errors(self.document, "write"):
            sync_folder(self.document.parent)

    def _bring_up_to_date(self, name: str, file: DocumentFile) -> None:
        """Let the well-known name stand for the file."""
        source, path = self.document.parent / file.name, self.document.parent / name
        with storage_errors(path, "write"):
            link = self.document.parent / f".{name}.{secrets.token_hex(4)}"
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


@contextmanager
def _publication_lock(document: Path) -> Iterator[bool]:
    """Keep others from publishing the document in the meantime; False if the file system knows no locks."""
    # The system ends the lock with the process, and the next one takes over the file that was left.
    path = _lock_of(document)
    until = time.monotonic() + _PATIENCE
    while True:
        with storage_errors(document, "write"):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        is_free = locked(file)
        if is_free is None or (is_free and _is_same_file(file, path)):
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
        if locked(file) and _is_same_file(file, path):
            path.unlink()
    finally:
        os.close(file)


def _lock_of(document: Path) -> Path:
    return Path(str(beneath(document.parent, f".{document.name}.lock")))


def _is_same_file(file: int, path: Path) -> bool:
    """Whether an open file is still the one of this name, which its last owner may have removed."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


class _StoredFileSet(FileSet):
    """A set of objects; see `FileSet`."""

    document: ObjectPath

    def publish(self, content: bytes) -> list[str]:
        # Before anything is uploaded for nothing.
        self._check_unchanged(content)
        for name, file in self.files.items():
            self._write(file.name, file, self.streams[name])
        try:
            publish(self.document, io.BytesIO(content), self.before, self.writer)
        except ConflictError:
            self._withdraw()
            raise
        return [*self._bring_up_to_date(), *self._tidy_up()]

    def _check_unchanged(self, content: bytes) -> None:
        found = self.document.store.facts(self.document.bucket, self.document.key)
        if (found.version if found else None) == self.before:
            return
        if found is None or found.metadata.get(SHA256) != hashlib.sha256(content).hexdigest():
            raise conflict(self.document, found)

    def _write(self, name: str, file: DocumentFile, stream: IO[bytes]) -> None:
        path = self.document.parent / name
        path.store.write(path.bucket, path.key, stream, metadata_of(file.sha256, self.writer))

    def _withdraw(self) -> None:
        """Remove the files, which nobody can publish any more, unless another has published the same."""
        # The conflict says more than what can't be removed.
        with suppress(EngineError):
            named = self._named_now()
            _removed(
                self.document.parent / file.name
                for file in self.files.values()
                if file.name not in named
            )

    def _bring_up_to_date(self) -> list[str]:
        """Let the well-known names stand for the files of the document that is there; return what is left."""
        # It may be another's by now, who is doing the same: whoever is last finds both in agreement.
        seen, left = None, []
        while (now := _content(self.document)) != seen:
            seen = now
            named, replaced = files_in(now)
            for file in named:
                if digest_of(self.document.parent / file.well_known) != file.sha256:
                    self._copy(file)
            kept = {file.well_known for file in named}
            left = _removed(
                path
                for file in replaced
                if file.well_known not in kept
                and digest_of(path := self.document.parent / file.well_known) == file.sha256
            )
        return left

    def _copy(self, file: DocumentFile) -> None:
        """Write the content of a file under its well-known name."""
        if self.files.get(file.well_known) == file:
            stream: IO[bytes] = self.streams[file.well_known]
        else:
            try:
                stream = io.BytesIO((self.document.parent / file.name).read_bytes())
            except FileNotFoundError:
                # The document that named it has been replaced in turn.
                return
        self._write(file.well_known, file, stream)


@contextmanager
def files_to_publish(
    document: StoragePath, names: Sequence[str], before: str | None, writer: str
) -> Iterator[FileSet]:
    """Open the files of a set, by well-known name, none of which appears before `FileSet.publish`."""
    shown = " and ".join(str(document.parent / name) for name in (*names, document.name))
    with ExitStack() as stack:
        streams: dict[str, IO[bytes]] = {}
        if isinstance(document, Path):
            temporaries = {}
            for name in (*names, document.name):
                with storage_errors(document.parent, "read"):
                    remove_abandoned(document.parent / name)
            for name in names:
                opened = stack.enter_context(temporary_beside(document.parent / name))
                streams[name], temporaries[name] = opened
            files: FileSet = _LocalFileSet(
                document, streams, before, writer, temporaries=temporaries
            )
        else:
            for name in names:
                streams[name] = stack.enter_context(tempfile.TemporaryFile(prefix="slicebeam-"))
            files = _StoredFileSet(document, streams, before, writer)
        with storage_errors(shown, "write"):
            yield files
