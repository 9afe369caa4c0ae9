"""Which stratum to query next: MASA's adaptive rule, and orders that are known in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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


def batch_size(calls: int) -> int:
    """Return how many calls to make before the next look, after this many calls.

    A sixteenth of what was asked, 16 to 256: small enough that a rule that adapts or stops loses
    little by it, large enough that calls are made side by side. It depends on nothing else, so
    that neither timing nor concurrency changes what is asked.
    """
    return min(_LARGEST_BATCH, max(_SMALLEST_BATCH, calls // _BATCH_SHARE))


def smallest_budget(strata: Strata) -> int:
    """Return how many calls an estimate needs at least: two a stratum, one where it has but one."""
    return int(np.minimum(strata.sizes, _AT_FIRST).sum())


def static_weights(method: Method, strata: Strata) -> FloatArray:
    """Return g_s, the allocation weights of the strata: float64 [S].

    ``proportional``: p_s·√u_s. ``plus``: p_s·√(½σ²_old,s + ½u_s·Σ p σ²_old/Σ p u), where σ²_old,s =
    Σ_j W²_sj·Ō_sj(1 − Ō_sj) is the variance of the old predictions: strata in which they varied change
    more often, and the half that all share keeps the others from starving. u_s is the mean of the two
    largest W²_sj: 1 without weights, 0 where no cell counts.
    """
    unit = strata.pair_weight / 2
    if method == "proportional":
        by_size: FloatArray = strata.share * np.sqrt(unit)
        return by_size
    if method != "plus":
        raise ValueError(f"method {method!r} has no static weights")
    variance = (strata.squared_weights * strata.old_shares * (1 - strata.old_shares)).sum(axis=1)
    mean = float(strata.share @ variance) / float(strata.share @ unit)
    spread = 0.5 * variance + 0.5 * mean * unit if mean > 0 else unit
    weights: FloatArray = strata.share * np.sqrt(spread)
    return weights


def optimal_calls(share: FloatArray, variance: FloatArray, calls: int) -> FloatArray:
    """Return the allocation with the least error, N·p_s·σ_s/Σ p σ: float64 [S].

    NaN where σ² is not known, or is 0 everywhere.
    """
    wanted = share * np.sqrt(variance)
    total = np.nansum(wanted)
    optimal: FloatArray = calls * wanted / total if total > 0 else np.full_like(wanted, np.nan)
    return optimal


def static_order(weights: FloatArray, sizes: IntArray, calls: int) -> IntArray:
    """Return the strata of the first calls, in order: each is argmax g_s/N_s, within the sizes.

    Before that every stratum is asked twice, or once where it has one item. It does not depend on any
    answer: int64 [min(calls, Σ M_s)], of which a shorter one is the beginning.
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
    """Return the strata of the next calls by MASA's rule (Algorithm 1): int64 [R, calls].

    Any stratum with N_s < min(2, M_s) first; else argmax p_s/N_s·(σ̂_s + (a/N_s)^¼) with a = 1 and
    σ̂²_s = (N_s − ‖H_s‖²/N_s)/(N_s − 1). Inside a batch the answers are not known yet: N_s is counted
    up, σ̂_s stays. With weights σ̂²_s is Σ_j W²_sj·(sample variance of 1[new = j]), and the bonus is
    multiplied by √u_s, of `static_weights`. A stratum that is used up is passed over, and −1 is
    returned where all are. One call at a time is the published algorithm.
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
        with_bonus: FloatArray = share[at[1]] / counted * (spread[at[0], at[1]] + bonus)
        return with_bonus

    return greedy_order(score, sample.asked, np.minimum(sizes, _AT_FIRST), sizes, calls)


def greedy_order(
    score: Callable[[tuple[IntArray, IntArray], IntArray], FloatArray],
    asked: IntArray,
    first: IntArray,
    limit: IntArray,
    calls: int,
) -> IntArray:
    """Return the strata of the next calls, each the one with the largest score: int64 [R, calls].

    ``score`` is of (runs, strata) after so many calls of each. Of each stratum ``first`` calls come before
    any score counts, and beyond ``limit`` it is passed over: −1 where all are.
    """
    asked = asked.copy()
    runs = np.arange(asked.shape[0])
    each = np.indices(asked.shape)
    scores = score((each[0], each[1]), asked)
    scores[asked < first] = np.inf
    scores[asked >= limit] = -np.inf
    chosen = np.empty((asked.shape[0], calls), np.int64)
    for call in range(calls):
        stratum = scores.argmax(axis=1)
        chosen[:, call] = np.where(scores[runs, stratum] == -np.inf, -1, stratum)
        asked[runs, stratum] += 1
        count = asked[runs, stratum]
        fresh = score((runs, stratum), count)
        fresh[count < first[stratum]] = np.inf
        fresh[count >= limit[stratum]] = -np.inf
        scores[runs, stratum] = fresh
    return chosen
