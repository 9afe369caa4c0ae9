"""``--baseline-data``: which slices changed more than those above them, why metrics moved, how the data drifted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.findings import groups
from slicebeam.metrics.findings.decomposition import Decomposition, Indicators, Portion, drift
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
from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.measures.earlier import sides
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.metric import Slices, Target
from slicebeam.metrics.measures.multiplicity import holm_adjusted
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.measures.target_sums import design
from slicebeam.metrics.significance.intervals import normal_quantile
from slicebeam.pipelines.changelist.changes import (
    TOO_FAR,
    EarlierData,
    FeatureDrift,
    MovedPart,
    WhyMoved,
)
from slicebeam.pipelines.changelist.parts import CONFIDENCE, Estimate, estimate
from slicebeam.pipelines.changelist.slices import CorrectedDifference, Finding, FindingModel
from slicebeam.pipelines.search.findings import Direction, impossible
from slicebeam.pipelines.search.results import FindingList, Results
from slicebeam.transforms.count.finding_passes import SumByGroup, added_groups, without_buckets
from slicebeam.transforms.count.two_set_passes import (
    CountPairs,
    CountValues,
    SumResiduals,
    TwoSetRows,
    starts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.findings.choice import StopReason
    from slicebeam.transforms.encode.passes import Found, Function


# A value of fewer earlier examples says nothing of what such an example is like.
_LEAST_THEN = 20
# Standard deviations by which a value is more frequent than chance allows.
_BY_CHANCE = 3.0
# Lines of features, and values that are named.
_MOST_LINES, _MOST_NAMED = 4, 10
_SECONDS_PER_ROW = 1e-6


class _EarlierData:
    """The passes over the examples of both data sets, and what they say."""

    def __init__(self, results: Results, lists: Sequence[FindingList]) -> None:
        self.results, self.lists = results, lists
        self.prepared, self.lattice = results.prepared, results.prepared.lattice
        self.scaling = without_buckets(results.prepared.scaling)
        self.domains = results.prepared.domains
        self.begins = starts(self.lattice)
        found = self._passed("values", CountValues(self.lattice, self.scaling))
        self.counts = np.sum([one["counts"] for one in found], axis=0).reshape(2, -1)

    def _passed(self, stage: str, function: Function) -> list[Found]:
        return self.prepared.scan(f"earlier-{stage}", function, _SECONDS_PER_ROW)

    def _name(self, column: int) -> str:
        feature = int(np.searchsorted(self.begins, column, side="right")) - 1
        code = column - int(self.begins[feature])
        domain = self.domains[feature]
        return (
            str(domain.singletons[code])
            if code < domain.size
            else f"{domain.name} is another value"
        )

    def drift(self) -> tuple[FeatureDrift, ...]:
        """Return how each feature changed, the largest change first."""
        tests, found = [], []
        for feature, domain in enumerate(self.domains):
            begin, end = self.begins[feature : feature + 2].tolist()
            now, then = self.counts[:, begin:end]
            if self.lattice.is_multi(feature) or not now.sum() or not then.sum():
                continue
            changed = drift(now, then)
            shares = now / now.sum(), then / then.sum()
            facts = {}
            for at, singleton in enumerate(domain.singletons):
                if singleton.op == "is_null":
                    facts["missing_now"], facts["missing_then"] = (
                        float(share[at]) for share in shares
                    )
            tests.append(changed.p)
            found.append(
                FeatureDrift(
                    feature=domain.name,
                    p_value=changed.p,
                    p_adjusted=1.0,
                    significant=False,
                    stability_index=changed.stability_index,
                    value=self._name(begin + changed.value),
                    share_then=float(shares[1][changed.value]),
                    share_now=float(shares[0][changed.value]),
                    new_values=self._named(begin + np.flatnonzero((then == 0) & (now > 0))),
                    gone_values=self._named(begin + np.flatnonzero((now == 0) & (then > 0))),
                    **facts,
                )
            )
        alpha = self.results.config.used_alpha
        tested = [
            one.model_copy(update={"p_adjusted": float(q), "significant": bool(q <= alpha)})
            for one, q in zip(found, holm_adjusted(tests), strict=True)
        ]
        return tuple(sorted(tested, key=lambda one: (-one.stability_index, one.feature)))

    def _named(self, columns: IntArray) -> tuple[str, ...]:
        return tuple(self._name(int(at)) for at in columns[:_MOST_NAMED])

    def moved(self, number: int) -> WhyMoved | None:
        """Return why a metric moved; None where it is not an average over examples."""
        own = metric(self.results.config.metric[number])
        space = self.prepared.space
        if space.weighted or type(own) not in (Share, Mean):
            return None
        slices, on_both = self.prepared.slices(), metric_on(own.name, space)
        now, then = (float(on_both.value(some)[0]) for some in (slices, slices.old))
        positions, ids = np.zeros(0, np.int64), []
        for list_ in self.lists:
            if (list_.model.metric, list_.model.direction) == (own.name, "worse"):
                positions = list_.positions
                ids = [finding.slice_id for finding in list_.findings]
        keys = self.results.keys[positions]
        is_new = self._new()
        rows = TwoSetRows(own, self.lattice, self.scaling, is_new, keys)
        found = self._passed(f"pairs-{number}", CountPairs(rows))
        size = int(self.begins[-1]) + keys.size
        both, crossed, sums = (
            np.sum([one[name] for one in found], axis=0).reshape(2, *shape)
            for name, shape in (("both", (size, size)), ("crossed", (size,)), ("sums", (3,)))
        )
        if not (sums[:, 0] > 1).all():
            return None
        both = both + np.triu(both, 1).transpose(0, 2, 1)
        kept = self._columns(both, self.results.levels[positions])
        split = Decomposition(
            *(
                Indicators(
                    sums[at][0],
                    both[at][np.ix_(kept, kept)],
                    sums[at][1],
                    sums[at][2],
                    crossed[at][kept],
                )
                for at in (0, 1)
            )
        )
        coefficients = np.zeros(size)
        coefficients[kept] = split.coefficients
        residuals = self._passed(
            f"residuals-{number}", SumResiduals(rows, split.constant, coefficients)
        )
        cells = np.sum([one["sums"] for one in residuals], axis=0).reshape(-1, 3)
        sign = -1.0 if isinstance(own, Share) and own.higher_is_better else 1.0
        plain = own.target(space.of_one_set)
        if plain is None:
            raise ValueError(f"no average over the examples gives {own.name}")
        today = space.of_set(slices.sums, then=False)[0, : space.of_one_set.cells]
        # Of today's examples in the metric's denominator.
        share = max(1.0 - split.now.n / max(float(today[plain.counted].sum()), 1.0), 0.0)
        unit = sign * (1.0 - share)
        told = WhyMoved(
            metric=own.name,
            then=then,
            now=now,
            change=now - then,
            new_kinds=now - then - unit * split.whole if share > 0 else 0.0,
            new_share=share,
            new_values=self._named(np.flatnonzero(is_new & (self.counts[0] > 0))),
            distance=split.distance,
        )
        if split.distance > TOO_FAR:
            return told
        n, first, second = cells.sum(axis=0)
        texts, by_model = self.results.names.texts(keys).to_pylist(), []
        # The part of each finding that no finding above it holds.
        for (count, total, squares), slice_id, text in zip(cells[:-1], ids, texts, strict=True):
            spread = squares / n - (total / n) ** 2
            part = Portion(total / n, spread / n + split.residual * count / n**2)
            change = _estimate(part, unit)
            by_model.append(MovedPart(name=text, slice_id=slice_id, change=change))
        parts = {
            "mix": _estimate(split.mix, unit),
            "model": _estimate(split.model(second / n - (first / n) ** 2), unit),
            "by_mix": self._by_mix(split, kept, unit, texts),
            "by_model": tuple(by_model),
        }
        return told.model_copy(update=parts)

    def _new(self) -> BoolArray:
        """Return which values hardly any example had then, and more have today than chance allows."""
        now, then = self.counts
        expected = np.zeros(now.shape)
        for begin, end in zip(self.begins[:-1].tolist(), self.begins[1:].tolist(), strict=True):
            sizes = self.counts[:, begin:end].sum(axis=1)
            expected[begin:end] = then[begin:end] * (sizes[0] / max(sizes[1], 1))
        return (then < _LEAST_THEN) & (now > expected + _BY_CHANCE * np.sqrt(expected + 1.0))

    def _columns(self, both: FloatArray, levels: IntArray) -> IntArray:
        """Return the columns of the model: of each feature all values but the most frequent one, and some findings."""
        held = np.diagonal(both, axis1=1, axis2=2)
        kept = []
        for begin, end in zip(self.begins[:-1].tolist(), self.begins[1:].tolist(), strict=True):
            there = begin + np.flatnonzero(held[1, begin:end] > 0)
            if there.size:
                kept += [int(at) for at in there if at != begin + int(held[1, begin:end].argmax())]
        values = int(self.begins[-1])
        kept += [values + at for at in np.flatnonzero(levels > 1).tolist()]
        return np.array(kept, np.int64)

    def _by_mix(
        self, split: Decomposition, kept: IntArray, unit: float, slices: Sequence[str]
    ) -> tuple[MovedPart, ...]:
        """Return the features and findings whose shares moved the metric, those that cannot be told apart together."""
        features = len(self.domains)
        # Each finding is a source of its own, after the features.
        column_source = np.where(
            kept < self.begins[-1],
            np.searchsorted(self.begins, kept, side="right") - 1,
            kept - int(self.begins[-1]) + features,
        )
        sources, first = np.unique(column_source, return_index=True)
        columns = [np.flatnonzero(column_source == source) for source in sources]
        z = normal_quantile(CONFIDENCE)
        moved: list[tuple[float, MovedPart]] = []
        for line in split.together(columns):
            part = split.part(np.concatenate([columns[at] for at in line]))
            if abs(part.value) <= z * part.variance**0.5:
                continue
            by_size = sorted(line, key=lambda at: -abs(split.part(columns[at]).value))
            largest = int(sources[by_size[0]])
            if largest < features:
                begin, end = self.begins[largest : largest + 2].tolist()
                now, then = (counts[begin:end] / counts[begin:end].sum() for counts in self.counts)
                at = int(np.abs(now - then).argmax())
                value = self._name(begin + at)
            else:
                now, then = split.now.shares, split.then.shares
                at, value = int(first[by_size[0]]), slices[largest - features]
            names = [
                self.domains[source].name if source < features else slices[source - features]
                for source in sources[by_size].tolist()
            ]
            moved_part = MovedPart(
                name=" and ".join(names),
                change=_estimate(part, unit),
                value=value,
                share_then=float(then[at]),
                share_now=float(now[at]),
            )
            moved.append((abs(part.value), moved_part))
        moved.sort(key=lambda line: -line[0])
        return tuple(part for _, part in moved[:_MOST_LINES])


def _estimate(part: Portion, unit: float) -> Estimate:
    reach = normal_quantile(CONFIDENCE) * max(part.variance, 0.0) ** 0.5
    low, high = sorted((unit * (part.value - reach), unit * (part.value + reach)))
    return estimate(unit * part.value, low, high)


def earlier_data(results: Results, lists: Sequence[FindingList]) -> EarlierData:
    """Return what a run says of the data that it is compared with."""
    space, slices = results.prepared.space, results.prepared.slices()
    found = EarlierData(
        uri=tuple(results.config.baseline_data),
        n=int(space.of_set(slices.sums, then=True)[0, : space.of_one_set.cells].sum()),
    )
    if results.config.group:
        # All of it takes examples to be independent.
        return found
    both = _EarlierData(results, lists)
    moved = (both.moved(number) for number in range(len(results.config.metric)))
    told = {"moved": tuple(one for one in moved if one is not None), "drift": both.drift()}
    return found.model_copy(update=told)


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
