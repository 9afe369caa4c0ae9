"""DescribeSlices: what a few chosen slices need beyond their test.

The counts of slices that the search did not visit (parents of significant ones), and the row-hash
sums that tell whether two slices hold the same examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting import hash_sums
from slicebeam.transforms.files import storage_errors, written_whole
from slicebeam.transforms.shards import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.lattice import Keys, Lattice

# Feature tuples that a work item hashes.
_TUPLES_AT_A_TIME = 64


def hashed_slices(
    keys: Keys, lattice: Lattice, shards: Sequence[str]
) -> Iterator[tuple[Keys, NDArray[np.uint64]]]:
    """Yield for each feature tuple its slices and the sums of their row hashes."""
    number, tuples = lattice.feature_sets(keys)
    opened = [Shard(Path(path)) for path in shards]
    for group, row in enumerate(tuples):
        mine = keys[number == group]
        rows = (block for shard in opened for block in shard.blocks())
        yield mine, hash_sums(mine, row[row >= 0].tolist(), lattice, rows)


class _Hash(beam.DoFn):
    def __init__(self, lattice: Lattice, shards: tuple[str, ...], folder: Path) -> None:
        self.lattice, self.shards, self.folder = lattice, shards, folder

    def process(self, element: tuple[int, list[int]]) -> Iterator[int]:
        number, keys = element
        hashed = list(hashed_slices(np.array(keys, np.int64), self.lattice, self.shards))
        batch = pa.record_batch(
            [
                pa.array(np.concatenate([keys for keys, _ in hashed])),
                pa.array(np.concatenate([sums for _, sums in hashed])),
            ],
            names=["key", "sum"],
        )
        with (
            written_whole(self.folder / f"{number:06d}.arrow") as stream,
            pa.ipc.new_file(stream, batch.schema) as writer,
        ):
            writer.write_batch(batch)
        yield number


@dataclass
class HashSlices(beam.PTransform):
    """Write the row-hash sums of slices: pipeline -> PCollection of part numbers."""

    keys: Keys
    lattice: Lattice
    shards: tuple[str, ...]
    folder: Path

    def expand(self, pipeline: Any) -> Any:
        """Wire the transform."""
        number, _ = self.lattice.feature_sets(self.keys)
        item = number // _TUPLES_AT_A_TIME
        items = [(int(i), self.keys[item == i].tolist()) for i in np.unique(item)]
        return (
            pipeline
            | "Feature tuples" >> beam.Create(items)
            | "Spread" >> beam.Reshuffle()
            | "Hash" >> beam.ParDo(_Hash(self.lattice, self.shards, self.folder))
        )


def read_hashes(folder: Path) -> tuple[Keys, NDArray[np.uint64]]:
    """Return the slices (sorted) and their sums that `HashSlices` wrote."""
    keys, sums = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for path in sorted(folder.glob("*.arrow")):
        with storage_errors(path, "read"), pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            keys.append(np.array(batch.column("key")))
            sums.append(np.array(batch.column("sum")))
    order = np.argsort(np.concatenate(keys))
    return np.concatenate(keys)[order], np.concatenate(sums)[order]
