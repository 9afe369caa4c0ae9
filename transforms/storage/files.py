"""Which files a user means, and their formats."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import FileError, InputError, nearest, unknown_name
from slicebeam.transforms.storage.file_formats import FORMATS
from slicebeam.transforms.storage.storage import ObjectPath, StoragePath, storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.transforms.storage.file_formats import Format

_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}


def expand_paths(patterns: Sequence[str], option: str = "--data") -> list[str]:
    """Return the files that the paths and globs of an option name, each once, sorted by name."""
    found: set[str] = set()
    for pattern in patterns:
        path = storage_path(pattern, option)
        matches = _matches(path)
        if not matches and path.is_dir():
            raise FileError(
                f"{option} {pattern} is a folder; name its files: '{pattern}/*.parquet'"
            )
        if not matches:
            kind = "object" if isinstance(path, ObjectPath) else "file"
            what = f"no {kind} matches" if glob.has_magic(str(path)) else f"no such {kind}"
            raise FileError(f"{option} {pattern}: {what}{_nearest(path)}")
        for match in matches:
            if "://" not in match and not Path(match).is_file():
                raise FileError(
                    f"{option} {match} is a pipe or a device, which can't be read twice; name a file"
                )
        found.update(matches)
    return sorted(found)


def _matches(path: StoragePath) -> list[str]:
    if path.is_file() or (isinstance(path, Path) and path.exists()):
        return [] if path.is_dir() else [str(path)]
    if isinstance(path, ObjectPath):
        whole = ObjectPath(f"{path.scheme}://{path.bucket}")
        return list(map(str, whole.glob(path.key))) if glob.has_magic(path.key) else []
    # Path.glob takes no pattern that begins at the root.
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207
    return [name for name in names if Path(name).is_file()]


def _nearest(path: StoragePath) -> str:
    if isinstance(path, Path) and not path.parent.is_dir():
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
        f"{path}: the name does not show the format; give --format {'|'.join(FORMATS)}"
    )


def in_both(paths: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the paths, sorted, of files that are among others too, under whatever name."""

    def whole(path: str) -> str:
        return path if "://" in path else os.path.realpath(path)

    there = set(map(whole, others))
    return sorted(path for path in set(paths) if whole(path) in there)
