"""Embeddings of examples: their source, the files with those of a chunk, and samples of them and of texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.chunks import check_finite
from slicebeam.metrics.errors import ColumnError, InputError, OptionError
from slicebeam.metrics.randomness import hash64, uniform
from slicebeam.transforms.encode.column import ChunkColumn, boolean_mask, random_numbers
from slicebeam.transforms.encode.extract_predictions import extract_predictions, losses_of
from slicebeam.transforms.encode.shards import read_all_facts, write_with_facts
from slicebeam.transforms.storage.storage import matching
from slicebeam.transforms.storage.work_files import open_arrow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.discovery.encoders import Encoder
    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.extract_predictions import Losses, Outcome
    from slicebeam.transforms.storage.storage import StoragePath

    Vectors = NDArray[np.float32]

_VECTORS = "z"


@dataclass(frozen=True)
class Embedding:
    """The source of embeddings: a column of vectors, or of texts (which show examples) and an encoder.

    The encoder is None where nobody says what made the column of vectors.
    """

    column: str | None
    text: str | None = None
    encoder: Encoder | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(name for name in (self.column or self.text,) if name)

    def of(self, chunk: Chunk) -> Vectors:
        """Return the embeddings of a chunk's examples: float32 [rows, D]."""
        column = ChunkColumn.of(chunk, self.columns[0])
        if self.column:
            return _vectors(column, chunk)
        if self.encoder is None:
            raise TypeError("texts without an encoder")
        column.require_text("--text")
        column.require_values(what="text")
        # A text that many examples share is embedded once.
        coded = column.array.dictionary_encode()
        distinct = self.encoder.encode(coded.dictionary.to_pylist())
        vectors = np.ascontiguousarray(distinct[coded.indices.to_numpy()], np.float32)
        return _finite(vectors, chunk)

    def queries(self, texts: list[str]) -> Vectors:
        """Return the embeddings of words: float32 [texts, D]."""
        if self.encoder is None:
            raise InputError(
                f"words need the encoder that made column {self.column!r}, which no option names; "
                "run the discovery again with --encoder"
            )
        return self.encoder.encode(texts)


def _vectors(column: ChunkColumn, chunk: Chunk) -> Vectors:
    name, array, kind = column.name, column.array, column.array.type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    numeric = (pa.types.is_floating, pa.types.is_integer)
    is_list = any(is_kind(kind) for is_kind in lists)
    if not is_list or not any(is_kind(kind.value_type) for is_kind in numeric):
        is_text = pa.types.is_string(column.kind)
        remedy = ": write Parquet or JSON Lines, or name a column of texts as --text"
        raise OptionError(
            f"--embedding: column {name!r} is {'text' if is_text else kind}; an embedding is a list of "
            f"numbers, the same number for every example{remedy if is_text else ''}"
        )
    column.require_values()
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    if lengths.size == 0:
        return np.zeros((0, 0), np.float32)
    D = int(lengths[0])
    different = lengths != D
    if different.any():
        at = int(np.argmax(different))
        raise ColumnError(
            f"column {name!r} has {lengths[at]} numbers in {column.row(at)} and {D} in row "
            f"{chunk.row_number(0):,}; all embeddings must have the same length"
        )
    if D == 0:
        raise ColumnError(f"column {name!r} of {chunk.origin} contains vectors without numbers")
    flat = array.flatten()
    # A value that is missing within a vector becomes one that is not finite, which is named below.
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = flat.to_numpy(zero_copy_only=False)
        z = np.ascontiguousarray(numbers, np.float32).reshape(-1, D)
    too_large = np.isinf(z) & np.isfinite(numbers.reshape(-1, D))
    if too_large.any():
        row, dimension = (int(each[0]) for each in np.nonzero(too_large))
        raise InputError(
            f"{chunk.origin}: the embedding of row {chunk.row_number(row):,} has "
            f"{numbers[row * D + dimension]} in dimension {dimension}, too large for single precision; "
            "scale the embeddings, or leave the example out"
        )
    return _finite(z, chunk)


def _finite(z: Vectors, chunk: Chunk) -> Vectors:
    try:
        check_finite(z, chunk.row_number(0))
    except InputError as error:
        raise InputError(f"{chunk.origin}: {error}") from error
    return z


def write_embeddings(
    path: StoragePath, z: Vectors, others: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]
) -> None:
    """Write the embeddings of a chunk, other columns [rows], and facts for the driver."""
    rows, D = z.shape
    flat = pa.array(z.reshape(-1), pa.float32())
    columns = {_VECTORS: pa.FixedSizeListArray.from_arrays(flat, max(D, 1))}
    columns |= {name: pa.array(values) for name, values in others.items()}
    write_with_facts(path, columns, {**facts, "rows": rows, "dimensions": D})


@dataclass(frozen=True)
class EmbeddedChunk:
    """A file of embeddings: it is mapped while something reads it."""

    path: StoragePath

    @cached_property
    def _batch(self) -> pa.RecordBatch:
        return open_arrow(self.path, is_unchanging=True).get_batch(0)

    @property
    def z(self) -> Vectors:
        """The embeddings: float32 [rows, D]."""
        column = self._batch.column(_VECTORS)
        vectors: Vectors = column.flatten().to_numpy(zero_copy_only=True)
        return vectors.reshape(-1, column.type.list_size)

    def column(self, name: str) -> NDArray[Any]:
        """Return another column [rows]."""
        values: NDArray[Any] = self._batch.column(name).to_numpy(zero_copy_only=False)
        return values

    @property
    def names(self) -> list[str]:
        """The other columns."""
        return [name for name in self._batch.schema.names if name != _VECTORS]


# Streams of random words, apart from those of replicates, which count from 0.
_SAMPLED, _DISCOVERY = -3, -4
DISCOVERY = "discovery"


def loss_column(number: int) -> str:
    """Return the column that holds a loss: 0 of the new model, 1 of the old."""
    return f"loss {number}"


@dataclass(frozen=True)
class ExampleSplit:
    """Which examples a mixture is fitted to, by a hash of a column or else of the position."""

    share: float
    seed: int
    id_column: str | None

    def is_discovery(self, chunk: Chunk) -> BoolArray:
        """Return which examples of a chunk shape the mixture: bool [rows]."""
        return random_numbers(chunk, self.seed, _DISCOVERY, self.id_column) < self.share


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


def chunk_losses(chunk: Chunk, outcome: Outcome | None, name: str) -> Losses | None:
    """Return the losses of a chunk's examples in a metric; None if there is no outcome."""
    if outcome is None:
        return None
    return losses_of(extract_predictions(chunk, outcome), name, baseline=outcome.has_baseline)


def embed_chunk(wanted: Embedded, chunk: Chunk) -> int:
    """Write the embeddings of a chunk, all and the sampled ones, and return its number of rows."""
    z = wanted.embedding.of(chunk)
    losses = chunk_losses(chunk, wanted.outcome, wanted.metric)
    others: dict[str, NDArray[Any]] = {}
    if losses is not None:
        others = {loss_column(number): loss for number, loss in enumerate(losses.each)}
    sampled = random_numbers(chunk, wanted.seed, _SAMPLED) < wanted.sample_share
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
        "is_zero_one": losses is not None and losses.is_zero_one,
    }
    of_samples = {column: values[sampled] for column, values in others.items()}
    write_embeddings(wanted.samples / name, z[sampled], of_samples, facts)
    # Last: its presence shows that all of the chunk is there.
    write_embeddings(wanted.folder / name, z, others, facts)
    return len(z)


# A stream of random words, apart from those of replicates, which count from 0.
_TEXTS = -5


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
        facts = read_all_facts(matching(self.folder, "*.arrow"))
        return sum(one["examples"] for one in facts)

    def read(self) -> tuple[IntArray, list[str]]:
        """Return the positions and the texts of the sample, in the order of the examples."""
        files = map(open_arrow, matching(self.folder, "*.arrow"))
        table = pa.concat_tables(file.read_all() for file in files)
        return table["row"].to_numpy(), table["text"].to_pylist()


def sample_chunk(wanted: TextSample, chunk: Chunk) -> int:
    """Write the sampled texts of a chunk, and return its number of rows."""
    rows = chunk.positions
    chosen = wanted.chosen(rows)
    column = ChunkColumn.of(chunk, wanted.column)
    column.require_text("--text")
    texts = column.array.filter(pa.array(chosen)).cast(column.kind)
    if texts.null_count:
        at = np.flatnonzero(chosen)[np.argmax(boolean_mask(texts.is_null()))]
        where = column.row(int(at))
        raise ColumnError(f"column {wanted.column!r} has no text in {where}; drop such examples")
    columns = {"row": pa.array(rows[chosen].astype(np.int64)), "text": texts}
    facts = {"examples": int(rows.size)}
    write_with_facts(wanted.folder / chunk_name(chunk.split, chunk.batch), columns, facts)
    return int(rows.size)
