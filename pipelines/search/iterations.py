"""The driver loop: propose slices, count and test them, decide which are significant, repeat."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting_plan import plan_all, plan_listed
from slicebeam.metrics.registry import metric
from slicebeam.metrics.testing.level_bound import Visited, tests_per_level
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.search.batch_cost import batch_cost
from slicebeam.pipelines.search.iteration_records import IterationRecord, Progress, SearchResult
from slicebeam.pipelines.search.second_tests import SecondTests
from slicebeam.pipelines.search.slice_counter import SliceCounter, parts_of, slice_sizes
from slicebeam.pipelines.search.strategies import Iterative, Priority, SearchState
from slicebeam.transforms.count.significance import part_column, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.strategies import NextVisit
    from slicebeam.transforms.storage.storage import StoragePath

    Array = NDArray[Any]


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
        self.parts: list[StoragePath] = []

    def search(self) -> SearchResult:
        """Run all iterations of the strategy."""
        config = self.config
        if not isinstance(config, SearchConfig):
            return self._given()
        prepared = self.prepared
        cost = batch_cost(config, prepared.lattice, prepared.space, prepared.rows)
        strategy = config.resolved_strategy(prepared.lattice.space(), batch_fits=cost.fits)
        if strategy == "batch":
            return self._batch()
        return self._step_by_step(config, strategy)

    def _given(self) -> SearchResult:
        """Count and test all given slices in one iteration, including those too small to test."""
        lattice = self.prepared.lattice
        keys = lattice.singleton_keys()
        none = np.zeros(keys.size, np.int64)
        planned = plan_listed(keys, none, none, lattice, self.counter.budget)
        parts, record = self._count(planned, keys.size, None, 0)
        tested = 0
        for batch in parts_of(parts):
            tested += int(np.count_nonzero(~np.isnan(part_column(batch, "p", 0))))
        family = (tested,)
        parts, record = self.second_tests.resampled(parts, family, record)
        self.parts += parts
        record, self.parts, _ = self.second_tests.settled(self.parts, family, record, is_all=True)
        called = self.second_tests.called(self.parts, 0, family, 1.0) if parts else []
        self._note(record, sum(keys.size for keys in called))
        return self._searched("given", "exhausted", family, family)

    def _batch(self) -> SearchResult:
        lattice = self.prepared.lattice
        planned = plan_all(lattice, self.counter.budget)
        parts, record = self._count(planned, lattice.space(), None, 0)
        tested = np.zeros(lattice.max_cross_size + 1, np.int64)
        for batch in parts_of(parts):
            levels = lattice.cross_sizes(batch.column("key").to_numpy())
            tested += np.bincount(levels, minlength=tested.size)
        per_level = tuple(tested[1:].tolist())
        parts, record = self.second_tests.resampled(parts, per_level, record)
        self.parts += parts
        record, self.parts, _ = self.second_tests.settled(self.parts, per_level, record)
        called = self.second_tests.called(self.parts, 0, per_level, 1.0)
        self._note(record, sum(keys.size for keys in called))
        return self._searched("batch", "exhausted", per_level, per_level)

    def _step_by_step(self, config: SearchConfig, strategy: str) -> SearchResult:
        lattice = self.prepared.lattice
        known = SearchState(config.used_min_slice_size)
        prune = config.prune_significant
        steps: Iterative | Priority
        if strategy == "iterative":
            steps = Iterative(lattice, prune_significant=prune)
        else:
            steps = Priority(
                lattice,
                iterations=config.iterations,
                max_candidates=config.max_candidates,
                prune_significant=prune,
            )
        per_level: tuple[int, ...] = ()
        while True:
            proposal = steps.next(known)
            if proposal is None:
                break
            parts, record = self._count_proposal(proposal, known)
            keys, sizes = self._sizes_of(proposal, parts)
            known.add(keys, sizes)
            visited = Visited(known.keys, known.sizes)
            per_level = tuple(tests_per_level(lattice, visited, self.prepared.rows, known.min_size))
            parts, record = self.second_tests.resampled(parts, per_level, record)
            self._learn(parts, known)
            self.parts += parts
            record, self.parts, fresh = self.second_tests.settled(self.parts, per_level, record)
            self._learn(fresh, known)
            self._decide(known, per_level)
            self._note(record, int(np.count_nonzero(known.significant)))
        is_stopped = isinstance(steps, Priority) and steps.is_stopped
        large = known.sizes >= known.min_size
        levels = lattice.cross_sizes(known.keys[large])
        tested = np.bincount(levels, minlength=lattice.max_cross_size + 1)[1:]
        return self._searched(
            strategy, "iterations" if is_stopped else "exhausted", per_level, tuple(tested.tolist())
        )

    def _searched(
        self, strategy: str, stopped: str, tests: tuple[int, ...], tested: tuple[int, ...]
    ) -> SearchResult:
        return SearchResult(
            strategy,
            stopped,
            tuple(self.records),
            tuple(self.parts),
            tests,
            tested,
            np.concatenate(self.second_tests.few_groups),
            self.second_tests.most_groups,
        )

    def _sizes_of(self, proposal: NextVisit, parts: list[StoragePath]) -> tuple[Keys, Array]:
        """Return the candidates and their sizes; those that are in no part are empty."""
        keys = np.sort(proposal.candidates)
        sizes = np.zeros(keys.size, np.int64)
        for batch in parts_of(parts):
            at = np.searchsorted(keys, batch.column("key").to_numpy())
            sizes[at] = slice_sizes(batch, self.prepared.space.cells)
        return keys, sizes

    def _learn(self, parts: list[StoragePath], known: SearchState) -> None:
        """Add the p-values and differences of the counted slices."""
        steering, space = metric(self.config.metric[0]), self.prepared.space
        for batch in parts_of(parts):
            columns = [batch.column(f"c{i}").to_numpy() for i in range(space.columns)]
            known.learn(
                batch.column("key").to_numpy(),
                part_column(batch, "p", 0),
                part_column(batch, "first", 0),
                steering.delta(np.stack(columns, axis=1), self.prepared.of_all, space),
            )

    def _decide(self, known: SearchState, per_level: tuple[int, ...]) -> None:
        tested = np.flatnonzero(known.sizes >= known.min_size)
        levels = self.prepared.lattice.cross_sizes(known.keys[tested])
        q = self.second_tests.adjusted(known.p[tested], levels, per_level)
        known.significant[:] = False
        known.significant[tested] = q <= self.config.used_alpha

    def _count_proposal(
        self, proposal: NextVisit, known: SearchState
    ) -> tuple[list[StoragePath], IterationRecord]:
        planned = plan_listed(
            proposal.candidates,
            proposal.bases,
            proposal.base_sizes,
            self.prepared.lattice,
            self.counter.budget,
        )
        significant = int(np.count_nonzero(known.significant))
        return self._count(planned, proposal.candidates.size, proposal.expected, significant)

    def _count(
        self,
        planned: Iterable[PlannedUnit],
        candidates: int,
        expected: float | None,
        significant: int,
    ) -> tuple[list[StoragePath], IterationRecord]:
        """Count and test the planned blocks, except those already finished."""
        number = len(self.records) + 1
        stage = f"iteration-{number}"
        parts, cost = self.counter.count(
            stage,
            planned,
            lambda counted: self.on_progress(Progress(number, candidates, counted, significant)),
        )
        facts = [read_facts(part) for part in parts]
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
