"""CountOverlaps: sums of the examples that are in the same of some slices, as columnar parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.overlaps import Overlaps
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.arrow_files import open_arrow, part_path, write_arrow
from slicebeam.transforms.storage.storage import holds, storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath

# Shards that a work item passes over at most.
_SHARDS_AT_A_TIME = 256


class _OverlapPass(beam.DoFn):
    def __init__(
        self,
        keys: Keys,
        lattice: Lattice,
        singleton_sizes: NDArray[np.int64],
        space: StatisticSpace,
        scaling: Scaling,
        folder: StoragePath,
    ) -> None:
        self.keys, self.lattice, self.singleton_sizes = keys, lattice, singleton_sizes
        self.space, self.scaling, self.folder = space, scaling, folder

    def process(self, item: tuple[int, tuple[str, ...]]) -> Iterator[int]:
        number, shards = item
        overlaps = Overlaps(self.keys, self.lattice, self.space, self.singleton_sizes)
        for path in shards:
            for rows in Shard(storage_path(path)).blocks(self.scaling):
                overlaps.add(rows)
        patterns, sums = overlaps.merge()
        _write(part_path(self.folder, number), patterns, sums)
        yield number


def _write(path: StoragePath, patterns: NDArray[np.uint8], sums: NDArray[np.int64]) -> None:
    columns = {
        f"{name}{number}": pa.array(column)
        for name, table in (("pattern", patterns), ("sum", sums))
        for number, column in enumerate(np.ascontiguousarray(table.T))
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    write_arrow(path, batch.schema, [batch])


def _read(path: StoragePath) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = open_arrow(path).get_batch(0)
    tables = {}
    for name in ("pattern", "sum"):
        some = [one for one in batch.schema.names if one.startswith(name)]
        tables[name] = np.stack([batch.column(one).to_numpy() for one in some], axis=1)
    return tables["pattern"], tables["sum"]


@dataclass
class CountOverlaps(beam.PTransform):
    """Write the sums of the examples that are in the same slices: pipeline -> part numbers.

    Attributes
    ----------
    keys : int64 [slices], a hundred or so
    lattice : of the slices
    singleton_sizes : int64 [singletons + 1] examples by digit
    space : the statistics that are summed
    scaling : how shards become statistics
    shards : paths
    workers : how many can work at once
    folder : where the parts go
    """

    keys: Keys
    lattice: Lattice
    singleton_sizes: NDArray[np.int64]
    space: StatisticSpace
    scaling: Scaling
    shards: tuple[str, ...]
    workers: int
    folder: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        items = list(enumerate(self._groups()))
        counted = _OverlapPass(
            self.keys, self.lattice, self.singleton_sizes, self.space, self.scaling, self.folder
        )
        return pipeline | "Shards" >> beam.Create(items) | "Count" >> beam.ParDo(counted)

    def is_written(self) -> bool:
        """Return whether all parts, and nothing else, are there."""
        numbers = range(self.parts())
        return holds(self.folder, (part_path(self.folder, number).name for number in numbers))

    def parts(self) -> int:
        """Return how many parts are written."""
        return len(self._groups())

    def _groups(self) -> list[tuple[str, ...]]:
        # Patterns are merged where they are found, so an item is as large as there are workers for.
        groups = max(self.workers, -(-len(self.shards) // _SHARDS_AT_A_TIME))
        return [self.shards[group::groups] for group in range(groups)]

    def read(self, parts: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which slices hold the examples of each pattern [patterns, slices], and their sums.

        Raises
        ------
        EngineError
            A part is missing or damaged.
        """
        overlaps = Overlaps(self.keys, self.lattice, self.space)
        patterns, sums = [], []
        for path in (part_path(self.folder, number) for number in range(parts)):
            some_patterns, some_sums = _read(path)
            patterns.append(some_patterns)
            sums.append(some_sums)
        merged, merged_sums = overlaps.merge_with(patterns, sums)
        return overlaps.members(merged), merged_sums
