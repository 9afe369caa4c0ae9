"""Slices as TensorFlow Model Analysis names them: tuples of a column and a value each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.transforms.encode.predicates import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.transforms.encode.predicates import Singleton

SliceKey = tuple[tuple[str, str | int | float], ...]

# The column of slices that are no predicates, such as those of a text filter.
NAMED = "slice"
_LARGEST_INTEGER = 2**63
_MOST_VALUES = 10
# What a derived column is called after the column that it comes from.
_SUFFIX = {
    "==": "value",
    "between": "range",
    "<": "range",
    ">=": "range",
    "in": "values",
    "not_in": "values",
    "is_null": "missing",
}


@dataclass(frozen=True)
class NamedSlice:
    """A slice to be named; without conditions where no predicate describes it."""

    slice_id: str
    name: str
    conditions: tuple[Singleton, ...] | None


def key_part(condition: Singleton) -> tuple[str, str | int | float]:
    """Return the column and the value that stand for a condition.

    A value of the data stands for itself. Of anything else the column is a derived one, named after
    the one that it comes from.

    >>> from slicebeam.transforms.encode.predicates import Singleton
    >>> key_part(Singleton("sex", "==", "Female"))
    ('sex', 'Female')
    >>> key_part(Singleton("age", "between", [37, 41]))
    ('age (range)', '[37, 41)')
    >>> key_part(Singleton("age", "is_null"))
    ('age (missing)', 'yes')
    >>> key_part(Singleton("job", "in", ["clerk", "guard"]))
    ('job (values)', 'in {clerk, guard}')
    """
    field, op, value = condition.field, condition.op, condition.value
    if op in ("==", "contains"):
        native = _native(value)
        if native is not None:
            return field, native
        return f"{field} ({_SUFFIX['==']})", shown(value)
    column = f"{field} ({_SUFFIX[op]})"
    if op == "is_null":
        return column, "yes"
    if op == "between":
        return column, f"[{shown(value[0])}, {shown(value[1])})"
    if op in ("<", ">="):
        return column, f"{op} {shown(value)}"
    listed = shown_list(value)
    return column, f"not in {{{listed}}}" if op == "not_in" else f"in {{{listed}}}"


def shown_list(values: list[Any]) -> str:
    """Return a list of values for a reader, at most ten of them.

    >>> shown_list([1, 2])
    '1, 2'
    """
    more = f", … {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
    return ", ".join(map(shown, values[:_MOST_VALUES])) + more


def _native(value: Any) -> str | int | float | None:
    """Return a value as TFMA's slice keys hold it; None where they would round it."""
    if isinstance(value, bool):
        # A tf.Example has numbers for truth values.
        return int(value)
    if isinstance(value, int):
        return value if -_LARGEST_INTEGER <= value < _LARGEST_INTEGER else None
    if isinstance(value, float):
        return value if float(np.float32(value)) == value else None
    return str(value)


def slice_keys(slices: Sequence[NamedSlice]) -> list[SliceKey]:
    """Return the key of each slice, which no other of them has, sorted by column as TFMA's are."""
    keys: list[SliceKey] = []
    used: set[SliceKey] = set()
    for each in slices:
        parts: Iterable[tuple[str, str | int | float]] = (
            [(NAMED, each.name)] if each.conditions is None else map(key_part, each.conditions)
        )
        key: SliceKey = tuple(sorted(parts, key=lambda part: part[0]))
        if key in used:
            # Long lists of values are shortened, and may look the same.
            key = tuple(sorted([*key, (NAMED, each.slice_id)], key=lambda part: part[0]))
        used.add(key)
        keys.append(key)
    return keys


def is_derived(condition: Singleton) -> bool:
    """Return whether a condition is on a column that the data does not have as it is."""
    return key_part(condition)[0] != condition.field
