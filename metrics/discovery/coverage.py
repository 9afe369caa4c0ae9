"""How much of the change of loss slices explain together, and how much of two is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.discovery.change import ChangeSums


# D varies if its deviation is more than this part of its size; less is rounding.
_ROUNDING = 1e-12
# Slices depend on each other if their correlations have an eigenvalue below this.
_DEPENDENT = 1e-10
# Membership of so many examples is multiplied at a time.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class OverlapSums:
    """Numbers of examples that are in both of two slices; those of chunks add up."""

    both: IntArray  # [S, S] SᵀS. The diagonal has the sizes.

    @classmethod
    def zero(cls, slices: int) -> OverlapSums:
        """Return the numbers of no examples."""
        return cls(np.zeros((slices, slices), np.int64))

    @classmethod
    def of(cls, members: BoolArray) -> OverlapSums:
        """Return what one chunk adds, of members: bool [S, n]. Whole numbers, so they are exact."""
        both = np.zeros((members.shape[0], members.shape[0]), np.int64)
        for begin in range(0, members.shape[1], _BLOCK):
            # float32 counts exactly up to 2²⁴.
            inside = members[:, begin : begin + _BLOCK].astype(np.float32)
            both += (inside @ inside.T).astype(np.int64)
        return cls(both)

    def __add__(self, other: OverlapSums) -> OverlapSums:
        return OverlapSums(self.both + other.both)

    @property
    def jaccard(self) -> FloatArray:
        """Size of the intersection over that of the union: float64 [S, S]; 0 of two empty slices."""
        sizes = np.diagonal(self.both)
        union = sizes[:, None] + sizes - self.both
        jaccard: FloatArray = self.both / np.maximum(union, 1)
        return jaccard


class Coverage(NamedTuple):
    """How much of the change of loss membership of slices explains."""

    r2: float  # float in [0, 1], or NaN Share of the variance of D; NaN where D does not vary.
    # float in [0, 1] The mean of r2 where losses have nothing to do with membership.
    expected: float


def of_partition(components: ChangeSums) -> Coverage:
    """Return what a regression of D on the component explains; each example is in one.

    r² = Σ_k n_k(m_k − m)²/Σ(D − m)². Were the values of D assigned to the examples at random, every
    order as likely (so that components must not have been shaped by D), the mean of r² is exactly
    (K⁺ − 1)/(n − 1), with K⁺ the components that are not empty: a projection on K⁺ − 1 of the n − 1
    dimensions that a centred vector has.
    """
    n = int(components.n.sum())
    mean = float(components.total.sum()) / max(n, 1)
    between = float((components.n * np.square(components.mean - mean)).sum())
    total = between + float(components.scatter.sum())
    return _coverage(between, total, int(np.count_nonzero(components.n)) - 1, n, mean)


def of_slices(
    both: FloatArray | IntArray, totals: FloatArray, n: int, total: float, scatter: float
) -> Coverage:
    """Return what a linear regression of D on membership of slices explains; they may overlap.

    Least squares with an intercept. The null expectation is that of `of_partition`, with the rank of
    the centred SᵀS for K⁺ − 1: slices that are empty, that are all examples, or that follow from the
    others add nothing to it. Slices that were chosen by D explain more of it than others.

    One slice of two of four examples, where D is 1, and elsewhere 0 and 1:

    >>> import numpy as np
    >>> of_slices(np.array([[2]]), np.array([2.0]), n=4, total=3.0, scatter=0.75)
    Coverage(r2=0.3333333333333333, expected=0.3333333333333333)
    """
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
