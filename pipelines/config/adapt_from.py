"""The configuration of ``slicebeam adapt from``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.adapt import CLASS, known_classes
from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import COLUMN, FILE, FOLDER, Option


class AdaptFromConfig(ExamplesConfig):
    """Options of ``slicebeam adapt from``."""

    changelist: Annotated[
        str,
        Option(
            "Output folder of a search, discovery or check (for the last revision of its ChangeList), or a "
            "ChangeList.",
            "Data",
            metavar=FOLDER,
            is_argument=True,
        ),
    ]
    to: Annotated[str, Option("Test tree to write.", "Output", metavar=FILE)]
    append: Annotated[
        bool,
        Option("Add to the tree in --to, if there is one, the tests that it has not.", "Output"),
    ] = False
    text: Annotated[
        tuple[str, ...],
        Option(
            "Column of the texts that are the inputs of the model; two for pairs. Repeatable.",
            "Data",
            metavar=COLUMN,
            default="that of a discovery, or the only column of free text",
        ),
    ] = ()
    slice: Annotated[
        tuple[str, ...],
        Option(
            "Slice (id, the beginning of one, or name) to make a topic of. Repeatable.",
            "Data",
            metavar="<slice>",
            default="the findings; of a discovery all slices",
        ),
    ] = ()
    topic: Annotated[
        str, Option("Topic below which those of the slices are.", "Output", metavar="<topic>")
    ] = "/found"
    classes: Annotated[
        tuple[str, ...],
        AfterValidator(known_classes),
        Option(
            "Label of the run that a name in the tree means, as in pos=positive: tests expect pos. Repeatable, "
            "or separated by commas.",
            "Output",
            metavar=CLASS,
            by_commas=True,
            default="the labels of the run",
        ),
    ] = ()
    examples: Annotated[
        int,
        Field(ge=1, le=10_000),
        Option("Maximum number of tests of each slice.", "Output", metavar="<count>"),
    ] = 10
    seed: Annotated[int, Field(ge=0, lt=2**32), Option("Random seed.", "Statistics")] = 0

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
