"""What a search found, in plain words, and how many examples changed between two models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import counted
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance.intervals import agresti_coull
from slicebeam.pipelines.changelist.changes import Moved
from slicebeam.pipelines.changelist.parts import CONFIDENCE, estimate, finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.kinds import Correction
    from slicebeam.metrics.measures.metric import Metric, Movement, Slices
    from slicebeam.pipelines.changelist.changes import Change, Difference, OverallSince
    from slicebeam.pipelines.changelist.parts import Estimate
    from slicebeam.pipelines.changelist.testing import MetricTests, Testing
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.finding_terms import FindingList


def movements(own: Metric, slices: Slices, stretch: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the fields of `Change` that say how examples changed; shares have intervals where ``stretch`` is 1."""
    found = own.movement(slices)
    if found is None:
        return [{}] * len(slices)
    columns = {
        "inconsistency": map(finite, found.inconsistency.tolist()),
        "improved": _moved(found.improved, found, stretch == 1.0),
        "degraded": _moved(found.degraded, found, stretch == 1.0),
    }
    return [dict(zip(columns, facts, strict=True)) for facts in zip(*columns.values(), strict=True)]


def _moved(
    counts: NDArray[np.int64] | None, found: Movement, independent: NDArray[np.bool_]
) -> list[Moved | None]:
    if counts is None or found.counted is None:
        return [None] * found.inconsistency.size
    ends = agresti_coull(counts, found.counted, CONFIDENCE)
    low, high = (np.where(independent, end, np.nan).tolist() for end in ends)
    rows = zip(counts.tolist(), found.counted.tolist(), low, high, strict=True)
    return [Moved(n=n, share=estimate(n / of, lo, hi)) if of else None for n, of, lo, hi in rows]


def movement_text(change: Change, counted: str | None) -> str | None:
    """Return how the examples changed between two models, in a sentence; None where that is not known."""
    if change.inconsistency is None:
        return None
    spread = f"inconsistency {change.inconsistency:.3g}"
    if change.improved is None or change.degraded is None:
        return f"The change of an example has a standard deviation of {change.inconsistency:.3g} (inconsistency)."
    improved, degraded = change.improved.share.value or 0.0, change.degraded.share.value or 0.0
    return f"{improved:.1%} of {counted or 'the examples'} improved, {degraded:.1%} degraded ({spread})."


# Numbers between these are written out, without decimals.
_LONG, _TOO_LONG = 1e4, 1e12
_SMALLEST_SHOWN = 1e-300


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
        found = _found(config, prepared, tested)
        of_metric = [one for one in lists if one.model.metric == tested.metric]
        possible = any(one.model.stop != "not possible" for one in of_metric)
        if possible and tested.significant and prepared.given is None:
            number = counted(sum(len(one.findings) for one in of_metric), "finding")
            found = _held(of_metric) or f"{found[:-1]}; {number}."
        sentences.append(found)
    return " ".join(sentences)


def _held(lists: Sequence[FindingList]) -> str | None:
    """Return what the findings hold, in a sentence; None without any, of both sides, or that are no parts of a sum."""
    listed = [one for one in lists if one.findings]
    if len(listed) != 1 or listed[0].model.direction != "worse":
        return None
    findings, share = listed[0].findings, listed[0].findings[-1].held_share
    if share is None:
        return None
    hold = "holds" if len(findings) == 1 else "hold"
    return f"{counted(len(findings), 'finding')} {hold} {share:.0%} of {listed[0].model.whole}."


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


def _found(config: RunConfig, prepared: EncodedDataset, tests: MetricTests) -> str:
    """Return how many slices are significant in a metric, in a sentence."""
    if config.comparison == "baseline":
        what = {"worse": "degraded", "better": "improved", "both": "changed"}[config.alternative]
    else:
        what = {"worse": "worse", "better": "better", "both": "different"}[config.alternative]
    found, reported = tests.significant, tests.reported
    if tests.blind is not None:
        return "No slice could be tested."
    if prepared.given is not None:
        if not reported:
            return "There was no slice to check."
        number = f"{found:,}" if found else "None"
        are = "are" if found > 1 else "is"
        if reported == 1:
            return f"The checked slice is {'' if found else 'not '}significantly {what}."
        return f"{number} of the {reported:,} checked slices {are} significantly {what}."
    if not found:
        return f"No slice is significantly {what}."
    return f"{counted(found, 'slice')} {'is' if found == 1 else 'are'} significantly {what}."


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
