"""NumberEqualRows: numbers the examples that hold the same, over all shards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.occurrences import repeats
from slicebeam.transforms.arrow_files import write_arrow
from slicebeam.transforms.shards import CONTENT, Shard
from slicebeam.transforms.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.transforms.storage import StoragePath

# Of an example, what is in memory while equal ones are numbered.
ROW_BYTES = 56


def number_equal_rows(
    shards: Sequence[StoragePath], part: int, parts: int, path: StoragePath
) -> None:
    """Write the numbers of the examples that equal an earlier one, a batch for each shard.

    Parameters
    ----------
    shards : all of them
    part, parts : which examples, by their content, of which equal ones are in the same part
    path : of the file
    """
    contents, rows = [], []
    for shard in shards:
        content = Shard(shard).column(CONTENT)
        mine = np.flatnonzero(content % np.uint64(parts) == part) if parts > 1 else None
        contents.append(np.array(content if mine is None else content[mine]))
        rows.append(mine)
    again, numbers = repeats(np.concatenate([np.zeros(0, np.uint64), *contents]))
    ends = np.cumsum([one.size for one in contents])
    bounds = np.searchsorted(again, np.append(0, ends))
    facts = {"shards": [shard.name for shard in shards]}
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

    write_arrow(path, schema, batches())


class _Number(beam.DoFn):
    def __init__(self, shards: Sequence[str], parts: int, folder: StoragePath) -> None:
        self.shards, self.parts, self.folder = shards, parts, folder

    def process(self, part: int) -> Iterator[int]:
        paths = [storage_path(path) for path in self.shards]
        number_equal_rows(paths, part, self.parts, part_path(self.folder, part))
        yield part


def part_path(folder: StoragePath, part: int) -> StoragePath:
    """Return the file of a part."""
    return folder / f"{part:06d}.arrow"


@dataclass
class NumberEqualRows(beam.PTransform):
    """Write the numbers of equal examples: pipeline -> part numbers.

    Attributes
    ----------
    shards : all of them
    parts : how many workers share the examples, by their content
    folder : where the parts go
    """

    shards: tuple[str, ...]
    parts: int
    folder: StoragePath

    def expand(self, pipeline: Any) -> Any:
        """Wire the transform."""
        numbering = _Number(self.shards, self.parts, self.folder)
        parts = beam.Create(list(range(self.parts)))
        return pipeline | "Parts" >> parts | "Number" >> beam.ParDo(numbering)
