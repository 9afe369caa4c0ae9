"""The segments of a ledger: lines of JSON that are only ever added, each with a checksum."""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.object_stores import VersionConflictError
from slicebeam.transforms.storage.storage import ObjectPath, StoragePath, storage_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Number of the segment, and in object storage of the group of records.
SEGMENT = re.compile(r"segment-(\d{6})(?:-(\d{8}))?\.jsonl")
_CRC = b',"crc":'
# Made once: an encoder costs more than a record.
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def line_of(record: Mapping[str, Any]) -> bytes:
    """Return a record as in a segment, with the CRC-32 of all before it."""
    text = _ENCODE(record).encode()[:-1]
    return b"%s%s%d}\n" % (text, _CRC, zlib.crc32(text))


def record_of(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, None if the line is damaged."""
    text, found, crc = line.rpartition(_CRC)
    if not found or crc != b"%d}" % zlib.crc32(text):
        return None
    with suppress(ValueError):
        record = json.loads(text + b"}")
        if isinstance(record, dict) and "kind" in record:
            return record
    return None


class Segment(Protocol):
    """Where a run writes its records."""

    def write(self, data: bytes) -> None:
        """Append whole lines, durably."""

    def close(self) -> None:
        """Write no more."""


def new_segment(folder: StoragePath, number: int) -> Segment:
    """Return a segment of a folder to which nothing is written yet."""
    return (
        _ObjectSegment(folder, number)
        if isinstance(folder, ObjectPath)
        else _FileSegment(folder, number)
    )


class _FileSegment:
    """A file that only grows; it is made when there is something to write."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / f"segment-{number:06d}.jsonl"
        self._file: int | None = None

    def write(self, data: bytes) -> None:
        with storage_errors(self.path, "write"):
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._file = os.open(self.path, flags, 0o666)
                self._settle_name()
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)

    def _settle_name(self) -> None:
        """Bring the name of the new file to the disk too."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            # Some file systems have no such thing, and keep names anyway.
            with suppress(OSError):
                os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _ObjectSegment:
    """One object for each group of records, because objects do not grow."""

    def __init__(self, folder: ObjectPath, number: int) -> None:
        self._folder, self._number, self._written = folder, number, 0

    def write(self, data: bytes) -> None:
        path = self._folder / f"segment-{self._number:06d}-{self._written + 1:08d}.jsonl"
        try:
            path.store.write(path.bucket, path.key, io.BytesIO(data), is_new=True)
        except VersionConflictError as error:
            # It may be what a lost answer to this very request wrote.
            if path.read_bytes() != data:
                raise EngineError(
                    f"another run also writes to {self._folder}; wait for it, or choose another "
                    "--ledger"
                ) from error
        self._written += 1

    def close(self) -> None:
        pass
