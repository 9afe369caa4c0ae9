"""The driver loop: propose slices, count and test them, decide which are significant, repeat; and who follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from slicebeam.metrics.counting.counting_plan import plan_all, plan_listed
from slicebeam.metrics.measures.registry import metric_on
from slicebeam.pipelines.changelist.testing import Iteration
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.run.stage import Observer
from slicebeam.pipelines.search.counter import looked_up, tables_of
from slicebeam.pipelines.search.significance import SecondTests, q_values
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
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Cost
    from slicebeam.pipelines.search.counter import CountedPart, SliceCounter


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
        parts, cost = self._count(planned, candidates, 0)
        tested = np.zeros(self.prepared.lattice.max_cross_size + 1, np.int64)
        for table in tables_of(parts):
            keys = table.keys[~np.isnan(table["p0"])]
            tested += np.bincount(self.prepared.lattice.cross_sizes(keys), minlength=tested.size)
        family = tuple(tested[1:].tolist())
        again, _ = self.second_tests.test(parts, parts, family, 1, is_all=strategy == "given")
        significant = self.second_tests.called(parts, 0, family).size
        self._note(parts, candidates, None, significant, cost + again)
        return self._result(strategy, "exhausted", family, family)

    def _step_by_step(self, strategy: str, steps: Strategy) -> SearchResult:
        """Count what a strategy proposes: the family are all slices that are large enough."""
        from slicebeam.metrics.measures.multiplicity import Visited, tests_per_level

        lattice, space = self.prepared.lattice, self.prepared.space
        state = SearchState(self.config.used_min_slice_size)
        steering = metric_on(self.config.metric[0], space)
        family: tuple[int, ...] = ()
        while (proposal := steps.next(state)) is not None:
            keys, bases, base_sizes = proposal.candidates, proposal.bases, proposal.base_sizes
            planned = plan_listed(keys, bases, base_sizes, lattice, self.counter.budget)
            significant = int(np.count_nonzero(state.significant))
            parts, cost = self._count(planned, keys.size, significant)
            # What is in no part is empty.
            state.add(keys, looked_up(parts, keys, lambda table: table.sizes(space)))
            visited = Visited(state.keys, state.sizes)
            family = tuple(tests_per_level(lattice, visited, self.prepared.rows, state.min_size))
            again, changed = self.second_tests.test(
                parts, self.parts, family, len(self.records) + 1
            )
            # Exact values of earlier slices may be new as well.
            for table in tables_of(self.parts if changed.size else parts):
                delta = steering.delta(self.prepared.slices(table.counts(space)["sums"]))
                first = table.columns.get("first0", table["p0"])
                state.learn(table.keys, table["p0"], first, delta)
            tested = np.flatnonzero(state.sizes >= state.min_size)
            levels = lattice.cross_sizes(state.keys[tested])
            q = q_values(self.config, state.p[tested], levels, family)
            state.significant[:] = False
            state.significant[tested] = q <= self.config.used_alpha
            significant = int(np.count_nonzero(state.significant))
            self._note(parts, keys.size, proposal.expected, significant, cost + again)
        levels = lattice.cross_sizes(state.keys[state.sizes >= state.min_size])
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
        parts, cost = self.counter.count(
            f"iteration-{number}",
            planned,
            lambda counted: self.observer.progress(number, candidates, significant, counted),
        )
        self.parts += parts
        return parts, cost

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
