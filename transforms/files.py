"""Paths: which files a user means, what they hold, and how a file is written whole or not at all."""

from __future__ import annotations

import errno
import glob
import os
import re
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from slicebeam.metrics.errors import EngineError, InputError, nearest, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Format = Literal["parquet", "csv", "jsonl", "tfrecord"]

FORMATS: tuple[Format, ...] = ("parquet", "csv", "jsonl", "tfrecord")

_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}


def local_path(path: str, what: str = "") -> Path:
    """Return the local path that the user named (by an option); another store's is an error."""
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+)://", path)
    if scheme and scheme.group(1) != "file":
        named = f"{what} {path}".strip()
        raise InputError(
            f"{named}: {scheme.group(1)}:// is not supported by this version; name a local path"
        )
    return Path(path.removeprefix("file://")).expanduser()


def expand_paths(patterns: Sequence[str]) -> list[str]:
    """Return the files that the paths, folders' globs and globs name, each once, sorted by name.

    Raises
    ------
    InputError
        A path does not exist, a glob matches nothing, or a path is a folder.
    """
    found: set[str] = set()
    for pattern in patterns:
        path = local_path(pattern, "--data")
        if path.is_dir():
            raise InputError(f"--data {pattern} is a folder; name its files: '{pattern}/*.parquet'")
        if path.exists():
            found.add(str(path))
            continue
        # Path.glob takes no pattern that begins at the root.
        names = glob.glob(str(path), recursive=True)  # noqa: PTH207
        matches = [name for name in names if Path(name).is_file()]
        if not matches:
            is_glob = glob.has_magic(str(path))
            what = "no file matches" if is_glob else "no such file"
            raise InputError(f"--data {pattern}: {what}{_nearest_file(path)}")
        found.update(matches)
    return sorted(found)


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; the folder {path.parent} does not exist"
    near = nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    return f"; did you mean {str(path.parent / near)!r}?" if near else ""


def file_format(path: str, override: str | None = None) -> Format:
    """Return the format of a file, from its name unless it is overridden."""
    if override is not None:
        if override not in FORMATS:
            raise unknown_name("format", override, FORMATS)
        return override
    name = Path(path).name.lower().removesuffix(".gz")
    # Sharded names end in a number: examples.tfrecord-00000-of-00010.
    name = re.sub(r"-\d+-of-\d+$", "", name)
    for suffix, format_name in _SUFFIXES.items():
        if name.endswith(suffix):
            return format_name
    raise InputError(
        f"{path}: the name does not tell the format; give --format {'|'.join(FORMATS)}"
    )


@contextmanager
def storage_errors(path: str | Path, what: str) -> Iterator[None]:
    """Turn an operating-system error into one line for the user that names the file."""
    try:
        yield
    except OSError as error:
        # Arrow puts the system's reason at the end of a longer sentence and keeps no errno.
        reason = error.strerror or str(error).rsplit("Detail:", maxsplit=1)[-1].strip()
        remedy = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            remedy = "; free some space, or choose another --output or --work-dir"
        elif error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            remedy = "; choose a folder that you may write to"
        raise EngineError(f"cannot {what} {path}: {reason}{remedy}") from error


@contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when all of it was written.

    A temporary file beside it is renamed at the end, so a reader (or a crash) sees the old file
    or the new one, and a bundle that runs twice writes the same file twice.
    """
    with written_together(path) as (stream,):
        yield stream


@contextmanager
def written_together(*paths: str | Path) -> Iterator[list[IO[bytes]]]:
    """Open files that appear under their names, one after another, only when all are written.

    The streams can be read back.
    """
    targets = [Path(path) for path in paths]
    temporaries: list[Path] = []
    streams: list[IO[bytes]] = []
    mask = os.umask(0)
    os.umask(mask)
    try:
        for target in targets:
            with storage_errors(target, "write"):
                descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            temporaries.append(Path(name))
            streams.append(os.fdopen(descriptor, "w+b"))
        with storage_errors(" and ".join(map(str, targets)), "write"):
            yield streams
            for stream, temporary in zip(streams, temporaries, strict=True):
                stream.flush()
                os.fsync(stream.fileno())
                temporary.chmod(0o666 & ~mask)
            for temporary, target in zip(temporaries, targets, strict=True):
                temporary.replace(target)
    finally:
        # After success nothing of this name is left.
        for stream, temporary in zip(streams, temporaries, strict=True):
            with suppress(OSError):
                # Closing writes what is buffered once more, and fails where the disk is full.
                stream.close()
            temporary.unlink(missing_ok=True)
