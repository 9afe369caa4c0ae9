"""Random numbers that are a hash of what they are for: (seed, replicate, example or group id).

A result then does not depend on how the data was cut, on the engine, or on a bundle that ran twice. The id of an example
that has none comes from what it holds, and its number among equal ones, which are interchangeable in every sum.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, NDArray

UInt64Array: TypeAlias = NDArray[np.uint64]

_WORD = 1 << 64
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MIX = np.uint64(0x94D049BB133111EB)
_POISSON_ENTRIES = 21
_LEADING_BITS = 16


def splitmix64(x: UInt64Array) -> UInt64Array:
    """Return a bijective mix of 64-bit words: the output of SplitMix64 at state `x`."""
    # Whole-array operations wrap around silently, those on scalars warn.
    mixed = np.add(np.atleast_1d(x), GOLDEN_GAMMA, dtype=np.uint64)
    # One scratch array for all shifts: fresh memory costs more than the arithmetic.
    shifted = np.right_shift(mixed, np.uint64(30))
    mixed ^= shifted
    mixed *= _FIRST_MIX
    mixed ^= np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed *= _SECOND_MIX
    mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed.reshape(np.shape(x))


def hash64(seed: int, replicate: ArrayLike, ids: UInt64Array) -> UInt64Array:
    """Return a 64-bit hash of (seed, replicate, id)."""
    start = splitmix64(np.array(seed % _WORD, dtype=np.uint64))
    stream = np.asarray(replicate, dtype=np.int64).view(np.uint64)
    return splitmix64(np.asarray(splitmix64(stream ^ start)) ^ np.asarray(ids, dtype=np.uint64))


def uniform(words: UInt64Array) -> FloatArray:
    """Return float64 numbers in the open interval (0, 1) from the leading 52 bits of the words."""
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _poisson_thresholds() -> UInt64Array:
    """Return ⌊2⁶⁴·P(W ≤ k)⌋ of W ~ Poisson(1), k = 0..20, computed in integers."""
    scale = 1 << 192
    inverse_e, term = 0, scale
    for k in range(1, 60):
        inverse_e += term
        term = -term // k
    thresholds, total, point = [], 0, inverse_e
    for k in range(_POISSON_ENTRIES):
        total += point
        thresholds.append(total * _WORD // scale)
        point //= k + 1
    return np.array(thresholds, dtype=np.uint64)


_THRESHOLDS = _poisson_thresholds()


def _leading_bits_table() -> tuple[NDArray[np.uint8], BoolArray]:
    """Return the weight of each value of the leading bits, and where a threshold splits it."""
    shift = np.uint64(64 - _LEADING_BITS)
    first = np.arange(1 << _LEADING_BITS, dtype=np.uint64) << shift
    last = first | np.uint64((1 << (64 - _LEADING_BITS)) - 1)
    at_first = np.searchsorted(_THRESHOLDS, first, side="right")
    at_last = np.searchsorted(_THRESHOLDS, last, side="right")
    return at_first.astype(np.uint8), at_first != at_last


_WEIGHT_OF_LEADING_BITS, _SPLIT_LEADING_BITS = _leading_bits_table()


def poisson_weights(seed: int, replicate: ArrayLike, ids: UInt64Array) -> NDArray[np.uint8]:
    """Return Poisson(1) bootstrap weights of examples or groups."""
    words = hash64(seed, replicate, ids)
    # Sixteen bits settle all but 21 of 65,536 cases; this is twice as fast as searching all.
    leading = words >> np.uint64(64 - _LEADING_BITS)
    weights = np.asarray(_WEIGHT_OF_LEADING_BITS[leading])
    split = np.asarray(_SPLIT_LEADING_BITS[leading])
    if split.any():
        weights[split] = np.searchsorted(_THRESHOLDS, words[split], side="right")
    return weights


def repeats(
    contents: NDArray[np.uint64], within: FloatArray | None = None
) -> tuple[IntArray, IntArray]:
    """Return which examples equal an earlier one, and their numbers among their equals."""
    # Sorting the values alone takes a seventh of sorting where they are, and most data repeats little.
    ordered = np.sort(contents)
    held_again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if held_again.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(held_again, contents), held_again.size - 1)
    rows = np.flatnonzero(held_again[at] == contents)
    if within is None:
        order = np.argsort(at[rows], kind="stable")
    else:
        order = np.lexsort((within[rows], at[rows]))
    value = at[rows][order]
    begins = np.flatnonzero(np.diff(value, prepend=-1))
    numbers = np.empty(rows.size, np.int64)
    run = np.diff(np.append(begins, rows.size))
    numbers[order] = np.arange(rows.size) - np.repeat(begins, run)
    again = numbers > 0
    return rows[again], numbers[again]


def occurrence_ids(contents: NDArray[np.uint64], numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the ids [rows] of examples: of equal ones, the outputs of SplitMix64 one after another."""
    return splitmix64(contents + numbers * GOLDEN_GAMMA)
