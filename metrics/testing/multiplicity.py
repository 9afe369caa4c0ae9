"""Corrections for testing many slices: adjusted p-values (q-values) that compare with α.

The number of tests is never the number of visited slices, because these were chosen by their
parents' p-values: it is the number of slices that could have been tested, which depends on the
features only. Slices that nobody visited count as p = 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import digamma

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.kinds import Correction

# A p-value and its smallest possible value are sums in different order: both err below this.
_TIE = 1e-9


def bh_adjusted(p: ArrayLike, m: int) -> FloatArray:
    """Return Benjamini and Hochberg's adjusted p-values among m tests.

    Parameters
    ----------
    p : float array [tests], any order
    m : int
        All tests, at least ``len(p)``; those not given count as p = 1.

    Returns
    -------
    float64 array [tests]
        min over j ≥ rank of p_(j)·m/j, at most 1. Rejecting where it is ≤ α controls the false
        discovery rate at α for independent or positively dependent tests. Source: Benjamini and
        Hochberg (1995), J. R. Stat. Soc. B 57:289.

    Raises
    ------
    ValueError
        If m is less than the number of p-values.

    Examples
    --------
    Of 100 tests only three had a small p-value. With q ≤ 0.05 two of them count as findings; of such
    findings, 5 % at most are expected to be false.

    >>> bh_adjusted([0.0001, 0.03, 0.0008], m=100).round(3)
    array([0.01, 1.  , 0.04])
    """
    return _step_up(np.asarray(p, dtype=np.float64), m, 1.0)


def holm_adjusted(p: ArrayLike) -> FloatArray:
    """Return Holm's adjusted p-values, under any dependence of the tests.

    Parameters
    ----------
    p : float array [tests], any order; all tests of the family

    Returns
    -------
    float64 array [tests]
        max over ranks i ≤ rank of p_(i)·(m − i + 1), at most 1, m the number of tests. Rejecting
        where it is ≤ α controls the family-wise error rate at α. Source: Holm (1979), Scand. J.
        Stat. 6:65.
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(values.size, 0, -1)
    adjusted = np.empty(values.size)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def by_adjusted(p: ArrayLike, m: int) -> FloatArray:
    """Return Benjamini and Yekutieli's adjusted p-values among m tests, under any dependence.

    Parameters
    ----------
    p : float array [tests], any order
    m : int
        All tests, at least ``len(p)``; those not given count as p = 1.

    Returns
    -------
    float64 array [tests]
        As `bh_adjusted`, times Σ_{i ≤ m} 1/i. Source: Benjamini and Yekutieli (2001), Ann. Stat.
        29:1165, theorem 1.3.

    Raises
    ------
    ValueError
        If m is less than the number of p-values.
    """
    harmonic = float(digamma(m + 1.0)) + float(np.euler_gamma)
    return _step_up(np.asarray(p, dtype=np.float64), m, harmonic)


def _step_up(p: FloatArray, m: int, factor: float) -> FloatArray:
    if m < p.size:
        raise ValueError(f"m = {m} tests are fewer than the {p.size} p-values given")
    order = np.argsort(p, kind="stable")
    scaled = p[order] * (factor * m / np.arange(1, p.size + 1))
    # The tests not given have p = 1 and adjusted values ≥ 1, so they never lower the others.
    lowest = np.minimum.accumulate(scaled[::-1])[::-1]
    adjusted_p = np.empty(p.size)
    adjusted_p[order] = np.minimum(1.0, lowest)
    return adjusted_p


def adjusted(
    p: ArrayLike,
    level: ArrayLike,
    tests_per_level: Sequence[int],
    correction: Correction,
    levels: int,
    smallest_p: ArrayLike | None = None,
) -> FloatArray:
    """Return the q-values of slices of several cross sizes; a slice is called where q ≤ α.

    Parameters
    ----------
    p : float array [slices]
    level : int array [slices]
        Cross size of each slice, 1-based.
    tests_per_level : sequence of ints, one for each level
        Slices that could have been tested there, or an upper bound of it.
    correction : {"fdr-level", "fwer-level", "fwer-tarone", "bh", "by", "none"}
        ``fdr-level``: Benjamini–Hochberg within the level, times `levels` (that is, at α/L);
        ``fwer-level``: p·L·m_l, valid under any order of search and later selection (Bonferroni);
        ``fwer-tarone``: the same, but p·L·M_l(p) counts only the slices that could have reached p
        at all (see Notes), so that it rejects no less than ``fwer-level``;
        ``bh``, ``by``: over the tests of all levels together; ``none``: q = p.
    levels : int
        L, the levels that share α.
    smallest_p : float array [slices], optional
        The smallest p-value that the margins of each slice allow, 0 where it is unknown; read by
        ``fwer-tarone`` only, which needs it (see `smallest_p.hypergeometric_smallest_p`). Where it
        is above the slice's own p, as an approximate p may fall below it, p takes its place.

    Returns
    -------
    float64 array [slices]
        At most 1.

    Raises
    ------
    ValueError
        If a level is not within 1..levels, if a level holds more p-values than tests, if the
        correction is unknown, or if ``fwer-tarone`` has no `smallest_p` of p's shape within 0..1.

    Notes
    -----
    ``fwer-tarone`` is the test of Tarone (1990), Biometrics 46:515, at α/L within each level; for
    pattern mining see Terada et al. (2013), PNAS 110:12996. M_l(c) is the number of the level's
    slices whose smallest p is at most c; slices that were not given have unknown margins and always
    count, so hand over all slices whose margins are known, not only those with a small p.

    Why it controls the family-wise error rate at α: let M*(c) ≤ M_l(c) count all slices of the level
    by their true margins, a function that no search and no selection changes. As c·M*(c) increases,
    q ≤ α implies p ≤ c for a c that depends on the margins only and has c·M*(c) ≤ α/L (or the limit
    of such c from below). Only the M*(c) slices whose smallest p is at most c can have p ≤ c, each
    with probability ≤ c under its null, so that the union bound over them gives α/L, and over the
    levels α, under any dependence, order of search and later selection.

    This assumes P(p ≤ c) ≤ c, which exact p-values have. For a mid-p that probability lies on either
    side of c and is at most 2c, so that the rate is bounded by 2α only. So it is with
    ``fwer-level``, but there the slices that cannot reach c are a reserve, which Tarone's test
    spends.

    Examples
    --------
    Two slices of one condition, out of 10 that could have been tested, and one slice of two
    conditions, out of 45. The two levels share α:

    >>> p, level = [0.0001, 0.004, 0.0002], [1, 1, 2]
    >>> adjusted(p, level, [10, 45], "fdr-level", levels=2).round(3)
    array([0.002, 0.04 , 0.018])
    >>> adjusted(p, level, [10, 45], "fwer-level", levels=2).round(3)
    array([0.002, 0.08 , 0.018])
    """
    p_values = np.asarray(p, dtype=np.float64)
    at = np.asarray(level, dtype=np.int64)
    tests = np.asarray(tests_per_level, dtype=np.int64)
    _validate(p_values, at, tests, levels)
    if correction == "none":
        return p_values.copy()
    if correction == "bh":
        return bh_adjusted(p_values, int(tests.sum()))
    if correction == "by":
        return by_adjusted(p_values, int(tests.sum()))
    if correction == "fwer-level":
        return np.minimum(1.0, p_values * (levels * tests[at - 1].astype(np.float64)))
    if correction == "fwer-tarone":
        smallest = _smallest(p_values, smallest_p)
        return np.minimum(1.0, p_values * (levels * _testable(p_values, smallest, at, tests)))
    if correction == "fdr-level":
        q = np.ones(p_values.size)
        for cross_size in range(1, levels + 1):
            here = at == cross_size
            within = bh_adjusted(p_values[here], int(tests[cross_size - 1]))
            q[here] = np.minimum(1.0, levels * within)
        return q
    raise ValueError(
        f"unknown correction {correction!r}: use 'fdr-level', 'fwer-level', 'fwer-tarone', 'bh', "
        "'by' or 'none'"
    )


def _smallest(p: FloatArray, smallest_p: ArrayLike | None) -> FloatArray:
    if smallest_p is None:
        raise ValueError("'fwer-tarone' needs smallest_p: 0 for slices whose margins are unknown")
    smallest = np.asarray(smallest_p, dtype=np.float64)
    if smallest.shape != p.shape:
        raise ValueError(f"{p.size} p-values but {smallest.size} smallest ones were given")
    # Written so that NaN is refused too.
    wrong = ~((smallest >= 0.0) & (smallest <= 1.0))
    if wrong.any():
        raise ValueError(f"smallest_p holds {smallest[wrong][0]}, which is not within 0..1")
    # A slice that reached p could reach it: this only ever adds to the count, hence to q.
    return np.minimum(smallest, p)


def _testable(p: FloatArray, smallest: FloatArray, level: IntArray, tests: IntArray) -> FloatArray:
    """Return M_l(p), the slices of the own level that can reach p, as float64 [slices]."""
    count = np.empty(p.size)
    # Slices of equal margins must count for each other whatever the rounding; more is cautious.
    reached = p * (1.0 + _TIE)
    for cross_size in range(1, tests.size + 1):
        here = np.flatnonzero(level == cross_size)
        within = np.searchsorted(np.sort(smallest[here]), reached[here], side="right")
        count[here] = within + (tests[cross_size - 1] - here.size)
    return count


def _validate(p: FloatArray, level: IntArray, tests: IntArray, levels: int) -> None:
    if p.shape != level.shape:
        raise ValueError(f"{p.size} p-values but {level.size} levels were given")
    if tests.size != levels:
        raise ValueError(f"tests_per_level has {tests.size} entries for {levels} levels")
    if not level.size:
        return
    if level.min() < 1 or level.max() > levels:
        raise ValueError(
            f"levels {level.min()}..{level.max()} were given, but levels are 1..{levels}"
        )
    given = np.bincount(level, minlength=levels + 1)[1:]
    if (given > tests).any():
        worst = int(np.argmax(given > tests))
        raise ValueError(
            f"level {worst + 1} has {given[worst]} p-values but only {tests[worst]} tests: "
            "tests_per_level must be an upper bound"
        )
