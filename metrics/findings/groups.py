"""How sure a finding is: the covariance of its value and expectation, groups that depend, and selection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.special import log_ndtr, ndtri, stdtr

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, floats
from slicebeam.metrics.counting.counting import positions
from slicebeam.metrics.findings.conditional import p_of_side, pattern_variances
from slicebeam.metrics.findings.model import ExpectationModel
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.target_sums import MOST_FINDINGS, TargetSums
from slicebeam.metrics.significance.intervals import bisect, normal_quantile

# Of an interval.
Ends: TypeAlias = tuple[float, float]


class Covariance(NamedTuple):
    """The variances of a finding's value and of its expectation, and their covariance, which grows with its share."""

    value: float
    both: float
    expected: float

    @property
    def error(self) -> float:
        """The standard error of the difference."""
        return math.sqrt(max(self.value - 2.0 * self.both + self.expected, 0.0))

    def interval_of_difference(
        self, value: float, of_value: Ends, expected: float, of_expected: Ends
    ) -> Ends:
        """Return value minus expectation's interval, by MOVER: Zou (2007), Psychol. Methods 12:399, equation 15."""
        product = math.sqrt(self.value * self.expected)
        correlation = max(-1.0, min(1.0, self.both / product)) if product > 0 else 0.0

        def length(arm: float, other: float) -> float:
            return math.sqrt(max(arm**2 + other**2 - 2.0 * correlation * arm * other, 0.0))

        low = length(value - of_value[0], of_expected[1] - expected)
        high = length(of_value[1] - value, expected - of_expected[0])
        return value - expected - low, value - expected + high


def of_patterns(
    model: ExpectationModel,
    sums: FloatArray,
    layout: TargetSums,
    inside: BoolArray,
    taken: FloatArray,
) -> Covariance:
    """Return the covariance of a finding's value and expectation, for independent examples."""
    # To first order the expectation moves by Σ taken·w·(x − μ)/Σw over all.
    spread = layout.moment(sums, 2, 0) * pattern_variances(model, sums, layout)
    size, of_value = float(layout.moment(sums, 1, 0)[inside].sum()), spread * inside
    parts = of_value, of_value * taken, spread * np.square(taken)
    return Covariance(*(float(part.sum()) / size**2 for part in parts))


def with_finding(
    fitted: ExpectationModel,
    layout: TargetSums,
    after: tuple[IntArray, FloatArray],
    before: IntArray,
    taken: FloatArray,
    groups: GroupSums | None,
    candidate: int = 0,
) -> Covariance:
    """Return the covariance for the newest finding of the fitted model, ``taken`` of the patterns before it."""
    masks, sums = after
    bit = 1 << (fitted.design.shape[1] - 2)
    inside, was = (masks & bit) > 0, positions(before, 1 << MOST_FINDINGS)(masks & ~bit)
    if groups is None:
        return of_patterns(fitted, sums, layout, inside, taken[was])
    expected = np.zeros((2, before.size))
    expected[inside.astype(np.int64), was] = fitted.expected
    return groups.covariance(candidate, taken, expected[1], expected[0])


# Fewer groups say nothing of their variance.
LEAST_GROUPS = 30


class CellSums(NamedTuple):
    """Sums of a candidate's examples by cell, a pair of group and pattern."""

    cell: IntArray  # [held] distinct positions of the cells that hold some
    size: FloatArray  # [held] Σ weight
    total: FloatArray  # [held] Σ weight·target


@dataclass(frozen=True)
class GroupSums:
    """Sums by group and pattern, of all examples and of a few candidates."""

    group: IntArray  # [cells] number of the group, from 0
    pattern: IntArray  # [cells] position of the pattern in the model
    size: FloatArray  # [cells] of all examples, 0 where the model does not have the pattern
    total: FloatArray  # [cells] likewise
    of: Sequence[CellSums]  # of each candidate

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group.max(initial=-1)) + 1

    def _by_group(self, values: FloatArray, cell: IntArray | None = None) -> FloatArray:
        group = self.group if cell is None else self.group[cell]
        return np.bincount(group, values, self.groups).astype(np.float64)

    def of_model(self, model: ExpectationModel) -> FloatArray:
        """Return the deviations of all examples by group and column of the model [groups, rank]."""
        deviation = self.total - self.size * model.expected[self.pattern]
        X = model.design[:, model.columns][self.pattern]
        return np.stack([self._by_group(deviation * x) for x in X.T], axis=1)

    def p_value(
        self,
        candidate: int,
        model: ExpectationModel,
        of_model: FloatArray,
        slopes: FloatArray,
        no_change: float | None,
        tail: Tail,
    ) -> float:
        """Return the p-value of a candidate's excess over the model, and over the mean of no change, if any."""
        held = self.of[candidate]
        excess = held.total - held.size * model.expected[self.pattern[held.cell]]
        scores, sizes = (self._by_group(values, held.cell) for values in (excess, held.size))
        p = group_p_value(scores, of_model, slopes, sizes, tail)
        if no_change is None:
            return p
        change = self._by_group(held.total - held.size * no_change, held.cell)
        none = np.zeros((self.groups, 1)), np.zeros(1)
        return max(p, group_p_value(change, *none, sizes, tail))

    def covariance(
        self, candidate: int, taken: FloatArray, inside: FloatArray, outside: FloatArray
    ) -> Covariance:
        """Return the covariance of a candidate's value and expectation."""
        held = self.of[candidate]
        within = held.total - held.size * inside[self.pattern[held.cell]]
        rest, left = self.total.copy(), self.size.copy()
        rest[held.cell] -= held.total
        left[held.cell] -= held.size
        apart = rest - left * outside[self.pattern]
        apart[held.cell] += within
        value = self._by_group(within, held.cell)
        expected = self._by_group(apart * taken[self.pattern])
        scale = self.groups / max(self.groups - 1.0, 1.0) / float(held.size.sum()) ** 2
        products = value @ value, value @ expected, expected @ expected
        return Covariance(*(float(product) * scale for product in products))


def group_p_value(
    excess: ArrayLike, of_model: ArrayLike, slopes: ArrayLike, sizes: ArrayLike, tail: Tail
) -> float:
    """Return the p-value of a candidate's excess where whole groups of examples are independent."""
    # The squares of the scores excess − of_model·slopes estimate its variance: Liang and Zeger (1986), Biometrika 73:13.
    # Student's t with Kish's number, no less than the chance that all signs agree.
    whole, n = np.asarray(of_model, np.float64), np.asarray(sizes, np.float64)
    held = n > 0
    groups = int(np.count_nonzero(held))
    if groups < LEAST_GROUPS:
        return 1.0
    scores = np.asarray(excess, np.float64) - whole @ np.asarray(slopes, np.float64)
    total, effective = float(scores.sum()), float(n.sum() ** 2 / (n**2).sum())
    centred = float((scores**2).sum() - scores[held].sum() ** 2 / groups)
    variance = max(centred, 0.0) * groups / (groups - 1.0)
    if not variance > 0 and not total:
        return 1.0
    root = abs(total) / np.sqrt(variance) if variance > 0 else np.inf
    towards = float(stdtr(max(effective - 1.0, 1.0), -root))
    towards = min(1.0, max(towards, 2.0 ** -min(groups, 900)))
    return p_of_side(towards, tail, above=total >= 0)


# The likelihood is summed at so many points, from so many errors below 0 to as many above z.
_POINTS, _BEYOND = 512, 8.0
_OFF = float(normal_quantile(0.95))
_MISSED = 0.025  # on each side


def selected_above(p: float, bound: float, gain: float, cost: float) -> float:
    """Return the z that a finding had to exceed: that of its bound, or of no gain, for gain + cost grows with z²."""
    ratio = gain + cost
    least = -float(ndtri(p)) * np.sqrt(max(cost, 0.0) / ratio) if ratio > 0 else 0.0
    return float(max(-ndtri(bound), least))


def corrected_standardised(
    z: ArrayLike, c: ArrayLike, null: ArrayLike = 1.0, far: ArrayLike = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Return the estimate of θ and its interval's end towards 0, of z that were selected above c."""
    # The mean of the conditional likelihood: docs/explanation/statistics.md. ``null`` is the error where θ is 0, ``far`` at
    # the upper end, z + 1.96·far, in units of that at z.
    seen, above, at_null, at_far = floats(z, c, null, far)
    above = np.minimum(above, seen)
    near = np.maximum(seen - _OFF, 0.5 * seen)

    def error(theta: FloatArray) -> FloatArray:
        below, beyond = theta / near, (theta - seen) / (_OFF * at_far)
        variance = at_null**2 + (1.0 - at_null**2) * np.clip(below, 0.0, 1.0)
        return np.asarray(np.sqrt(variance + (at_far**2 - 1.0) * np.clip(beyond, 0.0, 1.0)))

    def log_selected(theta: FloatArray, errors: FloatArray) -> FloatArray:
        sides = (log_ndtr((side * theta - above) / errors) for side in (1.0, -1.0))
        return np.asarray(np.logaddexp(*sides))

    theta = np.linspace(-_BEYOND * at_null, seen + _BEYOND * at_far, _POINTS)
    errors = error(theta)
    likelihood = -0.5 * ((seen - theta) / errors) ** 2 - log_selected(theta, errors)
    likelihood = np.exp(likelihood - likelihood.max(axis=0)) / errors
    mean = (likelihood * theta).sum(axis=0) / likelihood.sum(axis=0)
    estimate = np.minimum(mean, seen)

    def exceeds_less(theta: FloatArray) -> BoolArray:
        errors = error(theta)
        exceeded = log_ndtr((theta - seen) / errors) - log_selected(theta, errors)
        return np.asarray(exceeded < np.log(_MISSED))

    return estimate, bisect(exceeds_less, -above - _OFF * at_null, seen)


def corrected_difference(
    observed: float, ends: Ends, z: float, c: float, null_error: float
) -> tuple[float, float, float]:
    """Return a difference and its 95 % interval as they are without selection; the far one of its ``ends`` stays."""
    sign = 1.0 if observed >= 0 else -1.0
    size = abs(observed)
    near, far = sorted(sign * end for end in ends)
    unit, beyond = (size - near) / _OFF, (far - size) / _OFF
    if not (z > 0 and size > 0 and 0 < unit < np.inf and 0 < null_error < np.inf):
        return observed, *ends
    stretch = beyond / unit if 0 < beyond < np.inf else 1.0
    in_units = corrected_standardised(size / unit, size / unit * c / z, null_error / unit, stretch)
    middle, towards = (sign * unit * np.array(in_units)).tolist()
    low, high = sorted((towards, sign * far))
    return middle, low, high
