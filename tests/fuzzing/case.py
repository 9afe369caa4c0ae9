"""What a case is: an input, and the independent reading that a run is held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class UnreadableError(Exception):
    """The independent reader refuses the file: a run that succeeds has misread it."""


class UnjudgedError(Exception):
    """The independent reader cannot tell, such as a date before the year 1."""


@dataclass
class Reading:
    """What an independent reader says that a file holds."""

    frame: Any
    types: dict[str, str] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()


@dataclass
class Case:
    """An input, and what it may lead to."""

    arguments: list[str]
    files: dict[str, bytes]
    reading: Callable[[Path], Reading] = field(repr=False)
    direct: Callable[[Path], None] | None = field(default=None, repr=False)
    check: Callable[[Path, dict[str, Any], list[dict[str, Any]]], None] | None = field(
        default=None, repr=False
    )
    storage_may_fail: bool = False
