"""Which items to query next, call by call, for an assessment and for its simulation alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.errors import EngineError
from slicebeam.metrics.shift import allocation
from slicebeam.metrics.shift.estimates import reliance
from slicebeam.metrics.shift.strata import Sample, half_sizes

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.kinds import Method
    from slicebeam.metrics.shift.strata import Strata


class PlannedCalls(NamedTuple):
    """Calls to make: [R, calls] each; a run makes none where ``part`` is −1."""

    part: IntArray  # a stratum, or of ``plus`` half of one (2s and 2s + 1)
    stratum: IntArray
    place: IntArray  # of the item in the order of its stratum


class Allocator:
    """Allocates the calls of R runs of a method, and counts their answers.

    What is queried depends on the strata, the limit and the answers so far only. Calls may be lost where
    R is 1. ``batch`` is how many calls ``masa`` allocates at a time; 1 is the published algorithm.
    """

    def __init__(
        self,
        method: Method,
        strata: Strata,
        limit: int,  # calls of each run at most, lost ones too
        *,
        runs: int = 1,
        candidates: IntArray | None = None,  # [S] items at hand; all if left out
        batch: int | None = None,
        # [S] of ``proportional`` in place of p_s√u_s: equal ones draw equal numbers
        weights: FloatArray | None = None,
    ) -> None:
        self.method, self.strata, self.limit, self.batch = method, strata, limit, batch
        cells = None if strata.weights is None else strata.weights[strata.row]
        self.sample = Sample.empty(runs, strata.count, strata.shape[1], cells)
        self.parts = 2 if method == "plus" else 1
        self._halves: Sample | None = None
        room = strata.sizes if candidates is None else candidates
        if method == "plus":
            room = half_sizes(room)
            of_halves = None if cells is None else np.repeat(cells, 2, axis=0)
            self._halves = Sample.empty(runs, room.size, strata.shape[1], of_halves)
        self._candidates = room
        # Items of each part that were handed out, those whose calls were lost too.
        self._taken = np.zeros((runs, room.size), np.int64)
        self.paid = self.lost = 0
        # Parts of calls that were lost, and are made again for another item.
        self._again = np.empty((runs, 0), np.int64)
        self._end = min(allocation.first_look(strata.count), limit)
        if method == "masa":
            order = np.empty(0, np.int64)
        elif method == "plus":
            order = allocation.static_halves(strata, strata.sizes, self._end)
        else:
            weights = allocation.static_weights(method, strata) if weights is None else weights
            order = allocation.static_order(weights, strata.sizes, limit)
        self._planned = np.broadcast_to(order, (runs, order.size))

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
            if self._plan():
                parts = self._take(size)
            if parts.shape[1] == 0 and self.lost:
                parts = self._elsewhere(size)
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

    def _plan(self) -> bool:
        """Decide on further calls by the answers so far; False if there is nothing to decide."""
        strata, begin = self.strata, self._end
        if self.method == "masa":
            # A lost call takes an item away that MASA, which looks at answers, does not know of.
            size = min(self.batch or allocation.batch_size(self.answered), self.limit - self.paid)
            order = allocation.masa_order(strata, self.sample, size)
        elif self._halves is not None and begin < self.limit:
            self.check_answers()
            self.sample.halves = self._halves
            self._end = min(allocation.next_look(strata.count, begin), self.limit)
            factor = reliance(strata, self.sample)
            weights = allocation.adapted_weights(strata, self._halves, factor)
            limits = allocation.half_limits(strata.sizes, self.limit)
            order = allocation.adapted_order(weights, self._halves, limits, self._end - begin)
        else:
            return False
        self._planned = order[:, (order >= 0).any(axis=0)]
        return True

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

    def _elsewhere(self, size: int) -> IntArray:
        """Return parts for calls that lost calls left no candidate for where they were planned.

        They follow the sizes of the strata, whatever was answered.
        """
        asked = (self._halves or self.sample).asked
        share = np.repeat(self.strata.share, self.parts)
        order = allocation.greedy_order(
            lambda at, count: share[at[1]] / np.maximum(count, 1),
            asked,
            np.zeros(share.size, np.int64),
            asked[0] + self._room(),
            size,
        )
        return order[:, order[0] >= 0]


def _rank(part: IntArray) -> IntArray:
    """Return how many of the earlier numbers of its row each number equals: int64 [R, calls]."""
    order = np.argsort(part, axis=1, kind="stable")
    ranked = np.take_along_axis(part, order, axis=1)
    position = np.broadcast_to(np.arange(part.shape[1]), part.shape)
    fresh = np.ones(part.shape, bool)
    fresh[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    begins = np.maximum.accumulate(np.where(fresh, position, 0), axis=1)
    rank = np.empty_like(part)
    np.put_along_axis(rank, order, position - begins, axis=1)
    return rank
