"""Exact test of a slice's count: X ~ Hypergeom(N, K, n), given all margins of the 2×2 table.

Assumption of the test: under the null, the n examples of the slice are a random subset of the N
examples, K of which are marked (wrong, say). Conditioning on N, K and n removes the unknown rate,
so no approximation is involved; the mid-p counts half of the observed value's probability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.significance.saddle_point import (
    deviance_part,
    half_log_two_pi,
    stirling_error,
)
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.kinds import Tail

# Relative size of what a tail's sum leaves out.
_TAIL_TOLERANCE = 1e-14
# Rows summed together: nine columns of them stay in the second-level cache.
_BLOCK = 4096
_TERMS_BETWEEN_CHECKS = 8
# The largest population whose products n·K fit int64.
_LARGEST_EXACT_POPULATION = 3_037_000_499


class Table(NamedTuple):
    """2×2 tables: n drawn and x of them marked, out of N with K marked; one shape, int64."""

    n: IntArray
    x: IntArray
    N: IntArray
    K: IntArray


def as_table(n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike) -> Table:
    """Return the four counts broadcast to one shape.

    Raises
    ------
    ValueError
        If n or K is not within 0..N, or if N is too large for exact products.
    """
    counts = (np.asarray(value, dtype=np.int64) for value in (n, x, N, K))
    table = Table(*np.broadcast_arrays(*counts))
    for name, value in (("n", table.n), ("K", table.K)):
        wrong = (value < 0) | (value > table.N)
        if wrong.any():
            at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            raise ValueError(f"{name} = {value[at]} is not within 0..N = {table.N[at]}")
    if table.N.size and table.N.max() > _LARGEST_EXACT_POPULATION:
        raise ValueError(
            f"N = {table.N.max()} is above {_LARGEST_EXACT_POPULATION}, the largest population"
        )
    return table


def support(table: Table) -> tuple[IntArray, IntArray]:
    """Return the smallest and the largest possible x, int64 arrays of the table's shape."""
    low = np.maximum(0, table.n + table.K - table.N)
    return low, np.minimum(table.n, table.K)


def half_deviance(table: Table) -> FloatArray:
    """Return ½G² = Σ O·log(O/E) over the four cells of tables with 0 < n < N and 0 < K < N.

    All cells are as far from their mean as x is, and N·x − n·K is exact in integers: so the sum is
    precise also next to the mean.
    """
    n, x, N, K = table
    excess = (N * x - n * K) / N
    share, rest = n / N, (N - n) / N
    return (
        deviance_part(x, K * share, excess)
        + deviance_part(n - x, (N - K) * share, -excess)
        + deviance_part(K - x, K * rest, -excess)
        + deviance_part(N - K - n + x, (N - K) * rest, excess)
    )


def log_pmf(x: ArrayLike, N: ArrayLike, K: ArrayLike, n: ArrayLike) -> FloatArray:
    """Return log P(X = x) of X ~ Hypergeom(population N, K marked, n drawn).

    Parameters
    ----------
    x, N, K, n : arrays of whole numbers that broadcast

    Returns
    -------
    float64 array of the broadcast shape
        −inf outside the support. Absolute error about 1e-12 for populations of 10 million.

    Notes
    -----
    Loader (2000), section 5, writes the probability as b(x; K, p)·b(n−x; N−K, p)/b(n; N, p) with
    p = n/N. Here the three binomials' parts are collected, which leaves the deviances of the four
    cells (½G² of the table) and the Stirling parts of margins and cells.
    """
    return _log_pmf(as_table(n, x, N, K))


def _log_pmf(table: Table) -> FloatArray:
    low, high = support(table)
    inside = (table.x >= low) & (table.x <= high)
    value = np.where(inside, 0.0, -np.inf)
    # One possible value has probability 1; these tables have empty margins.
    open_rows = inside & (low < high)
    if not open_rows.any():
        return value
    n, x, N, K = (column[open_rows] for column in table)
    margins = (n, N - n, K, N - K)
    cells = (x, n - x, K - x, N - K - n + x)
    result = -half_deviance(Table(n, x, N, K)) - stirling_error(N) - half_log_two_pi(N)
    for margin in margins:
        result += stirling_error(margin) + half_log_two_pi(margin)
    for cell in cells:
        result -= stirling_error(cell) + half_log_two_pi(cell)
    value[open_rows] = result
    return value


def pmf(x: ArrayLike, N: ArrayLike, K: ArrayLike, n: ArrayLike) -> FloatArray:
    """Return P(X = x) of X ~ Hypergeom(population N, K marked, n drawn); see `log_pmf`."""
    return np.exp(log_pmf(x, N, K, n))


def variance(n: ArrayLike, N: ArrayLike, K: ArrayLike) -> FloatArray:
    """Return Var(X) = n·(K/N)·(1 − K/N)·(N − n)/(N − 1) as float64, and 0 for N ≤ 1."""
    drawn, population, marked = (np.asarray(value, dtype=np.float64) for value in (n, N, K))
    safe = np.maximum(population, 2.0)
    share = marked / safe
    spread = drawn * share * (1.0 - share) * (population - drawn) / (safe - 1.0)
    return np.where(population > 1, spread, 0.0)


def weighted_tail(
    n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike, weight: ArrayLike
) -> FloatArray:
    """Return P(X > x) + weight·P(X = x) of X ~ Hypergeom(N, K, n).

    Parameters
    ----------
    n, x, N, K : arrays of whole numbers that broadcast
        x may lie outside the support.
    weight : array of numbers in 0..1
        1 gives P(X ≥ x), ½ the mid-tail.

    Returns
    -------
    float64 array of the broadcast shape
        With a relative error of about 1e-11 wherever x is at or above the mean, down to 1e-300.
    """
    table = as_table(n, x, N, K)
    share = np.broadcast_to(np.asarray(weight, dtype=np.float64), table.x.shape)
    below = _below_mean(table)
    outer = _outer_tail(_mirrored(table, below), np.where(below, 1.0 - share, share))
    return np.where(below, 1.0 - outer, outer)


def mid_p(n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike, tail: Tail) -> FloatArray:
    """Return the mid-p of x marked among n drawn, X ~ Hypergeom(N, K, n).

    Parameters
    ----------
    n, x : arrays of whole numbers
        Slice size and marked examples in it.
    N, K : whole numbers or arrays
        All examples and the marked ones; broadcast with `n` and `x`.
    tail : {"upper", "lower", "both"}
        ``upper``: P(X > x) + ½P(X = x); ``lower`` likewise; ``both``: min(1, 2·min(upper, lower)).

    Returns
    -------
    float64 array of the broadcast shape
        1.0 where an empty margin leaves nothing to test (n or K is 0 or N). Relative error below
        1e-9 in the small tail, down to 1e-300. The cost of a row grows with its standard
        deviation; above a variance of about 1,000 `likelihood_ratio.p_value` agrees and is cheaper.

    Examples
    --------
    A model gets 150 of 1,000 examples wrong, so 15 errors among 100 examples are what one expects.
    How likely is it that a random 100 of the examples hold so many errors, or more?

    >>> mid_p(n=100, x=[15, 25, 40], N=1000, K=150, tail="upper")
    array([4.89258261e-01, 2.82907507e-03, 4.30409427e-11])
    """
    table = as_table(n, x, N, K)
    if _constant(table.N) and _constant(table.K) and table.x.size > 1:
        return _mid_p_of_distinct(table, tail)
    return _mid_p(table, tail)


def _constant(values: IntArray) -> bool:
    return bool(values.size) and bool((values == values.flat[0]).all())


def _mid_p_of_distinct(table: Table, tail: Tail) -> FloatArray:
    # Thousands of slices share their pair (n, x); n·N + x fits int64 as x ≤ n ≤ N does.
    width = int(table.N.flat[0]) + 1
    x = np.clip(table.x, 0, table.n)
    if not np.array_equal(x, table.x):
        return _mid_p(table, tail)
    keys, place = np.unique((table.n * width + x).ravel(), return_inverse=True)
    first = Table(
        keys // width,
        keys % width,
        np.broadcast_to(table.N.flat[0], keys.shape),
        np.broadcast_to(table.K.flat[0], keys.shape),
    )
    return _mid_p(first, tail)[place].reshape(table.x.shape)


def _mid_p(table: Table, tail: Tail) -> FloatArray:
    below = _below_mean(table)
    outer = _outer_tail(_mirrored(table, below), np.full(table.x.shape, 0.5))
    # The two mid-tails add up to 1, so that the far one needs no sum of its own.
    inner = 1.0 - outer
    p = select_tail(np.where(below, inner, outer), np.where(below, outer, inner), tail)
    empty = (table.n == 0) | (table.n == table.N) | (table.K == 0) | (table.K == table.N)
    return np.where(empty, 1.0, p)


def _below_mean(table: Table) -> BoolArray:
    return table.x * table.N.astype(np.float64) < table.n * table.K.astype(np.float64)


def _mirrored(table: Table, where: BoolArray) -> Table:
    """Count unmarked instead of marked in the given rows: their lower tail becomes the upper."""
    n, x, N, K = table
    return Table(n, np.where(where, n - x, x), N, np.where(where, N - K, K))


def _outer_tail(table: Table, weight: FloatArray) -> FloatArray:
    """Return P(X > x) + weight·P(X = x) of tables whose x is at or above the mean."""
    point = np.exp(_log_pmf(table))
    tail = np.zeros(table.x.shape)
    rows = np.flatnonzero(point > 0)
    n, x, N, K = (column.ravel()[rows].astype(np.float64) for column in table)
    sums = np.empty(rows.size)
    for start in range(0, rows.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        sums[block] = _ratio_sum(n[block], x[block], N[block], K[block])
    tail.flat[rows] = point.flat[rows] * (weight.flat[rows] + sums)
    return tail


def _ratio_sum(n: FloatArray, x: FloatArray, N: FloatArray, K: FloatArray) -> FloatArray:
    """Return Σ_{j ≥ 1} P(X = x + j)/P(X = x), by the ratios of neighbouring terms.

    The ratios fall along the tail, so that a geometric series bounds what is left out.
    """
    total = np.zeros(n.size)
    place = np.arange(n.size)
    drawn, marked, next_x, rest = n - x, K - x, x + 1.0, N - K - n + x + 1.0
    term, running = np.ones(n.size), np.zeros(n.size)
    ratio, divisor = np.empty(n.size), np.empty(n.size)
    while place.size:
        for _ in range(_TERMS_BETWEEN_CHECKS):
            np.multiply(drawn, marked, out=ratio)
            np.multiply(next_x, rest, out=divisor)
            ratio /= divisor
            # Past the end of the support a factor has turned negative, but the term is 0 already.
            term *= ratio
            running += term
            drawn -= 1.0
            marked -= 1.0
            next_x += 1.0
            rest += 1.0
        left_out = np.abs(term) * ratio
        ended = (term == 0.0) | (
            (ratio < 1.0) & (left_out <= _TAIL_TOLERANCE * (1.0 - ratio) * running)
        )
        if ended.any():
            total[place[ended]] = running[ended]
            keep = ~ended
            place, drawn, marked, next_x, rest, term, running = (
                column[keep] for column in (place, drawn, marked, next_x, rest, term, running)
            )
            ratio, divisor = np.empty(place.size), np.empty(place.size)
    return total
