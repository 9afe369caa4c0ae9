"""The configuration of ``slicebeam adapt from``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.adapt import CLASS, known_classes
from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import (
    COLUMN,
    FILE,
    FOLDER,
    REQUIRED,
    FilePath,
    KeyValues,
    Option,
    Texts,
    default,
)


class AdaptFromConfig(ExamplesConfig):
    """Options of ``slicebeam adapt from``."""

    changelist: Annotated[str, Option("Data", metavar=FOLDER, is_argument=True)] = Field(
        default=REQUIRED, init=False
    )
    """Output folder of a search, discovery or check (for the last revision of its ChangeList), or a
    ChangeList."""
    to: Annotated[FilePath, Option("Output", metavar=FILE)]
    """Test tree to write."""
    append: Annotated[bool, Option("Output")] = False
    """Add to the tree in --to, if there is one, the tests that it has not."""
    text: Annotated[
        Texts,
        Option(
            "Data", metavar=COLUMN, default="that of a discovery, or the only column of free text"
        ),
    ] = ()
    """Column of the texts that are the inputs of the model; two for pairs. Repeatable."""
    slice: Annotated[
        Texts, Option("Data", metavar="<slice>", default="the findings; of a discovery all slices")
    ] = ()
    """Slice (id, the beginning of one, or name) to make a topic of. Repeatable."""
    topic: Annotated[str, Option("Output", metavar="<topic>")] = "/found"
    """Topic below which those of the slices are."""
    classes: Annotated[
        KeyValues,
        AfterValidator(known_classes),
        Option("Output", metavar=CLASS, by_commas=True, default="the labels of the run"),
    ] = default(())
    """Label of the run that a name in the tree means, as in pos=positive: tests expect pos.
    Repeatable, or separated by commas."""
    examples: Annotated[int, Field(ge=1, le=10_000), Option("Output", metavar="<count>")] = 10
    """Maximum number of tests of each slice."""
    seed: Annotated[int, Field(ge=0, lt=2**32), Option("Statistics")] = 0
    """Random seed."""

    @field_validator("text")
    @classmethod
    def _one_text_or_a_pair(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 2:
            raise OptionError(
                f"--text names {len(value)} columns ({', '.join(value)}); an input is a text or a pair"
            )
        return value

    @field_validator("topic")
    @classmethod
    def _is_a_topic(cls, value: str) -> str:
        topic = value.rstrip("/")
        if (topic and not topic.startswith("/")) or "//" in topic or "__suggestions__" in topic:
            raise OptionError(
                f"--topic {value!r} is no topic; it is names after slashes, such as /found/nightly"
            )
        return topic
