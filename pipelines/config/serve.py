"""The configuration of ``slicebeam serve``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.adapt_suggest import ProposalSources
from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import (
    FILE,
    FOLDER,
    REQUIRED,
    Option,
    OptionalPath,
    default,
)


class ServeConfig(ExamplesConfig, ProposalSources):
    """Options of ``slicebeam serve``."""

    changelist: Annotated[str, Option("Data", metavar=FOLDER, is_argument=True)] = Field(
        default=REQUIRED, init=False
    )
    """Output folder of a run, or a folder of such folders."""
    model: Annotated[str | None, Option("Models", metavar="<model>")] = None
    """New model to call in the playground, as in slicebeam search --model. It confirms that of the
    ChangeList. Loading it runs the code in it."""
    baseline_model: Annotated[str | None, Option("Models", metavar="<model>")] = None
    """Old model, likewise."""
    port: Annotated[
        int, Field(ge=0, le=65_535), Option("Engine", metavar="<port>", default="a free one")
    ] = 0
    """Port on 127.0.0.1 to listen at."""
    open: Annotated[bool, Option("Output")] = False
    """Open the page in the browser."""
    tree: Annotated[OptionalPath, Option("Data", metavar=FILE)] = default(None)
    """Test tree to judge suggestions for, in the Tests view."""
    tree_model: Annotated[str | None, Option("Models", metavar="<model>")] = None
    """Model that --tree is tested against, as for slicebeam adapt suggest --model; its answers cost
    nothing."""

    @model_validator(mode="after")
    def _tree_goes_with_model(self) -> ServeConfig:
        if (self.tree is None) != (self.tree_model is None):
            given, missing = ("tree", "tree-model") if self.tree else ("tree-model", "tree")
            raise OptionError(f"--{given} needs --{missing}")
        return self
