"""The configurations of the commands ``slicebeam attribute …``."""

from __future__ import annotations

from typing import Annotated

from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import COLUMN, FILE, FOLDER, Option

EXPONENT, UNIFORM_SHARE = 4.0, 0.2


class AttributionConfig(ExamplesConfig):
    """Options of every command about a slice and the words that describe it."""

    slice: Annotated[
        str,
        Option(
            "Slice, given by its slice_id, the start of its slice_id, or its name.",
            "Data",
            metavar="<slice>",
        ),
    ]
    text: Annotated[
        str,
        Option(
            "Words to test: a description that should be true of the slice's examples.",
            "Data",
            metavar="<text>",
        ),
    ]
    labels_dir: Annotated[
        str | None,
        Option(
            "Folder of the labels.",
            "Labels",
            metavar=FOLDER,
            default="attribution, beside --changelist",
        ),
    ] = None
    least_precision: Annotated[
        float | None,
        Option("Precision to accept. Kept from the first round.", "Statistics", default="0.8"),
    ] = None
    least_recall: Annotated[
        float | None,
        Option("Recall to accept. Kept from the first round.", "Statistics", default="0.8"),
    ] = None
    looks: Annotated[
        int | None,
        Option(
            "Number of times you will check whether there are enough labels. The intervals allow "
            "for it. Kept from the first round.",
            "Statistics",
            default="1, or --rounds",
        ),
    ] = None
    seed: Annotated[
        int | None, Option("Random seed. Kept from the first round.", "Statistics", default="0")
    ] = None
    as_json: Annotated[
        bool, Option("Print JSON instead of a table.", "Output", flags=("--json",), in_python=False)
    ] = False
    quiet: Annotated[
        bool, Option("Print nothing.", "Output", flags=("--quiet", "-q"), in_python=False)
    ] = False


class DrawingConfig(AttributionConfig):
    """Options of every command that draws examples to label."""

    query: Annotated[
        tuple[str, ...],
        Option(
            "Text similar to the examples that --text describes, to find those that the slice "
            "misses. Repeatable.",
            "Labels",
            metavar="<text>",
            default="--text",
        ),
    ] = ()
    exponent: Annotated[
        float,
        Option(
            "Strength of the preference for examples similar to --query, in draws outside the slice.",
            "Statistics",
        ),
    ] = EXPONENT
    uniform_share: Annotated[
        float,
        Option("Share of the draws outside the slice that are uniform, above 0.", "Statistics"),
    ] = UNIFORM_SHARE


class SampleConfig(DrawingConfig):
    """Options of ``slicebeam attribute sample``."""

    budget: Annotated[int, Option("Number of labels in this round.", "Labels")]
    train: Annotated[
        bool, Option("Draw items for training a classifier instead of for estimation.", "Labels")
    ] = False


class EstimateConfig(AttributionConfig):
    """Options of ``slicebeam attribute estimate``."""


class RoundsConfig(DrawingConfig):
    """Options of ``slicebeam attribute run``."""

    budget: Annotated[
        int, Option("Number of labels in all rounds, including those of earlier runs.", "Labels")
    ]
    rounds: Annotated[
        int,
        Option(
            "Number of rounds. After each, the command checks whether there are enough labels.",
            "Labels",
        ),
    ] = 1
    train: Annotated[
        int,
        Option(
            "Number of further labels for training a classifier, which proposes a better slice "
            "if the words do not describe this one.",
            "Labels",
        ),
    ] = 0
    labels: Annotated[str | None, Option("Column of the labels.", "Labels", metavar=COLUMN)] = None
    positive: Annotated[
        tuple[str, ...],
        Option("Value of --labels that means yes. Repeatable.", "Labels", metavar="<value>"),
    ] = ()
    llm: Annotated[
        str | None,
        Option(
            "YAML file that describes a language model's API, as for slicebeam shift --api. Its "
            "prompt contains {attribution_text} and the columns that show an item.",
            "Labels",
            metavar=FILE,
        ),
    ] = None
    ledger: Annotated[
        str | None,
        Option(
            "Folder that stores the paid answers.",
            "Labels",
            metavar=FOLDER,
            default="in the folder of the labels",
        ),
    ] = None
