"""The work folder: the finished work of a run in its folder ``stages``, so that a stopped run can continue."""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slicebeam.metrics.errors import EngineError, InputError, OptionError, flag
from slicebeam.pipelines.run.lock_files import LOCK, RunLock, lock_of
from slicebeam.transforms.encode.sources import changed
from slicebeam.transforms.storage.storage import (
    StoragePath,
    beneath,
    forget_copies,
    identity,
    make_folder,
    remove_folder,
    storage_errors,
    storage_path,
)
from slicebeam.transforms.storage.work_files import DamagedFileError, read_facts, write_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self


_MARKER = "run.json"
_STAGES = "stages"
_LOG = "workers.log"
# What a killed run was writing.
_TEMPORARY = re.compile(r"\.(lock|workers\.log|[a-z]+\.json)\.[a-z0-9_]{8}")
_PLAIN = re.compile(r"(?!.{80})[a-z0-9]+(-[a-z0-9]+)*")
# How often, and after how many seconds, one looks at a folder that seems to be no run's.
_LOOKS, _BETWEEN_LOOKS = 3, 0.3
# Requests to a store at a time.
_ASKED_TOGETHER = 16


_LAYOUT = 8


class OtherRunError(OptionError):
    """What is to be resumed has other options or other data."""


class DataOptions(Protocol):
    """What a run reads of the options of a command."""

    data: tuple[str, ...]
    output: str
    work_dir: str | None

    @property
    def command(self) -> str:
        """The name of the command."""

    @property
    def files_read(self) -> tuple[str, ...]:
        """The files that decide the result, besides the data."""

    @property
    def non_identity(self) -> frozenset[str]:
        """The options that do not change the result."""

    def model_dump(self, *, mode: str, exclude: Any = None) -> dict[str, Any]:
        """Return the options as JSON values."""


@dataclass(frozen=True)
class RunMarker:
    """A run as it is noted in its work folder."""

    config: dict[str, Any] = field(default_factory=dict)  # the options that decide the result
    # Size and time or version of each input file; None for a missing one.
    files: dict[str, list[int | str] | None] = field(default_factory=dict)
    run_id: str = ""  # the same for all processes of a run; empty before it began
    replaces: str | None = (
        None  # version of the document when the run began; None if there was none
    )
    is_cleared: bool = True  # whether the stages of the run before are gone
    layout: int = _LAYOUT  # of the work folder, which changes with the program

    @classmethod
    def read(cls, path: StoragePath) -> RunMarker | None:
        """Return what `write` wrote; None if there is no such file."""
        try:
            facts = read_facts(path)
            if facts["layout"] == _LAYOUT:
                return cls(**facts)
        except FileNotFoundError:
            return None
        except (DamagedFileError, KeyError, TypeError):
            pass
        raise InputError(
            f"{path} is damaged or from another version, so it is unknown which run is in "
            f"{path.parent}; leave --resume out to start over"
        )

    def write(self, path: StoragePath) -> None:
        """Write it, all of it or nothing."""
        write_facts(path, vars(self))

    def check_same(self, earlier: RunMarker, folder: StoragePath) -> None:
        """Raise an InputError where the run that was begun in a folder is another than this one."""
        for key in {**self.config, **earlier.config}:
            both = self.config.get(key), earlier.config.get(key)
            if both[0] != both[1]:
                now, before = (
                    ",".join(map(str, x)) if isinstance(x, list) else str(x) for x in both
                )
                raise OtherRunError(
                    f"--resume: {flag(key)} is {now} but was {before} in {folder}; "
                    "use the same options, or leave --resume out"
                )
        for path in {**earlier.files, **self.files}:
            if earlier.files.get(path) != self.files.get(path):
                raise OtherRunError(
                    f"--resume: the data has changed since the run began ({path}); leave --resume out"
                )

    @property
    def config_hash(self) -> str:
        """A hash of the options."""
        return _hash([self.layout, self.config])

    @property
    def data_hash(self) -> str:
        """A hash of size and time or version of all files."""
        return _hash(self.files)


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class WorkFolder:
    """A folder that belongs to one run: its options, its data, and what is finished; a context, which gives it up."""

    def __init__(self, path: StoragePath) -> None:
        self.path = path
        self.run = RunMarker()
        self.is_resumed = False
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

    def begin(
        self,
        config: DataOptions,
        files: Sequence[str],
        *,
        resume: bool,
        replaces: str | None = None,
    ) -> None:
        """Make the folder ready for a run that ``replaces`` a version of the document, and keep others out until released."""
        run = replace(described(config, files), replaces=replaces)
        if self.path.is_file():
            raise OptionError(f"--work-dir {self.path} is a file; name a folder")
        self._check_content(run, resume=resume)
        self._acquire()
        try:
            # The run that had it until now may have ended in between, and removed everything.
            found = self._check_content(run, resume=resume)
            self.is_resumed = found is not None
            self.run = found or replace(run, run_id=uuid.uuid4().hex[:10], is_cleared=False)
            if not self.run.is_cleared:
                # Written first, so that stages of another run are not taken for those of this one.
                self.run.write(self.path / _MARKER)
                with storage_errors(self.path, "clear"):
                    self._clear()
                self.run = replace(self.run, is_cleared=True)
                self.run.write(self.path / _MARKER)
        except BaseException:
            self.release()
            raise

    def marker(self) -> RunMarker | None:
        """Return the marker of the run in it; None if there is no run."""
        return RunMarker.read(self.path / _MARKER)

    def _check_content(self, run: RunMarker, *, resume: bool) -> RunMarker | None:
        """Return the run to continue with, after refusing one that is another, or a folder of others."""
        if resume and (earlier := self.marker()) is not None:
            run.check_same(earlier, self.path)
            return earlier
        if self.path.exists():
            marker = self.path / _MARKER
            # Another run that is just removing its files leaves some without their mark.
            for _ in range(_LOOKS):
                if not self._is_foreign(marker):
                    return None
                time.sleep(_BETWEEN_LOOKS)
            raise OptionError(
                f"--work-dir {self.path} contains files that no run wrote: it has no {_MARKER}; "
                "choose an empty folder, or empty this one"
            )
        return None

    def _is_foreign(self, marker: StoragePath) -> bool:
        left = [entry.name for entry in self.path.iterdir()]
        strange = any(name != LOCK and not _TEMPORARY.fullmatch(name) for name in left)
        # Asked afterwards: a run that begins in the meantime puts its mark there before anything else.
        return strange and not marker.exists()

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        with storage_errors(self.path, "make"):
            make_folder(self.path)
        lock = lock_of(self.path)
        lock.acquire()
        self._lock = lock

    def check(self, *, at_once: bool = False) -> None:
        """Raise an EngineError where the folder is no longer this run's; with ``at_once`` look now."""
        if self._lock is not None:
            self._lock.check(at_once=at_once)

    def check_data(self) -> None:
        """Raise an InputError where a file that the run reads changed since it began."""
        for path, now in identities(list(self.run.files)).items():
            if now != self.run.files[path]:
                raise changed(path, self.run.files[path], now)

    def identity_of(self, path: str) -> tuple[int | str, ...]:
        """Return the state of an input file when the run began, empty if it was missing."""
        return tuple(self.run.files.get(path) or ())

    def release(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _clear(self) -> None:
        """Remove the stages of a run, and nothing that someone else put there."""
        stages = beneath(self.path, _STAGES)
        if stages.exists():
            # What says that a stage is finished goes first.
            for note in stages.glob("*.json"):
                note.unlink(missing_ok=True)
            remove_folder(stages)
        if self.path.exists():
            for entry in self.path.iterdir():
                if entry.name == _LOG or _TEMPORARY.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)

    def path_of(self, stage: str) -> StoragePath:
        """Return the folder of a stage, which may not exist."""
        return beneath(self.path, _STAGES, _plain(stage))

    def folder(self, stage: str) -> StoragePath:
        """Return the folder of a stage, which exists."""
        path = self.path_of(stage)
        with storage_errors(path, "make"):
            # A work folder that was deleted under the run stays deleted.
            make_folder(path, within=self.path)
        return path

    def empty(self, stage: str) -> None:
        """Remove the folder of a stage, with parts of a stopped run, and the note that it is finished."""
        path = self.path_of(stage)
        with storage_errors(path, "empty"):
            self._note(stage).unlink(missing_ok=True)
            remove_folder(path)
        self.folder(stage)

    def done(self, stage: str, plan: str = "") -> dict[str, Any] | None:
        """Return the record of a stage that was finished by a plan, None if it is not finished."""
        try:
            noted = read_facts(self._note(stage))
        except (FileNotFoundError, DamagedFileError):
            # What can't be read back is done again.
            return None
        is_valid = noted["plan"] == plan and set(noted["files"]) <= set(self._files_of(stage))
        return noted["facts"] if is_valid else None

    def finish(self, stage: str, facts: dict[str, Any], plan: str = "") -> None:
        """Note that a stage is finished, by which plan, and which files it wrote."""
        self.check()
        files = self._files_of(stage)
        write_facts(self._note(stage), {"facts": facts, "files": files, "plan": plan})

    def _note(self, stage: str) -> StoragePath:
        return beneath(self.path, _STAGES) / f"{_plain(stage)}.json"

    def _files_of(self, stage: str) -> list[str]:
        """Return the names of the files in the folder of a stage, all needed later."""
        folder = self.path_of(stage)
        entries = folder.iterdir() if folder.exists() else ()
        return sorted(entry.name for entry in entries if not entry.name.startswith("."))

    def remove(self) -> None:
        """Remove the run's files, and the folder unless it has others."""
        with storage_errors(self.path, "clear"):
            self._clear()
            (self.path / _MARKER).unlink(missing_ok=True)
        forget_copies()
        self.release()
        if isinstance(self.path, Path):
            # Something else is in it, or another run has it already.
            with suppress(OSError):
                self.path.rmdir()

    def remove_rest(self) -> None:
        """Remove the leftovers of a finished run that was killed."""
        if self.path.is_dir() and not self._is_foreign(self.path / _MARKER):
            self._acquire()
            self.remove()


def _plain(name: str) -> str:
    """Return the name of a stage, after checking that no name from the data is in it."""
    if _PLAIN.fullmatch(name) is None:
        raise ValueError(f"stage {name!r} is not named by words and numbers")
    return name


def described(config: DataOptions, files: Sequence[str]) -> RunMarker:
    """Return the identity of a run: its configuration and its inputs."""
    # What is missing among these is said where it is read.
    others = [path for path in config.files_read if path and storage_path(path).exists()]
    options = config.model_dump(mode="json", exclude=set(config.non_identity))
    return RunMarker(config=options, files=identities([*files, *others]))


def identities(paths: Sequence[str]) -> dict[str, list[int | str] | None]:
    """Return what changes with the content of each file; None for one that is missing."""

    def identity_of(path: str) -> list[int | str] | None:
        with storage_errors(path, "read"), suppress(FileNotFoundError):
            return identity(storage_path(path))
        return None

    # A store takes its time for each answer.
    with ThreadPoolExecutor(_ASKED_TOGETHER) as pool:
        return dict(zip(paths, pool.map(identity_of, paths), strict=True))
