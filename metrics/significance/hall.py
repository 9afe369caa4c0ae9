"""Student's t of means of skewed values, corrected for the skewness: slice against rest, and paired.

A mean of losses is not near normal in a slice of 50 examples, and t even less so: a slice that by
chance misses the few large losses has a small mean *and* a small standard deviation, so that t is
skewed to the other side than the values are. Hall's cubic takes that out and keeps t's order.

Assumptions: examples are independent; the skewness of the values is about the same in the slice
as in the reference that it is taken from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import stdtr

from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.kinds import Tail

# A slice's variance is at least what γ²/2 more values, spread as the reference, would make it. By
# this rule how far t can go without any rare large value depends on G alone, not on the size.
_ADDED_PER_SQUARED_SKEWNESS = 0.5
# Beyond it every p-value is 0, and the cube still is a number.
_LARGEST_T = 1e90


class Moments(NamedTuple):
    """Number of values (Kish's where weighted), mean, variance (divisor n − 1) and skewness of one value."""

    n: FloatArray
    mean: FloatArray
    variance: FloatArray
    skewness: FloatArray


class Studentised(NamedTuple):
    """A difference of means, its standard error, degrees of freedom and skewness G (`bend`)."""

    difference: FloatArray
    error: FloatArray
    df: FloatArray
    bend: FloatArray
    known: BoolArray
    too_skewed: BoolArray


def welch(sample: Moments, rest: Moments, tail: Tail) -> tuple[FloatArray, BoolArray]:
    """Return Hall's skewness-corrected Welch p-value of slices against complements, and where it is refused.

    T = t + G·t²/3 + G²·t³/27 + G/6 with G = γ·(r^1.5/√n − (1 − r)^1.5/√m), r = v_S/(v_S + v_C): Hall
    (1992), J. R. Stat. Soc. B 54:221. γ is that of the reference, for 50 values hardly show their own; where
    abs(γ) > √n of the smaller side p is 1. Rates: docs/explanation/calibration.md.
    """
    return _p_value(against_rest(sample, rest), tail)


def paired(
    differences: Moments, tail: Tail, everything: Moments | None = None
) -> tuple[FloatArray, BoolArray]:
    """Return the skewness-corrected p-value of the mean differences against 0, and where it is refused.

    `welch` with r = 1 at n − 1 degrees of freedom. `everything`, the moments of all differences, gives the
    skewness and the smallest variance; without it the slice's own are used, which are too liberal.
    """
    return _p_value(against_zero(differences, everything), tail)


def against_rest(sample: Moments, rest: Moments) -> Studentised:
    """Return the difference of the means of slices and complements, ready for `welch`."""
    n, mean, variance, _ = _arrays(sample)
    m, rest_mean, rest_variance, skewness = _arrays(rest)
    known = (n >= 2.0) & (m >= 2.0)
    size, rest_size = np.maximum(n, 2.0), np.maximum(m, 2.0)
    of_slice = _steady(size, variance, rest_variance, skewness) / size
    of_rest = _steady(rest_size, rest_variance, variance, skewness) / rest_size
    total = np.where(known, of_slice + of_rest, 0.0)
    ratio = np.where(total > 0, of_slice, 1.0) / np.where(total > 0, total, 1.0)
    other = 1.0 - ratio
    # Squares of ratios, for squares of variances may leave the range of a double.
    df = 1.0 / (np.square(ratio) / (size - 1.0) + np.square(other) / (rest_size - 1.0))
    bend = skewness * (ratio**1.5 / np.sqrt(size) - other**1.5 / np.sqrt(rest_size))
    difference = np.where(known, mean - rest_mean, 0.0)
    smaller = np.minimum(size, rest_size)
    return _studentised(difference, total, df, bend, known, np.abs(skewness) > np.sqrt(smaller))


def against_zero(sample: Moments, everything: Moments | None = None) -> Studentised:
    """Return the means of slices, ready for `paired` and for the interval of a mean."""
    n, mean, variance, skewness = _arrays(sample)
    known = n >= 2.0
    size = np.maximum(n, 2.0)
    if everything is not None:
        _, _, spread, skewness = _arrays(everything)
        variance = _steady(size, variance, spread, skewness)
    total = np.where(known, variance / size, 0.0)
    bend = skewness / np.sqrt(size)
    difference = np.where(known, mean, 0.0)
    return _studentised(difference, total, size - 1.0, bend, known, np.abs(bend) > 1.0)


def hall_transform(t: ArrayLike, bend: ArrayLike) -> FloatArray:
    """Return Hall's T = t + G·t²/3 + G²·t³/27 + G/6 of t [...] and G [...]; it rises with t."""
    x, G = np.asarray(t, dtype=np.float64), np.asarray(bend, dtype=np.float64)
    # The sum as one product, which rounding cannot make fall: ((1 + G·t/3)³ − 1)/G + G/6.
    factor = 1.0 + G * x / 3.0
    return np.asarray(x * (factor * factor + factor + 1.0) / 3.0 + G / 6.0, dtype=np.float64)


def inverse_hall_transform(T: ArrayLike, bend: ArrayLike) -> FloatArray:
    """Return the t of which Hall's T [...] comes: the inverse of `hall_transform`, at G = 0 too."""
    y, G = np.asarray(T, dtype=np.float64), np.asarray(bend, dtype=np.float64)
    above = y - G / 6.0
    # t = 3·(c − 1)/G with c³ = 1 + G·above, without the difference that cancels.
    root = np.cbrt(1.0 + G * above)
    return np.asarray(3.0 * above / (root * root + root + 1.0), dtype=np.float64)


def _arrays(moments: Moments) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    n, mean, variance, skewness = (np.asarray(part, dtype=np.float64) for part in moments)
    # Sums of rounded squares give a constant a variance of -1e-20, and 0/0 for its skewness.
    return n, mean, np.maximum(variance, 0.0), np.where(np.isfinite(skewness), skewness, 0.0)


def _steady(
    n: FloatArray, variance: FloatArray, reference: FloatArray, skewness: FloatArray
) -> FloatArray:
    """Return the variance of single values, raised where that of the reference is larger."""
    added = _ADDED_PER_SQUARED_SKEWNESS * np.square(skewness)
    return variance + added / (n - 1.0 + added) * np.maximum(reference - variance, 0.0)


def _studentised(
    difference: FloatArray,
    total: FloatArray,
    df: FloatArray,
    bend: FloatArray,
    known: BoolArray,
    skewed: BoolArray,
) -> Studentised:
    shape = np.broadcast_shapes(difference.shape, total.shape, bend.shape)
    refused = skewed & known & (total > 0)
    return Studentised(
        difference=np.broadcast_to(difference, shape),
        error=np.broadcast_to(np.sqrt(total), shape),
        df=np.broadcast_to(df, shape),
        bend=np.broadcast_to(bend, shape),
        known=np.broadcast_to(known, shape),
        too_skewed=np.broadcast_to(refused, shape),
    )


def _p_value(of: Studentised, tail: Tail) -> tuple[FloatArray, BoolArray]:
    varies = of.error > 0
    with np.errstate(over="ignore"):
        t = of.difference / np.where(varies, of.error, 1.0)
    T = hall_transform(np.clip(t, -_LARGEST_T, _LARGEST_T), of.bend)
    # The upper tail by symmetry: 1 − P(t ≤ T) has no digits below 1e-16.
    p = select_tail(stdtr(of.df, -T), stdtr(of.df, T), tail)
    return np.where(of.known & varies & ~of.too_skewed, p, 1.0), of.too_skewed.copy()
