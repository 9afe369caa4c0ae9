"""Tests of a slice within strata: what changed between two data sets beyond what other lines explain.

Strata are sets of examples of equal difficulty, crossed with the slices that were already chosen. A slice changed more
than the others if the tests of the log odds and of the difference both say so: Cornfield (1956), Proc. 3rd Berkeley Symp.
4:135 (the mean of a table at an odds ratio); Mantel and Haenszel (1959), J. Natl. Cancer Inst. 22:719 (weights).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, ratio
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
# From a slice to its part, or the other way round.
_MOST_MOVES = 6


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
    """Return p [slices] of "changed no more than the design says", the larger one of both tests.

    Where one data set has no error, or nothing else, no odds ratio is like another, and the points decide.
    """
    p = difference_p(slices, everything, design, are_counts=are_counts)
    totals = ((everything.n, everything.total), (everything.n_then, everything.total_then))
    if not are_counts or not all(0 < total.sum() < n.sum() for n, total in totals):
        return p
    return np.maximum(p, log_odds_p(slices, everything, design))


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


def _change(
    sets: TwoSets, expected: FloatArray, *, are_counts: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the change [slices] beyond what is expected of each stratum, and its variance by each side's own values."""
    weight = sets.weight
    change = ratio(
        (weight * (sets.difference - expected)).sum(axis=-1), weight.sum(axis=-1), otherwise=0.0
    )
    variance = np.zeros(change.shape)
    for n, total, squares in (sets[:3], sets[3:]):
        held, of_all = n.sum(axis=-1), total.sum(axis=-1)
        if are_counts:
            # A half is added to each side of the count, so that none of few is not surely none.
            share = (of_all + 0.5) / (held + 1.0)
            spread = share * (1.0 - share)
        else:
            spread = _variance(held, of_all, squares.sum(axis=-1))
        variance += ratio(spread, held, otherwise=np.inf)
    return change, np.maximum(variance, _LEAST_VARIANCE)


def part_alone(
    wholes: TwoSets, parts: TwoSets, expected: FloatArray, *, are_counts: bool
) -> FloatArray:
    """Return by how much it is likelier [pairs] that only a part of a slice changed than that all of it did alike.

    The difference of two log likelihoods, of which both take the changes of the part and of the rest, beyond
    ``expected`` [strata], as normal: that of the rest is 0, or both are the same. 0 where there is no rest.
    """
    of_part, variance = _change(parts, expected, are_counts=are_counts)
    of_rest, variance_of_rest = _change(wholes - parts, expected, are_counts=are_counts)
    apart = (of_part - of_rest) ** 2 / (variance + variance_of_rest)
    return np.asarray((apart - of_rest**2 / variance_of_rest) / 2.0)


class Nested(NamedTuple):
    """Pairs of candidates of which one holds the other."""

    parts: IntArray  # [pairs] positions of candidates
    wholes: IntArray  # [pairs]
    costs: FloatArray  # [pairs] what choosing the part among others takes off its log likelihood


def sharpened(chosen: int, pairs: Nested, likelier: Callable[[IntArray], FloatArray]) -> int:
    """Return the candidate that changed: a part of the chosen one if that did alone, or what it is just a part of.

    ``likelier`` is `part_alone` of some pairs.
    """
    for _ in range(_MOST_MOVES):
        below, above = (np.flatnonzero(side == chosen) for side in (pairs.wholes, pairs.parts))
        alone, within = likelier(below) - pairs.costs[below], likelier(above)
        if alone.max(initial=0.0) > 0.0:
            chosen = int(pairs.parts[below[alone.argmax()]])
        elif within.min(initial=0.0) < 0.0:
            chosen = int(pairs.wholes[above[within.argmin()]])
        else:
            break
    return chosen
