"""``plots.parquet``: plots of TFMA for all examples and for each slice, which its viewer shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import FileError
from slicebeam.pipelines.changelist.reading import file_of
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import open_input, storage_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.transforms.encode.extract_predictions import Side

PLOTS = "plots.parquet"
_SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("slice_id", pa.string()),
        ("side", pa.string()),
        ("plots", pa.binary()),
    ]
)


class Plotted(NamedTuple):
    """The plots of a metric on a slice.

    Attributes
    ----------
    metric : as ``--metric`` names it
    slice_id : None for all examples
    side : which of two models it is
    plots : a serialized PlotsForSlice without a slice key
    """

    metric: str
    slice_id: str | None
    side: Side
    plots: bytes


def write_plots(stream: Any, plots: Sequence[Plotted]) -> None:
    """Write the table."""
    columns = [list(each) for each in zip(*plots, strict=True)] or [[] for _ in _SCHEMA]
    arrays = [pa.array(one, field.type) for one, field in zip(columns, _SCHEMA, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA), stream)


def read_plots(uri: str, document: SearchChangeList) -> list[Plotted]:
    """Return the plots that a document names; none where it names none.

    Raises
    ------
    FileError
        The file is not beside the document, or is another run's.
    """
    named = (document.files or {}).get(PLOTS.partition(".")[0])
    if named is None:
        return []
    path = file_of(uri, document, PLOTS)
    with storage_errors(path, "read"):
        try:
            with open_input(path) as stream:
                if f"sha256:{sha256_of(stream)}" != named.sha256:
                    raise FileError(f"{path} is not the file that {uri} names; run it again")
                stream.seek(0)
                rows = pq.read_table(stream).to_pylist()
        except FileNotFoundError as error:
            raise FileError(f"{path}, which {uri} names, is gone; run it again") from error
    return [Plotted(**row) for row in rows]
