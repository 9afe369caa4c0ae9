"""The progress of a run; a terminal and a log implement it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.run.stage import Stage


class Observer(Protocol):
    """Follows a run."""

    def begin(self, config: DataConfig, files: Sequence[str], engine: str) -> None:
        """Take note of what runs: its configuration, the data, and the engine's name."""

    def note(self, text: str) -> None:
        """Show something that the user should know."""

    def stage(self, stage: Stage) -> None:
        """Show what begins, and follow it where it counts something."""
