"""Passes over all encoded examples, on workers if there are many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.arrow_files import open_arrow, part_path, write_arrow
from slicebeam.transforms.storage.storage import holds, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.transforms.storage.storage import StoragePath

    # What is found in some files: arrays of one dimension, by name.
    Found = dict[str, NDArray[Any]]
    FunctionOfFiles = Callable[[Sequence[StoragePath]], Found]
    FunctionOfGroup = Callable[[Any], Found]
    Function = Callable[[Iterable[Shard]], Found]


def write_found(path: StoragePath, found: Found) -> None:
    """Write arrays of one dimension as one file."""
    batch = pa.record_batch([pa.array([values]) for values in found.values()], names=[*found])
    write_arrow(path, batch.schema, [batch])


def read_found(path: StoragePath) -> Found:
    """Return what `write_found` wrote."""
    batch = open_arrow(path).get_batch(0)
    return {name: np.array(batch.column(name)[0].values) for name in batch.schema.names}


class RowGroup(NamedTuple):
    """Consecutive rows, which may begin and end within a file.

    Attributes
    ----------
    paths : of the files that hold them, in their order
    begins, ends : which rows of each file
    """

    paths: tuple[str, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]


class _FilePass(beam.DoFn):
    def __init__(self, function: FunctionOfGroup, folder: StoragePath) -> None:
        self.function, self.folder = function, folder

    def process(self, item: tuple[int, Any]) -> Iterator[int]:
        number, group = item
        write_found(part_path(self.folder, number), self.function(group))
        yield number


@dataclass
class PassOverRows(beam.PTransform):
    """Write what a function finds in each group of rows: pipeline -> group numbers.

    Attributes
    ----------
    function : of a group; it is sent to the workers
    """

    function: FunctionOfGroup
    groups: Sequence[Any]
    folder: StoragePath

    label: ClassVar[str] = "Rows"

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        passing = _FilePass(self.of_group(), self.folder)
        items = list(enumerate(self.filled()))
        return pipeline | self.label >> beam.Create(items) | "Pass" >> beam.ParDo(passing)

    def of_group(self) -> FunctionOfGroup:
        """Return the function of what stands for a group in a job."""
        return self.function

    def filled(self) -> Sequence[Any]:
        """Return the groups that a job passes over."""
        return self.groups

    def is_written(self) -> bool:
        """Return whether the results of all groups, and nothing else, are there."""
        return holds(self.folder, (part_path(self.folder, n).name for n in range(self.parts())))

    def parts(self) -> int:
        """Return how many groups a job passes over."""
        return len(self.filled())

    def here(self) -> list[Found]:
        """Return the results by group, computed in this process."""
        return [self.of_group()(group) for group in self.groups]

    def read(self, parts: int) -> list[Found]:
        """Return the results by group.

        Raises
        ------
        EngineError
            What was found in a group is missing or damaged.
        """
        return [read_found(part_path(self.folder, number)) for number in range(parts)]


class PassOverFiles(PassOverRows):
    """Write what a function finds in each group of files, given by their paths.

    A group without files needs no job.
    """

    label: ClassVar[str] = "Files"

    def of_group(self) -> FunctionOfGroup:
        """Return the function of paths as text."""
        return _OfPaths(self.function)

    def filled(self) -> Sequence[Any]:
        """Return the groups that have files."""
        return [paths for paths in self.groups if paths]


@dataclass(frozen=True)
class _OfPaths:
    """A function of files as one of their paths."""

    function: FunctionOfFiles

    def __call__(self, paths: Sequence[str]) -> Found:
        return self.function([storage_path(path) for path in paths])


@dataclass(frozen=True)
class OverShards:
    """A function of shards as one of their files."""

    function: Function

    def __call__(self, paths: Sequence[StoragePath]) -> Found:
        """Return the result for the shards."""
        return self.function(map(Shard, paths))
