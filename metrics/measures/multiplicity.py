"""Corrections for testing many slices: adjusted p-values (q-values) that compare with α.

The number of tests is that of the slices that could have been tested: those that were visited were chosen by p-values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import digamma

from slicebeam.metrics.arrays import ArrayLike, FloatArray
from slicebeam.metrics.kinds import Correction


def bh_adjusted(p: ArrayLike, m: int, factor: float = 1.0) -> FloatArray:
    """Return Benjamini and Hochberg's (1995, J. R. Stat. Soc. B 57:289) adjusted p-values among m tests.

    Tests not given count as p = 1; valid for independent or positively dependent tests.

    >>> bh_adjusted([0.0001, 0.03, 0.0008], m=100).round(3)
    array([0.01, 1.  , 0.04])
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * (factor * m / np.arange(1, values.size + 1))
    # The tests not given have p = 1 and adjusted values ≥ 1, so they never lower the others.
    lowest = np.minimum.accumulate(scaled[::-1])[::-1]
    adjusted_p = np.empty(values.size)
    adjusted_p[order] = np.minimum(1.0, lowest)
    return adjusted_p


def holm_adjusted(p: ArrayLike) -> FloatArray:
    """Return Holm's (1979, Scand. J. Stat. 6:65) adjusted p-values of a whole family, any dependence."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(values.size, 0, -1)
    adjusted_p = np.empty(values.size)
    adjusted_p[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted_p


def by_adjusted(p: ArrayLike, m: int) -> FloatArray:
    """Return Benjamini and Yekutieli's (2001, Ann. Stat. 29:1165) adjusted p-values, any dependence."""
    return bh_adjusted(p, m, float(digamma(m + 1.0)) + float(np.euler_gamma))


def adjusted(
    p: ArrayLike,
    level: ArrayLike,
    tests_per_level: Sequence[int],
    correction: Correction,
    levels: int,
    metrics: int = 1,
) -> FloatArray:
    """Return the q-values [slices] of slices of several cross sizes (level, 1-based); called where q ≤ α.

    They are multiplied by the number of metrics that are tested, so that each has α/`metrics`.
    ``fdr-level``: Benjamini–Hochberg within the level, times `levels` (at α/L); ``fwer-level``: p·L·m_l,
    valid under any order of search; ``bh``, ``by``: over the tests of all levels; ``none``: q = p.

    >>> p, level = [0.0001, 0.004, 0.0002], [1, 1, 2]
    >>> adjusted(p, level, [10, 45], "fdr-level", levels=2).round(3)
    array([0.002, 0.04 , 0.018])
    >>> adjusted(p, level, [10, 45], "fwer-level", levels=2).round(3)
    array([0.002, 0.08 , 0.018])
    """
    p_values = np.asarray(p, dtype=np.float64)
    at = np.asarray(level, dtype=np.int64)
    tests = np.asarray(tests_per_level, dtype=np.int64)
    given = np.bincount(at, minlength=levels + 1)[1:]
    if (given > tests).any():
        worst = int(np.argmax(given > tests))
        raise ValueError(
            f"level {worst + 1} has {given[worst]} p-values but only {tests[worst]} tests: "
            "tests_per_level must be an upper bound"
        )
    if correction == "none":
        return p_values.copy()
    if correction == "bh":
        q = bh_adjusted(p_values, int(tests.sum()))
    elif correction == "by":
        q = by_adjusted(p_values, int(tests.sum()))
    elif correction == "fwer-level":
        q = p_values * (levels * tests[at - 1].astype(np.float64))
    else:
        q = np.ones(p_values.size)
        for cross_size in range(1, levels + 1):
            here = at == cross_size
            q[here] = levels * bh_adjusted(p_values[here], int(tests[cross_size - 1]))
    return np.minimum(1.0, metrics * q)
