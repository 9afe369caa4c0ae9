"""Why the mean of a value differs between two data sets: their mix of examples, or the value of like examples.

The earlier data says how much higher the value is where a predicate holds (a linear model of indicators). Of today's
data that model is off by the *mix* if only the examples are others; what is left is due to the model that is measured.

Sources: Oaxaca (1973), Int. Econ. Rev. 14:693; Blinder (1973), J. Hum. Resour. 8:436 (by the earlier coefficients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slicebeam.metrics.arrays import FloatArray, IntArray

# Of a variance of indicators; what keeps them invertible that say the same twice.
_RIDGE = 1e-5
# Parts whose estimates are this much anticorrelated cannot be told apart.
_TOLD_APART = -0.5
# Standard errors below this are of parts that hardly vary.
_LEAST_ERROR = 1e-3


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


@dataclass(frozen=True)
class Decomposition:
    """The mix of two data sets, by indicator."""

    now: Indicators
    then: Indicators
    coefficients: FloatArray  # [columns] of the earlier data
    change: FloatArray  # [columns] of shares
    variances: FloatArray  # [columns, columns] of the coefficients
    of_shares: FloatArray  # [columns, columns] of the shares' changes
    distance: float  # squared Mahalanobis distance of the means
    residual: float  # the variance of the earlier values about the model

    @classmethod
    def of(cls, now: Indicators, then: Indicators) -> Decomposition:
        """Fit the earlier data."""
        covariance, mean = then.covariance, then.total / then.n
        inverse = np.linalg.inv(covariance + _RIDGE * np.eye(len(covariance)))
        crossed = then.crossed / then.n - then.shares * mean
        coefficients = inverse @ crossed
        spread = then.squares / then.n - mean**2
        residual = spread - 2.0 * coefficients @ crossed + coefficients @ covariance @ coefficients
        change = now.shares - then.shares
        moved = inverse @ change
        return cls(
            now,
            then,
            coefficients,
            change,
            inverse @ covariance @ inverse * (residual / then.n),
            covariance / then.n + now.covariance / now.n,
            float(moved @ covariance @ moved),
            max(float(residual), 0.0),
        )

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
