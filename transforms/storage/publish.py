"""A publication replaces only the document that existed when its run began; the names of its files."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO, Any
from urllib.parse import quote, unquote

from slicebeam.metrics.errors import ConflictError
from slicebeam.transforms.storage.object_stores import ObjectFacts, VersionConflictError
from slicebeam.transforms.storage.storage import ObjectPath, StoragePath, storage_errors

# A document comes from anywhere; a name in it never leads out of its folder.
NAME_PATTERN = r"^[a-z]+\.[0-9a-f]{12}\.[a-z]+$"


@dataclass(frozen=True)
class DocumentFile:
    """A file that a document names, under a name that no other content ever has."""

    name: str
    sha256: str
    size: int

    @property
    def well_known(self) -> str:
        """The name under which the file of the last publication stands."""
        return well_known(self.name)


def well_known(name: str) -> str:
    """Return the name under which a file stands that a document names by a name of its own.

    >>> well_known("slices.d1f83c09e2bd.parquet")
    'slices.parquet'
    """
    stem, _, kind = name.split(".")
    return f"{stem}.{kind}"


def own_name(well_known: str, sha256: str, before: str) -> str:
    """Return the name of a file with this content, written over this version of a document.

    So a name that a replaced document used is never used again, and its file can be removed meanwhile.

    >>> own_name("slices.parquet", "ab12", "")
    'slices.c82cc94b6048.parquet'
    """
    stem, _, kind = well_known.partition(".")
    digest = hashlib.sha256(f"{before} {sha256}".encode()).hexdigest()
    return f"{stem}.{digest[:12]}.{kind}"


def is_own_name(name: str) -> bool:
    """Whether a file bears such a name."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def files_in(document: bytes) -> tuple[tuple[DocumentFile, ...], tuple[DocumentFile, ...]]:
    """Return the files that a document names, and those that it says it replaces."""
    # What is not a document of this kind, or one of an earlier version, names none.
    content = None
    with suppress(ValueError):
        content = json.loads(document)
    content = content if isinstance(content, dict) else {}
    named, replaced = content.get("files"), content.get("replaced_files")
    entries = list(named.values()) if isinstance(named, dict) else []
    return _files(entries), _files(replaced if isinstance(replaced, list) else [])


def _files(entries: list[Any]) -> tuple[DocumentFile, ...]:
    return tuple(
        DocumentFile(
            str(entry["name"]),
            str(entry.get("sha256")).removeprefix("sha256:"),
            int(entry.get("size") or 0),
        )
        for entry in entries
        if isinstance(entry, dict) and is_own_name(str(entry.get("name")))
    )


SHA256 = "sha256"
_WRITER = "writer"


def version_of(path: StoragePath) -> str | None:
    """Return a generation or an ETag, of a file on a disk the hash of its content; None if it is missing."""
    if isinstance(path, ObjectPath):
        facts = path.store.facts(path.bucket, path.key)
        return facts.version if facts else None
    with storage_errors(path, "read"):
        try:
            with path.open("rb") as stream:
                return sha256_of(stream)
        except (FileNotFoundError, IsADirectoryError):
            return None


def digest_of(path: StoragePath) -> str | None:
    """Return the hash of a file's content, of an object as its writer stated it; None if there is none."""
    if isinstance(path, ObjectPath):
        facts = path.store.facts(path.bucket, path.key)
        return None if facts is None else facts.metadata.get(SHA256, "")
    return version_of(path) if path.is_file() else None


def sha256_of(stream: IO[bytes]) -> str:
    """Return the hash of all that a stream holds, as hexadecimal digits."""
    digest = hashlib.sha256()
    stream.seek(0)
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def metadata_of(sha256: str, writer: str) -> dict[str, str]:
    """Return an object's own metadata: the hash of its content, and its writer."""
    # S3 takes only ASCII here.
    return {SHA256: sha256, _WRITER: quote(writer.strip(), safe=" ")}


def publish(path: ObjectPath, stream: IO[bytes], expected: str | None, writer: str) -> None:
    """Write an object if nobody else has written it since its version was read, else a ConflictError.

    If the response to a write is lost, the retry finds its own object; equal hashes count as success.
    """
    digest = sha256_of(stream)
    try:
        path.store.write(
            path.bucket,
            path.key,
            stream,
            metadata_of(digest, writer),
            expected=expected,
            is_new=expected is None,
        )
    except (FileNotFoundError, VersionConflictError) as error:
        found = path.store.facts(path.bucket, path.key)
        if found is not None and found.metadata.get(SHA256) == digest:
            return
        raise conflict(path, found) from error


def conflict(path: StoragePath, found: ObjectFacts | None = None) -> ConflictError:
    """Return the error of a file, or an object with what is now `found`, that someone else has changed."""
    try:
        if isinstance(path, ObjectPath):
            modified = found.modified if found else None
        else:
            modified = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    except OSError:
        modified = None
    if modified is None:
        return ConflictError(f"{path} was deleted by another process during this run")
    who = unquote(found.metadata.get(_WRITER, "")) if found else ""
    return ConflictError(
        f"{path} was published by {who or 'somebody else'} at {modified:%Y-%m-%d %H:%M:%S UTC}, "
        "during this run; nothing was replaced"
    )
