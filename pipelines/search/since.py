"""``--since``: what is new, gone, worse or better than in an earlier run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.measures.difference import difference
from slicebeam.metrics.measures.multiplicity import adjusted
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.changelist.changes import (
    Difference,
    MetricSince,
    Moment,
    OverallSince,
    Since,
    SinceSlice,
)
from slicebeam.pipelines.changelist.parts import CONFIDENCE, Estimate, Predicate, estimate, finite
from slicebeam.pipelines.changelist.reading import TABLE
from slicebeam.pipelines.prepare.given_domains import is_carried_on, why_absent
from slicebeam.pipelines.search.earlier_run import COLUMNS
from slicebeam.pipelines.search.second_tests import adjusted_overall
from slicebeam.pipelines.search.summary import of_metrics, promise, shown, verdict
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.kinds import Correction
    from slicebeam.pipelines.changelist.changes import Change, Status
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.search.earlier_run import BaselineRun, Columns
    from slicebeam.pipelines.search.results import Results

MOST_LISTED = 1000
_MOST_NAMED = 5

_WITHIN: dict[Correction, Correction] = {"fdr-level": "bh"}


class _Tested:
    """The tested differences of estimates between two runs [pairs]: numbers with the ends of their intervals."""

    def __init__(
        self,
        now: tuple[Any, ...],
        then: tuple[Any, ...],
        alpha: float,
        corrected: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        higher_is_better: bool | NDArray[np.bool_],
    ) -> None:
        self.found = difference(now, then, CONFIDENCE)
        tested = ~np.isnan(self.found.p)
        self.q = np.full(tested.shape, np.nan)
        self.q[tested] = corrected(self.found.p[tested])
        self.significant = self.q <= alpha
        # Whether a difference is for the worse, significant or not.
        self.worse = (self.found.value > 0) != higher_is_better

    def counts(self) -> tuple[int, int, int]:
        """Return how many were compared, are significantly worse, and significantly better."""
        every = (~np.isnan(self.q), self.significant & self.worse, self.significant & ~self.worse)
        tests, worse, better = map(int, map(np.count_nonzero, every))
        return tests, worse, better

    def at(self, place: int) -> Difference | None:
        """Return a difference for the document; None for one that could not be tested."""
        value, low, high, p = (float(one[place]) for one in self.found)
        if np.isnan(p):
            return None
        return Difference(
            difference=Estimate(value=value, lo=low, hi=high, confidence=CONFIDENCE),
            p_value=p,
            p_adjusted=float(self.q[place]),
            significant=bool(self.significant[place]),
            direction="none" if value == 0 else "degraded" if self.worse[place] else "improved",
        )


def compare_runs(earlier: BaselineRun, document: SearchChangeList, results: Results) -> Since:
    """Return what changed since an earlier run, by each metric that both runs measured.

    On slices that both tested, the differences of deltas and those of values are two families of tests.
    """
    config = results.config
    ids = results.names.ids(results.keys).to_numpy(zero_copy_only=False).astype(str)
    by_name = {measured.name: vars(measured) for measured in results.metrics}
    listings = []
    for name in earlier.measured:
        now = {"slice_id": ids, "n": results.sizes, **by_name[name]}
        listings.append(_Listing(config, earlier, document, name, now))
    counts = [listing.counts() for listing in listings]
    overall = _overall_since(config, earlier.document, document, earlier.measured)
    # Of many metrics each has its share of what is listed.
    most = -(-MOST_LISTED // len(listings))
    slices = [one for listing in listings for one in listing.slices(results, most)]
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
        corrected_for=_corrected_for(config, counts),
        warnings=tuple(_warnings(config, earlier, document, listings[0], overall, counts)),
        slices=tuple(slices[:MOST_LISTED]),
        **total,
    )


def _summary(
    earlier: BaselineRun, overall: Sequence[OverallSince], counts: Sequence[MetricSince]
) -> str:
    """Return what changed in plain words: the metrics over all examples, then the slices."""
    parts = [f"Since {earlier.document.created_at:%Y-%m-%d %H:%M} UTC:"]
    for one, count in zip(overall, counts, strict=True):
        own, change = metric(one.metric), one.value_change
        called = "not tested" if change is None else verdict(change, "no significant change")
        parts.append(
            f"{own.title} {shown(own, one.then.value)} → {shown(own, one.now.value)} ({called}); "
            f"slices: {count.new:,} new, {count.gone:,} gone; delta {count.worse:,} worse, "
            f"{count.better:,} better; value {count.value_worse:,} worse, {count.value_better:,} better; "
            f"{count.compared:,} slice{'' if count.compared == 1 else 's'} compared."
        )
    return " ".join(parts)


def _correction(config: RunConfig) -> Correction:
    """Return the correction of one family: a slice is compared whatever was significant, so that nothing selected it."""
    return _WITHIN.get(config.used_correction, config.used_correction)


def _of_slices(config: RunConfig, p: NDArray[np.float64]) -> NDArray[np.float64]:
    ones = np.ones(p.size, np.int64)
    return adjusted(p, ones, (p.size,), _correction(config), 1, len(config.metric))


def _corrected_for(config: RunConfig, counts: Sequence[MetricSince]) -> str:
    correction, tests = _correction(config), counts[0].compared
    if correction == "none":
        return "Exploratory: no correction for comparing many slices."
    text = promise(
        correction,
        config.used_alpha,
        f"over {tests:,} slices",
        "Of the slices called worse or better",
        "no slice called worse or better",
        "unchanged",
    )
    return (
        f"{text}{of_metrics(len(counts))} The changes of values are corrected in the same way, separately "
        "from those of deltas; those over all examples by Holm's method."
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
    """The slices of two runs by a metric: the tests of their differences, and which of them the document lists."""

    def __init__(
        self,
        config: RunConfig,
        earlier: BaselineRun,
        document: SearchChangeList,
        metric_name: str,
        now: Columns,
    ) -> None:
        self.config, self.earlier, self.document = config, earlier, document
        self.metric, self.now, self.then = metric_name, now, earlier.measured[metric_name]
        matched, at_now, at_then = np.intersect1d(
            now["slice_id"], self.then["slice_id"], assume_unique=True, return_indices=True
        )
        smallest = config.used_min_slice_size
        large = (now["n"][at_now] >= smallest) & (self.then["n"][at_then] >= smallest)
        pairs = ((now, at_now), (self.then, at_then))

        def tested(*estimates: str) -> _Tested:
            of_now, of_then = (
                tuple(np.where(large, run[name][at], np.nan) for name in estimates)
                for run, at in pairs
            )
            is_better = metric(metric_name).higher_is_better
            return _Tested(
                of_now, of_then, config.used_alpha, partial(_of_slices, config), is_better
            )

        self.delta = tested("delta", "ci_low", "ci_high")
        self.value = tested("value", "value_low", "value_high")
        self.reported_now = _reported(document, metric_name)
        self.reported_then = _reported(earlier.document, metric_name)
        changed = matched[self.delta.significant | self.value.significant].tolist()
        listed = list({*changed, *self.reported_now, *self.reported_then})
        # Where the listed slices stand: in each run, and among those that were compared.
        self.at_now, self.at_then = (_positions(run["slice_id"], listed) for run, _ in pairs)
        places = np.full(now["slice_id"].size, -1, np.int64)
        places[at_now] = np.arange(at_now.size)
        self.place = {one: int(places[at]) for one, at in self.at_now.items() if places[at] >= 0}
        self.status = {one: self._status(one) for one in listed}
        self.unmatched = [one for one in self.reported_then if one not in self.at_now]

    def counts(self) -> MetricSince:
        """Return how many slices changed."""
        compared, worse, better = self.delta.counts()
        value_compared, value_worse, value_better = self.value.counts()
        statuses = list(self.status.values())
        return MetricSince(
            metric=self.metric,
            compared=compared,
            new=statuses.count("new"),
            gone=statuses.count("gone"),
            worse=worse,
            better=better,
            value_compared=value_compared,
            value_worse=value_worse,
            value_better=value_better,
        )

    def _status(self, slice_id: str) -> Status:
        now, then = (
            slice_id in at and bool(run["significant"][at[slice_id]])
            for run, at in ((self.now, self.at_now), (self.then, self.at_then))
        )
        # Significant slices that another one explains are not reported, and not news either.
        if now and not then and slice_id in self.reported_now:
            return "new"
        if then and not now and slice_id in self.reported_then:
            return "gone"
        return "stays" if now and then else "neither"

    def _rank(self, slice_id: str) -> tuple[int, float, str]:
        """Return a key of order: the worst first, then new, gone, better and unchanged slices."""
        kind, p = {"new": 1, "gone": 2}.get(self.status[slice_id], 6), 1.0
        place = self.place.get(slice_id)
        if place is not None and self.value.significant[place]:
            kind = min(kind, 4 if self.value.worse[place] else 5)
            p = float(self.value.found.p[place])
        if place is not None and self.delta.significant[place]:
            kind = 0 if self.delta.worse[place] else min(kind, 3)
            p = float(self.delta.found.p[place])
        return kind, p, slice_id

    def slices(self, results: Results, most: int) -> Iterator[SinceSlice]:
        """Yield the first listed slices."""
        listed = sorted(self.status, key=self._rank)[:most]
        known = self.reported_then | self.reported_now
        unnamed = [one for one in listed if one not in known]
        keys = results.keys[[self.at_now[one] for one in unnamed]]
        texts = zip(
            *(one(keys).to_pylist() for one in (results.names.texts, results.names.predicates)),
            strict=True,
        )
        named = dict(zip(unnamed, texts, strict=True))
        for slice_id in listed:
            if slice_id in named:
                name, text = named[slice_id]
                predicate = None if text is None else Predicate.model_validate_json(text)
            else:
                name, predicate = known[slice_id].name, known[slice_id].predicate
            at_now, at_then = self.at_now.get(slice_id), self.at_then.get(slice_id)
            yield SinceSlice(
                slice_id=slice_id,
                name=name,
                metric=self.metric,
                predicate=predicate,
                status=self.status[slice_id],
                now=None if at_now is None else _moment(self.now, at_now),
                then=None if at_then is None else _moment(self.then, at_then),
                missing=self._missing(predicate, at_now, at_then),
                **self._differences(slice_id),
            )

    def _differences(self, slice_id: str) -> dict[str, Any]:
        """Return the fields of `SinceSlice` about the tested differences."""
        place = self.place.get(slice_id)
        if place is None:
            return {}
        delta, value = self.delta.at(place), self.value.at(place)
        facts = {} if delta is None else vars(delta)
        return facts if value is None else {**facts, "value_change": value}

    def _missing(
        self, predicate: Predicate | None, at_now: int | None, at_then: int | None
    ) -> str | None:
        """Return why a slice is in one of the runs only."""
        if at_now is not None and at_then is not None:
            return None
        both = (self.document, self.earlier.document)
        when, (document, other) = ("now", both) if at_now is None else ("then", both[::-1])
        if document.check is not None:
            return f"{when} it was not among the checked slices"
        if when == "then" and not self.earlier.has_all:
            return f"the earlier document does not list it, and its {TABLE} is not in its folder"
        if predicate is None:
            return f"{when} it was not searched for: no predicate describes it"
        domains, of_other = (
            {domain.name: domain for domain in one.dataset.domains} for one in (document, other)
        )
        for condition in predicate.all:
            if condition.field not in domains:
                return f"{when} {condition.field!r} was not a feature"
            own = domains[condition.field]
            if condition not in own.singletons:
                theirs = of_other.get(condition.field)
                # Slices are made by hand, too, and a check has no domains.
                if theirs is None or condition not in theirs.singletons:
                    text = Singleton(condition.field, condition.op, condition.value)
                    return f"{when} the search had no predicate '{text}'"
                then, now = (own, theirs) if when == "then" else (theirs, own)
                return why_absent(condition, then, now)
        if document.search.saved_slices == "significant":
            return f"{when} it was not significant, or not tested"
        return f"{when} it was too small to be tested, or not visited"


def _moment(run: Columns, at: int) -> Moment:
    """Return what stands in the document of a slice of a run."""
    value, low, high = (run[name][at] for name in COLUMNS[2:5])
    return Moment(
        n=int(run["n"][at]),
        value=finite(value),
        value_interval=estimate(value, low, high) if np.isfinite(low + high) else None,
        delta=estimate(*(run[name][at] for name in COLUMNS[5:8])),
        p_adjusted=finite(run["q_value"][at]),
        significant=bool(run["significant"][at]),
    )


def _positions(ids: NDArray[np.str_], wanted: list[str]) -> dict[str, int]:
    """Return where the wanted ids stand, those that are there; ids may be millions."""
    if not ids.size or not wanted:
        return {}
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), ids.size - 1)]
    found = zip(wanted, at.tolist(), (ids[at] == np.array(wanted)).tolist(), strict=True)
    return {one: place for one, place, is_there in found if is_there}


def _warnings(
    config: RunConfig,
    earlier: BaselineRun,
    document: SearchChangeList,
    listing: _Listing,
    overall: Sequence[OverallSince],
    counts: Sequence[MetricSince],
) -> Iterator[str]:
    """Yield the comparisons that are missing, and cautions."""
    measured = [one.key for one in earlier.document.metrics]
    for when, missing in (
        ("then", [name for name in config.metric if name not in measured]),
        ("now", [name for name in measured if name not in config.metric]),
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
    yield from _cautions(config, earlier, document, listing)


def _cautions(
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


def _overall_since(
    config: RunConfig, then: SearchChangeList, now: SearchChangeList, metrics: Collection[str]
) -> tuple[OverallSince, ...]:
    """Return the metrics over all examples then and now, with the tests of their differences.

    These are tests of independent samples: of values, of two models also of deltas, all one family
    (Holm, unless nothing is corrected).
    """
    pairs = [(_overall(then, name), _overall(now, name)) for name in metrics]
    is_better = np.array([metric(name).higher_is_better for name in metrics] * 2)
    tested = _Tested(
        _estimates([one.after for _, one in pairs] + [one.delta for _, one in pairs]),
        _estimates([one.after for one, _ in pairs] + [one.delta for one, _ in pairs]),
        config.used_alpha,
        partial(adjusted_overall, config),
        is_better,
    )
    changes = [tested.at(place) for place in range(2 * len(pairs))]
    is_baseline = config.comparison == "baseline"
    return tuple(
        OverallSince(
            metric=after.metric,
            n_now=after.n,
            n_then=before.n,
            now=after.after,
            then=before.after,
            value_change=value,
            delta_now=after.delta,
            delta_then=before.delta,
            delta_change=delta,
            reason=_reason(config, before, after)
            if value is None or (delta is None and is_baseline)
            else None,
        )
        for (before, after), value, delta in zip(
            pairs, changes[: len(pairs)], changes[len(pairs) :], strict=True
        )
    )


def _overall(document: SearchChangeList, name: str) -> Change:
    return next(one for one in document.global_ if one.metric == name)


def _reason(config: RunConfig, before: Change, after: Change) -> str:
    for when, change in (("then", before), ("now", after)):
        if change.after.value is None:
            return f"{change.metric} was undefined {when}"
    if config.group:
        return "examples are grouped, and only slices are resampled by groups"
    return "one of the runs has no interval for it"


def _estimates(estimates: Sequence[Estimate | None]) -> tuple[NDArray[np.float64], ...]:
    """Return numbers and the ends of their intervals; NaN for those without."""
    rows = [(one.value, one.lo, one.hi) if one else (None,) * 3 for one in estimates]
    columns = np.array(rows, np.float64).T
    return tuple(np.where(np.isnan(columns).any(axis=0), np.nan, columns))
