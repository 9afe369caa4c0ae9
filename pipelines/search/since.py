"""``--since``: what is new, gone, worse or better than in an earlier run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.measures.multiplicity import adjusted
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance.intervals import difference
from slicebeam.pipelines.changelist.changes import (
    Difference,
    MetricSince,
    Moment,
    OverallSince,
    Since,
    SinceSlice,
)
from slicebeam.pipelines.changelist.parts import CONFIDENCE, Estimate, estimate, finite
from slicebeam.pipelines.changelist.reading import TABLE
from slicebeam.pipelines.prepare.inherited import is_carried_on, why_absent
from slicebeam.pipelines.search.earlier_run import COLUMNS, DELTA, VALUE
from slicebeam.pipelines.search.significance import adjusted_overall
from slicebeam.pipelines.search.summary import of_metrics, promise, shown, verdict
from slicebeam.transforms.count.finding_passes import CountListed, without_buckets
from slicebeam.transforms.encode.definitions import Predicate
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.kinds import Correction
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.search.earlier_run import BaselineRun, Columns
    from slicebeam.pipelines.search.results import Results

MOST_LISTED = 1000
_MOST_NAMED = 5
# Slices that are held against each other, CPU seconds of an example of each, and the share of the smaller that
# both hold where one repeats the other.
_MOST_HELD_AGAINST, _PER_SLICE, _MOSTLY = 200, 1e-8, 0.8


class _Tested:
    """The tested differences of estimates between two runs [pairs]: numbers with the ends of their intervals."""

    def __init__(
        self,
        now: tuple[Any, ...],
        then: tuple[Any, ...],
        alpha: float,
        corrected: Callable[[FloatArray], FloatArray],
        higher_is_better: bool | BoolArray,
        large: bool | BoolArray = True,
    ) -> None:
        self.found = difference(now, then, CONFIDENCE)
        tested = ~np.isnan(self.found.p) & large
        self.q = np.full(tested.shape, np.nan)
        self.q[tested] = corrected(self.found.p[tested])
        self.significant = self.q <= alpha
        # Whether a difference is for the worse, significant or not.
        self.worse = (self.found.value > 0) != higher_is_better

    def counts(self, prefix: str = "") -> dict[str, int]:
        """Return how many were compared, are significantly worse, and significantly better."""
        every = {
            "compared": ~np.isnan(self.q),
            "worse": self.significant & self.worse,
            "better": self.significant & ~self.worse,
        }
        return {f"{prefix}{name}": int(np.count_nonzero(some)) for name, some in every.items()}

    def at(self, place: int) -> Difference | None:
        """Return a difference for the document; None for one that could not be tested."""
        value, low, high, p = (float(one[place]) for one in self.found)
        if np.isnan(self.q[place]):
            return None
        return Difference(
            difference=Estimate(value=value, lo=low, hi=high, confidence=CONFIDENCE),
            p_value=p,
            p_adjusted=float(self.q[place]),
            significant=bool(self.significant[place]),
            direction="none" if value == 0 else "degraded" if self.worse[place] else "improved",
        )


def compare_runs(earlier: BaselineRun, document: SearchChangeList, results: Results) -> Since:
    """Return what changed since an earlier run: of each metric, deltas and values of slices are two families of tests."""
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
    # A slice is compared whatever was significant, so that nothing selected it.
    return "bh" if config.used_correction == "fdr-level" else config.used_correction


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


class _Listing:
    """The slices of two runs by a metric [slices]: the tests of their differences, and which the document lists."""

    def __init__(
        self,
        config: RunConfig,
        earlier: BaselineRun,
        document: SearchChangeList,
        metric_name: str,
        now: Columns,
    ) -> None:
        self.earlier, self.document, self.metric = earlier, document, metric_name
        reported_now, reported_then = (
            {
                slice_.slice_id: slice_
                for slice_ in searched.slices
                for places in [{change.metric: change.place for change in slice_.changes}]
                # Slices that a person added have no places.
                if places.get(metric_name) is not None
                or (metric_name in primary and not any(places.values()))
            }
            for searched in (document, earlier.document)
            for primary in [[entry.key for entry in searched.metrics if entry.primary]]
        )
        self.known = reported_then | reported_now
        runs = now, earlier.measured[metric_name]
        ids = [runs[0]["slice_id"], runs[1]["slice_id"], np.array([*self.known], str)]
        self.ids, places = np.unique(np.concatenate(ids), return_inverse=True)
        at = np.split(places.reshape(-1), [ids[0].size, ids[0].size + ids[1].size])
        self.now, self.then = (
            _spread(run, place, self.ids.size) for run, place in zip(runs, at, strict=False)
        )
        # The position of each slice in this run's columns.
        self.position = np.full(self.ids.size, -1)
        self.position[at[0]] = np.arange(at[0].size)

        def corrected(p: FloatArray) -> FloatArray:
            ones = np.ones(p.size, np.int64)
            return adjusted(p, ones, (p.size,), _correction(config), 1, len(config.metric))

        smallest, is_better = config.used_min_slice_size, metric(metric_name).higher_is_better
        large = (self.now["n"] >= smallest) & (self.then["n"] >= smallest)
        self.delta, self.value = (
            _Tested(
                tuple(self.now[name] for name in estimates),
                tuple(self.then[name] for name in estimates),
                config.used_alpha,
                corrected,
                is_better,
                large,
            )
            for estimates in (DELTA, VALUE)
        )
        is_now, is_then = self.now["significant"], self.then["significant"]
        in_now, in_then = (np.isin(self.ids, [*one]) for one in (reported_now, reported_then))
        # Significant slices that another one explains are not reported, and not news either.
        self.new, self.gone = is_now & ~is_then & in_now, is_then & ~is_now & in_then
        self.stays = is_now & is_then
        self.is_listed = self.delta.significant | self.value.significant | in_now | in_then
        self.unmatched = int(np.count_nonzero(in_then & (self.now["n"] < 0)))

    def counts(self) -> MetricSince:
        new, gone = (int(np.count_nonzero(slices)) for slices in (self.new, self.gone))
        of_tests = self.delta.counts() | self.value.counts("value_")
        return MetricSince(metric=self.metric, new=new, gone=gone, **of_tests)

    def slices(self, results: Results, most: int) -> Iterator[SinceSlice]:
        """Yield the first listed slices: the worst first, then new, gone, better and unchanged ones."""
        delta, value = self.delta, self.value
        kinds = [
            *(delta.significant & delta.worse, self.new, self.gone, delta.significant),
            *(value.significant & value.worse, value.significant),
        ]
        kind = np.select(kinds, range(len(kinds)), len(kinds))
        p = np.select([delta.significant, value.significant], [delta.found.p, value.found.p], 1.0)
        listed = np.flatnonzero(self.is_listed)
        listed = listed[np.lexsort((p[listed], kind[listed]))][:most]
        like = self._like(results, listed[kind[listed] < len(kinds)], kind)
        unnamed = np.array([at for at in listed.tolist() if self.ids[at] not in self.known], int)
        keys = results.keys[self.position[unnamed]]
        texts, predicates = (
            dict(zip(unnamed.tolist(), of(keys).to_pylist(), strict=True))
            for of in (results.names.texts, results.names.predicates)
        )
        states = [self.new[listed], self.gone[listed], self.stays[listed]]
        status: list[Any] = np.select(states, ["new", "gone", "stays"], "neither").tolist()
        for at, state in zip(listed.tolist(), status, strict=True):
            predicate: Predicate | None = None
            if at in texts:
                name, text = texts[at], predicates[at]
                if text is not None:
                    predicate = Predicate.model_validate_json(text)
            else:
                known = self.known[self.ids[at]]
                name, predicate = known.name, known.predicate
            now, then = (_moment(run, at) for run in (self.now, self.then))
            change = delta.at(at)
            differs: dict[str, Any] = {} if change is None else vars(change)
            yield SinceSlice(
                slice_id=str(self.ids[at]),
                name=name,
                metric=self.metric,
                predicate=predicate,
                status=state,
                now=now,
                then=then,
                missing=None if now and then else self._missing(predicate, is_now=now is None),
                **differs,
                value_change=value.at(at),
                like=like.get(at),
            )

    def _like(self, results: Results, changed: IntArray, kind: IntArray) -> dict[int, str]:
        """Return of changed slices, the surest first, the id of the first that changed alike and holds mostly the same examples."""
        changed = changed[self.position[changed] >= 0][:_MOST_HELD_AGAINST]
        if changed.size < 2:
            return {}
        prepared = results.prepared
        keys = results.keys[self.position[changed]]
        scaling = without_buckets(prepared.scaling)
        every = np.ones((1, prepared.space.cells), np.bool_)
        counting = CountListed(keys, prepared.lattice, scaling, every, keys.size, sums_known=True)
        stage, seconds = f"since-{results.config.metric.index(self.metric)}", keys.size * _PER_SLICE
        found = prepared.scan(stage, counting, seconds)
        both = np.sum([part["both"] for part in found], axis=0).reshape(keys.size, keys.size)
        sizes = np.diag(both)
        mostly = both >= _MOSTLY * np.minimum(sizes[:, None], sizes)
        mostly &= kind[changed][:, None] == kind[changed]
        first, like = np.zeros(keys.size, bool), {}
        for place, at in enumerate(changed.tolist()):
            above = np.flatnonzero(first[:place] & mostly[place, :place])
            if above.size:
                like[at] = str(self.ids[changed[above[0]]])
            first[place] = not above.size
        return like

    def _missing(self, predicate: Predicate | None, *, is_now: bool) -> str:
        """Return why a slice is in one of the runs only."""
        both = (self.document, self.earlier.document)
        when, (document, other) = ("now", both) if is_now else ("then", both[::-1])
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


def _spread(run: Columns, places: IntArray, size: int) -> Columns:
    """Return the columns of a run with its slices at other places; n is -1 where it has none."""
    columns = {}
    for name, empty in {"n": -1, "significant": False}.items() | dict.fromkeys(
        COLUMNS[2:-1], np.nan
    ).items():
        columns[name] = np.full(size, empty)
        columns[name][places] = run[name]
    return columns


def _moment(run: Columns, at: int) -> Moment | None:
    """Return what stands in the document of a slice of a run; None where the run has no such slice."""
    if run["n"][at] < 0:
        return None
    value, low, high = (run[name][at] for name in VALUE)
    return Moment(
        n=int(run["n"][at]),
        value=finite(value),
        value_interval=estimate(value, low, high) if np.isfinite(low + high) else None,
        delta=estimate(*(run[name][at] for name in DELTA)),
        p_adjusted=finite(run["q_value"][at]),
        significant=bool(run["significant"][at]),
    )


def _warnings(
    config: RunConfig,
    earlier: BaselineRun,
    document: SearchChangeList,
    listing: _Listing,
    overall: Sequence[OverallSince],
    counts: Sequence[MetricSince],
) -> Iterator[str]:
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
    is_selected = not earlier.has_all or then.search.saved_slices == "significant"
    if then.check is None and is_selected:
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
            f"{listing.unmatched:,} slices that were reported then are not comparable: "
            f"{', '.join(cut[:_MOST_NAMED])}{more} were binned differently; --domains "
            f"{earlier.uri} uses the earlier bins and values."
        )


def _overall_since(
    config: RunConfig, then: SearchChangeList, now: SearchChangeList, metrics: Collection[str]
) -> tuple[OverallSince, ...]:
    """Return the metrics over all examples then and now; values, and deltas of two models, are one family of tests."""
    of_all = [{change.metric: change for change in run.global_} for run in (then, now)]
    pairs = [(of_all[0][name], of_all[1][name]) for name in metrics]
    is_better = np.array([metric(name).higher_is_better for name in metrics] * 2)
    tested = _Tested(
        _estimates([after.after for _, after in pairs] + [after.delta for _, after in pairs]),
        _estimates([before.after for before, _ in pairs] + [before.delta for before, _ in pairs]),
        config.used_alpha,
        partial(adjusted_overall, config),
        is_better,
    )
    found = []
    for number, (before, after) in enumerate(pairs):
        value, delta = tested.at(number), tested.at(number + len(pairs))
        reason = None
        if value is None or (delta is None and config.comparison == "baseline"):
            reason = "one of the runs has no interval for it"
            if config.group:
                reason = "examples are grouped, and only slices are resampled by groups"
            for when, change in (("now", after), ("then", before)):
                if change.after.value is None:
                    reason = f"{change.metric} was undefined {when}"
        found.append(
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
                reason=reason,
            )
        )
    return tuple(found)


def _estimates(estimates: Sequence[Estimate | None]) -> tuple[FloatArray, ...]:
    """Return numbers and the ends of their intervals; NaN for those without."""
    rows = [(one.value, one.lo, one.hi) if one else (None,) * 3 for one in estimates]
    columns = np.array(rows, np.float64).T
    return tuple(np.where(np.isnan(columns).any(axis=0), np.nan, columns))
