"""Metrics that are a function of cell counts: their weights, gradients and general tests.

Such a metric is homogeneous of degree 0 in the counts (twice the examples, the same value), so the
linearised variance of its value is Σ_k c_k·g_k² with the gradient g (Särndal, Swensson and Wretman
1992, "Model assisted survey sampling", section 5.5), c_k being Σw² where examples have weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.intervals import cell_intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.significance import (
    count_tests,
    delta_method,
    outcome_codes,
    pearson_iii,
    permutation,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Tail
    from slicebeam.metrics.significance.outcome_codes import Tested

    Sums = IntArray


# A variance of less is what rounding leaves of none, for any number of examples.
_ROUNDING = 1e-25
_ROUNDED_GRADIENT = 1e-9
# Weights of a squared coefficient of variation below this are equal, but for rounding.
_EQUAL_WEIGHTS = 1e-9
_STEP = 1e-100
# Draws of the permutation law for each slice size: its deviation is known to 1.4 percent.
_PERMUTATIONS = 2500


class CellMetric(base.Metric):
    """A metric of cell counts: a `formula` of the counts of some `parts`; `Metric` has an example.

    Its denominators are `strata`, if they are not all examples. The test against all examples is the law
    of the metric on random subsets; the rest is by the delta method. ``is_ratio`` says that it is a function of
    ratios of sums of counts, one for each denominator.
    """

    is_ratio: bool = False

    def parts(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """Return the sets of cells [cells] whose counts the formula takes, in its order."""
        raise NotImplementedError

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """Return the metric [slices] of the counts of `parts`, each [slices]; NaN where undefined.

        A smooth function, by arithmetic, `ratio` and ``np.sqrt``: it is differentiated by a complex step.
        """
        raise NotImplementedError

    def of_cells(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """Return the metric [slices] of (weighted) counts by cell [slices, cells]."""
        return self.formula(*(cells[:, part].sum(axis=1) for part in self.parts(space, old=old)))

    def gradient(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """Return ∂metric/∂count [slices, cells]; 0 where the metric is undefined.

        f(x + ih) = f(x) + ih·f'(x) to the last digit at h = 1e-100: Squire and Trapp (1998).
        """
        parts = self.parts(space, old=old)
        counts = [cells[:, part].sum(axis=1) for part in parts]
        defined = ~np.isnan(self.formula(*counts))
        gradient = np.zeros(cells.shape)
        for at, part in enumerate(parts):
            moved = [*counts[:at], counts[at] + _STEP * 1j, *counts[at + 1 :]]
            with np.errstate(invalid="ignore"):
                slope = self.formula(*moved).imag / _STEP
            gradient[:, part] += np.where(defined, slope, 0.0)[:, None]
        return gradient

    def denominator(self, counts: Sums, space: StatisticSpace, *, old: bool = False) -> Sums:
        """Return the examples [slices] in the smallest denominator, of counts [slices, cells]."""
        within = [counts[:, cells].sum(axis=1) for cells in self.strata(space, old=old)]
        return np.asarray(np.minimum.reduce(within))

    def _test_overall(
        self, counts: Sums, totals: Sums, space: StatisticSpace, tail: Tail
    ) -> Tested:
        """Test counts [slices, cells] without weights by the law of the metric on random subsets."""
        reasons = self.untestable(counts, totals, space)
        if np.count_nonzero(totals) < 2:
            reasons[reasons == 0] = outcome_codes.CONSTANT
        p = np.ones(len(counts))
        some = np.flatnonzero(reasons == 0)
        values = self.of_cells(counts[some].astype(np.float64), space)
        p[some], reasons[some], _ = permutation.permutation_p_value(
            lambda cells: self.of_cells(cells.astype(np.float64), space),
            counts[some],
            totals,
            values,
            tail,
            _PERMUTATIONS,
        )
        return outcome_codes.Tested.by(outcome_codes.CELL_PERMUTATION, p, reasons)

    def own_cells(
        self, sums: Sums, totals: Sums, space: StatisticSpace
    ) -> tuple[Sums, Sums, StatisticSpace]:
        """Return sums [slices, columns] and totals over the cells that this metric distinguishes, and their space.

        Other metrics may need finer cells; this metric's results must not depend on them. Weights that are
        all equal are left out.
        """
        own = replace(
            space,
            indicators=tuple(name for name in space.indicators if name in self.needs.indicators),
            classes=space.classes if self.needs.classes else 0,
            terms=(),
            total_terms=(),
            ranked=False,
        )
        cell = np.zeros(space.cells, np.int64)
        for axis, old in own.axes:
            cell += space.code(axis, old=old) * own.stride(axis, old=old)
        merge = (cell[:, None] == np.arange(own.cells)).astype(np.int64)
        first, second = (space.weights(totals, power).sum() for power in (1, 2))
        if space.weighted and space.sizes(totals) * second - first**2 <= _EQUAL_WEIGHTS * first**2:
            own = replace(own, weighted=False)

        def merged(some: Sums) -> Sums:
            parts = some[..., : own.cell_columns // own.cells * space.cells]
            by_cell = parts.reshape(*some.shape[:-1], -1, space.cells) @ merge
            return np.asarray(by_cell.reshape(*some.shape[:-1], -1))

        return merged(sums), merged(totals), own

    def value(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """See `Metric.value`."""
        return self.of_cells(space.weights(sums), space, old=old)

    def test(
        self, sums: Sums, totals: Sums, space: StatisticSpace, alternative: Alternative
    ) -> Tested:
        """Test by exact laws of counts where there are some, else by the delta method."""
        tail = self.tail(alternative)
        sums, totals, space = self.own_cells(sums, totals, space)
        if space.weighted:
            return self._test_weighted(sums, totals, space, tail)
        counts = space.counts(sums)
        if space.comparison == "baseline":
            # Half an example is added to every cell: only to those that occur.
            occurring = space.counts(totals) > 0
            return self._test_paired(counts, occurring, space, tail)
        return self._test_overall(counts, space.counts(totals), space, tail)

    def untestable(self, sums: Sums, totals: Sums, space: StatisticSpace) -> NDArray[np.int8]:
        """Return the reasons [slices] against a test that hold for any test; 0 for none."""
        counts = space.counts(sums)
        n = counts.sum(axis=1)
        denominator = self.denominator(counts, space)
        least = outcome_codes.LEAST_DENOMINATOR
        if space.comparison == "baseline":
            denominator = np.minimum(denominator, self.denominator(counts, space, old=True))
        # Where all examples are the denominator the smallest slice size says what is too small.
        small = (denominator < least) & (denominator < n)
        reasons = np.where(small, outcome_codes.SMALL_DENOMINATOR, 0)
        reasons[denominator == 0] = outcome_codes.UNDEFINED
        if space.comparison == "overall":
            reasons[n == space.counts(totals).sum()] = outcome_codes.WHOLE
        return reasons.astype(np.int8)

    def _test_paired(
        self, counts: Sums, occurring: BoolArray, space: StatisticSpace, tail: Tail
    ) -> Tested:
        reasons = self.untestable(counts, counts[:0].sum(axis=0), space)
        cells = counts.astype(np.float64)
        change = self.of_cells(cells, space) - self.of_cells(cells, space, old=True)
        differs = (counts[:, tells_models_apart(space)] > 0).any(axis=1)
        reasons[~differs & (reasons == 0)] = outcome_codes.UNCHANGED
        p = np.ones(len(counts))
        ready = reasons == 0
        # A class that a model never predicts on the slice has no gradient at the counts, nor have two
        # models of which each is wholly right or wrong there. With half an example more in each cell
        # there is one; that one alone is too liberal in rare classes.
        p[ready] = np.nan
        for added in (0.0, delta_method.PSEUDO_COUNT):
            at = cells[ready] + added * occurring
            new, old = (
                self.gradient(at, space, old=of_old)[:, occurring] for of_old in (False, True)
            )
            found = delta_method.paired_p_value(
                change[ready], new, old, counts[ready][:, occurring], tail
            )
            # A gradient is of the order of 1/n: less is what rounding leaves of none.
            apart = np.abs(new - old) * cells[ready].sum(axis=1, keepdims=True) > _ROUNDED_GRADIENT
            has_variance = (apart & (cells[ready][:, occurring] > 0)).any(axis=1)
            p[ready] = np.fmax(p[ready], np.where(has_variance, found, np.nan))
        method = np.where(np.isnan(p), outcome_codes.EXCHANGE, outcome_codes.DELTA_METHOD).astype(
            np.int8
        )
        p = np.where(np.isnan(p), exchange_p_value(counts, change, space, tail), p)
        reasons[np.isnan(p)] = outcome_codes.NO_VARIANCE
        return outcome_codes.Tested.by(method, np.nan_to_num(p, nan=1.0), reasons)

    def _test_weighted(self, sums: Sums, totals: Sums, space: StatisticSpace, tail: Tail) -> Tested:
        """Test by the contributions of single examples: `_random_subset_p`, or a t of two models' change."""
        reasons = self.untestable(sums, totals, space)
        delta = self.delta(sums, totals, space)
        reasons[(reasons == 0) & np.isnan(delta)] = outcome_codes.UNDEFINED
        if space.comparison == "overall":
            whole = totals[None, : space.columns]
            rest = whole - sums
            reasons[(reasons == 0) & ~(space.weights(rest).sum(axis=1) > 0)] = outcome_codes.WHOLE
            # A few heavy examples are most of the slice, or of what is outside.
            few = np.minimum(*(self.effective_n(some, space) for some in (sums, rest)))
            p, varies = self._random_subset_p(sums, whole, space, tail)
            reasons[(reasons == 0) & (few < outcome_codes.LEAST_DENOMINATOR)] = (
                outcome_codes.TOO_SKEWED
            )
            reasons[(reasons == 0) & ~varies] = outcome_codes.CONSTANT
            return outcome_codes.Tested.by(outcome_codes.WEIGHTED_SUBSET, p, reasons)
        variance = self.delta_variance(sums, totals, space)
        constant = (reasons == 0) & ~(variance > _ROUNDING)
        reasons[constant] = np.where(
            delta[constant] == 0, outcome_codes.UNCHANGED, outcome_codes.UNVARYING
        )
        freedom = np.maximum(self.effective_n(sums, space) - 1.0, 1.0)
        p = delta_method.wald_p_value(delta, variance, freedom, tail)
        method = np.full(len(sums), outcome_codes.LINEARISED, np.int8)
        if self.kind == "pointwise":
            # Every example changes by the same amount.
            flipped = constant & (delta != 0)
            p[flipped] = count_tests.constant_change_p(
                self.effective_n(sums, space)[flipped], delta[flipped], tail
            )
            reasons[flipped], method[flipped] = 0, outcome_codes.SIGN_FLIP
        return outcome_codes.Tested.by(method, p, reasons)

    def _random_subset_p(
        self, sums: Sums, population: Sums, space: StatisticSpace, tail: Tail
    ) -> tuple[FloatArray, BoolArray]:
        """Return p [slices] if each were a random subset of a population, and where that varies.

        An example contributes its weight times the population's gradient. The sum has the tail of Pearson's
        type III law with the moments of as many of the population's examples, cell by cell as unequal as
        the slice's own. The third powers of weights, which are not summed, are those of a gamma law.
        """
        cells, whole = space.weights(sums), space.weights(population)
        counts, of_all = (space.counts(some).astype(np.float64) for some in (sums, population))
        own, squares = space.weights(sums, 2), space.weights(population, 2)
        slopes = self.gradient(whole, space)
        alike = counts * ratio(squares, of_all, otherwise=0.0)
        # Squares of weights may be rounded to 0.
        unequal = np.maximum(ratio(of_all * squares, whole**2, otherwise=1.0), 1.0)
        cubes = ratio(squares**2, whole, otherwise=0.0) * (2.0 - 1.0 / unequal) * slopes**3
        score, variance, third = np.zeros((3, len(sums)))
        for within in self.strata(space):

            def total(values: FloatArray, within: BoolArray = within) -> FloatArray:
                return np.asarray(values[:, within].sum(axis=1))

            scale = ratio(total(whole), total(cells), otherwise=0.0)
            share = ratio(total(counts), total(of_all), otherwise=0.0)
            fewer = scale**2 * share * ratio(total(own), total(alike), otherwise=1.0)
            score += scale * total(cells * slopes)
            variance += fewer * total(squares * slopes**2)
            third += fewer**2 * total(cubes)
        if not self.is_ratio:
            # Neither the slope nor the difference alone holds for any composition of the slice.
            delta = self.of_cells(cells, space) - self.of_cells(whole, space)
            nearer = np.minimum(np.abs(score), np.abs(delta))
            score = np.where(score * delta > 0, np.copysign(nearer, delta), 0.0)
        part = np.clip(cells.sum(axis=1) / whole.sum(axis=1), 0.0, 1.0)
        variance *= 1.0 - part
        varies = variance > _ROUNDING
        deviation = np.sqrt(np.where(varies, variance, 1.0))
        skewness = third * (1.0 - part) * (1.0 - 2.0 * part) / deviation**3
        deviation = np.where(varies, deviation, 0.0)
        return pearson_iii.pearson_iii_p_value(score, 0.0, deviation, skewness, tail), varies

    def strata(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """Return the denominators of the metric, each as the cells [cells] that are in it."""
        return [np.ones(space.cells, bool)]

    def _pooled_variance(
        self, sums: Sums, totals: Sums, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """Return the value's variance if each effective example varied as those of all do."""
        whole = totals[None, : space.columns]
        spread = self.gradient(space.weights(whole), space, old=old) ** 2
        spread = spread * self._squares(whole, space)
        pooled = np.zeros(len(sums))
        for within in self.strata(space, old=old):
            own = float(spread[:, within].sum()) * self._kish(whole, within, space)
            pooled += own / np.maximum(self._kish(sums, within, space), 1.0)
        return pooled

    def _kish(self, sums: Sums, within: BoolArray, space: StatisticSpace) -> FloatArray:
        """Return Kish's effective number of examples [slices] in some cells, (Σw)²/Σw²."""
        first = space.weights(sums)[:, within].sum(axis=1)
        second = self._squares(sums, space)[:, within].sum(axis=1)
        effective: FloatArray = np.divide(
            first**2, second, out=np.zeros(first.shape), where=second > 0
        )
        return effective

    def effective_n(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """Return the effective number of examples [slices] in the smallest denominator."""
        numbers = [self._kish(sums, within, space) for within in self.strata(space, old=old)]
        return np.asarray(np.minimum.reduce(numbers))

    def _squares(self, sums: Sums, space: StatisticSpace) -> FloatArray:
        return space.weights(sums, 2) if space.weighted else space.weights(sums)

    def delta_variance(self, sums: Sums, totals: Sums, space: StatisticSpace) -> FloatArray:
        """Return the delta method's Var(delta) [slices]."""
        cells, squares = space.weights(sums), self._squares(sums, space)
        new = self.gradient(cells, space)
        if space.comparison == "baseline":
            old = self.gradient(cells, space, old=True)
            return delta_method.paired_variance(new, old, squares)
        whole = totals[None, : space.columns]
        reference = self.gradient(space.weights(whole), space)
        return delta_method.variance(new, reference, squares, self._squares(whole, space))

    def value_variance(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """Return the delta method's variance of the value [slices]."""
        gradient = self.gradient(space.weights(sums), space, old=old)
        variance: FloatArray = (gradient**2 * self._squares(sums, space)).sum(axis=1)
        return variance

    def value_interval(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """Delta method, with t at the effective number of examples.

        With weights the variance is at least that of as many effective examples of all the data.
        """
        variance = self.value_variance(sums, space, old=old)
        if space.weighted:
            pooled = self._pooled_variance(sums, totals, space, old=old)
            variance = np.maximum(variance, pooled)
        return cell_intervals.by_delta_method(
            self.value(sums, space, old=old),
            variance,
            *self.range,
            self.effective_n(sums, space, old=old),
            confidence,
        )

    def delta_interval(
        self, sums: Sums, totals: Sums, space: StatisticSpace, confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """Arms of the value's interval, scaled to the delta's deviation; delta method for two models."""
        delta, variance = self.delta(sums, totals, space), self.delta_variance(sums, totals, space)
        width = self.range[1] - self.range[0]
        if space.comparison == "baseline":
            return cell_intervals.by_delta_method(
                delta, variance, -width, width, self.effective_n(sums, space), confidence
            )
        low, high = self.value_interval(sums, totals, space, confidence)
        return cell_intervals.difference_from_overall(
            self.value(sums, space),
            low,
            high,
            self.value_variance(sums, space),
            variance,
            self.reference(sums, totals, space),
            width,
            confidence,
        )

    def p_refine(
        self, sums: Sums, parents: Sums, totals: Sums, space: StatisticSpace, *, worse: bool
    ) -> FloatArray:
        """Wald test of child against parent by the delta method; the child is part of the parent."""
        tail = self.tail("worse" if worse else "better")
        child, parent = space.weights(sums), space.weights(parents)
        ahead = self.of_cells(child, space) - self.of_cells(parent, space)
        own, above = self.gradient(child, space), self.gradient(parent, space)
        if space.comparison == "baseline":
            before = self.of_cells(child, space, old=True) - self.of_cells(parent, space, old=True)
            ahead = ahead - before
            own = own - self.gradient(child, space, old=True)
            above = above - self.gradient(parent, space, old=True)
        variance = delta_method.variance(
            own, above, self._squares(sums, space), self._squares(parents, space)
        )
        freedom = np.maximum(self.effective_n(sums, space) - 1.0, 1.0)
        return delta_method.wald_p_value(ahead, variance, freedom, tail)

    def inputs(self, sums: Sums, totals: Sums, space: StatisticSpace) -> dict[str, float]:
        """Return the counts by cell, named by what holds in each, of the slice and of all examples."""
        named: dict[str, float] = {}
        sums, totals, space = self.own_cells(sums, totals, space)
        for prefix, some in (("slice", sums), ("all", totals)):
            columns = {"count": space.counts(some).astype(np.float64)}
            for power, kind in ((1, "weight"), (2, "weight squared")) if space.weighted else ():
                # Squares of weights of 1e200 are no numbers, though nothing is computed from them.
                with np.errstate(over="ignore"):
                    exponent = power * space.weight_exponent
                    columns[kind] = np.ldexp(space.weights(some, power), exponent)
            for kind, column in columns.items():
                for cell, count in enumerate(column.tolist()):
                    named[f"{prefix} {kind}: {cell_name(space, cell)}"] = count
            if space.weighted:
                named[f"{prefix} examples"] = float(space.sizes(some))
        return named


def ratio(above: NDArray[Any], below: NDArray[Any], *, otherwise: float = np.nan) -> NDArray[Any]:
    """Return above/below [slices], NaN or another number where the denominator is 0."""
    shape = np.broadcast_shapes(np.shape(above), np.shape(below))
    undefined = np.full(shape, otherwise, np.result_type(above, below, np.float64))
    return np.asarray(np.divide(above, below, out=undefined, where=np.real(below) > 0))


def exchange_p_value(
    counts: Sums, change: FloatArray, space: StatisticSpace, tail: Tail
) -> FloatArray:
    """Return the p-value of a change that is all one way, by exchange of the two models; NaN elsewhere.

    Of the 2^d ways to exchange models that are alike on the d examples that tell them apart, none is as
    extreme as one always being right: McNemar's (1947) exact test where one discordant count is 0.
    """
    right, was_right = (_is_right(space, old=old) for old in (False, True))
    gained = counts[:, right & ~was_right].sum(axis=1)
    lost = counts[:, was_right & ~right].sum(axis=1)
    different = counts[:, tells_models_apart(space)].sum(axis=1)
    one_way = (np.minimum(gained, lost) == 0) & (gained + lost == different) & (change != 0)
    smallest = np.exp2(-different.astype(np.float64))
    side = "lower" if tail == "lower" else "upper"
    p = np.where((change < 0) == (side == "lower"), smallest, 1.0)
    if tail == "both":
        p = np.minimum(2.0 * smallest, 1.0)
    return np.where(one_way & np.isfinite(change), p, np.nan)


def _is_right(space: StatisticSpace, *, old: bool) -> BoolArray:
    """Return in which cells [cells] a model's prediction is the label."""
    if ("predicted", old) in space.axes:
        return np.asarray(space.holds("positive") == space.holds("predicted", old=old))
    if ("predicted_class", old) in space.axes:
        classes = space.code("label_class"), space.code("predicted_class", old=old)
        return np.asarray(classes[0] == classes[1])
    return np.zeros(space.cells, bool)


def tells_models_apart(space: StatisticSpace) -> BoolArray:
    """Return the cells [cells] of examples on which the two models differ."""
    both = [axis for axis, old in space.axes if old and (axis, False) in space.axes]
    differ = [space.code(axis) != space.code(axis, old=True) for axis in both]
    return np.any(differ, axis=0) if differ else np.zeros(space.cells, bool)


def cell_name(space: StatisticSpace, cell: int) -> str:
    """Return what holds of the examples of a cell.

    >>> from slicebeam.metrics.counting.statistic_space import StatisticSpace
    >>> cell_name(StatisticSpace(("positive", "predicted"), "overall"), 1)
    'positive, not predicted'
    """
    words = []
    for (axis, old), (stride, size) in space.axes.items():
        code = cell // stride % size
        name = f"old {axis}" if old else axis
        if axis in ("label_class", "predicted_class"):
            words.append(f"{name} {code}")
        else:
            words.append(name if code else f"not {name}")
    return ", ".join(words) or "all"
