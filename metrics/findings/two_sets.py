"""How two data sets differ: slices that changed beyond what other lines explain, the mix of examples, drifting features.

Strata are sets of examples of equal difficulty, crossed with the slices that were already chosen. A slice changed more
than the others if the tests of the log odds and of the difference both say so: Cornfield (1956), Proc. 3rd Berkeley Symp.
4:135 (the mean of a table at an odds ratio); Mantel and Haenszel (1959), J. Natl. Cancer Inst. 22:719 (weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc, ndtri

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, ratio
from slicebeam.metrics.significance.count_tests import mid_p
from slicebeam.metrics.significance.permutation import pearson_iii_p_value

# Newton's steps of the log odds, and the longest one.
_MOST_STEPS, _LONGEST_STEP, _SOLVED = 30, 1.0, 1e-9
# What keeps a design invertible that says the same twice.
_RIDGE = 1e-9
# A difference of shares is given at least this much room to vary.
_LEAST_SHARE = 1e-4
_MOST_SKEWED = 1.5
_LEAST_VARIANCE = 1e-9
# Of a slice's variance at least this part is left where the model fits its examples.
_LEAST_LEFT = 0.02
# Candidates whose gains are this near to that of the chosen one tell as much.
NEAR = 3.0


class TwoSets(NamedTuple):
    """Examples and what counts against the metric among them, today and then: [..., strata]."""

    n: FloatArray
    total: FloatArray
    squares: FloatArray
    n_then: FloatArray
    total_then: FloatArray
    squares_then: FloatArray

    def rows(self, chosen: IntArray | BoolArray) -> TwoSets:
        """Return those of a few slices."""
        return TwoSets(*(column[chosen] for column in self))

    def __sub__(self, part: TwoSets) -> TwoSets:
        return TwoSets(*map(np.subtract, self, part))

    @property
    def both(self) -> FloatArray:
        """Examples of both data sets."""
        return self.n + self.n_then

    @property
    def weight(self) -> FloatArray:
        """Mantel and Haenszel's weight n·m/(n + m); 0 where one data set has no example."""
        return ratio(self.n * self.n_then, self.both, otherwise=0.0)

    @property
    def difference(self) -> FloatArray:
        """The mean today less that then; 0 without a weight."""
        now = ratio(self.total, self.n, otherwise=0.0)
        then = ratio(self.total_then, self.n_then, otherwise=0.0)
        return np.where(self.weight > 0, now - then, 0.0)


def _cumulants(sets: TwoSets, log_odds: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return mean, variance, exact at 0, and third cumulant of today's count at a log odds ratio [strata]."""
    n, m, N = sets.n, sets.n_then, sets.both
    K = sets.total + sets.total_then
    odds = np.exp(log_odds)
    a, b, c = 1.0 - odds, m - K + odds * (K + n), odds * K * n
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = 2.0 * c / (b + np.sqrt(np.maximum(b * b + 4.0 * a * c, 0.0)))
        cells = np.stack([mean, K - mean, n - mean, m - K + mean])
        variance = 1.0 / (1.0 / cells).sum(axis=0)
        signs = np.array([-1.0, 1.0, 1.0, -1.0]).reshape(4, *(1,) * (cells.ndim - 1))
        third = -(variance**3) * (signs / cells**2).sum(axis=0)
        variance *= N / np.maximum(N - 1.0, 1.0)
    varies = (K > 0) & (K < N) & (n > 0) & (m > 0)
    mean = np.where(varies, mean, sets.total)
    return mean, np.where(varies, variance, 0.0), np.where(varies, third, 0.0)


def _information(design: FloatArray, weight: FloatArray) -> FloatArray:
    """Return X'WX of weights [..., strata]."""
    information = np.einsum("...u,ui,uj->...ij", weight, design, design)
    return np.asarray(information + _RIDGE * np.eye(design.shape[1]))


def differences(everything: TwoSets, design: FloatArray) -> FloatArray:
    """Return the difference of each column of a design, by least squares with `TwoSets.weight`."""
    root = np.sqrt(everything.weight)
    fitted = np.linalg.lstsq(design * root[:, None], everything.difference * root, rcond=None)
    return np.asarray(fitted[0])


def log_odds_p(slices: TwoSets, everything: TwoSets, design: FloatArray) -> FloatArray:
    """Return p [slices] of "no larger odds ratio than the design's", for counts."""
    # The log odds ratio of each column, by Newton's steps.
    fitted = np.zeros(design.shape[1])
    for _ in range(_MOST_STEPS):
        mean, variance, _ = _cumulants(everything, design @ fitted)
        slope = design.T @ (everything.total - mean)
        step = np.linalg.solve(_information(design, variance), slope)
        fitted = fitted + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        if np.abs(step).max() < _SOLVED:
            break
    log_odds = design @ fitted
    mean, variance, third = _cumulants(slices, log_odds)
    _, variance_of_rest, _ = _cumulants(everything - slices, log_odds)
    explained = _explained(variance @ design, _information(design, variance + variance_of_rest))
    excess = np.where(variance > 0, slices.total - mean, 0.0).sum(axis=-1)
    return _p_value(excess, variance.sum(axis=-1) - explained, third.sum(axis=-1))


def difference_p(
    slices: TwoSets, everything: TwoSets, design: FloatArray, *, are_counts: bool
) -> FloatArray:
    """Return p [slices] of "no larger difference than the design's", by points."""
    expected, weight = design @ differences(everything, design), slices.weight
    n, m, N = slices.n, slices.n_then, np.maximum(slices.both, 1.0)
    if are_counts:
        pooled = (slices.total + slices.total_then) / N
        shares = np.stack([pooled + expected * m / N, pooled - expected * n / N])
        shares = np.clip(shares, _LEAST_SHARE, 1.0 - _LEAST_SHARE)
        spread, spread_then = shares * (1.0 - shares)
        third = _cumulants(slices, np.zeros(design.shape[0]))[2].sum(axis=-1)
    else:
        spread = _variance(slices.n, slices.total, slices.squares)
        spread_then = _variance(slices.n_then, slices.total_then, slices.squares_then)
        third = np.zeros(len(weight))
    terms = ratio(spread, n, otherwise=0.0) + ratio(spread_then, m, otherwise=0.0)
    variance = (weight**2 * terms * N / np.maximum(N - 1.0, 1.0)).sum(axis=-1)
    information = _information(design, weight + (everything - slices).weight)
    explained = _explained(weight @ design, information)
    left = np.clip(1.0 - ratio(explained, weight.sum(axis=-1), otherwise=0.0), _LEAST_LEFT, 1.0)
    excess = (weight * (slices.difference - expected)).sum(axis=-1)
    return _p_value(excess, variance * left, third)


def _variance(n: FloatArray, total: FloatArray, squares: FloatArray) -> FloatArray:
    mean = ratio(total, n, otherwise=0.0)
    return np.asarray(np.maximum(ratio(squares, n, otherwise=0.0) - mean**2, 0.0))


def _explained(covered: FloatArray, information: FloatArray) -> FloatArray:
    """Return c'I⁻¹c [slices], what the fit of the design takes off a variance."""
    solved = np.linalg.solve(information, covered[..., None])[..., 0]
    return np.asarray((covered * solved).sum(axis=-1))


def _p_value(excess: FloatArray, variance: FloatArray, third: FloatArray) -> FloatArray:
    """Return the upper tail of Pearson's type III law; 1 where there is no excess."""
    variance = np.maximum(variance, _LEAST_VARIANCE)
    skewness = np.clip(third / variance**1.5, -_MOST_SKEWED, _MOST_SKEWED)
    p = pearson_iii_p_value(excess, np.zeros_like(excess), np.sqrt(variance), skewness, "upper")
    return np.where(excess > 0, p, 1.0)


def changed_more_p(
    slices: TwoSets, everything: TwoSets, design: FloatArray, *, are_counts: bool
) -> FloatArray:
    """Return p [slices] of "changed no more than the design says", the larger one of both tests."""
    p = difference_p(slices, everything, design, are_counts=are_counts)
    return np.maximum(p, log_odds_p(slices, everything, design)) if are_counts else p


def worse_p(slices: TwoSets, everything: TwoSets) -> FloatArray:
    """Return p [slices] of "no worse than the other examples of its strata", whichever data set they are in."""
    n, N, total = slices.both, everything.both, everything.total + everything.total_then
    spread = _variance(N, total, everything.squares + everything.squares_then)
    mean = ratio(total, N, otherwise=0.0)
    excess = (slices.total + slices.total_then - n * mean).sum(axis=-1)
    variance = n * (1.0 - n / np.maximum(N, 1.0)) * spread * N / np.maximum(N - 1.0, 1.0)
    return _p_value(excess, variance.sum(axis=-1), np.zeros_like(excess))


class Step(NamedTuple):
    """The slice that is chosen next, and those that tell nearly as much."""

    chosen: int
    p: float
    near: tuple[int, ...]


def best(p: FloatArray, tests: FloatArray, threshold: FloatArray, sizes: FloatArray) -> Step | None:
    """Return the candidate with the largest gain of those with p at most a threshold; the larger one of equals."""
    # A slice adds z²/2 less the log of how many slices of its level there are.
    gain = ndtri(np.clip(p, 1e-300, 0.5)) ** 2 / 2.0 - np.log(np.maximum(tests, 1.0))
    good = (p <= threshold) & (gain > 0)
    if not good.any():
        return None
    order = np.lexsort((-sizes, -np.where(good, np.round(gain, 6), -1.0)))
    chosen = int(order[0])
    near = [int(at) for at in order[1:] if good[at] and gain[at] >= gain[chosen] - NEAR]
    return Step(chosen, float(p[chosen]), tuple(near))


# Of a variance of indicators; what keeps them invertible that say the same twice.
_RIDGE_OF_SHARES = 1e-5
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
        inverse = np.linalg.inv(covariance + _RIDGE_OF_SHARES * np.eye(len(covariance)))
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
