"""Which examples satisfy given predicates; a check uses this instead of feature domains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.column_values import missing_mask, sortable
from slicebeam.transforms.encode.predicates import Singleton, arrow_values, shortened
from slicebeam.transforms.encode.value_counts import unsupported

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray

_ORDERED = ("<", ">=", "between")
_LISTED = ("in", "not_in", "between")
# Rows whose slices are found together: a million truth values for a hundred slices.
_ROWS_AT_A_TIME = 1 << 13


@dataclass(frozen=True)
class SliceMembership:
    """The slices of a check: a feature that may have many values per example.

    `predicates`: the conditions of each slice, its position is its code.
    """

    predicates: tuple[tuple[Singleton, ...], ...]

    @property
    def size(self) -> int:
        """Number of slices."""
        return len(self.predicates)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the conditions are about."""
        return tuple(
            dict.fromkeys(one.field for conditions in self.predicates for one in conditions)
        )

    @cached_property
    def _distinct(self) -> tuple[list[Singleton], list[list[int]]]:
        """The conditions, each once though slices share it, and the numbers of each slice's."""
        found: dict[str, int] = {}
        distinct: list[Singleton] = []
        numbers: list[list[int]] = []
        for conditions in self.predicates:
            numbers.append([])
            for one in conditions:
                number = found.setdefault(one.json_text(), len(distinct))
                if number == len(distinct):
                    distinct.append(one)
                numbers[-1].append(number)
        return distinct, numbers

    def codes(self, table: pa.Table) -> Ragged:
        """Return the slices of each example of a table with these columns, ascending."""
        rows = table.num_rows
        distinct, numbers = self._distinct
        columns = {name: _array(table.column(name)) for name in self.columns}
        held = [holds(columns[one.field], one) for one in distinct]
        lengths, codes = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
        for begin in range(0, rows, _ROWS_AT_A_TIME):
            some = slice(begin, min(begin + _ROWS_AT_A_TIME, rows))
            marked = np.empty((self.size, some.stop - begin), bool)
            for own, (first, *others) in zip(marked, numbers, strict=True):
                own[:] = held[first][some]
                for other in others:
                    np.logical_and(own, held[other][some], out=own)
            code, row = np.divmod(np.flatnonzero(marked), marked.shape[1])
            # Of numbers of 16 bits a stable sort is a count of each, and keeps the slices in order.
            codes.append(code[np.argsort(row.astype(np.uint16), kind="stable")])
            lengths.append(np.bincount(row, minlength=marked.shape[1]))
        return Ragged(np.cumsum(np.concatenate(lengths)), np.concatenate(codes).astype(np.int64))


def _array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def holds(values: pa.Array, condition: Singleton) -> BoolArray:
    """Return which values of a column satisfy a condition, as pandas would say.

    `values`: Arrow array [rows], also of lists or dictionary-encoded. `condition`: its values are
    compared in the column's own type.

    Returns: bool [rows]; only ``is_null`` holds of a missing value (null or NaN).
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        # What is said of a value holds of all rows that have it; a null index is a missing value.
        by_entry = np.append(holds(values.dictionary, condition), condition.op == "is_null")
        indices = pc.fill_null(values.indices.cast(pa.int64()), len(values.dictionary))
        return by_entry[indices.to_numpy(zero_copy_only=False)]
    if reason := unsupported(kind):
        raise InputError(reason)
    if pa.types.is_list(kind):
        return _lists_hold(values, condition)
    missing = missing_mask(values)
    if missing is None:
        missing = np.zeros(len(values), bool)
    if condition.op == "is_null":
        return missing
    if condition.op == "contains":
        raise InputError(f"op 'contains' is for lists, but the column is {kind}; use '=='")
    listed = condition.value if condition.op in _LISTED else [condition.value]
    _check_shape(condition, listed)
    if condition.op in _ORDERED and not _has_order(kind):
        raise InputError(
            f"op {condition.op!r} is for numbers, dates and times, but the column is {kind}; use '=='"
        )
    ordered = condition.op in _ORDERED
    values, constants = _comparable(values, listed, ordered=ordered)
    if ordered:
        numbers, (low, high) = sortable(values), (sortable(constants)[at] for at in (0, -1))
        inside = np.ones(len(values), bool)
        if condition.op != "<":
            inside &= numbers >= low
        if condition.op != ">=":
            inside &= numbers < high
    else:
        found = pc.is_in(values, value_set=constants).to_numpy(zero_copy_only=False)
        inside = ~found.astype(bool) if condition.op == "not_in" else found.astype(bool)
    return inside & ~missing


def _check_shape(condition: Singleton, listed: Any) -> None:
    op = condition.op
    if not isinstance(listed, list) or not listed or (op == "between" and len(listed) != 2):
        wanted = "[low, high]" if op == "between" else "a list of values"
        raise InputError(f"op {op!r} needs {wanted}, not {shortened(repr(listed))}")
    for value in listed:
        if value is None or isinstance(value, (list, dict)) or value != value:  # noqa: PLR0124
            raise InputError(
                f"op {op!r} needs a value, not {shortened(repr(value))}; missing values are "
                "matched by 'is_null'"
            )


def check_condition(condition: Singleton, kind: pa.DataType) -> None:
    """Hold a condition of a user against the type of its column."""
    holds(pa.nulls(0, kind), condition)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if condition.op != "between":
        return
    low, high = condition.value
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        # As they were written: rounded to the column's width, two bounds may be the same.
        first, second = (float(one) if isinstance(one, str) else one for one in (low, high))
    else:
        first, second = sortable(arrow_values([low, high], kind))
    if first < second:
        return
    if first == second:
        why, instead = (
            "the upper bound is not part of the interval",
            Singleton(condition.field, "==", low),
        )
    else:
        why, instead = "the bounds are swapped", replace(condition, value=[high, low])
    raise InputError(f"'{condition}' contains no value, because {why}; write '{instead}'")


def _has_order(kind: pa.DataType) -> bool:
    types = pa.types
    kinds = (types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)
    return any(is_kind(kind) for is_kind in kinds)


def _comparable(values: pa.Array, listed: list[Any], *, ordered: bool) -> tuple[pa.Array, pa.Array]:
    """Return a column and constants in a type in which they are compared as pandas would."""
    kind = values.type
    if pa.types.is_null(kind):
        # Nothing is there to be compared.
        return values.cast(pa.int64()), pa.array([0, 0], pa.int64())
    flags = [isinstance(value, bool) for value in listed]
    if any(flags) != pa.types.is_boolean(kind) or (any(flags) and not all(flags)):
        raise InputError(f"values {shortened(repr(listed))} do not fit a column of {kind}")
    if pa.types.is_integer(kind):
        infinite = [value for value in listed if value in ("Infinity", "-Infinity")]
        if not all(isinstance(value, (int, float)) or value in infinite for value in listed):
            raise InputError(f"values {shortened(repr(listed))} do not fit a column of {kind}")
        if infinite:
            return values.cast(pa.float64(), safe=False), arrow_values(listed, pa.float64())
        if ordered:
            # As many integers are below a fraction as below the next integer.
            listed = [math.ceil(value) for value in listed]
        kind = pa.uint64() if values.type == pa.uint64() else pa.int64()
        whole = [int(value) for value in listed if value == int(value)]
        return values.cast(kind), arrow_values(whole, kind)
    if pa.types.is_floating(kind):
        # pandas rounds a constant to the width of the column. Adding zero makes -0.0 the 0.0 that
        # it equals.
        constants = arrow_values(listed, pa.float64()).cast(kind)
        zero = pa.scalar(0.0, kind)
        return pc.add(values, zero), pc.add(constants, zero)
    return values, arrow_values(listed, kind)


def _lists_hold(values: pa.Array, condition: Singleton) -> BoolArray:
    if condition.op == "is_null":
        return pc.is_null(values).to_numpy(zero_copy_only=False).astype(bool)
    if condition.op != "contains":
        raise InputError(
            f"op {condition.op!r} is not for lists, and the column is {values.type}; use 'contains'"
        )
    elements = holds(pc.list_flatten(values), Singleton(condition.field, "==", condition.value))
    rows = pc.list_parent_indices(values).to_numpy(zero_copy_only=False)
    held = np.zeros(len(values), bool)
    held[rows[elements]] = True
    return held
