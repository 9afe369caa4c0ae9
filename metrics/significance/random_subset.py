"""The law of the sum of a random subset: its tail by a saddle point for sampling without replacement.

Unlike Student's t it knows how the values outside a slice lie: they may be skewed, bimodal, discrete. "Means: random
subsets" of docs/explanation/statistics.md has the formula; on a lattice of span d, (2/d)·tanh(b·d/2) stands for b in q,
which makes it the mid-p. It is solved for some sizes along b, and interpolated.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, product
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri_exp

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, Pair
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance import count_tests
from slicebeam.metrics.significance.count_tests import log_choose
from slicebeam.metrics.significance.outcome_codes import select_tail

# Bins are even in asinh(deviation / (this part of the standard deviation)): narrow next to the deviation
# in the middle, next to the value itself in the tails. A smaller part of a bin's squared width is rounding.
BINS, _MIDDLE, _ONE_VALUE = 256, 0.25, 1e-9
# So few values may lie on a lattice of so many steps, whose span is found to this part of their range.
_LATTICE_VALUES, _LATTICE_STEPS, _LATTICE_ROUNDING = 64, 10_000, 1e-7
# The few values with so large a part of the sum of squares make the law multimodal: each is drawn, or not, by itself.
_OUTLYING, _FEW, _MOST_OUTLIERS = 0.02, 3, 3
# Lumps of a value that occurs several times show where the rest spreads by less than this part of their distance.
# What adds less than the other part to either tail is left out.
_LUMPY, _NEGLIGIBLE = 0.5, 1e-5
# Sizes that are solved: every one up to this, then so many per doubling; others are interpolated.
_EVERY_SIZE, _PER_DOUBLING, _STENCIL = 32, 8, 4
# Relative rounding of sums.
_SAME = 1e-9
# The signed root r goes in steps of this size, or of this part of it, to a tail below the smallest double.
_STEP, _RELATIVE_STEP, LARGEST_ROOT = 0.4, 0.12, 39.0
_SMALLEST = 1e-300
_MOST_STEPS, _MOST_CORRECTIONS, _MOST_BENT = 400, 60, 0.5
# The expected size of a tilted subset is n to this part: r, stationary in a, is off by its square.
_SOLVED = 1e-6
# Below this part of the untilted variance the sum is next to the largest that any subset has.
_LEAST_VARIANCE = 1e-9


class Population(NamedTuple):
    """The values of all examples: at most two points a bin, their counts (maybe fractions), lattice span or 0."""

    points: tuple[float, ...]
    counts: tuple[float, ...]
    span: float = 0.0


def bin_edges(low: float, high: float, deviation: float) -> FloatArray:
    """Return the edges [BINS + 1] of the bins of values about 0 with a standard deviation above 0."""
    unit = _MIDDLE * deviation
    places = np.linspace(np.arcsinh(low / unit), np.arcsinh(high / unit), BINS + 1)
    return np.asarray(unit * np.sinh(places))


def bin_sums(values: FloatArray, edges: FloatArray, unit: float) -> IntArray:
    """Return [3, BINS], which add up: values, distances from the lower edge, their squares, by width and `unit`."""
    sums = np.zeros((1, 3, BINS), np.int64)
    add_bin_sums(sums, values, edges, unit)
    return sums.reshape(3, BINS)


def add_bin_sums(
    sums: IntArray, values: FloatArray, edges: FloatArray, unit: float, sets: IntArray | int = 0
) -> None:
    """Add values [values], each of one of the sets, to their `bin_sums` [sets, 3, BINS]."""
    left, width = edges[:-1], np.diff(edges)
    at = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)
    place = np.clip((values - left[at]) / np.where(width > 0, width, 1.0)[at], 0.0, 1.0)
    flat, first = sums.reshape(-1), at + 3 * BINS * sets
    np.add.at(flat, first, 1)
    for power in (1, 2):
        np.add.at(flat, first + power * BINS, np.rint(place**power / unit).astype(np.int64))


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
    """Return the tail of the sum of n of the population's values; it sums over the numbers of outliers and far values."""
    # A slice with the overall mean but more varied values than all examples is called more often than the level says.
    sizes, sums = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(total, np.float64))
    rest, outliers = _parts(of)
    counts = tuple(number for _, number in outliers)
    N = rest.N + sum(counts)
    p = np.ones(sizes.shape)
    possible = (sizes > 0) & (sizes < N) & ((rest.deviation > 0) | (len(outliers) > 0))
    n_, S = sizes[possible], sums[possible]
    distinct, place = np.unique(n_, return_inverse=True)
    upper, lower = np.zeros((2, S.size))
    for held in sorted(product(*(range(count + 1) for count in counts)), key=sum):
        chance = _chance_of(held, counts, distinct, N)[place]
        some = np.flatnonzero(chance > _NEGLIGIBLE * np.minimum(upper, lower))
        far = sum(times * value for times, (value, _) in zip(held, outliers, strict=True))
        above, below = rest.tails(n_[some] - sum(held), S[some] - far)
        upper[some] += chance[some] * above
        lower[some] += chance[some] * below
    p[possible] = select_tail(np.minimum(upper, 1.0), np.minimum(lower, 1.0), tail)
    return p


@lru_cache(maxsize=16)
def _parts(of: Population) -> tuple[SubsetLaw | _WithFarValue, tuple[tuple[float, int], ...]]:
    """Return the law of all but the outliers, and of these each value and how often it occurs."""
    points, counts = np.asarray(of.points), np.asarray(of.counts)
    outliers: list[tuple[float, int]] = []
    while at := _outlying(points, counts):
        outlier = float(points[at].mean()), round(float(counts[at].sum()))
        if len(outliers) == _MOST_OUTLIERS or outlier[1] > _FEW:
            break
        outliers.append(outlier)
        points, counts = np.delete(points, at), np.delete(counts, at)
    law = SubsetLaw(points, counts, of.span, is_part=bool(outliers))
    if len(at) != 1:
        return law, tuple(outliers)
    rest = SubsetLaw(np.delete(points, at), np.delete(counts, at), of.span, is_part=True)
    far = _WithFarValue(law, rest, *outlier)
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


class _WithFarValue:
    """The sums of subsets where a far value occurs several times, so that small ones have lumps: a sum over them."""

    def __init__(self, whole: SubsetLaw, rest: SubsetLaw, value: float, count: int) -> None:
        self.whole, self.rest, self.value, self.count = whole, rest, value, count
        self.N, self.deviation = whole.N, whole.deviation

    def stands_apart(self, n: IntArray) -> BoolArray:
        """Say of which sizes [slices] the sums have lumps."""
        spread = self.rest.deviation * np.sqrt(n * (1.0 - n / self.N))
        return np.asarray((spread > 0) & (spread < _LUMPY * abs(self.value - self.rest.mean)))

    def tails(self, n: IntArray, total: FloatArray) -> Pair:
        """Return the upper and lower tail [slices] of sums, for 0 ≤ n ≤ N."""
        apart = self.stands_apart(n)
        upper, lower = np.empty(n.shape), np.empty(n.shape)
        for some, tails in ((apart, self._summed), (~apart, self.whole.tails)):
            if some.any():
                upper[some], lower[some] = tails(n[some], total[some])
        return upper, lower

    def _summed(self, n: IntArray, total: FloatArray) -> Pair:
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
        of_these = count_tests.pmf(times, left, count, np.clip(drawn, 0, left))
        chance *= np.where(drawn >= times, of_these, 0.0)
        drawn = drawn - times
        left -= count
    return chance


class SubsetLaw:
    """The sums of random subsets of a population, for the sizes requested so far; ``is_part``: of one without outliers."""

    def __init__(self, points: ArrayLike, counts: ArrayLike, span: float, *, is_part: bool) -> None:
        self.is_part, self.counts, values = is_part, np.asarray(counts), np.asarray(points)
        self.N = round(float(self.counts.sum()))
        self.mean = float((self.counts * values).sum() / self.counts.sum())
        centred = values - self.mean
        self.deviation = sqrt(float((self.counts * centred**2).sum() / self.counts.sum()))
        unit = self.deviation or 1.0
        self.points, self.span = centred / unit, span / unit
        self.solved: dict[int, _Solved] = {}
        spread = _EVERY_SIZE * 2.0 ** (np.arange(1, 64 * _PER_DOUBLING) / _PER_DOUBLING)
        nodes = np.concatenate([np.arange(1.0, _EVERY_SIZE + 1), spread])
        # One beyond the last size on either side of the half, so that there is a stencil.
        nodes = nodes[: np.searchsorted(nodes, self.N // 2) + 2]
        self.nodes: FloatArray = nodes[nodes < self.N]

    def tails(self, n: IntArray, total: FloatArray) -> Pair:
        """Return the upper and lower tail [slices] of sums, for 0 ≤ n ≤ N."""
        random = (n > 0) & (n < self.N) & (self.deviation > 0)
        # Where nothing is drawn, or nothing left, the sum is known; rounding decides on no side.
        sure = np.where(random, 0.0, total - n * self.mean)
        sure = np.where(np.abs(sure) <= _SAME * (np.abs(total) + self.deviation), 0.0, sure)
        upper, lower = 0.5 - 0.5 * np.sign(sure), 0.5 + 0.5 * np.sign(sure)
        if random.any():
            w = self._w(n[random], total[random])
            upper[random], lower[random] = ndtr(-w), ndtr(w)
        if self.is_part:
            # Without the outliers the rest can't make every sum.
            for sign, tail in ((1.0, upper), (-1.0, lower)):
                beyond = sign * total > self._most(n, sign) + _SAME * self.deviation
                tail[random & beyond] = 0.0
                (lower if sign > 0 else upper)[random & beyond] = 1.0
        return upper, lower

    def _most(self, n: IntArray, sign: float) -> FloatArray:
        """Return the largest sum [slices] of n values, times the sign."""
        order = slice(None, None, -1 if sign > 0 else 1)
        counts, values = self.counts[order], self.points[order] * self.deviation + self.mean
        sizes, sums = (np.cumsum(part) for part in (counts, counts * (sign * values)))
        return np.asarray(np.interp(n, np.append(0.0, sizes), np.append(0.0, sums)))

    def _w(self, n: IntArray, total: FloatArray) -> FloatArray:
        """Return the normal deviate w [slices] of sums, for 0 < n < N."""
        mirrored = 2 * n > self.N
        size = np.where(mirrored, self.N - n, n)
        z = (total - n * self.mean) / self.deviation
        order = np.argsort(size, kind="stable")
        sizes, begins = np.unique(size[order], return_index=True)
        slices = np.append(begins, size.size)
        first, weights = self._stencils(sizes.astype(np.float64))
        z = np.where(mirrored, -z, z)[order]
        mean = z / size[order]
        w = np.zeros(n.shape)
        width = weights.shape[1]
        used = np.unique((first[:, None] + np.arange(width))[weights != 0])
        self._solve(used)
        for node in used.tolist():
            # Ascending sizes have ascending stencils.
            low, high = np.searchsorted(first, [node - width + 1, node + 1])
            own = weights[np.arange(low, high), node - first[low:high]]
            mine = slice(slices[low], slices[high])
            times = slices[low + 1 : high + 1] - slices[low:high]
            weight = np.repeat(own / sqrt(self._effective(self.nodes[node])), times)
            some = np.flatnonzero(weight) + mine.start
            of_node = self.solved[node].w(mean[some] * self.nodes[node])
            w[some] += weight[some - mine.start] * of_node
        found = np.empty(n.shape)
        found[order] = w * np.sqrt(self._effective(size[order].astype(np.float64)))
        return np.where(mirrored, -found, found)

    def _effective(self, n: Any) -> Any:
        """Return the variance of the sum of n values."""
        return n * (1.0 - n / self.N)

    def _stencils(self, size: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the first node [slices] and the weights [slices, stencil] of each size."""
        width = min(_STENCIL, self.nodes.size)
        first = np.searchsorted(self.nodes, size) - width // 2
        first = np.clip(first, 0, self.nodes.size - width)
        near = np.log(self.nodes)[first[:, None] + np.arange(width)]
        x = np.log(size)
        weights = np.ones(near.shape)
        for i in range(width):
            for j in range(width):
                if i != j:
                    weights[:, i] *= (x - near[:, j]) / (near[:, i] - near[:, j])
        return first, weights

    def _solve(self, nodes: IntArray) -> None:
        if not (new := [node for node in nodes.tolist() if node not in self.solved]):
            return
        sides = (self._march(self.nodes[new], sign) for sign in (-1.0, 1.0))
        for node, below, above in zip(new, *sides, strict=True):
            n = float(self.nodes[node])
            # At b = 0: r is 0 and its slope is one over the sum's deviation.
            deviation = sqrt(n * (1.0 - n / self.N))
            middle = np.array([[0.0], [0.0], [np.nan], [1.0 / deviation]])
            path = np.concatenate([below[:, ::-1], middle, above], axis=1)
            self.solved[node] = _Solved(path, self._extreme(n, -1.0), self._extreme(n, 1.0))

    def _extreme(self, n: float, sign: float) -> tuple[float, float]:
        """Return the smallest, or largest, sum of n values and the w of its mid-p."""
        order = slice(None, None, -1 if sign > 0 else 1)
        points, counts = self.points[order], self.counts[order]
        before = np.concatenate([[0.0], np.cumsum(counts)])
        last = min(int(np.searchsorted(before[1:], n)), counts.size - 1)
        rest = n - before[last]
        total = float((counts[:last] * points[:last]).sum() + rest * points[last])
        chance = float(log_choose(counts[last], rest) - log_choose(self.N, n))
        return total, sign * -float(ndtri_exp(chance - log(2.0)))

    def _march(self, n: FloatArray, sign: float) -> list[FloatArray]:
        """Return sum, root, correction and slope of the root [4, steps] of each size, along b."""
        f = n / self.N
        odds = np.log(f) - np.log1p(-f)
        state = _Tilted(self, odds, np.zeros_like(n), np.zeros_like(n))
        start = state.variance
        # Rows drop out of these when their tail ends.
        rows = np.arange(n.size)
        a, b, r, curvature_of_a = np.zeros((4, n.size))
        variance, slope_of_a = start.copy(), state.slope_of_a
        paths: list[list[tuple[float, float, float, float]]] = [[] for _ in n]
        step = np.full(n.shape, _STEP)
        shrink = np.ones_like(n)
        for _ in range(_MOST_STEPS):
            if not rows.size:
                break
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = np.where(b == 0, 1.0 / np.sqrt(variance), np.abs(r / (b * variance)))
            db = sign * step * rate * shrink
            next_b = b + db
            # The log of a size moves by no more than a does: a prediction off by this much is mended.
            bent = np.clip(0.5 * curvature_of_a * db**2, -_MOST_BENT, _MOST_BENT)
            next_a = self._balanced(n[rows], odds[rows], a + slope_of_a * db + bent, next_b)
            tilted = _Tilted(self, odds[rows], next_a, next_b)
            half = next_a * n[rows] + next_b * tilted.total - tilted.K
            root = sign * np.sqrt(2.0 * np.maximum(half, 0.0))
            # A step that goes too far is taken again, shorter.
            rise = np.abs(root) - np.abs(r)
            taken = rise <= 1.6 * step
            # On a lattice another number stands for b.
            tilt = 2.0 / self.span * np.tanh(0.5 * self.span * next_b) if self.span else next_b
            q = tilt * tilted.root_of_determinant / np.sqrt(self._effective(n[rows]))
            with np.errstate(divide="ignore", invalid="ignore"):
                correction = np.log(q / root) / root
            # Where rare values far off have left the tilted sum w may stand still, and rises again.
            ended = taken & ~(
                (tilted.variance > _LEAST_VARIANCE * start[rows])
                & np.isfinite(correction)
                & (rise > 0)
            )
            kept = taken & ~ended
            for i in np.flatnonzero(kept):
                point = (tilted.total[i], root[i], correction[i], next_b[i] / root[i])
                paths[rows[i]].append(tuple(map(float, point)))
            goes_on = ~ended & ~(kept & (np.abs(root) > LARGEST_ROOT))
            bend = (tilted.slope_of_a - slope_of_a) / db
            a, b, r, variance, curvature_of_a, slope_of_a, shrink = (
                np.where(kept, new, old)[goes_on]
                for new, old in (
                    (next_a, a), (next_b, b), (root, r), (tilted.variance, variance),
                    (bend, curvature_of_a), (tilted.slope_of_a, slope_of_a), (1.0, shrink * 0.5),
                )
            )  # fmt: skip
            step = np.maximum(_STEP, _RELATIVE_STEP * np.abs(r))
            rows = rows[goes_on]
        columns = (np.array(path, np.float64).reshape(-1, 4).T for path in paths)
        # Outwards w never falls back: the tail of a larger sum is no larger.
        return [
            np.array(
                [total, root, sign * np.maximum.accumulate(sign * (root + more)) - root, slope]
            )
            for total, root, more, slope in columns
        ]

    def _balanced(
        self, n: FloatArray, odds: FloatArray, a: FloatArray, b: FloatArray
    ) -> FloatArray:
        """Return the a at which the expected size is n."""
        a = a.copy()
        left = np.arange(n.size)
        for _ in range(_MOST_CORRECTIONS):
            _, inside = _logistic((odds[left] + a[left])[:, None] + b[left, None] * self.points)
            expected = (self.counts * inside).sum(axis=1)
            slope = (self.counts * (inside * (1.0 - inside))).sum(axis=1)
            # Newton's step for the log of the size, which is straight where few are drawn.
            off = np.log(n[left] / expected)
            step = np.clip(off * expected / np.maximum(slope, _SMALLEST), -2.0, 2.0)
            a[left] += step
            # The size's third cumulant is at most its second: this bounds what a step leaves.
            left = left[np.abs(off * step) >= _SOLVED]
            if not left.size:
                break
        return a


def _logistic(g: FloatArray) -> Pair:
    """Return e^−|g| and 1/(1 + e^−g)."""
    e = np.exp(-np.abs(g))
    return e, np.where(g >= 0, 1.0, e) / (1.0 + e)


class _Tilted:
    """The tilted law [rows]: its cumulant function and derivatives."""

    def __init__(self, law: SubsetLaw, odds: FloatArray, a: FloatArray, b: FloatArray) -> None:
        g = (odds + a)[:, None] + b[:, None] * law.points
        e, inside = _logistic(g)
        spread = law.counts * (e / np.square(1.0 + e))
        weighted = spread * law.points
        base = np.logaddexp(0.0, odds)[:, None]
        self.K = (law.counts * (np.maximum(g, 0.0) + np.log1p(e) - base)).sum(axis=1)
        self.total = (law.counts * inside * law.points).sum(axis=1)
        first, second = spread.sum(axis=1), weighted.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            centre = second / first
        about = np.square(law.points - centre[:, None])
        self.variance = (spread * about).sum(axis=1)
        self.root_of_determinant = np.sqrt(first * self.variance)
        self.slope_of_a = -centre


class _Solved:
    """W as a function of the sum, for one size: paths along b, and sum and w at the two ends."""

    def __init__(
        self, path: FloatArray, lowest: tuple[float, float], highest: tuple[float, float]
    ) -> None:
        # Loading it takes longer than most commands need it for.
        from scipy.interpolate import CubicHermiteSpline, PchipInterpolator

        total, root, correction, slope = path
        known = ~np.isnan(correction)
        self.total = total
        self.root = CubicHermiteSpline(total, root, slope) if total.size > 1 else np.zeros_like
        several = np.count_nonzero(known) > 1
        points = root[known], correction[known]
        self.correction = PchipInterpolator(*points) if several else np.zeros_like
        first, last = (float(end + self.correction(end)) for end in (root[0], root[-1]))
        self.below = (lowest[0], float(total[0])), (min(lowest[1], first), first)
        self.above = (float(total[-1]), highest[0]), (last, max(highest[1], last))

    def w(self, total: FloatArray) -> FloatArray:
        """Return w [slices]; straight from the last solved sums to the extreme ones."""
        root = self.root(np.clip(total, self.total[0], self.total[-1]))
        w = root + self.correction(root)
        w = np.where(total < self.total[0], np.interp(total, *self.below), w)
        return np.where(total > self.total[-1], np.interp(total, *self.above), w)
