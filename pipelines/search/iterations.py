"""The driver loop: propose slices, count and test them, decide which are significant, repeat."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting_plan import plan_all, plan_listed
from slicebeam.metrics.counting.lattice import contains
from slicebeam.metrics.measures.level_bound import Visited, tests_per_level
from slicebeam.metrics.measures.registry import metric_on
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.search.iteration_records import IterationRecord, Progress, SearchResult
from slicebeam.pipelines.search.second_tests import SecondTests, q_values
from slicebeam.pipelines.search.slice_counter import SliceCounter, looked_up, tables_of
from slicebeam.pipelines.search.strategies import (
    Iterative,
    Priority,
    SearchState,
    Strategy,
    batch_cost,
)
from slicebeam.transforms.count.tables import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.slice_counter import CountedPart


def stage_of(number: int) -> str:
    """Return the stage of an iteration, numbered from 1."""
    return f"iteration-{number}"


class Iterations:
    """Counts and tests proposals, each in one pipeline, and remembers the finished ones."""

    def __init__(
        self,
        config: RunConfig,
        prepared: EncodedDataset,
        work: WorkFolder,
        engine: Engine,
        on_progress: Callable[[Progress], None],
        on_record: Callable[[IterationRecord], None],
    ) -> None:
        self.config, self.prepared = config, prepared
        self.on_progress, self.on_record = on_progress, on_record
        self.counter = SliceCounter(config, prepared, work, engine)
        self.second_tests = SecondTests(self.counter)
        self.records: list[IterationRecord] = []
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
        parts, record = self._count(planned, candidates, None, 0)
        tested = np.zeros(self.prepared.lattice.max_cross_size + 1, np.int64)
        for table in tables_of(parts):
            keys = table.keys[~np.isnan(table["p0"])]
            tested += np.bincount(self.prepared.lattice.cross_sizes(keys), minlength=tested.size)
        family = tuple(tested[1:].tolist())
        record = self.second_tests.resampled(parts, family, record)
        record, _ = self.second_tests.settled(parts, family, record, is_all=strategy == "given")
        self.parts = parts
        self._note(record, self.second_tests.called(parts, 0, family).size)
        return self._searched(strategy, "exhausted", family, family)

    def _step_by_step(self, strategy: str, steps: Strategy) -> SearchResult:
        """Count what a strategy proposes: the family are all slices that are large enough."""
        lattice, space = self.prepared.lattice, self.prepared.space
        known = SearchState(self.config.used_min_slice_size)
        family: tuple[int, ...] = ()
        while (proposal := steps.next(known)) is not None:
            keys, bases, base_sizes = proposal.candidates, proposal.bases, proposal.base_sizes
            planned = plan_listed(keys, bases, base_sizes, lattice, self.counter.budget)
            significant = int(np.count_nonzero(known.significant))
            parts, record = self._count(planned, keys.size, proposal.expected, significant)
            # What is in no part is empty.
            known.add(keys, looked_up(parts, keys, lambda table: table.sizes(space)))
            visited = Visited(known.keys, known.sizes)
            family = tuple(tests_per_level(lattice, visited, self.prepared.rows, known.min_size))
            record = self.second_tests.resampled(parts, family, record)
            self._learn(parts, known)
            self.parts += parts
            record, changed = self.second_tests.settled(self.parts, family, record)
            self._learn(self.parts, known, changed)
            tested = np.flatnonzero(known.sizes >= known.min_size)
            levels = lattice.cross_sizes(known.keys[tested])
            q = q_values(self.config, known.p[tested], levels, family)
            known.significant[:] = False
            known.significant[tested] = q <= self.config.used_alpha
            self._note(record, int(np.count_nonzero(known.significant)))
        levels = lattice.cross_sizes(known.keys[known.sizes >= known.min_size])
        counts = np.bincount(levels, minlength=lattice.max_cross_size + 1)[1:]
        stopped = "iterations" if steps.is_stopped else "exhausted"
        return self._searched(strategy, stopped, family, tuple(counts.tolist()))

    def _learn(
        self, parts: list[CountedPart], known: SearchState, changed: Keys | None = None
    ) -> None:
        """Add the p-values and differences of the counted slices, or only of those that changed."""
        if changed is not None and not changed.size:
            return
        steering, columns = (
            metric_on(self.config.metric[0], self.prepared.space),
            range(self.prepared.space.columns),
        )
        for every in tables_of(parts):
            table = every
            if changed is not None:
                table = every.take(np.flatnonzero(contains(changed, every.keys)))
            delta = steering.delta(self.prepared.slices(table.stacked("c", columns)))
            first = table.columns.get("first0", table["p0"])
            known.learn(table.keys, table["p0"], first, delta)

    def _searched(
        self, strategy: str, stopped: str, tests: tuple[int, ...], tested: tuple[int, ...]
    ) -> SearchResult:
        return SearchResult(
            strategy,
            stopped,
            tuple(self.records),
            self.parts,
            tests,
            tested,
            np.concatenate(self.second_tests.few_groups),
            self.second_tests.most_groups,
        )

    def _count(
        self,
        planned: Iterable[PlannedUnit],
        candidates: int,
        expected: float | None,
        significant: int,
    ) -> tuple[list[CountedPart], IterationRecord]:
        """Count and test the planned blocks, except those already finished."""
        number = len(self.records) + 1
        parts, cost = self.counter.count(
            stage_of(number),
            planned,
            lambda counted: self.on_progress(Progress(number, candidates, counted, significant)),
        )
        facts = [read_facts(part.path) for part in parts]
        record = IterationRecord(
            iteration=number,
            candidates=candidates,
            nonempty=sum(fact["nonempty"] for fact in facts),
            nonempty_estimated=expected,
            tested=sum(fact["tested"] for fact in facts),
            significant=0,
            cpu_seconds=cost.cpu_seconds,
            wall_seconds=cost.wall_seconds,
            shuffled_bytes=cost.shuffled_bytes,
        )
        return parts, record

    def _note(self, record: IterationRecord, significant: int) -> None:
        self.records.append(replace(record, significant=significant))
        self.on_record(self.records[-1])
