"""``--since``: what is new, gone, worse or better than in an earlier run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slicebeam.metrics.registry import metric
from slicebeam.metrics.testing.difference import difference
from slicebeam.metrics.testing.multiplicity import adjusted
from slicebeam.pipelines.changelist.changes import MetricSince, OverallSince, Since, SinceSlice
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Predicate
from slicebeam.pipelines.changelist.reading import TABLE
from slicebeam.pipelines.changelist.slices import Slice
from slicebeam.pipelines.prepare.given_domains import is_carried_on, why_absent
from slicebeam.pipelines.search.earlier_run import MetricValues
from slicebeam.pipelines.search.results import CONFIDENCE
from slicebeam.pipelines.search.since_overall import overall_since, tested_difference
from slicebeam.pipelines.search.summary import shown
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.kinds import Correction
    from slicebeam.metrics.testing.difference import RunDifference
    from slicebeam.pipelines.changelist.changes import Status
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.search.earlier_run import BaselineRun
    from slicebeam.pipelines.search.results import Results
    from slicebeam.pipelines.search.slices_table import SliceNames

MOST_LISTED = 1000
_MOST_NAMED = 5

_WITHIN: dict[Correction, Correction] = {"fdr-level": "bh"}


class _Tested(NamedTuple):
    """The differences of a number between the slices of two runs, corrected [matched]."""

    found: RunDifference
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]

    @property
    def tests(self) -> int:
        """How many slices were compared."""
        return int(np.count_nonzero(~np.isnan(self.found.p)))

    def worse(self, name: str) -> NDArray[np.bool_]:
        """Return which differences are for the worse [matched], significant or not."""
        worse: NDArray[np.bool_] = (self.found.value > 0) != metric(name).higher_is_better
        return worse


@dataclass(frozen=True)
class _Compared:
    """The slices of both runs: positions in each, and the tests of their differences [matched]."""

    now: NDArray[np.int64]
    then: NDArray[np.int64]
    delta: _Tested
    value: _Tested


def compare_runs(
    config: RunConfig,
    earlier: BaselineRun,
    document: SearchChangeList,
    results: Results,
    names: SliceNames,
) -> Since:
    """Return what changed since an earlier run, by each metric that both runs measured.

    On slices that both tested, the differences of deltas and those of values are two families of tests.
    """
    ids = names.ids(results.keys).to_numpy(zero_copy_only=False).astype(str)
    by_name = {measured.name: vars(measured) for measured in results.metrics}
    listings, counts = [], []
    for name, then in earlier.measured.items():
        values = {field: by_name[name][field] for field in vars(then) if field in by_name[name]}
        now = MetricValues(ids=ids, n=results.sizes, **values)
        compared = _compared(config, now, then)
        listings.append(_Listing(config, earlier, document, name, now, compared))
        counts.append(_counts(name, compared, listings[-1]))
    overall = overall_since(config, earlier.document, document, earlier.measured)
    # Of many metrics each has its share of what is listed.
    most = -(-MOST_LISTED // len(listings))
    slices = [one for listing in listings for one in listing.slices(results, names, most)]
    total = {
        field: sum(getattr(one, field) for one in counts)
        for field in ("compared", "new", "gone", "worse", "better")
    }
    return Since(
        uri=earlier.uri,
        changelist_id=earlier.document.changelist_id,
        created_at=earlier.document.created_at,
        n=earlier.document.dataset.n,
        read_from="slices.parquet" if earlier.has_all else "changelist.json",
        metric=counts[0].metric,
        summary=_summary(earlier, overall, counts),
        overall=overall,
        metrics=tuple(counts),
        corrected_for=_sentence(config, counts),
        warnings=tuple(_all_warnings(config, earlier, document, listings, overall, counts)),
        slices=tuple(slices[:MOST_LISTED]),
        **total,
    )


def _counts(name: str, compared: _Compared, listing: _Listing) -> MetricSince:
    worse, value_worse = (one.worse(name) for one in (compared.delta, compared.value))
    changed, value_changed = compared.delta.significant, compared.value.significant
    return MetricSince(
        metric=name,
        compared=compared.delta.tests,
        new=listing.count("new"),
        gone=listing.count("gone"),
        worse=int(np.count_nonzero(changed & worse)),
        better=int(np.count_nonzero(changed & ~worse)),
        value_compared=compared.value.tests,
        value_worse=int(np.count_nonzero(value_changed & value_worse)),
        value_better=int(np.count_nonzero(value_changed & ~value_worse)),
    )


def _summary(
    earlier: BaselineRun, overall: Sequence[OverallSince], counts: Sequence[MetricSince]
) -> str:
    """Return what changed in plain words: the metrics over all examples, then the slices."""
    date = f"{earlier.document.created_at:%Y-%m-%d %H:%M} UTC"
    changed = {"degraded": "significantly worse", "improved": "significantly better"}
    parts = []
    for one, count in zip(overall, counts, strict=True):
        own, change = metric(one.metric), one.value_change
        called = "not tested"
        if change is not None:
            called = changed.get(change.direction, "the same")
            called = called if change.significant else "no significant change"
        parts.append(
            f"{own.title} {shown(own, one.then.value)} → {shown(own, one.now.value)} ({called}); "
            f"slices: {count.new:,} new, {count.gone:,} gone; delta {count.worse:,} worse, "
            f"{count.better:,} better; value {count.value_worse:,} worse, {count.value_better:,} better; "
            f"{count.compared:,} slice{'' if count.compared == 1 else 's'} compared."
        )
    return f"Since {date}: {' '.join(parts)}"


def _compared(config: RunConfig, now: MetricValues, then: MetricValues) -> _Compared:
    _, at_now, at_then = np.intersect1d(now.ids, then.ids, assume_unique=True, return_indices=True)
    smallest = config.used_min_slice_size
    large = (now.n[at_now] >= smallest) & (then.n[at_then] >= smallest)

    def compared(value: str, low: str, high: str) -> _Tested:
        def estimates(one: MetricValues, at: NDArray[np.int64]) -> tuple[Any, Any, Any]:
            columns = (getattr(one, name)[at] for name in (value, low, high))
            first, second, third = (np.where(large, column, np.nan) for column in columns)
            return first, second, third

        found = difference(estimates(now, at_now), estimates(then, at_then), CONFIDENCE)
        return _tested(config, found)

    return _Compared(
        at_now,
        at_then,
        compared("delta", "low", "high"),
        compared("value", "value_low", "value_high"),
    )


def _tested(config: RunConfig, found: RunDifference) -> _Tested:
    tested = np.flatnonzero(~np.isnan(found.p))
    q = np.full(found.p.shape, np.nan)
    # One family: a slice is compared whatever was significant, so that nothing selected it.
    correction = _WITHIN.get(config.used_correction, config.used_correction)
    ones = np.ones(tested.size, np.int64)
    q[tested] = adjusted(found.p[tested], ones, (tested.size,), correction, 1, len(config.metric))
    return _Tested(found, q, q <= config.used_alpha)


def _sentence(config: RunConfig, counts: Sequence[MetricSince]) -> str:
    text = _sentence_of_slices(config, counts[0].compared)
    if config.used_correction == "none":
        return text
    if len(counts) > 1:
        text += f" That holds for the {len(counts)} metrics together: q-values are multiplied by their number."
    return (
        f"{text} The changes of values are corrected in the same way, separately from those of "
        "deltas; those over all examples by Holm's method."
    )


def _sentence_of_slices(config: RunConfig, tests: int) -> str:
    correction = _WITHIN.get(config.used_correction, config.used_correction)
    if correction == "none":
        return "Exploratory: no correction for comparing many slices."
    if correction == "fwer-level":
        return (
            f"With probability {1 - config.used_alpha:.0%} no slice called worse or better is "
            f"unchanged (Bonferroni over {tests:,} slices)."
        )
    name = {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli"}[correction]
    return (
        f"Of the slices called worse or better at most {config.used_alpha:.0%} are expected to be "
        f"unchanged ({name} over {tests:,} slices)."
    )


def _reported(document: SearchChangeList, name: str) -> dict[str, Slice]:
    """Return the slices that a document reports for a metric, by their ids."""
    is_primary = name == next(one.key for one in document.metrics if one.primary)
    reported = {}
    for one in document.slices:
        places = {change.metric: change.place for change in one.changes}
        # Slices that a person added have no places.
        if places.get(name) is not None or (is_primary and not any(places.values())):
            reported[one.slice_id] = one
    return reported


class _Listing:
    """The slices that the document lists by a metric: which, in which order, and what it says of each."""

    def __init__(
        self,
        config: RunConfig,
        earlier: BaselineRun,
        document: SearchChangeList,
        metric_name: str,
        now: MetricValues,
        compared: _Compared,
    ) -> None:
        self.config, self.earlier, self.document = config, earlier, document
        self.metric, self.now, self.then = metric_name, now, earlier.measured[metric_name]
        self.compared = compared
        self.worse, self.value_worse = (
            one.worse(metric_name) for one in (compared.delta, compared.value)
        )
        self.reported_now = _reported(document, metric_name)
        self.reported_then = _reported(earlier.document, metric_name)
        self.changed, self.value_changed = (
            self._changed(one) for one in (compared.delta, compared.value)
        )
        wanted = list(
            dict.fromkeys(
                [*self.changed, *self.value_changed, *self.reported_now, *self.reported_then]
            )
        )
        self.at_now, self.at_then = (_positions(one.ids, wanted) for one in (now, self.then))
        self.status = {one: self._status(one) for one in wanted}
        self.unmatched = [one for one in self.reported_then if one not in self.at_now]

    def _changed(self, tested: _Tested) -> dict[str, int]:
        changed = np.flatnonzero(tested.significant)
        ids = self.now.ids[self.compared.now[changed]].tolist()
        return dict(zip(ids, changed.tolist(), strict=True))

    def count(self, status: str) -> int:
        """Return how many slices have a status."""
        return sum(1 for one in self.status.values() if one == status)

    def _status(self, slice_id: str) -> Status:
        now = slice_id in self.at_now and bool(self.now.significant[self.at_now[slice_id]])
        then = slice_id in self.at_then and bool(self.then.significant[self.at_then[slice_id]])
        # Significant slices that another one explains are not reported, and not news either.
        if now and not then and slice_id in self.reported_now:
            return "new"
        if then and not now and slice_id in self.reported_then:
            return "gone"
        return "stays" if now and then else "neither"

    def slices(self, results: Results, names: SliceNames, most: int) -> tuple[SinceSlice, ...]:
        """Return the changed slices, the worst first, then new, gone, better and unchanged ones."""
        places = np.full(self.now.ids.size, -1, np.int64)
        places[self.compared.now] = np.arange(self.compared.now.size)

        def rank(slice_id: str) -> tuple[int, float, str]:
            at, value_at = self.changed.get(slice_id), self.value_changed.get(slice_id)
            kind = {"new": 1, "gone": 2}.get(self.status[slice_id], 6)
            p = 1.0
            if value_at is not None:
                kind = min(kind, 4 if self.value_worse[value_at] else 5)
                p = float(self.compared.value.found.p[value_at])
            if at is not None:
                kind = 0 if self.worse[at] else min(kind, 3)
                p = float(self.compared.delta.found.p[at])
            return kind, p, slice_id

        wanted = sorted(self.status, key=rank)[:most]
        unnamed = [
            one for one in wanted if one not in self.reported_now and one not in self.reported_then
        ]
        keys = results.keys[[self.at_now[one] for one in unnamed]]
        texts = zip(names.texts(keys).to_pylist(), names.predicates(keys).to_pylist(), strict=True)
        named = dict(zip(unnamed, texts, strict=True))
        return tuple(
            self._slice(one, int(places[self.at_now[one]]) if one in self.at_now else -1, named)
            for one in wanted
        )

    def _slice(
        self, slice_id: str, place: int, named: dict[str, tuple[str, str | None]]
    ) -> SinceSlice:
        if slice_id in named:
            name, text = named[slice_id]
            predicate = None if text is None else Predicate.model_validate_json(text)
        else:
            known = self.reported_now.get(slice_id) or self.reported_then[slice_id]
            name, definition = known.name, known.definition
            predicate = (
                definition.predicate if isinstance(definition, PredicateDefinition) else None
            )
        at_now, at_then = self.at_now.get(slice_id), self.at_then.get(slice_id)
        facts: dict[str, Any] = {}
        delta, value = self.compared.delta, self.compared.value
        if place >= 0 and not np.isnan(delta.found.p[place]):
            facts = vars(tested_difference(self.config, self.metric, delta.found, delta.q, place))
        if place >= 0 and not np.isnan(value.found.p[place]):
            facts = facts | {
                "value_change": tested_difference(
                    self.config, self.metric, value.found, value.q, place
                )
            }
        return SinceSlice(
            slice_id=slice_id,
            name=name,
            metric=self.metric,
            predicate=predicate,
            status=self.status[slice_id],
            now=None if at_now is None else self.now.moment(at_now),
            then=None if at_then is None else self.then.moment(at_then),
            missing=self._missing(predicate, at_now, at_then),
            **facts,
        )

    def _missing(
        self, predicate: Predicate | None, at_now: int | None, at_then: int | None
    ) -> str | None:
        """Return why a slice is in one of the runs only."""
        if at_now is not None and at_then is not None:
            return None
        when, document = (
            ("now", self.document) if at_now is None else ("then", self.earlier.document)
        )
        if document.check is not None:
            return f"{when} it was not among the checked slices"
        if when == "then" and not self.earlier.has_all:
            return f"the earlier document does not list it, and its {TABLE} is not in its folder"
        domains, other = (
            {domain.name: domain for domain in one.dataset.domains}
            for one in (document, self.document if when == "then" else self.earlier.document)
        )
        if predicate is None:
            return f"{when} it was not searched for: no predicate describes it"
        for condition in predicate.all:
            if condition.field not in domains:
                return f"{when} {condition.field!r} was not a feature"
            own = domains[condition.field]
            if condition not in own.singletons:
                theirs = other.get(condition.field)
                # Slices are made by hand, too, and a check has no domains.
                if theirs is None or condition not in theirs.singletons:
                    text = Singleton(condition.field, condition.op, condition.value)
                    return f"{when} the search had no predicate '{text}'"
                then, now = (own, theirs) if when == "then" else (theirs, own)
                return why_absent(condition, then, now)
        if document.search.saved_slices == "significant":
            return f"{when} it was not significant, or not tested"
        return f"{when} it was too small to be tested, or not visited"


def _positions(ids: NDArray[np.str_], wanted: list[str]) -> dict[str, int]:
    """Return where the wanted ids stand, those that are there; ids may be millions."""
    if not ids.size or not wanted:
        return {}
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), ids.size - 1)]
    found = zip(wanted, at.tolist(), (ids[at] == np.array(wanted)).tolist(), strict=True)
    return {one: place for one, place, is_there in found if is_there}


def _all_warnings(
    config: RunConfig,
    earlier: BaselineRun,
    document: SearchChangeList,
    listings: Sequence[_Listing],
    overall: Sequence[OverallSince],
    counts: Sequence[MetricSince],
) -> Iterator[str]:
    """Yield the comparisons that are missing, and warnings."""
    then = [one.key for one in earlier.document.metrics]
    for when, missing in (
        ("then", [name for name in config.metric if name not in then]),
        ("now", [name for name in then if name not in config.metric]),
    ):
        if missing:
            yield f"Not compared, because it was not measured {when}: {', '.join(missing)}."
    for one in overall:
        if one.reason is not None:
            yield (
                f"Whether {one.metric} over all examples changed could not be tested: {one.reason}."
            )
    for count in counts:
        if not count.compared:
            yield f"No slice could be compared by {count.metric}."
        elif not count.value_compared:
            yield (
                f"The values of slices by {count.metric} could not be compared: the earlier run, or this "
                "one, has no intervals of them."
            )
    yield from _warnings(config, earlier, document, listings[0])


def _warnings(
    config: RunConfig, earlier: BaselineRun, document: SearchChangeList, listing: _Listing
) -> Iterator[str]:
    then = earlier.document
    if then.dataset.fingerprint == document.dataset.fingerprint:
        yield "Both runs have the same examples and predictions: nothing can have changed."
    chosen = then.check is None and (
        not earlier.has_all or then.search.saved_slices == "significant"
    )
    if chosen:
        yield (
            "Only slices that were significant then are compared. They were chosen for being "
            f"extreme, so some look better now by chance alone. Keep {TABLE} with all tested "
            "slices next to changelist.json."
        )
    elif (
        document.check is not None
        and then.check is None
        and document.check.changelist_id == then.changelist_id
    ):
        yield (
            "The slices were chosen for being extreme in the run that they are compared with, so "
            "some look better now by chance alone. Compare with a run on other data."
        )
    if document.check is None and document.search.saved_slices == "significant":
        yield "There are so many slices that only those significant now, and the singletons, are compared."
    for key in ("test", "alpha", "correction", "min_slice_size"):
        before, after = then.provenance.config.get(key), config.options_used().get(key)
        if before != after:
            yield f"{key} was {before} then and is {after} now, so other slices are significant."
    domains = {domain.name: domain for domain in document.dataset.domains}
    cut = [
        domain.name
        for domain in then.dataset.domains
        if domain.name in domains and not is_carried_on(domain, domains[domain.name])
    ]
    if listing.unmatched and cut:
        more = f" and {len(cut) - _MOST_NAMED} more" if len(cut) > _MOST_NAMED else ""
        yield (
            f"{len(listing.unmatched):,} slices that were reported then are not comparable: "
            f"{', '.join(cut[:_MOST_NAMED])}{more} were binned differently; --domains "
            f"{earlier.uri} uses the earlier bins and values."
        )
