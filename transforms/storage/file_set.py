"""A set of files that one document names, and that is published by publishing the document."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.published_files import (
    DocumentFile,
    files_in,
    is_own_name,
    own_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from slicebeam.transforms.storage.publish import Version
    from slicebeam.transforms.storage.storage import StoragePath


class FileSet(ABC):
    """Files that are written, then named by a document, then published with it.

    The files appear under names of their own first, which no other content has. Then the document
    replaces the earlier one, or fails as a whole: from here on the set is published. Finally the
    well-known names follow, and files that no document names any more are removed. A process that
    dies on the way leaves either the earlier set or the new one complete; the next publication
    cleans up.

    `document`: path, where the files are, too. `streams`: by well-known name, to write to and read
    back. `before`: the version of the document that is replaced, None if there is none. `writer`:
    the publishing run, for the error of another run.
    """

    def __init__(
        self,
        document: StoragePath,
        streams: Mapping[str, IO[bytes]],
        before: Version | None,
        writer: str,
    ) -> None:
        self.document, self.streams = document, streams
        self.before, self.writer = before, writer
        self._replaced: tuple[DocumentFile, ...] | None = None

    @property
    def folder(self) -> StoragePath:
        """Where the files are."""
        return self.document.parent

    @property
    def _before(self) -> str:
        return self.before.token if self.before else ""

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
            found[name] = DocumentFile(own_name(name, digest, self._before), digest, size)
        return found

    @property
    def replaced(self) -> tuple[DocumentFile, ...]:
        """The files that nobody needs when this set is published; the document has to name them.

        Should the process die before it has removed them, the next publication does.
        """
        if self._replaced is None:
            # Once for all: when this set is published, its own document is there instead.
            named, older = files_in(_content(self.document)) if self.before else ((), ())
            left = [one for one in older if (self.folder / one.name).is_file()]
            self._replaced = tuple(dict.fromkeys((*named, *left)))
        return self._replaced

    @abstractmethod
    def publish(self, content: bytes) -> list[str]:
        """Publish the document, and with it the files; return what could not be tidied up, and why."""

    @abstractmethod
    def _digest(self, path: StoragePath) -> str | None:
        """Return the hash of a file's content, None if there is no such file."""

    def _documents(self) -> Iterator[StoragePath]:
        """Yield the document and its revisions, as they are now."""
        yield self.document
        stem, _, kind = self.document.name.partition(".")
        for path in self.folder.glob(f"{stem}.r*.{kind}"):
            # A pipe would never open.
            if not isinstance(path, Path) or path.is_file():
                yield path

    def _named_now(self) -> set[str]:
        """Return the names of files that any document in the folder names."""
        return {one.name for path in self._documents() for one in files_in(_content(path))[0]}

    def _tidy_up(self, *, is_alone: bool = True) -> list[str]:
        """Remove files that no document names any more; return the failures, and why.

        `is_alone`: whether nobody can still publish what was written on top of the same document.
        """
        try:
            named = self._named_now()
            outdated = [
                *self._outdated_names(),
                *(self.folder / one.name for one in self.replaced if one.name not in named),
                *(self._unpublished(named) if is_alone else ()),
            ]
        except (OSError, EngineError) as error:
            return [f"{self.folder} could not be cleaned up: {error}"]
        return removed(outdated)

    def _outdated_names(self) -> list[StoragePath]:
        """Return the well-known names of the replaced set that this one has not."""
        paths = {
            self.folder / one.well_known: one.sha256
            for one in self.replaced
            if one.well_known not in self.files
        }
        return [path for path, sha256 in paths.items() if self._digest(path) == sha256]

    def _unpublished(self, named: set[str]) -> Iterator[StoragePath]:
        """Yield the versions written over the replaced document, here or by others.

        As that document is replaced by now, nobody can publish it any more.
        """
        kept = named.union(one.name for one in self.files.values())
        for path in self.folder.iterdir():
            if is_own_name(path.name) and path.name not in kept:
                digest = self._digest(path)
                stem, _, kind = path.name.split(".")
                if digest and own_name(f"{stem}.{kind}", digest, self._before) == path.name:
                    yield path


def _content(document: StoragePath) -> bytes:
    """Return a document, empty if it is gone."""
    try:
        return document.read_bytes()
    except FileNotFoundError:
        return b""


def removed(paths: Iterable[StoragePath]) -> list[str]:
    """Remove files; return what could not be removed, and why."""
    return [line for path in paths for line in _tried_to_remove(path)]


def _tried_to_remove(path: StoragePath) -> list[str]:
    try:
        path.unlink(missing_ok=True)
    except (OSError, EngineError) as error:
        return [f"{path} is no longer needed, but could not be removed: {error}"]
    return []
