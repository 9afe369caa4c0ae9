"""Tests of shares against a margin: a model may be worse by that much.

Under the null that a difference is the margin the shares are estimated as score tests do: Tango (1998), Stat. Med.
17:891, for two models on the same examples, Farrington and Manning (1990), Stat. Med. 9:1447, for a slice and the
others. The difference is referred to its exact law at those shares, as Lloyd (2008), Aust. N. Z. J. Stat. 50:329,
proposes: the normal law is too liberal far out. Not mid-p: with few examples a gate should rather miss.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import betainc, betaincc, ndtr, xlog1py, xlogy

from slicebeam.metrics.arrays import ArrayLike, FloatArray, IntArray, Pair, floats, ratio
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance.count_tests import log_choose
from slicebeam.metrics.significance.outcome_codes import select_tail

Law = Callable[[IntArray, FloatArray], Pair]

# The first count is summed up to this variance; beyond it a normal law corrected for skewness is near.
_SUMMED_UP_TO_VARIANCE = 400.0
# So many deviations, and single values, from the mean are summed.
_DEVIATIONS, _VALUES = 10.0, 40.0
_NUMBERS_AT_A_TIME = 1 << 21


def paired_p_value(
    gained: ArrayLike, lost: ArrayLike, n: ArrayLike, difference: ArrayLike, tail: Tail
) -> FloatArray:
    """Return p [slices] of a change of the share, of ``n`` those only the new, and only the old model marks."""
    b, c, size, d = np.broadcast_arrays(*np.atleast_1d(*floats(gained, lost, n, difference)))
    # Tango's equation 11: the share that only the old model marks, at most likely under the null.
    linear = (2.0 * size - b + c) * d - b - c
    root = np.sqrt(np.square(linear) + 8.0 * size * c * d * (1.0 - d))
    only_old = np.clip((root - linear) / (4.0 * size), np.maximum(-d, 0.0), (1.0 - d) / 2.0)
    only_new = np.clip(only_old + d, 0.0, 1.0 - only_old)
    both = only_new + only_old
    variance = both - np.square(d)
    third = d - 3.0 * d * both + 2.0 * d**3
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (b - c - size * d) / np.sqrt(size * variance)
        skewness = third / variance**1.5 / np.sqrt(size)
    of_rest = ratio(only_old, 1.0 - only_new, otherwise=0.0)
    far = (size, only_new, b, z, skewness)
    # b − c ≥ its observed value where c ≤ b − (b − c observed).
    return _p_value(far, lambda at, x: _tails(x - (b - c)[at], size[at] - x, of_rest[at]), tail)


def unpaired_p_value(
    x: ArrayLike,
    n: ArrayLike,
    rest_x: ArrayLike,
    rest_n: ArrayLike,
    difference: ArrayLike,
    tail: Tail,
) -> FloatArray:
    """Return the p-value [slices] of a share of a slice that is the rest's plus a given difference."""
    parts = np.atleast_1d(*floats(x, n, rest_x, rest_n, difference))
    mine, size, other, rest, d = np.broadcast_arrays(*parts)
    share = _farrington_manning(mine, size, other, rest, d)
    p, q = share, np.clip(share - d, 0.0, 1.0)
    observed = mine / size - other / rest
    of_slice, of_rest = p * (1.0 - p) / size, q * (1.0 - q) / rest
    variance = of_slice + of_rest
    third = of_slice * (1.0 - 2.0 * p) / size - of_rest * (1.0 - 2.0 * q) / rest
    with np.errstate(invalid="ignore", divide="ignore"):
        z, skewness = (observed - d) / np.sqrt(variance), third / variance**1.5

    def tails(at: IntArray, x: FloatArray) -> Pair:
        # x/n − y/m ≥ its observed value where y ≤ m·(x/n − observed).
        return _tails(rest[at] * (x / size[at] - observed[at]), rest[at], q[at])

    return _p_value((size, p, mine, z, skewness), tails, tail)


def _farrington_manning(
    x: FloatArray, n: FloatArray, y: FloatArray, m: FloatArray, d: FloatArray
) -> FloatArray:
    """Return the most likely share of the slice if it is the rest's plus d: the root of their cubic."""
    times, p, q = m / n, x / n, y / m
    a = 1.0 + times
    b = -(1.0 + times + p + times * q + d * (times + 2.0))
    c = d * d + d * (2.0 * p + times + 1.0) + p + times * q
    e = -p * d * (1.0 + d)
    v = (b / (3.0 * a)) ** 3 - b * c / (6.0 * a * a) + e / (2.0 * a)
    u = np.copysign(np.sqrt(np.maximum((b / (3.0 * a)) ** 2 - c / (3.0 * a), 0.0)), v)
    cosine = np.clip(v / np.where(u == 0.0, 1.0, u**3), -1.0, 1.0)
    angle = (np.pi + np.arccos(cosine)) / 3.0
    root = 2.0 * u * np.cos(angle) - b / (3.0 * a)
    return np.clip(root, np.maximum(d, 0.0), np.minimum(1.0 + d, 1.0))


def _p_value(far: tuple[FloatArray, ...], tails_of_second: Law, tail: Tail) -> FloatArray:
    """Return p: over the first count (its ``far``: n, share, value, z, skewness) its chance times tails of the second."""
    size, share, observed, z, skewness = far
    corrected = z - skewness * (np.square(z) - 1.0) / 6.0
    upper, lower = (np.nan_to_num(ndtr(part), nan=1.0) for part in (-corrected, corrected))
    variance = size * share * (1.0 - share)
    reach = _DEVIATIONS * np.sqrt(variance) + _VALUES
    low = np.floor(np.maximum(np.minimum(size * share - reach, observed - _VALUES), 0.0))
    high = np.minimum(np.maximum(size * share + reach, observed + _VALUES), size)
    summed = np.flatnonzero(variance <= _SUMMED_UP_TO_VARIANCE)
    # Slices of about the same number of values, many at a time.
    summed = summed[np.argsort((high - low)[summed], kind="stable")]
    while summed.size:
        width = int((high - low)[summed[-1]]) + 1
        many = max(1, _NUMBERS_AT_A_TIME // width)
        at, summed = summed[-many:], summed[:-many]
        column = at[:, None]
        values = low[column] + np.arange(width)
        x = np.minimum(values, size[column])
        chance = np.where(values > x, 0.0, _probability(x, size[column], share[column]))
        for side, part in zip((upper, lower), tails_of_second(column, x), strict=True):
            side[at] = np.minimum((chance * part).sum(axis=1), 1.0)
    return select_tail(upper, lower, tail)


def _probability(k: FloatArray, n: FloatArray, p: FloatArray) -> FloatArray:
    """Return the binomial probability of k."""
    return np.asarray(np.exp(log_choose(n, k) + xlogy(k, p) + xlog1py(n - k, -p)))


def _tails(k: FloatArray, n: FloatArray, p: FloatArray) -> Pair:
    """Return P(Y ≤ k) and P(Y ≥ k) of a binomial Y, k a whole number where only rounding hides that."""
    whole = np.round(k)
    same = (np.abs(k - whole) <= 1e-9 * (1.0 + np.abs(k))) & (whole >= 0) & (whole <= n)
    k = np.where(same, whole, k)
    tie = np.where(same, _probability(np.clip(whole, 0.0, n), n, p), 0.0)
    floor = np.clip(np.floor(k), 0.0, np.maximum(n - 1.0, 0.0))
    ends = floor + 1.0, np.maximum(n - floor, 0.5), p
    at_most = np.where(k < 0, 0.0, np.where(k >= n, 1.0, betaincc(*ends)))
    return at_most, np.where(k < 0, 1.0, np.where(k >= n, 0.0, betainc(*ends)) + tie)
