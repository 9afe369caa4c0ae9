"""Average precision of slices: value, influence of an example, and law of random subsets, from score buckets.

AP = Σ_s (share of the positives with score s)·(precision among the examples with a score of at least s), as
scikit-learn's `average_precision_score`. It rises with the share of positives, as precision does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import psi

from slicebeam.metrics.randomness import hash64
from slicebeam.metrics.significance.auc import ENTRIES_AT_ONCE
from slicebeam.metrics.significance.permutation import (
    DrawnValues,
    linear_statistic_moments,
    moments_with_linear_part,
    sample_moments,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray

# Of so many places in drawn subsets, and of so many subsets, a law of a size is made.
_PLACES, _FEWEST_DRAWS, _MOST_DRAWS = 2_000_000, 400, 40_000
# Of larger subsets it is not drawn.
LARGEST_DRAWN = 20_000
# Of more examples, those of each cell in proportion.
_LARGEST_LISTED = 1 << 22


class Precisions(NamedTuple):
    """Of slices [slices]: AP, how far it may be off, the same of the other examples, variance times positives."""

    value: FloatArray
    error: FloatArray
    complement: FloatArray
    complement_error: FloatArray
    variance: FloatArray


def precisions(inside: IntArray, others: IntArray, coarse: BoolArray) -> Precisions:
    """Return AP of histograms [slices, 2 (negatives, positives), buckets] whose examples in one bucket tie.

    The ``coarse`` buckets [buckets] hold several scores: each positive's precision then is at least what it
    has below all negatives of its bucket, and at most that of all the bucket's positives above them.
    """
    step = max(1, ENTRIES_AT_ONCE // max(1, inside[:1].size))
    blocks = []
    for at in range(0, max(1, len(inside)), step):
        some, rest = inside[at : at + step], others[at : at + step]
        n, squares = some.sum(axis=(1, 2)), (np.square(influence(some)) * some).sum(axis=(1, 2))
        variance = squares * some[:, 1].sum(axis=1) / np.maximum(n, 1.0) ** 2
        blocks.append((*_bounded(some, coarse), *_bounded(rest, coarse), variance))
    return Precisions(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def _above(histogram: ArrayLike) -> tuple[FloatArray, ...]:
    """Return positives, those of higher scores, negatives of higher scores, and precision [slices, buckets]."""
    counts = np.asarray(histogram, dtype=np.float64)
    reached = np.cumsum(counts[:, :, ::-1], axis=2)[:, :, ::-1]
    above = reached - counts
    precision = reached[:, 1] / np.maximum(reached.sum(axis=1), 1.0)
    return counts[:, 1], above[:, 1], above[:, 0], precision


def _bounded(histogram: IntArray, coarse: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return AP, and how far it may be off."""
    positives, hits, alarms, precision = _above(histogram)
    size = np.where(positives.any(axis=1), positives.sum(axis=1), np.nan)
    tied = positives * precision
    k, hits, alarms = (of[:, coarse] for of in (positives, hits, alarms))
    highest = k * (hits + k) / np.maximum(hits + k + alarms, 1.0)
    lower = alarms + histogram[:, 0][:, coarse]
    # Σ (hits + j)/(hits + j + lower) over j = 1..k, without the rounding of one of few terms.
    lowest = k - lower * (psi(hits + lower + k + 1.0) - psi(hits + lower + 1.0))
    lowest = np.where(k <= 1, k * (hits + 1.0) / (hits + 1.0 + lower), lowest)
    off = np.stack([highest - tied[:, coarse], tied[:, coarse] - lowest]).sum(axis=2).max(axis=0)
    return tied.sum(axis=1) / size, np.maximum(off, 0.0) / size


def influence(histogram: ArrayLike) -> FloatArray:
    """Return n times what an example of each class and bucket adds to AP [slices, 2, buckets], of mean 0.

    The derivative of AP by the share of such examples: a positive adds its precision and raises that of lower scores,
    any example lowers the precision of scores up to its own.
    """
    positives, _, _, precision = _above(histogram)
    counts = np.asarray(histogram, dtype=np.float64)
    reached = np.cumsum(counts.sum(axis=1)[:, ::-1], axis=1)[:, ::-1]
    share = positives / np.maximum(reached, 1.0)
    raised, lowered = np.cumsum(share, axis=1), np.cumsum(share * precision, axis=1)
    size = np.maximum(positives.sum(axis=1), 1.0)[:, None]
    value = (positives * precision).sum(axis=1)[:, None] / size
    positive = precision + raised - lowered - value
    return np.asarray(np.stack([-lowered, positive], axis=1) * (reached[:, :1] / size)[:, None])


def log_odds(value: FloatArray, half: FloatArray) -> FloatArray:
    """Return the log-odds of AP, with half a positive (as a share of them) added on either side."""
    return np.asarray(np.log((value + half) / (1.0 - value + half)))


class PrecisionLaw(NamedTuple):
    """Log-odds of AP of random subsets of all examples, whose scores in a coarse bucket are in random order.

    Three moments tell tails of the log-odds, where AP itself ends at 1. Half a positive keeps them finite.
    """

    by_score: tuple[tuple[int, ...], ...]  # negatives and positives by bucket
    coarse: tuple[bool, ...]

    @property
    def totals(self) -> IntArray:
        """All examples by cell."""
        return np.array(self.by_score).reshape(-1)

    def half(self, n: ArrayLike) -> FloatArray:
        """Return half a positive as a share of those to be expected among n examples."""
        return np.asarray(0.5 * self.totals.sum() / (np.asarray(n) * sum(self.by_score[1])))

    def limit(self) -> float:
        """Return the log-odds of all examples."""
        value, _ = _bounded(np.array([self.by_score]), np.array(self.coarse))
        return float(log_odds(value, self.half(self.totals.sum()))[0])

    def of_size(self, n: int) -> DrawnValues:
        """Return the sorted log-odds of drawn subsets of n examples, and their three moments."""
        return _drawn(self, n)


@lru_cache(maxsize=1024)
def _drawn(law: PrecisionLaw, n: int) -> DrawnValues:
    counts = np.array(law.by_score)[:, ::-1].T
    if counts.sum() > _LARGEST_LISTED:
        counts = np.rint(counts * (_LARGEST_LISTED / counts.sum())).astype(np.int64)
    key = int(hash64(0, 0, np.array([n], dtype=np.uint64))[0])
    generator = np.random.Generator(np.random.Philox(key=key))
    # Examples from the highest score down: bucket, then label, those of a bucket in random order.
    bucket, label = np.divmod(np.repeat(np.arange(counts.size), counts.reshape(-1)), 2)
    label = label[np.argsort(bucket + generator.random(bucket.size))]
    tied = ~np.array(law.coarse)[::-1][bucket]
    tie = np.where(tied, bucket - len(counts), np.arange(bucket.size))
    draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, _PLACES // n))
    places = _subsets(generator, bucket.size, n, draws)
    ties, positive = tie[places], label[places]
    last = np.full(places.shape, n - 1)
    last[:, :-1] = np.where(ties[:, 1:] != ties[:, :-1], np.arange(n - 1), n - 1)
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    hits = np.cumsum(positive, axis=1)
    precision = np.take_along_axis(hits, last, axis=1) / (last + 1)
    known = hits[:, -1] > 0
    values = log_odds((positive * precision).sum(axis=1) / np.maximum(hits[:, -1], 1), law.half(n))
    odds = np.exp(law.limit())
    scores = influence([law.by_score])[0] * ((1.0 + odds) ** 2 / odds / n)
    exact = linear_statistic_moments(scores.reshape(-1), law.totals, n)
    linear = scores[:, ::-1][label, bucket][places].sum(axis=1) - exact.mean
    moments = sample_moments(values[known])
    if moments.sd > 0:
        moments = moments_with_linear_part(values[known], linear[known], exact)
    return DrawnValues(np.sort(values[known]), moments, 1.0 - float(known.mean()))


def _subsets(generator: np.random.Generator, size: int, n: int, draws: int) -> IntArray:
    """Return n different numbers below the size [draws, n], ascending."""
    if size < 4 * n:
        drawn = (generator.choice(size, n, replace=False, shuffle=False) for _ in range(draws))
        return np.sort(np.stack([*drawn]), axis=1)
    places = np.sort(generator.integers(0, size, (draws, n)), axis=1)
    while (again := places[:, 1:] == places[:, :-1]).any():
        places[:, 1:][again] = generator.integers(0, size, int(again.sum()))
        places.sort(axis=1)
    return places
