"""Counts and tests slices by blocks of a plan, and the table of what is counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
import numpy as np

from slicebeam.metrics.counting.counting import Resampling
from slicebeam.metrics.counting.counting_plan import Budget, balanced, blocks
from slicebeam.metrics.counting.lattice import Keys, contains
from slicebeam.metrics.measures.slice_test import SliceTest
from slicebeam.pipelines.run.engine import Cost
from slicebeam.transforms.count.search_graph import CountAndTest
from slicebeam.transforms.count.tables import (
    BlockTest,
    finished_blocks,
    plan_digest,
    read_part,
    work_items,
    write_plan,
)
from slicebeam.transforms.storage.storage import StoragePath, fetch, matching
from slicebeam.transforms.storage.work_files import part_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from slicebeam.metrics.arrays import IntArray, NDArray
    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.transforms.count.tables import PlannedBlock, WorkItem

    Array = NDArray[Any]


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

    def __init__(self, config: RunConfig, prepared: EncodedDataset) -> None:
        self.config, self.prepared, self.run = config, prepared, prepared.run
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
        folder, lattice = self.run.work.folder(stage), self.prepared.lattice
        drawn = None if counts_only else resampling or self.resampling
        budget = self.budget_for(drawn)
        if self.run.engine.workers > 1:
            units = list(units)
            budget = balanced(units, budget, self.run.engine.workers)
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
        items = work_items(todo, self.prepared.shards, seconds, self.run.engine.workers)
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
        """Count the units, and test them unless ``counts_only``, except finished blocks; return the parts and their cost.

        ``on_begin`` receives a function that says how many candidates are counted.
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
        cost = self.run.stage(
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


@dataclass(frozen=True)
class SliceTable:
    """Slices with columns by name, [slices] or [slices, …]; those of parts are named as `tested_block` says."""

    keys: Keys
    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @classmethod
    def joined(cls, tables: Sequence[SliceTable]) -> SliceTable:
        """Return the slices of one or more tables with the same columns."""
        names = tables[0].columns
        columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
        return cls(np.concatenate([table.keys for table in tables]), columns)

    def take(self, positions: Array) -> SliceTable:
        """Return the slices at some positions."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return SliceTable(self.keys[positions], columns)

    def by_key(self) -> SliceTable:
        """Return the slices in the order of their keys, so that `at` finds them."""
        return self.take(np.argsort(self.keys))

    def at(self, keys: Keys) -> IntArray:
        """Return the positions of slices that are in this table, which is in the order of its keys."""
        return np.searchsorted(self.keys, keys)

    def stacked(self, name: str, numbers: Iterable[int]) -> Array:
        """Return the numbered columns of a name as one [slices, numbers], such as the sums ``c0`` …."""
        return np.stack([self.columns[f"{name}{number}"] for number in numbers], axis=1)

    def counts(self, space: StatisticSpace) -> SliceTable:
        """Return the slices of a part with their ``sums`` [slices, columns]."""
        return SliceTable(self.keys, {"sums": self.stacked("c", range(space.columns))})

    def sizes(self, space: StatisticSpace) -> IntArray:
        """Return how many examples the slices of a part have."""
        cells = np.arange(space.cells)[space.size_columns].tolist()
        sizes: IntArray = np.sum([self[f"c{cell}"] for cell in cells], axis=0)
        return sizes

    def changed(self, change: SliceTable) -> SliceTable:
        """Return the slices of a part with the columns that another table, in the order of its keys, has of them."""
        here = np.flatnonzero(contains(change.keys, self.keys))
        if here.size == 0:
            return self
        there = change.at(self.keys[here])
        columns = dict(self.columns)
        # A slice that is too small for a test has no p-value, now as before.
        tested = ~np.isnan(self["p0"][here])
        for name in change.columns.keys() & columns.keys():
            rows = slice(None) if name.startswith("c") else tested
            columns[name] = np.array(columns[name])
            columns[name][here[rows]] = change[name][there[rows]]
        return SliceTable(self.keys, columns)


@dataclass(frozen=True)
class CountedPart:
    """The slices of a block of a plan: its file, and what second tests changed since it was written."""

    path: StoragePath
    changes: list[SliceTable] = field(default_factory=list)


def tables_of(parts: Iterable[CountedPart]) -> Iterator[SliceTable]:
    """Yield the slices of each part."""
    for part in parts:
        batch = read_part(part.path)
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
        table = SliceTable(columns.pop("key"), columns)
        for change in part.changes:
            table = table.changed(change)
        yield table


def looked_up(
    parts: Iterable[CountedPart],
    keys: Keys,
    numbers: Callable[[SliceTable], Array],
    width: int | None = None,
    dtype: type = np.int64,
) -> Array:
    """Return numbers [slices] or [slices, width] of slices (sorted keys); 0 where a slice is in no part."""
    values: Array = np.zeros(keys.size if width is None else (keys.size, width), dtype)
    # A key that is larger than all of them finds none.
    bounded = np.append(keys, -1)
    for table in tables_of(parts):
        at = np.searchsorted(keys, table.keys)
        wanted = np.flatnonzero(bounded[at] == table.keys)
        values[at[wanted]] = numbers(table)[wanted]
    return values
