"""What a command is: its help and options, and how it is configured, run, shown and judged.

References are ``module:name`` below ``slicebeam.pipelines``. They are imported when the command runs or
its help is shown, so ``slicebeam --help`` is quick.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError, flag
from slicebeam.transforms.storage.secrets import allow_http

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicebeam.pipelines.changelist.testing import KnownSlice
    from slicebeam.pipelines.config.common import Command
    from slicebeam.pipelines.config.option_fields import OptionField
    from slicebeam.pipelines.config.run_options import Display, RunOptions
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.shift.run import PublishedShift
    from slicebeam.pipelines.show.event_log import EventLog
    from slicebeam.pipelines.show.terminal import Terminal

# Why an option does nothing.
_WHY = {
    ("allow_http", "search"): "a search, which calls no endpoint",
    ("dry_run", "shift"): "shift; --plan estimates the cost; leave it out",
}


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
    """A command without data that publishes a document with a gate; ``runs`` gets a `Terminal`."""

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


@dataclass(frozen=True, kw_only=True)
class DataCommand(CommandSpec):
    """A command that tests slices of data, or assesses an API with it.

    ``configures``: function of the options that returns the configuration, where the model alone does
    not. ``runs``: function of the configuration, the engine and the `Terminal`, and of how to run.
    """

    run_options: str = "config.run_options:RunOptions"
    shows: str = "show.result:show"
    json: str = "show.result:printed_json"
    configures: str = ""

    def fields(self) -> list[OptionField]:
        """Return its options as flags, the data as an argument too, and the output with its default."""
        fields = {field.name: field for field in super().fields()}
        data, output = fields["data"], fields["output"]
        files = replace(
            data.option,
            help="Files or globs, as --data. Columns that no option names are guessed by their names.",
            is_argument=True,
        )
        to = f"{output.help} [default: slicebeam-out/, and the name of the data]"
        place = replace(output.option, help=to)
        fields |= {
            "data": replace(data, is_required=False, default=()),
            "output": replace(output, option=place, is_required=False, default=""),
            "files": replace(data, name="files", option=files, is_required=False, default=()),
        }
        return [*fields.values()]

    def execute(self, name: str, flags: Mapping[str, Any], invocation: Invocation) -> int:
        """Run it with the flags that were given, and what they leave open guessed."""
        from slicebeam.pipelines.config.common import validated
        from slicebeam.pipelines.config.option_fields import declared, split_lists
        from slicebeam.pipelines.config.own_data import default_output, with_guesses

        model, options_type = self.models
        run_options = {key: flags[key] for key in declared(options_type) if key in flags}
        options = {key: value for key, value in flags.items() if key not in {*run_options, "files"}}
        # A pattern without quotes becomes several words, all but the first of them without a flag.
        options["data"] = (*flags.get("data", ()), *flags.get("files", ()))
        if not options["data"]:
            raise OptionError(f"no data; write slicebeam {name} data.parquet, and see its --help")
        options = split_lists(model, options)
        if not (options.get("plan") or options.get("repeat")):
            options.setdefault("output", default_output(name, options["data"]))
        options, note = with_guesses(model, options)
        return self.launch(options, validated(options_type, run_options), invocation, note)

    def launch(
        self,
        options: Mapping[str, Any],
        run_options: RunOptions,
        invocation: Invocation,
        note: str | None = None,
    ) -> int:
        """Run it, print a note and its result, and return the exit code: that of the gate, if there is one."""
        from slicebeam.pipelines.config.own_data import check_columns

        invocation.command = self.models[0].command
        events = invocation.log(run_options)
        self.check_run_options(run_options)
        allow_http(run_options.allow_http)
        check_columns(self.models[0], options)
        from slicebeam.pipelines.show.terminal import Terminal

        terminal = Terminal(quiet=run_options.quiet, events=events)
        if note is not None:
            terminal.note(note)
        with engine_of(options) as engine:
            config = self.configured(options)
            _check_effects(config, run_options)
            if run_options.dry_run or getattr(config, "simulates", False):
                _preview(config, engine, terminal, run_options, invocation)
                return 0
            missing = options.get("since_if_exists")
            if missing is not None and config.since is None:
                terminal.note(f"there is no {missing!r} yet, so there is nothing to compare with")
            published = self.publish(config, engine, terminal, run_options)
            self.print_result(published, run_options, invocation.emit)
            if run_options.page:
                from slicebeam.pipelines.config.document import ReportConfig
                from slicebeam.pipelines.page.report import write_report

                page = ReportConfig.model_validate({"changelist": str(published.changelist_path)})
                terminal.note(f"page: {write_report(page, terminal.note)}")
        if events is not None:
            events.published(published)
        return terminal.judged(published.changelist.gate)

    def check_run_options(self, run_options: RunOptions) -> None:
        """Refuse options that it has no use for."""
        from slicebeam.pipelines.config.option_fields import declared

        model, options_type = self.models
        if run_options.tolerance and run_options.fail_on in (None, "drift"):
            raise OptionError(
                "--tolerance is for --fail-on worse; add that, or leave --tolerance out"
            )
        fields = declared(options_type)
        for key, value in run_options:
            if value and key not in fields:
                why = _WHY.get((key, model.command), f"{model.command}; leave it out")
                raise OptionError(f"{flag(key)} has no effect on {why}")
            if key in fields:
                fields[key].check_choice(value)

    def configured(self, options: Mapping[str, Any]) -> Any:
        """Return the validated configuration."""
        from slicebeam.pipelines.config.common import validated

        if self.configures:
            return named(self.configures)(options)
        return validated(self.models[0], options)

    def publish(
        self, config: Any, engine: Engine, terminal: Terminal, run_options: RunOptions
    ) -> Published | PublishedShift:
        """Run a configuration, and return what it published."""
        how = {
            "resume": run_options.resume,
            "explained_slice": run_options.explain,
            "fail_on": run_options.fail_on,
            "tolerance": _tolerance(run_options, config),
            "known": _known(run_options),
        }
        chosen = {name: value for name, value in how.items() if value not in (None, False, {}, ())}
        run: Callable[..., Published | PublishedShift] = named(self.runs)
        with terminal:
            return run(config, engine, terminal, **chosen)


def engine_of(options: Mapping[str, Any]) -> Engine:
    """Return the engine that options name; its worker processes start while this one imports."""
    from slicebeam.pipelines.run.engine import start_engine

    named = options.get("runner_config", "direct")
    return start_engine(named, options.get("runner_option", ()), options.get("beam", ()))


def _tolerance(run_options: RunOptions, config: Any) -> dict[str, float]:
    if not run_options.tolerance:
        return {}
    from slicebeam.pipelines.search.tolerance import tolerances

    return tolerances(run_options.tolerance, config)


def _known(run_options: RunOptions) -> tuple[KnownSlice, ...]:
    """Return the slices that are known to be worse."""
    if run_options.known is None:
        return ()
    from slicebeam.pipelines.changelist.known import read_known

    return read_known(run_options.known)


def _check_effects(config: Any, run_options: RunOptions) -> None:
    if run_options.fail_on == "worse" and getattr(config, "alternative", None) == "better":
        raise OptionError(
            "--fail-on worse needs --alternative worse or both: with better, no slice is worse"
        )
    if run_options.fail_on in ("drift", "any") and not config.baseline_data:
        raise OptionError(
            f"--fail-on {run_options.fail_on} needs --baseline-data, the data to compare with"
        )
    if run_options.dry_run:
        _tolerance(run_options, config)
        _known(run_options)
    if not getattr(config, "simulates", False):
        return
    for key in ("fail_on", "page"):
        if run_options.has(key):
            raise OptionError(f"{flag(key)} has no effect on --plan and --repeat; leave it out")
    if run_options.resume and not (config.output or config.work_dir):
        raise OptionError(
            "--resume continues in the folder where the run began: give its --output or --work-dir"
        )


def _preview(
    config: Any, engine: Engine, terminal: Terminal, run_options: RunOptions, invocation: Invocation
) -> None:
    show: Callable[[], Any]
    if run_options.dry_run:
        from slicebeam.pipelines.search.dry_run import plan_of
        from slicebeam.pipelines.show.terminal_text import harmless

        job_plan = plan_of(config, engine)
        content: Any = job_plan.to_json()
        show = partial(sys.stdout.write, harmless(job_plan.to_text()) + "\n")
    else:
        from slicebeam.pipelines.shift.run import priced
        from slicebeam.pipelines.shift.simulated import better_methods, measure, plan
        from slicebeam.pipelines.show.shift import show_measured, show_plan

        simulate: Any = plan if config.plan else measure
        with terminal:
            simulated = simulate(config, engine, terminal, resume=run_options.resume)
        if config.plan:
            price, currency = priced(config)
            # A line holds all budgets.
            content = [[row._asdict() for row in simulated]]
            shown_currency = None if price is None else currency
            show = partial(show_plan, simulated, shown_currency, better_methods(simulated))
        else:
            content, show = simulated._asdict(), partial(show_measured, simulated)
    if run_options.as_json:
        invocation.emit(content)
    elif not run_options.quiet:
        show()
