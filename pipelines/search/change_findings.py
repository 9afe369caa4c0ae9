"""Findings of a change: the slices that changed more than the lines above them explain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.findings import groups
from slicebeam.metrics.findings.groups import selected_above
from slicebeam.metrics.findings.two_sets import (
    Nested,
    Step,
    TwoSets,
    best,
    changed_more_p,
    differences,
    part_alone,
    sharpened,
    worse_p,
)
from slicebeam.metrics.measures.earlier import sides
from slicebeam.metrics.measures.metric import Slices, Target
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.measures.target_sums import design
from slicebeam.pipelines.changelist.slices import CorrectedDifference, Finding, FindingModel
from slicebeam.pipelines.search.findings import Direction, impossible
from slicebeam.pipelines.search.results import FindingList, Results
from slicebeam.transforms.count.finding_passes import SumByGroup, added_groups, without_buckets

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.findings.choice import StopReason


# Slices that strata are made of, and findings.
_MOST_STRATA, MOST_CHANGES = 10, 10
# Candidates that are counted by stratum: those of the largest marginal deviation.
_MOST_CANDIDATES = 400
_SECONDS_PER_STRATUM_ROW = 2e-6


class _Tables(NamedTuple):
    """Candidates and all examples by stratum."""

    masks: IntArray
    slices: TwoSets
    everything: TwoSets


class ChangeChoice:
    """The choice for one metric and direction, and the passes over the examples that it takes."""

    def __init__(self, results: Results, number: int, target: Target, direction: Direction) -> None:
        self.results, self.measured, self.direction = results, results.metrics[number], direction
        self.config, self.prepared = results.config, results.prepared
        self.own = metric(self.measured.name)
        self.scaling = without_buckets(results.prepared.scaling)
        self.layout = target.layout
        # What counts against the metric is turned round where what became better is looked for.
        self.is_upward = target.upward == (direction == "worse")
        self.stage, self.passes = f"changes-{number}-{direction}", 0
        tests = np.maximum(np.array(results.searched.tests_per_level, np.float64), 1.0)
        self.tests = tests[np.minimum(results.levels, tests.size) - 1]
        self.tests_of_one = float(tests[0])
        self.threshold = self.config.used_alpha / self.config.families(tests.size) / self.tests

    def findings(self) -> FindingList:
        """Choose the findings."""
        measured = self.measured
        strata = self._strata()
        called = measured.significant & (
            measured.gain > 0 if self.direction == "better" else measured.gain < 0
        )
        some = self._largest(
            np.flatnonzero(called & (self.results.same_as == self.results.keys)), measured.delta
        )
        found: list[Finding] = []
        chosen: list[int] = []
        stop: StopReason = "no candidates" if not some.size else "most findings"
        while some.size and len(found) < MOST_CHANGES:
            tables = self._tables(
                np.concatenate([self.results.keys[strata], self.results.keys[chosen]]), some
            )
            general = design(tables.masks >> len(strata), len(chosen))
            p = changed_more_p(
                tables.slices, tables.everything, general, are_counts=self.layout.are_counts
            )
            step = self._best(p, some)
            if step is None:
                stop = "nothing left"
                break
            expected = general @ differences(tables.everything, general)
            step = self._sharpened(step, p, some, tables.slices, expected)
            found.append(
                self._finding(
                    len(found) + 1,
                    some,
                    step,
                    tables.slices.rows(np.array([step.chosen])),
                    expected,
                )
            )
            chosen.append(int(some[step.chosen]))
        model = FindingModel(
            metric=measured.name, direction=self.direction, stop=stop, candidates=int(called.sum())
        )
        return FindingList(np.array(chosen, np.int64), tuple(found), model)

    def _best(self, p: FloatArray, some: IntArray) -> Step | None:
        sizes = self.results.sizes[some].astype(np.float64)
        return best(p, self.tests[some], self.threshold[some], sizes)

    def _sharpened(
        self, step: Step, p: FloatArray, some: IntArray, slices: TwoSets, expected: FloatArray
    ) -> Step:
        """Return the slice that changed among those that hold the chosen one, or that it holds."""
        pairs = self._nested(some, np.flatnonzero(p <= self.threshold[some]))

        def likelier(at: IntArray) -> FloatArray:
            wholes, parts = (slices.rows(side[at]) for side in (pairs.wholes, pairs.parts))
            return part_alone(wholes, parts, expected, are_counts=self.layout.are_counts)

        chosen = sharpened(step.chosen, pairs, likelier)
        near = tuple(at for at in (step.chosen, *step.near) if at != chosen)
        return Step(chosen, float(p[chosen]), near)

    def _nested(self, some: IntArray, likely: IntArray) -> Nested:
        """Return the pairs among a few candidates; a part is one of as many as there are conditions to add."""
        keys, levels = self.results.keys[some], self.results.levels[some]
        parts, wholes = [], []
        for level in range(2, int(levels.max(initial=1)) + 1):
            of_level = likely[levels[likely] == level]
            for whole in self.prepared.lattice.subsets(keys[of_level], range(1, level)):
                at = np.minimum(np.searchsorted(keys[likely], whole), likely.size - 1)
                there = keys[likely][at] == whole
                parts.append(of_level[there])
                wholes.append(likely[at[there]])
        part, whole = (np.concatenate([np.zeros(0, np.int64), *side]) for side in (parts, wholes))
        return Nested(part, whole, (levels[part] - levels[whole]) * math.log(self.tests_of_one))

    def _largest(self, some: IntArray, size: FloatArray) -> IntArray:
        """Return the candidates of the smallest p-values, by key."""
        order = np.lexsort((-np.abs(size[some]), self.measured.p_value[some]))[:_MOST_CANDIDATES]
        kept = some[order]
        return kept[np.argsort(self.results.keys[kept])]

    def _strata(self) -> list[int]:
        """Return slices of both data sets together that are worse than others: examples of equal difficulty."""
        results, both = self.results, self._of_union(self.results.sums)
        everything = self._of_union(self.prepared.of_all[None, : self.prepared.space.columns])
        p = worse_p(both, everything)
        likely = np.flatnonzero((p <= self.threshold) & (results.same_as == results.keys))
        order = np.argsort(p[likely], kind="stable")[:_MOST_CANDIDATES]
        some = likely[order]
        some = some[np.argsort(results.keys[some])]
        chosen: list[int] = []
        while some.size and len(chosen) < _MOST_STRATA:
            if chosen:
                tables = self._tables(results.keys[chosen], some)
                slices, everything = tables.slices, tables.everything
            else:
                slices = both.rows(some)
            step = self._best(worse_p(slices, everything), some)
            if step is None:
                break
            chosen.append(int(some[step.chosen]))
        return chosen

    def _of_union(self, sums: IntArray) -> TwoSets:
        """Return sums [slices, columns] as one stratum [slices, 1]."""
        return TwoSets(*(column[:, None] for column in self._sets(sums)))

    def _sets(self, sums: IntArray) -> TwoSets:
        """Return the examples and targets [rows] of sums [rows, columns]."""
        columns: list[FloatArray] = []
        space = self.scaling.space
        for side in sides(Slices(sums[:, : space.columns], space)):
            targets = self.own.target_sums(side)
            n, total = (self.layout.moment(targets, 1, power) for power in (0, 1))
            are_shares = self.layout.kind == "rate"
            squares = total if are_shares else self.layout.moment(targets, 2, 2)
            turned = n - total if are_shares else -total
            columns += [n, total if self.is_upward else turned, squares]
        return TwoSets(*columns)

    def _tables(self, keys: Keys, some: IntArray) -> _Tables:
        """Count candidates, and all examples, by which of some slices they are in."""
        self.passes += 1
        function = SumByGroup(
            self.prepared.lattice, self.scaling, keys, self.results.keys[some], is_grouped=False
        )
        stage = f"{self.stage}-{self.passes}"
        found = added_groups(self.prepared.scan(stage, function, _SECONDS_PER_STRATUM_ROW))
        masks, stratum = np.unique(found["mask"], return_inverse=True)
        columns = self._sets(
            found["sums"].reshape(found["mask"].size, -1)[:, : self.prepared.space.columns]
        )
        tables = np.zeros((len(TwoSets._fields), some.size + 1, masks.size))
        for table, column in zip(tables, columns, strict=True):
            np.add.at(table, (found["candidate"] + 1, stratum), column)
        whole = TwoSets(*tables[:, 0])
        return _Tables(masks, TwoSets(*tables[:, 1:]), whole)

    def _finding(
        self, rank: int, some: IntArray, step: Step, of_slice: TwoSets, expected: FloatArray
    ) -> Finding:
        at = int(some[step.chosen])
        then = np.where(
            of_slice.n_then > 0, of_slice.total_then / np.maximum(of_slice.n_then, 1.0), 0.0
        )
        held = of_slice.n * (of_slice.n_then > 0)
        share = float((held * (then + expected)).sum() / max(held.sum(), 1.0))
        sign = 1.0 if self.is_upward == (not self.own.higher_is_better) else -1.0
        value, before = float(self.measured.value[at]), float(self.measured.reference[at])
        plain = float(of_slice.total_then.sum() / max(of_slice.n_then.sum(), 1.0))
        awaited = before + sign * (share - plain)
        awaited = float(np.clip(awaited, *self.own.range))
        difference = value - awaited
        low, high = (
            difference + float(end[at] - self.measured.delta[at])
            for end in (self.measured.ci_low, self.measured.ci_high)
        )
        z, cost = -float(ndtri(step.p)), math.log(self.tests[at])
        above = selected_above(step.p, self.threshold[at], z**2 / 2.0 - cost, cost)
        # Under the hypothesis of the test the difference is z errors from 0.
        found = groups.corrected_difference(difference, (low, high), z, above, abs(difference) / z)
        names = self.results.names
        (slice_id,) = names.ids(self.results.keys[[at]]).to_pylist()
        near = names.ids(self.results.keys[some[list(step.near)]]).to_pylist() if step.near else []
        return Finding(
            metric=self.measured.name,
            direction=self.direction,
            rank=rank,
            slice_id=slice_id,
            n=int(self.results.sizes[at]),
            value=value,
            before=before,
            expected=awaited,
            corrected=CorrectedDifference(difference=found[0], low=found[1], high=found[2]),
            difference=difference,
            interval=(low, high),
            p_value=step.p,
            near=tuple(near),
        )


def change_findings(results: Results) -> tuple[FindingList, ...]:
    """Return the findings of each metric, of the worse side before the better one."""
    directions: tuple[Direction, ...] = ("worse", "better")
    space, lists = results.prepared.space.of_one_set, []
    for number, measured in enumerate(results.metrics):
        own = metric(measured.name)
        target = own.target(space)
        for direction in directions:
            if results.config.alternative not in (direction, "both"):
                continue
            if target is None or space.weighted or results.config.group:
                what = "weights" if space.weighted else "groups"
                reason = own.indivisible or f"with {what}, findings of a change are not chosen"
                lists.append(impossible(own, direction, reason))
            else:
                lists.append(ChangeChoice(results, number, target, direction).findings())
    return tuple(lists)
