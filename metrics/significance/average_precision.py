"""Average precision of slices, as scikit-learn's, its influences and law of random subsets, from score buckets."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from scipy.special import psi

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, Pair
from slicebeam.metrics.significance.auc import ENTRIES_AT_ONCE
from slicebeam.metrics.significance.permutation import (
    DrawnLaw,
    DrawnValues,
    generator_of,
    linear_statistic_moments,
    moments_with_linear_part,
)

# The law of a size is made of so many subsets, of so many examples together.
_DRAWN, _FEWEST_DRAWS, _MOST_DRAWS = 2_000_000, 400, 40_000
# Of more examples, each cell has its part of so many.
_LARGEST_LISTED = 1 << 22


class Precisions(NamedTuple):
    """Of slices [slices]: AP, how far it may be off, the same of the other examples, variance times positives."""

    value: FloatArray
    error: FloatArray
    complement: FloatArray
    complement_error: FloatArray
    variance: FloatArray


class Ranks(NamedTuple):
    """Of histograms: examples [slices, 2, buckets], those of higher scores, and of scores at least as high."""

    counts: FloatArray
    above: FloatArray
    reached: FloatArray  # [slices, buckets]
    precision: FloatArray  # of these

    @classmethod
    def of(cls, histogram: ArrayLike) -> Ranks:
        """Return the ranks in histograms [slices, 2 (negatives, positives), buckets]."""
        counts = np.asarray(histogram, dtype=np.float64)
        by_class = np.cumsum(counts[:, :, ::-1], axis=2)[:, :, ::-1]
        reached = by_class.sum(axis=1)
        precision = by_class[:, 1] / np.maximum(reached, 1.0)
        return cls(counts, by_class - counts, reached, precision)

    def bounded(self, coarse: BoolArray) -> Pair:
        """Return AP, and how far it may be off."""
        positives = self.counts[:, 1]
        size = np.where(positives.any(axis=1), positives.sum(axis=1), np.nan)
        tied = positives * self.precision
        some = np.nonzero((positives > 0) & coarse)
        k, alarms, hits = positives[some], *(self.above[:, of][some] for of in (0, 1))
        highest = k * (hits + k) / (hits + k + alarms)
        lower = alarms + self.counts[:, 0][some]
        # Σ (hits + j)/(hits + j + lower) over j = 1..k, without the rounding of one of few terms.
        lowest = k - lower * (psi(hits + lower + k + 1.0) - psi(hits + lower + 1.0))
        lowest = np.where(k <= 1, k * (hits + 1.0) / (hits + 1.0 + lower), lowest)
        sides = (highest - tied[some], tied[some] - lowest)
        off = np.max([np.bincount(some[0], side, len(tied)) for side in sides], axis=0)
        return tied.sum(axis=1) / size, np.maximum(off, 0.0) / size

    def mixed(self, coarse: BoolArray) -> FloatArray:
        """Return the expected AP [slices] where the examples of a coarse bucket are in random order."""
        positives, size = self.counts[:, 1], self.counts.sum(axis=1)
        ahead, hits = self.above.sum(axis=1), self.above[:, 1]
        # A positive at place i of its bucket has (i − 1)·share of the others before it:
        # Σ (hits + 1 + (i − 1)·share)/(ahead + i) over i = 1..size.
        share = (positives - 1.0) / np.maximum(size - 1.0, 1.0)
        terms = psi(ahead + size + 1.0) - psi(ahead + 1.0)
        sums = share * size + (hits + 1.0 - share * (ahead + 1.0)) * terms
        ordered = sums / np.maximum(size, 1.0)
        of_one = np.where(coarse & (positives > 0), ordered, self.precision)
        return np.asarray((positives * of_one).sum(axis=1) / positives.sum(axis=1))

    @property
    def influence(self) -> FloatArray:
        """N times what an example of each class and bucket adds to AP [slices, 2, buckets], of mean 0: its derivative."""
        # A positive adds its precision and raises that of lower scores; any example lowers that of scores up to its own.
        positives = self.counts[:, 1]
        share = positives / np.maximum(self.reached, 1.0)
        raised, lowered = np.cumsum(share, axis=1), np.cumsum(share * self.precision, axis=1)
        size = np.maximum(positives.sum(axis=1), 1.0)[:, None]
        value = (positives * self.precision).sum(axis=1)[:, None] / size
        positive = self.precision + raised - lowered - value
        scale = (self.reached[:, :1] / size)[:, None]
        return np.asarray(np.stack([-lowered, positive], axis=1) * scale)


def precisions(inside: IntArray, others: IntArray, coarse: BoolArray) -> Precisions:
    """Return AP of histograms [slices, 2 (negatives, positives), buckets] whose examples in one bucket tie."""
    # ``coarse`` buckets [buckets] hold several scores, so that their negatives may be above, or below, all positives.
    step = max(1, ENTRIES_AT_ONCE // max(1, inside[:1].size))
    blocks = []
    for at in range(0, max(1, len(inside)), step):
        some, rest = (Ranks.of(part[at : at + step]) for part in (inside, others))
        squares = (np.square(some.influence) * some.counts).sum(axis=(1, 2))
        n = some.counts.sum(axis=(1, 2))
        variance = squares * some.counts[:, 1].sum(axis=1) / np.maximum(n, 1.0) ** 2
        blocks.append((*some.bounded(coarse), *rest.bounded(coarse), variance))
    return Precisions(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def log_odds(value: FloatArray, half: FloatArray) -> FloatArray:
    """Return the log-odds of AP, with half a positive (as a share of them) added on either side."""
    return np.asarray(np.log((value + half) / (1.0 - value + half)))


class PrecisionLaw(NamedTuple):
    """Log-odds of AP of random subsets of all examples, whose scores in a coarse bucket are in random order."""

    by_score: tuple[tuple[int, ...], ...]  # negatives and positives by bucket
    coarse: tuple[bool, ...]
    value: float  # AP of all examples, as exactly as it is known
    # Larger subsets are not drawn: their moments are those of this size, as they change with the size.
    largest_drawn: int = 20_000

    @property
    def totals(self) -> IntArray:
        """All examples by cell."""
        return np.array(self.by_score).reshape(-1)

    def half(self, n: ArrayLike) -> FloatArray:
        """Return half a positive as a share of those to be expected among n examples."""
        return np.asarray(0.5 * self.totals.sum() / (np.asarray(n) * sum(self.by_score[1])))

    def of_all(self, value: ArrayLike) -> float:
        """Return the log-odds of an AP of all examples."""
        return float(log_odds(np.ravel(value), self.half(self.totals.sum()))[0])

    @property
    def draws(self) -> DrawnLaw:
        """The law by drawn subsets."""
        return DrawnLaw(int(self.totals.sum()), self.of_all(self.value), partial(_drawn, self))


@lru_cache(maxsize=4)
def _listed(law: PrecisionLaw) -> tuple[IntArray, IntArray, IntArray]:
    """Return bucket, label and number of ties of examples from the highest score down."""
    counts = np.array(law.by_score)[:, ::-1].T
    if counts.sum() > _LARGEST_LISTED:
        counts = np.rint(counts * (_LARGEST_LISTED / counts.sum())).astype(np.int64)
    bucket, label = np.divmod(np.repeat(np.arange(counts.size), counts.reshape(-1)), 2)
    tied = ~np.array(law.coarse)[::-1][bucket]
    return bucket, label, np.where(tied, bucket - len(counts), np.arange(bucket.size))


@lru_cache(maxsize=1024)
def _drawn(law: PrecisionLaw, n: int) -> DrawnValues:
    generator = generator_of(n)
    bucket, label, tie = _listed(law)
    # Those of a bucket are in random order.
    label = label[np.argsort(bucket + generator.random(bucket.size))]
    draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, _DRAWN // n))
    places = _subsets(generator, bucket.size, n, draws)
    ties, positive = tie[places], label[places]
    last = np.full(places.shape, n - 1)
    last[:, :-1] = np.where(ties[:, 1:] != ties[:, :-1], np.arange(n - 1), n - 1)
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    hits = np.cumsum(positive, axis=1)
    precision = np.take_along_axis(hits, last, axis=1) / (last + 1)
    known = hits[:, -1] > 0
    values = log_odds((positive * precision).sum(axis=1) / np.maximum(hits[:, -1], 1), law.half(n))
    # All examples may be higher in their order than in random order by bucket.
    mixed = Ranks.of([law.by_score]).mixed(np.array(law.coarse))
    values = values[known] + (law.of_all(law.value) - law.of_all(mixed))
    influence = Ranks.of([law.by_score]).influence[0]
    linear = influence[:, ::-1][label, bucket][places].sum(axis=1)[known]
    # Of few positives, AP follows the sum of influences less than it does in the limit.
    slope = np.linalg.lstsq(linear[:, None], values - values.mean(), rcond=None)[0]
    exact = linear_statistic_moments(slope * influence.reshape(-1), law.totals, n)
    moments = moments_with_linear_part(values, slope * linear - exact.mean, exact)
    return DrawnValues(np.sort(values), moments, 1.0 - float(known.mean()))


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
