"""The configurations of the commands ``slicebeam attribute …``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    FILE,
    FOLDER,
    Option,
    OptionalPath,
    Texts,
    default,
)

EXPONENT, UNIFORM_SHARE = 4.0, 0.2


class AttributionConfig(ExamplesConfig):
    """Options of every command about a slice and the words that describe it."""

    slice: Annotated[str, Option("Data", metavar="<slice>")]
    """Slice, given by its slice_id, the start of its slice_id, or its name."""
    text: Annotated[str, Option("Data", metavar="<text>")]
    """Words to test: a description that should be true of the slice's examples."""
    labels_dir: Annotated[
        OptionalPath, Option("Labels", metavar=FOLDER, default="attribution, beside --changelist")
    ] = default(None)
    """Folder of the labels."""
    least_precision: Annotated[float | None, Option("Statistics", default="0.8")] = None
    """Precision to accept. Kept from the first round."""
    least_recall: Annotated[float | None, Option("Statistics", default="0.8")] = None
    """Recall to accept. Kept from the first round."""
    looks: Annotated[int | None, Option("Statistics", default="1, or --rounds")] = None
    """Number of times you will check whether there are enough labels. The intervals allow for it.
    Kept from the first round."""
    seed: Annotated[int | None, Option("Statistics", default="0")] = None
    """Random seed. Kept from the first round."""
    as_json: Annotated[bool, Option("Output", flags=("--json",))] = Field(default=False, init=False)
    """Print JSON instead of a table."""
    quiet: Annotated[bool, Option("Output", flags=("--quiet", "-q"))] = Field(
        default=False, init=False
    )
    """Print nothing."""


class DrawingConfig(AttributionConfig):
    """Options of every command that draws examples to label."""

    query: Annotated[Texts, Option("Labels", metavar="<text>", default="--text")] = ()
    """Text similar to the examples that --text describes, to find those that the slice misses.
    Repeatable."""
    exponent: Annotated[float, Option("Statistics")] = EXPONENT
    """Strength of the preference for examples similar to --query, in draws outside the slice."""
    uniform_share: Annotated[float, Option("Statistics")] = UNIFORM_SHARE
    """Share of the draws outside the slice that are uniform, above 0."""


class SampleConfig(DrawingConfig):
    """Options of ``slicebeam attribute sample``."""

    budget: Annotated[int, Option("Labels")]
    """Number of labels in this round."""
    train: Annotated[bool, Option("Labels")] = False
    """Draw items for training a classifier instead of for estimation."""


class EstimateConfig(AttributionConfig):
    """Options of ``slicebeam attribute estimate``."""


class RoundsConfig(DrawingConfig):
    """Options of ``slicebeam attribute run``."""

    budget: Annotated[int, Option("Labels")]
    """Number of labels in all rounds, including those of earlier runs."""
    rounds: Annotated[int, Option("Labels")] = 1
    """Number of rounds. After each, the command checks whether there are enough labels."""
    train: Annotated[int, Option("Labels")] = 0
    """Number of further labels for training a classifier, which proposes a better slice if the
    words do not describe this one."""
    labels: Annotated[str | None, Option("Labels", metavar=COLUMN)] = None
    """Column of the labels."""
    positive: Annotated[Texts, Option("Labels", metavar="<value>")] = ()
    """Value of --labels that means yes. Repeatable."""
    llm: Annotated[OptionalPath, Option("Labels", metavar=FILE)] = default(None)
    """YAML file that describes a language model's API, as for slicebeam shift --api. Its prompt
    contains {attribution_text} and the columns that show an item."""
    ledger: Annotated[
        OptionalPath, Option("Labels", metavar=FOLDER, default="in the folder of the labels")
    ] = default(None)
    """Folder that stores the paid answers."""
