"""What a command is: its help and options, and how it is configured, run, shown and judged.

References are ``module:name`` below ``slicebeam.pipelines``. They are imported when the command runs or
its help is shown, so ``slicebeam --help`` is quick.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, is_dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from slicebeam.transforms.storage.secrets import allow_http

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicebeam.pipelines.config.common import Command
    from slicebeam.pipelines.config.option_fields import OptionField
    from slicebeam.pipelines.config.run_options import Display, RunOptions
    from slicebeam.pipelines.show.event_log import EventLog


def named(reference: str) -> Any:
    """Return what a reference of a command refers to."""
    return resolve_name(f"slicebeam.pipelines.{reference}")


def print_json(content: Any) -> None:
    """Write a result to stdout as JSON, of several results a line each."""
    from slicebeam.pipelines.show.terminal_text import json_line

    for part in content if isinstance(content, (list, tuple)) else [content]:
        plain = part
        if is_dataclass(part):
            plain = asdict(part)  # type: ignore[arg-type]
        elif hasattr(part, "model_dump"):
            plain = part.model_dump(mode="json", exclude_none=True)
        sys.stdout.write(f"{json_line(plain)}\n")


@dataclass
class Invocation:
    """What the commands of one process share.

    ``events``: where errors are written as JSON lines; None for plain text. ``command``: the
    running command; None for those without a work folder. ``emit``: writes what ``--json`` prints.
    """

    events: EventLog | None = None
    command: Command | None = None
    emit: Callable[[Any], None] = print_json

    def log(self, run_options: RunOptions) -> EventLog | None:
        """Return the log of a run that is about to begin, if the user wants one."""
        if run_options.log_format == "text":
            self.events = None
            return None
        from slicebeam.pipelines.show.event_log import EventLog

        if self.events is None:
            self.events = EventLog()
        self.events.quiet = run_options.quiet
        return self.events


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """A command of the command line, and of Python where it has a result.

    Attributes
    ----------
    group : heading under which the list of commands has it
    help : a sentence, and further paragraphs
    options : model of its configuration
    run_options : model of further options, which do not change the result; empty for none
    runs : function of the configuration, and of a function that prints a note; returns the result
    shows : prints a result, of the result and of what `Display` says; empty for what prints itself
    json : returns what ``--json`` prints of a result; empty where that is the result
    """

    group: str
    help: str
    example: str
    options: str = "config.option_fields:Options"
    run_options: str = ""
    runs: str = ""
    shows: str = ""
    json: str = ""

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return self.help.partition("\n")[0]

    @property
    def models(self) -> tuple[Any, ...]:
        """The models of its options, that of its configuration first."""
        return tuple(map(named, filter(None, (self.options, self.run_options))))

    def fields(self) -> list[OptionField]:
        """Return its options as flags."""
        from slicebeam.pipelines.config.option_fields import declared

        return [field for model in self.models for field in declared(model).values()]

    def execute(self, name: str, flags: Mapping[str, Any], invocation: Invocation) -> int:  # noqa: ARG002  (of others)
        """Run it with the flags that were given, print the result, and return the exit code."""
        from slicebeam.pipelines.config.common import validated
        from slicebeam.pipelines.config.option_fields import split_lists

        config: Any = validated(self.models[0], split_lists(self.models[0], flags))
        result = self.run(config, quiet=getattr(config, "quiet", False))
        if self.shows:
            self.print_result(result, config, invocation.emit)
        return self.verdict(result)

    def run(self, config: Any, *, quiet: bool) -> Any:
        """Run it with notes on stderr, and return the result."""
        from slicebeam.pipelines.show.terminal_text import harmless

        def note(text: str) -> None:
            if not quiet:
                sys.stderr.write(f"{harmless(text)}\n")

        allow_http(getattr(config, "allow_http", False))
        return named(self.runs)(config, note)

    def print_result(self, result: Any, display: Display, emit: Callable[[Any], None]) -> None:
        """Print a result: with ``--json`` by ``emit``, else unless quiet."""
        if display.as_json:
            emit(named(self.json)(result) if self.json else result)
        elif not display.quiet:
            named(self.shows)(result, display)

    def verdict(self, result: Any) -> int:  # noqa: ARG002  (of others)
        """Return the exit code of a result."""
        return 0


@dataclass(frozen=True, kw_only=True)
class RunCommand(CommandSpec):
    """A command without data that publishes a document with a gate.

    ``runs``: function of the configuration and of the `Terminal` that follows the run.
    """

    json: str = "show.result:printed_json"

    def run(self, config: Any, *, quiet: bool) -> Any:
        """Run it with its progress on stderr, and return the result."""
        from slicebeam.pipelines.show.terminal import Terminal

        allow_http(config.allow_http)
        with Terminal(quiet=quiet) as terminal:
            return named(self.runs)(config, terminal)

    def verdict(self, result: Any) -> int:
        """Return the exit code of the gate."""
        from slicebeam.pipelines.show.terminal import Terminal

        return Terminal().judged(result.changelist.gate)


@dataclass(frozen=True, kw_only=True)
class FileCommand(CommandSpec):
    """The command that stands in a file, whose options replace the file's."""

    def fields(self) -> list[OptionField]:
        """Return its options, and those that replace a file's."""
        return [*super().fields(), *named("commands.run_file:override_fields")()]

    def execute(self, name: str, flags: Mapping[str, Any], invocation: Invocation) -> int:  # noqa: ARG002  (of others)
        """Run what is in the file, and return the exit code."""
        code: int = named("commands.run_file:run_file")(flags, invocation)
        return code
