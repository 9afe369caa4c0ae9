"""Chunks and their columns as what a run needs of them; what is refused is named by the user's row."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray
from slicebeam.metrics.errors import ColumnError, InputError, OptionError
from slicebeam.metrics.randomness import hash64, splitmix64, uniform


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of its text form, ``str(data_type)``.

    >>> arrow_type("timestamp[us, tz=UTC]")
    TimestampType(timestamp[us, tz=UTC])
    """
    head, _, zone = text.rstrip("]").partition(", tz=")
    if zone:
        return pa.timestamp(head.removeprefix("timestamp["), zone)
    if text.startswith("decimal"):
        name, _, digits = text.rstrip(")").partition("(")
        return getattr(pa, name)(*map(int, digits.split(",")))
    return pa.type_for_alias(text)


def boolean_mask(values: pa.Array) -> BoolArray:
    """Return a boolean array as numpy has it: bool [rows], without nulls."""
    return np.asarray(values.to_numpy(zero_copy_only=False), bool)


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values as Python has them; times that it cannot represent as text.

    Nanoseconds are microseconds where no digit is lost. Arrow alone would return them as objects of
    pandas, and fail without it.

    >>> python_values(pa.array([1000, None], pa.timestamp("ns")))
    [datetime.datetime(1970, 1, 1, 0, 0, 0, 1), None]
    >>> python_values(pa.array([1001, None], pa.timestamp("ns")))
    ['1970-01-01 00:00:00.000001001', None]
    """
    try:
        return list(values.cast(_with_times(values.type, _in_microseconds)).to_pylist())
    except (ValueError, OverflowError):
        return list(values.cast(_with_times(values.type, lambda _: pa.string())).to_pylist())


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, whose values are those of `python_values`."""
    columns = map(python_values, table.columns)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if getattr(kind, "unit", None) != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _with_times(kind: pa.DataType, changed: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type, in which others may be nested, with its dates and times changed."""
    if pa.types.is_dictionary(kind):
        return _with_times(kind.value_type, changed)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_with_times(kind.value_type, changed))
    if pa.types.is_map(kind):
        return pa.map_(*(_with_times(part, changed) for part in (kind.key_type, kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _with_times(part.type, changed)) for part in kind])
    return changed(kind) if pa.types.is_temporal(kind) else kind


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers."""
    types = pa.types
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind))


def missing_mask(values: pa.Array) -> BoolArray | None:
    """Return where a column is null or NaN, None if nothing is."""
    if pa.types.is_floating(values.type):
        # For numpy a null is NaN.
        missing: BoolArray = np.isnan(values.to_numpy(zero_copy_only=False))
        return missing if missing.any() else None
    return boolean_mask(values.is_null()) if values.null_count else None


def sortable(values: pa.Array) -> NDArray[Any]:
    """Return numbers that are ordered as the values are: int64, uint64 or float64 [rows].

    A null has any number: see `missing_mask`.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        try:
            narrow = values.cast(pa.decimal128(18, kind.scale))
        except pa.ArrowInvalid as error:
            raise InputError(f"{kind} values of more than 18 digits: cast the column") from error
        words = np.frombuffer(narrow.buffers()[1], dtype="<i8")[::2]
        return words[narrow.offset : narrow.offset + len(narrow)].copy()
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        values = values.view(width).cast(pa.int64())
    elif pa.types.is_floating(kind):
        values = values.cast(pa.float64())
    elif kind != pa.uint64():
        values = values.cast(pa.int64())
    if values.null_count:
        values = pc.fill_null(values, 0)
    return np.asarray(values)


def from_numbers(numbers: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return values of the type from the numbers of `sortable`, which may be rounded to doubles."""
    if pa.types.is_floating(kind):
        return pa.array(numbers).cast(kind)
    width = np.uint64 if kind == pa.uint64() else np.int64
    limits = np.iinfo(width)
    whole = pa.array(
        [min(max(int(number), limits.min), limits.max) for number in numbers.tolist()],
        pa.from_numpy_dtype(width),
    )
    if pa.types.is_decimal(kind):
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        return pa.array([number * unit for number in whole.to_pylist()], kind)
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return whole.cast(width, safe=False).view(kind)
    # After the largest one comes what is no larger.
    return whole.cast(kind, safe=False)


def successors(values: pa.Array) -> pa.Array:
    """Return the next larger value of the type for each value."""
    if pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        return pa.array(np.nextafter(numbers, numbers.dtype.type(np.inf)))
    return from_numbers(sortable(values) + 1, values.type)


# A float64 holds all integers up to here.
LARGEST_INTEGER = 2**53


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a column, which may be dictionary-encoded."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


@dataclass(frozen=True)
class Chunk:
    """The element between transforms: consecutive examples as columns.

    `split` and `batch` are unique together. `places` are positions [rows] after `origin_row`, where other
    examples are left out in between; None for consecutive ones.
    """

    split: int
    batch: int
    origin: str
    origin_row: int
    start_row: int
    table: pa.Table
    places: IntArray | None = None

    def row_number(self, at: int) -> int:
        """Return the number, from 1, that the example at a position has in the user's file."""
        return self.origin_row + 1 + int(at if self.places is None else self.places[at])

    @property
    def positions(self) -> NDArray[np.uint64]:
        """The position of each example among all [rows]."""
        return np.arange(self.start_row, self.start_row + self.table.num_rows, dtype=np.uint64)

    def with_table(self, table: pa.Table) -> Chunk:
        """Return the same examples with other columns."""
        return replace(self, table=table)


@dataclass(frozen=True)
class ChunkColumn:
    """A column of a chunk: an Arrow array, perhaps dictionary-encoded, with a name for errors."""

    name: str
    array: pa.Array
    chunk: Chunk

    @classmethod
    def of(cls, chunk: Chunk, name: str, shown: str | None = None) -> ChunkColumn:
        """Return a column of a chunk."""
        array = chunk.table.column(name).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        return cls(shown or name, array, chunk)

    @property
    def kind(self) -> pa.DataType:
        """The type of the values."""
        return plain_type(self.array.type)

    @property
    def plain(self) -> pa.Array:
        """The values, without a dictionary."""
        return self.array.cast(self.kind) if self.kind != self.array.type else self.array

    def row(self, at: int) -> str:
        """Return which row of the user's file a position is."""
        return f"row {self.chunk.row_number(at):,} of {self.chunk.origin}"

    def refuse(self, wrong: BoolArray, values: FloatArray, why: str, what: str = "column") -> None:
        """Raise a ColumnError about the first wrong value, if there is one."""
        if wrong.any():
            at = int(np.argmax(wrong))
            held = f"{what} {self.name!r} holds {values[at]:g} in {self.row(at)}"
            raise ColumnError(f"{held}{why}")

    def require_values(self, remedy: str = "; drop such examples", what: str = "value") -> None:
        """Raise a ColumnError where a value is missing (null or NaN; of lists, null)."""
        missing = missing_mask(self.array if pa.types.is_nested(self.kind) else self.plain)
        if missing is not None:
            at = int(np.argmax(missing))
            raise ColumnError(f"column {self.name!r} has no {what} in {self.row(at)}{remedy}")

    def require_text(self, option: str) -> None:
        """Raise an OptionError where the column is not of texts."""
        if not pa.types.is_string(self.kind):
            raise OptionError(
                f"{option}: column {self.name!r} is {self.kind}, not text; name another column"
            )

    def numbers(self, what: str, largest: float | None = None) -> FloatArray:
        """Return a column of numbers [rows], none missing, and none beyond the largest.

        `what` needs a number, such as ``a score`` or ``--metric mse``.
        """
        array, kind, types = self.array, self.kind, pa.types
        if types.is_boolean(kind) and what != "a score":
            array, kind = array.cast(pa.int8()), pa.int8()
        if not is_number(kind):
            raise InputError(
                f"column {self.name!r} is {kind}, but {what} is a number; name a numeric column"
                if what.startswith("a ")
                else f"column {self.name!r} is {kind}, but {what} takes numbers; name a numeric "
                "column, or another metric"
            )
        self.require_values("; drop such examples or fill the column")
        array = array.cast(kind)
        try:
            values: FloatArray = array.cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid as error:
            integers = array.to_numpy()
            # Rounded, different integers would tie. As uint64 the size of the smallest int64 is right.
            at = int(np.argmax(np.abs(integers).view(np.uint64) > np.uint64(LARGEST_INTEGER)))
            raise InputError(
                f"column {self.name!r} holds {integers[at]} in {self.row(at)}, but integers beyond 2^53 "
                "lose digits as floating-point numbers; subtract a constant, or write the column as "
                "double"
            ) from error
        if largest is not None:
            why = ", which cannot be summed; drop such examples or bound the column"
            self.refuse(~(np.abs(values) <= largest), values, why)
        return values

    def classes(self, data_type: str) -> pa.Array:
        """Return a column of classes in their common type, none missing."""
        self.require_values("; drop such examples or fill the column")
        array = self.plain
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        target = {"string": pa.string(), "double": pa.float64(), "int64": pa.int64()}[data_type]
        try:
            return array.cast(target)
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{self.name!r} does not contain classes of the label's type: "
                f"{str(error).splitlines()[0]}; give predicted classes"
            ) from error


def random_numbers(
    chunk: Chunk, seed: int, stream: int, column: str | None = None, option: str = "--example-id"
) -> FloatArray:
    """Return a number in [0, 1) for each example, by the hash of its id, or else of its position."""
    if column is None:
        ids = chunk.positions
    else:
        ids = id_hashes(ChunkColumn.of(chunk, column).array, chunk, option)
    return uniform(hash64(seed, stream, ids))


def id_hashes(array: pa.Array, chunk: Chunk, option: str = "--example-id") -> NDArray[np.uint64]:
    """Return 64 bits [rows] of each example's id, from its value alone."""
    column = ChunkColumn(option, array, chunk)
    array = column.plain
    missing = missing_mask(array)
    if missing is not None:
        raise InputError(f"{option} has no value in {column.row(int(np.argmax(missing)))}")
    if pa.types.is_integer(array.type):
        return splitmix64(sortable(array).astype(np.uint64))
    if not pa.types.is_string(array.type):
        raise InputError(f"{option} column is {array.type}; an id is text or an integer")
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
        for word in range(words):
            state = splitmix64(state ^ matrix[:, word])
        hashes[rows] = state
    return hashes
