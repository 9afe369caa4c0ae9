"""A mixture of diagonal Gaussians over embeddings, with loss heads: EM from sums over chunks.

Source: Eyuboglu et al. (2022), "Domino: discovering systematic errors with cross-modal embeddings",
section 5 and appendix; the losses as heads are of Eyuboglu et al. (2024), "Model ChangeLists".
Every update is a function of sums over points, so one iteration is one combine over chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from slicebeam.metrics.discovery.embeddings import Embeddings, blocks, not_finite
from slicebeam.metrics.discovery.loss_heads import EPS, REGULARISATION, HeadSums, LossHead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray


# A block of points with their squares and responsibilities stays in the processor's cache.
_BLOCK = 1024


@dataclass(frozen=True)
class Mixture:
    """K components over embeddings of d dimensions."""

    weights: FloatArray  # [K], above 0 π_j.
    # means, variances: [K, d] μ_jd and v_jd.
    means: FloatArray
    variances: FloatArray
    heads: tuple[LossHead, ...] = ()  # of each loss, what the components expect of it
    # float, at least 0 γ, with which the heads' log densities count. At 0 they are fitted but shape
    # nothing.
    loss_weight: float = 0.0

    def __post_init__(self) -> None:
        K = self.weights.size
        if self.means.ndim != 2 or self.means.shape[0] != K:
            raise ValueError(f"means of shape {self.means.shape} do not fit {K} components")
        if self.variances.shape != self.means.shape:
            raise ValueError(
                f"variances have shape {self.variances.shape}, means {self.means.shape}"
            )
        for head in self.heads:
            if head.components != K:
                raise ValueError(f"a head of {head.components} components in a mixture of {K}")
        if not (self.weights > 0).all() or not (self.variances > 0).all():
            raise ValueError("a weight or a variance of the mixture is not above 0")
        if not self.loss_weight >= 0:
            raise ValueError(f"loss_weight = {self.loss_weight} must be at least 0")

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
        centre: FloatArray = self.weights @ self.means / self.weights.sum()
        return centre

    @cached_property
    def coefficients(self) -> tuple[FloatArray, FloatArray]:
        """Return what (x, x²) is multiplied by, and added to, for log π + log N(x + centre).

        float64 [K, 2d] and [K, 1].
        """
        precision = 1 / self.variances
        mean = self.means - self.centre
        constant = np.log(self.weights) - 0.5 * (
            np.log(2 * np.pi * self.variances) + np.square(mean) * precision
        ).sum(axis=1)
        return np.hstack([mean * precision, -0.5 * precision]), constant[:, None]


@dataclass(frozen=True)
class MixtureSums:
    """What an iteration sums over points; sums of chunks add up."""

    n: int  # int Points.
    log_likelihood: float  # float Σ_i ln_i, in nats, of the mixture that gave the responsibilities.
    sizes: FloatArray  # [K] N_j = Σ_i r_ij.
    # first, second: [K, d] A_j = Σ_i r_ij x_i and B_j = Σ_i r_ij x_i², of x = z − centre.
    first: FloatArray
    second: FloatArray
    heads: tuple[HeadSums, ...]  # sums of each loss head
    # [d] The same in all chunks, for it is that of the mixture: B/N − (A/N)² then loses no digits
    # to an offset that all points share.
    centre: FloatArray
    loss_weight: float  # float γ.

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

    def __add__(self, other: MixtureSums) -> MixtureSums:
        """Return the sums over both chunks.

        Addition of doubles: a + b is b + a to the byte, but sums of three chunks agree to the byte
        only when they are added in the same order, that of the chunks' numbers say. Otherwise they
        agree to about 1e-13 of their size.
        """
        if not np.array_equal(self.centre, other.centre) or len(self.heads) != len(other.heads):
            raise ValueError("sums about different centres are of different mixtures")
        return MixtureSums(
            self.n + other.n,
            self.log_likelihood + other.log_likelihood,
            self.sizes + other.sizes,
            self.first + other.first,
            self.second + other.second,
            tuple(mine + its for mine, its in zip(self.heads, other.heads, strict=True)),
            self.centre,
            self.loss_weight,
        )

    @property
    def mean_log_likelihood(self) -> float:
        """Mean of ln_i; NaN of no points."""
        return self.log_likelihood / self.n if self.n else float("nan")


def log_responsibilities(
    mixture: Mixture, z: Embeddings, losses: Sequence[ArrayLike] | None = None, first_row: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Return which components points belong to, and how likely the points are: the E-step.

    (z − μ)²/v is taken as x·x/v − 2x·μ'/v + μ'²/v, x = z − centre and μ' = μ − centre, by matrix
    products of doubles: log densities are off by about 1e-16·Σ_d (x² + μ'²)/v, which is 1e-13 for
    components of ordinary width, and 1e-8 for one of the least variance, 1e-6, in data of
    deviation 1 and 100 dimensions.
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
    """Return the component that each point belongs to, and the log-odds by which it does.

    By log-odds, members of a component are ranked: in many dimensions, most points have a
    responsibility of 1 to the last digit, but their odds differ.
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
    """Return what one chunk adds to the sums of an iteration."""
    checked = _checked(mixture, z, losses, first_row)
    total = _Accumulator(MixtureSums.zero(mixture))
    for rows, joint, x in _joint_blocks(mixture, z, checked):
        log_likelihood = _log_sum(joint)
        if not np.isfinite(log_likelihood).all():
            raise not_finite(z[rows], first_row + rows.start)
        total.add(joint, x, [each[rows] for each in checked], float(log_likelihood.sum()))
    return total.sums()


def sums_of_labels(
    labels: NDArray[np.integer], z: Embeddings, losses: Sequence[ArrayLike], zero: MixtureSums
) -> MixtureSums:
    """Return the sums over points each of which is wholly of one component."""
    checked = _checked_losses(zero.heads, losses, z.shape[0], 0)
    total = _Accumulator(zero)
    numbers = np.arange(zero.sizes.size)[:, None]
    for rows in blocks(z.shape[0], _BLOCK):
        of_component = (labels[rows] == numbers).astype(np.float64)
        total.add(of_component, _with_squares(z[rows], zero.centre), [e[rows] for e in checked], 0)
    return total.sums()


def updated(found: MixtureSums) -> Mixture:
    """Return the mixture of the next iteration: the M-step."""
    if found.n == 0:
        raise ValueError("a mixture needs at least one point")
    sizes = found.sizes + 10 * EPS
    mean = found.first / sizes[:, None]
    # Rounding may leave less than 0 of the variance of a constant.
    variance = np.maximum(found.second / sizes[:, None] - np.square(mean), 0) + REGULARISATION
    return Mixture(
        sizes / found.n,
        found.centre + mean,
        variance,
        tuple(head.updated(sizes) for head in found.heads),
        found.loss_weight,
    )


class _Accumulator:
    """Adds blocks to sums in place."""

    def __init__(self, start: MixtureSums) -> None:
        self._start, self._heads = start, start.heads
        self._n, self._log_likelihood = start.n, start.log_likelihood
        self._sizes = start.sizes.copy()
        self._moments = np.hstack([start.first, start.second])

    def add(
        self,
        responsibilities: FloatArray,
        x: FloatArray,
        losses: Sequence[FloatArray],
        log_likelihood: float,
    ) -> None:
        """Add a block of responsibilities [K, n] and (x, x²) [n, 2d]."""
        self._n += x.shape[0]
        self._log_likelihood += log_likelihood
        self._sizes += responsibilities.sum(axis=1)
        self._moments += responsibilities @ x
        self._heads = tuple(
            head.added(responsibilities, each)
            for head, each in zip(self._heads, losses, strict=True)
        )

    def sums(self) -> MixtureSums:
        d = self._start.centre.size
        return MixtureSums(
            self._n,
            self._log_likelihood,
            self._sizes,
            self._moments[:, :d].copy(),
            self._moments[:, d:].copy(),
            self._heads,
            self._start.centre,
            self._start.loss_weight,
        )


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
    """Return the logarithms of the sums of exp over the first axis, [n], and divide by them in place.

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
    if len(losses) != len(heads):
        raise ValueError(f"{len(losses)} losses, but {len(heads)} heads")
    checked = []
    for number, (head, each) in enumerate(zip(heads, losses, strict=True), 1):
        if np.shape(each) != (rows,):
            raise ValueError(f"loss {number} has the shape {np.shape(each)}, not ({rows},)")
        checked.append(head.checked(each, f"loss {number}", first_row))
    return checked
