"""The configuration of ``slicebeam serve``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from slicebeam.pipelines.config.adapt import ProposalSources
from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import (
    REQUIRED,
    Folder,
    Model,
    Option,
    OptionalFile,
    Requires,
    Rule,
    default,
)


class ServeConfig(ExamplesConfig, ProposalSources):
    """Options of ``slicebeam serve``."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Requires("tree", "tree_model"),
        Requires("tree_model", "tree"),
    )

    changelist: Annotated[Folder, Option("Data", is_argument=True)] = Field(REQUIRED, init=False)
    """Output folder of a run, or a folder of such folders."""
    model: Annotated[Model | None, Option("Models")] = None
    """New model to call in the playground, as in slicebeam search --model. It confirms that of the
    ChangeList. Loading it runs the code in it."""
    baseline_model: Annotated[Model | None, Option("Models")] = None
    """Old model, likewise."""
    port: Annotated[int, Field(ge=0, le=65_535), Option("Engine", metavar="<port>")] = 0
    """Port on 127.0.0.1 to listen at. [default: a free one]"""
    open: Annotated[bool, Option("Output")] = False
    """Open the page in the browser."""
    tree: Annotated[OptionalFile, Option("Data")] = default(None)
    """Test tree to judge suggestions for, in the Tests view."""
    tree_model: Annotated[Model | None, Option("Models")] = None
    """Model that --tree is tested against, as for slicebeam adapt suggest --model; its answers cost
    nothing."""
