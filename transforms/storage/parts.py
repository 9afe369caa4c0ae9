"""A durable map: each item of work becomes one file of a folder, so a run that died can go on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pyarrow as pa

from slicebeam.transforms.storage.storage import holds
from slicebeam.transforms.storage.work_files import open_arrow, part_path, write_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.transforms.storage.storage import StoragePath

_SHARED = "shared"


@dataclass
class WriteParts(beam.PTransform):
    """Write what a function returns for each item to a file: pipeline -> item numbers.

    The function returns a `pyarrow.RecordBatch` or `pyarrow.RecordBatchReader`, and gets `shared` as second
    argument, which travels through storage: engines fetch what is in the graph again and again.
    """

    function: Callable[..., Any]
    items: Sequence[Any]
    folder: StoragePath
    shared: pa.Table | None = None

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform; `write_shared` comes before the job."""
        write = partial(write_part, self.function, self.folder, self.shared is not None)
        items = list(enumerate(self.items))
        return pipeline | "Items" >> beam.Create(items) | "Write" >> beam.Map(write)

    def write_shared(self) -> None:
        """Write what all items share."""
        if self.shared is not None:
            write_arrow(self.folder / _SHARED, self.shared.schema, self.shared.to_batches())

    def is_written(self) -> bool:
        """Return whether the file of each item, and nothing else, is there."""
        names = [part_path(self.folder, number).name for number in range(len(self.items))]
        return holds(self.folder, names + [_SHARED] * (self.shared is not None))

    def read(self, parts: int) -> list[pa.Table]:
        """Return the results of this many items: as many as there were when they were written."""
        return list(map(self.part, range(parts)))

    def part(self, number: int) -> pa.Table:
        """Return the result of an item, mapped."""
        return open_arrow(part_path(self.folder, number)).read_all()


def write_part(
    function: Callable[..., Any], folder: StoragePath, has_shared: bool, element: tuple[int, Any]
) -> int:
    """Write what a function returns for an item with its number, and return the number."""
    number, item = element
    shared = [open_arrow(folder / _SHARED).read_all()] if has_shared else []
    found = function(item, *shared)
    batches = [found] if isinstance(found, pa.RecordBatch) else found
    write_arrow(part_path(folder, number), found.schema, batches)
    return number
