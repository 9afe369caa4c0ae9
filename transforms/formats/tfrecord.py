"""TFRecord files of tf.Example as Arrow tables, without TensorFlow."""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import IO, Any, BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import FileError, InputError
from slicebeam.transforms.formats.raw_text import open_bytes

_MOST_BYTES = 64 << 20
_LARGEST_RECORD = (1 << 31) - 1
_FORMAT = "TFRecord of tf.Example is expected (gzip only with a name that ends in .gz)"


def masked_crc32c(message: bytes) -> int:
    """Return the masked CRC-32C of a message, as TFRecord frames carry it."""
    crc = google_crc32c.value(message)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache(maxsize=4096)
def _frame_length(header: bytes) -> int | None:
    """Return the length that a frame's 12 first bytes state, None if their checksum is wrong."""
    length, checksum = struct.unpack("<QI", header)
    return int(length) if masked_crc32c(header[:8]) == checksum else None


def _read(stream: BinaryIO, size: int) -> bytes:
    """Return this many bytes, or the remaining ones: a wrong length takes no memory."""
    parts = []
    while size and (part := stream.read(min(size, _MOST_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _record_blocks(
    stream: BinaryIO, path: str, block_rows: int
) -> Iterator[tuple[list[bytes], int]]:
    """Yield the records of a block, their checksums verified, and how many came before."""
    before = size = 0
    records: list[bytes] = []

    def refused(what: str) -> InputError:
        return InputError(f"{path}, record {before + len(records) + 1}: {what}")

    while header := stream.read(12):
        length = _frame_length(header) if len(header) == 12 else 0
        if length is None:
            raise refused(f"the checksum of its length is wrong; {_FORMAT}")
        if length > _LARGEST_RECORD:
            raise refused(f"{length} bytes, more than the 2 GB of a message; {_FORMAT}")
        data = _read(stream, length + 4)
        if len(data) < length + 4:
            raise refused("the file ends inside it; copy or write the file again")
        record = data[:-4]
        if masked_crc32c(record) != int.from_bytes(data[-4:], "little"):
            raise refused("the checksum of its data is wrong; copy or write the file again")
        records.append(record)
        size += length
        if len(records) >= block_rows or size >= _MOST_BYTES:
            yield records, before
            before, size = before + len(records), 0
            records = []
    if records:
        yield records, before


def write_records(stream: IO[bytes], records: Iterable[bytes]) -> None:
    """Write records with their frames, as a TFRecord file has them."""
    for record in records:
        header = struct.pack("<Q", len(record))
        for part in (header, record):
            stream.write(part)
            stream.write(struct.pack("<I", masked_crc32c(part)))


# Of tf.Example, as protoc compiles it, in a package beside TensorFlow's. A SequenceExample has its lists
# in field 2 (feature_lists), which an Example lacks.
_DESCRIPTOR = b64decode(
    "ChdzbGljZWJlYW0vZXhhbXBsZS5wcm90bxIJc2xpY2ViZWFtIhoKCUJ5dGVzTGlzdBINCgV2YWx1ZRgBIAMoDCIaCglGbG9h"
    "dExpc3QSDQoFdmFsdWUYASADKAIiGgoJSW50NjRMaXN0Eg0KBXZhbHVlGAEgAygDIpUBCgdGZWF0dXJlEioKCmJ5dGVzX2xp"
    "c3QYASABKAsyFC5zbGljZWJlYW0uQnl0ZXNMaXN0SAASKgoKZmxvYXRfbGlzdBgCIAEoCzIULnNsaWNlYmVhbS5GbG9hdExp"
    "c3RIABIqCgppbnQ2NF9saXN0GAMgASgLMhQuc2xpY2ViZWFtLkludDY0TGlzdEgAQgYKBGtpbmQigQEKCEZlYXR1cmVzEjEK"
    "B2ZlYXR1cmUYASADKAsyIC5zbGljZWJlYW0uRmVhdHVyZXMuRmVhdHVyZUVudHJ5GkIKDEZlYXR1cmVFbnRyeRILCgNrZXkY"
    "ASABKAkSIQoFdmFsdWUYAiABKAsyEi5zbGljZWJlYW0uRmVhdHVyZToCOAEiRwoHRXhhbXBsZRIlCghmZWF0dXJlcxgBIAEo"
    "CzITLnNsaWNlYmVhbS5GZWF0dXJlcxIVCg1mZWF0dXJlX2xpc3RzGAIgASgMYgZwcm90bzM="
)


@cache
def example_class() -> Any:
    """Return the message class of tf.Example."""
    from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_DESCRIPTOR)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("slicebeam.Example"))


@dataclass
class _Feature:
    """The values of a feature in a block: where they are, and all of them in a row."""

    kind: str
    rows: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


def _parse(records: list[bytes], path: str, before: int) -> dict[str, _Feature]:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

    def refused(row: int, what: str) -> InputError:
        return InputError(f"{path}, record {before + row + 1}: {what}")

    parse = example_class().FromString
    found: dict[str, _Feature] = {}
    for row, record in enumerate(records):
        try:
            example = parse(record)
        except DecodeError as error:
            raise refused(row, f"not a tf.Example ({error}); {_FORMAT}") from error
        if example.feature_lists or (record and not example.HasField("features")):
            what = "a SequenceExample" if example.feature_lists else "not a tf.Example"
            raise refused(row, f"{what}; {_FORMAT}")
        # Protobuf puts an entry that holds something else besides among what it does not know.
        if any(unknown.field_number == 1 for unknown in UnknownFieldSet(example.features)):
            raise refused(row, f"a feature without a name, or damaged; {_FORMAT}")
        for name, value in example.features.feature.items():
            kind = value.WhichOneof("kind")
            if kind is None:
                continue
            feature = found.get(name)
            if feature is None:
                feature = found[name] = _Feature(kind)
            elif feature.kind != kind:
                first = f"a {feature.kind} in record {before + feature.rows[0] + 1}"
                raise refused(row, f"feature {name!r} is a {kind}, but {first}; use one kind")
            values = getattr(value, kind).value
            feature.rows.append(row)
            feature.lengths.append(len(values))
            feature.values.extend(values)
    return found


def _column(feature: _Feature, count: int) -> pa.Array:
    types = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
    values = pa.array(feature.values, types[feature.kind])
    if feature.kind == "bytes_list":
        with suppress(pa.ArrowInvalid):
            values = values.cast(pa.string())
    rows = np.array(feature.rows, np.int64)
    lengths = np.zeros(count, np.int64)
    lengths[rows] = feature.lengths
    if lengths.max() <= 1:
        if len(values) == count:
            return values
        places = np.cumsum(lengths) - 1
        return values.take(pa.array(places, mask=lengths == 0))
    missing = np.ones(count, bool)
    missing[rows] = False
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values, mask=pa.array(missing))


def read_tfrecord_blocks(path: str, *, block_rows: int = 16384) -> Iterator[pa.Table]:
    """Yield a TFRecord file of tf.Example messages (gzip if it ends in ``.gz``) as tables, in file order.

    A feature with at most one value in each record of a block is a scalar column, null where it is
    missing or empty; else a list column, null where it is missing. Values are int64, float32, or string;
    bytes that are not all UTF-8 in the block are binary. A block ends at 64 MB of records.
    """
    rows = 0
    with open_bytes(path) as stream:
        for records, before in _record_blocks(stream, path, block_rows):
            features = _parse(records, path, before)
            rows += len(records)
            if not features:
                raise InputError(f"{path}, record {before + 1}: no features; {_FORMAT}")
            columns = {name: _column(features[name], len(records)) for name in sorted(features)}
            yield pa.table(columns)
    if not rows:
        raise FileError(f"{path}: the file is empty; {_FORMAT}")
