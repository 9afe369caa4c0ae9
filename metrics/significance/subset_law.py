"""Sums of random subsets of one size: their tails by a saddle point, solved once for many sums."""

from __future__ import annotations

from math import lgamma, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri_exp

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray

# Sizes that are solved: every one up to this, then so many per doubling; others are interpolated.
_EVERY_SIZE = 32
_PER_DOUBLING = 8
_STENCIL = 4
# Relative rounding of sums.
_SAME = 1e-9
# The signed root r goes in steps of this size, or of this part of it where that is more, up to a
# tail below the smallest double.
_STEP, _RELATIVE_STEP, LARGEST_ROOT = 0.4, 0.12, 39.0
_SMALLEST = 1e-300
_MOST_STEPS = 400
_MOST_CORRECTIONS, _MOST_BENT = 60, 0.5
# The expected size of a tilted subset is n to this part. The root r is stationary in a: it is off by
# the square of it.
_SOLVED = 1e-6
# Below this variance of the tilted sum, relative to the untilted one, the sum is next to the largest
# that any subset has.
_LEAST_VARIANCE = 1e-9


class Population(NamedTuple):
    """The values of all examples: at most two points a bin, their counts (maybe fractions), lattice span or 0."""

    points: tuple[float, ...]
    counts: tuple[float, ...]
    span: float = 0.0


class SubsetLaw:
    """The sums of random subsets of a population, for the sizes requested so far."""

    def __init__(self, of: Population, *, is_part: bool) -> None:
        self.is_part = is_part
        counts = np.asarray(of.counts)
        points = np.asarray(of.points)
        self.N = round(float(counts.sum()))
        self.mean = float((counts * points).sum() / counts.sum())
        centred = points - self.mean
        self.deviation = sqrt(float((counts * centred**2).sum() / counts.sum()))
        self.counts = counts
        unit = self.deviation or 1.0
        self.points, self.span = centred / unit, of.span / unit
        self.solved: dict[int, _Solved] = {}
        most = self.N // 2
        spread = _EVERY_SIZE * 2.0 ** (np.arange(1, 64 * _PER_DOUBLING) / _PER_DOUBLING)
        nodes = np.concatenate([np.arange(1.0, _EVERY_SIZE + 1), spread])
        # One beyond the last size on either side of the half, so that there is a stencil.
        self.nodes: FloatArray = nodes[: np.searchsorted(nodes, most) + 2]
        self.nodes = self.nodes[self.nodes < self.N]

    def tails(self, n: IntArray, total: FloatArray) -> tuple[FloatArray, FloatArray]:
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
        order = slice(None, None, -1) if sign > 0 else slice(None)
        counts, values = (
            self.counts[order],
            sign * (self.points[order] * self.deviation + self.mean),
        )
        sizes = np.concatenate([[0.0], np.cumsum(counts)])
        most = np.interp(n, sizes, np.concatenate([[0.0], np.cumsum(counts * values)]))
        return np.asarray(most, np.float64)

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
            # Ascending sizes have ascending stencils: those with this node are neighbours.
            low, high = np.searchsorted(first, [node - width + 1, node + 1])
            own = weights[np.arange(low, high), node - first[low:high]]
            mine = slice(slices[low], slices[high])
            times = slices[low + 1 : high + 1] - slices[low:high]
            weight = np.repeat(own / sqrt(self._effective(self.nodes[node])), times)
            some = np.flatnonzero(weight) + mine.start
            w[some] += weight[some - mine.start] * self.solved[node].w(
                mean[some] * self.nodes[node]
            )
        found = np.empty(n.shape)
        found[order] = w * np.sqrt(self._effective(size[order].astype(np.float64)))
        return np.where(mirrored, -found, found)

    def _effective(self, n: Any) -> Any:
        """Return the variance of the sum of n values."""
        return n * (1.0 - n / self.N)

    def _stencils(self, size: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the first node [slices] and the weights [slices, stencil] of each size."""
        above = np.searchsorted(self.nodes, size)
        width = min(_STENCIL, self.nodes.size)
        first = np.clip(above - width // 2, 0, self.nodes.size - width)
        near = np.log(self.nodes)[first[:, None] + np.arange(width)]
        x = np.log(size)
        weights = np.ones(near.shape)
        for i in range(width):
            for j in range(width):
                if i != j:
                    weights[:, i] *= (x - near[:, j]) / (near[:, i] - near[:, j])
        return first, weights

    def _solve(self, nodes: IntArray) -> None:
        new = [int(node) for node in nodes if int(node) not in self.solved]
        if not new:
            return
        sides = [self._march(self.nodes[new], sign) for sign in (-1.0, 1.0)]
        for row, node in enumerate(new):
            below, above = sides[0][row], sides[1][row]
            n = float(self.nodes[node])
            # At b = 0: r is 0 and its slope is one over the sum's deviation.
            deviation = sqrt(n * (1.0 - n / self.N))
            middle = np.array([[0.0], [0.0], [np.nan], [1.0 / deviation]])
            path = np.concatenate([below[:, ::-1], middle, above], axis=1)
            ends = (self._extreme(n, -1.0), self._extreme(n, 1.0))
            self.solved[node] = _Solved(*path, lowest=ends[0], highest=ends[1])

    def _extreme(self, n: float, sign: float) -> tuple[float, float]:
        """Return the smallest, or largest, sum of n values and the w of its mid-p."""
        order = slice(None) if sign < 0 else slice(None, None, -1)
        points, counts = self.points[order], self.counts[order]
        before = np.concatenate([[0.0], np.cumsum(counts)])
        last = min(int(np.searchsorted(before[1:], n)), counts.size - 1)
        rest = n - before[last]
        total = float((counts[:last] * points[:last]).sum() + rest * points[last])
        chance = _log_choose(float(counts[last]), rest) - _log_choose(float(self.N), n)
        return total, sign * -float(ndtri_exp(chance - log(2.0)))

    def _march(self, n: FloatArray, sign: float) -> list[FloatArray]:
        """Return sum, root, correction and slope of the root [4, steps] of each size, along b."""
        f = n / self.N
        odds = np.log(f) - np.log1p(-f)
        state = _Tilted(self, odds, np.zeros_like(n), np.zeros_like(n))
        start = state.variance
        # Rows drop out of these when their tail ends.
        rows = np.arange(n.size)
        a, b, r = np.zeros_like(n), np.zeros_like(n), np.zeros_like(n)
        variance, slope_of_a = start.copy(), state.slope_of_a
        curvature_of_a = np.zeros_like(n)
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
            q = self._tilt(next_b) * tilted.root_of_determinant / np.sqrt(self._effective(n[rows]))
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
            a, b, r = (
                np.where(kept, new, old)[goes_on]
                for new, old in ((next_a, a), (next_b, b), (root, r))
            )
            variance = np.where(kept, tilted.variance, variance)[goes_on]
            bend = (tilted.slope_of_a - slope_of_a) / db
            curvature_of_a = np.where(kept, bend, curvature_of_a)[goes_on]
            slope_of_a = np.where(kept, tilted.slope_of_a, slope_of_a)[goes_on]
            shrink = np.where(kept, 1.0, shrink * 0.5)[goes_on]
            step = np.maximum(_STEP, _RELATIVE_STEP * np.abs(r))
            rows = rows[goes_on]
        return [_rising(np.array(path, np.float64).reshape(-1, 4).T, sign) for path in paths]

    def _tilt(self, b: FloatArray) -> FloatArray:
        """Return b, or what stands for it where the sums are on a lattice."""
        if not self.span:
            return b
        return np.asarray(2.0 / self.span * np.tanh(0.5 * self.span * b))

    def _balanced(
        self, n: FloatArray, odds: FloatArray, a: FloatArray, b: FloatArray
    ) -> FloatArray:
        """Return the a at which the expected size is n."""
        a = a.copy()
        left = np.arange(n.size)
        for _ in range(_MOST_CORRECTIONS):
            g = (odds[left] + a[left])[:, None] + b[left, None] * self.points
            e = np.exp(-np.abs(g))
            inside = np.where(g >= 0, 1.0, e) / (1.0 + e)
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


def _rising(path: FloatArray, sign: float) -> FloatArray:
    """Return a path outwards on which w never falls back: the tail of a larger sum is no larger."""
    total, root, correction, slope = path
    w = sign * np.maximum.accumulate(sign * (root + correction))
    return np.array([total, root, w - root, slope])


def _log_choose(n: float, k: float) -> float:
    return lgamma(n + 1.0) - lgamma(k + 1.0) - lgamma(n - k + 1.0)


class _Tilted:
    """The tilted law [rows]: its cumulant function and derivatives."""

    def __init__(self, law: SubsetLaw, odds: FloatArray, a: FloatArray, b: FloatArray) -> None:
        g = (odds + a)[:, None] + b[:, None] * law.points
        e = np.exp(-np.abs(g))
        inside = np.where(g >= 0, 1.0, e) / (1.0 + e)
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
        self,
        total: FloatArray,
        root: FloatArray,
        correction: FloatArray,
        slope: FloatArray,
        *,
        lowest: tuple[float, float],
        highest: tuple[float, float],
    ) -> None:
        # Loading it takes longer than most commands need it for.
        from scipy.interpolate import PchipInterpolator

        known = ~np.isnan(correction)
        self.total, self.root, self.slope = total, root, slope
        self.correction = (
            PchipInterpolator(root[known], correction[known])
            if np.count_nonzero(known) > 1
            else np.zeros_like
        )
        first, last = (float(end + self.correction(end)) for end in (root[0], root[-1]))
        self.below = (lowest[0], float(total[0])), (min(lowest[1], first), first)
        self.above = (float(total[-1]), highest[0]), (last, max(highest[1], last))

    def w(self, total: FloatArray) -> FloatArray:
        """Return w [slices]; straight from the last solved sums to the extreme ones."""
        root = self._root(np.clip(total, self.total[0], self.total[-1]))
        w = root + self.correction(root)
        w = np.where(total < self.total[0], np.interp(total, *self.below), w)
        return np.where(total > self.total[-1], np.interp(total, *self.above), w)

    def _root(self, x: FloatArray) -> FloatArray:
        """Return Hermite's cubics between the steps."""
        if self.total.size == 1:
            return np.zeros_like(x)
        at = np.clip(np.searchsorted(self.total, x) - 1, 0, self.total.size - 2)
        width = self.total[at + 1] - self.total[at]
        t = (x - self.total[at]) / width
        rest = 1.0 - t
        return np.asarray(
            self.root[at] * (1.0 + 2.0 * t) * rest**2
            + self.root[at + 1] * t**2 * (3.0 - 2.0 * t)
            + width * (self.slope[at] * t * rest**2 - self.slope[at + 1] * t**2 * rest)
        )
