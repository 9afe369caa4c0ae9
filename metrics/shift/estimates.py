"""The pool in strata, and the new confusion matrix from a sample of it: its intervals, and when the error is small enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import stats

from slicebeam.metrics.arrays import FloatArray, IntArray, ratio
from slicebeam.metrics.kinds import Method

# Sums of the same shares in different orders differ by less.
_ROUNDING = 1e-12
# What one item that was not seen could add to a cell, as the rule of three has it.
_UNSEEN = 3.0
# Prior weight, in answers, of a label's accuracy within each of its strata.
_LABEL_ANSWERS = 4
# Variances below this fraction of the unseen term are rounding noise.
_NO_VARIANCE = 1e-6
_FIRST_CHECK = 100


@dataclass(frozen=True)
class Strata:
    """A labelled pool of M items in S strata, for a confusion matrix of L labels by P predictions."""

    row: IntArray  # [S] label (row of the matrix)
    sizes: IntArray  # [S] M_s, items, at least 1
    shape: tuple[int, int]  # L, P
    right: IntArray  # [L] the prediction (column) that is right for each label; −1: none
    old: IntArray | None = None  # [S, P] old predictions of each class, if known item by item
    weights: FloatArray | None = None  # [L, P] W ≥ 0, the factor of each cell's error; None: 1

    @property
    def count(self) -> int:
        """S, the number of strata."""
        return int(self.sizes.size)

    @cached_property
    def share(self) -> FloatArray:
        """p_s, the share of each stratum."""
        return np.asarray(self.sizes / self.sizes.sum())

    @cached_property
    def label_share(self) -> FloatArray:
        """p_i, the share of each label."""
        return self.members @ self.share

    @cached_property
    def members(self) -> FloatArray:
        """Float64 [L, S]: 1 where a stratum belongs to a label."""
        return np.asarray((self.row == np.arange(self.shape[0])[:, None]).astype(np.float64))

    @cached_property
    def old_shares(self) -> FloatArray:
        """Ō_s, shares of the old predictions within each stratum."""
        if self.old is None:
            raise ValueError("the old predictions are not known for each item")
        return np.asarray(self.old / self.sizes[:, None])

    @cached_property
    def old_matrix(self) -> FloatArray:
        """C°, Pr(label = i, old prediction = j)."""
        return self.members @ (self.share[:, None] * self.old_shares)

    @cached_property
    def right_cells(self) -> FloatArray:
        """1 for the cells of right predictions."""
        return np.asarray((self.right[:, None] == np.arange(self.shape[1])).astype(np.float64))

    def accuracy(self, matrix: FloatArray) -> FloatArray:
        """Return the share of right predictions [...] in matrices [..., L, P]."""
        return np.asarray((matrix * self.right_cells).sum(axis=(-2, -1)))

    @cached_property
    def squared_weights(self) -> FloatArray:
        """W² of the cells that each stratum's answers fall into."""
        if self.weights is None:
            return np.ones((self.count, self.shape[1]))
        return np.square(self.weights)[self.row]

    @cached_property
    def pair_weight(self) -> FloatArray:
        """The two largest W² of each stratum's cells: what a changed answer adds at most [S]."""
        if self.weights is None:
            return np.full(self.count, 2.0)
        return np.asarray(np.sort(self.squared_weights, axis=1)[:, -2:].sum(axis=1))


@dataclass
class Sample:
    """The counts of the queried items, in R independent runs."""

    asked: IntArray  # [R, S] N_s, items that were asked
    new: IntArray  # [R, S, P] H, how often the new prediction was each class
    old: IntArray  # [R, S, P] O, how often the old prediction was; 0 where these are not known
    both: IntArray  # [R, S, P] how often both were
    squares: IntArray  # [R, S] ‖H‖²
    # [R, S] Σ weight of the new prediction's cell · that of the old one's; 0 without ``weights``
    products: FloatArray
    # of 2S strata: the halves (2s and 2s + 1) of each stratum, where answers decided how many were asked
    halves: Sample | None = None
    weights: FloatArray | None = None  # [S, P] of the cells that each stratum's answers fall into

    @classmethod
    def empty(
        cls, runs: int, strata: int, predictions: int, weights: FloatArray | None = None
    ) -> Sample:
        """Return the counts before any query."""
        asked, squares = (np.zeros((runs, strata), np.int64) for _ in range(2))
        new, old, both = (np.zeros((runs, strata, predictions), np.int64) for _ in range(3))
        products = np.zeros((runs, strata))
        return cls(asked, new, old, both, squares, products, weights=weights)

    def add(self, stratum: IntArray, new: IntArray, old: IntArray | None = None) -> None:
        """Count answers: strata, new and old predictions, int64 [R, calls]; a negative stratum is not a call."""
        runs, strata, predictions = self.new.shape
        made = stratum >= 0
        place = (np.arange(runs)[:, None] * strata + stratum)[made]
        answers = new[made]
        np.add.at(self.asked.reshape(-1), place, 1)
        np.add.at(self.new.reshape(-1), place * predictions + answers, 1)
        # A pool may have so many cells that only those of the calls can be looked at each time.
        counts = self.new.reshape(-1, predictions)[place]
        self.squares.reshape(-1)[place] = np.square(counts).sum(axis=1)
        if old is not None:
            before = old[made]
            same = before == answers
            np.add.at(self.old.reshape(-1), place * predictions + before, 1)
            np.add.at(self.both.reshape(-1), (place * predictions + answers)[same], 1)
            if self.weights is not None:
                row = stratum[made]
                product = self.weights[row, answers] * self.weights[row, before]
                np.add.at(self.products.reshape(-1), place, product)


class Counts(NamedTuple):
    """The counts of a `Sample`, as float64, as if so many items had been drawn uniformly."""

    asked: FloatArray
    new: FloatArray
    old: FloatArray
    both: FloatArray
    products: FloatArray


def differences(counts: Counts | Sample, factor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the sums [R, S, P] of 1[new = j] − λ·1[old = j], and of its square, for λ [R, 1, 1]."""
    counted = counts.new - factor * counts.old
    squares = counts.new - 2 * factor * counts.both + np.square(factor) * counts.old
    return counted, squares


def half_sizes(sizes: IntArray) -> IntArray:
    """Return the sizes of the halves 2s and 2s + 1 of each stratum."""
    return np.stack([(sizes + 1) // 2, sizes // 2], axis=1).reshape(-1)


def counts_of(strata: Strata, sample: Sample) -> Counts:
    """Return the inputs of the estimate; of halves that are random samples of their stratum."""
    # A stratum's means are α and 1 − α of the halves', as of n items drawn alike, 1/n = α²/N₁ + (1 − α)²/N₂.
    if sample.halves is None:
        return Counts(*(getattr(sample, name).astype(np.float64) for name in Counts._fields))
    halves = sample.halves
    runs = halves.asked.shape[0]
    asked = halves.asked.reshape(runs, -1, 2).astype(np.float64)
    part = half_sizes(strata.sizes).reshape(-1, 2) / strata.sizes[:, None]
    part = np.where(asked > 0, part, 0)
    part = ratio(part, part.sum(axis=2, keepdims=True), otherwise=0.0)
    inverse = ratio(np.square(part), asked, otherwise=0.0).sum(axis=2)
    alike = ratio(np.ones_like(inverse), inverse, otherwise=0.0)
    weights = (alike[:, :, None] * part / np.maximum(asked, 1))[..., None]

    def weighted(counts: IntArray | FloatArray) -> FloatArray:
        return np.asarray((counts.reshape(runs, strata.count, 2, -1) * weights).sum(axis=2))

    new, old, both = (weighted(cells) for cells in (halves.new, halves.old, halves.both))
    return Counts(alike, new, old, both, weighted(halves.products)[:, :, 0])


@dataclass(frozen=True)
class MatrixEstimate:
    """The new confusion matrix of R runs."""

    matrix: FloatArray  # [R, L, P] Ĉ, Pr(label = i, new prediction = j)
    variance: FloatArray  # [R, L, P] V, of each cell
    # [R, L] c_i = Σ_{s∈i} w_s/p_i, which widens intervals of cells: a sample variance may be 0 by chance
    unseen: FloatArray
    label_share: FloatArray  # [R, L] p_i, which no cell of the row exceeds
    accuracy: FloatArray  # [R]
    accuracy_variance: FloatArray  # [R]
    accuracy_unseen: FloatArray  # [R] √Σ_i c_i², which widens its interval where its variance is 0
    reliance: FloatArray  # [R] λ, the coefficient of the old predictions as a control, 0 to 1
    loss: FloatArray  # [R] T, the expected squared Frobenius error, of cells times their weights
    loss_error: FloatArray  # [R] standard error of T
    loss_unseen: FloatArray  # [R] e₁, what unseen changes could add to T
    loss_spread: FloatArray  # [R] 2ΣW⁴V², about the variance of the squared error

    def cells(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return the bounds of Ĉ, Ĉ_ij ± z·√(V_ij + 3c_i²) within 0..p_i: [R, L, P] each; assumes a normal estimate."""
        half = stats.norm.isf((1 - confidence) / 2) * self.cell_errors()
        most = self.label_share[:, :, None]
        return np.clip(self.matrix - half, 0, most), np.clip(self.matrix + half, 0, most)

    def cell_errors(self) -> FloatArray:
        """Return √(V_ij + 3c_i²), what half an interval is a multiple of: [R, L, P]."""
        return np.asarray(np.sqrt(self.variance + _UNSEEN * np.square(self.unseen)[:, :, None]))

    def accuracies(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper bounds of the accuracy, within 0..1: [R] each."""
        half = stats.norm.isf((1 - confidence) / 2) * self.accuracy_errors()
        return np.clip(self.accuracy - half, 0, 1), np.clip(self.accuracy + half, 0, 1)

    def accuracy_errors(self, *, widened: bool = False) -> FloatArray:
        """Return √V of the accuracy, √3·u where V is 0, u = accuracy_unseen; ``widened`` √(V + 3u²)."""
        unseen = _UNSEEN * np.square(self.accuracy_unseen)
        if widened:
            return np.sqrt(self.accuracy_variance + unseen)
        # Rounding leaves a little of a variance that is 0.
        varies = self.accuracy_variance > _NO_VARIANCE * unseen
        return np.asarray(np.sqrt(np.where(varies, self.accuracy_variance, unseen)))


def cell_p_values(shift: FloatArray, errors: FloatArray) -> FloatArray:
    """Return two-sided p-values that a cell did not change, 2·Φ̄(|ΔĈ|/√(V + 3c²)); 1 of no change."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.abs(shift) / errors
    return np.asarray(2 * stats.norm.sf(np.where(np.abs(shift) < _ROUNDING, 0.0, z)))


def reliance(strata: Strata, counts: Counts) -> FloatArray:
    """Return λ [R], the coefficient of the old predictions as a control; 0 where none are known, or vary in a stratum."""
    # The one of the least estimated loss: clip₀¹(Σ w κ̂ / Σ w τ̂²_old).
    if strata.old is None:
        return np.zeros(len(counts.asked))
    asked, old, cells = counts.asked, counts.old, strata.squared_weights
    weights, degrees = np.square(strata.share) / asked, np.maximum(asked - 1, 1)

    def summed(together: FloatArray, other: FloatArray) -> FloatArray:
        """Return the sum of the (co)variances with the old predictions."""
        products = (other * old * cells).sum(axis=2) / asked
        of_stratum = ((together * cells).sum(axis=2) - products) / degrees
        return np.asarray(np.where(asked > 1, weights * of_stratum, 0).sum(axis=1))

    above, below = summed(counts.both, counts.new), summed(old, old)
    return np.asarray(np.clip(ratio(above, below, otherwise=0.0), 0, 1))


@dataclass(frozen=True)
class Subpools:
    """G slices of the pool: their shares of it [G], of the labels in each [G, L], and old matrices [G, L, P]."""

    share: FloatArray
    labels: FloatArray
    old: FloatArray | None


def estimate(
    strata: Strata, sample: Sample, *, control: bool = True, slices: Subpools | None = None
) -> MatrixEstimate:
    """Return the new confusion matrix, its variances, and the inputs of the stopping rule: docs/how-to/shift.md.

    Without ``control`` λ = 0; estimated it biases Ĉ by O(1/N). Assumes within a stratum a simple random sample whose size does
    not depend on the answers. Of ``slices`` `sample` has N_s of the whole pool and, in place of runs, the counts of each
    slice's items. A label of which no item was asked is taken as unchanged; the widening by c covers it.
    """
    counts = counts_of(strata, sample)
    asked = counts.asked
    # What is subtracted of old predictions is added again as the slices' own.
    control = control and strata.old is not None and (slices is None or slices.old is not None)
    used = reliance(strata, counts) if control else np.zeros(asked.shape[0])
    factor = used[:, None, None]
    counted, squares = differences(counts, factor)
    if slices is None:
        # The pool is the slice that all runs are about.
        old = None if strata.old is None else strata.old_matrix[None]
        slices = Subpools(np.ones(1), strata.label_share[None], old)
    # Items of the slice in the sample, which of the whole pool are all.
    inside = counts.new.sum(axis=2)
    summed = np.einsum("ls,rsp->rlp", strata.members, counted * (strata.share / asked)[:, :, None])
    seen = ((inside * strata.share / asked) @ strata.members.T)[:, :, None]
    shares = ratio(summed, seen, otherwise=0.0)
    matrix = shares * slices.labels[:, :, None]
    if slices.old is not None:
        matrix += np.where(seen > 0, factor, 1.0) * slices.old
    weights = _stratum_weights(strata, asked)
    centre = shares[:, strata.row]
    members = inside[:, :, None]
    spread = _sample_variance(
        squares - 2 * centre * counted + np.square(centre) * members,
        (counted - centre * members) / asked[:, :, None],
        asked[:, :, None],
    )
    part = slices.share[:, None]
    # Labels absent from a slice add no uncertainty.
    unseen = (slices.labels > 0) * (weights @ strata.members.T / strata.label_share / part)
    weights = weights / np.square(part)
    variance = np.einsum("ls,rsp->rlp", strata.members, weights[:, :, None] * spread)
    total = (spread * strata.squared_weights).sum(axis=2)
    weighted = variance if strata.weights is None else variance * np.square(strata.weights)
    # At most one cell of a label is right.
    of_right = (spread * strata.right_cells[strata.row]).sum(axis=2)
    return MatrixEstimate(
        matrix=matrix,
        variance=variance,
        unseen=unseen,
        label_share=np.broadcast_to(slices.labels, unseen.shape),
        accuracy=strata.accuracy(matrix),
        accuracy_variance=(weights * of_right).sum(axis=1),
        accuracy_unseen=np.sqrt(np.square(unseen).sum(axis=1)),
        reliance=used,
        loss=(weights * total).sum(axis=1),
        loss_error=np.sqrt((strata.pair_weight * np.square(weights) * total / asked).sum(axis=1)),
        loss_unseen=(strata.pair_weight * strata.share * weights / asked).sum(axis=1),
        loss_spread=2 * np.square(weighted).sum(axis=(1, 2)),
    )


def summarise(method: Method, strata: Strata, sample: Sample) -> MatrixEstimate:
    """Return the estimate of a method; the error of MASA's accuracy covers its bias."""
    estimated = estimate(strata, sample, control=method == "plus")
    if method == "masa":
        variance = starved_variance(strata, sample, estimated.accuracy_unseen)
        estimated = replace(estimated, accuracy_variance=variance)
    return estimated


def starved_variance(
    strata: Strata, sample: Sample, unseen: FloatArray, cells: FloatArray | None = None
) -> FloatArray:
    """Return a mean squared error [R] of a sum of cells that covers the bias of strata MASA starves."""
    # Σ w_s·max(s²_s, p̃_s(1 − p̃_s)) + 3u² + b², p̃_s Laplace's share, b what four more answers like those of its label would
    # change in each stratum; ``cells`` [S, P] how much each counts, 0 to 1: else the right ones.
    cells = strata.right_cells[strata.row] if cells is None else cells
    # What never counts is known not to.
    judged = cells.any(axis=1)
    asked = sample.asked.astype(np.float64)
    hits = (sample.new * cells).sum(axis=2)
    left = np.maximum(1 - asked / strata.sizes, 0)
    weights = np.where(judged, np.square(strata.share) / asked * left, 0)
    middle = (hits + 1) / (asked + 2)
    squares = (sample.new * np.square(cells)).sum(axis=2)
    observed = _sample_variance(squares, hits / asked, asked)
    spread = (weights * np.maximum(observed, middle * (1 - middle))).sum(axis=1)
    of_label = (hits @ strata.members.T + 0.5) / (asked @ strata.members.T + 1)
    drawn = hits + _LABEL_ANSWERS * of_label[:, strata.row]
    drawn = drawn / (asked + _LABEL_ANSWERS) - hits / asked
    bias = (np.where(judged, strata.share * left, 0) * drawn).sum(axis=1)
    return np.asarray(spread + _UNSEEN * np.square(unseen) + np.square(bias))


def stratum_variances(strata: Strata, sample: Sample, factor: FloatArray) -> FloatArray:
    """Return σ̂² [R, S] of what the estimate sums, NaN of fewer than two answers; MASA's score for λ = 0."""
    counts = counts_of(strata, sample)
    counted, squares = differences(counts, factor[:, None, None])
    asked = np.maximum(counts.asked, 1)[:, :, None]
    variances = _sample_variance(squares, counted / asked, asked) * strata.squared_weights
    return np.where(counts.asked > 1, variances.sum(axis=2), np.nan)


def weighted_sum_errors(
    strata: Strata, sample: Sample, weights: FloatArray, *, control: bool, starved: bool
) -> FloatArray:
    """Return the standard errors [R] of Σ W_ij·C_ij, W of [L, P], of ``Sample.empty(…, weights)``."""
    # √(V + 3u²), V of W[new] − λ·W[old], as cells of a label are correlated, u² = Σ_i (max_j W_ij·c_i)²; of ``masa``
    # (``starved``) the root of `starved_variance`.
    counts = counts_of(strata, sample)
    asked = counts.asked
    used = reliance(strata, counts) if control else np.zeros(len(asked))
    cells, factor = weights[strata.row], used[:, None]
    (new, new_squares), (old, old_squares) = (
        ((counted * cells).sum(axis=2), (counted * np.square(cells)).sum(axis=2))
        for counted in (counts.new, counts.old)
    )
    squares = new_squares - 2 * factor * counts.products + np.square(factor) * old_squares
    spread = _sample_variance(squares, (new - factor * old) / asked, asked)
    of_stratum = _stratum_weights(strata, asked)
    of_label = of_stratum @ strata.members.T / strata.label_share
    unseen = np.sqrt(np.square(weights.max(axis=1) * of_label).sum(axis=1))
    if starved:
        largest = float(weights.max())
        scaled = starved_variance(strata, sample, unseen / largest, cells / largest)
        return largest * np.sqrt(scaled)
    return np.asarray(np.sqrt((of_stratum * spread).sum(axis=1) + _UNSEEN * np.square(unseen)))


def _stratum_weights(strata: Strata, asked: FloatArray) -> FloatArray:
    """Return w_s [R, S]."""
    left = 1 - asked / strata.sizes
    # All of a stratum's items in two halves sum to its size except for rounding.
    return np.asarray(np.square(strata.share) / asked * np.where(left > _ROUNDING, left, 0))


def _sample_variance(squares: FloatArray, mean: FloatArray, asked: FloatArray) -> FloatArray:
    """Return sample variances from sums of squares, means and numbers; 0 of a single value."""
    variance: FloatArray = (squares - asked * np.square(mean)) / np.maximum(asked - 1, 1)
    return np.asarray(np.maximum(np.where(asked > 1, variance, 0), 0))


def first_check(strata: int) -> int:
    """Return the number of calls from which the rule applies: max(100, 2S)."""
    return max(_FIRST_CHECK, 2 * strata)


def error_bound(estimated: MatrixEstimate, confidence: float = 0.95) -> FloatArray:
    """Return an upper bound [R] of the Frobenius error of W ⊙ Ĉ with the given confidence."""
    # √((T + z·SE(T) + z²·e₁)·χ²_{h,q}/h), h = max(½, T²/(2ΣW⁴V²)) (Satterthwaite).
    z = stats.norm.ppf(confidence)
    scale = estimated.loss + z * estimated.loss_error + z**2 * estimated.loss_unseen
    degrees = ratio(np.square(estimated.loss), estimated.loss_spread, otherwise=0.0)
    degrees = np.maximum(0.5, degrees)
    return np.asarray(np.sqrt(scale * stats.chi2.ppf(confidence, degrees) / degrees))
