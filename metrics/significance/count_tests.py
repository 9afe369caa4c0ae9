"""Tests of counts: marked examples of a slice against all, of two models, of two sets of examples, against a margin.

Against all examples, X ~ Hypergeom(N, K, n): K of N examples are marked, and a slice is a random n of the N. Between two
models, B ~ Binomial(b + c, ½) of those on which they differ (McNemar 1947, Psychometrika 12:153). P-values are mid-p,
P(X > x) + ½P(X = x), precise down to 1e-300; log-factorials are split into parts that do not cancel (Loader 2000, "Fast
and accurate computation of binomial probabilities").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincc, gammaln, ndtr, xlog1py, xlogy

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, Pair, floats, ratio
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance.outcome_codes import select_tail

# The exact sum's terms grow with the deviation; above this variance `likelihood_mid_p` agrees to 1e-4.
EXACT_UP_TO_VARIANCE = 1000.0
_LARGEST_EXACT_POPULATION = 3_037_000_499  # whose products n·K fit int64
# Relative size of what a tail's sum leaves out.
_TAIL_TOLERANCE = 1e-14
# Rows summed together: nine columns of them stay in the second-level cache.
_BLOCK = 4096
_TERMS_BETWEEN_CHECKS = 8
# Below this root r, log(u/r)/r loses its digits.
NEAR_MEAN = 1e-3
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SMALL_STIRLING_ERRORS = np.array([0.0] + [
    math.log(math.factorial(n)) - (n + 0.5) * math.log(n) + n - _HALF_LOG_TWO_PI for n in range(1, 16)
])  # fmt: skip


class Table(NamedTuple):
    """2×2 tables: x of the n examples of a slice are marked, K of all N; int64 of one shape."""

    n: IntArray
    x: IntArray
    N: IntArray
    K: IntArray

    @classmethod
    def of(cls, n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike) -> Table:
        """Return counts broadcast to one shape; ValueError for a population that is too large."""
        table = cls(*np.broadcast_arrays(*(np.asarray(value, np.int64) for value in (n, x, N, K))))
        if table.N.size and table.N.max() > _LARGEST_EXACT_POPULATION:
            raise ValueError(
                f"N = {table.N.max()} is above {_LARGEST_EXACT_POPULATION}, the largest population"
            )
        return table

    @property
    def support(self) -> tuple[IntArray, IntArray]:
        """The smallest and the largest possible x."""
        return np.maximum(0, self.n + self.K - self.N), np.minimum(self.n, self.K)

    @property
    def cells(self) -> tuple[IntArray, ...]:
        """Marked and unmarked examples in the slice, marked and unmarked ones outside."""
        n, x, N, K = self
        return x, n - x, K - x, N - K - n + x

    @property
    def margins(self) -> tuple[IntArray, ...]:
        """Examples in the slice and outside, marked and unmarked examples of all."""
        return self.n, self.N - self.n, self.K, self.N - self.K

    @property
    def excess(self) -> IntArray:
        """N·x − n·K, the determinant of the table: exact in integers, also next to the mean."""
        return self.N * self.x - self.n * self.K

    @property
    def half_deviance(self) -> FloatArray:
        """½G² = Σ O·log(O/E) of tables without an empty margin; all cells are as far from their means."""
        n, x, N, K = self
        excess = self.excess / N
        share, rest = n / N, (N - n) / N
        return (
            deviance(x, K * share, excess)
            + deviance(n - x, (N - K) * share, -excess)
            + deviance(K - x, K * rest, -excess)
            + deviance(N - K - n + x, (N - K) * rest, excess)
        )

    def rows(self, some: BoolArray) -> Table:
        """Return some of the tables."""
        return Table(*(column[some] for column in self))


def deviance(x: ArrayLike, mean: ArrayLike, excess: ArrayLike | None = None) -> FloatArray:
    """Return x·log(x/mean) + mean − x ≥ 0, near the mean as a series: Loader (2000), eq. 5; `excess` is x − mean."""
    count, expected = np.asarray(x, dtype=np.float64), np.asarray(mean, dtype=np.float64)
    gap = count - expected if excess is None else np.asarray(excess, dtype=np.float64)
    v = gap / (count + expected)
    square = v * v
    series = np.zeros_like(square)
    for j in range(9, 0, -1):
        series = (series + 1.0 / (2 * j + 1)) * square
    by_series: FloatArray = gap * v + 2.0 * count * v * series
    near = np.abs(v) < 0.1
    if near.all():
        return by_series
    ratio = np.where(count > 0, count, expected) / expected
    return np.where(near, by_series, count * np.log(ratio) - gap)


def _stirling_error(n: ArrayLike) -> FloatArray:
    """Return log(n!) − log(√(2πn)·(n/e)ⁿ), and 0 at n = 0; Loader (2000), eq. 3."""
    count = np.asarray(n, dtype=np.float64)
    large = np.maximum(count, 16.0)
    square = large * large
    series = 1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / square) / square) / square
    small = _SMALL_STIRLING_ERRORS[np.minimum(count, 15).astype(np.intp)]
    return np.where(count < 16, small, (1 / 12 - series / square) / large)


def _half_log_two_pi(n: ArrayLike) -> FloatArray:
    """Return ½·log(2πn), the root of Stirling's formula, and 0 at n = 0, where 0! = 1 needs none."""
    count = np.asarray(n, dtype=np.float64)
    return np.where(count > 0, _HALF_LOG_TWO_PI + 0.5 * np.log(np.maximum(count, 1.0)), 0.0)


def log_choose(n: ArrayLike, k: ArrayLike) -> FloatArray:
    """Return the log of the number of ways to choose k of n."""
    total, chosen = np.asarray(n, np.float64), np.asarray(k, np.float64)
    return np.asarray(gammaln(total + 1.0) - gammaln(chosen + 1.0) - gammaln(total - chosen + 1.0))


def variance(n: ArrayLike, N: ArrayLike, K: ArrayLike) -> FloatArray:
    """Return Var(X) = n·(K/N)·(1 − K/N)·(N − n)/(N − 1), and 0 for N ≤ 1."""
    drawn, population, marked = (np.asarray(value, dtype=np.float64) for value in (n, N, K))
    safe = np.maximum(population, 2.0)
    share = marked / safe
    spread = drawn * share * (1.0 - share) * (population - drawn) / (safe - 1.0)
    return np.where(population > 1, spread, 0.0)


def _log_pmf(table: Table) -> FloatArray:
    """Return log P(X = x), −inf outside the support, to 1e-12 for N of 1e7: Loader (2000), section 5."""
    low, high = table.support
    inside = (table.x >= low) & (table.x <= high)
    value = np.where(inside, 0.0, -np.inf)
    # With an empty margin one value is possible.
    varies = inside & (low < high)
    some = table.rows(varies)
    result = -some.half_deviance - _stirling_error(some.N) - _half_log_two_pi(some.N)
    for margin in some.margins:
        result += _stirling_error(margin) + _half_log_two_pi(margin)
    for cell in some.cells:
        result -= _stirling_error(cell) + _half_log_two_pi(cell)
    value[varies] = result
    return value


def pmf(x: ArrayLike, N: ArrayLike, K: ArrayLike, n: ArrayLike) -> FloatArray:
    """Return P(X = x)."""
    return np.exp(_log_pmf(Table.of(n, x, N, K)))


def weighted_tail(
    n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike, weight: ArrayLike = 0.5
) -> FloatArray:
    """Return P(X > x) + weight·P(X = x); relative error 1e-11 where x is at or above the mean."""
    below, outer = _outer_tail(Table.of(n, x, N, K), np.asarray(weight, dtype=np.float64))
    return np.where(below, 1.0 - outer, outer)


def mid_p(n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike, tail: Tail) -> FloatArray:
    """Return the exact mid-p of x marked among n drawn; 1 where n or K is 0 or N.

    A model gets 150 of 1,000 examples wrong. How likely is it that a random 100 of them hold so many errors, or more?

    >>> mid_p(n=100, x=[15, 25, 40], N=1000, K=150, tail="upper")
    array([4.89258261e-01, 2.82907507e-03, 4.30409427e-11])
    """
    table = Table.of(n, x, N, K)
    place = None
    if table.x.size > 1 and all((margin == margin.flat[0]).all() for margin in table[2:]):
        # Thousands of slices share their pair (n, x); n·N + x fits int64 as x ≤ n ≤ N does.
        width, shape = int(table.N.flat[0]) + 1, table.x.shape
        if ((table.x >= 0) & (table.x <= table.n)).all():
            keys, place = np.unique((table.n * width + table.x).ravel(), return_inverse=True)
            table = Table.of(keys // width, keys % width, table.N.flat[0], table.K.flat[0])
    below, outer = _outer_tail(table, np.asarray(0.5))
    # The two mid-tails add up to 1, so that the far one needs no sum.
    inner = 1.0 - outer
    p = select_tail(np.where(below, inner, outer), np.where(below, outer, inner), tail)
    low, high = table.support
    p = np.where(low == high, 1.0, p)
    return p if place is None else p[place].reshape(shape)


def _outer_tail(table: Table, weight: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Return whether x is below the mean, and the weighted tail on its side of the mean."""
    n, x, N, K = table
    below = x * N.astype(np.float64) < n * K.astype(np.float64)
    # The lower tail of the marked is the upper tail of the unmarked.
    outer = Table(n, np.where(below, n - x, x), N, np.where(below, N - K, K))
    share = np.where(below, 1.0 - weight, weight)
    point = np.exp(_log_pmf(outer))
    tail, possible = np.zeros(x.shape), point > 0
    cells = [cell[possible].astype(np.float64) for cell in outer.cells]
    sums = np.empty(cells[0].size)
    for start in range(0, sums.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        sums[block] = _ratio_sum(*(cell[block] for cell in cells))
    tail[possible] = point[possible] * (share[possible] + sums)
    return below, tail


def _ratio_sum(
    x: FloatArray, drawn: FloatArray, marked: FloatArray, rest: FloatArray
) -> FloatArray:
    """Return Σ_{j ≥ 1} P(X = x + j)/P(X = x) of cells; a geometric series bounds what it leaves out."""
    total, place = np.zeros(x.size), np.arange(x.size)
    next_x, rest = x + 1.0, rest + 1.0
    term, running = np.ones(x.size), np.zeros(x.size)
    while place.size:
        ratio, divisor = np.empty(place.size), np.empty(place.size)
        for _ in range(_TERMS_BETWEEN_CHECKS):
            np.multiply(drawn, marked, out=ratio)
            np.multiply(next_x, rest, out=divisor)
            ratio /= divisor
            # Past the end of the support a factor has turned negative, but the term is 0 already.
            term *= ratio
            running += term
            drawn, marked, next_x, rest = drawn - 1.0, marked - 1.0, next_x + 1.0, rest + 1.0
        left_out = np.abs(term) * ratio
        ended = (term == 0.0) | (
            (ratio < 1.0) & (left_out <= _TAIL_TOLERANCE * (1.0 - ratio) * running)
        )
        if ended.any():
            total[place[ended]] = running[ended]
            place, drawn, marked, next_x, rest, term, running = (
                column[~ended] for column in (place, drawn, marked, next_x, rest, term, running)
            )
    return total


def likelihood_mid_p(
    n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike, tail: Tail
) -> FloatArray:
    """Return the mid-p of large tables without a sum, Φ(−r*): docs/explanation/statistics.md has the formula."""
    table = Table.of(n, x, N, K)
    low, high = table.support
    root, varies = np.zeros(table.x.shape), low < high
    root[varies] = _corrected_root_of(table.rows(varies))
    return np.where(varies, select_tail(ndtr(-root), ndtr(root), tail), 1.0)


def _corrected_root_of(table: Table) -> FloatArray:
    gap = table.excess.astype(np.float64)
    root = np.sign(gap) * np.sqrt(2.0 * table.half_deviance)
    a, b, c, d = (cell.astype(np.float64) for cell in table.cells)
    empty = (a == 0) | (b == 0) | (c == 0) | (d == 0)
    log_odds = np.log1p(np.where(empty, 0.0, gap) / np.where(empty, 1.0, b * c))
    near = np.abs(root) < NEAR_MEAN
    size = np.where(near, 1.0, np.where(empty, np.inf, np.abs(log_odds)))
    half_log = _half_log_two_pi(table.N) - _half_log_two_pi(1)
    for margin in table.margins:
        half_log -= _half_log_two_pi(margin)
    for cell in table.cells:
        half_log += _half_log_two_pi(cell)
    log_u = np.log(2.0 * np.tanh(0.5 * size)) + half_log
    n, _, N, K = (column.astype(np.float64) for column in table)
    spread = np.sqrt(n * K * (N - K) * (N - n)) * np.maximum(N - 2.0, 1.0)
    skewness = (N - 2.0 * K) * np.sqrt(N - 1.0) * (N - 2.0 * n) / spread
    log_ratio = log_u - np.log(np.abs(np.where(near, 1.0, root)))
    return corrected_root(root, log_ratio, root + skewness / 6.0)


def corrected_root(root: FloatArray, log_ratio: FloatArray, limit: FloatArray) -> FloatArray:
    """Return r + log(u/r)/r of roots r and log(u/r), and its limit next to the mean, where it loses its digits."""
    near = np.abs(root) < NEAR_MEAN
    r = np.where(near, 1.0, root)
    return np.where(near, limit, r + log_ratio / r)


def mcnemar_mid_p(b: ArrayLike, c: ArrayLike, tail: Tail) -> FloatArray:
    """Return the mid-p of b among b + c examples, 1 of none: Fagerland et al. (2013), BMC Med. Res. Methodol. 13:91."""
    new, old = np.broadcast_arrays(np.asarray(b, dtype=np.int64), np.asarray(c, dtype=np.int64))
    size = np.maximum(new + old, 1)
    log_point = _stirling_error(size) - _stirling_error(new) - _stirling_error(old)
    log_point = log_point + _half_log_two_pi(size) - _half_log_two_pi(new) - _half_log_two_pi(old)
    half_point = 0.5 * np.exp(log_point - deviance(new, size * 0.5) - deviance(old, size * 0.5))
    upper, lower = (
        half_point + np.where(rest > 0, betainc(more + 1.0, np.maximum(rest, 1.0), 0.5), 0.0)
        for more, rest in ((new, old), (old, new))
    )
    return np.where(new + old == 0, 1.0, select_tail(upper, lower, tail))


def constant_change_p(n: ArrayLike, change: ArrayLike, tail: Tail) -> FloatArray:
    """Return the sign-flip p-value of n (Kish's number) changes that are all the same, where a t has no variance."""
    size, mean = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(change, np.float64))
    extreme = np.exp2(-size)
    return select_tail(np.where(mean > 0, extreme, 1.0), np.where(mean < 0, extreme, 1.0), tail)


def p_more_frequent(
    now: ArrayLike, examples_now: int, then: ArrayLike, examples_then: int
) -> FloatArray:
    """Return the one-sided p-value that something occurs as often in two sets of examples."""
    # The conditional test of two Poisson rates, conservative for shares: Przyborowski and Wilenski (1940), Biometrika 31:313.
    share = examples_now / (examples_now + examples_then)
    counts = np.asarray(now, np.float64)
    tail = betainc(np.maximum(counts, 1.0), np.asarray(then) + 1.0, share)
    return np.where(counts > 0, tail, 1.0)


# Against a margin the shares under the null are estimated as score tests do, and the difference is referred to its exact
# law at those: Lloyd (2008), Aust. N. Z. J. Stat. 50:329, as the normal law is too liberal far out. Not mid-p: with few
# examples a gate should rather miss. The first count is summed up to this variance; beyond it a normal law corrected for skewness is near.
_SUMMED_UP_TO_VARIANCE = 400.0
# So many deviations, and single values, from the mean are summed.
_DEVIATIONS, _VALUES = 10.0, 40.0
_NUMBERS_AT_A_TIME = 1 << 21


def paired_margin_p(
    gained: ArrayLike, lost: ArrayLike, n: ArrayLike, difference: ArrayLike, tail: Tail
) -> FloatArray:
    """Return p [slices] of a change of the share, of ``n`` those only the new, and only the old model marks: Tango (1998)."""
    b, c, size, d = np.broadcast_arrays(*np.atleast_1d(*floats(gained, lost, n, difference)))
    # Tango's equation 11: the share that only the old model marks, at most likely under the null.
    linear = (2.0 * size - b + c) * d - b - c
    root = np.sqrt(np.square(linear) + 8.0 * size * c * d * (1.0 - d))
    only_old = np.clip((root - linear) / (4.0 * size), np.maximum(-d, 0.0), (1.0 - d) / 2.0)
    only_new = np.clip(only_old + d, 0.0, 1.0 - only_old)
    both = only_new + only_old
    variance = both - np.square(d)
    third = d - 3.0 * d * both + 2.0 * d**3
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (b - c - size * d) / np.sqrt(size * variance)
        skewness = third / variance**1.5 / np.sqrt(size)
    of_rest = ratio(only_old, 1.0 - only_new, otherwise=0.0)
    far = (size, only_new, b, z, skewness)
    # b − c ≥ its observed value where c ≤ b − (b − c observed).
    return _margin_p(
        far, lambda at, x: _binomial_tails(x - (b - c)[at], size[at] - x, of_rest[at]), tail
    )


def unpaired_margin_p(
    x: ArrayLike, n: ArrayLike, y: ArrayLike, m: ArrayLike, difference: ArrayLike, tail: Tail
) -> FloatArray:
    """Return p [slices] of a share x/n that is y/m plus a difference: Farrington and Manning (1990)."""
    parts = np.atleast_1d(*floats(x, n, y, m, difference))
    mine, size, other, rest, d = np.broadcast_arrays(*parts)
    share = _farrington_manning(mine, size, other, rest, d)
    p, q = share, np.clip(share - d, 0.0, 1.0)
    observed = mine / size - other / rest
    of_slice, of_rest = p * (1.0 - p) / size, q * (1.0 - q) / rest
    variance = of_slice + of_rest
    third = of_slice * (1.0 - 2.0 * p) / size - of_rest * (1.0 - 2.0 * q) / rest
    with np.errstate(invalid="ignore", divide="ignore"):
        z, skewness = (observed - d) / np.sqrt(variance), third / variance**1.5

    def tails(at: IntArray, x: FloatArray) -> Pair:
        # x/n − y/m ≥ its observed value where y ≤ m·(x/n − observed).
        return _binomial_tails(rest[at] * (x / size[at] - observed[at]), rest[at], q[at])

    return _margin_p((size, p, mine, z, skewness), tails, tail)


def _farrington_manning(
    x: FloatArray, n: FloatArray, y: FloatArray, m: FloatArray, d: FloatArray
) -> FloatArray:
    """Return the most likely share of the slice if it is the rest's plus d: the root of their cubic."""
    times, p, q = m / n, x / n, y / m
    a = 1.0 + times
    b = -(1.0 + times + p + times * q + d * (times + 2.0))
    c = d * d + d * (2.0 * p + times + 1.0) + p + times * q
    e = -p * d * (1.0 + d)
    v = (b / (3.0 * a)) ** 3 - b * c / (6.0 * a * a) + e / (2.0 * a)
    u = np.copysign(np.sqrt(np.maximum((b / (3.0 * a)) ** 2 - c / (3.0 * a), 0.0)), v)
    cosine = np.clip(v / np.where(u == 0.0, 1.0, u**3), -1.0, 1.0)
    angle = (np.pi + np.arccos(cosine)) / 3.0
    root = 2.0 * u * np.cos(angle) - b / (3.0 * a)
    return np.clip(root, np.maximum(d, 0.0), np.minimum(1.0 + d, 1.0))


def _margin_p(
    far: tuple[FloatArray, ...], tails_of_second: Callable[[IntArray, FloatArray], Pair], tail: Tail
) -> FloatArray:
    """Return p: over the first count (its ``far``: n, share, value, z, skewness) its chance times tails of the second."""
    size, share, observed, z, skewness = far
    corrected = z - skewness * (np.square(z) - 1.0) / 6.0
    upper, lower = (np.nan_to_num(ndtr(part), nan=1.0) for part in (-corrected, corrected))
    variance = size * share * (1.0 - share)
    reach = _DEVIATIONS * np.sqrt(variance) + _VALUES
    low = np.floor(np.maximum(np.minimum(size * share - reach, observed - _VALUES), 0.0))
    high = np.minimum(np.maximum(size * share + reach, observed + _VALUES), size)
    summed = np.flatnonzero(variance <= _SUMMED_UP_TO_VARIANCE)
    # Slices of about the same number of values, many at a time.
    summed = summed[np.argsort((high - low)[summed], kind="stable")]
    while summed.size:
        width = int((high - low)[summed[-1]]) + 1
        many = max(1, _NUMBERS_AT_A_TIME // width)
        at, summed = summed[-many:], summed[:-many]
        column = at[:, None]
        values = low[column] + np.arange(width)
        x = np.minimum(values, size[column])
        chance = np.where(values > x, 0.0, _binomial_pmf(x, size[column], share[column]))
        for side, part in zip((upper, lower), tails_of_second(column, x), strict=True):
            side[at] = np.minimum((chance * part).sum(axis=1), 1.0)
    return select_tail(upper, lower, tail)


def _binomial_pmf(k: FloatArray, n: FloatArray, p: FloatArray) -> FloatArray:
    """Return the binomial probability of k."""
    return np.asarray(np.exp(log_choose(n, k) + xlogy(k, p) + xlog1py(n - k, -p)))


def _binomial_tails(k: FloatArray, n: FloatArray, p: FloatArray) -> Pair:
    """Return P(Y ≤ k) and P(Y ≥ k) of a binomial Y, k a whole number where only rounding hides that."""
    whole = np.round(k)
    same = (np.abs(k - whole) <= 1e-9 * (1.0 + np.abs(k))) & (whole >= 0) & (whole <= n)
    k = np.where(same, whole, k)
    tie = np.where(same, _binomial_pmf(np.clip(whole, 0.0, n), n, p), 0.0)
    floor = np.clip(np.floor(k), 0.0, np.maximum(n - 1.0, 0.0))
    ends = floor + 1.0, np.maximum(n - floor, 0.5), p
    at_most = np.where(k < 0, 0.0, np.where(k >= n, 1.0, betaincc(*ends)))
    return at_most, np.where(k < 0, 1.0, np.where(k >= n, 0.0, betainc(*ends)) + tie)
