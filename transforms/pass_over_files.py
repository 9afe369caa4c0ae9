"""Something small of all encoded examples, where reading them takes workers."""

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

    # What is found in some files: arrays of one dimension, by name.
    Found = dict[str, NDArray[Any]]
    FunctionOfFiles = Callable[[Sequence[StoragePath]], Found]
    Function = Callable[[Iterable[Shard]], Found]


def write_found(path: StoragePath, found: Found) -> None:
    """Write arrays of one dimension as one file."""
    batch = pa.record_batch([pa.array([values]) for values in found.values()], names=[*found])
    write_arrow(path, batch.schema, [batch])


def read_found(path: StoragePath) -> Found:
    """Return what `write_found` wrote."""
    batch = open_arrow(path).get_batch(0)
    return {name: np.array(batch.column(name)[0].values) for name in batch.schema.names}


class _Pass(beam.DoFn):
    def __init__(self, function: FunctionOfFiles, folder: StoragePath) -> None:
        self.function, self.folder = function, folder

    def process(self, item: tuple[int, Sequence[str]]) -> Iterator[int]:
        number, paths = item
        found = self.function([storage_path(path) for path in paths])
        write_found(self.folder / f"{number:06d}.arrow", found)
        yield number


@dataclass
class PassOverFiles(beam.PTransform):
    """Write what a function finds in each group of files: pipeline -> group numbers.

    Attributes
    ----------
    function : of the files of a group; it is sent to the workers
    groups : paths
    folder : where the findings go
    """

    function: FunctionOfFiles
    groups: Sequence[Sequence[str]]
    folder: StoragePath

    def expand(self, pipeline: Any) -> Any:
        """Wire the transform."""
        items = [(number, paths) for number, paths in enumerate(self.groups) if paths]
        passing = _Pass(self.function, self.folder)
        return pipeline | "Files" >> beam.Create(items) | "Pass" >> beam.ParDo(passing)

    def read(self) -> list[Found]:
        """Return what was found, group by group."""
        return [read_found(path) for path in matching(self.folder, "*.arrow")]


@dataclass(frozen=True)
class OverShards:
    """A function of shards as one of their files."""

    function: Function

    def __call__(self, paths: Sequence[StoragePath]) -> Found:
        """Return what is found in the shards."""
        return self.function(map(Shard, paths))
