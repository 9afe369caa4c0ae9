"""A durable map: each item of work becomes one file of a folder, so a run that died can go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pyarrow as pa

from slicebeam.transforms.storage.arrow_files import open_arrow, part_path, write_arrow
from slicebeam.transforms.storage.storage import holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slicebeam.transforms.storage.storage import StoragePath

_SHARED = "shared"


class _WritePart(beam.DoFn):
    def __init__(
        self, function: Callable[..., Any], folder: StoragePath, *, has_shared: bool
    ) -> None:
        self.function, self.folder, self.has_shared = function, folder, has_shared

    def process(self, element: tuple[int, Any]) -> Iterator[int]:
        number, item = element
        shared = [open_arrow(self.folder / _SHARED).read_all()] if self.has_shared else []
        found = self.function(item, *shared)
        batches = [found] if isinstance(found, pa.RecordBatch) else found
        write_arrow(part_path(self.folder, number), found.schema, batches)
        yield number


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
        """Wire the transform."""
        if self.shared is not None:
            write_arrow(self.folder / _SHARED, self.shared.schema, self.shared.to_batches())
        write = _WritePart(self.function, self.folder, has_shared=self.shared is not None)
        items = list(enumerate(self.items))
        return pipeline | "Items" >> beam.Create(items) | "Write" >> beam.ParDo(write)

    def is_written(self) -> bool:
        """Return whether the file of each item, and nothing else, is there."""
        names = [part_path(self.folder, number).name for number in range(len(self.items))]
        return holds(self.folder, names + [_SHARED] * (self.shared is not None))

    def read(self, parts: int) -> list[pa.Table]:
        """Return the results of this many items: as many as there were when they were written."""
        return [open_arrow(part_path(self.folder, number)).read_all() for number in range(parts)]
