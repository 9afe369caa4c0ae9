"""Google Cloud Storage, accessed through google-cloud-storage."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, StorageError, install_hint
from slicebeam.transforms.storage.object_stores import (
    ACCESS,
    DOWN,
    PATIENCE,
    NoObjectError,
    ObjectFacts,
    VersionConflictError,
    content_type,
    failure,
    folder_facts,
    no_bucket,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_DELETED_AT_ONCE = 16


class GoogleStore:
    """The objects of Google Cloud Storage, which may fail to answer so long; see `ObjectStore`."""

    def __init__(self, timeout: float) -> None:
        try:
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import storage
            from google.cloud.storage.retry import DEFAULT_RETRY
        except ImportError as error:
            raise InputError(f"gs:// needs google-cloud-storage; {install_hint('gs')}") from error
        from google.auth.exceptions import GoogleAuthError

        self._buckets: set[str] = set()
        self._options: dict[str, Any] = {
            "timeout": (timeout * PATIENCE, timeout * PATIENCE),
            "retry": DEFAULT_RETRY.with_timeout(timeout).with_delay(maximum=timeout * PATIENCE),
        }
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            # Looking for credentials that an emulator does not ask for takes twenty seconds.
            self._client: Any = storage.Client(
                project="emulated",
                credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            )
            return
        try:
            self._client = storage.Client()
        except (GoogleAuthError, OSError) as error:
            reason = str(error).split(". ", maxsplit=1)[0]
            raise StorageError(f"no credentials for gs://: {reason}{ACCESS}") from error

    @contextmanager
    def _errors(
        self, what: str, bucket: str, key: str, *, tells_bucket: bool = False
    ) -> Iterator[None]:
        """Turn the library's errors into those of `ObjectStore`; `tells_bucket`: not found means the bucket."""
        import requests
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud.storage.exceptions import DataCorruption

        uri = f"gs://{bucket}/{key}"
        try:
            yield
        except exceptions.PreconditionFailed as error:
            raise VersionConflictError(uri) from error
        except DataCorruption as error:
            raise failure(uri, what, "it was damaged in transfer", DOWN) from error
        except exceptions.RequestRangeNotSatisfiable as error:
            raise failure(uri, what, "it became shorter while it was read") from error
        except TransportError as error:
            raise failure(uri, what, _google_reason(error), DOWN) from error
        except (exceptions.Forbidden, exceptions.Unauthorized, GoogleAuthError) as error:
            raise failure(uri, what, _google_reason(error), ACCESS) from error
        except exceptions.NotFound as error:
            if not tells_bucket:
                self._check_bucket(what, bucket, key)
                raise NoObjectError(uri) from error
            raise no_bucket(uri, what, bucket) from error
        except (exceptions.GoogleAPIError, requests.RequestException) as error:
            raise failure(uri, what, _google_reason(error), DOWN) from error

    def _check_bucket(self, what: str, bucket: str, key: str) -> None:
        """Raise the error of a missing bucket: a missing object has the same status."""
        if bucket in self._buckets:
            return
        with self._errors(what, bucket, key, tells_bucket=True):
            # Listing needs no permission beyond those of reading and writing objects.
            next(iter(self._client.list_blobs(bucket, max_results=1, **self._options)), None)
        self._buckets.add(bucket)

    def facts(self, bucket: str, key: str) -> ObjectFacts | None:
        """Return the metadata of an object, None if it does not exist."""
        with self._errors("look up", bucket, key):
            blob = self._client.bucket(bucket).get_blob(key, **self._options)
            if blob is None:
                self._check_bucket("look up", bucket, key)
                return None
        return _google_facts(blob)

    def read(self, bucket: str, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return the bytes ``begin`` to ``end`` of an object."""
        if end is not None and end <= begin:
            return b""
        last = None if end is None else end - 1
        is_whole = begin == 0 and end is None

        def fetched() -> bytes:
            blob = self._client.bucket(bucket).blob(key)
            return blob.download_as_bytes(
                start=None if is_whole else begin,
                end=last,
                raw_download=True,
                checksum="auto" if is_whole else None,
                **self._options,
            )

        from google.cloud.storage.exceptions import DataCorruption

        with self._errors("read", bucket, key):
            try:
                return fetched()
            except DataCorruption:
                return fetched()

    def listed(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[ObjectFacts]:
        """Yield the objects whose names begin with a prefix."""
        with self._errors("list", bucket, prefix, tells_bucket=True):
            found = self._client.list_blobs(
                bucket, prefix=prefix, delimiter=None if deep else "/", **self._options
            )
            for blob in found:
                yield _google_facts(blob)
            for folder in sorted(found.prefixes):
                yield folder_facts(folder)

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
        """Write an object, all of it or nothing."""
        # Told the size, the library sends what is small by one request.
        size = stream.seek(0, os.SEEK_END)
        with self._errors("write", bucket, key):
            blob = self._client.bucket(bucket).blob(key)
            blob.metadata = dict(metadata or {})
            blob.upload_from_file(
                stream,
                rewind=True,
                size=size,
                if_generation_match=0 if is_new else int(expected) if expected else None,
                checksum="crc32c",
                content_type=content_type(key),
                # Every caller may write the same again: a request without an answer is repeated.
                **self._options,
            )

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        """Delete objects, also those that are gone already."""

        def delete(key: str) -> None:
            with suppress(NoObjectError), self._errors("delete", bucket, key):
                self._client.bucket(bucket).blob(key).delete(**self._options)

        # Unlike S3's, its batches are many requests in one, whose failures are not tried again.
        with ThreadPoolExecutor(_DELETED_AT_ONCE) as pool:
            for _ in pool.map(delete, keys):
                continue


def _google_facts(blob: Any) -> ObjectFacts:
    return ObjectFacts(
        blob.name, int(blob.size), str(blob.generation), blob.updated, blob.metadata or {}
    )


def _google_reason(error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    # Of what requests wraps around what urllib3 wraps, the innermost says what happened.
    inner = getattr(cause.args[0], "reason", None) if cause.args else None
    lines = str(getattr(cause, "message", "") or inner or cause).splitlines() or [repr(cause)]
    return lines[0][:200]
