"""Confidence intervals of AUC and of its difference from that of all examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from slicebeam.metrics.arrays import floats
from slicebeam.metrics.intervals.intervals import bisect, normal_quantile
from slicebeam.metrics.significance.auc import Placements

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray


# Examples' worth of the expected spread: chosen by coverage in slices of 20 to 1000 examples.
_PRIOR_EXAMPLES = 20.0
# How two models differ on one or two examples says nothing of how far their AUCs may differ.
_LEAST_OF_CLASS = 3.0


def value_interval(
    own: Placements, n1: ArrayLike, n0: ArrayLike, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of slices' AUC; (0, 1) where a class is empty.

    All θ with abs(auc − θ) ≤ t·√V(θ), as method 5 of Newcombe (2006), Stat. Med. 25:559, V the variance of
    Hanley and McNeil (1982), Radiology 143:29, eq. 1, with the larger of Q1 − θ² and Q2 − θ² for both
    classes. Unlike Newcombe's, the spread of either class is scaled by how much the slice's placements vary,
    compared with the model at θ = auc, which weighs as twenty examples; t at Welch's degrees of freedom.
    """
    known, value, ones, zeros, spread1, spread0 = _slices(own, n1, n0)
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
    """Return the interval of slices' AUC minus that of all examples; (−1, 1) where a class is empty.

    An example of the slice counts 1/n − 1/N in the difference and one outside −1/N (DeLong, DeLong and
    Clarke-Pearson 1988), so that of a class's variance s/n there remains s·(1 − f)²/n + s'·(1 − f)·f/n, f =
    n/N. The slice's part takes the arms of `value_interval`; that outside is added by squares (MOVER, Zou and
    Donner 2008, Stat. Med. 27:1693). Assumes that placements are alike within the slice and overall.
    """
    low, high = value_interval(own, n1, n0, confidence)
    known, value, ones, zeros, spread1, spread0 = _slices(own, n1, n0)
    whole1, whole0 = (np.maximum(np.asarray(size, dtype=np.float64), 1.0) for size in (N1, N0))
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
    """Return the interval of a new model's AUC minus an old one's; NaN with less than three of a class.

    delta ± t·√(s1/n1 + s0/n0 + c/(n1·n0)), s the variances of the gains in placement of either class (DeLong,
    DeLong and Clarke-Pearson 1988), at least what twenty examples like all would make them. c is what a pair
    varies beyond its two gains, which no sum tells: two models order a share E abs(d) of the pairs differently,
    d of variance s1 + s0, and that is √(2/π·(s1 + s0)) for a normal d. It is most of the variance where the
    models are nearly equal and the slice small.
    """
    ones, zeros = (np.maximum(np.asarray(size, dtype=np.float64), 1.0) for size in (n1, n0))
    spread1, spread0 = (
        _raised(spread, size, overall)
        for spread, overall, size in zip(own, reference, (ones, zeros), strict=True)
    )
    part1, part0, both = spread1 / ones, spread0 / zeros, spread1 + spread0
    together = np.maximum(np.sqrt(2.0 / np.pi * both) - both, 0.0)
    varies = both > 0
    t = _quantile(np.where(varies, part1, 1.0), part0, ones, zeros, confidence)
    reach = np.where(varies, t, 0.0) * np.sqrt(part1 + part0 + together / (ones * zeros))
    known = np.minimum(n1, n0) >= _LEAST_OF_CLASS
    low, high = np.maximum(delta - reach, -1.0), np.minimum(delta + reach, 1.0)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def _quantile(
    part1: FloatArray, part0: FloatArray, n1: FloatArray, n0: FloatArray, confidence: float
) -> FloatArray:
    """Return Student's quantile for a variance of two estimated parts (Welch and Satterthwaite)."""
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


def _slices(own: Placements, n1: ArrayLike, n0: ArrayLike) -> tuple[Any, ...]:
    """Return whether both classes occur, AUC, sizes of the classes, and variances raised towards the model's."""
    auc, ones, zeros = floats(own.auc, n1, n0)
    known = (ones > 0) & (zeros > 0)
    value, ones, zeros = (
        np.where(known, part, none) for part, none in ((auc, 0.5), (ones, 1.0), (zeros, 1.0))
    )
    spread1, spread0 = (
        _raised(np.where(np.isnan(spread), 0.0, spread), size, _expected(value, others))
        for spread, size, others in ((own.spread1, ones, zeros), (own.spread0, zeros, ones))
    )
    return known, value, ones, zeros, spread1, spread0


def _raised(spread: FloatArray, size: FloatArray, expected: FloatArray) -> FloatArray:
    """Return variances (divisor n − 1), raised where more examples as expected would raise them.

    Never lowered: where a slice varies more than all examples do, few of its examples are enough to tell.
    """
    variance = spread * size / np.maximum(size - 1.0, 1.0)
    weight = _PRIOR_EXAMPLES / (size - 1.0 + _PRIOR_EXAMPLES)
    return variance + weight * np.maximum(expected - variance, 0.0)


def _score_end(
    auc: FloatArray,
    n1: FloatArray,
    n0: FloatArray,
    scales: tuple[FloatArray, FloatArray],
    z: FloatArray,
) -> FloatArray:
    """Return the largest θ with θ − auc ≤ z·√V(θ)."""
    weight = (n0 - 1.0) * scales[0] + (n1 - 1.0) * scales[1]

    def keeps(theta: FloatArray) -> BoolArray:
        variance = (theta * (1.0 - theta) + weight * _model_spread(theta)) / (n1 * n0)
        return np.asarray(np.square(theta - auc) <= z * z * variance)

    return bisect(keeps, auc, np.ones(auc.shape))
