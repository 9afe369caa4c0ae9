"""What is printed or written of a run instead of running it: a dry run, a template."""

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


def check_asked(config: RunConfig, asked: RunOptions) -> None:
    """Refuse what does not go together.

    Raises
    ------
    InputError
        A flag would have no effect beside another one, or with this command.
    """
    wanted = {
        "--dry-run": asked.dry_run,
        "--template": asked.template is not None,
        "--single-job": asked.single_job,
    }
    given = [flag for flag, is_given in wanted.items() if is_given]
    of_search = [flag for flag in given if flag != "--dry-run"]
    if of_search and config.command != "search":
        raise InputError(f"{of_search[0]} is for search, not for {config.command}")
    if asked.template is not None and (asked.dry_run or asked.single_job):
        raise InputError(f"{' and '.join(given)} do not go together; choose one")
    if asked.resume and (asked.dry_run or asked.template is not None):
        raise OptionError(f"--resume has no effect beside {given[0]}, which runs nothing")
    if asked.explain is not None and given:
        raise OptionError(
            f"--explain needs what the search counts in this process; leave out {given[0]}"
        )


def preview(config: RunConfig, engine: Engine, asked: RunOptions) -> None:
    """Print what a run would do, or write its template.

    Raises
    ------
    InputError
        The options or the data are wrong.
    EngineError
        The template could not be written.
    """
    if asked.template is None or not isinstance(config, SearchConfig):
        from slicebeam.pipelines.plan.dry_run import plan_check, plan_search

        if isinstance(config, SearchConfig):
            planned = plan_search(config, engine, single_job=asked.single_job)
        elif isinstance(config, CheckConfig):
            planned = plan_check(config, engine)
        else:
            raise TypeError(f"nothing is known of {config.command}")
        said = planned.to_json() if asked.as_json else planned.to_text()
    else:
        from slicebeam.pipelines.single_job.template import write_template

        template = write_template(config, engine.config, asked.template)
        facts = {"template": str(template.path), "launch": template.launch}
        said = f"template: {template.path}"
        if template.launch:
            said += f"\nlaunch it with: {template.launch}"
        if asked.as_json:
            said = json.dumps(facts)
    if not asked.quiet or asked.as_json:
        sys.stdout.write(harmless(said) + "\n")
