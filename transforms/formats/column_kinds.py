"""The type of a column of text, from all of its values, and its values in that type."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntFlag
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError

_SHOWN = 80


class ColumnKinds(IntFlag):
    """The types that every value of a column can have, most specific first; a missing value fits all.

    Blocks and files may be judged in any order: what two of them can have is ``one & other``.
    """

    NULL = 1
    BOOL = 2
    INTEGER = 4
    NUMBER = 8
    DATE = 16
    TIME = 32
    ZONED_TIME = 64

    def resolve(self) -> pa.DataType:
        """Return the first type that fits, string if none does; null where all values are missing."""
        return next((t for kind, t in _TYPES.items() if kind & self), pa.string())


_EVERY_KIND = ColumnKinds(127)
_MOMENTS = (ColumnKinds.DATE, ColumnKinds.TIME, ColumnKinds.ZONED_TIME)
# Lists: the first Arrow array that a process makes of one imports pandas.
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A"]
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
# How values begin, by their first three bytes.
_BLANK, _MISSING_BEGINS = re.compile(rb"[ \t\n\r\v\f]"), re.compile(rb"\Z|[Nn#]")
_MOMENT = re.compile(rb"[0-9]{3}")
_BEGINS = {
    ColumnKinds.NULL: re.compile(rb"(?!)"),
    ColumnKinds.BOOL: re.compile(rb"[tTfF]"),
    # A code such as 007 is no number.
    ColumnKinds.INTEGER: re.compile(rb"-?(0\Z|[1-9])"),
    ColumnKinds.NUMBER: re.compile(rb"-?(0(\Z|[.eE])|[1-9.iI])"),
    **dict.fromkeys(_MOMENTS, _MOMENT),
}
_ANY_BEGINS = re.compile(rb"\Z|[ \t\n\r\v\fNn#tTfF0-9.iI-]")
_PROBE = 64
_CAST_ROWS = 16384
_TYPES = {
    ColumnKinds.NULL: pa.null(),
    ColumnKinds.BOOL: pa.bool_(),
    ColumnKinds.INTEGER: pa.int64(),
    ColumnKinds.NUMBER: pa.float64(),
    ColumnKinds.DATE: pa.date32(),
    ColumnKinds.TIME: pa.timestamp("us"),
    ColumnKinds.ZONED_TIME: pa.timestamp("us", "UTC"),
}


def _distinct(values: pa.Array, start: int, stop: int | None) -> set[bytes]:
    """Return the different bytes that values have at a place."""
    return set(pc.binary_slice(values.cast(pa.binary()), start, stop).unique().to_pylist())


def _begins(values: pa.Array) -> set[bytes]:
    return _distinct(values, 0, 3)


def _present(values: pa.Array) -> tuple[pa.Array, set[bytes], pa.Array | None]:
    """Return the values that are not missing, without blanks, how they begin, and the mask of them."""
    mask = values.is_valid() if values.null_count else None
    values = values.drop_null()
    begins = _begins(values)
    if any(map(_BLANK.match, begins | _distinct(values, -1, None))):
        values = pc.ascii_trim_whitespace(values)
        begins = _begins(values)
    if any(map(_MISSING_BEGINS.match, begins)):
        missing = pc.is_in(values, pa.array(_MISSING))
        if missing.true_count:
            present = pc.invert(missing)
            values = values.filter(present)
            begins = _begins(values)
            mask = present if mask is None else pc.replace_with_mask(mask, mask, present)
    return values, begins, mask


def _try_cast(values: pa.Array, data_type: pa.DataType) -> pa.Array | None:
    # Arrow writes an error for every value that fails, a microsecond each, before it gives up.
    starts = [0, *range(_PROBE, len(values), _CAST_ROWS)]
    parts = []
    try:
        for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
            parts.append(values.slice(start, stop - start).cast(data_type))
    except pa.ArrowInvalid:
        return None
    return pa.concat_arrays(parts)


def _parsed(values: pa.Array, begins: set[bytes], kind: ColumnKinds) -> pa.Array | None:
    """Return values in a type, None if it does not fit all of them."""
    if not len(values):
        return pa.array([], _TYPES[kind])
    if not all(map(_BEGINS[kind].match, begins)):
        return None
    if kind is ColumnKinds.BOOL:
        true, false = (pc.is_in(values, pa.array(words)) for words in (_TRUE, _FALSE))
        return true if true.true_count + false.true_count == len(true) else None
    parsed = _try_cast(values, _TYPES[kind])
    is_inexact = parsed is not None and kind is ColumnKinds.NUMBER and not _is_kept(values, parsed)
    return None if is_inexact else parsed


def _is_kept(values: pa.Array, numbers: pa.Array) -> bool:
    """Whether values are the numbers that Arrow takes them for."""
    odd = ~np.isfinite(numbers.to_numpy(zero_copy_only=False))
    if odd.any():
        # Arrow also reads NAN(1), and 1e999 as infinite.
        spelled = pc.match_substring_regex(values.filter(odd), "^-?(?i:inf|infinity)$")
        if spelled.true_count < len(spelled):
            return False
    # As a number an integer beyond int64, an id most often, would lose its last digits.
    long = values.filter(pc.greater_equal(pc.binary_length(values), 19))
    whole = long.filter(pc.match_substring_regex(long, "^-?[0-9]+$"))
    return _try_cast(whole, pa.int64()) is not None


_IMPLIED = {ColumnKinds.INTEGER: ColumnKinds.NUMBER, ColumnKinds.DATE: ColumnKinds.TIME}


def _array_kinds(values: pa.Array) -> ColumnKinds:
    sample = values.slice(0, 2048)
    if not all(map(_ANY_BEGINS.match, _begins(sample.drop_null()))):
        return ColumnKinds(0)
    if len(values) > len(sample) and len(sample.unique()) * 4 <= len(sample):
        values = values.unique()
    present, begins, _ = _present(values)
    kinds = ColumnKinds(0)
    for kind in _TYPES:
        if not kind & kinds and _parsed(present, begins, kind) is not None:
            kinds |= kind | _IMPLIED.get(kind, ColumnKinds(0))
    return kinds


def block_kinds(table: pa.Table) -> dict[str, ColumnKinds]:
    """Return for each column of text which types all of its values can have.

    Besides null, the values ``""``, NA, N/A, NaN, nan, null, NULL, None and #N/A are missing: they fit
    any type but text, where they are values. Blanks around a value are ignored. ``007`` and ``+7`` are
    text, as are integers beyond int64.
    """
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kinds = _EVERY_KIND
        for chunk in column.chunks:
            if kinds:
                kinds &= _array_kinds(chunk.cast(pa.string()))
        found[name] = kinds
    return found


def date_kinds(table: pa.Table) -> dict[str, ColumnKinds]:
    """Return, for the string columns of JSON, whether they hold dates or times.

    ``NA`` and the like are values here; a column is null only where every value is.
    """
    text = [field.name for field in table.schema if field.type == pa.string()]
    found = {}
    for name, kinds in block_kinds(table.select(text)).items():
        column = table[name]
        if column.null_count == len(column):
            found[name] = _EVERY_KIND
        elif pc.any(pc.is_in(column, pa.array(_MISSING))).as_py():
            found[name] = ColumnKinds(0)
        else:
            found[name] = kinds & sum(_MOMENTS)
    return found


def parse_column(values: Any, data_type: pa.DataType, *, column: str = "") -> Any:
    """Parse text (also dictionary-encoded) as the type that ``ColumnKinds.resolve`` gave for its column.

    Missing values are null. Every value that inference accepted for the type is parsed; an InputError
    names another one, and the column.
    """
    if isinstance(values, pa.ChunkedArray):
        chunks = [parse_column(chunk, data_type, column=column) for chunk in values.chunks]
        return pa.chunked_array(chunks, data_type)
    kind = next((k for k, t in _TYPES.items() if t == data_type), None)
    if kind is None:
        return values.cast(pa.string())
    if not isinstance(values, pa.DictionaryArray):
        return _parse(values.cast(pa.string()), kind, column)
    try:
        return _parse(values.dictionary.cast(pa.string()), kind, column).take(values.indices)
    except InputError:
        # A slice or a shared dictionary may hold values that no row has.
        used = values.indices.unique().drop_null()
        parsed = _parse(values.dictionary.take(used).cast(pa.string()), kind, column)
        return parsed.take(pc.index_in(values.indices, used))


def _parse(values: pa.Array, kind: ColumnKinds, column: str) -> pa.Array:
    present, begins, mask = _present(values)
    parsed = _parsed(present, begins, kind)
    if parsed is None:
        bad = first_refused(present, lambda part: _parsed(part, _begins(part), kind) is not None)
        what = f"column {column!r}" if column else "a column"
        raise InputError(
            f"{what}: {bad[:_SHOWN]!r} is not {_TYPES[kind]}, as the column's other values are; "
            "correct the value, or leave the column out"
        )
    if mask is None:
        return parsed
    if not len(parsed):
        return pa.nulls(len(values), _TYPES[kind])
    return pc.replace_with_mask(pa.nulls(len(values), _TYPES[kind]), mask, parsed)


def first_refused(values: pa.Array, accepts: Callable[[pa.Array], bool]) -> str:
    """Return the first value that is refused, by halving: a type holds value by value."""
    while len(values) > 1:
        half = values.slice(0, len(values) // 2)
        values = values.slice(len(half)) if accepts(half) else half
    return str(values[0].as_py())
