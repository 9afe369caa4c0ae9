"""Findings of a change between two data sets: the few slices that changed more than the lines above explain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.findings import corrected
from slicebeam.metrics.findings.corrected import selected_above
from slicebeam.metrics.findings.two_sets import TwoSets, best, changed_more_p, differences, worse_p
from slicebeam.metrics.measures.earlier import sides
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.measures.target_sums import design
from slicebeam.pipelines.changelist.slices import CorrectedDifference, Finding, FindingModel
from slicebeam.pipelines.search.findings import FindingList, impossible
from slicebeam.transforms.count.finding_passes import SumByGroup, added_groups, without_buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.findings.choice import StopReason
    from slicebeam.metrics.findings.two_sets import Step
    from slicebeam.metrics.measures.metric import Target
    from slicebeam.pipelines.search.findings import Direction
    from slicebeam.pipelines.search.results import Results

# Slices that strata are made of, and findings.
_MOST_STRATA, MOST_CHANGES = 10, 10
# Candidates that are counted by stratum: those of the largest marginal deviation.
_MOST_CANDIDATES = 400
_SECONDS_PER_ROW = 2e-6


class _Tables(NamedTuple):
    """Candidates and all examples by stratum."""

    masks: NDArray[np.int64]
    slices: TwoSets
    everything: TwoSets


class ChangeChoice:
    """The choice for one metric and direction, and the passes over the examples that it takes."""

    def __init__(self, results: Results, number: int, target: Target, direction: Direction) -> None:
        self.results, self.measured, self.direction = results, results.metrics[number], direction
        self.config, self.prepared = results.config, results.prepared
        self.run = results.counter.run
        self.own = metric(self.measured.name)
        self.scaling = without_buckets(results.prepared.scaling)
        self.layout = target.layout
        # What counts against the metric is turned round where what became better is looked for.
        self.is_upward = target.upward == (direction == "worse")
        self.stage, self.passes = f"changes-{number}-{direction}", 0
        tests = np.maximum(np.array(results.searched.tests_per_level, np.float64), 1.0)
        self.tests = tests[np.minimum(results.levels, tests.size) - 1]
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
            expected = differences(tables.everything, general)
            found.append(
                self._finding(
                    len(found) + 1,
                    some,
                    step,
                    tables.slices.rows(np.array([step.chosen])),
                    general @ expected,
                )
            )
            chosen.append(int(some[step.chosen]))
        model = FindingModel(
            metric=measured.name, direction=self.direction, stop=stop, candidates=int(called.sum())
        )
        return FindingList(np.array(chosen, np.int64), tuple(found), model)

    def _best(self, p: NDArray[np.float64], some: NDArray[np.int64]) -> Step | None:
        sizes = self.results.sizes[some].astype(np.float64)
        return best(p, self.tests[some], self.threshold[some], sizes)

    def _largest(self, some: NDArray[np.int64], size: NDArray[np.float64]) -> NDArray[np.int64]:
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

    def _of_union(self, sums: NDArray[np.int64]) -> TwoSets:
        """Return sums [slices, columns] as one stratum [slices, 1]."""
        return TwoSets(*(column[:, None] for column in self._sets(sums)))

    def _sets(self, sums: NDArray[np.int64]) -> TwoSets:
        """Return the examples and targets [rows] of sums [rows, columns]."""
        columns: list[NDArray[np.float64]] = []
        space = self.scaling.space
        for side in sides(Slices(sums[:, : space.columns], space)):
            targets = self.own.target_sums(side)
            n, total = (self.layout.moment(targets, 1, power) for power in (0, 1))
            are_shares = self.layout.kind == "rate"
            squares = total if are_shares else self.layout.moment(targets, 2, 2)
            turned = n - total if are_shares else -total
            columns += [n, total if self.is_upward else turned, squares]
        return TwoSets(*columns)

    def _tables(self, keys: Keys, some: NDArray[np.int64]) -> _Tables:
        """Count candidates, and all examples, by which of some slices they are in."""
        self.passes += 1
        function = SumByGroup(
            self.prepared.lattice, self.scaling, keys, self.results.keys[some], is_grouped=False
        )
        stage = f"{self.stage}-{self.passes}"
        found = added_groups(self.prepared.scan(stage, function, self.run, _SECONDS_PER_ROW))
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
        self,
        rank: int,
        some: NDArray[np.int64],
        step: Step,
        of_slice: TwoSets,
        expected: NDArray[np.float64],
    ) -> Finding:
        """Return a finding in the metric's own terms."""
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
        found = corrected.difference(difference, (low, high), z, above, abs(difference) / z)
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
