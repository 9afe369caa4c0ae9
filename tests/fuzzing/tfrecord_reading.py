"""TFRecord of tf.Example, frame by frame by its published format, each message by protobuf's library."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from google.protobuf.message import DecodeError

from slicebeam.transforms.formats.tfrecord import example_class
from tests.fuzzing.case import Reading, UnreadableError
from tests.tfrecord_files import masked_crc


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


@dataclass
class Feature:
    """A feature of an example: its kind, None where it has none, and its values."""

    kind: str | None = None
    values: list[Any] = field(default_factory=list)


def example(record):
    """Return the features of a message, which protobuf's own library parses."""
    try:
        found = example_class().FromString(record)
    except DecodeError as error:
        raise UnreadableError("no message") from error
    if found.feature_lists:
        raise UnreadableError("a SequenceExample")
    if record and not found.HasField("features"):
        raise UnreadableError("no Example")
    return {name: _feature(one) for name, one in found.features.feature.items()}


def _feature(message):
    kind = message.WhichOneof("kind")
    values = list(getattr(message, kind).value) if kind else []
    return Feature(kind, [np.float32(one) for one in values] if kind == "float_list" else values)


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
    name = {"bytes_list": "string", "float_list": "float", "int64_list": "int64"}[kind]
    if kind == "bytes_list":
        try:
            rows = [row and [value.decode() for value in row] for row in rows]
        except UnicodeDecodeError:
            name = "binary"
    if all(row is None or len(row) <= 1 for row in rows):
        return pd.Series([row[0] if row else None for row in rows], dtype=object), name
    return pd.Series(rows, dtype=object), f"list {name}"
