"""The work folder: what a run has finished, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.config import PRESENTATION, flag
from slicebeam.transforms.files import storage_errors, written_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config import SearchConfig

_MARKER = "run.json"
_OWNER = "owner"
_LAYOUT = 2
# What a run puts into its work folder besides these two.
_FOLDERS = re.compile(
    r"parquet|domains|shards|parents|(first-)?hashes|overlaps|iteration-\d+(-resampled(-parts|-groups)?)?"
)
_FILES = {
    "converted.json",
    "domains.json",
    "encoded.json",
    "overlapping.json",
    "workers.log",
}


class WorkFolder:
    """A folder that belongs to one run: its configuration, its data, and what is finished.

    Every file in it appears whole or not at all, and a stage that is done has a JSON file that
    says so; resuming is skipping these.

    Parameters
    ----------
    path : the folder
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, config: SearchConfig, files: Sequence[str], *, resume: bool) -> None:
        """Make the folder ready for a run, anew or to go on.

        Raises
        ------
        InputError
            To resume: there is nothing, or it belongs to another configuration or other data. To
            begin: the folder holds something that no run put there.
        EngineError
            It cannot be written, or another run is using it.
        """
        # What is missing among these is said where it is read.
        others = [config.model, config.baseline_model, config.domains]
        read = [*files, *(path for path in others if path and Path(path).exists())]
        run = {
            "layout": _LAYOUT,
            "config": config.model_dump(mode="json", exclude=set(PRESENTATION)),
            "files": {path: _identity(path) for path in read},
        }
        marker = self.path / _MARKER
        if self.path.is_file():
            raise InputError(f"--work-dir {self.path} is a file; name a folder")
        if resume:
            self._check(run, marker)
        elif self.path.exists() and any(self.path.iterdir()) and not marker.exists():
            raise InputError(
                f"--work-dir {self.path} holds files that no run put there; choose an empty folder"
            )
        elif self.path.exists():
            self._claim()
            with storage_errors(self.path, "clear"):
                self._clear()
        with storage_errors(self.path, "make"):
            self.path.mkdir(parents=True, exist_ok=True)
        self._claim()
        with written_whole(marker) as stream:
            stream.write(json.dumps(run, indent=1).encode())

    def _clear(self) -> None:
        """Remove the stages of a run, and nothing that somebody else put there."""
        for entry in self.path.iterdir():
            if _FOLDERS.fullmatch(entry.name) and entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name in _FILES:
                entry.unlink()

    def _check(self, run: dict[str, Any], marker: Path) -> None:
        earlier = _read_json(marker)
        if not earlier:
            raise InputError(f"--resume: {self.path} holds no run to resume; leave --resume out")
        if earlier.get("layout") != run["layout"]:
            raise InputError(
                f"--resume: {self.path} was written by another version; leave --resume out"
            )
        for key, value in run["config"].items():
            before = earlier["config"].get(key)
            if before != value:
                raise InputError(
                    f"--resume: {flag(key)} is {_shown(value)} but was {_shown(before)} in "
                    f"{self.path}; use the same options, or leave --resume out"
                )
        for path in {**earlier["files"], **run["files"]}:
            if earlier["files"].get(path) != run["files"].get(path):
                raise InputError(
                    f"--resume: the data changed since the run began ({path}); leave --resume out"
                )

    def _claim(self) -> None:
        """Refuse a folder that a living process uses."""
        owner = self.path / _OWNER
        pid, started = _read_json(owner).get("pid"), _read_json(owner).get("started")
        if pid not in (None, os.getpid()) and started == _started(pid):
            raise EngineError(
                f"another run (process {pid}) is using {self.path}; wait for it, or choose "
                "another --work-dir"
            )
        with written_whole(owner) as stream:
            stream.write(
                json.dumps({"pid": os.getpid(), "started": _started(os.getpid())}).encode()
            )

    def folder(self, name: str) -> Path:
        """Return a folder in it, which exists."""
        path = self.path / name
        with storage_errors(path, "make"):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def empty_folder(self, name: str) -> Path:
        """Return a folder in it with nothing in it.

        A stopped run may have left parts there, of which another number of workers makes others.
        """
        path = self.path / name
        with storage_errors(path, "empty"):
            if path.exists():
                shutil.rmtree(path)
        return self.folder(name)

    def done(self, stage: str) -> dict[str, Any] | None:
        """Return what a finished stage left behind, None if it is not finished."""
        path = self.path / f"{stage}.json"
        return _read_json(path) if path.exists() else None

    def finish(self, stage: str, facts: dict[str, Any]) -> None:
        """Note that a stage is finished."""
        with written_whole(self.path / f"{stage}.json") as stream:
            stream.write(json.dumps(facts).encode())

    def remove(self) -> None:
        """Remove what the run put there; the folder too unless something else is in it."""
        with storage_errors(self.path, "clear"):
            self._clear()
            (self.path / _MARKER).unlink(missing_ok=True)
            (self.path / _OWNER).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()


def _identity(path: str) -> list[int]:
    with storage_errors(path, "read"):
        stat = os.stat(path)  # noqa: PTH116
    return [stat.st_size, stat.st_mtime_ns]


def _read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file, nothing where it is missing or no JSON object."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _started(pid: int) -> str | None:
    """Return when a process was started, None if it is gone; a reused number has another time."""
    try:
        os.kill(pid, 0)
        # The 22nd field, counted from behind the name, which may hold blanks.
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except ProcessLookupError:
        return None
    except (PermissionError, FileNotFoundError, IndexError):
        # A system without /proc: the process lives, and nothing more is known.
        return ""


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
