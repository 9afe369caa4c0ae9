"""How two data sets differ: their mix of examples, the value of like examples, drifting features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc

from slicebeam.metrics.arrays import FloatArray, IntArray
from slicebeam.metrics.significance.count_tests import mid_p

# Of a variance of indicators; what keeps them invertible that say the same twice.
_RIDGE = 1e-5
# Parts whose estimates are this much anticorrelated cannot be told apart.
_TOLD_APART = -0.5
# Standard errors below this are of parts that hardly vary.
_LEAST_ERROR = 1e-3
# Values of which fewer are expected in either data set are put together.
_LEAST_EXPECTED = 5.0
# What is added to each count before its logarithm is taken.
_ADDED = 0.5


class Indicators(NamedTuple):
    """The examples of one data set: how many meet each predicate, and each two."""

    n: float
    both: FloatArray  # [columns, columns]
    total: float  # of the value
    squares: float
    crossed: FloatArray  # [columns] of the value where a predicate holds

    @property
    def shares(self) -> FloatArray:
        """The share of the examples that meet each predicate [columns]."""
        return np.asarray(np.diag(self.both) / self.n)

    @property
    def covariance(self) -> FloatArray:
        """The covariance of the indicators [columns, columns]."""
        return np.asarray(self.both / self.n - np.outer(self.shares, self.shares))


class Portion(NamedTuple):
    """A part of a difference, with its variance."""

    value: float
    variance: float


class Decomposition:
    """The mix of two data sets, by indicator: Oaxaca (1973), Int. Econ. Rev. 14:693, by the earlier coefficients.

    A linear model of indicators says how much higher the earlier value is where a predicate holds. Of today's data it is
    off by the mix if only the examples are others; what is left is due to the model that is measured.
    """

    def __init__(self, now: Indicators, then: Indicators) -> None:
        self.now, self.then, covariance, mean = now, then, then.covariance, then.total / then.n
        inverse = np.linalg.inv(covariance + _RIDGE * np.eye(len(covariance)))
        crossed = then.crossed / then.n - then.shares * mean
        fitted = inverse @ crossed
        residual = then.squares / then.n - mean**2 - 2.0 * fitted @ crossed
        residual = residual + fitted @ covariance @ fitted
        # The coefficients [columns] of the earlier data, with their covariance, and the variance about that model.
        self.coefficients = fitted
        self.variances = inverse @ covariance @ inverse * (residual / then.n)
        self.residual = max(float(residual), 0.0)
        # The change of the shares [columns], with its covariance, and squared Mahalanobis distance.
        self.change = now.shares - then.shares
        self.of_shares = covariance / then.n + now.covariance / now.n
        moved = inverse @ self.change
        self.distance = float(moved @ covariance @ moved)

    def covariance(self, first: IntArray, second: IntArray) -> float:
        """Return the covariance of the parts of some columns and of some others."""
        at, change, slopes = np.ix_(first, second), self.change, self.coefficients
        of_fit = change[first] @ self.variances[at] @ change[second]
        return float(of_fit + slopes[first] @ self.of_shares[at] @ slopes[second])

    def part(self, columns: IntArray) -> Portion:
        """Return the part of the mix that is in some columns."""
        value = float(self.coefficients[columns] @ self.change[columns])
        return Portion(value, self.covariance(columns, columns))

    @property
    def mix(self) -> Portion:
        """Return the whole part that is due to the mix."""
        return self.part(np.arange(self.change.size))

    @property
    def whole(self) -> float:
        """The difference of the means."""
        return self.now.total / self.now.n - self.then.total / self.then.n

    @property
    def constant(self) -> float:
        """What the earlier model says of an example that meets no predicate."""
        return float(self.then.total / self.then.n - self.coefficients @ self.then.shares)

    def model(self, residual: float) -> Portion:
        """Return what is left, by the variance of today's values about the earlier model."""
        variance = residual / self.now.n + self.residual * (1.0 + self.distance) / self.then.n
        return Portion(self.whole - self.mix.value, variance)

    def together(self, features: Sequence[IntArray]) -> list[list[int]]:
        """Return which features, by their columns, cannot be told apart: one line for each list."""
        lines = [[at] for at in range(len(features))]
        each = np.array([[self.covariance(a, b) for b in features] for a in features])
        while len(lines) > 1:
            summed = np.array([[each[np.ix_(a, b)].sum() for b in lines] for a in lines])
            error = np.sqrt(np.maximum(np.diag(summed), 0.0))
            small = error < _LEAST_ERROR
            scale = np.where(small, 1.0, error)
            correlation = summed / np.outer(scale, scale)
            correlation[small] = correlation[:, small] = 1.0
            np.fill_diagonal(correlation, 1.0)
            first, second = np.unravel_index(int(correlation.argmin()), correlation.shape)
            if correlation[first, second] > _TOLD_APART:
                break
            lower, higher = sorted((int(first), int(second)))
            lines[lower] += lines.pop(higher)
        return lines


class Drift(NamedTuple):
    """How a feature's distribution changed."""

    p: float
    stability_index: float  # less what is expected without a change; not below 0
    value: int  # of which the share changed most


def drift(now: IntArray, then: IntArray) -> Drift:
    """Return how counts [values] of today and then differ; the values exclude one another."""
    # p is twice the smaller of two: that of X² by its exact conditional mean, and the smallest of a single value. The
    # index is less its expectation without a change: Yurdakul and Naranjo (2020), J. Risk Model Valid. 14(4):89.
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
