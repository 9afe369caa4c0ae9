"""``--since``: what is new, gone, worse or better than in an earlier run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slicebeam.metrics.registry import metric
from slicebeam.metrics.testing.difference import difference
from slicebeam.metrics.testing.multiplicity import adjusted
from slicebeam.pipelines.changelist.changes import (
    Difference,
    MetricSince,
    Moment,
    OverallSince,
    Since,
    SinceSlice,
)
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.parts import Estimate, Predicate
from slicebeam.pipelines.changelist.reading import TABLE
from slicebeam.pipelines.prepare.given_domains import is_carried_on, why_absent
from slicebeam.pipelines.search.earlier_run import COLUMNS
from slicebeam.pipelines.search.results import CONFIDENCE, direction_of, estimate, finite
from slicebeam.pipelines.search.second_tests import adjusted_overall
from slicebeam.pipelines.search.summary import of_metrics, shown, verdict
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.kinds import Correction
    from slicebeam.metrics.testing.difference import RunDifference
    from slicebeam.pipelines.changelist.changes import Change, Status
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.search.earlier_run import BaselineRun, Columns
    from slicebeam.pipelines.search.results import Results

MOST_LISTED = 1000
_MOST_NAMED = 5

_WITHIN: dict[Correction, Correction] = {"fdr-level": "bh"}


class _Tested(NamedTuple):
    """The differences of a number between the slices of two runs, corrected [matched]."""

    found: RunDifference
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]
    worse: NDArray[np.bool_]  # whether a difference is for the worse, significant or not

    def counts(self) -> tuple[int, int, int]:
        """Return how many slices were compared, are significantly worse, and significantly better."""
        every = (
            ~np.isnan(self.found.p),
            self.significant & self.worse,
            self.significant & ~self.worse,
        )
        tests, worse, better = map(int, map(np.count_nonzero, every))
        return tests, worse, better


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


def _corrected_for(config: RunConfig, counts: Sequence[MetricSince]) -> str:
    correction, tests = _correction(config), counts[0].compared
    if correction == "none":
        return "Exploratory: no correction for comparing many slices."
    if correction == "fwer-level":
        text = (
            f"With probability {1 - config.used_alpha:.0%} no slice called worse or better is "
            f"unchanged (Bonferroni over {tests:,} slices)."
        )
    else:
        name = "Benjamini-Hochberg" if correction == "bh" else "Benjamini-Yekutieli"
        text = (
            f"Of the slices called worse or better at most {config.used_alpha:.0%} are expected to be "
            f"unchanged ({name} over {tests:,} slices)."
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
        self.delta, self.value = (
            self._tested(
                *(
                    tuple(np.where(large, run[name][at], np.nan) for name in estimates)
                    for run, at in pairs
                )
            )
            for estimates in (COLUMNS[5:8], COLUMNS[2:5])
        )
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

    def _tested(self, now: tuple[Any, ...], then: tuple[Any, ...]) -> _Tested:
        """Test the differences of estimates (number and ends of its interval) [matched]."""
        found = difference(now, then, CONFIDENCE)
        tested = np.flatnonzero(~np.isnan(found.p))
        q = np.full(found.p.shape, np.nan)
        ones = np.ones(tested.size, np.int64)
        q[tested] = adjusted(
            found.p[tested],
            ones,
            (tested.size,),
            _correction(self.config),
            1,
            len(self.config.metric),
        )
        worse = (found.value > 0) != metric(self.metric).higher_is_better
        return _Tested(found, q, q <= self.config.used_alpha, worse)

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
                name, definition = known[slice_id].name, known[slice_id].definition
                predicate = (
                    definition.predicate if isinstance(definition, PredicateDefinition) else None
                )
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
                **self._differences(self.place.get(slice_id)),
            )

    def _differences(self, place: int | None) -> dict[str, Any]:
        """Return the fields of `SinceSlice` about the tested differences of a compared slice."""
        if place is None:
            return {}
        delta, value = (
            None
            if np.isnan(one.found.p[place])
            else _tested_difference(self.config, self.metric, one.found, one.q, place)
            for one in (self.delta, self.value)
        )
        facts = {} if delta is None else vars(delta)
        return facts if value is None else facts | {"value_change": value}

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
    config: RunConfig, then: SearchChangeList, now: SearchChangeList, metrics: Iterable[str]
) -> tuple[OverallSince, ...]:
    """Return the metrics over all examples then and now, with the tests of their differences.

    These are tests of independent samples: of values, of two models also of deltas, all one family (Holm, unless nothing is corrected).
    """
    pairs = [(_overall(then, name), _overall(now, name)) for name in metrics]
    names = [after.metric for _, after in pairs]
    estimates: list[tuple[Estimate | None, Estimate | None]]
    estimates = [(before.after, after.after) for before, after in pairs]
    estimates += [(before.delta, after.delta) for before, after in pairs]
    changes = _differences(config, names * 2, estimates)
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


def _differences(
    config: RunConfig,
    names: Sequence[str],
    estimates: Sequence[tuple[Estimate | None, Estimate | None]],
) -> list[Difference | None]:
    """Return the tested differences of estimates (then, now); None for those without intervals."""
    before, after = (tuple(np.array([_numbers(pair[at]) for pair in estimates]).T) for at in (0, 1))
    found = difference(after, before, CONFIDENCE)
    adjusted = adjusted_overall(config, found.p)
    changes: list[Difference | None] = [None] * len(estimates)
    for at in np.flatnonzero(~np.isnan(found.p)).tolist():
        changes[at] = _tested_difference(config, names[at], found, adjusted, at)
    return changes


def _numbers(one: Estimate | None) -> tuple[float, float, float]:
    if one is None or one.value is None or one.lo is None or one.hi is None:
        return np.nan, np.nan, np.nan
    return one.value, one.lo, one.hi


def _tested_difference(
    config: RunConfig, name: str, found: RunDifference, adjusted: NDArray[np.float64], at: int
) -> Difference:
    """Return one of many tested differences of a metric for the document."""
    value, low, high, p = (float(one[at]) for one in found)
    return Difference(
        difference=Estimate(value=value, lo=low, hi=high, confidence=CONFIDENCE),
        p_value=p,
        p_adjusted=float(adjusted[at]),
        significant=bool(adjusted[at] <= config.used_alpha),
        direction=direction_of(metric(name), value),
    )
