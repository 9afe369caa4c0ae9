"""CombineSliceMetrics: sums of every candidate over all shards, as tables, never as rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import apache_beam as beam
from apache_beam.metrics import Metrics

from slicebeam.metrics.counting.counting import Tables, merge_states
from slicebeam.metrics.counting.counting_plan import BLOCK_SECONDS
from slicebeam.transforms.count.plans import read_block
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.metrics.counting.counting import Resampling, State
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class WorkItem:
    """A block of the plan, by its number, over some of the shards."""

    block: int
    shards: tuple[str, ...]


def work_items(
    blocks: Sequence[int], shards: Sequence[str], seconds: float, workers: int
) -> list[WorkItem]:
    """Return the work of an iteration: a block over all shards where there are blocks enough.

    That needs no shuffle. Only where there is work for more workers than blocks, the shards are dealt out
    too, and the tables summed.
    """
    wanted = min(workers, int(seconds / BLOCK_SECONDS))
    groups = 1
    if blocks and len(blocks) < wanted:
        groups = min(len(shards), -(-wanted // len(blocks)))
    dealt = [tuple(shards[group::groups]) for group in range(groups)]
    return [WorkItem(block, group) for block in blocks for group in dealt]


def _counted(
    plan: StoragePath,
    lattice: Lattice,
    scaling: Scaling,
    resampling: Resampling | None,
    is_shuffled: bool,
    item: WorkItem,
) -> tuple[int, State]:
    """Return the tables of a block over some shards."""
    tables = Tables(read_block(plan, item.block), lattice, scaling.space, resampling)
    for path in item.shards:
        for rows in Shard(storage_path(path)).blocks(scaling):
            tables.add(rows)
    state = tables.state()
    if is_shuffled:
        shuffled = sum(array.nbytes for arrays in state for array in arrays)
        Metrics.counter("slicebeam", "shuffled_bytes").inc(shuffled)
    return item.block, state


def _summed(plan: StoragePath, element: tuple[int, Iterable[State]]) -> tuple[int, State]:
    """Return the tables of a block over all groups of shards, summed one after another."""
    block, states = element
    return block, merge_states(read_block(plan, block), states)


@dataclass
class CombineSliceMetrics(beam.PTransform):
    """Count the blocks of a plan: pipeline -> PCollection of (block, sums)."""

    items: list[WorkItem]
    plan: StoragePath
    lattice: Lattice
    scaling: Scaling
    resampling: Resampling | None

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[tuple[int, State]]:
        """Wire the transform."""
        is_shuffled = len({item.block for item in self.items}) < len(self.items)
        settings = (self.plan, self.lattice, self.scaling, self.resampling, is_shuffled)
        count = beam.Map(partial(_counted, *settings))
        # Create spreads its elements over the workers in turn; another Reshuffle would undo that.
        counted = pipeline | "Work items" >> beam.Create(self.items) | "Count" >> count
        # A lifted CombinePerKey would hold the tables of all blocks of a bundle in memory.
        if not is_shuffled:
            return counted
        summed = beam.Map(partial(_summed, self.plan))
        return counted | "By block" >> beam.GroupByKey() | "Sum" >> summed
