"""Loader's saddle-point parts: probabilities of counts without cancelling large log-factorials.

log(n!) of a few millions is near 1e8, so differences of log-factorials keep only eight digits.
Loader splits every log-factorial into Stirling's formula, whose parts cancel on paper, and a small
rest (`stirling_error`); what remains of the formula is a deviance that is summed without
cancellation (`deviance_part`).

Source: C. Loader (2000), "Fast and accurate computation of binomial probabilities".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray


_SERIES_FROM = 16
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# The rest of Stirling's formula at 0 is defined as 0; `half_log_two_pi` agrees with it.
_SMALL_STIRLING_ERRORS = np.array(
    [0.0]
    + [
        math.log(math.factorial(n)) - (n + 0.5) * math.log(n) + n - _HALF_LOG_TWO_PI
        for n in range(1, _SERIES_FROM)
    ]
)
_SERIES_RADIUS = 0.1
# With |v| < 0.1 the terms fall by 1/100 each: nine of them reach the last bit.
_DEVIANCE_SERIES = [1.0 / (2 * j + 1) for j in range(9, 0, -1)]


def stirling_error(n: ArrayLike) -> FloatArray:
    """Return log(n!) − log(√(2πn)·(n/e)ⁿ), and 0 at n = 0.

    Parameters
    ----------
    n : array of whole numbers ≥ 0, any shape

    Returns
    -------
    float64 array of the same shape
        Absolute error below 1e-14. Source: Loader (2000), eq. 3.
    """
    count = np.asarray(n, dtype=np.float64)
    large = np.maximum(count, float(_SERIES_FROM))
    square = large * large
    series = (
        1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / square) / square) / square) / square
    ) / large
    index = np.minimum(count, _SERIES_FROM - 1).astype(np.intp)
    return np.where(count < _SERIES_FROM, _SMALL_STIRLING_ERRORS[index], series)


def half_log_two_pi(n: ArrayLike) -> FloatArray:
    """Return ½·log(2πn), the root of Stirling's formula, and 0 at n = 0, where 0! = 1 needs none.

    Parameters
    ----------
    n : array of whole numbers ≥ 0, any shape

    Returns
    -------
    float64 array of the same shape
    """
    count = np.asarray(n, dtype=np.float64)
    return np.where(count > 0, _HALF_LOG_TWO_PI + 0.5 * np.log(np.maximum(count, 1.0)), 0.0)


def deviance_part(x: ArrayLike, mean: ArrayLike, excess: ArrayLike | None = None) -> FloatArray:
    """Return x·log(x/mean) + mean − x, which is ≥ 0 and is 0 only at x = mean.

    Parameters
    ----------
    x : array of counts ≥ 0
    mean : array of means > 0, broadcasts with `x`
    excess : array, optional
        x − mean, where it is known more precisely than by subtraction.

    Returns
    -------
    float64 array of the broadcast shape
        Source: Loader (2000), eq. 5 and section 4 (his bd0); the series in
        v = (x − mean)/(x + mean) is used for |v| < 0.1.
    """
    count = np.asarray(x, dtype=np.float64)
    expected = np.asarray(mean, dtype=np.float64)
    gap = count - expected if excess is None else np.asarray(excess, dtype=np.float64)
    v = gap / (count + expected)
    near = np.abs(v) < _SERIES_RADIUS
    if near.all():
        return _near_deviance(count, gap, v)
    ratio = np.where(count > 0, count, expected) / expected
    far = count * np.log(ratio) - gap
    return np.where(near, _near_deviance(count, gap, np.where(near, v, 0.0)), far)


def _near_deviance(count: FloatArray, gap: FloatArray, v: FloatArray) -> FloatArray:
    square = v * v
    series = np.zeros_like(square)
    for coefficient in _DEVIANCE_SERIES:
        series = (series + coefficient) * square
    return gap * v + 2.0 * count * v * series


def binomial_log_pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> FloatArray:
    """Return log P(X = x) of X ~ Binomial(n, p).

    Parameters
    ----------
    x, n : arrays of whole numbers
        They broadcast with each other and with `p`; n ≥ 0.
    p : array of probabilities, 0 < p < 1

    Returns
    -------
    float64 array of the broadcast shape
        −inf outside 0 ≤ x ≤ n. Source: Loader (2000), eq. 4.
    """
    count, size, prob = np.broadcast_arrays(
        np.asarray(x, dtype=np.float64),
        np.asarray(n, dtype=np.float64),
        np.asarray(p, dtype=np.float64),
    )
    inside = (count >= 0) & (count <= size) & (size > 0)
    hits = np.where(inside, count, 0.0)
    # A draw of size 1 stands in for rows outside the support: their value is replaced below.
    trials = np.where(inside, size, 1.0)
    misses = trials - hits
    log_pmf = (
        stirling_error(trials)
        - stirling_error(hits)
        - stirling_error(misses)
        + half_log_two_pi(trials)
        - half_log_two_pi(hits)
        - half_log_two_pi(misses)
        - deviance_part(hits, trials * prob)
        - deviance_part(misses, trials * (1.0 - prob))
    )
    return np.where(inside, log_pmf, np.where((size == 0) & (count == 0), 0.0, -np.inf))
