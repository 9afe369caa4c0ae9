"""Where a run reads and writes, and which folders it makes."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.changelist.reading import CHANGELIST, TABLE
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import (
    StoragePath,
    beneath,
    make_folder,
    storage_errors,
    storage_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.config.common import DataConfig


@dataclass(frozen=True)
class RunPaths:
    """Where a run reads and writes.

    Attributes
    ----------
    further : names of further published files
    """

    files: Sequence[str]
    output: StoragePath
    work: StoragePath
    further: tuple[str, ...] = ()

    @property
    def document(self) -> StoragePath:
        """The document, which names the other files that are published."""
        return self.output / CHANGELIST

    @property
    def table(self) -> StoragePath:
        """The well-known name of the table."""
        return self.output / TABLE


@contextmanager
def removing_new_folders(config: DataConfig) -> Iterator[None]:
    """Where wrong input ends a run, remove the empty folders that were not there before it."""
    missing: list[Path] = []
    for option, name in (("--output", config.output), ("--work-dir", config.work_dir)):
        path = storage_path(name, option) if name else None
        if isinstance(path, Path):
            with storage_errors(path, "read"):
                missing += [one for one in (path, *path.parents) if not one.exists()]
    try:
        yield
    except InputError:
        for folder in sorted(missing, key=lambda one: -len(one.parts)):
            # Somebody else may have put something there in the meantime.
            with suppress(OSError):
                folder.rmdir()
        raise


def places_of(config: DataConfig) -> RunPaths:
    """Return where a run reads and writes, after making the output folder.

    Raises
    ------
    InputError
        A path can't be what it is to be.
    """
    files = expand_paths(config.data)
    output = storage_path(config.output, "--output")
    if output.is_file():
        raise OptionError(f"--output {output} is a file; name a folder")
    with storage_errors(output, "make the output folder"):
        make_folder(output)
    folder = (
        storage_path(config.work_dir, "--work-dir") if config.work_dir else beneath(output, "_work")
    )
    if _same(folder, output):
        raise OptionError(
            f"--work-dir {folder} is the output folder; name another folder, or leave it out"
        )
    return RunPaths(files, output, folder)


def writer() -> str:
    """Return how another run describes this one to its user."""
    return f"the run of process {os.getpid()} on {socket.gethostname()}"


def _same(one: StoragePath, other: StoragePath) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return one.resolve() == other.resolve()
    return one == other
