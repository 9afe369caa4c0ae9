"""The kinds of input, and the case of a seed and a number."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.fuzzing import (
    changelist_cases,
    command_cases,
    csv_cases,
    json_cases,
    parquet_cases,
    tfrecord_cases,
    yaml_cases,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzzing.case import Case

KINDS: dict[str, Callable[[random.Random], Case]] = {
    "parquet": parquet_cases.make,
    "csv": csv_cases.make,
    "jsonl": json_cases.make,
    "tfrecord": tfrecord_cases.make,
    "yaml": yaml_cases.make,
    "changelist": changelist_cases.make,
    "command": command_cases.make,
}


def case(kind: str, seed: int, number: int) -> Case:
    """Return a case; the same three always give the same one."""
    return KINDS[kind](random.Random(f"{kind}/{seed}/{number}"))
