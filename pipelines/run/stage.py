"""A stage of a run, as the user is shown it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Stage:
    """What begins, and how far it is.

    Attributes
    ----------
    text : what begins
    done : says how many of its units are finished; None where there is nothing to count
    unit : what is counted
    total : how many there are; None where that is not known
    besides : says what else changes meanwhile, such as the money spent
    """

    text: str
    done: Callable[[], int] | None = None
    unit: str = ""
    total: int | None = None
    besides: Callable[[], str] | None = None
