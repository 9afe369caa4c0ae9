"""Mutated TFRecord files of tf.Example."""

from __future__ import annotations

import gzip
import random
import struct
from typing import TYPE_CHECKING, Any

from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks
from tests.fuzzing import csv_reading, examples, tfrecord_reading
from tests.fuzzing.byte_mutations import damage
from tests.fuzzing.case import Case, Reading, UnreadableError
from tests.fuzzing.tfrecord_reading import frame, masked_crc

if TYPE_CHECKING:
    from pathlib import Path


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def part(number: int, content: bytes) -> bytes:
    """Return a field of a message that has a length: a text, a message, packed numbers."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(rng: random.Random, value: Any) -> bytes:
    """Return the Feature message of a value, numbers packed or not."""
    if value is None:
        return b""
    values = value if isinstance(value, list) else [value]
    if all(isinstance(one, str) for one in values):
        return part(1, b"".join(part(1, one.encode()) for one in values))
    packed = rng.random() < 0.7
    if isinstance(values[0], float):
        floats = [struct.pack("<f", one) for one in values]
        return part(
            2, part(1, b"".join(floats)) if packed else b"".join(b"\x0d" + f for f in floats)
        )
    numbers = [varint(int(one)) for one in values]
    return part(3, part(1, b"".join(numbers)) if packed else b"".join(b"\x08" + n for n in numbers))


def example(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Return a tf.Example of names and Feature messages."""
    return part(1, b"".join(part(1, part(1, name) + part(2, one)) for name, one in entries))


def make(rng: random.Random) -> Case:
    """Return a case: odd features, damaged messages with right checksums, and damaged frames."""
    rows = [
        [
            (name.encode(), feature(rng, str(value) if name == "day" else value))
            for name, value in row.items()
        ]
        for row in examples.rows(rng)
    ]
    whole = b"".join(frame(example(row)) for row in rows)
    mutations: list[str] = []
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        mutation = rng.choice(_OF_ROWS)
        mutation(rng, rows)
        mutations.append(mutation.__name__.strip("_"))
    messages = [example(row) for row in rows]
    if rng.random() < 0.25:
        at = rng.randrange(len(messages))
        if messages[at]:
            messages[at], names = damage(rng, messages[at], times=1)
            mutations += [f"message {name}" for name in names]
    frames = [frame(message) for message in messages]
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        mutation_of_frames = rng.choice(_OF_FRAMES)
        mutation_of_frames(rng, frames)
        mutations.append(mutation_of_frames.__name__.strip("_"))
    data = b"".join(frames)
    if rng.random() < 0.2:
        data, names = damage(rng, data, others=[whole])
        mutations += names
    name = rng.choice(("data.tfrecord",) * 4 + ("data.tfrecord-00000-of-00002",))
    if rng.random() < 0.1:
        name = "data.tfrecord.gz"
        data = gzip.compress(data, mtime=0)
        if rng.random() < 0.5:
            data, names = damage(rng, data)
            mutations += names
    block_rows = rng.choice((1, 3, 50, 16384))

    def plain(path: Path) -> bytes:
        stored = path.read_bytes()
        return csv_reading.unpacked(stored) if path.suffix == ".gz" else stored

    def reading(folder: Path) -> Reading:
        return tfrecord_reading.read(plain(folder / name))

    def direct(folder: Path) -> str:
        blocks = list(read_tfrecord_blocks(str(folder / name), block_rows=block_rows))
        try:
            found = [
                tfrecord_reading.example(one)
                for one in tfrecord_reading.records(plain(folder / name))
            ]
        except UnreadableError as error:
            return f"blocks of {block_rows} were read, but: {error}"
        have = [row for block in blocks for row in block.to_pylist()]
        if len(have) != len(found):
            return f"{len(have)} rows, but {len(found)} in the file"
        for number, (one, features) in enumerate(zip(have, found, strict=True), 1):
            want = {key: told.values for key, told in features.items() if told.kind and told.values}
            if _values(one) != {
                key: [_comparable(v) for v in values] for key, values in want.items()
            }:
                return f"record {number}: {one!r}, but {want!r} in the file"
        return ""

    return Case(
        ["search", "--data", "{folder}/" + name, *examples.flags(rng)],
        {name: data},
        name,
        mutations,
        reading,
        direct,
        whole=tfrecord_reading.read(whole).frame,
    )


def _values(row: dict[str, Any]) -> dict[str, list[Any]]:
    found = {}
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        if values and values != [None]:
            found[name] = [_comparable(one) for one in values]
    return found


def _comparable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return "NaN" if value != value else value


# ------------------------------------------------------------------------------------ mutations

_ODD_FEATURES = (
    b"",
    part(1, b""),
    part(2, b""),
    part(3, b""),
    part(1, part(1, b"\xff\xfe")),
    part(1, part(1, b"")),
    part(1, part(1, b"a") + part(1, b"b")),
    part(2, part(1, struct.pack("<f", float("nan")))),
    part(2, part(1, struct.pack("<f", float("-inf")))),
    part(2, part(1, struct.pack("<3f", 1, 2, 3))),
    part(2, part(1, b"\0\0\0")),
    part(3, part(1, varint(-1))),
    part(3, part(1, varint(1 << 63))),
    part(3, part(1, b"\xff" * 9 + b"\x7f")),
    part(3, part(1, b"\xff" * 11)),
    part(3, b"\x08\x80\x00"),
    part(3, part(1, b"\x01")) + part(1, part(1, b"x")),
    part(3, part(1, b"\x01")) + part(3, part(1, b"\x02")),
    part(7, b"unknown"),
    b"\x08\x05",
    b"\x0b\x0c",
    b"\x0f",
)


def _odd_feature(rng: random.Random, rows: list[list[tuple[bytes, bytes]]]) -> None:
    row = rng.choice(rows)
    if row:
        at = rng.randrange(len(row))
        row[at] = (row[at][0], rng.choice(_ODD_FEATURES))


def _odd_column(rng: random.Random, rows: list[list[tuple[bytes, bytes]]]) -> None:
    name = rng.choice((b"age", b"hours", b"job", b"tags", b"label", b"new"))
    odd = [rng.choice(_ODD_FEATURES) for _ in range(2)]
    for row in rows:
        row[:] = [pair for pair in row if pair[0] != name] + [(name, rng.choice(odd))]


def _drop_feature(rng: random.Random, rows: list[list[tuple[bytes, bytes]]]) -> None:
    row = rng.choice(rows)
    if row:
        del row[rng.randrange(len(row))]


def _double_feature(rng: random.Random, rows: list[list[tuple[bytes, bytes]]]) -> None:
    row = rng.choice(rows)
    if row:
        row.append((rng.choice(row)[0], rng.choice(rows[0] or row)[1]))


def _odd_name(rng: random.Random, rows: list[list[tuple[bytes, bytes]]]) -> None:
    name = rng.choice((b"", b" ", b"\xff", b"a\nb", b"\0", b"\x1b[2J", "é".encode(), b"x" * 3000))
    for row in rows if rng.random() < 0.5 else [rng.choice(rows)]:
        row.append((name, rng.choice(_ODD_FEATURES)))


def _empty_record(rng: random.Random, rows: list[list[tuple[bytes, bytes]]]) -> None:
    rng.choice(rows).clear()


_OF_ROWS = (
    *(_odd_feature, _odd_feature, _odd_column, _odd_column),
    *(_drop_feature, _double_feature, _odd_name, _empty_record),
)


def _length(rng: random.Random, frames: list[bytes]) -> None:
    """State another length, with its right checksum or without."""
    at = rng.randrange(len(frames))
    odd = (
        0,
        1,
        len(frames[at]),
        1 << 20,
        (1 << 31) - 1,
        1 << 31,
        1 << 40,
        (1 << 63) - 1,
        (1 << 64) - 1,
    )
    length = struct.pack("<Q", rng.choice(odd))
    checksum = masked_crc(length) if rng.random() < 0.7 else rng.getrandbits(32)
    frames[at] = length + struct.pack("<I", checksum) + frames[at][12:]


def _wrong_checksum(rng: random.Random, frames: list[bytes]) -> None:
    at = rng.randrange(len(frames))
    frames[at] = frames[at][:-4] + rng.choice((b"\0\0\0\0", rng.randbytes(4)))


def _other_record(rng: random.Random, frames: list[bytes]) -> None:
    record = rng.choice(
        (
            b"",
            b"x" * 40,
            part(2, part(1, b"x")),
            part(1, b"") + part(2, b"lists"),
            part(1, b""),
            part(9, b"x"),
            b"\x08\x01",
            part(1, part(1, part(1, b"a") + part(2, b"") + part(3, b"x"))),
            part(1, part(1, part(2, part(3, part(1, b"\x05"))))),
        )
    )
    frames.insert(rng.randrange(len(frames) + 1), frame(record))


def _again(rng: random.Random, frames: list[bytes]) -> None:
    frames.insert(rng.randrange(len(frames) + 1), rng.choice(frames))


def _lost(rng: random.Random, frames: list[bytes]) -> None:
    del frames[rng.randrange(len(frames))]
    if not frames:
        frames.append(b"")


_OF_FRAMES = (_length, _length, _wrong_checksum, _other_record, _other_record, _again, _lost)
