"""Options of every command that reads a ChangeList and writes its next revision."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slicebeam.pipelines.config.common import RunnerConfig, RunnerOption
from slicebeam.pipelines.config.confirmation import Confirmed
from slicebeam.pipelines.config.option_fields import (
    FILE,
    PATH,
    REQUIRED,
    Option,
    OptionalPath,
    Paths,
    Texts,
    default,
)
from slicebeam.pipelines.config.run_options import AllowHttp, Display

CHANGELIST = Option(
    "Data", "ChangeList (any revision), or its folder for the last revision.", metavar=PATH
)


class DocumentConfig(Display):
    """Options of every command that reads a ChangeList."""

    changelist: Annotated[str, CHANGELIST] = Field(default=REQUIRED, init=False)


class TextsConfig(DocumentConfig):
    """Options of every command that reads the examples of a ChangeList, and may embed texts."""

    data: Annotated[Paths, Option("Data", metavar=PATH, default="as in the ChangeList")] = default(
        ()
    )
    """Files or globs of the examples. Repeatable."""
    encoder: Annotated[str | None, Option("Models", metavar="<encoder>")] = None
    """Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint
    (openai:URL) that gets your texts."""
    allow_http: AllowHttp = False

    @property
    def confirmed(self) -> Confirmed:
        """The entries of the document that the user confirms."""
        return Confirmed(encoder=self.encoder)


class ExamplesConfig(TextsConfig):
    """Options of every command that may run the models of a ChangeList on its examples, too."""

    model: Annotated[OptionalPath, Option("Models", metavar=FILE)] = default(None)
    """Confirms the model in the ChangeList. Loading it runs the code in it."""
    baseline_model: Annotated[OptionalPath, Option("Models", metavar=FILE)] = default(None)
    """Confirms the old model in the ChangeList."""
    metric: Annotated[Texts, Option("Models", metavar="<metrics>", by_commas=True)] = ()
    """Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an
    installed package). Importing it runs its code. Repeatable, or separated by commas."""

    @property
    def confirmed(self) -> Confirmed:
        """The entries of the document that the user confirms."""
        return Confirmed(self.model, self.baseline_model, self.encoder, self.metric)


class CountingConfig(ExamplesConfig):
    """Options of every command that counts new slices."""

    runner_config: RunnerConfig = "direct"
    runner_option: RunnerOption = default(())
