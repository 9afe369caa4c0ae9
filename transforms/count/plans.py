"""The plan of an iteration as a file: workers read their block from storage.

Candidates travel through storage, not as side inputs, which engines fetch again and again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.counting import Unit, table_cells
from slicebeam.metrics.counting.counting_plan import BLOCK_SECONDS
from slicebeam.transforms.storage.storage import storage_errors
from slicebeam.transforms.storage.work_files import open_arrow, write_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.transforms.storage.storage import StoragePath

_SCHEMA = pa.schema(
    [
        ("features", pa.list_(pa.int32())),
        ("method", pa.string()),
        ("extensions", pa.list_(pa.int32())),
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
            yield _batch(units)

    write_arrow(path, _SCHEMA, batches())
    return written


def _batch(units: Sequence[Unit]) -> pa.RecordBatch:
    columns = [
        pa.array([getattr(unit, field.name) for unit in units], field.type) for field in _SCHEMA
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def _candidates(unit: Unit, lattice: Lattice) -> int:
    if unit.candidates is not None:
        return unit.candidates.size
    return sum(table_cells(features, lattice) for features in unit.reported) // unit.parts


def read_block(path: StoragePath, block: int) -> list[Unit]:
    """Return the units of one block."""
    batch = open_arrow(path).get_batch(block)
    candidates, bases = batch.column("candidates"), batch.column("bases")
    plain = ["features", "method", "extensions", "part", "parts", "margins"]
    rows = batch.select(plain).to_pylist()
    return [
        Unit(
            tuple(row["features"]),
            row["method"],
            tuple(row["extensions"]),
            _keys(bases, i),
            _keys(candidates, i),
            row["part"],
            row["parts"],
            tuple(map(tuple, row["margins"])),
        )
        for i, row in enumerate(rows)
    ]


def _keys(column: pa.Array, row: int) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    scalar = column[row]
    # A copy, since the file is closed before the keys are used.
    return np.array(scalar.values, np.int64) if scalar.is_valid else None


def plan_digest(path: StoragePath) -> str:
    """Return what identifies a plan: results of another plan are not taken for its own."""
    with storage_errors(path, "read"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
