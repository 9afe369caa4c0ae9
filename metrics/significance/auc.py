"""Area under the ROC curve of slices: value, test against all examples and intervals.

A slice is a histogram of its scores for each label, summed like any other counts. Everything here
follows from the *placements*: where the positives stand among the negatives, and the reverse.

Assumption: under the null the positives of a slice are a random subset of all positives, and its
negatives, independently, of all negatives. The numbers of both stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import betainc, betaincc

from slicebeam.metrics.arrays import floats
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.kinds import Tail

# Histogram entries that are worked on at once: about twenty float arrays of them are alive.
_ENTRIES_AT_ONCE = 1_000_000
# Shares are sums of rounded shares: what is below this is 0.
_ROUNDING = 1e-13
# The fitted law ends where the AUC does by so much, else where the gamma law ends. By simulation:
# ending with the AUC makes the far tail twice too heavy, ending as the gamma law too light.
_END_AS_AUC = 0.45
# The gamma law's end is at least as far as the AUC's, divided by this: skewness is cut to fit.
_REACH = 0.97


class Placements(NamedTuple):
    """How a slice's positives stand among its negatives; float64 [slices], NaN where a class is empty.

    With φ = 1 where a positive scores above a negative, ½ where they tie and 0 else, a pair has
    φ = auc + a + b + c: a depends on the positive, b on the negative alone, and c, the rest, has
    mean 0 given either (Hoeffding 1948). The fields are the means of φ, a², b², c², a³, b³, a·b·c,
    a·c² and b·c².
    """

    auc: FloatArray
    spread1: FloatArray
    spread0: FloatArray
    interaction: FloatArray
    skew1: FloatArray
    skew0: FloatArray
    mixed: FloatArray
    mixed1: FloatArray
    mixed0: FloatArray


def placements(histogram: ArrayLike) -> Placements:
    """Return AUC and moments of the placements of histograms [slices, 2 (negatives, positives), buckets].

    Examples in one bucket tie. DeLong, DeLong and Clarke-Pearson (1988), Biometrics 44:837, eq. 1–4, with
    variance components over the examples as they are (divided by n, not n − 1).
    """
    counts = np.asarray(histogram, dtype=np.int64)
    step = max(1, _ENTRIES_AT_ONCE // max(1, counts[:1].size))
    parts = [_placements(counts[at : at + step]) for at in range(0, max(1, len(counts)), step)]
    return Placements(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def discretisation_error(histogram: ArrayLike, coarse: BoolArray | None = None) -> FloatArray:
    """Return ½Σ p1·p0 over the ``coarse`` buckets [slices], which hold several scores: a bound of the error."""
    counts = np.asarray(histogram, dtype=np.float64)
    size = counts.sum(axis=2)
    pairs = size[:, 0] * size[:, 1]
    together = counts[:, 0] * counts[:, 1]
    if coarse is not None:
        together = together[:, coarse]
    error = 0.5 * together.sum(axis=1) / np.maximum(pairs, 1.0)
    return np.where(pairs > 0, error, np.nan).astype(np.float64)


def bucket_edges(scores: ArrayLike, buckets: int) -> FloatArray:
    """Return ascending edges of buckets of about equally many examples, for ``searchsorted(side="right")``.

    At most `buckets` distinct scores have a bucket each, and the AUC is exact. Else a score that fills two
    average buckets has one, and the others are split as finely as the number allows.
    """
    values, counts = np.unique(np.asarray(scores, dtype=np.float64), return_counts=True)
    if values.size <= buckets:
        return values[1:]
    heavy = counts * buckets > 2 * counts.sum()
    light = np.where(heavy, 0, counts)
    # The place of a value among the light ones, in (0, 1), by the middle of its own examples.
    place = (np.cumsum(light) - 0.5 * light) / light.sum()
    alone = heavy.copy()
    alone[1:] |= heavy[:-1]

    def opening(parts: int) -> BoolArray:
        """Return which distinct scores but the first open a bucket."""
        return np.asarray((np.diff(np.floor(place * parts)) != 0) | alone[1:])

    # A heavy value makes a bucket and may cut another in two; there are less than buckets/2.
    fits = buckets - 2 * int(heavy.sum())
    opens = opening(fits)
    # Values with many examples leave buckets over: look for the finest split that fits.
    too_fine = 4 * buckets
    while fits + 1 < too_fine:
        middle = (fits + too_fine) // 2
        finer = opening(middle)
        if finer.sum() < buckets:
            fits, opens = middle, finer
        else:
            too_fine = middle
    edges: FloatArray = values[1:][opens]
    return edges


def z_p_value(
    auc: ArrayLike,
    n1: ArrayLike,
    n0: ArrayLike,
    reference: Placements,
    N1: ArrayLike,
    N0: ArrayLike,
    tail: Tail,
) -> FloatArray:
    """Return the p-value [slices] of an AUC against that of all examples; 1 where no other is possible.

    z = (auc − reference.auc)/√v with the exact variance of random subsets of either class, v =
    f1·spread1/n1 + f0·spread0/n0 + f1·f0·interaction/(n1·n0), f = (N − n)/(N − 1): DeLong, DeLong and
    Clarke-Pearson (1988) under the null, without replacement. z is referred to a beta law (Pearson I) of its
    mean, variance and skewness (to terms of 1/n³), for with few examples of a class the AUC is skewed.
    """
    value, n1, n0 = floats(auc, n1, n0)
    N1, N0 = (np.asarray(size, dtype=np.float64) for size in (N1, N0))
    known = (n1 > 0) & (n0 > 0) & ~np.isnan(value) & ~np.isnan(reference.auc)
    all_auc, spread1, spread0, interaction, skew1, skew0, mixed, mixed1, mixed0 = (
        np.where(known, moment, 0.0) for moment in reference
    )
    n1, n0 = np.maximum(n1, 1.0), np.maximum(n0, 1.0)
    f1, g1 = _finite(n1, N1)
    f0, g0 = _finite(n0, N0)
    variance = f1 * spread1 / n1 + f0 * spread0 / n0 + f1 * f0 * interaction / (n1 * n0)
    third = g1 * skew1 / n1**2 + g0 * skew0 / n0**2
    third += 3.0 * f1 * f0 / (n1 * n0) * (2.0 * mixed + mixed1 / n1 + mixed0 / n0)
    possible = known & (variance > 0.0)
    deviation = np.sqrt(np.where(possible, variance, 1.0))
    z = np.where(possible, value - all_auc, 0.0) / deviation
    upper, lower = _beta_tails(
        z,
        third / deviation**3,
        (all_auc / deviation, (1.0 - all_auc) / deviation),
        0.5 / (n1 * n0 * deviation),
    )
    return select_tail(np.where(possible, upper, 1.0), np.where(possible, lower, 1.0), tail)


def _placements(counts: IntArray) -> Placements:
    size = counts.sum(axis=2)
    known = (size > 0).all(axis=1)
    zeros, ones = (np.maximum(size[:, [label]], 1).astype(np.float64) for label in (0, 1))
    p0, p1 = counts[:, 0] / zeros, counts[:, 1] / ones
    # Whole numbers until the division: a perfect AUC is 1 and its spread 0, without rounding.
    below = np.cumsum(counts[:, 0], axis=1)
    above = size[:, [1]] - np.cumsum(counts[:, 1], axis=1)
    among0 = (2 * below - counts[:, 0]) / (2.0 * zeros)
    among1 = (2 * above + counts[:, 1]) / (2.0 * ones)
    wins = (counts[:, 1] * (2 * below - counts[:, 0]).astype(np.float64)).sum(axis=1)
    auc = wins / (2.0 * zeros * ones)[:, 0]
    a, b = among0 - auc[:, None], among1 - auc[:, None]
    spread1, spread0 = _mean(p1, a * a), _mean(p0, b * b)
    # Given a positive: the means of b·φ and of φ² over the negatives; and the reverse.
    b_wins = np.cumsum(p0 * b, axis=1) - 0.5 * p0 * b
    a_sum = np.cumsum(p1 * a, axis=1)
    a_wins = a_sum[:, -1:] - a_sum + 0.5 * p1 * a
    square1 = among0 - 0.25 * p0
    square0 = among1 - 0.25 * p1
    c1 = square1 - 2.0 * b_wins + spread0[:, None] - among0 * among0
    c0 = square0 - 2.0 * a_wins + spread1[:, None] - among1 * among1
    interaction = _mean(p1, c1)
    moments = (
        auc,
        spread1,
        spread0,
        np.where(interaction > _ROUNDING, interaction, 0.0),
        _mean(p1, a * a * a),
        _mean(p0, b * b * b),
        _mean(p1, a * b_wins),
        _mean(p1, a * c1),
        _mean(p0, b * c0),
    )
    return Placements(*(np.where(known, moment, np.nan) for moment in moments))


def _mean(share: FloatArray, value: FloatArray) -> FloatArray:
    mean: FloatArray = np.einsum("sb,sb->s", share, value)
    return mean


def _finite(n: FloatArray, N: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return what drawing n of N leaves of the mean's variance, and of its third moment."""
    rest = np.maximum(N - n, 0.0)
    second = rest / np.maximum(N - 1.0, 1.0)
    return second, second * (rest - n) / np.maximum(N - 2.0, 1.0)


def _beta_tails(
    z: FloatArray, skewness: FloatArray, ends: tuple[FloatArray, FloatArray], half_step: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return P(Z ≥ z) and P(Z ≤ z) of a beta law with mean 0, variance 1 and the skewness.

    `ends` are how far z reaches below and above 0. The light tail, opposite to the skewness, ends
    between there and the end of the gamma law, 2/abs(skewness).
    """
    to_low, to_high = ends
    right = skewness > 0.0
    near = np.where(right, to_low, to_high) + half_step
    far = np.where(right, to_high, to_low) + half_step
    skew = np.minimum(np.abs(skewness), 2.0 * _REACH / near)
    end = 1.0 / (_END_AS_AUC / near + (1.0 - _END_AS_AUC) * 0.5 * skew)
    width = (4.0 * end + skew - skew * end * end) / (2.0 - skew * end)
    # A law that ends before the AUC does would give p-values of 0.
    width = np.maximum(width, end + far)
    total = np.maximum(end * (width - end) - 1.0, 1e-3)
    first = total * end / width
    second = np.maximum(total - first, 1e-6)
    place = np.clip((end + np.where(right, z, -z)) / width, 0.0, 1.0)
    above, below = betaincc(first, second, place), betainc(first, second, place)
    return np.where(right, above, below), np.where(right, below, above)
