"""A stage of a run, as the user is shown it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Stage:
    """The current stage, and its progress."""

    text: str
    done: Callable[[], int] | None = None  # how many units are finished
    unit: str = ""
    total: int | None = None  # how many there are; None if that is not known
    besides: Callable[[], str] | None = None  # what else changes, such as the money spent
