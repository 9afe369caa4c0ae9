"""Confidence intervals of means, of their differences from all examples, and of paired differences.

They invert Hall's skewness-corrected t. That of two models agrees with their test; a slice is tested
against all examples by the law of random subsets, which is another null: see `Mean.test`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

from slicebeam.metrics.significance.hall import (
    Moments,
    Studentised,
    against_rest,
    against_zero,
    inverse_hall_transform,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray


def of_mean(
    sample: Moments, confidence: float, everything: Moments | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of the slices' mean.

    Parameters
    ----------
    sample : Moments
        Of the slices.
    confidence : float in (0, 1)
    everything : Moments, optional
        Of all examples: skewness is taken from it, and the smallest variance that a slice is
        given. Worth passing, for both are badly known from 20 values.

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        low ≤ mean ≤ high. (−inf, inf) where n < 2, the mean twice where the variance is 0 (and
        that of `everything` too).

    Notes
    -----
    All μ with abs(T) ≤ the quantile of t at n − 1 degrees of freedom, T of `hall.paired` for the
    values less μ: Hall (1992), J. R. Stat. Soc. B 54:221. As T rises with t the ends are
    mean − error·t(±quantile), with t(T) = 3·(∛(1 + G·(T − G/6)) − 1)/G.

    Coverage at .95, 30,000 draws from 20,000 values of log loss (γ 1.7 to 4.3), exponential,
    squared normal error, a mark of 10 % and Brier score of an outcome of 10 %: at least .943 at
    n = 20 and 50, and .938 at n = 100 and 500. With the slice's own skewness and variance .86 to
    .95 at n = 20, the least where the slice may have none of the rare values. Where abs(γ) > √n
    the test refuses, yet the interval is given: .94 to .98, but .91 at n = 20 and γ = 15.
    """
    return _interval(against_zero(sample, everything), confidence)


def of_difference_from_overall(
    sample: Moments, rest: Moments, share: ArrayLike, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of the slices' mean minus that of all examples.

    Parameters
    ----------
    sample, rest : Moments
        Of the slices and their complements, as `hall.welch` takes them.
    share : array in [0, 1] that broadcasts
        n/N, or the slices' share of the weights.
    confidence : float in (0, 1)

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        They hold (1 − share)·(x̄_S − x̄_C), the observed difference: (0, 0) where share is 1.
        (−inf, inf) where a side has n < 2, the difference twice where neither side varies.

    Notes
    -----
    The slice is part of the whole, hence delta = (1 − share)·(μ_S − μ_C) with the complement C,
    which shares no example with S. The inverse of `hall.welch` as in `of_mean`: 0 is outside if
    and only if the two-sided p < 1 − confidence, wherever the test is not refused. `share` counts
    as fixed.

    Coverage at .95 as that of `of_mean`: at least .943 at n = 20 and 50, .938 above.
    """
    outside = np.clip(1.0 - np.asarray(share, dtype=np.float64), 0.0, 1.0)
    low, high = _interval(against_rest(sample, rest), confidence)
    whole = outside == 0.0
    # 0·inf is not a number.
    factor = np.where(whole, 1.0, outside)
    return np.where(whole, 0.0, factor * low), np.where(whole, 0.0, factor * high)


def of_paired(
    differences: Moments, confidence: float, everything: Moments | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the interval of the slices' mean difference, new − old.

    Parameters
    ----------
    differences : Moments
        Of the differences of each slice.
    confidence : float in (0, 1)
    everything : Moments, optional
        Of the differences of all examples, as `hall.paired` takes them.

    Returns
    -------
    low, high : float64 arrays of the broadcast shape
        As those of `of_mean`. 0 is outside if and only if the two-sided p of `hall.paired` is
        below 1 − confidence, wherever the test is not refused.
    """
    return of_mean(differences, confidence, everything)


def _interval(of: Studentised, confidence: float) -> tuple[FloatArray, FloatArray]:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence = {confidence} is not between 0 and 1")
    quantile = -stdtrit(of.df, 0.5 * (1.0 - confidence))
    # The ends hold the mean but at low confidence, where T's median is off 0 by more than that.
    below = np.maximum(inverse_hall_transform(quantile, of.bend), 0.0)
    above = np.minimum(inverse_hall_transform(-quantile, of.bend), 0.0)
    low, high = of.difference - of.error * below, of.difference - of.error * above
    return np.where(of.known, low, -np.inf), np.where(of.known, high, np.inf)
