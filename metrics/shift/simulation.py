"""What a method would find, run many times over a pool whose new predictions are known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.randomness import hash64
from slicebeam.metrics.shift.allocator import Allocator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.kinds import Method
    from slicebeam.metrics.shift.strata import Sample, Strata

# Numbers of the orders of items that are kept at a time.
_MOST_NUMBERS = 1 << 26


@dataclass(frozen=True)
class Items:
    """The items of a pool, ordered by stratum.

    Attributes
    ----------
    identity : uint64 [items], of which the order of the items within a stratum is a hash
    new : integers [items], or [R, items] where each run has answers of its own, the new predictions
    old : integers [items] or None
    """

    identity: NDArray[np.uint64]
    new: NDArray[np.integer]
    old: NDArray[np.integer] | None = None

    def answers(self, run: IntArray, item: IntArray) -> tuple[IntArray, IntArray | None]:
        """Return the new and old predictions of items, int64 [runs, calls] each."""
        new = self.new[item] if self.new.ndim == 1 else self.new[run[:, None], item]
        old = None if self.old is None else self.old[item].astype(np.int64)
        return new.astype(np.int64), old


class Checked(NamedTuple):
    """What some runs know after a number of calls; ``runs`` says which of all they are."""

    calls: int
    runs: slice
    sample: Sample


def item_order(seed: int, identity: NDArray[np.uint64], starts: IntArray) -> IntArray:
    """Return the order of queries in each stratum, by a hash of seed and identity: int64 [items].

    Items are ordered by stratum, each of which begins at one of ``starts`` [S + 1]; their positions in the
    order stay within its bounds.
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
    batch: int | None = None,
    weights: FloatArray | None = None,
) -> Iterator[Checked]:
    """Yield what each of R runs counted after given numbers of calls, some of the runs at a time.

    Run r is what an assessment with the seed ``seed + r`` does.

    Parameters
    ----------
    strata : the pool, all of whose items are given
    checks : numbers of calls, ascending, from `allocation.smallest_budget` on
    batch, weights : as of `Allocator`
    """
    starts = np.concatenate([[0], np.cumsum(strata.sizes)])
    together = max(1, min(runs, _MOST_NUMBERS // max(items.identity.size, 1)))
    for first in range(0, runs, together):
        run = np.arange(first, min(first + together, runs))
        allocator = Allocator(
            method, strata, checks[-1], runs=run.size, batch=batch, weights=weights
        )
        orders = np.empty((run.size, items.identity.size), np.int32)
        for order, number in zip(orders, run.tolist(), strict=True):
            order[:] = item_order(seed + number, items.identity, starts)
        for check in checks:
            while (calls := allocator.next(check - allocator.paid)).part.size:
                at = np.where(calls.part >= 0, starts[calls.stratum] + calls.place, 0)
                item = orders[np.arange(run.size)[:, None], at].astype(np.int64)
                allocator.add(calls, *items.answers(run, item))
            yield Checked(check, slice(first, first + run.size), allocator.sample)
