"""The configuration of ``slicebeam adapt suggest``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from slicebeam.metrics.errors import OptionError, unknown_name
from slicebeam.pipelines.config.adapt import TREE, Classes
from slicebeam.pipelines.config.option_fields import COLUMN, FILE, FOLDER, Option
from slicebeam.pipelines.config.run_options import AllowHttp, Display
from slicebeam.pipelines.config.shift import known_budget

# What proposes tests, by name.
PROPOSERS = ("templates", "mined", "neighbours", "tree", "endpoint")


class ProposalSources(Display):
    """Options of every command that proposes tests: what proposals are made of, and their classes."""

    pool: Annotated[
        str | None,
        Option(
            "Texts without labels: a text a line, or CSV, JSON Lines or Parquet with --text.",
            "Data",
            metavar=FILE,
        ),
    ] = None
    text: Annotated[
        str | None, Option("Column of the texts in --pool.", "Data", metavar=COLUMN, default="text")
    ] = None
    other_tree: Annotated[
        str | None, Option("Another test tree, whose tests are proposed.", "Data", metavar=FILE)
    ] = None
    templates: Annotated[
        str | None,
        Option(
            "YAML file of templates, with what is expected of them.",
            "Data",
            metavar=FILE,
            default="those of sentiment, where the model has such outputs",
        ),
    ] = None
    classes: Classes = ()


class AdaptSuggestConfig(ProposalSources):
    """Options of ``slicebeam adapt suggest``."""

    tree: Annotated[str, TREE]
    model: Annotated[
        str,
        Option(
            "Model to find failing tests of: module:function, a pipeline of scikit-learn, or the .yaml file "
            "of an HTTP endpoint, as for slicebeam adapt run.",
            "Models",
            metavar="<model>",
        ),
    ]
    topic: Annotated[
        str,
        Option(
            "Topic that gets the suggestions, such as /Negation.", "Data", default="the whole tree"
        ),
    ] = ""
    proposer: Annotated[
        tuple[str, ...],
        Option(
            "What proposes: templates, mined, neighbours, tree, endpoint. Repeatable, "
            "or separated by commas.",
            "Search",
            metavar="<proposer>",
            by_commas=True,
            default="all that have what they need",
        ),
    ] = ()
    proposals: Annotated[
        int,
        Field(ge=1, le=10_000),
        Option("Number of proposals to score.", "Search", flags=("--proposals", "-k")),
    ] = 25
    topics: Annotated[bool, Option("Suggest topics below --topic, instead of tests.", "Search")] = (
        False
    )
    endpoint: Annotated[
        str | None,
        Option(
            "Language model: the URL of an API like OpenAI's (https://host/v1?model=NAME), whose key is in "
            "OPENAI_API_KEY; or a .yaml file, as for slicebeam shift --api, with {prompt} in it.",
            "Models",
            metavar="<url>",
        ),
    ] = None
    budget: Annotated[
        str | None,
        Option(
            "Budget of paid calls, of --endpoint and of a paid --model together: calls, or money such as "
            "5USD by the price in the .yaml files. Earlier runs with the same ledger count.",
            "Budget",
            metavar="<amount>",
            default="what the proposals need",
        ),
    ] = None
    ledger: Annotated[
        str | None,
        Option(
            "Folder that keeps the answers that were paid for.",
            "Budget",
            metavar=FOLDER,
            default="beside --output",
        ),
    ] = None
    seed: Annotated[int, Field(ge=0, lt=2**63), Option("Random seed.", "Statistics")] = 0
    output: Annotated[
        str | None,
        Option(
            "Test tree to write the suggestions to, those that fail first.",
            "Output",
            metavar=FILE,
            default="TREE.suggestions.csv",
        ),
    ] = None
    allow_http: AllowHttp = False

    @field_validator("proposer")
    @classmethod
    def _known_proposers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [name.strip() for given in value for name in given.split(",")]
        for name in names:
            if name not in PROPOSERS:
                raise OptionError(f"--proposer: {unknown_name('proposer', name, PROPOSERS)}")
        return tuple(dict.fromkeys(names))

    _known_budget = field_validator("budget")(known_budget)

    @property
    def suggestions(self) -> str:
        """The file that gets the suggestions."""
        if self.output is not None:
            return self.output
        stem = self.tree.removesuffix(".gz").removesuffix(".csv")
        return f"{stem}.suggestions.csv"
