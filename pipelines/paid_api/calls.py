"""The answer of an API to an item of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Item:
    """An item of the pool that can be sent."""

    key: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """The answer to a paid call.

    ``value``: the JSON scalar at the place of the answer, None if there is none. ``problem``: why
    there is none, such as ``no JSON`` or ``HTTP 422``; None if there is one.
    """

    key: str
    value: Any
    problem: str | None = None
