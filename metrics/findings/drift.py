"""Whether a feature is distributed as it was: tests of its values' shares, and the population stability index.

Sources: Pearson's X² with its exact conditional mean; Yurdakul and Naranjo (2020), J. Risk Model Valid. 14(4):89 (the
population stability index, whose expectation without a change is (k − 1)·(1/n + 1/m)).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc

from slicebeam.metrics.arrays import IntArray
from slicebeam.metrics.significance.count_tests import mid_p

# Values of which fewer are expected in either data set are put together.
_LEAST_EXPECTED = 5.0
# What is added to each count before its logarithm is taken.
_ADDED = 0.5


class Drift(NamedTuple):
    """How a feature's distribution changed."""

    p: float
    stability_index: float  # less what is expected without a change; not below 0
    value: int  # of which the share changed most


def drift(now: IntArray, then: IntArray) -> Drift:
    """Return how counts [values] of today and then differ; the values exclude one another.

    p is twice the smaller of two: that of X², where values with few expected are one, and that of the predicate with
    the smallest p among as many: a broad change and one of a single value are both seen.

    >>> found = drift(np.array([300, 500, 200]), np.array([340, 480, 180]))
    >>> round(found.p, 3), round(found.stability_index, 4), found.value
    (0.276, 0.0039, 0)
    """
    n, m = float(now.sum()), float(then.sum())
    N = n + m
    held = now + then
    expected = held * (min(n, m) / N)
    few = expected < _LEAST_EXPECTED
    tables = np.array([now, then], np.float64)
    table = np.concatenate([tables[:, ~few], tables[:, few].sum(axis=1, keepdims=True)], axis=1)
    table = table[:, table.sum(axis=0) > 0]
    k = table.shape[1]
    whole = table.sum(axis=0)
    of_each = np.array([[n], [m]]) * whole / N
    chi = float(((table - of_each) ** 2 / of_each).sum()) * (N - 1) / N
    broad = float(gammaincc((k - 1) / 2.0, chi / 2.0)) if k > 1 else 1.0
    of_value = mid_p(np.full(held.shape, n), now, N, held, "both")
    single = min(1.0, float(of_value.min(initial=1.0)) * max(int(np.count_nonzero(held)), 1))
    shares = [(counts + _ADDED) / (counts + _ADDED).sum() for counts in (now, then)]
    index = float(((shares[0] - shares[1]) * np.log(shares[0] / shares[1])).sum())
    chance = (np.count_nonzero(held) - 1) * (1.0 / n + 1.0 / m)
    moved = np.abs(now / n - then / m)
    return Drift(
        min(1.0, 2.0 * min(broad, single)), float(max(index - chance, 0.0)), int(moved.argmax())
    )
