"""Slices that could be significant are tested again: by replicates, and by their exact AUC or average precision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting_plan import plan_chosen
from slicebeam.metrics.counting.lattice import contains
from slicebeam.metrics.counting.membership import ENOUGH_GROUPS
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.outcome_codes import Reason
from slicebeam.metrics.testing.multiplicity import adjusted
from slicebeam.pipelines.prepare.exact_auc import Exact, ExactAuc, has_error
from slicebeam.pipelines.run.run_stage import run_parts
from slicebeam.pipelines.search.retested import LEAST_GROUPS, BootstrapStage
from slicebeam.pipelines.search.slice_counter import SliceCounter, parts_of, slice_sizes
from slicebeam.transforms.count.slice_sums import count_groups, slice_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.counting import Resampling
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.run.engine import Cost
    from slicebeam.pipelines.search.iteration_records import IterationRecord
    from slicebeam.transforms.storage.storage import StoragePath

    Array = NDArray[Any]

# How far the first, quick test may be off: by this factor in p.
_SPARED = 10.0


def q_values(
    config: RunConfig, p: Array, levels: Array, tests_per_level: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return the q-value of each p, corrected for the tests of each level and for all metrics."""
    number, metrics = len(tests_per_level), len(config.metric)
    return adjusted(p, levels, tests_per_level, config.used_correction, number, metrics)


class SecondTests:
    """Tests again the slices that the first, quick test does not decide."""

    def __init__(self, counter: SliceCounter) -> None:
        self.counter = counter
        self.config, self.prepared = counter.config, counter.prepared
        self.work, self.engine, self.tests = counter.work, counter.engine, counter.tests
        self.exact = ExactAuc(
            self.prepared.lattice,
            self.prepared.scaling,
            self.prepared.shards,
            self.prepared.totals,
            self.config.memory,
            self.work,
            self.engine,
        )
        self.ranked = tuple(
            number for number, name in enumerate(self.config.metric) if metric(name).needs.ranked
        )
        self.exact_keys: Keys = np.zeros(0, np.int64)
        self.few_groups: list[Keys] = [np.zeros(0, np.int64)]
        self.most_groups: int | None = None

    def called(
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
        keys, p, levels = [], [], []
        for batch in parts_of(parts):
            own = batch.column(f"{name}{number}").to_numpy() / times
            small = np.flatnonzero(own <= self.config.used_alpha)
            keys.append(batch.column("key").to_numpy()[small])
            p.append(own[small])
            levels.append(self.prepared.lattice.cross_sizes(keys[-1]))
        q = q_values(self.config, np.concatenate(p), np.concatenate(levels), per_level)
        split = np.split(q <= self.config.used_alpha, np.cumsum([one.size for one in keys])[:-1])
        return [some[called] for some, called in zip(keys, split, strict=True)]

    def resampled(
        self, parts: list[StoragePath], per_level: tuple[int, ...], record: IterationRecord
    ) -> tuple[list[StoragePath], IterationRecord]:
        """Return parts, and their record, in which the slices that could be significant are tested by replicates.

        Those are the slices that would be significant if every p of the first, quick test were a
        tenth of what it is. The others keep p = 1 and say why.
        """
        if self.counter.second is None or not parts:
            return parts, record
        numbers = tuple(i for i, test in enumerate(self.tests) if test.needs_rows())
        some = [
            keys
            for i in numbers
            for keys in self.called(
                parts, i, per_level, _SPARED, "best" if i in self.ranked else "p"
            )
        ]
        # The quick test of a mean refuses what is too skewed for it; replicates need not.
        for batch in parts_of(parts):
            refused = [batch.column(f"reason{i}").to_numpy() == Reason.TOO_SKEWED for i in numbers]
            some.append(batch.column("key").to_numpy()[np.any(refused, axis=0)])
        stage = f"iteration-{record.iteration}-resampled"
        ranked = tuple(i for i in numbers if i in self.ranked)
        some.append(self._changed_within_buckets(parts, ranked, f"{stage}-unchanged"))
        chosen = np.unique(np.concatenate(some))
        sizes = np.zeros(chosen.size, np.int64)
        for batch in parts_of(parts):
            keys = batch.column("key").to_numpy()
            own = np.flatnonzero(np.isin(keys, chosen))
            sizes[np.searchsorted(chosen, keys[own])] = slice_sizes(
                batch, self.prepared.space.cells
            )[own]
        budget = self.counter.budget_for(self.counter.second)
        planned = plan_chosen(chosen, sizes, self.prepared.lattice, budget)
        second, cost = self.counter.count(stage, planned, resampling=self.counter.second)
        groups = self._groups(stage, chosen) if self.config.group else None
        retested = BootstrapStage.read(second, groups, {i: self.tests[i] for i in numbers})
        folder = self.work.folder(f"{stage}-parts")
        rewritten = [retested.rewrite(part, folder / part.name) for part in parts]
        if ranked:
            exact, more = self._exact(
                f"{stage}-exact", rewritten, chosen, ranked, self.counter.second
            )
            if groups is not None:
                exact.refuse(chosen[groups < LEAST_GROUPS], Reason.FEW_GROUPS)
            cost = cost + more
            space = self.prepared.space
            rewritten = [
                exact.rewrite(part, folder / f"exact-{part.name}", space) for part in rewritten
            ]
        return rewritten, record.plus(cost)

    def settled(
        self,
        parts: list[StoragePath],
        per_level: tuple[int, ...],
        record: IterationRecord,
        *,
        is_all: bool = False,
    ) -> tuple[IterationRecord, list[StoragePath], list[StoragePath]]:
        """Let exact AUCs, and average precisions, decide on the slices that could be significant, or on all with ``is_all``.

        Those that another metric calls have one too, for they may be reported.

        Returns the record, all parts, and those of them that were written again.
        """
        if not self.ranked or not parts:
            return record, parts, []
        numbers = tuple(i for i in self.ranked if not self.tests[i].needs_rows())
        if is_all:
            some = [batch.column("key").to_numpy() for batch in parts_of(parts)]
        else:
            some = []
            for number in range(len(self.tests)):
                column = "best" if number in numbers else "p"
                some += self.called(parts, number, per_level, 1.0, column)
        chosen = np.setdiff1d(np.concatenate(some), self.exact_keys)
        stage = f"iteration-{record.iteration}-exact"
        exact, cost = self._exact(stage, parts, chosen, numbers, None)
        self.exact_keys = np.union1d(self.exact_keys, exact.keys)
        folder = self.work.folder(f"{stage}-parts")
        rewritten = [
            exact.rewrite(part, folder / f"{part.parent.name}-{part.name}", self.prepared.space)
            for part in parts
        ]
        fresh = [new for new, old in zip(rewritten, parts, strict=True) if new != old]
        return record.plus(replace(cost, shuffled_bytes=0)), rewritten, fresh

    def _changed_within_buckets(
        self, parts: list[StoragePath], ranked: tuple[int, ...], stage: str
    ) -> Keys:
        """Return the slices on which two models differ, though by buckets they seem not to."""
        if not ranked:
            return np.zeros(0, np.int64)
        suspects = [np.zeros(0, np.int64)]
        for batch in parts_of(parts):
            reasons = batch.column(f"reason{ranked[0]}").to_numpy()
            seem = np.isin(reasons, (Reason.UNCHANGED, Reason.UNVARYING))
            suspects.append(batch.column("key").to_numpy()[seem])
        exact, _ = self._exact(stage, parts, np.concatenate(suspects), (), None)
        own = metric(self.config.metric[ranked[0]])
        delta = own.delta(self.prepared.slices(exact.sums))
        return exact.keys[np.nan_to_num(delta) != 0]

    def _exact(
        self,
        stage: str,
        parts: list[StoragePath],
        keys: Keys,
        numbers: tuple[int, ...],
        resampling: Resampling | None,
    ) -> tuple[Exact, Cost]:
        """Count the exact AUC, and average precision, of those slices of some parts whose buckets leave it open."""
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

    def _groups(self, stage: str, keys: Keys) -> Array:
        """Return in how many groups the examples of each slice are."""
        wanted = keys
        if self.most_groups is None:
            # No slice has more groups than one of its predicates: what they have bounds them all.
            keys = np.union1d(wanted, self.prepared.lattice.singleton_keys())
        stage = f"{stage}-groups"
        prepared = self.prepared
        counting = count_groups(keys, prepared.lattice, prepared.shards, self.work.folder(stage))
        known, groups = slice_sums(run_parts(self.work, self.engine, stage, counting))
        if self.most_groups is None:
            self.most_groups = int(groups.max(initial=0))
        groups = groups[np.searchsorted(known, wanted)]
        self.few_groups.append(wanted[(groups >= LEAST_GROUPS) & (groups < ENOUGH_GROUPS)])
        return groups
