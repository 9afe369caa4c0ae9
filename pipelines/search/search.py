"""``slicebeam search``: all conjunctions of values, on their own or compared with an earlier run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.prepare.encoded_dataset import prepare
from slicebeam.pipelines.search.run_steps import Steps, run_steps

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.search.iterations import SearchObserver
    from slicebeam.pipelines.search.run_steps import HowToRun
    from slicebeam.pipelines.search.since import BaselineRun


def run_search(
    config: SearchConfig, engine: Engine, observer: SearchObserver, **how: Unpack[HowToRun]
) -> Published:
    """Search the slices and publish what was found."""
    asked, (config, earlier) = config, compared(config)
    if earlier is not None and asked.follows_data:
        from slicebeam.pipelines.search.fingerprints import against_data_of

        against = against_data_of(asked, earlier.document, engine, observer)
        config, earlier = (config, earlier) if against is None else (against, None)
    return run_steps(config, Steps(prepare), engine, observer, earlier, **how)


def compared(
    config: SearchConfig, *, is_published: bool = False
) -> tuple[SearchConfig, BaselineRun | None]:
    """Return a search as it is run, and the earlier run that it is compared with.

    ``is_published``: whether the published slices of that run are compared in any case.
    """
    if config.since is None:
        return config, None
    from slicebeam.pipelines.search.since import earlier_run

    earlier = earlier_run(config, by_data=config.follows_data and not is_published)
    if earlier is not None and earlier.document.discovery is not None:
        raise OptionError(
            f"--since {config.since} is the document of a discovery, whose slices are not columns "
            "of the data; follow them with slicebeam check --changelist, or name the document of "
            "a search"
        )
    if earlier is not None and earlier.document.dataset.domains:
        config = config.with_domains_of_since()
    return config, earlier
