"""JSON Lines as Arrow tables, block by block."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.arrays import IntArray, NDArray
from slicebeam.metrics.errors import ColumnError, FileError, InputError
from slicebeam.transforms.formats.raw_text import (
    LARGEST_BLOCK,
    beginning,
    open_bytes,
    require_text,
    require_whole_gzip,
)

_EXACT = 2**53
# Arrow recurses into a nested value without end, and so do those who read what it made of it.
_DEEPEST = 64
# No number of 64 bits has so many digits, and Python refuses to read a few thousand.
_MOST_DIGITS = 400
_NO_OBJECT = "a line contains more or less than one object"
# What comes after an object in an array or an object begins otherwise, unless it is in a text.
_AFTER_AN_OBJECT = re.compile(rb"\}[ \t\r]*n")
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def read_json_blocks(path: str, *, block_bytes: int = 16 << 20) -> Iterator[pa.Table]:
    """Yield a JSON Lines file (gzip if it ends in ``.gz``) as tables, in file order.

    A table has a column for each key of its block, in order of first appearance in the file, with a type
    of its own for each block. A missing key is null. Strings stay strings, also where all look like
    dates: see ``column_kinds.date_kinds``. A block grows up to 256 MB where a single line is longer.
    """
    text_types: dict[str, pa.DataType] = {}
    kinds: dict[str, str] = {}
    order: dict[str, None] = {}
    rows = 0
    for data, first_line in _line_blocks(path, block_bytes):
        if not data.strip():
            continue
        try:
            require_text(data, path, first_line)
            table = _parse(data, text_types, kinds, path, first_line)
        except InputError:
            require_whole_gzip(path)
            raise
        rows += table.num_rows
        order.update(dict.fromkeys(table.column_names))
        yield table.select([name for name in order if name in table.column_names])
    if not rows:
        raise FileError(f"{path}: the file is empty; JSON Lines has one object per line")
    if not order:
        raise InputError(f"{path}: no object has a key; JSON Lines has one example per line")


def _line_blocks(path: str, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines, about ``block_bytes`` together, and the number of their first line."""
    line = 1
    with open_bytes(path) as stream:
        parts: list[bytes] = []
        data = stream.read(block_bytes).removeprefix(b"\xef\xbb\xbf")
        while data:
            following = stream.read(block_bytes)
            # A JSON string holds no raw line end, so a line end always ends an object.
            lines, newline, rest = data.rpartition(b"\n") if following else (b"", b"", data)
            data = following
            if newline:
                block = b"".join([*parts, lines, newline])
                yield block, line
                line += block.count(b"\n")
                parts = []
            parts.append(rest)
            if sum(map(len, parts)) > LARGEST_BLOCK:
                raise InputError(
                    f"{path}, line {line}: longer than 256 MB; JSON Lines has one object per line"
                )
        if last := b"".join(parts):
            yield last, line


def _parse(
    data: bytes,
    text_types: dict[str, pa.DataType],
    kinds: dict[str, str],
    path: str,
    first_line: int,
) -> pa.Table:
    """Parse a block; the types found so far in the file grow with it."""
    _require_shallow(data, path, first_line)
    objects = _count_objects(data)
    if objects is None:
        _explain(data, kinds, path, first_line, _NO_OBJECT)
    try:
        table = _arrow_table(data, text_types)
        timed = {f.name: _as_text(f.type) for f in table.schema if _as_text(f.type) != f.type}
        if timed:
            text_types.update(timed)
            # Arrow puts the columns whose types it is given first.
            table = _arrow_table(data, text_types).select(table.column_names)
    except pa.ArrowInvalid as error:
        _explain(data, kinds, path, first_line, str(error))
    for field in table.schema:
        kind = _kind_of_type(field.type)
        if kind != "null" and kinds.setdefault(field.name, kind) != kind:
            _explain(data, kinds, path, first_line, f"column {field.name!r} changes type")
    if table.num_rows != objects:
        _explain(data, kinds, path, first_line, _NO_OBJECT)
    if any(_may_be_rounded(column) for column in table.columns):
        _require_exact(data, table, path, first_line)
    return table


def _lines(data: bytes) -> tuple[NDArray[np.uint8], IntArray, IntArray]:
    """Return the bytes, and where each line begins and ends."""
    signs = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(signs == ord("\n"))
    if not data.endswith(b"\n"):
        ends = np.append(ends, signs.size)
    return signs, np.append(0, ends[:-1] + 1), ends


def _require_shallow(data: bytes, path: str, first_line: int) -> None:
    """Raise an InputError where values are nested deeper than any reader goes."""
    if data.count(b"[") + data.count(b"{") <= _DEEPEST:
        return
    signs, begins, _ = _lines(data)
    opening = np.flatnonzero((signs == ord("[")) | (signs == ord("{")))
    # So many in a line may be deep, or beside each other, or within a text.
    crowded = np.bincount(np.searchsorted(begins, opening, side="right") - 1) > _DEEPEST
    for place in np.flatnonzero(crowded).tolist():
        line = data[begins[place] :].split(b"\n", 1)[0]
        if _depth(line) > _DEEPEST:
            raise InputError(
                f"{path}, line {first_line + place}: values are nested deeper than {_DEEPEST} "
                f"levels: {beginning(line.decode('utf-8', 'replace').strip())!r}; flatten them"
            )


def _depth(line: bytes) -> int:
    """Return how deep brackets are within brackets, those in texts aside."""
    signs = np.frombuffer(_TEXT.sub(b"", line), np.uint8)
    opens, closes = (np.isin(signs, list(brackets)).astype(int) for brackets in (b"[{", b"]}"))
    return int((opens - closes).cumsum().max(initial=0))


def _count_objects(data: bytes) -> int | None:
    """Return how many lines there are that are not blank, None if one is not an object."""
    # Arrow takes an object over many lines for a row, and null too, or dies of it.
    if _AFTER_AN_OBJECT.search(data) is None:
        signs, begins, ends = _lines(data)
        lasts = np.maximum(ends - 1, 0)
        lasts -= (signs[lasts] == ord("\r")) & (lasts > begins)
        # A line that is blank, or begins with blanks, is looked at below.
        inside = begins < signs.size
        if inside.all() and (signs[begins] == ord("{")).all() and (signs[lasts] == ord("}")).all():
            return int(ends.size)
    count = 0
    for line in filter(None, map(bytes.strip, data.split(b"\n"))):
        count += 1
        if not (line.startswith(b"{") and line.endswith(b"}")):
            return None
        if _AFTER_AN_OBJECT.search(line):
            try:
                _loads(line)
            except ValueError:
                return None
    return count


def _kind_of_type(data_type: pa.DataType) -> str:
    """Return what JSON calls the values of a type that Arrow gave to a column."""
    if pa.types.is_nested(data_type):
        return "array" if pa.types.is_list(data_type) else "object"
    return {pa.null(): "null", pa.bool_(): "boolean", pa.string(): "string"}.get(
        data_type, "number"
    )


def _arrow_table(data: bytes, text_types: dict[str, pa.DataType]) -> pa.Table:
    from pyarrow import json as arrow_json

    return arrow_json.read_json(
        pa.BufferReader(data),
        # One block of Arrow's: the types are those of all lines together.
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(text_types.items()) if text_types else None
        ),
    )


def _as_text(data_type: pa.DataType) -> pa.DataType:
    """Return the type with strings where Arrow took strings for times."""
    if pa.types.is_timestamp(data_type):
        return pa.string()
    if pa.types.is_list(data_type):
        return pa.list_(_as_text(data_type.value_type))
    if pa.types.is_struct(data_type):
        return pa.struct([(field.name, _as_text(field.type)) for field in data_type])
    return data_type


def _may_be_rounded(column: pa.ChunkedArray) -> bool:
    if pa.types.is_list(column.type):
        return _may_be_rounded(pc.list_flatten(column))
    if pa.types.is_struct(column.type):
        return any(
            _may_be_rounded(pc.struct_field(column, at)) for at in range(column.type.num_fields)
        )
    if not pa.types.is_floating(column.type):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(column), float(_EXACT))).as_py())


def _require_exact(data: bytes, table: pa.Table, path: str, first_line: int) -> None:
    """Raise an InputError if an integer was rounded to a float, as an id would be."""
    whole = pa.struct(list(table.schema))
    for number, line in _filled(data, first_line):
        try:
            row = _loads(line)
        except json.JSONDecodeError:
            continue
        for name, value in _rounded("", row, whole):
            raise InputError(
                f"{path}, line {number}: column {name!r} holds {beginning(str(value))}, which "
                "a column of 64-bit numbers cannot hold exactly; write the column as strings"
            )


def _rounded(name: str, value: Any, data_type: pa.DataType) -> Iterator[tuple[str, int]]:
    """Yield the integers that Arrow's type of a value rounds, with the name of their column."""
    if pa.types.is_list(data_type):
        for part in value or ():
            yield from _rounded(name, part, data_type.value_type)
    elif pa.types.is_struct(data_type):
        for field in data_type:
            inner = f"{name}.{field.name}" if name else field.name
            yield from _rounded(inner, (value or {}).get(field.name), field.type)
    elif pa.types.is_floating(data_type) and type(value) is int and not _is_exact(value):
        yield name, value


def _is_exact(value: int) -> bool:
    return abs(value) <= sys.float_info.max and float(value) == value


def _filled(data: bytes, first_line: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    lines = enumerate(data.split(b"\n"), first_line)
    yield from ((number, line) for number, line in lines if line.strip())


def _loads(line: bytes, **hooks: Any) -> Any:
    """Return the content of a line, read as UTF-8: from bytes, Python guesses the encoding."""
    text = line.decode("utf-8-sig", "replace")
    return json.loads(text, parse_int=lambda digits: int(digits[:_MOST_DIGITS]), **hooks)


def _explain(
    data: bytes, kinds: dict[str, str], path: str, first_line: int, reason: str
) -> NoReturn:
    """Raise the InputError that names the line which does not fit the lines before it."""
    seen = {column: (kind, f"before line {first_line}") for column, kind in kinds.items()}
    for number, line in _filled(data, first_line):
        where = f"{path}, line {number}"
        shown = beginning(line.decode("utf-8", "replace").strip())
        try:
            row = _loads(line, object_pairs_hook=_ObjectPairs)
        except (json.JSONDecodeError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else "too deep"
            raise InputError(
                f"{where}: not JSON ({why}): {shown!r}; JSON Lines has one object per line"
            ) from None
        if not isinstance(row, _ObjectPairs):
            raise InputError(
                f"{where}: {_kind_of(row)} instead of an object: {shown!r}; JSON Lines has one "
                "object per line"
            )
        for column, value in _leaves("", row, where):
            kind = _kind_of(value)
            if kind == "null":
                continue
            before, line_before = seen.setdefault(column, (kind, f"in line {number}"))
            if kind != before:
                raise ColumnError(
                    f"{where}: column {column!r} holds the {kind} {beginning(json.dumps(value))}, "
                    f"but a {before} {line_before}; write one type in all lines"
                )
    raise InputError(f"{path}, from line {first_line} on: {reason.splitlines()[0]}")


class _ObjectPairs(list[tuple[str, Any]]):
    """The pairs of an object, with keys that occur twice."""


def _leaves(prefix: str, value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the name of a column, or of a part of a nested one, with each value it has."""
    if isinstance(value, _ObjectPairs):
        keys: set[str] = set()
        for key, part in value:
            name = f"{prefix}.{key}" if prefix else key
            if key in keys:
                raise InputError(f"{where}: the key {name!r} occurs twice; keep one of them")
            keys.add(key)
            yield name, part
            yield from _leaves(name, part, where)
    elif isinstance(value, list):
        for part in value:
            yield f"{prefix}[]", part
            yield from _leaves(f"{prefix}[]", part, where)


def _kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return "null" if value is None else kinds.get(type(value), "object")
