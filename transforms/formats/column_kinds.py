"""The type of a column of text, from all of its values, and its values in that type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

_SHOWN = 80


class _Kind(IntFlag):
    """The possible types of a column, most specific first; a missing value fits all."""

    NULL = 1
    BOOL = 2
    INTEGER = 4
    NUMBER = 8
    DATE = 16
    TIME = 32
    ZONED_TIME = 64


_EVERY_KIND = _Kind(127)
# Lists: the first Arrow array that a process makes of one imports pandas.
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A"]
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
_BLANKS = b" \t\n\r\v\f"
_DIGITS = b"0123456789"
_PROBE = 64
_CAST_ROWS = 16384
_TYPES = {
    _Kind.NULL: pa.null(),
    _Kind.BOOL: pa.bool_(),
    _Kind.INTEGER: pa.int64(),
    _Kind.NUMBER: pa.float64(),
    _Kind.DATE: pa.date32(),
    _Kind.TIME: pa.timestamp("us"),
    _Kind.ZONED_TIME: pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True)
class ColumnKinds:
    """Which types every value of a column seen so far can have.

    ``merge`` is associative and commutative and ``ColumnKinds()`` (nothing seen yet) is its
    neutral element, so blocks and files may be judged in any order.
    """

    kinds: _Kind = _EVERY_KIND

    @classmethod
    def from_bits(cls, bits: int) -> ColumnKinds:
        """Return the kinds of ``int(column_kinds.kinds)``, their form in JSON."""
        return cls(_Kind(bits))

    def merge(self, other: ColumnKinds) -> ColumnKinds:
        """Return the kinds of the values of both."""
        return ColumnKinds(self.kinds & other.kinds)

    def resolve(self) -> pa.DataType:
        """Return the first type that fits: null, bool, int64, float64, date32, timestamp, string.

        The column is null when all of its values are missing.
        """
        return next((t for kind, t in _TYPES.items() if kind & self.kinds), pa.string())


class _Tokens:
    """Text values without nulls, and views of their bytes for tests without a regex."""

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        offsets, data = values.buffers()[1:]
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        self.data = np.frombuffer(data if data is not None else b"", np.uint8)
        if not self.data.size:
            self.data = np.zeros(1, np.uint8)
        self.starts = ends[:-1]
        self.lengths = np.diff(ends)
        self.firsts = self.byte(0)
        self._begins = set(np.flatnonzero(np.bincount(self.firsts, minlength=256)).tolist())

    def byte(self, place: int | npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Return the byte at ``place`` of each value; 0 where the value is shorter."""
        found = self.data.take(self.starts + place, mode="clip")
        return np.where(self.lengths > place, found, np.uint8(0))

    def begin_only_with(self, allowed: bytes) -> bool:
        return self._begins <= set(allowed)

    def begin_with(self, some: bytes) -> bool:
        return not self._begins.isdisjoint(some)


def _present(values: pa.Array) -> tuple[_Tokens, pa.Array | None]:
    """Return the values that are not missing, blanks trimmed, and the mask that selects them."""
    mask = values.is_valid() if values.null_count else None
    tokens = _Tokens(values.drop_null())
    lasts = tokens.byte(tokens.lengths - 1)
    if tokens.begin_with(_BLANKS) or np.isin(lasts, np.frombuffer(_BLANKS, np.uint8)).any():
        tokens = _Tokens(pc.ascii_trim_whitespace(tokens.values))
    if tokens.begin_with(b"\0Nn#"):
        missing = pc.is_in(tokens.values, pa.array(_MISSING))
        if missing.true_count:
            present = pc.invert(missing)
            tokens = _Tokens(tokens.values.filter(present))
            mask = present if mask is None else pc.replace_with_mask(mask, mask, present)
    return tokens, mask


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


def _bools(tokens: _Tokens) -> pa.Array | None:
    if not tokens.begin_only_with(b"tTfF"):
        return None
    true = pc.is_in(tokens.values, pa.array(_TRUE))
    false = pc.is_in(tokens.values, pa.array(_FALSE))
    return true if true.true_count + false.true_count == len(true) else None


def _may_be_numbers(tokens: _Tokens) -> bool:
    """Whether no value is a code such as 007, or starts like no number."""
    if not tokens.begin_only_with(_DIGITS + b"-.iI"):
        return False
    signs = (tokens.firsts == ord("-")).astype(np.int32)
    zero = tokens.byte(signs) == ord("0")
    after = tokens.byte(signs + 1)[zero]
    return bool(np.isin(after, np.frombuffer(b"\0.eE", np.uint8)).all())


def _integers(tokens: _Tokens) -> pa.Array | None:
    if tokens.begin_with(b".iI") or not _may_be_numbers(tokens):
        return None
    return _try_cast(tokens.values, pa.int64())


def _numbers(tokens: _Tokens) -> pa.Array | None:
    if not _may_be_numbers(tokens):
        return None
    numbers = _try_cast(tokens.values, pa.float64())
    if numbers is None:
        return None
    odd = ~np.isfinite(numbers.to_numpy(zero_copy_only=False))
    if odd.any():
        # Arrow also reads NAN(1), and 1e999 as infinite.
        spelled = pc.match_substring_regex(tokens.values.filter(odd), "^-?(?i:inf|infinity)$")
        if spelled.true_count < len(spelled):
            return None
    long = tokens.lengths >= 19
    if long.any():
        # As a number an integer beyond int64, an id most often, would lose its last digits.
        whole = tokens.values.filter(long)
        whole = whole.filter(pc.match_substring_regex(whole, "^-?[0-9]+$"))
        if _try_cast(whole, pa.int64()) is None:
            return None
    return numbers


def _may_be_dates(tokens: _Tokens) -> bool:
    return (
        tokens.begin_only_with(_DIGITS)
        and bool((tokens.lengths >= 10).all())
        and bool((tokens.byte(4) == ord("-")).all())
    )


def _moments(data_type: pa.DataType, tokens: _Tokens) -> pa.Array | None:
    return _try_cast(tokens.values, data_type) if _may_be_dates(tokens) else None


def _nothing(tokens: _Tokens) -> pa.Array | None:
    return None if len(tokens.values) else pa.array([], pa.null())


_MOMENTS = (_Kind.DATE, _Kind.TIME, _Kind.ZONED_TIME)
_PARSERS: dict[_Kind, Callable[[_Tokens], pa.Array | None]] = {
    _Kind.NULL: _nothing,
    _Kind.BOOL: _bools,
    _Kind.INTEGER: _integers,
    _Kind.NUMBER: _numbers,
    **{kind: partial(_moments, _TYPES[kind]) for kind in _MOMENTS},
}
_IMPLIED = {_Kind.INTEGER: _Kind.NUMBER, _Kind.DATE: _Kind.TIME}
_FIRST_BYTES = _BLANKS + _DIGITS + b"\0-.iINn#tTfF"


def _array_kinds(values: pa.Array) -> _Kind:
    sample = values.slice(0, 2048)
    if len(values) > len(sample) and len(sample.unique()) * 4 <= len(sample):
        values = values.unique()
    if not _Tokens(values.drop_null()).begin_only_with(_FIRST_BYTES):
        return _Kind(0)
    tokens, _ = _present(values)
    if not len(tokens.values):
        return _EVERY_KIND
    kinds = _Kind(0)
    for kind, parse in _PARSERS.items():
        if not kind & kinds and parse(tokens) is not None:
            kinds |= kind | _IMPLIED.get(kind, _Kind(0))
    return kinds


def _plain_text(values: pa.Array) -> pa.Array:
    return values if values.type == pa.string() else values.cast(pa.string())


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
                kinds &= _array_kinds(_plain_text(chunk))
        found[name] = ColumnKinds(kinds)
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
            found[name] = ColumnKinds()
        elif pc.any(pc.is_in(column, pa.array(_MISSING))).as_py():
            found[name] = ColumnKinds(_Kind(0))
        else:
            found[name] = ColumnKinds(kinds.kinds & (_Kind.DATE | _Kind.TIME | _Kind.ZONED_TIME))
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
    if kind is None and data_type != pa.string():
        raise TypeError(f"text is not parsed as {data_type}")
    if kind is None:
        return _plain_text(values)
    if not isinstance(values, pa.DictionaryArray):
        return _parse(_plain_text(values), kind, column)
    try:
        return _parse(_plain_text(values.dictionary), kind, column).take(values.indices)
    except InputError:
        # A slice or a shared dictionary may hold values that no row has.
        used = values.indices.unique().drop_null()
        parsed = _parse(_plain_text(values.dictionary.take(used)), kind, column)
        return parsed.take(pc.index_in(values.indices, used))


def _parse(values: pa.Array, kind: _Kind, column: str) -> pa.Array:
    tokens, mask = _present(values)
    parse = _PARSERS[kind]
    parsed = parse(tokens) if len(tokens.values) else pa.array([], _TYPES[kind])
    if parsed is None:
        bad = _first_refused(tokens.values, parse)
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


def _first_refused(values: pa.Array, parse: Callable[[_Tokens], pa.Array | None]) -> str:
    """Return the first value that is not of the kind, by halving: a kind holds value by value."""
    while len(values) > 1:
        half = values.slice(0, len(values) // 2)
        refused = parse(_Tokens(half)) is None
        values = half if refused else values.slice(len(half))
    return str(values[0].as_py())
