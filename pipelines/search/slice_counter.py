"""Counting and testing of the slices that an iteration visits: one pipeline for each."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import apache_beam as beam

from slicebeam.metrics.counting.counting import Resampling
from slicebeam.metrics.counting.counting_plan import Budget, balanced, blocks
from slicebeam.metrics.testing.slice_test import SliceTest
from slicebeam.pipelines.run.engine import Cost, Engine
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.pipelines.search.counted_slices import CountedPart
from slicebeam.transforms.count.tables import (
    BlockTest,
    finished_blocks,
    plan_digest,
    work_items,
    write_plan,
)
from slicebeam.transforms.search_graph import CountAndTest
from slicebeam.transforms.storage.storage import fetch, matching
from slicebeam.transforms.storage.work_files import part_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.count.tables import PlannedBlock, WorkItem

# Tables of a block take at most this share of the worker's memory: the columns that are counted,
# the results and their p-values need the rest.
_TABLES_SHARE = 8


def counting_budget(
    config: RunConfig, space: StatisticSpace, rows: int, resampling: Resampling | None = None
) -> Budget:
    """Return what a block may hold."""
    layers = 1 + (resampling.replicates if resampling else 0)
    return Budget(rows, space.raw_columns, space.passes, layers, config.memory // _TABLES_SHARE)


class Planned(NamedTuple):
    """The plan of a stage, and the work that is left of it."""

    config: BlockTest
    blocks: list[PlannedBlock]
    items: list[WorkItem]
    seconds: float


class SliceCounter:
    """Counts and tests slices, and skips the blocks that are finished."""

    def __init__(
        self, config: RunConfig, prepared: EncodedDataset, work: WorkFolder, engine: Engine
    ) -> None:
        self.config, self.prepared, self.work, self.engine = config, prepared, work, engine
        resampling = (
            Resampling(config.used_replicates, config.seed) if config.resamples_examples else None
        )
        # AutoSlicer resamples for every candidate. Here only those that could become significant
        # get replicates, in a second count.
        self.resampling = resampling if config.is_paper else None
        self.second = None if config.is_paper else resampling
        self.budget = self.budget_for(self.resampling)
        self.tests = tuple(
            SliceTest(
                name,
                prepared.space,
                config.used_test,
                config.alternative,
                config.smallest_slice_of(name),
            )
            for name in config.metric
        )

    def budget_for(self, resampling: Resampling | None) -> Budget:
        """Return the budget of a block that is counted with replicates."""
        prepared = self.prepared
        return counting_budget(self.config, prepared.space, prepared.rows, resampling)

    def planned(
        self,
        stage: str,
        units: Iterable[PlannedUnit],
        *,
        counts_only: bool = False,
        resampling: Resampling | None = None,
    ) -> Planned:
        """Write the plan of a stage; see `count`."""
        folder, lattice = self.work.folder(stage), self.prepared.lattice
        drawn = None if counts_only else resampling or self.resampling
        budget = self.budget_for(drawn)
        if self.engine.workers > 1:
            units = list(units)
            budget = balanced(units, budget, self.engine.workers)
        plan = folder / "plan"
        planned_blocks = write_plan(plan, blocks(units, budget), lattice)
        config = BlockTest(
            plan,
            plan_digest(plan),
            folder,
            lattice,
            self.prepared.scaling,
            drawn,
            () if counts_only else self.tests,
            self.config.used_min_slice_size,
            self.second is not None and drawn is None,
            self.prepared.of_all,
        )
        finished = set(finished_blocks(folder, config.plan_digest, len(planned_blocks)))
        todo = [block for block in range(len(planned_blocks)) if block not in finished]
        seconds = sum(planned_blocks[block].seconds for block in todo)
        items = work_items(todo, self.prepared.shards, seconds, self.engine.workers)
        return Planned(config, planned_blocks, items, seconds)

    def count(
        self,
        stage: str,
        units: Iterable[PlannedUnit],
        on_begin: Callable[[Callable[[], int]], None] | None = None,
        *,
        counts_only: bool = False,
        resampling: Resampling | None = None,
    ) -> tuple[list[CountedPart], Cost]:
        """Count and test the units, except finished blocks; return the parts and what they cost.

        ``on_begin`` receives a function that says how many candidates are counted. ``resampling`` is how
        examples are resampled where not every candidate is; with ``counts_only`` nothing is tested.
        """
        planned = self.planned(stage, units, counts_only=counts_only, resampling=resampling)
        config, items = planned.config, planned.items
        folder, digest = config.folder, config.plan_digest
        parts = [part_path(folder, block) for block in range(len(planned.blocks))]

        def counted() -> int:
            written = set(matching(folder, "*.arrow"))
            sizes = zip(parts, planned.blocks, strict=True)
            return sum(block.candidates for part, block in sizes if part in written)

        if on_begin is not None:
            on_begin(counted)
        search = CountAndTest(config, is_dealt=len({item.block for item in items}) < len(items))
        cost = run_stage(
            self.work,
            self.engine,
            stage,
            # Create spreads its elements over the workers in turn; a Reshuffle would undo that.
            lambda pipeline: pipeline | "Work items" >> beam.Create(items) | "Search" >> search,
            lambda: len(finished_blocks(folder, digest, len(parts))) == len(parts),
            seconds=planned.seconds,
            # A job that follows another plan would write parts that nobody asks for.
            plan=digest,
            keeps_parts=True,
            facts=asdict,
        )
        fetch(parts)
        return list(map(CountedPart, parts)), Cost(**cost)
