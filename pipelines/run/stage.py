"""What the user is shown of a run: its stages, and what follows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.pipelines.config.common import DataConfig


@dataclass(frozen=True)
class Stage:
    """The current stage, and its progress."""

    text: str
    done: Callable[[], int] | None = None  # how many units are finished
    unit: str = ""
    total: int | None = None  # how many there are; None if that is not known
    besides: Callable[[], str] | None = None  # what else changes, such as the money spent


class Observer(Protocol):
    """Follows a run."""

    def begin(self, config: DataConfig, files: Sequence[str], engine: str) -> None:
        """Take note of what runs: its configuration, the data, and the engine's name."""

    def note(self, text: str) -> None:
        """Show something that the user should know."""

    def stage(self, stage: Stage) -> None:
        """Show what begins, and follow it where it counts something."""
