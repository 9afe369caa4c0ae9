"""Ids of examples that have none: from what an example holds, and its number among equal ones.

Equal examples are interchangeable in every sum. So it does not matter which of them gets which
number: the ids of all examples, and every resampled sum, are the same in any order of the examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.randomness import GOLDEN_GAMMA, splitmix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray


def repeats(
    contents: NDArray[np.uint64], within: FloatArray | None = None
) -> tuple[IntArray, IntArray]:
    """Return which examples equal an earlier one, and their numbers among their equals.

    >>> rows, numbers = repeats(np.array([7, 5, 7, 7], np.uint64))
    >>> rows.tolist(), numbers.tolist()
    ([2, 3], [1, 2])
    """
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
