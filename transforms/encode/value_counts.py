"""Counts the values of a column chunk by chunk: exactly while they fit, by sketches beyond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.arrays import IntArray, NDArray
from slicebeam.transforms.encode.column import (
    boolean_mask,
    from_numbers,
    is_number,
    missing_mask,
    plain_type,
    sortable,
)
from slicebeam.transforms.formats.schemas import unstorable_reason

# Sizes of the sketches: rank error about 0.3 % (KLL), counts about 0.01 % of the rows.
_KLL_K = 1000
_FREQUENT_LG_K = 16
_QUANTILES = 2000
_DISTINCT_LG_K = 14
_AT_A_TIME = 1 << 20
# Bits of the mantissa that are kept, finest first: with eight, all numbers that there are fit.
_RESOLUTIONS = (52, 20, 18, 16, 14, 12, 10, 8)
_MINUS_ZERO = np.int64(np.iinfo(np.int64).min)


@dataclass
class ValueCounts:
    """How many examples have each value (sorted, none missing) of a column, or element of lists.

    `distinct`: how many values there are, more than these where a sketch counted them. `error`: the relative
    error of its ranks or counts; 0 where they are exact.
    """

    values: pa.Array
    counts: IntArray
    missing: int
    rows: int
    list_column: bool = False
    distinct: int = 0
    error: float = 0.0

    def __post_init__(self) -> None:
        self.distinct = max(self.distinct, len(self.values))


def most_frequent(counts: IntArray, most: int) -> IntArray:
    """Return the positions of the most frequent values, ties by value, in the order of values."""
    return np.sort(np.argsort(-counts, kind="stable")[:most])


def unsupported(kind: pa.DataType) -> str | None:
    """Return why a column of this type can't be a feature, None if it can."""
    kind, types = plain_type(kind), pa.types
    if reason := unstorable_reason(kind):
        return reason
    inner = kind.value_type if types.is_list(kind) else kind
    if types.is_string(inner) or types.is_integer(inner) or types.is_boolean(inner):
        return None
    if types.is_list(kind):
        return f"lists of {inner} have no values to compare"
    is_time = types.is_temporal(kind) and not types.is_duration(kind)
    if is_number(kind) or types.is_null(kind) or is_time:
        return None
    return f"a column of {kind} has no values to compare"


class _ValueCounts:
    """How often each of some values occurs, by hashing them; used as `NumberCounts` is."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._parts: list[pa.Table] = []

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def add(self, values: pa.Array, counts: IntArray | None = None) -> None:
        if counts is None:
            counted = values.value_counts()
            values, counts = counted.field("values"), counted.field("counts")
        self._parts.append(pa.table({"value": values, "count": pa.array(counts, pa.int64())}))

    def compact(self) -> None:
        if self._parts:
            merged = pa.concat_tables(self._parts).group_by("value", use_threads=False)
            table = merged.aggregate([("count", "sum")]).rename_columns(["value", "count"])
            self._parts = [table]

    def counted(self) -> tuple[pa.Array, IntArray]:
        if not self._parts:
            return pa.nulls(0, self._kind), np.zeros(0, np.int64)
        table = self._parts[0].sort_by("value")
        return table.column("value").combine_chunks(), table.column("count").to_numpy()


class ColumnCounter:
    """Counts how often each value of one column occurs.

    Where distinct values take more than `most_bytes` they are sketched: the quantiles of numbers and times,
    the most frequent texts and list elements, and how many are distinct.
    """

    def __init__(self, kind: pa.DataType, most_bytes: int) -> None:
        self.list_column = pa.types.is_list(kind)
        self.kind = kind.value_type if self.list_column else kind
        self.most_bytes = most_bytes
        self.rows = self.missing = self._compact_bytes = 0
        is_hashed = self.list_column or not is_number(self.kind) or pa.types.is_decimal(self.kind)
        self._counts_of = _ValueCounts if is_hashed else NumberCounts
        self._counts = self._counts_of(self.kind)
        self._sketch: Any = None
        self._distinct: Any = None
        self._is_frequent = self.list_column or pa.types.is_string(self.kind)

    def add(self, column: pa.ChunkedArray) -> None:
        """Count the values of a chunk's column."""
        for array in column.chunks:
            counts = None
            if self.list_column:
                values, counts, missing = _counted_lists(array)
            elif pa.types.is_dictionary(array.type):
                values, counts, missing = _counted_dictionary(array)
            else:
                values, missing = present_values(array)
            self.rows += len(array)
            self.missing += missing
            self._counts.add(values.cast(self.kind), counts)
            most = max(2 * self._compact_bytes, self.most_bytes // 4)
            if self._sketch is not None or self._counts.nbytes > most:
                self._compact()

    def _compact(self) -> None:
        self._counts.compact()
        self._compact_bytes = self._counts.nbytes
        if self._sketch is None and self._compact_bytes > self.most_bytes:
            import datasketches

            if self._is_frequent:
                self._sketch = datasketches.frequent_strings_sketch(_FREQUENT_LG_K)
            else:
                self._sketch = datasketches.kll_doubles_sketch(_KLL_K)
            self._distinct = datasketches.hll_sketch(_DISTINCT_LG_K)
        if self._sketch is not None:
            self._update_sketch(*self._counts.counted())
            self._counts = self._counts_of(self.kind)

    def _update_sketch(self, values: pa.Array, counts: IntArray) -> None:
        if values.null_count:
            counts, values = counts[boolean_mask(values.is_valid())], values.drop_null()
        if self._is_frequent:
            texts = values.cast(pa.string()).to_pylist()
            for text, count in zip(texts, counts.tolist(), strict=True):
                self._sketch.update(text, count)
                self._distinct.update(text)
            return
        numbers = sortable(values)
        for number in numbers.tolist() if pa.types.is_integer(self.kind) else ():
            self._distinct.update(number)
        ends = np.cumsum(counts)
        # A value may occur a billion times: its copies are made a few at a time.
        for begin in range(0, int(counts.sum()), _AT_A_TIME):
            copies = np.arange(begin, min(begin + _AT_A_TIME, ends[-1]))
            at = np.searchsorted(ends, copies, side="right")
            self._sketch.update(numbers[at].astype(np.float64))

    def result(self) -> ValueCounts:
        """Return the counts, sorted by value."""
        self._compact()
        distinct, error = 0, 0.0
        if self._sketch is None:
            values, counts = self._counts.counted()
        else:
            values, counts, error = self._sketched()
            distinct = round(self._distinct.get_estimate())
            if not self.list_column:
                distinct = min(distinct, self.rows - self.missing)
        examples = self.missing, self.rows, self.list_column
        return ValueCounts(values, counts, *examples, distinct, error)

    def _sketched(self) -> tuple[pa.Array, IntArray, float]:
        import datasketches

        if self._is_frequent:
            no_false_negatives = datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES
            items = self._sketch.get_frequent_items(no_false_negatives)
            values = pa.array([item[0] for item in items], pa.string()).cast(self.kind)
            order = pc.sort_indices(values)
            counts = np.array([item[1] for item in items], np.int64)[order.to_numpy()]
            error = self._sketch.get_epsilon_for_lg_size(_FREQUENT_LG_K)
            return values.take(order), counts, float(error)
        ranks = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        quantiles = np.asarray(self._sketch.get_quantiles(ranks))
        # The smallest and the largest value are known exactly: no value is outside of all bins.
        ends = [self._sketch.get_min_value(), self._sketch.get_max_value()]
        numbers, grid = np.unique(np.append(quantiles, ends), return_counts=True)
        grid[0], grid[-1] = grid[0] - 1, grid[-1] - 1
        total = self.rows - self.missing
        counts = np.diff(np.floor(np.concatenate([[0], np.cumsum(grid)]) * total / _QUANTILES))
        error = float(self._sketch.normalized_rank_error(False))
        return from_numbers(numbers, self.kind), counts.astype(np.int64), error


def _counted_dictionary(array: pa.Array) -> tuple[pa.Array, IntArray, int]:
    """Return the values of a dictionary that rows hold, their counts and how many rows hold none."""
    indices = array.indices.drop_null().to_numpy(zero_copy_only=False)
    counts = np.bincount(indices, minlength=len(array.dictionary))
    held = np.flatnonzero(counts)
    values = array.dictionary.take(pa.array(held))
    # A dictionary may hold a null, or a value twice: the counts are summed when compacted.
    valid = boolean_mask(pc.is_valid(values))
    present = counts[held][valid]
    return values.drop_null(), present, len(array) - int(present.sum())


def present_values(array: pa.Array) -> tuple[pa.Array, int]:
    """Return the values that are neither null nor NaN, and how many others there are."""
    missing = missing_mask(array)
    if missing is None:
        return array, 0
    return array.filter(pa.array(~missing)), int(missing.sum())


def _counted_lists(array: pa.Array) -> tuple[pa.Array, IntArray, int]:
    """Return the distinct elements, how many examples hold each, and the number of null lists."""
    rows = pc.list_parent_indices(array).to_numpy(zero_copy_only=False).astype(np.int64)
    encoded = pc.list_flatten(array).dictionary_encode()
    valid = boolean_mask(pc.is_valid(encoded))
    indices = encoded.indices.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    distinct = max(len(encoded.dictionary), 1)
    pairs = np.unique(rows[valid] * distinct + indices)
    counts = np.bincount(pairs % distinct, minlength=len(encoded.dictionary))
    return encoded.dictionary, counts.astype(np.int64), array.null_count


class NumberCounts:
    """How often each of some numbers occurs: they are kept as they come until `compact` sorts them.

    Where more than `most` doubles are distinct they are rounded down, to the finest of a few resolutions at
    which they fit: that depends on the values alone, never on their order, as what a sketch keeps does.
    """

    def __init__(self, kind: pa.DataType, most: int | None = None) -> None:
        self._kind, self._most = kind, most
        self._bits = _RESOLUTIONS[0]
        self._waiting: list[NDArray[Any]] = []
        self._numbers: NDArray[Any] = pa.array([], kind).to_numpy(zero_copy_only=False)
        self._counts = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of the counts."""
        waiting = sum(numbers.nbytes for numbers in self._waiting)
        return waiting + self._numbers.nbytes + self._counts.nbytes

    def add(self, values: pa.Array, counts: IntArray | None = None) -> None:
        """Add numbers, none of them missing, and how often each occurs; once if not said."""
        numbers = values.to_numpy(zero_copy_only=False)
        # Adding zero makes -0.0 the 0.0 that it equals, and a copy of what may be mapped.
        numbers = rounded_down(numbers + numbers.dtype.type(0), self._bits)
        if counts is None:
            self._waiting.append(numbers)
            if self._most is not None and self.nbytes > 3 * 16 * self._most:
                self.compact()
        else:
            self._merge(numbers, counts)

    def compact(self) -> None:
        """Sort the added numbers."""
        if self._waiting:
            self._merge(*np.unique(np.concatenate(self._waiting), return_counts=True))
            self._waiting = []
        for bits in _RESOLUTIONS[_RESOLUTIONS.index(self._bits) + 1 :]:
            numbers, counts = self._numbers, self._counts
            if self._most is None or numbers.size <= self._most:
                break
            self._bits, self._numbers = bits, numbers[:0]
            self._merge(rounded_down(numbers, bits), counts)

    def counted(self) -> tuple[pa.Array, IntArray]:
        """Return the distinct numbers, sorted, and their counts, when compact."""
        return pa.array(self._numbers, self._kind), self._counts

    def _merge(self, numbers: NDArray[Any], counts: IntArray) -> None:
        if self._numbers.size:
            numbers = np.concatenate([self._numbers, numbers])
            counts = np.concatenate([self._counts, counts])
        # Stable sorting finds the two runs that are in order already.
        order = np.argsort(numbers, kind="stable")
        numbers, counts = numbers[order], counts[order]
        is_first = np.append(True, numbers[1:] != numbers[:-1])
        begins = np.flatnonzero(is_first[: numbers.size])
        self._numbers = numbers[begins]
        self._counts = np.add.reduceat(counts, begins) if begins.size else counts


def rounded_down(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return finite doubles rounded down to this many mantissa bits; first to more changes nothing."""
    if bits == _RESOLUTIONS[0]:
        return values
    words = np.ascontiguousarray(values).view(np.int64)
    # As integers of this kind floats are ordered by value; the map is its own inverse.
    ordered = np.where(words < 0, _MINUS_ZERO - words, words)
    cut = np.int64(52 - bits)
    ordered = (ordered >> cut) << cut
    return np.where(ordered < 0, _MINUS_ZERO - ordered, ordered).view(np.float64)
