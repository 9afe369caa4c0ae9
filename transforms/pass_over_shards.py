"""PassOverShards: something small of all encoded examples, where reading them takes workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.transforms.arrow_files import open_arrow, write_arrow
from slicebeam.transforms.shards import Shard
from slicebeam.transforms.storage import matching, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.transforms.storage import StoragePath

    # What is found in some shards: arrays of one dimension, by name.
    Found = dict[str, NDArray[Any]]
    Function = Callable[[Iterable[Shard]], Found]


class _Pass(beam.DoFn):
    def __init__(self, function: Function, folder: StoragePath) -> None:
        self.function, self.folder = function, folder

    def process(self, item: tuple[int, Sequence[str]]) -> Iterator[int]:
        number, paths = item
        found = self.function(Shard(storage_path(path)) for path in paths)
        batch = pa.record_batch([pa.array([values]) for values in found.values()], names=[*found])
        write_arrow(self.folder / f"{number:06d}.arrow", batch.schema, [batch])
        yield number


@dataclass
class PassOverShards(beam.PTransform):
    """Write what a function finds in each group of shards: pipeline -> group numbers.

    Attributes
    ----------
    function : of some shards; it is sent to the workers
    shards : paths
    groups : into which the shards are dealt
    folder : where the findings go
    """

    function: Function
    shards: Sequence[str]
    groups: int
    folder: StoragePath

    def expand(self, pipeline: Any) -> Any:
        """Wire the transform."""
        dealt = [self.shards[group :: self.groups] for group in range(self.groups)]
        items = [(number, paths) for number, paths in enumerate(dealt) if paths]
        passing = _Pass(self.function, self.folder)
        return pipeline | "Shards" >> beam.Create(items) | "Pass" >> beam.ParDo(passing)

    def read(self) -> list[Found]:
        """Return what was found, group by group."""
        found = []
        for path in matching(self.folder, "*.arrow"):
            batch = open_arrow(path).get_batch(0)
            found.append(
                {name: np.array(batch.column(name)[0].values) for name in batch.schema.names}
            )
        return found
