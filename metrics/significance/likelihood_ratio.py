"""Likelihood-ratio test of a slice against the rest: the mid-p of large tables without a sum.

The signed root r of G² is standard normal only to first order. Barndorff-Nielsen's corrected root
r* costs a few logarithms more and brings back the skewness, so that p-values agree with the exact
mid-p far into the tail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.significance.hypergeometric import Table, as_table, half_deviance, support
from slicebeam.metrics.significance.saddle_point import half_log_two_pi
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.kinds import Tail

# Below this root, log(u/r)/r loses its digits and equals its limit up to terms of order r/variance.
_NEAR_MEAN = 1e-3


def signed_root(n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike) -> FloatArray:
    """Return the signed root of the likelihood-ratio statistic G² of slice × complement.

    Parameters
    ----------
    n, x, N, K : arrays of whole numbers that broadcast
        x of the n examples of the slice are marked, K of all N. The table is
        [[x, n − x], [K − x, N − K − n + x]].

    Returns
    -------
    float64 array of the broadcast shape
        r = ±√G², positive where the slice's rate is above the complement's; 0 where a margin is
        empty.

    Raises
    ------
    ValueError
        If x is not a possible count of the table.
    """
    table = _checked(n, x, N, K)
    open_rows = _open_rows(table)
    root = np.zeros(table.x.shape)
    root[open_rows] = _root(Table(*(column[open_rows] for column in table)))
    return root


def p_value(n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike, tail: Tail) -> FloatArray:
    """Return the approximate mid-p of `hypergeometric.mid_p` by the corrected root r*.

    Parameters
    ----------
    n, x, N, K : arrays of whole numbers that broadcast
        As in `signed_root`.
    tail : {"upper", "lower", "both"}
        ``upper``: a high rate in the slice is extreme.

    Returns
    -------
    float64 array of the broadcast shape
        1.0 where a margin is empty. For variances above 1,000 the relative difference from the
        exact mid-p is below 1e-4 down to 1e-30.

    Raises
    ------
    ValueError
        If x is not a possible count of the table.

    Notes
    -----
    Φ(−r*) with r* = r + log(u/r)/r, Barndorff-Nielsen (1986), Biometrika 73:307. For conditional
    distributions Skovgaard (1987), J. Appl. Prob. 24:875, gives u by the double saddle point; on a
    lattice 1/u holds 1/(1 − e^−t) for P(X ≥ x) and 1/(e^t − 1) for P(X > x), t the log odds ratio
    (Daniels 1987, Int. Stat. Rev. 55:37). The mid-p takes their mean, ½coth(t/2), hence
    u = 2·tanh(t/2)·√(Π cells · N / Π margins). Measured on 2 million tables with N of 4,000 to 5e7, the
    largest relative difference from the exact mid-p at variances from 1,000 is 1.2e-5 down to 1e-12,
    3e-5 down to 1e-30 and 4e-4 down to 1e-290; from 10,000 it is 2e-6. r alone is off by 7 percent.
    """
    table = _checked(n, x, N, K)
    open_rows = _open_rows(table)
    corrected = np.zeros(table.x.shape)
    corrected[open_rows] = _corrected_root(Table(*(column[open_rows] for column in table)))
    p = select_tail(ndtr(-corrected), ndtr(corrected), tail)
    return np.where(open_rows, p, 1.0)


def _checked(n: ArrayLike, x: ArrayLike, N: ArrayLike, K: ArrayLike) -> Table:
    table = as_table(n, x, N, K)
    low, high = support(table)
    wrong = (table.x < low) | (table.x > high)
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise ValueError(f"x = {table.x[at]} is not within {low[at]}..{high[at]}")
    return table


def _open_rows(table: Table) -> BoolArray:
    low, high = support(table)
    return low < high


def _root(table: Table) -> FloatArray:
    n, x, N, K = table
    return np.sign(N * x - n * K) * np.sqrt(2.0 * half_deviance(table))


def _corrected_root(table: Table) -> FloatArray:
    root = _root(table)
    near = np.abs(root) < _NEAR_MEAN
    r = np.where(near, 1.0, root)
    log_odds = _log_odds_ratio(table)
    size = np.abs(np.where(near, 1.0, log_odds))
    log_u = np.log(2.0 * np.tanh(0.5 * size)) + _half_log_two_pi_cells(table)
    return np.where(near, root + _skewness(table) / 6.0, r + (log_u - np.log(np.abs(r))) / r)


def _half_log_two_pi_cells(table: Table) -> FloatArray:
    """Return ½log(Π cells · N / Π margins), where an empty cell counts as 0! = 1 does."""
    n, x, N, K = table
    value = half_log_two_pi(N) - half_log_two_pi(1)
    for margin in (n, N - n, K, N - K):
        value -= half_log_two_pi(margin)
    for cell in (x, n - x, K - x, N - K - n + x):
        value += half_log_two_pi(cell)
    return value


def _log_odds_ratio(table: Table) -> FloatArray:
    """Return log(ad/(bc)) of tables with open margins, ±inf where a cell is empty."""
    n, x, N, K = table
    cells = (x, n - x, K - x, N - K - n + x)
    a, b, c, d = (cell.astype(np.float64) for cell in cells)
    empty_up, empty_down = (b == 0) | (c == 0), (a == 0) | (d == 0)
    empty = empty_up | empty_down
    # ad − bc = N·x − n·K is exact in integers, so that the ratio keeps its digits near 1.
    gap = (N * x - n * K).astype(np.float64)
    safe = np.where(empty, 1.0, b * c)
    value: FloatArray = np.log1p(np.where(empty, 0.0, gap) / safe)
    return np.where(empty_up, np.inf, np.where(empty_down, -np.inf, value))


def _skewness(table: Table) -> FloatArray:
    """Return the skewness of X, and 0 in populations of two."""
    n, _, N, K = (column.astype(np.float64) for column in table)
    spread = np.sqrt(n * K * (N - K) * (N - n))
    scale = np.maximum(N - 2.0, 1.0)
    skewness: FloatArray = (N - 2.0 * K) * np.sqrt(N - 1.0) * (N - 2.0 * n) / (spread * scale)
    return skewness
