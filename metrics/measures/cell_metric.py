"""Metrics of counts: a formula of how many examples are in some sets, with its tests and intervals.

Such a metric is homogeneous of degree 0 in the counts, so an example contributes its gradient g, and the linearised
variance is Σ_k c_k·g_k², c_k being Σw² where examples have weights (Särndal, Swensson and Wretman 1992, section 5.5).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray, Pair, ratio
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.metric import Metric, Needs, Slices
from slicebeam.metrics.significance import count_tests, hall, intervals, permutation
from slicebeam.metrics.significance.outcome_codes import LEAST_DENOMINATOR, Method, Reason, Tested
from slicebeam.metrics.significance.random_subset import Population

# A variance of less is what rounding leaves of none, for any number of examples.
_ROUNDING = 1e-25
_ROUNDED_GRADIENT = 1e-9
# With fewer a test against a margin is too liberal, by simulation.
_LEAST_CONTRIBUTIONS = 10.0
# Weights of a squared coefficient of variation below this are equal, but for rounding.
_EQUAL_WEIGHTS = 1e-9
# Draws of the permutation law for each slice size: its deviation is known to 1.4 percent.
_PERMUTATIONS = 2500


class CellMetric(Metric):
    """A metric of counts: a `formula` of the numbers of examples in some sets; `Metric` has an example."""

    # the sets, each a condition on the indicators such as ``positive & ~predicted``; empty for all
    counts: tuple[str, ...] = ()
    denominators: tuple[str, ...] = ("",)  # the sets that the metric is undefined without
    margins: tuple[str, ...] = ()  # sets of which all are needed, where denominators are not enough
    is_ratio: bool = False  # whether it is of ratios of sums of counts, one for each denominator

    def __init_subclass__(cls) -> None:
        """Derive from the conditions what must be known of each example."""
        if "counts" in cls.__dict__ and "needs" not in cls.__dict__:
            cls.needs = needs_of(*cls.counts)

    def parts(self, slices: Slices) -> list[BoolArray]:
        """Return the sets of cells [cells] whose counts the formula takes, in its order."""
        return [slices.where(condition) for condition in self.counts]

    def strata(self, slices: Slices) -> list[BoolArray]:
        """Return the denominators of the metric, each as the cells [cells] that are in it."""
        return [slices.where(condition) for condition in self.denominators]

    def part_counts(self, cells: NDArray[Any], slices: Slices) -> list[NDArray[Any]]:
        """Return the counts of `parts`, each [slices], of (weighted) counts by cell [slices, cells]."""
        return [cells[:, part].sum(axis=1) for part in self.parts(slices)]

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """Return the metric [slices] of the counts of `parts`, each [slices]; NaN where undefined.

        By arithmetic, `ratio` and ``np.sqrt``: it is differentiated by a complex step.
        """
        raise NotImplementedError

    def value(self, slices: Slices) -> FloatArray:
        return self.formula(*self.part_counts(slices.weights, slices))

    def gradient(self, slices: Slices) -> FloatArray:
        """Return ∂metric/∂count [slices, cells], 0 where undefined."""
        counts = self.part_counts(slices.weights, slices)
        slopes = intervals.slopes(self.formula, counts)
        defined = ~np.isnan(self.formula(*counts))
        return np.where(defined, slopes, 0.0).T @ np.array(self.parts(slices), np.float64)

    def denominator(self, slices: Slices) -> IntArray:
        """Return the examples [slices] in the smallest denominator, or margin."""
        within = self.margins or self.denominators
        return np.asarray(np.minimum.reduce([slices.count(condition) for condition in within]))

    def seen(self, slices: Slices) -> Slices:
        """See `Metric.seen`: over the metric's own cells, and without weights that are all equal."""
        space = slices.space
        seen = tuple(name for name in space.indicators if name in self.needs.indicators)
        classes = space.classes if self.needs.classes else 0
        own = replace(
            space, indicators=seen, classes=classes, terms=(), total_terms=(), ranked=False
        )
        cell = np.zeros(space.cells, np.int64)
        for axis, old in own.axes:
            cell += space.code(axis, old=old) * own.stride(axis, old=old)
        merge = (cell[:, None] == np.arange(own.cells)).astype(np.int64)
        first, second = (space.weights(slices.totals, power).sum() for power in (1, 2))
        n = space.sizes(slices.totals)
        if space.weighted and n * second - first**2 <= _EQUAL_WEIGHTS * first**2:
            own = replace(own, weighted=False)

        def merged(some: IntArray) -> IntArray:
            shape, powers = some.shape[:-1], own.cell_columns // own.cells
            by_cell = some[..., : powers * space.cells].reshape(*shape, powers, space.cells)
            return np.asarray((by_cell @ merge).reshape(*shape, own.cell_columns))

        return Slices(merged(slices.sums), own, merged(slices.totals))

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        """Return the reasons [slices] against a test that hold for any test; 0 for none."""
        n, denominator = slices.counts.sum(axis=1), self.denominator(slices)
        if slices.is_paired:
            denominator = np.minimum(denominator, self.denominator(slices.old))
        # Where all examples are the denominator the smallest slice size says what is too small.
        small = (denominator < LEAST_DENOMINATOR) & (denominator < n)
        reasons = np.where(small, Reason.SMALL_DENOMINATOR, 0)
        reasons[denominator == 0] = Reason.UNDEFINED
        if not slices.is_paired:
            outside = [slices.rest.count(cells) for cells in self.strata(slices)]
            # Nothing is left to compare with.
            reasons[(np.maximum.reduce(outside) == 0) & (reasons == 0)] = Reason.WHOLE
            reasons[n == slices.total.counts.sum()] = Reason.WHOLE
        return reasons.astype(np.int8)

    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        """Test by the law of random subsets, of counts with weights by that of their contributions."""
        if not slices.space.weighted:
            return self.test_counts(slices, tail)
        rest = slices.rest
        # A few heavy examples may be most of the slice, or of what is outside.
        few = np.minimum(self.effective_n(slices), self.effective_n(rest))
        p, varies = self._weighted_subset_p(slices, slices.total, tail)
        against = {
            Reason.UNDEFINED: np.isnan(self.value(slices)),
            Reason.WHOLE: ~(rest.weights.sum(axis=1) > 0),
            Reason.TOO_SKEWED: few < LEAST_DENOMINATOR,
            Reason.CONSTANT: ~varies,
        }
        return Tested.by(Method.WEIGHTED_SUBSET, p, first_reason(against))

    def test_counts(self, slices: Slices, tail: Tail) -> Tested:
        """Test counts without weights by the simulated law of the metric on random subsets."""
        if np.count_nonzero(slices.total.counts) < 2:
            return Tested.by(Method.NONE, np.ones(len(slices)), Reason.CONSTANT)

        def value_of(cells: IntArray) -> FloatArray:
            return self.value(replace(slices, sums=cells))

        counts, observed = (slices.counts, slices.total.counts[0]), self.value(slices)
        return permutation.permutation_p_value(value_of, *counts, observed, tail, _PERMUTATIONS)

    def test_change(self, slices: Slices, tail: Tail) -> Tested:
        """Test two models by Hall's t of contributions; by signs where these never vary, nor do those of all."""
        # Where they vary among all only, no p is below that of signs, 2⁻ᵈ of d examples on which the models differ.
        t, varies = self.change(slices)
        different = slices.kish(discordant_cells(slices))
        p, too_skewed = t.p_value(tail)
        constant = ~(t.error > 0)
        against = {
            Reason.UNDEFINED: np.isnan(t.difference),
            Reason.TOO_SKEWED: too_skewed & (different > 0),
            Reason.UNCHANGED: (different == 0) | (constant & (t.difference == 0)),
        }
        p = np.where(varies, p, np.maximum(p, np.exp2((tail == "both") - different)))
        flipped = count_tests.constant_change_p(different, t.difference, tail)
        method = np.where(constant, Method.SIGN_FLIP, Method.HALL_PAIRED)
        return Tested.by(method, np.where(constant, flipped, p), first_reason(against))

    def change(self, slices: Slices) -> tuple[hall.TStatistic, BoolArray]:
        """Return Hall's t of the change between two models, and whether contributions vary on the slice."""
        # docs/explanation/statistics.md has the formula.
        population = slices.total
        own, of_all = self.contributions(slices), self.contributions(population)
        every = np.ones(slices.space.cells, bool)
        n, N = slices.kish(every), population.kish(every)
        variance = (slices.squares * own**2).sum(axis=1)
        spread = population.squares * of_all**2
        pooled = np.zeros(n.shape)
        for new, old in zip(self.strata(slices), self.strata(slices.old), strict=True):
            within = new | old
            times = population.kish(within) / np.maximum(slices.kish(within), 1.0)
            pooled += spread[:, within].sum(axis=1) * times
        second = spread.sum(axis=1)
        cubes = population.cubes
        third = ratio((cubes * of_all**3).sum(axis=1), second**1.5, otherwise=0.0) * np.sqrt(N)
        fourths = ratio(cubes**2, population.squares, otherwise=0.0) * of_all**4
        kurtosis = ratio(fourths.sum(axis=1), second**2, otherwise=0.0) * N
        added = ratio(kurtosis, kurtosis + n, otherwise=0.0)
        varies = variance > 0
        variance += added * np.maximum(pooled - variance, 0.0)
        fewest = np.minimum(self.denominator(slices), self.denominator(slices.old))
        fewest = ratio(fewest * n, slices.counts.sum(axis=1), otherwise=0.0)
        df = np.maximum(np.minimum(2.0 * fewest, n) - 1.0, 1.0)
        G = ratio(third, np.sqrt(n), otherwise=0.0)
        delta = self.value(slices) - self.value(slices.old)
        error, skewed = np.sqrt(variance), np.abs(G) > 1.0
        return hall.TStatistic(delta, error, df, G, n >= 2.0, skewed), varies

    def margin_p(self, slices: Slices, margin: float, tail: Tail) -> FloatArray:
        """Return p [slices] of a change by the margin: Student's t of contributions, 1 for fewer than ten (Kish)."""
        population, every = slices.total, np.ones(slices.space.cells, bool)
        own, of_all = self.contributions(slices), self.contributions(population)[0]
        second = (slices.squares * own**2).sum(axis=1)
        fourths = ratio(slices.cubes**2, slices.squares, otherwise=0.0) * own**4
        delta, before = (self.value(some) - self.value(some.old) for some in (slices, population))
        enough = ratio(second**2, fourths.sum(axis=1), otherwise=0.0) >= _LEAST_CONTRIBUTIONS
        enough &= ~np.isnan(delta)
        if np.isnan(before[0]) or not (of_all**2 * population.squares).any():
            return np.ones(len(slices))
        # Of an example of mean square weight in each cell.
        held, squares = population.weights[0], population.squares[0]
        examples = ratio(held**2, squares, otherwise=0.0)
        points = of_all * ratio(squares, held, otherwise=0.0) * examples.sum()
        some = examples > 0
        law = Population(tuple(points[some].tolist()), tuple(examples[some].tolist()))
        n, t = slices.kish(every), np.where(enough, delta - margin, 0.0)
        t /= np.sqrt(np.where(enough, second, 1.0))
        about = (t**2 + n - 1.0) / np.maximum(n, 1.0)
        p = hall.student_p(n, t, about, law, margin - before[0], tail)
        return np.where(enough, p, 1.0)

    def contributions(self, slices: Slices) -> FloatArray:
        """Return what an example of each cell adds to value or change, without what rounding leaves of none."""
        if not slices.is_paired:
            return self.gradient(slices)
        change = self.gradient(slices) - self.gradient(slices.old)
        # A gradient is of the order of 1/n.
        size = np.abs(change) * slices.weights.sum(axis=1)[:, None]
        return np.where(size > _ROUNDED_GRADIENT, change, 0.0)

    def _weighted_subset_p(
        self, slices: Slices, population: Slices, tail: Tail
    ) -> tuple[FloatArray, BoolArray]:
        """Return p [slices] if each were a random subset of a population, and where that varies."""
        # docs/explanation/statistics.md has the formula.
        cells, whole = slices.weights, population.weights
        slopes = self.gradient(population)
        alike = slices.counts * ratio(population.squares, population.counts, otherwise=0.0)
        score, variance, third = np.zeros((3, len(cells)))
        for within in self.strata(slices):

            def total(values: NDArray[Any], within: BoolArray = within) -> FloatArray:
                return np.asarray(values[:, within].sum(axis=1))

            scale = ratio(total(whole), total(cells), otherwise=0.0)
            share = ratio(total(slices.counts), total(population.counts), otherwise=0.0)
            own = ratio(total(slices.squares), total(alike), otherwise=1.0)
            fewer = scale**2 * share * own
            score += scale * total(cells * slopes)
            variance += fewer * total(population.squares * slopes**2)
            third += fewer**2 * total(population.cubes * slopes**3)
        if not self.is_ratio:
            # Neither the slope nor the difference alone holds for any composition of the slice.
            delta = self.value(slices) - self.value(population)
            nearer = np.minimum(np.abs(score), np.abs(delta))
            score = np.where(score * delta > 0, np.copysign(nearer, delta), 0.0)
        part = np.clip(cells.sum(axis=1) / whole.sum(axis=1), 0.0, 1.0)
        variance *= 1.0 - part
        varies = variance > _ROUNDING
        deviation = np.sqrt(np.where(varies, variance, 1.0))
        skewness = third * (1.0 - part) * (1.0 - 2.0 * part) / deviation**3
        deviation = np.where(varies, deviation, 0.0)
        return permutation.pearson_iii_p_value(score, 0.0, deviation, skewness, tail), varies

    def effective_n(self, slices: Slices) -> FloatArray:
        """Return the effective number of examples [slices] in the smallest denominator."""
        return np.asarray(np.minimum.reduce([slices.kish(cells) for cells in self.strata(slices)]))

    def value_variance(self, slices: Slices) -> FloatArray:
        """Return the delta method's variance of the value [slices]."""
        return np.asarray((self.gradient(slices) ** 2 * slices.squares).sum(axis=1))

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Delta method, with t at the effective number; with weights the variance is at least that of all the data."""
        variance, whole = self.value_variance(slices), slices.total
        if slices.space.weighted:
            # If each effective example varied as those of all do.
            spread, pooled = self.gradient(whole) ** 2 * whole.squares, np.zeros(len(slices))
            for within in self.strata(slices):
                of_all = spread[:, within].sum(axis=1) * whole.kish(within)
                pooled += of_all / np.maximum(slices.kish(within), 1.0)
            variance = np.maximum(variance, pooled)
        n = self.effective_n(slices)
        return intervals.by_delta_method(self.value(slices), variance, self.range, n, confidence)

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Arms of the value's interval, scaled to the delta's deviation; the error of `change` for two models."""
        own = self.seen(slices)
        width = self.range[1] - self.range[0]
        if slices.is_paired:
            (t, _), n = self.change(own), self.effective_n(own)
            limits = -width, width
            return intervals.by_delta_method(t.difference, t.error**2, limits, n, confidence)
        of_value = self.value(slices), *self.value_interval(slices, confidence)
        variances = self.value_variance(own), self._ahead_variance(own, own.total)
        reference = self.reference(slices)
        return intervals.shrunk_to_delta(of_value, variances, reference, width, confidence)

    def _ahead_variance(self, slices: Slices, population: Slices) -> FloatArray:
        """Return the variance [slices] of a value, or change, less that of the population it is part of."""
        own, above = self.contributions(slices), self.contributions(population)
        return hall.ahead_variance(own, above, slices.squares, population.squares)

    def ahead(self, slices: Slices, parents: Slices) -> Pair:
        """See `Metric.ahead`: by the delta method."""
        freedom = np.maximum(self.effective_n(slices) - 1.0, 1.0)
        return self._ahead_variance(slices, parents), freedom

    def inputs(self, slices: Slices) -> dict[str, float]:
        """Return the counts by cell, named by what holds in each, of the slice and of all examples."""
        named: dict[str, float] = {}
        slices = self.seen(slices)
        space = slices.space
        for prefix, some in (("slice", slices), ("all", slices.total)):
            columns = {"count": some.counts[0].astype(np.float64)}
            for power, kind in ((1, "weight"), (2, "weight squared")) if space.weighted else ():
                # Squares of weights of 1e200 are no numbers, though nothing is computed from them.
                with np.errstate(over="ignore"):
                    exponent = power * space.weight_exponent
                    columns[kind] = np.ldexp(space.weights(some.sums[0], power), exponent)
            for kind, column in columns.items():
                for cell, count in enumerate(column.tolist()):
                    named[f"{prefix} {kind}: {cell_name(space, cell)}"] = count
            if space.weighted:
                named[f"{prefix} examples"] = float(some.sizes[0])
        return named


def first_reason(against: dict[Reason, BoolArray]) -> NDArray[Any]:
    """Return the first reason that holds of each slice [slices]; 0 for none."""
    return np.select(list(against.values()), list(against), 0)


def needs_of(*conditions: str) -> Needs:
    """Return the indicators that conditions name."""
    return Needs(indicators=tuple(sorted(set(re.findall(r"[^\s&|~]+", " ".join(conditions))))))


def discordant_cells(slices: Slices) -> BoolArray:
    """Return the cells [cells] of examples on which the two models differ."""
    space = slices.space
    both = [axis for axis, old in space.axes if old and (axis, False) in space.axes]
    differ = [space.code(axis) != space.code(axis, old=True) for axis in both]
    return np.any(differ, axis=0) if differ else np.zeros(space.cells, bool)


def cell_name(space: StatisticSpace, cell: int) -> str:
    """Return what holds of the examples of a cell, such as "positive, not predicted"."""
    words = []
    for (axis, old), (stride, size) in space.axes.items():
        code, name = cell // stride % size, f"old {axis}" if old else axis
        of_class = axis in ("label_class", "predicted_class")
        words.append(f"{name} {code}" if of_class else name if code else f"not {name}")
    return ", ".join(words) or "all"
