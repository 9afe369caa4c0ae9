"""Confidence intervals of metrics that are not plain shares, from the counts of a confusion table.

They keep their coverage in small slices by the same means as the intervals of shares: a variance
under the tested value (F_β), Jeffreys's intervals of the parts (balanced accuracy), or counts to which
a little is added (MCC). Only `by_delta_method` is a plain approximation for large slices.
Assumption: examples are independent; slices are samples of what the metric is meant for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv, stdtrit

from slicebeam.metrics.intervals.intervals import normal_quantile

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray


# The bisection halves an interval of at most 1: its end is known to 1e-13.
_HALVINGS = 43
# Added to each count of the confusion table in the interval of MCC.
_PSEUDO_COUNT = 0.25


def fbeta(
    tp: ArrayLike, fp: ArrayLike, fn: ArrayLike, beta: float, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the score interval of F_β.

    Parameters
    ----------
    tp, fp, fn : arrays of whole numbers that broadcast
        True positives, false positives and false negatives.
    beta : float > 0
        Weight of recall against precision.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        They hold F_β and are within 0..1; (0, 1) where tp + fp + fn = 0.

    Notes
    -----
    All f with T(f)² ≤ z²·u·σ²(f), T(f) = (1+β²)(1−f)·tp − β²f·fn − f·fp, which is 0 on average at
    the true f; u = tp + fp + fn. As in Fieller's (1954, J. R. Stat. Soc. B 16:175) interval of a
    ratio, but with the variance σ² that T has *at f*, as in Wilson's interval: the share of true
    positives follows from f and the share r of misses among the errors, estimated by
    (fn + ½)/(fp + fn + 1). For β = 1 it is Wilson's interval of j = tp/u mapped to 2j/(1+j).
    """
    if not 0.0 < beta < np.inf:
        raise ValueError(f"beta = {beta} is not a positive number")
    counts = (np.asarray(value, dtype=np.float64) for value in (tp, fp, fn))
    hits, alarms, misses = np.broadcast_arrays(*counts)
    weight = beta * beta
    union = hits + alarms + misses
    gain, loss = (1.0 + weight) * hits, weight * misses + alarms
    value = gain / np.where(union > 0, gain + loss, 1.0)
    of_misses = (misses + 0.5) / (misses + alarms + 1.0)
    # Mean and mean square of what an error costs.
    cost = weight * of_misses + 1.0 - of_misses
    square_cost = weight * weight * of_misses + 1.0 - of_misses
    z = normal_quantile(confidence)

    def keeps(f: FloatArray) -> FloatArray:
        score = (1.0 + weight) * (1.0 - f)
        share = f * cost / (score + f * cost)
        spread = union * (score * score * share + f * f * square_cost * (1.0 - share))
        excess = (1.0 - f) * gain - f * loss
        return np.asarray(z * z * spread - excess * excess)

    low = _end(keeps, value, np.zeros(value.shape))
    high = _end(keeps, value, np.ones(value.shape))
    # At an observed 0 or 1 the variance vanishes with the distance: the end is exact.
    low = np.where((hits == 0) | (union == 0), 0.0, low)
    high = np.where((loss == 0) | (union == 0), 1.0, high)
    return low, high


def _end(
    keeps: Callable[[FloatArray], FloatArray], inside: FloatArray, outside: FloatArray
) -> FloatArray:
    """Return where ``keeps`` falls below 0 on the way from the inside to the outside."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        kept = keeps(middle) >= 0.0
        inside = np.where(kept, middle, inside)
        outside = np.where(kept, outside, middle)
    return inside


def balanced_accuracy(
    tp: ArrayLike, positives: ArrayLike, tn: ArrayLike, negatives: ArrayLike, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the hybrid score interval of (tp/positives + tn/negatives)/2.

    Parameters
    ----------
    tp, positives, tn, negatives : arrays of whole numbers that broadcast
        True positives of all positives, true negatives of all negatives.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        They hold the balanced accuracy and are within 0..1; (0, 1) where a label is missing.

    Notes
    -----
    The two shares are independent. Each has an interval of its own, and the squared distances to
    its ends add up (MOVER): Zou and Donner (2008), Stat. Med. 27:1693. The shares' intervals are
    Jeffreys's, whose two ends fail about equally often, after Laud (2017), Pharm. Stat. 16:334
    ("MOVER-J"): with Wilson's, all failures are on one side, and 8 % at 25 examples of a label.
    """
    arrays = (np.asarray(value, dtype=np.float64) for value in (tp, positives, tn, negatives))
    hits, with_label, rejected, without = np.broadcast_arrays(*arrays)
    recall = hits / np.maximum(with_label, 1.0)
    specificity = rejected / np.maximum(without, 1.0)
    low_recall, high_recall = _jeffreys(hits, with_label, confidence)
    low_specificity, high_specificity = _jeffreys(rejected, without, confidence)
    value = 0.5 * (recall + specificity)
    low = value - 0.5 * np.hypot(recall - low_recall, specificity - low_specificity)
    high = value + 0.5 * np.hypot(high_recall - recall, high_specificity - specificity)
    missing = (with_label == 0) | (without == 0)
    # Ends within 0..1 keep these there as well, except for rounding.
    low, high = np.clip(low, 0.0, value), np.clip(high, value, 1.0)
    return np.where(missing, 0.0, low), np.where(missing, 1.0, high)


def _jeffreys(x: FloatArray, n: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Return the equal-tailed interval of a share under Jeffreys's prior, with 0 and 1 kept."""
    normal_quantile(confidence)
    tail = 0.5 * (1.0 - confidence)
    low = np.asarray(betaincinv(x + 0.5, n - x + 0.5, tail))
    high = np.asarray(betaincinv(x + 0.5, n - x + 0.5, 1.0 - tail))
    return np.where(x > 0, low, 0.0), np.where(x < n, high, 1.0)


def mcc(
    tp: ArrayLike, fp: ArrayLike, fn: ArrayLike, tn: ArrayLike, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of Matthews' correlation coefficient, by Fisher's transform.

    Parameters
    ----------
    tp, fp, fn, tn : arrays of whole numbers that broadcast
        The confusion table.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        They hold the coefficient and are within −1..1; (−1, 1) where a label or a prediction is
        missing, so that it is undefined.

    Notes
    -----
    artanh(r) ± t·√Var(r)/(1 − r²), t on n − 1 degrees of freedom, Var(r) by the delta method for
    multinomial counts, all at the counts plus ¼ each; the ends are extended to the observed coefficient where it lies outside.
    The coefficient is Pearson's of two 0/1 variables, whose Fisher transform is nearer to normal;
    its usual variance 1/(n − 3) holds for normal variables only. Bishop, Fienberg and Holland
    (1975), "Discrete Multivariate Analysis", section 11.3, have the variance.
    """
    counts = (np.asarray(value, dtype=np.float64) for value in (tp, fp, fn, tn))
    table = np.stack(np.broadcast_arrays(*counts))
    hits, alarms, misses, rejected = table
    products = (hits + alarms) * (hits + misses) * (rejected + alarms) * (rejected + misses)
    defined = products > 0
    observed = (hits * rejected - alarms * misses) / np.sqrt(np.where(defined, products, 1.0))
    value, variance = _mcc_with_variance(table + _PSEUDO_COUNT)
    middle = np.arctanh(value)
    normal_quantile(confidence)
    freedom = np.maximum(table.sum(axis=0) - 1.0, 1.0)
    t = np.asarray(stdtrit(freedom, 0.5 * (1.0 + confidence)))
    arm = t * np.sqrt(variance) / (1.0 - value * value)
    low = np.clip(np.tanh(middle - arm), -1.0, np.clip(observed, -1.0, 1.0))
    high = np.clip(np.tanh(middle + arm), np.clip(observed, -1.0, 1.0), 1.0)
    return np.where(defined, low, -1.0), np.where(defined, high, 1.0)


def _mcc_with_variance(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the coefficient of tables [4, ...] of positive counts, and its variance."""
    tp, fp, fn, tn = table
    alarmed, silent, with_label, without = tp + fp, tn + fn, tp + fn, tn + fp
    # The root of one margin at a time: the product of four large counts may not fit.
    root = np.sqrt(alarmed) * np.sqrt(silent) * np.sqrt(with_label) * np.sqrt(without)
    value = (tp * tn - fp * fn) / root
    gradient = np.stack(
        [
            tn / root - 0.5 * value * (1.0 / alarmed + 1.0 / with_label),
            -fn / root - 0.5 * value * (1.0 / alarmed + 1.0 / without),
            -fp / root - 0.5 * value * (1.0 / silent + 1.0 / with_label),
            tp / root - 0.5 * value * (1.0 / silent + 1.0 / without),
        ]
    )
    return value, (table * np.square(gradient)).sum(axis=0)


def by_delta_method(
    value: ArrayLike,
    variance: ArrayLike,
    low_limit: float,
    high_limit: float,
    effective_n: ArrayLike,
    confidence: float,
) -> tuple[FloatArray, FloatArray]:
    """Return value ± t·√variance within the metric's range: for macro averages, weighted data.

    Parameters
    ----------
    value, variance : float arrays that broadcast
        NaN where undefined.
    low_limit, high_limit : float
        The metric's range; may be infinite.
    effective_n : array of numbers
        Examples that the value rests on, (Σw)²/Σw² for weighted data; one more than the degrees of
        freedom of t.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        They hold the value; the whole range where value or variance are undefined or fewer than
        two examples count.

    Notes
    -----
    A variance estimated where nearly all examples are right is far too small. So that the interval
    does not collapse there, an arm is at least range·z²/(effective_n + z²), what Wilson's interval
    has at a share of 0 or 1.
    """
    arrays = (np.asarray(array, dtype=np.float64) for array in (value, variance, effective_n))
    middle, spread, size = np.broadcast_arrays(*arrays)
    z = normal_quantile(confidence)
    usable = np.isfinite(middle) & np.isfinite(spread) & (spread >= 0) & (size > 1)
    freedom = np.where(usable, size - 1.0, 1.0)
    t = np.asarray(stdtrit(freedom, 0.5 * (1.0 + confidence)))
    arm = t * np.sqrt(np.where(usable, spread, 0.0))
    extent = high_limit - low_limit
    if np.isfinite(extent):
        arm = np.maximum(arm, extent * z * z / (freedom + 1.0 + z * z))
    middle = np.where(usable, middle, 0.0)
    low = np.minimum(np.maximum(middle - arm, low_limit), middle)
    high = np.maximum(np.minimum(middle + arm, high_limit), middle)
    return np.where(usable, low, low_limit), np.where(usable, high, high_limit)


def difference_from_overall(
    value: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    variance_of_value: ArrayLike,
    variance_of_delta: ArrayLike,
    overall: ArrayLike,
    width: float,
    confidence: float = 0.95,
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of value − overall from the interval of the value.

    Parameters
    ----------
    value, low, high : float arrays that broadcast
        The metric of the slices with its interval; NaN values where undefined.
    variance_of_value, variance_of_delta : float arrays
        By the delta method, of the slice's metric and of its difference from all examples
        (`significance.delta_method.variance`).
    overall : float or array
        The metric of all examples, the slice's among them.
    width : float
        Largest less smallest value of the metric; may be infinite.
    confidence : float in (0, 1)
        That of the value's interval.

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        They hold value − overall and are within ±width, which is returned where something is
        undefined. Both are the delta where its variance alone is 0 (the slice is all examples).

    Notes
    -----
    The overall value shares the slice's examples, so that a delta mostly varies less than the
    value: the arms shrink by the ratio of the standard deviations. Where it varies more, the
    excess is added in squares to the arms (MOVER, Zou and Donner 2008), which stays finite for a
    slice that is all right or all wrong, whose own variance is 0.
    """
    arrays = (
        np.asarray(array, dtype=np.float64)
        for array in (value, low, high, variance_of_value, variance_of_delta, overall)
    )
    middle, bottom, top, own, both, whole = np.broadcast_arrays(*arrays)
    usable = np.isfinite(np.stack([middle, bottom, top, own, both, whole])).all(axis=0)
    middle, bottom, top, own, both, whole = (
        np.where(usable, array, 0.0) for array in (middle, bottom, top, own, both, whole)
    )
    delta = middle - whole
    shrinks = both < own
    ratio = np.sqrt(np.where(shrinks, np.maximum(both, 0.0), 1.0) / np.where(shrinks, own, 1.0))
    excess = normal_quantile(confidence) * np.sqrt(np.where(shrinks, 0.0, both - own))
    below = np.hypot(ratio * np.maximum(middle - bottom, 0.0), excess)
    above = np.hypot(ratio * np.maximum(top - middle, 0.0), excess)
    lower = np.minimum(np.maximum(delta - below, -width), delta)
    upper = np.maximum(np.minimum(delta + above, width), delta)
    return np.where(usable, lower, -width), np.where(usable, upper, width)
