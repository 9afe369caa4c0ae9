"""What ``--json`` prints of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.search.movements import movement_facts
from slicebeam.pipelines.search.since_overall import overall_json
from slicebeam.pipelines.show.worst_slices import MOST_ROWS, reference_of, worst_slices

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.gate import Gate
    from slicebeam.pipelines.changelist.since import Since
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.run.published import Published


def summary_json(published: Published) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    document = published.changelist
    names = {one.slice_id: one.name for one in document.slices}
    overall = {one.metric: one for one in document.global_}
    return {
        "summary": document.summary,
        "gate": gate_json(document.gate),
        "changelist": str(published.changelist_path),
        "slices": str(published.slices_path),
        "examples": document.dataset.n,
        "tested": sum(document.testing.tested_per_level),
        "significant": document.testing.significant,
        "degraded": document.testing.degraded,
        "metrics": [
            {
                "metric": one.metric,
                "value": overall[one.metric].after.value,
                "reference": reference_of(overall[one.metric]),
                **movement_facts(overall[one.metric]),
                "tested": one.tested,
                "significant": one.significant,
                "degraded": one.degraded,
                "reported": one.reported,
                "blind": one.blind,
                "nearest": [miss.model_dump(mode="json") for miss in one.nearest],
                "noticeable": [fall.model_dump(mode="json") for fall in one.noticeable],
            }
            for one in document.testing.metrics
        ],
        "expected_false": document.testing.expected_false,
        "reported": document.search.reported,
        "strategy": document.search.strategy,
        "left_out": {column.name: column.reason for column in document.dataset.left_out},
        "hints": {hint.name: hint.reason for hint in document.dataset.hints},
        "worst": [
            _slice_json(one, change)
            for table in worst_slices(document)
            for one, change in table.rows
        ],
        "findings": [
            one.model_dump(mode="json") | {"slice": names.get(one.slice_id)}
            for one in document.findings
        ],
        "coverage": [one.model_dump(mode="json") for one in document.coverage],
        "parity": [one.model_dump(mode="json") for one in document.parity],
        "drift": list(document.dataset.drift),
        "warnings": list(document.testing.warnings),
        "explanation": list(published.explanation),
        "validation": None
        if document.validation is None
        else document.validation.model_dump(mode="json"),
    } | ({} if document.since is None else {"since": _since_json(document.since)})


def gate_json(gate: Gate | None) -> dict[str, Any] | None:
    """Return the gate of a document as it is there."""
    if gate is None:
        return None
    return gate.model_dump(mode="json", exclude=None if gate.tolerated else {"tolerated"})


def _since_json(since: Since) -> dict[str, Any]:
    names = ("summary", "changelist_id", "uri", "compared", "new", "gone", "worse", "better")
    facts: dict[str, Any] = {name: getattr(since, name) for name in names}
    facts["warnings"] = list(since.warnings)
    facts["overall"] = [overall_json(one) for one in since.overall]
    facts["metrics"] = [one.model_dump(mode="json") for one in since.metrics]
    facts["slices"] = [
        {
            "slice_id": one.slice_id,
            "slice": one.name,
            "metric": one.metric,
            "status": one.status,
            "value": None if one.now is None else one.now.value,
            "value_then": None if one.then is None else one.then.value,
            "value_significant": one.value_change is not None and one.value_change.significant,
            "delta": None if one.now is None else one.now.delta.value,
            "delta_then": None if one.then is None else one.then.delta.value,
            "difference": None if one.difference is None else one.difference.value,
            "q_value": one.p_adjusted,
            "significant": one.significant,
            "direction": one.direction,
        }
        for one in since.slices[:MOST_ROWS]
    ]
    return facts


def _slice_json(one: Slice, change: Change) -> dict[str, Any]:
    label = change.label or (one.refinement.label if one.refinement else None)
    delta = change.delta or Estimate()
    return {
        "slice_id": one.slice_id,
        "slice": one.name,
        "n": one.size.n,
        "metric": change.metric,
        "value": change.after.value,
        "reference": reference_of(change),
        **movement_facts(change),
        "delta": delta.value,
        "ci_low": delta.lo,
        "ci_high": delta.hi,
        "p_value": change.p_value,
        "q_value": change.p_adjusted,
        "significant": change.significant,
        "label": label,
        "phrases": [phrase.text for phrase in one.found.phrases] if one.found else [],
    }
