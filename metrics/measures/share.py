"""Metrics that are a share: of all examples, of those of one label, or of those predicted positive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slicebeam.metrics.findings.target_sums import TargetSums
from slicebeam.metrics.intervals import intervals
from slicebeam.metrics.measures import base
from slicebeam.metrics.measures.cell_metric import CellMetric, SummedCells, needs_of, ratio
from slicebeam.metrics.significance import count_tests, few_cells
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Tail

    Sums = IntArray

# A literal is an indicator, or its opposite after "~".
Within = Literal["", "positive", "~positive", "predicted", "~predicted", "positive|predicted"]
_COUNTED: dict[Within, str | None] = {
    "": None,
    "positive": "examples of the positive class",
    "~positive": "examples of the negative class",
    "predicted": "examples predicted positive",
    "~predicted": "examples predicted negative",
    "positive|predicted": "examples that are positive or predicted positive",
}
_UNDEFINED: dict[Within, str] = {
    "": "there is no example",
    "positive": "no example has a positive label",
    "~positive": "no example has a negative label",
    "predicted": "no example is predicted positive",
    "~predicted": "no example is predicted negative",
    "positive|predicted": "no example has a positive label or is predicted positive",
}


class Share(CellMetric):
    """The share of the examples ``within`` (all without) that are ``marked``, a literal such as ``~predicted``."""

    is_ratio = True

    def __init__(
        self,
        name: str,
        title: str,
        marked: str,
        within: Within,
        *,
        higher_is_better: bool,
        compares_models: bool = True,
    ) -> None:
        self.name, self.title = name, title
        self.counts, self.denominators = (marked, within), (within,)
        self.needs = needs_of(marked, within)
        self.higher_is_better, self.compares_models = higher_is_better, compares_models
        self.counted, self.undefined = _COUNTED[within], _UNDEFINED[within]
        self.range = (0.0, 1.0)
        self.kind = "aggregate" if within else "pointwise"

    @property
    def is_within_fixed(self) -> bool:
        """Whether the denominator is the same for both models."""
        return "predicted" not in self.denominators[0]

    def _has_exact_law(self, space: StatisticSpace) -> bool:
        return not space.weighted and (space.comparison == "overall" or self.is_within_fixed)

    def parts(self, space: StatisticSpace, *, old: bool = False) -> list[BoolArray]:
        """Return the cells [cells] of marked examples, and of the denominator."""
        marked, within = super().parts(space, old=old)
        return [marked & within, within]

    def formula(self, *counts: NDArray[Any]) -> NDArray[Any]:
        """See `CellMetric.formula`."""
        return self._of_share(ratio(*counts))

    def gradient(
        self, cells: FloatArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """See `CellMetric.gradient`; exactly 0 where all or none are marked, which parts that overlap are not."""
        marks, inside = self.parts(space, old=old)
        within = cells[:, inside].sum(axis=1)
        safe = np.where(within > 0, within, 1.0)
        share = cells[:, marks].sum(axis=1) / safe
        slope = (marks[None, :] - share[:, None] * inside[None, :]) / safe[:, None]
        return np.where((within > 0)[:, None], slope * self._slope(share)[:, None], 0.0)

    def _of_share(self, share: FloatArray) -> FloatArray:
        """Return the metric of the share; F1 is another increasing function of its share."""
        return share

    def _slope(self, share: FloatArray) -> FloatArray:
        return np.ones(share.shape)

    def discordant(self, counts: Sums, space: StatisticSpace) -> tuple[Sums, Sums]:
        """Return the examples [slices] that only the new, and only the old model marks."""
        new, old = self.parts(space)[0], self.parts(space, old=True)[0]
        return counts[:, new & ~old].sum(axis=1), counts[:, old & ~new].sum(axis=1)

    def _test_overall(
        self, slices: SummedCells, population: SummedCells, tail: Tail, reasons: NDArray[np.int8]
    ) -> Tested:
        """Mid-p of X ~ Hypergeom within the denominator; likelihood ratio where that is large."""
        x, n = self.part_counts(slices.counts, slices.space)
        K, N = (int(number[0]) for number in self.part_counts(population.counts, slices.space))
        if K in (0, N):
            reasons[reasons == 0] = Reason.CONSTANT
        p = np.ones(n.shape)
        exact = count_tests.variance(n, N, K) <= count_tests.EXACT_UP_TO_VARIANCE
        for law, by in ((count_tests.mid_p, exact), (count_tests.likelihood_mid_p, ~exact)):
            some = by & (reasons == 0)
            p[some] = law(n[some], x[some], N, K, tail)
        method = np.where(exact, Method.HYPERGEOMETRIC, Method.LIKELIHOOD_RATIO)
        return Tested.by(method.astype(np.int8), p, reasons)

    def _test_paired(
        self, slices: SummedCells, population: SummedCells, tail: Tail, reasons: NDArray[np.int8]
    ) -> Tested:
        if not self._has_exact_law(slices.space):
            return super()._test_paired(slices, population, tail, reasons)
        only_new, only_old = self.discordant(slices.counts, slices.space)
        reasons[(only_new + only_old == 0) & (reasons == 0)] = Reason.UNCHANGED
        p = np.ones(reasons.shape)
        testable = reasons == 0
        p[testable] = count_tests.mcnemar_mid_p(only_new[testable], only_old[testable], tail)
        return Tested.by(Method.MCNEMAR, p, reasons)

    def delta_interval(
        self, sums: Sums, totals: Sums, space: StatisticSpace, confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """Score-based intervals of the difference, see `slicebeam.metrics.intervals.intervals`."""
        if not self._has_exact_law(space):
            return super().delta_interval(sums, totals, space, confidence)
        counts = space.counts(sums)
        x, n = self.part_counts(counts, space)
        if space.comparison == "baseline":
            return intervals.paired_difference(*self.discordant(counts, space), n, confidence)
        K, N = (int(number[0]) for number in self.part_counts(space.counts(totals[None, :]), space))
        low, high = intervals.difference_from_overall(n, x, N, K, confidence)
        share = np.array([K / max(N, 1)])
        reference = self._of_share(share)
        ends = (np.clip(share + end, 0.0, 1.0) for end in (low, high))
        low, high = (self._of_share(end) - reference for end in ends)
        return low, high

    def value_interval(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """Agresti and Coull's interval, at Kish's effective number where there are weights."""
        slices = SummedCells(sums, space)
        x, n = (part.astype(np.float64) for part in self.part_counts(slices.counts, space, old=old))
        if space.weighted:
            n = self.effective_n(slices, old=old)
            share = ratio(*self.part_counts(slices.weights, space, old=old), otherwise=0.0)
            # Where marked examples weigh more than others, fewer are effective (Korn and Graubard
            # 1998, Survey Methodology 24:193, whose number is by the linearised variance).
            variance = self.value_variance(slices, old=old) / np.square(self._slope(share))
            by_variance = np.divide(
                share * (1.0 - share), variance, out=n.copy(), where=variance > 0
            )
            n = np.minimum(n, by_variance)
            x = n * share
        low, high = intervals.agresti_coull(x, n, confidence)
        return self._of_share(low), self._of_share(high)

    def p_refine(
        self, sums: Sums, parents: Sums, totals: Sums, space: StatisticSpace, *, worse: bool
    ) -> FloatArray:
        """Return how likely a random subset of the parent has so many marks, or a change so large."""
        if not self._has_exact_law(space):
            return super().p_refine(sums, parents, totals, space, worse=worse)
        tail = self.tail("worse" if worse else "better")
        counts, above = space.counts(sums), space.counts(parents)
        if space.comparison == "baseline":
            scores = self.cell_targets(space)

            def net(cells: FloatArray) -> tuple[FloatArray, FloatArray]:
                return cells @ scores, np.broadcast_to(scores, cells.shape)

            p = few_cells.p_value(net, counts, above, self.strata(space), tail, span=1.0)
            return np.nan_to_num(p, nan=1.0)
        (x, n), (x_parent, n_parent) = (self.part_counts(some, space) for some in (counts, above))
        return count_tests.mid_p(n, x, n_parent, x_parent, tail)

    def target(self, space: StatisticSpace) -> base.Target | None:
        """Return what counts against the metric, or the change of marks between two models.

        None for two models with denominators of their own: the difference of two ratios is not a mean.
        """
        within = self.parts(space)[1]
        scales = space.weight_scales if space.weighted else (1.0, 1.0)
        if space.comparison == "overall":
            layout = TargetSums("rate", space.weighted, scales)
            return base.Target(layout, within, upward=True, is_share=True)
        if not self.is_within_fixed:
            return None
        layout = TargetSums("mean", space.weighted, scales)
        return base.Target(layout, within, upward=not self.higher_is_better, is_share=False)

    def cell_targets(self, space: StatisticSpace) -> FloatArray:
        """Return the target of an example in each cell [cells]; 0 outside the denominator."""
        marked, within = self.parts(space)
        if space.comparison == "baseline":
            return marked.astype(np.float64) - self.parts(space, old=True)[0]
        return (within & ~marked if self.higher_is_better else marked).astype(np.float64)

    def target_sums(self, sums: Sums, space: StatisticSpace) -> FloatArray:
        """See `Metric.target_sums`."""
        target, values = self.target(space), self.cell_targets(space)
        if target is None:
            return super().target_sums(sums, space)
        return np.stack(
            [
                space.weights(sums, max(weight, 1))[:, target.counted]
                @ values[target.counted] ** power
                for weight, power in target.layout.powers
            ],
            axis=1,
        )

    def weighted_targets(self, block: RowBlock, space: StatisticSpace) -> FloatArray:
        """See `Metric.weighted_targets`."""
        values = self.cell_targets(space)[block.cells]
        return values * (block.weights[0] * space.weight_scales[0]) if space.weighted else values

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        """See `Metric.of_target`."""
        if space.comparison == "baseline":
            return mean
        return self._of_share(1.0 - mean if self.higher_is_better else mean)

    def movement(self, sums: Sums, space: StatisticSpace) -> base.Movement | None:
        """See `Metric.movement`; None where the two models have denominators of their own."""
        if space.comparison != "baseline" or not self.is_within_fixed or not self.compares_models:
            return None
        counts, within = space.counts(sums), self.parts(space)[1]
        gained, lost = self.discordant(counts, space)
        weights, change = space.weights(sums)[:, within], self.cell_targets(space)[within]
        found = base.Movement.of_sums(weights.sum(axis=1), weights @ change, weights @ change**2)
        improved, degraded = (gained, lost) if self.higher_is_better else (lost, gained)
        return base.Movement(
            found.inconsistency, improved, degraded, self.denominator(counts, space)
        )

    def change_variance(self, sums: Sums, space: StatisticSpace) -> FloatArray | None:
        """See `Metric.change_variance`."""
        if space.weighted or self.denominators[0]:
            return None
        counts = space.counts(sums)
        n = np.maximum(counts.sum(axis=1), 1)
        if space.comparison == "baseline":
            only_new, only_old = self.discordant(counts, space)
            return np.asarray((only_new + only_old) / n - ((only_new - only_old) / n) ** 2)
        share = np.nan_to_num(self.value(sums, space))
        return np.asarray(share * (1 - share))

    def inputs(self, sums: Sums, totals: Sums, space: StatisticSpace) -> dict[str, float]:
        """n, x, N and K of the table, or n, b and c of McNemar's test."""
        slices, population = self.own_cells(sums[None, :], totals, space)
        space = slices.space
        if not self._has_exact_law(space):
            return super().inputs(slices.sums[0], population.sums[0], space)
        x, n = self.part_counts(slices.counts, space)
        if space.comparison == "baseline":
            numbers = {"n": n}
            names = ("b (only new marked)", "c (only old)")
            numbers |= dict(zip(names, self.discordant(slices.counts, space), strict=True))
        else:
            K, N = self.part_counts(population.counts, space)
            numbers = {"n": n, "x": x, "N": N, "K": K}
        return {name: int(number[0]) for name, number in numbers.items()}


class FOne(Share):
    """F1 = 2j/(1 + j), an increasing function of the share j = TP/(TP + FP + FN)."""

    def __init__(self) -> None:
        super().__init__(
            "f1", "F1", "positive & predicted", "positive|predicted", higher_is_better=True
        )

    def _of_share(self, share: FloatArray) -> FloatArray:
        return 2.0 * share / (1.0 + share)

    def _slope(self, share: FloatArray) -> FloatArray:
        return np.asarray(2.0 / np.square(1.0 + share))
