"""``slicebeam demo``: two searches of the census data that ships with the package.

The data is the test part of the UCI Adult data set (B. Becker and R. Kohavi, CC BY 4.0) with the
predictions of two models; ``examples/make_demo_data.py`` makes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from slicebeam.pipelines.commands.launch import Invocation, run_config
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.option_fields import FOLDER, Option, Options
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.config.search import SearchConfig, search_config
from slicebeam.pipelines.run.engine import start_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parents[1] / "demo_data" / "adult_scored.parquet"


class DemoConfig(Options):
    """Options of ``slicebeam demo``."""

    output: Annotated[str, Option("Output", metavar=FOLDER)] = "slicebeam-demo"
    """Folder for the two results."""


def run_demo(name: str, given: Mapping[str, Any], invocation: Invocation) -> int:  # noqa: ARG001
    """Search the census data twice and show the results; return the exit code."""
    from slicebeam.pipelines.show.terminal import Terminal

    for title, config in demo_runs(Path(validated(DemoConfig, given).output)):
        click.secho(f"\n{title}", bold=True)
        with start_engine(config.runner_config, config.runner_option) as engine:
            run_config(config, engine, Terminal(), RunOptions())
    return 0


def print_schema(name: str, given: Mapping[str, Any], invocation: Invocation) -> int:  # noqa: ARG001
    """Print the JSON Schema of the ChangeList; return the exit code."""
    from slicebeam.pipelines.changelist.document import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")
    return 0


def demo_runs(output: Path) -> list[tuple[str, SearchConfig]]:
    """Return a title and a configuration for each comparison."""
    common: dict[str, Any] = {"data": (str(DATA),), "label": "income", "prediction": "prediction"}
    # fnlwgt is the weight of the census, which says nothing about a person.
    no_features = ("row_id", "fnlwgt", "score", "score_old")
    runs: list[tuple[str, dict[str, Any]]] = [
        (
            "1. Where is the model worse than over all examples?",
            {
                "exclude_features": (*no_features, "prediction_old"),
                "output": str(output / "overall"),
            },
        ),
        (
            "2. Where did the update change the model, and how?",
            {
                "baseline_prediction": "prediction_old",
                "alternative": "both",
                "exclude_features": no_features,
                "output": str(output / "baseline"),
            },
        ),
    ]
    return [(title, search_config({**common, **options})) for title, options in runs]
