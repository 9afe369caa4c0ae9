"""Object storage: reading, listing and writing objects of Google Cloud Storage and of S3.

Each store is accessed through its provider's own library, with its familiar retries, time limits
and errors. Endpoints and credentials come from the environment, as the libraries have it:
``STORAGE_EMULATOR_HOST`` and ``GOOGLE_APPLICATION_CREDENTIALS``; ``AWS_ENDPOINT_URL``,
``AWS_ACCESS_KEY_ID`` and the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Protocol

from slicebeam.metrics.errors import EngineError, InputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

SCHEMES = ("gs", "s3")
# The part of the time limit after which a connection without an answer is given up for another.
PATIENCE = 0.1
_TIMEOUT = "SLICEBEAM_STORAGE_TIMEOUT"
_DEFAULT_TIMEOUT = 120.0


class VersionConflictError(Exception):
    """An object is not the version that a write should replace."""


class NoObjectError(Exception):
    """There is no object of this name."""


@dataclass(frozen=True)
class ObjectFacts:
    """The metadata of an object.

    A later write can ask for the version: the generation (GCS) or ETag (S3). Its time is the store's.
    """

    key: str
    size: int
    version: str
    modified: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)


class ObjectStore(Protocol):
    """A store of objects in buckets; what fails is an EngineError or InputError that names it."""

    def facts(self, bucket: str, key: str) -> ObjectFacts | None:
        """Return the metadata of an object, None if it does not exist."""

    def read(self, bucket: str, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return the bytes ``begin`` to ``end`` of an object; NoObjectError where it is missing."""

    def listed(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[ObjectFacts]:
        """Yield the objects whose names begin with a prefix.

        Unless ``deep``, those with a further ``/`` are listed once, as a name that ends in it.
        """

    def write(
        self,
        bucket: str,
        key: str,
        stream: IO[bytes],
        metadata: Mapping[str, str] | None = None,
        *,
        expected: str | None = None,
        is_new: bool = False,
    ) -> None:
        """Write an object, all of it or nothing: over any version, an expected one, or where nothing is."""

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        """Delete objects, also those that are gone already."""


def storage_timeout() -> float:
    """Return for how many seconds storage may fail to answer."""
    text = os.environ.get(_TIMEOUT, "")
    try:
        seconds = float(text) if text else _DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400:
        raise InputError(f"{_TIMEOUT}={text!r} is not a number of seconds from 1 to 86400")
    return seconds


def failure(uri: str, what: str, reason: str, remedy: str = "") -> EngineError:
    """Return the error of an operation on an object, in a line."""
    reason = " ".join(reason.split()).rstrip(".")
    return StorageError(f"cannot {what} {uri}: {reason}{remedy}")


def no_bucket(uri: str, what: str, bucket: str) -> EngineError:
    """Return the error of an operation on an object in a bucket that is not there."""
    return failure(uri, what, f"no bucket {bucket!r}", "; create it, or correct the name")


# Remedies.
ACCESS = "; check the credentials in the environment and their permissions"
DOWN = f"; try again later (a longer time limit: {_TIMEOUT}=SECONDS)"


def folder_facts(name: str) -> ObjectFacts:
    """Return the facts of a name that ends in ``/`` and stands for the objects below it."""
    from datetime import datetime, timezone

    return ObjectFacts(name, 0, "", datetime.fromtimestamp(0, timezone.utc))


def content_type(key: str) -> str:
    """Return the media type of an object."""
    return "application/json" if key.endswith(".json") else "application/octet-stream"
