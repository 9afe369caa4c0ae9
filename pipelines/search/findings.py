"""Chooses the findings of each metric from the significant slices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting import positions
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.findings.choice import Candidates, Changes, Choice, ReservedSums
from slicebeam.metrics.findings.conditional import DeviationLaw
from slicebeam.metrics.findings.groups import CellSums, GroupSums
from slicebeam.metrics.findings.inside import PAIR_BYTES, HeldExamples, InsideCounter
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric_on
from slicebeam.metrics.measures.target_sums import MOST_FINDINGS
from slicebeam.metrics.significance.random_subset import Population, bin_edges, population
from slicebeam.pipelines.changelist import slices as document
from slicebeam.pipelines.changelist.parts import finite
from slicebeam.pipelines.prepare.encoded_dataset import LEAST_PASS_SECONDS, pass_over_shards
from slicebeam.pipelines.search.finding_terms import FindingList, FindingTerms
from slicebeam.transforms.count.finding_passes import (
    CountInside,
    DeviationBins,
    DeviationEnds,
    SumByGroup,
    added_groups,
    without_buckets,
)
from slicebeam.transforms.encode.passes import one_thread
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Lattice
    from slicebeam.metrics.findings.choice import ChosenSlices
    from slicebeam.metrics.findings.inside import InsideCounts
    from slicebeam.metrics.measures.metric import Metric, Target
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.finding_terms import Direction
    from slicebeam.pipelines.search.results import MetricResult, Results
    from slicebeam.transforms.encode.passes import Found, Function


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


def finding_lists(results: Results, work: WorkFolder, engine: Engine) -> tuple[FindingList, ...]:
    """Return the findings of each metric, of the worse side before the better one."""
    sides: tuple[Direction, ...] = ("worse", "better")
    config, prepared = results.config, results.prepared
    wanted = [side for side in sides if config.alternative in (side, "both")]
    lists = []
    for number, measured in enumerate(results.metrics):
        own = metric_on(measured.name, prepared.space)
        target, reason = own.target(prepared.space), own.undefined_reason(prepared.slices())
        for direction in wanted:
            if target is None or reason is not None:
                why = reason if target is not None else _why_not_an_average(own)
                lists.append(_impossible(own, direction, why))
                continue
            side = f"{number}-{direction}"
            others = results, measured, target, direction, work, engine
            choice = _Choice(prepared, f"findings-{side}", *others)
            found = choice.findings()
            if found is None:
                lists.append(_impossible(own, direction, _CONSTANT))
                continue
            listed = choice.listed(found)
            if prepared.reserved is not None and listed.findings:
                listed = _Choice(prepared.reserved, f"confirm-{side}", *others).confirmed(listed)
            lists.append(listed)
    return tuple(lists)


def _why_not_an_average(own: Metric) -> str:
    if own.needs.values:
        return own.indivisible or _TWO_ROOTS
    is_ratio = own.target(StatisticSpace(own.needs.indicators, "overall")) is not None
    return _TWO_RATIOS if is_ratio else _NO_SHARE


def _impossible(own: Metric, direction: Direction, reason: str | None) -> FindingList:
    model = document.FindingModel(
        metric=own.name, direction=direction, stop="not possible", reason=reason
    )
    return FindingList(np.zeros(0, np.int64), (), model)


class _Choice:
    """The choice for one metric and direction, and the passes over the examples that it takes."""

    def __init__(
        self,
        prepared: EncodedDataset,
        stage: str,
        results: Results,
        measured: MetricResult,
        target: Target,
        direction: Direction,
        work: WorkFolder,
        engine: Engine,
    ) -> None:
        self.config, self.prepared, self.results = results.config, prepared, results
        self.measured, self.target, self.stage = measured, target, stage
        self.work, self.engine = work, engine
        self.scaling = without_buckets(prepared.scaling)
        self.space = self.scaling.space
        self.everything = prepared.totals[: self.space.raw_columns]
        self.terms = FindingTerms(
            measured, target, direction, self.space, self.everything, bool(self.config.group)
        )
        # Of slices with the same examples one is enough.
        chosen = measured.significant & (results.same_as == results.keys)
        some = np.flatnonzero(chosen)
        # By key, as they are looked up.
        self.some = some[np.argsort(results.keys[some])]
        self.keys = results.keys[self.some]
        self.sums = results.sums[self.some][:, : self.space.raw_columns]
        self.shards = [storage_path(path) for path in prepared.shards]
        self.seconds = prepared.rows * _SECONDS_PER_ROW
        self.found: list[int] = []
        self.group_passes = 0
        self.counter: InsideCounter | None = None
        # All examples, where they are few enough to be read once.
        self.examples: list[RowBlock] | None = None

    def findings(self) -> ChosenSlices | None:
        """Choose the findings; None if the target is the same in all examples."""
        terms, layout = self.terms, self.target.layout
        gain = self.measured.gain[self.some]
        law = None
        if not layout.are_counts and self.some.size:
            law = self._law()
            if law is None:
                return None
        sums = terms.target_sums(self.sums)
        with one_thread():
            return Choice(
                candidates=Candidates(
                    self.results.levels[self.some]
                    if self.prepared.given is None
                    else np.ones(self.some.size, np.int64),
                    self.keys,
                    self._sizes(),
                    layout.moment(sums, 1, 1),
                    np.ones(self.some.size, bool),
                    np.nan_to_num(gain if terms.direction == "better" else -gain),
                ),
                everything=self.everything,
                layout=layout,
                count_inside=self._count_inside,
                hold=self._held,
                upward=terms.upward,
                tests_per_level=self.results.searched.tests_per_level,
                law=law,
                alpha=self.config.used_alpha,
                count_groups=self._count_groups if self.config.group else None,
                moments=terms.target_sums,
                changes=self._changes(sums) if terms.is_change else None,
                no_change=terms.no_change or 0.0,
            ).run()

    def _changes(self, sums: NDArray[np.float64]) -> Changes:
        layout, none = self.target.layout, self.terms.no_change or 0.0
        first, size = layout.moment(sums, 1, 1), layout.moment(sums, 1, 0)
        squares = layout.squared_deviations(sums, none)
        return Changes(first - none * size, squares, self.terms.are_counts)

    def _sizes(self) -> NDArray[np.int64]:
        """Return the sizes [candidates, size columns] in the denominator."""
        powers = (1, 2) if self.space.weighted else (0,)
        cells = self.space.cells
        columns = [
            self.sums[:, power * cells : (power + 1) * cells][:, self.target.counted].sum(axis=1)
            for power in powers
        ]
        return np.stack(columns, axis=1)

    def _pass(self, stage: str, function: Function) -> list[Found]:
        return pass_over_shards(
            self.shards,
            f"{self.stage}-{stage}",
            function,
            self.work,
            self.engine,
            self.seconds,
            keeps=True,
        )

    def _count_inside(self, chosen: int, positions: NDArray[np.int64]) -> InsideCounts:
        if self.counter is None:
            # The candidates are the same every time.
            memory = self.config.memory // _TABLES_SHARE
            self.counter = counter = InsideCounter(*self._counted(positions), memory)
            is_here = self.engine.workers == 1 or self.seconds < LEAST_PASS_SECONDS
            if is_here and self.prepared.rows * counter.row_bytes <= self._most_held:
                self.examples = [counter.held(block) for block in self._blocks()]
        finding, earlier = int(self.keys[chosen]), self.keys[self.found]
        if self.examples is not None:
            counts = self.counter.count(self.examples, finding, earlier)
        else:
            function = CountInside(self.counter, self.scaling, finding, earlier)
            counts = function.read(self._pass(str(len(self.found) + 1), function))
        self.found.append(chosen)
        return counts

    def _held(self, positions: NDArray[np.int64]) -> HeldExamples | None:
        """Return all examples with the candidates that they are in, where those are few enough."""
        pairs = int(self.results.sizes[self.some[positions]].sum())
        row_bytes = 8 * (self.space.raw_columns + 4)
        bytes_taken = pairs * PAIR_BYTES + self.prepared.rows * row_bytes
        if self.space.weighted or bytes_taken > self._most_held:
            return None
        return HeldExamples(self._blocks(), *self._counted(positions))

    def _counted(
        self, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Lattice, StatisticSpace, NDArray[np.bool_]]:
        """Return what counting needs to know of some candidates."""
        return self.keys[positions], self.prepared.lattice, self.space, self.target.counted

    @property
    def _most_held(self) -> int:
        return min(self.config.memory // _HELD_SHARE, MOST_HELD)

    def _blocks(self) -> Iterator[RowBlock]:
        return (block for path in self.shards for block in Shard(path).blocks(self.scaling))

    def _law(self) -> DeviationLaw | None:
        """Return the law of weight · (target − mean) of all examples; None if all are the same."""
        layout = self.target.layout
        known = self.space.deviations_by_value.get(self.measured.name)
        if known is not None and not self.terms.is_change:
            return DeviationLaw(known.population)
        of_all = self.terms.target_sums(self.everything[None])
        weight, total = (float(layout.moment(of_all, 1, power)[0]) for power in (0, 1))
        if not weight > 0:
            return None
        mean = total / weight
        if self.terms.are_counts:
            return self._law_of_changes(mean, of_all)
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

    def _law_of_changes(self, mean: float, of_all: NDArray[np.float64]) -> DeviationLaw | None:
        """Return the law of changes of −1, 0 and 1."""
        n, net, changed = of_all[0]
        counts = np.array([(changed - net) / 2, n - changed, (changed + net) / 2])
        held = counts > 0
        if held.sum() < 2:
            return None
        values = np.array([-1.0, 0.0, 1.0]) - mean
        return DeviationLaw(Population(tuple(values[held]), tuple(counts[held]), 1.0))

    def _examples(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many examples [sets] are in the denominator."""
        counted: NDArray[np.int64] = self.space.counts(sums)[:, self.target.counted].sum(axis=1)
        return counted

    def _count_groups(
        self, found: NDArray[np.int64], candidates: NDArray[np.int64], masks: NDArray[np.int64]
    ) -> GroupSums:
        """Sum sizes and targets by group and pattern."""
        self.group_passes += 1
        function = SumByGroup(
            self.prepared.lattice, self.scaling, self.keys[found], self.keys[candidates]
        )
        sums = added_groups(self._pass(f"groups-{self.group_passes}", function))
        moments = self.terms.target_sums(sums["sums"].reshape(-1, self.space.raw_columns))
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
        keys, is_grouped = self.results.keys[listed.positions], self.terms.is_grouped
        function = SumByGroup(self.prepared.lattice, self.scaling, keys, keys[:0], is_grouped)
        found = added_groups(self._pass("sums", function))
        masks, raw = found["mask"], found["sums"].reshape(-1, self.space.raw_columns)
        terms, layout = self.terms, self.target.layout
        sums = terms.target_sums(raw)
        law = None if layout.are_counts else self._law()
        held = layout.moment(sums, 1, 0) > 0
        reserved = ReservedSums(
            group=np.unique(found["id"][held], return_inverse=True)[1],
            masks=masks[held],
            sums=sums[held],
            layout=layout,
            tail="upper" if terms.upward else "lower",
            law=law,
            is_grouped=terms.is_grouped,
            no_change=terms.no_change,
            are_counts=terms.are_counts,
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
                confirmed = terms.confirmed(again, Slices(own[None], self.space, totals), n)
                findings.append(one.model_copy(update={"confirmed": confirmed}))
        return replace(listed, findings=tuple(findings))

    def listed(self, found: ChosenSlices) -> FindingList:
        """Return the findings in the metric's own terms."""
        positions = self.some[[one.candidate for one in found.findings]].astype(np.int64)
        ids = self.results.names.ids(self.results.keys[positions]).to_pylist()
        examples = self._examples(self.results.sums[positions][:, : self.space.raw_columns])
        chosen = zip(found.findings, positions.tolist(), ids, examples.tolist(), strict=True)
        terms = self.terms
        findings = tuple(terms.finding(rank, *one) for rank, one in enumerate(chosen, 1))
        model = found.model
        coverage = terms.coverage(found.masks, found.sums, len(findings)) if findings else None
        return FindingList(
            positions,
            findings,
            document.FindingModel(
                metric=self.measured.name,
                direction=terms.direction,
                kind="logistic" if self.target.layout.kind == "rate" else "linear",
                coefficients=tuple(model.coefficients.tolist()),
                unbounded=tuple(model.unbounded.tolist()) if model.unbounded.any() else (),
                intersections=terms.intersections(found.masks, found.sums) if findings else (),
                r2=None if coverage is None else finite(coverage.r2),
                r2_expected=None if coverage is None else coverage.expected,
                candidates=found.candidates,
                left_out=found.left_out,
                stop=found.stop,
            ),
        )
