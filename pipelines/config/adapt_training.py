"""The configuration of ``slicebeam adapt export-training``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, field_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.adapt import CLASS, TREE, known_classes
from slicebeam.pipelines.config.common import delimiter_character
from slicebeam.pipelines.config.document import CHANGELIST
from slicebeam.pipelines.config.option_fields import COLUMN, COLUMNS, FILE, Option
from slicebeam.pipelines.config.run_options import Display
from slicebeam.transforms.storage.file_formats import FORMATS


class ExportTrainingConfig(Display):
    """Options of ``slicebeam adapt export-training``."""

    choices: ClassVar[dict[str, tuple[str, ...]]] = {"format": FORMATS}

    tree: Annotated[str, TREE]
    changelist: Annotated[str, CHANGELIST]
    data: Annotated[
        str,
        Option(
            "Training data: a file of Parquet, CSV (.gz), JSON Lines or TFRecord.",
            "Data",
            metavar=FILE,
        ),
    ]
    label: Annotated[str, Option("Column of the labels in --data.", "Data", metavar=COLUMN)]
    to: Annotated[str, Option("File to write, in the format of --data.", "Output", metavar=FILE)]
    text: Annotated[
        tuple[str, ...],
        Option(
            "Column of the texts in --data; of pairs both columns. Repeatable, or separated by commas.",
            "Data",
            metavar=COLUMNS,
            by_commas=True,
            default="text",
        ),
    ] = ("text",)
    topic: Annotated[
        tuple[str, ...],
        Option(
            "Topic whose failing tests to export, such as /Negation. Repeatable.",
            "Data",
            metavar="<topic>",
            default="the whole tree",
        ),
    ] = ()
    classes: Annotated[
        tuple[str, ...],
        AfterValidator(known_classes),
        Option(
            "Label of --data that a name in the tree means, as in pos=positive. Repeatable, or separated by "
            "commas.",
            "Data",
            metavar=CLASS,
            by_commas=True,
            default="--classes of the run in --changelist",
        ),
    ] = ()
    format: Annotated[
        str | None,
        Option("Format: parquet, csv, jsonl or tfrecord.", "Data", default="from the file's name"),
    ] = None
    delimiter: Annotated[
        str,
        Option(
            "Character between the values of a CSV file, such as ';' or tab.",
            "Data",
            metavar="<character>",
        ),
    ] = ","
    seed: Annotated[int, Field(ge=0, lt=2**63), Option("Random seed.", "Statistics")] = 0

    @field_validator("text")
    @classmethod
    def _one_or_two(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name for given in value for name in given.split(",")) or ("text",)
        if len(names) > 2 or len(set(names)) < len(names) or "" in names:
            raise OptionError(
                f"--text {','.join(names)}: name the column of the texts, or the two columns of pairs"
            )
        return names

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str) -> str:
        return delimiter_character(value)
