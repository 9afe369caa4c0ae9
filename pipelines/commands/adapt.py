"""The commands ``slicebeam adapt …``: test trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import UntestedError
from slicebeam.pipelines.commands.table import command_spec
from slicebeam.pipelines.config.adapt import AdaptRunConfig
from slicebeam.transforms.secrets.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        With ``worse`` no topic could be tested.
    """
    from slicebeam.pipelines.search.gate import BLIND, FAILED, PASSED, verdict

    document = published.changelist
    if fail_on == "failing" and document.adaptive is not None:
        failing = [one for one in document.adaptive.topics if one.rule in ("failing", "broken")]
        few = ", ".join(one.topic for one in failing[:3])
        more = ", …" if len(failing) > 3 else ""
        return (
            (FAILED, (f"{len(failing):,} topics fail: {few}{more}",)) if failing else (PASSED, ())
        )
    found = verdict(document, fail_on)
    if found.code == BLIND:
        raise UntestedError(
            f"--fail-on {fail_on}: {'; '.join(found.reasons)}\n"
            f"what was found is published: {published.changelist_path}"
        )
    return found.code, found.reasons


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
