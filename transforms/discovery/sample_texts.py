"""Texts of some examples, for fitting an encoder and for phrases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import ColumnError
from slicebeam.metrics.randomness import hash64, uniform
from slicebeam.transforms.discovery.embed_examples import chunk_name, positions
from slicebeam.transforms.encode.column import ChunkColumn
from slicebeam.transforms.encode.column_values import boolean_mask
from slicebeam.transforms.storage.arrow_files import open_arrow, write_arrow
from slicebeam.transforms.storage.storage import matching

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.encode.sources import Chunk
    from slicebeam.transforms.storage.storage import StoragePath

# A stream of random words, apart from those of replicates, which count from 0.
_TEXTS = -5
_EXAMPLES = b"examples"


@dataclass(frozen=True)
class TextSample:
    """Which texts are sampled, by a hash of their position, and their folder."""

    column: str
    share: float
    seed: int
    folder: StoragePath

    def chosen(self, rows: NDArray[np.uint64]) -> BoolArray:
        """Return which examples, by their positions, are in the sample."""
        return uniform(hash64(self.seed, _TEXTS, rows)) < self.share

    def examples(self) -> int:
        """Return of how many examples the texts that are written are a sample."""
        paths = matching(self.folder, "*.arrow")
        return sum(int(open_arrow(path).schema.metadata[_EXAMPLES]) for path in paths)

    def read(self) -> tuple[IntArray, list[str]]:
        """Return the positions and the texts of the sample, in the order of the examples."""
        rows, texts = [np.zeros(0, np.int64)], list[str]()
        for path in matching(self.folder, "*.arrow"):
            batch = open_arrow(path).get_batch(0)
            rows.append(batch.column("row").to_numpy())
            texts += batch.column("text").to_pylist()
        return np.concatenate(rows), texts


def sample_chunk(wanted: TextSample, chunk: Chunk) -> int:
    """Write the sampled texts of a chunk, and return its number of rows."""
    rows = positions(chunk)
    chosen = wanted.chosen(rows)
    column = ChunkColumn.of(chunk, wanted.column)
    column.require_text("--text")
    texts = column.array.filter(pa.array(chosen)).cast(column.kind)
    if texts.null_count:
        at = np.flatnonzero(chosen)[np.argmax(boolean_mask(texts.is_null()))]
        where = column.row(int(at))
        raise ColumnError(f"column {wanted.column!r} has no text in {where}; drop such examples")
    columns = [pa.array(rows[chosen].astype(np.int64)), texts]
    schema = pa.schema([("row", pa.int64()), ("text", texts.type)], {_EXAMPLES: str(rows.size)})
    batch = pa.record_batch(columns, schema=schema)
    write_arrow(wanted.folder / chunk_name(chunk.split, chunk.batch), schema, [batch])
    return int(rows.size)
