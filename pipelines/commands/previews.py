"""Previews instead of a run: a dry run, a template."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.config.check import CheckConfig
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.show.terminal_text import harmless

if TYPE_CHECKING:
    from slicebeam.pipelines.config.run_options import RunOptions
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.run.engine import Engine


def check_preview(config: RunConfig, run_options: RunOptions) -> None:
    """Refuse what does not go together.

    Raises
    ------
    InputError
        A flag would have no effect beside another one, or with this command.
    """
    wanted = {
        "--dry-run": run_options.dry_run,
        "--template": run_options.template is not None,
        "--single-job": run_options.single_job,
    }
    given = [flag for flag, is_given in wanted.items() if is_given]
    of_search = [flag for flag in given if flag != "--dry-run"]
    if of_search and config.command != "search":
        raise InputError(f"{of_search[0]} is for a search, not for {config.command}")
    if run_options.template is not None and (run_options.dry_run or run_options.single_job):
        raise InputError(f"{' and '.join(given)} cannot be combined; choose one")
    if run_options.resume and (run_options.dry_run or run_options.template is not None):
        raise OptionError(f"--resume has no effect with {given[0]}, which runs no job")
    if run_options.explain is not None and given:
        raise OptionError(
            f"--explain needs what the search counts in this process; leave out {given[0]}"
        )


def preview(config: RunConfig, engine: Engine, run_options: RunOptions) -> None:
    """Print the plan of a run, or write its template.

    Raises
    ------
    InputError
        The options or the data are wrong.
    EngineError
        The template could not be written.
    """
    if run_options.template is None or not isinstance(config, SearchConfig):
        from slicebeam.pipelines.plan.dry_run import plan_check, plan_search

        if isinstance(config, SearchConfig):
            planned = plan_search(config, engine, single_job=run_options.single_job)
        elif isinstance(config, CheckConfig):
            planned = plan_check(config, engine)
        else:
            raise TypeError(f"nothing is known of {config.command}")
        said = planned.to_json() if run_options.as_json else planned.to_text()
    else:
        from slicebeam.pipelines.single_job.template import write_template

        template = write_template(config, engine.config, run_options.template)
        facts = {"template": str(template.path), "launch": template.launch}
        said = f"template: {template.path}"
        if template.launch:
            said += f"\nlaunch it with: {template.launch}"
        if run_options.as_json:
            said = json.dumps(facts)
    if not run_options.quiet or run_options.as_json:
        sys.stdout.write(harmless(said) + "\n")
