"""The commands ``slicebeam adapt …``: test trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import UntestedError
from slicebeam.pipelines.adaptive.topics import displayed
from slicebeam.pipelines.commands.table import command_spec
from slicebeam.pipelines.config.adapt import AdaptRunConfig
from slicebeam.transforms.secrets.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slicebeam.pipelines.changelist.adaptive import AdaptiveTests
    from slicebeam.pipelines.commands.launch import Invocation
    from slicebeam.pipelines.run.published import Published


def run_command(name: str, given: Mapping[str, Any], _: Invocation) -> int:
    """Score a tree, print its topics, and return the exit code that ``fail_on`` wants."""
    from slicebeam.pipelines.config.common import validated
    from slicebeam.pipelines.show.adaptive import print_json, show
    from slicebeam.pipelines.show.terminal import Terminal

    config = validated(AdaptRunConfig, given)
    allow(config.allow_http)
    terminal = Terminal(quiet=config.quiet, as_json=config.as_json)
    try:
        published: Published = command_spec(name).run(config, terminal)
    finally:
        terminal.stop()
    if config.as_json:
        print_json(published)
    elif not config.quiet:
        show(published)
    code, reasons = _verdict(published, config.fail_on)
    for reason in reasons:
        terminal.note(f"--fail-on {config.fail_on}: {reason}")
    return code


def _verdict(published: Published, fail_on: str | None) -> tuple[int, tuple[str, ...]]:
    """Return the exit code, and why it is none of success.

    Raises
    ------
    UntestedError
        Nothing fails, and a topic could not be judged, since too few of its tests could be scored.
    """
    from slicebeam.pipelines.search.gate import BLIND, FAILED, Verdict, verdict

    document = published.changelist
    adaptive = document.adaptive
    if fail_on == "failing" and adaptive is not None:
        failing = [one.topic for one in adaptive.topics if one.rule in ("failing", "broken")]
        found = (
            Verdict(FAILED, (f"{_topics(failing)} fail{'s' if len(failing) == 1 else ''}",))
            if failing
            else Verdict(0)
        )
    else:
        found = verdict(document, fail_on)
    unjudged = [] if adaptive is None or fail_on is None else _unjudged(adaptive, fail_on)
    if unjudged and found.code != FAILED:
        why = f"{_topics(unjudged)} can't be judged, because too few of the tests could be scored"
        found = Verdict(BLIND, (*found.reasons, why))
    if found.code == BLIND:
        raise UntestedError(
            f"--fail-on {fail_on}: {'; '.join(found.reasons)}\n"
            f"what was found is published: {published.changelist_path}"
        )
    return found.code, found.reasons


def _unjudged(adaptive: AdaptiveTests, fail_on: str) -> list[str]:
    """Return the topics whose tests that could not be scored may hide what the gate is for.

    For ``failing`` those that would fail if these tests did; for ``worse`` those of which these tests
    are so large a share that they alone would make it fail.
    """
    from slicebeam.metrics.adaptive.topic_changes import fails_by_rule

    some = [one for one in adaptive.topics if one.undecided]
    failures = [one.undecided + (one.failures if fail_on == "failing" else 0) for one in some]
    hidden = fails_by_rule(failures, [one.tests + one.undecided for one in some])
    found = [one.topic for one, is_hidden in zip(some, hidden.tolist(), strict=True) if is_hidden]
    return sorted([*adaptive.untested, *found])


def _topics(names: Sequence[str]) -> str:
    few = ", ".join(displayed(one) for one in names[:3])
    more = ", …" if len(names) > 3 else ""
    return f"{len(names):,} topic{'' if len(names) == 1 else 's'} ({few}{more})"


def run(config: AdaptRunConfig, observer: Any) -> Published:
    """Score a tree and publish what became of its topics.

    Parameters
    ----------
    observer : follows the run; of Python a function that prints a line
    """
    from slicebeam.pipelines.adaptive.run import run_tests

    return run_tests(config, observer if hasattr(observer, "stage") else _Noting(observer))


class _Noting:
    """Prints what a run says by a function."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def begin(self, *_: Any) -> None:
        """Show nothing."""

    def stage(self, stage: Any) -> None:
        """Print what begins."""
        self.note(stage.text)

    def prepared(self, prepared: Any) -> None:
        """Show nothing."""

    def progress(self, progress: Any) -> None:
        """Show nothing."""

    def recorded(self, record: Any) -> None:
        """Show nothing."""
