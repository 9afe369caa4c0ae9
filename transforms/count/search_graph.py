"""The batch search as a graph: read → predict → slice keys → plan → count → sum → test.

What is known only when earlier steps are done (domains, scales, the plan) is a value where the driver
runs a step as a job of its own, and a side input where a pipeline has all steps (`FindSlices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from slicebeam.transforms.count.tables import count_block, note_shuffled, write_p_values
from slicebeam.transforms.encode.extract_slice_keys import (
    Encoding,
    ExtractPredictions,
    encode_chunk,
    read_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.metrics.counting.counting import UnitSums
    from slicebeam.transforms.count.tables import BlockTest, WorkItem
    from slicebeam.transforms.encode.sources import Split


class SumTables(beam.CombineFn):
    """Sums the tables of a block over groups of shards, one after another."""

    def create_accumulator(self) -> UnitSums | None:
        """Return no tables."""
        return None

    def add_input(self, total: UnitSums | None, counted: UnitSums) -> UnitSums:
        """Return the sum with the tables of one more group."""
        return counted if total is None else total + counted

    def merge_accumulators(self, totals: Any) -> UnitSums | None:
        """Return the sum of sums."""
        total = None
        for one in totals:
            total = total if one is None else self.add_input(total, one)
        return total

    def extract_output(self, total: UnitSums | None) -> UnitSums | None:
        """Return the sum."""
        return total


@dataclass
class EncodeExamples(beam.PTransform):
    """Read, predict, extract slice keys: PCollection of `Split` -> PCollection of rows of each shard."""

    encoding: Encoding | AsSingleton

    def expand(self, splits: beam.PCollection[Split]) -> beam.PCollection[int]:
        """Wire the transform."""
        chunks = splits | "Read examples" >> beam.FlatMap(
            *_with(read_chunks, encoding=self.encoding)
        )
        if isinstance(self.encoding, Encoding):
            chunks |= "Extract predictions" >> ExtractPredictions(self.encoding)
        return chunks | "Extract slice keys" >> beam.Map(
            *_with(encode_chunk, encoding=self.encoding)
        )


@dataclass
class CountAndTest(beam.PTransform):
    """Count, sum, test: PCollection of `WorkItem` -> PCollection of blocks whose slices are tested.

    `is_dealt`: whether the shards of a block are dealt out to several items.
    """

    config: BlockTest | AsSingleton
    is_dealt: bool = False

    def expand(self, items: beam.PCollection[WorkItem]) -> beam.PCollection[int]:
        """Wire the transform."""
        counted = items | "Count" >> beam.Map(*_with(count_block, config=self.config))
        if self.is_dealt:
            # A lifted CombinePerKey would hold the tables of all blocks of a bundle: of 40 blocks of
            # 32 MB 6.3 GB, and 277 MB where nothing is shuffled, since each item has all shards.
            counted = (
                counted
                | "Note" >> beam.Map(note_shuffled)
                | "By block" >> beam.GroupByKey()
                | "Sum" >> beam.CombineValues(SumTables())
            )
        return counted | "Test significance" >> beam.Map(*_with(write_p_values, config=self.config))


def _with(function: Callable[..., Any], **known: object) -> tuple[Any, ...]:
    """Return the arguments of a map whose function gets what is known by name."""
    if any(isinstance(value, AsSingleton) for value in known.values()):
        return function, *known.values()
    return (partial(function, **known),)
