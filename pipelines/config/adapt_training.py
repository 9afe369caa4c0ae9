"""The configuration of ``slicebeam adapt export-training``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.adapt import CLASS, TREE, known_classes
from slicebeam.pipelines.config.document import CHANGELIST
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    COLUMNS,
    FILE,
    REQUIRED,
    FilePath,
    KeyValues,
    Option,
    Texts,
    default,
)
from slicebeam.pipelines.config.run_options import Display

# What --to may end in, and its columns beside text and label.
FORMATS = (".parquet", ".csv")
FURTHER = ("topic", "weight")


class ExportTrainingConfig(Display):
    """Options of ``slicebeam adapt export-training``."""

    tree: Annotated[str, TREE] = Field(default=REQUIRED, init=False)
    changelist: Annotated[FilePath, CHANGELIST]
    data: Annotated[FilePath, Option("Data", metavar=FILE)]
    """Training data, whose labels the tests get: a file of Parquet or CSV (.gz)."""
    label: Annotated[str, Option("Data", metavar=COLUMN)]
    """Column of the labels in --data."""
    to: Annotated[FilePath, Option("Output", metavar=FILE)]
    """File to write (.parquet, .csv), with text, label, topic and weight."""
    text: Annotated[Texts, Option("Data", metavar=COLUMNS, by_commas=True, default="text")] = (
        "text",
    )
    """Column of the texts in --data; of pairs both columns. Repeatable, or separated by commas."""
    topic: Annotated[Texts, Option("Data", metavar="<topic>", default="the whole tree")] = ()
    """Topic whose failing tests to export, such as /Negation. Repeatable."""
    classes: Annotated[
        KeyValues,
        AfterValidator(known_classes),
        Option(
            "Data", metavar=CLASS, by_commas=True, default="--classes of the run in --changelist"
        ),
    ] = default(())
    """Label of --data that a name in the tree means, as in pos=positive. Repeatable, or separated
    by commas."""

    @field_validator("text")
    @classmethod
    def _one_or_two(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name for given in value for name in given.split(",")) or ("text",)
        if len(names) > 2 or len(set(names)) < len(names) or "" in names:
            raise OptionError(
                f"--text {','.join(names)}: name the column of the texts, or the two columns of pairs"
            )
        return names

    @field_validator("data", "to")
    @classmethod
    def _known_format(cls, value: str, info: ValidationInfo) -> str:
        endings = (".parquet", ".csv", ".csv.gz") if info.field_name == "data" else FORMATS
        if not value.endswith(endings):
            raise OptionError(
                f"--{info.field_name} {value}: name a file of Parquet or CSV, which ends in .parquet or .csv"
            )
        return value

    @model_validator(mode="after")
    def _different_columns(self) -> ExportTrainingConfig:
        names = (*self.text, self.label, *FURTHER)
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise OptionError(
                f"--text and --label: two columns of --to would be named {twice!r}; name other columns"
            )
        return self
