"""What a search shows while it goes, and the observer that shows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slicebeam.pipelines.run.stage import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.stage import Stage
    from slicebeam.pipelines.search.iteration_records import IterationRecord, Progress


class SearchObserver(Observer, Protocol):
    """Follows a search, a check or a discovery."""

    def prepared(self, prepared: EncodedDataset) -> None:
        """Show the prepared data."""

    def progress(self, progress: Progress) -> None:
        """Show that an iteration begins, and how far it is until the next."""

    def recorded(self, record: IterationRecord) -> None:
        """Receive the work and cost of an iteration."""


class SilentObserver:
    """Shows nothing, for a run within another one."""

    def begin(self, config: DataConfig, files: Sequence[str], engine: str) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def stage(self, stage: Stage) -> None:
        """Show nothing."""

    def prepared(self, prepared: EncodedDataset) -> None:
        """Show nothing."""

    def progress(self, progress: Progress) -> None:
        """Show nothing."""

    def recorded(self, record: IterationRecord) -> None:
        """Show nothing."""
