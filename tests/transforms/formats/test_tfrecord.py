import gzip
import io
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.transforms.formats import tfrecord
from slicebeam.transforms.formats.tfrecord import masked_crc32c, read_tfrecord_blocks
from tests.tfrecord_files import example, field, frame, masked_crc, varint
from tests.transforms.formats.reading import refused

error_of = partial(refused, read_tfrecord_blocks)


def write(path, records):
    data = b"".join(map(frame, records))
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return str(path)


def test_published_checksums():
    # RFC 3720, appendix B.4.
    def mask(crc):
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    messages = [bytes(32), b"\xff" * 32, bytes(range(32)), bytes(range(31, -1, -1)), b"123456789"]
    crcs = [0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0x113FDB5C, 0xE3069283]
    assert list(map(masked_crc32c, messages)) == list(map(mask, crcs))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=120) | st.integers(0, 3000).map(lambda n: b"\x5a" * n))
def test_checksums_equal_the_definition(message):
    assert masked_crc32c(message) == masked_crc(message)


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
@pytest.mark.parametrize("packed", [True, False])
def test_scalars_lists_and_missing(tmp_path, name, packed):
    rows = [
        {"age": [39], "score": [0.5], "sex": [b"Male"], "tags": [b"a", "é".encode()], "raw": [b"\xff"]},
        {"age": [-1], "tags": [], "sex": [], "raw": [b"ok"]},
        {"score": [-2.0], "tags": [b"c"], "v": [1, 2**63 - 1, -(2**63)]},
        {},
    ]  # fmt: skip
    path = write(tmp_path / name, [example(row, packed=packed) for row in rows])
    (table,) = read_tfrecord_blocks(path)
    scalars = {"age": pa.int64(), "raw": pa.binary(), "score": pa.float32(), "sex": pa.string()}
    lists = {"tags": pa.list_(pa.string()), "v": pa.list_(pa.int64())}
    assert table.schema == pa.schema(scalars | lists)
    none = dict.fromkeys(table.column_names)
    # A feature without any value has no kind, as one that is missing.
    assert table.to_pylist() == [
        none | {"age": 39, "score": 0.5, "sex": "Male", "tags": ["a", "é"], "raw": b"\xff"},
        none | {"age": -1, "raw": b"ok"},
        none | {"score": -2.0, "tags": ["c"], "v": [1, 2**63 - 1, -(2**63)]},
        none,
    ]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"id": st.integers(-(2**63), 2**63 - 1).map(lambda v: [v])},
            optional={
                "f": st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3),
                "s": st.lists(st.text(max_size=4).map(str.encode), min_size=1, max_size=2),
            },
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_examples_are_read_back(tmp_path_factory, rows, block_rows):
    path = write(tmp_path_factory.mktemp("tf") / "a.tfrecord", map(example, rows))
    found = []
    for table in read_tfrecord_blocks(path, block_rows=block_rows):
        assert table.num_rows <= block_rows
        found += table.to_pylist()
    for row, read in zip(rows, found, strict=True):
        for name in ("id", "f", "s"):
            value = read.get(name)
            values = value if isinstance(value, list) or value is None else [value]
            expected = row.get(name)
            if name == "s" and expected:
                expected = [text.decode() for text in expected]
            assert values == expected


def test_files_of_beam(tmp_path, monkeypatch):
    from apache_beam.io import tfrecordio

    # The writer needs a package for checksums that Beam does not bring along.
    monkeypatch.setattr(tfrecordio._default_crc32c_fn, "fn", _plain_crc)
    stream = io.BytesIO()
    texts = ["ab" * (i % 90) for i in range(500)]
    for number, text in enumerate(texts):
        record = example({"x": [number], "t": [text.encode()]})
        tfrecordio._TFRecordUtil.write_record(stream, record)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(stream.getvalue())
    table = pa.concat_tables(read_tfrecord_blocks(str(path), block_rows=64))
    assert table["x"].to_pylist() == list(range(500))
    assert table["t"].to_pylist() == texts


def _plain_crc(data):
    masked = (masked_crc(data) - 0xA282EAD8) & 0xFFFFFFFF
    return ((masked >> 17) | (masked << 15)) & 0xFFFFFFFF


def test_blocks_end_at_a_number_of_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "_MOST_BYTES", 1000)
    path = write(tmp_path / "a.tfrecord", [example({"x": [b"y" * 300]})] * 10)
    assert [block.num_rows for block in read_tfrecord_blocks(path)] == [4, 4, 2]


RECORDS = [example({"x": [i], "y": [b"abc"]}) for i in range(10)]
SIZE = len(frame(RECORDS[0]))


@pytest.mark.parametrize(("data", "message"), [
    (b"", "the file is empty"),
    (frame(b"") * 2, "no features"),
    (b"a,b\n1,2\n3,4\n5,6\n", "record 1: the checksum of its length is wrong"),
])  # fmt: skip
def test_files_that_are_refused(tmp_path, data, message):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    assert message in error_of(str(path))


@pytest.mark.parametrize("left", [1, 11, 12, 20, SIZE - 1])
@pytest.mark.parametrize("block_rows", [3, 100])
def test_truncated(tmp_path, left, block_rows):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(map(frame, RECORDS))[: 7 * SIZE + left])
    message = error_of(str(path), block_rows=block_rows)
    assert "a.tfrecord, record 8: the file ends inside it" in message


@pytest.mark.parametrize(("place", "part"), [
    (0, "checksum of its length"),
    (9, "checksum of its length"),
    (14, "checksum of its data"),
    (SIZE - 1, "checksum of its data"),
])  # fmt: skip
@pytest.mark.parametrize("block_rows", [3, 100])
def test_wrong_checksum(tmp_path, place, part, block_rows):
    data = bytearray(b"".join(map(frame, RECORDS)))
    data[7 * SIZE + place] ^= 4
    path = tmp_path / "a.tfrecord"
    path.write_bytes(bytes(data))
    message = error_of(str(path), block_rows=block_rows)
    assert "record 8" in message
    assert part in message


@pytest.mark.parametrize(("record", "part"), [
    (b"\xff\xff\xff", "not a tf.Example"),
    (b"hello, world", "not a tf.Example"),
    (varint(5 << 3) + b"\x01", "not a tf.Example"),
    (field(1, field(1, field(3, b"x") + field(2, b""))), "a feature without a name"),
    (RECORDS[0] + field(2, b""), None),
    (RECORDS[0] + field(2, field(1, b"")), "a SequenceExample"),
    (example({"x": [1.5]}), "feature 'x' is a float_list, but a int64_list in record 1"),
])  # fmt: skip
def test_other_messages(tmp_path, record, part):
    path = write(tmp_path / "a.tfrecord", [*RECORDS[:4], record])
    if part is None:
        assert sum(block.num_rows for block in read_tfrecord_blocks(path)) == 5
    else:
        message = error_of(path)
        assert "record 5" in message
        assert part in message
