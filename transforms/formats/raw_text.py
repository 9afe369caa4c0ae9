"""The bytes of a file: opened, unpacked, and checked to be UTF-8 text."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from slicebeam.metrics.errors import FileError, InputError
from slicebeam.transforms.storage.storage import storage_path

_SHOWN = 80
# A block of text grows up to here where a single row or line is longer.
LARGEST_BLOCK = 256 << 20


def open_stored(path: str) -> BinaryIO:
    """Open a file for reading bytes; the default of every reader's ``open_file``."""
    return storage_path(path).open("rb")


@contextmanager
def open_bytes(path: str, open_file: Callable[[str], BinaryIO] = open_stored) -> Iterator[BinaryIO]:
    """Open a file (as stored: `open_file`), uncompressed on the way when its name ends in ``.gz``."""
    try:
        with open_file(path) as stored:
            if path.endswith(".gz"):
                with gzip.open(stored, "rb") as plain:
                    yield cast("BinaryIO", plain)
            else:
                yield stored
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path}: the gzip is corrupt or cut off ({error}); compress or copy the file again"
        ) from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def beginning(text: str) -> str:
    """Return as much of a text as an error shows."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def require_text(data: bytes, path: str, first_line: int) -> None:
    """Raise an InputError with file, line (counted from the first) and value unless the bytes are UTF-8."""
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        near = data[max(0, error.start - 15) : error.start + 5]
        begins = {b"\x1f\x8b": "gzip: name it .gz", b"PAR1": "Parquet: give --format parquet"}
        hint = "".join(
            f"; it starts like {what}" for magic, what in begins.items() if data.startswith(magic)
        )
        raise FileError(
            f"{path}, line {line}: not UTF-8 near {near!r}; convert the file to UTF-8 "
            f"(iconv -f latin1 -t utf-8){hint}"
        ) from error


def require_text_file(path: str, open_file: Callable[[str], BinaryIO]) -> None:
    """Raise an InputError with file, line and value unless the file is UTF-8."""
    line = 1
    rest = b""
    with open_bytes(path, open_file) as stream:
        while data := stream.read(1 << 20):
            lines, newline, rest = (rest + data).rpartition(b"\n")
            require_text(lines + newline, path, line)
            line += lines.count(b"\n") + len(newline)
    require_text(rest, path, line)


def require_whole_gzip(path: str, open_file: Callable[[str], BinaryIO] = open_stored) -> None:
    """Raise an InputError if a gzip is corrupt: damage shows as odd text before its checksum."""
    if path.endswith(".gz"):
        with open_bytes(path, open_file) as stream:
            while stream.read(1 << 20):
                pass
