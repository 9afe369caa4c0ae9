"""The configurations of the commands ``slicebeam adapt …``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.common import RunnerConfig, RunnerOption
from slicebeam.pipelines.config.option_fields import FILE, FOLDER, Option
from slicebeam.pipelines.config.run_options import AllowHttp, Display
from slicebeam.pipelines.config.shift import known_budget

TREE = Option(
    "Test tree: a CSV file of AdaTest.",
    "Data",
    metavar=FILE,
    is_argument=True,
)
_MODEL = (
    "module:function, which gets a list of texts or makes a model; a pipeline of scikit-learn (pickle, "
    "joblib), whose code runs; or the .yaml file of an HTTP endpoint, as for slicebeam shift --api, with "
    "{input} in it."
)
FAIL_ON = ("worse", "failing")


class AdaptRunConfig(Display):
    """Options of ``slicebeam adapt run``."""

    tree: Annotated[str, TREE]
    model: Annotated[str, Option(f"Model to test: {_MODEL}", "Models", metavar="<model>")]
    output: Annotated[
        str,
        Option(
            "Folder for changelist.json, slices.parquet and tests.parquet, which has the score of each test.",
            "Output",
            metavar=FOLDER,
        ),
    ]
    baseline_model: Annotated[
        str | None,
        Option(
            "The old model, in any of these forms, to report which topics are fixed and broken.",
            "Models",
            metavar="<model>",
        ),
    ] = None
    inverse_model: Annotated[
        str | None,
        Option(
            "Model that makes inputs of outputs again, for tests that should be invertible.",
            "Models",
            metavar="<model>",
        ),
    ] = None
    output_classifier: Annotated[
        str | None,
        Option(
            "Classifier of outputs, for tests that should not be classified as something.",
            "Models",
            metavar="<model>",
        ),
    ] = None
    budget: Annotated[
        str | None,
        Option(
            "Budget of paid answers: calls, or money such as 5USD by the price in the .yaml files. Earlier "
            "runs with the same ledger count. Tests that it does not buy are not scored.",
            "Budget",
            metavar="<amount>",
            default="an answer for each input",
        ),
    ] = None
    ledger: Annotated[
        str | None,
        Option(
            "Folder that keeps the answers that were paid for.",
            "Budget",
            metavar=FOLDER,
            default="OUTPUT/ledger",
        ),
    ] = None
    alpha: Annotated[
        float,
        Field(gt=0, lt=1),
        Option("False discovery rate of topics that are fixed or broken.", "Statistics"),
    ] = 0.05
    since: Annotated[
        str | None,
        Option(
            "ChangeList of an earlier run on the tree, to report what is new, gone, worse or better since.",
            "Output",
            metavar=FILE,
        ),
    ] = None
    fail_on: Annotated[
        str | None,
        Option(
            "worse: exit with 1 if a topic is significantly worse than with the old model (or, without one, "
            "than all tests). failing: exit with 1 if a fifth of a topic's tests fail. Both: exit with 2 if a "
            "topic can't be judged, because too few of its tests could be scored.",
            "Output",
            in_python=False,
        ),
    ] = None
    runner_config: RunnerConfig = "direct"
    runner_option: RunnerOption = ()
    allow_http: AllowHttp = False

    _known_budget = field_validator("budget")(known_budget)

    @model_validator(mode="after")
    def _fits_together(self) -> AdaptRunConfig:
        if self.fail_on not in (None, *FAIL_ON):
            raise OptionError(f"--fail-on {self.fail_on!r}: choose from {', '.join(FAIL_ON)}")
        if self.baseline_model == self.model:
            raise OptionError(
                f"--model and --baseline-model are both {self.model!r}: a model does not differ from itself; "
                "name the old one"
            )
        return self


class ImportChecklistConfig(Display):
    """Options of ``slicebeam adapt import-checklist``."""

    suite: Annotated[
        str,
        Option(
            "Suite of CheckList: a table (.parquet, .csv, .jsonl), a release (.pkl, .tar.gz) or examples "
            "(.txt).",
            "Data",
            metavar=FILE,
            is_argument=True,
        ),
    ]
    to: Annotated[str, Option("Test tree to write.", "Output", metavar=FILE)]
    expectations: Annotated[
        str | None,
        Option(
            "YAML file with the names of the labels and, by the name of a test, what it expects.",
            "Data",
            metavar=FILE,
        ),
    ] = None
