"""Principal components from sums over chunks, so that embeddings are reduced in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from slicebeam.metrics.arrays import FloatArray, NDArray
from slicebeam.metrics.chunks import Embeddings, Summed, blocks, not_finite

_BLOCK = 2048
# Entries of an axis that differ by less are alike, of which the first decides on the sign.
_ALIKE = 1e-6


@dataclass(frozen=True)
class PcaSums(Summed):
    """Moments of n points."""

    n: int
    mean: FloatArray  # [D] Σz/n; 0 of no points
    scatter: FloatArray  # [D, D] Σ(z − mean)(z − mean)ᵀ: an offset of all points costs no digits

    @classmethod
    def zero(cls, dimensions: int) -> PcaSums:
        """Return the sums over no points."""
        return cls(0, np.zeros(dimensions), np.zeros((dimensions, dimensions)))

    def __add__(self, other: PcaSums) -> PcaSums:
        """Return the sums over both chunks (Chan, Golub and LeVeque 1983, Am. Stat. 37:242, eq. 2.1)."""
        if not self.n or not other.n:
            return self if self.n else other
        n = self.n + other.n
        apart = other.mean - self.mean
        return PcaSums(
            n,
            self.mean + apart * (other.n / n),
            self.scatter + other.scatter + np.outer(apart, apart * (self.n / n * other.n)),
        )


@dataclass(frozen=True)
class Pca:
    """Principal axes of D dimensions, by falling variance."""

    mean: FloatArray  # [D]
    axes: FloatArray  # [d, D] orthonormal; of the entries largest in size the first is positive
    variances: FloatArray  # [d] of the points along the axes, with denominator n − 1
    total_variance: float  # of all D dimensions together


def sums(z: Embeddings, first_row: int = 0) -> PcaSums:
    """Return what one chunk [n, D] adds to the sums; errors count rows from ``first_row``."""
    total = PcaSums.zero(z.shape[1])
    for rows in blocks(z.shape[0], _BLOCK):
        x = z[rows].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.mean(axis=0)
            x -= mean
            # A matrix times its own transpose takes numpy half the work.
            scatter = x.T @ x
        if not np.isfinite(np.diagonal(scatter)).all():
            raise not_finite(z[rows], first_row + rows.start)
        total += PcaSums(x.shape[0], mean, scatter)
    return total


def components(moments: PcaSums, d: int) -> Pca:
    """Return at most d principal axes, at least one; variances below 1e-16·D of the largest are lost."""
    D = moments.mean.size
    values, vectors = linalg.eigh(moments.scatter / max(moments.n - 1, 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    rounding = values[0] * D * float(np.finfo(np.float64).eps)
    kept = max(1, min(d, int(np.count_nonzero(values > rounding))))
    axes = np.ascontiguousarray(vectors[:, :kept].T)
    size = np.abs(axes)
    leading = np.argmax(size >= (1 - _ALIKE) * size.max(axis=1, keepdims=True), axis=1)
    axes *= np.where(axes[np.arange(kept), leading] < 0, -1.0, 1.0)[:, None]
    variances = np.maximum(values[:kept], 0)
    return Pca(moments.mean, axes, variances, float(np.maximum(values, 0).sum()))


def projected(z: Embeddings, pca: Pca, first_row: int = 0) -> NDArray[np.float32]:
    """Return the coordinates [n, d] of points along principal axes, the same however chunks are cut."""
    coordinates = np.empty((z.shape[0], pca.axes.shape[0]), np.float32)
    # Products are of whole blocks: a row's may differ in the last digit with the others' number.
    whole = np.zeros((_BLOCK, z.shape[1]))
    for rows in blocks(z.shape[0], _BLOCK):
        with np.errstate(over="ignore", invalid="ignore"):
            x = np.subtract(z[rows], pca.mean, out=whole[: rows.stop - rows.start])
            block = (whole @ pca.axes.T)[: x.shape[0]].astype(np.float32)
        if not np.isfinite(block).all():
            raise not_finite(z[rows], first_row + rows.start)
        coordinates[rows] = block
    return coordinates
