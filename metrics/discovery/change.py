"""How much the loss changed on slices, from sums over chunks, and how slices are ranked by it.

Source: Eyuboglu et al. (2024), "Model ChangeLists".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray


# Added to the variance of D, so that a small slice that happens to be of one mind is not the first.
_PRIOR_VARIANCE = 0.05


@dataclass(frozen=True)
class ChangeSums:
    """What is summed of the change D in each of S slices; sums of chunks add up."""

    n: IntArray  # [S] Examples.
    total: FloatArray  # [S] ΣD. Of whole numbers, as the changes of zero-one loss are, it is exact.
    scatter: FloatArray  # [S] Σ(D − mean)², which is ΣD² without what an offset costs in digits.
    # improved, degraded: [S] Examples with D > 0 and with D < 0.
    improved: IntArray
    degraded: IntArray

    @classmethod
    def zero(cls, slices: int) -> ChangeSums:
        """Return the sums over no examples."""
        none, nothing = np.zeros(slices, np.int64), np.zeros(slices)
        return cls(none, nothing, nothing, none, none)

    @classmethod
    def of(cls, members: BoolArray, change: FloatArray, first_row: int = 0) -> ChangeSums:
        """Return what one chunk adds to the sums of slices that may overlap."""
        if members.ndim != 2 or members.shape[1:] != change.shape:
            raise ValueError(f"members of shape {members.shape}, changes of {change.shape}")
        _check_finite(change, first_row)
        return cls._of_groups(change[inside] for inside in members)

    @classmethod
    def of_components(
        cls, components: IntArray, K: int, change: FloatArray, first_row: int = 0
    ) -> ChangeSums:
        """Return what one chunk adds to the sums of K slices of which each example is in one."""
        if components.shape != change.shape or change.ndim != 1:
            raise ValueError(f"components of shape {components.shape}, changes of {change.shape}")
        if components.size and not (components.min() >= 0 and components.max() < K):
            raise ValueError(f"components {components.min()}..{components.max()}, not 0..{K - 1}")
        _check_finite(change, first_row)
        ends = np.cumsum(np.bincount(components, minlength=K))
        by_component = change[np.argsort(components, kind="stable")]
        return cls._of_groups(np.split(by_component, ends[:-1]))

    @classmethod
    def _of_groups(cls, groups: Iterable[FloatArray]) -> ChangeSums:
        # numpy's sum of an array adds in pairs, and bincount or a matrix product does not: of 1e5
        # changes of 0.1 they lose 1e-12 of the total.
        found = [
            (D.size, D.sum(), _scatter(D), np.count_nonzero(D > 0), np.count_nonzero(D < 0))
            for D in groups
        ]
        n, total, scatter, improved, degraded = (
            zip(*found, strict=True) if found else ((), (), (), (), ())
        )
        return cls(
            np.array(n, np.int64),
            np.array(total, np.float64),
            np.array(scatter, np.float64),
            np.array(improved, np.int64),
            np.array(degraded, np.int64),
        )

    def __add__(self, other: ChangeSums) -> ChangeSums:
        """Return the sums over both chunks.

        Source: Chan, Golub and LeVeque (1983), Am. Stat. 37:242, equation 2.1.
        """
        if self.n.shape != other.n.shape:
            raise ValueError(f"sums of {self.n.size} and of {other.n.size} slices cannot be added")
        n = self.n + other.n
        apart = np.square(self.mean - other.mean)
        # The share of the one times the number of the other, which is 0 where either is empty.
        weight = self.n / np.maximum(n, 1) * other.n
        return ChangeSums(
            n,
            self.total + other.total,
            self.scatter + other.scatter + apart * weight,
            self.improved + other.improved,
            self.degraded + other.degraded,
        )

    @property
    def mean(self) -> FloatArray:
        """Mean of D: float64 [S], 0 of an empty slice."""
        return self.total / np.maximum(self.n, 1)

    @property
    def variance(self) -> FloatArray:
        """Variance of D with denominator n: float64 [S], 0 of an empty slice."""
        return self.scatter / np.maximum(self.n, 1)

    @property
    def tied(self) -> IntArray:
        """Examples whose loss did not change: int64 [S]."""
        return self.n - self.improved - self.degraded


@dataclass(frozen=True)
class ChangeAssessment:
    """The change on S slices that are reported, and on all examples."""

    slices: ChangeSums  # ChangeSums [S]
    overall: ChangeSums  # ChangeSums [1]

    @classmethod
    def zero(cls, slices: int) -> ChangeAssessment:
        """Return that of no examples."""
        return cls(ChangeSums.zero(slices), ChangeSums.zero(1))

    @classmethod
    def of(cls, members: BoolArray, change: FloatArray, first_row: int = 0) -> ChangeAssessment:
        """Return what one chunk adds; see `ChangeSums.of`."""
        slices = ChangeSums.of(members, change, first_row)
        return cls(slices, ChangeSums.of(np.ones((1, change.size), bool), change))

    def __add__(self, other: ChangeAssessment) -> ChangeAssessment:
        return ChangeAssessment(self.slices + other.slices, self.overall + other.overall)

    @property
    def difference(self) -> FloatArray:
        """Mean of D on a slice minus its mean on all examples: float64 [S], 0 of an empty slice.

        With D = −loss it is the mean of (mean loss − loss): below 0 where the one model is worse than
        elsewhere. The variance of D is that of D less a constant, so it needs no other sums.
        """
        difference: FloatArray = np.where(
            self.slices.n > 0, self.slices.mean - self.overall.mean, 0.0
        )
        return difference


def z_score(mean: ArrayLike, variance: ArrayLike, n: ArrayLike) -> FloatArray:
    """Return |mean|/√((σ² + .05)/n), by which slices are ranked; it is no test."""
    spread = np.asarray(variance, np.float64) + _PRIOR_VARIANCE
    score: FloatArray = np.abs(mean) * np.sqrt(np.asarray(n, np.float64) / spread)
    return score


def _scatter(D: FloatArray) -> float:
    """Return Σ(D − mean)², 0 of no examples."""
    return float(np.square(D - D.mean()).sum()) if D.size else 0.0


def _check_finite(change: FloatArray, first_row: int) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(np.square(change))
    if not finite.all():
        row = int(np.argmin(finite))
        raise InputError(
            f"the change of loss of row {first_row + row} is {change[row]}; losses must be finite "
            "numbers whose squares are too: leave the example out, or clip its loss"
        )
