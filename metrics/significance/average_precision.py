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
    Sample,
    cells_of_subsets,
    linear_statistic_moments,
    moments_with_linear_part,
    sample_moments,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray

# Of so many places in drawn subsets, and at most so many subsets, a law of a small size is made.
_PLACES, _MOST_DRAWS = 2_000_000, 40_000
# Larger subsets are drawn by cell, so many of them: three moments tell their law.
_LARGE, _DRAWS = 200, 5000
# Of more examples, those of each cell in proportion.
_LARGEST_LISTED = 1 << 22


class Precisions(NamedTuple):
    """Of slices [slices]: average precision, how far it may be off, and its variance times the positives."""

    value: FloatArray
    error: FloatArray
    variance: FloatArray


class _Above(NamedTuple):
    """By bucket [slices, buckets]: positives and negatives in it, and those of higher scores."""

    positives: FloatArray
    negatives: FloatArray
    positives_above: FloatArray
    negatives_above: FloatArray

    @classmethod
    def of(cls, histogram: ArrayLike) -> _Above:
        counts = np.asarray(histogram, dtype=np.float64)
        above = np.cumsum(counts[:, :, ::-1], axis=2)[:, :, ::-1] - counts
        return cls(counts[:, 1], counts[:, 0], above[:, 1], above[:, 0])

    @property
    def size(self) -> FloatArray:
        """All positives [slices], NaN for none."""
        size = self.positives.sum(axis=1)
        return np.where(size > 0, size, np.nan)

    @property
    def precision(self) -> FloatArray:
        """The precision at each bucket's lowest score [slices, buckets]."""
        hits = self.positives_above + self.positives
        return np.asarray(hits / np.maximum(hits + self.negatives_above + self.negatives, 1.0))


def precisions(histogram: IntArray, coarse: BoolArray) -> Precisions:
    """Return AP of histograms [slices, 2 (negatives, positives), buckets] whose examples in one bucket tie.

    The ``coarse`` buckets [buckets] hold several scores: each positive's precision then is at least what it
    has below all negatives of its bucket, and at most that of all the bucket's positives above them.
    """
    step = max(1, ENTRIES_AT_ONCE // histogram[:1].size)
    blocks = [
        _precisions(histogram[at : at + step], coarse) for at in range(0, len(histogram), step)
    ]
    return Precisions(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def _precisions(histogram: IntArray, coarse: BoolArray) -> Precisions:
    above = _Above.of(histogram)
    tied = above.positives * above.precision
    value = tied.sum(axis=1) / above.size
    k, hits = above.positives[:, coarse], above.positives_above[:, coarse]
    alarms = above.negatives_above[:, coarse]
    highest = k * (hits + k) / np.maximum(hits + k + alarms, 1.0)
    lower = alarms + above.negatives[:, coarse]
    # Σ (hits + j)/(hits + j + lower) over j = 1..k.
    lowest = k - lower * (psi(hits + lower + k + 1.0) - psi(hits + lower + 1.0))
    # With one positive, or no negative more, the sum above would leave rounding.
    lowest = np.where((k == 0) | (lower == 0), k, lowest)
    lowest = np.where(k == 1, (hits + 1.0) / (hits + 1.0 + lower), lowest)
    off = np.maximum(
        (highest - tied[:, coarse]).sum(axis=1), (tied[:, coarse] - lowest).sum(axis=1)
    )
    n = np.maximum(histogram.sum(axis=(1, 2)), 1)
    squares = (np.square(influence(histogram)) * histogram).sum(axis=(1, 2))
    variance = squares / n * (above.size / n)
    return Precisions(value, np.maximum(off, 0.0) / above.size, variance)


def influence(histogram: ArrayLike) -> FloatArray:
    """Return n times what an example of each class and bucket adds to AP [slices, 2, buckets], of mean 0.

    The derivative of AP by the share of such examples: a positive adds its precision and raises that of lower scores,
    any example lowers the precision of scores up to its own.
    """
    above = _Above.of(histogram)
    n = np.sum(np.asarray(histogram, dtype=np.float64), axis=(1, 2))[:, None]
    size = above.size[:, None]
    reached = above.positives_above + above.positives
    reached = np.maximum(reached + above.negatives_above + above.negatives, 1.0)
    raised = np.cumsum(above.positives / reached, axis=1)
    lowered = np.cumsum(above.positives * above.precision / reached, axis=1)
    value = (above.positives * above.precision).sum(axis=1)[:, None] / size
    positive = above.precision + raised - lowered - value
    return np.asarray(np.stack([-lowered, positive], axis=1) * (n / size)[:, None])


def log_odds(value: FloatArray, half: FloatArray) -> FloatArray:
    """Return the log-odds of AP, with half a positive (as a share of them) added on either side."""
    return np.asarray(np.log((value + half) / (1.0 - value + half)))


class SubsetLaw(NamedTuple):
    """Log-odds of AP of random subsets of all examples, whose scores in a coarse bucket are in random order.

    Three moments tell tails of the log-odds, where AP itself ends at 1. Half a positive keeps them finite.
    """

    histogram: IntArray  # [2, buckets]
    coarse: BoolArray  # [buckets]

    @property
    def totals(self) -> IntArray:
        """All examples by cell."""
        return self.histogram.reshape(-1)

    def half(self, n: ArrayLike) -> FloatArray:
        """Return half a positive as a share of those to be expected among n examples."""
        expected = np.asarray(n) * (self.histogram[1].sum() / self.totals.sum())
        return np.asarray(0.5 / expected)

    def value_of(self, cells: IntArray) -> FloatArray:
        """Return the log-odds of drawn cells [draws, cells]; in coarse buckets by the precision of the middle positive."""
        above = _Above.of(cells.reshape(-1, *self.histogram.shape))
        hits = above.positives_above + 0.5 * (above.positives + 1.0)
        middle = hits / (hits + above.negatives_above + 0.5 * above.negatives)
        each = np.where(self.coarse, middle, above.precision)
        value = (above.positives * each).sum(axis=1) / above.size
        return log_odds(np.minimum(value, 1.0), self.half(cells.sum(axis=1)))

    def of_size(self, n: int) -> Sample:
        """Return the sorted values of drawn subsets of n examples, and their three moments."""
        return _sample(tuple(self.totals.tolist()), tuple(self.coarse.tolist()), n)

    def drawn(self, n: int) -> Sample:
        """See `of_size`, which remembers it."""
        key = int(hash64(0, 0, np.array([n], dtype=np.uint64))[0])
        generator = np.random.Generator(np.random.Philox(key=key))
        size = int(self.totals.sum())
        limit = float(precisions(self.histogram[None], self.coarse).value[0])
        slope = n * max(limit * (1.0 - limit), 1.0 / size)
        scores = influence(self.histogram[None]).reshape(-1) / slope
        if n <= _LARGE:
            values, linear = self._examples(n, scores, generator)
        else:
            cells = cells_of_subsets(generator, self.totals, n, _DRAWS)
            values, linear = self.value_of(cells), cells @ scores
        known = ~np.isnan(values)
        moments = sample_moments(values[known])
        if known.all():
            exact = linear_statistic_moments(scores, self.totals, n)
            moments = moments_with_linear_part(values, linear - exact.mean, exact)
        return Sample(np.sort(values[known]), moments, 1.0 - float(known.mean()))

    def _examples(
        self, n: int, scores: FloatArray, generator: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return the log-odds, and sums of scores [cells], of subsets of n examples that are drawn one by one."""
        counts = self.histogram[:, ::-1].T
        if counts.sum() > _LARGEST_LISTED:
            counts = np.rint(counts * (_LARGEST_LISTED / counts.sum())).astype(np.int64)
        # Examples from the highest score down: bucket, then label.
        listed = np.repeat(np.arange(counts.size), counts.reshape(-1))
        bucket, label = np.divmod(listed, 2)
        label = label[np.argsort(bucket + generator.random(bucket.size))]
        cell = label * len(counts) + (len(counts) - 1 - bucket)
        tie = np.where(self.coarse[::-1][bucket], np.arange(bucket.size), bucket - len(counts))
        places = _subsets(generator, bucket.size, n, min(_MOST_DRAWS, _PLACES // n))
        ties, positive = tie[places], label[places]
        ends = np.ones(places.shape, bool)
        ends[:, :-1] = ties[:, 1:] != ties[:, :-1]
        last = np.where(ends, np.arange(n), n)[:, ::-1]
        last = np.minimum.accumulate(last, axis=1)[:, ::-1]
        hits = np.cumsum(positive, axis=1)
        precision = np.take_along_axis(hits, last, axis=1) / (last + 1)
        size = np.where(hits[:, -1] > 0, hits[:, -1], np.nan)
        values = (positive * precision).sum(axis=1) / size
        return log_odds(values, self.half(n)), scores[cell[places]].sum(axis=1)


def _subsets(generator: np.random.Generator, size: int, n: int, draws: int) -> IntArray:
    """Return n different numbers below the size [draws, n], ascending."""
    if size < 4 * n:
        every = np.broadcast_to(np.arange(size), (draws, size))
        return np.sort(generator.permuted(every, axis=1)[:, :n], axis=1)
    places = np.sort(generator.integers(0, size, (draws, n)), axis=1)
    while (again := places[:, 1:] == places[:, :-1]).any():
        places[:, 1:][again] = generator.integers(0, size, int(again.sum()))
        places.sort(axis=1)
    return places


@lru_cache(maxsize=1024)
def _sample(totals: tuple[int, ...], coarse: tuple[bool, ...], n: int) -> Sample:
    return SubsetLaw(np.array(totals).reshape(2, -1), np.array(coarse)).drawn(n)
