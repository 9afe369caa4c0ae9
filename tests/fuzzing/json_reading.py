"""JSON Lines as Python's json module reads it."""

import json

import pandas as pd

from tests.fuzzing import csv_reading, text_types
from tests.fuzzing.case import Reading, UnjudgedError, UnreadableError


def without_doubles(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableError("a key occurs twice")
    return found


def objects(data):
    found = []
    for line in csv_reading.decoded(data).split("\n"):
        if not line.strip(" \t\r"):
            continue
        try:
            row = json.loads(line, object_pairs_hook=without_doubles)
            json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"{error}: {line[:80]!r}") from error
        if not isinstance(row, dict):
            raise UnreadableError(f"no object: {line[:80]!r}")
        found.append(row)
    if not found:
        raise UnreadableError("no line")
    return found


def _kind(value):
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def _scalars(name, values):
    """Return the type of values that are no lists, and the values."""
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) > 1:
        raise UnreadableError(f"{name!r} holds {' and '.join(sorted(kinds))}")
    kind = kinds.pop() if kinds else "null"
    if kind == "str":
        return text_types.infer_dates(values)
    if kind == "number":
        present = [value for value in values if value is not None]
        if all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in present):
            return "int64", values
        for value in present:
            if isinstance(value, int):
                try:
                    exact = int(float(value)) == value
                except OverflowError:
                    exact = False
                if not exact:
                    raise UnreadableError(f"{name!r} holds {value}, which no float64 is")
        return "double", [None if value is None else float(value) for value in values]
    return {"bool": "bool", "dict": "struct", "null": "null"}[kind], values


def read(data):
    rows = objects(data)
    columns, types = {}, {}
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(name) for row in rows]
        if any(isinstance(value, list) for value in values):
            if not all(value is None or isinstance(value, list) for value in values):
                raise UnreadableError(f"{name!r} holds lists and other values")
            elements = [element for value in values for element in value or ()]
            if any(isinstance(element, list | dict) for element in elements):
                kind = "nested"
            else:
                kind, _ = _scalars(name, elements)
            if kind.startswith(("date", "timestamp")):
                kind = "string"
            types[name] = f"list {kind}"
        else:
            types[name], values = _scalars(name, values)
        columns[name] = pd.Series(values, dtype=object)
    if not columns:
        raise UnreadableError("no key")
    if len(rows) > 100_000:
        raise UnjudgedError("too many rows")
    return Reading(pd.DataFrame(columns), types)
