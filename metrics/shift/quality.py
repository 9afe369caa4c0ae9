"""How good the estimates of a method are, over many runs on a pool whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.shift.estimates import summarise
from slicebeam.metrics.shift.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.kinds import Method
    from slicebeam.metrics.shift.estimates import MatrixEstimate
    from slicebeam.metrics.shift.simulation import Items
    from slicebeam.metrics.shift.strata import Strata


@dataclass(frozen=True)
class Quality:
    """How good the estimates of R runs are after a number of calls.

    Attributes
    ----------
    calls : made
    errors : float64 [R], Frobenius error of Ĉ, of cells times their weights
    accuracy_bias : mean of the estimated accuracy minus the true one
    accuracy_coverage : share of runs whose interval of the accuracy contains the true one
    cell_coverage : mean over the cells of the share of runs whose interval holds the true one; of
        the cells that the old or the new API ever predicted, since the others are always covered
    accuracy_width, cell_width : mean widths of the intervals
    """

    calls: int
    errors: FloatArray
    accuracy_bias: float
    accuracy_coverage: float
    cell_coverage: float
    accuracy_width: float
    cell_width: float

    @property
    def mean_squared(self) -> float:
        """Mean squared Frobenius error."""
        return float(np.square(self.errors).mean())

    def quantile(self, q: float = 0.95) -> float:
        """Return the error below which a share of the runs is."""
        return float(np.quantile(self.errors, q))


def true_matrices(strata: Strata, items: Items) -> FloatArray:
    """Return C of the whole pool: float64 [1, L, P], or [R, L, P] where each run has answers."""
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
    weights: FloatArray | None = None,
) -> list[Quality]:
    """Return how good a method's estimates are over R runs; parameters as of `simulate`."""
    truths = true_matrices(strata, items)
    occurs: BoolArray = np.asarray((truths > 0).any(axis=0))
    if strata.old is not None:
        occurs |= strata.old_matrix > 0
    parts: dict[int, list[_Part]] = {check: [] for check in checks}
    course = simulate(strata, items, method, checks, runs, seed, batch=batch, weights=weights)
    for checked in course:
        found = summarise(method, strata, checked.sample)
        truth = truths if truths.shape[0] == 1 else truths[checked.runs]
        parts[checked.calls].append(_judged(strata, found, truth, occurs, confidence))
    return [_merged(calls, each) for calls, each in parts.items()]


class _Part(NamedTuple):
    errors: FloatArray
    bias: FloatArray
    covered: FloatArray
    cells: FloatArray
    width: FloatArray
    cell_width: FloatArray


def _judged(
    strata: Strata, found: MatrixEstimate, truth: FloatArray, occurs: BoolArray, confidence: float
) -> _Part:
    weights = 1.0 if strata.weights is None else strata.weights
    errors = np.sqrt(np.square(weights * (found.matrix - truth)).sum(axis=(1, 2)))
    accuracy = strata.accuracy(truth)
    low, high = found.accuracies(confidence)
    cell_low, cell_high = found.cells(confidence)
    # Bounds that were clipped at a share differ from it by rounding.
    slack = 1e-12
    covered = (cell_low <= truth + slack) & (truth <= cell_high + slack)
    return _Part(
        errors,
        found.accuracy - accuracy,
        ((low <= accuracy + slack) & (accuracy <= high + slack)).astype(np.float64),
        covered[:, occurs].mean(axis=1),
        high - low,
        (cell_high - cell_low)[:, occurs].mean(axis=1),
    )


def _merged(calls: int, parts: Sequence[_Part]) -> Quality:
    whole = _Part(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    means = (float(column.mean()) for column in whole[1:])
    return Quality(calls, whole.errors, *means)


def calls_for_target(found: Sequence[Quality], target: float, q: float = 0.95) -> float | None:
    """Return the calls from which a share q of the runs has at most an error; None if none has.

    Interpolated between two checks on logarithmic scales, on which the error is about straight.
    """
    calls = np.array([each.calls for each in found], np.float64)
    errors = np.array([each.quantile(q) for each in found])
    below = np.flatnonzero(errors <= target)
    if below.size == 0:
        return None
    at = int(below[0])
    if at == 0 or errors[at] == 0:
        return float(calls[at])
    share = np.log(errors[at - 1] / target) / np.log(errors[at - 1] / errors[at])
    return float(np.exp(np.log(calls[at - 1]) + share * np.log(calls[at] / calls[at - 1])))
