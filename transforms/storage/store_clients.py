"""The client of each object store, made once in a process."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from slicebeam.transforms.storage.object_stores import storage_timeout

if TYPE_CHECKING:
    from slicebeam.transforms.storage.object_stores import ObjectStore


def object_store(scheme: str) -> ObjectStore:
    """Return the store of ``gs`` or ``s3``; clients are made once in a process."""
    # A forked process must not share the connections of the other.
    return _store(scheme, os.getpid(), storage_timeout())


@lru_cache(maxsize=8)
def _store(scheme: str, process: int, timeout: float) -> ObjectStore:  # noqa: ARG001
    if scheme == "gs":
        from slicebeam.transforms.storage.google_storage import GoogleStore

        return GoogleStore(timeout)
    from slicebeam.transforms.storage.s3_storage import S3Store

    return S3Store(timeout)
