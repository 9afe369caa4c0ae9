"""``slicebeam demo``: two searches of the census data that ships with the package.

The data is the test part of the UCI Adult data set (B. Becker and R. Kohavi, CC BY 4.0) with the
predictions of two models; ``examples/make_demo_data.py`` makes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import click

from slicebeam.pipelines.commands.command import Invocation
from slicebeam.pipelines.commands.table import data_command
from slicebeam.pipelines.config.option_fields import FOLDER, Option, Options
from slicebeam.pipelines.config.run_options import RunOptions

DATA = Path(__file__).parents[1] / "demo_data" / "adult_scored.parquet"


class DemoConfig(Options):
    """Options of ``slicebeam demo``."""

    output: Annotated[str, Option("Output", metavar=FOLDER)] = "slicebeam-demo"
    """Folder for the two results."""


def run_demo(config: DemoConfig, _: object) -> None:
    """Search the census data twice and show the results."""
    for title, options in demo_runs(Path(config.output)):
        click.secho(f"\n{title}", bold=True)
        data_command("search").launch(options, RunOptions(), Invocation())


def print_schema(_: Options, __: object) -> None:
    """Print the JSON Schema of the ChangeList."""
    from slicebeam.pipelines.changelist.document import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")


def demo_runs(output: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return a title and the options of each comparison."""
    common: dict[str, Any] = {"data": (str(DATA),), "label": "income", "prediction": "prediction"}
    # fnlwgt is the weight of the census, which says nothing about a person.
    no_features = ("row_id", "fnlwgt", "score", "score_old")
    overall = {
        "exclude_features": (*no_features, "prediction_old"),
        "output": str(output / "overall"),
    }
    baseline = {
        "baseline_prediction": "prediction_old",
        "alternative": "both",
        "exclude_features": no_features,
        "output": str(output / "baseline"),
    }
    return [
        ("1. Where is the model worse than over all examples?", common | overall),
        ("2. Where did the update change the model, and how?", common | baseline),
    ]
