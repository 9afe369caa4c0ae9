"""Publication: files that appear together, and never over what somebody else has written since."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import quote, unquote

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.object_stores import (
    NoObjectError,
    ObjectFacts,
    VersionConflictError,
)
from slicebeam.transforms.storage import (
    ObjectPath,
    StoragePath,
    remove_abandoned,
    settle,
    storage_errors,
    temporary_beside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHA256 = "sha256"
_WRITER = "writer"


@dataclass(frozen=True)
class Version:
    """The version of an object: what a later publication replaces, and no other.

    Attributes
    ----------
    token : the store's own mark, a generation or an ETag
    """

    token: str


def version_of(path: StoragePath) -> Version | None:
    """Return the version of a file in object storage; None where there is none, or on a disk."""
    facts = _facts(path)
    return Version(facts.version) if facts else None


def _facts(path: StoragePath) -> ObjectFacts | None:
    return path.store.facts(path.bucket, path.key) if isinstance(path, ObjectPath) else None


def sha256_of(stream: IO[bytes]) -> str:
    """Return the hash of all that a stream holds, as hexadecimal digits."""
    digest = hashlib.sha256()
    stream.seek(0)
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def publish(path: ObjectPath, stream: IO[bytes], expected: Version | None, writer: str) -> None:
    """Write an object if nobody else has written it since its version was read.

    An answer may get lost after a write, and the repeated request then meets its own object: this
    is told by its hash, and is success.

    Parameters
    ----------
    stream : bytes, that can be read back
    expected : what `version_of` said; None: nothing was there
    writer : who writes, as another run would be told

    Raises
    ------
    EngineError
        Somebody else has written it, or storage failed.
    """
    digest = sha256_of(stream)
    try:
        path.store.write(
            path.bucket,
            path.key,
            stream,
            # S3 takes nothing but ASCII here.
            {_SHA256: digest, _WRITER: quote(writer.strip(), safe=" ")},
            expected=expected.token if expected else None,
            is_new=expected is None,
        )
    except (NoObjectError, VersionConflictError) as error:
        found = _facts(path)
        if found is not None and found.metadata.get(_SHA256) == digest:
            return
        raise _conflict(path, found) from error


def _conflict(path: StoragePath, found: ObjectFacts | None) -> EngineError:
    if found is None:
        return EngineError(f"{path} was deleted by somebody else during this run")
    who = unquote(found.metadata.get(_WRITER, "somebody else"))
    when = found.modified.strftime("%Y-%m-%d %H:%M:%S UTC")
    return EngineError(
        f"{path} was published by {who} at {when}, during this run; nothing was replaced"
    )


def _check_unchanged(path: StoragePath, stream: IO[bytes], expected: Version | None) -> None:
    """Raise what publishing would, before another file is replaced."""
    found = _facts(path)
    is_expected = (found.version if found else None) == (expected.token if expected else None)
    if not is_expected and (found is None or found.metadata.get(_SHA256) != sha256_of(stream)):
        raise _conflict(path, found)


@contextmanager
def published_together(
    paths: Sequence[StoragePath], before: Sequence[Version | None], writer: str
) -> Iterator[list[IO[bytes]]]:
    """Open files that appear under their names, one after another, only when all are written.

    The streams can be read back.

    Parameters
    ----------
    paths : of the files; the last one is what tells that the others are there
    before : the version of each that is replaced
    writer : who writes
    """
    with ExitStack() as stack:
        streams: list[IO[bytes]] = []
        temporaries: dict[StoragePath, Path] = {}
        for path in paths:
            if isinstance(path, Path):
                with storage_errors(path.parent, "read"):
                    remove_abandoned(path)
                stream, temporaries[path] = stack.enter_context(temporary_beside(path))
            else:
                stream = stack.enter_context(tempfile.TemporaryFile(prefix="slicebeam-"))
            streams.append(stream)
        with storage_errors(" and ".join(map(str, paths)), "write"):
            yield streams
            for path, temporary in temporaries.items():
                settle(streams[paths.index(path)], temporary)
            planned = list(zip(paths, streams, before, strict=True))
            for path, stream, version in planned:
                _check_unchanged(path, stream, version)
            for path, stream, version in planned:
                if isinstance(path, Path):
                    temporaries[path].replace(path)
                else:
                    publish(path, stream, version, writer)
