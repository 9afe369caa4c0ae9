"""Which stratum to query next: MASA's adaptive rule, and orders that are known in advance.

Where the answers of a stratum decide how many more of its items are asked, its mean is biased: a
stratum that happened to show no change is neglected, and this chance stays in the estimate. So ``plus``
divides each stratum into two random halves, and the answers of one half decide the queries in the
other (cross-fitting): within a half the number of items depends on none of its own answers, so its mean
is unbiased, and so is a fixed combination of the two. Until `first_look` the order is the static one,
whose draws alternate between the halves. Looks follow each time that the number of calls has doubled;
up to the next one nothing depends on an answer, so that all its calls can be made at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.shift.strata import differences, half_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.kinds import Method
    from slicebeam.metrics.shift.strata import Sample, Strata

# Items of each stratum that are asked before any rule counts: a variance needs two.
_AT_FIRST = 2
# MASA's parameter a, which weighs exploration.
_EXPLORATION = 1.0
_SMALLEST_BATCH, _LARGEST_BATCH = 16, 256
# Of the calls so far, what is asked before the answers are looked at again.
_BATCH_SHARE = 16
_FIRST_LOOK, _PER_STRATUM = 128, 4
# Answers that the expected variance of a stratum counts for beside its own.
_PRIOR_ANSWERS = 20
# Where the old predictions tell most, few items differ from them, and a variance that is estimated
# from these would starve strata. Below the first λ the answers decide, above the second none does.
_RELIANCE = (0.4, 0.7)


def batch_size(calls: int) -> int:
    """Return how many calls to make before the next look: a sixteenth of those so far, 16 to 256.

    It depends on nothing else, so that neither timing nor concurrency changes what is asked.
    """
    return min(_LARGEST_BATCH, max(_SMALLEST_BATCH, calls // _BATCH_SHARE))


def smallest_budget(strata: Strata) -> int:
    """Return how many calls an estimate needs at least: two a stratum, one where it has but one."""
    return int(np.minimum(strata.sizes, _AT_FIRST).sum())


def static_weights(method: Method, strata: Strata) -> FloatArray:
    """Return g_s, the allocation weights of the strata [S].

    ``proportional``: p_s·√u_s. ``plus``: p_s·√(½σ²_old,s + ½u_s·Σ p σ²_old/Σ p u), where σ²_old,s =
    Σ_j W²_sj·Ō_sj(1 − Ō_sj) is the variance of the old predictions: strata in which they varied change
    more often, and the half that all share keeps the others from starving. u_s is the mean of the two
    largest W²_sj: 1 without weights, 0 where no cell counts.
    """
    unit = strata.pair_weight / 2
    if method == "proportional":
        return np.asarray(strata.share * np.sqrt(unit))
    if method != "plus":
        raise ValueError(f"method {method!r} has no static weights")
    variance = (strata.squared_weights * strata.old_shares * (1 - strata.old_shares)).sum(axis=1)
    mean = float(strata.share @ variance) / float(strata.share @ unit)
    spread = 0.5 * variance + 0.5 * mean * unit if mean > 0 else unit
    return np.asarray(strata.share * np.sqrt(spread))


def optimal_calls(share: FloatArray, variance: FloatArray, calls: int) -> FloatArray:
    """Return the allocation [S] with the least error, N·p_s·σ_s/Σ p σ; NaN where σ² is unknown or all 0."""
    wanted = share * np.sqrt(variance)
    total = np.nansum(wanted)
    return np.asarray(calls * wanted / total if total > 0 else np.full_like(wanted, np.nan))


def static_order(weights: FloatArray, sizes: IntArray, calls: int) -> IntArray:
    """Return the strata of the first calls [min(calls, Σ M_s)]: each is argmax g_s/N_s within the sizes.

    Before that every stratum is asked twice, or once where it has one item.
    """
    draws = np.minimum(sizes, calls)
    stratum = np.repeat(np.arange(sizes.size), draws)
    # N_s before each draw.
    before = np.arange(stratum.size) - np.repeat(np.cumsum(draws) - draws, draws)
    priority = weights[stratum] / np.maximum(before, 1)
    priority[before < _AT_FIRST] = np.inf
    order = np.lexsort((stratum, before, -priority))
    return stratum[order[:calls]]


def masa_order(strata: Strata, sample: Sample, calls: int) -> IntArray:
    """Return the strata of the next calls [R, calls] by MASA's rule (Algorithm 1).

    Any stratum with N_s < min(2, M_s) first; else argmax p_s/N_s·(σ̂_s + (a/N_s)^¼) with a = 1 and
    σ̂²_s = (N_s − ‖H_s‖²/N_s)/(N_s − 1). Inside a batch N_s is counted up, σ̂_s stays; one call at a time
    is the published algorithm. With weights σ̂²_s is Σ_j W²_sj·(sample variance of 1[new = j]), and the
    bonus is multiplied by √u_s, of `static_weights`.
    """
    share, sizes = strata.share, strata.sizes
    known = np.maximum(sample.asked.astype(np.float64), 1)
    if strata.weights is None:
        squares = known - sample.squares / known
    else:
        apart = sample.new - np.square(sample.new) / known[:, :, None]
        squares = (apart * strata.squared_weights).sum(axis=2)
    variance = squares / np.maximum(sample.asked - 1, 1)
    spread = np.sqrt(np.maximum(np.where(sample.asked > 1, variance, 0), 0))
    unit = np.sqrt(strata.pair_weight / 2)

    def score(at: tuple[IntArray, IntArray], count: IntArray) -> FloatArray:
        counted = np.maximum(count, 1)
        bonus = (_EXPLORATION / counted) ** 0.25 * unit[at[1]]
        return np.asarray(share[at[1]] / counted * (spread[at[0], at[1]] + bonus))

    return greedy_order(score, sample.asked, np.minimum(sizes, _AT_FIRST), sizes, calls)


def greedy_order(
    score: Callable[[tuple[IntArray, IntArray], IntArray], FloatArray],
    asked: IntArray,
    first: IntArray,
    limit: IntArray,
    calls: int,
) -> IntArray:
    """Return the strata of the next calls [R, calls], each the one with the largest score.

    ``score`` is of (runs, strata) after so many calls of each. Of each stratum ``first`` calls come before
    any score counts, and beyond ``limit`` it is passed over: −1 where all are.
    """

    def bounded(at: tuple[IntArray, IntArray], count: IntArray) -> FloatArray:
        scores = score(at, count)
        scores[count < first[at[1]]] = np.inf
        scores[count >= limit[at[1]]] = -np.inf
        return scores

    asked = asked.copy()
    cells, runs = np.indices(asked.shape), np.arange(asked.shape[0])
    scores = bounded((cells[0], cells[1]), asked)
    chosen = np.empty((runs.size, calls), np.int64)
    for call in range(calls):
        stratum = scores.argmax(axis=1)
        chosen[:, call] = np.where(scores[runs, stratum] == -np.inf, -1, stratum)
        asked[runs, stratum] += 1
        scores[runs, stratum] = bounded((runs, stratum), asked[runs, stratum])
    return chosen


def half_limits(sizes: IntArray, calls: int) -> IntArray:
    """Return the largest numbers of queries in the halves of strata [2S]: no half is worth half of all."""
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
    """Return the halves that the first calls ask [calls] by the static order of ``plus``."""
    stratum = static_order(static_weights("plus", strata), sizes, calls)
    order = np.argsort(stratum, kind="stable")
    counts = np.bincount(stratum, minlength=strata.count)
    place = np.empty_like(stratum)
    place[order] = np.arange(stratum.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return 2 * stratum + place % 2


def adapted_weights(strata: Strata, halves: Sample, reliance: FloatArray) -> FloatArray:
    """Return g, the allocation weight of each half, by the answers of the other: [R, 2S].

    g_s = p_s·√v_s, Neyman's optimum, where v_s is the sample variance of what the estimate sums in the
    other half, shrunk, as if 20 more answers had shown that, to what the static weights expect of it,
    times the ratio of the two over all strata. From λ = 0.4 to 0.7 it is shrunk further, in the end
    wholly. The weights of the first halves sum to 1, and so do those of the second ones.
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
    answered = share[:, None] * (degrees > 0)
    spread = (answered * expected).sum(axis=1, keepdims=True)
    summed = (answered * variance).sum(axis=1, keepdims=True)
    ratio = np.divide(summed, spread, out=np.zeros_like(spread), where=spread > 0)
    expected = np.where(ratio > 0, ratio, 1.0) * expected
    shrunk = (degrees * variance + _PRIOR_ANSWERS * expected) / (degrees + _PRIOR_ANSWERS)
    low, high = _RELIANCE
    adapted = np.where(ratio > 0, np.clip((high - reliance) / (high - low), 0, 1)[:, None, None], 0)
    g = share[:, None] * np.sqrt(adapted * shrunk + (1 - adapted) * expected)
    g /= g.sum(axis=1, keepdims=True)
    # Each half is allocated by the other half's answers (cross-fitting).
    return np.asarray(g[:, :, ::-1].reshape(runs, -1))


def adapted_order(weights: FloatArray, halves: Sample, sizes: IntArray, calls: int) -> IntArray:
    """Return the halves that the next calls ask, [R, calls], each argmax g/N within the sizes, or −1."""
    return greedy_order(
        lambda at, count: weights[at[0], at[1]] / np.maximum(count, 1),
        halves.asked,
        np.minimum(sizes, 1),
        sizes,
        calls,
    )
