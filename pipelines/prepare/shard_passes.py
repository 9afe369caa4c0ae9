"""Passes over the encoded shards, by workers if there are many examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.transforms.encode.number_equal_rows import ROW_BYTES, NumberEqualRows
from slicebeam.transforms.encode.pass_over_files import OverShards, PassOverFiles, write_found
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.arrow_files import part_path
from slicebeam.transforms.storage.storage import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.pass_over_files import Found, Function, PassOverRows
    from slicebeam.transforms.storage.storage import StoragePath

# CPU time of summing an example of a shard, and below what it is not worth a job.
SECONDS_PER_ROW = 2e-8
LEAST_PASS_SECONDS = 1.0
# CPU time of distinguishing an example from equal ones.
SECONDS_PER_NUMBER = 3e-7


def numbered(
    config: RunConfig,
    shards: Sequence[StoragePath],
    column: str,
    rows: int,
    work: WorkFolder,
    engine: Engine,
    heaviest: float = 0.0,
) -> list[StoragePath]:
    """Return the files with the numbers of examples that have the same hash in a column."""
    seconds = rows * SECONDS_PER_NUMBER
    folder = work.folder("ids")
    parts = -(-rows * ROW_BYTES // config.memory)
    if seconds >= LEAST_PASS_SECONDS:
        parts = max(parts, engine.workers)
    transform = NumberEqualRows(tuple(map(str, shards)), column, parts, folder, heaviest)
    run_stage(
        work,
        engine,
        "ids",
        lambda pipeline: pipeline | "Number equal rows" >> transform,
        transform.is_written,
        seconds=seconds,
    )
    return matching(folder, "*.arrow")


def kept_pass_over(
    shards: Sequence[StoragePath],
    stage: str,
    function: Function,
    work: WorkFolder,
    engine: Engine,
    seconds: float,
) -> list[Found]:
    """Return what `pass_over` does, and keep it: a run that continues reads it."""
    if engine.workers > 1 and seconds >= LEAST_PASS_SECONDS:
        return _pass_of_workers(shards, stage, function, work, engine, seconds)
    transform = PassOverFiles(OverShards(function), [[*map(str, shards)]], work.folder(stage))
    if work.done(stage) is None or not transform.is_written():
        work.empty(stage)
        (found,) = transform.here()
        write_found(part_path(work.folder(stage), 0), found)
        work.finish(stage, {"plan": "", "facts": {"parts": 1}})
        return [found]
    return transform.read(1)


def pass_over(
    shards: Sequence[StoragePath],
    rows: int,
    stage: str,
    function: Function,
    work: WorkFolder,
    engine: Engine,
) -> list[Found]:
    """Return the result of a function on the shards, run by workers if there are many rows."""
    seconds = rows * SECONDS_PER_ROW
    if engine.workers == 1 or seconds < LEAST_PASS_SECONDS:
        return [function(map(Shard, shards))]
    return _pass_of_workers(shards, stage, function, work, engine, seconds)


def _pass_of_workers(
    shards: Sequence[StoragePath],
    stage: str,
    function: Function,
    work: WorkFolder,
    engine: Engine,
    seconds: float,
) -> list[Found]:
    dealt = [
        [*map(str, shards[group :: 2 * engine.workers])] for group in range(2 * engine.workers)
    ]
    transform = PassOverFiles(OverShards(function), dealt, work.path_of(stage))
    return found_by(transform, stage, work, engine, seconds)


def found_by(
    transform: PassOverRows,
    stage: str,
    work: WorkFolder,
    engine: Engine,
    seconds: float,
    has_written: Callable[[], bool] = lambda: True,
) -> list[Found]:
    """Return the result of the engine's workers for each group, in the folder of the stage.

    ``has_written``: whether all is there that the function writes besides.
    """
    work.folder(stage)
    noted = run_stage(
        work,
        engine,
        stage,
        lambda pipeline: pipeline | stage >> transform,
        lambda: transform.is_written() and has_written(),
        seconds=seconds,
        facts=lambda _: {"parts": transform.parts()},
    )
    return transform.read(noted["parts"])
