"""The sums and p-values of every slice of a block, written as one columnar part."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from apache_beam.metrics import Metrics

from slicebeam.metrics.counting.counting import SumReader, Tables
from slicebeam.metrics.errors import EngineError
from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric
from slicebeam.transforms.count.plans import read_block
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.arrow_files import open_arrow, part_path, write_arrow
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import Resampling, Unit, UnitSums
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.testing.slice_test import SliceTest
    from slicebeam.transforms.count.plans import WorkItem
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class BlockTest:
    """How the blocks of a plan are counted, and what is tested; the first test steers the search.

    The digest stands in every part, so that parts of another plan are not taken for its own. `is_first`:
    whether replicates decide of some slices afterwards. `of_all`: the sums of all examples, where they are
    known better than by what slices are counted with.
    """

    plan: StoragePath
    plan_digest: str
    folder: StoragePath
    lattice: Lattice
    scaling: Scaling
    resampling: Resampling | None
    tests: tuple[SliceTest, ...]
    min_slice_size: int
    is_first: bool = False
    of_all: IntArray | None = None

    @property
    def space(self) -> StatisticSpace:
        """The statistics."""
        return self.scaling.space


def count_block(item: WorkItem, config: BlockTest) -> tuple[int, UnitSums]:
    """Return the tables of a block over some shards."""
    units = read_block(config.plan, item.block)
    tables = Tables(units, config.lattice, config.space, config.resampling)
    for path in item.shards:
        for rows in Shard(storage_path(path)).blocks(config.scaling):
            tables.add(rows)
    return item.block, tables.state()


def note_shuffled(element: tuple[int, UnitSums]) -> tuple[int, UnitSums]:
    """Count the bytes of tables that are sent between workers."""
    Metrics.counter("slicebeam", "shuffled_bytes").inc(element[1].nbytes)
    return element


def tested_block(units: Sequence[Unit], state: UnitSums, config: BlockTest) -> pa.RecordBatch:
    """Return the results of a block: a row for every slice that is not empty.

    Where the plan lists no candidates the rows are the slices of at least ``min_slice_size``. Columns:
    ``key``, ``c0`` … the sums as `StatisticSpace` lays them out, and for metric i ``p<i>`` (NaN where the
    slice is too small to be tested), ``first<i>`` (the same, which stays where replicates decide),
    ``best<i>`` (lower bound of p, given the error of an approximate metric), ``reason<i>``, ``method<i>``,
    ``se<i>``. Metadata: the plan's digest, how many slices were not empty, and how many were tested.
    """
    totals, space = state.totals, config.space
    reader = SumReader(config.lattice, space, len(totals), config.min_slice_size)
    read = list(reader.slices(units, state))
    nonempty = sum(counted.nonempty for counted in read)
    keys = np.concatenate([counted.keys for counted in read])
    sums = np.concatenate([counted.sums for counted in read])
    sizes = space.sizes(sums[:, 0])
    del read
    if not sizes.all():
        kept = np.flatnonzero(sizes)
        keys, sums, sizes = keys[kept], sums[kept], sizes[kept]
    reduced = space.reduce(sums[:, 0], totals[:1])
    of_all = config.of_all
    if of_all is None:
        of_all = space.reduce(totals[:1], totals[:1])[0]
    columns: dict[str, NDArray[Any]] = {"key": keys}
    for column in range(space.columns):
        columns[f"c{column}"] = reduced[:, column]
    large = np.flatnonzero(sizes >= config.min_slice_size)
    testable, own_sums = (
        (sums, reduced) if large.size == sizes.size else (sums[large], reduced[large])
    )
    for number, test in enumerate(config.tests):
        tested, errors = test.run(testable, totals, own_sums, of_all)
        columns[f"p{number}"] = _spread(tested.p, large, sizes.size, np.nan)
        if config.is_first:
            columns[f"first{number}"] = columns[f"p{number}"]
        if metric(test.metric).needs.ranked:
            best = tested.p
            if len(totals) == 1 and test.test != "paper":
                own = metric(test.metric)
                best = own.least_test_p(Slices(own_sums, space, of_all), test.alternative, tested)
            columns[f"best{number}"] = _spread(best, large, sizes.size, np.nan)
        columns[f"reason{number}"] = _spread(tested.reasons, large, sizes.size, 0)
        columns[f"method{number}"] = _spread(tested.methods, large, sizes.size, 0)
        columns[f"se{number}"] = _spread(errors, large, sizes.size, np.nan)
    facts = {"plan": config.plan_digest, "nonempty": nonempty, "tested": int(large.size)}
    arrays = [pa.array(np.ascontiguousarray(column)) for column in columns.values()]
    batch = pa.record_batch(arrays, names=list(columns))
    return batch.replace_schema_metadata({"facts": json.dumps(facts)})


def _spread(values: NDArray[Any], positions: IntArray, size: int, empty: float) -> NDArray[Any]:
    spread = np.full(size, empty, values.dtype)
    spread[positions] = values
    return spread


def write_part(path: StoragePath, batch: pa.RecordBatch) -> None:
    """Write the results of a block."""
    write_arrow(path, batch.schema, [batch])


def read_part(path: StoragePath) -> pa.RecordBatch:
    """Return the results of a block."""
    return open_arrow(path, is_unchanging=True).get_batch(0)


def part_column(batch: pa.RecordBatch, name: str, number: int) -> NDArray[Any]:
    """Return a part's results for a metric's slices, with the columns that it omits."""
    if name == "first" and f"first{number}" not in batch.schema.names:
        name = "p"
    column: NDArray[Any] = batch.column(f"{name}{number}").to_numpy()
    return column


def read_facts(path: StoragePath, *, is_finished: bool = True) -> dict[str, Any]:
    """Return the facts of a block without its results; unless it is finished it may be replaced."""
    opened = open_arrow(path, is_unchanging=is_finished)
    facts: dict[str, Any] = json.loads(opened.schema.metadata[b"facts"])
    return facts


def finished_blocks(folder: StoragePath, plan_digest: str, blocks: int) -> list[int]:
    """Return the blocks whose results for this very plan are written."""
    finished = []
    for block in range(blocks):
        path = part_path(folder, block)
        if path.exists():
            try:
                facts = read_facts(path, is_finished=False)
            except EngineError:
                # What was damaged is counted again.
                continue
            if facts["plan"] == plan_digest:
                finished.append(block)
    return finished


def write_p_values(element: tuple[int, UnitSums], config: BlockTest) -> int:
    """Write the p-values of a block, and return its number."""
    block, state = element
    batch = tested_block(read_block(config.plan, block), state, config)
    write_part(part_path(config.folder, block), batch)
    return block
