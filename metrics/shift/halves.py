"""Allocation by the answers so far that keeps the estimate unbiased.

Where the answers of a stratum decide how many more of its items are asked, its mean is biased: a
stratum that happened to show no change is neglected, and this chance stays in the estimate. So each
stratum is divided into two random halves, and the answers of one half decide the queries in the
other (cross-fitting). Within a half the number of items depends on none of its own answers, so its
mean is unbiased, and so is a fixed combination of the two.

Until `first_look` the order is the static one, whose draws alternate between the halves. Looks follow
each time that the number of calls has doubled; up to the next one nothing depends on an answer, so
that all its calls can be made at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.shift.allocation import greedy_order, static_order, static_weights

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.shift.strata import Sample, Strata

_FIRST_LOOK, _PER_STRATUM = 128, 4
# Answers that the expected variance of a stratum counts for beside its own.
_PRIOR_ANSWERS = 20
# Where the old predictions tell most, few items differ from them, and a variance that is estimated
# from these would starve strata. Below the first λ the answers decide, above the second none does.
_RELIANCE = (0.4, 0.7)


class Counts(NamedTuple):
    """The counts in each stratum, as if so many of its items had been drawn uniformly.

    Attributes
    ----------
    asked : float64 [R, S]
    new, old, both : float64 [R, S, P], as of `Sample`
    products : float64 [R, S], as of `Sample`
    """

    asked: FloatArray
    new: FloatArray
    old: FloatArray
    both: FloatArray
    products: FloatArray


def differences(counts: Counts | Sample, factor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the sums of 1[new = j] − λ·1[old = j], and of its square: float64 [R, S, P] each; λ is [R, 1, 1]."""
    counted = counts.new - factor * counts.old
    squares = counts.new - 2 * factor * counts.both + np.square(factor) * counts.old
    return counted, squares


def half_sizes(sizes: IntArray) -> IntArray:
    """Return the sizes of the halves 2s and 2s + 1 of each stratum: int64 [2S]."""
    return np.stack([(sizes + 1) // 2, sizes // 2], axis=1).reshape(-1)


def half_limits(sizes: IntArray, calls: int) -> IntArray:
    """Return the largest numbers of queries in the halves of strata: int64 [2S].

    Their sizes, and half of all calls: no half is worth more.
    """
    most = half_sizes(np.array([calls]))
    return np.minimum(half_sizes(sizes), np.tile(most, sizes.size))


def first_look(strata: int) -> int:
    """Return the number of calls before the first look: max(128, 4S)."""
    return max(_FIRST_LOOK, _PER_STRATUM * strata)


def next_look(strata: int, calls: int) -> int:
    """Return the next look after this many calls; looks are at 1, 2, 4, 8 … times the first one."""
    look = first_look(strata)
    while look <= calls:
        look *= 2
    return look


def static_halves(strata: Strata, sizes: IntArray, calls: int) -> IntArray:
    """Return the halves that the first calls ask by the static order of ``plus``: int64 [calls]."""
    stratum = static_order(static_weights("plus", strata), sizes, calls)
    order = np.argsort(stratum, kind="stable")
    counts = np.bincount(stratum, minlength=strata.count)
    place = np.empty_like(stratum)
    place[order] = np.arange(stratum.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return 2 * stratum + place % 2


def adapted_weights(strata: Strata, halves: Sample, reliance: FloatArray) -> FloatArray:
    """Return g, the allocation weight of each half, by the answers of the other: [R, 2S].

    g_s = p_s·√v_s, Neyman's optimum, where v_s is the sample variance of what the estimate sums,
    1[new = j] − λ·1[old = j] over all j (times W²_j), in the other half, shrunk to what the static weights
    expect of it as if 20 more answers had shown that: (½σ²_old,s + ½Σ p σ²_old) times the ratio of the two
    over all strata. From λ = 0.4 to 0.7 it is shrunk further, in the end wholly. The weights of the
    first halves sum to 1, and so do those of the second ones.
    """
    runs, share = halves.asked.shape[0], strata.share
    asked = halves.asked.astype(np.float64)
    known = np.maximum(asked, 1)
    factor = reliance[:, None, None]
    counted, squares = differences(halves, factor)
    weights = np.repeat(strata.squared_weights, 2, axis=0)
    variance = ((squares - np.square(counted) / known[:, :, None]) * weights).sum(axis=2)
    degrees = known - 1
    variance = np.maximum(variance / np.maximum(degrees, 1), 0).reshape(runs, -1, 2)
    degrees = degrees.reshape(runs, -1, 2)
    expected = np.square(static_weights("plus", strata) / share)[:, None]
    told = share[:, None] * (degrees > 0)
    spread = (told * expected).sum(axis=1, keepdims=True)
    ratio = np.divide(
        (told * variance).sum(axis=1, keepdims=True),
        spread,
        out=np.zeros_like(spread),
        where=spread > 0,
    )
    expected = np.where(ratio > 0, ratio, 1.0) * expected
    shrunk = (degrees * variance + _PRIOR_ANSWERS * expected) / (degrees + _PRIOR_ANSWERS)
    low, high = _RELIANCE
    adapted = np.where(ratio > 0, np.clip((high - reliance) / (high - low), 0, 1)[:, None, None], 0)
    g = share[:, None] * np.sqrt(adapted * shrunk + (1 - adapted) * expected)
    g /= g.sum(axis=1, keepdims=True)
    # What one half showed decides of the other.
    swapped: FloatArray = g[:, :, ::-1].reshape(runs, -1)
    return swapped


def adapted_order(weights: FloatArray, halves: Sample, sizes: IntArray, calls: int) -> IntArray:
    """Return the halves that the next calls ask, each argmax g/N within the sizes, or −1: int64 [R, calls]."""
    return greedy_order(
        lambda at, count: weights[at[0], at[1]] / np.maximum(count, 1),
        halves.asked,
        np.minimum(sizes, 1),
        sizes,
        calls,
    )


def counts_of(strata: Strata, sample: Sample) -> Counts:
    """Return the inputs of the estimate.

    Where the halves were asked by each other's answers, the means of a stratum are α·(those of the
    first half) + (1 − α)·(those of the second), with α the first half's share of its items: the
    variance is σ²/n − σ²/M with 1/n = α²/N₁ + (1 − α)²/N₂, as that of n items drawn alike. Where a
    half has no answer (calls may be lost), the other one stands for both.

    Assumes that the halves are random, so that both are samples of the whole stratum.
    """
    if sample.halves is None:
        each = (sample.asked, sample.new, sample.old, sample.both, sample.products)
        return Counts(*(counts.astype(np.float64) for counts in each))
    halves = sample.halves
    runs = halves.asked.shape[0]
    asked = halves.asked.reshape(runs, -1, 2).astype(np.float64)
    part = half_sizes(strata.sizes).reshape(-1, 2) / strata.sizes[:, None]
    part = np.where(asked > 0, part, 0)
    total = part.sum(axis=2, keepdims=True)
    part = np.divide(part, total, out=np.zeros_like(part), where=total > 0)
    inverse = np.divide(np.square(part), asked, out=np.zeros_like(part), where=asked > 0).sum(
        axis=2
    )
    alike = np.divide(1, inverse, out=np.zeros_like(inverse), where=inverse > 0)
    weights = (alike[:, :, None] * part / np.maximum(asked, 1))[..., None]

    def weighted(counts: IntArray | FloatArray) -> FloatArray:
        summed: FloatArray = (counts.reshape(runs, strata.count, 2, -1) * weights).sum(axis=2)
        return summed

    new, old, both = (weighted(cells) for cells in (halves.new, halves.old, halves.both))
    return Counts(alike, new, old, both, weighted(halves.products)[:, :, 0])
