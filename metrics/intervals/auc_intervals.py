"""Confidence intervals of AUC and of its difference from that of all examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

from slicebeam.metrics.intervals.intervals import normal_quantile
from slicebeam.metrics.significance.auc import Placements, as_floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray


# The bisection halves an interval of at most 1: its end is known to 1e-13.
_HALVINGS = 43
# Examples' worth of the model's spread: chosen by coverage in slices of 20 to 1000 examples.
_PRIOR_EXAMPLES = 20.0


def value_interval(
    own: Placements, n1: ArrayLike, n0: ArrayLike, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the confidence interval of slices' AUC.

    Parameters
    ----------
    own : Placements of arrays [slices]
        Those of the slices.
    n1, n0 : int arrays [slices]
        Positives and negatives of the slice.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays [slices]
        Within [0, 1], they hold the AUC; (0, 1) where a class is empty.

    Notes
    -----
    A score interval, all θ with abs(auc − θ) ≤ t·√V(θ), as method 5 of Newcombe (2006), Stat. Med.
    25:559, so that it neither collapses at an AUC of 1 nor leaves [0, 1]. V is the variance of
    Hanley and McNeil (1982), Radiology 143:29, eq. 1, with the larger of their two spreads
    Q1 − θ² and Q2 − θ² for both classes, the cautious choice. Unlike Newcombe's, the
    spread of either class is scaled by how much the slice's own placements vary, compared with the
    model at θ = auc; the own variance weighs as many as its examples and the model as twenty. t is
    Student's quantile at the degrees of freedom of Welch and Satterthwaite, for a class of few
    examples with the larger part of the variance.
    """
    auc, ones, zeros = as_floats(own.auc, n1, n0)
    known = (ones > 0) & (zeros > 0)
    value = np.where(known, auc, 0.5)
    ones, zeros = np.where(known, ones, 1.0), np.where(known, zeros, 1.0)
    spread1, spread0 = _spreads(own, value, ones, zeros)
    # The model expects such a spread of placements among that few examples of the other class.
    scales = (spread1 / _expected(value, zeros), spread0 / _expected(value, ones))
    z = _quantile(spread1 / ones, spread0 / zeros, ones, zeros, confidence)
    high = _score_end(value, ones, zeros, scales, z)
    low = 1.0 - _score_end(1.0 - value, ones, zeros, scales, z)
    # Rounding must not move an end past the AUC.
    low, high = np.minimum(low, value), np.maximum(high, value)
    return np.where(known, np.maximum(low, 0.0), 0.0), np.where(known, high, 1.0)


def delta_interval(
    own: Placements,
    n1: ArrayLike,
    n0: ArrayLike,
    reference: Placements,
    N1: ArrayLike,
    N0: ArrayLike,
    confidence: float,
) -> tuple[FloatArray, FloatArray]:
    """Return the confidence interval of slices' AUC minus the AUC of all examples.

    Parameters
    ----------
    own : Placements of arrays [slices]
        Those of the slices.
    n1, n0 : int arrays [slices]
        Positives and negatives of the slice.
    reference : Placements of scalars or arrays [1]
        Those of all examples.
    N1, N0 : int
        All positives and negatives, the slice's among them.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays [slices]
        Within [−1, 1], they hold the difference; (0, 0) where the slice is all examples, and the
        vacuous (−1, 1) where a class is empty.

    Notes
    -----
    Var(delta) has a part of the slice, which takes the arms of `value_interval` in proportion, and
    a part of the examples outside, whose arm is added by squares (Zou and Donner 2008, Stat. Med.
    27:1693): the slice's own variance is near 0 where its AUC is 0 or 1. Both AUCs are sums over examples to
    first order (DeLong, DeLong and Clarke-Pearson 1988, Biometrics 44:837). An example of the slice
    counts 1/n − 1/N in the difference and one outside −1/N, so that of each class's variance s/n
    there remains s·(1 − f)²/n + s'·(1 − f)·f/n, f = n/N, with s' of the examples outside. This
    assumes that an example's placement is about the same within the slice and overall.
    """
    low, high = value_interval(own, n1, n0, confidence)
    auc, ones, zeros = as_floats(own.auc, n1, n0)
    known = (ones > 0) & (zeros > 0)
    whole1, whole0 = (np.maximum(np.asarray(size, dtype=np.float64), 1.0) for size in (N1, N0))
    value = np.where(known, auc, 0.5)
    ones, zeros = np.where(known, ones, 1.0), np.where(known, zeros, 1.0)
    spread1, spread0 = _spreads(own, value, ones, zeros)
    total, left, added = np.zeros(value.shape), np.zeros(value.shape), np.zeros(value.shape)
    for spread, overall, size, whole in (
        (spread1, reference.spread1, ones, whole1),
        (spread0, reference.spread0, zeros, whole0),
    ):
        share = np.minimum(size / whole, 1.0)
        outside = np.where(np.isnan(overall), 0.0, overall)
        total += spread / size
        left += (1.0 - share) ** 2 * spread / size
        added += (1.0 - share) * share * outside / size
    z = normal_quantile(confidence)

    def arm(of_value: FloatArray) -> FloatArray:
        return np.sqrt(np.square(of_value) * left / total + z * z * added)

    delta = value - np.where(np.isnan(reference.auc), 0.5, reference.auc)
    whole_slice = (ones == whole1) & (zeros == whole0)
    low = np.where(whole_slice, 0.0, np.maximum(delta - arm(value - low), -1.0))
    high = np.where(whole_slice, 0.0, np.minimum(delta + arm(high - value), 1.0))
    return np.where(known, low, -1.0), np.where(known, high, 1.0)


def gain_interval(
    delta: FloatArray,
    own: tuple[FloatArray, FloatArray],
    reference: tuple[FloatArray, FloatArray],
    n1: ArrayLike,
    n0: ArrayLike,
    confidence: float,
) -> tuple[FloatArray, FloatArray]:
    """Return the confidence interval of slices' AUC of a new model minus that of the old model.

    Parameters
    ----------
    delta : float64 array [slices]
        The difference; NaN where a class is empty.
    own : two float64 arrays [slices]
        Variances, divided by n, of the gains in placement of the slice's positives and of its
        negatives: by how much the new score's placement among all examples is higher.
    reference : two float64 arrays that broadcast
        Those of all examples.
    n1, n0 : float arrays [slices]
        Positives and negatives of the slice.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays [slices]
        Within [−1, 1], they hold the difference; the vacuous (−1, 1) where a class is empty.

    Notes
    -----
    delta ± t·√(s1/n1 + s0/n0), the variance of DeLong, DeLong and Clarke-Pearson (1988), with t at
    the degrees of freedom of Welch and Satterthwaite. A few positives tell little about their
    variance, so the own variance weighs as many as its examples and that of all examples as twenty.
    This assumes that gains vary in a small slice about as much as in all examples.
    """
    ones, zeros = (np.maximum(np.asarray(size, dtype=np.float64), 1.0) for size in (n1, n0))
    part1, part0 = (
        _drawn(spread, size, overall) / size
        for spread, overall, size in zip(own, reference, (ones, zeros), strict=True)
    )
    varies = part1 + part0 > 0
    t = _quantile(np.where(varies, part1, 1.0), part0, ones, zeros, confidence)
    reach = np.where(varies, t, 0.0) * np.sqrt(part1 + part0)
    known = ~np.isnan(delta)
    low = np.where(known, np.maximum(delta - reach, -1.0), -1.0)
    return low, np.where(known, np.minimum(delta + reach, 1.0), 1.0)


def _quantile(
    part1: FloatArray, part0: FloatArray, n1: FloatArray, n0: FloatArray, confidence: float
) -> FloatArray:
    """Return Student's quantile for a variance of two estimated parts (Welch and Satterthwaite)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence} is not between 0 and 1")
    share = part1 / (part1 + part0)
    # One degree more than usual for what the model adds.
    freedom = 1.0 / (share**2 / n1 + (1.0 - share) ** 2 / n0)
    return np.asarray(-stdtrit(freedom, 0.5 * (1.0 - confidence)), dtype=np.float64)


def _model_spread(auc: FloatArray) -> FloatArray:
    """Return the larger of Q1 − θ² and Q2 − θ² of Hanley and McNeil."""
    larger = np.maximum(auc, 1.0 - auc)
    spread: FloatArray = larger * larger * (1.0 - larger) / (1.0 + larger)
    return spread


def _expected(auc: FloatArray, others: FloatArray) -> FloatArray:
    """Return the model's variance of placements among a few examples of the other class."""
    spread = _model_spread(auc)
    other = 1.0 - auc
    both = auc * other * (other / (1.0 + other) + auc / (1.0 + auc))
    noise = (auc * other - both) / others
    return np.maximum(spread + noise, 1e-12)


def _spreads(
    own: Placements, auc: FloatArray, n1: FloatArray, n0: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the variances of placements of both classes, drawn towards the model's."""
    sides = ((own.spread1, n1, n0), (own.spread0, n0, n1))
    first, second = (
        _drawn(np.where(np.isnan(spread), 0.0, spread), size, _expected(auc, others))
        for spread, size, others in sides
    )
    return first, second


def _drawn(spread: FloatArray, size: FloatArray, expected: FloatArray) -> FloatArray:
    """Return variances of some examples, drawn towards what is expected of them."""
    return (size * spread + _PRIOR_EXAMPLES * expected) / (size - 1.0 + _PRIOR_EXAMPLES)


def _score_end(
    auc: FloatArray,
    n1: FloatArray,
    n0: FloatArray,
    scales: tuple[FloatArray, FloatArray],
    z: FloatArray,
) -> FloatArray:
    """Return the largest θ with θ − auc ≤ z·√V(θ)."""
    inside, outside = auc, np.ones(auc.shape)
    weight = (n0 - 1.0) * scales[0] + (n1 - 1.0) * scales[1]
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        variance = (middle * (1.0 - middle) + weight * _model_spread(middle)) / (n1 * n0)
        kept = np.square(middle - auc) <= z * z * variance
        inside, outside = np.where(kept, middle, inside), np.where(kept, outside, middle)
    return inside
