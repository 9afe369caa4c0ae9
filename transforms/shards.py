"""Encoded shards: the codes of every feature and the outcome cell of every example, as columns.

A shard is an Arrow IPC file without compression, so a worker maps it and touches only the columns
that it counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting import ROWS_AT_A_TIME, Ragged, RowBlock
from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.files import written_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


def write_shard(
    path: Path,
    codes: Sequence[NDArray[np.int64] | Ragged],
    radices: Sequence[int],
    cells: NDArray[np.int64],
    ids: NDArray[np.uint64] | None,
    facts: Mapping[str, Any],
) -> None:
    """Write one shard.

    Parameters
    ----------
    codes : of each feature, [rows] or ragged
    radices : number of codes of each feature, which sets the width
    cells : [rows]
    ids : [rows] what identifies an example where the user named a column, else None
    facts : JSON values that the driver wants to know of the shard
    """
    columns: dict[str, pa.Array] = {"cell": pa.array(cells.astype(np.min_scalar_type(255)))}
    if ids is not None:
        columns["id"] = pa.array(ids)
    for number, (code, radix) in enumerate(zip(codes, radices, strict=True)):
        width = np.min_scalar_type(radix)
        if isinstance(code, Ragged):
            offsets = pa.array(code.offsets.astype(np.int32))
            values = pa.array(code.codes.astype(width))
            columns[f"f{number}"] = pa.ListArray.from_arrays(offsets, values)
        else:
            columns[f"f{number}"] = pa.array(code.astype(width))
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    schema = batch.schema.with_metadata({"facts": json.dumps(facts)})
    with written_whole(path) as stream, pa.ipc.new_file(stream, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


@dataclass
class Shard:
    """A shard that is open for counting."""

    path: Path
    _batch: pa.RecordBatch = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._batch = pa.ipc.open_file(pa.memory_map(str(self.path))).get_batch(0)
        except (OSError, pa.ArrowException) as error:
            raise EngineError(
                f"cannot read the encoded shard {self.path} ({error}); start again without --resume"
            ) from error

    @property
    def rows(self) -> int:
        """Number of examples."""
        return int(self._batch.num_rows)

    @property
    def facts(self) -> dict[str, Any]:
        """What the writer said of the shard."""
        facts: dict[str, Any] = json.loads(self._batch.schema.metadata[b"facts"])
        return facts

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows in blocks that fit the cache."""
        start_row = self.facts["start_row"]
        for begin in range(0, self.rows, ROWS_AT_A_TIME):
            yield _row_block(self._batch.slice(begin, ROWS_AT_A_TIME), start_row + begin)


def _row_block(batch: pa.RecordBatch, start_row: int) -> RowBlock:
    columns: dict[int, NDArray[np.int64] | Ragged] = {}

    def column(feature: int) -> NDArray[np.int64] | Ragged:
        if feature not in columns:
            array = batch.column(f"f{feature}")
            if pa.types.is_list(array.type):
                offsets = array.offsets.to_numpy().astype(np.int64)
                columns[feature] = Ragged(offsets, array.values.to_numpy().astype(np.int64))
            else:
                columns[feature] = array.to_numpy().astype(np.int64)
        return columns[feature]

    rows = batch.num_rows
    positions = np.arange(start_row, start_row + rows, dtype=np.uint64)
    ids = batch.column("id").to_numpy() if "id" in batch.schema.names else positions
    cells = batch.column("cell").to_numpy().astype(np.int64)
    return RowBlock(rows, column, cells, ids, positions)
