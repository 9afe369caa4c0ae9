"""The work folder: what a run has finished, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
import os
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
_LAYOUT = 1


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
        run = {
            "layout": _LAYOUT,
            "config": config.model_dump(mode="json", exclude=set(PRESENTATION)),
            "files": {path: _identity(path) for path in files},
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
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name not in (_MARKER, "owner"):
                entry.unlink()

    def _check(self, run: dict[str, Any], marker: Path) -> None:
        if not marker.exists():
            raise InputError(f"--resume: {self.path} holds no run to resume; leave --resume out")
        earlier = json.loads(marker.read_text("utf-8"))
        if earlier["layout"] != run["layout"]:
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
        owner = self.path / "owner"
        if owner.exists():
            pid = int(owner.read_text("ascii") or 0)
            if pid not in (0, os.getpid()) and _alive(pid):
                raise EngineError(
                    f"another run (process {pid}) is using {self.path}; wait for it, or choose "
                    "another --work-dir"
                )
        with written_whole(owner) as stream:
            stream.write(str(os.getpid()).encode())

    def folder(self, name: str) -> Path:
        """Return a folder in it, which exists."""
        path = self.path / name
        with storage_errors(path, "make"):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def done(self, stage: str) -> dict[str, Any] | None:
        """Return what a finished stage left behind, None if it is not finished."""
        path = self.path / f"{stage}.json"
        if not path.exists():
            return None
        facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return facts

    def finish(self, stage: str, facts: dict[str, Any]) -> None:
        """Note that a stage is finished."""
        with written_whole(self.path / f"{stage}.json") as stream:
            stream.write(json.dumps(facts).encode())

    def remove(self) -> None:
        """Remove what the run put there; the folder too unless something else is in it."""
        with storage_errors(self.path, "clear"):
            self._clear()
            (self.path / _MARKER).unlink(missing_ok=True)
            (self.path / "owner").unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()


def _identity(path: str) -> list[int]:
    with storage_errors(path, "read"):
        stat = os.stat(path)  # noqa: PTH116
    return [stat.st_size, stat.st_mtime_ns]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
