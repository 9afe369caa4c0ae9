"""S3 and compatible stores, accessed through boto3."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

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
    from collections.abc import Callable, Iterable, Iterator, Mapping

_Answer = TypeVar("_Answer")
# One request deletes at most so many objects.
_DELETED_TOGETHER = 1000
# How often the library itself tries, in a few seconds.
_TRIES = 4
_LONGEST_WAIT = 10.0
_BUSY = (429, 500, 502, 503, 504)


class S3Store:
    """The objects of S3, which may fail to answer so long; see `ObjectStore`."""

    def __init__(self, timeout: float) -> None:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise InputError(f"s3:// needs boto3; {install_hint('s3')}") from error
        self._timeout = timeout
        config = Config(
            connect_timeout=timeout * PATIENCE,
            read_timeout=timeout * PATIENCE,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
            max_pool_connections=32,
        )
        try:
            self._client: Any = boto3.client("s3", config=config)
        except (BotoCoreError, ValueError) as error:
            raise StorageError(f"no client for s3://: {error}{ACCESS}") from error

    def _answer_to(self, request: Callable[[], _Answer]) -> _Answer:
        """Return the answer to a request, repeated until the time limit while there is none.

        The library gives up after a few tries, sooner than an outage ends.
        """
        until = time.monotonic() + self._timeout
        wait = self._timeout * PATIENCE / 10
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
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            ParamValidationError,
            PartialCredentialsError,
        )
        from urllib3.exceptions import HTTPError

        uri = f"s3://{bucket}/{key}"
        try:
            yield
        except ClientError as error:
            details = error.response.get("Error", {})
            code, status = details.get("Code", ""), _status(error)
            if code in ("PreconditionFailed", "ConditionalRequestConflict") or status == 412:
                raise VersionConflictError(uri) from error
            if code == "NoSuchBucket":
                raise no_bucket(uri, what, bucket) from error
            if code == "InvalidRange" or status == 416:
                reason, remedy = "it became shorter while it was read", ""
            elif status == 404:
                raise NoObjectError(uri) from error
            elif status in (401, 403):
                reason, remedy = f"{details.get('Message') or 'access denied'} ({code})", ACCESS
            else:
                reason, remedy = f"{details.get('Message') or 'HTTP ' + str(status)} ({code})", DOWN
            raise failure(uri, what, reason, remedy) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise failure(uri, what, str(error), ACCESS) from error
        except ParamValidationError as error:
            reason = str(error).partition("failed:")[2].partition(": Bucket name must")[0]
            raise failure(uri, what, reason, "; correct the name") from error
        except (BotoCoreError, HTTPError, ConnectionError) as error:
            raise failure(uri, what, str(error), DOWN) from error

    def facts(self, bucket: str, key: str) -> ObjectFacts | None:
        """Return the metadata of an object, None if it does not exist."""
        try:
            with self._errors("look up", bucket, key):
                head = self._answer_to(lambda: self._client.head_object(Bucket=bucket, Key=key))
        except NoObjectError:
            # The answer to HEAD does not distinguish a missing bucket from a missing object.
            with self._errors("look up", bucket, key):
                self._answer_to(
                    lambda: self._client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
                )
            return None
        return ObjectFacts(
            key, head["ContentLength"], head["ETag"], head["LastModified"], head["Metadata"]
        )

    def read(self, bucket: str, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return the bytes ``begin`` to ``end`` of an object."""
        if end is not None and end <= begin:
            return b""
        is_whole = begin == 0 and end is None
        span = {} if is_whole else {"Range": f"bytes={begin}-{'' if end is None else end - 1}"}

        def fetched() -> bytes:
            # The body is part of it: the library's own repetitions end where it begins.
            answer = self._client.get_object(Bucket=bucket, Key=key, **span)
            content: bytes = answer["Body"].read()
            return content

        with self._errors("read", bucket, key):
            return self._answer_to(fetched)

    def listed(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[ObjectFacts]:
        """Yield the objects whose names begin with a prefix."""
        wanted = {"Bucket": bucket, "Prefix": prefix, **({} if deep else {"Delimiter": "/"})}
        with self._errors("list", bucket, prefix):
            while True:
                page = self._answer_to(lambda: self._client.list_objects_v2(**wanted))
                for one in page.get("Contents", ()):
                    yield ObjectFacts(one["Key"], one["Size"], one["ETag"], one["LastModified"])
                for folder in page.get("CommonPrefixes", ()):
                    yield folder_facts(folder["Prefix"])
                if not page.get("IsTruncated"):
                    return
                wanted["ContinuationToken"] = page["NextContinuationToken"]

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
        condition = {"IfNoneMatch": "*"} if is_new else {"IfMatch": expected} if expected else {}

        def put() -> None:
            stream.seek(0)
            self._client.put_object(
                Bucket=bucket,
                Key=key,
                Body=stream,
                Metadata=dict(metadata or {}),
                ContentType=content_type(key),
                **condition,
            )

        try:
            with self._errors("write", bucket, key):
                self._answer_to(put)
        except NoObjectError as error:
            # What it was to replace is gone.
            raise VersionConflictError(str(error)) from error

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        """Delete objects, also those that are gone already."""
        names = list(keys)
        for begin in range(0, len(names), _DELETED_TOGETHER):
            some = names[begin : begin + _DELETED_TOGETHER]
            with self._errors("delete", bucket, some[0]):
                wanted = {"Objects": [{"Key": key} for key in some], "Quiet": True}
                response = self._answer_to(
                    partial(self._client.delete_objects, Bucket=bucket, Delete=wanted)
                )
            for failed in response.get("Errors", ()):
                uri = f"s3://{bucket}/{failed.get('Key')}"
                raise failure(uri, "delete", str(failed.get("Message") or failed.get("Code")))


def _no_answer() -> tuple[type[Exception], ...]:
    """Return what is raised where no answer came, or none that is whole, or one to ask again."""
    from botocore.exceptions import (
        ClientError,
        FlexibleChecksumError,
        HTTPClientError,
        IncompleteReadError,
    )
    from urllib3.exceptions import HTTPError

    return (
        ClientError,
        FlexibleChecksumError,
        HTTPClientError,
        IncompleteReadError,
        HTTPError,
        ConnectionError,
    )


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
