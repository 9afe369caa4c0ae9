"""A slice of the table of all tested slices, which the document does not list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.parts import Predicate
from slicebeam.pipelines.changelist.reading import opened_table
from slicebeam.pipelines.page.answers import RefusedError

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import SearchChangeList

_WANTED = ("slice_id", "slice", "predicate", "n")


@dataclass(frozen=True)
class TableSlice:
    """A slice as the table has it."""

    name: str
    definition: PredicateDefinition
    n: int


def table_slice(uri: str, document: SearchChangeList, slice_id: str) -> TableSlice:
    """Return a slice of the table beside a document; it is looked for row group by row group."""
    absent = RefusedError(f"slice {slice_id} is neither in the document nor in its table", 404)
    with opened_table(uri, document) as stream:
        if stream is None:
            raise absent
        table = pq.ParquetFile(stream)
        for group in range(table.num_row_groups):
            ids = table.read_row_group(group, columns=[_WANTED[0]]).column(0)
            place = pc.index(ids, slice_id).as_py()
            if place >= 0:
                rows = table.read_row_group(group, columns=list(_WANTED)).slice(place, 1)
                (row,) = rows.to_pylist()
                if row["predicate"] is None:
                    raise absent
                predicate = Predicate.model_validate_json(row["predicate"])
                definition = PredicateDefinition(predicate=predicate)
                return TableSlice(row["slice"], definition, row["n"])
    raise absent
