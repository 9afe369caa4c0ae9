"""From the options of a command, wherever they come from, to its result and exit code."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError, nearest_hint
from slicebeam.pipelines.commands.table import COMMANDS, command_spec
from slicebeam.transforms.secrets.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.pipelines.config.common import Command
    from slicebeam.pipelines.config.run_options import RunOptions
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.show.event_log import EventLog


@dataclass
class Invocation:
    """What the commands of one process share.

    ``events``: where errors are written as JSON lines; None for plain text. ``command``: the
    running command; None for those without a work folder.
    """

    events: EventLog | None = None
    command: Command | None = None

    def log(self, run_options: RunOptions) -> EventLog | None:
        """Return the log of a run that is about to begin, if the user wants one."""
        from slicebeam.pipelines.config.run_options import LOG_FORMATS

        if run_options.log_format not in LOG_FORMATS:
            hint = nearest_hint(run_options.log_format, LOG_FORMATS)
            raise OptionError(
                f"--log-format {run_options.log_format!r}{hint} choose from {', '.join(LOG_FORMATS)}"
            )
        if run_options.log_format == "text":
            self.events = None
            return None
        from slicebeam.pipelines.show.event_log import EventLog

        if self.events is None:
            self.events = EventLog()
        self.events.quiet = run_options.quiet
        return self.events


def run_command(name: str, given: Mapping[str, Any], invocation: Invocation) -> int:
    """Run a command that tests slices or assesses an API, with the flags that were given.

    Returns the exit code.
    """
    from slicebeam.pipelines.config.coercion import split_lists
    from slicebeam.pipelines.config.common import validated
    from slicebeam.pipelines.config.option_fields import declared
    from slicebeam.pipelines.config.own_data import default_output, with_guesses

    config, options_type = COMMANDS[name].options
    run_options = {key: given[key] for key in declared(options_type) if key in given}
    options = {key: value for key, value in given.items() if key not in {*run_options, "files"}}
    # A pattern without quotes becomes several words, all but the first of them without a flag.
    options["data"] = (*given.get("data", ()), *given.get("files", ()))
    if not options["data"]:
        raise OptionError(f"no data; write slicebeam {name} data.parquet, and see its --help")
    options = split_lists(config, options)
    if not (options.get("plan") or options.get("repeat")):
        options.setdefault("output", default_output(name, options["data"]))
    options, line = with_guesses(config, options)
    return launch(config.command, options, validated(options_type, run_options), invocation, line)


def document_command(name: str, given: Mapping[str, Any], _: Invocation) -> int:
    """Run a command that reads a ChangeList, and print the result."""
    from slicebeam.pipelines.config.coercion import split_lists
    from slicebeam.pipelines.config.common import validated
    from slicebeam.pipelines.show.terminal_text import harmless

    command = command_spec(name)
    config: Any = validated(command.options[0], split_lists(command.options[0], given))

    def note(text: str) -> None:
        if not config.quiet:
            sys.stderr.write(f"{harmless(text)}\n")

    allow(getattr(config, "allow_http", False))
    command.show(command.run(config, note), config)
    return 0


def launch(
    command: Command,
    options: Mapping[str, Any],
    run_options: RunOptions,
    invocation: Invocation,
    line: str | None = None,
) -> int:
    """Run a command and show its result.

    ``options``: of its configuration, other than defaults. Returns the exit code: that of the gate,
    if there is one.
    """
    invocation.command = command
    events = invocation.log(run_options)
    check_run_options(command, run_options)
    allow(run_options.allow_http)
    from slicebeam.pipelines.config.own_data import check_columns

    check_columns(COMMANDS[command].options[0], options)
    if command == "shift":
        from slicebeam.pipelines.commands.shift import launch_shift

        return launch_shift(options, run_options, events)
    from slicebeam.pipelines.run.engine import start_engine
    from slicebeam.pipelines.show.terminal import Terminal

    terminal = Terminal(
        quiet=run_options.quiet,
        as_json=run_options.as_json,
        events=events,
        report=run_options.report,
    )
    if line is not None:
        terminal.note(line)

    with start_engine(
        options.get("runner_config", "direct"), options.get("runner_option", ())
    ) as engine:
        config = configuration(command, options)
        if run_options.fail_on == "worse" and config.alternative == "better":
            raise OptionError(
                "--fail-on worse needs --alternative worse or both: with better, no slice is worse"
            )
        if run_options.dry_run:
            _tolerance(run_options, config)
            _dry_run(config, engine, run_options)
            return 0
        perhaps = options.get("since_if_exists")
        if perhaps is not None and config.since is None:
            terminal.note(f"there is no {perhaps!r} yet, so there is nothing to compare with")
        published = run_config(config, engine, terminal, run_options)
        if run_options.page:
            from slicebeam.pipelines.commands.page import write_page

            write_page(str(published.changelist_path), terminal)
    if events is not None:
        events.published(published)
    return terminal.judged(published.changelist.gate)


def _dry_run(config: RunConfig, engine: Engine, run_options: RunOptions) -> None:
    """Print the plan of a run."""
    from slicebeam.pipelines.plan.dry_run import plan_of
    from slicebeam.pipelines.show.terminal_text import harmless

    for name in ("resume", "explain", "page"):
        if getattr(run_options, name):
            raise OptionError(f"--{name} has no effect with --dry-run, which runs no job")
    planned = plan_of(config, engine)
    if not run_options.quiet or run_options.as_json:
        said = planned.to_json() if run_options.as_json else planned.to_text()
        sys.stdout.write(harmless(said) + "\n")


def check_run_options(command: Command, run_options: RunOptions) -> None:
    """Refuse options that a command has no use for."""
    if run_options.fail_on not in (None, "worse"):
        raise OptionError(f"--fail-on {run_options.fail_on!r}: only 'worse' is known")
    if run_options.tolerance and run_options.fail_on is None:
        raise OptionError("--tolerance is for --fail-on worse; add that, or leave --tolerance out")
    if run_options.tolerance and command not in ("search", "check"):
        raise OptionError(f"--tolerance has no effect on {command}; leave it out")
    if run_options.allow_http and command == "search":
        raise OptionError("--allow-http has no effect on a search, which calls no endpoint")


def configuration(command: Command, options: Mapping[str, Any]) -> RunConfig:
    """Return the validated configuration of a command.

    ``since_if_exists`` is ``since`` where there is such a file, and nothing otherwise.
    """
    given = dict(options)
    perhaps = given.pop("since_if_exists", None)
    if perhaps is not None:
        from slicebeam.transforms.storage.storage import storage_path

        if given.get("since") is not None:
            raise OptionError("--since and --since-if-exists both name an earlier run; choose one")
        if not isinstance(perhaps, str) or not perhaps:
            raise OptionError(f"--since-if-exists {perhaps!r} is not a path")
        if storage_path(perhaps, "--since-if-exists").is_file():
            given["since"] = perhaps
    configured: RunConfig = COMMANDS[command].configured(given)
    return configured


def _tolerance(run_options: RunOptions, config: RunConfig) -> dict[str, float]:
    """Return the tolerance of each metric that has one; refused before anything is read."""
    if not run_options.tolerance:
        return {}
    from slicebeam.pipelines.search.tolerance import tolerances

    return tolerances(run_options.tolerance, config)


def run_config(
    config: RunConfig, engine: Engine, terminal: Any, run_options: RunOptions
) -> Published:
    """Run a configuration and show its result."""
    tolerance = _tolerance(run_options, config)
    try:
        published = COMMANDS[config.command].run(
            config,
            engine,
            terminal,
            resume=run_options.resume,
            explained_slice=run_options.explain,
            fail_on=run_options.fail_on,
            **({"tolerance": tolerance} if tolerance else {}),
        )
    finally:
        terminal.stop()
    terminal.result(published)
    return published
