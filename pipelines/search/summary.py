"""From a document to words: what was found, and its gate, which alone decides on PASS or FAIL and the exit code.

All that show the result, and the exit code, repeat the document's ``gate``; docs/how-to/scheduled.md has its rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from slicebeam.metrics.errors import counted
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.changelist.changes import LARGE_DRIFT, NO_DRIFT, has_fallen
from slicebeam.pipelines.changelist.document import ChangeList
from slicebeam.pipelines.changelist.known import known_in_run, known_slices, unknown_count
from slicebeam.pipelines.changelist.testing import Gate, MetricTests, Testing, Tolerated
from slicebeam.pipelines.run.open_run import sealed
from slicebeam.transforms.storage.storage import StoragePath, written_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.kinds import Correction
    from slicebeam.metrics.measures.metric import Metric
    from slicebeam.pipelines.changelist.changes import Change, Difference, OverallSince
    from slicebeam.pipelines.changelist.parts import Estimate
    from slicebeam.pipelines.changelist.shifted import ShiftFocus
    from slicebeam.pipelines.changelist.testing import KnownSlice
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.results import FindingList

Document = TypeVar("Document", bound=ChangeList)

PASSED, FAILED, UNTESTED = 0, 1, 2
# Numbers between these are written out, without decimals.
_LONG, _TOO_LONG = 1e4, 1e12
_SMALLEST_SHOWN = 1e-300


def movement_text(change: Change, counted: str | None) -> str | None:
    """Return how the examples changed between two models, in a sentence; None where that is not known."""
    if change.inconsistency is None:
        return None
    spread = f"inconsistency {change.inconsistency:.3g}"
    if change.improved is None or change.degraded is None:
        return f"The change of an example has a standard deviation of {change.inconsistency:.3g} (inconsistency)."
    improved, degraded = change.improved.share.value or 0.0, change.degraded.share.value or 0.0
    return f"{improved:.1%} of {counted or 'the examples'} improved, {degraded:.1%} degraded ({spread})."


def summary(
    config: RunConfig,
    prepared: EncodedDataset,
    overall: tuple[Change, ...],
    tests: Testing,
    lists: Sequence[FindingList],
) -> str:
    """Return the result in plain words, metric by metric."""
    sentences: list[str] = []
    for sentence, change, tested in zip(
        overall_sentences(overall), overall, tests.metrics, strict=True
    ):
        sentences.append(sentence)
        moved = movement_text(change, metric(change.metric).counted)
        sentences += [] if moved is None else [moved]
        if change.after.value is None or (change.before and change.before.value is None):
            sentences.append(f"It could not be tested: {tested.blind}.")
            continue
        of_metric = [list_ for list_ in lists if list_.model.metric == tested.metric]
        sentences.append(_found(config, prepared, tested, of_metric))
    return " ".join(sentences)


def _found(
    config: RunConfig, prepared: EncodedDataset, tests: MetricTests, lists: Sequence[FindingList]
) -> str:
    """Return how many slices are significant in a metric, or what its findings hold, in a sentence."""
    if config.comparison == "baseline":
        what = {"worse": "degraded", "better": "improved", "both": "changed"}[config.alternative]
    else:
        what = {"worse": "worse", "better": "better", "both": "different"}[config.alternative]
    number, reported = tests.significant, tests.reported
    are = "are" if number > 1 else "is"
    if tests.blind is not None:
        text = "No slice could be tested"
    elif prepared.given is None:
        text = f"No slice is significantly {what}"
        if number:
            text = f"{counted(number, 'slice')} {are} significantly {what}"
    elif reported < 2:
        text = "There was no slice to check"
        if reported:
            text = f"The checked slice is {'' if number else 'not '}significantly {what}"
    else:
        how_many = f"{number:,}" if number else "None"
        text = f"{how_many} of the {reported:,} checked slices {are} significantly {what}"
    possible = any(list_.model.stop != "not possible" for list_ in lists)
    if prepared.given is None and number and possible:
        # What the findings of both sides hold, or of the better one, is no part of a sum.
        listed = [list_ for list_ in lists if list_.findings]
        findings = counted(sum(len(list_.findings) for list_ in listed), "finding")
        is_sum = len(listed) == 1 and listed[0].model.direction == "worse"
        share = listed[0].findings[-1].held_share if is_sum else None
        text = f"{text}; {findings}"
        if share is not None:
            hold = "holds" if len(listed[0].findings) == 1 else "hold"
            text = f"{findings} {hold} {share:.0%} of {listed[0].model.whole}"
    return f"{text}."


def overall_sentences(overall: Sequence[Change]) -> list[str]:
    """Return each metric over all examples, of two models both values, in a sentence."""
    return [
        f"{_overall(change)}{'' if place else f' over {change.n:,} examples'}."
        for place, change in enumerate(overall)
    ]


def promise(
    correction: Correction, alpha: float, over: str, among: str, no_slice: str, false: str
) -> str:
    """Return what a correction over some tests promises, as a sentence."""
    if correction == "fwer-level":
        return f"With probability {1 - alpha:.0%} {no_slice} is {false} (Bonferroni {over})."
    name = "Benjamini-Yekutieli" if correction == "by" else "Benjamini-Hochberg"
    return f"{among} at most {alpha:.0%} are expected to be {false} ({name} {over})."


def of_metrics(number: int) -> str:
    """Return what a correction promises of several metrics, as a sentence that follows another."""
    if number == 1:
        return ""
    return (
        f" That holds for the {number} metrics together: q-values are multiplied by their number."
    )


def shown(own: Metric, value: float | None) -> str:
    """Return a value of a metric as a reader sees it.

    >>> shown(metric("accuracy"), 0.8721), shown(metric("mean:price"), 189436.2)
    ('87.2%', '189,436')
    """
    if value is None:
        return "undefined"
    if _LONG <= abs(value) < _TOO_LONG:
        return f"{value:,.0f}"
    return f"{value:.1%}" if own.range == (0.0, 1.0) and own.name != "brier" else f"{value:.4g}"


def _overall(change: Change) -> str:
    own = metric(change.metric)
    text = f"{own.title} is {shown(own, change.after.value)}"
    return text if change.before is None else f"{text}, was {shown(own, change.before.value)}"


def change_text(one: Change) -> str:
    """Return how a metric over all examples differs between two models, in a few words."""
    before = None if one.before is None else one.before.value
    return f"{_from_to(one.metric, before, one.after.value)}{_tested_text(one.delta, one)}"


def overall_text(one: OverallSince) -> str:
    """Return how a metric over all examples changed, in a few words."""
    text = _from_to(one.metric, one.then.value, one.now.value)
    if one.value_change is not None:
        text += _tested_text(one.value_change.difference, one.value_change)
    if one.delta_now is not None and one.delta_then is not None:
        deltas = [
            "undefined" if delta.value is None else f"{delta.value:+.3f}"
            for delta in (one.delta_then, one.delta_now)
        ]
        text += f"; delta {deltas[0]} → {deltas[1]}"
        if one.delta_change is not None:
            text += _tested_text(one.delta_change.difference, one.delta_change)
    if one.reason is not None:
        text += f"; not tested: {one.reason}"
    return text


def _from_to(name: str, then: float | None, now: float | None) -> str:
    own = metric(name)
    return f"{own.title} over all examples {shown(own, then)} → {shown(own, now)}"


def verdict(change: Change | Difference, insignificant: str = "not significant") -> str:
    """Return whether a change is for the worse or the better, in words."""
    words = {"degraded": "significantly worse", "improved": "significantly better"}
    return words.get(change.direction, "the same") if change.significant else insignificant


def _tested_text(difference: Estimate | None, change: Change | Difference) -> str:
    if difference is None or difference.value is None:
        return ""
    p = ""
    if change.p_value is not None:
        # Of very small p-values no float holds the digits.
        is_shown = change.p_value > _SMALLEST_SHOWN
        p = f"p = {change.p_value:.2g}, " if is_shown else "p < 1e-300, "
    return f" ({difference.text('+.3f')}, {p}{verdict(change)})"


def gate_of(document: ChangeList, fail_on: str | None) -> Gate | None:
    """Return whether a run passes; None where there is no gate."""
    validation = document.validation
    missed = () if validation is None or validation.passed else validation.reasons()
    if fail_on is None:
        return None if validation is None else judged(None, missed)
    margins = _tolerated(document)
    drifted, unseen = [], []
    if fail_on in ("drift", "any"):
        tests = document.earlier_data.drift if document.earlier_data else ()
        unseen = [] if tests else [NO_DRIFT]
        drifted = [
            f"{test.feature} has drifted (population stability index {test.stability_index:.2f})"
            for test in tests
            if test.significant and test.stability_index >= LARGE_DRIFT
        ]
    if fail_on == "drift":
        return judged(fail_on, (*missed, *drifted), unseen)
    failures = (*falls(document), *missed, *_worse_slices(document, margins), *drifted)
    gate = judged(fail_on, failures, (*_untested(document), *unseen))
    if known := known_slices(document):
        gate = gate.model_copy(update={"known": len(known)})
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


def with_known(document: Document, entries: Sequence[KnownSlice]) -> Document:
    """Return a document that says what known slices are in it."""
    return document.model_copy(update={"known": known_in_run(document, entries)})


def judged_anew(
    document: Document, path: StoragePath, gate: Gate | None, entries: Sequence[KnownSlice] = ()
) -> Document:
    """Return a published document with the gate and known slices of this command, which replace its own."""
    run, before = document.provenance.run, document
    document = with_known(document, entries)
    if (gate, document.known) == (before.gate, before.known) or run is None:
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
    return "".join(f"{sentence}. " for sentence in sentences)


def falls(document: ChangeList) -> list[str]:
    """Return what is significantly worse over all examples, and by how much: metrics, or a focus."""
    if (focus := _focus(document)) is not None:
        return [focus.line()] if focus.significant and focus.direction == "degraded" else []
    margins = _tolerated(document)
    texts = (fall_text(one, margins.get(one.metric)) for one in document.global_)
    found = [text for text in texts if text is not None]
    if document.since is not None:
        found += [
            overall_text(one)
            for one in document.since.overall
            if has_fallen(one.value_change) or has_fallen(one.delta_change)
        ]
    return found


def _tolerated(document: ChangeList) -> dict[str, Tolerated]:
    tests = () if document.testing is None else document.testing.metrics
    return {test.metric: test.tolerated for test in tests if test.tolerated is not None}


def fall_text(change: Change, margin: Tolerated | None = None) -> str | None:
    """Return what is significantly worse, by more than its tolerance where it has one; None elsewhere."""
    if margin is None:
        return change_text(change) if has_fallen(change) else None
    if not margin.significant:
        return None
    return f"{change_text(change)}, by more than {margin.tolerance:g} (p = {margin.p_value:.2g})"


def _focus(document: ChangeList) -> ShiftFocus | None:
    return None if document.shift is None else document.shift.focus


def _worse_slices(document: ChangeList, margins: dict[str, Tolerated]) -> list[str]:
    if document.testing is None:
        # After a shift, the slices that the user named.
        changes = [slice_.changes[0] for slice_ in document.slices if has_fallen(slice_.changes[0])]
        counts = {changes[0].metric: len(changes)} if changes else {}
    else:
        counts = {one.metric: one.degraded for one in document.testing.metrics}
    counts |= {name: one.degraded for name, one in margins.items()}
    more = {name: f" by more than {one.tolerance:g}" for name, one in margins.items()}
    new = ""
    if document.known:
        new = " not known"
        counts = {name: unknown_count(document, name, count) for name, count in counts.items()}
    return [
        f"{name} is significantly worse{more.get(name, '')} on {counted(count, 'slice')}{new}"
        for name, count in counts.items()
        if count
    ]


def _untested(document: ChangeList) -> list[str]:
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
