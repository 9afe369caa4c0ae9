"""Quantile bins of a difficulty, such as a confidence, in bounded memory.

Distinct values are counted. Where they are too many they are rounded down to fewer bits of the mantissa,
to the finest of a few resolutions at which they fit: that depends on the values alone, never on their
order, so that the edges do not depend on chunks, as those of a sketch would.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.transforms.encode.column import ChunkColumn, missing_mask
from slicebeam.transforms.encode.value_counts import NumberCounts

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.transforms.encode.column import Chunk

# Of a bin: the difficulty is missing.
MISSING_BIN = -1
# Bits of the mantissa that are kept, finest first: with eight, all numbers that there are fit.
_RESOLUTIONS = (52, 20, 18, 16, 14, 12, 10, 8)
# Distinct values, of 16 bytes each, that are counted as they are.
_MOST_DISTINCT = 1 << 21
_MINUS_ZERO = np.int64(np.iinfo(np.int64).min)


def difficulties(column: pa.ChunkedArray, name: str, chunk: Chunk) -> FloatArray:
    """Return a column of difficulties [rows], NaN where one is missing; refuse infinite ones."""
    whole = ChunkColumn(name, column.combine_chunks(), chunk)
    array = whole.plain

    def numbers(present: pa.Array) -> FloatArray:
        return replace(whole, array=present).numbers("a difficulty")

    values = np.full(len(array), np.nan)
    if pa.types.is_null(array.type):
        return values
    missing = missing_mask(array)
    if missing is None:
        values = numbers(array)
    elif pa.types.is_integer(array.type):
        # Filled, not filtered: an error names the row.
        values = np.where(missing, np.nan, numbers(array.fill_null(0)))
    else:
        values[~missing] = numbers(array.filter(pa.array(~missing)))
    why = ", but a difficulty is a finite number; leave it empty or drop the example"
    whole.refuse(np.isinf(values), values, why)
    return values


def difficulty_bins(values: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bin of each difficulty [rows]: how many edges are not above it, −1 for a NaN."""
    bins = np.searchsorted(edges, values, side="right").astype(np.int64)
    bins[np.isnan(values)] = MISSING_BIN
    return bins


def rounded_down(values: FloatArray, bits: int) -> FloatArray:
    """Return the finite values rounded down to this many mantissa bits.

    Rounding first to more bits changes nothing.

    >>> rounded_down(np.array([1.999, -1.001]), 1).tolist()
    [1.5, -1.5]
    """
    if bits == _RESOLUTIONS[0]:
        return values
    words = np.ascontiguousarray(values).view(np.int64)
    # As integers of this kind floats are ordered by value; the map is its own inverse.
    ordered = np.where(words < 0, _MINUS_ZERO - words, words)
    cut = np.int64(52 - bits)
    ordered = (ordered >> cut) << cut
    return np.where(ordered < 0, _MINUS_ZERO - ordered, ordered).view(np.float64)


class DifficultyCounts:
    """How often each difficulty occurs; up to ``most`` distinct values are counted as they are."""

    def __init__(self, most: int | None = None) -> None:
        self._most = _MOST_DISTINCT if most is None else most
        self._bits = _RESOLUTIONS[0]
        self._counts = NumberCounts(pa.float64())

    def add(self, values: FloatArray) -> None:
        """Count finite values [any number]."""
        self._counts.add(pa.array(rounded_down(values, self._bits)))
        if self._counts.nbytes > 3 * 16 * self._most:
            self._compact()

    def counted(self) -> tuple[FloatArray, IntArray]:
        """Return the distinct values, sorted, and how often each occurs."""
        self._compact()
        values, counts = self._counts.counted()
        return values.to_numpy(), counts

    def _compact(self) -> None:
        self._counts.compact()
        for bits in _RESOLUTIONS[_RESOLUTIONS.index(self._bits) + 1 :]:
            values, counts = self._counts.counted()
            if counts.size <= self._most:
                break
            self._bits = bits
            self._counts.clear()
            self._counts.add(pa.array(rounded_down(values.to_numpy(), bits)), counts)


def quantile_edges(values: FloatArray, counts: IntArray, bins: int) -> FloatArray:
    """Return the inner edges of quantile bins: float64 [at most bins − 1], ascending.

    Bit for bit the ``np.unique(np.quantile(values, k / bins))`` of the values written out one by one;
    ``values`` are distinct, finite and ascending, and each occurs ``counts`` times.
    """
    total = int(counts.sum())
    if total == 0:
        return np.zeros(0)
    position = (total - 1) * (np.arange(1, bins) / bins)
    before = np.floor(position).astype(np.int64)
    ends = np.cumsum(counts)
    low = values[np.searchsorted(ends, before, side="right")]
    high = values[np.searchsorted(ends, np.minimum(before + 1, total - 1), side="right")]
    share, gap = position - before, high - low
    # From the nearer end, as numpy has it.
    between = np.where(share >= 0.5, high - gap * (1 - share), low + gap * share)
    return np.unique(between)
