"""Arrow files of the work folder, with a checksum, so that damage is never read as data."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from slicebeam.transforms.storage.checked_files import DamagedFileError
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
# How Arrow's own file begins, and how it ends: the footer's length, and a mark.
_BEGINNING, _TRAILER = b"ARROW1\0\0", struct.Struct("<i6s")
_verified: set[tuple[str, int, int]] = set()


class _Checked(io.RawIOBase):
    """A stream whose bytes are summed up on the way."""

    def __init__(self, stream: object) -> None:
        self.stream, self.crc = stream, 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.crc = zlib.crc32(data, self.crc)  # type: ignore[arg-type]
        return int(self.stream.write(data))  # type: ignore[attr-defined]


def part_path(folder: StoragePath, number: int) -> StoragePath:
    """Return the file of a part of a stage's output."""
    return folder / f"{number:06d}.arrow"


def write_arrow(path: StoragePath, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write record batches as one file, which appears whole or not at all."""
    with written_whole(path) as stream:
        checked = _Checked(stream)
        sink = pa.PythonFile(checked, mode="w")
        with pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        stream.write(_CHECKSUM.pack(_MARK, checked.crc))


def open_arrow(path: StoragePath, *, is_unchanging: bool = False) -> pa.ipc.RecordBatchFileReader:
    """Open a file that `write_arrow` wrote; its columns are mapped, its checksum compared the first time.

    `is_unchanging`: whether the file does not change during the run and is read many times.
    """
    try:
        with storage_errors(path, "read"):
            # The mapping lives as long as what is read from it.
            whole = (open_unchanging(path) if is_unchanging else open_whole(path)).read_buffer()
            written = path.stat().st_mtime_ns if isinstance(path, Path) else 0
    except pa.ArrowException as error:
        raise DamagedFileError(path) from error
    if whole.size < _CHECKSUM.size:
        raise DamagedFileError(path)
    body = whole.slice(0, whole.size - _CHECKSUM.size)
    mark, crc = _CHECKSUM.unpack(whole.slice(body.size).to_pybytes())
    known = (str(path), crc, written)
    if mark != _MARK or (not (known in _verified and written) and zlib.crc32(body) != crc):
        raise DamagedFileError(path)
    _verified.add(known)
    try:
        return pa.ipc.open_file(body)
    except pa.ArrowException as error:
        raise DamagedFileError(path) from error


def read_metadata(path: StoragePath) -> dict[bytes, bytes]:
    """Return the metadata of a file's schema, reading no more of it; the rest is not checked."""
    try:
        with storage_errors(path, "read"), open_input(path) as file:
            footer = _footer(file)
        # A file of only its beginning and its footer, which holds the schema.
        with pa.ipc.open_file(_BEGINNING + footer) as whole:
            return dict(whole.schema.metadata or {})
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(path) from error


def _footer(file: pa.NativeFile) -> bytes:
    """Return the footer of a file, with what follows it; nothing if there is none."""
    end = file.size() - _CHECKSUM.size - _TRAILER.size
    if end <= 0:
        return b""
    file.seek(end)
    length, _ = _TRAILER.unpack(file.read(_TRAILER.size))
    if not 0 < length <= end:
        return b""
    file.seek(end - length)
    footer: bytes = file.read(length + _TRAILER.size)
    return footer
