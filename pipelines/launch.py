"""From the options of a command, wherever they come from, to its result and exit code."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, UntestedError, nearest_hint
from slicebeam.transforms.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicebeam.pipelines.data_config import Command
    from slicebeam.pipelines.event_log import EventLog
    from slicebeam.pipelines.run_config import RunConfig
    from slicebeam.pipelines.runner import Engine
    from slicebeam.pipelines.search import Published

LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class Asked:
    """What is asked of a run besides its configuration: it does not change what is found.

    Attributes
    ----------
    resume : go on where a stopped run was; begin where there is none, do nothing where it published
    as_json : print the summary as JSON on stdout
    quiet : print nothing but errors
    explain : id or text of the slice whose test is explained
    fail_on : ``worse`` or None
    log_format : ``text`` or ``json``
    dry_run : say what would be done, and do nothing
    single_job : send the whole search as one job
    template : folder for a template of the search, which is not run
    allow_http : send keys over http to other machines
    """

    resume: bool = False
    as_json: bool = False
    quiet: bool = False
    explain: str | None = None
    fail_on: str | None = None
    log_format: str = "text"
    dry_run: bool = False
    single_job: bool = False
    template: str | None = None
    allow_http: bool = False


# The flags that are no part of a configuration, by their names in a file.
ASKED = {"json": "as_json"} | {
    name: name
    for name in (
        *("resume", "quiet", "explain", "fail_on", "log_format"),
        *("dry_run", "single_job", "template", "allow_http"),
    )
}


# Options that are repeated or separated by commas.
LISTS = ("column_names", "features", "exclude_features", "metric", "components")


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of an option that is repeated or separated by commas.

    >>> listed(["a,b", '"c,d"'])
    ('a', 'b', 'c,d')
    """
    # As in CSV, quotes keep a comma that belongs to a name.
    try:
        return tuple(part for row in csv.reader(values) for part in row or [""])
    except csv.Error as error:
        raise InputError(
            f"{','.join(values)!r} is no list separated by commas ({error}); put names in quotes"
        ) from error


@dataclass
class Invocation:
    """What the commands of one process share.

    Attributes
    ----------
    events : where errors are written as JSON lines; None for plain text
    command : what runs; None for what has no work folder
    """

    events: EventLog | None = None
    command: Command | None = None

    def log(self, asked: Asked) -> EventLog | None:
        """Return the log of a run that is about to begin, if it is asked for.

        Raises
        ------
        InputError
            The format is not known.
        """
        if asked.log_format not in LOG_FORMATS:
            hint = nearest_hint(asked.log_format, LOG_FORMATS)
            raise InputError(
                f"--log-format {asked.log_format!r}{hint} choose from {', '.join(LOG_FORMATS)}"
            )
        if asked.log_format == "text":
            self.events = None
            return None
        from slicebeam.pipelines.event_log import EventLog

        if self.events is None:
            self.events = EventLog()
        self.events.quiet = asked.quiet
        return self.events


def launch(
    command: Command, options: Mapping[str, Any], asked: Asked, invocation: Invocation
) -> int:
    """Run a command and show what it found.

    Parameters
    ----------
    command : which one
    options : of its configuration that are no defaults
    asked : what else the user wants
    invocation : of the process

    Returns
    -------
    int
        The exit code: 1 where ``fail_on`` says that what was found is a failure.

    Raises
    ------
    UntestedError
        There is a ``fail_on``, and for some metric nothing could be tested; the result is published.
    """
    invocation.command = command
    events = invocation.log(asked)
    if asked.fail_on not in (None, "worse"):
        raise InputError(f"--fail-on {asked.fail_on!r}: only 'worse' is known")
    if asked.allow_http and command == "search":
        raise InputError("--allow-http has no effect on a search, which asks no endpoint")
    allow(asked.allow_http)
    if command == "shift":
        from slicebeam.pipelines.shift.launch import launch_shift

        return launch_shift(options, asked, events)
    with start_engine(
        options.get("runner_config", "direct"), options.get("runner_option", ())
    ) as engine:
        from slicebeam.pipelines.terminal import Terminal

        config = configuration(command, options)
        if asked.fail_on == "worse" and config.alternative == "better":
            raise InputError("--fail-on worse needs --alternative worse or both: better finds none")
        if asked.dry_run or asked.single_job or asked.template is not None:
            from slicebeam.pipelines.previews import check_asked

            check_asked(config, asked)
        if asked.dry_run or asked.template is not None:
            from slicebeam.pipelines.previews import preview

            preview(config, engine, asked)
            return 0
        terminal = Terminal(quiet=asked.quiet, as_json=asked.as_json, events=events)
        perhaps = options.get("since_if_exists")
        if perhaps is not None and config.since is None:
            terminal.note(f"there is no {perhaps!r} yet, so that nothing is compared with it")
        published = run_config(config, engine, terminal, asked)
    from slicebeam.pipelines.gate import BLIND, verdict

    found = verdict(published.changelist, asked.fail_on)
    if events is not None:
        events.published(published, found)
    if found.code == BLIND:
        raise UntestedError(
            f"--fail-on {asked.fail_on}: {'; '.join(found.reasons)}\n"
            f"what was found is published: {published.changelist_path}"
        )
    # The log has the reasons in its last event.
    for reason in found.reasons if events is None else ():
        terminal.note(f"--fail-on {asked.fail_on}: {reason}")
    return found.code


def start_engine(name: str, options: Any) -> Engine:
    """Return the engine, whose worker processes start while this one imports what it needs."""
    from slicebeam.pipelines.runner import Engine, runner_config

    return Engine(runner_config(name, options))


def configuration(command: Command, options: Mapping[str, Any]) -> RunConfig:
    """Return the validated configuration of a command.

    ``since_if_exists`` is ``since`` where there is such a file, and nothing otherwise.

    Raises
    ------
    InputError
        The first option that is wrong.
    """
    given = dict(options)
    perhaps = given.pop("since_if_exists", None)
    if perhaps is not None:
        from slicebeam.transforms.storage import storage_path

        if given.get("since") is not None:
            raise InputError("--since and --since-if-exists both name an earlier run; choose one")
        if not isinstance(perhaps, str) or not perhaps:
            raise InputError(f"--since-if-exists {perhaps!r} is no path")
        if storage_path(perhaps, "--since-if-exists").is_file():
            given["since"] = perhaps
    if command == "search":
        from slicebeam.pipelines.config import search_config

        return search_config(given)
    if command == "discover":
        from slicebeam.pipelines.discover_config import discover_config

        return discover_config(given)
    from slicebeam.pipelines.check_config import check_config

    return check_config(given)


def run_config(config: RunConfig, engine: Engine, terminal: Any, asked: Asked) -> Published:
    """Run a configuration and show its result."""
    from slicebeam.pipelines.check import run_check
    from slicebeam.pipelines.check_config import CheckConfig
    from slicebeam.pipelines.config import SearchConfig
    from slicebeam.pipelines.discover_config import DiscoverConfig
    from slicebeam.pipelines.search import run_search

    try:
        if isinstance(config, DiscoverConfig):
            from slicebeam.pipelines.discover import run_discovery

            published = run_discovery(
                config, engine, terminal, resume=asked.resume, asked=asked.explain
            )
        elif isinstance(config, SearchConfig) and asked.single_job:
            from slicebeam.pipelines.single_job import run_single_job

            published = run_single_job(config, engine, terminal, resume=asked.resume)
        elif isinstance(config, SearchConfig):
            published = run_search(
                config, engine, terminal, resume=asked.resume, asked=asked.explain
            )
        elif isinstance(config, CheckConfig):
            published = run_check(
                config, engine, terminal, resume=asked.resume, asked=asked.explain
            )
        else:
            raise TypeError(f"no command runs {config.command}")
    finally:
        terminal.stop()
    terminal.result(published)
    return published
