"""From the options of ``slicebeam shift``, wherever they come from, to its result and exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.run.engine import start_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.pipelines.config.run_options import RunOptions
    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.show.event_log import EventLog
    from slicebeam.pipelines.show.terminal import Terminal


def launch_shift(
    options: Mapping[str, Any], run_options: RunOptions, events: EventLog | None
) -> int:
    """Run a shift, a plan of one or a measurement, show it, and return the exit code."""
    for name in ("explain", "dry_run"):
        if getattr(run_options, name):
            flag = "--" + name.replace("_", "-")
            instead = "; --plan estimates the cost" if name == "dry_run" else ""
            raise InputError(f"{flag} is not for a shift{instead}; leave it out")
    with start_engine(
        options.get("runner_config", "direct"), options.get("runner_option", ())
    ) as engine:
        from slicebeam.pipelines.config.shift import shift_config
        from slicebeam.pipelines.show.terminal import Terminal

        config = shift_config(dict(options))
        if config.simulates and run_options.fail_on is not None:
            raise OptionError("--fail-on has no effect on --plan and --repeat; leave it out")
        if run_options.resume and not (config.output or config.work_dir):
            raise OptionError(
                "--resume continues in the folder where the run began: give its --output or --work-dir"
            )
        if config.simulates and run_options.page:
            raise OptionError("--page has no effect on --plan and --repeat; leave it out")
        terminal = Terminal(quiet=run_options.quiet, as_json=run_options.as_json, events=events)
        try:
            if config.simulates:
                _simulate(config, engine, terminal, run_options)
                return 0
            return _assess(config, engine, terminal, run_options)
        finally:
            terminal.stop()


def _assess(
    config: ShiftConfig, engine: Engine, terminal: Terminal, run_options: RunOptions
) -> int:
    from slicebeam.pipelines.shift.run import run_shift
    from slicebeam.pipelines.show.printed_json import printed_json
    from slicebeam.pipelines.show.shift import show
    from slicebeam.pipelines.show.terminal_text import print_json

    published = run_shift(
        config, engine, terminal, resume=run_options.resume, fail_on=run_options.fail_on
    )
    terminal.stop()
    if run_options.as_json:
        print_json(printed_json(published))
    elif not run_options.quiet:
        show(published)
    if run_options.page:
        from slicebeam.pipelines.commands.page import write_page

        write_page(str(published.changelist_path), terminal)
    if terminal.events is not None:
        terminal.events.published_shift(published)
    return terminal.judged(published.changelist.gate)


def _simulate(
    config: ShiftConfig, engine: Engine, terminal: Terminal, run_options: RunOptions
) -> None:
    from slicebeam.pipelines.shift.run import priced
    from slicebeam.pipelines.shift.simulated import better_methods, measure, plan
    from slicebeam.pipelines.show.shift import show_measured, show_plan
    from slicebeam.pipelines.show.terminal_text import print_json

    if not config.plan:
        found = measure(config, engine, terminal, resume=run_options.resume)
        terminal.stop()
        if run_options.as_json:
            print_json(found._asdict())
        elif not run_options.quiet:
            show_measured(found)
        return
    planned = plan(config, engine, terminal, resume=run_options.resume)
    terminal.stop()
    price, currency = priced(config)
    if run_options.as_json:
        print_json([row._asdict() for row in planned])
    elif not run_options.quiet:
        show_plan(planned, None if price is None else currency, better_methods(planned))
