"""HashSlices and CountGroups: properties of slices that sums do not show, from the examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.membership import DistinctGroups, RowHashSums
from slicebeam.transforms.count.combine_slice_metrics import work_items
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.arrow_files import open_arrow, part_path, write_arrow
from slicebeam.transforms.storage.storage import holds, storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import Unit
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.membership import HashBlock
    from slicebeam.transforms.storage.storage import StoragePath

# Feature tuples whose groups a work item counts.
_TUPLES_AT_A_TIME = 512
_KEYS = "keys"


@dataclass(frozen=True)
class _Item:
    """Slices, by their place among the keys, over some shards."""

    number: int
    begin: int
    end: int
    shards: tuple[str, ...]
    tables: tuple[Unit, ...] = ()


class _SumPass(beam.DoFn):
    """Sums something of slices over shards, and writes the sums."""

    def __init__(self, lattice: Lattice, folder: StoragePath) -> None:
        self.lattice, self.folder = lattice, folder

    def summed(self, keys: Keys, item: _Item) -> RowHashSums | DistinctGroups:
        """Return the sums of slices."""
        raise NotImplementedError

    def process(self, item: _Item) -> Iterator[int]:
        keys = _column(self.folder / _KEYS, "key")[item.begin : item.end]
        summed = self.summed(keys, item)
        for path in item.shards:
            for rows in Shard(storage_path(path)).blocks():
                summed.add(rows)
        batch = pa.record_batch([pa.array(keys), pa.array(summed.sums)], names=["key", "sum"])
        write_arrow(part_path(self.folder, item.number), batch.schema, [batch])
        yield item.number


class _Hash(_SumPass):
    def __init__(self, lattice: Lattice, folder: StoragePath, singleton_sizes: IntArray) -> None:
        super().__init__(lattice, folder)
        self.singleton_sizes = singleton_sizes

    def summed(self, keys: Keys, item: _Item) -> RowHashSums:
        return RowHashSums(keys, self.lattice, self.singleton_sizes, item.tables)


class _CountGroups(_SumPass):
    def summed(self, keys: Keys, item: _Item) -> DistinctGroups:  # noqa: ARG002
        return DistinctGroups(keys, self.lattice)


class _SumSlices(beam.PTransform):
    """Writes sums of slices in parts: pipeline -> PCollection of part numbers."""

    folder: StoragePath

    def summed(
        self, pipeline: beam.pvalue.PBegin, keys: Keys, doing: _SumPass
    ) -> beam.PCollection[int]:
        """Wire a pass over the slices, in the order of the items."""
        # Keys travel through storage: engines fetch what is in the graph again and again.
        batch = pa.record_batch([pa.array(keys)], names=["key"])
        write_arrow(self.folder / _KEYS, batch.schema, [batch])
        return pipeline | "Slices" >> beam.Create(self.items()) | "Sum" >> beam.ParDo(doing)

    def items(self) -> list[_Item]:
        """Return the parts that are written."""
        raise NotImplementedError

    def is_written(self) -> bool:
        """Return whether all parts, and nothing else, are there."""
        parts = (part_path(self.folder, item.number).name for item in self.items())
        return holds(self.folder, [_KEYS, *parts])

    def parts(self) -> int:
        """Return how many parts are written."""
        return len(self.items())


def _column(path: StoragePath, name: str) -> NDArray[Any]:
    column: NDArray[Any] = np.array(open_arrow(path).get_batch(0).column(name))
    return column


@dataclass
class HashSlices(_SumSlices):
    """Write the row-hash sums of slices, which tell whether two hold the same examples.

    pipeline -> PCollection of part numbers

    Attributes
    ----------
    shards : paths
    workers : how many can work at once
    singleton_sizes : int64 [singletons + 1] examples by digit
    """

    blocks: Sequence[HashBlock]
    lattice: Lattice
    shards: tuple[str, ...]
    workers: int
    folder: StoragePath
    singleton_sizes: IntArray

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        keys = np.concatenate([block.keys for block in self.blocks])
        doing = _Hash(self.lattice, self.folder, self.singleton_sizes)
        return self.summed(pipeline, keys, doing)

    def items(self) -> list[_Item]:
        """See `_SumSlices.items`."""
        ends = np.cumsum([block.keys.size for block in self.blocks]).tolist()
        # Sums of hashes are small: each block is dealt out over the workers by shards.
        dealt = [
            (block, end, item.shards)
            for block, end in zip(self.blocks, ends, strict=True)
            for item in work_items([0], self.shards, block.seconds, self.workers)
        ]
        return [
            _Item(number, end - block.keys.size, end, shards, block.tables)
            for number, (block, end, shards) in enumerate(dealt)
        ]


@dataclass
class CountGroups(_SumSlices):
    """Write in how many groups the examples of slices are, which the shards hold as their ids.

    pipeline -> PCollection of part numbers

    Attributes
    ----------
    keys : int64 [slices]
    shards : paths
    """

    keys: Keys
    lattice: Lattice
    shards: tuple[str, ...]
    folder: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        order = np.argsort(self.lattice.feature_sets(self.keys)[0], kind="stable")
        doing = _CountGroups(self.lattice, self.folder)
        return self.summed(pipeline, self.keys[order], doing)

    def items(self) -> list[_Item]:
        """See `_SumSlices.items`."""
        number, sets = self.lattice.feature_sets(self.keys)
        tuples = np.arange(0, len(sets) + _TUPLES_AT_A_TIME, _TUPLES_AT_A_TIME)
        bounds = np.unique(np.searchsorted(np.sort(number), tuples)).tolist()
        # Groups of different shards may be the same: only one pass over all of them can tell.
        return [_Item(i, bounds[i], bounds[i + 1], self.shards) for i in range(len(bounds) - 1)]


def read_sums(folder: StoragePath, parts: int) -> tuple[Keys, NDArray[np.uint64]]:
    """Return the slices (sorted) and their sums over all parts, modulo 2^64.

    Raises
    ------
    EngineError
        A part is missing or damaged.
    """
    keys, sums = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for path in (part_path(folder, number) for number in range(parts)):
        keys.append(_column(path, "key"))
        sums.append(_column(path, "sum"))
    known, position = np.unique(np.concatenate(keys), return_inverse=True)
    summed = np.zeros(known.size, np.uint64)
    np.add.at(summed, position.reshape(-1), np.concatenate(sums))
    return known, summed
