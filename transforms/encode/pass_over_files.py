"""What a pass over examples finds: arrays by name, as one part of a `WriteParts`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.arrow_files import open_arrow, write_arrow
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from slicebeam.transforms.storage.storage import StoragePath

# Arrays of one dimension, by name.
Found = dict[str, NDArray[Any]]
Function = Callable[[Iterable[Shard]], Found]


def to_row(found: Found) -> pa.RecordBatch:
    """Return arrays as a row of lists."""
    return pa.record_batch([pa.array([values]) for values in found.values()], names=[*found])


def from_row(row: pa.RecordBatch | pa.Table) -> Found:
    """Return the arrays of `to_row`."""
    return {name: np.array(row.column(name)[0].values) for name in row.schema.names}


def write_found(path: StoragePath, found: Found) -> None:
    """Write arrays of one dimension as one file."""
    row = to_row(found)
    write_arrow(path, row.schema, [row])


def read_found(path: StoragePath) -> Found:
    """Return what `write_found` wrote."""
    return from_row(open_arrow(path).get_batch(0))


class RowGroup(NamedTuple):
    """Consecutive rows, which may begin and end within a file.

    `paths`: of the files that hold them, in their order. `begins`, `ends`: which rows of each file.
    """

    paths: tuple[str, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class AsRow:
    """A function of an item that returns its arrays as a row."""

    function: Callable[[Any], Found]

    def __call__(self, item: Any) -> pa.RecordBatch:
        """Return the row of an item."""
        return to_row(self.function(item))


@dataclass(frozen=True)
class OverShards:
    """A function of shards as one of the paths of their files."""

    function: Function

    def __call__(self, paths: Sequence[str]) -> Found:
        """Return the result for the shards."""
        return self.function(Shard(storage_path(path)) for path in paths)
