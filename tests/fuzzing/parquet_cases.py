"""Parquet files of odd shape or types, written oddly, their bytes damaged."""

import datetime as dt
import decimal
import gzip
import io
import random
import struct

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split
from tests.fuzzing import judging, strategies
from tests.fuzzing.case import Case, Reading, UnreadableError
from tests.fuzzing.strategies import chance, damaged, pick, words

ENCODINGS = {
    "age": words("PLAIN DELTA_BINARY_PACKED BYTE_STREAM_SPLIT"),
    "hours": words("PLAIN BYTE_STREAM_SPLIT"),
    "job": words("PLAIN DELTA_LENGTH_BYTE_ARRAY DELTA_BYTE_ARRAY"),
    "night": words("PLAIN RLE"),
}
_DAY = dt.date(2024, 1, 1)
_NANOSECONDS = pa.timestamp("ns", "Asia/Tokyo")
# An item of a column of a seldom type, of a small number or None, and the type where pyarrow needs it.
ODD_TYPES = {
    "struct": (lambda n: {"a": n, "b": [n]}, None),
    "map": (lambda n: [("k", n)], pa.map_(pa.string(), pa.int64())),
    "list of lists": (lambda n: [[n]], pa.list_(pa.list_(pa.int32()))),
    "list of structs": (lambda n: [{"a": n}], None),
    "large list": (lambda n: [n, 1], pa.large_list(pa.int64())),
    "fixed list": (lambda n: [n, 1], pa.list_(pa.int64(), 2)),
    "null": (lambda n: None, pa.null()),
    "binary": (lambda n: None if n is None else bytes([n]), pa.binary()),
    "fixed binary": (lambda n: b"abc", pa.binary(3)),
    "large text": (lambda n: None if n is None else str(n), pa.large_string()),
    "dictionary": (lambda n: None if n is None else str(n), pa.dictionary(pa.int32(), pa.string())),
    "numbers by dictionary": (lambda n: n, pa.dictionary(pa.int32(), pa.int64())),
    "decimal": (lambda n: None if n is None else decimal.Decimal(n), pa.decimal128(9, 2)),
    "wide decimal": (lambda n: None if n is None else decimal.Decimal(n), pa.decimal256(60, 2)),
    "half": (lambda n: np.float16(n or 0), pa.float16()),
    "time": (lambda n: dt.time(n or 0), pa.time64("ns")),
    "time in ms": (lambda n: dt.time(n or 0), pa.time32("ms")),
    "duration": (lambda n: dt.timedelta(n or 0), pa.duration("us")),
    "moment": (lambda n: pd.Timestamp(_DAY) + pd.Timedelta(n or 0, "h"), _NANOSECONDS),
    "date64": (lambda n: _DAY + dt.timedelta(n or 0), pa.date64()),
    "nan": (lambda n: float("nan") if n is None else float(n), None),
    "infinite": (lambda n: float("-inf") if n is None else n * 1e308, None),
    "uint64": (lambda n: 2**64 - 1 - (n or 0), pa.uint64()),
    "huge dictionary": (lambda n: f"{n}" * 50_000, pa.dictionary(pa.int32(), pa.string())),
}
ODD_NAMES = ("", " ", "a.b", "a\nb", "\0", "\x1b[2J", "é", "x" * 3000, "age ", "{date}", "n")


@st.composite
def tables(draw, least=2):
    """Examples as a table whose types are as narrow as their values allow."""
    found = pa.Table.from_pylist(draw(strategies.tables(least=least)))
    if draw(chance(30)):
        narrow = draw(pick(pa.int8(), pa.uint64()))
        found = found.set_column(0, "age", found["age"].cast(narrow))
    if draw(chance(30)):
        found = found.set_column(1, "hours", found["hours"].cast(pa.float32()))
    return found


def odd_column(name, rows):
    """Return a column of a type that tables seldom have."""
    if name == "distinct":
        return pa.array([f"v{number}" for number in range(rows)])
    make, data_type = ODD_TYPES[name]
    rng = random.Random(name)
    return pa.array([make(rng.choice((None, rng.randrange(5)))) for _ in range(rows)], data_type)


@st.composite
def written(draw, data, checksums=False):
    """The bytes of a table, written in one of the many ways there are."""
    stream = io.BytesIO()
    options = {
        "compression": draw(pick(*words("none snappy snappy gzip zstd lz4 brotli"))),
        "data_page_version": draw(pick("1.0", "2.0")),
        "write_statistics": draw(chance(70)),
        "row_group_size": draw(pick(None, max(1, data.num_rows // 3))),
        "data_page_size": draw(pick(None, 64)),
        "write_page_index": draw(chance(30)),
        "store_schema": draw(chance(70)),
        "write_page_checksum": checksums,
    }
    if draw(chance(30)):
        # Each of the narrow numbers goes with few of the ways, a name that occurs twice with none.
        options |= {"use_dictionary": False, "column_encoding": {}}
        for name in {*ENCODINGS} & {*data.column_names}:
            if data.column_names.count(name) == 1:
                options["column_encoding"][name] = draw(pick(*ENCODINGS[name]))
    try:
        pq.write_table(data, stream, **options)
    except (pa.ArrowException, OSError):
        # Some types go with few of the options, and a dictionary that holds a null with none.
        stream = io.BytesIO()
        plain = [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in data.columns
        ]
        stored = pa.Table.from_arrays(plain, names=data.column_names)
        pq.write_table(stored, stream, write_page_checksum=checksums)
    return stream.getvalue()


def read(path):
    content = path.read_bytes()
    columns, unreadable = {}, set()
    try:
        with pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True) as opened:
            names, rows = opened.schema_arrow.names, opened.metadata.num_rows
            if len(set(names)) < len(names):
                raise UnreadableError("two columns of one name")
            for name in names:
                try:
                    found = opened.read([name], use_threads=False)
                    found.validate(full=True)
                    columns[name] = found.select([name]).to_pandas(
                        types_mapper=pd.ArrowDtype, ignore_metadata=True
                    )[name]
                except (pa.ArrowException, KeyError, OSError, ValueError):  # noqa: PERF203
                    unreadable.add(name)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableError(str(error)) from error
    frame = pd.DataFrame(columns, index=range(rows)) if columns else pd.DataFrame(index=range(rows))
    return Reading(frame, unreadable=frozenset(unreadable))


@st.composite
def _reshaped(draw, data):
    """The table with an odd column, role, name or number of rows."""
    kinds = words("type type type type type type role rows nulls columns same name nulls")
    kind, rows = draw(pick(*kinds)), data.num_rows
    if kind == "rows":
        return data.slice(0, draw(pick(0, 0, 1)))
    if kind == "name":
        return data.append_column(draw(pick(*ODD_NAMES)), pa.array([n % 3 for n in range(rows)]))
    odd = odd_column(draw(pick(*ODD_TYPES, "distinct")), rows)
    if kind == "type" or not data.num_columns:
        return data.append_column("odd", odd)
    name = draw(pick(*data.column_names))
    if kind == "columns":
        kept = draw(pick([], ["label"], ["label", "pred"]))
        return data.select([at for at, one in enumerate(data.column_names) if one in kept])
    if kind == "same":
        return data.append_column(name, data.column(0))
    role = draw(pick("label", "pred"))
    if kind == "role" and data.column_names.count(role) == 1:
        return data.set_column(data.column_names.index(role), role, odd)
    at, rng = data.column_names.index(name), random.Random(draw(st.integers(0, 99)))
    values = [value if rng.random() < 0.5 else None for value in data.column(at).to_pylist()]
    return data.set_column(at, name, pa.array(values, data.schema.field(at).type))


@st.composite
def _broken(draw, content, other):
    footer = max(4, len(content) - 8 - struct.unpack("<I", content[-8:-4])[0])
    fate = draw(st.integers(0, 99))
    if fate < 40:
        return content
    if fate < 55:
        return content[:footer] + draw(damaged(content[footer:-8], (1,))) + content[-8:]
    if fate < 75:
        # What only a checksum tells.
        at, bit = draw(st.integers(4, max(4, footer - 1))), 1 << draw(st.integers(0, 7))
        return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
    if fate < 85:
        return content[:4] + draw(damaged(content[4:footer], (1,))) + content[footer:]
    if fate < 98:
        return draw(damaged(content, others=[other]))
    length = draw(pick(0, 1, 7, len(content), 1 << 31, (1 << 32) - 1))
    return content[:-8] + struct.pack("<I", length) + content[-4:]


@st.composite
def cases(draw):
    data, checksums = draw(tables()), draw(st.booleans())
    intact = draw(written(data, checksums))
    content = intact
    for _ in range(times := draw(pick(0, 0, 0, 0, 1, 1, 2))):
        data = draw(_reshaped(data))
    if times:
        content = draw(written(data, checksums))
    content = draw(_broken(content, intact))
    name, options, fate = "data.parquet", [], draw(st.integers(0, 99))
    if fate >= 98:
        content, name = gzip.compress(content, mtime=0), draw(pick("data.parquet.gz", name))
    elif fate >= 94:
        name = draw(pick("data.csv", "data.jsonl", "data.tfrecord"))
    elif fate >= 92:
        texts = (b"age,label,pred\n1,a,a\n", b'{"label": "a"}\n')
        content = draw(pick(b"", b"PAR1", b"PAR1PAR1", *texts))
    elif fate >= 90:
        name, options = "data.bin", ["--format", "parquet"]
    chunk_rows = draw(pick(1, 7, 50))

    def reading(folder):
        if name.endswith((".csv", ".jsonl", ".tfrecord")):
            raise UnreadableError("Parquet by another name")
        return read(folder / name)

    def direct(folder):
        path = str(folder / name)
        source = open_parquet([StoredFile(path, path)]).in_chunks(chunk_rows)
        columns = {column: [] for column in source.schema.names}
        for split in source.splits:
            for chunk in read_split(source, split, source.schema.names):
                for column in chunk.table.column_names:
                    columns[column] += chunk.table[column].to_pylist()
        found = read(folder / name)
        assert not found.unreadable, "the independent reader cannot read these"
        expected = pa.Table.from_pandas(found.frame, preserve_index=False).to_pydict()
        assert judging.comparable(columns) == judging.comparable(expected)

    arguments = ["search", "--data", "{folder}/" + name, *options, *draw(strategies.flags())]
    return Case(arguments, {name: content}, reading, direct if name == "data.parquet" else None)
