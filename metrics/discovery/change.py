"""How much the loss changed on slices, how slices are ranked by it, and how much of it they explain.

Source: Eyuboglu et al. (2024), "Model ChangeLists". The change D of an example is its loss before
minus its loss after: above 0 where the new model is better. Of one model it is −loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray
from slicebeam.metrics.chunks import Summed, blocks, check_losses

# Added to the variance of D, so that a small slice that happens to be of one mind is not the first.
_PRIOR_VARIANCE = 0.05
# D varies if its deviation is more than this part of its size; less is rounding.
_ROUNDING = 1e-12
# Slices depend on each other if their correlations have an eigenvalue below this.
_DEPENDENT = 1e-10
# Membership of so many examples is multiplied at a time.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class ChangeSums(Summed):
    """What is summed of the change D in each of S slices; all are arrays [S]."""

    n: IntArray  # examples
    total: FloatArray  # ΣD; of whole numbers, as the changes of zero-one loss are, it is exact
    scatter: FloatArray  # Σ(D − mean)²: ΣD² without what an offset costs in digits
    improved: IntArray  # examples with D > 0
    degraded: IntArray  # examples with D < 0

    @classmethod
    def zero(cls, slices: int) -> ChangeSums:
        """Return the sums over no examples."""
        none, nothing = np.zeros(slices, np.int64), np.zeros(slices)
        return cls(none, nothing, nothing, none, none)

    @classmethod
    def of(cls, members: BoolArray, change: FloatArray) -> ChangeSums:
        """Return what a chunk adds to slices [S, n] that may overlap; errors count rows from 0."""
        check_losses(change, "the change of loss", 0)
        # numpy's sum adds in pairs; of 1e5 changes of 0.1 bincount would lose 1e-12 of the total.
        inside = [change[of_slice] for of_slice in members]
        counts = [[D.size, (D > 0).sum(), (D < 0).sum()] for D in inside]
        sums = [[D.sum(), np.square(D - D.mean()).sum()] if D.size else [0.0, 0.0] for D in inside]
        n, improved, degraded = np.array(counts, np.int64).reshape(-1, 3).T
        total, scatter = np.array(sums, np.float64).reshape(-1, 2).T
        return cls(n, total, scatter, improved, degraded)

    def __add__(self, other: ChangeSums) -> ChangeSums:
        """Return the sums over both chunks: Chan, Golub and LeVeque (1983), Am. Stat. 37:242, equation 2.1."""
        summed = super().__add__(other)
        # The share of the one times the number of the other, which is 0 where either is empty.
        weight = self.n / np.maximum(summed.n, 1) * other.n
        apart = np.square(self.mean - other.mean)
        return replace(summed, scatter=summed.scatter + apart * weight)

    @property
    def mean(self) -> FloatArray:
        """Mean of D: float64 [S], 0 of an empty slice."""
        return self.total / np.maximum(self.n, 1)

    @property
    def variance(self) -> FloatArray:
        """Variance of D with denominator n: float64 [S], 0 of an empty slice."""
        return self.scatter / np.maximum(self.n, 1)

    @property
    def difference(self) -> FloatArray:
        """Mean of D minus that of the last slice [S], 0 of an empty one; D = −loss is below 0 where it is worse."""
        return np.asarray(np.where(self.n > 0, self.mean - self.mean[-1], 0.0))


def z_score(mean: ArrayLike, variance: ArrayLike, n: ArrayLike) -> FloatArray:
    """Return |mean|/√((σ² + .05)/n), 0 where n = 0, by which slices are ranked; it is not a test."""
    spread = np.asarray(variance, np.float64) + _PRIOR_VARIANCE
    return np.asarray(np.abs(mean) * np.sqrt(np.asarray(n, np.float64) / spread))


@dataclass(frozen=True)
class OverlapSums(Summed):
    """Numbers of examples that are in both of two slices."""

    both: IntArray  # SᵀS [S, S]; the diagonal has the sizes

    @classmethod
    def zero(cls, slices: int) -> OverlapSums:
        """Return the numbers of no examples."""
        return cls(np.zeros((slices, slices), np.int64))

    @classmethod
    def of(cls, members: BoolArray) -> OverlapSums:
        """Return what one chunk adds, of members: bool [S, n]. Whole numbers, so they are exact."""
        both = np.zeros((members.shape[0], members.shape[0]), np.int64)
        for rows in blocks(members.shape[1], _BLOCK):
            # float32 counts exactly up to 2²⁴.
            inside = members[:, rows].astype(np.float32)
            both += (inside @ inside.T).astype(np.int64)
        return cls(both)

    @property
    def jaccard(self) -> FloatArray:
        """Size of the intersection over that of the union: float64 [S, S]; 0 of two empty slices."""
        sizes = np.diagonal(self.both)
        union = sizes[:, None] + sizes - self.both
        return np.asarray(self.both / np.maximum(union, 1))


class Coverage(NamedTuple):
    """How much of the change of loss membership of slices explains."""

    r2: float  # share of the variance of D; NaN where D does not vary
    expected: float  # the mean of r2 where losses have nothing to do with membership


def of_partition(components: ChangeSums) -> Coverage:
    """Return what a regression of D on the component explains; each example is in one."""
    # r² = Σ n_k(m_k − m)²/Σ(D − m)², of mean (K⁺ − 1)/(n − 1) if D shaped none of K⁺ filled components.
    n = int(components.n.sum())
    mean = float(components.total.sum()) / max(n, 1)
    between = float((components.n * np.square(components.mean - mean)).sum())
    total = between + float(components.scatter.sum())
    return _coverage(between, total, int(np.count_nonzero(components.n)) - 1, n, mean)


def of_slices(
    both: FloatArray | IntArray, totals: FloatArray, n: int, total: float, scatter: float
) -> Coverage:
    """Return what least squares of D on membership of slices, which may overlap, explain."""
    # ``both`` is SᵀS [S, S] and ``totals`` SᵀD [S]; n, ΣD and Σ(D − mean)² are of all examples.
    mean, sizes = total / max(n, 1), np.diagonal(both)
    gram = both - np.outer(sizes, sizes) / max(n, 1)
    # An empty slice, and that of all examples, has variance 0 exactly.
    variance = sizes * ((n - sizes) / max(n, 1))
    varies = variance > 0
    scale = np.sqrt(variance[varies])
    correlation = gram[np.ix_(varies, varies)] / np.outer(scale, scale)
    towards = (totals[varies] - sizes[varies] * mean) / scale
    values, vectors = np.linalg.eigh(correlation)
    kept = values > _DEPENDENT
    between = float((np.square(towards @ vectors[:, kept]) / values[kept]).sum())
    return _coverage(between, scatter, int(np.count_nonzero(kept)), n, mean)


def _coverage(between: float, total: float, rank: int, n: int, mean: float) -> Coverage:
    expected = max(rank, 0) / (n - 1) if n > 1 else 0.0
    if total <= _ROUNDING**2 * (total + n * mean**2):
        return Coverage(float("nan"), expected)
    return Coverage(min(between / total, 1.0), expected)
