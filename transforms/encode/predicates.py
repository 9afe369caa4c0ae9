"""Singleton predicates: their JSON form, their text and how it is read, and the identity of a slice."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.arrays import NDArray
from slicebeam.metrics.errors import LONGEST_IN_TEXT, InputError, shortened, unknown_name
from slicebeam.metrics.randomness import splitmix64

OPS = ("==", "in", "not_in", "<", ">=", "between", "is_null", "contains")

_MOST_VALUES_IN_TEXT = 3
# Whole numbers below are shown with all digits, larger ones with an exponent.
_LARGEST_WRITTEN_OUT = 1e15
_ZEROS = re.compile(r"(T00:00:00|(?<=:\d\d))(\.0+)?\Z")
_MORE = re.compile(r"… \d+ more")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Singleton:
    """A condition on one field; ``between`` is half-open, ``[low, high)``.

    The value is JSON of the column's own type, a list for ``in``, ``not_in`` and ``between``. Dates, times
    and decimals are strings, and infinite numbers ``Infinity`` and ``-Infinity``.

    >>> age, sex = Singleton("age", "between", [37, 41]), Singleton("sex", "==", "Female")
    >>> print(age)
    age in [37, 41)
    >>> age.json_text()
    '{"field": "age", "op": "between", "value": [37, 41]}'

    A slice is a conjunction of such conditions; its hash is the same on every machine, in any order:

    >>> one, other = slice_hashes([[sex, age], [age, sex]])
    >>> bool(one == other)
    True
    """

    field: str
    op: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise InputError(f"predicate on {self.field!r}: unknown op {self.op!r}; ops: {OPS}")
        # -0.0 equals 0.0, so that both are the same slice.
        object.__setattr__(self, "value", _without_negative_zero(self.value))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the predicate."""
        value = {} if self.op == "is_null" else {"value": self.value}
        return {"field": self.field, "op": self.op, **value}

    def json_text(self) -> str:
        """Return the JSON text that stands in ``slices.parquet``."""
        return json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False)

    def identity(self) -> int:
        """Return 64 bits of a SHA-256 of the canonical JSON: the same on every machine."""
        shape, separators = self.to_json(), (",", ":")
        canonical = json.dumps(shape, allow_nan=False, sort_keys=True, separators=separators)
        return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:8], "big")

    def __str__(self) -> str:
        """Return the predicate as a reader would say it."""
        return self._text(shown, _MOST_VALUES_IN_TEXT)

    def whole_text(self) -> str:
        """Return the same with all values, and with all characters of each."""
        return self._text(_whole, None)

    def _text(self, shown: Callable[[Any], str], most: int | None) -> str:
        field = _quoted(self.field)
        if self.op == "is_null":
            return f"{field} is missing"
        if self.op == "between":
            low, high = (shown(_as_date(edge)) for edge in self.value)
            return f"{field} in [{low}, {high})"
        if self.op in ("in", "not_in"):
            listed = [shown(value) for value in self.value]
            if most is not None and self.op == "not_in" and len(listed) > most:
                listed[most:] = [f"… {len(listed) - most} more"]
            return f"{field} {self.op.replace('_', ' ')} {{{', '.join(listed)}}}"
        sign = {"==": "=", "<": "<", ">=": ">=", "contains": "contains"}[self.op]
        value = _as_date(self.value) if self.op in ("<", ">=") else self.value
        return f"{field} {sign} {shown(value)}"


def _as_date(edge: Any) -> Any:
    """Return an edge without the zeros of midnight and of parts of a second."""
    return _ZEROS.sub("", edge) if isinstance(edge, str) else edge


def _without_negative_zero(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_negative_zero(one) for one in value]
    return 0.0 if isinstance(value, float) and value == 0 else value


def slice_hashes(slices: Iterable[Iterable[Singleton]]) -> NDArray[np.uint64]:
    """Return the 64 bits [slices] that identify conjunctions, in any order of conditions."""
    sums = [sum(one.identity() for one in conditions) % 2**64 for conditions in slices]
    return splitmix64(np.array(sums, np.uint64))


def is_shortened(text: str) -> bool:
    """Return whether a text, or what `Singleton` prints of many values, may have been shortened."""
    longest = len(text) >= LONGEST_IN_TEXT and text.endswith("…")
    return longest or bool(_MORE.fullmatch(text))


def _quoted(text: str) -> str:
    # A blank, an empty text or a sign of our own notation would be unreadable without quotes.
    signs = set(text) & set(',&{}[]()"=<>') or _CONTROL.search(text)
    if text and text == text.strip() and not signs:
        return text
    # JSON leaves some control characters as they are, which a terminal obeys.
    quoted = json.dumps(text, ensure_ascii=False)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def _whole(value: Any) -> str:
    return _quoted(value) if isinstance(value, str) else shown(value)


def shown(value: Any) -> str:
    """Return a value as in the text of a predicate."""
    if isinstance(value, str):
        return _quoted(shortened(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        is_whole = value.is_integer() and abs(value) < _LARGEST_WRITTEN_OUT
        short = str(int(value)) if is_whole else f"{value:g}"
        return short if float(short) == value else str(value)
    return str(value)


def json_values(values: pa.Array) -> list[Any]:
    """Return the JSON values of an Arrow array without missing values, of the column's own type.

    >>> json_values(pa.array([0.2, 16777216.0], pa.float32()))
    [0.2, 16777216.0]
    """
    kind = values.type
    if pa.types.is_temporal(kind):
        return [text.replace(" ", "T") for text in pc.cast(values, pa.string()).to_pylist()]
    listed: list[Any] = values.to_pylist()
    if pa.types.is_decimal(kind):
        return list(map(str, listed))
    if not pa.types.is_floating(kind):
        return listed
    if kind.bit_width < 64:
        # The shortest text that the narrower type needs: conditions are rounded to it.
        listed = [float(str(value)) for value in values.to_numpy(zero_copy_only=False)]
    return [
        value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
        for value in listed
    ]


def arrow_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the Arrow array of JSON values; the inverse of `json_values`."""
    try:
        array = _parsed(values, kind)
        # Arrow refuses to cut a text, but makes 9 of 9.8.
        from_text = pa.types.is_temporal(kind) or pa.types.is_decimal(kind)
        if not from_text and values != json_values(array):
            raise ValueError("a value would be rounded")  # noqa: TRY301
    except (pa.ArrowInvalid, TypeError, ValueError, OverflowError) as error:
        shown = shortened(repr(values))
        raise InputError(f"predicate values {shown} do not fit a column of {kind}") from error
    return array


def _parsed(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_time(kind):
        # Arrow reads no time of day from text, but an instant of a day.
        days = pa.array([f"1970-01-01T{value}" for value in values], pa.string())
        return pc.cast(pc.cast(days, pa.timestamp(kind.unit)), kind)
    if pa.types.is_temporal(kind):
        return pc.cast(pa.array(values, pa.string()), kind)
    if pa.types.is_decimal(kind):
        return pc.cast(pa.array([str(value) for value in values], pa.string()), kind)
    if pa.types.is_floating(kind):
        return pa.array([float(value) for value in values], pa.float64()).cast(kind)
    return pa.array(values, kind)


_QUOTED = r'"(?:[^"\\]|\\.)*"'
# Signs of the notation: a name or a value that holds one is in quotes.
_WORD = re.compile(rf'\s*(?:{_QUOTED}|[^,&{{}}\[\]()"=<>]*[^,&{{}}\[\]()"=<>\s])\s*')
# What may stand between the name and the values, and what ends the values.
_OPS = (
    ("is_null", re.compile(r"\sis missing\s*$"), ""),
    ("between", re.compile(r"\sin\s*\["), ")"),
    ("not_in", re.compile(r"\snot in\s*\{"), "}"),
    ("in", re.compile(r"\sin\s*\{"), "}"),
    ("contains", re.compile(r"\scontains\s"), ""),
    ("sign", re.compile(r"[=<>!]+"), ""),
)
_SIGNS = {"=": "==", "==": "==", "<": "<", ">=": ">="}
_FORMS = "=, <, >=, in [low, high), in {a, b}, not in {a, b}, contains, is missing"
_EXAMPLE = "age in [37, 41) & sex = Female"


# One way to read a condition: its field, its op, and its values as they stand.
_Reading = tuple[str, str, tuple[str, ...]]


def parse_predicate(text: str, columns: Mapping[str, pa.DataType]) -> tuple[Singleton, ...]:
    """Return the conditions of a text, joined by ``&`` as `Singleton` prints them.

    A name or a value that holds one of ``,&{}[]()"=<>`` is in double quotes, as in JSON. The types of the
    columns decide how values are read.
    """
    return tuple(_condition(part, columns) for part in _split(text, "&"))


def refuse_empty_intervals(text: str) -> None:
    """Raise an InputError where an interval of numbers in a predicate's text holds no value."""
    for field, op, words in (one for part in _split(text, "&") for one in _readings(part)):
        if op == "between":
            try:
                low, high = map(float, words)
            except ValueError:
                continue
            if not low < high:
                raise InputError(
                    f"'{Singleton(field, 'between', [low, high])}' contains no value; the "
                    "lower bound comes first, and the upper bound is not part of the interval"
                )


def condition_fields(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each condition of a predicate's text with the columns that it may be about."""
    found = []
    for part in _split(text, "&"):
        fields = tuple(dict.fromkeys(field for field, *_ in _readings(part)))
        if not fields:
            raise _no_condition(part)
        found.append((part, fields))
    return found


def condition_readings(text: str) -> list[frozenset[_Reading]]:
    """Return every way to read each condition of a text, without types: those that say the same share one.

    >>> condition_readings("age < 25.0") == condition_readings("age<25")
    True
    """
    return [
        frozenset(
            (field, op, tuple(sorted(words) if op in ("in", "not_in") else words))
            for field, op, written in _readings(part)
            for words in [list(map(_plain_word, written))]
        )
        for part in _split(text, "&")
    ]


def _plain_word(word: str) -> str:
    """Return a value without quotes, and a number in its shortest form."""
    if word.startswith('"'):
        return str(json.loads(word, strict=False))
    try:
        return repr(float(word))
    except ValueError:
        return word


def _no_condition(text: str) -> InputError:
    return InputError(
        f"{shortened(text)!r} is not a condition; write it as in {_EXAMPLE!r}; ops: {_FORMS}"
    )


def _split(text: str, separator: str) -> list[str]:
    """Return the parts between separators outside quotes, stripped."""
    parts, begin = [], 0
    for match in re.finditer(rf"{_QUOTED}|{re.escape(separator)}", text):
        if match[0] == separator:
            parts.append(text[begin : match.start()].strip())
            begin = match.end()
    return [*parts, text[begin:].strip()]


def _condition(text: str, columns: Mapping[str, pa.DataType]) -> Singleton:
    readings = list(dict.fromkeys(_readings(text)))
    known = [reading for reading in readings if reading[0] in columns]
    if not readings:
        raise _no_condition(text)
    if not known:
        raise unknown_name("column", readings[0][0], columns)
    if len(known) > 1:
        raise InputError(
            f"{shortened(text)!r} is ambiguous: it may refer to {known[0][0]!r} or "
            f"{known[1][0]!r}; put the name of the column in double quotes"
        )
    field, op, words = known[0]
    values = [_value(word, columns[field]) for word in words]
    if op == "is_null":
        return Singleton(field, op)
    return Singleton(field, op, values if op in ("in", "not_in", "between") else values[0])


def _readings(text: str) -> Iterator[_Reading]:
    """Yield every way to read a condition: a name may hold the words of the notation."""
    quotes = [match.span() for match in re.finditer(_QUOTED, text)]
    for op, form, end in _OPS:
        for match in form.finditer(text):
            field, rest = text[: match.start()].strip(), text[match.end() :]
            is_quoted = any(begin <= match.start() < stop for begin, stop in quotes)
            if is_quoted or not rest.endswith(end):
                continue
            words = _split(rest.removesuffix(end), ",") if end else [rest.strip()]
            words = [] if op == "is_null" else words
            if (op == "between" and len(words) != 2) or not all(
                map(_WORD.fullmatch, [field, *words])
            ):
                continue
            if op == "sign" and match[0] not in _SIGNS:
                raise InputError(f"{shortened(text)!r}: unknown op {match[0]!r}; ops: {_FORMS}")
            name = json.loads(field, strict=False) if field.startswith('"') else field
            yield name, _SIGNS.get(match[0], op), tuple(words)


def _value(word: str, kind: pa.DataType) -> Any:
    """Return the JSON value of a word for a column of a type."""
    kind = kind.value_type if pa.types.is_list(kind) or pa.types.is_dictionary(kind) else kind
    is_quoted = word.startswith('"')
    text = json.loads(word, strict=False) if is_quoted else word
    if is_shortened(text):
        raise InputError(
            f"{shortened(text)!r} was shortened for display; give the slice as JSON, from the "
            "column predicate of slices.parquet"
        )
    if is_quoted:
        return text
    if pa.types.is_boolean(kind) and text in ("true", "false"):
        return text == "true"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        with suppress(ValueError):
            return int(text)
        with suppress(ValueError):
            # Infinities and what is not a number stay text, as in JSON.
            return float(text) if math.isfinite(float(text)) else text
    return text
