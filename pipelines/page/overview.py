"""What the page shows first of a document: the verdict, the findings, and what is to be known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.search.summary import fall_text, lead
from slicebeam.pipelines.show.result_notes import coverage_lines, notes
from slicebeam.pipelines.show.worst_slices import shown_slices, slices_in_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.changes import Difference, Model, Since, SinceSlice
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.transforms.encode.definitions import Predicate
    from slicebeam.transforms.encode.predicates import Singleton

# Slices that changed since an earlier run, of those that the document has.
_MOST_CHANGED = 100
_KINDS = ("worse", "better", "new", "gone")


def overview_of(document: ChangeList, left_out: Sequence[str]) -> dict[str, Any]:
    """Return the content of the first view as JSON values; `Overview` in ``model.ts`` has its types."""
    shown = set(shown_slices(document))
    testing = document.testing
    content: dict[str, Any] = {
        "title": document.title,
        "summary": document.summary,
        "lead": lead(document).rstrip(),
        "command": document.provenance.command,
        "tool_version": document.provenance.tool_version,
        "created_at": document.created_at.isoformat(),
        "revision": document.revision,
        "dataset": {
            "name": document.dataset.name,
            "n": document.dataset.n,
            "fingerprint": document.dataset.fingerprint,
            "label": document.dataset.label_field,
        },
        "models": [_model(one) for one in document.models],
        "comparison": document.comparison.kind,
        "metrics": [one.model_dump(mode="json") for one in document.metrics],
        "global": [one.model_dump(mode="json", exclude_none=True) for one in document.global_],
        "tests": [] if testing is None else [_plain(one) for one in testing.metrics],
        "findings": [_plain(one) for one in document.findings],
        "finding_models": [_plain(one) for one in document.finding_models],
        "worst": {metric.key: slices_in_place(document, metric.key) for metric in document.metrics},
        "slices": [_slice(one) for one in document.slices if one.slice_id in shown],
        "notes": list(_notes(document)),
        "views": [name for name, section in _sections(document) if section],
        "left_out": list(left_out),
    }
    if testing is not None:
        content["alternative"] = testing.alternative
    if document.gate is not None:
        content["gate"] = {
            **_plain(document.gate),
            "reasons": sorted(document.gate.reasons, key=lambda reason: _doubt(document, reason)),
        }
    if document.known:
        content["known"] = [{**_plain(entry), "line": entry.line()} for entry in document.known]
    if document.earlier_data is not None:
        content["earlier_data"] = _plain(document.earlier_data)
    if document.since is not None:
        content["since"] = _since(document.since)
    return content


def _doubt(document: ChangeList, reason: str) -> float:
    """Return the smallest p-value behind a reason for which a run fails; 0 for a threshold that is not met."""
    doubts = [
        change.p_value
        for change, fall in zip(document.global_, map(fall_text, document.global_), strict=True)
        if change.p_value is not None and fall is not None and reason == fall
    ]
    if document.earlier_data is not None:
        doubts += [
            drift.p_adjusted
            for drift in document.earlier_data.drift
            if reason.startswith(f"{drift.feature} has drifted ")
        ]
    doubts += [
        change.p_adjusted
        for listed in document.slices
        for change in listed.changes
        if change.p_adjusted is not None
        and change.direction == "degraded"
        and reason.startswith(f"{change.metric} is significantly worse")
    ]
    return min(doubts, default=0.0)


def _sections(document: ChangeList) -> Iterator[tuple[str, bool]]:
    yield "slices", bool(document.slices) or document.search is not None
    yield "clusters", document.discovery is not None
    yield "shift", document.shift is not None


def _since(since: Since) -> dict[str, Any]:
    changed = sorted(
        (one for one in since.slices if _kind(one)), key=lambda one: _KINDS.index(str(_kind(one)))
    )
    return {
        "created_at": since.created_at.isoformat(),
        "overall": [_plain(one) for one in since.overall],
        "counts": [_plain(one) for one in since.metrics],
        "corrected_for": since.corrected_for,
        "metric": since.metric,
        "slices": [since_slice(one) for one in changed[:_MOST_CHANGED]],
        "more": max(0, len(changed) - _MOST_CHANGED),
    }


def _kind(one: SinceSlice) -> str | None:
    """Return how a slice changed significantly, or else whether it became significant or ceased to be."""
    own = one.value_change
    change: SinceSlice | Difference | None = own if own is not None and own.significant else None
    if one.significant:
        change = one
    if change is not None:
        return "better" if change.direction == "improved" else "worse"
    return one.status if one.status in ("new", "gone") else None


def since_slice(one: SinceSlice) -> dict[str, Any]:
    """Return how a slice changed as JSON values; `SinceSlice` in ``model.ts`` has its types."""
    shown = one.model_dump(mode="json", exclude_none=True, exclude={"predicate"})
    return {**shown, "name": _whole_name(one.name, one.predicate), "kind": _kind(one)}


def _plain(part: Any) -> dict[str, Any]:
    # A missing end of an interval is null, which has a place of its own in a pair.
    dumped: dict[str, Any] = part.model_dump(mode="json")
    return {name: value for name, value in dumped.items() if value is not None}


def _slice(one: Slice) -> dict[str, Any]:
    found = None if one.found is None else one.found.phrases
    return {
        "slice_id": one.slice_id,
        "name": _whole_name(one.name, one.predicate),
        "conditions": [chip(part) for part in one.conditions],
        "phrases": [phrase.text for phrase in found or ()],
        "share": one.size.share,
        "n": one.size.n,
        "changes": [change.model_dump(mode="json", exclude_none=True) for change in one.changes],
    }


def chip(condition: Singleton) -> dict[str, Any]:
    """Return a condition as a chip shows it: its exact text, and its feature and value as a reader says them."""
    text, value = condition.whole_text(), condition.value
    if not text.startswith(f"{condition.field} "):
        # The name is quoted.
        return {"text": text}
    shown = text.removeprefix(f"{condition.field} ").removeprefix("= ")
    if condition.op == "between" and all(type(edge) is int for edge in value):
        low, high = value[0], value[1] - 1
        shown = str(low) if low == high else f"{low}–{high}"
    elif condition.op == ">=" and type(value) is int:
        shown = f"{value} or more"
    elif condition.op == "<" and type(value) is int:
        shown = f"{value - 1} or less"
    return {"text": text, "parts": [condition.field, shown]}


def _model(one: Model) -> dict[str, Any]:
    columns = [one.prediction_field, one.score_field, one.loss_field]
    return {"role": one.role, "name": one.name, "columns": [name for name in columns if name]}


def _whole_name(name: str, predicate: Predicate | None) -> str:
    """Return the name that a person gave, or the conditions without anything cut off."""
    if name != str(predicate or ""):
        return name
    return " & ".join(one.whole_text() for one in (predicate.singletons if predicate else ()))


def _notes(document: ChangeList) -> Iterator[str]:
    if isinstance(document, SearchChangeList):
        yield from coverage_lines(document)
        yield from notes(document)
        yield from document.testing.unseen
    if document.since is not None:
        yield from document.since.warnings
    if document.shift is not None:
        yield document.shift.corrected_for
        yield from document.shift.warnings
