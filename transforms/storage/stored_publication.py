"""Publication in object storage, without locks: a step that comes too late is detected."""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from slicebeam.metrics.errors import ConflictError, EngineError
from slicebeam.transforms.storage.file_set import FileSet, removed
from slicebeam.transforms.storage.publish import SHA256, metadata_of, publish, stored_conflict
from slicebeam.transforms.storage.published_files import files_in
from slicebeam.transforms.storage.storage import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.transforms.storage.publish import Version
    from slicebeam.transforms.storage.published_files import DocumentFile
    from slicebeam.transforms.storage.storage import StoragePath


class StoredFileSet(FileSet):
    """A set of objects; see `FileSet`."""

    def __init__(
        self,
        document: ObjectPath,
        streams: Mapping[str, IO[bytes]],
        before: Version | None,
        writer: str,
    ) -> None:
        super().__init__(document, streams, before, writer)
        self._path = document

    def publish(self, content: bytes) -> list[str]:
        """Publish the document, and with it the files."""
        # Before anything is uploaded for nothing.
        self._check_unchanged(content)
        for name, file in self.files.items():
            self._write(file.name, file, self.streams[name])
        try:
            publish(self._path, io.BytesIO(content), self.before, self.writer)
        except ConflictError:
            self._withdraw()
            raise
        return [*self._bring_up_to_date(), *self._tidy_up()]

    def _check_unchanged(self, content: bytes) -> None:
        found = self._path.store.facts(self._path.bucket, self._path.key)
        if (found.version if found else None) == (self.before.token if self.before else None):
            return
        if found is None or found.metadata.get(SHA256) != hashlib.sha256(content).hexdigest():
            raise stored_conflict(self._path, found)

    def _write(self, name: str, file: DocumentFile, stream: IO[bytes]) -> None:
        path = self._path.parent / name
        path.store.write(path.bucket, path.key, stream, metadata_of(file.sha256, self.writer))

    def _withdraw(self) -> None:
        """Remove the files, which nobody can publish any more, unless another has published the same."""
        # The conflict says more than what can't be removed.
        with suppress(EngineError):
            named = self._named_now()
            removed(
                self._path.parent / file.name
                for file in self.files.values()
                if file.name not in named
            )

    def _bring_up_to_date(self) -> list[str]:
        """Let the well-known names stand for the files of the document that is there.

        It may be another's by now, who is doing the same: whoever is last finds both in agreement.

        Returns: What could not be removed, and why.
        """
        seen, left = None, []
        while (now := self._document_now()) != seen:
            seen = now
            named, replaced = files_in(now)
            for file in named:
                if self._digest(self._path.parent / file.well_known) != file.sha256:
                    self._copy(file)
            kept = {file.well_known for file in named}
            left = removed(
                path
                for file in replaced
                if file.well_known not in kept
                and self._digest(path := self._path.parent / file.well_known) == file.sha256
            )
        return left

    def _document_now(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _copy(self, file: DocumentFile) -> None:
        """Write the content of a file under its well-known name."""
        if self.files.get(file.well_known) == file:
            stream: IO[bytes] = self.streams[file.well_known]
        else:
            try:
                stream = io.BytesIO((self._path.parent / file.name).read_bytes())
            except FileNotFoundError:
                # The document that named it has been replaced in turn.
                return
        self._write(file.well_known, file, stream)

    def _outdated_names(self) -> list[StoragePath]:
        # They are brought up to date with the others, as they may be another's by now.
        return []

    def _digest(self, path: StoragePath) -> str | None:
        if not isinstance(path, ObjectPath):
            raise TypeError(f"{path} is not an object")
        found = path.store.facts(path.bucket, path.key)
        return None if found is None else found.metadata.get(SHA256, "")
