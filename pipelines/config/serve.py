"""The configuration of ``slicebeam serve``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.adapt_suggest import ProposalSources
from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import FILE, FOLDER, Option


class ServeConfig(ExamplesConfig, ProposalSources):
    """Options of ``slicebeam serve``."""

    changelist: Annotated[
        str,
        Option(
            "Output folder of a run, or a folder of such folders.",
            "Data",
            metavar=FOLDER,
            is_argument=True,
        ),
    ]
    model: Annotated[
        str | None,
        Option(
            "New model to call in the playground, as in slicebeam search --model. It confirms that of "
            "the ChangeList. Loading it runs the code in it.",
            "Models",
            metavar="<model>",
        ),
    ] = None
    baseline_model: Annotated[
        str | None, Option("Old model, likewise.", "Models", metavar="<model>")
    ] = None
    port: Annotated[
        int,
        Field(ge=0, le=65_535),
        Option("Port on 127.0.0.1 to listen at.", "Engine", metavar="<port>", default="a free one"),
    ] = 0
    open: Annotated[bool, Option("Open the page in the browser.", "Output")] = False
    tree: Annotated[
        str | None,
        Option("Test tree to judge suggestions for, in the Tests view.", "Data", metavar=FILE),
    ] = None
    tree_model: Annotated[
        str | None,
        Option(
            "Model that --tree is tested against, as for slicebeam adapt suggest --model; its answers cost "
            "nothing.",
            "Models",
            metavar="<model>",
        ),
    ] = None

    @model_validator(mode="after")
    def _tree_goes_with_model(self) -> ServeConfig:
        if (self.tree is None) != (self.tree_model is None):
            given, missing = ("tree", "tree-model") if self.tree else ("tree-model", "tree")
            raise OptionError(f"--{given} needs --{missing}")
        return self
