"""Quantile bins of a difficulty, such as a confidence, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.transforms.encode.column import ChunkColumn, missing_mask

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.transforms.encode.column import Chunk

# Of a bin: the difficulty is missing.
MISSING_BIN = -1
# Distinct values, of 16 bytes each, that are counted as they are.
MOST_DISTINCT = 1 << 18


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
