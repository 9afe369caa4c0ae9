"""A mixture of diagonal Gaussians over embeddings, with loss heads: EM from sums over chunks.

Source: Eyuboglu et al. (2022), "Domino: discovering systematic errors with cross-modal embeddings",
section 5 and appendix; Eyuboglu et al. (2024), "Model ChangeLists", for the losses of two models.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.special import logsumexp

from slicebeam.metrics.arrays import ArrayLike, FloatArray, IntArray, NDArray
from slicebeam.metrics.chunks import (
    FIXED,
    Embeddings,
    Summed,
    blocks,
    check_finite,
    check_losses,
    not_finite,
)
from slicebeam.metrics.errors import InputError

# A block of points with their squares and responsibilities stays in the processor's cache.
_BLOCK = 1024
# Added to shares of classes, so that a class that a component has not met is unlikely, not ruled out.
EPS = float(np.finfo(np.float64).eps)
# Added to every estimated variance.
REGULARISATION = 1e-6
# Losses pile up on 0 and 1: a component of right answers alone would else be a spike, from which no
# embedding could pull a wrong one.
VARIANCE_FLOOR = 0.05
TOLERANCE = 1e-3
MOST_ITERATIONS = 100
# Of distances between numbers of single precision below 2 to this, sums of squares are finite.
_LARGEST_EXPONENT = 40
# Clusters of k-means for each component: of K it often merges two true ones and cuts another.
_CENTRES_PER_COMPONENT = 2


@dataclass(frozen=True)
class CategoricalHead:
    """A loss of C classes, such as zero-one loss: its shares p_jc [K, C] in K components."""

    shares: FloatArray

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
        valid = (numbers >= 0) & (numbers < classes) & (numbers == np.floor(numbers))
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
        """Return the head of the next iteration for N [K]: m = u/N, s² = max(v'/N − m² + 1e-6, floor)."""
        mean = self.first / sizes
        variance = self.second / sizes - np.square(mean) + REGULARISATION
        return NormalHead(self.centre + mean, np.maximum(variance, self.floor), self.floor)


LossHead: TypeAlias = CategoricalHead | NormalHead
HeadSums: TypeAlias = CategoricalSums | NormalSums


def no_sums(
    components: int, losses: Sequence[ArrayLike], classes: Sequence[int | None]
) -> tuple[HeadSums, ...]:
    """Return the sums over no points: ``classes`` of a loss, None of a real one, whose mean is the centre."""
    heads: list[HeadSums] = []
    for loss, number in zip(losses, classes, strict=True):
        # What is not finite is named where the losses are summed.
        numbers = np.asarray(loss, dtype=np.float64)
        finite = numbers[np.isfinite(numbers)]
        none, centre = np.zeros(components), float(finite.mean()) if finite.size else 0.0
        real = NormalSums(none, none, centre, VARIANCE_FLOOR)
        heads.append(real if number is None else CategoricalSums(np.zeros((components, number))))
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
        # The file of a mixture may come from anywhere.
        K = self.weights.size
        if self.means.shape != self.variances.shape or self.means.shape[:1] != (K,):
            raise ValueError(f"means of shape {self.means.shape} do not fit {K} components")
        if any(
            len(h.shares if isinstance(h, CategoricalHead) else h.means) != K for h in self.heads
        ):
            raise ValueError(f"a head does not have the {K} components of its mixture")
        if not ((self.weights > 0).all() and (self.variances > 0).all() and self.loss_weight >= 0):
            raise ValueError("a weight or a variance of the mixture is not above 0")

    @property
    def components(self) -> int:
        """K."""
        return int(self.weights.size)

    @property
    def dimensions(self) -> int:
        """Of an embedding, d."""
        return int(self.means.shape[1])

    @cached_property
    def centre(self) -> FloatArray:
        """Σ_j π_j μ_j, about which sums are taken [d]."""
        return np.asarray(self.weights @ self.means / self.weights.sum())

    @cached_property
    def coefficients(self) -> tuple[FloatArray, FloatArray]:
        """What (x, x²) is multiplied by [K, 2d], and added to [K, 1], for log π + log N(x + centre)."""
        precision, mean = 1 / self.variances, self.means - self.centre
        squares = np.log(2 * np.pi * self.variances) + np.square(mean) * precision
        constant = np.log(self.weights) - 0.5 * squares.sum(axis=1)
        return np.hstack([mean * precision, -0.5 * precision]), constant[:, None]


@dataclass(frozen=True)
class MixtureSums(Summed):
    """What an iteration sums over points, of x = z − centre: an offset of all points costs no digits."""

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
        """Return the sums over no points, to be taken about a centre [d]."""
        none = np.zeros((components, centre.size))
        return cls(0, 0.0, np.zeros(components), none, none, heads, centre, loss_weight)

    def of(
        self, r: FloatArray, x: FloatArray, losses: Sequence[FloatArray], log_likelihood: float
    ) -> MixtureSums:
        """Return the sums over points of responsibilities [K, n] and (x, x²) [n, 2d]."""
        moments, d = r @ x, self.centre.size
        heads = tuple(head.of(r, loss) for head, loss in zip(self.heads, losses, strict=True))
        sums = r.sum(axis=1), moments[:, :d], moments[:, d:]
        return MixtureSums(len(x), log_likelihood, *sums, heads, self.centre, self.loss_weight)

    @property
    def mean_log_likelihood(self) -> float:
        """Mean of ln_i; NaN of no points."""
        return self.log_likelihood / self.n if self.n else float("nan")


def log_responsibilities(
    mixture: Mixture, z: Embeddings, losses: Sequence[ArrayLike] | None = None, first_row: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Return log r_ij [n, K], and ln_i [n], how likely the points are: the E-step."""
    # r_ij ∝ π_j Π_d N(z_id; μ_jd, v_jd) Π_heads f(ℓ_i|j)^γ, and ln_i is the log of what they are divided by. Without
    # losses, as of points whose losses are then tested, the embeddings alone decide.
    checked = _checked(MixtureSums.zero(mixture), losses, first_row)
    log_r = np.empty((z.shape[0], mixture.components))
    log_likelihood = np.empty(z.shape[0])
    for rows, joint, _ in _joint_blocks(mixture, z, checked):
        log_likelihood[rows] = _log_sum(joint.copy())
        log_r[rows] = (joint - log_likelihood[rows]).T
        if not np.isfinite(log_likelihood[rows]).all():
            raise not_finite(z[rows], first_row + rows.start)
    return log_r, log_likelihood


def most_likely(log_r: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the component of each point, the first of equal ones, and its log-odds in nats, at most a double."""
    points, component = np.arange(log_r.shape[0]), log_r.argmax(axis=1)
    rest = log_r.copy()
    rest[points, component] = -np.inf
    largest = float(np.finfo(np.float64).max)
    odds: FloatArray = np.minimum(log_r[points, component] - logsumexp(rest, axis=1), largest)
    return component, odds


def sums(
    mixture: Mixture, z: Embeddings, losses: Sequence[ArrayLike] = (), first_row: int = 0
) -> MixtureSums:
    """Return what one chunk adds to the sums of an iteration; errors count from ``first_row``."""
    checked = _checked(MixtureSums.zero(mixture), losses, first_row)
    zero = total = MixtureSums.zero(mixture)
    for rows, joint, x in _joint_blocks(mixture, z, checked):
        log_likelihood = _log_sum(joint)
        if not np.isfinite(log_likelihood).all():
            raise not_finite(z[rows], first_row + rows.start)
        total += zero.of(joint, x, [loss[rows] for loss in checked], float(log_likelihood.sum()))
    return total


def sums_of_labels(
    labels: NDArray[np.integer], z: Embeddings, losses: Sequence[ArrayLike], zero: MixtureSums
) -> MixtureSums:
    """Return the sums over points each of which is wholly of one component."""
    checked = _checked(zero, losses)
    numbers, total = np.arange(zero.sizes.size)[:, None], zero
    for rows in blocks(z.shape[0], _BLOCK):
        of_component, x = (labels[rows] == numbers).astype(np.float64), z[rows] - zero.centre
        x = np.hstack([x, np.square(x)])
        total += zero.of(of_component, x, [loss[rows] for loss in checked], 0.0)
    return total


def updated(total: MixtureSums) -> Mixture:
    """Return the M-step: π = N/n, μ = A/N, v = B/N − μ² + 1e-6, N = N_j + 10 eps; an empty component is at the centre."""
    sizes = total.sizes + 10 * EPS
    mean = total.first / sizes[:, None]
    # Rounding may leave less than 0 of the variance of a constant.
    variance = np.maximum(total.second / sizes[:, None] - np.square(mean), 0) + REGULARISATION
    heads = tuple(head.updated(sizes) for head in total.heads)
    return Mixture(sizes / total.n, total.centre + mean, variance, heads, total.loss_weight)


def _joint_blocks(
    mixture: Mixture, z: Embeddings, losses: Sequence[FloatArray]
) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
    """Yield rows, log π f [K, n] and (x, x²) [n, 2d] in reused arrays, by products of whole blocks for equal digits."""
    (coefficients, constant), d = mixture.coefficients, mixture.dimensions
    squares = np.zeros((_BLOCK, 2 * d))
    joints = np.empty((mixture.components, _BLOCK))
    for rows in blocks(z.shape[0], _BLOCK):
        # A value that is not finite is found, and named, in the likelihood.
        with np.errstate(over="ignore", invalid="ignore"):
            x = squares[: rows.stop - rows.start]
            np.subtract(z[rows], mixture.centre, out=x[:, :d])
            np.square(x[:, :d], out=x[:, d:])
            np.matmul(coefficients, squares.T, out=joints)
            joint = joints[:, : x.shape[0]]
            joint += constant
        if mixture.loss_weight:
            for head, loss in zip(mixture.heads, losses, strict=False):
                joint += mixture.loss_weight * head.log_density(loss[rows])
        yield rows, joint, x


def _log_sum(joint: FloatArray) -> FloatArray:
    """Return log Σ exp over components [n], and make responsibilities of log π f [K, n] in place."""
    with np.errstate(over="ignore", invalid="ignore"):
        top = joint.max(axis=0)
        joint -= top
        np.exp(joint, out=joint)
        total = joint.sum(axis=0)
        joint /= total
        return np.asarray(top + np.log(total))


def _checked(
    zero: MixtureSums, losses: Sequence[ArrayLike] | None, first_row: int = 0
) -> list[FloatArray]:
    """Return the losses as the heads take them; none where there are none."""
    pairs = [] if losses is None else zip(zero.heads, losses, strict=True)
    return [
        head.checked(loss, f"loss {number}", first_row)
        for number, (head, loss) in enumerate(pairs, 1)
    ]


def is_converged(mean_log_likelihoods: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Return whether the last two iterations differ in the mean of ln by less than the tolerance."""
    last = mean_log_likelihoods[-2:]
    return len(last) == 2 and abs(last[1] - last[0]) < tolerance


def initial(
    z: Embeddings,
    losses: Sequence[ArrayLike] = (),
    *,
    components: int,
    seed: int,
    classes: Sequence[int | None] = (),
    loss_weight: float = 0.0,
) -> Mixture:
    """Return the mixture that EM starts from: one M-step from k-means' clusters, merged by `ward`."""
    # Loading it takes longer than most chunks.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if z.ndim != 2 or z.shape[0] < components:
        raise InputError(
            f"{components} components cannot be initialised from {z.shape[0]} points; give fewer "
            "components or more data"
        )
    check_finite(z)
    heads = no_sums(components, losses, classes)
    centre = z.mean(axis=0, dtype=np.float64)
    # Squares of single precision would overflow, and a power of two changes no digit.
    exponent = int(np.frexp(np.abs(z).max(initial=0.0))[1])
    scaled = np.ldexp(z, -exponent) if exponent > _LARGEST_EXPONENT else z
    with warnings.catch_warnings():
        # It warns where fewer points are distinct.
        warnings.simplefilter("ignore", ConvergenceWarning)
        number = min(_CENTRES_PER_COMPONENT * components, z.shape[0])
        kmeans = KMeans(n_clusters=number, n_init=1, random_state=seed % (1 << 32)).fit(scaled)
    present, groups = np.unique(kmeans.labels_, return_inverse=True)
    middle = scaled.mean(axis=0, dtype=np.float64)
    # The means of the points, of which k-means only has those of the iteration before.
    none = MixtureSums.empty(present.size, middle, (), 0.0)
    total = sums_of_labels(groups, scaled, (), none)
    labels = ward(total.first / total.sizes[:, None], total.sizes, components)[groups]
    zero = MixtureSums.empty(components, centre, heads, loss_weight)
    return updated(sums_of_labels(labels, z, losses, zero))


def ward(centres: FloatArray, sizes: FloatArray, clusters: int) -> IntArray:
    """Return the clusters of groups after merging until this number is left: Ward (1963), the first of equals."""
    m = sizes.size
    centres, sizes = centres.astype(np.float64), sizes.astype(np.float64)
    of, numbers, costs = np.arange(m), np.arange(m), np.full((m, m), np.inf)

    def look(number: int) -> None:
        """Note what merging a cluster with each other one costs."""
        apart = np.square(centres - centres[number]).sum(axis=1)
        added = sizes * sizes[number] / (sizes + sizes[number]) * apart
        added[(of != numbers) | (numbers == number)] = np.inf
        costs[number] = costs[:, number] = added

    for number in range(m if clusters < m else 0):
        look(number)
    for _ in range(m - clusters):
        kept, gone = divmod(int(costs.argmin()), m)
        total = sizes[kept] + sizes[gone]
        centres[kept] += (centres[gone] - centres[kept]) * (sizes[gone] / total)
        sizes[kept] = total
        of[of == gone] = kept
        costs[gone] = costs[:, gone] = np.inf
        look(kept)
    return np.unique(of, return_inverse=True)[1].astype(np.int64)
