"""Student's t of means of skewed values: by Hall's correction for the skewness, or its law for values of a population.

Hall's cubic keeps t's order: T = t + G·t²/3 + G²·t³/27 + G/6, Hall (1992), J. R. Stat. Soc. B 54:221. Assumptions:
examples are independent; values are about as skewed in the slice as in the reference. A slice that by chance misses
the few large losses has a small mean *and* a small deviation. Rates and coverage: docs/explanation/calibration.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, Pair, floats
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance.outcome_codes import select_tail
from slicebeam.metrics.significance.random_subset import Population

# A slice's variance is at least what γ²/2 more values, spread as the reference, would make it.
_ADDED_PER_SQUARED_SKEWNESS = 0.5
# Beyond it every p-value is 0, and the cube still is a number.
_LARGEST_T = 1e90


class Moments(NamedTuple):
    """Number of values (Kish's where weighted), mean, variance (divisor n − 1) and skewness of one value."""

    n: FloatArray
    mean: FloatArray
    variance: FloatArray
    skewness: FloatArray


class TStatistic(NamedTuple):
    """A difference of means, its standard error, degrees of freedom and skewness G; shapes that broadcast."""

    difference: FloatArray
    error: FloatArray
    df: FloatArray
    skewness: FloatArray
    known: BoolArray  # False where a sample is too small to have a variance
    too_skewed: BoolArray  # where the correction does not hold, if anything varies

    def p_value(self, tail: Tail) -> tuple[FloatArray, BoolArray]:
        """Return the p-value, 1 where there is none, and where it is refused."""
        varies = self.error > 0
        with np.errstate(over="ignore"):
            t = self.difference / np.where(varies, self.error, 1.0)
        T = hall_transform(np.clip(t, -_LARGEST_T, _LARGEST_T), self.skewness)
        # The upper tail by symmetry: 1 − P(t ≤ T) has no digits below 1e-16.
        p = select_tail(stdtr(self.df, -T), stdtr(self.df, T), tail)
        tested = self.known & varies
        return np.where(tested & ~self.too_skewed, p, 1.0), tested & self.too_skewed

    def interval(self, confidence: float) -> Pair:
        """Return all means with abs(T) ≤ the quantile of t; (−inf, inf) where not known."""
        quantile = -stdtrit(self.df, 0.5 * (1.0 - confidence))
        # The ends hold the mean but at low confidence, where T's median is off 0 by more than that.
        below = np.maximum(inverse_hall_transform(quantile, self.skewness), 0.0)
        above = np.minimum(inverse_hall_transform(-quantile, self.skewness), 0.0)
        low, high = self.difference - self.error * below, self.difference - self.error * above
        return np.where(self.known, low, -np.inf), np.where(self.known, high, np.inf)


def against_rest(sample: Moments, rest: Moments) -> TStatistic:
    """Return the difference of slices and complements at Welch's degrees of freedom, too skewed where abs(γ) > √n."""
    # G = γ·(r^1.5/√n − (1 − r)^1.5/√m), r the slice's part of the variance; γ is that of the reference.
    n, mean, variance, _ = _arrays(sample)
    m, rest_mean, rest_variance, skewness = _arrays(rest)
    known = (n >= 2.0) & (m >= 2.0)
    size, rest_size = np.maximum(n, 2.0), np.maximum(m, 2.0)
    of_slice = _with_floor(size, variance, rest_variance, skewness) / size
    of_rest = _with_floor(rest_size, rest_variance, variance, skewness) / rest_size
    total = np.where(known, of_slice + of_rest, 0.0)
    ratio = np.where(total > 0, of_slice, 1.0) / np.where(total > 0, total, 1.0)
    other = 1.0 - ratio
    # Squares of ratios, for squares of variances may leave the range of a double.
    df = 1.0 / (np.square(ratio) / (size - 1.0) + np.square(other) / (rest_size - 1.0))
    G = skewness * (ratio**1.5 / np.sqrt(size) - other**1.5 / np.sqrt(rest_size))
    difference = np.where(known, mean - rest_mean, 0.0)
    skewed = np.abs(skewness) > np.sqrt(np.minimum(size, rest_size))
    return TStatistic(difference, np.sqrt(total), df, G, known, skewed)


def against_zero(sample: Moments, everything: Moments) -> TStatistic:
    """Return the means of slices, G = γ/√n at n − 1 degrees of freedom, γ and the least variance those of all."""
    n, mean, variance, _ = _arrays(sample)
    _, _, spread, skewness = _arrays(everything)
    known, size = n >= 2.0, np.maximum(n, 2.0)
    error = np.sqrt(np.where(known, _with_floor(size, variance, spread, skewness) / size, 0.0))
    G = skewness / np.sqrt(size)
    return TStatistic(np.where(known, mean, 0.0), error, size - 1.0, G, known, np.abs(G) > 1.0)


def difference_from_overall(
    sample: Moments, rest: Moments, share: ArrayLike, confidence: float
) -> Pair:
    """Return the interval of (1 − share)·(μ_S − μ_C), ``share`` of the examples or weights fixed; (0, 0) for 1."""
    outside = np.clip(1.0 - np.asarray(share, dtype=np.float64), 0.0, 1.0)
    low, high = against_rest(sample, rest).interval(confidence)
    whole = outside == 0.0
    # 0·inf is not a number.
    factor = np.where(whole, 1.0, outside)
    return np.where(whole, 0.0, factor * low), np.where(whole, 0.0, factor * high)


def hall_transform(t: ArrayLike, skewness: ArrayLike) -> FloatArray:
    """Return Hall's T of t [...] and G [...]; it rises with t."""
    x, G = np.asarray(t, dtype=np.float64), np.asarray(skewness, dtype=np.float64)
    # The sum as one product, which rounding cannot make fall: ((1 + G·t/3)³ − 1)/G + G/6.
    factor = 1.0 + G * x / 3.0
    return np.asarray(x * (factor * factor + factor + 1.0) / 3.0 + G / 6.0, dtype=np.float64)


def inverse_hall_transform(T: ArrayLike, skewness: ArrayLike) -> FloatArray:
    """Return the t of which Hall's T [...] comes: the inverse of `hall_transform`, at G = 0 too."""
    y, G = np.asarray(T, dtype=np.float64), np.asarray(skewness, dtype=np.float64)
    above = y - G / 6.0
    # t = 3·(c − 1)/G with c³ = 1 + G·above, without the difference that cancels.
    root = np.cbrt(1.0 + G * above)
    return np.asarray(3.0 * above / (root * root + root + 1.0), dtype=np.float64)


def _arrays(moments: Moments) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    n, mean, variance, skewness = (np.asarray(part, dtype=np.float64) for part in moments)
    # Sums of rounded squares give a constant a variance of -1e-20, and 0/0 for its skewness.
    return n, mean, np.maximum(variance, 0.0), np.where(np.isfinite(skewness), skewness, 0.0)


def _with_floor(
    n: FloatArray, variance: FloatArray, reference: FloatArray, skewness: FloatArray
) -> FloatArray:
    """Return the variance of single values, raised where that of the reference is larger."""
    added = _ADDED_PER_SQUARED_SKEWNESS * np.square(skewness)
    return variance + added / (n - 1.0 + added) * np.maximum(reference - variance, 0.0)


def ahead_variance(
    own: FloatArray, above: FloatArray, counts: FloatArray, totals: FloatArray
) -> FloatArray:
    """Return Var(ψ(slice) − ψ(all)) [slices] = Σ_k [c_k^S·(g_k^S − g_k^O)² + c_k^C·(g_k^O)²], by gradients."""
    terms = counts * np.square(own - above) + (totals - counts) * np.square(above)
    return np.asarray(terms.sum(axis=-1), dtype=np.float64)


def wald_p_value(
    delta: ArrayLike, variance: ArrayLike, freedom: ArrayLike, tail: Tail
) -> FloatArray:
    """Return the p-value of delta/√variance by Student's t; 1 where it is undefined or there is no variance."""
    difference, spread, degrees = floats(delta, variance, freedom)
    usable = np.isfinite(difference) & np.isfinite(spread) & (spread > 0) & (degrees > 0)
    t = np.where(usable, difference, 0.0) / np.sqrt(np.where(usable, spread, 1.0))
    degrees = np.where(usable, degrees, 1.0)
    return np.where(usable, select_tail(stdtr(degrees, -t), stdtr(degrees, t), tail), 1.0)


# Steps of √(−log(1 − θ²)), which is r for normal values.
_STEP, _MOST_STEPS, _MOST_CORRECTIONS, _SOLVED = 0.06, 200, 30, 1e-10
# Where the correction is larger the law has lumps, which a saddle point does not see.
_LARGEST_CORRECTION = 0.5
# On a lattice a tail begins this part of the span nearer to the mean: it has .8 of the chance of the value itself.
_OF_SPAN = 0.3
# Deviations are tilted by at most e to this.
_LARGEST_TILT = 50.0
_ROUNDING_OF_VALUES = 1e-12


def student_p(
    n: ArrayLike, total: ArrayLike, squares: ArrayLike, of: Population, mean: float, tail: Tail
) -> FloatArray:
    """Return the p-value [slices] of t of n values about ``mean``, if this is the mean of all: from Σx and Σx²."""
    size, first, second = floats(n, total, squares)
    law = _law(of, mean)
    nearer = _OF_SPAN * of.span
    upper, _ = law.tails(size, first - nearer, second)
    _, lower = law.tails(size, first + nearer, second)
    return select_tail(upper, lower, tail)


class StudentLaw:
    """The law of t of values of a population whose mean is tilted to the given one, or moved if that is out of reach.

    By a saddle point for x and x² together: "Means of two models" of docs/explanation/statistics.md has the formula. r
    and q do not depend on n, so that one table serves all sizes. Assumes that values vary as in all examples, but for a scale.
    """

    def __init__(self, of: Population, mean: float) -> None:
        x = np.asarray(of.points) - mean
        # What rounding leaves of 0 is on neither side of it.
        x[np.abs(x) <= _ROUNDING_OF_VALUES * np.abs(x).max()] = 0.0
        self.chance = _tilted_to_zero(x, np.asarray(of.counts) / np.sum(of.counts))
        x = x - (self.chance * x).sum()
        x /= np.sqrt((self.chance * x * x).sum())
        self.powers = np.array([x, x**2, x**3, x**4])
        below, above = self._march(-1.0), self._march(1.0)
        path = np.concatenate([below[:, ::-1], above], axis=1)
        # At 0 the slope of the root is 1.
        self.place, self.slope, self.correction = np.insert(
            path, below.shape[1], [0.0, 1.0, 0.0], axis=1
        )
        self.correction[below.shape[1]] = np.interp(0.0, path[0], path[2])

    def tails(self, n: FloatArray, total: FloatArray, squares: FloatArray) -> Pair:
        """Return the upper and lower tail [slices]; beyond the table they are those of its ends."""
        theta = np.clip(total / np.sqrt(np.where(squares > 0, n * squares, 1.0)), -1.0, 1.0)
        with np.errstate(divide="ignore"):
            place = np.sign(theta) * np.sqrt(-np.log1p(-np.square(theta)))
        place = np.clip(place, self.place[0], self.place[-1])
        root = place * np.interp(place, self.place, self.slope)
        correction = np.interp(place, self.place, self.correction) / np.sqrt(n)
        w = np.sqrt(n) * root + np.clip(correction, -_LARGEST_CORRECTION, _LARGEST_CORRECTION)
        return ndtr(-w), ndtr(w)

    def _march(self, sign: float) -> FloatArray:
        """Return place, root over place and correction [3, steps], outwards as far as there is a solution."""
        path: list[tuple[float, float, float]] = []
        point, past = np.zeros(2), np.zeros(2)
        for step in range(1, _MOST_STEPS):
            place = sign * _STEP * step
            theta = sign * np.sqrt(-np.expm1(-(place**2)))
            # Where values are normal it is near (θ, −θ²/2) at first.
            start = 2.0 * point - past if path else np.array([theta, -0.5 * theta**2])
            solved = self._solve(theta, start)
            if solved is None:
                break
            past, (point, root, correction) = point, solved
            path.append((place, sign * root / place, sign * correction))
        return np.array(path).reshape(-1, 3).T

    def _solve(self, theta: float, point: FloatArray) -> tuple[FloatArray, float, float] | None:
        """Return (s, u), abs(r) and log(q/r)/abs(r) at θ by Newton's method; None where there are none."""
        for _ in range(_MOST_CORRECTIONS):
            s, u = point
            exponent = point @ self.powers[:2]
            largest = exponent.max()
            tilted = self.chance * np.exp(exponent - largest)
            whole = tilted.sum()
            m1, m2, m3, m4 = self.powers @ tilted / whole
            v = np.sqrt(m2)
            ss, su, uu = m2 - m1**2, m3 - m1 * m2, m4 - m2**2
            off = np.array([m1 - theta * v, s * theta + 2.0 * u * v])
            a, b = ss - theta * su / (2.0 * v), su - theta * uu / (2.0 * v)
            c, d = theta + u * su / v, 2.0 * v + u * uu / v
            determinant = a * d - b * c
            if not np.isfinite(determinant) or determinant == 0.0:
                return None
            move = np.array([b * off[1] - d * off[0], c * off[0] - a * off[1]]) / determinant
            if (np.abs(move) <= _SOLVED * (1.0 + np.abs(point))).all():
                break
            point = point + move
        else:
            return None
        D = theta**2 * uu - 4.0 * theta * v * su + 4.0 * m2 * ss + 2.0 * u * (ss * uu - su**2)
        half = s * theta * v + u * m2 - largest - np.log(whole)
        if not (D > 0.0 and half > 0.0):
            return None
        root = np.sqrt(2.0 * half)
        return point, root, np.log(abs(s) * np.sqrt(D) / (2.0 * v * root)) / root


def _tilted_to_zero(x: FloatArray, chance: FloatArray) -> FloatArray:
    """Return the chances times e^(λ·x), with which the mean is 0; unchanged where that is out of reach."""
    if not x.min() < 0.0 < x.max():
        return chance
    unit = np.sqrt((chance * x * x).sum())

    def tilted(tilt: float) -> FloatArray:
        exponent = tilt / unit * x
        weights = chance * np.exp(exponent - exponent.max())
        return np.asarray(weights / weights.sum())

    low, high = -_LARGEST_TILT, _LARGEST_TILT
    if not (tilted(low) * x).sum() < 0.0 < (tilted(high) * x).sum():
        return chance
    while high - low > _SOLVED:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if (tilted(middle) * x).sum() < 0.0 else (low, middle)
    return tilted(high)


@lru_cache(maxsize=16)
def _law(of: Population, mean: float) -> StudentLaw:
    return StudentLaw(of, mean)
