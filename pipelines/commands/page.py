"""The page that a run writes beside its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.config.document import ReportConfig
from slicebeam.pipelines.page.report import write_report

if TYPE_CHECKING:
    from slicebeam.pipelines.show.terminal import Terminal


def write_page(changelist: str, terminal: Terminal) -> None:
    """Write the page of a result that is published, and say where it is.

    A run that published, and ended before its page was written, writes it with ``--resume``.
    """
    config = ReportConfig.model_validate({"changelist": changelist})
    terminal.note(f"page: {write_report(config, terminal.note)}")
