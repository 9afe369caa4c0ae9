"""Runs a stage once: work that an earlier process of the run has finished is not repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from slicebeam.pipelines.run.engine import Cost, Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.storage.parts import WriteParts


def run_stage(
    work: WorkFolder,
    engine: Engine,
    stage: str,
    build: Callable[[Any], Any],
    is_complete: Callable[[], bool],
    *,
    job: str = "",
    seconds: float | None = None,
    plan: str = "",
    keeps_parts: bool = False,
    reads_data: bool = False,
    before: Callable[[], object] = lambda: None,
    facts: Callable[[Cost], dict[str, Any]] = lambda _: {},
) -> dict[str, Any]:
    """Fill the folder of a stage, unless a note says that it is complete, and return its record.

    A job that an earlier process of this run sent is waited for where the engine kept it, and counts if
    its files are complete. Only then the folder is emptied, and the job is run.

    ``plan``: digest of what a job does; a note or job of another plan does not count. ``keeps_parts``:
    files say to which plan they belong: the folder is not emptied, and complete ones need no note.
    ``reads_data``: the user's files are read, which must not have changed. ``before`` the job.
    """
    work.folder(stage)
    noted = work.done(stage)
    is_valid = noted is not None and noted["plan"] == plan
    if keeps_parts:
        if is_complete():
            return noted["facts"] if noted is not None and is_valid else {}
    elif noted is not None and is_valid:
        return dict(noted["facts"])
    job = job or stage
    own = f"{job}-{plan[:8]}" if plan else job
    cost = engine.attach(own)
    if cost is None or not _is_complete(is_complete):
        engine.end_earlier(job, but=own)

        def begin() -> None:
            if not keeps_parts:
                work.empty(stage)
            before()

        cost = engine.run(build, own, seconds, before=begin)
    if reads_data:
        work.check_data()
    found = facts(cost)
    note_finished(work, stage, found, plan)
    return found


def note_finished(work: WorkFolder, stage: str, facts: dict[str, Any], plan: str = "") -> None:
    """Note that a stage is finished, so that `run_stage` does not run it again."""
    work.finish(stage, {"plan": plan, "facts": facts})


def _is_complete(is_complete: Callable[[], bool]) -> bool:
    try:
        return is_complete()
    except EngineError:
        # What is damaged is made again.
        return False


def run_parts(
    work: WorkFolder,
    engine: Engine,
    stage: str,
    transform: WriteParts,
    *,
    seconds: float | None = None,
    reads_data: bool = False,
    has_written: Callable[[], bool] = lambda: True,
) -> list[pa.Table]:
    """Write the parts of a stage, unless they are complete, and return them; see `run_stage`."""
    noted = run_stage(
        work,
        engine,
        stage,
        lambda pipeline: pipeline | stage >> transform,
        lambda: transform.is_written() and has_written(),
        seconds=seconds,
        reads_data=reads_data,
        before=transform.write_shared,
        facts=lambda _: {"parts": len(transform.items)},
    )
    return transform.read(noted["parts"])
