"""Chooses the findings of each metric from the significant slices, by means of targets, and expresses them in the metric."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.counting.counting import RowBlock, positions
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.findings import groups
from slicebeam.metrics.findings.choice import (
    SHOWN_FINDINGS,
    Candidates,
    Changes,
    Choice,
    ReservedSums,
    largest_intersections,
)
from slicebeam.metrics.findings.conditional import DeviationLaw
from slicebeam.metrics.findings.groups import CellSums, GroupSums
from slicebeam.metrics.findings.inside import PAIR_BYTES, HeldExamples, InsideCounter, InsideCounts
from slicebeam.metrics.measures.metric import Metric, Slices, Target
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.measures.target_sums import MOST_FINDINGS, membership
from slicebeam.metrics.significance.intervals import normal_quantile
from slicebeam.metrics.significance.random_subset import Population, bin_edges, population
from slicebeam.pipelines.changelist import slices as document
from slicebeam.pipelines.changelist.parts import CONFIDENCE, finite
from slicebeam.pipelines.prepare.encoded_dataset import LEAST_PASS_SECONDS, EncodedDataset
from slicebeam.pipelines.search.listed_counts import explained_variance
from slicebeam.pipelines.search.results import FindingList, MetricResult, Results
from slicebeam.transforms.count.finding_passes import (
    CountInside,
    DeviationBins,
    DeviationEnds,
    SumByGroup,
    added_groups,
    without_buckets,
)
from slicebeam.transforms.encode.passes import Found, Function, one_thread
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.findings.choice import ChosenSlice, ChosenSlices, ConfirmedSlice


# CPU time of looking at an example in one pass.
_SECONDS_PER_ROW = 1e-7
# Tables take at most this share of the memory, as those of the search.
_TABLES_SHARE = 8
# Examples that are held take at most this share of it.
_HELD_SHARE = 2
_PLACE_BITS = 62
# Fewer reserved examples say nothing of a finding.
LEAST_CONFIRMED = 10
# Bytes up to which examples are held rather than read again for each finding.
MOST_HELD = 1 << 29
_NO_SHARE = "it does not average over its examples"
_CONSTANT = "its value, or its change, is the same in all examples"
_TWO_ROOTS = "the difference of two roots is not a mean over examples"
_TWO_RATIOS = "the difference of two ratios with different denominators is not a mean over examples"

Direction = Literal["worse", "better"]


def finding_lists(results: Results) -> tuple[FindingList, ...]:
    """Return the findings of each metric, of the worse side before the better one."""
    sides: tuple[Direction, ...] = ("worse", "better")
    config, prepared = results.config, results.prepared
    lists = []
    for number, measured in enumerate(results.metrics):
        own = metric_on(measured.name, prepared.space)
        target, reason = own.target(prepared.space), own.undefined_reason(prepared.slices())
        if target is None:
            reason = own.indivisible or _TWO_ROOTS
            if not own.needs.values:
                of_one = own.target(StatisticSpace(own.needs.indicators, "overall"))
                reason = _NO_SHARE if of_one is None else _TWO_RATIOS
        for direction in sides:
            if config.alternative not in (direction, "both"):
                continue
            if target is None or reason is not None:
                lists.append(impossible(own, direction, reason))
                continue
            side = f"{number}-{direction}"
            of_metric = results, measured, target, direction
            choice = _Choice(prepared, f"findings-{side}", *of_metric)
            found = choice.findings()
            if found is None:
                lists.append(impossible(own, direction, _CONSTANT))
                continue
            listed = choice.listed(found)
            if prepared.reserved is not None and listed.findings:
                listed = _Choice(prepared.reserved, f"confirm-{side}", *of_metric).confirmed(listed)
            lists.append(listed)
    return tuple(lists)


def impossible(own: Metric, direction: Direction, reason: str | None) -> FindingList:
    """Return that there can be no findings, and why."""
    model = document.FindingModel(
        metric=own.name, direction=direction, stop="not possible", reason=reason
    )
    return FindingList(np.zeros(0, np.int64), (), model)


class _Choice:
    """The choice for one metric and direction, the passes over the examples that it takes, and what it finds."""

    def __init__(
        self,
        prepared: EncodedDataset,
        stage: str,
        results: Results,
        measured: MetricResult,
        target: Target,
        direction: Direction,
    ) -> None:
        self.config, self.prepared, self.results = results.config, prepared, results
        self.measured, self.target, self.stage = measured, target, stage
        self.own, self.direction = metric(measured.name), direction
        self.scaling = without_buckets(prepared.scaling)
        self.space = self.scaling.space
        # The sums of all examples [raw columns].
        self.everything = prepared.totals[: self.space.raw_columns]
        # Examples of groups depend on each other, so that formulas do not hold.
        self.is_grouped = bool(self.config.group)
        # Whether the direction is that of large targets.
        self.upward = target.upward == (direction == "worse")
        self.is_change = self.space.comparison == "baseline"
        is_weighted = self.space.weighted
        # Whether targets are −1, 0 and 1 without weights.
        self.are_counts = self.is_change and not self.own.needs.values and not is_weighted
        # The mean target of examples on which two models do not differ.
        self.no_change: float | None = None
        if self.is_change:
            at_zero, at_one = self.own.of_target(np.array([0.0, 1.0]), self.space).tolist()
            self.no_change = -at_zero / (at_one - at_zero)
        # Of slices with the same examples one is enough.
        chosen = measured.significant & (results.same_as == results.keys)
        some = np.flatnonzero(chosen)
        # By key, as they are looked up.
        self.some = some[np.argsort(results.keys[some])]
        self.keys = results.keys[self.some]
        self.sums = results.sums[self.some][:, : self.space.raw_columns]
        self.shards = [Shard(storage_path(path)) for path in prepared.shards]
        self.seconds = prepared.rows * _SECONDS_PER_ROW
        self.found: list[int] = []
        self.most_held = min(self.config.memory // _HELD_SHARE, MOST_HELD)
        self.group_passes = 0
        self.counter: InsideCounter | None = None
        # All examples, where they are few enough to be read once.
        self.examples: list[RowBlock] | None = None

    def findings(self) -> ChosenSlices | None:
        """Choose the findings; None if the target is the same in all examples."""
        layout, none = self.target.layout, self.no_change or 0.0
        gain = self.measured.gain[self.some]
        law = None
        if not layout.are_counts and self.some.size:
            law = self._law()
            if law is None:
                return None
        sums = self.target_sums(self.sums)
        size, total = (layout.moment(sums, 1, power) for power in (0, 1))
        changes = None
        if self.is_change:
            squares = layout.squared_deviations(sums, none)
            changes = Changes(total - none * size, squares, self.are_counts)
        # In the denominator.
        cells = self.space.cells
        sizes = [
            self.sums[:, power * cells : (power + 1) * cells][:, self.target.counted].sum(axis=1)
            for power in ((1, 2) if self.space.weighted else (0,))
        ]
        with one_thread():
            return Choice(
                candidates=Candidates(
                    self.results.levels[self.some]
                    if self.prepared.given is None
                    else np.ones(self.some.size, np.int64),
                    self.keys,
                    np.stack(sizes, axis=1),
                    total,
                    np.ones(self.some.size, bool),
                    np.nan_to_num(gain if self.direction == "better" else -gain),
                ),
                everything=self.everything,
                layout=layout,
                count_inside=self._count_inside,
                hold=self._held,
                upward=self.upward,
                tests_per_level=self.results.searched.tests_per_level,
                law=law,
                alpha=self.config.used_alpha,
                count_groups=self._count_groups if self.config.group else None,
                moments=self.target_sums,
                changes=changes,
                no_change=none,
            ).run()

    def _pass(self, stage: str, function: Function) -> list[Found]:
        return self.prepared.scan(f"{self.stage}-{stage}", function, _SECONDS_PER_ROW)

    def _count_inside(self, chosen: int, positions: IntArray) -> InsideCounts:
        if self.counter is None:
            # The candidates are the same every time.
            memory = self.config.memory // _TABLES_SHARE
            self.counter = counter = InsideCounter(*self._counted(positions), memory)
            is_here = self.prepared.run.engine.workers == 1 or self.seconds < LEAST_PASS_SECONDS
            if is_here and self.prepared.rows * counter.row_bytes <= self.most_held:
                self.examples = list(map(counter.held, self._blocks()))
        finding, earlier = int(self.keys[chosen]), self.keys[self.found]
        if self.examples is not None:
            counts = self.counter.count(self.examples, finding, earlier)
        else:
            function = CountInside(self.counter, self.scaling, finding, earlier)
            counts = function.read(self._pass(str(len(self.found) + 1), function))
        self.found.append(chosen)
        return counts

    def _held(self, positions: IntArray) -> HeldExamples | None:
        """Return all examples with the candidates that they are in, where those are few enough."""
        pairs = int(self.results.sizes[self.some[positions]].sum())
        row_bytes = 8 * (self.space.raw_columns + 4)
        bytes_taken = pairs * PAIR_BYTES + self.prepared.rows * row_bytes
        if self.space.weighted or bytes_taken > self.most_held:
            return None
        return HeldExamples(self._blocks(), *self._counted(positions))

    def _blocks(self) -> Iterator[RowBlock]:
        return (block for shard in self.shards for block in shard.blocks(self.scaling))

    def _counted(self, positions: IntArray) -> tuple[IntArray, Lattice, StatisticSpace, BoolArray]:
        return self.keys[positions], self.prepared.lattice, self.space, self.target.counted

    def _law(self) -> DeviationLaw | None:
        """Return the law of weight · (target − mean) of all examples; None if all are the same."""
        layout = self.target.layout
        known = self.space.deviations_by_value.get(self.measured.name)
        if known is not None and not self.is_change:
            return DeviationLaw(known.population)
        of_all = self.target_sums(self.everything[None])
        weight, total = (float(layout.moment(of_all, 1, power)[0]) for power in (0, 1))
        if not weight > 0:
            return None
        mean = total / weight
        if self.are_counts:
            n, net, changed = of_all[0]
            counts = np.array([(changed - net) / 2, n - changed, (changed + net) / 2])
            held, values = counts > 0, np.array([-1.0, 0.0, 1.0]) - mean
            changes = Population(tuple(values[held]), tuple(counts[held]), 1.0)
            return DeviationLaw(changes) if held.sum() > 1 else None
        n = self._examples(self.everything[None])[0]
        variance = float(layout.squared_deviations(of_all, mean)[0]) / n
        if not variance > 0:
            return None
        ends = DeviationEnds(self.measured.name, self.scaling, mean)
        found = self._pass("deviation-ends", ends)
        low, high = (
            float(end(np.concatenate([one[name] for one in found])))
            for name, end in (("low", np.min), ("high", np.max))
        )
        if not low < high:
            return None
        edges = bin_edges(low, high, math.sqrt(variance))
        unit = math.ldexp(1.0, self.prepared.rows.bit_length() - _PLACE_BITS)
        binned = self._pass("deviations", DeviationBins(ends, edges, unit))
        sums = np.sum([one["sums"] for one in binned], axis=0).reshape(3, -1)
        of = population(sums, edges, unit)
        # What differs by rounding only may have fallen on one point.
        return DeviationLaw(of) if np.ptp(of.points) > 0 else None

    def _examples(self, sums: IntArray) -> IntArray:
        """Return how many examples [sets] are in the denominator."""
        counted: IntArray = self.space.counts(sums)[:, self.target.counted].sum(axis=1)
        return counted

    def _count_groups(self, found: IntArray, candidates: IntArray, masks: IntArray) -> GroupSums:
        self.group_passes += 1
        function = SumByGroup(
            self.prepared.lattice, self.scaling, self.keys[found], self.keys[candidates]
        )
        sums = added_groups(self._pass(f"groups-{self.group_passes}", function))
        moments = self.target_sums(sums["sums"].reshape(-1, self.space.raw_columns))
        layout = self.target.layout
        at = positions(masks, 1 << MOST_FINDINGS)(sums["mask"])
        # Patterns that only examples outside the denominator have are not the model's.
        size, total = (np.where(at >= 0, layout.moment(moments, 1, power), 0.0) for power in (0, 1))
        groups, group = np.unique(sums["id"], return_inverse=True)
        cell = np.unique(sums["mask"], return_inverse=True)[1] * groups.size + group
        # All examples come first, in the order of mask and group.
        everything, *own = (
            np.flatnonzero(sums["candidate"] == number) for number in range(-1, candidates.size)
        )
        return GroupSums(
            group[everything],
            at[everything],
            size[everything],
            total[everything],
            [
                CellSums(np.searchsorted(cell[everything], cell[some]), size[some], total[some])
                for some in own
            ],
        )

    def confirmed(self, listed: FindingList) -> FindingList:
        """Return the findings of a search of other examples with what they are on these."""
        keys, is_grouped = self.results.keys[listed.positions], self.is_grouped
        function = SumByGroup(self.prepared.lattice, self.scaling, keys, keys[:0], is_grouped)
        found = added_groups(self._pass("sums", function))
        masks, raw = found["mask"], found["sums"].reshape(-1, self.space.raw_columns)
        layout = self.target.layout
        sums = self.target_sums(raw)
        law = None if layout.are_counts else self._law()
        held = layout.moment(sums, 1, 0) > 0
        reserved = ReservedSums(
            group=np.unique(found["id"][held], return_inverse=True)[1],
            masks=masks[held],
            sums=sums[held],
            layout=layout,
            tail="upper" if self.upward else "lower",
            law=law,
            is_grouped=self.is_grouped,
            no_change=self.no_change,
            are_counts=self.are_counts,
        )
        is_constant = law is None and not layout.are_counts
        further = self.prepared.totals[self.prepared.space.raw_columns :]
        totals = np.append(self.everything, further)
        findings = []
        with one_thread():
            for number, one in enumerate(listed.findings):
                own = raw[(masks >> number & 1) > 0].sum(axis=0)
                n = int(self._examples(own[None])[0])
                is_measured = n >= LEAST_CONFIRMED and not is_constant
                again = reserved.measured(number) if is_measured else None
                confirmed = self._confirmed(again, Slices(own[None], self.space, totals), n)
                findings.append(one.model_copy(update={"confirmed": confirmed}))
        return replace(listed, findings=tuple(findings))

    def listed(self, found: ChosenSlices) -> FindingList:
        positions = self.some[[finding.candidate for finding in found.findings]].astype(np.int64)
        ids = self.results.names.ids(self.results.keys[positions]).to_pylist()
        examples = self._examples(self.results.sums[positions][:, : self.space.raw_columns])
        chosen = zip(found.findings, positions.tolist(), ids, examples.tolist(), strict=True)
        findings = tuple(self._finding(rank, *one) for rank, one in enumerate(chosen, 1))
        layout, model, coverage = self.target.layout, found.model, None
        intersections: tuple[document.Intersection, ...] = ()
        if findings:
            size, total = (layout.moment(found.sums, 1, power) for power in (0, 1))
            # The largest sets of examples that are in the same findings.
            sets, sizes, totals = largest_intersections(found.masks, size, total)
            values = self.own.of_target(totals / sizes, self.space)
            shares = sizes / size.sum()
            intersections = tuple(
                document.Intersection(
                    findings=tuple(
                        rank for rank in range(1, SHOWN_FINDINGS + 1) if mask >> rank - 1 & 1
                    ),
                    share=share,
                    value=finite(value),
                )
                for mask, share, value in zip(
                    sets.tolist(), shares.tolist(), values.tolist(), strict=True
                )
            )
            if not layout.weighted:
                inside = membership(found.masks, len(findings)).astype(np.float64)
                both, of_all = inside.T @ (size[:, None] * inside), found.sums.sum(axis=0)
                coverage = explained_variance(layout, both, inside.T @ found.sums, of_all)
        return FindingList(
            positions,
            findings,
            document.FindingModel(
                metric=self.measured.name,
                direction=self.direction,
                kind="logistic" if layout.kind == "rate" else "linear",
                coefficients=tuple(model.coefficients.tolist()),
                unbounded=tuple(model.unbounded.tolist()) if model.unbounded.any() else (),
                intersections=intersections,
                r2=None if coverage is None else finite(coverage.r2),
                r2_expected=None if coverage is None else coverage.expected,
                candidates=found.candidates,
                left_out=found.left_out,
                stop=found.stop,
            ),
        )

    def target_sums(self, sums: IntArray) -> FloatArray:
        """Return the sums of targets from sums [sets, raw columns]."""
        return self.own.target_sums(Slices(sums, self.space))

    def _finding(
        self, rank: int, one: ChosenSlice, position: int, slice_id: str, n: int
    ) -> document.Finding:
        measured, layout = self.measured, self.target.layout
        ends = (measured.value_low, measured.value_high)
        if self.is_change:
            ends = (measured.ci_low, measured.ci_high)
        of_value = float(ends[0][position]), float(ends[1][position])
        value, expected, difference, low, high = self._measured(one, of_value)
        (outside,) = self.own.of_target(np.array([one.outside]), self.space).tolist()
        held = None
        if self.target.is_share:
            of_all = self.target_sums(self.everything[None])[0]
            size, total = (layout.moment(of_all, 1, power).item() for power in (0, 1))
            if layout.kind == "rate":
                held = finite(one.cumulative_total / total)
            else:
                # Means are summed about a shift.
                shift = float(self.own.of_target(np.zeros(1), self.space)[0])
                if (whole := total + shift * size) > 0:
                    held = finite((one.cumulative_total + shift * one.cumulative_size) / whole)
        return document.Finding(
            metric=self.own.name,
            direction=self.direction,
            rank=rank,
            slice_id=slice_id,
            n=n,
            value=value,
            expected=expected,
            corrected=self._corrected(one, difference, (low, high), expected),
            difference=difference,
            interval=(finite(low), finite(high)),
            p_value=one.p_value,
            held_share=held,
            rate_outside=finite(outside),
        )

    def _corrected(
        self, one: ChosenSlice, difference: float, ends: tuple[float, float], expected: float
    ) -> document.CorrectedDifference:
        """Return the difference without what the selection adds, within the metric's range or what was observed."""
        z, c = -float(ndtri(one.p_value)), one.selected_above
        # In the unit of the metric.
        unit = abs(difference / (one.value - one.expected))
        found = groups.corrected_difference(difference, ends, z, c, unit * one.null_error)
        low, high = self.own.range
        if self.is_change:
            low, high = low - high, high - low
        limits = min(low - expected, ends[0]), max(high - expected, ends[1])
        middle, *interval = np.clip(found, *limits).tolist()
        return document.CorrectedDifference(
            difference=middle, low=finite(interval[0]), high=finite(interval[1])
        )

    def _confirmed(
        self, one: ConfirmedSlice | None, slices: Slices, n: int
    ) -> document.ConfirmedDifference:
        """Return a finding, alone in ``slices``, as measured on n reserved examples; empty where they are too few."""
        if one is None:
            return document.ConfirmedDifference(examples=n)
        ends = (np.full(1, np.nan),) * 2
        if not self.is_grouped:
            interval = self.own.delta_interval if slices.is_paired else self.own.value_interval
            ends = interval(slices, CONFIDENCE)
        of_value = float(ends[0][0]), float(ends[1][0])
        value, _, difference, low, high = self._measured(one, of_value)
        return document.ConfirmedDifference(
            examples=n,
            value=value,
            difference=difference,
            low=finite(low),
            high=finite(high),
            p_value=one.p_value,
        )

    def _measured(
        self, one: ChosenSlice | ConfirmedSlice, of_value: tuple[float, float]
    ) -> tuple[float, float, float, float, float]:
        """Return value, expectation, and their difference with its interval, from that of the value."""
        covariance, z = one.covariance, float(normal_quantile(CONFIDENCE))
        means = np.array([one.value, one.expected])
        off = z * np.sqrt([covariance.value, covariance.expected])
        ends = np.concatenate([means - off, means + off])
        # Of means without the shift, which takes digits.
        difference = one.value - one.expected
        if self.target.layout.kind == "rate":
            ends = np.clip(ends, 0.0, 1.0)
        value, expected = self.own.of_target(means, self.space).tolist()
        if self.target.layout.kind == "rate":
            difference = value - expected
        around = np.sort(self.own.of_target(ends, self.space).reshape(2, 2), axis=0).T.tolist()
        if any(map(math.isnan, of_value)):
            of_value = tuple(around[0])
        interval = covariance.interval_of_difference(value, of_value, expected, tuple(around[1]))
        return value, expected, difference, *interval
