"""Which slices are significant: corrections for many tests, and second tests by replicates and by exact areas."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.counting_plan import plan_within
from slicebeam.metrics.counting.lattice import Keys, contains
from slicebeam.metrics.counting.membership import ENOUGH_GROUPS, distinct_groups
from slicebeam.metrics.measures.earlier import Earlier
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.multiplicity import adjusted, holm_adjusted
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.significance.outcome_codes import Method, Reason
from slicebeam.pipelines.prepare.exact_auc import has_error, put_ranking
from slicebeam.pipelines.run.engine import Cost
from slicebeam.pipelines.search.counter import SliceTable, looked_up, tables_of
from slicebeam.transforms.count.slice_sums import WHOLE, slice_sums, sum_slices

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, NDArray
    from slicebeam.metrics.counting.counting import Resampling
    from slicebeam.metrics.measures.slice_test import SliceTest
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.search.counter import CountedPart, SliceCounter

    Array = NDArray[Any]


# How far the first, quick test may be off: by this factor in p.
_SPARED = 10.0
# A cluster bootstrap of fewer groups has too few different replicates.
LEAST_GROUPS = 30
# The columns that a second test has of each of its metrics.
_TESTED = ("p", "reason", "method", "se")


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
        """Return the keys of the slices that a metric calls at a multiple of alpha, by p or a column like it."""
        keys, p = [np.zeros(0, np.int64)], [np.zeros(0)]
        for table in tables_of(parts):
            values = table[f"{name}{number}"] / times
            # No slice with a larger p is called, nor changes the q-value of those that are.
            small = np.flatnonzero(values <= self.config.used_alpha)
            keys.append(table.keys[small])
            p.append(values[small])
        every = np.concatenate(keys)
        levels = self.prepared.lattice.cross_sizes(every)
        q = q_values(self.config, np.concatenate(p), levels, per_level)
        return every[q <= self.config.used_alpha]

    def test(
        self,
        parts: list[CountedPart],
        every: list[CountedPart],
        per_level: tuple[int, ...],
        iteration: int,
        *,
        is_all: bool = False,
    ) -> tuple[Cost, Keys]:
        """Test new parts again, and the areas of every part, of all slices if ``is_all``; return cost and slices of new areas."""
        cost = self._resample(parts, per_level, iteration)
        self.by_own_values(parts, per_level, iteration)
        settling, changed = self._settle(every, per_level, iteration, is_all=is_all)
        return cost + settling, changed

    def _resample(
        self, parts: list[CountedPart], per_level: tuple[int, ...], iteration: int
    ) -> Cost:
        """Test the slices that would be significant by a tenth of each quick p by replicates; return the cost."""
        resampling = self.counter.second
        if resampling is None or not parts:
            return Cost()
        numbers = tuple(i for i, test in enumerate(self.tests) if test.needs_rows())
        ranked = tuple(i for i in numbers if i in self.ranked)
        open_keys = [
            self.called(parts, i, per_level, _SPARED, "best" if i in ranked else "first")
            for i in numbers
        ]
        # The quick test of a mean refuses what is too skewed for it; replicates need not.
        open_keys.append(_with_reason(parts, numbers, Reason.TOO_SKEWED))
        stage = f"iteration-{iteration}-resampled"
        if ranked:
            # Two models may differ on slices where by buckets they seem not to.
            suspects = _with_reason(parts, ranked[:1], Reason.UNCHANGED, Reason.UNVARYING)
            seen, _ = self._exact(f"{stage}-unchanged", parts, suspects, (), None)
            delta = metric(self.config.metric[ranked[0]]).delta(self.prepared.slices(seen["sums"]))
            open_keys.append(seen.keys[np.nan_to_num(delta) != 0])
        chosen = np.unique(np.concatenate(open_keys))
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
        """Test means of two data sets that Hall's t calls by the law of each slice's values, too: the larger p counts."""
        prepared, space = self.prepared, self.prepared.space
        for number, test in enumerate(self.tests):
            both, name = metric_on(test.metric, space), f"p{number}"
            if not isinstance(both, Earlier) or not isinstance(both.own, Mean) or test.needs_rows():
                continue
            keys = np.sort(self.called(parts, number, per_level, _SPARED))
            if not keys.size:
                continue
            from slicebeam.transforms.count.two_set_passes import bin_values, read_bins

            sums = looked_up(parts, keys, lambda table: table.counts(space)["sums"], space.columns)
            slices = prepared.slices(sums)
            p = looked_up(parts, keys, lambda table: table[name], dtype=np.float64)  # noqa: B023
            centre, deviation, total = both.pooled(slices)
            listed = pa.table({"key": keys, "centre": centre, "deviation": deviation})
            stage = f"iteration-{iteration}-values-{number}"
            binning = bin_values(
                both.own,
                prepared.lattice,
                prepared.scaling,
                prepared.shards,
                listed.filter(pa.array(deviation > 0)),
                self.run.work.folder(stage),
            )
            for part in self.run.parts(stage, binning):
                at = np.searchsorted(keys, part.column("key").to_numpy())
                tail = both.tail(test.alternative)
                by_values = both.own_values_p(slices.rows(at), total[at], read_bins(part), tail)
                p[at] = np.maximum(p[at], by_values)
            _change(parts, SliceTable(keys, {name: p}))

    def _settle(
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
            open_keys = [table.keys for table in tables_of(parts)]
        else:
            open_keys = [
                self.called(parts, i, per_level, name="best" if i in numbers else "p")
                for i in range(len(self.tests))
            ]
        chosen = np.setdiff1d(np.concatenate(open_keys), self.exact_keys)
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
        pieces = [SliceTable(np.zeros(0, np.int64), {"sums": no_sums})]
        for table in tables_of(parts):
            counts = table.take(np.flatnonzero(contains(keys, table.keys))).counts(space)
            pieces.append(counts.take(has_error(counts["sums"], space)))
        rough = SliceTable.joined(pieces).by_key()
        sums, columns = rough["sums"], dict(rough.columns)
        if rough.keys.size == 0:
            return rough, Cost()
        of_whole = np.zeros(1)
        if resampling is not None and space.comparison == "overall":
            stage_of_all, whole = f"{stage}-all", np.array([WHOLE])
            wins, _ = self.exact.count(stage_of_all, whole, of_all[None, :], resampling)
            of_whole = next(wins).replicates[0][0]
        wins, cost = self.exact.count(stage, rough.keys, sums, resampling)
        for counted in wins:
            at = rough.at(counted.keys)
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
                    empty = np.zeros(rough.keys.size, column.dtype)
                    columns.setdefault(f"{name}{number}", empty)[at] = column
        for old in (False, True)[: space.sides]:
            ranking = space.ranking_columns(old=old)
            for place in range(ranking.start, ranking.stop):
                columns[f"c{place}"] = sums[:, place]
        columns |= {f"best{number}": columns[f"p{number}"] for number in numbers}
        return SliceTable(rough.keys, columns), cost

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
        counted, groups = slice_sums(self.run.parts(stage, counting))
        if self.most_groups is None:
            self.most_groups = int(groups.max(initial=0))
        groups = groups[np.searchsorted(counted, wanted)]
        self.few_groups.append(wanted[(groups >= LEAST_GROUPS) & (groups < ENOUGH_GROUPS)])
        return groups


def _with_reason(parts: list[CountedPart], numbers: tuple[int, ...], *reasons: int) -> Keys:
    """Return the keys of the slices that any of some metrics refused for a reason."""
    return np.concatenate(
        [
            table.keys[np.isin(table.stacked("reason", numbers), reasons).any(axis=1)]
            for table in tables_of(parts)
        ]
    )


def _change(parts: list[CountedPart], change: SliceTable) -> None:
    if change.keys.size:
        for part in parts:
            part.changes.append(change)


def _refuse(table: SliceTable, number: int, where: Array, reason: int) -> None:
    """Take the p-values of some slices back, for a reason."""
    for name, value in (("p", 1.0), ("reason", reason), ("method", 0)):
        table[f"{name}{number}"][where] = value


def _by_groups(table: SliceTable, number: int, groups: Array, test: SliceTest) -> None:
    """Let a change that does not vary count once for each group: one of the 2^G ways to exchange models is as extreme."""
    p, method = table[f"p{number}"], table[f"method{number}"]
    method[method == Method.BOOTSTRAP_ROWS] = Method.BOOTSTRAP_GROUPS
    constant = (method != 0) & (method != Method.BOOTSTRAP_GROUPS)
    if metric(test.metric).kind == "pointwise" and not test.space.weighted:
        fewest: FloatArray = np.exp2((test.alternative == "both") - groups.astype(np.float64))
        p[constant] = np.maximum(p, fewest)[constant]
        method[constant] = Method.SIGN_FLIP_GROUPS
    else:
        # Where only some examples count, or weights may be 0, nobody knows how many groups change.
        _refuse(table, number, constant, Reason.UNVARYING)
    _refuse(table, number, groups < LEAST_GROUPS, Reason.FEW_GROUPS)
