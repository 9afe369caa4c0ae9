"""The configuration of ``slicebeam report``."""

from __future__ import annotations

from typing import Annotated

from slicebeam.pipelines.config.option_fields import FOLDER, Option
from slicebeam.pipelines.config.run_options import Display


class ReportConfig(Display):
    """Options of ``slicebeam report``."""

    changelist: Annotated[
        str,
        Option(
            "Output folder of a run, for the last revision of its ChangeList; or a ChangeList.",
            "Data",
            metavar=FOLDER,
            is_argument=True,
        ),
    ]
