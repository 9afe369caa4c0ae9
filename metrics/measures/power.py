"""How small a change a test notices: what a run that found nothing can say it would have seen."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.arrays import FloatArray, IntArray
from slicebeam.metrics.counting.statistic_space import Source
from slicebeam.metrics.kinds import Alternative
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.metric import Metric, Slices

POWER = 0.8
# Counts that stand for shares, and the largest sum that fits.
_MANY, _LARGEST_SUM = 1 << 40, 2.0**62
# Odds are changed by factors of up to e to this, means by so many deviations.
_FARTHEST = 14.0
# Each round looks at so many falls between two of the last: simulated laws take as long for one as for all.
_ROUNDS, _STEPS = 2, 257
_ON_GRID = 2001


def smallest_fall(
    metric: Metric, everything: Slices, n: int | None, alpha: float, alternative: Alternative
) -> float | None:
    """Return by how much a metric has to be worse on a slice for its own test to call it with probability `POWER`.

    The slice has n examples in the metric's denominator, None for all: "Smallest falls" of docs/explanation/statistics.md.
    Returns the fall in the metric's unit, above 0; None where the method does not hold (weights, AUC and what is not of
    counts or a mean), no slice of this size could be that much worse, or there are fewer examples.
    """
    path = _path(metric, everything, n)
    if path is None:
        return None
    low, high = path.unchanged, _FARTHEST
    for _ in range(_ROUNDS):
        strengths = np.linspace(low, high, _STEPS)
        called = np.flatnonzero(path.p_values(strengths, alternative) <= alpha)
        if not called.size:
            return None
        low, high = strengths[max(called[0] - 1, 0)], strengths[called[0]]
    fall = float(path.worse_by(np.array([high]))[0])
    return fall if fall > 0 else None


def _path(metric: Metric, everything: Slices, n: int | None) -> _CellPath | _MeanPath | None:
    if everything.space.weighted:
        return None
    population = metric.seen(everything).total
    all_examples = within = int(population.sizes[0])
    if isinstance(metric, CellMetric):
        within = int(metric.denominator(population)[0]) if metric.counted else all_examples
    size = within if n is None else n
    if size > within:
        return None
    if isinstance(metric, CellMetric):
        return _CellPath(metric, population, size / within * all_examples)
    path = _MeanPath(metric, population, size) if type(metric) is Mean else None
    return path if path and path.deviation > 0 else None


class _CellPath:
    """Slices that are ever worse, by the strength of the tilt."""

    def __init__(self, metric: CellMetric, population: Slices, examples: float) -> None:
        self.metric, self.population, self.examples = metric, population, examples
        self.shares = population.counts[0] / population.sizes[0]
        self.sign = -1.0 if metric.higher_is_better else 1.0
        contributions = self.metric.contributions(population)[0] * self.sign
        contributions[self.shares == 0] = 0.0
        width = np.ptp(contributions[self.shares > 0])
        self.slopes = contributions / width if width > 0 else contributions * 0.0
        self.grid = np.linspace(-_FARTHEST, _FARTHEST, _ON_GRID)
        self.on_grid = np.maximum.accumulate(self.worse_by(self.grid))

    @cached_property
    def unchanged(self) -> float:
        """The strength at which the metric is not worse."""
        return float(np.interp(0.0, self.on_grid, self.grid))

    def _tilted(self, strengths: FloatArray) -> FloatArray:
        """Return the shares of the cells [strengths, cells]."""
        weights = self.shares * np.exp(strengths[:, None] * self.slopes)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def _at(self, counts: IntArray) -> Slices:
        return replace(self.population, sums=counts)

    def worse_by(self, strengths: FloatArray) -> FloatArray:
        """Return by how much the metric is worse [strengths]."""
        slices = self._at(np.rint(self._tilted(strengths) * _MANY).astype(np.int64))
        return np.asarray(self.metric.delta(slices) * self.sign)

    def p_values(self, strengths: FloatArray, alternative: Alternative) -> FloatArray:
        """Return the p-values [strengths] of slices that `POWER` of the draws are worse than."""
        shares = self._tilted(strengths)
        slices = self._at(np.rint(shares * _MANY).astype(np.int64))
        spread = (shares * (self.metric.contributions(slices) * _MANY) ** 2).sum(axis=1)
        nearer = self.worse_by(strengths) - ndtri(POWER) * np.sqrt(spread / self.examples)
        counts = _whole(self._tilted(np.interp(nearer, self.on_grid, self.grid)) * self.examples)
        p = np.ones(strengths.shape)
        # Of what all examples have too little of, no slice has so much; a change may be any.
        possible = (counts <= self.population.counts[0]).all(axis=1) | self.population.is_paired
        if possible.any():
            p[possible] = self.metric.test(self._at(counts[possible]), alternative).p
        return p


class _MeanPath:
    """Slices whose values are all worse by a number of deviations, the strength."""

    def __init__(self, metric: Mean, population: Slices, n: int) -> None:
        self.metric, self.population, self.n = metric, population, n
        self.sign = -1.0 if metric.higher_is_better else 1.0
        source: Source = "change" if population.is_paired else "new"
        self.deviation = float(np.sqrt(metric.moments(population, source).variance[0]))
        before = float(metric.delta(population)[0]) * self.sign
        self.unchanged = -before / self.deviation if self.deviation > 0 else 0.0

    def worse_by(self, strengths: FloatArray) -> FloatArray:
        """Return by how much the metric is worse [strengths]."""
        return np.asarray((strengths - self.unchanged) * self.deviation)

    def p_values(self, strengths: FloatArray, alternative: Alternative) -> FloatArray:
        """Return the p-values [strengths] of slices that `POWER` of the draws are worse than."""
        space, totals = self.population.space, self.population.sums[0]
        part = self.n / self.population.sizes[0]
        possible = np.ones(strengths.shape, bool)
        of_each = np.zeros((strengths.size, space.columns), np.int64)
        of_each[:, : space.cells] = _whole(totals[None, : space.cells] * part)
        moved = (strengths - ndtri(POWER) / np.sqrt(self.n)) * self.deviation * self.sign
        for at, term in enumerate(space.terms):
            if term.value != self.metric.name:
                continue
            added = moved * 0.0
            if term.source != "old":
                mean = self.metric.moments(self.population, term.source).mean[0]
                added = moved if term.power == 1 else moved * (2.0 * mean + moved)
            column = totals[space.cell_columns + at] * part + self.n * added / space.scales[at]
            # Beyond what a sum has room for.
            possible &= np.abs(column) < _LARGEST_SUM
            of_each[:, space.cell_columns + at] = np.rint(np.where(possible, column, 0.0))
        p = np.ones(strengths.shape)
        if possible.any():
            slices = replace(self.population, sums=of_each[possible])
            p[possible] = self.metric.test(slices, alternative).p
        return p


def _whole(expected: FloatArray) -> IntArray:
    """Return whole numbers [slices, cells] of nearly the same sum: the largest parts are rounded up."""
    low = np.floor(expected)
    parts = expected - low
    missing = np.rint(parts.sum(axis=1)).astype(np.int64)
    place = np.argsort(np.argsort(-parts, axis=1, kind="stable"), axis=1)
    return np.asarray(low + (place < missing[:, None])).astype(np.int64)
