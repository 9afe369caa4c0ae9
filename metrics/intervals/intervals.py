"""Score-based confidence intervals of shares and of their differences, from counts alone.

Score intervals take the variance under the tested value instead of the observed one, so that they
keep their coverage in small slices and do not collapse at 0 or n errors, as Wald intervals do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

from slicebeam.metrics.arrays import floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray


# They halve an interval of at most 2: its end is known to 2e-13.
_HALVINGS = 43


def normal_quantile(confidence: float) -> float:
    """Return z with P(abs(Z) ≤ z) = confidence, Z standard normal; ValueError if that is none."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence} is not between 0 and 1")
    return -float(ndtri(0.5 * (1.0 - confidence)))


def bisect(
    keeps: Callable[[FloatArray], BoolArray], inside: FloatArray, outside: FloatArray
) -> FloatArray:
    """Return the last value that is kept on the way from the inside to the outside."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        kept = keeps(middle)
        inside = np.where(kept, middle, inside)
        outside = np.where(kept, outside, middle)
    return inside


def wilson(x: ArrayLike, n: ArrayLike, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Return Wilson's (1927, J. Am. Stat. Assoc. 22:209) score interval of x/n; (0, 1) where n = 0."""
    hits, size = floats(x, n)
    z = normal_quantile(confidence)
    trials = np.maximum(size, 1.0)
    centre = (hits + 0.5 * z * z) / (trials + z * z)
    half = (z / (trials + z * z)) * np.sqrt(hits * (trials - hits) / trials + 0.25 * z * z)
    # Rounding must not move an end past the observed share.
    low = np.where(hits > 0, np.minimum(centre - half, hits / trials), 0.0)
    high = np.where(hits < size, np.maximum(centre + half, hits / trials), 1.0)
    return low, np.where(size > 0, high, 1.0)


def jeffreys(x: FloatArray, n: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Return the equal-tailed interval of a share under Jeffreys's prior, with 0 and 1 kept."""
    tail = 0.5 * (1.0 - confidence)
    low, high = (betaincinv(x + 0.5, n - x + 0.5, part) for part in (tail, 1.0 - tail))
    return np.where(x > 0, low, 0.0), np.where(x < n, high, 1.0)


def mover(
    first: tuple[FloatArray, FloatArray, FloatArray],
    second: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Return how far the interval of first − second reaches below and above, of (estimate, low, high) of either.

    Squared distances to the ends of two independent intervals add up: Zou and Donner (2008), Stat. Med. 27:1693, eq. 5.
    """
    (a, a_low, a_high), (b, b_low, b_high) = first, second
    return np.hypot(a - a_low, b_high - b), np.hypot(a_high - a, b - b_low)


def agresti_coull(x: ArrayLike, n: ArrayLike, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Return Agresti and Coull's (1998, Am. Stat. 52:119) interval of x/n, with Student's quantile.

    Wald's after z²/2 examples of either kind are added, t on the enlarged number less one. Numbers may
    be effective ones. It covers .94 at least from n = 20; Wilson's has .84 for shares near 0.
    """
    hits, size = floats(x, n)
    z = normal_quantile(confidence)
    trials = size + z * z
    share = (hits + 0.5 * z * z) / trials
    t = stdtrit(trials - 1.0, 0.5 * (1.0 + confidence))
    half = t * np.sqrt(share * (1.0 - share) / trials)
    known = size > 0
    observed = hits / np.where(known, size, 1.0)
    low = np.clip(share - half, 0.0, observed)
    high = np.clip(share + half, observed, 1.0)
    return np.where(known, low, 0.0), np.where(known, high, 1.0)


def difference_from_overall(
    n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of x/n − K/N, a slice's share minus that of all; (−1, 1) where n = 0.

    It is (1 − n/N)·(p_S − p_C) with the complement C, which shares no example with S: Newcombe's (1998,
    Stat. Med. 17:873, method 10) hybrid score interval, n/N fixed.
    """
    size, hits, everything, marked = floats(n, x, N, K)
    rest, rest_hits = everything - size, marked - hits
    share, rest_share = hits / np.maximum(size, 1.0), rest_hits / np.maximum(rest, 1.0)
    below, above = mover(
        (share, *wilson(hits, size, confidence)), (rest_share, *wilson(rest_hits, rest, confidence))
    )
    outside = rest / np.maximum(everything, 1.0)
    delta = share - marked / np.maximum(everything, 1.0)
    low, high = delta - outside * below, delta + outside * above
    whole, nothing = rest == 0, size == 0
    low, high = np.where(whole, 0.0, low), np.where(whole, 0.0, high)
    return np.where(nothing, -1.0, low), np.where(nothing, 1.0, high)


def paired_difference(
    b: ArrayLike, c: ArrayLike, n: ArrayLike, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of (b − c)/n, b and c marked by one model only; (−1, 1) where n = 0.

    Tango (1998), Stat. Med. 17:891: all Δ with abs(b − c − nΔ) ≤ z·√(n·(2q̂ + Δ(1 − Δ))), q̂ the
    maximum-likelihood share of c under Δ, the larger root of his quadratic equation.
    """
    more, less, size = floats(b, c, n)
    z = normal_quantile(confidence)
    high = _upper_score_end(more, less, size, z)
    low = -_upper_score_end(less, more, size, z)
    nothing = size == 0
    return np.where(nothing, -1.0, low), np.where(nothing, 1.0, high)


def _upper_score_end(b: FloatArray, c: FloatArray, n: FloatArray, z: float) -> FloatArray:
    """Return the largest Δ that Tango's score test of (b − c)/n keeps; 0 where n = 0."""
    size = np.maximum(n, 1.0)
    p, q = b / size, c / size

    def keeps(delta: FloatArray) -> BoolArray:
        linear = (2.0 - p + q) * delta - p - q
        # The quadratic 2q̂² + linear·q̂ − q·Δ(1−Δ) = 0; here Δ ≥ p − q, and q̂ may be 0.
        root = np.sqrt(np.maximum(linear * linear + 8.0 * q * delta * (1.0 - delta), 0.0))
        smallest = np.maximum(0.0, -delta)
        mle = np.maximum(0.25 * (root - linear), smallest)
        spread = np.maximum(2.0 * mle + delta * (1.0 - delta), 0.0)
        return np.asarray(size * np.square(p - q - delta) <= z * z * spread)

    return bisect(keeps, p - q, np.ones(p.shape))
