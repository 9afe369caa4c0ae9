"""What a method would find, run many times over a pool whose new predictions are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.randomness import hash64, uniform
from slicebeam.metrics.shift.allocation import batch_size, masa_order, static_order, static_weights
from slicebeam.metrics.shift.estimates import MatrixEstimate, estimate, reliance, starved_variance
from slicebeam.metrics.shift.halves import (
    adapted_order,
    adapted_weights,
    first_look,
    half_limits,
    next_look,
    static_halves,
)
from slicebeam.metrics.shift.strata import Sample, Strata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.kinds import Method

# Numbers of the orders of items that are kept at a time.
_MOST_NUMBERS = 1 << 26


@dataclass(frozen=True)
class Items:
    """The items of a pool, ordered by stratum.

    Attributes
    ----------
    identity : uint64 [items]
        Of which the order of the items within a stratum is a hash.
    new : integers [items], or [R, items] where each run has answers of its own
        The new predictions.
    old : integers [items] or None
    """

    identity: NDArray[np.uint64]
    new: NDArray[np.integer]
    old: NDArray[np.integer] | None = None


class Checked(NamedTuple):
    """What some runs know after a number of calls.

    Attributes
    ----------
    calls : made in each of them
    runs : which of all they are
    sample : what they counted
    """

    calls: int
    runs: slice
    sample: Sample


def item_order(seed: int, identity: NDArray[np.uint64], starts: IntArray) -> IntArray:
    """Return the order of queries in each stratum, by a hash of seed and identity.

    Parameters
    ----------
    identity : uint64 [items], ordered by stratum
    starts : int64 [S + 1]
        Where each stratum begins.

    Returns
    -------
    int64 [items]
        Positions; those of a stratum stay within its bounds.
    """
    hashes = hash64(seed, 0, identity)
    order = np.empty(identity.size, np.int64)
    for begin, end in pairwise(starts):
        order[begin:end] = begin + np.argsort(hashes[begin:end], kind="stable")
    return order


def simulate(
    strata: Strata,
    items: Items,
    method: Method,
    checks: Sequence[int],
    runs: int,
    seed: int,
    *,
    replacement: bool = False,
    batch: int | None = None,
    weights: FloatArray | None = None,
) -> Iterator[Checked]:
    """Yield what each of R runs counted after given numbers of calls, some of the runs at a time.

    Run r is what an assessment with the seed ``seed + r`` does.

    Parameters
    ----------
    strata : the pool, all of whose items are given
    checks : numbers of calls, ascending, from `allocation.smallest_budget` on
    runs : int
        R.
    replacement : bool
        Whether items are drawn with replacement, as the paper has it.
    batch : int, optional
        Calls that are allocated at a time; 1 is the published algorithm. As `batch_size` if left out.
    weights : float64 [S], optional
        Allocation weights for ``proportional`` in place of p_s: equal ones draw the same number of
        items from each stratum.
    """
    starts = np.concatenate([[0], np.cumsum(strata.sizes)])
    together = max(1, min(runs, _MOST_NUMBERS // max(items.identity.size, 1)))
    for first in range(0, runs, together):
        some = slice(first, min(first + together, runs))
        course = _Course(strata, items, starts, some, seed, replacement=replacement)
        for calls in course.follow(method, checks, batch, weights):
            yield Checked(calls, some, course.sample)


class _Course:
    """Some runs side by side."""

    def __init__(
        self,
        strata: Strata,
        items: Items,
        starts: IntArray,
        runs: slice,
        seed: int,
        *,
        replacement: bool,
    ) -> None:
        self.strata, self.items, self.starts, self.replacement = strata, items, starts, replacement
        self.seeds = [seed + run for run in range(runs.start, runs.stop)]
        self.runs = np.arange(runs.start, runs.stop)
        self.sample = Sample.empty(len(self.seeds), strata.count, strata.shape[1])
        self.halves: Sample | None = None
        self.orders = None if replacement else self._orders()

    def _orders(self) -> NDArray[np.int32]:
        orders = np.empty((len(self.seeds), self.items.identity.size), np.int32)
        for order, seed in zip(orders, self.seeds, strict=True):
            order[:] = item_order(seed, self.items.identity, self.starts)
        return orders

    def follow(
        self, method: Method, checks: Sequence[int], batch: int | None, weights: FloatArray | None
    ) -> Iterator[int]:
        last = checks[-1]
        if method == "uniform":
            yield from self._uniform(checks)
            return
        if method == "plus":
            yield from self._plus(checks)
            return
        if method == "proportional":
            if weights is None:
                weights = static_weights(method, self.strata)
            order = static_order(weights, self._sizes(last), last)
            begin = 0
            for check in checks:
                some = np.broadcast_to(
                    order[begin:check], (len(self.seeds), *order[begin:check].shape)
                )
                self._ask(some)
                begin = check
                yield check
            return
        planned = np.empty((len(self.seeds), 0), np.int64)
        calls = 0
        for check in checks:
            while calls < check:
                # A look in between does not change what a batch asks.
                if planned.shape[1] == 0:
                    size = min(batch or batch_size(calls), last - calls)
                    planned = masa_order(
                        self.strata, self.sample, size, replacement=self.replacement
                    )
                size = min(planned.shape[1], check - calls)
                self._ask(planned[:, :size])
                planned = planned[:, size:]
                calls += size
            yield check

    def _plus(self, checks: Sequence[int]) -> Iterator[int]:
        """Ask the halves of the strata, first in a static order, then by each other's answers."""
        strata, last, runs = self.strata, checks[-1], len(self.seeds)
        self.halves = Sample.empty(runs, 2 * strata.count, strata.shape[1])
        end = min(first_look(strata.count), last)
        order = static_halves(strata, self._sizes(last), end)
        planned = np.broadcast_to(order, (runs, order.size))
        sizes = half_limits(self._sizes(last), last)
        calls = 0
        for check in checks:
            while calls < check:
                if calls == end:
                    self.sample.halves = self.halves
                    end = min(next_look(strata.count, calls), last)
                    weights = adapted_weights(strata, self.halves, reliance(strata, self.sample))
                    planned = adapted_order(weights, self.halves, sizes, end - calls)
                size = min(end, check) - calls
                self._ask(planned[:, :size])
                planned = planned[:, size:]
                calls += size
            yield check

    def _sizes(self, most: int) -> IntArray:
        sizes = self.strata.sizes
        return np.full_like(sizes, most) if self.replacement else sizes

    def _ask(self, chosen: IntArray) -> None:
        """Ask the next items of these strata, or of these halves of strata: int64 [R, calls]."""
        halves = self.halves is not None
        asked = (self.halves or self.sample).asked
        made = np.maximum(chosen, 0)
        # The how-manieth of its stratum each call is.
        place = np.take_along_axis(asked, made, axis=1) + _earlier(chosen)
        stratum = made
        if halves:
            stratum, place = made // 2, 2 * place + made % 2
        begin = self.starts[stratum]
        if self.orders is None:
            seeds = np.array(self.seeds, np.uint64)[:, None]
            drawn = hash64(0, stratum, hash64(0, place, np.broadcast_to(seeds, place.shape)))
            size = self.strata.sizes[stratum]
            item = begin + (uniform(drawn) * size).astype(np.int64)
        else:
            item = np.take_along_axis(
                self.orders, np.where(chosen >= 0, begin + place, 0), axis=1
            ).astype(np.int64)
        self._count(np.where(chosen >= 0, stratum, -1), item, chosen if halves else None)

    def _count(self, stratum: IntArray, item: IntArray, half: IntArray | None = None) -> None:
        new, old = self.items.new, self.items.old
        answers = (new[item] if new.ndim == 1 else new[self.runs[:, None], item]).astype(np.int64)
        before = None if old is None else old[item].astype(np.int64)
        self.sample.add(stratum, answers, before)
        if self.halves is not None and half is not None:
            self.halves.add(half, answers, before)

    def _uniform(self, checks: Sequence[int]) -> Iterator[int]:
        """Ask items of the whole pool in the order of their hashes."""
        identity, total = self.items.identity, self.items.identity.size
        last = min(checks[-1], total) if not self.replacement else checks[-1]
        order = np.empty((len(self.seeds), last), np.int64)
        for own, seed in zip(order, self.seeds, strict=True):
            if self.replacement:
                words = hash64(seed, 1, np.arange(last, dtype=np.uint64))
                own[:] = (uniform(words) * total).astype(np.int64)
            else:
                own[:] = uniform_order(seed, identity)[:last]
        stratum = np.searchsorted(self.starts, order, side="right") - 1
        begin = 0
        for check in checks:
            self._count(stratum[:, begin:check], order[:, begin:check])
            begin = check
            yield check


def uniform_order(seed: int, identity: NDArray[np.uint64]) -> IntArray:
    """Return the order of queries of items drawn from the whole pool: int64 [items]."""
    return np.argsort(hash64(seed, 0, identity), kind="stable")


def _earlier(stratum: IntArray) -> IntArray:
    """Return how many of the earlier numbers of its row each number equals: int64 [R, calls]."""
    order = np.argsort(stratum, axis=1, kind="stable")
    ranked = np.take_along_axis(stratum, order, axis=1)
    position = np.broadcast_to(np.arange(stratum.shape[1]), stratum.shape)
    fresh = np.ones(stratum.shape, bool)
    fresh[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    begins = np.maximum.accumulate(np.where(fresh, position, 0), axis=1)
    earlier = np.empty_like(stratum)
    np.put_along_axis(earlier, order, position - begins, axis=1)
    return earlier


def summarise(
    method: Method, strata: Strata, sample: Sample, *, replacement: bool
) -> MatrixEstimate:
    """Return the estimate of a method from what its runs counted.

    ``plus`` uses the old predictions; the accuracy of ``masa`` gets an error that covers its bias
    (`starved_variance`); ``uniform`` takes the pool as one stratum, whose classes are
    the cells of the matrix, so that the result is reshaped.

    Parameters
    ----------
    replacement : bool
        Whether items were drawn with replacement.
    """
    if method == "masa":
        found = estimate(strata, sample, control=False, replacement=replacement)
        variance = starved_variance(strata, sample, found.accuracy_unseen, replacement=replacement)
        return replace(found, accuracy_variance=variance)
    if method != "uniform":
        return estimate(strata, sample, control=method == "plus", replacement=replacement)
    whole, counted = sample.of_cells(strata)
    found = estimate(whole, counted, control=False, replacement=replacement)
    cells = (sample.asked.shape[0], *strata.shape)
    return MatrixEstimate(
        found.matrix.reshape(cells),
        found.variance.reshape(cells),
        np.broadcast_to(found.unseen, cells[:2]),
        np.broadcast_to(strata.label_share, cells[:2]),
        found.accuracy,
        found.accuracy_variance,
        found.accuracy_unseen,
        found.reliance,
        found.loss,
        found.loss_error,
        found.loss_unseen,
        found.loss_spread,
    )
