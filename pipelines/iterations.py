"""The driver loop: propose slices, count and test them, decide what is significant, go on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting import Resampling
from slicebeam.metrics.counting_plan import Budget, blocks, plan_all, plan_listed
from slicebeam.metrics.level_bound import Visited, tests_per_level
from slicebeam.metrics.multiplicity import adjusted
from slicebeam.metrics.slice_test import SliceTest
from slicebeam.pipelines.runner import Cost, Engine
from slicebeam.pipelines.strategies import Iterative, Knowledge, Priority
from slicebeam.transforms.combine_slice_metrics import CombineSliceMetrics, work_items
from slicebeam.transforms.plans import plan_digest, write_plan
from slicebeam.transforms.test_significance import (
    BlockTest,
    TestSignificance,
    finished_blocks,
    part_path,
    read_facts,
    read_part,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from slicebeam.metrics.counting_plan import PlannedUnit
    from slicebeam.pipelines.config import SearchConfig
    from slicebeam.pipelines.preparation import Prepared
    from slicebeam.pipelines.strategies import Proposal
    from slicebeam.pipelines.work_folder import WorkFolder

    Array = NDArray[Any]

# Tables of a block take at most this share of the worker's memory: the columns that are counted,
# the results and their p-values need the rest.
_TABLES_SHARE = 8


@dataclass(frozen=True)
class IterationRecord:
    """What one iteration did, as it stands in the ChangeList.

    Attributes
    ----------
    iteration : from 1
    candidates : conjunctions that were generated
    nonempty : those whose slice is not empty: the paper's candidates
    nonempty_estimated : how many of them were expected; None for batch
    tested : slices that are large enough and were tested
    significant : significant slices after this iteration, of all visited so far
    cpu_seconds, wall_seconds, shuffled_bytes : what counting and testing cost
    """

    iteration: int
    candidates: int
    nonempty: int
    nonempty_estimated: float | None
    tested: int
    significant: int
    cpu_seconds: float
    wall_seconds: float
    shuffled_bytes: int


@dataclass(frozen=True)
class Progress:
    """What the user may be shown while the search runs.

    Attributes
    ----------
    iteration : from 1
    candidates : conjunctions that are counted
    counted : says how many of them are finished
    significant : slices that were significant before
    """

    iteration: int
    candidates: int
    counted: Callable[[], int]
    significant: int


@dataclass(frozen=True)
class Searched:
    """What the iterations found.

    Attributes
    ----------
    strategy : that was used
    stopped : ``exhausted`` or ``iterations``
    records : one for each iteration
    parts : files of results, in order
    tests_per_level : slices of each level that the correction counts
    tested_per_level : slices of each level that were tested
    """

    strategy: str
    stopped: str
    records: tuple[IterationRecord, ...]
    parts: tuple[Path, ...]
    tests_per_level: tuple[int, ...]
    tested_per_level: tuple[int, ...]


class Iterations:
    """Counts and tests proposals, each in one pipeline, and remembers what is finished.

    Parameters
    ----------
    config, prepared, work, engine : of the run
    on_progress : is told when an iteration begins
    """

    def __init__(
        self,
        config: SearchConfig,
        prepared: Prepared,
        work: WorkFolder,
        engine: Engine,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.config, self.prepared, self.work, self.engine = config, prepared, work, engine
        self.on_progress = on_progress
        self.resampling = (
            Resampling(config.used_replicates, config.seed) if config.test == "paper" else None
        )
        self.budget = Budget(
            prepared.rows,
            prepared.space.size,
            1 + (self.resampling.replicates if self.resampling else 0),
            config.memory // _TABLES_SHARE,
        )
        self.tests = tuple(
            SliceTest(
                name,
                prepared.space,
                prepared.totals,
                config.test,
                config.alternative,
                config.used_replicates,
                config.seed,
            )
            for name in config.metric
        )
        self.records: list[IterationRecord] = []
        self.parts: list[Path] = []

    def search(self) -> Searched:
        """Run all iterations of the strategy."""
        strategy = self.config.resolved_strategy(self.prepared.lattice.space())
        if strategy == "batch":
            return self._batch()
        return self._step_by_step(strategy)

    def _batch(self) -> Searched:
        lattice = self.prepared.lattice
        planned = plan_all(lattice, self.budget)
        parts, record = self._count(planned, lattice.space(), None, 0)
        tested = np.zeros(lattice.max_cross_size + 1, np.int64)
        for batch in parts_of(parts):
            levels = lattice.cross_sizes(batch.column("key").to_numpy())
            tested += np.bincount(levels, minlength=tested.size)
        per_level = tuple(tested[1:].tolist())
        self.parts += parts
        self._note(record, self._significant_of_batch(parts, per_level))
        return self._searched("batch", "exhausted", per_level, per_level)

    def _significant_of_batch(self, parts: list[Path], per_level: tuple[int, ...]) -> int:
        p, levels = [], []
        for batch in parts_of(parts):
            small = np.flatnonzero(batch.column("p0").to_numpy() <= self.config.used_alpha)
            p.append(batch.column("p0").to_numpy()[small])
            levels.append(self.prepared.lattice.cross_sizes(batch.column("key").to_numpy()[small]))
        q = self._adjusted(np.concatenate(p), np.concatenate(levels), per_level)
        return int(np.count_nonzero(q <= self.config.used_alpha))

    def _step_by_step(self, strategy: str) -> Searched:
        lattice = self.prepared.lattice
        known = Knowledge(self.config.used_min_slice_size)
        keep = self.config.keep_refining
        steps: Iterative | Priority
        if strategy == "iterative":
            steps = Iterative(lattice, keep_refining=keep)
        else:
            steps = Priority(
                lattice,
                iterations=self.config.iterations,
                max_candidates=self.config.max_candidates,
                keep_refining=keep,
            )
        per_level: tuple[int, ...] = ()
        while True:
            proposal = steps.next(known)
            if proposal is None:
                break
            parts, record = self._count_proposal(proposal, known)
            self._learn(proposal, parts, known)
            self.parts += parts
            visited = Visited(known.keys, known.sizes)
            per_level = tuple(tests_per_level(lattice, visited, self.prepared.rows, known.min_size))
            self._decide(known, per_level)
            self._note(record, int(np.count_nonzero(known.significant)))
        stopped = "exhausted"
        if isinstance(steps, Priority) and steps.iteration > steps.iterations:
            stopped = "iterations"
        large = known.sizes >= known.min_size
        levels = lattice.cross_sizes(known.keys[large])
        tested = np.bincount(levels, minlength=lattice.max_cross_size + 1)[1:]
        return self._searched(strategy, stopped, per_level, tuple(tested.tolist()))

    def _searched(
        self,
        strategy: str,
        stopped: str,
        tests: tuple[int, ...],
        tested: tuple[int, ...],
    ) -> Searched:
        return Searched(strategy, stopped, tuple(self.records), tuple(self.parts), tests, tested)

    def _learn(self, proposal: Proposal, parts: list[Path], known: Knowledge) -> None:
        """Add what was counted; the candidates that are in no part are empty."""
        keys = np.sort(proposal.candidates)
        sizes = np.zeros(keys.size, np.int64)
        p = np.full(keys.size, np.nan)
        for batch in parts_of(parts):
            at = np.searchsorted(keys, batch.column("key").to_numpy())
            sizes[at] = _sizes(batch, self.prepared.space.size)
            p[at] = batch.column("p0").to_numpy()
        known.add(keys, sizes, p)

    def _decide(self, known: Knowledge, per_level: tuple[int, ...]) -> None:
        tested = np.flatnonzero(known.sizes >= known.min_size)
        levels = self.prepared.lattice.cross_sizes(known.keys[tested])
        q = self._adjusted(known.p[tested], levels, per_level)
        known.significant[:] = False
        known.significant[tested] = q <= self.config.used_alpha

    def _adjusted(self, p: Array, levels: Array, per_level: tuple[int, ...]) -> Array:
        return adjusted(p, levels, per_level, self.config.used_correction, len(per_level))

    def _count_proposal(
        self, proposal: Proposal, known: Knowledge
    ) -> tuple[list[Path], IterationRecord]:
        planned = plan_listed(
            proposal.candidates,
            proposal.bases,
            proposal.base_sizes,
            self.prepared.lattice,
            self.budget,
        )
        significant = int(np.count_nonzero(known.significant))
        return self._count(planned, proposal.candidates.size, proposal.expected, significant)

    def _count(
        self,
        planned: Iterable[PlannedUnit],
        candidates: int,
        expected: float | None,
        significant: int,
    ) -> tuple[list[Path], IterationRecord]:
        """Count and test what is planned, except the blocks that are finished already."""
        number = len(self.records) + 1
        stage = f"iteration-{number}"
        parts, cost = self.count(
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

    def count(
        self,
        stage: str,
        planned: Iterable[PlannedUnit],
        on_begin: Callable[[Callable[[], int]], None] | None = None,
        *,
        counts_only: bool = False,
    ) -> tuple[list[Path], Cost]:
        """Count and test what is planned, except the blocks that are finished already.

        Parameters
        ----------
        stage : name of the folder of its parts in the work folder
        planned : units
        on_begin : is told a function that says how many candidates are counted
        counts_only : neither test the slices nor resample them

        Returns
        -------
        The parts, and what they cost when they were counted.
        """
        folder, lattice, cells = self.work.folder(stage), self.prepared.lattice, self.budget.cells
        plan = folder / "plan"
        planned_blocks = write_plan(plan, blocks(planned, self.budget), lattice)
        digest = plan_digest(plan)
        parts = [part_path(folder, block) for block in range(len(planned_blocks))]
        finished = set(finished_blocks(folder, digest, len(planned_blocks)))

        def counted() -> int:
            sizes = zip(parts, planned_blocks, strict=True)
            return sum(block.candidates for part, block in sizes if part.exists())

        if on_begin is not None:
            on_begin(counted)
        todo = [block for block in range(len(planned_blocks)) if block not in finished]
        earlier = self.work.done(f"{stage}/cost")
        if not todo:
            return parts, Cost(**earlier) if earlier else Cost()
        seconds = sum(planned_blocks[block].seconds for block in todo)
        items = work_items(todo, self.prepared.shards, seconds, self.engine.workers)
        tests = () if counts_only else self.tests
        resampling = None if counts_only else self.resampling
        combine = CombineSliceMetrics(items, plan, lattice, cells, resampling)
        smallest = self.config.used_min_slice_size
        test = TestSignificance(BlockTest(plan, digest, folder, lattice, cells, tests, smallest))
        cost = self.engine.run(
            lambda pipeline: (
                pipeline | "Combine slice metrics" >> combine | "Test significance" >> test
            )
        )
        self.work.finish(f"{stage}/cost", asdict(cost))
        return parts, cost

    def _note(self, record: IterationRecord, significant: int) -> None:
        self.records.append(IterationRecord(**{**asdict(record), "significant": significant}))


def parts_of(paths: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """Yield the results of each part."""
    for path in paths:
        yield read_part(path)


def _sizes(batch: pa.RecordBatch, cells: int) -> Array:
    sizes: Array = np.sum([batch.column(f"c{cell}").to_numpy() for cell in range(cells)], axis=0)
    return sizes
