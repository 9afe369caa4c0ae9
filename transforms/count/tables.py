"""The plan of an iteration as a file, and the sums and p-values of every slice of its blocks, a part each.

Candidates travel through storage, not as side inputs, which engines fetch again and again.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.metrics import Metrics

from slicebeam.metrics.counting.counting import SumReader, Tables, Unit, table_cells
from slicebeam.metrics.counting.counting_plan import BLOCK_SECONDS
from slicebeam.metrics.errors import EngineError
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric_on
from slicebeam.metrics.significance.outcome_codes import Reason, Tested
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.storage import storage_errors, storage_path
from slicebeam.transforms.storage.work_files import open_arrow, part_path, write_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import Resampling, UnitSums
    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.measures.slice_test import SliceTest
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath

# The fields of a `Unit`.
_SCHEMA = pa.schema(
    [
        ("features", pa.list_(pa.int32())),
        ("method", pa.string()),
        ("bases", pa.large_list(pa.int64())),
        ("candidates", pa.large_list(pa.int64())),
        ("part", pa.int32()),
        ("parts", pa.int32()),
        ("margins", pa.list_(pa.list_(pa.int32()))),
    ]
)


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


class PlannedBlock(NamedTuple):
    """The contents of a block of a plan."""

    seconds: float
    candidates: int


def write_plan(
    path: StoragePath, blocks: Iterable[list[PlannedUnit]], lattice: Lattice
) -> list[PlannedBlock]:
    """Write the blocks of a plan, one record batch each, and return what each takes."""
    written: list[PlannedBlock] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for block in blocks:
            units = [planned.unit for planned in block]
            seconds = sum(planned.seconds for planned in block)
            written.append(PlannedBlock(seconds, sum(_candidates(unit, lattice) for unit in units)))
            columns = [[getattr(unit, name) for unit in units] for name in _SCHEMA.names]
            yield pa.record_batch(list(map(pa.array, columns, _SCHEMA.types)), schema=_SCHEMA)

    write_arrow(path, _SCHEMA, batches())
    return written


def _candidates(unit: Unit, lattice: Lattice) -> int:
    if unit.candidates is not None:
        return unit.candidates.size
    return sum(table_cells(features, lattice) for features in unit.reported) // unit.parts


def read_block(path: StoragePath, block: int) -> list[Unit]:
    """Return the units of one block."""
    columns = map(_fields, open_arrow(path).get_batch(block).columns)
    return [Unit(*fields) for fields in zip(*columns, strict=True)]


def _fields(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_large_list(kind):
        # Copies, since the file is closed before the keys are used.
        return [np.array(keys.values, np.int64) if keys.is_valid else None for keys in column]
    values: list[Any] = column.to_pylist()
    if not pa.types.is_list(kind):
        return values
    return [tuple(map(tuple, one) if pa.types.is_list(kind.value_type) else one) for one in values]


def plan_digest(path: StoragePath) -> str:
    """Return what identifies a plan: results of another plan are not taken for its own."""
    with storage_errors(path, "read"):
        return hashlib.sha256(path.read_bytes()).hexdigest()


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


def count_block(item: WorkItem, config: BlockTest) -> tuple[int, UnitSums]:
    """Return the tables of a block over some shards."""
    units = read_block(config.plan, item.block)
    tables = Tables(units, config.lattice, config.scaling.space, config.resampling)
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
    slice is too small to be tested, 1 where replicates are to decide), ``first<i>`` (that of the quick test),
    ``best<i>`` (lower bound of p, given the error of an approximate metric), ``reason<i>``, ``method<i>``,
    ``se<i>``. Metadata: the plan's digest, how many slices were not empty, and how many were tested.
    """
    totals, space = state.totals, config.scaling.space
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
    # Without a copy where all are large.
    where = large if large.size < sizes.size else slice(None)
    own_sums = reduced[where]
    for number, test in enumerate(config.tests):
        tested, errors = test.run(sums[where], totals, (own_sums, of_all))
        found: dict[str, NDArray[Any]] = {}
        own = metric_on(test.metric, space)
        if own.needs.ranked:
            best = tested.p
            if len(totals) == 1 and test.test != "paper":
                best = own.least_test_p(Slices(own_sums, space, of_all), test.alternative, tested)
            found["best"] = best
        if config.is_first:
            found["first"] = tested.p
            if test.needs_rows():
                # The quick test only says whether replicates are to decide.
                reasons = np.where(tested.reasons == 0, Reason.NOT_RESAMPLED, tested.reasons)
                ones, none = np.ones(tested.p.shape), np.zeros_like(tested.methods)
                tested = Tested(ones, reasons.astype(np.int8), none)
        found |= {"p": tested.p, "reason": tested.reasons, "method": tested.methods, "se": errors}
        for name, values in found.items():
            is_number = values.dtype.kind == "f"
            spread = np.full(sizes.size, np.nan if is_number else 0, values.dtype)
            spread[large] = values
            columns[f"{name}{number}"] = spread
    facts = {"plan": config.plan_digest, "nonempty": nonempty, "tested": int(large.size)}
    arrays = [pa.array(np.ascontiguousarray(column)) for column in columns.values()]
    batch = pa.record_batch(arrays, names=list(columns))
    return batch.replace_schema_metadata({"facts": json.dumps(facts)})


def read_part(path: StoragePath) -> pa.RecordBatch:
    """Return the results of a block."""
    return open_arrow(path, is_unchanging=True).get_batch(0)


def read_facts(path: StoragePath, *, is_finished: bool = True) -> dict[str, Any]:
    """Return the facts of a block without its results; unless it is finished it may be replaced."""
    schema = open_arrow(path, is_unchanging=is_finished).schema
    return dict(json.loads(schema.metadata[b"facts"]))


def finished_blocks(folder: StoragePath, plan_digest: str, blocks: int) -> list[int]:
    """Return the blocks whose results for this very plan are written."""
    finished = []
    for block in range(blocks):
        path = part_path(folder, block)
        # What was damaged is counted again.
        with suppress(EngineError):
            if path.exists() and read_facts(path, is_finished=False)["plan"] == plan_digest:
                finished.append(block)
    return finished


def write_p_values(element: tuple[int, UnitSums], config: BlockTest) -> int:
    """Write the p-values of a block, and return its number."""
    block, state = element
    batch = tested_block(read_block(config.plan, block), state, config)
    write_arrow(part_path(config.folder, block), batch.schema, [batch])
    return block
