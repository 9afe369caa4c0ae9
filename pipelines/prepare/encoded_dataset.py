"""The examples of a run, encoded and ready to be counted, and passes over their shards.

Workers do a pass if there are many examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.metric import Slices
from slicebeam.pipelines.run.run_stage import run_parts
from slicebeam.transforms.encode.passes import (
    ROW_BYTES,
    as_row,
    from_row,
    number_equal_rows,
    over_shards,
    read_found,
    write_found,
)
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import matching
from slicebeam.transforms.storage.work_files import part_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.changelist.document import Within
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.features import ColumnHint
    from slicebeam.pipelines.prepare.given_slices import GivenSlices
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
    from slicebeam.transforms.encode.extract_predictions import LabelCounts, Outcome, Side
    from slicebeam.transforms.encode.passes import Found, Function
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class RepeatedIds:
    """Ids that several examples have."""

    number: int
    one: Any


@dataclass(frozen=True)
class EncodedDataset:
    """The examples, ready to be counted."""

    source: Source
    outcome: Outcome
    domains: tuple[FeatureDomain, ...]
    left_out: tuple[LeftOutColumn, ...]
    lattice: Lattice
    scaling: Scaling
    totals: IntArray  # int64 [raw columns and total terms] the statistics of all examples
    shards: tuple[str, ...]
    labels: tuple[Any, ...]
    content: int  # a hash of all examples' codes and measurements, in any order
    of_all: IntArray  # int64 [columns and total terms] what the metrics know of all examples
    repeated_ids: RepeatedIds | None = None  # where ids are named and are not to be groups
    models_agree: bool = False  # whether two models are compared that differ on no example
    given: GivenSlices | None = None  # the slices of a check, which has no domains
    drift: tuple[str, ...] = ()  # values that the data of the given domains did not have
    top_values: int | None = None  # most values of a column that are named; None without domains
    lost: tuple[str, ...] = ()  # features of the given domains that the data has not
    label_counts: LabelCounts | None = None  # also with each feature; None if labels are no classes
    hints: tuple[ColumnHint, ...] = ()  # features that look like no property of an example
    model_columns: dict[Side, tuple[str, ...]] = field(default_factory=dict)  # what each reads
    within: Within | None = None  # the findings that they are within; None for all of the data
    reserved: EncodedDataset | None = None  # the examples with which findings are confirmed

    @property
    def rows(self) -> int:
        """Number of examples."""
        return int(self.space.sizes(self.totals))

    @property
    def space(self) -> StatisticSpace:
        """The statistics."""
        return self.scaling.space

    def slices(self, sums: IntArray | None = None) -> Slices:
        """Return sums [slices, columns] as parts of all examples; all of these as one slice without any."""
        of_all = self.of_all
        return Slices(
            of_all[None, : self.space.columns] if sums is None else sums, self.space, of_all
        )


# CPU time of summing an example of a shard, and below what it is not worth a job.
SECONDS_PER_ROW = 2e-8
LEAST_PASS_SECONDS = 1.0
# CPU time of distinguishing an example from equal ones.
SECONDS_PER_NUMBER = 3e-7
# The note of a pass that this process did.
_HERE = {"plan": "", "facts": {"parts": 1}}


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
    transform = number_equal_rows(shards, column, parts, folder, heaviest)
    run_parts(work, engine, "ids", transform, seconds=seconds)
    return matching(folder, "*.arrow")


def pass_over(
    function: Callable[[Any], Found],
    groups: Sequence[Any],
    stage: str,
    work: WorkFolder,
    engine: Engine,
    seconds: float,
    has_written: Callable[[], bool] = lambda: True,
) -> list[Found]:
    """Return the result of a function for each group, by workers if that is worth a job."""
    if engine.workers == 1 or seconds < LEAST_PASS_SECONDS:
        return [function(group) for group in groups]
    transform = WriteParts(partial(as_row, function), groups, work.path_of(stage))
    work.folder(stage)
    found = run_parts(work, engine, stage, transform, seconds=seconds, has_written=has_written)
    return list(map(from_row, found))


def pass_over_shards(
    shards: Sequence[StoragePath],
    stage: str,
    function: Function,
    work: WorkFolder,
    engine: Engine,
    seconds: float,
    *,
    keeps: bool = False,
) -> list[Found]:
    """Return the result of a function on the shards; with ``keeps`` a run that continues finds it in any case."""
    groups = 2 * engine.workers
    if engine.workers > 1 and seconds >= LEAST_PASS_SECONDS:
        dealt = [[*map(str, shards[at::groups])] for at in range(min(groups, len(shards)))]
        return pass_over(partial(over_shards, function), dealt, stage, work, engine, seconds)
    if not keeps:
        return [function(map(Shard, shards))]
    path = part_path(work.folder(stage), 0)
    if work.done(stage) != _HERE or not path.is_file():
        work.empty(stage)
        write_found(path, function(map(Shard, shards)))
        work.finish(stage, _HERE)
    return [read_found(path)]
