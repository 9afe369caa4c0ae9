"""CombineSliceMetrics: sums of every candidate over all shards, as tables, never as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import apache_beam as beam
from apache_beam.metrics import Metrics

from slicebeam.metrics.counting.counting import Tables, merge_states
from slicebeam.metrics.counting.counting_plan import BLOCK_SECONDS
from slicebeam.transforms.count.plans import read_block
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slicebeam.metrics.counting.counting import Resampling, State
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class WorkItem:
    """A block of the plan over some of the shards.

    Attributes
    ----------
    block : number of the block in the plan
    """

    block: int
    shards: tuple[str, ...]


def work_items(
    blocks: Sequence[int], shards: Sequence[str], seconds: float, workers: int
) -> list[WorkItem]:
    """Return the work of an iteration: a block over all shards where there are blocks enough.

    Counting a block over all shards at once needs no shuffle. Only where the blocks are fewer
    than the workers and there is work for them, the shards are dealt out too, and the tables summed.

    Parameters
    ----------
    workers : how many can work at once
    """
    wanted = min(workers, int(seconds / BLOCK_SECONDS))
    groups = 1
    if blocks and len(blocks) < wanted:
        groups = min(len(shards), -(-wanted // len(blocks)))
    dealt = [tuple(shards[group::groups]) for group in range(groups)]
    return [WorkItem(block, group) for block in blocks for group in dealt]


class _CountBlock(beam.DoFn):
    def __init__(
        self,
        plan: StoragePath,
        lattice: Lattice,
        scaling: Scaling,
        resampling: Resampling | None,
        *,
        is_shuffled: bool,
    ) -> None:
        self.plan, self.lattice, self.scaling = plan, lattice, scaling
        self.resampling = resampling
        self.shuffled = Metrics.counter("slicebeam", "shuffled_bytes") if is_shuffled else None

    def process(self, item: WorkItem) -> Iterator[tuple[int, State]]:
        tables = Tables(
            read_block(self.plan, item.block), self.lattice, self.scaling.space, self.resampling
        )
        for path in item.shards:
            for rows in Shard(storage_path(path)).blocks(self.scaling):
                tables.add(rows)
        state = tables.state()
        if self.shuffled:
            self.shuffled.inc(sum(array.nbytes for arrays in state for array in arrays))
        yield item.block, state


class _SumTables(beam.DoFn):
    """Sums the tables of a block over the groups of shards, one after another."""

    def __init__(self, plan: StoragePath) -> None:
        self.plan = plan

    def process(self, element: tuple[int, Iterable[State]]) -> Iterator[tuple[int, State]]:
        block, states = element
        yield block, merge_states(read_block(self.plan, block), states)


@dataclass
class CombineSliceMetrics(beam.PTransform):
    """Count the blocks of a plan: pipeline -> PCollection of (block, sums).

    Attributes
    ----------
    resampling : replicates of the sums, or None
    """

    items: list[WorkItem]
    plan: StoragePath
    lattice: Lattice
    scaling: Scaling
    resampling: Resampling | None

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[tuple[int, State]]:
        """Wire the transform."""
        is_shuffled = len({item.block for item in self.items}) < len(self.items)
        count = _CountBlock(
            self.plan, self.lattice, self.scaling, self.resampling, is_shuffled=is_shuffled
        )
        # Create spreads its elements over the workers in turn; another Reshuffle would undo that.
        counted = pipeline | "Work items" >> beam.Create(self.items) | "Count" >> beam.ParDo(count)
        if not is_shuffled:
            return counted
        return (
            counted | "By block" >> beam.GroupByKey() | "Sum" >> beam.ParDo(_SumTables(self.plan))
        )
