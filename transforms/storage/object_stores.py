"""Object storage: reading, listing and writing objects of Google Cloud Storage and of S3.

Each store is accessed through its provider's own library, with its familiar retries, time limits
and errors. Endpoints and credentials come from the environment, as the libraries have it:
``STORAGE_EMULATOR_HOST`` and ``GOOGLE_APPLICATION_CREDENTIALS``; ``AWS_ENDPOINT_URL``,
``AWS_ACCESS_KEY_ID`` and the rest.
"""

from __future__ import annotations

import errno
import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, TypeVar

from slicebeam.metrics.errors import EngineError, InputError, StorageError, install_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

_Answer = TypeVar("_Answer")

SCHEMES = ("gs", "s3")
# The part of the time limit after which a connection without an answer is given up for another.
_PATIENCE = 0.1
# How often S3's library itself tries, in a few seconds.
_TRIES = 4
_LONGEST_WAIT = 10.0
_BUSY = (429, 500, 502, 503, 504)
_NOT_FOUND = 404
_DELETED = (200, 204, _NOT_FOUND)
_DELETED_AT_ONCE = 16
# Instead of a version: there must be no object yet.
_NOTHING = ""
_TIMEOUT = "SLICEBEAM_STORAGE_TIMEOUT"
_DEFAULT_TIMEOUT = 120.0


class VersionConflictError(Exception):
    """An object is not the version that a write should replace."""


@dataclass(frozen=True)
class ObjectFacts:
    """The metadata of an object.

    A later write can ask for the version: the generation (GCS) or ETag (S3). Its time is the store's.
    """

    size: int
    version: str
    modified: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)


class ObjectStore(ABC):
    """A store of objects in buckets; what fails is an EngineError or InputError that names it."""

    # How many objects a request deletes.
    _deleted_together: int

    def facts(self, bucket: str, key: str) -> ObjectFacts | None:
        """Return the metadata of an object, None if it does not exist."""
        try:
            return self._facts(bucket, key)
        except FileNotFoundError:
            return None

    def read(self, bucket: str, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return the bytes ``begin`` to ``end`` of an object; FileNotFoundError where it is missing."""
        if end is not None and end <= begin:
            return b""
        is_whole = begin == 0 and end is None
        return self._read(bucket, key, None if is_whole else (begin, end))

    def listed(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[str]:
        """Yield the names of objects that begin with a prefix; unless ``deep``, only up to a further ``/``."""
        return self._listed(bucket, prefix, "" if deep else "/")

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
        kind = "application/json" if key.endswith(".json") else "application/octet-stream"
        headers = {"metadata": dict(metadata or {}), "content_type": kind}
        self._write(bucket, key, stream, headers, _NOTHING if is_new else expected)

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        """Delete objects, also those that are gone already."""
        names = list(keys)
        for begin in range(0, len(names), self._deleted_together):
            self._delete(bucket, names[begin : begin + self._deleted_together])

    @abstractmethod
    def _facts(self, bucket: str, key: str) -> ObjectFacts: ...

    @abstractmethod
    def _read(self, bucket: str, key: str, span: tuple[int, int | None] | None) -> bytes: ...

    @abstractmethod
    def _listed(self, bucket: str, prefix: str, delimiter: str) -> Iterator[str]: ...

    @abstractmethod
    def _write(
        self, bucket: str, key: str, stream: IO[bytes], headers: Any, before: str | None
    ) -> None: ...

    @abstractmethod
    def _delete(self, bucket: str, keys: list[str]) -> None: ...


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


def no_object(uri: str) -> FileNotFoundError:
    """Return the error of an object that is not there."""
    return FileNotFoundError(errno.ENOENT, "no such file", uri)


def _failure(uri: str, what: str, reason: str, remedy: str = "") -> EngineError:
    reason = " ".join(reason.split()).rstrip(".")
    return StorageError(f"cannot {what} {uri}: {reason}{remedy}")


def _no_bucket(uri: str, what: str, bucket: str) -> EngineError:
    return _failure(uri, what, f"no bucket {bucket!r}", "; create it, or correct the name")


_ACCESS = "; check the credentials in the environment and their permissions"
_DOWN = f"; try again later (a longer time limit: {_TIMEOUT}=SECONDS)"


class GoogleStore(ObjectStore):
    """The objects of Google Cloud Storage, which may fail to answer so long; see `ObjectStore`."""

    _deleted_together = 100

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
            "timeout": (timeout * _PATIENCE, timeout * _PATIENCE),
            "retry": DEFAULT_RETRY.with_timeout(timeout).with_delay(maximum=timeout * _PATIENCE),
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
            raise StorageError(f"no credentials for gs://: {reason}{_ACCESS}") from error

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
            raise _failure(uri, what, "it was damaged in transfer", _DOWN) from error
        except exceptions.RequestRangeNotSatisfiable as error:
            raise _failure(uri, what, "it became shorter while it was read") from error
        except exceptions.NotFound as error:
            if not tells_bucket:
                self._check_bucket(what, bucket, key)
                raise no_object(uri) from error
            raise _no_bucket(uri, what, bucket) from error
        except (exceptions.GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
            refused = (exceptions.Forbidden, exceptions.Unauthorized, GoogleAuthError)
            is_refused = isinstance(error, refused) and not isinstance(error, TransportError)
            remedy = _ACCESS if is_refused else _DOWN
            raise _failure(uri, what, _google_reason(error), remedy) from error

    def _check_bucket(self, what: str, bucket: str, key: str) -> None:
        """Raise the error of a missing bucket: a missing object has the same status."""
        if bucket in self._buckets:
            return
        with self._errors(what, bucket, key, tells_bucket=True):
            # Listing needs no permission beyond those of reading and writing objects.
            next(iter(self._client.list_blobs(bucket, max_results=1, **self._options)), None)
        self._buckets.add(bucket)

    def _facts(self, bucket: str, key: str) -> ObjectFacts:
        with self._errors("look up", bucket, key):
            blob = self._client.bucket(bucket).blob(key)
            blob.reload(**self._options)
        metadata = blob.metadata or {}
        return ObjectFacts(int(blob.size), str(blob.generation), blob.updated, metadata)

    def _read(self, bucket: str, key: str, span: tuple[int, int | None] | None) -> bytes:
        begin, end = span or (None, None)

        def fetched() -> bytes:
            blob = self._client.bucket(bucket).blob(key)
            return blob.download_as_bytes(
                start=begin,
                end=None if end is None else end - 1,
                raw_download=True,
                checksum="auto" if span is None else None,
                **self._options,
            )

        from google.cloud.storage.exceptions import DataCorruption

        with self._errors("read", bucket, key):
            try:
                return fetched()
            except DataCorruption:
                return fetched()

    def _listed(self, bucket: str, prefix: str, delimiter: str) -> Iterator[str]:
        with self._errors("list", bucket, prefix, tells_bucket=True):
            found = self._client.list_blobs(
                bucket, prefix=prefix, delimiter=delimiter or None, **self._options
            )
            yield from (blob.name for blob in found)
            yield from sorted(found.prefixes)

    def _write(
        self, bucket: str, key: str, stream: IO[bytes], headers: Any, before: str | None
    ) -> None:
        # Told the size, the library sends what is small by one request.
        size = stream.seek(0, os.SEEK_END)
        with self._errors("write", bucket, key):
            blob = self._client.bucket(bucket).blob(key)
            blob.metadata = headers["metadata"]
            blob.upload_from_file(
                stream,
                rewind=True,
                size=size,
                if_generation_match=None if before is None else int(before or 0),
                checksum="crc32c",
                content_type=headers["content_type"],
                # Every caller may write the same again: a request without an answer is repeated.
                **self._options,
            )

    def _delete(self, bucket: str, keys: list[str]) -> None:
        from google.api_core.exceptions import NotFound, from_http_response

        if len(keys) == 1:
            with suppress(FileNotFoundError), self._errors("delete", bucket, keys[0]):
                self._client.bucket(bucket).blob(keys[0]).delete(**self._options)
            return
        left = list(keys)

        def attempt() -> None:
            with self._client.batch(raise_exception=False) as batch:
                for key in left:
                    blob = self._client.bucket(bucket).blob(key)
                    blob.delete(retry=None, timeout=self._options["timeout"])
            answers = dict(zip(left, batch._responses, strict=True))  # noqa: SLF001  (as documented)
            if any(answer.status_code == _NOT_FOUND for answer in answers.values()):
                self._check_bucket("delete", bucket, left[0])
            failed = [key for key in left if answers[key].status_code not in _DELETED]
            # A refusal that no repetition changes comes first, and ends them.
            left[:] = sorted(failed, key=lambda key: answers[key].status_code in _BUSY)
            if left:
                raise from_http_response(answers[left[0]])  # type: ignore[no-untyped-call]

        try:
            # The library repeats neither batches nor their members.
            self._options["retry"](attempt)()
        except (NotFound, ValueError):
            # Emulators take no batches, or none of this library's.
            with ThreadPoolExecutor(_DELETED_AT_ONCE) as pool:
                list(pool.map(lambda key: self._delete(bucket, [key]), left))
        except Exception:
            with self._errors("delete", bucket, left[0]):
                raise


def _google_reason(error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    # Of what requests wraps around what urllib3 wraps, the innermost says what happened.
    inner = getattr(cause.args[0], "reason", None) if cause.args else None
    lines = str(getattr(cause, "message", "") or inner or cause).splitlines() or [repr(cause)]
    return lines[0][:200]


class S3Store(ObjectStore):
    """The objects of S3, which may fail to answer so long; see `ObjectStore`."""

    _deleted_together = 1000

    def __init__(self, timeout: float) -> None:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise InputError(f"s3:// needs boto3; {install_hint('s3')}") from error
        self._timeout = timeout
        config = Config(
            connect_timeout=timeout * _PATIENCE,
            read_timeout=timeout * _PATIENCE,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
            max_pool_connections=32,
        )
        try:
            self._client: Any = boto3.client("s3", config=config)
        except (BotoCoreError, ValueError) as error:
            raise StorageError(f"no client for s3://: {error}{_ACCESS}") from error

    def _answer_to(self, request: Callable[[], _Answer]) -> _Answer:
        """Return the answer to a request, repeated until the time limit while there is none."""
        # The library gives up after a few tries, sooner than an outage ends.
        until = time.monotonic() + self._timeout
        wait = self._timeout * _PATIENCE / 10
        while True:
            try:
                return request()
            except _no_answer() as error:
                is_final = getattr(error, "response", None) and _status(error) not in _BUSY
                if is_final or time.monotonic() + wait >= until:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    @contextmanager
    def _errors(self, what: str, bucket: str, key: str) -> Iterator[None]:
        from botocore import exceptions
        from urllib3.exceptions import HTTPError

        uri = f"s3://{bucket}/{key}"
        try:
            yield
        except exceptions.ClientError as error:
            details = error.response.get("Error", {})
            code, status = details.get("Code", ""), _status(error)
            if code in ("PreconditionFailed", "ConditionalRequestConflict") or status == 412:
                raise VersionConflictError(uri) from error
            if code == "NoSuchBucket":
                raise _no_bucket(uri, what, bucket) from error
            if code == "InvalidRange" or status == 416:
                raise _failure(uri, what, "it became shorter while it was read") from error
            if status == 404:
                raise no_object(uri) from error
            is_refused = status in (401, 403)
            reason = "access denied" if is_refused else f"HTTP {status}"
            reason = f"{details.get('Message') or reason} ({code})"
            raise _failure(uri, what, reason, _ACCESS if is_refused else _DOWN) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise _failure(uri, what, str(error), _ACCESS) from error
        except exceptions.ParamValidationError as error:
            reason = str(error).partition("failed:")[2].partition(": Bucket name must")[0]
            raise _failure(uri, what, reason, "; correct the name") from error
        except (exceptions.BotoCoreError, HTTPError, ConnectionError) as error:
            raise _failure(uri, what, str(error), _DOWN) from error

    def _facts(self, bucket: str, key: str) -> ObjectFacts:
        place = {"Bucket": bucket, "Prefix": key, "MaxKeys": 1}
        try:
            with self._errors("look up", bucket, key):
                head = self._answer_to(lambda: self._client.head_object(Bucket=bucket, Key=key))
        except FileNotFoundError:
            # The answer to HEAD does not distinguish a missing bucket from a missing object.
            with self._errors("look up", bucket, key):
                self._answer_to(lambda: self._client.list_objects_v2(**place))
            raise
        names = ("ContentLength", "ETag", "LastModified", "Metadata")
        return ObjectFacts(*(head[name] for name in names))

    def _read(self, bucket: str, key: str, span: tuple[int, int | None] | None) -> bytes:
        begin, end = span or (0, None)
        part = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"} if span else {}

        def fetched() -> bytes:
            # The body is part of it: the library's own repetitions end where it begins.
            answer = self._client.get_object(Bucket=bucket, Key=key, **part)
            content: bytes = answer["Body"].read()
            return content

        with self._errors("read", bucket, key):
            return self._answer_to(fetched)

    def _listed(self, bucket: str, prefix: str, delimiter: str) -> Iterator[str]:
        wanted = {"Bucket": bucket, "Prefix": prefix}
        wanted |= {"Delimiter": delimiter} if delimiter else {}
        with self._errors("list", bucket, prefix):
            while True:
                page = self._answer_to(lambda: self._client.list_objects_v2(**wanted))
                yield from (one["Key"] for one in page.get("Contents", ()))
                yield from (folder["Prefix"] for folder in page.get("CommonPrefixes", ()))
                if not page.get("IsTruncated"):
                    return
                wanted["ContinuationToken"] = page["NextContinuationToken"]

    def _write(
        self, bucket: str, key: str, stream: IO[bytes], headers: Any, before: str | None
    ) -> None:
        condition = {"IfMatch": before} if before else {"IfNoneMatch": "*"}

        def put() -> None:
            stream.seek(0)
            self._client.put_object(
                Bucket=bucket,
                Key=key,
                Body=stream,
                Metadata=headers["metadata"],
                ContentType=headers["content_type"],
                **({} if before is None else condition),
            )

        try:
            with self._errors("write", bucket, key):
                self._answer_to(put)
        except FileNotFoundError as error:
            # What it was to replace is gone.
            raise VersionConflictError(str(error)) from error

    def _delete(self, bucket: str, keys: list[str]) -> None:
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        with self._errors("delete", bucket, keys[0]):
            response = self._answer_to(
                lambda: self._client.delete_objects(Bucket=bucket, Delete=wanted)
            )
        for failed in response.get("Errors", ()):
            uri = f"s3://{bucket}/{failed.get('Key')}"
            raise _failure(uri, "delete", str(failed.get("Message") or failed.get("Code")))


def _no_answer() -> tuple[type[Exception], ...]:
    """Return what is raised where no answer came, or none that is whole, or one to ask again."""
    from botocore import exceptions
    from urllib3.exceptions import HTTPError

    names = ("ClientError", "FlexibleChecksumError", "HTTPClientError", "IncompleteReadError")
    return (*(getattr(exceptions, name) for name in names), HTTPError, ConnectionError)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
