"""The driver loop of a shift: allocation, answers and stopping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.shift.allocation import Allocator, batch_size, smallest_budget
from slicebeam.metrics.shift.estimates import Sample, Strata, error_bound, first_check, summarise
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
    """When to stop querying items: a budget, and an error of the Frobenius norm; None for no limit."""

    calls: int | None
    target_error: float | None
    confidence: float


@dataclass(frozen=True)
class Assessment:
    """The queried items and the counts.

    ``strata``: of the pool; the last class of the matrix is "no result". ``items``: int64 [calls]
    positions of the queried candidates. ``codes``: int64 [calls] columns of their answers.
    ``lost``: calls that count as paid and were never answered.
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
    least = smallest_budget(strata)
    if calls is not None and calls < least:
        fewer = ", or lower --bins" if strata.count > strata.shape[0] else ""
        raise OptionError(
            f"--budget buys {calls:,} call{'' if calls == 1 else 's'}, but --method {method} "
            f"needs at least {least:,}: two for each of the {strata.count} strata; raise it{fewer}"
        )


def assess(
    pool: LabelledPool,
    method: Method,
    answers: AnswerSource,
    stopping: Stopping,
    on_calls: Callable[[int], None] = lambda _: None,
    weights: FloatArray | None = None,
) -> Assessment:
    """Ask items of a pool until it is enough; ``weights`` are of the cells, as in `Strata`.

    Which items are queried depends on the pool and earlier answers only, so that a run which is begun
    again queries the same ones. ``on_calls`` gets the number of answers after each batch.
    """
    strata = strata_of(pool, weights)
    check_budget(strata, method, stopping.calls)
    total = int(strata.sizes.sum())
    limit = total if stopping.calls is None else min(stopping.calls, total)
    allocator = Allocator(method, strata, limit, candidates=np.diff(pool.starts))
    queried, codes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    stopped: Stopped | None = None
    while stopped is None:
        # What is known beforehand need not wait for answers, unless these can end it.
        waits = stopping.target_error is not None
        calls = allocator.next(batch_size(allocator.answered) if waits else limit)
        if calls.part.size == 0:
            stopped = "pool" if allocator.used_up else "budget"
            break
        items = pool.starts[calls.stratum[0]] + calls.place[0]
        left = None if stopping.calls is None else stopping.calls - allocator.paid
        code = answers.codes(items, left)
        new = np.where(code == NO_RESULT, strata.shape[1] - 1, code)
        old = None if pool.items.old is None else pool.items.old[items].astype(np.int64)[None]
        allocator.add(calls, new[None], old)
        queried.append(items[code != LOST])
        codes.append(new[code != LOST])
        on_calls(allocator.answered)
        if _is_close_enough(allocator, stopping):
            stopped = "target_error"
    allocator.check_answers()
    sample = allocator.sample
    return Assessment(
        strata, sample, np.concatenate(queried), np.concatenate(codes), stopped, allocator.lost
    )


def _is_close_enough(allocator: Allocator, stopping: Stopping) -> bool:
    strata, sample = allocator.strata, allocator.sample
    if stopping.target_error is None or allocator.answered < first_check(strata.count):
        return False
    if (sample.asked == 0).any():
        return False
    found = summarise(allocator.method, strata, sample)
    return bool(error_bound(found, stopping.confidence)[0] <= stopping.target_error)
