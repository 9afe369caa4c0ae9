"""How a confusion matrix, or a number that is a weighted sum of it, changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import stats

from slicebeam.metrics.measures.multiplicity import bh_adjusted
from slicebeam.metrics.shift.estimates import cell_p_values
from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.parts import Estimate

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.shift.estimates import MatrixEstimate
    from slicebeam.pipelines.changelist import shifted

# Rounding tolerance: a share that differs by less differs only by how it was summed.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class ValueChange:
    """An accuracy or a weighted sum of cells before and after, and their difference."""

    before: float
    after: Estimate
    shift: Estimate
    p: float

    @classmethod
    def of(
        cls,
        before: float,
        value: float,
        error: float,
        confidence: float,
        old_error: float = 0.0,
        limits: tuple[float, float] = (0.0, 1.0),
    ) -> ValueChange:
        """Return a change from a new value and its standard error; the value is in some limits."""
        least, most = limits
        z = float(stats.norm.isf((1 - confidence) / 2))
        after = min(max(value, least), most)
        low, high = max(value - z * error, least), min(value + z * error, most)
        shift, error = after - before, float(np.hypot(error, old_error))
        if abs(shift) < _ROUNDING:
            p = 1.0
        else:
            p = 2 * float(stats.norm.sf(abs(shift) / error)) if error > 0 else 0.0
        smallest, largest = least - before, most - before
        if old_error > 0:
            smallest, largest = least - most, most - least
        bounds = max(shift - z * error, smallest), min(shift + z * error, largest)
        return cls(
            before,
            shown_estimate(after, low, high, confidence),
            shown_estimate(shift, *bounds, confidence),
            p,
        )

    @property
    def moved(self) -> float:
        """New minus old."""
        return self.shift.value or 0.0

    def direction(
        self, *, higher_is_better: bool | None
    ) -> Literal["improved", "degraded", "none"]:
        """Return whether it is better or worse than before."""
        if higher_is_better is None or self.moved == 0:
            return "none"
        return "improved" if (self.moved > 0) == higher_is_better else "degraded"

    def of_accuracy(self, rows: int, adjusted: float | None = None) -> Change:
        """Return it as the change of the accuracy of so many examples."""
        confidence = self.shift.confidence or 0.0
        return Change(
            metric="accuracy",
            n=rows,
            after=self.after,
            before=Estimate(value=self.before),
            delta=self.shift,
            p_value=self.p,
            p_adjusted=adjusted,
            test="normal",
            significant=(self.p if adjusted is None else adjusted) <= 1 - confidence,
            direction=self.direction(higher_is_better=True),
        )


@dataclass(frozen=True)
class MatrixChange:
    """The confusion matrix before and after, of the pool or of a slice: float64 [L, P] each.

    The p-values of cells are those that the intervals stand for; q corrects them by Benjamini and
    Hochberg over all cells that either matrix could fill.
    """

    old: FloatArray
    new: FloatArray
    errors: FloatArray
    shift: FloatArray
    low: FloatArray
    high: FloatArray
    p: FloatArray
    q: FloatArray

    @classmethod
    def of(
        cls,
        found: MatrixEstimate,
        run: int,
        old: FloatArray,
        old_errors: FloatArray | float,
        confidence: float,
    ) -> MatrixChange:
        """Return the change from an old matrix to the estimate of a run."""
        share = found.label_share[run][:, None]
        new, errors = _shares(found.matrix[run], share), found.cell_errors()[run]
        together, shift = np.hypot(errors, old_errors), new - old
        half = stats.norm.isf((1 - confidence) / 2) * together
        # No cell is below 0 or above its label's share, neither before nor now.
        least, most = (-share, share) if np.any(old_errors) else (-old, share - old)
        low, high = np.maximum(shift - half, least), np.minimum(shift + half, most)
        p = cell_p_values(np.where(np.abs(shift) < _ROUNDING, 0.0, shift), together)
        q = bh_adjusted(p.ravel(), p.size).reshape(p.shape)
        return cls(old, new, errors, shift, low, high, p, q)

    def matrices(self, columns: IntArray) -> dict[str, shifted.Matrix]:
        """Return some columns of the matrices, by their names in a document."""
        return {
            "old_matrix": shown_matrix(self.old, columns),
            "new_matrix": shown_matrix(self.new, columns),
            "shift": shown_matrix(self.shift, columns),
            "shift_lo": shown_matrix(self.low, columns),
            "shift_hi": shown_matrix(self.high, columns),
        }


def _shares(matrix: FloatArray, share: FloatArray) -> FloatArray:
    """Return a matrix within what shares can be, beyond which a control variate can lead.

    What is cut off below 0 is taken from the row's other cells, so that all sum to 1.
    """
    cut = np.clip(matrix, 0, share)
    before, after = matrix.sum(axis=1), cut.sum(axis=1)
    scale = np.divide(before, after, out=np.ones_like(after), where=after > before)
    shares: FloatArray = cut * scale[:, None]
    return shares


def shown_matrix(values: FloatArray, columns: IntArray) -> shifted.Matrix:
    """Return some columns of a matrix as a document has them."""
    return tuple(tuple(row) for row in values[:, columns].tolist())


def shown_estimate(value: float, low: float, high: float, confidence: float) -> Estimate:
    """Return a value and its interval as a document has them."""
    return Estimate(value=float(value), lo=float(low), hi=float(high), confidence=confidence)
