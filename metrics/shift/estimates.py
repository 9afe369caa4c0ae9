"""The new confusion matrix from a sample, how it shifted, and how sure one can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from slicebeam.metrics.shift.strata import FloatArray, Sample, Strata

# What one item that was not seen could add to a cell, as the rule of three has it.
_UNSEEN = 3.0


@dataclass(frozen=True)
class Estimate:
    """The new confusion matrix of R runs.

    Attributes
    ----------
    matrix : float64 [R, L, P]
        Ĉ, Pr(label = i, new prediction = j).
    variance : float64 [R, L, P]
        V, of each cell.
    unseen : float64 [R, L]
        c_i = Σ_{s∈i} w_s/p_i, by which a cell's interval is widened: its sample variance may be 0 by
        chance.
    label_share : float64 [L]
        p_i, which no cell of the row exceeds.
    accuracy, accuracy_variance : float64 [R]
    reliance : float64 [R]
        λ, how much the old predictions told: 0 nothing, 1 all.
    loss : float64 [R]
        T, the expected squared Frobenius error.
    loss_error : float64 [R]
        Standard error of T.
    loss_unseen : float64 [R]
        e₁, what unseen changes could add to T.
    """

    matrix: FloatArray
    variance: FloatArray
    unseen: FloatArray
    label_share: FloatArray
    accuracy: FloatArray
    accuracy_variance: FloatArray
    reliance: FloatArray
    loss: FloatArray
    loss_error: FloatArray
    loss_unseen: FloatArray

    def cells(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper bounds of Ĉ: float64 [R, L, P] each.

        Ĉ_ij ± z·√(V_ij + 3c_i²), within 0..p_i. Assumes that the estimate is about normal; the
        widening covers cells of which few or no examples were seen.
        """
        half = stats.norm.isf((1 - confidence) / 2) * self.cell_errors()
        most = self.label_share[:, None]
        low = np.clip(self.matrix - half, 0, most)
        high = np.clip(self.matrix + half, 0, most)
        return low, high

    def cell_errors(self) -> FloatArray:
        """Return √(V_ij + 3c_i²), what half an interval is a multiple of: float64 [R, L, P]."""
        errors: FloatArray = np.sqrt(self.variance + _UNSEEN * np.square(self.unseen)[:, :, None])
        return errors

    def accuracies(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper bounds of the accuracy, within 0..1: float64 [R] each."""
        half = stats.norm.isf((1 - confidence) / 2) * np.sqrt(self.accuracy_variance)
        return np.clip(self.accuracy - half, 0, 1), np.clip(self.accuracy + half, 0, 1)


def cell_p_values(shift: FloatArray, errors: FloatArray) -> FloatArray:
    """Return two-sided p-values that a cell did not change, as its interval has it.

    Parameters
    ----------
    shift : float64, any shape
        ΔĈ.
    errors : float64, the same shape
        Of `Estimate.cell_errors`.

    Returns
    -------
    float64 of that shape
        2·Φ̄(|ΔĈ|/√(V + 3c²)); 1 where both are 0, as where every item was asked and none changed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.abs(shift) / errors
    p: FloatArray = 2 * stats.norm.sf(np.where(shift == 0, 0.0, z))
    return p


def reliance(strata: Strata, sample: Sample) -> FloatArray:
    """Return λ, by which the old predictions are used as a control variate: float64 [R].

    clip₀¹(Σ w κ̂ / Σ w τ̂²_old) with w_s = p_s²/N_s, κ̂_s = (n_agree − H·O/N)/(N − 1) and
    τ̂²_old,s = (N − ‖O‖²/N)/(N − 1), which minimises the estimated loss. 0 where the old predictions
    are not known, or do not vary within any stratum.
    """
    if strata.old is None:
        return np.zeros(sample.asked.shape[0])
    asked, weights = _asked(strata, sample)
    old = sample.old.astype(np.float64)
    degrees = np.maximum(asked - 1, 1)
    covariance = (sample.both.sum(axis=2) - (sample.new * old).sum(axis=2) / asked) / degrees
    variance = (asked - np.square(old).sum(axis=2) / asked) / degrees
    told = np.where(asked > 1, weights * covariance, 0).sum(axis=1)
    spread = np.where(asked > 1, weights * variance, 0).sum(axis=1)
    ratio = np.divide(told, spread, out=np.zeros_like(told), where=spread > 0)
    clipped: FloatArray = np.clip(ratio, 0, 1)
    return clipped


def _asked(strata: Strata, sample: Sample) -> tuple[FloatArray, FloatArray]:
    """Return N_s and p_s²/N_s: float64 [R, S] each.

    Raises
    ------
    ValueError
        A stratum was not asked at all.
    """
    if (sample.asked == 0).any():
        raise ValueError(
            "a stratum was not asked at all; ask at least smallest_budget(strata) items"
        )
    asked = sample.asked.astype(np.float64)
    return asked, np.square(strata.share) / asked


def estimate(
    strata: Strata,
    sample: Sample,
    *,
    control: bool = True,
    replacement: bool = False,
) -> Estimate:
    """Return the new confusion matrix, its variances, and what the stopping rule needs.

    Ĉ_ij = Σ_{s∈i} p_s [H_sj/N_s − λ(O_sj/N_s − Ō_sj)].

    V_ij = Σ_{s∈i} w_s·(sample variance of 1[new = j] − λ·1[old = j]) with
    w_s = p_s²(1 − N_s/M_s)/N_s; T = Σ_s w_s τ̂²_s, where τ̂²_s is the sum of these sample variances
    over j; SE(T) = √(Σ 2w_s²τ̂²_s/N_s); e₁ = Σ 2p_s w_s/N_s, what a
    single change that was seen adds to T, on average over the pool.

    Parameters
    ----------
    strata, sample : the pool, and what was counted of it
    control : bool
        Whether the old predictions are used, where they are known; else λ = 0.
    replacement : bool
        Whether items were drawn with replacement, so that there is no finite population correction.

    Notes
    -----
    Assumes that within a stratum the items are a simple random sample whose size does not depend on
    the answers (so not of MASA, whose estimate is biased where a stratum without an error is
    starved). λ is estimated from the sample, which biases Ĉ by O(1/N).

    Raises
    ------
    ValueError
        A stratum was not asked at all.
    """
    asked, weights = _asked(strata, sample)
    used = reliance(strata, sample) if control else np.zeros(asked.shape[0])
    factor = used[:, None, None]
    counted = sample.new - factor * sample.old
    mean = counted / asked[:, :, None]
    centre = mean
    if control and strata.old is not None:
        centre = mean + factor * strata.old_shares
    matrix = np.einsum("ls,rsp->rlp", strata.members * strata.share, centre)
    if not replacement:
        weights = weights * (1 - asked / strata.sizes)
    squares = sample.new - 2 * factor * sample.both + np.square(factor) * sample.old
    spread = _sample_variance(squares, mean, asked[:, :, None])
    variance = np.einsum("ls,rsp->rlp", strata.members, weights[:, :, None] * spread)
    total = spread.sum(axis=2)
    rows = weights @ strata.members.T
    unseen = rows / strata.label_share
    right = _right(strata)
    accuracy = (centre * right).sum(axis=2) @ strata.share
    of_right = _sample_variance((squares * right).sum(axis=2), (mean * right).sum(axis=2), asked)
    return Estimate(
        matrix,
        variance,
        unseen,
        strata.label_share,
        accuracy,
        (weights * of_right).sum(axis=1),
        used,
        (weights * total).sum(axis=1),
        np.sqrt((2 * np.square(weights) * total / asked).sum(axis=1)),
        (2 * strata.share * weights / asked).sum(axis=1),
    )


def _right(strata: Strata) -> FloatArray:
    """Return 1 where a prediction is right in a stratum: float64 [S, P]."""
    labels, predictions = strata.shape
    if labels == 1:
        # The cells of a whole matrix, several of which are right.
        right = np.zeros(predictions)
        right[strata.right[strata.right >= 0]] = 1
        return np.broadcast_to(right, (strata.count, predictions))
    of_label = strata.right[strata.row][:, None]
    is_right: FloatArray = (of_label == np.arange(predictions)).astype(np.float64)
    return is_right


def _sample_variance(squares: FloatArray, mean: FloatArray, asked: FloatArray) -> FloatArray:
    """Return sample variances from sums of squares, means and numbers; 0 of a single value."""
    variance: FloatArray = (squares - asked * np.square(mean)) / np.maximum(asked - 1, 1)
    known: FloatArray = np.maximum(np.where(asked > 1, variance, 0), 0)
    return known
