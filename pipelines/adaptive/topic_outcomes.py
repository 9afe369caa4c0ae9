"""What became of the topics of a scored test tree: the document, and its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.adaptive.failure_scores import FAILS_FROM, fails_by_rule, state_by_rule
from slicebeam.pipelines.adaptive.topics import displayed
from slicebeam.pipelines.changelist.shifted import AdaptiveTests, TopicOutcome, never_given_text
from slicebeam.pipelines.config.adapt import class_pairs
from slicebeam.pipelines.search.summary import FAILED, gate_of, judged
from slicebeam.transforms.storage.publish import sha256_of
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.adaptive.scored_tree import ScoredTree
    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.changelist.testing import Gate
    from slicebeam.pipelines.config.adapt import AdaptRunConfig

TESTS, TOPICS = "tests.parquet", "topics.yaml"


def with_topics(
    document: SearchChangeList, config: AdaptRunConfig, scored: ScoredTree, topics_in_tree: int
) -> SearchChangeList:
    """Return a document that says what became of the topics, and names the published files."""
    outcomes = _outcomes(document.slices, scored)
    with storage_path(config.tree).open("rb") as stream:
        digest = sha256_of(stream)
    adaptive = AdaptiveTests(
        tree=config.tree,
        tree_sha256=f"sha256:{digest}",
        models=tuple(filter(None, (config.baseline_model, config.model))),
        tests=scored.tests.num_rows,
        unscored=scored.unscored,
        fails_from=FAILS_FROM,
        topics_in_tree=topics_in_tree,
        topics=outcomes,
        untested={
            topic: tests
            for topic, tests in sorted(scored.undecided.items())
            if topic not in scored.topics
        },
        classes=class_pairs(config.classes),
        never_given=scored.never_given,
        paid=scored.paid,
    )
    output = storage_path(config.output)
    tests, topics = str(output / TESTS), str(output / TOPICS)
    provenance = document.provenance
    named = provenance.config | {"data": [tests], "slices": topics}
    names = {"after": config.model, "before": config.baseline_model or ""}
    update: dict[str, Any] = {
        "title": f"Topics of {displayed(config.tree).rpartition('/')[2]}: where tests fail",
        "summary": summary(adaptive),
        "dataset": document.dataset.model_copy(update={"name": TESTS, "uri": (tests,)}),
        "models": tuple(one.model_copy(update={"name": names[one.key]}) for one in document.models),
        "provenance": provenance.model_copy(update={"config": named}),
        "adaptive": adaptive,
    }
    if document.check is not None:
        update["check"] = document.check.model_copy(update={"uri": topics})
    return document.model_copy(update=update)


def _outcomes(slices: Sequence[Slice], scored: ScoredTree) -> tuple[TopicOutcome, ...]:
    found = [(one, one.changes[0], _topic(one)) for one in slices]
    found = [one for one in found if one[2] is not None]
    sizes = [change.n for _, change, _ in found]
    now = [_failures(change.after.value, change.n) for _, change, _ in found]
    has_old = any(change.before is not None for _, change, _ in found)
    before = (
        [
            _failures(change.before.value if change.before else None, change.n)
            for _, change, _ in found
        ]
        if has_old
        else None
    )
    states: list[Any] = list(state_by_rule(now, sizes, before))
    outcomes = []
    for place, (one, change, topic) in enumerate(found):
        outcomes.append(
            TopicOutcome(
                slice_id=one.slice_id,
                topic=topic or "",
                tests=change.n,
                failures=now[place],
                failures_before=before[place] if before is not None else None,
                newly_failing=_discordant(change, "b (only new marked)") if has_old else None,
                newly_passing=_discordant(change, "c (only old)") if has_old else None,
                rule=states[place],
                significant=_significant(change) if has_old else None,
                trained=topic in scored.trained,
                undecided=scored.undecided.get(topic or "", 0),
            )
        )
    return tuple(outcomes)


def _topic(one: Slice) -> str | None:
    return None if one.predicate is None else str(one.predicate.all[0].value)


def _failures(share: float | None, tests: int) -> int:
    return round((share or 0.0) * tests)


def _discordant(change: Change, name: str) -> int:
    return round((change.inputs or {}).get(name, 0))


def _significant(change: Change) -> Any:
    if not change.significant:
        return None
    return {"degraded": "broken", "improved": "fixed"}.get(change.direction)


def summary(adaptive: AdaptiveTests) -> str:
    """Return the result in plain words."""
    topics = adaptive.topics
    failing = sum(one.rule in ("failing", "broken") for one in topics)
    text = (
        f"{adaptive.tests:,} tests in {len(topics):,} topics: {failing:,} topics fail (from "
        f"{adaptive.fails_from:.0%} of their tests on)."
    )
    if len(adaptive.models) == 1:
        return text
    by = {
        (state, bool(sure)): sum(
            one.rule == state and (one.significant == state) == sure for one in topics
        )
        for state in ("fixed", "broken")
        for sure in (True, False)
    }
    parts = []
    for state in ("fixed", "broken"):
        sure, unsure = by[state, True], by[state, False]
        more = f" ({unsure:,} more by the rule only)" if unsure else ""
        parts.append(f"{sure:,} {state}{more}")
    moved = [
        sum(one.significant == word and one.rule != word for one in topics)
        for word in ("fixed", "broken")
    ]
    text += f" The update: {', '.join(parts)}."
    if not any(moved):
        return text
    return f"{text} On the same side of it, {moved[0]:,} significantly better, {moved[1]:,} worse."


def gate_of_topics(document: SearchChangeList, fail_on: str | None) -> Gate | None:
    """Return whether a scored tree passes.

    It does not where a topic could not be judged, since too few of its tests could be scored.
    """
    adaptive = document.adaptive
    gate = gate_of(document, "worse" if fail_on == "failing" else fail_on)
    if adaptive is None or gate is None or fail_on is None:
        return gate
    if fail_on == "failing":
        failing = [one.topic for one in adaptive.topics if one.rule in ("failing", "broken")]
        why = f"{_topics(failing)} fail{'s' if len(failing) == 1 else ''}"
        gate = judged(fail_on, [why] if failing else [])
    if gate.exit_code == FAILED:
        return gate
    reasons = list(gate.reasons)
    if unjudged := _unjudged(adaptive, fail_on):
        reasons.append(
            f"{_topics(unjudged)} can't be judged, because too few of the tests could be scored"
        )
    if adaptive.never_given:
        reasons.append(never_given_text(adaptive.never_given))
    return judged(fail_on, (), reasons)


def _unjudged(adaptive: AdaptiveTests, fail_on: str) -> list[str]:
    """Return the topics whose tests that could not be scored may hide what the gate is for.

    For ``failing`` those that would fail if these tests did; for ``worse`` those of which these tests
    are so large a share that they alone would make it fail.
    """
    some = [one for one in adaptive.topics if one.undecided]
    failures = [one.undecided + (one.failures if fail_on == "failing" else 0) for one in some]
    hidden = fails_by_rule(failures, [one.tests + one.undecided for one in some])
    found = [one.topic for one, is_hidden in zip(some, hidden.tolist(), strict=True) if is_hidden]
    return sorted([*adaptive.untested, *found])


def _topics(names: Sequence[str]) -> str:
    few = ", ".join(displayed(one) for one in names[:3])
    more = ", …" if len(names) > 3 else ""
    return f"{len(names):,} topic{'' if len(names) == 1 else 's'} ({few}{more})"
