"""Options of the commands on a ChangeList: show, report, define, edit and attribute."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from slicebeam.metrics.errors import InputError, OptionError, flag
from slicebeam.pipelines.config.common import BeamOptions, EngineName, EngineOptions
from slicebeam.pipelines.config.confirmation import Confirmed
from slicebeam.pipelines.config.option_fields import (
    PATH,
    REQUIRED,
    Column,
    Count,
    Excludes,
    File,
    Folder,
    Names,
    Option,
    OptionalFile,
    OptionalFolder,
    Paths,
    Requires,
    Rule,
    SliceName,
    Texts,
    default,
)
from slicebeam.pipelines.config.run_options import AllowHttp, Display

Document = Annotated[
    File,
    Option("Data", "ChangeList (any revision), or its folder for the last revision.", metavar=PATH),
]
Slice = Annotated[
    SliceName, Option(help="Slice, given by its slice_id, the start of its slice_id, or its name.")
]
EXPONENT, UNIFORM_SHARE = 4.0, 0.2
Probability = Annotated[float, Field(ge=0, le=1)]
# What defines a slice, one of these; with the method of its origin.
METHODS = {
    "text_filter": "text_filter",
    "where": "manual",
    "ids": "manual",
    "classifier": "classifier",
    "llm_filter": "lm_filter",
}


class DocumentConfig(Display):
    """Options of every command that reads a ChangeList."""

    changelist: Document = Field(REQUIRED, init=False)


class TextsConfig(DocumentConfig):
    """Options of every command that reads the examples of a ChangeList, and may embed texts."""

    data: Annotated[Paths, Option("Data")] = default(())
    """Files or globs of the examples. Repeatable. [default: as in the ChangeList]"""
    encoder: Annotated[str | None, Option("Models", metavar="<encoder>")] = None
    """Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint
    (openai:URL) that gets your texts."""
    allow_http: AllowHttp = False

    @property
    def confirmed(self) -> Confirmed:
        """The entries of the document that the user confirms."""
        names = {"model", "baseline_model", "encoder", "metric"}
        return Confirmed(**self.model_dump(include=names))


class ExamplesConfig(TextsConfig):
    """Options of every command that may run the models of a ChangeList on its examples, too."""

    model: Annotated[OptionalFile, Option("Models")] = default(None)
    """Confirms the model in the ChangeList. Loading it runs the code in it."""
    baseline_model: Annotated[OptionalFile, Option("Models")] = default(None)
    """Confirms the old model in the ChangeList."""
    metric: Annotated[Names, Option("Models", metavar="<metrics>")] = ()
    """Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an
    installed package). Importing it runs its code. Repeatable, or separated by commas."""


class CountingConfig(ExamplesConfig):
    """Options of every command that counts new slices."""

    other_data: Annotated[bool, Option("Data")] = False
    """Count on --data even if it is not the data that the ChangeList is about."""
    runner_config: EngineName = "direct"
    runner_option: EngineOptions = default(())
    beam: BeamOptions = default(())


class SliceConfig(DocumentConfig):
    """Options of an edit of one slice."""

    slice: Annotated[Slice, Option("Slices")]


class RenameConfig(SliceConfig):
    """Options of ``slicebeam edit rename``."""

    name: Annotated[str, Option("Slices")]
    """New name of the slice."""


class DescribeConfig(SliceConfig):
    """Options of ``slicebeam edit describe``."""

    text: Annotated[str, Option("Slices", metavar="<text>")]
    """Description of the slice. An empty one removes it."""


class AnnotateConfig(SliceConfig):
    """Options of ``slicebeam edit annotate``."""

    note: Annotated[str, Option("Slices", metavar="<text>")]
    """Note to add."""


class MergeConfig(CountingConfig):
    """Options of ``slicebeam edit merge``."""

    slices: Annotated[Texts, Option("Slices", metavar="<slice>", flags=("--slice",))]
    """Slice to merge, given by its slice_id or name. Repeatable."""
    name: Annotated[str, Option("Slices")]
    """Name of the new slice."""


class SplitConfig(CountingConfig):
    """Options of ``slicebeam edit split``."""

    slice: Annotated[Slice, Option("Slices")]
    where: Annotated[str, Option("Slices", metavar="<predicate>")]
    """Predicate that splits the slice. The examples that satisfy it become one part, the others the
    second."""
    name: Annotated[Texts, Option("Slices", metavar="<name>")] = ()
    """Name of a part. Give it twice, or not at all. [default: made from the slice and the
    predicate]"""


class DefineConfig(CountingConfig):
    """Options of ``slicebeam define``."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Requires("threshold", "text_filter"),
        Requires("llm budget text", "llm_filter"),
        Requires("llm_filter", "llm"),
        Requires("llm_filter", "budget"),
    )

    name: Annotated[str, Option("Definition")]
    """Name of the slice."""
    text_filter: Annotated[str | None, Option("Definition", metavar="<text>")] = None
    """Examples whose embedding is similar to that of this text."""
    threshold: Annotated[float | None, Option("Definition")] = None
    """Smallest cosine similarity for --text-filter. [default: mean + 2 standard deviations of the
    similarities of all examples]"""
    where: Annotated[str | None, Option("Definition", metavar="<predicate>", comes_first=True)] = (
        None
    )
    """Examples that satisfy a predicate, such as 'age < 25 & sex = Female'."""
    ids: Annotated[OptionalFile, Option("Definition")] = default(None)
    """Examples with the ids in this file: one a line, CSV or JSON Lines."""
    classifier: Annotated[OptionalFile, Option("Definition")] = default(None)
    """Examples that a classifier selects: a logistic regression on embeddings, trained on this CSV
    of id and label (yes, no)."""
    llm_filter: Annotated[str | None, Option("Definition", metavar="<prompt>")] = None
    """Examples for which a language model answers yes to this prompt. {text} stands for the text of
    the example. It works best after a few answered examples."""
    llm: Annotated[OptionalFile, Option("Definition")] = default(None)
    """YAML file that describes the language model's API, as for shift --api. {prompt} stands for
    the prompt."""
    budget: Annotated[int | None, Option("Definition")] = None
    """Maximum number of calls for --llm-filter, including those of earlier runs."""
    text: Annotated[Column | None, Option("Definition")] = None
    """Column of the texts for --llm-filter. [default: as in --changelist]"""

    @model_validator(mode="after")
    def _is_defined_once(self) -> DefineConfig:
        chosen = [flag(name) for name in METHODS if getattr(self, name) is not None]
        if len(chosen) != 1:
            problem = f"not {' and '.join(chosen)}" if chosen else "none of them is given"
            ways = ", ".join(map(flag, METHODS))
            raise InputError(f"a slice needs exactly one of {ways}; {problem}")
        return self

    @property
    def way(self) -> str:
        """The option that defines the slice."""
        return next(name for name in METHODS if getattr(self, name) is not None)


class ShowConfig(TextsConfig):
    """Options of ``slicebeam show``."""

    rules: ClassVar[tuple[Rule, ...]] = (Excludes("words", "slice"),)

    changelist: Annotated[Document, Option(is_argument=True)] = Field(REQUIRED, init=False)
    slice: Annotated[SliceName | None, Option("Slices")] = None
    """Slice whose examples are shown, given by its slice_id, the start of its slice_id, or its
    name."""
    words: Annotated[str | None, Option("Slices", metavar="<words>")] = None
    """Only slices with all of these words, joined by &, in their names, descriptions, notes,
    phrases or attributed words."""
    text: Annotated[str | None, Option("Slices", metavar="<text>")] = None
    """Text that slices are ordered by: the cosine similarity of the mean embedding of their
    examples to that of the text. With --slice, that of each example."""
    limit: Annotated[Count, Option("Output")] = 20
    """Maximum number of slices or examples."""

    @model_validator(mode="after")
    def _fits_together(self) -> ShowConfig:
        if self.text is not None and not self.text.strip():
            raise OptionError("--text is empty; write a text like the examples that you look for")
        return self


class ReportConfig(Display):
    """Options of ``slicebeam report``."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Requires("data", "examples", "the page contains no other data"),
    )

    changelist: Annotated[Folder, Option("Data", is_argument=True)] = Field(REQUIRED, init=False)
    """Output folder of a run (for the last revision of its ChangeList), or a ChangeList."""
    examples: Annotated[int, Field(ge=0, le=100), Option("Data", metavar="<count>")] = 0
    """Number of examples of each finding to include. The page then contains your data."""
    data: Annotated[Paths, Option("Data")] = default(())
    """Files or globs of the examples, on this machine. Repeatable. [default: as in the
    ChangeList]"""


class AttributionConfig(ExamplesConfig):
    """Options of every command about a slice and the words that describe it."""

    slice: Annotated[Slice, Option("Data")]
    text: Annotated[str, Option("Data", metavar="<text>")]
    """Words to test: a description that should be true of the slice's examples."""
    labels_dir: Annotated[OptionalFolder, Option("Labels")] = default(None)
    """Folder of the labels. [default: attribution, beside --changelist]"""
    least_precision: Annotated[Probability | None, Option("Statistics")] = None
    """Precision to accept. Kept from the first round. [default: 0.8]"""
    least_recall: Annotated[Probability | None, Option("Statistics")] = None
    """Recall to accept. Kept from the first round. [default: 0.8]"""
    looks: Annotated[Count | None, Option("Statistics")] = None
    """Number of times you will check whether there are enough labels. The intervals allow for it.
    Kept from the first round. [default: 1, or --rounds]"""
    seed: Annotated[int | None, Option("Statistics")] = None
    """Random seed. Kept from the first round. [default: 0]"""


class DrawingConfig(AttributionConfig):
    """Options of every command that draws examples to label."""

    query: Annotated[Texts, Option("Labels", metavar="<text>")] = ()
    """Text similar to the examples that --text describes, to find those that the slice misses.
    Repeatable. [default: --text]"""
    exponent: Annotated[float, Field(ge=0, allow_inf_nan=False), Option("Statistics")] = EXPONENT
    """Strength of the preference for examples similar to --query, in draws outside the slice."""
    uniform_share: Annotated[float, Field(gt=0, le=1), Option("Statistics")] = UNIFORM_SHARE
    """Share of the draws outside the slice that are uniform, above 0."""


class SampleConfig(DrawingConfig):
    """Options of ``slicebeam attribute sample``."""

    budget: Annotated[Count, Option("Labels")]
    """Number of labels in this round."""
    train: Annotated[bool, Option("Labels")] = False
    """Draw items for training a classifier instead of for estimation."""


class RoundsConfig(DrawingConfig):
    """Options of ``slicebeam attribute run``."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Excludes("labels", "llm", "both give labels"),
        Requires("positive", "labels", "it names values of that column"),
        Requires("ledger", "llm", "it stores the answers of a language model"),
    )

    budget: Annotated[Count, Option("Labels")]
    """Number of labels in all rounds, including those of earlier runs."""
    rounds: Annotated[Count, Option("Labels")] = 1
    """Number of rounds. After each, the command checks whether there are enough labels."""
    train: Annotated[int, Field(ge=0), Option("Labels")] = 0
    """Number of further labels for training a classifier, which proposes a better slice if the
    words do not describe this one."""
    labels: Annotated[Column | None, Option("Labels")] = None
    """Column of the labels."""
    positive: Annotated[Texts, Option("Labels", metavar="<value>")] = ()
    """Value of --labels that means yes. Repeatable."""
    llm: Annotated[OptionalFile, Option("Labels")] = default(None)
    """YAML file that describes a language model's API, as for slicebeam shift --api. Its prompt
    contains {attribution_text} and the columns that show an item."""
    ledger: Annotated[OptionalFolder, Option("Labels")] = default(None)
    """Folder that stores the paid answers. [default: in the folder of the labels]"""
