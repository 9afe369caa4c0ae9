"""Numbers equal examples, over all shards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.occurrences import repeats
from slicebeam.transforms.encode.shards import CONTENT, WEIGHT, Shard
from slicebeam.transforms.storage.arrow_files import open_arrow
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.transforms.storage.storage import StoragePath

# Of an example, what is in memory while equal ones are numbered.
ROW_BYTES = 72


def _numbers(
    shards: Sequence[str], column: str, parts: int, heaviest: float, part: int
) -> pa.RecordBatchReader:
    """Return the numbers of the examples that equal an earlier one, a batch for each shard."""
    contents, weights, rows = [], [], []
    paths = [storage_path(path) for path in shards]
    for shard in map(Shard, paths):
        content = shard.contents(heaviest) if column == CONTENT else shard.column(column)
        mine = np.flatnonzero(content % np.uint64(parts) == part) if parts > 1 else None
        contents.append(np.array(content if mine is None else content[mine]))
        rows.append(mine)
        if heaviest > 0:
            weight = shard.column(WEIGHT)
            weights.append(np.array(weight if mine is None else weight[mine]))
    # Weights that differ by less than the hash resolves are numbered by size, in any order the same.
    within = np.concatenate(weights) if weights else None
    again, numbers = repeats(np.concatenate([np.zeros(0, np.uint64), *contents]), within)
    ends = np.cumsum([one.size for one in contents])
    bounds = np.searchsorted(again, np.append(0, ends))
    facts = {"shards": [path.name for path in paths]}
    schema = pa.schema(
        [("row", pa.uint32()), ("number", pa.uint64())], {"facts": json.dumps(facts)}
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for at, own in enumerate(rows):
            some = slice(bounds[at], bounds[at + 1])
            row = again[some] - (ends[at] - contents[at].size)
            if own is not None:
                row = own[row]
            columns = [pa.array(row.astype(np.uint32)), pa.array(numbers[some].astype(np.uint64))]
            yield pa.record_batch(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


@dataclass(frozen=True)
class Repeats:
    """Values that several examples have.

    `shard`, `row`: position of an example of the first of them, its shard among all and its row
    there.
    """

    values: int
    shard: int
    row: int


def read_repeats(paths: Sequence[StoragePath]) -> Repeats | None:
    """Return the repeated values from the written parts; None if there are none."""
    values, first = 0, []
    for path in paths:
        file = open_arrow(path)
        for shard in range(file.num_record_batches):
            batch = file.get_batch(shard)
            second = np.flatnonzero(batch.column("number").to_numpy() == 1)
            if second.size:
                values += second.size
                first.append((shard, int(batch.column("row")[int(second[0])].as_py())))
    return Repeats(values, *min(first)) if first else None


def number_equal_rows(
    shards: Sequence[StoragePath],
    column: str,
    parts: int,
    folder: StoragePath,
    heaviest: float = 0.0,
) -> WriteParts:
    """Return the transform that writes the numbers of equal examples, of which one is the first.

    `column`: of a hash of the compared values. `parts`: how many workers share the examples, by
    that hash. `heaviest`: largest weight of all examples, 0 without weights, and for an id.
    """
    function = partial(_numbers, [str(path) for path in shards], column, parts, heaviest)
    return WriteParts(function, range(parts), folder)
