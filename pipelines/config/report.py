"""The configuration of ``slicebeam report``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.option_fields import FOLDER, PATH, REQUIRED, Option, Paths, default
from slicebeam.pipelines.config.run_options import Display


class ReportConfig(Display):
    """Options of ``slicebeam report``."""

    changelist: Annotated[str, Option("Data", metavar=FOLDER, is_argument=True)] = Field(
        default=REQUIRED, init=False
    )
    """Output folder of a run (for the last revision of its ChangeList), or a ChangeList."""
    examples: Annotated[int, Field(ge=0, le=100), Option("Data", metavar="<count>")] = 0
    """Number of examples of each finding to include. The page then contains your data."""
    data: Annotated[Paths, Option("Data", metavar=PATH, default="as in the ChangeList")] = default(
        ()
    )
    """Files or globs of the examples, on this machine. Repeatable."""

    @model_validator(mode="after")
    def _data_is_used(self) -> ReportConfig:
        if self.data and not self.examples:
            raise OptionError("--data goes with --examples: the page contains no other data")
        return self
