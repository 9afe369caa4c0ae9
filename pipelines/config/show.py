"""The configuration of ``slicebeam show``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.document import CHANGELIST, TextsConfig
from slicebeam.pipelines.config.option_fields import REQUIRED, Option


class ShowConfig(TextsConfig):
    """Options of ``slicebeam show``."""

    changelist: Annotated[str, replace(CHANGELIST, is_argument=True)] = Field(
        default=REQUIRED, init=False
    )
    slice: Annotated[str | None, Option("Slices", metavar="<slice>")] = None
    """Slice whose examples are shown, given by its slice_id, the start of its slice_id, or its
    name."""
    words: Annotated[str | None, Option("Slices", metavar="<words>")] = None
    """Only slices with all of these words, joined by &, in their names, descriptions, notes,
    phrases or attributed words."""
    text: Annotated[str | None, Option("Slices", metavar="<text>")] = None
    """Text that slices are ordered by: the cosine similarity of the mean embedding of their
    examples to that of the text. With --slice, that of each example."""
    limit: Annotated[int, Field(ge=1), Option("Output")] = 20
    """Maximum number of slices or examples."""

    @model_validator(mode="after")
    def _fits_together(self) -> ShowConfig:
        if self.text is not None and not self.text.strip():
            raise OptionError("--text is empty; write a text like the examples that you look for")
        if self.words is not None and self.slice is not None:
            raise OptionError("--words filters slices, and --slice shows the examples of one")
        return self
