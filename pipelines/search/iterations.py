"""The driver loop: propose slices, count and test them, decide what is significant, go on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting import Resampling
from slicebeam.metrics.counting.counting_plan import (
    Budget,
    balanced,
    blocks,
    plan_all,
    plan_chosen,
    plan_listed,
)
from slicebeam.metrics.counting.distinct_groups import ENOUGH_GROUPS
from slicebeam.metrics.counting.lattice import contains
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.outcome_codes import (
    FEW_GROUPS,
    TOO_SKEWED,
    UNCHANGED,
    UNVARYING,
)
from slicebeam.metrics.testing.level_bound import Visited, tests_per_level
from slicebeam.metrics.testing.multiplicity import adjusted
from slicebeam.metrics.testing.slice_test import SliceTest
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.prepare.exact_auc import Exact, ExactAuc, added, has_error
from slicebeam.pipelines.run.engine import Cost, Engine
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.pipelines.search.retested import LEAST_GROUPS, BootstrapStage
from slicebeam.pipelines.search.strategies import Iterative, Priority, SearchState
from slicebeam.transforms.count.combine_slice_metrics import CombineSliceMetrics, work_items
from slicebeam.transforms.count.hash_slices import CountGroups, read_sums
from slicebeam.transforms.count.plans import plan_digest, write_plan
from slicebeam.transforms.count.significance import (
    BlockTest,
    TestSignificance,
    finished_blocks,
    part_column,
    read_facts,
    read_part,
)
from slicebeam.transforms.storage.arrow_files import part_path
from slicebeam.transforms.storage.storage import fetch, matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.preparation import EncodedDataset
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.strategies import NextVisit
    from slicebeam.transforms.storage.storage import StoragePath

    Array = NDArray[Any]

# Tables of a block take at most this share of the worker's memory: the columns that are counted,
# the results and their p-values need the rest.
TABLES_SHARE = 8
# How far the first, quick test may be off: by this factor in p.
_SPARED = 10.0


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
class SearchResult:
    """What the iterations found.

    Attributes
    ----------
    strategy : that was used
    stopped : ``exhausted`` or ``iterations``
    records : one for each iteration
    parts : files of results, in order
    tests_per_level : slices of each level that the correction counts
    tested_per_level : slices of each level that were tested
    few_groups : int64 [slices] resampled slices with few groups, though enough for a test
    most_groups : largest number of groups of any slice, at most `ENOUGH_GROUPS`; None without
        groups
    """

    strategy: str
    stopped: str
    records: tuple[IterationRecord, ...]
    parts: tuple[StoragePath, ...]
    tests_per_level: tuple[int, ...]
    tested_per_level: tuple[int, ...]
    few_groups: Keys
    most_groups: int | None = None


class Iterations:
    """Counts and tests proposals, each in one pipeline, and remembers what is finished.

    Parameters
    ----------
    config, prepared, work, engine : of the run
    on_progress : is told when an iteration begins
    on_record : is told what an iteration did
    """

    def __init__(
        self,
        config: RunConfig,
        prepared: EncodedDataset,
        work: WorkFolder,
        engine: Engine,
        on_progress: Callable[[Progress], None],
        on_record: Callable[[IterationRecord], None],
    ) -> None:
        self.config, self.prepared, self.work, self.engine = config, prepared, work, engine
        self.on_progress, self.on_record = on_progress, on_record
        resampling = (
            Resampling(config.used_replicates, config.seed) if config.resamples_examples else None
        )
        # AutoSlicer resamples for every candidate. Here only those that could become significant
        # get replicates, in a second count.
        self.resampling = resampling if config.is_paper else None
        self.second = None if config.is_paper else resampling
        self.budget = self._budget(self.resampling)
        self.tests = tuple(
            SliceTest(
                name,
                prepared.space,
                config.used_test,
                config.alternative,
                config.used_replicates,
                config.seed,
                config.smallest_slice_of(name),
            )
            for name in config.metric
        )
        self.exact = ExactAuc(
            prepared.lattice,
            prepared.scaling,
            prepared.shards,
            prepared.totals,
            config.memory,
            work,
            engine,
        )
        self.ranked = tuple(
            number for number, name in enumerate(config.metric) if metric(name).needs.ranked
        )
        self.exact_keys: Keys = np.zeros(0, np.int64)
        self.records: list[IterationRecord] = []
        self.few_groups: list[Keys] = [np.zeros(0, np.int64)]
        self.most_groups: int | None = None
        self.parts: list[StoragePath] = []

    def _budget(self, resampling: Resampling | None) -> Budget:
        return Budget(
            self.prepared.rows,
            self.prepared.space.raw_columns,
            self.prepared.space.passes,
            1 + (resampling.replicates if resampling else 0),
            self.config.memory // TABLES_SHARE,
        )

    def search(self) -> SearchResult:
        """Run all iterations of the strategy."""
        config = self.config
        if not isinstance(config, SearchConfig):
            raise TypeError(f"a {config.command} has no strategy")
        strategy = config.resolved_strategy(self.prepared.lattice.space())
        if strategy == "batch":
            return self._batch()
        return self._step_by_step(config, strategy)

    def _batch(self) -> SearchResult:
        lattice = self.prepared.lattice
        planned = plan_all(lattice, self.budget)
        parts, record = self._count(planned, lattice.space(), None, 0)
        tested = np.zeros(lattice.max_cross_size + 1, np.int64)
        for batch in parts_of(parts):
            levels = lattice.cross_sizes(batch.column("key").to_numpy())
            tested += np.bincount(levels, minlength=tested.size)
        per_level = tuple(tested[1:].tolist())
        parts, record = self._resampled(parts, per_level, record)
        self.parts += parts
        record, _ = self._settled(per_level, record)
        called = self._called(self.parts, 0, per_level, 1.0)
        self._note(record, sum(keys.size for keys in called))
        return self._searched("batch", "exhausted", per_level, per_level)

    def _called(
        self,
        parts: list[StoragePath],
        number: int,
        per_level: tuple[int, ...],
        times: float,
        name: str = "p",
    ) -> list[Keys]:
        """Return the keys, part by part, that a metric calls at a multiple of alpha.

        By ``p``, or by ``best``, the smallest p that the error of the metric's value leaves: all
        corrections are monotone in every p, so that no other slice can be called.

        A slice whose p exceeds alpha is not significant after any correction and does not change
        the q-value of one that is, so that only the others are looked at together.
        """
        keys, p, least, levels = [], [], [], []
        for batch in parts_of(parts):
            own = batch.column(f"{name}{number}").to_numpy() / times
            small = np.flatnonzero(own <= self.config.used_alpha)
            keys.append(batch.column("key").to_numpy()[small])
            p.append(own[small])
            least.append(part_column(batch, "least", number)[small] / times)
            levels.append(self.prepared.lattice.cross_sizes(keys[-1]))
        q = self._adjusted(
            np.concatenate(p), np.concatenate(levels), per_level, np.concatenate(least)
        )
        split = np.split(q <= self.config.used_alpha, np.cumsum([one.size for one in keys])[:-1])
        return [some[called] for some, called in zip(keys, split, strict=True)]

    def _resampled(
        self, parts: list[StoragePath], per_level: tuple[int, ...], record: IterationRecord
    ) -> tuple[list[StoragePath], IterationRecord]:
        """Return parts, and their record, in which the slices that could be significant are tested by replicates.

        Those are the slices that would be significant if every p of the first, quick test were a
        tenth of what it is. The others keep p = 1 and say why.
        """
        if self.second is None or not parts:
            return parts, record
        numbers = tuple(i for i, test in enumerate(self.tests) if test.needs_rows())
        some = [
            keys
            for i in numbers
            for keys in self._called(
                parts, i, per_level, _SPARED, "best" if i in self.ranked else "p"
            )
        ]
        # The quick test of a mean refuses what is too skewed for it; replicates need not.
        for batch in parts_of(parts):
            refused = [batch.column(f"reason{i}").to_numpy() == TOO_SKEWED for i in numbers]
            some.append(batch.column("key").to_numpy()[np.any(refused, axis=0)])
        stage = f"iteration-{record.iteration}-resampled"
        ranked = tuple(i for i in numbers if i in self.ranked)
        some.append(self._changed_within_buckets(parts, ranked, f"{stage}-unchanged"))
        chosen = np.unique(np.concatenate(some))
        sizes = np.zeros(chosen.size, np.int64)
        for batch in parts_of(parts):
            keys = batch.column("key").to_numpy()
            own = np.flatnonzero(np.isin(keys, chosen))
            sizes[np.searchsorted(chosen, keys[own])] = _sizes(batch, self.prepared.space.cells)[
                own
            ]
        budget = self._budget(self.second)
        planned = plan_chosen(chosen, sizes, self.prepared.lattice, budget)
        second, cost = self.count(stage, planned, resampling=self.second)
        groups = self._groups(stage, chosen) if self.config.group else None
        retested = BootstrapStage.read(second, groups, {i: self.tests[i] for i in numbers})
        folder = self.work.folder(f"{stage}-parts")
        rewritten = [retested.rewrite(part, folder / part.name) for part in parts]
        if ranked:
            exact, more = self._exact(f"{stage}-exact", rewritten, chosen, ranked, self.second)
            if groups is not None:
                exact.refuse(chosen[groups < LEAST_GROUPS], FEW_GROUPS)
            cost = added(cost, more)
            space = self.prepared.space
            rewritten = [
                exact.rewrite(part, folder / f"exact-{part.name}", space) for part in rewritten
            ]
        return rewritten, replace(
            record,
            cpu_seconds=record.cpu_seconds + cost.cpu_seconds,
            wall_seconds=record.wall_seconds + cost.wall_seconds,
            shuffled_bytes=record.shuffled_bytes + cost.shuffled_bytes,
        )

    def _changed_within_buckets(
        self, parts: list[StoragePath], ranked: tuple[int, ...], stage: str
    ) -> Keys:
        """Return the slices on which two models differ, though by buckets they seem not to."""
        if not ranked:
            return np.zeros(0, np.int64)
        space, suspects = self.prepared.space, [np.zeros(0, np.int64)]
        for batch in parts_of(parts):
            reasons = batch.column(f"reason{ranked[0]}").to_numpy()
            seem = np.isin(reasons, (UNCHANGED, UNVARYING))
            suspects.append(batch.column("key").to_numpy()[seem])
        exact, _ = self._exact(stage, parts, np.concatenate(suspects), (), None)
        own = metric(self.config.metric[ranked[0]])
        delta = own.delta(exact.sums, self.prepared.of_all, space)
        return exact.keys[np.nan_to_num(delta) != 0]

    def _exact(
        self,
        stage: str,
        parts: list[StoragePath],
        keys: Keys,
        numbers: tuple[int, ...],
        resampling: Resampling | None,
    ) -> tuple[Exact, Cost]:
        """Count the exact AUC of those slices of some parts whose buckets leave it open."""
        space = self.prepared.space
        keys = np.sort(keys)
        found, sums = [np.zeros(0, np.int64)], [np.zeros((0, space.columns), np.int64)]
        for batch in parts_of(parts):
            own = batch.column("key").to_numpy()
            at = np.flatnonzero(contains(keys, own))
            some = np.stack(
                [batch.column(f"c{i}").to_numpy()[at] for i in range(space.columns)], axis=1
            )
            rough = has_error(some, space)
            found.append(own[at][rough])
            sums.append(some[rough])
        order = np.argsort(np.concatenate(found))
        return Exact.tested(
            self.exact,
            stage,
            np.concatenate(found)[order],
            np.concatenate(sums)[order],
            self.prepared.of_all,
            [(number, self.tests[number]) for number in numbers],
            resampling,
        )

    def _settled(
        self, per_level: tuple[int, ...], record: IterationRecord, *, is_all: bool = False
    ) -> tuple[IterationRecord, list[StoragePath]]:
        """Let exact AUCs decide of the slices that could be significant; all, where they are asked for.

        Those that another metric calls have one too, for they may be reported.

        Returns
        -------
        The record, and the parts that were written anew.
        """
        if not self.ranked or not self.parts:
            return record, []
        numbers = tuple(i for i in self.ranked if not self.tests[i].needs_rows())
        if is_all:
            some = [batch.column("key").to_numpy() for batch in parts_of(self.parts)]
        else:
            some = []
            for number in range(len(self.tests)):
                column = "best" if number in numbers else "p"
                some += self._called(self.parts, number, per_level, 1.0, column)
        chosen = np.setdiff1d(np.concatenate(some), self.exact_keys)
        stage = f"iteration-{record.iteration}-exact"
        exact, cost = self._exact(stage, self.parts, chosen, numbers, None)
        self.exact_keys = np.union1d(self.exact_keys, exact.keys)
        folder = self.work.folder(f"{stage}-parts")
        before = self.parts
        self.parts = [
            exact.rewrite(part, folder / f"{part.parent.name}-{part.name}", self.prepared.space)
            for part in before
        ]
        fresh = [new for new, old in zip(self.parts, before, strict=True) if new != old]
        return replace(
            record,
            cpu_seconds=record.cpu_seconds + cost.cpu_seconds,
            wall_seconds=record.wall_seconds + cost.wall_seconds,
        ), fresh

    def _groups(self, stage: str, keys: Keys) -> Array:
        """Return in how many groups the examples of each slice are."""
        asked = keys
        if self.most_groups is None:
            # No slice has more groups than one of its predicates: what they have bounds them all.
            keys = np.union1d(asked, self.prepared.lattice.singleton_keys())
        folder = self.work.folder(f"{stage}-groups")
        transform = CountGroups(keys, self.prepared.lattice, self.prepared.shards, folder)
        noted = run_stage(
            self.work,
            self.engine,
            f"{stage}-groups",
            lambda pipeline: pipeline | "Count groups" >> transform,
            transform.is_written,
            facts=lambda _: {"parts": transform.parts()},
        )
        known, groups = read_sums(folder, noted["parts"])
        if self.most_groups is None:
            self.most_groups = int(groups.max(initial=0))
        groups = groups[np.searchsorted(known, asked)]
        self.few_groups.append(asked[(groups >= LEAST_GROUPS) & (groups < ENOUGH_GROUPS)])
        return groups

    def _step_by_step(self, config: SearchConfig, strategy: str) -> SearchResult:
        lattice = self.prepared.lattice
        known = SearchState(config.used_min_slice_size)
        keep = config.keep_refining
        steps: Iterative | Priority
        if strategy == "iterative":
            steps = Iterative(lattice, keep_refining=keep)
        else:
            steps = Priority(
                lattice,
                iterations=config.iterations,
                max_candidates=config.max_candidates,
                keep_refining=keep,
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
            parts, record = self._resampled(parts, per_level, record)
            self._learn(parts, known)
            self.parts += parts
            record, fresh = self._settled(per_level, record)
            self._learn(fresh, known)
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
    ) -> SearchResult:
        return SearchResult(
            strategy,
            stopped,
            tuple(self.records),
            tuple(self.parts),
            tests,
            tested,
            np.concatenate(self.few_groups),
            self.most_groups,
        )

    def _sizes_of(self, proposal: NextVisit, parts: list[StoragePath]) -> tuple[Keys, Array]:
        """Return the candidates and their sizes; those that are in no part are empty."""
        keys = np.sort(proposal.candidates)
        sizes = np.zeros(keys.size, np.int64)
        for batch in parts_of(parts):
            at = np.searchsorted(keys, batch.column("key").to_numpy())
            sizes[at] = _sizes(batch, self.prepared.space.cells)
        return keys, sizes

    def _learn(self, parts: list[StoragePath], known: SearchState) -> None:
        """Add the p-values of what was counted."""
        for batch in parts_of(parts):
            known.learn(
                batch.column("key").to_numpy(),
                *(part_column(batch, name, 0) for name in ("p", "first", "least")),
            )

    def _decide(self, known: SearchState, per_level: tuple[int, ...]) -> None:
        tested = np.flatnonzero(known.sizes >= known.min_size)
        levels = self.prepared.lattice.cross_sizes(known.keys[tested])
        q = self._adjusted(known.p[tested], levels, per_level, known.least_p[tested])
        known.significant[:] = False
        known.significant[tested] = q <= self.config.used_alpha

    def _adjusted(
        self, p: Array, levels: Array, per_level: tuple[int, ...], least_p: Array
    ) -> Array:
        correction = self.config.used_correction
        return adjusted(p, levels, per_level, correction, len(per_level), least_p)

    def _count_proposal(
        self, proposal: NextVisit, known: SearchState
    ) -> tuple[list[StoragePath], IterationRecord]:
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
    ) -> tuple[list[StoragePath], IterationRecord]:
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
        resampling: Resampling | None = None,
    ) -> tuple[list[StoragePath], Cost]:
        """Count and test what is planned, except the blocks that are finished already.

        Parameters
        ----------
        stage : name of the folder of its parts in the work folder
        planned : units
        on_begin : is told a function that says how many candidates are counted
        counts_only : neither test the slices nor resample them
        resampling : how examples are resampled, where it is not for every candidate

        Returns
        -------
        The parts, and what they cost when they were counted.
        """
        folder, lattice = self.work.folder(stage), self.prepared.lattice
        drawn = None if counts_only else resampling or self.resampling
        budget = self._budget(drawn)
        if self.engine.workers > 1:
            planned = list(planned)
            budget = balanced(planned, budget, self.engine.workers)
        plan = folder / "plan"
        planned_blocks = write_plan(plan, blocks(planned, budget), lattice)
        digest = plan_digest(plan)
        parts = [part_path(folder, block) for block in range(len(planned_blocks))]
        finished = set(finished_blocks(folder, digest, len(planned_blocks)))

        def counted() -> int:
            written = set(matching(folder, "*.arrow"))
            sizes = zip(parts, planned_blocks, strict=True)
            return sum(block.candidates for part, block in sizes if part in written)

        if on_begin is not None:
            on_begin(counted)
        todo = [block for block in range(len(planned_blocks)) if block not in finished]
        seconds = sum(planned_blocks[block].seconds for block in todo)
        items = work_items(todo, self.prepared.shards, seconds, self.engine.workers)
        tests = () if counts_only else self.tests
        combine = CombineSliceMetrics(items, plan, lattice, self.prepared.scaling, drawn)
        test = TestSignificance(
            BlockTest(
                plan,
                digest,
                folder,
                lattice,
                self.prepared.space,
                tests,
                self.config.used_min_slice_size,
                self.config.used_correction == "fwer-tarone",
                self.second is not None,
                self.prepared.of_all,
            )
        )
        cost = run_stage(
            self.work,
            self.engine,
            stage,
            lambda pipeline: (
                pipeline | "Combine slice metrics" >> combine | "Test significance" >> test
            ),
            lambda: len(finished_blocks(folder, digest, len(parts))) == len(parts),
            seconds=seconds,
            # A job that follows another plan would write parts that nobody asks for.
            plan=digest,
            keeps_parts=True,
            facts=asdict,
        )
        fetch(parts)
        return parts, Cost(**cost)

    def _note(self, record: IterationRecord, significant: int) -> None:
        self.records.append(replace(record, significant=significant))
        self.on_record(self.records[-1])


def parts_of(paths: Iterable[StoragePath]) -> Iterator[pa.RecordBatch]:
    """Yield the results of each part."""
    for path in paths:
        yield read_part(path)


def _sizes(batch: pa.RecordBatch, cells: int) -> Array:
    """Return the sizes of the slices of a part."""
    sizes: Array = np.sum([batch.column(f"c{cell}").to_numpy() for cell in range(cells)], axis=0)
    return sizes
