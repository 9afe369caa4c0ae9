"""``tfma.parquet``: what TFMA's evaluator wrote, for its viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import FileError
from slicebeam.pipelines.changelist.reading import TFMA_TABLE, file_of
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import open_input, storage_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList

_SCHEMA = pa.schema([("kind", pa.string()), ("slice_id", pa.string()), ("content", pa.binary())])


class TfmaMessage(NamedTuple):
    """A serialized message of TFMA's output: of a kind, and of a slice, all examples or the verdict.

    ``kind``: ``metrics`` (a MetricsForSlice), ``plots`` (a PlotsForSlice) or ``validations`` (a
    ValidationResult). Two models are ``candidate`` and ``baseline``.
    """

    kind: str
    slice_id: str | None
    content: bytes


def write_messages(stream: Any, messages: Sequence[TfmaMessage]) -> None:
    """Write the table."""
    rows = [message._asdict() for message in messages]
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), stream)


def read_messages(uri: str, document: SearchChangeList) -> list[TfmaMessage]:
    """Return the messages of the file that a document names; none where it names none."""
    named = (document.files or {}).get(TFMA_TABLE.partition(".")[0])
    if named is None:
        return []
    path = file_of(uri, document, TFMA_TABLE)
    with storage_errors(path, "read"):
        try:
            with open_input(path) as stream:
                if f"sha256:{sha256_of(stream)}" != named.sha256:
                    raise FileError(f"{path} is not the file that {uri} names; run it again")
                stream.seek(0)
                rows = pq.read_table(stream).to_pylist()
        except FileNotFoundError as error:
            raise FileError(f"{path}, which {uri} names, is gone; run it again") from error
    return [TfmaMessage(**row) for row in rows]
