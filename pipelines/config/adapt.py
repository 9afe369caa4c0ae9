"""The configurations of the commands ``slicebeam adapt …``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.option_fields import (
    FILE,
    FOLDER,
    REQUIRED,
    FilePath,
    KeyValues,
    Option,
    OptionalPath,
    default,
)
from slicebeam.pipelines.config.run_options import AllowHttp, Display
from slicebeam.pipelines.config.shift import known_budget

TREE = Option("Data", "Test tree: a CSV file of AdaTest.", metavar=FILE, is_argument=True)
_MODEL = (
    "module:function, which gets a list of texts or makes a model; a pipeline of scikit-learn (pickle, "
    "joblib), whose code runs; or the .yaml file of an HTTP endpoint, as for slicebeam shift --api, with "
    "{input} in it."
)
FAIL_ON = ("worse", "failing")


def class_pairs(classes: Sequence[str]) -> dict[str, str]:
    """Return the classes of the models, by the names in the tree.

    Examples
    --------
    >>> class_pairs(["pos=positive", " neg = negative"])
    {'pos': 'positive', 'neg': 'negative'}
    """
    found: dict[str, str] = {}
    for pair in classes:
        name, equals, to = (part.strip() for part in pair.partition("="))
        if not (name and equals and to):
            raise OptionError(
                f"--classes {pair!r}: write the name in the tree and the class of the model, as in pos=positive"
            )
        if name in found:
            raise OptionError(
                f"--classes names {name!r} twice, as {found[name]!r} and as {to!r}; leave one out"
            )
        found[name] = to
    return found


def known_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the value of ``--classes``, if it can be read."""
    class_pairs(classes)
    return classes


CLASS = "<name=class>"
Classes = Annotated[
    KeyValues,
    AfterValidator(known_classes),
    Option(
        "Models",
        "Class of the model that a name in the tree means, as in pos=positive; pos=pos says that the name is "
        "right. Repeatable, or separated by commas.",
        metavar=CLASS,
        by_commas=True,
        default="the names are the same",
    ),
]


class AdaptRunConfig(Display):
    """Options of ``slicebeam adapt run``."""

    tree: Annotated[str, TREE] = Field(default=REQUIRED, init=False)
    model: Annotated[str, Option("Models", f"Model to test: {_MODEL}", metavar="<model>")]
    output: Annotated[FilePath, Option("Output", metavar=FOLDER)]
    """Folder for changelist.json, slices.parquet and tests.parquet, which has the score of each
    test."""
    baseline_model: Annotated[str | None, Option("Models", metavar="<model>")] = None
    """The old model, in any of these forms, to report which topics are fixed and broken."""
    output_classifier: Annotated[str | None, Option("Models", metavar="<model>")] = None
    """Classifier of outputs, for tests that should not be classified as something."""
    classes: Classes = default(())
    budget: Annotated[
        str | None, Option("Budget", metavar="<amount>", default="an answer for each input")
    ] = None
    """Budget of paid answers: calls, or money such as 5USD by the price in the .yaml files. Earlier
    runs with the same ledger count. Tests that it does not buy are not scored."""
    ledger: Annotated[OptionalPath, Option("Budget", metavar=FOLDER, default="OUTPUT/ledger")] = (
        default(None)
    )
    """Folder that keeps the answers that were paid for."""
    alpha: Annotated[float, Field(gt=0, lt=1), Option("Statistics")] = 0.05
    """False discovery rate of topics that are fixed or broken."""
    since: Annotated[OptionalPath, Option("Output", metavar=FILE)] = default(None)
    """ChangeList of an earlier run on the tree, to report what is new, gone, worse or better
    since."""
    fail_on: Annotated[str | None, Option("Output")] = Field(default=None, init=False)
    """worse: exit with 1 if a topic, or with an old model all tests, are significantly worse than
    with it (without one, a topic than all tests). failing: exit with 1 if a fifth of a topic's
    tests fail. Both: exit with 2 if a topic can't be judged, because too few of its tests could be
    scored."""
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

    suite: Annotated[str, Option("Data", metavar=FILE, is_argument=True)] = Field(
        default=REQUIRED, init=False
    )
    """Suite of CheckList: a table (.parquet, .csv) with test, capability, type, input, label."""
    to: Annotated[FilePath, Option("Output", metavar=FILE)]
    """Test tree to write."""
    expectations: Annotated[OptionalPath, Option("Data", metavar=FILE)] = default(None)
    """YAML file with the names of the labels and, by the name of a test, what it expects."""
