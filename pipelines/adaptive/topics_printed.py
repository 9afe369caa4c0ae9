"""What a user sees of a scored test tree: its topics, those that an update broke first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import counted
from slicebeam.pipelines.adaptive.topics import displayed
from slicebeam.pipelines.changelist.shifted import never_given_text
from slicebeam.pipelines.show.terminal_text import WIDE, console_of_stdout, harmless, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.adaptive.checklist import ImportedSuite
    from slicebeam.pipelines.adaptive.training import TrainingExport
    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.shifted import AdaptiveTests, TopicOutcome
    from slicebeam.pipelines.config.adapt import (
        AdaptRunConfig,
        ExportTrainingConfig,
        ImportChecklistConfig,
    )
    from slicebeam.pipelines.run.open_run import Published

_MOST_TOPICS = 20
_RANK = {"broken": 0, "fixed": 1, "failing": 2, "passing": 3}


def ordered(topics: Sequence[TopicOutcome]) -> list[TopicOutcome]:
    """Return topics in the order in which they matter: broken, fixed, failing, the others."""
    return sorted(
        topics,
        key=lambda one: (
            one.significant is None,
            _RANK[one.significant or one.rule],
            -one.failures / max(one.tests, 1),
            one.topic,
        ),
    )


def show(published: Published, _: AdaptRunConfig) -> None:
    """Print the topics, and where the document is."""
    show_topics(published.changelist)
    # Paths are printed raw, so that no terminal width breaks them.
    sys.stdout.write(f"All numbers: {published.changelist_path}\n")


def show_topics(document: SearchChangeList) -> None:
    """Print the topics."""
    console = console_of_stdout()
    adaptive = _adaptive(document)
    console.print()
    console.print(document.summary, markup=False)
    topics = ordered(adaptive.topics)
    console.print(_table(topics[:_MOST_TOPICS], _changes(document), adaptive, console.width))
    for line in _notes(adaptive, topics):
        console.print(line, markup=False, style="dim")
    for number, reason in sorted(((n, why) for why, n in adaptive.unscored.items()), reverse=True):
        console.print(f"not scored: {number:,} tests: {reason}", markup=False, style="yellow")
    if adaptive.never_given:
        console.print(never_given_text(adaptive.never_given), markup=False, style="yellow")
    for topic, number in list(adaptive.untested.items())[:_MOST_TOPICS]:
        line = f"no test scored of topic {displayed(topic)}, which has {number:,}"
        console.print(line, markup=False, style="yellow")
    if len(adaptive.untested) > _MOST_TOPICS:
        more = f"and of {len(adaptive.untested) - _MOST_TOPICS:,} more topics"
        console.print(more, markup=False, style="yellow")
    console.print()


def _adaptive(document: SearchChangeList) -> AdaptiveTests:
    if document.adaptive is None:
        raise TypeError("a document of no test tree")
    return document.adaptive


def _changes(document: SearchChangeList) -> dict[str, Change]:
    return {one.slice_id: one.changes[0] for one in document.slices}


def _table(
    topics: Sequence[TopicOutcome], changes: dict[str, Change], adaptive: AdaptiveTests, width: int
) -> Any:
    from rich.text import Text

    two = len(adaptive.models) == 2
    wide = width >= WIDE
    headers = ["tests", "fail", *(["was"] if two else [])]
    headers += ["95 % interval"] if wide else []
    headers += ["+ / -", "q"] if two else []
    table = table_of(*headers)
    table.add_column("topic is", no_wrap=True)
    table.add_column("topic", overflow="fold")
    for one in topics:
        change = changes[one.slice_id]
        cells = [f"{one.tests:,}", _share(one.failures, one.tests)]
        if two:
            cells.append(_share(one.failures_before or 0, one.tests))
        if wide:
            low, high = change.after.lo, change.after.hi
            cells.append("" if low is None or high is None else f"{low:.1%} … {high:.1%}")
        if two:
            q = change.p_adjusted
            cells.append(f"{one.newly_failing or 0:,} / {one.newly_passing or 0:,}")
            cells.append("" if q is None else f"{q:.1e}" if q < 0.001 else f"{q:.3f}")
        name = displayed(one.topic) + (" (trained)" if one.trained else "")
        state = one.rule + ("*" if one.significant is not None else "")
        quiet = one.significant is None and one.rule == "passing"
        table.add_row(*cells, state, Text(name), style="dim" if quiet else None)
    return table


def _share(failures: int, tests: int) -> str:
    return f"{failures / max(tests, 1):.1%}"


def _notes(adaptive: AdaptiveTests, topics: Sequence[TopicOutcome]) -> list[str]:
    lines = []
    if len(topics) > _MOST_TOPICS:
        lines.append(f"and {len(topics) - _MOST_TOPICS:,} more topics")
    if len(adaptive.models) == 2:
        lines.append(
            "+ / -: tests that only the new model fails, and that only the old one fails. * significant: "
            "McNemar's test, corrected over all topics."
        )
    lines.append(
        f"A topic with those below it fails from {adaptive.fails_from:.0%} of its tests on; it is fixed or "
        "broken where that differs between the models."
        if len(adaptive.models) == 2
        else f"A topic with those below it fails from {adaptive.fails_from:.0%} of its tests on."
    )
    if trained := adaptive.trained_text():
        lines.append(trained)
    for one in adaptive.paid:
        price = "" if one.spent is None else f", {one.spent:,.2f} {one.currency} in all"
        lines.append(
            f"{one.model}: {one.calls:,} answers paid{price}; {one.replayed:,} of them were in the ledger"
            + (
                f"; {counted(one.unaccounted, 'call')} without an outcome"
                if one.unaccounted
                else ""
            )
        )
    return lines


def show_imported(found: ImportedSuite, _: ImportChecklistConfig) -> None:
    """Print what was imported."""
    count = f"{found.tests:,} tests, {found.tests:,} topics: {found.cases:,} cases"
    sys.stdout.write(f"{count}\n{harmless(found.tree)}\n")


def show_exported(found: TrainingExport, _: ExportTrainingConfig) -> None:
    """Print what was exported, and what was not."""
    topics = len(found.topics)
    lines = [
        f"{found.tests:,} failing tests of {topics:,} topics and {found.anchors:,} passing ones",
        *([f"{found.mixed:,} rows of the training data"] if found.mixed else []),
        *(f"not exported: {number:,} tests: {reason}" for reason, number in found.left_out.items()),
        f"Marked as trained on: {found.tree}",
        found.path,
    ]
    sys.stdout.write("".join(f"{harmless(line)}\n" for line in lines))
