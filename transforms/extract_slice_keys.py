"""ExtractSliceKeys: every value becomes a small code, every example a cell; written once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.counting import Ragged
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.randomness import splitmix64
from slicebeam.transforms.domains import missing_mask, sortable
from slicebeam.transforms.extract_predictions import extract_predictions
from slicebeam.transforms.shards import write_shard
from slicebeam.transforms.sources import read_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from slicebeam.metrics.base import CellSpace
    from slicebeam.transforms.domains import Domain
    from slicebeam.transforms.extract_predictions import Outcome, Side
    from slicebeam.transforms.sources import Chunk, Source, Split


@dataclass(frozen=True)
class Encoding:
    """How examples become shards.

    Attributes
    ----------
    source : the examples
    domains : of the features, in order
    outcome : where predictions come from
    space : the outcome cells
    folder : where the shards go
    example_id : column that identifies an example, or None for its position
    model_columns : what each model file reads, by side
    """

    source: Source
    domains: tuple[Domain, ...]
    outcome: Outcome
    space: CellSpace
    folder: Path
    example_id: str | None = None
    model_columns: dict[Side, tuple[str, ...]] = field(default_factory=dict)

    def columns(self) -> list[str]:
        """Return the columns that are read."""
        wanted = [domain.name for domain in self.domains]
        wanted.append(self.outcome.label)
        for predictor in (self.outcome.new, self.outcome.old):
            if predictor is not None:
                wanted += [name for name in (predictor.column, predictor.score) if name]
        for names in self.model_columns.values():
            wanted += names
        if self.example_id:
            wanted.append(self.example_id)
        return list(dict.fromkeys(wanted))


def encode_chunk(chunk: Chunk, encoding: Encoding) -> None:
    """Write the shard of a chunk."""
    predicted = extract_predictions(chunk, encoding.outcome)
    cells = np.zeros(chunk.table.num_rows, np.int64)
    sides: tuple[tuple[Side, bool], ...] = (("prediction", False), ("baseline", True))
    for side, old in sides:
        if side in predicted.wrong and (not old or encoding.space.comparison == "baseline"):
            bit = encoding.space.bit("wrong", old=old)
            cells |= predicted.wrong[side].astype(np.int64) << bit
    codes = [_codes(chunk.table.column(d.name).combine_chunks(), d) for d in encoding.domains]
    ids = None
    if encoding.example_id:
        ids = id_hashes(chunk.table.column(encoding.example_id).combine_chunks(), chunk)
    facts = {
        "start_row": chunk.start_row,
        "rows": chunk.table.num_rows,
        "split": chunk.split,
        "classes": predicted.classes,
        "totals": np.bincount(cells, minlength=encoding.space.size).tolist(),
        "content": content_hash(codes, cells),
    }
    path = encoding.folder / f"{chunk.split:06d}-{chunk.batch:06d}.arrow"
    radices = [max(domain.radix, domain.size) for domain in encoding.domains]
    write_shard(path, codes, radices, cells, ids, facts)


def _codes(column: pa.Array | pa.ChunkedArray, domain: Domain) -> NDArray[np.int64] | Ragged:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if domain.kind == "list":
        return Ragged(*domain.encode_lists(array))
    return domain.encode(array)


def content_hash(codes: Sequence[NDArray[np.int64] | Ragged], cells: NDArray[np.int64]) -> int:
    """Return a sum over examples of a hash of their codes: the same in any order of the examples."""
    state = splitmix64(cells.astype(np.uint64))
    for number, code in enumerate(codes):
        if isinstance(code, Ragged):
            lengths = np.diff(code.offsets)
            rows = np.repeat(np.arange(lengths.size), lengths)
            mixed = np.zeros(lengths.size, np.uint64)
            np.add.at(mixed, rows, splitmix64(code.codes.astype(np.uint64)))
        else:
            mixed = code.astype(np.uint64)
        state = splitmix64(state ^ (mixed + np.uint64(number << 32)))
    return int(state.sum(dtype=np.uint64))


def id_hashes(array: pa.Array, chunk: Chunk) -> NDArray[np.uint64]:
    """Return 64 bits [rows] of each example's id, from its value alone.

    Raises
    ------
    InputError
        An id is missing, or the column is neither text nor integers.
    """
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    missing = missing_mask(array)
    if missing is not None:
        row = chunk.origin_row + int(np.argmax(missing)) + 1
        raise InputError(f"--example-id has no value in row {row:,} of {chunk.origin}")
    if pa.types.is_integer(array.type):
        return splitmix64(sortable(array).astype(np.uint64))
    if not pa.types.is_string(array.type):
        raise InputError(f"--example-id column is {array.type}; an id is text or an integer")
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    hashes = splitmix64(lengths.astype(np.uint64))
    # Ids of similar length go together: padded to the longest of all, a few could fill the memory.
    # The class, and so the hash, is of the id's own length.
    doublings = np.ceil(np.log2(np.maximum(1, -(-lengths // 8)))).astype(np.int64)
    for doubling in np.unique(doublings):
        words = 1 << int(doubling)
        rows = np.flatnonzero(doublings == doubling)
        texts = array.take(pa.array(rows)).cast(pa.binary())
        padded = np.array(texts.to_numpy(zero_copy_only=False), dtype=f"S{8 * words}")
        matrix = padded.view("<u8").reshape(len(rows), words)
        state = hashes[rows]
        for column in range(words):
            state = splitmix64(state ^ matrix[:, column])
        hashes[rows] = state
    return hashes


class _Read(beam.DoFn):
    def __init__(self, source: Source, columns: list[str]) -> None:
        self.source, self.columns = source, columns

    def process(self, split: Split) -> Iterator[Chunk]:
        yield from read_split(self.source, split, self.columns)


class _Encode(beam.DoFn):
    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding

    def process(self, chunk: Chunk) -> Iterator[int]:
        encode_chunk(chunk, self.encoding)
        yield chunk.table.num_rows


@dataclass
class ReadExamples(beam.PTransform):
    """Read the splits of a source: pipeline -> PCollection of `Chunk`."""

    source: Source
    columns: list[str]

    def expand(self, pipeline: Any) -> Any:
        """Wire the transform."""
        return (
            pipeline
            | "Splits" >> beam.Create(list(self.source.splits))
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(_Read(self.source, self.columns))
        )


@dataclass
class ExtractPredictions(beam.PTransform):
    """Add the predictions of model files to chunks; columns of predictions need nothing."""

    encoding: Encoding

    def expand(self, chunks: Any) -> Any:
        """Wire the transform."""
        for side, columns in self.encoding.model_columns.items():
            from slicebeam.transforms.run_model import run_model

            predictor = self.encoding.outcome.predictor(side)
            path = predictor.model if predictor else None
            if path:
                chunks = chunks | f"Run {side}" >> run_model(path, columns, side)
        return chunks


@dataclass
class ExtractSliceKeys(beam.PTransform):
    """Write the encoded shards: PCollection of `Chunk` -> PCollection of row counts.

    A chunk that comes twice is written twice under the same name.
    """

    encoding: Encoding

    def expand(self, chunks: Any) -> Any:
        """Wire the transform."""
        return chunks | "Encode" >> beam.ParDo(_Encode(self.encoding))
