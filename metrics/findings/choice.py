"""The choice of findings, each the candidate that adds most to those before, and their confirmation.

A candidate becomes a finding if its sum is harmful *given* its expectation from the findings so far, at a level that
counts all slices that could have been chosen: docs/explanation/statistics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.special import ndtri, xlogy

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray
from slicebeam.metrics.findings.conditional import (
    DeviationLaw,
    change_p_value,
    influence,
    pattern_variances,
    rate_variances,
    sum_p_value,
)
from slicebeam.metrics.findings.groups import (
    CellSums,
    Covariance,
    GroupSums,
    selected_above,
    with_finding,
)
from slicebeam.metrics.findings.inside import InsideCounts, PartTables
from slicebeam.metrics.findings.model import ExpectationModel, fit
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.target_sums import MOST_FINDINGS, InsideSums, Patterns, TargetSums

# Findings, the first ones, and sets of examples that a reader takes in.
SHOWN_FINDINGS, MOST_SETS = 10, 20
StopReason = Literal["no candidates", "nothing left", "small differences", "most findings"]


class Candidates(NamedTuple):
    """The slices that findings are chosen from."""

    level: IntArray  # [candidates] number of predicates, 1-based
    id: IntArray  # [candidates] distinct; decides between candidates that are equal otherwise
    # [candidates, size columns] examples in the denominator, or their weights and squared weights, in
    # the units of ``TargetSums.size_scales``
    sizes: NDArray[Any]
    total: FloatArray  # [candidates] Σ weight·target
    significant: BoolArray  # [candidates] against all examples, as the search corrects
    # [candidates] the slice's own delta, positive where it is for the worse; of two models the
    # change itself, so that a slice that improved less than others is no finding
    harm: FloatArray


class Changes(NamedTuple):
    """The changes of candidates between two models, to test whether they changed at all."""

    net: FloatArray  # [candidates] Σ weight·change
    squares: FloatArray  # [candidates] Σ (weight·change)²
    counts: bool  # whether changes are −1, 0 and 1, without weights


# Sums of a few candidates by group and pattern, given the positions of the findings so far and of the
# candidates, and the patterns' masks.
CountGroups: TypeAlias = "Callable[[IntArray, IntArray, IntArray], GroupSums]"


class ChosenSlice(NamedTuple):
    """A candidate that is worse than expected from the findings before it."""

    candidate: int  # position among the candidates
    size: float  # examples (in the denominator), or summed weights
    value: float  # observed mean target
    expected: float  # mean target expected from the findings before it
    gain: float  # log-likelihood ratio less the log of the level's number of tests
    p_value: float  # conditional
    selected_above: float  # the normal quantile that its p had to exceed
    null_error: float  # of its mean target, if the findings before it explained everything
    covariance: Covariance  # of value and expected
    cumulative_size: float  # examples, or weights, of all findings so far
    cumulative_total: float  # the sum of their targets
    outside: float  # mean target of the examples outside all of them; NaN if there are none


class ChosenSlices(NamedTuple):
    """The findings, the model that they make, and why there are no more."""

    findings: list[ChosenSlice]  # in the order of their choice
    masks: IntArray  # [patterns] which findings the examples of a pattern are in
    # [patterns, columns] of all examples of each pattern, as `TargetSums` lays them out
    sums: FloatArray
    model: ExpectationModel  # of all findings
    # ``nothing left``: no other candidate passes; ``small differences``: the gains of those that do
    # do not pay their description length; ``most findings``: the limit was reached; ``no
    # candidates``: none is significant and for the worse
    stop: StopReason
    candidates: int  # how many were looked at
    left_out: int  # significant candidates for the worse that were not, because there are too many


def largest_intersections(
    masks: IntArray, size: FloatArray, total: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return masks, sizes and totals of the largest sets that are in the same of the first findings."""
    first, at = np.unique(masks & ((1 << SHOWN_FINDINGS) - 1), return_inverse=True)
    sizes, totals = (np.bincount(at, column, first.size) for column in (size, total))
    order = np.lexsort((first, -sizes))[:MOST_SETS]
    return first[order], sizes[order].astype(np.float64), totals[order].astype(np.float64)


# More candidates than these cost more than they say: those of the largest marginal gain are kept.
MOST_CANDIDATES = 200_000
# Gains that differ by less are the same: they are sums of floats.
_TIE = 2.0**-20
# Screening: candidates whose best possible log-likelihood ratio is below 80 % of the normal threshold
# are skipped.
_SCREEN = 0.8
_FIRST, _NEXT = 4, 256
_LEAST = 1e-300


class _Step(NamedTuple):
    """The candidates as one model sees them."""

    model: ExpectationModel  # of the findings so far
    variances: FloatArray  # [patterns] of the deviations from it
    excess: FloatArray  # [candidates] by which the sum is worse than expected
    ratio: FloatArray  # [candidates] log-likelihood ratio, 0 where it is not worse
    gain: FloatArray  # [candidates] the ratio less the cost of naming the candidate


# The next finding: its number among the candidates, p-value, and sums by group with its place there.
_Next = tuple[int, float, GroupSums | None, int]


@dataclass(kw_only=True)
class Choice:
    """The choice of the findings of one direction, after docs/explanation/statistics.md.

    It depends on sums only, to the last bit where matrix products take one thread.
    """

    candidates: Candidates
    everything: NDArray[Any]  # [raw columns] sums of all examples, in any unit, the same everywhere
    layout: TargetSums
    # Counts the examples of a candidate that becomes a finding by the pattern that they had before.
    # Of its position and those of the candidates to count, which are numbered so in what it returns.
    count_inside: Callable[[int, IntArray], InsideCounts]
    # Of the positions of the candidates what knows all their examples; None if they are too many.
    hold: Callable[[IntArray], PartTables | None] | None = None
    upward: bool  # whether large targets are for the worse, as errors and losses are
    tests_per_level: Sequence[int]  # slices of each of L levels that could have been tested
    # Of weight·(target − overall mean) of all examples; needed for all but counts.
    law: DeviationLaw | None = None
    alpha: float = 0.05
    most: int = MOST_FINDINGS
    # Where examples come in groups that depend on each other: a finding must pass both tests.
    count_groups: CountGroups | None = None
    # Makes float64 [patterns, columns], as ``layout`` says, of sums [patterns, raw columns].
    moments: Callable[[NDArray[Any]], FloatArray] = np.asarray
    # Of two models: a finding must also pass the test that its own change is not 0.
    changes: Changes | None = None
    no_change: float = 0.0  # the mean target of examples that did not change

    def __post_init__(self) -> None:
        candidates = self.candidates
        self.earlier: list[int] = []  # positions of the findings
        self.sign = 1.0 if self.upward else -1.0
        self.tail: Tail = "upper" if self.upward else "lower"
        eligible = np.flatnonzero(candidates.significant & (candidates.harm > 0))
        self._select(eligible)
        self.patterns = Patterns(self.everything, self.layout, self.moments)
        self.left_out = max(0, eligible.size - MOST_CANDIDATES)
        if self.left_out:
            gain = self._step(self._model()).gain
            kept = np.sort(np.lexsort((candidates.id[eligible], -gain))[:MOST_CANDIDATES])
            self._select(eligible[kept])

    def _select(self, positions: IntArray) -> None:
        candidates, tests = self.candidates, np.asarray(self.tests_per_level, np.float64)
        self.positions = positions
        self.level, self.id = candidates.level[positions], candidates.id[positions]
        scales = self.layout.size_scales[: candidates.sizes.shape[1]]
        self.sizes = candidates.sizes[positions] * np.array(scales)
        self.total = np.asarray(candidates.total[positions], np.float64)
        of_level = np.maximum(tests, 1.0)[self.level - 1]
        self.cost = np.log(of_level)
        self.bound = self.alpha / (tests.size * of_level)
        self.free = self.sizes[:, 0] > 0
        self.parts: PartTables = PartTables(
            candidates.sizes[positions],
            self.layout,
            lambda at: self.count_inside(int(positions[at]), positions),
        )

    def run(self) -> ChosenSlices:
        """Add findings until none is left."""
        findings: list[ChosenSlice] = []
        self.model = self._model()
        stop: StopReason = "nothing left" if self.positions.size else "no candidates"
        while self.positions.size:
            if len(findings) == self.most:
                stop = "most findings"
                break
            step = self._step(self.model)
            best = self._best(step, step.gain > 0)
            if best is None:
                if self._best(step, step.gain <= 0) is not None:
                    stop = "small differences"
                break
            findings.append(self._add(*best, step))
        sums = self.patterns.masks, self.patterns.sums
        counts = self.positions.size, self.left_out
        return ChosenSlices(findings, *sums, self.model, stop, *counts)

    def _add(
        self, chosen: int, p: float, groups: GroupSums | None, of_groups: int, step: _Step
    ) -> ChosenSlice:
        model = step.model
        sizes = self.parts.parts(np.array([chosen]))[0]
        part = self.layout.size(sizes, 1)
        variance = float(self.layout.size(sizes, 2) @ step.variances)
        acts = influence(model, self.layout.moment(self.patterns.sums, 1, 0), part)
        masks = self.patterns.masks
        if not self.earlier and self.hold is not None:
            self.parts = self.hold(self.positions) or self.parts
        inside = self.parts.count(chosen, self.patterns)
        self._check(chosen, inside)
        self.parts.split(self.patterns.add(inside))
        self.free[chosen] = False
        self.earlier.append(int(self.positions[chosen]))
        self.model = self._model()
        size, gain = float(self.sizes[chosen, 0]), float(step.gain[chosen])
        after = self.patterns.masks, self.patterns.sums
        covariance = with_finding(
            self.model, self.layout, after, masks, -acts.outside, groups, of_groups
        )
        error = float(np.sqrt(max(variance, 0.0))) / size
        weight, total, held = self.patterns.weight, self.patterns.total, self.patterns.masks > 0
        rest = float(weight[~held].sum())
        return ChosenSlice(
            int(self.positions[chosen]),
            size,
            float(self.total[chosen]) / size,
            float(part @ model.expected) / size,
            gain,
            p,
            selected_above(p, float(self.bound[chosen]), gain, float(self.cost[chosen])),
            # The variance within patterns does not know of groups.
            error if groups is None else covariance.error,
            covariance,
            float(weight[held].sum()),
            float(total[held].sum()),
            float(total[~held].sum()) / rest if rest > 0 else float("nan"),
        )

    def _model(self) -> ExpectationModel:
        of = self.patterns
        return fit(self.layout.kind, of.masks, of.findings, of.weight, of.total)

    def _check(self, chosen: int, inside: InsideSums) -> None:
        sums = self.patterns.moments(inside.sums.sum(axis=0, keepdims=True))
        size, total = (float(self.layout.moment(sums, 1, power)[0]) for power in (0, 1))
        wanted = float(self.sizes[chosen, 0]), float(self.total[chosen])
        scale = max(1.0, abs(wanted[0]), abs(wanted[1]))
        if max(abs(size - wanted[0]), abs(total - wanted[1])) > 1e-9 * scale:
            raise ValueError(
                f"candidate {int(self.positions[chosen])} has a size of {wanted[0]:g} and a total of "
                f"{wanted[1]:g}, but counting inside it found {size:g} and {total:g}"
            )

    def _weigh(self, by: FloatArray, power: int = 1) -> FloatArray:
        return self.parts.weigh(self.patterns.summable(by), power)

    def _step(self, model: ExpectationModel) -> _Step:
        """Weight the candidates' parts by the model's expectation of the patterns."""
        layout = self.layout
        expected = self._weigh(model.expected)
        variances = np.where(model.varies, model.variance, 0.0)
        if not layout.are_counts:
            variances = pattern_variances(model, self.patterns.sums, layout)
        excess = self.sign * (self.total - expected)
        if layout.kind == "rate":
            size = np.maximum(self.sizes[:, 0], _LEAST)
            effective = size**2 / np.maximum(layout.size(self.sizes, 2), _LEAST)
            observed = self.total / size
            inside, outside = (
                np.clip(p, _LEAST, 1.0) for p in (expected / size, 1.0 - expected / size)
            )
            divergence = xlogy(observed, observed / inside)
            divergence += xlogy(1 - observed, (1 - observed) / outside)
            ratio = effective * np.maximum(divergence, 0.0)
        else:
            variance = self._weigh(variances, 2)
            varies = variance > 0
            ratio = np.divide(0.5 * excess**2, variance, out=np.zeros(excess.shape), where=varies)
        ratio = np.where(excess > 0, ratio, 0.0)
        return _Step(model, variances, excess, ratio, ratio - self.cost)

    def _best(self, step: _Step, among: BoolArray) -> _Next | None:
        """Return the candidate of the largest gain that passes; None if none does."""
        worse = np.flatnonzero(self.free & (step.excess > 0) & among)
        ties = np.round(step.gain[worse] / _TIE)
        most = np.partition(ties, -_FIRST)[-_FIRST] if worse.size > _FIRST else -np.inf
        rest = worse[ties < most]
        passing = self._first_passing(self._ordered(worse[ties >= most], step), step)
        if passing is not None or not rest.size:
            return passing
        # The first ones have failed, and most of the others can't pass: the variance within
        # patterns whose own sums are known is at most that given the sums that the model keeps.
        least = np.maximum(self.parts.within(rest, step.variances, self.patterns), 0.0)
        in_model = self._weigh(step.variances, 2)[rest]
        rest = self._ordered(rest[self._may_pass(rest, step, in_model, least)], step)
        for begin in range(0, rest.size, _NEXT):
            passing = self._first_passing(rest[begin : begin + _NEXT], step)
            if passing is not None:
                return passing
        return None

    def _ordered(self, chosen: IntArray, step: _Step) -> IntArray:
        """Return candidates by gain, those that are equal by level, size and id."""
        ties = np.round(step.gain[chosen] / _TIE)
        keys = (self.id[chosen], -self.sizes[chosen, 0], self.level[chosen], -ties)
        return np.asarray(chosen[np.lexsort(keys)])

    def _may_pass(
        self, chosen: IntArray, step: _Step, in_model: FloatArray, variance: FloatArray
    ) -> BoolArray:
        """Say which candidates' p may be small enough."""
        with np.errstate(divide="ignore", invalid="ignore"):
            normal = 0.5 * step.excess[chosen] ** 2 / variance
            skewed = step.ratio[chosen] * (in_model / variance)
        needed = 0.5 * ndtri(self.bound[chosen]) ** 2
        return np.asarray(~(np.fmax(normal, skewed) < _SCREEN * needed))

    def _first_passing(self, ordered: IntArray, step: _Step) -> _Next | None:
        parts, weight = self.parts.parts(ordered), self.patterns.weight
        if self.layout.are_counts:
            sizes = parts[:, :, 0]
            least = rate_variances(step.model, weight, sizes)
            worth = self._may_pass(ordered, step, sizes @ step.variances, least)
            ordered, parts = ordered[worth], parts[worth]
        passing: list[tuple[int, float, FloatArray]] = []
        for at, part in zip(ordered.tolist(), parts, strict=True):
            of_part = step.model, step.variances, self.patterns.sums, part, float(self.total[at])
            p = sum_p_value(*of_part, self.layout, self.law, self.tail)
            if p <= self.bound[at] and self.count_groups is None and self.changes is not None:
                net, squares, counts = self.changes
                place = self.positions[at]
                of_change = float(net[place]), float(squares[place])
                p = max(p, change_p_value(*of_change, self.tail, counts=counts))
            if p > self.bound[at]:
                continue
            if self.count_groups is None:
                return at, p, None, 0
            passing.append((at, p, part))
        if not passing or self.count_groups is None:
            return None
        positions = self.positions[[at for at, _, _ in passing]]
        groups = self.count_groups(np.array(self.earlier, np.int64), positions, self.patterns.masks)
        of_model = groups.of_model(step.model)
        no_change = None if self.changes is None else self.no_change
        for number, (at, p, part) in enumerate(passing):
            acts = influence(step.model, weight, self.layout.size(part, 1))
            of_groups = number, step.model, of_model, acts.slopes, no_change
            largest = max(p, groups.p_value(*of_groups, self.tail))
            if largest <= self.bound[at]:
                return at, largest, groups, number
        return None


class ConfirmedSlice(NamedTuple):
    """A finding on the reserved examples."""

    value: float  # mean target
    expected: float  # of the model of the findings before it, fitted to the reserved examples
    p_value: float  # conditional, in the finding's direction
    covariance: Covariance


@dataclass(frozen=True, kw_only=True)
class ReservedSums:
    """The sums of the reserved examples by group and by the findings of one list that they are in."""

    group: IntArray  # [cells] from 0; all 0 where examples are independent
    masks: IntArray  # [cells] bit k is set where the examples are in finding k
    sums: FloatArray  # [cells, columns]
    layout: TargetSums
    tail: Tail
    law: DeviationLaw | None  # of all reserved examples; None for counts
    is_grouped: bool
    no_change: float | None = None  # the mean target of no change between two models; None of one
    are_counts: bool = False  # whether changes are −1, 0 and 1, without weights

    def measured(self, finding: int) -> ConfirmedSlice:
        """Return a finding that holds some examples, tested given those before it."""
        layout, inside = self.layout, (self.masks >> finding & 1) > 0
        masks, sums, of, model = self._fitted(finding)
        after_masks, after_sums, _, refitted = self._fitted(finding + 1)
        part = np.zeros(sums.shape)
        np.add.at(part, of[inside], self.sums[inside])
        powers = (1, 2) if layout.weighted else (1,)
        sizes = np.stack([layout.moment(part, power, 0) for power in powers], axis=1)
        size, total = (float(layout.moment(part, 1, power).sum()) for power in (0, 1))
        acts = influence(model, layout.moment(sums, 1, 0), sizes[:, 0])
        variances = pattern_variances(model, sums, layout)
        p = sum_p_value(model, variances, sums, sizes, total, layout, self.law, self.tail)
        groups, none = None, self.no_change
        if self.is_grouped:
            weights, totals = (layout.moment(self.sums, 1, power) for power in (0, 1))
            held = np.flatnonzero(inside)
            of_finding = [CellSums(held, weights[held], totals[held])]
            groups = GroupSums(self.group, of, weights, totals, of_finding)
            of_model = groups.of_model(model)
            p = max(p, groups.p_value(0, model, of_model, acts.slopes, none, self.tail))
        elif none is not None:
            spread = float(layout.squared_deviations(part, none).sum())
            net = total - none * size
            p = max(p, change_p_value(net, spread, self.tail, counts=self.are_counts))
        after = after_masks, after_sums
        covariance = with_finding(refitted, layout, after, masks, -acts.outside, groups)
        return ConfirmedSlice(
            total / size, float(sizes[:, 0] @ model.expected) / size, p, covariance
        )

    def _fitted(self, findings: int) -> tuple[IntArray, FloatArray, IntArray, ExpectationModel]:
        """Return the patterns of the first findings: masks, sums, that of each cell, and their model."""
        masks, of = np.unique(self.masks & ((1 << findings) - 1), return_inverse=True)
        sums = np.zeros((masks.size, self.sums.shape[1]))
        np.add.at(sums, of, self.sums)
        weight, total = (self.layout.moment(sums, 1, power) for power in (0, 1))
        return masks, sums, of, fit(self.layout.kind, masks, findings, weight, total)
