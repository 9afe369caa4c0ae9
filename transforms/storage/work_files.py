"""Files of the work folder, with checksums, so that damage is never read as data."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.storage import (
    open_input,
    open_unchanging,
    open_whole,
    storage_errors,
    written_whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicebeam.transforms.storage.storage import StoragePath


# The file ends in the checksum of all that comes before.
_CHECKSUM = struct.Struct("<4sI")
_MARK = b"CRC1"
_BLOCK = 1 << 20
_verified: set[tuple[str, int, int]] = set()


class DamagedFileError(EngineError):
    """A file of the work folder has changed since it was written."""

    def __init__(self, path: StoragePath | str) -> None:
        super().__init__(
            f"{path} is damaged: its content has changed; delete it, and run again without --resume"
        )


def write_facts(path: StoragePath, facts: Any) -> None:
    """Write what JSON can hold, all of it or nothing."""
    content = {"checksum": _checksum(facts), "facts": facts}
    with written_whole(path) as stream:
        stream.write(json.dumps(content, ensure_ascii=False).encode())


def read_facts(path: StoragePath) -> Any:
    """Return what `write_facts` wrote."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError:
        with storage_errors(path, "read"):
            raise
    # Damaged, it may be no JSON, or JSON of another shape.
    with suppress(ValueError, TypeError, KeyError):
        content = json.loads(text)
        if content["checksum"] == _checksum(content["facts"]):
            return content["facts"]
    raise DamagedFileError(path)


def _checksum(facts: Any) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


def checksum_of(stream: IO[bytes]) -> int:
    """Return the checksum of all that a stream holds."""
    stream.seek(0)
    crc = 0
    while block := stream.read(_BLOCK):
        crc = zlib.crc32(block, crc)
    return crc


def open_checked(path: StoragePath, checksum: int) -> pa.NativeFile:
    """Map a file that was written with a checksum, which is compared once in a process."""
    whole, written = _mapped(path, is_unchanging=True)
    _verify(path, whole, checksum, written)
    return pa.BufferReader(whole)


def _mapped(path: StoragePath, *, is_unchanging: bool) -> tuple[pa.Buffer, int]:
    """Return what a file holds, mapped while something reads it, and when it was written (0: unknown)."""
    try:
        with storage_errors(path, "read"):
            whole = (open_unchanging(path) if is_unchanging else open_whole(path)).read_buffer()
            return whole, path.stat().st_mtime_ns if isinstance(path, Path) else 0
    except (pa.ArrowException, ValueError) as error:
        # Nothing can't be mapped.
        raise DamagedFileError(path) from error


def _verify(path: StoragePath, content: pa.Buffer, checksum: int, written: int) -> None:
    known = (str(path), checksum, written)
    if not (written and known in _verified) and zlib.crc32(content) != checksum:
        raise DamagedFileError(path)
    _verified.add(known)


def part_path(folder: StoragePath, number: int) -> StoragePath:
    """Return the file of a part of a stage's output."""
    return folder / f"{number:06d}.arrow"


def write_arrow(path: StoragePath, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write record batches as one file, which appears whole or not at all."""
    with written_whole(path) as stream:
        with pa.ipc.new_file(pa.PythonFile(stream, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        stream.write(_CHECKSUM.pack(_MARK, checksum_of(stream)))


def open_arrow(path: StoragePath, *, is_unchanging: bool = False) -> pa.ipc.RecordBatchFileReader:
    """Open a file that `write_arrow` wrote; its columns are mapped, its checksum compared the first time.

    `is_unchanging`: whether the file does not change during the run and is read many times.
    """
    whole, written = _mapped(path, is_unchanging=is_unchanging)
    if whole.size < _CHECKSUM.size:
        raise DamagedFileError(path)
    body = whole.slice(0, whole.size - _CHECKSUM.size)
    mark, crc = _CHECKSUM.unpack(whole.slice(body.size).to_pybytes())
    if mark != _MARK:
        raise DamagedFileError(path)
    _verify(path, body, crc, written)
    try:
        return pa.ipc.open_file(body)
    except pa.ArrowException as error:
        raise DamagedFileError(path) from error


def read_metadata(path: StoragePath) -> dict[bytes, bytes]:
    """Return the metadata of a file's schema, reading no more of it; the rest is not checked."""
    with storage_errors(path, "read"), open_input(path) as file:
        try:
            end = file.size() - _CHECKSUM.size
            return dict(pa.ipc.open_file(file, footer_offset=end).schema.metadata or {})
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise DamagedFileError(path) from error
