"""What the page shows first of a document: the verdict, the findings, and what is to be known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.show.result_notes import notes
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.since import Since, SinceSlice
    from slicebeam.pipelines.changelist.slices import Slice

# Of a metric without findings, the slices that are shown in their place.
_MOST_WORST = 10
# Slices that changed since an earlier run, of those that the document has.
_MOST_CHANGED = 100


def overview_of(document: ChangeList, left_out: Sequence[str]) -> dict[str, Any]:
    """Return the content of the first view as JSON values; `Overview` in ``model.ts`` has its types.

    Parameters
    ----------
    left_out : what the page has not, in sentences
    """
    worst = {one.key: _worst(document, one.key) for one in document.metrics}
    shown = set(shown_slices(document))
    testing = document.testing
    content: dict[str, Any] = {
        "title": document.title,
        "summary": document.summary,
        "command": document.provenance.command,
        "tool_version": document.provenance.tool_version,
        "created_at": document.created_at.isoformat(),
        "revision": document.revision,
        "dataset": {
            "name": document.dataset.name,
            "n": document.dataset.n,
            "fingerprint": document.dataset.fingerprint,
        },
        "models": [{"role": one.role, "name": one.name} for one in document.models],
        "comparison": document.comparison.kind,
        "metrics": [one.model_dump(mode="json") for one in document.metrics],
        "global": [one.model_dump(mode="json", exclude_none=True) for one in document.global_],
        "tests": [] if testing is None else [_plain(one) for one in testing.metrics],
        "findings": [_plain(one) for one in document.findings],
        "finding_models": [_plain(one) for one in document.finding_models],
        "worst": worst,
        "slices": [_slice(one) for one in document.slices if one.slice_id in shown],
        "notes": list(_notes(document)),
        "views": [name for name, section in _sections(document) if section],
        "left_out": list(left_out),
    }
    if testing is not None:
        content["alternative"] = testing.alternative
    if document.since is not None:
        content["since"] = _since(document.since)
    return content


def shown_slices(document: ChangeList) -> list[str]:
    """Return the ids of the slices of the first view: the findings, or what is in their place."""
    worst = [i for one in document.metrics for i in _worst(document, one.key)]
    return list(dict.fromkeys([*(one.slice_id for one in document.findings), *worst]))


def _sections(document: ChangeList) -> Iterator[tuple[str, bool]]:
    yield "slices", bool(document.slices) or document.search is not None
    yield "clusters", document.discovery is not None
    yield "shift", document.shift is not None


def _since(since: Since) -> dict[str, Any]:
    changed = [one for one in since.slices if _has_changed(one)]
    rows = [one.model_dump(mode="json", exclude_none=True) for one in changed[:_MOST_CHANGED]]
    return {
        "summary": since.summary,
        "corrected_for": since.corrected_for,
        "metric": since.metric,
        "slices": rows,
        "more": len(changed) - len(rows),
    }


def _has_changed(one: SinceSlice) -> bool:
    value = one.value_change
    return one.status in ("new", "gone") or one.significant or bool(value and value.significant)


def _plain(part: Any) -> dict[str, Any]:
    # A missing end of an interval is null, which has a place of its own in a pair.
    dumped: dict[str, Any] = part.model_dump(mode="json")
    return {name: value for name, value in dumped.items() if value is not None}


def _slice(one: Slice) -> dict[str, Any]:
    conditions = []
    if isinstance(one.definition, PredicateDefinition):
        for part in one.definition.predicate.all:
            value = tuple(part.value) if isinstance(part.value, list) else part.value
            conditions.append(str(Singleton(part.field, part.op, value)))
    return {
        "slice_id": one.slice_id,
        "name": one.name,
        "conditions": conditions,
        "share": one.size.share,
        "n": one.size.n,
        "changes": [change.model_dump(mode="json", exclude_none=True) for change in one.changes],
    }


def _worst(document: ChangeList, metric: str) -> list[str]:
    """Return the ids of the slices in place of findings: those with a place, the worst first."""
    if any(one.metric == metric for one in document.findings):
        return []
    placed = [
        (change.place, one.slice_id)
        for one in document.slices
        for change in one.changes
        if change.metric == metric and change.significant and change.place is not None
    ]
    return [slice_id for _, slice_id in sorted(placed)[:_MOST_WORST]]


def _notes(document: ChangeList) -> Iterator[str]:
    if isinstance(document, SearchChangeList):
        yield from notes(document)
        yield from document.testing.unseen
    if document.since is not None:
        yield from document.since.warnings
    if document.shift is not None:
        yield document.shift.corrected_for
        yield from document.shift.warnings
