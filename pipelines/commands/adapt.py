"""The commands ``slicebeam adapt …``: test trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.commands.table import command_spec
from slicebeam.pipelines.config.adapt import AdaptRunConfig
from slicebeam.transforms.secrets.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicebeam.pipelines.commands.launch import Invocation
    from slicebeam.pipelines.run.open_run import Published


def run_command(name: str, given: Mapping[str, Any], _: Invocation) -> int:
    """Score a tree, print its topics, and return the exit code that ``fail_on`` wants."""
    from slicebeam.pipelines.adaptive.topics_printed import show
    from slicebeam.pipelines.config.coercion import split_lists
    from slicebeam.pipelines.config.common import validated
    from slicebeam.pipelines.show.printed_json import printed_json
    from slicebeam.pipelines.show.terminal import Terminal
    from slicebeam.pipelines.show.terminal_text import print_json

    config = validated(AdaptRunConfig, split_lists(AdaptRunConfig, given))
    allow(config.allow_http)
    terminal = Terminal(quiet=config.quiet, as_json=config.as_json)
    try:
        published: Published = command_spec(name).run(config, terminal)
    finally:
        terminal.stop()
    if config.as_json:
        print_json(printed_json(published))
    elif not config.quiet:
        show(published)
    return terminal.judged(published.changelist.gate)


def run(config: AdaptRunConfig, observer: Any) -> Published:
    """Score a tree and publish what became of its topics.

    ``observer``: follows the run; of Python a function that prints a line.
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
