"""The law of the mean of one of two samples, by the values that both have: a slice's own random-subset law.

If nothing changed, the examples of today are a random subset of the slice's examples, today's and earlier ones. Means of
small samples of rare large losses are as skewed as the values in the slice are, which all examples need not show. The
tail of their sum is a double saddle point (Robinson 1982, Ann. Statist. 10:458), solved for each slice by itself.
Assumption: examples are independent. Rates: docs/explanation/calibration.md.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.arrays import FloatArray, IntArray
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance.count_tests import log_choose
from slicebeam.metrics.significance.few_cells import CellDraws, deviate
from slicebeam.metrics.significance.outcome_codes import select_tail
from slicebeam.metrics.significance.random_subset import BINS, add_bin_sums, bin_edges

# A value is at most √N standard deviations off the mean of N: of 2^40 at most this many.
_FARTHEST = 2.0**20
EDGES = bin_edges(-_FARTHEST, _FARTHEST, 1.0)
# Places within a bin and their squares are summed in this unit.
UNIT = 2.0**-20
_AT_A_TIME = 256
# A sum this near, in standard deviations of a value, to the largest one is that.
_SAME = 1e-6
_SMALLEST = 1e-300


def bin_values(values: FloatArray, slices: IntArray, number: int) -> IntArray:
    """Return [number, 3, BINS], which add up: standardized values [members] of slices by bin, places, their squares."""
    sums = np.zeros((number, 3, BINS), np.int64)
    add_bin_sums(sums, values, EDGES, UNIT, slices)
    return sums


def points(sums: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return values and counts [slices, 2 * BINS] of `bin_values`: two points a bin keep its mean and variance."""
    counts = sums[:, 0].astype(np.float64)
    mean, square = (sums[:, power] * UNIT / np.maximum(counts, 1.0) for power in (1, 2))
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    places = np.concatenate([mean - spread, mean + spread], axis=1)
    left, width = (np.tile(column, 2) for column in (EDGES[:-1], np.diff(EDGES)))
    return left + width * places, np.tile(counts, (1, 2)) / 2.0


def p_value(sums: IntArray, drawn: IntArray, total: FloatArray, tail: Tail) -> FloatArray:
    """Return p [slices] of the standardized total of ``drawn`` of the values in `bin_values`; 1 where none varies."""
    p = np.ones(len(sums))
    for begin in range(0, len(sums), _AT_A_TIME):
        some = slice(begin, begin + _AT_A_TIME)
        values, counts = points(sums[some])
        # Bins that are empty in all of these slices are not looked at.
        used = counts.any(axis=0)
        p[some] = _p_value(values[:, used], counts[:, used], drawn[some], total[some], tail)
    return p


def _p_value(
    values: FloatArray, counts: FloatArray, drawn: IntArray, total: FloatArray, tail: Tail
) -> FloatArray:
    size = counts.sum(axis=1)
    held = np.where(counts > 0, values, np.nan)
    varies = (np.nanmax(held, axis=1) > np.nanmin(held, axis=1)) & (drawn > 0) & (drawn < size)
    upper, lower = np.ones((2, len(values)))
    left = np.flatnonzero(varies)
    for sign, beyond, before in ((1.0, upper, lower), (-1.0, lower, upper)):
        most, chance = _largest(sign * values[left], counts[left], drawn[left])
        end = sign * total[left] >= most - _SAME
        beyond[left[end]], before[left[end]] = 0.5 * chance[end], 1.0 - 0.5 * chance[end]
        left = left[~end]
    stratum = np.ones((1, values.shape[1]))
    w, _ = deviate(
        values[left],
        CellDraws(counts[left], stratum, drawn[left, None].astype(np.float64)),
        total[left],
        0.0,
    )
    upper[left], lower[left] = ndtr(-w), ndtr(w)
    return np.where(varies, np.maximum(select_tail(upper, lower, tail), _SMALLEST), 1.0)


def _largest(
    values: FloatArray, counts: FloatArray, drawn: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return the largest total [slices] that can be drawn, and its probability."""
    order = np.argsort(-values, axis=1, kind="stable")
    values, counts = (np.take_along_axis(array, order, axis=1) for array in (values, counts))
    before = np.cumsum(counts, axis=1) - counts
    taken = np.clip(drawn[:, None] - before, 0.0, counts)
    # Of the last point that is drawn from, perhaps not all.
    last = np.argmax((taken > 0) * (before + 1.0), axis=1)[:, None]
    of_last = [np.take_along_axis(array, last, axis=1)[:, 0] for array in (counts, taken)]
    chance = np.exp(np.minimum(log_choose(*of_last) - log_choose(counts.sum(axis=1), drawn), 0.0))
    return (values * taken).sum(axis=1), chance
