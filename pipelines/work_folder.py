"""The work folder: what a run has finished, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.data_config import PRESENTATION, flag
from slicebeam.pipelines.lock_files import LOCK, lock_file
from slicebeam.pipelines.run_lock import RunLock
from slicebeam.transforms.checked_files import DamagedFileError, read_facts, write_facts
from slicebeam.transforms.sources import changed
from slicebeam.transforms.storage import (
    StoragePath,
    forget_copies,
    identity,
    make_folder,
    remove_folder,
    storage_errors,
    storage_path,
    written_whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from slicebeam.pipelines.data_config import DataConfig

_MARKER = "run.json"
_LAYOUT = 4
# What a run puts into its work folder besides these and the lock.
_FOLDERS = re.compile(
    r"parquet|domains|texts|encoder|embeddings|samples|pca|projected|projecting|mixtures|em-\d+|derived|beside|describing|"
    r"pool-values|pool-items|shards|parents|(first-)?hashes|overlaps|sizes|scores|buckets|totals|ids|deviations|auc-of-all|parents-exact|"
    r"iteration-\d+(-resampled(-parts|-groups|-unchanged|-exact|-exact-all)?|-exact(-parts)?)?"
)
_FILES = {
    "converted.json",
    "domains.json",
    "encoded.json",
    "overlapping.json",
    "sampled.json",
    "embedded.json",
    "derived.json",
    "workers.log",
}

# Where a stage writes that is noted beside its folder.
_WRITTEN = {"converted": "parquet", "encoded": "shards", "overlapping": "overlaps"} | {
    "sampled": "texts",
    "embedded": "embeddings",
    "derived": "derived",
}
# What a killed run was writing.
_TEMPORARY = re.compile(r"\.(lock|workers\.log|[a-z]+\.json)\.[a-z0-9_]{8}")
# How often, and after how many seconds, one looks at a folder that seems to be no run's.
_LOOKS, _BETWEEN_LOOKS = 3, 0.3
# Requests to a store at a time.
_ASKED_TOGETHER = 16


class WorkFolder:
    """A folder that belongs to one run: its configuration, its data, and what is finished.

    Every file in it appears whole or not at all, and a stage that is done has a JSON file that
    says so; resuming is skipping these.

    Parameters
    ----------
    path : the folder

    A context, which lets others have the folder at its end.

    Attributes
    ----------
    run_id : tells the run from others, the same when it is resumed; empty before it began
    is_resumed : whether the run goes on where an earlier one was
    """

    def __init__(self, path: StoragePath) -> None:
        self.path = path
        self.run_id = ""
        self.is_resumed = False
        self._files: dict[str, list[int | str] | None] = {}
        self._lock: RunLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.release()
        except EngineError:
            # The error that ends the run says more than that its lock could not be removed either.
            if error is None:
                raise

    def begin(self, config: DataConfig, files: Sequence[str], *, resume: bool) -> None:
        """Make the folder ready for a run, anew or to go on, and keep others out until released.

        Raises
        ------
        InputError
            To resume: there is nothing, or it belongs to another configuration or other data. To
            begin: the folder holds something that no run put there.
        EngineError
            It cannot be written, or another run is using it.
        """
        run = self._described(config, files)
        self.run_id = uuid.uuid4().hex[:10]
        self.is_resumed = resume
        if self.path.is_file():
            raise InputError(f"--work-dir {self.path} is a file; name a folder")
        self._check_content(run, resume=resume)
        self._acquire()
        try:
            # The run that had it until now may have ended in between, and removed everything.
            self._check_content(run, resume=resume)
            if not resume:
                with storage_errors(self.path, "clear"):
                    self._clear()
            with written_whole(self.path / _MARKER) as stream:
                stream.write(json.dumps({"id": self.run_id, **run}, indent=1).encode())
        except BaseException:
            self.release()
            raise

    def join(self, config: DataConfig, files: Sequence[str]) -> None:
        """Take part in a run whose parts are done in several processes, any of them more than once.

        The first one marks the folder as this run's. Nobody is kept out: whoever joins does the
        same, and files appear whole.

        Raises
        ------
        InputError
            The folder belongs to another configuration or other data, or holds something else.
        """
        run = self._described(config, files)
        marker = self.path / _MARKER
        if marker.exists():
            try:
                self._check(run, marker)
            except InputError as error:
                raise InputError(
                    f"--work-dir {self.path} belongs to another run; name an empty folder"
                ) from error
            return
        self._check_content(run, resume=False)
        with storage_errors(self.path, "make"):
            make_folder(self.path)
        self.run_id = uuid.uuid4().hex[:10]
        with written_whole(marker) as stream:
            stream.write(json.dumps({"id": self.run_id, **run}, indent=1).encode())

    def _described(self, config: DataConfig, files: Sequence[str]) -> dict[str, Any]:
        """Return what tells a run from others."""
        # What is missing among these is said where it is read.
        others = config.files_read
        read = [*files, *(path for path in others if path and storage_path(path).exists())]
        self._files = identities(read)
        return {
            "layout": _LAYOUT,
            "config": config.model_dump(mode="json", exclude=set(PRESENTATION)),
            "files": self._files,
        }

    def _check_content(self, run: dict[str, Any], *, resume: bool) -> None:
        """Refuse a folder that holds no run to resume, or something that no run put there."""
        marker = self.path / _MARKER
        if resume:
            self._check(run, marker)
        elif self.path.exists():
            # Another run that is just removing its files leaves some without their mark.
            for _ in range(_LOOKS):
                if not self._is_foreign(marker):
                    return
                time.sleep(_BETWEEN_LOOKS)
            raise InputError(
                f"--work-dir {self.path} holds files that no run put there; choose an empty folder"
            )

    def _is_foreign(self, marker: StoragePath) -> bool:
        left = [entry.name for entry in self.path.iterdir()]
        strange = any(name != LOCK and not _TEMPORARY.fullmatch(name) for name in left)
        # Asked afterwards: a run that begins meanwhile puts its mark there before anything else.
        return strange and not marker.exists()

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        with storage_errors(self.path, "make"):
            make_folder(self.path)
        lock = RunLock(self.path, lock_file(self.path))
        lock.acquire()
        self._lock = lock

    def check(self, *, at_once: bool = False) -> None:
        """Raise an EngineError where the folder is no longer this run's.

        Parameters
        ----------
        at_once : look now, not only from time to time: before a result is published
        """
        if self._lock is not None:
            self._lock.check(at_once=at_once)

    def check_data(self) -> None:
        """Raise an InputError where a file that the run reads changed since it began."""
        now = identities(list(self._files))
        for path, before in self._files.items():
            if now[path] != before:
                raise changed(path, before, now[path])

    def identity_of(self, path: str) -> tuple[int | str, ...]:
        """Return what a file that the run reads was when it began, empty where it was missing."""
        return tuple(self._files.get(path) or ())

    def release(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _clear(self) -> None:
        """Remove the stages of a run, and nothing that somebody else put there."""
        stages = []
        for entry in self.path.iterdir():
            if _FOLDERS.fullmatch(entry.name) and entry.is_dir():
                stages.append(entry)
            elif entry.name in _FILES or _TEMPORARY.fullmatch(entry.name):
                entry.unlink(missing_ok=True)
        # What says that a stage is finished goes first: a run killed in here can be resumed.
        for stage in stages:
            for entry in stage.glob("*.json"):
                entry.unlink(missing_ok=True)
        for stage in stages:
            remove_folder(stage)

    def _check(self, run: dict[str, Any], marker: StoragePath) -> None:
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
        self.run_id = earlier.get("id", self.run_id)
        for path in {**earlier["files"], **run["files"]}:
            if earlier["files"].get(path) != run["files"].get(path):
                raise InputError(
                    f"--resume: the data changed since the run began ({path}); leave --resume out"
                )

    def folder(self, name: str) -> StoragePath:
        """Return a folder in it, which exists."""
        path = self.path / name
        with storage_errors(path, "make"):
            # A work folder that was deleted under the run stays deleted.
            make_folder(path, within=self.path)
        return path

    def empty_folder(self, name: str) -> StoragePath:
        """Return a folder in it with nothing in it.

        A stopped run may have left parts there, of which another number of workers makes others.
        """
        path = self.path / name
        with storage_errors(path, "empty"):
            remove_folder(path)
        return self.folder(name)

    def done(self, stage: str) -> dict[str, Any] | None:
        """Return what a finished stage left behind, None if it is not finished."""
        try:
            told = read_facts(self.path / f"{stage}.json")
        except (FileNotFoundError, DamagedFileError):
            # What can't be read back is done again.
            return None
        if not set(told["files"]) <= set(self._files_of(stage)):
            return None
        facts: dict[str, Any] = told["facts"]
        return facts

    def finish(self, stage: str, facts: dict[str, Any]) -> None:
        """Note that a stage is finished, and which files it wrote."""
        self.check()
        files = self._files_of(stage)
        write_facts(self.path / f"{stage}.json", {"facts": facts, "files": files})

    def _files_of(self, stage: str) -> list[str]:
        """Return the names of what is in the folder of a stage, which is all needed later on."""
        folder = self.path / (_WRITTEN.get(stage) or stage.rpartition("/")[0])
        if folder == self.path or not folder.exists():
            return []
        note = f"{stage.rpartition('/')[2]}.json"
        names = (entry.name for entry in folder.iterdir())
        return sorted(name for name in names if name != note and not name.startswith("."))

    def remove(self) -> None:
        """Remove what the run put there; the folder too unless something else is in it."""
        with storage_errors(self.path, "clear"):
            self._clear()
            (self.path / _MARKER).unlink(missing_ok=True)
        forget_copies()
        self.release()
        if isinstance(self.path, Path):
            # Something else is in it, or another run has it already.
            with suppress(OSError):
                self.path.rmdir()


def identities(paths: Sequence[str]) -> dict[str, list[int | str] | None]:
    """Return what changes with the content of each file; None for one that is missing."""
    if all(isinstance(storage_path(path), Path) for path in paths):
        return {path: _identity(path) for path in paths}
    # A store takes its time for each answer.
    with ThreadPoolExecutor(_ASKED_TOGETHER) as pool:
        return dict(zip(paths, pool.map(_identity, paths), strict=True))


def _identity(path: str) -> list[int | str] | None:
    with storage_errors(path, "read"):
        try:
            return identity(storage_path(path))
        except FileNotFoundError:
            return None


def _read_json(path: StoragePath) -> dict[str, Any]:
    """Return the content of a file, nothing where it is missing or no JSON object."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
