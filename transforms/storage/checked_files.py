"""Other files of the work folder, with checksums, so that damage is never read as data."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.storage import open_unchanging, storage_errors, written_whole

if TYPE_CHECKING:
    import pyarrow as pa

    from slicebeam.transforms.storage.storage import StoragePath

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
    with storage_errors(path, "read"):
        try:
            file = open_unchanging(path)
        except ValueError as error:
            # Nothing can't be mapped.
            raise DamagedFileError(path) from error
        written = path.stat().st_mtime_ns if isinstance(path, Path) else 0
    known = (str(path), checksum, written)
    if known not in _verified:
        if zlib.crc32(file.read_buffer()) != checksum:
            raise DamagedFileError(path)
        file.seek(0)
        _verified.add(known)
    return file
