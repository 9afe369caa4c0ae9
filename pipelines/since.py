"""``--since``: what is new, gone, worse or better than in an earlier run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.difference import difference
from slicebeam.metrics.multiplicity import adjusted
from slicebeam.metrics.registry import metric
from slicebeam.pipelines import changelist as doc
from slicebeam.pipelines.changelist_discovery import PredicateDefinition
from slicebeam.pipelines.changelist_files import TABLE
from slicebeam.pipelines.changelist_parts import Estimate, Predicate
from slicebeam.pipelines.drift import is_carried_on, why_absent
from slicebeam.pipelines.earlier_run import Measured
from slicebeam.pipelines.results import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.difference import Difference
    from slicebeam.metrics.multiplicity import Correction
    from slicebeam.pipelines.earlier_run import Earlier
    from slicebeam.pipelines.results import Results
    from slicebeam.pipelines.run_config import RunConfig
    from slicebeam.pipelines.slices_table import SliceNames

MOST_LISTED = 1000
_MOST_NAMED = 5

_WITHIN: dict[Correction, Correction] = {"fdr-level": "bh", "fwer-tarone": "fwer-level"}


def _of_results(results: Results, names: SliceNames) -> Measured:
    first = results.metrics[0]
    return Measured(
        names.ids(results.keys).to_numpy(zero_copy_only=False).astype(str),
        results.sizes,
        first.value,
        first.delta,
        first.low,
        first.high,
        first.q,
        first.significant,
    )


@dataclass(frozen=True)
class _Compared:
    """The slices of both runs: positions in each, and the test of their difference [matched]."""

    now: NDArray[np.int64]
    then: NDArray[np.int64]
    difference: Difference
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]

    @property
    def tests(self) -> int:
        """How many slices were compared."""
        return int(np.count_nonzero(~np.isnan(self.difference.p)))


def compare_runs(
    config: RunConfig,
    earlier: Earlier,
    document: doc.SearchChangeList,
    results: Results,
    names: SliceNames,
) -> doc.Since:
    """Return what changed since an earlier run.

    A slice is compared where both runs tested it: the difference of its two deltas, corrected for
    all slices that are compared.
    """
    now, then = _of_results(results, names), earlier.measured
    compared = _compared(config, now, then)
    own = metric(config.metric[0])
    worse = (compared.difference.value > 0) != own.higher_is_better
    changed = {
        "worse": compared.significant & worse,
        "better": compared.significant & ~worse,
    }
    listing = _Listing(config, earlier, document, now, compared, worse)
    slices = listing.slices(results, names)
    counts = {name: int(np.count_nonzero(mask)) for name, mask in changed.items()}
    counts |= {status: listing.count(status) for status in ("new", "gone")}
    date = f"{earlier.document.created_at:%Y-%m-%d %H:%M} UTC"
    summary = (
        f"Since {date}: {counts['new']:,} new, {counts['gone']:,} gone, {counts['worse']:,} worse, "
        f"{counts['better']:,} better; {compared.tests:,} slices compared."
    )
    return doc.Since(
        uri=earlier.uri,
        changelist_id=earlier.document.changelist_id,
        created_at=earlier.document.created_at,
        n=earlier.document.dataset.n,
        read_from="slices.parquet" if earlier.has_all else "changelist.json",
        metric=config.metric[0],
        summary=summary,
        compared=compared.tests,
        corrected_for=_sentence(config, compared.tests),
        new=counts["new"],
        gone=counts["gone"],
        worse=counts["worse"],
        better=counts["better"],
        warnings=tuple(_warnings(config, earlier, document, listing)),
        slices=slices,
    )


def _compared(config: RunConfig, now: Measured, then: Measured) -> _Compared:
    _, at_now, at_then = np.intersect1d(now.ids, then.ids, assume_unique=True, return_indices=True)
    smallest = config.used_min_slice_size
    large = (now.n[at_now] >= smallest) & (then.n[at_then] >= smallest)

    def estimates(one: Measured, at: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
        return tuple(
            np.where(large, values[at], np.nan) for values in (one.delta, one.low, one.high)
        )

    delta_now, low_now, high_now = estimates(now, at_now)
    delta_then, low_then, high_then = estimates(then, at_then)
    found = difference(
        (delta_now, low_now, high_now), (delta_then, low_then, high_then), CONFIDENCE
    )
    tested = np.flatnonzero(~np.isnan(found.p))
    q = np.full(found.p.shape, np.nan)
    # One family: a slice is compared whatever was significant, so that nothing selected it.
    correction = _WITHIN.get(config.used_correction, config.used_correction)
    ones = np.ones(tested.size, np.int64)
    q[tested] = adjusted(found.p[tested], ones, (tested.size,), correction, 1)
    return _Compared(at_now, at_then, found, q, q <= config.used_alpha)


def _sentence(config: RunConfig, tests: int) -> str:
    correction = _WITHIN.get(config.used_correction, config.used_correction)
    if correction == "none":
        return "Exploratory: nothing was corrected for having compared many slices."
    if correction == "fwer-level":
        return (
            f"With probability {1 - config.used_alpha:.0%} none of the slices called worse or better is "
            f"the same as then (Bonferroni over {tests:,} slices)."
        )
    name = {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli"}[correction]
    return (
        f"Of the slices called worse or better at most {config.used_alpha:.0%} are expected to be the "
        f"same as then ({name} over {tests:,} slices)."
    )


class _Listing:
    """The slices that the document lists: which, in which order, and what it says of each."""

    def __init__(
        self,
        config: RunConfig,
        earlier: Earlier,
        document: doc.SearchChangeList,
        now: Measured,
        compared: _Compared,
        worse: NDArray[np.bool_],
    ) -> None:
        self.config, self.earlier, self.document = config, earlier, document
        self.now, self.then, self.compared, self.worse = now, earlier.measured, compared, worse
        self.reported_now = {one.slice_id: one for one in document.slices}
        self.reported_then = {one.slice_id: one for one in earlier.document.slices}
        changed = np.flatnonzero(compared.significant)
        changed_ids = now.ids[compared.now[changed]].tolist()
        self.changed = dict(zip(changed_ids, changed.tolist(), strict=True))
        wanted = list(dict.fromkeys([*self.changed, *self.reported_now, *self.reported_then]))
        self.at_now, self.at_then = (_positions(one.ids, wanted) for one in (now, self.then))
        self.status = {one: self._status(one) for one in wanted}
        self.unmatched = [one for one in self.reported_then if one not in self.at_now]

    def count(self, status: str) -> int:
        """Return how many slices have a status."""
        return sum(1 for one in self.status.values() if one == status)

    def _status(self, slice_id: str) -> str:
        now = slice_id in self.at_now and bool(self.now.significant[self.at_now[slice_id]])
        then = slice_id in self.at_then and bool(self.then.significant[self.at_then[slice_id]])
        # Significant slices that another one explains are not reported, and not news either.
        if now and not then and slice_id in self.reported_now:
            return "new"
        if then and not now and slice_id in self.reported_then:
            return "gone"
        return "stays" if now and then else "neither"

    def slices(self, results: Results, names: SliceNames) -> tuple[doc.SinceSlice, ...]:
        """Return what changed, the worst first, then what is new, gone, better and the same."""
        found = self.compared.difference
        places = np.full(self.now.ids.size, -1, np.int64)
        places[self.compared.now] = np.arange(self.compared.now.size)

        def rank(slice_id: str) -> tuple[int, float, str]:
            at = self.changed.get(slice_id)
            kind = {"new": 1, "gone": 2}.get(self.status[slice_id], 4)
            p = 1.0
            if at is not None:
                kind = 0 if self.worse[at] else min(kind, 3)
                p = float(found.p[at])
            return kind, p, slice_id

        wanted = sorted(self.status, key=rank)[:MOST_LISTED]
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
    ) -> doc.SinceSlice:
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
        if place >= 0 and not np.isnan(self.compared.difference.p[place]):
            value, low, high, p = (float(one[place]) for one in self.compared.difference)
            changed = bool(self.compared.significant[place])
            direction = "degraded" if self.worse[place] else "improved"
            facts = {
                "difference": Estimate(value=value, lo=low, hi=high, confidence=CONFIDENCE),
                "p_value": p,
                "p_adjusted": float(self.compared.q[place]),
                "significant": changed,
                "direction": direction if value else "none",
            }
        return doc.SinceSlice(
            slice_id=slice_id,
            name=name,
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
            return f"the earlier document does not list it, and its {TABLE} is not beside it"
        domains, other = (
            {domain.name: domain for domain in one.dataset.domains}
            for one in (document, self.document if when == "then" else self.earlier.document)
        )
        for condition in () if predicate is None else predicate.all:
            if condition.field not in domains:
                return f"{when} {condition.field!r} was no feature"
            own = domains[condition.field]
            if condition not in own.singletons:
                theirs = other[condition.field]
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


def _warnings(
    config: RunConfig, earlier: Earlier, document: doc.SearchChangeList, listing: _Listing
) -> Iterator[str]:
    then = earlier.document
    if then.dataset.fingerprint == document.dataset.fingerprint:
        yield "Both runs are of the very same examples and predictions: nothing can have changed."
    chosen = then.check is None and (
        not earlier.has_all or then.search.saved_slices == "significant"
    )
    if chosen:
        yield (
            "Only slices that were significant then are compared: chosen for being extreme, some look "
            f"better now by chance alone. Keep {TABLE} beside changelist.json, of all tested slices."
        )
    elif (
        document.check is not None
        and then.check is None
        and document.check.changelist_id == then.changelist_id
    ):
        yield (
            "The slices were chosen for being extreme in the very run that they are compared with: "
            "some look better now by chance alone. Compare with a run on other data."
        )
    if document.check is None and document.search.saved_slices == "significant":
        yield "Of so many slices only those that are significant now, and the singletons, are compared."
    for key in ("test", "alpha", "correction", "min_slice_size"):
        before, after = then.provenance.config.get(key), config.options_used().get(key)
        if before != after:
            yield f"{key} was {before} then and is {after} now, so that other slices are significant."
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
            f"{', '.join(cut[:_MOST_NAMED])}{more} were cut otherwise; --domains {earlier.uri} takes "
            "the bins and values of then."
        )
