"""What a method would find, and how good that is, over many runs on a pool whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray
from slicebeam.metrics.kinds import Method
from slicebeam.metrics.randomness import hash64
from slicebeam.metrics.shift.allocation import Allocator
from slicebeam.metrics.shift.estimates import MatrixEstimate, Sample, Strata, summarise

# Numbers of the orders of items that are kept at a time.
_MOST_NUMBERS = 1 << 26


@dataclass(frozen=True)
class Items:
    """The items of a pool, ordered by stratum."""

    identity: NDArray[np.uint64]  # [items] of which the order within a stratum is a hash
    new: NDArray[np.integer]  # [items] new predictions; [R, items] where each run has its own
    old: NDArray[np.integer] | None = None  # [items]

    def answers(self, run: IntArray, item: IntArray) -> tuple[IntArray, IntArray | None]:
        """Return the new and old predictions of items [runs, calls] each."""
        new = self.new[item] if self.new.ndim == 1 else self.new[run[:, None], item]
        old = None if self.old is None else self.old[item].astype(np.int64)
        return new.astype(np.int64), old


class Checked(NamedTuple):
    """What some runs know after a number of calls; ``runs`` says which of all they are."""

    calls: int
    runs: slice
    sample: Sample


def item_order(seed: int, identity: NDArray[np.uint64], starts: IntArray) -> IntArray:
    """Return the order of queries [items] within strata, which begin at ``starts`` [S + 1], by a hash."""
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
) -> Iterator[Checked]:
    """Yield what some of R runs, each an assessment with the seed ``seed + r``, counted after ``checks`` calls."""
    starts = np.concatenate([[0], np.cumsum(strata.sizes)])
    together = max(1, min(runs, _MOST_NUMBERS // max(items.identity.size, 1)))
    for first in range(0, runs, together):
        run = np.arange(first, min(first + together, runs))
        allocator = Allocator(method, strata, checks[-1], runs=run.size, batch=batch)
        orders = np.empty((run.size, items.identity.size), np.int32)
        for order, number in zip(orders, run.tolist(), strict=True):
            order[:] = item_order(seed + number, items.identity, starts)
        for check in checks:
            while (calls := allocator.next(check - allocator.paid)).part.size:
                at = np.where(calls.part >= 0, starts[calls.stratum] + calls.place, 0)
                item = orders[np.arange(run.size)[:, None], at].astype(np.int64)
                allocator.add(calls, *items.answers(run, item))
            yield Checked(check, slice(first, first + run.size), allocator.sample)


@dataclass(frozen=True)
class Quality:
    """How good the estimates of R runs are after a number of calls."""

    calls: int
    errors: FloatArray  # [R] Frobenius error of Ĉ, of cells times their weights
    accuracy_bias: float  # mean of the estimated accuracy minus the true one
    accuracy_coverage: float  # share of runs whose interval of the accuracy contains the true one
    cell_coverage: float  # the same, on average, of the cells that the old or new API predicted
    accuracy_width: float  # mean width of the intervals
    cell_width: float

    @property
    def mean_squared(self) -> float:
        """Mean squared Frobenius error."""
        return float(np.square(self.errors).mean())

    def quantile(self, q: float = 0.95) -> float:
        """Return the error below which a share of the runs is."""
        return float(np.quantile(self.errors, q))


def true_matrices(strata: Strata, items: Items) -> FloatArray:
    """Return C of the whole pool: [1, L, P], or [R, L, P] where each run has answers."""
    new = np.atleast_2d(items.new).astype(np.int64)
    labels, predictions = strata.shape
    label = np.repeat(strata.row, strata.sizes)
    cells = np.arange(new.shape[0])[:, None] * labels * predictions + label * predictions + new
    counts = np.bincount(cells.reshape(-1), minlength=new.shape[0] * labels * predictions)
    return counts.reshape(-1, labels, predictions) / label.size


def qualities(
    strata: Strata,
    items: Items,
    method: Method,
    checks: Sequence[int],
    runs: int,
    seed: int,
    *,
    confidence: float = 0.95,
    batch: int | None = None,
) -> list[Quality]:
    """Return how good a method's estimates are over R runs; parameters as of `simulate`."""
    truths = true_matrices(strata, items)
    occurs: BoolArray = np.asarray((truths > 0).any(axis=0))
    if strata.old is not None:
        occurs |= strata.old_matrix > 0
    parts: dict[int, list[FloatArray]] = {check: [] for check in checks}
    for calls, chosen, sample in simulate(strata, items, method, checks, runs, seed, batch=batch):
        truth = truths if truths.shape[0] == 1 else truths[chosen]
        estimated = summarise(method, strata, sample)
        parts[calls].append(_judged(strata, estimated, truth, occurs, confidence))
    wholes = ((calls, np.concatenate(judged, axis=1)) for calls, judged in parts.items())
    return [
        Quality(calls, errors, *(float(column.mean()) for column in columns))
        for calls, (errors, *columns) in wholes
    ]


def _judged(
    strata: Strata,
    estimated: MatrixEstimate,
    truth: FloatArray,
    occurs: BoolArray,
    confidence: float,
) -> FloatArray:
    """Return what `Quality` has of each run [its fields without the calls, runs]."""
    weights = 1.0 if strata.weights is None else strata.weights
    errors = np.sqrt(np.square(weights * (estimated.matrix - truth)).sum(axis=(1, 2)))
    accuracy = strata.accuracy(truth)
    low, high = estimated.accuracies(confidence)
    cell_low, cell_high = estimated.cells(confidence)
    # Bounds that were clipped at a share differ from it by rounding.
    slack = 1e-12
    covered = (low <= accuracy + slack) & (accuracy <= high + slack)
    cells_covered = (cell_low <= truth + slack) & (truth <= cell_high + slack)
    of_cells = (part[:, occurs].mean(axis=1) for part in (cells_covered, cell_high - cell_low))
    cells, cell_width = of_cells
    return np.stack([errors, estimated.accuracy - accuracy, covered, cells, high - low, cell_width])


def calls_for_target(checked: Sequence[Quality], target: float, q: float = 0.95) -> float | None:
    """Return the calls from which a share q has at most an error, interpolated on logarithms; None if none has."""
    calls = np.array([quality.calls for quality in checked], np.float64)
    errors = np.array([quality.quantile(q) for quality in checked])
    below = np.flatnonzero(errors <= target)
    if below.size == 0:
        return None
    at = int(below[0])
    if at == 0 or errors[at] == 0:
        return float(calls[at])
    share = np.log(errors[at - 1] / target) / np.log(errors[at - 1] / errors[at])
    return float(np.exp(np.log(calls[at - 1]) + share * np.log(calls[at] / calls[at - 1])))


def churned(
    old: NDArray[np.integer],
    label: IntArray,
    shares: FloatArray,
    churn: float | None,
    runs: int,
    seed: int,
) -> NDArray[np.int16]:
    """Return new predictions [R, items] as an update would make them; runs change on their own."""
    # The share ``churn`` of the items changes its old prediction to another class, in proportion to its label's ``shares``
    # [L, P] of old ones. None: a new API, which predicts as for other items of the label.
    generator = np.random.default_rng([seed, 0x5F1])
    new = np.empty((runs, old.size), np.int16)
    if churn is not None:
        # A row with a single class would leave a change nowhere to go.
        single = (shares > 0).sum(axis=1, keepdims=True) < 2
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
        shares = np.where(single, shares + 1 / shares.shape[1], shares)
    cumulative = np.cumsum(shares, axis=1)
    for predictions in new:
        predictions[:] = old
        if churn is None:
            changed = np.arange(old.size)
        else:
            changed = generator.choice(old.size, round(churn * old.size), replace=False)
        row, was = label[changed], old[changed].astype(np.int64)
        # The class that was predicted is cut out of the line on which a point is thrown.
        begin = np.where(was > 0, cumulative[row, was - 1], 0.0)
        length = cumulative[row, was] - begin if churn is not None else 0.0
        point = generator.random(changed.size) * (cumulative[row, -1] - length)
        point += np.where(point >= begin, length, 0.0)
        predictions[changed] = (cumulative[row] <= point[:, None]).sum(axis=1)
    return new
