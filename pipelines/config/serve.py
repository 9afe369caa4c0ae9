"""The configuration of ``slicebeam serve``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slicebeam.pipelines.config.document import ExamplesConfig
from slicebeam.pipelines.config.option_fields import FOLDER, Option


class ServeConfig(ExamplesConfig):
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
    port: Annotated[
        int,
        Field(ge=0, le=65_535),
        Option("Port on 127.0.0.1 to listen at.", "Engine", metavar="<port>", default="a free one"),
    ] = 0
    open: Annotated[bool, Option("Open the page in the browser.", "Output")] = False
