"""Encoded shards: the codes of every feature and the measurements of every example, as columns.

Each is an Arrow file without compression: a worker maps it and touches only the columns that it counts.
"""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.counting.counting import ROWS_AT_A_TIME, RowBlock
from slicebeam.metrics.counting.statistic_space import (
    BUCKETS,
    GAINS,
    THEN,
    StatisticSpace,
    fixed_point,
)
from slicebeam.metrics.measures.one_model import bin_of, number_of_bins
from slicebeam.metrics.randomness import occurrence_ids, splitmix64
from slicebeam.transforms.storage.storage import storage_path
from slicebeam.transforms.storage.work_files import (
    DamagedFileError,
    open_arrow,
    read_metadata,
    write_arrow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import Term
    from slicebeam.transforms.storage.storage import StoragePath

# Objects whose metadata is requested together.
_READ_AT_ONCE = 16
WEIGHT = "weight"
CONTENT = "content"
# Pairs of label and predicted class are shown of so many classes, whatever the metrics are.
MOST_SHOWN = 10
# Axes of the cells that hold a class of each example, by the column of their codes.
CLASS_COLUMNS = {
    ("label_class", False): "label class",
    ("predicted_class", False): "class",
    ("predicted_class", True): "old class",
}


def value_column(value: str, *, old: bool) -> str:
    """Return the column of a shard that holds a value of each example."""
    return f"{'old' if old else 'new'} {value}"


def score_columns(space: StatisticSpace) -> list[str]:
    """Return the columns of scores that are counted, for each model or data set."""
    is_paired = space.comparison == "baseline"
    return [score_column(old=is_paired and side == 1) for side in range(space.sides)]


def score_column(*, old: bool) -> str:
    """Return the column of a shard that holds a model's score of each example."""
    return "old score" if old else "score"


@dataclass(frozen=True)
class Scaling:
    """How the columns of shards become integers that are summed; known when all are written.

    `other` is the class that a score below the threshold predicts, null in the shards. Of the score buckets
    of each model, `edges` are the bounds, `coarse` [buckets] says which hold several different scores, `rows`
    how many examples, and `places` [2, buckets] where its scores stand among all of the other class, for a
    negative and a positive. `rough` values have one so large that others are rounded in its sums. `numbered`
    files have the numbers of equal examples, where these have ids from their content. `cuts`: indicators (and
    whether the old model's) that are set where a score is above a number that depends on all examples.
    """

    space: StatisticSpace
    classes: tuple[Any, ...] = ()
    other: Any = None
    edges: tuple[FloatArray, ...] = ()
    coarse: tuple[BoolArray, ...] = ()
    places: tuple[FloatArray, ...] = ()
    rough: tuple[str, ...] = ()
    heaviest: float = 0.0
    numbered: tuple[str, ...] = ()
    rows: tuple[IntArray, ...] = ()
    cuts: tuple[tuple[str, bool, float], ...] = ()


def write_shard(
    path: StoragePath,
    codes: Sequence[IntArray | Ragged],
    radices: Sequence[int],
    measured: Mapping[str, NDArray[Any]],
    facts: Mapping[str, Any],
) -> None:
    """Write one shard; the driver reads the facts, which are JSON.

    Measured columns are ``cell`` always; ``id`` of an example or its group, else ``content``, a hash of the
    others but the weights, where examples are resampled; what metrics need.
    """
    columns = {name: pa.array(values) for name, values in measured.items()}
    for number, (code, radix) in enumerate(zip(codes, radices, strict=True)):
        width = np.min_scalar_type(radix)
        if isinstance(code, Ragged):
            offsets = pa.array(code.offsets.astype(np.int32))
            values = pa.array(code.codes.astype(width))
            columns[f"f{number}"] = pa.ListArray.from_arrays(offsets, values)
        else:
            columns[f"f{number}"] = pa.array(code.astype(width))
    write_with_facts(path, columns, facts)


def write_with_facts(
    path: StoragePath, columns: Mapping[str, pa.Array], facts: Mapping[str, Any]
) -> None:
    """Write columns and facts, which are read without the rest, so they have a checksum of their own."""
    facts_json = json.dumps(facts).encode()
    metadata = {"facts": facts_json, "checksum": str(zlib.crc32(facts_json))}
    batch = pa.record_batch(columns, metadata=metadata)
    write_arrow(path, batch.schema, [batch])


@dataclass(frozen=True)
class Shard:
    """A shard to read: it is mapped only while something reads it.

    A mapped file counts as memory of the process, and opening a shard is quick.
    """

    path: StoragePath

    def _batch(self) -> pa.RecordBatch:
        return open_arrow(self.path, is_unchanging=True).get_batch(0)

    def column(self, name: str) -> NDArray[Any]:
        """Return a measured column [rows]."""
        return np.asarray(self._batch().column(name))

    def contents(self, heaviest: float) -> NDArray[np.uint64]:
        """Return a hash [rows] of each example's content, with weights as a share of the heaviest."""
        return _contents(self._batch(), heaviest)

    def blocks(self, scaling: Scaling | None = None) -> Iterator[RowBlock]:
        """Yield the rows in blocks that fit the cache; without a scaling only their codes."""
        whole = self._batch()
        facts = json.loads(whole.schema.metadata[b"facts"])
        ids = self._ids(whole, facts["start_row"], scaling)
        for begin in range(0, whole.num_rows, ROWS_AT_A_TIME):
            batch = whole.slice(begin, ROWS_AT_A_TIME)
            own = ids[begin : begin + ROWS_AT_A_TIME]
            yield _row_block(batch, facts["start_row"] + begin, facts["pairs"], scaling, own)

    def ids(self, scaling: Scaling) -> NDArray[np.uint64]:
        """Return what examples are resampled by [rows]: an id, their content, or their position."""
        batch = self._batch()
        return self._ids(batch, json.loads(batch.schema.metadata[b"facts"])["start_row"], scaling)

    def _ids(
        self, batch: pa.RecordBatch, start_row: int, scaling: Scaling | None
    ) -> NDArray[np.uint64]:
        if "id" in batch.schema.names:
            return np.asarray(batch.column("id"))
        if scaling is None or not scaling.numbered:
            return np.arange(start_row, start_row + batch.num_rows, dtype=np.uint64)
        numbers = np.zeros(batch.num_rows, np.uint64)
        for path in scaling.numbered:
            file = open_arrow(storage_path(path), is_unchanging=True)
            names = json.loads(file.schema.metadata[b"facts"])["shards"]
            again = file.get_batch(names.index(self.path.name))
            numbers[again.column("row").to_numpy()] = again.column("number").to_numpy()
        return occurrence_ids(_contents(batch, scaling.heaviest), numbers)


def read_all_facts(paths: Sequence[StoragePath]) -> list[dict[str, Any]]:
    """Return the metadata of each shard, without reading the rest."""

    def read(path: StoragePath) -> dict[str, Any]:
        metadata = read_metadata(path)
        facts_json = metadata.get(b"facts", b"")
        if metadata.get(b"checksum") != str(zlib.crc32(facts_json)).encode():
            raise DamagedFileError(path)
        facts: dict[str, Any] = json.loads(facts_json)
        return facts

    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        return list(threads.map(read, paths))


def _contents(batch: pa.RecordBatch, heaviest: float) -> NDArray[np.uint64]:
    contents: NDArray[np.uint64] = batch.column(CONTENT).to_numpy()
    if heaviest > 0:
        # In single precision: what the unit leaves of rounding changes the bits of next to none.
        share = (batch.column(WEIGHT).to_numpy() / heaviest).astype(np.float32)
        contents = splitmix64(contents ^ share.view(np.uint32).astype(np.uint64))
    return contents


def rows_in(paths: Sequence[StoragePath]) -> int:
    """Return the number of examples in shards, or in other files whose writers said it."""
    return sum(fact["rows"] for fact in read_all_facts(paths))


def _row_block(
    batch: pa.RecordBatch,
    start_row: int,
    pairs: dict[str, list[Any]],
    scaling: Scaling | None,
    ids: NDArray[np.uint64],
) -> RowBlock:
    def stored(feature: int) -> NDArray[Any] | Ragged:
        array = batch.column(f"f{feature}")
        if not pa.types.is_list(array.type):
            return np.asarray(array.to_numpy())
        return Ragged(array.offsets.to_numpy().astype(np.int64), array.values.to_numpy())

    rows = batch.num_rows
    positions = np.arange(start_row, start_row + rows, dtype=np.uint64)
    cells = batch.column("cell").to_numpy().astype(np.int64)
    none = np.zeros((0, rows), np.int64)
    if scaling is None:
        return RowBlock(rows, stored, cells, ids, positions, none, none, none)
    space = scaling.space
    for axis, name in CLASS_COLUMNS.items():
        if axis in space.axes:
            # A shard numbers the classes that it holds.
            listed = [scaling.other if one is None else one for one in pairs[name]]
            everywhere = np.array([scaling.classes.index(one) for one in listed], np.int64)
            cells += everywhere[batch.column(name).to_numpy()] * space.axes[axis][0]
    for indicator, old, cut in scaling.cuts:
        above = batch.column(score_column(old=old)).to_numpy() > cut
        cells += above * space.stride(indicator, old=old)
    measured = _Measured(batch, scaling, cells)
    return RowBlock(
        rows,
        stored,
        cells,
        ids,
        positions,
        measured.weights(),
        measured.terms(),
        measured.buckets if space.ranked else none,
    )


class _Measured:
    """What is summed of the rows of a batch, as integers."""

    def __init__(self, batch: pa.RecordBatch, scaling: Scaling, cells: IntArray) -> None:
        self.batch, self.scaling, self.space = batch, scaling, scaling.space
        self.rows, self.cells = batch.num_rows, cells
        self.bins: dict[str, IntArray] = {}
        self.weight = (
            self.space.in_weight_units(self._column(WEIGHT))
            if self.space.weighted
            else np.ones(self.rows)
        )
        self.buckets = np.zeros((0, self.rows), np.int64)
        # Terms may be of ranks where their distribution is not counted.
        if self.space.ranked or any(one.source in GAINS for one in self.space.all_terms):
            self.positive = self.space.holds("positive")[cells]
            scores = [self._column(name) for name in score_columns(self.space)]
            edges = zip(scaling.edges, scores, strict=False)
            of_scores = [np.searchsorted(bounds, score, side="right") for bounds, score in edges]
            self.buckets = np.stack(of_scores) + self.positive * BUCKETS

    def _column(self, name: str) -> FloatArray:
        return np.asarray(self.batch.column(name))

    def weights(self) -> IntArray:
        """Return weights and their squares [2, rows], or nothing [0, rows]."""
        if not self.space.weighted:
            return np.zeros((0, self.rows), np.int64)
        powers = (self.weight, self.weight**2)
        scaled = zip(powers, self.space.weight_scales, strict=True)
        return np.stack([fixed_point(power, scale) for power, scale in scaled])

    def terms(self) -> IntArray:
        """Return the terms and total terms [terms, rows]."""
        scaled = zip(self.space.all_terms, self.space.scales, strict=True)
        found = [fixed_point(self._power(term), scale) for term, scale in scaled]
        return np.stack(found) if found else np.zeros((0, self.rows), np.int64)

    def _power(self, term: Term) -> FloatArray:
        power: FloatArray = self._value(term) ** term.power
        if term.bin is not None:
            power = np.where(self._bins(term.value) == term.bin, power, 0.0)
        if term.weight_power:
            power = power * self.weight**term.weight_power
        return power

    def _bins(self, value: str) -> IntArray:
        if value not in self.bins:
            residuals = self._column(value_column(value, old=False))
            self.bins[value] = bin_of(residuals, number_of_bins(value))
        return self.bins[value]

    def _value(self, term: Term) -> FloatArray:
        if term.source in GAINS:
            of_class = self.positive == (term.source == "gain1")
            new, old = (
                places.ravel()[bucket]
                for places, bucket in zip(self.scaling.places, self.buckets, strict=True)
            )
            return np.where(of_class, new - old, 0.0)
        if term.source == "change":
            new, old = (self._column(value_column(term.value, old=o)) for o in (False, True))
            return new - old
        is_old, shift = term.source == "old", self.space.shift(term.value)
        if self.space.comparison == "earlier":
            column = self._column(value_column(term.value, old=False))
            return np.where(self.space.holds(THEN)[self.cells] == is_old, column - shift, 0.0)
        column = self._column(value_column(term.value, old=is_old))
        return column - shift if shift else column
