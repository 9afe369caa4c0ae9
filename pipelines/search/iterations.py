"""The driver loop: propose slices, count and test them, decide which are significant, repeat; and who follows it.

Slices that could be significant are tested again: by replicates, and by their exact AUC or average precision.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import apache_beam as beam
import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.counting import Resampling
from slicebeam.metrics.counting.counting_plan import (
    Budget,
    balanced,
    blocks,
    plan_all,
    plan_listed,
    plan_within,
)
from slicebeam.metrics.counting.lattice import Keys, contains
from slicebeam.metrics.counting.membership import ENOUGH_GROUPS, distinct_groups
from slicebeam.metrics.measures.earlier import Earlier
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.multiplicity import adjusted, holm_adjusted
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.measures.slice_test import SliceTest
from slicebeam.metrics.significance.outcome_codes import Method, Reason
from slicebeam.pipelines.changelist.testing import Iteration
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.prepare.exact_auc import has_error, put_ranking
from slicebeam.pipelines.run.engine import Cost
from slicebeam.pipelines.run.stage import Observer
from slicebeam.pipelines.search.strategies import (
    Iterative,
    Priority,
    SearchState,
    Strategy,
    batch_cost,
)
from slicebeam.transforms.count.search_graph import CountAndTest
from slicebeam.transforms.count.slice_sums import WHOLE, slice_sums, sum_slices
from slicebeam.transforms.count.tables import (
    BlockTest,
    finished_blocks,
    plan_digest,
    read_facts,
    read_part,
    work_items,
    write_plan,
)
from slicebeam.transforms.storage.storage import StoragePath, fetch, matching
from slicebeam.transforms.storage.work_files import part_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slicebeam.metrics.arrays import FloatArray, IntArray, NDArray
    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset

    Array = NDArray[Any]
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.transforms.count.tables import PlannedBlock, WorkItem


# How far the first, quick test may be off: by this factor in p.
_SPARED = 10.0
# A cluster bootstrap of fewer groups has too few different replicates.
LEAST_GROUPS = 30
# The columns that a second test has of each of its metrics.
_TESTED = ("p", "reason", "method", "se")


class SearchObserver(Observer, Protocol):
    """Follows a search, a check or a discovery."""

    def prepared(self, prepared: EncodedDataset) -> None:
        """Show the prepared data."""

    def progress(
        self, iteration: int, candidates: int, significant: int, counted: Callable[[], int]
    ) -> None:
        """Show that an iteration begins, and how far it is until the next."""

    def recorded(self, record: Iteration) -> None:
        """Receive the work and cost of an iteration."""


@dataclass(frozen=True)
class SearchResult:
    """What the iterations found."""

    strategy: Any  # those of `Search`, as is the next one
    stopped: Any
    records: tuple[Iteration, ...]
    parts: list[CountedPart]
    tests_per_level: tuple[int, ...]  # slices of each level that the correction counts
    tested_per_level: tuple[int, ...]
    second_tests: SecondTests


class Iterations:
    """Counts and tests proposals, each in one pipeline, and remembers the finished ones."""

    def __init__(self, counter: SliceCounter, observer: SearchObserver) -> None:
        self.config, self.prepared = counter.config, counter.prepared
        self.counter, self.observer = counter, observer
        self.second_tests = SecondTests(counter)
        self.records: list[Iteration] = []
        self.parts: list[CountedPart] = []

    def search(self) -> SearchResult:
        """Count and test all slices, those that are given, or those that a strategy proposes."""
        config, lattice = self.config, self.prepared.lattice
        if not isinstance(config, SearchConfig):
            keys = lattice.singleton_keys()
            none = np.zeros(keys.size, np.int64)
            planned = plan_listed(keys, none, none, lattice, self.counter.budget)
            return self._once("given", planned, keys.size)
        cost = batch_cost(config, lattice, self.prepared.space, self.prepared.rows)
        strategy = config.resolved_strategy(lattice.space(), batch_fits=cost.fits)
        if strategy == "batch":
            return self._once(strategy, plan_all(lattice, self.counter.budget), lattice.space())
        prune = config.prune_significant
        if strategy == "iterative":
            return self._step_by_step(strategy, Iterative(lattice, prune_significant=prune))
        steps = Priority(
            lattice,
            iterations=config.iterations,
            max_candidates=config.max_candidates,
            prune_significant=prune,
        )
        return self._step_by_step(strategy, steps)

    def _once(self, strategy: str, planned: Iterable[PlannedUnit], candidates: int) -> SearchResult:
        """Count all slices in one iteration: the family are those that are tested."""
        self.parts, cost = self._count(planned, candidates, 0)
        tested = np.zeros(self.prepared.lattice.max_cross_size + 1, np.int64)
        for table in tables_of(self.parts):
            keys = table.keys[~np.isnan(table["p0"])]
            tested += np.bincount(self.prepared.lattice.cross_sizes(keys), minlength=tested.size)
        family = tuple(tested[1:].tolist())
        resampling = self.second_tests.resampled(self.parts, family, 1)
        self.second_tests.by_own_values(self.parts, family, 1)
        is_given = strategy == "given"
        settling, _ = self.second_tests.settled(self.parts, family, 1, is_all=is_given)
        significant = self.second_tests.called(self.parts, 0, family).size
        self._note(self.parts, candidates, None, significant, cost + resampling + settling)
        return self._result(strategy, "exhausted", family, family)

    def _step_by_step(self, strategy: str, steps: Strategy) -> SearchResult:
        """Count what a strategy proposes: the family are all slices that are large enough."""
        from slicebeam.metrics.measures.multiplicity import Visited, tests_per_level

        lattice, space = self.prepared.lattice, self.prepared.space
        known = SearchState(self.config.used_min_slice_size)
        steering = metric_on(self.config.metric[0], space)
        family: tuple[int, ...] = ()
        while (proposal := steps.next(known)) is not None:
            keys, bases, base_sizes = proposal.candidates, proposal.bases, proposal.base_sizes
            planned = plan_listed(keys, bases, base_sizes, lattice, self.counter.budget)
            significant = int(np.count_nonzero(known.significant))
            parts, cost = self._count(planned, keys.size, significant)
            # What is in no part is empty.
            known.add(keys, looked_up(parts, keys, lambda table: table.sizes(space)))
            visited = Visited(known.keys, known.sizes)
            family = tuple(tests_per_level(lattice, visited, self.prepared.rows, known.min_size))
            number = len(self.records) + 1
            cost += self.second_tests.resampled(parts, family, number)
            self.second_tests.by_own_values(parts, family, number)
            self.parts += parts
            settling, changed = self.second_tests.settled(self.parts, family, number)
            # Exact values of earlier slices may be new as well.
            for table in tables_of(self.parts if changed.size else parts):
                delta = steering.delta(self.prepared.slices(table.counts(space)["sums"]))
                first = table.columns.get("first0", table["p0"])
                known.learn(table.keys, table["p0"], first, delta)
            tested = np.flatnonzero(known.sizes >= known.min_size)
            levels = lattice.cross_sizes(known.keys[tested])
            q = q_values(self.config, known.p[tested], levels, family)
            known.significant[:] = False
            known.significant[tested] = q <= self.config.used_alpha
            significant = int(np.count_nonzero(known.significant))
            self._note(parts, keys.size, proposal.expected, significant, cost + settling)
        levels = lattice.cross_sizes(known.keys[known.sizes >= known.min_size])
        counts = np.bincount(levels, minlength=lattice.max_cross_size + 1)[1:]
        stopped = "iterations" if steps.is_stopped else "exhausted"
        return self._result(strategy, stopped, family, tuple(counts.tolist()))

    def _result(
        self, strategy: str, stopped: str, tests: tuple[int, ...], tested: tuple[int, ...]
    ) -> SearchResult:
        of_run = tuple(self.records), self.parts
        return SearchResult(strategy, stopped, *of_run, tests, tested, self.second_tests)

    def _count(
        self, planned: Iterable[PlannedUnit], candidates: int, significant: int
    ) -> tuple[list[CountedPart], Cost]:
        number = len(self.records) + 1
        return self.counter.count(
            f"iteration-{number}",
            planned,
            lambda counted: self.observer.progress(number, candidates, significant, counted),
        )

    def _note(
        self,
        parts: list[CountedPart],
        candidates: int,
        expected: float | None,
        significant: int,
        cost: Cost,
    ) -> None:
        facts = [read_facts(part.path) for part in parts]
        record = Iteration(
            iteration=len(self.records) + 1,
            candidates=candidates,
            nonempty=sum(fact["nonempty"] for fact in facts),
            nonempty_estimated=expected,
            tested=sum(fact["tested"] for fact in facts),
            significant=significant,
            **vars(cost),
        )
        self.records.append(record)
        self.observer.recorded(record)


def q_values(
    config: RunConfig, p: Array, levels: Array, tests_per_level: tuple[int, ...]
) -> FloatArray:
    """Return the q-value of each p, corrected for the tests of each level and for all metrics."""
    number, metrics = len(tests_per_level), len(config.metric)
    q = adjusted(p, levels, tests_per_level, config.used_correction, number, metrics)
    families = config.families(number)
    if families > number and config.used_correction != "none":
        q = np.minimum(q * families / number, 1.0)
    return q


def adjusted_overall(config: RunConfig, p: FloatArray) -> FloatArray:
    """Return the p-values [tests] of changes over all examples by Holm's method, of two data sets a level too."""
    tested = ~np.isnan(p)
    adjusted = p.copy()
    if config.used_correction != "none":
        adjusted[tested] = holm_adjusted(p[tested])
        if config.comparison == "earlier":
            families = config.families(getattr(config, "max_cross_size", 1))
            adjusted[tested] = np.minimum(adjusted[tested] * families, 1.0)
    return adjusted


class SecondTests:
    """Tests again the slices that the first, quick test does not decide."""

    def __init__(self, counter: SliceCounter) -> None:
        self.counter = counter
        self.config, self.prepared = counter.config, counter.prepared
        self.run, self.tests = counter.run, counter.tests
        self.exact = self.prepared.exact_auc(self.config.memory)
        self.ranked = tuple(
            number for number, name in enumerate(self.config.metric) if metric(name).needs.ranked
        )
        self.exact_keys: Keys = np.zeros(0, np.int64)
        # Resampled slices with few groups, though enough for a test.
        self.few_groups: list[Keys] = [np.zeros(0, np.int64)]
        self.most_groups: int | None = None  # of any slice, at most `ENOUGH_GROUPS`

    def called(
        self,
        parts: list[CountedPart],
        number: int,
        per_level: tuple[int, ...],
        times: float = 1.0,
        name: str = "p",
    ) -> Keys:
        """Return the keys of the slices that a metric calls at a multiple of alpha.

        By ``p``, by ``first``, that of the quick test, or by ``best``, the smallest p that the error of the
        metric's value leaves. No slice whose p exceeds alpha is called, nor changes the q-value of one that is.
        """
        keys, p = [np.zeros(0, np.int64)], [np.zeros(0)]
        for table in tables_of(parts):
            own = table[f"{name}{number}"] / times
            small = np.flatnonzero(own <= self.config.used_alpha)
            keys.append(table.keys[small])
            p.append(own[small])
        every = np.concatenate(keys)
        levels = self.prepared.lattice.cross_sizes(every)
        q = q_values(self.config, np.concatenate(p), levels, per_level)
        return every[q <= self.config.used_alpha]

    def resampled(
        self, parts: list[CountedPart], per_level: tuple[int, ...], iteration: int
    ) -> Cost:
        """Test the slices that would be significant by a tenth of each quick p by replicates; return the cost."""
        resampling = self.counter.second
        if resampling is None or not parts:
            return Cost()
        numbers = tuple(i for i, test in enumerate(self.tests) if test.needs_rows())
        ranked = tuple(i for i in numbers if i in self.ranked)
        some = [
            self.called(parts, i, per_level, _SPARED, "best" if i in ranked else "first")
            for i in numbers
        ]
        # The quick test of a mean refuses what is too skewed for it; replicates need not.
        for table in tables_of(parts):
            refused = table.stacked("reason", numbers) == Reason.TOO_SKEWED
            some.append(table.keys[refused.any(axis=1)])
        stage = f"iteration-{iteration}-resampled"
        if ranked:
            # Two models may differ on slices where by buckets they seem not to.
            suspects = [
                table.keys[
                    np.isin(table[f"reason{ranked[0]}"], (Reason.UNCHANGED, Reason.UNVARYING))
                ]
                for table in tables_of(parts)
            ]
            seen, _ = self._exact(f"{stage}-unchanged", parts, np.concatenate(suspects), (), None)
            delta = metric(self.config.metric[ranked[0]]).delta(self.prepared.slices(seen["sums"]))
            some.append(seen.keys[np.nan_to_num(delta) != 0])
        chosen = np.unique(np.concatenate(some))
        space = self.prepared.space
        sizes = looked_up(parts, chosen, lambda table: table.sizes(space))
        budget = self.counter.budget_for(resampling)
        planned = plan_within(chosen, chosen, sizes, self.prepared.lattice, budget)
        counted, cost = self.counter.count(stage, planned, resampling=resampling)
        groups = self._groups(stage, chosen) if self.config.group else None
        _change(parts, self._by_replicates(counted, groups, numbers))
        if ranked:
            exact, more = self._exact(f"{stage}-exact", parts, chosen, ranked, resampling)
            if groups is not None and exact.keys.size:
                few = np.isin(exact.keys, chosen[groups < LEAST_GROUPS])
                for number in ranked:
                    _refuse(exact, number, few, Reason.FEW_GROUPS)
            _change(parts, exact)
            cost = cost + more
        return cost

    def by_own_values(
        self, parts: list[CountedPart], per_level: tuple[int, ...], iteration: int
    ) -> None:
        """Test means of two data sets by the law of each slice's own values, too, where Hall's t lets them be called.

        The p-value is the larger of both, so that no other slice can be called.
        """
        prepared, space = self.prepared, self.prepared.space
        for number, test in enumerate(self.tests):
            own, name = metric_on(test.metric, space), f"p{number}"
            if not isinstance(own, Earlier) or not isinstance(own.own, Mean) or test.needs_rows():
                continue
            keys = np.sort(self.called(parts, number, per_level, _SPARED))
            if not keys.size:
                continue
            from slicebeam.transforms.count.two_set_passes import bin_values, read_bins

            sums = looked_up(parts, keys, lambda table: table.counts(space)["sums"], space.columns)
            slices = prepared.slices(sums)
            p = looked_up(parts, keys, lambda table: table[name], dtype=np.float64)  # noqa: B023
            centre, deviation, total = own.pooled(slices)
            listed = pa.table({"key": keys, "centre": centre, "deviation": deviation})
            stage = f"iteration-{iteration}-values-{number}"
            binning = bin_values(
                own.own,
                prepared.lattice,
                prepared.scaling,
                prepared.shards,
                listed.filter(pa.array(deviation > 0)),
                self.run.work.folder(stage),
            )
            for part in self.run.parts(stage, binning):
                at = np.searchsorted(keys, part.column("key").to_numpy())
                tail = own.tail(test.alternative)
                by_values = own.own_values_p(slices.rows(at), total[at], read_bins(part), tail)
                p[at] = np.maximum(p[at], by_values)
            _change(parts, SliceTable(keys, {name: p}))

    def settled(
        self,
        parts: list[CountedPart],
        per_level: tuple[int, ...],
        iteration: int,
        *,
        is_all: bool = False,
    ) -> tuple[Cost, Keys]:
        """Let exact areas decide on the slices that any metric may call, or on all; return cost and changed slices."""
        if not self.ranked or not parts:
            return Cost(), np.zeros(0, np.int64)
        numbers = tuple(i for i in self.ranked if not self.tests[i].needs_rows())
        if is_all:
            some = [table.keys for table in tables_of(parts)]
        else:
            some = [
                self.called(parts, i, per_level, name="best" if i in numbers else "p")
                for i in range(len(self.tests))
            ]
        chosen = np.setdiff1d(np.concatenate(some), self.exact_keys)
        stage = f"iteration-{iteration}-exact"
        exact, cost = self._exact(stage, parts, chosen, numbers, None)
        self.exact_keys = np.union1d(self.exact_keys, exact.keys)
        _change(parts, exact)
        return replace(cost, shuffled_bytes=0), exact.keys

    def _exact(
        self,
        stage: str,
        parts: list[CountedPart],
        keys: Keys,
        numbers: tuple[int, ...],
        resampling: Resampling | None,
    ) -> tuple[SliceTable, Cost]:
        """Return those slices of some parts whose buckets leave the AUC open, with it and its tests."""
        space, of_all = self.prepared.space, self.prepared.of_all
        keys = np.sort(keys)
        no_sums = np.zeros((0, space.columns), np.int64)
        rough = [SliceTable(np.zeros(0, np.int64), {"sums": no_sums})]
        for table in tables_of(parts):
            counts = table.take(np.flatnonzero(contains(keys, table.keys))).counts(space)
            rough.append(counts.take(has_error(counts["sums"], space)))
        known = SliceTable.joined(rough).by_key()
        sums, columns = known["sums"], dict(known.columns)
        if known.keys.size == 0:
            return known, Cost()
        of_whole = np.zeros(1)
        if resampling is not None and space.comparison == "overall":
            stage_of_all, whole = f"{stage}-all", np.array([WHOLE])
            wins, _ = self.exact.count(stage_of_all, whole, of_all[None, :], resampling)
            of_whole = next(wins).replicates[0][0]
        wins, cost = self.exact.count(stage, known.keys, sums, resampling)
        for counted in wins:
            at = known.at(counted.keys)
            put_ranking(sums, at, counted, space)
            for number in numbers:
                test = self.tests[number]
                if resampling is None:
                    outcomes = test.of_sums(sums[at], of_all)
                else:
                    references = counted.replicates[1] if space.sides == 2 else of_whole
                    deltas = counted.replicates[0] - references
                    outcomes = test.of_replicates(sums[at], of_all, deltas)
                values: tuple[Array, ...] = (*outcomes.tested, outcomes.errors)
                for name, column in zip(_TESTED, values, strict=True):
                    empty = np.zeros(known.keys.size, column.dtype)
                    columns.setdefault(f"{name}{number}", empty)[at] = column
        for old in (False, True)[: space.sides]:
            ranking = space.ranking_columns(old=old)
            for place in range(ranking.start, ranking.stop):
                columns[f"c{place}"] = sums[:, place]
        columns |= {f"best{number}": columns[f"p{number}"] for number in numbers}
        return SliceTable(known.keys, columns), cost

    def _by_replicates(
        self, parts: list[CountedPart], groups: Array | None, numbers: tuple[int, ...]
    ) -> SliceTable:
        """Return the slices of the second count with the results of their replicates."""
        names = [f"{name}{number}" for number in numbers for name in _TESTED]
        none = SliceTable(np.zeros(0, np.int64), dict.fromkeys(names, np.zeros(0, np.int8)))
        read = (
            SliceTable(table.keys, {name: table[name] for name in names})
            for table in tables_of(parts)
        )
        tested = SliceTable.joined([none, *read]).by_key()
        if groups is not None and parts:
            for number in numbers:
                _by_groups(tested, number, groups, self.tests[number])
        return tested

    def _groups(self, stage: str, keys: Keys) -> Array:
        """Return in how many groups the examples of each slice are."""
        wanted = keys
        if self.most_groups is None:
            # No slice has more groups than one of its predicates: what they have bounds them all.
            keys = np.union1d(wanted, self.prepared.lattice.singleton_keys())
        stage = f"{stage}-groups"
        prepared = self.prepared
        folder = self.run.work.folder(stage)
        counting = sum_slices(distinct_groups, keys, prepared.lattice, prepared.shards, folder)
        known, groups = slice_sums(self.run.parts(stage, counting))
        if self.most_groups is None:
            self.most_groups = int(groups.max(initial=0))
        groups = groups[np.searchsorted(known, wanted)]
        self.few_groups.append(wanted[(groups >= LEAST_GROUPS) & (groups < ENOUGH_GROUPS)])
        return groups


def _change(parts: list[CountedPart], change: SliceTable) -> None:
    if change.keys.size:
        for part in parts:
            part.changes.append(change)


def _refuse(table: SliceTable, number: int, where: Array, reason: int) -> None:
    """Take the p-values of some slices back, for a reason."""
    for name, value in (("p", 1.0), ("reason", reason), ("method", 0)):
        table[f"{name}{number}"][where] = value


def _by_groups(table: SliceTable, number: int, groups: Array, test: SliceTest) -> None:
    """Let a change that does not vary count once for each group, not for each example.

    Of the 2^G ways to exchange the two models in whole groups one is as extreme. Where only some examples count
    (recall, precision), or weights may be 0, nobody knows how many groups change.
    """
    p, method = table[f"p{number}"], table[f"method{number}"]
    method[method == Method.BOOTSTRAP_ROWS] = Method.BOOTSTRAP_GROUPS
    constant = (method != 0) & (method != Method.BOOTSTRAP_GROUPS)
    if metric(test.metric).kind == "pointwise" and not test.space.weighted:
        fewest: FloatArray = np.exp2((test.alternative == "both") - groups.astype(np.float64))
        p[constant] = np.maximum(p, fewest)[constant]
        method[constant] = Method.SIGN_FLIP_GROUPS
    else:
        _refuse(table, number, constant, Reason.UNVARYING)
    _refuse(table, number, groups < LEAST_GROUPS, Reason.FEW_GROUPS)


# Tables of a block take at most this share of the worker's memory: the columns that are counted,
# the results and their p-values need the rest.
_TABLES_SHARE = 8


def counting_budget(
    config: RunConfig, space: StatisticSpace, rows: int, resampling: Resampling | None = None
) -> Budget:
    """Return what a block may hold."""
    layers = 1 + (resampling.replicates if resampling else 0)
    return Budget(rows, space.raw_columns, space.passes, layers, config.memory // _TABLES_SHARE)


class Planned(NamedTuple):
    """The plan of a stage, and the work that is left of it."""

    config: BlockTest
    blocks: list[PlannedBlock]
    items: list[WorkItem]
    seconds: float


class SliceCounter:
    """Counts and tests slices, and skips the blocks that are finished."""

    def __init__(self, config: RunConfig, prepared: EncodedDataset) -> None:
        self.config, self.prepared, self.run = config, prepared, prepared.run
        resampling = (
            Resampling(config.used_replicates, config.seed) if config.resamples_examples else None
        )
        # AutoSlicer resamples for every candidate. Here only those that could become significant
        # get replicates, in a second count.
        self.resampling = resampling if config.is_paper else None
        self.second = None if config.is_paper else resampling
        self.budget = self.budget_for(self.resampling)
        self.tests = tuple(
            SliceTest(
                name,
                prepared.space,
                config.used_test,
                config.alternative,
                config.smallest_slice_of(name),
            )
            for name in config.metric
        )

    def budget_for(self, resampling: Resampling | None) -> Budget:
        """Return the budget of a block that is counted with replicates."""
        prepared = self.prepared
        return counting_budget(self.config, prepared.space, prepared.rows, resampling)

    def planned(
        self,
        stage: str,
        units: Iterable[PlannedUnit],
        *,
        counts_only: bool = False,
        resampling: Resampling | None = None,
    ) -> Planned:
        """Write the plan of a stage; see `count`."""
        folder, lattice = self.run.work.folder(stage), self.prepared.lattice
        drawn = None if counts_only else resampling or self.resampling
        budget = self.budget_for(drawn)
        if self.run.engine.workers > 1:
            units = list(units)
            budget = balanced(units, budget, self.run.engine.workers)
        plan = folder / "plan"
        planned_blocks = write_plan(plan, blocks(units, budget), lattice)
        config = BlockTest(
            plan,
            plan_digest(plan),
            folder,
            lattice,
            self.prepared.scaling,
            drawn,
            () if counts_only else self.tests,
            self.config.used_min_slice_size,
            self.second is not None and drawn is None,
            self.prepared.of_all,
        )
        finished = set(finished_blocks(folder, config.plan_digest, len(planned_blocks)))
        todo = [block for block in range(len(planned_blocks)) if block not in finished]
        seconds = sum(planned_blocks[block].seconds for block in todo)
        items = work_items(todo, self.prepared.shards, seconds, self.run.engine.workers)
        return Planned(config, planned_blocks, items, seconds)

    def count(
        self,
        stage: str,
        units: Iterable[PlannedUnit],
        on_begin: Callable[[Callable[[], int]], None] | None = None,
        *,
        counts_only: bool = False,
        resampling: Resampling | None = None,
    ) -> tuple[list[CountedPart], Cost]:
        """Count and test the units, except finished blocks; return the parts and what they cost.

        ``on_begin`` receives a function that says how many candidates are counted. ``resampling`` is how
        examples are resampled where not every candidate is; with ``counts_only`` nothing is tested.
        """
        planned = self.planned(stage, units, counts_only=counts_only, resampling=resampling)
        config, items = planned.config, planned.items
        folder, digest = config.folder, config.plan_digest
        parts = [part_path(folder, block) for block in range(len(planned.blocks))]

        def counted() -> int:
            written = set(matching(folder, "*.arrow"))
            sizes = zip(parts, planned.blocks, strict=True)
            return sum(block.candidates for part, block in sizes if part in written)

        if on_begin is not None:
            on_begin(counted)
        search = CountAndTest(config, is_dealt=len({item.block for item in items}) < len(items))
        cost = self.run.stage(
            stage,
            # Create spreads its elements over the workers in turn; a Reshuffle would undo that.
            lambda pipeline: pipeline | "Work items" >> beam.Create(items) | "Search" >> search,
            lambda: len(finished_blocks(folder, digest, len(parts))) == len(parts),
            seconds=planned.seconds,
            # A job that follows another plan would write parts that nobody asks for.
            plan=digest,
            keeps_parts=True,
            facts=asdict,
        )
        fetch(parts)
        return list(map(CountedPart, parts)), Cost(**cost)


@dataclass(frozen=True)
class SliceTable:
    """Slices with columns by name, [slices] or [slices, …]; those of parts are named as `tested_block` says."""

    keys: Keys
    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @classmethod
    def joined(cls, tables: Sequence[SliceTable]) -> SliceTable:
        """Return the slices of one or more tables with the same columns."""
        names = tables[0].columns
        columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
        return cls(np.concatenate([table.keys for table in tables]), columns)

    def take(self, positions: Array) -> SliceTable:
        """Return the slices at some positions."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return SliceTable(self.keys[positions], columns)

    def by_key(self) -> SliceTable:
        """Return the slices in the order of their keys, so that `at` finds them."""
        return self.take(np.argsort(self.keys))

    def at(self, keys: Keys) -> IntArray:
        """Return the positions of slices that are in this table, which is in the order of its keys."""
        return np.searchsorted(self.keys, keys)

    def stacked(self, name: str, numbers: Iterable[int]) -> Array:
        """Return the numbered columns of a name as one [slices, numbers], such as the sums ``c0`` …."""
        return np.stack([self.columns[f"{name}{number}"] for number in numbers], axis=1)

    def counts(self, space: StatisticSpace) -> SliceTable:
        """Return the slices of a part with their ``sums`` [slices, columns]."""
        return SliceTable(self.keys, {"sums": self.stacked("c", range(space.columns))})

    def sizes(self, space: StatisticSpace) -> IntArray:
        """Return how many examples the slices of a part have."""
        cells = np.arange(space.cells)[space.size_columns].tolist()
        sizes: IntArray = np.sum([self[f"c{cell}"] for cell in cells], axis=0)
        return sizes

    def changed(self, change: SliceTable) -> SliceTable:
        """Return the slices of a part with the columns that another table, in the order of its keys, has of them."""
        here = np.flatnonzero(contains(change.keys, self.keys))
        if here.size == 0:
            return self
        there = change.at(self.keys[here])
        columns = dict(self.columns)
        # A slice that is too small for a test has no p-value, now as before.
        tested = ~np.isnan(self["p0"][here])
        for name in change.columns.keys() & columns.keys():
            some = slice(None) if name.startswith("c") else tested
            columns[name] = np.array(columns[name])
            columns[name][here[some]] = change[name][there[some]]
        return SliceTable(self.keys, columns)


@dataclass(frozen=True)
class CountedPart:
    """The slices of a block of a plan: its file, and what second tests changed since it was written."""

    path: StoragePath
    changes: list[SliceTable] = field(default_factory=list)


def tables_of(parts: Iterable[CountedPart]) -> Iterator[SliceTable]:
    """Yield the slices of each part."""
    for part in parts:
        batch = read_part(part.path)
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
        table = SliceTable(columns.pop("key"), columns)
        for change in part.changes:
            table = table.changed(change)
        yield table


def looked_up(
    parts: Iterable[CountedPart],
    keys: Keys,
    numbers: Callable[[SliceTable], Array],
    width: int | None = None,
    dtype: type = np.int64,
) -> Array:
    """Return numbers [slices] or [slices, width] of slices (sorted keys); 0 where a slice is in no part."""
    values: Array = np.zeros(keys.size if width is None else (keys.size, width), dtype)
    # A key that is larger than all of them finds none.
    known = np.append(keys, -1)
    for table in tables_of(parts):
        at = np.searchsorted(keys, table.keys)
        wanted = np.flatnonzero(known[at] == table.keys)
        values[at[wanted]] = numbers(table)[wanted]
    return values
