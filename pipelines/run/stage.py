"""A run as its stages see it: where they work, who follows them, and work that is not done twice."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run.work_folder import DataOptions, WorkFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from slicebeam.pipelines.run.engine import Cost, Engine
    from slicebeam.transforms.storage.parts import WriteParts
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class Stage:
    """The current stage, and its progress."""

    text: str
    done: Callable[[], int] | None = None  # how many units are finished
    unit: str = ""
    total: int | None = None  # how many there are; None if that is not known
    besides: Callable[[], str] | None = None  # what else changes, such as the money spent


class Observer(Protocol):
    """Follows a run."""

    def begin(self, config: DataOptions, files: Sequence[str], engine: str) -> None:
        """Take note of what runs: its configuration, the data, and the engine's name."""

    def note(self, text: str) -> None:
        """Show something that the user should know."""

    def stage(self, stage: Stage) -> None:
        """Show what begins, and follow it where it counts something."""


class SilentObserver:
    """Shows nothing, for a run within another one."""

    def _ignore(self, *_: object, **__: object) -> None: ...

    begin = note = stage = prepared = progress = recorded = _ignore


@dataclass
class Workspace:
    """Work folder and engine of a run, and who follows it."""

    work: WorkFolder
    engine: Engine
    observer: Observer
    files: Sequence[str]  # the data

    def show(self, stage: Stage) -> None:
        """Show that a stage begins."""
        self.observer.stage(stage)

    def stage(
        self,
        stage: str,
        build: Callable[[Any], Any],
        is_complete: Callable[[], bool],
        *,
        job: str = "",
        seconds: float | None = None,
        plan: str = "",
        # Files say to which plan they belong: the folder is not emptied, and complete ones need no note.
        keeps_parts: bool = False,
        reads_data: bool = False,  # the user's files, which must not have changed
        before: Callable[[], object] = lambda: None,
        facts: Callable[[Cost], dict[str, Any]] = lambda _: {},
    ) -> dict[str, Any]:
        """Fill the folder of a stage, unless a note says that it is complete, and return its record.

        A job that an earlier process of this run sent is waited for where the engine kept it, and counts if
        its files are complete. ``plan``: digest of what a job does; a note or job of another plan does not count.
        """
        work, engine = self.work, self.engine
        work.folder(stage)
        noted = work.done(stage, plan)
        if is_complete() if keeps_parts else noted is not None:
            return noted or {}
        job = job or stage
        own = f"{job}-{plan[:8]}" if plan else job
        cost, is_done = engine.attach(own), False
        if cost is not None:
            # What is damaged is made again.
            with suppress(EngineError):
                is_done = is_complete()
        if cost is None or not is_done:
            engine.end_earlier(job, but=own)
            if not keeps_parts:
                work.empty(stage)
            before()
            cost = engine.run(build, own, seconds)
        if reads_data:
            work.check_data()
        found = facts(cost)
        work.finish(stage, found, plan)
        return found

    def parts(
        self,
        stage: str,
        transform: WriteParts,
        *,
        seconds: float | None = None,
        reads_data: bool = False,
        has_written: Callable[[], bool] = lambda: True,
    ) -> list[pa.Table]:
        """Write the parts of a stage, unless they are complete, and return them; see `stage`."""
        noted = self.stage(
            stage,
            lambda pipeline: pipeline | stage >> transform,
            lambda: transform.is_written() and has_written(),
            seconds=seconds,
            reads_data=reads_data,
            before=transform.write_shared,
            facts=lambda _: {"parts": len(transform.items)},
        )
        return transform.read(noted["parts"])


@contextmanager
def hidden_run(
    config: DataOptions, files: Sequence[str], engine: Engine, folder: StoragePath
) -> Iterator[Workspace]:
    """Begin a run within another one, in a folder that the caller removes."""
    with WorkFolder(folder) as work:
        work.begin(config, files, resume=False)
        yield Workspace(work, engine, SilentObserver(), files)
