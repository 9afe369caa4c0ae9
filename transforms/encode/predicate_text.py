"""Reads predicates as they are printed: ``age in [37, 41) & sex = Female``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from slicebeam.metrics.errors import InputError, unknown_name
from slicebeam.transforms.encode.predicates import Singleton, is_shortened, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
)
_SIGNS = {"=": "==", "==": "==", "<": "<", ">=": ">="}
_SIGN = re.compile(r"[=<>!]+")
_FORMS = "=, <, >=, in [low, high), in {a, b}, not in {a, b}, contains, is missing"
_EXAMPLE = "age in [37, 41) & sex = Female"


class _ConditionReading(NamedTuple):
    """One way to read a condition; values are the words as they stand."""

    field: str
    op: str
    words: tuple[str, ...]


def parse_predicate(text: str, columns: Mapping[str, pa.DataType]) -> tuple[Singleton, ...]:
    """Return the conditions of a text, joined by ``&`` as `Singleton` prints them.

    A name or a value that holds one of ``,&{}[]()"=<>`` is in double quotes, as in JSON. The types of the
    columns decide how values are read.
    """
    return tuple(_condition(part, columns) for part in _split(text, "&"))


def refuse_empty_intervals(text: str) -> None:
    """Raise an InputError where an interval of numbers in a predicate's text holds no value."""
    for reading in (one for part in _split(text, "&") for one in _readings(part)):
        if reading.op == "between":
            try:
                low, high = map(float, reading.words)
            except ValueError:
                continue
            if not low < high:
                raise InputError(
                    f"'{Singleton(reading.field, 'between', [low, high])}' contains no value; the "
                    "lower bound comes first, and the upper bound is not part of the interval"
                )


def condition_fields(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each condition of a predicate's text with the columns that it may be about."""
    found = []
    for part in _split(text, "&"):
        fields = tuple(dict.fromkeys(reading.field for reading in _readings(part)))
        if not fields:
            raise _no_condition(part)
        found.append((part, fields))
    return found


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
    known = [one for one in readings if one.field in columns]
    if not readings:
        raise _no_condition(text)
    if not known:
        raise unknown_name("column", readings[0].field, columns)
    if len(known) > 1:
        raise InputError(
            f"{shortened(text)!r} is ambiguous: it may refer to {known[0].field!r} or "
            f"{known[1].field!r}; put the name of the column in double quotes"
        )
    field, op, words = known[0]
    values = [_value(word, columns[field]) for word in words]
    if op == "is_null":
        return Singleton(field, op)
    return Singleton(field, op, values if op in ("in", "not_in", "between") else values[0])


def _readings(text: str) -> Iterator[_ConditionReading]:
    """Yield every way to read a condition: a name may hold the words of the notation."""
    quotes = [match.span() for match in re.finditer(_QUOTED, text)]

    def outside(match: re.Match[str]) -> bool:
        return not any(begin <= match.start() < end for begin, end in quotes)

    for op, form, end in _OPS:
        for match in filter(outside, form.finditer(text)):
            rest = text[match.end() :]
            if not rest.endswith(end):
                continue
            words = _split(rest.removesuffix(end), ",") if op != "is_null" else []
            if op == "between" and len(words) != 2:
                continue
            yield from _reading(text[: match.start()], op, words)
    for match in filter(outside, _SIGN.finditer(text)):
        for reading in _reading(text[: match.start()], match[0], [text[match.end() :].strip()]):
            if match[0] not in _SIGNS:
                raise InputError(f"{shortened(text)!r}: unknown op {match[0]!r}; ops: {_FORMS}")
            yield reading._replace(op=_SIGNS[match[0]])


def _reading(field: str, op: str, words: list[str]) -> Iterator[_ConditionReading]:
    """Yield the reading if its parts are words."""
    if all(_WORD.fullmatch(word) for word in (field, *words)):
        field = field.strip()
        name = json.loads(field, strict=False) if field.startswith('"') else field
        yield _ConditionReading(name, op, tuple(words))


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
        for number in (int, float):
            try:
                found = number(text)
            except ValueError:
                continue
            # Infinities and what is not a number stay text, as in JSON.
            return found if found - found == 0 else text
    return text
