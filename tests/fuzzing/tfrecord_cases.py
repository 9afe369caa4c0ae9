"""TFRecord files of tf.Example: odd features, damaged messages with right checksums, damaged frames."""

import struct

from hypothesis import strategies as st

from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks
from tests.fuzzing import csv_reading, strategies, tfrecord_reading
from tests.fuzzing.case import Case
from tests.fuzzing.strategies import chance, damaged, in_column, in_row, insert, pick, replace
from tests.tfrecord_files import feature, field, frame, masked_crc, message, varint

_VARINTS = (varint(-1), varint(1 << 63), b"\xff" * 9 + b"\x7f", b"\xff" * 11)
_FLOATS = ((float("nan"),), (float("-inf"),), (1.0, 2.0, 3.0))
ODD_FEATURES = (
    *(b"", field(1, b""), field(2, b""), field(3, b""), field(1, field(1, b"\xff\xfe"))),
    *(field(1, field(1, b"")), field(1, field(1, b"a") + field(1, b"b"))),
    field(2, field(1, b"\0\0\0")),
    *(field(2, field(1, struct.pack(f"<{len(one)}f", *one))) for one in _FLOATS),
    *(field(3, field(1, one)) for one in _VARINTS),
    *(field(3, b"\x08\x80\x00"), field(3, field(1, b"\x01")) + field(1, field(1, b"x"))),
    *(field(3, field(1, b"\x01")) + field(3, field(1, b"\x02")), field(7, b"unknown")),
    *(b"\x08\x05", b"\x0b\x0c", b"\x0f"),
)
ODD_NAMES = (
    *(b"", b" ", b"\xff", b"a\nb", b"\0", b"\x1b[2J", "é".encode(), b"x" * 3000, b"new", b"age"),
)
ODD_RECORDS = (
    *(b"", b"x" * 40, field(2, field(1, b"x")), field(1, b"") + field(2, b"lists"), field(1, b"")),
    *(field(9, b"x"), b"\x08\x01", field(1, field(1, field(2, field(3, field(1, b"\x05")))))),
    field(1, field(1, field(1, b"a") + field(2, b"") + field(3, b"x"))),
)
_LENGTHS = (0, 1, 50, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def _featured(entry, odd):
    return (entry[0], odd)


def _new_column(draw, rows):
    entry = draw(st.tuples(pick(*ODD_NAMES), _ODD))
    for row in rows:
        row.append(entry)


def _framed(record, told):
    length = struct.pack("<Q", told[0])
    return length + struct.pack("<I", masked_crc(length) if told[1] else 7) + record[12:]


_ODD = pick(*ODD_FEATURES)
_LENGTH = replace(st.tuples(pick(*_LENGTHS), chance(70)), _framed)
_RECORD = insert(pick(*map(frame, ODD_RECORDS)))
ROW_EDITS = (
    *(in_row(replace(_ODD, _featured)),) * 2,
    *(in_column(st.lists(_ODD, min_size=2, max_size=2), _featured),) * 2,
    *(in_row(strategies.lose), in_row(insert(st.tuples(pick(*ODD_NAMES), _ODD))), _new_column),
    *(in_row(strategies.repeat), in_row(lambda draw, row: row.clear())),
)
FRAME_EDITS = (
    *(_LENGTH, _LENGTH, _RECORD, _RECORD, strategies.repeat, strategies.lose),
    replace(pick(b"\0\0\0\0", b"abcd"), lambda record, checksum: record[:-4] + checksum),
)


def _values(row):
    def plain(one):
        return one.encode() if isinstance(one, str) else "NaN" if one != one else one

    listed = {name: value if isinstance(value, list) else [value] for name, value in row.items()}
    known = {name: values for name, values in listed.items() if values and values != [None]}
    return {name: list(map(plain, values)) for name, values in known.items()}


def _listed(name, value):
    if value is None or isinstance(value, list):
        return value or []
    return [str(value) if name == "day" else value]


@st.composite
def cases(draw):
    is_packed = draw(chance(70))
    rows = [
        [(key.encode(), feature(_listed(key, one), packed=is_packed)) for key, one in row.items()]
        for row in draw(strategies.tables())
    ]
    whole = b"".join(frame(message(row)) for row in rows)
    messages = [message(row) for row in draw(strategies.edited(rows, ROW_EDITS))]
    if draw(chance(25)):
        at = strategies.place(draw, messages)
        messages[at] = draw(damaged(messages[at], (1,)))
    frames = draw(strategies.edited(list(map(frame, messages)), FRAME_EDITS, (0, 0, 0, 0, 1, 2)))
    data = draw(strategies.damaged_at_times(b"".join(frames), [whole]))
    name = draw(pick(*("data.tfrecord",) * 4, "data.tfrecord-00000-of-00002"))
    if draw(chance(10)):
        name, data = "data.tfrecord.gz", draw(strategies.packed(data))
    block_rows = draw(pick(1, 3, 50, 16384))

    def reading(folder):
        return tfrecord_reading.read(csv_reading.stored(folder / name))

    def direct(folder):
        blocks = list(read_tfrecord_blocks(str(folder / name), block_rows=block_rows))
        records = tfrecord_reading.records(csv_reading.stored(folder / name))
        told = [tfrecord_reading.example(record) for record in records]
        found = [{key: one.values for key, one in row.items() if one.kind} for row in told]
        have = [row for block in blocks for row in block.to_pylist()]
        assert list(map(_values, have)) == list(map(_values, found))

    arguments = ["search", "--data", "{folder}/" + name, *draw(strategies.flags())]
    return Case(arguments, {name: data}, reading, direct)
