"""Whether a delta differs between two runs on independent examples, from their intervals alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.arrays import ArrayLike, FloatArray
from slicebeam.metrics.significance.intervals import mover, normal_quantile

# Two computations of the same bound differ by less.
_ROUNDING = 1e-12


class RunDifference(NamedTuple):
    """Delta now minus then with interval and two-sided p [slices]; NaN where a delta or interval is undefined."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    p: FloatArray


def difference(
    now: tuple[ArrayLike, ArrayLike, ArrayLike],
    then: tuple[ArrayLike, ArrayLike, ArrayLike],
    confidence: float,
) -> RunDifference:
    """Return the difference of two independent estimates, each (estimate, low, high), with interval and p.

    MOVER (Zou and Donner 2008, Statistics in Medicine 27:1693, eq. 5). p = 2·Φ(−z·abs(d)/r), r the distance
    from d to the end nearer to zero: p < 1 − confidence exactly where the interval excludes zero. Assumes no
    common examples, and estimates that were not selected for being extreme.
    """
    first, second = (_ordered(*(np.asarray(end, np.float64) for end in run)) for run in (now, then))
    value = first[0] - second[0]
    below, above = mover(first, second)
    reach = np.where(value > 0, below, above)
    quantile = normal_quantile(confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(value) / reach
    # Without any width, equal estimates are the same and others are surely not.
    distance = np.where((reach == 0) & (value == 0), 0.0, distance)
    p = 2.0 * ndtr(-quantile * distance)
    undefined = ~np.isfinite(value + below + above)
    return RunDifference(
        *(np.where(undefined, np.nan, part) for part in (value, value - below, value + above, p))
    )


def _ordered(
    value: FloatArray, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return an estimate and its interval's ends; NaN for one that does not hold its estimate but for rounding."""
    low, high = (np.where(np.abs(end - value) <= _ROUNDING, value, end) for end in (low, high))
    return value, np.where(low > value, np.nan, low), np.where(high < value, np.nan, high)
