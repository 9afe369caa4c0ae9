"""What a component of the mixture expects of a loss: shares of classes, or a normal distribution.

Source: Eyuboglu et al. (2022), "Domino: discovering systematic errors with cross-modal embeddings",
section 5, where the heads model labels and predictions; Eyuboglu et al. (2024), "Model ChangeLists",
has them model the losses of two models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray


# Added to shares of classes, so that a class that a component has not met is unlikely, not ruled out.
EPS = float(np.finfo(np.float64).eps)
# Added to every estimated variance.
REGULARISATION = 1e-6
# Losses pile up on 0 and 1: a component of right answers alone would else be a spike, from which no
# embedding could pull a wrong one.
VARIANCE_FLOOR = 0.05


@dataclass(frozen=True)
class CategoricalHead:
    """A loss of C classes, such as zero-one loss, in each of K components."""

    shares: FloatArray  # [K, C] p_jc.

    @property
    def components(self) -> int:
        """K."""
        return int(self.shares.shape[0])

    def zero(self, weights: FloatArray) -> CategoricalSums:
        """Return the sums over no points."""
        return CategoricalSums(np.zeros((weights.size, self.shares.shape[1])))

    def log_density(self, losses: FloatArray) -> FloatArray:
        """Return log(p_jc + eps) at losses as `CategoricalSums.checked` returns them: [K, n]."""
        density: FloatArray = np.take(np.log(self.shares + EPS), losses.astype(np.intp), axis=1)
        return density


@dataclass(frozen=True)
class CategoricalSums:
    """Sums over points of responsibility times class."""

    counts: FloatArray  # [K, C] C_jc = Σ_i r_ij·1[ℓ_i = c].

    def __add__(self, other: HeadSums) -> CategoricalSums:
        if not isinstance(other, CategoricalSums):
            raise ValueError("sums of different heads are of different mixtures")  # noqa: TRY004
        return CategoricalSums(self.counts + other.counts)

    def checked(self, losses: ArrayLike, name: str, first_row: int) -> FloatArray:
        """Return losses as class numbers: float64 [n]."""
        given, classes = np.asarray(losses), self.counts.shape[1]
        # A NaN is neither.
        right = (given >= 0) & (given < classes)
        if given.dtype.kind == "f":
            right &= given == np.floor(given)
        if not right.all():
            row = int(np.argmin(right))
            raise InputError(
                f"{name} of row {first_row + row} is {given[row]}, not one of the {classes} classes "
                f"0 to {classes - 1}; give class numbers, or treat the loss as real-valued"
            )
        return given.astype(np.float64)

    def added(self, responsibilities: FloatArray, losses: FloatArray) -> CategoricalSums:
        """Return the sums with more points, of which r is float64 [K, n]."""
        of_class = losses[:, None] == np.arange(self.counts.shape[1])
        return CategoricalSums(self.counts + responsibilities @ of_class.astype(np.float64))

    def updated(self, sizes: FloatArray) -> CategoricalHead:
        """Return the head of the next iteration, p = C/N, for N of float64 [K]."""
        return CategoricalHead(self.counts / sizes[:, None])


@dataclass(frozen=True)
class NormalHead:
    """A real-valued loss, normal in each of K components."""

    # means, variances: [K] m_j and s²_j.
    means: FloatArray
    variances: FloatArray
    floor: float = VARIANCE_FLOOR  # float The least variance that a component is given.

    @property
    def components(self) -> int:
        """K."""
        return int(self.means.size)

    def zero(self, weights: FloatArray) -> NormalSums:
        """Return the sums over no points, taken about the mean of the mixture."""
        none = np.zeros(weights.size)
        return NormalSums(none, none, float(weights @ self.means / weights.sum()), self.floor)

    def log_density(self, losses: FloatArray) -> FloatArray:
        """Return log N(ℓ_i; m_j, s²_j): float64 [K, n]."""
        density: FloatArray = np.square(losses - self.means[:, None])
        density *= (-0.5 / self.variances)[:, None]
        density -= (0.5 * np.log(2 * np.pi * self.variances))[:, None]
        return density


@dataclass(frozen=True)
class NormalSums:
    """Sums over points of responsibility times loss, and its square, about a fixed centre."""

    # first, second: [K] u_j = Σ_i r_ij(ℓ_i − centre) and v'_j = Σ_i r_ij(ℓ_i − centre)².
    first: FloatArray
    second: FloatArray
    centre: float
    floor: float

    def __add__(self, other: HeadSums) -> NormalSums:
        if not isinstance(other, NormalSums) or self.centre != other.centre:
            raise ValueError("sums about different centres are of different mixtures")
        return NormalSums(
            self.first + other.first, self.second + other.second, self.centre, self.floor
        )

    def checked(self, losses: ArrayLike, name: str, first_row: int) -> FloatArray:
        """Return losses as float64 [n]."""
        given = np.asarray(losses, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(np.square(given))
        if not finite.all():
            row = int(np.argmin(finite))
            raise InputError(
                f"{name} of row {first_row + row} is {given[row]}; losses must be finite numbers "
                "whose squares are too: leave the example out, or clip its loss"
            )
        return given

    def added(self, responsibilities: FloatArray, losses: FloatArray) -> NormalSums:
        """Return the sums with more points, of which r is float64 [K, n]."""
        apart = losses - self.centre
        return NormalSums(
            self.first + responsibilities @ apart,
            self.second + responsibilities @ np.square(apart),
            self.centre,
            self.floor,
        )

    def updated(self, sizes: FloatArray) -> NormalHead:
        """Return the head of the next iteration, for N of float64 [K].

        m = u/N and s² = max(v'/N − m² + 1e-6, floor).
        """
        mean = self.first / sizes
        variance = self.second / sizes - np.square(mean) + REGULARISATION
        return NormalHead(self.centre + mean, np.maximum(variance, self.floor), self.floor)


LossHead: TypeAlias = CategoricalHead | NormalHead
HeadSums: TypeAlias = CategoricalSums | NormalSums


def no_sums(
    components: int, losses: Sequence[ArrayLike], classes: Sequence[int | None]
) -> tuple[HeadSums, ...]:
    """Return the sums over no points of heads that are not yet fitted."""
    if len(losses) != len(classes):
        raise ValueError(f"{len(losses)} losses, but {len(classes)} heads")
    heads: list[HeadSums] = []
    for each, number in zip(losses, classes, strict=True):
        none = np.zeros(components)
        if number is not None:
            heads.append(CategoricalSums(np.zeros((components, number))))
            continue
        given = np.asarray(each, dtype=np.float64)
        # What is not finite is found, and named, where the losses are summed.
        finite = given[np.isfinite(given)]
        centre = float(finite.mean()) if finite.size else 0.0
        heads.append(NormalSums(none, none, centre, VARIANCE_FLOOR))
    return tuple(heads)
