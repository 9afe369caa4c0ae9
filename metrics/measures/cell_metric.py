"""Metrics of counts: a formula of how many examples are in some sets, with its tests and intervals.

Such a metric is homogeneous of degree 0 in the counts (twice the examples, the same value), so an example
contributes its gradient g to the value, and the linearised variance is Σ_k c_k·g_k² (Särndal, Swensson and
Wretman 1992, "Model assisted survey sampling", section 5.5), c_k being Σw² where examples have weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.intervals import cell_intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.significance import count_tests, hall, pearson_iii, permutation
from slicebeam.metrics.significance.outcome_codes import LEAST_DENOMINATOR, Method, Reason, Tested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Tail

    Sums = IntArray


# A variance of less is what rounding leaves of none, for any number of examples.
_ROUNDING = 1e-25
_ROUNDED_GRADIENT = 1e-9
# Weights of a squared coefficient of variation below this are equal, but for rounding.
_EQUAL_WEIGHTS = 1e-9
_STEP = 1e-100
# Draws of the permutation law for each slice size: its deviation is known to 1.4 percent.
_PERMUTATIONS = 2500


@dataclass(frozen=True)
class SummedCells:
    """Sums [slices, columns] of sets of examples, seen by cell [slices, cells]."""

    sums: Sums
    space: StatisticSpace

    def __sub__(self, part: SummedCells) -> SummedCells:
        return SummedCells(self.sums - part.sums, self.space)

    @property
    def counts(self) -> Sums:
        """Examples."""
        return self.space.counts(self.sums)

    @cached_property
    def weights(self) -> FloatArray:
        """Σw; without weights examples."""
        return self.space.weights(self.sums)

    @cached_property
    def squares(self) -> FloatArray:
        """Σw²."""
        return self.space.weights(self.sums, 2) if self.space.weighted else self.weights

    @property
    def unequal(self) -> FloatArray:
        """By which factor the mean square of the weights exceeds their squared mean."""
        # Squares of weights may be rounded to 0.
        unequal = ratio(self.counts * self.squares, self.weights**2, otherwise=1.0)
        return np.asarray(np.maximum(unequal, 1.0))

    @property
    def cubes(self) -> FloatArray:
        """Σw³, which is not summed: as that of a gamma law."""
        return ratio(self.squares**2, self.weights, otherwise=0.0) * (2.0 - 1.0 / self.unequal)

    def kish(self, within: BoolArray) -> FloatArray:
        """Return Kish's effective number of examples [slices] in some cells, (Σw)²/Σw²."""
        first = self.weights[:, within].sum(axis=1)
        return ratio(first**2, self.squares[:, within].sum(axis=1), otherwise=0.0)


class CellMetric(base.Metric):
    """A metric of counts: a `formula` of the numbers of examples in some sets; `Metric` has an example.

    The test against all examples is the law of the metric on random subsets; that of two models is Hall's t
    of what each example contributes to the change.

    Attributes
    ----------
    counts : the sets, each a condition on the indicators such as ``positive & ~predicted``; empty for all
    denominators : the sets that the metric is undefined without
    is_ratio : whether it is a function of ratios of sums of counts, one for each denominator
    """

    counts: tuple[str, ...] = ()
    denominators: tuple[str, ...] = ("",)
    is_ratio: bool = False

    def __init_subclass__(cls) -> None:
        """Derive from the conditions what must be known of each example."""
        if "counts" in cls.__dict__ and "needs" not in cls.__dict__:
            cls.needs = needs_of(*cls.counts)

    def parts(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """Return the sets of cells [cells] whose counts the formula takes, in its order."""
        return [where(condition, space, old=old) for condition in self.counts]

    def strata(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """Return the denominators of the metric, each as the cells [cells] that are in it."""
        return [where(condition, space, old=old) for condition in self.denominators]

    def part_counts(
        self, cells: NDArray[Any], space: StatisticSpace, *, old: bool = False
    ) -> list[NDArray[Any]]:
        """Return the counts of `parts`, each [slices], of (weighted) counts by cell [slices, cells]."""
        return [cells[:, part].sum(axis=1) for part in self.parts(space, old=old)]

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """Return the metric [slices] of the counts of `parts`, each [slices]; NaN where undefined.

        A smooth function, by arithmetic, `ratio` and ``np.sqrt``: it is differentiated by a complex step.
        """
        raise NotImplementedError

    def of_cells(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """Return the metric [slices] of (weighted) counts by cell [slices, cells]."""
        return self.formula(*self.part_counts(cells, space, old=old))

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

    def own_cells(
        self, sums: Sums, totals: Sums, space: StatisticSpace
    ) -> tuple[SummedCells, SummedCells]:
        """Return slices and all examples over the cells that this metric distinguishes.

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

        def merged(some: Sums) -> SummedCells:
            parts = some[..., : own.cell_columns // own.cells * space.cells]
            by_cell = parts.reshape(*some.shape[:-1], -1, space.cells) @ merge
            return SummedCells(np.asarray(by_cell.reshape(*some.shape[:-1], -1)), own)

        return merged(sums), merged(totals[None, :])

    def value(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """See `Metric.value`."""
        return self.of_cells(space.weights(sums), space, old=old)

    def test(
        self, sums: Sums, totals: Sums, space: StatisticSpace, alternative: Alternative
    ) -> Tested:
        """Test by the law of random subsets; by what each example contributes for two models."""
        slices, population = self.own_cells(sums, totals, space)
        reasons = self.untestable(slices.sums, population.sums[0], slices.space)
        if space.comparison == "baseline":
            test = self._test_paired
        else:
            test = self._test_weighted if slices.space.weighted else self._test_overall
        return test(slices, population, self.tail(alternative), reasons)

    def untestable(self, sums: Sums, totals: Sums, space: StatisticSpace) -> NDArray[np.int8]:
        """Return the reasons [slices] against a test that hold for any test; 0 for none."""
        counts, of_all = space.counts(sums), space.counts(totals)
        n = counts.sum(axis=1)
        denominator = self.denominator(counts, space)
        least = LEAST_DENOMINATOR
        if space.comparison == "baseline":
            denominator = np.minimum(denominator, self.denominator(counts, space, old=True))
        # Where all examples are the denominator the smallest slice size says what is too small.
        small = (denominator < least) & (denominator < n)
        reasons = np.where(small, Reason.SMALL_DENOMINATOR, 0)
        reasons[denominator == 0] = Reason.UNDEFINED
        if space.comparison == "overall":
            outside = [(of_all - counts)[:, cells].sum(axis=1) for cells in self.strata(space)]
            # Nothing is left to compare with.
            reasons[(np.maximum.reduce(outside) == 0) & (reasons == 0)] = Reason.WHOLE
            reasons[n == of_all.sum()] = Reason.WHOLE
        return reasons.astype(np.int8)

    def _test_overall(
        self, slices: SummedCells, population: SummedCells, tail: Tail, reasons: NDArray[np.int8]
    ) -> Tested:
        """Test counts without weights by the simulated law of the metric on random subsets."""
        if np.count_nonzero(population.counts) < 2:
            reasons[reasons == 0] = Reason.CONSTANT
        p = np.ones(reasons.shape)
        some = np.flatnonzero(reasons == 0)
        p[some], reasons[some], _ = permutation.permutation_p_value(
            lambda cells: self.of_cells(cells.astype(np.float64), slices.space),
            slices.counts[some],
            population.counts[0],
            self.of_cells(slices.weights[some], slices.space),
            tail,
            _PERMUTATIONS,
        )
        return Tested.by(Method.CELL_PERMUTATION, p, reasons)

    def _test_paired(
        self, slices: SummedCells, population: SummedCells, tail: Tail, reasons: NDArray[np.int8]
    ) -> Tested:
        """Test two models by Hall's t of contributions; by signs where these never vary, nor do those of all.

        Where they vary among all only, no p is below that of signs: exchanging the models on the d examples
        that tell them apart gives 2ᵈ outcomes.
        """
        t, varies = self.change(slices, population)
        different = slices.kish(tells_models_apart(slices.space))
        reasons[(reasons == 0) & np.isnan(t.difference)] = Reason.UNDEFINED
        reasons[(reasons == 0) & (different == 0)] = Reason.UNCHANGED
        p, too_skewed = t.p_value(tail)
        reasons[(reasons == 0) & too_skewed] = Reason.TOO_SKEWED
        constant = (reasons == 0) & ~(t.error > 0)
        reasons[constant & (t.difference == 0)] = Reason.UNCHANGED
        p = np.where(varies, p, np.maximum(p, np.exp2((tail == "both") - different)))
        p[constant] = count_tests.constant_change_p(
            different[constant], t.difference[constant], tail
        )
        method = np.where(constant, Method.SIGN_FLIP, Method.HALL_PAIRED)
        return Tested.by(method.astype(np.int8), p, reasons)

    def change(
        self, slices: SummedCells, population: SummedCells
    ) -> tuple[hall.TStatistic, BoolArray]:
        """Return Hall's t of the change between two models, and whether contributions vary on the slice.

        An example contributes the difference d of the two gradients. The variance Σc·d² is drawn towards that
        of as many examples of each denominator of all, where it is smaller, as if κ of these were added: their
        kurtosis. Degrees of freedom are twice the smallest denominator, at most n, less 1; the skewness is that of all.
        """
        own, of_all = self._contributions(slices), self._contributions(population)
        space, every = slices.space, np.ones(slices.space.cells, bool)
        n, N = slices.kish(every), population.kish(every)
        variance = (slices.squares * own**2).sum(axis=1)
        spread = population.squares * of_all**2
        pooled = np.zeros(n.shape)
        for new, old in zip(self.strata(space), self.strata(space, old=True), strict=True):
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
        fewest = np.minimum(
            *(self.denominator(slices.counts, space, old=old) for old in (False, True))
        )
        fewest = ratio(fewest * n, slices.counts.sum(axis=1), otherwise=0.0)
        df = np.maximum(np.minimum(2.0 * fewest, n) - 1.0, 1.0)
        G = ratio(third, np.sqrt(n), otherwise=0.0)
        delta = self.of_cells(slices.weights, space) - self.of_cells(
            slices.weights, space, old=True
        )
        return hall.TStatistic.of(delta, variance, df, G, n >= 2.0, np.abs(G) > 1.0), varies

    def _contributions(self, slices: SummedCells) -> FloatArray:
        """Return the difference of the gradients of two models, without what rounding leaves of none."""
        cells, space = slices.weights, slices.space
        change = self.gradient(cells, space) - self.gradient(cells, space, old=True)
        # A gradient is of the order of 1/n.
        return np.where(
            np.abs(change) * cells.sum(axis=1)[:, None] > _ROUNDED_GRADIENT, change, 0.0
        )

    def _test_weighted(
        self, slices: SummedCells, population: SummedCells, tail: Tail, reasons: NDArray[np.int8]
    ) -> Tested:
        """Test weighted counts by the law of the contributions of random subsets."""
        value = self.of_cells(slices.weights, slices.space)
        reasons[(reasons == 0) & np.isnan(value)] = Reason.UNDEFINED
        rest = population - slices
        reasons[(reasons == 0) & ~(rest.weights.sum(axis=1) > 0)] = Reason.WHOLE
        # A few heavy examples are most of the slice, or of what is outside.
        few = np.minimum(*(self.effective_n(some) for some in (slices, rest)))
        reasons[(reasons == 0) & (few < LEAST_DENOMINATOR)] = Reason.TOO_SKEWED
        p, varies = self._random_subset_p(slices, population, tail)
        reasons[(reasons == 0) & ~varies] = Reason.CONSTANT
        return Tested.by(Method.WEIGHTED_SUBSET, p, reasons)

    def _random_subset_p(
        self, slices: SummedCells, population: SummedCells, tail: Tail
    ) -> tuple[FloatArray, BoolArray]:
        """Return p [slices] if each were a random subset of a population, and where that varies.

        An example contributes its weight times the population's gradient. The sum has the tail of Pearson's
        type III law with the moments of as many of the population's examples, cell by cell as unequal as
        the slice's own.
        """
        cells, whole, space = slices.weights, population.weights, slices.space
        slopes = self.gradient(whole, space)
        alike = slices.counts * ratio(population.squares, population.counts, otherwise=0.0)
        score, variance, third = np.zeros((3, len(cells)))
        for within in self.strata(space):

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

    def _pooled_variance(
        self, slices: SummedCells, population: SummedCells, *, old: bool = False
    ) -> FloatArray:
        """Return the value's variance if each effective example varied as those of all do."""
        slopes = self.gradient(population.weights, slices.space, old=old)
        spread = slopes**2 * population.squares
        pooled = np.zeros(len(slices.sums))
        for within in self.strata(slices.space, old=old):
            own = spread[:, within].sum(axis=1) * population.kish(within)
            pooled += own / np.maximum(slices.kish(within), 1.0)
        return pooled

    def effective_n(self, slices: SummedCells, *, old: bool = False) -> FloatArray:
        """Return the effective number of examples [slices] in the smallest denominator."""
        return np.asarray(
            np.minimum.reduce([slices.kish(cells) for cells in self.strata(slices.space, old=old)])
        )

    def value_variance(self, slices: SummedCells, *, old: bool = False) -> FloatArray:
        """Return the delta method's variance of the value [slices]."""
        gradient = self.gradient(slices.weights, slices.space, old=old)
        return np.asarray((gradient**2 * slices.squares).sum(axis=1))

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
        slices, population = (
            SummedCells(sums, space),
            SummedCells(totals[None, : space.columns], space),
        )
        variance = self.value_variance(slices, old=old)
        if space.weighted:
            pooled = self._pooled_variance(slices, population, old=old)
            variance = np.maximum(variance, pooled)
        return cell_intervals.by_delta_method(
            self.value(sums, space, old=old),
            variance,
            *self.range,
            self.effective_n(slices, old=old),
            confidence,
        )

    def delta_interval(
        self, sums: Sums, totals: Sums, space: StatisticSpace, confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """Arms of the value's interval, scaled to the delta's deviation; the error of `change` for two models."""
        slices, population = self.own_cells(sums, totals, space)
        width = self.range[1] - self.range[0]
        if space.comparison == "baseline":
            (t, _), n = self.change(slices, population), self.effective_n(slices)
            return cell_intervals.by_delta_method(
                t.difference, t.error**2, -width, width, n, confidence
            )
        low, high = self.value_interval(sums, totals, space, confidence)
        return cell_intervals.difference_from_overall(
            self.value(sums, space),
            low,
            high,
            self.value_variance(slices),
            self._ahead_variance(slices, population),
            self.reference(sums, totals, space),
            width,
            confidence,
        )

    def _ahead_variance(self, slices: SummedCells, population: SummedCells) -> FloatArray:
        """Return the variance [slices] of a value, or change, less that of the population it is part of."""
        own, above = (self.gradient(some.weights, some.space) for some in (slices, population))
        if slices.space.comparison == "baseline":
            own, above = self._contributions(slices), self._contributions(population)
        return hall.ahead_variance(own, above, slices.squares, population.squares)

    def p_refine(
        self, sums: Sums, parents: Sums, totals: Sums, space: StatisticSpace, *, worse: bool
    ) -> FloatArray:
        """Wald test of child against parent by the delta method; the child is part of the parent."""
        child, parent = SummedCells(sums, space), SummedCells(parents, space)
        ahead = self.delta(sums, totals, space) - self.delta(parents, totals, space)
        freedom = np.maximum(self.effective_n(child) - 1.0, 1.0)
        tail = self.tail("worse" if worse else "better")
        return hall.wald_p_value(ahead, self._ahead_variance(child, parent), freedom, tail)

    def inputs(self, sums: Sums, totals: Sums, space: StatisticSpace) -> dict[str, float]:
        """Return the counts by cell, named by what holds in each, of the slice and of all examples."""
        named: dict[str, float] = {}
        slices, population = self.own_cells(sums[None, :], totals, space)
        space = slices.space
        for prefix, some in (("slice", slices.sums[0]), ("all", population.sums[0])):
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


def needs_of(*conditions: str) -> base.Needs:
    """Return the indicators that conditions name."""
    return base.Needs(indicators=tuple(sorted(set(re.findall(r"[^\s&|~]+", " ".join(conditions))))))


def where(condition: str, space: StatisticSpace, *, old: bool = False) -> BoolArray:
    """Return the cells [cells] in which a condition holds, all for an empty one.

    >>> from slicebeam.metrics.counting.statistic_space import StatisticSpace
    >>> where("positive & ~predicted", StatisticSpace(("positive", "predicted"), "overall"))
    array([False,  True, False, False])
    """
    holds = np.zeros(space.cells, bool)
    for alternative in condition.split("|"):
        part = np.ones(space.cells, bool)
        for literal in filter(None, map(str.strip, alternative.split("&"))):
            part &= space.holds(literal.lstrip("~"), old=old) ^ literal.startswith("~")
        holds |= part
    return holds


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
