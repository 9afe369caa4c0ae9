"""TFRecord of tf.Example, frame by frame and byte by byte, by their published formats alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tests.fuzzing.case import Reading, UnreadableError
from tests.tfrecord_files import masked_crc

KINDS = {1: "bytes", 2: "float", 3: "int64"}


def records(data):
    found, at = [], 0
    while at < len(data):
        if len(data) < at + 12:
            raise UnreadableError("cut off in a length")
        length, checksum = struct.unpack_from("<QI", data, at)
        if masked_crc(data[at : at + 8]) != checksum:
            raise UnreadableError("checksum of a length")
        record = data[at + 12 : at + 12 + length]
        end = data[at + 12 + length : at + 16 + length]
        if len(record) < length or len(end) < 4:
            raise UnreadableError("cut off in a record")
        if masked_crc(record) != struct.unpack("<I", end)[0]:
            raise UnreadableError("checksum of a record")
        found.append(record)
        at += 16 + length
    if not found:
        raise UnreadableError("no record")
    return found


def _varint(data, at):
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise UnreadableError("varint")
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            # Of the tenth byte only the lowest bit counts.
            return value & (1 << 64) - 1, at


def _fields(data):
    """Yield number, wire type and value of the fields of a message; groups are passed over."""
    at, open_groups = 0, []
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise UnreadableError(f"field {number}")
        value = None
        if wire == 0:
            value, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire == 3:
            open_groups.append(number)
        elif wire == 4 and open_groups and open_groups[-1] == number:
            open_groups.pop()
            continue
        else:
            raise UnreadableError(f"wire type {wire}")
        if at > len(data):
            raise UnreadableError("a field that is cut off")
        if not open_groups and wire != 3:
            yield number, wire, value
    if open_groups:
        raise UnreadableError("a group without an end")


@dataclass
class Feature:
    """A feature of an example: its kind, None where it has none, and its values."""

    kind: str | None = None
    values: list[Any] = field(default_factory=list)


def _add(feature, data):
    """Add what a Feature message says: another kind replaces the values, the same adds to them."""
    for number, wire, value in _fields(data):
        kind = KINDS.get(number)
        if kind is None or wire != 2:
            continue
        if feature.kind != kind:
            feature.kind, feature.values = kind, []
        for inner, inner_wire, part in _fields(value):
            if inner == 1:
                feature.values += _values(kind, inner_wire, part)


def _values(kind, wire, part):
    """Return the values of a list's field, which is packed or not; none for another wire type."""
    if kind == "bytes":
        return [part] if wire == 2 else []
    if kind == "float":
        if wire == 5:
            return [np.float32(struct.unpack("<f", part)[0])]
        if wire == 2:
            if len(part) % 4:
                raise UnreadableError("packed floats")
            return list(np.frombuffer(part, "<f4"))
        return []
    if wire == 0:
        return [_signed(part)]
    if wire != 2:
        return []
    found, at = [], 0
    while at < len(part):
        number, at = _varint(part, at)
        found.append(_signed(number))
    return found


def _signed(number):
    return number - (1 << 64) if number >> 63 else number


def example(record):
    found, present = {}, False
    for number, wire, value in _fields(record):
        if number == 2 and wire == 2 and value:
            raise UnreadableError("a SequenceExample")
        if number != 1 or wire != 2:
            continue
        present = True
        for inner, inner_wire, entry in _fields(value):
            if inner != 1 or inner_wire != 2:
                continue
            key, feature = b"", Feature()
            for part, part_wire, content in _fields(entry):
                if part == 1 and part_wire == 2:
                    key = content
                elif part == 2 and part_wire == 2:
                    _add(feature, content)
            try:
                found[key.decode()] = feature
            except UnicodeDecodeError as error:
                raise UnreadableError("a name that is no UTF-8") from error
    if record and not present:
        raise UnreadableError("no Example")
    return found


def read(data):
    examples = [example(record) for record in records(data)]
    columns, types = {}, {}
    for name in sorted({name for one in examples for name in one}):
        features = [one.get(name, Feature()) for one in examples]
        kinds = {feature.kind for feature in features} - {None}
        if not kinds:
            continue
        if len(kinds) > 1:
            raise UnreadableError(f"{name!r} is {' and '.join(map(str, sorted(map(str, kinds))))}")
        columns[name], types[name] = _column(features, str(kinds.pop()))
    if not columns:
        raise UnreadableError("no feature")
    return Reading(pd.DataFrame(columns, index=range(len(examples))), types)


def _column(features, kind):
    rows = [feature.values if feature.kind else None for feature in features]
    name = {"bytes": "string", "float": "float", "int64": "int64"}[kind]
    if kind == "bytes":
        try:
            rows = [row and [value.decode() for value in row] for row in rows]
        except UnicodeDecodeError:
            name = "binary"
    if all(row is None or len(row) <= 1 for row in rows):
        return pd.Series([row[0] if row else None for row in rows], dtype=object), name
    return pd.Series(rows, dtype=object), f"list {name}"
