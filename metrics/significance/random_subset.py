"""The law of the sum of a random subset: its tail by a saddle point for sampling without replacement.

A slice that is nothing special is a random subset of its size. Student's t does not know how the
values outside the slice lie, and a slice of 50 losses hardly shows it; the law of random subsets
does, for any shape of the values: skewed, bimodal, discrete.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.significance import count_tests
from slicebeam.metrics.significance.subset_law import LARGEST_ROOT, Population, SubsetLaw
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.kinds import Tail

# Bins of a population, evenly spaced in asinh(deviation / (this part of the standard deviation)):
# they are narrow next to the deviation in the middle and next to the value itself in the tails.
BINS = 256
_MIDDLE = 0.25
# A variance within a bin below this part of the bin's squared width is what rounding leaves of none.
_ONE_VALUE = 1e-9
# Few values may lie on a lattice, whose span is found to this part of their range.
_LATTICE_VALUES = 64
_LATTICE_STEPS = 10_000
_LATTICE_ROUNDING = 1e-7
# Values of a bin that are so large a part of the sum of squares, and so few, are in a subset, or not,
# by themselves: the sum's law has a lump for each of them.
_OUTLYING, _FEW, _MOST_OUTLIERS = 0.02, 3, 3
# The lumps of a value that occurs several times show where the rest of a sum spreads by less than this
# part of the distance between them: beyond, a saddle point is as exact.
_LUMPY = 0.5
# What adds less than this part to either tail is left out.
_NEGLIGIBLE = 1e-5


def bin_edges(low: float, high: float, deviation: float) -> FloatArray:
    """Return the edges [BINS + 1] of the bins of values about 0 with a standard deviation above 0."""
    unit = _MIDDLE * deviation
    places = np.linspace(np.arcsinh(low / unit), np.arcsinh(high / unit), BINS + 1)
    return np.asarray(unit * np.sinh(places))


def bin_sums(values: FloatArray, edges: FloatArray, unit: float) -> IntArray:
    """Return int64 [3, BINS], which add up: number of values, their distance from the lower edge, its square.

    The distances are in units of `unit` times the bin's width (squared).
    """
    left, width = edges[:-1], np.diff(edges)
    at = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)
    place = np.clip((values - left[at]) / np.where(width > 0, width, 1.0)[at], 0.0, 1.0)
    sums = np.zeros((3, BINS), np.int64)
    sums[0] = np.bincount(at, minlength=BINS)
    for power in (1, 2):
        np.add.at(sums[power], at, np.rint(place**power / unit).astype(np.int64))
    return sums


def population(sums: IntArray, edges: FloatArray, unit: float) -> Population:
    """Return the population of summed `bin_sums`: two points a bin keep its number, mean and variance."""
    filled = np.flatnonzero(sums[0])
    counts = sums[0, filled].astype(np.float64)
    mean = sums[1, filled] * unit / counts
    variance = sums[2, filled] * unit / counts - mean**2
    spread = np.sqrt(np.where((counts > 1) & (variance > _ONE_VALUE), variance, 0.0))
    left, width = edges[:-1][filled], np.diff(edges)[filled]
    if not spread.any():
        points = left + width * mean
        return Population(tuple(points.tolist()), tuple(counts.tolist()), _span(points))
    parts = np.where(spread > 0, 2, 1)
    points = np.repeat(left + width * mean, parts)
    signs = np.ones(points.size)
    signs[np.cumsum(parts) - parts] = -1.0
    points += signs * np.repeat(width * spread, parts)
    return Population(tuple(points.tolist()), tuple(np.repeat(counts / parts, parts).tolist()))


def _span(points: FloatArray) -> float:
    """Return the span of the lattice that ascending points are on; 0 for none."""
    if not 2 <= points.size <= _LATTICE_VALUES:
        return 0.0
    rounding = _LATTICE_ROUNDING * float(points[-1] - points[0])
    span = 0.0
    for first, second in pairwise(points.tolist()):
        a, b = second - first, span
        while b > rounding:
            a, b = b, a % b
            # A remainder that is all but the divisor is none.
            b = 0.0 if a - b <= rounding else b
        span = a
    steps = np.diff(points) / span
    fits = np.abs(steps - np.rint(steps)).max() <= _LATTICE_ROUNDING * _LATTICE_STEPS
    return float(span) if fits and steps.sum() <= _LATTICE_STEPS else 0.0


def sum_p_value(n: ArrayLike, total: ArrayLike, of: Population, tail: Tail) -> FloatArray:
    """Return the tail of the sum of n of the population's values, drawn without replacement.

    With f = n/N, values x_i about their mean and K(a, b) = Σ log(1 − f + f·e^(a + b·x_i)) solve
    ∂K/∂a = n, ∂K/∂b = S. Then r = sign(b)·√(2(a·n + b·S − K)),
    q = b·√(det K″(a, b)/(N·f·(1 − f))) and P(sum ≥ S) ≈ Φ(−w), w = r + log(q/r)/r: Robinson
    (1982), Ann. Statist. 10:458; Booth and Butler (1990), Biometrika 77:787. On a lattice of span d,
    (2/d)·tanh(b·d/2) stands for b in q, which makes it the mid-p. Solved for fixed sizes along b and
    interpolated. The tail sums over the numbers of outliers and far values, which make lumps.

    Assumption: the slice is a random subset. One with the overall mean but more varied values than all
    examples is called more often than the level says.
    """
    sizes, sums = np.broadcast_arrays(
        np.asarray(n, dtype=np.int64), np.asarray(total, dtype=np.float64)
    )
    rest, outliers = _parts(of)
    counts = tuple(outlier.number for outlier in outliers)
    N = rest.N + sum(counts)
    p = np.ones(sizes.shape)
    possible = (sizes > 0) & (sizes < N) & ((rest.deviation > 0) | (len(outliers) > 0))
    n_, S = sizes[possible], sums[possible]
    distinct, place = np.unique(n_, return_inverse=True)
    upper, lower = np.zeros(S.shape), np.zeros(S.shape)
    for held in sorted(product(*(range(count + 1) for count in counts)), key=sum):
        chance = _chance_of(held, counts, distinct, N)[place]
        some = np.flatnonzero(chance > _NEGLIGIBLE * np.minimum(upper, lower))
        own = sum(times * outlier.value for times, outlier in zip(held, outliers, strict=True))
        above, below = rest.tails(n_[some] - sum(held), S[some] - own)
        upper[some] += chance[some] * above
        lower[some] += chance[some] * below
    p[possible] = select_tail(np.minimum(upper, 1.0), np.minimum(lower, 1.0), tail)
    return p


class _Outlier(NamedTuple):
    """A value that is much of the sum of squares, and how often it occurs."""

    value: float
    number: int


@lru_cache(maxsize=16)
def _parts(of: Population) -> tuple[SubsetLaw | _WithFarValue, tuple[_Outlier, ...]]:
    """Return the law of all but the outliers, and the outliers."""
    points, counts = np.asarray(of.points), np.asarray(of.counts)
    outliers: list[_Outlier] = []
    while at := _outlying(points, counts):
        outlier = _outlier(points, counts, at)
        if len(outliers) == _MOST_OUTLIERS or outlier.number > _FEW:
            break
        outliers.append(outlier)
        points, counts = np.delete(points, at), np.delete(counts, at)
    law = _law(points, counts, of.span, is_part=bool(outliers))
    if len(at) != 1:
        return law, tuple(outliers)
    rest = _law(np.delete(points, at), np.delete(counts, at), of.span, is_part=True)
    far = _WithFarValue(law, rest, *_outlier(points, counts, at))
    return far if far.stands_apart(np.array([2]))[0] else law, tuple(outliers)


def _outlying(points: FloatArray, counts: FloatArray) -> list[int]:
    """Return where the value farthest from the mean is, if much of the sum of squares (an odd bin has two)."""
    if points.size <= 2:
        return []
    deviations = points - (counts * points).sum() / counts.sum()
    at = int(np.argmax(np.abs(deviations)))
    # The other half is nearer to the mean.
    halves = counts[at] % 1.0 != 0
    places = [at, at - int(np.sign(deviations[at]))] if halves else [at]
    squares = counts * np.square(deviations)
    return places if squares[places].sum() >= _OUTLYING * squares.sum() else []


def _outlier(points: FloatArray, counts: FloatArray, at: list[int]) -> _Outlier:
    return _Outlier(float(points[at].mean()), round(float(counts[at].sum())))


def _law(points: FloatArray, counts: FloatArray, span: float, *, is_part: bool) -> SubsetLaw:
    return SubsetLaw(
        Population(tuple(points.tolist()), tuple(counts.tolist()), span), is_part=is_part
    )


class _WithFarValue:
    """The sums of random subsets of a population in which one value, far off, occurs several times.

    How often a small subset holds it makes lumps that a saddle point smooths over: the tail is the sum
    over that hypergeometric number. `whole` and `rest` are the laws with and without the value.
    """

    def __init__(self, whole: SubsetLaw, rest: SubsetLaw, value: float, count: int) -> None:
        self.whole, self.rest, self.value, self.count = whole, rest, value, count
        self.N, self.deviation = whole.N, whole.deviation

    def stands_apart(self, n: IntArray) -> BoolArray:
        """Say of which sizes [slices] the sums have lumps."""
        spread = self.rest.deviation * np.sqrt(n * (1.0 - n / self.N))
        return np.asarray((spread > 0) & (spread < _LUMPY * abs(self.value - self.rest.mean)))

    def tails(self, n: IntArray, total: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the upper and lower tail [slices] of sums, for 0 ≤ n ≤ N."""
        apart = self.stands_apart(n)
        upper, lower = np.empty(n.shape), np.empty(n.shape)
        for some, tails in ((apart, self._summed), (~apart, self.whole.tails)):
            if some.any():
                upper[some], lower[some] = tails(n[some], total[some])
        return upper, lower

    def _summed(self, n: IntArray, total: FloatArray) -> tuple[FloatArray, FloatArray]:
        gap = self.value - self.rest.mean
        least, most = np.maximum(0, n - self.rest.N), np.minimum(n, self.count)
        # With more or fewer of the value than these, the rest can't make up for it.
        middle = (total - n * self.rest.mean) / gap
        spread = self.rest.deviation * np.sqrt(n * (1.0 - n / self.N))
        reach = 1.0 + LARGEST_ROOT * spread / abs(gap)
        first = np.clip(np.ceil(middle - reach), least, most + 1).astype(np.int64)
        last = np.clip(np.floor(middle + reach), least - 1, most).astype(np.int64)
        more = count_tests.weighted_tail(n, last, self.N, self.count, 0.0)
        fewer = count_tests.weighted_tail(n, n - first, self.N, self.rest.N, 0.0)
        upper, lower = (more, fewer) if gap > 0 else (fewer, more)
        for step in range(int((last - first).max(initial=-1)) + 1):
            some = np.flatnonzero(first + step <= last)
            held, size = first[some] + step, n[some]
            chance = count_tests.pmf(held, self.N, self.count, size)
            matters = chance > _NEGLIGIBLE * np.minimum(upper[some], lower[some])
            some, chance = some[matters], chance[matters]
            held, size = held[matters], size[matters]
            above, below = self.rest.tails(size - held, total[some] - held * self.value)
            upper[some] += chance * above
            lower[some] += chance * below
        return upper, lower


def _chance_of(held: tuple[int, ...], counts: tuple[int, ...], n: IntArray, N: int) -> FloatArray:
    """Return the probability [slices] of exactly this many of each outlier."""
    chance, left, drawn = np.ones(n.shape), N, n
    for times, count in zip(held, counts, strict=True):
        possible = drawn >= times
        chance *= np.where(
            possible, count_tests.pmf(times, left, count, np.clip(drawn, 0, left)), 0.0
        )
        drawn = drawn - times
        left -= count
    return chance
