"""``--fail-on worse``: from a document to PASS or FAIL, the exit code, and why.

| what the document says | exit code |
|---|---|
| a threshold of an EvalConfig is not met, with or without ``--fail-on`` | 1 |
| a metric is significantly worse on a slice, or over all examples than before or in the earlier run | 1 |
| else: some metric could not be tested on any slice, or something that may be worse could not | 2 |
| else | 0 |

A check of a run that reported no slice is not a failure: there is nothing to check. Nothing but
`with_gate` judges a run; all that show the result, and the exit code, repeat the document's ``gate``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from slicebeam.metrics.errors import OptionError, counted
from slicebeam.pipelines.changelist.document import ChangeList
from slicebeam.pipelines.changelist.earlier import LARGE_DRIFT
from slicebeam.pipelines.changelist.testing import Gate
from slicebeam.pipelines.run.open_run import sealed
from slicebeam.pipelines.search.summary import change_text, overall_text
from slicebeam.transforms.storage.storage import written_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.changes import Change, Difference
    from slicebeam.pipelines.changelist.shifted import ShiftFocus
    from slicebeam.pipelines.changelist.testing import Tolerated
    from slicebeam.transforms.storage.storage import StoragePath

Document = TypeVar("Document", bound=ChangeList)

PASSED, FAILED, UNTESTED = 0, 1, 2


def gate_of(document: ChangeList, fail_on: str | None) -> Gate | None:
    """Return whether a run passes; None where there is no gate."""
    validation = document.validation
    missed = () if validation is None or validation.passed else validation.reasons()
    if fail_on is None:
        return None if validation is None else judged(None, missed)
    margins = _tolerated(document)
    drifted = _drifted(document) if fail_on in ("drift", "any") else []
    if fail_on == "drift":
        return judged(fail_on, drifted)
    failures = (*falls(document), *missed, *_worse_slices(document, margins), *drifted)
    gate = judged(fail_on, failures, _untested(document))
    by_metric = ", ".join(f"{name} {one.tolerance:g}" for name, one in margins.items())
    return gate.model_copy(update={"tolerated": by_metric}) if margins else gate


def judged(fail_on: Any, failures: Sequence[str], untested: Sequence[str] = ()) -> Gate:
    """Return a gate that fails for what is worse, or else for what could not be tested."""
    code: Any = FAILED if failures else UNTESTED if untested else PASSED
    reasons = tuple(failures or untested)
    return Gate(fail_on=fail_on, passed=code == PASSED, exit_code=code, reasons=reasons)


def with_gate(document: Document, gate: Gate | None) -> Document:
    """Return a document whose summary begins with its gate, in place of what it began with."""
    body = document.summary.removeprefix(lead(document))
    changed = document.model_copy(update={"gate": gate})
    return changed.model_copy(update={"summary": f"{lead(changed)}{body}"})


def judged_anew(document: Document, path: StoragePath, gate: Gate | None) -> Document:
    """Return a published document with the gate of this command, which replaces it where that differs."""
    run = document.provenance.run
    if gate == document.gate or run is None:
        return document
    changed = sealed(with_gate(document, gate), run)
    with written_whole(path) as stream:
        stream.write(changed.to_json().encode("utf-8"))
    return changed


def lead(document: ChangeList) -> str:
    """Return how the summary of a document begins: its gate, or else what is worse over all examples."""
    if document.gate is not None:
        sentences = [document.gate.line()]
    else:
        # Of a focus the body says it.
        sentences = [] if _focus(document) is not None else falls(document)
    return "".join(f"{one}. " for one in sentences)


def falls(document: ChangeList) -> list[str]:
    """Return what is significantly worse over all examples, and by how much: metrics, or a focus."""
    if (focus := _focus(document)) is not None:
        return [focus.line()] if focus.significant and focus.direction == "degraded" else []
    margins = _tolerated(document)
    texts = (_overall_text(one, margins.get(one.metric)) for one in document.global_)
    found = [text for text in texts if text is not None]
    if document.since is not None:
        found += [
            overall_text(one)
            for one in document.since.overall
            if _has_fallen(one.value_change) or _has_fallen(one.delta_change)
        ]
    return found


def _tolerated(document: ChangeList) -> dict[str, Tolerated]:
    """Return where metrics are worse by more than is tolerated, by metric."""
    tests = () if document.testing is None else document.testing.metrics
    return {one.metric: one.tolerated for one in tests if one.tolerated is not None}


def _overall_text(change: Change, margin: Tolerated | None) -> str | None:
    """Return what is significantly worse, by more than its tolerance where it has one; None elsewhere."""
    if margin is None:
        return change_text(change) if _has_fallen(change) else None
    if not margin.significant:
        return None
    return f"{change_text(change)}, by more than {margin.tolerance:g} (p = {margin.p_value:.2g})"


def _focus(document: ChangeList) -> ShiftFocus | None:
    return None if document.shift is None else document.shift.focus


def _worse_slices(document: ChangeList, margins: dict[str, Tolerated]) -> list[str]:
    """Return on how many slices each metric is significantly worse."""
    if document.testing is None:
        # After a shift, the slices that the user named.
        changes = [one.changes[0] for one in document.slices if _has_fallen(one.changes[0])]
        counts = {changes[0].metric: len(changes)} if changes else {}
    else:
        counts = {one.metric: one.degraded for one in document.testing.metrics}
    counts |= {name: one.degraded for name, one in margins.items()}
    more = {name: f" by more than {one.tolerance:g}" for name, one in margins.items()}
    return [
        f"{name} is significantly worse{more.get(name, '')} on {counted(count, 'slice')}"
        for name, count in counts.items()
        if count
    ]


def _drifted(document: ChangeList) -> list[str]:
    """Return which features are distributed differently, and by enough."""
    if document.earlier_data is None:
        raise OptionError("--fail-on drift needs --baseline-data, the data to compare with")
    return [
        f"{one.feature} has drifted (population stability index {one.stability_index:.2f})"
        for one in document.earlier_data.drift
        if one.significant and one.stability_index >= LARGE_DRIFT
    ]


def _untested(document: ChangeList) -> list[str]:
    """Return what could not be tested, and why."""
    if document.testing is None:
        return []
    metrics = document.testing.metrics
    blind = {one.metric: one.blind for one in metrics if one.blind is not None}
    unseen = [f"cannot be judged: {one}" for one in document.testing.unseen]
    has_overall = any(one.p_value is not None and not one.reason for one in document.global_)
    if blind and len(blind) == len(metrics) and not has_overall and document.since is None:
        whys = list(dict.fromkeys(blind.values()))
        if len(whys) > 1:
            whys = [f"{name}: {why}" for name, why in blind.items()]
        return [f"nothing could be tested: {'; '.join(map(str, whys))}", *unseen]
    undefined = {one.metric for one in document.global_ if one.reason == blind.get(one.metric, "")}
    return [
        f"{name} could not be tested: {why}"
        if name in undefined
        else f"no slice could be tested for {name}: {why}"
        for name, why in blind.items()
    ] + unseen


def _has_fallen(change: Change | Difference | None) -> bool:
    """Return whether a change is significant, and for the worse."""
    return change is not None and change.significant and change.direction == "degraded"
