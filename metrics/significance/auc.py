"""Area under the ROC curve of slices: value, test against all examples and intervals.

All follows from the *placements*: where the positives stand among the negatives, and the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betainc, betaincc, stdtrit

from slicebeam.metrics.arrays import (
    ArrayLike,
    BoolArray,
    FloatArray,
    IntArray,
    NDArray,
    Pair,
    floats,
    ratio,
)
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance.intervals import bisect, shrunk_to_delta
from slicebeam.metrics.significance.outcome_codes import select_tail

# Histogram entries that are worked on at once: about twenty float arrays of them are alive.
ENTRIES_AT_ONCE = 1_000_000
# Shares are sums of rounded shares: what is below this is 0.
_ROUNDING = 1e-13
# The fitted law ends where the AUC does by so much, else where the gamma law ends, by simulation.
_END_AS_AUC = 0.45
# The gamma law's end is at least as far as the AUC's, divided by this: skewness is cut to fit.
_REACH = 0.97
# Cells of a slice's histogram have at most one part in so many of its positives, and negatives, with several scores.
PARTS = 256
# A stable sort of numbers of this type is a radix sort.
_RADIX = np.uint16
# Examples' worth of the expected spread: chosen by coverage in slices of 20 to 1000 examples.
_PRIOR_EXAMPLES = 20.0
# How two models differ on one or two examples says nothing of how far their AUCs may differ.
_LEAST_OF_CLASS = 3.0


class Placements(NamedTuple):
    """How a slice's positives stand among its negatives; float64 [slices], NaN where a class is empty.

    The means of φ, a², b², c², a³, b³, a·b·c, a·c² and b·c²: with φ = 1 where a positive scores above a negative, ½ where
    they tie, φ = auc + a + b + c, a of the positive and b of the negative alone, c the rest (Hoeffding 1948).
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


class Sides(NamedTuple):
    """Sets of examples [slices]: how they are placed, and how many positives and negatives there are (Kish's if weighted)."""

    placements: Placements
    ones: FloatArray
    zeros: FloatArray


class Area(NamedTuple):
    """A metric of ranks, and that of the other examples, each with how far buckets may put it off [slices]."""

    value: FloatArray
    error: FloatArray
    complement: FloatArray
    complement_error: FloatArray


def placements(histogram: ArrayLike) -> Placements:
    """Return AUC and moments of the placements of histograms [slices, 2 (negatives, positives), buckets]."""
    # Examples in one bucket tie: DeLong, DeLong and Clarke-Pearson (1988), Biometrics 44:837, eq. 1–4, divided by n.
    counts = np.asarray(histogram, dtype=np.int64)
    step = max(1, ENTRIES_AT_ONCE // max(1, counts[:1].size))
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
    return ratio(0.5 * together.sum(axis=1), pairs)


def bucket_edges(scores: ArrayLike, buckets: int) -> FloatArray:
    """Return ascending edges of buckets of about equally many examples, for ``searchsorted(side="right")``."""
    # At most `buckets` distinct scores have a bucket each. Else those that fill two average buckets do.
    values, counts = np.unique(np.asarray(scores, dtype=np.float64), return_counts=True)
    if values.size <= buckets:
        return values[1:]
    heavy = counts * buckets > 2 * counts.sum()
    light = np.where(heavy, 0, counts)
    # The place of a value among the light ones, in (0, 1), by the middle of its examples.
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
    return np.asarray(values[1:][opens])


def z_p_value(own: Sides, of_all: Sides, tail: Tail) -> FloatArray:
    """Return the p-value [slices] of an AUC against that of all examples; 1 where no other is possible."""
    # z has the exact variance of random subsets of either class, and the tail of a beta law (Pearson I) of its mean,
    # variance and skewness (to terms of 1/n³).
    value, n1, n0, N1, N0 = floats(own.placements.auc, *own[1:], *of_all[1:])
    known = (n1 > 0) & (n0 > 0) & ~np.isnan(value) & ~np.isnan(of_all.placements.auc)
    all_auc, spread1, spread0, interaction, skew1, skew0, mixed, mixed1, mixed0 = (
        np.where(known, moment, 0.0) for moment in of_all.placements
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
    ends = all_auc / deviation, (1.0 - all_auc) / deviation
    tails = _beta_tails(z, third / deviation**3, ends, 0.5 / (n1 * n0 * deviation))
    return np.where(possible, select_tail(*tails, tail), 1.0)


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
    return np.asarray(np.einsum("sb,sb->s", share, value))


def _finite(n: FloatArray, N: FloatArray) -> Pair:
    """Return what drawing n of N leaves of the mean's variance, and of its third moment."""
    rest = np.maximum(N - n, 0.0)
    second = rest / np.maximum(N - 1.0, 1.0)
    return second, second * (rest - n) / np.maximum(N - 2.0, 1.0)


def _beta_tails(z: FloatArray, skewness: FloatArray, ends: Pair, half_step: FloatArray) -> Pair:
    """Return P(Z ≥ z) and P(Z ≤ z) of a beta law of mean 0 and variance 1, `ends` how far z reaches below and above 0."""
    # The light tail, opposite to the skewness, ends between there and the end of the gamma law, 2/abs(skewness).
    right = skewness > 0.0
    near, far = (np.where(right, *order) + half_step for order in (ends, ends[::-1]))
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


def value_interval(own: Sides, confidence: float) -> Pair:
    """Return the interval of slices' AUC; (0, 1) where a class is empty: Newcombe (2006), Stat. Med. 25:559, method 5."""
    # The variance of Hanley and McNeil (1982), Radiology 143:29, eq. 1, is scaled by how much the slice's placements vary,
    # compared with that model, which weighs as twenty examples; t at Welch's degrees of freedom.
    known, value, ones, zeros, spread1, spread0 = _raised_sides(own)
    # Of the spreads that the model expects of placements among so few examples of the other class.
    scales = (spread1 / _expected(value, zeros), spread0 / _expected(value, ones))
    z = _quantile(spread1 / ones, spread0 / zeros, ones, zeros, confidence)
    high = _score_end(value, ones, zeros, scales, z)
    low = 1.0 - _score_end(1.0 - value, ones, zeros, scales, z)
    # Rounding must not move an end past the AUC.
    low, high = np.clip(low, 0.0, value), np.maximum(high, value)
    return np.where(known, low, 0.0), np.where(known, high, 1.0)


def delta_interval(own: Sides, of_all: Sides, confidence: float) -> Pair:
    """Return the interval of slices' AUC minus that of all examples; (−1, 1) where a class is empty."""
    # Of a class's variance s/n there remains s·(1 − f)²/n + s'·(1 − f)·f/n, f = n/N, s' what the slice leaves of all
    # examples' variance S, at least S: DeLong, DeLong and Clarke-Pearson (1988).
    low, high = value_interval(own, confidence)
    _, _, ones, zeros, spread1, spread0 = _raised_sides(own)
    placed, reference = own.placements, of_all.placements
    variance, of_delta = np.zeros((2, *ones.shape))
    for spread, observed, overall, size, whole in (
        (spread1, placed.spread1, reference.spread1, ones, of_all.ones),
        (spread0, placed.spread0, reference.spread0, zeros, of_all.zeros),
    ):
        outside = 1.0 - np.minimum(size / np.maximum(np.asarray(whole, dtype=np.float64), 1.0), 1.0)
        variance += spread / size
        share = 1.0 - outside
        # (1 − f)·s', so that nothing is divided by 0 where nothing is outside.
        of_others = np.where(outside > 0, np.fmax(outside * overall, overall - share * observed), 0)
        of_delta += (outside**2 * spread + share * of_others) / size
    variances = variance, of_delta
    return shrunk_to_delta((placed.auc, low, high), variances, reference.auc, 1.0, confidence)


def gain_interval(
    delta: FloatArray, own: Pair, reference: Pair, n1: ArrayLike, n0: ArrayLike, confidence: float
) -> Pair:
    """Return the interval of a new model's AUC minus an old one's; NaN with less than three of a class."""
    # s are the variances of the gains in placement, at least what twenty examples like all would make them. A pair varies
    # beyond its two gains: a share √(2/π·(s1 + s0)) of pairs is ordered differently.
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
    reach = np.where(known, reach, np.nan)
    return np.maximum(delta - reach, -1.0), np.minimum(delta + reach, 1.0)


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
    return np.asarray(larger * larger * (1.0 - larger) / (1.0 + larger))


def _expected(auc: FloatArray, others: FloatArray) -> FloatArray:
    """Return the model's variance of placements among a few examples of the other class."""
    other = 1.0 - auc
    both = auc * other * (other / (1.0 + other) + auc / (1.0 + auc))
    return np.maximum(_model_spread(auc) + (auc * other - both) / others, 1e-12)


def _raised_sides(own: Sides) -> tuple[Any, ...]:
    """Return whether both classes occur, AUC, sizes of the classes, and variances raised towards the model's."""
    auc, ones, zeros = floats(own.placements.auc, *own[1:])
    known = (ones > 0) & (zeros > 0)
    value, ones, zeros = (
        np.where(known, part, none) for part, none in ((auc, 0.5), (ones, 1.0), (zeros, 1.0))
    )
    spread1, spread0 = (
        _raised(np.where(np.isnan(spread), 0.0, spread), size, _expected(value, others))
        for spread, size, others in (
            (own.placements.spread1, ones, zeros),
            (own.placements.spread0, zeros, ones),
        )
    )
    return known, value, ones, zeros, spread1, spread0


def _raised(spread: FloatArray, size: FloatArray, expected: FloatArray) -> FloatArray:
    """Return variances (divisor n − 1), raised where more examples as expected would raise them, never lowered."""
    variance = spread * size / np.maximum(size - 1.0, 1.0)
    weight = _PRIOR_EXAMPLES / (size - 1.0 + _PRIOR_EXAMPLES)
    return variance + weight * np.maximum(expected - variance, 0.0)


def _score_end(
    auc: FloatArray, n1: FloatArray, n0: FloatArray, scales: Pair, z: FloatArray
) -> FloatArray:
    """Return the largest θ with θ − auc ≤ z·√V(θ)."""
    weight = (n0 - 1.0) * scales[0] + (n1 - 1.0) * scales[1]

    def keeps(theta: FloatArray) -> BoolArray:
        variance = (theta * (1.0 - theta) + weight * _model_spread(theta)) / (n1 * n0)
        return np.asarray(np.square(theta - auc) <= z * z * variance)

    return bisect(keeps, auc, np.ones(auc.shape))


class ScoredRows(NamedTuple):
    """Rows of a group in ascending order of score: rank of the score, label, weights in fixed point or None."""

    rank: IntArray
    positive: BoolArray
    weights: IntArray | None


class Areas:
    """Exact AUC of slices and of their replicates, from groups of ascending scores, however cut: `begin`, then `add`."""

    # `sizes` [slices, 2] and `of_all` [2] are negatives and positives: examples, or weights in fixed point.

    def __init__(
        self, sizes: IntArray, of_all: IntArray, layers: int, *, with_precisions: bool = False
    ) -> None:
        self.sizes, self.of_all = sizes, of_all
        slices = len(sizes)
        # Negatives and positives of each slice so far.
        self._below = np.zeros((layers, slices, 2), np.int64)
        # Twice the pairs that a positive wins, ties by half: weighted ones would overflow whole numbers.
        self._wins = np.zeros((layers, slices))
        # Twice the pairs won of all positives against the slice's negatives, and the reverse.
        self._crossed = np.zeros((2, slices))
        self._cells = np.zeros((slices, 2, 2 * PARTS), np.int64)
        self._below_all = np.zeros(2, np.int64)
        self._wins_all = np.zeros(1)
        # Sums of the precisions of each slice's positives, if they are wanted.
        self.precisions = np.zeros(slices) if with_precisions else None

    def begin(self, rows: ScoredRows) -> None:
        """Take all rows of the next group."""
        self._rows = rows
        ranks = int(rows.rank[-1]) + 1 if rows.rank.size else 0
        begins = np.searchsorted(rows.rank, np.arange(ranks))
        counts = _by_class(rows.positive, rows.weights, begins)
        before = np.cumsum(counts, axis=1) - counts + self._below_all[:, None]
        above = self.of_all[1] - before[1] - counts[1]
        # What an example of this score wins against all of the other class, ties by half, twice.
        self._against_negatives = (2 * before[0] + counts[0]).astype(np.float64)
        self._against_positives = (2 * above + counts[1]).astype(np.float64)
        won = counts[1] * self._against_negatives
        np.add.at(self._wins_all, np.zeros(won.size, np.int64), won)
        self._below_all = self._below_all + counts.sum(axis=1)

    def add(
        self, slices: IntArray, rows: IntArray, drawn: Sequence[NDArray[np.uint8]] | None = None
    ) -> None:
        """Add members of the group: slices and rows [members], rows ascending in each, and how often each is drawn."""
        if slices.size == 0:
            return
        few = len(self.sizes) <= np.iinfo(_RADIX).max
        order = np.argsort(slices.astype(_RADIX) if few else slices, kind="stable")
        slices, rows = slices[order], rows[order]
        rank = self._rows.rank[rows]
        # Runs are neighbours in a slice with one score; `first` is the run at which its slice begins.
        opens = np.ones(slices.size, bool)
        opens[1:] = (slices[1:] != slices[:-1]) | (rank[1:] != rank[:-1])
        at = np.flatnonzero(opens)
        run_slices = slices[at]
        begins = np.ones(at.size, bool)
        begins[1:] = run_slices[1:] != run_slices[:-1]
        first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        last = np.append(np.flatnonzero(np.diff(first)), first.size - 1)
        positive = self._rows.positive[rows]
        own = None if self._rows.weights is None else self._rows.weights[rows]
        for layer, times in enumerate([None, *(drawn or ())]):
            weights = own
            if times is not None:
                often = times[rows].astype(np.int64)
                weights = often if own is None else own * often
            counts = _by_class(positive, weights, at)
            # Counts below each run in its slice [2, runs]: sums over slices may wrap around, these do not.
            running = np.cumsum(counts, axis=1) - counts
            below = running - running[:, first] + self._below[layer, run_slices].T
            # One after another, so that a sum of floats is the same wherever the groups are cut.
            np.add.at(self._wins[layer], run_slices, counts[1] * (2.0 * below[0] + counts[0]))
            self._below[layer, run_slices[last]] = (below + counts).T[last]
            if layer == 0:
                self._add_own(run_slices, rank[at], counts, below)

    def _add_own(self, slices: IntArray, rank: IntArray, counts: IntArray, below: IntArray) -> None:
        """Add what replicates do not need of runs, each of one slice and rank."""
        for crossed, mine, against in (
            (self._crossed[0], counts[1], self._against_negatives),
            (self._crossed[1], counts[0], self._against_positives),
        ):
            np.add.at(crossed, slices, mine * against[rank])
        whole = self.sizes[slices].T
        if self.precisions is not None:
            reached = whole - below
            precision = reached[1] / np.maximum(reached.sum(axis=0), 1)
            np.add.at(self.precisions, slices, counts[1] * precision)
        # A run's place is its middle, so that one with many examples shares a cell with few others.
        share = (below + 0.5 * counts) / np.maximum(whole, 1)
        cells = np.minimum((PARTS * share).astype(np.int64), PARTS - 1).sum(axis=0)
        for label in (0, 1):
            place = (slices * 2 + label) * (2 * PARTS) + cells
            np.add.at(self._cells.reshape(-1), place, counts[label])

    def values(self) -> FloatArray:
        """Return the AUC [slices, layers]; NaN where a class is empty."""
        negatives, positives = np.moveaxis(self._below, -1, 0)
        return _share(self._wins, negatives, positives).T

    def placements(self) -> Placements:
        """Return the exact AUC, and moments of the placements from the slice's own histogram."""
        return placements(self._cells)._replace(auc=self.values()[:, 0])

    def complements(self) -> FloatArray:
        """Return the AUC [slices] of the examples outside each slice; NaN where a class is empty."""
        # Of all pairs, those with a positive in the slice, with a negative in it, and with both.
        wins = self._wins_all - self._crossed[0] - self._crossed[1] + self._wins[0]
        others = self.of_all - self.sizes
        return _share(wins, others[:, 0], others[:, 1])


def _by_class(positive: BoolArray, weights: IntArray | None, at: IntArray) -> IntArray:
    """Return the negatives and positives [2, runs] of runs that begin there."""
    if at.size == 0:
        return np.zeros((2, 0), np.int64)
    if weights is None:
        ones = np.add.reduceat(positive, at, dtype=np.int64)
        every = np.diff(at, append=positive.size)
    else:
        ones = np.add.reduceat(np.where(positive, weights, 0), at)
        every = np.add.reduceat(weights, at)
    return np.stack([every - ones, ones])


def _share(wins: FloatArray, negatives: IntArray, positives: IntArray) -> FloatArray:
    # Sums of float weights may leave the range by their rounding.
    share = ratio(wins, 2.0 * negatives.astype(np.float64) * positives)
    return np.asarray(np.clip(share, 0.0, 1.0))
