"""Whether a slice is worse than its parent, or only inherits that the parent is worse.

Under the null the child's examples are a random subset of the parent's. The test is exact given the
parent's counts; that of one model is `count_tests.mid_p` with the parent in place of all examples.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.significance import count_tests

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray

_WINDOW = 12.0
# Added to both sides of the window, for laws that are too narrow and skewed for their deviation.
_SMALLEST_MARGIN = 24.0
# Sampling a bell curve every third of its deviation sums it to 1e-30; odd steps take even and odd
# sums in turn, which lets the half weights of the tail be averaged too.
_STEPS_PER_DEVIATION = 3.0
# Terms that are summed at once: about forty columns of them are alive at a time.
_TERMS_AT_ONCE = 250_000


class _ChildCounts(NamedTuple):
    """A child drawn from its parent: b of n and b_parent of n_parent examples are for the worse."""

    n: IntArray
    b: IntArray
    c: IntArray
    n_parent: IntArray
    b_parent: IntArray
    c_parent: IntArray


def p_refine_paired(
    n: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    n_parent: ArrayLike,
    b_parent: ArrayLike,
    c_parent: ArrayLike,
) -> FloatArray:
    """Return P(D > b − c) + ½P(D = b − c), D = B − C of a random n-subset of the parent.

    Sums over the number k of discordant examples in the child, k ~ Hypergeom(n_parent, b_parent +
    c_parent, n), B ~ Hypergeom(b_parent + c_parent, b_parent, k), 12 deviations around the mean and around
    the likeliest k given D. 1 where nothing can vary.
    """
    counts = (
        np.atleast_1d(np.asarray(value, dtype=np.int64))
        for value in (n, b, c, n_parent, b_parent, c_parent)
    )
    pairs = _ChildCounts(*np.broadcast_arrays(*counts))
    discordant = pairs.b_parent + pairs.c_parent
    possible = (pairs.n > 0) & (pairs.n < pairs.n_parent) & (discordant > 0)
    # All examples net to the same: nothing can vary.
    possible &= (pairs.b_parent < pairs.n_parent) & (pairs.c_parent < pairs.n_parent)
    p = np.ones(pairs.n.shape)
    rows = np.flatnonzero(possible)
    if not rows.size:
        return p
    first, step, terms = _grid(_ChildCounts(*(column[rows] for column in pairs)))
    for chunk in _chunks(terms):
        part = _ChildCounts(*(column[rows[chunk]] for column in pairs))
        p[rows[chunk]] = _mid_tail(part, first[chunk], step[chunk], terms[chunk])
    return p


def _chunks(terms: IntArray) -> list[slice]:
    """Return runs of pairs with about `_TERMS_AT_ONCE` terms each."""
    number = (np.cumsum(terms) - 1) // _TERMS_AT_ONCE
    bounds = np.append(np.flatnonzero(np.diff(number, prepend=-1)), terms.size)
    return [slice(start, end) for start, end in pairwise(bounds.tolist())]


def _grid(pairs: _ChildCounts) -> tuple[IntArray, IntArray, IntArray]:
    """Return the first k of each pair's sum, the step between its ks, and their number."""
    discordant = pairs.b_parent + pairs.c_parent
    agreeing = pairs.n_parent - discordant
    low = np.maximum(0, pairs.n - agreeing)
    high = np.minimum(pairs.n, discordant)
    mean = pairs.n * (discordant / pairs.n_parent)
    deviation = np.sqrt(count_tests.variance(pairs.n, pairs.n_parent, discordant))
    mode, mode_deviation = _likeliest_given_difference(pairs)
    margin = _WINDOW * np.maximum(deviation, mode_deviation) + _SMALLEST_MARGIN
    first = np.maximum(low, np.floor(np.minimum(mean, mode) - margin).astype(np.int64))
    last = np.minimum(high, np.ceil(np.maximum(mean, mode) + margin).astype(np.int64))
    narrowest = np.minimum(deviation, mode_deviation) / _STEPS_PER_DEVIATION
    step = np.maximum(1, 2 * ((narrowest.astype(np.int64) + 1) // 2) - 1)
    return first, step, (last - first) // step + 1


def _likeliest_given_difference(pairs: _ChildCounts) -> tuple[FloatArray, FloatArray]:
    """Return the likeliest k given B − C = b − c, by bisection over C, and about its deviation there."""
    difference = pairs.b - pairs.c
    agreeing_parent = pairs.n_parent - pairs.b_parent - pairs.c_parent
    # B and C both change by one, so that the examples that agree change by two.
    spare = pairs.n - difference
    low = np.maximum.reduce([np.zeros_like(spare), -difference, (spare - agreeing_parent + 1) // 2])
    high = np.minimum.reduce([pairs.c_parent, pairs.b_parent - difference, spare // 2])
    while (low < high).any():
        middle = (low + high) // 2
        rises = _log_ratio(pairs, middle) > 0.0
        climbing = low < high
        low = np.where(climbing & rises, middle + 1, low)
        high = np.where(climbing & ~rises, middle, high)
    c = low.astype(np.float64)
    b = c + difference
    agreeing = pairs.n - b - c
    curvature = (
        1.0 / (b + 1.0)
        + 1.0 / (c + 1.0)
        + 1.0 / (pairs.b_parent - b + 1.0)
        + 1.0 / (pairs.c_parent - c + 1.0)
        + 4.0 / (agreeing + 1.0)
        + 4.0 / (agreeing_parent - agreeing + 1.0)
    )
    return b + c, 2.0 / np.sqrt(curvature)


def _log_ratio(pairs: _ChildCounts, c: IntArray) -> FloatArray:
    """Return log P(B + 1, C + 1)/P(B, C) at C = c and B = c + d, where both are possible."""
    b = c + (pairs.b - pairs.c)
    agreeing = (pairs.n - b - c).astype(np.float64)
    left = pairs.n_parent - pairs.b_parent - pairs.c_parent - agreeing
    gain = (pairs.b_parent - b) * 1.0 * (pairs.c_parent - c) * agreeing * (agreeing - 1.0)
    loss = (b + 1.0) * (c + 1.0) * (left + 1.0) * (left + 2.0)
    ratio: FloatArray = np.log(np.maximum(gain, 1e-300)) - np.log(loss)
    return ratio


def _mid_tail(pairs: _ChildCounts, first: IntArray, step: IntArray, terms: IntArray) -> FloatArray:
    """Return P(D > d) + ½P(D = d) of each pair: the sum over its ks, laid end to end."""
    ends = np.cumsum(terms)
    pair = np.repeat(np.arange(terms.size), terms)
    k = first[pair] + step[pair] * (np.arange(ends[-1]) - (ends - terms)[pair])
    discordant = pairs.b_parent + pairs.c_parent
    weight = count_tests.pmf(k, pairs.n_parent[pair], discordant[pair], pairs.n[pair])
    twice_threshold = k + (pairs.b - pairs.c)[pair]
    # An odd k cannot give D = d: there the next B counts in full, else the threshold by half.
    odd = twice_threshold % 2 == 1
    tail = _tail_of_b(
        k, (twice_threshold + 1) // 2, discordant[pair], pairs.b_parent[pair], odd=odd
    )
    starts = ends - terms
    total = np.add.reduceat(weight * tail, starts)
    return np.minimum(1.0, total * step)


def _tail_of_b(
    k: IntArray, b: IntArray, discordant: IntArray, b_parent: IntArray, *, odd: BoolArray
) -> FloatArray:
    """Return P(B > b) + P(B = b) where odd, and P(B > b) + ½P(B = b) elsewhere."""
    low = np.maximum(0, k + b_parent - discordant)
    high = np.minimum(k, b_parent)
    wide = count_tests.variance(k, discordant, b_parent) > count_tests.EXACT_UP_TO_VARIANCE
    wide &= (b >= low) & (b <= high)
    tail = np.empty(k.shape)
    tail[~wide] = count_tests.weighted_tail(
        k[~wide], b[~wide], discordant[~wide], b_parent[~wide], np.where(odd[~wide], 1.0, 0.5)
    )
    if wide.any():
        table = (k[wide], b[wide], discordant[wide], b_parent[wide])
        point = count_tests.pmf(table[1], table[2], table[3], table[0])
        half_more = np.where(odd[wide], 0.5, 0.0) * point
        tail[wide] = count_tests.likelihood_mid_p(*table, "upper") + half_more
    return tail
