"""The configuration of ``slicebeam adapt suggest``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from slicebeam.metrics.errors import OptionError, unknown_name
from slicebeam.pipelines.config.adapt import TREE, Classes
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    FILE,
    FOLDER,
    REQUIRED,
    Option,
    OptionalPath,
    Texts,
    default,
)
from slicebeam.pipelines.config.run_options import AllowHttp, Display
from slicebeam.pipelines.config.shift import known_budget

# What proposes tests, by name.
PROPOSERS = ("templates", "mined", "neighbours", "tree", "endpoint")


class ProposalSources(Display):
    """Options of every command that proposes tests: what proposals are made of, and their classes."""

    pool: Annotated[OptionalPath, Option("Data", metavar=FILE)] = default(None)
    """Texts without labels: a text a line, or CSV, JSON Lines or Parquet with --text."""
    text: Annotated[str | None, Option("Data", metavar=COLUMN, default="text")] = None
    """Column of the texts in --pool."""
    other_tree: Annotated[OptionalPath, Option("Data", metavar=FILE)] = default(None)
    """Another test tree, whose tests are proposed."""
    templates: Annotated[
        OptionalPath,
        Option(
            "Data", metavar=FILE, default="those of sentiment, where the model has such outputs"
        ),
    ] = default(None)
    """YAML file of templates, with what is expected of them."""
    classes: Classes = default(())


class AdaptSuggestConfig(ProposalSources):
    """Options of ``slicebeam adapt suggest``."""

    tree: Annotated[str, TREE] = Field(default=REQUIRED, init=False)
    model: Annotated[str, Option("Models", metavar="<model>")]
    """Model to find failing tests of: module:function, a pipeline of scikit-learn, or the .yaml
    file of an HTTP endpoint, as for slicebeam adapt run."""
    topic: Annotated[str, Option("Data", default="the whole tree")] = ""
    """Topic that gets the suggestions, such as /Negation."""
    proposer: Annotated[
        Texts,
        Option(
            "Search", metavar="<proposer>", by_commas=True, default="all that have what they need"
        ),
    ] = ()
    """What proposes: templates, mined, neighbours, tree, endpoint. Repeatable, or separated by
    commas."""
    proposals: Annotated[
        int, Field(ge=1, le=10_000), Option("Search", flags=("--proposals", "-k"))
    ] = 25
    """Number of proposals to score."""
    topics: Annotated[bool, Option("Search")] = False
    """Suggest topics below --topic, instead of tests."""
    endpoint: Annotated[str | None, Option("Models", metavar="<url>")] = None
    """Language model: the URL of an API like OpenAI's (https://host/v1?model=NAME), whose key is in
    OPENAI_API_KEY; or a .yaml file, as for slicebeam shift --api, with {prompt} in it."""
    budget: Annotated[
        str | None, Option("Budget", metavar="<amount>", default="what the proposals need")
    ] = None
    """Budget of paid calls, of --endpoint and of a paid --model together: calls, or money such as
    5USD by the price in the .yaml files. Earlier runs with the same ledger count."""
    ledger: Annotated[OptionalPath, Option("Budget", metavar=FOLDER, default="beside --output")] = (
        default(None)
    )
    """Folder that keeps the answers that were paid for."""
    seed: Annotated[int, Field(ge=0, lt=2**63), Option("Statistics")] = 0
    """Random seed."""
    output: Annotated[
        OptionalPath, Option("Output", metavar=FILE, default="TREE.suggestions.csv")
    ] = default(None)
    """Test tree to write the suggestions to, those that fail first."""
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
