"""Which examples satisfy given predicates; a check uses this instead of feature domains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.column_values import sortable
from slicebeam.transforms.encode.domains import FeatureDomain
from slicebeam.transforms.encode.predicates import Singleton, arrow_values, shortened
from slicebeam.transforms.encode.value_counts import unsupported

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray
    from slicebeam.transforms.encode.domains import Kind
    from slicebeam.transforms.encode.sources import Chunk

_ORDERED = ("<", ">=", "between")
_INFINITE = ("Infinity", "-Infinity")
_LISTED = ("in", "not_in", "between")
# Rows whose slices are found together: a million truth values for a hundred slices.
_ROWS_AT_A_TIME = 1 << 13


@dataclass(frozen=True)
class SliceMembership:
    """The slices of a check, by their conditions: a feature that may have many values per example."""

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

    def holds(self, chunk: Chunk) -> BoolArray:
        """Return which examples [rows] of a chunk are in at least one of the slices."""
        return np.diff(self.codes(chunk.table).offsets) > 0

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
    """Return which values of a column (also of lists) satisfy a condition, as pandas would say.

    The condition's values are compared in the column's own type, and only ``is_null`` holds of a missing
    value (null or NaN). An InputError says that the column has no such op, or is of another type.
    """
    domain = _domain(condition, values.type)
    if domain.kind == "list":
        return np.diff(domain.encode_lists(values)[0]) > 0
    if pa.types.is_null(values.type) and condition.op != "is_null":
        return np.zeros(len(values), bool)
    return domain.encode(values) == 0


def _domain(condition: Singleton, kind: pa.DataType) -> FeatureDomain:
    """Return the domain with this predicate only, in the type in which pandas would compare."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    op = condition.op
    if reason := unsupported(kind):
        raise InputError(reason)
    if pa.types.is_list(kind):
        return _list_domain(condition, kind)
    if op == "is_null":
        kind = pa.int64() if pa.types.is_null(kind) else kind
        return FeatureDomain("", "categorical", str(kind), (condition,), closed=False)
    if op == "contains":
        raise InputError(f"op 'contains' is for lists, but the column is {kind}; use '=='")
    listed = condition.value if op in _LISTED else [condition.value]
    _check_shape(condition, listed)
    if op in _ORDERED and not _has_order(kind):
        raise InputError(
            f"op {op!r} is for numbers, dates and times, but the column is {kind}; use '=='"
        )
    if not pa.types.is_null(kind):
        _check_types(listed, kind)
    infinite = any(value in _INFINITE for value in listed)
    if pa.types.is_integer(kind) and infinite:
        kind = pa.float64()
    elif pa.types.is_integer(kind):
        # As many integers are below a fraction as below the next integer, and none equals it.
        listed = [math.ceil(one) for one in listed if op in _ORDERED or one == int(one)]
        kind = pa.uint64() if kind == pa.uint64() else pa.int64()
    if op == "==":
        op = "in"
    value = listed if op in _LISTED else listed[0]
    of_bins: Kind = "numeric" if op in _ORDERED else "categorical"
    return FeatureDomain(
        "", of_bins, str(kind), (replace(condition, op=op, value=value),), closed=False
    )


def _list_domain(condition: Singleton, kind: pa.DataType) -> FeatureDomain:
    op = condition.op
    if op not in ("contains", "is_null"):
        raise InputError(f"op {op!r} is not for lists, and the column is {kind}; use 'contains'")
    value = replace(condition, op="==" if op == "contains" else op)
    return replace(_domain(value, kind.value_type), kind="list")


def _check_types(listed: list[Any], kind: pa.DataType) -> None:
    flags = [isinstance(value, bool) for value in listed]
    is_number = [isinstance(value, (int, float)) or value in _INFINITE for value in listed]
    if (
        any(flags) != pa.types.is_boolean(kind)
        or any(flags) != all(flags)
        or (pa.types.is_integer(kind) and not all(is_number))
    ):
        raise InputError(f"values {shortened(repr(listed))} do not fit a column of {kind}")


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
