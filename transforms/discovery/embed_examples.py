"""The embedding of every example, written once, and a sample to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import ColumnError
from slicebeam.metrics.randomness import hash64, uniform
from slicebeam.transforms.discovery.embeddings import write_embeddings
from slicebeam.transforms.encode.column import ChunkColumn, id_hashes
from slicebeam.transforms.encode.column_values import boolean_mask
from slicebeam.transforms.encode.extract_predictions import extract_predictions, losses_of
from slicebeam.transforms.storage.storage import matching
from slicebeam.transforms.storage.work_files import open_arrow, write_arrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.discovery.embeddings import Embedding
    from slicebeam.transforms.encode.extract_predictions import Outcome
    from slicebeam.transforms.encode.sources import Chunk
    from slicebeam.transforms.storage.storage import StoragePath


# Streams of random words, apart from those of replicates, which count from 0.
_SAMPLED, _DISCOVERY = -3, -4
DISCOVERY = "discovery"


def loss_column(number: int) -> str:
    """Return the column that holds a loss: 0 of the new model, 1 of the old."""
    return f"loss {number}"


@dataclass(frozen=True)
class ExampleSplit:
    """The examples that a mixture is fitted to, and those that are tested.

    A hash decides, of a column or else of the position.
    """

    share: float
    seed: int
    id_column: str | None

    def is_discovery(self, chunk: Chunk) -> BoolArray:
        """Return which examples of a chunk shape the mixture: bool [rows]."""
        if self.id_column is None:
            ids = positions(chunk)
        else:
            ids = id_hashes(ChunkColumn.of(chunk, self.id_column).array, chunk)
        return uniform(hash64(self.seed, _DISCOVERY, ids)) < self.share


def positions(chunk: Chunk) -> NDArray[np.uint64]:
    """Return the position of each example among all: uint64 [rows]."""
    rows = chunk.table.num_rows
    return np.arange(chunk.start_row, chunk.start_row + rows, dtype=np.uint64)


@dataclass(frozen=True)
class Embedded:
    """The output of each chunk; folder `samples` gets a share of the embeddings.

    `outcome` and `metric` give the losses that a mixture takes into account, `split` what shapes it.
    """

    embedding: Embedding
    folder: StoragePath
    samples: StoragePath
    sample_share: float
    seed: int
    outcome: Outcome | None = None
    metric: str = ""
    split: ExampleSplit | None = None


def chunk_name(split: int, batch: int, suffix: str = "arrow") -> str:
    """Return the name of the file of a chunk."""
    return f"{split:06d}-{batch:06d}.{suffix}"


def embed_chunk(wanted: Embedded, chunk: Chunk) -> int:
    """Write the embeddings of a chunk, all and the sampled ones, and return its number of rows."""
    z = wanted.embedding.of(chunk)
    others: dict[str, NDArray[Any]] = {}
    is_zero_one = False
    if wanted.outcome is not None:
        baseline = wanted.outcome.has_baseline
        predicted = extract_predictions(chunk, wanted.outcome)
        losses = losses_of(predicted, wanted.metric, baseline=baseline)
        if losses is not None:
            is_zero_one = losses.is_zero_one
            others = {loss_column(number): loss for number, loss in enumerate(losses.each)}
    sampled = uniform(hash64(wanted.seed, _SAMPLED, positions(chunk))) < wanted.sample_share
    shaping = np.ones(z.shape[0], bool)
    if wanted.split is not None:
        shaping = wanted.split.is_discovery(chunk)
        others[DISCOVERY] = shaping
        sampled &= shaping
    name = chunk_name(chunk.split, chunk.batch)
    facts = {
        "split": chunk.split,
        "batch": chunk.batch,
        "start_row": chunk.start_row,
        "origin": chunk.origin,
        "shaping": int(np.count_nonzero(shaping)),
        "is_zero_one": is_zero_one,
    }
    some = {column: values[sampled] for column, values in others.items()}
    write_embeddings(wanted.samples / name, z[sampled], some, facts)
    # Last: its presence shows that all of the chunk is there.
    write_embeddings(wanted.folder / name, z, others, facts)
    return len(z)


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
