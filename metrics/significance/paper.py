"""AutoSlicer's own test: t over Poisson-bootstrap replicates. Faithful, but not calibrated.

It is a Wald test in the limit: for small slices its false-positive rate is many times the nominal
one. Source: Liu, Rosen and Paul Suganthan (2022), "AutoSlicer: Scalable automated data slicing for
ML model analysis", section 3. Assumption: delta / sd(replicate deltas) is t-distributed on B − 1
degrees of freedom when there is no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri, pdtr, stdtr

from slicebeam.metrics.randomness import hash64, splitmix64, uniform
from slicebeam.metrics.significance import outcome_codes
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.kinds import Tail
    from slicebeam.metrics.randomness import UInt64Array

UNDEFINED_SHARE = 0.05
# Replicates that differ by less, relative to the observed delta, are equal except for rounding.
_EQUAL = 1e-9
# Means up to here read their distribution function from one table.
_TABLE_MEANS = 64
_TABLE_WIDTH = 192
# Beyond these normal quantiles the expansion's error is not bounded by `_expansion_error`.
_CENTRAL = 3.0
_DRAWS_AT_ONCE = 500_000


class PaperTest(NamedTuple):
    """The test of many slices, all arrays [slices].

    Attributes
    ----------
    p : float64, 1.0 where there was nothing to test, never NaN
    reasons : int8, position in `outcome_codes.REASONS`, 0 where the test was done
    standard_error : float64, standard deviation of the replicates; NaN where they are undefined
    """

    p: FloatArray
    reasons: NDArray[np.int8]
    standard_error: FloatArray


def t_p_value(delta: ArrayLike, replicate_deltas: ArrayLike, tail: Tail) -> PaperTest:
    """Return the paper's p-value: t = delta / sd(replicate deltas) on B − 1 degrees of freedom.

    The standard deviation over bootstrap replicates already is the standard error of the delta, so
    that it is not divided by √B again.

    Parameters
    ----------
    delta : float array [slices]
        Observed deltas; NaN where undefined.
    replicate_deltas : float array [slices, B]
        NaN where a replicate has no value; these are dropped slice by slice.
    tail : {"upper", "lower", "both"}
        ``upper``: large deltas are extreme.

    Returns
    -------
    PaperTest
        p = 1 with the reason `outcome_codes.UNDEFINED_REPLICATES` where the delta, more than 5 % of the
        replicates, or all but one are undefined, and `outcome_codes.NO_VARIANCE` where they are all equal
        except for rounding.
    """
    observed = np.asarray(delta, dtype=np.float64)
    replicates = np.asarray(replicate_deltas, dtype=np.float64)
    defined = ~np.isnan(replicates)
    count = defined.sum(axis=1)
    too_few = (replicates.shape[1] - count > UNDEFINED_SHARE * replicates.shape[1]) | (count < 2)
    divisor = np.maximum(count, 1)
    mean = np.where(defined, replicates, 0.0).sum(axis=1) / divisor
    deviations = np.where(defined, replicates - mean[:, None], 0.0)
    sd = np.sqrt(np.square(deviations).sum(axis=1) / np.maximum(count - 1, 1))
    # Rounding can leave equal replicates a tiny deviation: they are compared instead.
    highest = np.where(defined, replicates, -np.inf).max(axis=1, initial=-np.inf)
    lowest = np.where(defined, replicates, np.inf).min(axis=1, initial=np.inf)
    undefined = too_few | np.isnan(observed)
    constant = (highest - lowest <= _EQUAL * np.abs(observed)) | (sd == 0.0)
    reasons = np.where(
        undefined,
        outcome_codes.UNDEFINED_REPLICATES,
        np.where(constant, outcome_codes.NO_VARIANCE, 0),
    ).astype(np.int8)
    tested = reasons == 0
    t = np.where(tested, observed, 0.0) / np.where(tested, sd, 1.0)
    freedom = np.maximum(count - 1, 1).astype(np.float64)
    p = select_tail(stdtr(freedom, -t), stdtr(freedom, t), tail)
    error = np.where(undefined, np.nan, np.where(constant, 0.0, sd))
    return PaperTest(np.where(tested, p, 1.0), reasons, error)


def poisson_cell_counts(counts: ArrayLike, replicates: int, seed: int) -> IntArray:
    """Return bootstrap replicates of the counts of disjoint atoms: independent Poisson(count).

    Weighting every example by an independent Poisson(1) and summing within disjoint atoms has
    exactly this law, since a sum of Poisson variables is Poisson.

    Parameters
    ----------
    counts : int array [slices, atoms]
        Whole numbers ≥ 0.

    Returns
    -------
    int64 array [slices, replicates, atoms]
        A draw is a function of (seed, the slice's row of counts, replicate, atom) alone, so that it
        does not depend on the other slices; slices with equal rows get equal draws.

    Notes
    -----
    The Poisson quantile of a hash. Means above 64 start from the normal expansion of the quantile,
    Giles (2016), ACM Trans. Math. Softw. 42:8, and only draws within its error of a whole number
    are settled by the distribution function.
    """
    rows = np.asarray(counts, dtype=np.int64)
    if rows.size and rows.min() < 0:
        raise ValueError(f"a count of {rows.min()} is negative")
    slices, atoms = rows.shape
    distinct, place = np.unique(rows, axis=0, return_inverse=True)
    drawn = np.empty((len(distinct), replicates, atoms), dtype=np.int64)
    at_once = max(1, _DRAWS_AT_ONCE // max(1, replicates * atoms))
    for start in range(0, len(distinct), at_once):
        part = distinct[start : start + at_once]
        words = _words(part, replicates, seed)
        means = np.broadcast_to(part[:, None, :], words.shape)
        drawn[start : start + at_once] = _poisson_quantile(
            uniform(words).ravel(), means.ravel()
        ).reshape(words.shape)
    return drawn[place.reshape(slices)]


def _words(rows: IntArray, replicates: int, seed: int) -> UInt64Array:
    """Return the hashes [slices, replicates, atoms] that the draws are made of."""
    row_key = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T.view(np.uint64):
        row_key = splitmix64(row_key ^ column)
    # Mixed in turn: the replicate into the row's key, then the atom into that.
    stream = hash64(seed, np.arange(replicates)[None, :], row_key[:, None])
    atom = np.arange(rows.shape[1], dtype=np.uint64)
    return splitmix64(stream[:, :, None] ^ splitmix64(atom))


def _poisson_quantile(u: FloatArray, mean: IntArray) -> IntArray:
    """Return the smallest k with P(W ≤ k) ≥ u of W ~ Poisson(mean), 0 at mean 0."""
    quantile = np.empty(u.shape, dtype=np.int64)
    small = mean <= _TABLE_MEANS
    quantile[small] = _from_table(u[small], mean[small])
    quantile[~small] = _from_expansion(u[~small], mean[~small].astype(np.float64))
    return quantile


_TABLE = pdtr(np.arange(_TABLE_WIDTH), np.arange(_TABLE_MEANS + 1.0)[:, None])


def _from_table(u: FloatArray, mean: IntArray) -> IntArray:
    """Search the table's rows: at most eight halvings of its width."""
    low = np.zeros(u.shape, dtype=np.int64)
    high = np.full(u.shape, _TABLE_WIDTH - 1)
    for _ in range(int(_TABLE_WIDTH).bit_length()):
        middle = (low + high) // 2
        reached = _TABLE[mean, middle] >= u
        high = np.where(reached, middle, high)
        low = np.where(reached, low, middle + 1)
    return high


def _from_expansion(u: FloatArray, mean: FloatArray) -> IntArray:
    w = ndtri(u)
    square = w * w
    root = np.sqrt(mean)
    # Giles (2016), eq. 3: the quantile as a continuous function, whose floor is the quantile.
    value = (
        mean
        + root * w
        + (1.0 / 3.0 + square / 6.0)
        + w * (-1.0 / 36.0 - square / 72.0) / root
        + (-8.0 / 405.0 + square * (7.0 / 810.0 + square / 270.0)) / mean
    )
    quantile = np.maximum(np.floor(value), 0.0)
    error = (1.0 / 40.0 + square * (1.0 / 80.0 + square / 160.0)) / mean
    doubtful = (np.abs(value - np.rint(value)) <= error) | (np.abs(w) > _CENTRAL)
    rows = np.flatnonzero(doubtful)
    k, target, means = quantile[rows], u[rows], mean[rows]
    while (rises := pdtr(k, means) < target).any():
        k += rises
    while (falls := (k > 0) & (pdtr(np.maximum(k - 1.0, 0.0), means) >= target)).any():
        k -= falls
    quantile[rows] = k
    return quantile.astype(np.int64)
