"""A mixture of diagonal Gaussians over embeddings, with loss heads: EM from sums over chunks.

Source: Eyuboglu et al. (2022), "Domino: discovering systematic errors with cross-modal embeddings",
section 5 and appendix, where the heads model labels and predictions; Eyuboglu et al. (2024), "Model
ChangeLists", has them model the losses of two models. Every update is a function of sums over points,
so one iteration is one combine over chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from scipy.special import logsumexp

from slicebeam.metrics.discovery.chunks import (
    FIXED,
    Embeddings,
    Summed,
    blocks,
    check_losses,
    not_finite,
)
from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray


# A block of points with their squares and responsibilities stays in the processor's cache.
_BLOCK = 1024
# Added to shares of classes, so that a class that a component has not met is unlikely, not ruled out.
EPS = float(np.finfo(np.float64).eps)
# Added to every estimated variance.
REGULARISATION = 1e-6
# Losses pile up on 0 and 1: a component of right answers alone would else be a spike, from which no
# embedding could pull a wrong one.
VARIANCE_FLOOR = 0.05


@dataclass(frozen=True)
class CategoricalHead:
    """A loss of C classes, such as zero-one loss: its shares p_jc [K, C] in K components."""

    shares: FloatArray

    @property
    def components(self) -> int:
        """K."""
        return int(self.shares.shape[0])

    def zero(self, weights: FloatArray) -> CategoricalSums:
        """Return the sums over no points."""
        return CategoricalSums(np.zeros((weights.size, self.shares.shape[1])))

    def log_density(self, losses: FloatArray) -> FloatArray:
        """Return log(p_jc + eps) at losses as `CategoricalSums.checked` returns them: [K, n]."""
        return np.asarray(np.take(np.log(self.shares + EPS), losses.astype(np.intp), axis=1))


@dataclass(frozen=True)
class CategoricalSums(Summed):
    """Sums over points of responsibility times class: C_jc = Σ_i r_ij·1[ℓ_i = c] [K, C]."""

    counts: FloatArray

    def checked(self, losses: ArrayLike, name: str, first_row: int) -> FloatArray:
        """Return losses as class numbers; an InputError names the row that is not one of 0..C−1."""
        numbers, classes = np.asarray(losses), self.counts.shape[1]
        # A NaN is neither.
        valid = (numbers >= 0) & (numbers < classes)
        if numbers.dtype.kind == "f":
            valid &= numbers == np.floor(numbers)
        if not valid.all():
            row = int(np.argmin(valid))
            raise InputError(
                f"{name} of row {first_row + row} is {numbers[row]}, not one of the {classes} classes "
                f"0 to {classes - 1}; give class numbers, or treat the loss as real-valued"
            )
        return numbers.astype(np.float64)

    def of(self, responsibilities: FloatArray, losses: FloatArray) -> CategoricalSums:
        """Return the sums over points of which r is [K, n]."""
        of_class = losses[:, None] == np.arange(self.counts.shape[1])
        return CategoricalSums(responsibilities @ of_class.astype(np.float64))

    def updated(self, sizes: FloatArray) -> CategoricalHead:
        """Return the head of the next iteration, p = C/N, for N [K]."""
        return CategoricalHead(self.counts / sizes[:, None])


@dataclass(frozen=True)
class NormalHead:
    """A real-valued loss, normal in each of K components, whose variances have a floor."""

    means: FloatArray  # m_j
    variances: FloatArray  # s²_j
    floor: float = VARIANCE_FLOOR

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
class NormalSums(Summed):
    """Sums over points of responsibility times loss, and its square, about a fixed centre."""

    first: FloatArray  # [K] u_j = Σ_i r_ij(ℓ_i − centre)
    second: FloatArray  # [K] v'_j = Σ_i r_ij(ℓ_i − centre)²
    centre: float = field(metadata=FIXED)
    floor: float = field(metadata=FIXED)

    def checked(self, losses: ArrayLike, name: str, first_row: int) -> FloatArray:
        """Return losses as float64; an InputError names the row that is not finite."""
        numbers = np.asarray(losses, dtype=np.float64)
        check_losses(numbers, name, first_row)
        return numbers

    def of(self, responsibilities: FloatArray, losses: FloatArray) -> NormalSums:
        """Return the sums over points of which r is [K, n]."""
        apart = losses - self.centre
        first, second = responsibilities @ apart, responsibilities @ np.square(apart)
        return NormalSums(first, second, self.centre, self.floor)

    def updated(self, sizes: FloatArray) -> NormalHead:
        """Return the head of the next iteration, for N [K].

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
    """Return the sums over no points of heads that are not yet fitted.

    ``classes`` is the number of classes, or None of a real-valued loss, whose mean becomes the centre.
    """
    heads: list[HeadSums] = []
    for each, number in zip(losses, classes, strict=True):
        if number is not None:
            heads.append(CategoricalSums(np.zeros((components, number))))
            continue
        numbers = np.asarray(each, dtype=np.float64)
        # What is not finite is found, and named, where the losses are summed.
        finite = numbers[np.isfinite(numbers)]
        centre = float(finite.mean()) if finite.size else 0.0
        none = np.zeros(components)
        heads.append(NormalSums(none, none, centre, VARIANCE_FLOOR))
    return tuple(heads)


@dataclass(frozen=True)
class Mixture:
    """K components over embeddings of d dimensions, with a head for each loss."""

    weights: FloatArray  # [K] π_j, above 0
    means: FloatArray  # [K, d] μ_jd
    variances: FloatArray  # [K, d] v_jd, above 0
    heads: tuple[LossHead, ...] = ()
    # γ ≥ 0, with which the heads' log densities count; at 0 they are fitted but shape nothing.
    loss_weight: float = 0.0

    def __post_init__(self) -> None:
        K = self.weights.size
        if self.means.shape != self.variances.shape or self.means.shape[:1] != (K,):
            raise ValueError(f"means of shape {self.means.shape} do not fit {K} components")
        if any(head.components != K for head in self.heads):
            raise ValueError(f"a head does not have the {K} components of its mixture")
        if not ((self.weights > 0).all() and (self.variances > 0).all() and self.loss_weight >= 0):
            raise ValueError("a weight or a variance of the mixture is not above 0")

    @property
    def components(self) -> int:
        """How many there are, K."""
        return int(self.weights.size)

    @property
    def dimensions(self) -> int:
        """How many an embedding has, d."""
        return int(self.means.shape[1])

    @cached_property
    def centre(self) -> FloatArray:
        """Σ_j π_j μ_j, about which sums are taken: float64 [d]."""
        return np.asarray(self.weights @ self.means / self.weights.sum())

    @cached_property
    def coefficients(self) -> tuple[FloatArray, FloatArray]:
        """What (x, x²) is multiplied by [K, 2d], and added to [K, 1], for log π + log N(x + centre)."""
        precision = 1 / self.variances
        mean = self.means - self.centre
        constant = np.log(self.weights) - 0.5 * (
            np.log(2 * np.pi * self.variances) + np.square(mean) * precision
        ).sum(axis=1)
        return np.hstack([mean * precision, -0.5 * precision]), constant[:, None]


@dataclass(frozen=True)
class MixtureSums(Summed):
    """What an iteration sums over points, of x = z − centre.

    The centre is that of the mixture, the same in all chunks: B/N − (A/N)² then loses no digits to an
    offset that all points share.
    """

    n: int
    log_likelihood: float  # Σ_i ln_i, in nats, of the mixture that gave the responsibilities
    sizes: FloatArray  # [K] N_j = Σ_i r_ij
    first: FloatArray  # [K, d] A_j = Σ_i r_ij x_i
    second: FloatArray  # [K, d] B_j = Σ_i r_ij x_i²
    heads: tuple[HeadSums, ...]
    centre: FloatArray = field(metadata=FIXED)
    loss_weight: float = field(metadata=FIXED)

    @classmethod
    def zero(cls, mixture: Mixture) -> MixtureSums:
        """Return the sums over no points."""
        heads = tuple(head.zero(mixture.weights) for head in mixture.heads)
        return cls.empty(mixture.components, mixture.centre, heads, mixture.loss_weight)

    @classmethod
    def empty(
        cls, components: int, centre: FloatArray, heads: tuple[HeadSums, ...], loss_weight: float
    ) -> MixtureSums:
        """Return the sums over no points, to be taken about a centre: float64 [d]."""
        none = np.zeros((components, centre.size))
        return cls(0, 0.0, np.zeros(components), none, none, heads, centre, loss_weight)

    def of(
        self, r: FloatArray, x: FloatArray, losses: Sequence[FloatArray], log_likelihood: float
    ) -> MixtureSums:
        """Return the sums over points of responsibilities [K, n] and (x, x²) [n, 2d]."""
        moments, d = r @ x, self.centre.size
        heads = tuple(head.of(r, each) for head, each in zip(self.heads, losses, strict=True))
        sums = r.sum(axis=1), moments[:, :d], moments[:, d:]
        return MixtureSums(len(x), log_likelihood, *sums, heads, self.centre, self.loss_weight)

    @property
    def mean_log_likelihood(self) -> float:
        """Mean of ln_i; NaN of no points."""
        return self.log_likelihood / self.n if self.n else float("nan")


def log_responsibilities(
    mixture: Mixture, z: Embeddings, losses: Sequence[ArrayLike] | None = None, first_row: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Return log r_ij [n, K], and ln_i [n], how likely the points are: the E-step.

    r_ij ∝ π_j Π_d N(z_id; μ_jd, v_jd) Π_heads f(ℓ_i|j)^γ, and ln_i is the logarithm of what they are
    divided by. Without losses the embeddings alone decide, as is needed for points whose losses are
    then tested. The same to the byte however rows are divided into chunks, on the same machine.

    (z − μ)²/v is taken as x·x/v − 2x·μ'/v + μ'²/v, by matrix products: log densities are off by about
    1e-16·Σ_d (x² + μ'²)/v, which is 1e-13 for components of ordinary width, and 1e-8 for one of the
    least variance, 1e-6, in data of deviation 1 and 100 dimensions.
    """
    checked = _checked(mixture, z, losses, first_row)
    log_r = np.empty((z.shape[0], mixture.components))
    log_likelihood = np.empty(z.shape[0])
    for rows, joint, _ in _joint_blocks(mixture, z, checked):
        log_likelihood[rows] = _log_sum(joint.copy())
        log_r[rows] = (joint - log_likelihood[rows]).T
        if not np.isfinite(log_likelihood[rows]).all():
            raise not_finite(z[rows], first_row + rows.start)
    return log_r, log_likelihood


def most_likely(log_r: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the component of each point, the first of equal ones, and its log-odds in nats.

    By log-odds, members of a component are ranked: in many dimensions, most points have a
    responsibility of 1 to the last digit, but their odds differ. They are always finite: at most
    the largest double, which a mixture of one component has.
    """
    points, component = np.arange(log_r.shape[0]), log_r.argmax(axis=1)
    rest = log_r.copy()
    rest[points, component] = -np.inf
    largest = float(np.finfo(np.float64).max)
    odds: FloatArray = np.minimum(log_r[points, component] - logsumexp(rest, axis=1), largest)
    return component, odds


def sums(
    mixture: Mixture, z: Embeddings, losses: Sequence[ArrayLike] = (), first_row: int = 0
) -> MixtureSums:
    """Return what one chunk adds to the sums of an iteration; errors count from ``first_row``.

    The same to the byte for the same chunk on the same machine and number of BLAS threads. The
    working memory is a few blocks of 1,024 rows.
    """
    checked = _checked(mixture, z, losses, first_row)
    zero = total = MixtureSums.zero(mixture)
    for rows, joint, x in _joint_blocks(mixture, z, checked):
        log_likelihood = _log_sum(joint)
        if not np.isfinite(log_likelihood).all():
            raise not_finite(z[rows], first_row + rows.start)
        total += zero.of(joint, x, [each[rows] for each in checked], float(log_likelihood.sum()))
    return total


def sums_of_labels(
    labels: NDArray[np.integer], z: Embeddings, losses: Sequence[ArrayLike], zero: MixtureSums
) -> MixtureSums:
    """Return the sums over points each of which is wholly of one component."""
    checked = _checked_losses(zero.heads, losses, z.shape[0], 0)
    numbers, total = np.arange(zero.sizes.size)[:, None], zero
    for rows in blocks(z.shape[0], _BLOCK):
        of_component = (labels[rows] == numbers).astype(np.float64)
        x = _with_squares(z[rows], zero.centre)
        total += zero.of(of_component, x, [each[rows] for each in checked], 0.0)
    return total


def updated(found: MixtureSums) -> Mixture:
    """Return the mixture of the next iteration: the M-step.

    With N = N_j + 10 eps, π = N/n, μ = A/N, v = B/N − μ² + 1e-6, all about the centre. A component
    that lost all points is left at the centre with variance 1e-6 and weight 2e-15/n.
    """
    if found.n == 0:
        raise ValueError("a mixture needs at least one point")
    sizes = found.sizes + 10 * EPS
    mean = found.first / sizes[:, None]
    # Rounding may leave less than 0 of the variance of a constant.
    variance = np.maximum(found.second / sizes[:, None] - np.square(mean), 0) + REGULARISATION
    heads = tuple(head.updated(sizes) for head in found.heads)
    return Mixture(sizes / found.n, found.centre + mean, variance, heads, found.loss_weight)


def _with_squares(z: Embeddings, centre: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """Return (x, x²) of x = z − centre: float64 [n, 2d]."""
    n, d = z.shape
    x = np.empty((n, 2 * d)) if out is None else out[:n]
    np.subtract(z, centre, out=x[:, :d])
    np.square(x[:, :d], out=x[:, d:])
    return x


def _joint_blocks(
    mixture: Mixture, z: Embeddings, losses: Sequence[FloatArray]
) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
    """Yield rows, log π f of each component [K, n], and (x, x²) [n, 2d]; the arrays are reused.

    Components come first: sums over them are then along the rows of memory. Products are always of
    whole blocks, for a row's may differ in the last digit with the number of the others.
    """
    coefficients, constant = mixture.coefficients
    squares = np.zeros((_BLOCK, 2 * mixture.dimensions))
    joints = np.empty((mixture.components, _BLOCK))
    for rows in blocks(z.shape[0], _BLOCK):
        # A value that is not finite is found, and named, in the likelihood.
        with np.errstate(over="ignore", invalid="ignore"):
            x = _with_squares(z[rows], mixture.centre, squares)
            np.matmul(coefficients, squares.T, out=joints)
            joint = joints[:, : x.shape[0]]
            joint += constant
        if mixture.loss_weight:
            for head, each in zip(mixture.heads, losses, strict=False):
                joint += mixture.loss_weight * head.log_density(each[rows])
        yield rows, joint, x


def _log_sum(joint: FloatArray) -> FloatArray:
    """Return the logarithms [n] of the sums of exp over components, and divide by them in place.

    What was log π f, [K, n], are responsibilities then.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        top = joint.max(axis=0)
        joint -= top
        np.exp(joint, out=joint)
        total = joint.sum(axis=0)
        joint /= total
        log_sum: FloatArray = top + np.log(total)
    return log_sum


def _checked(
    mixture: Mixture, z: Embeddings, losses: Sequence[ArrayLike] | None, first_row: int
) -> list[FloatArray]:
    """Return the losses as the heads take them; none where there are none."""
    if z.ndim != 2 or z.shape[1] != mixture.dimensions:
        raise ValueError(
            f"embeddings of shape {z.shape} in a mixture of {mixture.dimensions} dimensions"
        )
    if losses is None:
        return []
    heads = MixtureSums.zero(mixture).heads
    return _checked_losses(heads, losses, z.shape[0], first_row)


def _checked_losses(
    heads: Sequence[HeadSums], losses: Sequence[ArrayLike], rows: int, first_row: int
) -> list[FloatArray]:
    checked = []
    for number, (head, each) in enumerate(zip(heads, losses, strict=True), 1):
        if np.shape(each) != (rows,):
            raise ValueError(f"loss {number} has the shape {np.shape(each)}, not ({rows},)")
        checked.append(head.checked(each, f"loss {number}", first_row))
    return checked
