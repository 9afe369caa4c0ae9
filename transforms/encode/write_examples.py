"""WriteExamples: the rows of any PCollection as Parquet files, which later steps read by columns."""

from __future__ import annotations

import dataclasses
import random
import uuid
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.transforms.formats.schemas import conform, storable, unify_schemas
from slicebeam.transforms.storage.file_formats import CHUNK_ROWS
from slicebeam.transforms.storage.storage import make_folder, written_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from slicebeam.transforms.storage.storage import StoragePath

# Rows of a table that is sent: a bundle may have fewer, of which each makes a small one.
_ROWS = 1 << 14
# Files that are written at the same time.
_WRITERS = 16


@dataclasses.dataclass
class WriteExamples(beam.PTransform):
    """Write examples: PCollection of dicts, schema rows or Arrow tables -> PCollection of file names.

    A file that is not named is of an attempt that failed.
    """

    folder: StoragePath

    def expand(self, rows: beam.PCollection[Any]) -> beam.PCollection[str]:
        """Wire the transform."""
        return (
            rows
            | "All" >> beam.WindowInto(GlobalWindows())
            | "To tables" >> beam.ParDo(_ToTables())
            # Bundles may be small: those of a thousand rows would make a thousand files of a million.
            | "Writers" >> beam.Map(lambda table: (random.randrange(_WRITERS), table))  # noqa: S311
            | "By writer" >> beam.GroupByKey()
            | "Write" >> beam.FlatMap(partial(write_tables, self.folder))
        )


class _ToTables(beam.DoFn):
    """Makes a table of the rows of a bundle."""

    def start_bundle(self) -> None:
        self.rows: list[Mapping[str, Any]] = []

    def process(self, element: Any) -> Iterator[pa.Table]:
        if isinstance(element, (pa.Table, pa.RecordBatch)):
            yield element if isinstance(element, pa.Table) else pa.Table.from_batches([element])
            return
        self.rows.append(_mapping(element))
        if len(self.rows) == _ROWS:
            yield table_of(self.rows)
            self.rows = []

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self.rows:
            window = GlobalWindow()
            yield WindowedValue(table_of(self.rows), window.max_timestamp(), [window])


def _mapping(row: Any) -> Mapping[str, Any]:
    """Return a row as a mapping from its columns to their values."""
    if isinstance(row, dict):
        return row
    if dataclasses.is_dataclass(row):
        return vars(row)
    if hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise InputError(
        f"an example is a {type(row).__name__}; make it a dict, a schema row (beam.Row) or an Arrow table"
    )


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table; a key that a row lacks is null."""
    columns = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        values = [row.get(name) for row in rows]
        if any(isinstance(value, Timestamp) for value in values):
            values = [one if one is None else one.to_utc_datetime(has_tz=True) for one in values]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise ColumnError(f"column {name!r} has no common type ({reason})") from error
    return pa.table(columns)


def write_tables(folder: StoragePath, element: tuple[int, Iterable[pa.Table]]) -> Iterator[str]:
    """Write the tables of a writer as files of about the rows of a chunk, and yield their names."""
    writer, tables = element
    make_folder(folder)
    held: list[pa.Table] = []
    rows = number = 0
    for table in chain(tables, [None]):
        if held and (table is None or rows >= CHUNK_ROWS):
            # Who tries again writes another file: what was named is never replaced.
            path = folder / f"{writer:02d}-{number:06d}-{uuid.uuid4().hex[:12]}.parquet"
            schema = unify_schemas([("an example", one.schema) for one in held], allow_missing=True)
            with written_whole(path) as stream:
                pq.write_table(pa.concat_tables(conform(one, schema) for one in held), stream)
            yield str(path)
            held, rows, number = [], 0, number + 1
        if table is not None:
            held.append(storable(table))
            rows += table.num_rows
