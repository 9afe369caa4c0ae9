"""Pearson's type III law: the tail of a statistic of which mean, deviation and skewness are known.

Counting how many of a thousand permutations are as extreme says nothing about p-values below 1/1,000;
a law with the statistic's first three moments does. It is a shifted gamma law, normal at skewness 0.

Sources: Mielke and Berry (2007), "Permutation methods", section 2.3; Winkler, Ridgway, Douaud,
Nichols and Smith (2016), NeuroImage 141:502, section "Gamma approximation". The law is continuous,
so that its tail at an observed value of a discrete statistic is near the mid-p.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import gammainc, gammaincc, ndtr

from slicebeam.metrics.arrays import floats
from slicebeam.metrics.significance.count_tests import deviance
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail

# A value on the far side of the fitted law's support is very unlikely, but not impossible.
SMALLEST_P = 1e-300
# Below these |skewness| a normal law and an expansion of the gamma law are exact to many digits.
_NORMAL_SKEWNESS = 1e-9
_EXPANSION_SKEWNESS = 0.01


class NullMoments(NamedTuple):
    """Mean, deviation and skewness of a statistic under the null [slices]; skewness 0 where the deviation is."""

    mean: FloatArray
    sd: FloatArray
    skewness: FloatArray


def pearson_iii_p_value(
    statistic: ArrayLike, mean: ArrayLike, sd: ArrayLike, skewness: ArrayLike, tail: Tail
) -> FloatArray:
    """Return the tail of a shifted gamma law with three given moments; at least 1e-300, 1 where sd is 0.

    With k = 4/skewness², k + √k·z is standard gamma. Below a skewness of 0.01 Temme's uniform expansion
    (1979, SIAM J. Math. Anal. 10:757, first term) is used, of relative error 1/k.
    """
    value, centre, spread, skew = floats(statistic, mean, sd, skewness)
    usable = (spread > 0) & np.isfinite(value) & np.isfinite(centre)
    usable &= np.isfinite(spread) & np.isfinite(skew)
    scale = np.where(usable, spread, 1.0)
    z = np.where(usable, (np.where(usable, value, 0.0) - np.where(usable, centre, 0.0)) / scale, 0)
    skew = np.where(usable, skew, 0.0)
    mirrored = skew < 0
    towards, away = _gamma_tails(np.where(mirrored, -z, z), np.abs(skew))
    upper = np.maximum(np.where(mirrored, away, towards), SMALLEST_P)
    lower = np.maximum(np.where(mirrored, towards, away), SMALLEST_P)
    return np.where(usable, select_tail(upper, lower, tail), 1.0)


def _gamma_tails(z: FloatArray, skewness: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the upper and the lower tail at z of a standardised gamma law, skewness ≥ 0."""
    upper, lower = np.asarray(ndtr(-z)), np.asarray(ndtr(z))
    skewed = skewness > _NORMAL_SKEWNESS
    shape = 4.0 / np.square(np.where(skewed, skewness, 1.0))
    # Beyond the end of the support the lower tail is empty.
    x = np.maximum(shape + np.sqrt(shape) * z, 0.0)
    large = skewed & (skewness < _EXPANSION_SKEWNESS) & (x > 0)
    exact = skewed & ~large
    upper[exact] = gammaincc(shape[exact], x[exact])
    lower[exact] = gammainc(shape[exact], x[exact])
    upper[large], lower[large] = _temme(shape[large], x[large], z[large])
    return upper, lower


def _temme(shape: FloatArray, x: FloatArray, z: FloatArray) -> tuple[FloatArray, FloatArray]:
    # k·η²/2 = x − k − k·log(x/k), a deviance.
    half_square = deviance(shape, x, shape - x)
    root = np.copysign(np.sqrt(2.0 * half_square), z)
    relative = z / np.sqrt(shape)
    eta = root / np.sqrt(shape)
    near = np.abs(relative) < 1e-3
    exact = 1.0 / np.where(near, 1.0, relative) - 1.0 / np.where(near, 1.0, eta)
    first = np.where(near, -1.0 / 3.0 + eta / 12.0 - 2.0 * eta * eta / 135.0, exact)
    rest = np.exp(-half_square) / np.sqrt(2.0 * np.pi * shape) * first
    return np.asarray(ndtr(-root) + rest), np.asarray(ndtr(root) - rest)
