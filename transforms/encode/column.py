"""A column of a chunk as what a run needs of it; what it refuses is named by the user's row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import ColumnError, InputError, OptionError
from slicebeam.metrics.randomness import splitmix64
from slicebeam.transforms.encode.column_values import boolean_mask, missing_mask, sortable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.transforms.encode.sources import Chunk

# A float64 holds all integers up to here.
_LARGEST_INTEGER = np.uint64(2**53)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a column, which may be dictionary-encoded."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


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
        if pa.types.is_nested(self.kind):
            missing = boolean_mask(self.array.is_null()) if self.array.null_count else None
        else:
            missing = missing_mask(self.plain)
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
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind)):
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
            at = int(np.argmax(np.abs(integers).view(np.uint64) > _LARGEST_INTEGER))
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


def numbers(column: pa.ChunkedArray | pa.Array, name: str, chunk: Chunk, what: str) -> FloatArray:
    """Return `ChunkColumn.numbers` of an array."""
    array: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return ChunkColumn(name, array, chunk).numbers(what)
