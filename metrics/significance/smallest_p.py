"""The smallest mid-p that the margins of a slice allow.

A slice of few examples, or with few errors to distribute, has a smallest p-value above 0, which its
margins fix before the errors are seen. Corrections that count only the slices which could have been
called need it: Tarone (1990), Biometrics 46:515.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.significance import hypergeometric
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail

# From here on ½·2^−d is 0 as a float, and the exponent fits the integers of ldexp.
_UNDERFLOW = 1100


def hypergeometric_smallest_p(n: ArrayLike, N: ArrayLike, K: ArrayLike, tail: Tail) -> FloatArray:
    """Return the smallest value of `hypergeometric.mid_p` over all x that the margins allow.

    Parameters
    ----------
    n : array of whole numbers
        Slice sizes.
    N, K : whole numbers or arrays
        All examples and the marked ones; broadcast with `n`.
    tail : {"upper", "lower", "both"}
        ``upper``: at the largest x, min(n, K); ``lower``: at the smallest, max(0, n + K − N);
        ``both``: the smaller of the two, doubled as the mid-p is.

    Returns
    -------
    float64 array of the broadcast shape
        1.0 where an empty margin leaves nothing to test (n or K is 0 or N). Relative error below
        1e-9, down to 1e-300; 0 where it underflows.

    Raises
    ------
    ValueError
        If n or K is not within 0..N, if N is too large for exact products, or if the tail is
        unknown.

    Notes
    -----
    The mid-p falls towards the end of its tail, where nothing is left but half the probability of
    the last x: ½P(X = x), X ~ Hypergeom(N, K, n). One-sided, the smallest *exact* p-value
    P(X ≥ x) is twice that.
    """
    table = hypergeometric.as_table(n, 0, N, K)
    low, high = hypergeometric.support(table)
    upper = 0.5 * hypergeometric.pmf(high, table.N, table.K, table.n)
    lower = 0.5 * hypergeometric.pmf(low, table.N, table.K, table.n)
    return np.where(low == high, 1.0, select_tail(upper, lower, tail))


def mcnemar_smallest_p(discordant: ArrayLike, tail: Tail) -> FloatArray:
    """Return the smallest value of `mcnemar.mid_p` with this many discordant examples.

    Parameters
    ----------
    discordant : array of whole numbers ≥ 0
        Examples on which the two models disagree, b + c.
    tail : {"upper", "lower", "both"}

    Returns
    -------
    float64 array of the same shape
        All on one side, B ~ Binomial(d, ½): ½·2^−d, or 2^−d of both tails; exact. 1.0 where no
        example is discordant, 0 where it underflows.

    Raises
    ------
    ValueError
        If a count is negative or the tail is unknown.
    """
    count = np.asarray(discordant, dtype=np.int64)
    if count.size and count.min() < 0:
        raise ValueError(f"discordant = {count.min()} is negative: counts are ≥ 0")
    exponent = -np.minimum(count, _UNDERFLOW).astype(np.int32)
    end = np.asarray(np.ldexp(0.5, exponent), dtype=np.float64)
    return np.where(count == 0, 1.0, select_tail(end, end, tail))
