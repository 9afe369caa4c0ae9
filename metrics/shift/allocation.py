"""Which stratum to query next: MASA's adaptive rule, and orders that are known in advance.

``plus`` divides each stratum into two random halves, and the answers of one decide the queries in the other
(cross-fitting), so that no mean is biased. A look at the answers follows each time that the number of calls has doubled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slicebeam.metrics.arrays import FloatArray, IntArray, ratio
from slicebeam.metrics.errors import EngineError
from slicebeam.metrics.kinds import Method
from slicebeam.metrics.shift.estimates import Sample, Strata, counts_of, differences, half_sizes
from slicebeam.metrics.shift.estimates import reliance as reliance_of

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
    """Return the calls before the next look, a sixteenth of those so far, 16 to 256, whatever the timing."""
    return min(_LARGEST_BATCH, max(_SMALLEST_BATCH, calls // _BATCH_SHARE))


def smallest_budget(strata: Strata) -> int:
    """Return how many calls an estimate needs at least: two a stratum, one where it has but one."""
    return int(np.minimum(strata.sizes, _AT_FIRST).sum())


def static_weights(method: Method, strata: Strata) -> FloatArray:
    """Return g_s, the allocation weights of the strata [S], u_s the mean of the two largest W²_sj."""
    # ``proportional``: p_s·√u_s. ``plus``: p_s·√(½σ²_old,s + ½u_s·Σ p σ²_old/Σ p u), the half that all share against starving.
    unit = spread = strata.pair_weight / 2
    if method == "proportional":
        return np.asarray(strata.share * np.sqrt(unit))
    variance = (strata.squared_weights * strata.old_shares * (1 - strata.old_shares)).sum(axis=1)
    mean = float(strata.share @ variance) / float(strata.share @ unit)
    if mean > 0:
        spread = 0.5 * variance + 0.5 * mean * unit
    return np.asarray(strata.share * np.sqrt(spread))


def optimal_calls(share: FloatArray, variance: FloatArray, calls: int) -> FloatArray:
    """Return the allocation [S] with the least error, N·p_s·σ_s/Σ p σ; NaN where σ² is unknown or all 0."""
    wanted = share * np.sqrt(variance)
    total = np.nansum(wanted)
    return np.asarray(calls * wanted / total if total > 0 else np.full_like(wanted, np.nan))


def static_order(weights: FloatArray, sizes: IntArray, calls: int) -> IntArray:
    """Return the strata of the first calls: two of each (if it has them), then argmax g_s/N_s within the sizes."""
    draws = np.minimum(sizes, calls)
    stratum = np.repeat(np.arange(sizes.size), draws)
    # N_s before each draw.
    before = np.arange(stratum.size) - np.repeat(np.cumsum(draws) - draws, draws)
    priority = weights[stratum] / np.maximum(before, 1)
    priority[before < _AT_FIRST] = np.inf
    order = np.lexsort((stratum, before, -priority))
    return stratum[order[:calls]]


def masa_order(strata: Strata, sample: Sample, calls: int) -> IntArray:
    """Return the strata of the next calls [R, calls] by MASA's rule (Algorithm 1)."""
    # Any stratum with N_s < min(2, M_s) first; else argmax p_s/N_s·(σ̂_s + (a/N_s)^¼), a = 1. Inside a batch N_s is counted
    # up, σ̂_s stays. With weights variances are of weighted cells, and the bonus is times √u_s, of `static_weights`.
    share, sizes = strata.share, strata.sizes
    asked = np.maximum(sample.asked.astype(np.float64), 1)
    if strata.weights is None:
        squares = asked - sample.squares / asked
    else:
        apart = sample.new - np.square(sample.new) / asked[:, :, None]
        squares = (apart * strata.squared_weights).sum(axis=2)
    variance = squares / np.maximum(sample.asked - 1, 1)
    spread = np.sqrt(np.maximum(np.where(sample.asked > 1, variance, 0), 0))
    unit = np.sqrt(strata.pair_weight / 2)
    first = np.minimum(sizes, _AT_FIRST)
    return weighted_order(share[None], sample.asked, first, sizes, calls, (spread, unit))


def weighted_order(
    weights: FloatArray,
    asked: IntArray,
    first: IntArray,
    limit: IntArray,
    calls: int,
    masa: tuple[FloatArray, FloatArray] | None = None,
) -> IntArray:
    """Return the parts [R, calls] of the next calls, ``first`` ones, then argmax g/N; −1 past the limits."""
    # With the spreads [R, S] and units [S] of ``masa`` g is also multiplied by spread and exploration.
    weights = np.broadcast_to(weights, asked.shape)

    def bounded(run: IntArray, part: IntArray, count: IntArray) -> FloatArray:
        counted = np.maximum(count, 1)
        scores: FloatArray = weights[run, part] / counted
        if masa is not None:
            spread, unit = masa
            scores *= spread[run, part] + (_EXPLORATION / counted) ** 0.25 * unit[part]
        scores[count < first[part]] = np.inf
        scores[count >= limit[part]] = -np.inf
        return scores

    asked = asked.copy()
    runs = np.arange(asked.shape[0])
    cells = np.indices(asked.shape)
    scores = bounded(cells[0], cells[1], asked)
    chosen = np.empty((runs.size, calls), np.int64)
    for call in range(calls):
        stratum = scores.argmax(axis=1)
        chosen[:, call] = np.where(scores[runs, stratum] == -np.inf, -1, stratum)
        asked[runs, stratum] += 1
        scores[runs, stratum] = bounded(runs, stratum, asked[runs, stratum])
    return chosen


def half_limits(sizes: IntArray, calls: int) -> IntArray:
    """Return the largest numbers of queries in the halves of strata [2S]: no half is worth half of all."""
    most = half_sizes(np.array([calls]))
    return np.minimum(half_sizes(sizes), np.tile(most, sizes.size))


def next_look(strata: int, calls: int) -> int:
    """Return the next look after this many calls; looks are at 1, 2, 4, 8 … times max(128, 4S)."""
    look = max(_FIRST_LOOK, _PER_STRATUM * strata)
    while look <= calls:
        look *= 2
    return look


def static_halves(strata: Strata, sizes: IntArray, calls: int) -> IntArray:
    """Return the halves that the first calls ask [calls] by the static order of ``plus``."""
    stratum = static_order(static_weights("plus", strata), sizes, calls)
    return np.asarray(2 * stratum + _rank(stratum[None])[0] % 2)


def adapted_weights(strata: Strata, halves: Sample, reliance: FloatArray) -> FloatArray:
    """Return g, the allocation weight of each half, by the answers of the other [R, 2S]; either halves sum to 1."""
    # Neyman's p_s·√v_s, v_s the variance in the other half shrunk by 20 answers to what the static weights expect, at
    # the scale of all strata; from λ = .4 to .7 shrunk further, in the end wholly.
    runs, share = halves.asked.shape[0], strata.share
    asked = np.maximum(halves.asked.astype(np.float64), 1)
    counted, squares = differences(halves, reliance[:, None, None])
    weights = np.repeat(strata.squared_weights, 2, axis=0)
    variance = ((squares - np.square(counted) / asked[:, :, None]) * weights).sum(axis=2)
    variance = np.maximum(variance / np.maximum(asked - 1, 1), 0).reshape(runs, -1, 2)
    degrees = asked.reshape(runs, -1, 2) - 1
    expected = np.square(static_weights("plus", strata) / share)[:, None]
    answered = share[:, None] * (degrees > 0)
    spread = (answered * expected).sum(axis=1, keepdims=True)
    summed = (answered * variance).sum(axis=1, keepdims=True)
    size = ratio(summed, spread, otherwise=0.0)
    expected = np.where(size > 0, size, 1.0) * expected
    shrunk = (degrees * variance + _PRIOR_ANSWERS * expected) / (degrees + _PRIOR_ANSWERS)
    low, high = _RELIANCE
    adapted = np.where(size > 0, np.clip((high - reliance) / (high - low), 0, 1)[:, None, None], 0)
    g = share[:, None] * np.sqrt(adapted * shrunk + (1 - adapted) * expected)
    g /= g.sum(axis=1, keepdims=True)
    # Each half is allocated by the other half's answers (cross-fitting).
    return np.asarray(g[:, :, ::-1].reshape(runs, -1))


class PlannedCalls(NamedTuple):
    """Calls to make: [R, calls] each; a run makes none where ``part`` is −1."""

    part: IntArray  # a stratum, or of ``plus`` half of one (2s and 2s + 1)
    stratum: IntArray
    place: IntArray  # of the item in the order of its stratum


class Allocator:
    """Allocates the calls of R runs of a method, by the answers so far, and counts them. Calls may be lost where R is 1."""

    def __init__(
        self,
        method: Method,
        strata: Strata,
        limit: int,  # calls of each run at most, lost ones too
        *,
        runs: int = 1,
        candidates: IntArray | None = None,  # [S] items at hand; all if left out
        batch: int | None = None,
    ) -> None:
        self.method, self.strata, self.limit, self.batch = method, strata, limit, batch
        cells = None if strata.weights is None else strata.weights[strata.row]
        self.sample = Sample.empty(runs, strata.count, strata.shape[1], cells)
        self.parts = 2 if method == "plus" else 1
        self._halves: Sample | None = None
        room = strata.sizes if candidates is None else candidates
        order = np.empty(0, np.int64)
        self._end = min(next_look(strata.count, 0), limit)
        if method == "plus":
            room = half_sizes(room)
            of_halves = None if cells is None else np.repeat(cells, 2, axis=0)
            self._halves = Sample.empty(runs, room.size, strata.shape[1], of_halves)
            order = static_halves(strata, strata.sizes, self._end)
        elif method != "masa":
            order = static_order(static_weights(method, strata), strata.sizes, limit)
        self._planned = np.broadcast_to(order, (runs, order.size))
        self._candidates = room
        # Items of each part that were handed out, those whose calls were lost too.
        self._taken = np.zeros((runs, room.size), np.int64)
        self.paid = self.lost = 0
        # Parts of calls that were lost, and are made again for another item.
        self._again = np.empty((runs, 0), np.int64)

    @property
    def answered(self) -> int:
        """Answers of each run."""
        return self.paid - self.lost

    @property
    def used_up(self) -> bool:
        """Whether every item of the pool was queried."""
        return int(self._taken[0].sum()) == int(self.strata.sizes.sum())

    def next(self, size: int) -> PlannedCalls:
        """Return at most so many calls: fewer where answers decide on the others, 0 at the limit."""
        size = min(size, self.limit - self.paid)
        if self.method != "masa":
            # Calls that are lost must not leave a stratum without an answer when all is spent.
            size = min(size, self._short() or size)
        parts = self._take(size)
        if size > 0 and parts.shape[1] == 0:
            self._plan()
            parts = self._take(size)
            if parts.shape[1] == 0 and self.lost:
                # Where no candidate is left as planned, by the strata's sizes alone.
                asked = (self._halves or self.sample).asked
                share = np.repeat(self.strata.share, self.parts)[None]
                none, most = np.zeros_like(asked[0]), asked[0] + self._room()
                order = weighted_order(share, asked, none, most, size)
                parts = order[:, order[0] >= 0]
        made = np.maximum(parts, 0)
        rank = np.take_along_axis(self._taken, made, axis=1) + _rank(parts)
        stratum, half = np.divmod(made, self.parts)
        run, call = np.nonzero(parts >= 0)
        np.add.at(self._taken, (run, parts[run, call]), 1)
        return PlannedCalls(parts, stratum, self.parts * rank + half)

    def add(self, calls: PlannedCalls, new: IntArray, old: IntArray | None = None) -> None:
        """Count the answers to calls: classes, int64 [R, calls] each; negative ones are lost."""
        lost = (new < 0) & (calls.part >= 0)
        part = np.where(lost, -1, calls.part)
        self.sample.add(np.where(part >= 0, calls.stratum, -1), new, old)
        if self._halves is not None:
            self._halves.add(part, new, old)
        self.paid += calls.part.shape[1]
        if lost.any():
            self.lost += int(np.count_nonzero(lost))
            if self.method != "masa":
                self._again = np.concatenate([self._again, calls.part[lost][None]], axis=1)

    def check_answers(self) -> None:
        """Raise an EngineError if so many calls were lost that there is no estimate."""
        without = int(np.count_nonzero(self.sample.asked[0] == 0))
        if without:
            raise EngineError(
                f"{without:,} of {self.strata.count:,} strata have no answer, because "
                f"{self.lost:,} calls were lost and count as paid; raise --budget, or set "
                "lost_calls: repeat"
            )

    def _plan(self) -> None:
        """Decide on further calls by the answers so far, if there is something to decide."""
        strata, begin = self.strata, self._end
        if self.method == "masa":
            # A lost call takes an item away that MASA, which looks at answers, does not know of.
            size = min(self.batch or batch_size(self.answered), self.limit - self.paid)
            order = masa_order(strata, self.sample, size)
        elif self._halves is not None and begin < self.limit:
            self.check_answers()
            self.sample.halves = self._halves
            self._end = min(next_look(strata.count, begin), self.limit)
            factor = reliance_of(strata, counts_of(strata, self.sample))
            weights = adapted_weights(strata, self._halves, factor)
            limits = half_limits(strata.sizes, self.limit)
            first = np.minimum(limits, 1)
            order = weighted_order(weights, self._halves.asked, first, limits, self._end - begin)
        else:
            return
        self._planned = order[:, (order >= 0).any(axis=0)]

    def _take(self, size: int) -> IntArray:
        """Return the next planned calls, those that were lost first."""
        again = self._within(self._again)
        chosen, self._again = again[:, :size], again[:, size:]
        while chosen.shape[1] < size and self._planned.shape[1]:
            fresh = size - chosen.shape[1]
            planned, self._planned = self._planned[:, :fresh], self._planned[:, fresh:]
            chosen = self._within(np.concatenate([chosen, planned], axis=1))
        return chosen

    def _within(self, parts: IntArray) -> IntArray:
        """Return the calls for which their part still has candidates."""
        if self.lost == 0:
            return parts
        return parts[:, _rank(parts)[0] < self._room()[parts[0]]]

    def _room(self) -> IntArray:
        """Return how many candidates of each part are left [parts]."""
        return np.asarray(self._candidates - self._taken[0])

    def _short(self) -> int:
        """Return how many more answers an estimate needs at least, of candidates that are left."""
        least = np.minimum(self.strata.sizes, 2) - self.sample.asked[0]
        room = self._room().reshape(self.strata.count, -1).sum(axis=1)
        return int(np.clip(np.minimum(least, room), 0, None).sum())


def _rank(part: IntArray) -> IntArray:
    """Return how many of the earlier numbers of its row each number equals: int64 [R, calls]."""
    order = np.argsort(part, axis=1, kind="stable")
    ranked = np.take_along_axis(part, order, axis=1)
    position = np.broadcast_to(np.arange(part.shape[1]), part.shape)
    fresh = np.diff(ranked, axis=1, prepend=-2) != 0
    begins = np.maximum.accumulate(np.where(fresh, position, 0), axis=1)
    rank = np.empty_like(part)
    np.put_along_axis(rank, order, position - begins, axis=1)
    return rank
