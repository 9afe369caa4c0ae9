"""Options of the commands on test trees: ``slicebeam adapt …``, and serve, which judges suggestions too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from slicebeam.metrics.errors import OptionError, unknown_name
from slicebeam.pipelines.config.document import Document, ExamplesConfig
from slicebeam.pipelines.config.option_fields import (
    REQUIRED,
    Column,
    Columns,
    File,
    Folder,
    Model,
    Names,
    Option,
    OptionalFile,
    OptionalFolder,
    Pairs,
    Requires,
    Rule,
    Seed,
    Share,
    Texts,
    checked,
    default,
)
from slicebeam.pipelines.config.run_options import AllowHttp, Display
from slicebeam.pipelines.config.shift import Amount

# What proposes tests, by name.
PROPOSERS = ("templates", "mined", "neighbours", "tree", "random", "endpoint")


def class_pairs(classes: Sequence[str]) -> dict[str, str]:
    """Return the classes of the models, by the names in the tree.

    Examples
    --------
    >>> class_pairs(["pos=positive", " neg = negative"])
    {'pos': 'positive', 'neg': 'negative'}
    """
    pairs: dict[str, str] = {}
    for pair in classes:
        name, equals, to = (part.strip() for part in pair.partition("="))
        if not (name and equals and to):
            raise OptionError(
                f"--classes {pair!r}: write the name in the tree and the class of the model, as in pos=positive"
            )
        if name in pairs:
            raise OptionError(
                f"--classes names {name!r} twice, as {pairs[name]!r} and as {to!r}; leave one out"
            )
        pairs[name] = to
    return pairs


def text_or_pair(names: Sequence[str]) -> None:
    """Refuse columns that are not those of a text or of a pair of texts."""
    if not 1 <= len(set(names)) == len(names) <= 2 or "" in names:
        raise OptionError(
            f"--text {','.join(names)}: name the column of the texts, or the two columns of pairs"
        )


TextColumns = Annotated[Columns, checked(text_or_pair)]
Tree = Annotated[File, Option("Data", "Test tree: a CSV file of AdaTest.", is_argument=True)]
ClassPairs = Annotated[Pairs, checked(class_pairs), Option(metavar="<name=class>", by_commas=True)]
Classes = Annotated[
    ClassPairs,
    Option(
        "Models",
        "Class of the model that a name in the tree means, as in pos=positive; pos=pos says that the name is "
        "right. Repeatable, or separated by commas. [default: the names are the same]",
    ),
]


class AdaptRunConfig(Display):
    """Options of ``slicebeam adapt run``."""

    tree: Tree = Field(REQUIRED, init=False)
    model: Annotated[Model, Option("Models")]
    """Model to test: module:function, which gets a list of texts or makes a model; a pipeline of
    scikit-learn (pickle, joblib), whose code runs; or the .yaml file of an HTTP endpoint, as for
    slicebeam shift --api, with {input} in it."""
    output: Annotated[Folder, Option("Output")]
    """Folder for changelist.json, slices.parquet and tests.parquet, which has the score of each
    test."""
    baseline_model: Annotated[Model | None, Option("Models")] = None
    """The old model, in any of these forms, to report which topics are fixed and broken."""
    output_classifier: Annotated[Model | None, Option("Models")] = None
    """Classifier of outputs, for tests that should not be classified as something."""
    classes: Classes = default(())
    budget: Annotated[Amount, Option("Budget")] = None
    """Budget of paid answers: calls, or money such as 5USD by the price in the .yaml files. Earlier
    runs with the same ledger count. Tests that it does not buy are not scored. [default: an answer
    for each input]"""
    ledger: Annotated[OptionalFolder, Option("Budget")] = default(None)
    """Folder that keeps the answers that were paid for. [default: OUTPUT/ledger]"""
    alpha: Annotated[Share, Option("Statistics")] = 0.05
    """False discovery rate of topics that are fixed or broken."""
    since: Annotated[OptionalFile, Option("Output")] = default(None)
    """ChangeList of an earlier run on the tree, to report what is new, gone, worse or better
    since."""
    fail_on: Annotated[Literal["worse", "failing"] | None, Option("Output")] = Field(
        default=None, init=False
    )
    """worse: exit with 1 if a topic, or with an old model all tests, are significantly worse than
    with it (without one, a topic than all tests). failing: exit with 1 if a fifth of a topic's
    tests fail. Both: exit with 2 if a topic can't be judged, because too few of its tests could be
    scored."""
    allow_http: AllowHttp = False

    @model_validator(mode="after")
    def _fits_together(self) -> AdaptRunConfig:
        if self.baseline_model == self.model:
            raise OptionError(
                f"--model and --baseline-model are both {self.model!r}: a model does not differ from itself; "
                "name the old one"
            )
        return self


class ImportChecklistConfig(Display):
    """Options of ``slicebeam adapt import-checklist``."""

    suite: Annotated[File, Option("Data", is_argument=True)] = Field(REQUIRED, init=False)
    """Suite of CheckList: a table (.parquet, .csv) with test, capability, type, input, label."""
    to: Annotated[File, Option("Output")]
    """Test tree to write."""
    expectations: Annotated[OptionalFile, Option("Data")] = default(None)
    """YAML file with the names of the labels and, by the name of a test, what it expects."""


class ProposalSources(Display):
    """Options of every command that proposes tests: what proposals are made of, and their classes."""

    pool: Annotated[OptionalFile, Option("Data")] = default(None)
    """Texts without labels: a text a line, or CSV, JSON Lines or Parquet with --text."""
    text: Annotated[Column | None, Option("Data")] = None
    """Column of the texts in --pool. [default: text]"""
    other_tree: Annotated[OptionalFile, Option("Data")] = default(None)
    """Another test tree, whose tests are proposed."""
    templates: Annotated[OptionalFile, Option("Data")] = default(None)
    """YAML file of templates, with what is expected of them. [default: those of sentiment, where
    the model has such outputs]"""
    classes: Classes = default(())
    endpoint: Annotated[str | None, Option("Models", metavar="<url>")] = None
    """Language model: the URL of an API like OpenAI's (https://host/v1?model=NAME), whose key is in
    OPENAI_API_KEY; or a .yaml file, as for slicebeam shift --api, with {prompt} in it."""
    budget: Annotated[Amount, Option("Budget")] = None
    """Budget of paid calls, of --endpoint and of a paid --model together: calls, or money such as
    5USD by the price in the .yaml files. Earlier runs with the same ledger count. [default: what
    the proposals need]"""
    ledger: Annotated[OptionalFolder, Option("Budget")] = default(None)
    """Folder that keeps the answers that were paid for. [default: beside the file of the suggestions]"""


class AdaptSuggestConfig(ProposalSources):
    """Options of ``slicebeam adapt suggest``."""

    tree: Tree = Field(REQUIRED, init=False)
    model: Annotated[Model, Option("Models")]
    """Model to find failing tests of: module:function, a pipeline of scikit-learn, or the .yaml
    file of an HTTP endpoint, as for slicebeam adapt run."""
    topic: Annotated[str, Option("Data")] = ""
    """Topic that gets the suggestions, such as /Negation. [default: the whole tree]"""
    proposer: Annotated[Names, Option("Search", metavar="<proposer>")] = ()
    """What proposes: templates, mined, neighbours, tree, endpoint; random draws texts of --pool, as
    a baseline. Repeatable, or separated by commas. [default: all that have what they need, without
    random]"""
    proposals: Annotated[
        int, Field(ge=1, le=10_000), Option("Search", flags=("--proposals", "-k"))
    ] = 25
    """Number of proposals to score."""
    topics: Annotated[bool, Option("Search")] = False
    """Suggest topics below --topic, instead of tests."""
    seed: Annotated[Seed, Option("Statistics")] = 0
    """Random seed."""
    output: Annotated[OptionalFile, Option("Output")] = default(None)
    """Test tree to write the suggestions to, those that fail first. [default:
    TREE.suggestions.csv]"""
    allow_http: AllowHttp = False

    @field_validator("proposer")
    @classmethod
    def _are_proposers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [name.strip() for text in value for name in text.split(",")]
        for name in names:
            if name not in PROPOSERS:
                raise OptionError(f"--proposer: {unknown_name('proposer', name, PROPOSERS)}")
        return tuple(dict.fromkeys(names))

    @property
    def suggestions(self) -> str:
        """The file that gets the suggestions."""
        if self.output is not None:
            return self.output
        stem = self.tree.removesuffix(".gz").removesuffix(".csv")
        return f"{stem}.suggestions.csv"


class ExportTrainingConfig(Display):
    """Options of ``slicebeam adapt export-training``."""

    tree: Tree = Field(REQUIRED, init=False)
    changelist: Document
    to: Annotated[File, Option("Output")]
    """File to write (.parquet, .csv), with text, label, topic and weight."""
    mix: Annotated[OptionalFile, Option("Data")] = default(None)
    """Training data (.parquet, .csv, .csv.gz), of which as many rows are mixed in, as many of each
    label; its labels are those of the tests. [default: the tests alone]"""
    text: Annotated[TextColumns, Option("Data")] = ("text",)
    """Column of the texts, in --mix too; of pairs both columns. Repeatable, or separated by commas.
    [default: text]"""
    label: Annotated[Column, Option("Data")] = "label"
    """Column of the labels, in --mix too. [default: label]"""
    topic: Annotated[Texts, Option("Data", metavar="<topic>")] = ()
    """Topic whose failing tests to export, such as /Negation. Repeatable. [default: the whole
    tree]"""
    classes: Annotated[ClassPairs, Option("Data")] = default(())
    """Label that a name in the tree means, as in pos=positive. Repeatable, or separated by commas.
    [default: --classes of the run in --changelist]"""
    seed: Annotated[Seed, Option("Statistics")] = 0
    """Random seed."""

    @field_validator("mix", "to")
    @classmethod
    def _is_table(cls, value: str | None, info: ValidationInfo) -> str | None:
        packed = (".csv.gz",) if info.field_name == "mix" else ()
        if value is not None and not value.endswith((".parquet", ".csv", *packed)):
            raise OptionError(
                f"--{info.field_name} {value}: name a file of Parquet or CSV, which ends in .parquet or .csv"
            )
        return value

    @model_validator(mode="after")
    def _different_columns(self) -> ExportTrainingConfig:
        names = (*self.text, self.label, "topic", "weight")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise OptionError(
                f"--text and --label: two columns of --to would be named {twice!r}; name other columns"
            )
        return self


class AdaptFromConfig(ExamplesConfig):
    """Options of ``slicebeam adapt from``."""

    changelist: Annotated[Folder, Option("Data", is_argument=True)] = Field(REQUIRED, init=False)
    """Output folder of a search, discovery or check (for the last revision of its ChangeList), or a
    ChangeList."""
    to: Annotated[File, Option("Output")]
    """Test tree to write."""
    append: Annotated[bool, Option("Output")] = False
    """Add to the tree in --to, if there is one, the tests that it has not."""
    text: Annotated[TextColumns, Option("Data")] = ()
    """Column of the texts that are the inputs of the model; of pairs both columns. Repeatable, or
    separated by commas. [default: that of a discovery, or the only column of free text]"""
    slice: Annotated[Texts, Option("Data", metavar="<slice>")] = ()
    """Slice (id, the beginning of one, or name) to make a topic of. Repeatable. [default: the
    findings; of a discovery all slices]"""
    topic: Annotated[str, Option("Output", metavar="<topic>")] = "/found"
    """Topic below which those of the slices are."""
    classes: Annotated[ClassPairs, Option("Output")] = default(())
    """Label of the run that a name in the tree means, as in pos=positive: tests expect pos.
    Repeatable, or separated by commas. [default: the labels of the run]"""
    examples: Annotated[int, Field(ge=1, le=10_000), Option("Output", metavar="<count>")] = 10
    """Maximum number of tests of each slice."""
    seed: Annotated[int, Field(ge=0, lt=2**32), Option("Statistics")] = 0
    """Random seed."""

    @field_validator("topic")
    @classmethod
    def _is_a_topic(cls, value: str) -> str:
        topic = value.rstrip("/")
        if (topic and not topic.startswith("/")) or "//" in topic or "__suggestions__" in topic:
            raise OptionError(f"--topic {value!r} is not a topic path such as /found/nightly")
        return topic


class ServeConfig(ExamplesConfig, ProposalSources):
    """Options of ``slicebeam serve``."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Requires("tree", "tree_model"),
        Requires("tree_model", "tree"),
        Requires("tree_baseline_model", "tree"),
        Requires("endpoint", "tree"),
        Requires("budget", "endpoint"),
        Requires("ledger", "endpoint"),
    )

    changelist: Annotated[Folder, Option("Data", is_argument=True)] = Field(REQUIRED, init=False)
    """Output folder of a run, or a folder of such folders."""
    model: Annotated[Model | None, Option("Models")] = None
    """New model to call in the playground, as in slicebeam search --model. It confirms that of the
    ChangeList. Loading it runs the code in it."""
    baseline_model: Annotated[Model | None, Option("Models")] = None
    """Old model, likewise."""
    port: Annotated[int, Field(ge=0, le=65_535), Option("Engine", metavar="<port>")] = 0
    """Port on 127.0.0.1 to listen at. [default: a free one]"""
    open: Annotated[bool, Option("Output")] = False
    """Open the page in the browser."""
    known: Annotated[OptionalFile, Option("Data")] = default(None)
    """YAML or JSON file to write slices into that are marked as known, for --known of the next run. It
    need not exist."""
    tree: Annotated[OptionalFile, Option("Data")] = default(None)
    """Test tree to grow in the Tests view. Its suggestions are in TREE.suggestions.csv, as of slicebeam
    adapt suggest."""
    tree_model: Annotated[Model | None, Option("Models")] = None
    """Model that --tree is tested against, as for slicebeam adapt suggest --model; its answers cost
    nothing."""
    tree_baseline_model: Annotated[Model | None, Option("Models")] = None
    """The old model, whose outputs are shown beside those of --tree-model."""
