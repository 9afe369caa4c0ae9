"""HashSlices and CountGroups: what sums do not tell of a slice, from a pass over its examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.distinct_groups import DistinctGroups
from slicebeam.metrics.row_hashes import RowHashSums
from slicebeam.transforms.files import storage_errors, written_whole
from slicebeam.transforms.shards import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.lattice import Keys, Lattice

# Feature tuples that a work item hashes.
_TUPLES_AT_A_TIME = 512
_KEYS = "keys.npy"


class _Pass(beam.DoFn):
    def __init__(
        self,
        summed: type[RowHashSums | DistinctGroups],
        lattice: Lattice,
        singleton_sizes: NDArray[np.int64] | None,
        shards: tuple[str, ...],
        folder: Path,
    ) -> None:
        self.summed, self.lattice, self.shards, self.folder = summed, lattice, shards, folder
        self.singleton_sizes = singleton_sizes

    def process(self, item: tuple[int, int, int]) -> Iterator[int]:
        number, begin, end = item
        with storage_errors(self.folder, "read"):
            keys = np.load(self.folder / _KEYS)[begin:end]
        summed = self.summed(keys, self.lattice, self.singleton_sizes)
        for path in self.shards:
            for rows in Shard(Path(path)).blocks():
                summed.add(rows)
        columns = [pa.array(summed.keys), pa.array(summed.sums)]
        batch = pa.record_batch(columns, names=["key", "sum"])
        with (
            written_whole(self.folder / f"{number:06d}.arrow") as stream,
            pa.ipc.new_file(stream, batch.schema) as writer,
        ):
            writer.write_batch(batch)
        yield number


@dataclass
class HashSlices(beam.PTransform):
    """Write the row-hash sums of slices, which tell whether two hold the same examples.

    pipeline -> PCollection of part numbers

    Attributes
    ----------
    keys : int64 [slices]
    lattice : of the slices
    shards : paths
    folder : where the parts go
    singleton_sizes : int64 [singletons + 1] examples by digit, if they are known
    """

    keys: Keys
    lattice: Lattice
    shards: tuple[str, ...]
    folder: Path
    singleton_sizes: NDArray[np.int64] | None = None

    summed: ClassVar[type[RowHashSums | DistinctGroups]] = RowHashSums

    def expand(self, pipeline: Any) -> Any:
        """Wire the transform."""
        number, _ = self.lattice.feature_sets(self.keys)
        order = np.argsort(number, kind="stable")
        # Keys travel through storage: engines fetch what is in the graph again and again.
        with written_whole(self.folder / _KEYS) as stream:
            np.save(stream, self.keys[order])
        tuples = np.arange(
            0, int(number.max(initial=-1)) + 1 + _TUPLES_AT_A_TIME, _TUPLES_AT_A_TIME
        )
        bounds = np.unique(np.searchsorted(number[order], tuples)).tolist()
        items = [(i, bounds[i], bounds[i + 1]) for i in range(len(bounds) - 1)]
        summed = _Pass(self.summed, self.lattice, self.singleton_sizes, self.shards, self.folder)
        return (
            pipeline
            | "Feature tuples" >> beam.Create(items)
            | "Spread" >> beam.Reshuffle()
            | "Sum" >> beam.ParDo(summed)
        )


class CountGroups(HashSlices):
    """Write in how many groups the examples of slices are, which the shards hold as their ids."""

    summed: ClassVar[type[RowHashSums | DistinctGroups]] = DistinctGroups


def read_sums(folder: Path) -> tuple[Keys, NDArray[np.uint64]]:
    """Return the slices (sorted) and their sums that `HashSlices` or `CountGroups` wrote."""
    keys, sums = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for path in sorted(folder.glob("*.arrow")):
        with storage_errors(path, "read"), pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            keys.append(np.array(batch.column("key")))
            sums.append(np.array(batch.column("sum")))
    order = np.argsort(np.concatenate(keys))
    return np.concatenate(keys)[order], np.concatenate(sums)[order]
