"""``--dry-run``: prints what a run would do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.check import CheckConfig
from slicebeam.pipelines.config.search import SearchConfig
from slicebeam.pipelines.plan.dry_run import plan_check, plan_search
from slicebeam.pipelines.show.terminal_text import harmless

if TYPE_CHECKING:
    from slicebeam.pipelines.config.run_options import RunOptions
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.run.engine import Engine


def dry_run(config: RunConfig, engine: Engine, run_options: RunOptions) -> None:
    """Print the plan of a run.

    Raises
    ------
    InputError
        The options or the data are wrong, or an option has no effect here.
    """
    for name in ("resume", "explain", "page"):
        if getattr(run_options, name):
            raise OptionError(f"--{name} has no effect with --dry-run, which runs no job")
    if isinstance(config, SearchConfig):
        planned = plan_search(config, engine)
    elif isinstance(config, CheckConfig):
        planned = plan_check(config, engine)
    else:
        raise TypeError(f"nothing is known of {config.command}")
    said = planned.to_json() if run_options.as_json else planned.to_text()
    if not run_options.quiet or run_options.as_json:
        sys.stdout.write(harmless(said) + "\n")
