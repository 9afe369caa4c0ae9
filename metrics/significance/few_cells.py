"""Laws of random subsets that are solved for each slice: a metric of few cells, and the mean of a slice's own values.

Skovgaard's (1987, J. Appl. Prob. 24:875) double saddle point gives the tail of a sum of scores with the numbers drawn
of each stratum (denominator) held. The scores of a metric are its gradient where its level set is likeliest; ends of
the support have exact probabilities. Tails are near mid-p ones. Rates: docs/explanation/calibration.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.special import logit, ndtr

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, Pair
from slicebeam.metrics.chunks import blocks
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance.count_tests import NEAR_MEAN, corrected_root, log_choose
from slicebeam.metrics.significance.outcome_codes import select_tail
from slicebeam.metrics.significance.random_subset import bin_edges

# The value [slices] and the gradient [slices, cells] of a metric at counts [slices, cells].
Formula: TypeAlias = Callable[[FloatArray], Pair]

# Tails above this by a normal law keep that.
_SCREENED = 0.1
_AT_A_TIME = 1 << 13
_TANGENTS, _MOST_STEPS = 4, 60
# The log odds of a cell move by no more than this in a step, and are found to this.
_LARGEST_STEP, _SOLVED = 3.0, 1e-9
# A stratum of which all, or nothing, is drawn still has odds. Sums that differ by less, relative to the largest, are equal.
_LEAST_SHARE, _SAME = 1e-9, 1e-9
_SMALLEST = 1e-300


class CellDraws(NamedTuple):
    """Subsets of populations: examples by cell [slices, cells], strata [strata, cells], drawn [slices, strata]."""

    totals: FloatArray
    strata: FloatArray
    drawn: FloatArray

    def rows(self, some: IntArray | BoolArray | slice) -> CellDraws:
        """Return some of the slices."""
        return CellDraws(self.totals[some], self.strata, self.drawn[some])

    @property
    def shares(self) -> FloatArray:
        """The share [slices, strata] of each stratum that is drawn, next to 0 and 1 for none and all."""
        of_all = np.maximum(self.totals @ self.strata.T, 1.0)
        return np.clip(self.drawn / of_all, _LEAST_SHARE, 1.0 - _LEAST_SHARE)

    @property
    def expected(self) -> FloatArray:
        """The mean counts [slices, cells]."""
        return np.asarray(self.totals * (self.shares @ self.strata))


def p_value(
    formula: Formula,
    counts: ArrayLike,
    totals: ArrayLike,
    strata: list[BoolArray],
    tail: Tail,
    span: float = 0.0,
) -> FloatArray:
    """Return p [slices] if each were a random subset of totals; NaN without variance; ``span`` of a lattice."""
    own, within = np.asarray(counts, np.float64), np.array(strata, np.float64)
    population = np.broadcast_to(np.asarray(totals, np.float64), own.shape)
    draws = CellDraws(population, within, own @ within.T)
    parts = [
        _p_value(formula, own[block], draws.rows(block), tail, span)
        for block in blocks(len(own), _AT_A_TIME)
    ]
    return np.concatenate([np.ones(0), *parts])


def _p_value(
    formula: Formula, counts: FloatArray, draws: CellDraws, tail: Tail, span: float
) -> FloatArray:
    observed, at_counts = formula(counts)
    value, scores = formula(draws.expected)
    deviation = np.sqrt(_variance(scores, draws))
    scale = np.abs(scores).max(axis=1, initial=0.0)
    varies = np.isfinite(observed - value) & (deviation > _SAME * scale) & (scale > 0)
    w = np.where(varies, observed - value, 0.0) / np.where(varies, deviation, 1.0)
    upper, lower = ndtr(-w), ndtr(w)
    rows = np.flatnonzero(varies & (select_tail(upper, lower, tail) <= _SCREENED))
    # Many slices have the same counts.
    both = np.concatenate([counts[rows], draws.totals[rows]], axis=1)
    _, first, place = np.unique(both, axis=0, return_index=True, return_inverse=True)
    rows, spread = rows[first], rows
    of_rows = draws.rows(rows), observed[rows], at_counts[rows], counts[rows]
    above, below = _tails(formula, *of_rows, span)
    upper[spread], lower[spread] = above[place.reshape(-1)], below[place.reshape(-1)]
    return np.where(varies, np.maximum(select_tail(upper, lower, tail), _SMALLEST), np.nan)


def _variance(scores: FloatArray, draws: CellDraws) -> FloatArray:
    """Return the variance [slices] of a sum of scores; strata have no cell in common."""
    size = np.maximum(draws.totals @ draws.strata.T, 2.0)
    share = draws.totals[:, None, :] * draws.strata / size[:, :, None]
    mean = (share * scores[:, None, :]).sum(axis=2)
    square = (share * np.square(scores[:, None, :] - mean[:, :, None])).sum(axis=2)
    return np.asarray((draws.drawn * (size - draws.drawn) / (size - 1.0) * square).sum(axis=1))


def _tails(
    formula: Formula,
    draws: CellDraws,
    observed: FloatArray,
    at_counts: FloatArray,
    counts: FloatArray,
    span: float,
) -> Pair:
    """Return the upper and lower tail [slices]."""
    point = draws.expected
    upper, lower = np.ones((2, len(observed)))
    left = np.arange(len(observed))
    # Scores that are equal but for rounding have to be.
    rounded = np.round(at_counts / np.abs(at_counts).max(axis=1, initial=_SMALLEST)[:, None], 9)
    for sign, tail, other in ((1.0, upper, lower), (-1.0, lower, upper)):
        scores = sign * rounded[left]
        most, chance = _largest(scores, draws.rows(left))
        room = _SAME * (1.0 + counts[left].sum(axis=1))
        end = (scores * counts[left]).sum(axis=1) >= most - room
        tail[left[end]], other[left[end]] = 0.5 * chance[end], 1.0 - 0.5 * chance[end]
        left = left[~end]
    if not left.size:
        return upper, lower
    draws, observed, point = draws.rows(left), observed[left], point[left]
    for _ in range(_TANGENTS):
        value, scores = formula(point)
        scale = np.maximum(np.abs(scores).max(axis=1, initial=0.0), _SMALLEST)[:, None]
        total = ((scores * point).sum(axis=1) + observed - value) / scale[:, 0]
        before = point
        w, point = deviate(scores / scale, draws, total, span)
        if (np.abs(point - before) <= 1e-6 * (1.0 + before)).all():
            break
    upper[left], lower[left] = ndtr(-w), ndtr(w)
    return upper, lower


def _largest(scores: FloatArray, draws: CellDraws) -> Pair:
    """Return the largest sum of scores [slices] that can be drawn, and its probability."""
    most, log_chance = np.zeros((2, len(scores)))
    for within, drawn in zip(draws.strata > 0, draws.drawn.T, strict=True):
        own, totals = scores[:, within], draws.totals[:, within]
        before = (totals[:, None, :] * (own[:, None, :] > own[:, :, None])).sum(axis=2)
        alike = (totals[:, None, :] * (own[:, None, :] == own[:, :, None])).sum(axis=2)
        taken = np.clip(drawn[:, None] - before, 0.0, alike)
        part = np.where(alike > 0, totals / np.where(alike > 0, alike, 1.0), 0.0)
        most += (own * taken * part).sum(axis=1)
        # Of the last cells that are drawn, maybe not all.
        last = np.argmax((taken > 0) * (before + 1.0), axis=1)[:, None]
        at = [np.take_along_axis(column, last, axis=1)[:, 0] for column in (alike, taken)]
        log_chance += log_choose(*at) - log_choose(totals.sum(axis=1), drawn)
    return most, np.exp(np.minimum(log_chance, 0.0))


def deviate(scores: FloatArray, draws: CellDraws, total: FloatArray, span: float) -> Pair:
    """Return the normal deviate w [slices] of sums of scores, and the likeliest counts given the sum."""
    # η of the formula in docs/explanation/statistics.md is linear in θ: a for each stratum, then b.
    shares = draws.shares
    base = logit(shares) @ draws.strata
    rows, cells = scores.shape
    strata = len(draws.strata)
    design = np.empty((rows, strata + 1, cells))
    design[:, :strata], design[:, strata] = draws.strata, scores
    drawn = shares * np.maximum(draws.totals @ draws.strata.T, 1.0)
    target = np.concatenate([drawn, total[:, None]], axis=1)
    chance = shares @ draws.strata
    at_null = _information(design, draws.totals * chance * (1.0 - chance))
    theta, left = np.zeros(target.shape), np.arange(rows)
    for _ in range(_MOST_STEPS):
        moved = base[left] + np.einsum("sm,smc->sc", theta[left], design[left])
        inside = 1.0 / (1.0 + np.exp(-moved))
        information = _information(design[left], draws.totals[left] * inside * (1.0 - inside))
        # Where all but one cell of a stratum are empty, nothing is lost by a little more.
        ridge = 1e-12 * np.trace(information, axis1=1, axis2=2) + _SMALLEST
        information += ridge[:, None, None] * np.eye(strata + 1)
        gap = target[left] - np.einsum("smc,sc->sm", design[left], draws.totals[left] * inside)
        step = np.linalg.solve(information, gap[..., None])[..., 0]
        size = np.abs(np.einsum("sm,smc->sc", step, design[left])).max(axis=1)
        theta[left] += step * np.minimum(1.0, _LARGEST_STEP / np.maximum(size, _SMALLEST))[:, None]
        left = left[size > _SOLVED]
        if not left.size:
            break
    moved = base + np.einsum("sm,smc->sc", theta, design)
    inside = 1.0 / (1.0 + np.exp(-moved))
    information = _information(design, draws.totals * inside * (1.0 - inside))
    cumulant = (draws.totals * (np.logaddexp(0.0, moved) - np.logaddexp(0.0, base))).sum(axis=1)
    b = theta[:, strata]
    r = np.sign(b) * np.sqrt(2.0 * np.maximum((theta * target).sum(axis=1) - cumulant, 0.0))
    tilt = 2.0 / span * np.tanh(0.5 * b * span) if span else b
    of_null = np.maximum(np.linalg.det(at_null[:, :strata, :strata]), _SMALLEST)
    q = tilt * np.sqrt(np.maximum(np.linalg.det(information), 0.0) / of_null)
    ratio = np.maximum(q / np.where(np.abs(r) < NEAR_MEAN, 1.0, r), _SMALLEST)
    mean = (draws.expected * scores).sum(axis=1)
    deviation = np.sqrt(np.maximum(_variance(scores, draws), _SMALLEST))
    return corrected_root(r, np.log(ratio), (total - mean) / deviation), draws.totals * inside


def _information(design: FloatArray, spread: FloatArray) -> FloatArray:
    """Return the second derivatives of the cumulant function [slices, parameters, parameters]."""
    return np.asarray((design * spread[:, None, :]) @ np.swapaxes(design, 1, 2))


# Of standardized values: one is at most √N standard deviations off the mean of N, here of 2^40.
EDGES = bin_edges(-(2.0**20), 2.0**20, 1.0)
# Places within a bin and their squares are summed in this unit.
UNIT = 2.0**-20
_SLICES_AT_A_TIME = 256
# A sum this near, in standard deviations of a value, to the largest one is that.
_SAME_TOTAL = 1e-6


def points(sums: IntArray) -> Pair:
    """Return values and counts [slices, 2 * BINS] of `add_bin_sums`: two points a bin keep its mean and variance."""
    counts = sums[:, 0].astype(np.float64)
    mean, square = (sums[:, power] * UNIT / np.maximum(counts, 1.0) for power in (1, 2))
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    places = np.concatenate([mean - spread, mean + spread], axis=1)
    left, width = (np.tile(column, 2) for column in (EDGES[:-1], np.diff(EDGES)))
    return left + width * places, np.tile(counts, (1, 2)) / 2.0


def own_values_p(sums: IntArray, drawn: IntArray, total: FloatArray, tail: Tail) -> FloatArray:
    """Return p [slices] of the standardized total of ``drawn`` of the values in `add_bin_sums`; 1 where none varies."""
    # If nothing changed, today's examples are a random subset of the slice's, today's and earlier ones, whose rare
    # large losses all examples need not show: Robinson (1982), Ann. Statist. 10:458.
    p = np.ones(len(sums))
    for some in blocks(len(sums), _SLICES_AT_A_TIME):
        values, counts = points(sums[some])
        # Bins that are empty in all of these slices are not looked at.
        used = counts.any(axis=0)
        p[some] = _own_values_p(values[:, used], counts[:, used], drawn[some], total[some], tail)
    return p


def _own_values_p(
    values: FloatArray, counts: FloatArray, drawn: IntArray, total: FloatArray, tail: Tail
) -> FloatArray:
    size = counts.sum(axis=1)
    held = np.where(counts > 0, values, np.nan)
    varies = (np.nanmax(held, axis=1) > np.nanmin(held, axis=1)) & (drawn > 0) & (drawn < size)
    upper, lower = np.ones((2, len(values)))
    left = np.flatnonzero(varies)
    for sign, beyond, before in ((1.0, upper, lower), (-1.0, lower, upper)):
        most, chance = _largest_total(sign * values[left], counts[left], drawn[left])
        end = sign * total[left] >= most - _SAME_TOTAL
        beyond[left[end]], before[left[end]] = 0.5 * chance[end], 1.0 - 0.5 * chance[end]
        left = left[~end]
    within, of_left = np.ones((1, values.shape[1])), drawn[left, None].astype(np.float64)
    w, _ = deviate(values[left], CellDraws(counts[left], within, of_left), total[left], 0.0)
    upper[left], lower[left] = ndtr(-w), ndtr(w)
    return np.where(varies, np.maximum(select_tail(upper, lower, tail), _SMALLEST), 1.0)


def _largest_total(values: FloatArray, counts: FloatArray, drawn: IntArray) -> Pair:
    """Return the largest total [slices] that can be drawn, and its probability."""
    order = np.argsort(-values, axis=1, kind="stable")
    values, counts = (np.take_along_axis(array, order, axis=1) for array in (values, counts))
    before = np.cumsum(counts, axis=1) - counts
    taken = np.clip(drawn[:, None] - before, 0.0, counts)
    # Of the last point that is drawn from, perhaps not all.
    last = np.argmax((taken > 0) * (before + 1.0), axis=1)[:, None]
    of_last = [np.take_along_axis(array, last, axis=1)[:, 0] for array in (counts, taken)]
    chance = np.exp(np.minimum(log_choose(*of_last) - log_choose(counts.sum(axis=1), drawn), 0.0))
    return (values * taken).sum(axis=1), chance
