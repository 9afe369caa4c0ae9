"""The driver loop of a shift: allocation, answers and stopping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from slicebeam.metrics.errors import EngineError, OptionError
from slicebeam.metrics.shift.allocation import (
    batch_size,
    greedy_order,
    masa_order,
    smallest_budget,
    static_order,
    static_weights,
)
from slicebeam.metrics.shift.estimates import reliance
from slicebeam.metrics.shift.halves import (
    adapted_order,
    adapted_weights,
    first_look,
    half_limits,
    half_sizes,
    next_look,
    static_halves,
)
from slicebeam.metrics.shift.simulation import summarise, uniform_order
from slicebeam.metrics.shift.stopping import error_bound, first_check
from slicebeam.metrics.shift.strata import Sample, Strata
from slicebeam.pipelines.shift.answers import LOST, NO_RESULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.kinds import Method
    from slicebeam.pipelines.shift.answers import AnswerSource
    from slicebeam.pipelines.shift.pool import LabelledPool

Stopped = Literal["budget", "target_error", "pool"]


@dataclass(frozen=True)
class Stopping:
    """When to stop querying items.

    Attributes
    ----------
    calls : budget; None for no limit
    target_error : of the Frobenius norm; None for none
    """

    calls: int | None
    target_error: float | None
    confidence: float


@dataclass(frozen=True)
class Assessment:
    """The queried items and the counts.

    Attributes
    ----------
    strata : of the pool; the last class of the matrix is "no result"
    items : int64 [calls] positions of the queried candidates
    codes : int64 [calls] columns of their answers
    lost : calls that count as paid and were never answered
    """

    strata: Strata
    sample: Sample
    items: IntArray
    codes: IntArray
    stopped: Stopped
    lost: int


def strata_of(pool: LabelledPool, weights: FloatArray | None = None) -> Strata:
    """Return the strata of a pool, with a column of the matrix for answers that are no class."""
    classes = len(pool.classes) + 1
    old = None
    if pool.old is not None:
        old = np.concatenate([pool.old, np.zeros((pool.sizes.size, 1), np.int64)], axis=1)
    # A label is a class, and its own right prediction.
    shape = (pool.labels.size, classes)
    return Strata(pool.stratum_row, pool.sizes, shape, pool.labels, old, weights)


def check_budget(strata: Strata, method: Method, calls: int | None) -> None:
    """Raise an InputError where a budget does not suffice for an estimate at all."""
    least = min(2, int(strata.sizes.sum())) if method == "uniform" else smallest_budget(strata)
    if calls is not None and calls < least:
        why, fewer = "a variance needs two", ""
        if method != "uniform":
            why = f"two for each of the {strata.count} strata"
            fewer = ", or lower --bins" if strata.count > strata.shape[0] else ""
        raise OptionError(
            f"--budget buys {calls:,} call{'' if calls == 1 else 's'}, but --method {method} "
            f"needs at least {least:,}: {why}; raise it{fewer}"
        )


def assess(
    pool: LabelledPool,
    method: Method,
    answers: AnswerSource,
    stopping: Stopping,
    seed: int,
    on_calls: Callable[[int], None] = lambda _: None,
    weights: FloatArray | None = None,
) -> Assessment:
    """Ask items of a pool until it is enough.

    Which items are queried depends on the pool, the seed and earlier answers only, so that a run
    which is begun again queries the same ones.

    Parameters
    ----------
    on_calls : called with the number of answers after each batch
    weights : of the cells, as in `Strata`

    Raises
    ------
    InputError
        The budget is too small for an estimate.
    EngineError
        So many calls were lost that there is no estimate.
    """
    course = _AssessmentState(pool, method, seed, stopping, weights)
    check_budget(course.strata, method, stopping.calls)
    stopped: Stopped | None = None
    while stopped is None:
        items = course.next_items()
        if items.size == 0:
            stopped = "pool" if course.used_up else "budget"
            break
        left = None if stopping.calls is None else stopping.calls - course.paid
        course.add(items, answers.codes(items, left))
        on_calls(course.calls)
        if course.is_close_enough():
            stopped = "target_error"
    course.check_answers()
    return course.result(stopped)


class _AssessmentState:
    """The state of an assessment."""

    def __init__(
        self,
        pool: LabelledPool,
        method: Method,
        seed: int,
        stopping: Stopping,
        weights: FloatArray | None,
    ) -> None:
        self.pool, self.method, self.stopping = pool, method, stopping
        self.strata = strata_of(pool, weights)
        cells = None if weights is None else weights[self.strata.row]
        self.sample = Sample.empty(1, self.strata.count, self.strata.shape[1], cells)
        self._halves: Sample | None = None
        # Whose items are queried one after the other: the strata, or of ``plus`` their halves.
        self._parts = 1
        if method == "plus":
            self._parts = 2
            of_halves = None if cells is None else np.repeat(cells, 2, axis=0)
            shape = (1, 2 * self.strata.count, self.strata.shape[1])
            self._halves = Sample.empty(*shape, of_halves)
        self.lost = 0
        self._items: list[IntArray] = []
        self._codes: list[IntArray] = []
        # Candidates of each part that were queried, those without an answer too.
        self._taken = np.zeros(self._parts * self.strata.count, np.int64)
        total = int(self.strata.sizes.sum())
        self._limit = total if stopping.calls is None else min(stopping.calls, total)
        # Parts of calls that were lost, and are made again for another item.
        self._again: list[int] = []
        self._position = 0
        self._end = min(first_look(self.strata.count), self._limit)
        self._order = self._static(method, seed)

    def _static(self, method: Method, seed: int) -> IntArray | None:
        """Return the state before any query: strata, or items for ``uniform``."""
        if method == "masa":
            return None
        if method == "uniform":
            return uniform_order(seed, self.pool.items.identity)[: self._limit]
        if method == "plus":
            return static_halves(self.strata, self.strata.sizes, self._end)
        return static_order(static_weights(method, self.strata), self.strata.sizes, self._limit)

    @property
    def calls(self) -> int:
        """Answers."""
        return int(self.sample.calls[0])

    @property
    def paid(self) -> int:
        """Calls that count against the budget."""
        return self.calls + self.lost

    @property
    def used_up(self) -> bool:
        """Whether every item of the pool was queried."""
        return int(self._taken.sum()) == int(self.strata.sizes.sum())

    def next_items(self) -> IntArray:
        """Return the positions of the candidates to query next, none where it is enough."""
        left = self._limit - self.paid
        if left <= 0:
            return np.zeros(0, np.int64)
        # What is known beforehand need not wait for answers, unless these can end it.
        waits = self._order is None or self.stopping.target_error is not None
        size = min(left, batch_size(self.calls)) if waits else left
        if self.method == "uniform":
            return self._next_uniform(size)
        if self._order is not None:
            # Calls that are lost must not leave a stratum without an answer when all is spent.
            size = min(size, self._short() or size)
        parts = self._next_parts(size)
        if parts.size == 0 and self._halves is not None and self._end < self._limit:
            self._adapt()
            parts = self._next_parts(size)
        if parts.size == 0 and self.lost:
            parts = self._elsewhere(size)
        items = np.empty(parts.size, np.int64)
        for one in np.unique(parts):
            mine = np.flatnonzero(parts == one)
            stratum, offset = divmod(int(one), self._parts)
            place = self._taken[one] + np.arange(mine.size)
            items[mine] = self.pool.starts[stratum] + self._parts * place + offset
            self._taken[one] += mine.size
        return items

    def _adapt(self) -> None:
        """Decide by the answers so far which halves of strata are queried until the next look."""
        if self._halves is None:
            raise TypeError(f"--method {self.method} has no halves")
        self.check_answers()
        self.sample.halves = self._halves
        count, begin = self.strata.count, self._end
        self._end = min(next_look(count, begin), self._limit)
        weights = adapted_weights(self.strata, self._halves, reliance(self.strata, self.sample))
        limits = half_limits(self.strata.sizes, self._limit)
        order = adapted_order(weights, self._halves, limits, self._end - begin)[0]
        self._order, self._position = order[order >= 0], 0

    def _next_parts(self, size: int) -> IntArray:
        if self._order is None:
            # A lost call takes an item away that MASA, which looks at answers, does not know of.
            chosen = masa_order(self.strata, self.sample, size)[0]
            return self._within(chosen[chosen >= 0])
        again = self._within(np.array(self._again, np.int64))
        chosen, self._again = again[:size], again[size:].tolist()
        while chosen.size < size and self._position < self._order.size:
            begin = self._position
            self._position = min(begin + size - chosen.size, self._order.size)
            fresh = self._order[begin : self._position]
            chosen = self._within(np.concatenate([chosen, fresh]))
        return chosen

    def _short(self) -> int:
        """Return how many more answers an estimate needs at least, of candidates that are left."""
        least = np.minimum(self.strata.sizes, 2) - self.sample.asked[0]
        room = self._room().reshape(self.strata.count, -1).sum(axis=1)
        return int(np.clip(np.minimum(least, room), 0, None).sum())

    def _room(self) -> IntArray:
        """Return how many candidates of each part are left: int64 [parts]."""
        candidates = np.diff(self.pool.starts)
        return (half_sizes(candidates) if self._parts == 2 else candidates) - self._taken

    def _elsewhere(self, size: int) -> IntArray:
        """Return parts for calls that lost calls left no candidate for where they were planned.

        They follow the sizes of the strata, whatever was answered.
        """
        asked = (self._halves or self.sample).asked
        share = np.repeat(self.strata.share, self._parts)
        order = greedy_order(
            lambda at, count: share[at[1]] / np.maximum(count, 1),
            asked,
            np.zeros(share.size, np.int64),
            asked[0] + self._room(),
            size,
        )[0]
        return order[order >= 0]

    def _within(self, parts: IntArray) -> IntArray:
        """Return the calls for which their part still has candidates."""
        if self.lost == 0:
            return parts
        keep, room = np.zeros(parts.size, bool), self._room()
        for one in np.unique(parts):
            mine = np.flatnonzero(parts == one)
            keep[mine[: max(int(room[one]), 0)]] = True
        return parts[keep]

    def _next_uniform(self, size: int) -> IntArray:
        if self._order is None:
            raise TypeError("uniform has an order")
        begin = self._position
        items = self._order[begin : begin + size]
        self._position = begin + items.size
        np.add.at(self._taken, self.pool.items.stratum[items].astype(np.int64), 1)
        return items

    def add(self, items: IntArray, codes: IntArray) -> None:
        """Count the answers to items."""
        answered = codes != LOST
        self.lost += int(np.count_nonzero(~answered))
        stratum = self.pool.items.stratum[items].astype(np.int64)
        parts = stratum * self._parts + (items - self.pool.starts[stratum]) % self._parts
        self._again += parts[~answered].tolist()
        columns = np.where(codes == NO_RESULT, self.strata.shape[1] - 1, codes)[answered]
        kept = items[answered]
        old = self.pool.items.old
        before = None if old is None else old[kept].astype(np.int64)[None]
        self.sample.add(stratum[answered][None], columns[None], before)
        if self._halves is not None:
            self._halves.add(parts[answered][None], columns[None], before)
        self._items.append(kept)
        self._codes.append(columns)

    def is_close_enough(self) -> bool:
        """Return whether the target error is reached."""
        target = self.stopping.target_error
        if target is None or self.calls < first_check(self.strata.count):
            return False
        if self.method != "uniform" and (self.sample.asked == 0).any():
            return False
        found = summarise(self.method, self.strata, self.sample, replacement=False)
        return bool(error_bound(found, self.stopping.confidence)[0] <= target)

    def check_answers(self) -> None:
        """Raise if so many calls were lost that there is no estimate."""
        without = int(np.count_nonzero(self.sample.asked[0] == 0))
        if self.calls == 0 or (self.method != "uniform" and without):
            raise EngineError(
                f"{without:,} of {self.strata.count:,} strata have no answer, because "
                f"{self.lost:,} calls were lost and count as paid; raise --budget, or set "
                "lost_calls: repeat"
            )

    def result(self, stopped: Stopped) -> Assessment:
        """Return the counts."""
        return Assessment(
            self.strata,
            self.sample,
            np.concatenate([np.zeros(0, np.int64), *self._items]),
            np.concatenate([np.zeros(0, np.int64), *self._codes]),
            stopped,
            self.lost,
        )
