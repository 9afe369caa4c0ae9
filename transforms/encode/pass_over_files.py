"""Something small of all encoded examples, where reading them takes workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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
    FunctionOfRows = Callable[["RowGroup"], Found]
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

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        items = list(enumerate(self._filled()))
        passing = _FilePass(_OfPaths(self.function), self.folder)
        return pipeline | "Files" >> beam.Create(items) | "Pass" >> beam.ParDo(passing)

    def _filled(self) -> list[Sequence[str]]:
        return [paths for paths in self.groups if paths]

    def is_written(self) -> bool:
        """Return whether what was found in each group, and nothing else, is there."""
        return _is_written(self.folder, self.parts())

    def parts(self) -> int:
        """Return how many groups have files."""
        return len(self._filled())

    @staticmethod
    def here(function: FunctionOfFiles, groups: Sequence[Sequence[str]]) -> list[Found]:
        """Return what is found group by group, in this process."""
        return [_OfPaths(function)(paths) for paths in groups]

    def read(self, parts: int) -> list[Found]:
        """Return what was found, group by group.

        Raises
        ------
        EngineError
            What was found in a group is missing or damaged.
        """
        return _read_all(self.folder, parts)


@dataclass
class PassOverRows(beam.PTransform):
    """Write what a function finds in each group of rows: pipeline -> group numbers.

    Attributes
    ----------
    function : of a group; it is sent to the workers
    groups : of rows
    folder : where the findings go
    """

    function: FunctionOfRows
    groups: Sequence[RowGroup]
    folder: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        passing = _FilePass(self.function, self.folder)
        items = list(enumerate(self.groups))
        return pipeline | "Rows" >> beam.Create(items) | "Pass" >> beam.ParDo(passing)

    def is_written(self) -> bool:
        """Return whether what was found in each group, and nothing else, is there."""
        return _is_written(self.folder, self.parts())

    def parts(self) -> int:
        """Return how many groups there are."""
        return len(self.groups)

    @staticmethod
    def here(function: FunctionOfRows, groups: Sequence[RowGroup]) -> list[Found]:
        """Return what is found group by group, in this process."""
        return [function(group) for group in groups]

    def read(self, parts: int) -> list[Found]:
        """Return what was found, group by group.

        Raises
        ------
        EngineError
            What was found in a group is missing or damaged.
        """
        return _read_all(self.folder, parts)


@dataclass(frozen=True)
class _OfPaths:
    """A function of files as one of their paths."""

    function: FunctionOfFiles

    def __call__(self, paths: Sequence[str]) -> Found:
        return self.function([storage_path(path) for path in paths])


def _is_written(folder: StoragePath, parts: int) -> bool:
    return holds(folder, (part_path(folder, number).name for number in range(parts)))


def _read_all(folder: StoragePath, parts: int) -> list[Found]:
    return [read_found(part_path(folder, number)) for number in range(parts)]


@dataclass(frozen=True)
class OverShards:
    """A function of shards as one of their files."""

    function: Function

    def __call__(self, paths: Sequence[StoragePath]) -> Found:
        """Return what is found in the shards."""
        return self.function(map(Shard, paths))
