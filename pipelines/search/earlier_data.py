"""``--baseline-data``: why metrics moved between two data sets, and how the data drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.findings.decomposition import Decomposition, Indicators, Portion, drift
from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.multiplicity import holm_adjusted
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.significance.intervals import normal_quantile
from slicebeam.pipelines.changelist.changes import (
    TOO_FAR,
    EarlierData,
    FeatureDrift,
    MovedPart,
    WhyMoved,
)
from slicebeam.pipelines.changelist.parts import CONFIDENCE, Estimate, estimate
from slicebeam.pipelines.search.results import FindingList, Results
from slicebeam.transforms.count.finding_passes import without_buckets
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
