"""Exact paired test: of the examples on which two models disagree, which model is right more often.

Assumption: under the null each discordant example falls on either side with probability ½,
independently of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainc

from slicebeam.metrics.significance.saddle_point import binomial_log_pmf
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail


def mid_p(b: ArrayLike, c: ArrayLike, tail: Tail) -> FloatArray:
    """Return McNemar's mid-p of discordant counts, B ~ Binomial(b + c, ½).

    Parameters
    ----------
    b, c : arrays of whole numbers ≥ 0 that broadcast
        Discordant examples of either kind.
    tail : {"upper", "lower", "both"}
        ``upper``: many b are extreme, P(B > b) + ½P(B = b).

    Returns
    -------
    float64 array of the broadcast shape
        1.0 where b + c = 0. Precise in the small tail, down to 1e-300.

    Notes
    -----
    The exact conditional test of McNemar (1947), Psychometrika 12:153; its mid-p is recommended
    by Fagerland, Lydersen and Laake (2013), BMC Med. Res. Methodol. 13:91. P(B > b) is the
    incomplete beta integral I_½(b + 1, c).
    """
    new, old = np.broadcast_arrays(np.asarray(b, dtype=np.int64), np.asarray(c, dtype=np.int64))
    for name, counts in (("b", new), ("c", old)):
        if counts.size and counts.min() < 0:
            raise ValueError(f"{name} = {counts.min()} is negative: counts are ≥ 0")
    half_point = 0.5 * np.exp(binomial_log_pmf(new, new + old, 0.5))
    upper = _above(new, old) + half_point
    lower = _above(old, new) + half_point
    return np.where(new + old == 0, 1.0, select_tail(upper, lower, tail))


def _above(b: ArrayLike, c: ArrayLike) -> FloatArray:
    """Return P(B > b) of B ~ Binomial(b + c, ½)."""
    more, rest = np.asarray(b, dtype=np.float64), np.asarray(c, dtype=np.float64)
    beta = betainc(more + 1.0, np.maximum(rest, 1.0), 0.5)
    return np.where(rest > 0, beta, 0.0).astype(np.float64)
