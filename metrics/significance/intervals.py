"""Confidence intervals of shares, of their differences, and of other metrics of counts, from counts alone.

They keep their coverage in small slices and at 0 or n errors; only `by_delta_method` is a plain approximation for large
slices. Examples are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri, stdtrit

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, NDArray, Pair, floats, ratio

# A value with the low and the high end of its interval, each [slices].
Estimate: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
Limits: TypeAlias = tuple[float, float]

# They halve an interval of at most 2: its end is known to 2e-13.
_HALVINGS = 43
# Added to each count of the confusion table in the interval of MCC.
_PSEUDO_COUNT = 0.25
_STEP = 1e-100
# Two computations of the same bound differ by less.
_ROUNDING = 1e-12


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


def wilson(x: ArrayLike, n: ArrayLike, confidence: float) -> Pair:
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


def jeffreys(x: FloatArray, n: FloatArray, confidence: float) -> Pair:
    """Return the equal-tailed interval of a share under Jeffreys's prior, with 0 and 1 kept."""
    tail = 0.5 * (1.0 - confidence)
    low, high = (betaincinv(x + 0.5, n - x + 0.5, part) for part in (tail, 1.0 - tail))
    return np.where(x > 0, low, 0.0), np.where(x < n, high, 1.0)


def mover(first: Estimate, second: Estimate) -> Pair:
    """Return how far first − second reaches below and above: Zou and Donner (2008), Stat. Med. 27:1693, eq. 5."""
    (a, a_low, a_high), (b, b_low, b_high) = first, second
    return np.hypot(a - a_low, b_high - b), np.hypot(a_high - a, b - b_low)


def agresti_coull(x: ArrayLike, n: ArrayLike, confidence: float) -> Pair:
    """Return Agresti and Coull's (1998, Am. Stat. 52:119) interval with Student's t; it covers .94 from n = 20."""
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
) -> Pair:
    """Return the interval of x/n − K/N, a slice's share minus that of all; (−1, 1) where n = 0."""
    # (1 − n/N)·(p_S − p_C), C the complement: Newcombe's (1998, Stat. Med. 17:873, method 10), n/N fixed.
    size, hits, everything, marked = floats(n, x, N, K)
    rest, rest_hits = everything - size, marked - hits
    share, rest_share = hits / np.maximum(size, 1.0), rest_hits / np.maximum(rest, 1.0)
    below, above = mover(
        (share, *wilson(hits, size, confidence)), (rest_share, *wilson(rest_hits, rest, confidence))
    )
    outside = rest / np.maximum(everything, 1.0)
    delta = share - marked / np.maximum(everything, 1.0)
    ends = ((-1.0, delta - outside * below), (1.0, delta + outside * above))
    low, high = (np.where(size == 0, far, np.where(rest == 0, 0.0, end)) for far, end in ends)
    return low, high


def paired_difference(b: ArrayLike, c: ArrayLike, n: ArrayLike, confidence: float) -> Pair:
    """Return the interval of (b − c)/n, b and c marked by one model only; (−1, 1) where n = 0: Tango (1998)."""
    # All Δ with abs(b − c − nΔ) ≤ z·√(n·(2q̂ + Δ(1 − Δ))), q̂ the likeliest share of c.
    more, less, size = floats(b, c, n)
    z = normal_quantile(confidence)
    return -_upper_score_end(less, more, size, z), _upper_score_end(more, less, size, z)


def _upper_score_end(b: FloatArray, c: FloatArray, n: FloatArray, z: float) -> FloatArray:
    """Return the largest Δ that Tango's score test of (b − c)/n keeps; 1 where n = 0."""
    size = np.maximum(n, 1.0)
    p, q = b / size, c / size

    def keeps(delta: FloatArray) -> BoolArray:
        linear = (2.0 - p + q) * delta - p - q
        # The quadratic 2q̂² + linear·q̂ − q·Δ(1−Δ) = 0; here Δ ≥ p − q, and q̂ may be 0.
        root = np.sqrt(np.maximum(linear * linear + 8.0 * q * delta * (1.0 - delta), 0.0))
        mle = np.maximum(0.25 * (root - linear), np.maximum(0.0, -delta))
        spread = np.maximum(2.0 * mle + delta * (1.0 - delta), 0.0)
        return np.asarray(size * np.square(p - q - delta) <= z * z * spread)

    return np.where(n == 0, 1.0, bisect(keeps, p - q, np.ones(p.shape)))


def fbeta(tp: ArrayLike, fp: ArrayLike, fn: ArrayLike, beta: float, confidence: float) -> Pair:
    """Return the score interval of F_β by Fieller (1954, J. R. Stat. Soc. B 16:175); (0, 1) where tp + fp + fn = 0."""
    # All f with T(f)² ≤ z²·u·σ²(f), T(f) = (1+β²)(1−f)·tp − β²f·fn − f·fp; of the errors (fn + ½)/(fp + fn + 1) are misses.
    hits, alarms, misses = floats(tp, fp, fn)
    weight = beta * beta
    union = hits + alarms + misses
    gain, loss = (1.0 + weight) * hits, weight * misses + alarms
    value = gain / np.where(union > 0, gain + loss, 1.0)
    of_misses = (misses + 0.5) / (misses + alarms + 1.0)
    # Mean and mean square of what an error costs.
    cost = weight * of_misses + 1.0 - of_misses
    square_cost = weight * weight * of_misses + 1.0 - of_misses
    z = normal_quantile(confidence)

    def keeps(f: FloatArray) -> BoolArray:
        score = (1.0 + weight) * (1.0 - f)
        share = f * cost / (score + f * cost)
        spread = union * (score * score * share + f * f * square_cost * (1.0 - share))
        excess = (1.0 - f) * gain - f * loss
        return np.asarray(z * z * spread - excess * excess >= 0.0)

    low, high = (bisect(keeps, value, np.full(value.shape, end)) for end in (0.0, 1.0))
    # At an observed 0 or 1 the variance vanishes with the distance: the end is exact.
    return np.where(hits == 0, 0.0, low), np.where(loss == 0, 1.0, high)


def balanced_accuracy(
    tp: ArrayLike, fp: ArrayLike, fn: ArrayLike, tn: ArrayLike, confidence: float
) -> Pair:
    """Return the interval of the mean recall of both labels; (0, 1) where one is missing."""
    hits, alarms, misses, rejected = floats(tp, fp, fn, tn)
    sizes = np.stack([hits + misses, rejected + alarms])
    # Of none of either where one is missing.
    complete = (sizes > 0).all(axis=0)
    return mean_recall(np.stack([hits, rejected]) * complete, sizes * complete, confidence)


def mean_recall(right: ArrayLike, labels: ArrayLike, confidence: float) -> Pair:
    """Return the interval of the mean recall over labels [classes, slices]; (0, 1) of none."""
    # By `mover`: squared distances to the ends of Jeffreys intervals add up: Laud (2017), Pharm. Stat. 16:334.
    hits, sizes = floats(right, labels)
    occurs, n = sizes > 0, np.maximum((sizes > 0).sum(axis=0), 1)
    recall = hits / np.maximum(sizes, 1.0)
    ends = jeffreys(hits, sizes, confidence)
    arms = [np.sqrt(np.where(occurs, (end - recall) ** 2, 0.0).sum(axis=0)) / n for end in ends]
    value = recall.sum(axis=0) / n
    low, high = np.clip(value - arms[0], 0.0, value), np.clip(value + arms[1], value, 1.0)
    some = occurs.any(axis=0)
    return np.where(some, low, 0.0), np.where(some, high, 1.0)


def slopes(
    formula: Callable[..., NDArray[Any]], counts: Sequence[NDArray[Any]]
) -> list[FloatArray]:
    """Return the derivative of a formula by each count, by a complex step: Squire and Trapp (1998)."""
    with np.errstate(invalid="ignore"):
        return [
            formula(*counts[:at], count + _STEP * 1j, *counts[at + 1 :]).imag / _STEP
            for at, count in enumerate(counts)
        ]


def matthews(
    tp: NDArray[Any], fp: NDArray[Any], fn: NDArray[Any], tn: NDArray[Any]
) -> NDArray[Any]:
    """Return Matthews' (1975, Biochim. Biophys. Acta 405:442) correlation; as roots, since a product overflows sooner."""
    roots = np.sqrt((tp + fp) * (tp + fn)) * np.sqrt((tn + fp) * (tn + fn))
    return ratio(tp * tn - fp * fn, roots)


def mcc(tp: ArrayLike, fp: ArrayLike, fn: ArrayLike, tn: ArrayLike, confidence: float) -> Pair:
    """Return the interval of Matthews' correlation coefficient; (−1, 1) where it is undefined."""
    # artanh(r) ± t·√Var(r)/(1 − r²), Var(r) by the delta method, at the counts plus ¼ each and n − 1 degrees of freedom.
    table = np.stack(floats(tp, fp, fn, tn))
    observed, added = matthews(*table), table + _PSEUDO_COUNT
    value, gradient = matthews(*added), np.array(slopes(matthews, list(added)))
    t = stdtrit(np.maximum(table.sum(axis=0) - 1.0, 1.0), 0.5 * (1.0 + confidence))
    arm = t * np.sqrt((added * np.square(gradient)).sum(axis=0)) / (1.0 - value * value)
    low, high = (np.tanh(np.arctanh(value) + side * arm) for side in (-1.0, 1.0))
    undefined, middle = np.isnan(observed), np.clip(observed, -1.0, 1.0)
    low, high = np.minimum(low, middle), np.maximum(high, middle)
    return np.where(undefined, -1.0, low), np.where(undefined, 1.0, high)


def by_delta_method(
    value: ArrayLike, variance: ArrayLike, limits: Limits, n: ArrayLike, confidence: float
) -> Pair:
    """Return value ± t·√variance at (an effective) n − 1 degrees of freedom, within the metric's range."""
    # An arm is at least range·z²/(n + z²), as Wilson's at a share of 0 or 1, where the variance is too small.
    middle, spread, size = floats(value, variance, n)
    z = normal_quantile(confidence)
    usable = np.isfinite(middle) & np.isfinite(spread) & (spread >= 0) & (size > 1)
    freedom = np.where(usable, size - 1.0, 1.0)
    t = np.asarray(stdtrit(freedom, 0.5 * (1.0 + confidence)), np.float64)
    arm = t * np.sqrt(np.where(usable, spread, 0.0))
    extent = limits[1] - limits[0]
    if np.isfinite(extent):
        arm = np.maximum(arm, extent * z * z / (freedom + 1.0 + z * z))
    return _around(middle, arm, arm, limits, usable)


def _around(
    middle: FloatArray, below: FloatArray, above: FloatArray, limits: Limits, usable: BoolArray
) -> Pair:
    """Return the ends that are so far from an estimate, within limits that it may be beyond; the limits if not usable."""
    low = np.minimum(np.maximum(middle - below, limits[0]), middle)
    high = np.maximum(np.minimum(middle + above, limits[1]), middle)
    return np.where(usable, low, limits[0]), np.where(usable, high, limits[1])


def shrunk_to_delta(
    of_value: Estimate, variances: Pair, overall: ArrayLike, width: float, confidence: float
) -> Pair:
    """Return the interval of value − overall, within ±width, from the value's and the variances of value and delta."""
    # As the overall value shares the slice's examples, arms shrink by the ratio of the deviations; where the delta
    # varies more, the excess is added in squares (MOVER).
    parts = np.stack(floats(*of_value, *variances, overall))
    usable = np.asarray(np.isfinite(parts).all(axis=0))
    middle, bottom, top, own, both, whole = np.where(usable, parts, 0.0)
    shrinks = both < own
    ratio = np.sqrt(np.where(shrinks, np.maximum(both, 0.0), 1.0) / np.where(shrinks, own, 1.0))
    excess = normal_quantile(confidence) * np.sqrt(np.where(shrinks, 0.0, both - own))
    arms = middle - bottom, top - middle
    below, above = (np.hypot(ratio * np.maximum(arm, 0.0), excess) for arm in arms)
    return _around(middle - whole, below, above, (-width, width), usable)


class RunDifference(NamedTuple):
    """Delta now minus then with interval and two-sided p [slices]; NaN where a delta or interval is undefined."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    p: FloatArray


def difference(now: Estimate, then: Estimate, confidence: float) -> RunDifference:
    """Return the difference of two independent estimates, each (estimate, low, high), with interval and p."""
    # p < 1 − confidence exactly where the interval excludes zero. Assumes no common examples.
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


def _ordered(value: FloatArray, low: FloatArray, high: FloatArray) -> Estimate:
    """Return an estimate and its interval's ends; NaN for one that does not hold its estimate but for rounding."""
    low, high = (np.where(np.abs(end - value) <= _ROUNDING, value, end) for end in (low, high))
    return value, np.where(low > value, np.nan, low), np.where(high < value, np.nan, high)
