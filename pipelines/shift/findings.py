"""The results of an assessment: the matrices, their intervals, and which cells changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.shift.estimates import (
    Slices,
    cell_p_values,
    estimate,
    stratum_variances,
    summarise,
    weighted_sum,
)
from slicebeam.metrics.shift.stopping import error_bound
from slicebeam.metrics.shift.strata import Sample
from slicebeam.metrics.testing.multiplicity import bh_adjusted
from slicebeam.pipelines.config.shift import ACCURACY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.kinds import Method
    from slicebeam.metrics.shift.estimates import MatrixEstimate
    from slicebeam.metrics.shift.strata import Strata
    from slicebeam.pipelines.changelist.document import ShiftChangeList
    from slicebeam.pipelines.shift.assessment import Assessment
    from slicebeam.pipelines.shift.pool import LabelledPool


# Where one may be surer than sure: a share that differs only by how it was summed.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Old:
    """The old confusion matrix.

    Attributes
    ----------
    matrix : float64 [L, P]
    errors : float64 [L, P] its standard errors; 0 where it is known
    """

    matrix: FloatArray
    errors: FloatArray
    accuracy: float
    accuracy_error: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ValueChange:
    """An accuracy or a weighted sum of cells, its change, and their intervals.

    Attributes
    ----------
    shift, low, high : new minus old
    p : two-sided
    """

    old: float
    new: float
    new_low: float
    new_high: float
    shift: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class ShiftFindings:
    """The confusion matrix before and after: [L, P] each.

    Attributes
    ----------
    old, new, errors : old matrix, new matrix, and standard errors of the new one
    shift, low, high : new minus old
    p, q : of each cell, and corrected for the number of cells
    bound : upper bound of the Frobenius error of the new matrix
    reliance : weight of the old predictions; None if they are not used
    variances : float64 [S] σ̂² of each stratum, NaN of fewer than two answers; None of a slice
    focus : the weighted sum of the cells; None without --focus
    """

    old: FloatArray
    new: FloatArray
    errors: FloatArray
    shift: FloatArray
    low: FloatArray
    high: FloatArray
    p: FloatArray
    q: FloatArray
    accuracy: ValueChange
    bound: float
    reliance: float | None
    variances: FloatArray | None = None
    focus: ValueChange | None = None

    def classes_never_seen(self, pool: LabelledPool) -> list[Any]:
        """Return the classes of a pool that are neither a label nor an old prediction."""
        labels = set(pool.labels.tolist())
        return [
            one
            for code, one in enumerate(pool.classes)
            if code not in labels and not self.old[:, code].any()
        ]


def old_of_pool(strata: Strata) -> Old:
    """Return the old matrix from the old predictions of the pool."""
    matrix = strata.old_matrix
    return Old(matrix, np.zeros(matrix.shape), float(strata.accuracy(matrix)), 0.0)


def old_of_document(strata: Strata, pool: LabelledPool, document: ShiftChangeList, uri: str) -> Old:
    """Return the old matrix that an earlier document holds, for the labels of this pool.

    Its rows are scaled to the pool's shares of the labels, which are known.

    Raises
    ------
    InputError
        It lacks a label of the pool, or has a prediction that is not a class of it.
    """
    shift = document.shift
    named = dict(zip(shift.labels, shift.new_matrix, strict=True))
    errors_of = dict(zip(shift.labels, shift.new_errors, strict=True))
    classes: list[Any] = [*pool.classes, None]
    unknown = [one for one in shift.predictions if one not in classes]
    labels = [pool.classes[code] for code in pool.labels.tolist()]
    missing = [one for one in labels if one not in named]
    if missing or unknown:
        which = f"label {missing[0]!r}" if missing else f"prediction {unknown[0]!r}"
        where = "is not in it" if missing else "is in it only"
        raise OptionError(
            f"--old-matrix {uri}: {which} {where}; give the document of a shift with these classes"
        )
    place = [classes.index(one) for one in shift.predictions]
    matrix, errors = np.zeros(strata.shape), np.zeros(strata.shape)
    for row, label in enumerate(labels):
        matrix[row, place] = named[label]
        errors[row, place] = errors_of[label]
    sums = matrix.sum(axis=1)
    if (sums <= 0).any():
        raise OptionError(
            f"--old-matrix {uri}: label {labels[int(sums.argmin())]!r} does not occur in it; give "
            "a document with every label"
        )
    scale = strata.label_share / sums
    warnings: tuple[str, ...] = ()
    if np.abs(scale - 1).max() > 1e-6:
        warnings = (
            "The shares of the labels differ from those of --old-matrix; its rows were rescaled to match.",
        )
    overall = document.global_[0].after
    middle = overall.value or 0.0
    # The wider half, since the other may end at 0 or 1.
    half = max((overall.hi or 0.0) - middle, middle - (overall.lo or 0.0))
    error = half / stats.norm.isf((1 - shift.confidence) / 2)
    scaled = matrix * scale[:, None]
    return Old(
        scaled, errors * scale[:, None], float(strata.accuracy(scaled)), float(error), warnings
    )


def find(
    assessed: Assessment, method: Method, old: Old, confidence: float, focus: str | None = None
) -> ShiftFindings:
    """Return the findings of an assessment for the whole pool.

    The p-values of cells are those that the intervals stand for, and are corrected by Benjamini and
    Hochberg over all cells that either matrix could fill.
    """
    found = summarise(method, assessed.strata, assessed.sample)
    # Calls that follow other cells leave strata with a few answers, which may agree by chance.
    widened = focus not in (None, ACCURACY)
    error = np.hypot(found.accuracy_errors(widened=widened), old.accuracy_error)
    low, high = found.accuracies(confidence, widened=widened)
    change = _change(
        old.accuracy,
        float(found.accuracy[0]),
        float(error[0]),
        (float(low[0]), float(high[0])),
        confidence,
        is_old_estimated=old.accuracy_error > 0,
    )
    bound = float(error_bound(found, confidence)[0])
    reliance = float(found.reliance[0]) if method == "plus" else None
    whole = _findings(found, old.matrix, old.errors, 0, change, bound, reliance, confidence)
    focused = change if focus == ACCURACY else _focused(assessed, method, old, whole, confidence)
    variances = stratum_variances(assessed.strata, assessed.sample, found.reliance)[0]
    return replace(whole, variances=variances, focus=focused)


def _focused(
    assessed: Assessment, method: Method, old: Old, whole: ShiftFindings, confidence: float
) -> ValueChange | None:
    """Return how the weighted sum of the cells changed; errors of old cells count as independent."""
    strata, sample = assessed.strata, assessed.sample
    weights = strata.weights
    if weights is None:
        return None
    # What each label contributes at least and at most.
    least = float(strata.label_share @ weights.min(axis=1))
    most = float(strata.label_share @ weights.max(axis=1))
    before, new = (float((weights * each).sum()) for each in (old.matrix, whole.new))
    is_plus, is_masa = method == "plus", method == "masa"
    error = float(weighted_sum(strata, sample, weights, control=is_plus, starved=is_masa).error[0])
    half = float(stats.norm.isf((1 - confidence) / 2)) * error
    old_error = float(np.sqrt(np.square(weights * old.errors).sum()))
    return _change(
        before,
        new,
        float(np.hypot(error, old_error)),
        (max(new - half, least), min(new + half, most)),
        confidence,
        is_old_estimated=old_error > 0,
        limits=(least, most),
    )


def _shares(matrix: FloatArray, label_share: FloatArray) -> FloatArray:
    """Return a matrix [L, P] within what shares can be, beyond which a control variate can lead.

    What is cut off below 0 is taken from the row's other cells, so that all sum to 1.
    """
    cut = np.clip(matrix, 0, label_share[:, None])
    before, after = matrix.sum(axis=1), cut.sum(axis=1)
    scale = np.divide(before, after, out=np.ones_like(after), where=after > before)
    shares: FloatArray = cut * scale[:, None]
    return shares


def _findings(
    found: MatrixEstimate,
    old: FloatArray,
    old_errors: FloatArray,
    run: int,
    change: ValueChange,
    bound: float,
    reliance: float | None,
    confidence: float,
) -> ShiftFindings:
    new = _shares(found.matrix[run], found.label_share[run])
    errors = found.cell_errors()[run]
    together = np.hypot(errors, old_errors)
    shift = new - old
    share = found.label_share[run][:, None]
    half = stats.norm.isf((1 - confidence) / 2) * together
    # No cell is below 0 or above its label's share, neither before nor now.
    least, most = (-share, share) if old_errors.any() else (-old, share - old)
    low, high = np.maximum(shift - half, least), np.minimum(shift + half, most)
    p = cell_p_values(np.where(np.abs(shift) < _ROUNDING, 0.0, shift), together)
    q = bh_adjusted(p.ravel(), p.size).reshape(p.shape)
    return ShiftFindings(old, new, errors, shift, low, high, p, q, change, bound, reliance)


def _change(
    old: float,
    new: float,
    error: float,
    interval: tuple[float, float],
    confidence: float,
    *,
    is_old_estimated: bool = False,
    limits: tuple[float, float] = (0.0, 1.0),
) -> ValueChange:
    smallest, largest = limits
    new = min(max(new, smallest), largest)
    shift = new - old
    half = float(stats.norm.isf((1 - confidence) / 2)) * error
    if abs(shift) < _ROUNDING:
        p = 1.0
    else:
        p = 2 * float(stats.norm.sf(abs(shift) / error)) if error > 0 else 0.0
    least, most = smallest - old, largest - old
    if is_old_estimated:
        least, most = smallest - largest, largest - smallest
    low, high = max(shift - half, least), min(shift + half, most)
    return ValueChange(old, new, *interval, shift, low, high, p)


@dataclass(frozen=True)
class SliceFindings:
    """The results of the calls for a slice.

    Attributes
    ----------
    number : of the slice, in the order in which they were given
    size, calls : its examples, and how many of them were queried
    found : the matrices, which sum to 1, and the accuracy
    """

    number: int
    size: int
    calls: int
    found: ShiftFindings


def find_slices(
    assessed: Assessment, pool: LabelledPool, method: Method, confidence: float
) -> list[SliceFindings]:
    """Return the findings for each slice that has examples.

    All slices share the calls: an item outside of a slice counts as 0 in all its cells
    (`slicebeam.metrics.shift.estimates.estimate`). The error of an accuracy is widened by what was
    not seen, as those of the cells are, since a slice may have few calls or none.
    """
    counts, slices_of = pool.slices, pool.items.slices
    if counts is None or slices_of is None:
        return []
    strata = assessed.strata
    used = np.flatnonzero(counts.sizes > 0)
    sizes = counts.sizes[used].astype(np.float64)
    old = None
    if counts.old is not None:
        old = np.concatenate(
            [counts.old[used], np.zeros((used.size, strata.shape[0], 1), np.int64)], axis=2
        )
    measured_slices = Slices(
        sizes / pool.rows,
        counts.labels[used] / sizes[:, None],
        None if old is None else old / sizes[:, None, None],
    )
    if measured_slices.old is None:
        return []
    sample, calls = _counted(assessed, pool, used)
    found = estimate(strata, sample, control=method == "plus", slices=measured_slices)
    before = strata.accuracy(measured_slices.old)
    errors = found.accuracy_errors(widened=True)
    low, high = found.accuracies(confidence, widened=True)
    results = []
    for run, number in enumerate(used.tolist()):
        change = _change(
            float(before[run]),
            float(found.accuracy[run]),
            float(errors[run]),
            (float(low[run]), float(high[run])),
            confidence,
        )
        reliance = float(found.reliance[run]) if method == "plus" else None
        results.append(
            SliceFindings(
                number,
                int(counts.sizes[number]),
                int(calls[run]),
                _findings(
                    found,
                    measured_slices.old[run],
                    np.zeros(strata.shape),
                    run,
                    change,
                    float("nan"),
                    reliance,
                    confidence,
                ),
            )
        )
    return results


def _counted(
    assessed: Assessment, pool: LabelledPool, used: Sequence[int] | IntArray
) -> tuple[Sample, IntArray]:
    """Return the counts of each slice's items in place of runs, and the number of queried ones."""
    ragged = pool.items.slices
    if ragged is None:
        raise TypeError("a pool without slices")
    place = np.full(int(np.max(used, initial=-1)) + 1, -1)
    place[used] = np.arange(len(used))
    begin, end = ragged.offsets[assessed.items], ragged.offsets[assessed.items + 1]
    call = np.repeat(np.arange(assessed.items.size), end - begin)
    first = np.repeat(begin - np.concatenate([[0], np.cumsum(end - begin)[:-1]]), end - begin)
    code = ragged.codes[first + np.arange(call.size)]
    run = place[code]
    item = assessed.items[call]
    stratum = pool.items.stratum[item].astype(np.int64)
    new = assessed.codes[call]
    cells = (len(used), *assessed.sample.new.shape[1:])

    def counted(codes: IntArray, keep: BoolArray) -> IntArray:
        at = (run * cells[1] + stratum) * cells[2] + codes
        return np.bincount(at[keep], minlength=int(np.prod(cells))).reshape(cells)

    everything = np.ones(call.size, bool)
    sample = Sample.empty(*cells)
    sample.asked[:] = assessed.sample.asked
    sample.new[:] = counted(new, everything)
    if pool.items.old is not None:
        old = pool.items.old[item].astype(np.int64)
        sample.old[:] = counted(old, everything)
        sample.both[:] = counted(new, old == new)
    return sample, np.bincount(run, minlength=len(used))
