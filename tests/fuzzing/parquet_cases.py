"""Mutated Parquet files."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import io
import random
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split
from tests.fuzzing import examples, judging
from tests.fuzzing.byte_mutations import damage, damage_between, splice
from tests.fuzzing.case import Case, Reading, UnreadableError

if TYPE_CHECKING:
    from pathlib import Path

COMPRESSIONS = ("none", "snappy", "snappy", "gzip", "zstd", "lz4", "brotli")
ENCODINGS = {
    "age": ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"),
    "hours": ("PLAIN", "BYTE_STREAM_SPLIT"),
    "job": ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"),
    "night": ("PLAIN", "RLE"),
}
_ROW_GROUPS = 3


def table(rng: random.Random) -> pa.Table:
    """Return examples as a table whose types are as narrow as their values allow."""
    rows = examples.rows(rng)
    found = pa.Table.from_pylist(rows)
    if rng.random() < 0.3:
        found = found.set_column(0, "age", found["age"].cast(rng.choice((pa.int8(), pa.uint64()))))
    if rng.random() < 0.3:
        found = found.set_column(1, "hours", found["hours"].cast(pa.float32()))
    return found


def odd_column(rng: random.Random, rows: int) -> tuple[str, pa.Array]:
    """Return a column of a type that tables seldom have."""
    whole = [rng.choice((None, rng.randrange(5))) for _ in range(rows)]
    texts = [None if n is None else str(n) for n in whole]
    exact = [None if n is None else decimal.Decimal(n) for n in whole]
    day = dt.date(2024, 1, 1)
    made: dict[str, Any] = {
        "struct": lambda: pa.array([{"a": n, "b": [n]} for n in whole]),
        "map": lambda: pa.array([[("k", n)] for n in whole], pa.map_(pa.string(), pa.int64())),
        "list of lists": lambda: pa.array([[[n]] for n in whole], pa.list_(pa.list_(pa.int32()))),
        "list of structs": lambda: pa.array([[{"a": n}] for n in whole]),
        "large list": lambda: pa.array([[n, 1] for n in whole], pa.large_list(pa.int64())),
        "fixed list": lambda: pa.array([[n, 1] for n in whole], pa.list_(pa.int64(), 2)),
        "null": lambda: pa.nulls(rows),
        "binary": lambda: pa.array([None if n is None else bytes([n]) for n in whole], pa.binary()),
        "fixed binary": lambda: pa.array([b"abc"] * rows, pa.binary(3)),
        "large text": lambda: pa.array(texts, pa.large_string()),
        "dictionary": lambda: pa.array(texts).dictionary_encode(),
        "numbers by dictionary": lambda: pa.array(whole, pa.int64()).dictionary_encode(),
        "decimal": lambda: pa.array(exact, pa.decimal128(9, 2)),
        "wide decimal": lambda: pa.array(exact, pa.decimal256(60, 2)),
        "half": lambda: pa.array(np.array([n or 0 for n in whole], np.float16)),
        "time": lambda: pa.array([dt.time(n or 0) for n in whole], pa.time64("ns")),
        "time in ms": lambda: pa.array([dt.time(n or 0) for n in whole], pa.time32("ms")),
        "duration": lambda: pa.array([dt.timedelta(n or 0) for n in whole], pa.duration("us")),
        "moment": lambda: pa.array(
            [pd.Timestamp(day) + pd.Timedelta(n or 0, "h") for n in whole],
            pa.timestamp("ns", "Asia/Tokyo"),
        ),
        "date64": lambda: pa.array([day + dt.timedelta(n or 0) for n in whole], pa.date64()),
        "nan": lambda: pa.array([float("nan") if n is None else float(n) for n in whole]),
        "infinite": lambda: pa.array([float("-inf") if n is None else n * 1e308 for n in whole]),
        "uint64": lambda: pa.array([2**64 - 1 - (n or 0) for n in whole], pa.uint64()),
        "huge dictionary": lambda: pa.array([f"{n}" * 50_000 for n in whole]).dictionary_encode(),
        "distinct": lambda: pa.array([f"v{n}" for n in range(rows)]),
    }
    name = rng.choice(list(made))
    return name, made[name]()


def written(rng: random.Random, data: pa.Table, *, checksums: bool) -> bytes:
    """Return the bytes of a table, written in one of the many ways there are."""
    stream = io.BytesIO()
    options: dict[str, Any] = {
        "compression": rng.choice(COMPRESSIONS),
        "data_page_version": rng.choice(("1.0", "2.0")),
        "write_statistics": rng.random() < 0.7,
        "row_group_size": rng.choice((None, max(1, data.num_rows // _ROW_GROUPS))),
        "data_page_size": rng.choice((None, 64)),
        "write_page_index": rng.random() < 0.3,
        "store_schema": rng.random() < 0.7,
        "write_page_checksum": checksums,
        "use_dictionary": True,
    }
    if rng.random() < 0.3:
        options["use_dictionary"] = False
        # Each of the narrow numbers goes with few of the ways, and a name that occurs twice with none.
        options["column_encoding"] = {
            field.name: rng.choice(ENCODINGS[field.name])
            for field in data.schema
            if field.name in ENCODINGS and data.column_names.count(field.name) == 1
        }
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


def footer(data: bytes) -> int:
    """Return where the footer of a Parquet file begins."""
    return max(0, len(data) - 8 - struct.unpack("<I", data[-8:-4])[0])


def read(path: Path) -> Reading:
    """Return the examples of a Parquet file as pyarrow reads it, checksums verified.

    Columns are stored apart: damage to one leaves the others whole, and is told.
    """
    content = path.read_bytes()
    columns: dict[str, pd.Series[Any]] = {}
    unreadable = set()
    try:
        with pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True) as opened:
            names = opened.schema_arrow.names
            rows = opened.metadata.num_rows
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


def make(rng: random.Random) -> Case:
    """Return a case: a table of odd shape or types, written oddly, its bytes damaged."""
    mutations: list[str] = []
    data = table(rng)
    checksums = rng.random() < 0.5
    intact = written(rng, data, checksums=checksums)
    for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2))):
        mutation = rng.choice(_OF_TABLES)
        data = mutation(rng, data)
        mutations.append(mutation.__name__.strip("_"))
    content = written(rng, data, checksums=checksums) if mutations else intact
    whole = io.BytesIO(content)
    fate = rng.random()
    if fate < 0.15:
        content, name = damage_between(rng, content, footer(content), len(content) - 8)
        mutations.append(f"footer {name}")
    elif fate < 0.45:
        content, name = damage_between(rng, content, 4, footer(content))
        mutations.append(f"pages {name}")
    elif fate < 0.55:
        other = written(rng, table(rng), checksums=checksums)
        content, names = damage(rng, content, others=[other])
        mutations += names
    elif fate < 0.58:
        content = splice(rng, content, written(rng, table(rng), checksums=checksums))
        mutations.append("splice")
    elif fate < 0.6:
        length = struct.pack("<I", rng.choice((0, 1, 7, len(content), 1 << 31, (1 << 32) - 1)))
        content = content[:-8] + length + content[-4:]
        mutations.append("length of the footer")
    if checksums:
        mutations.append("with checksums")
    name = "data.parquet"
    options: list[str] = []
    fate = rng.random()
    if fate < 0.02:
        content, name = gzip.compress(content), rng.choice(("data.parquet.gz", name))
        mutations.append("gzip")
    elif fate < 0.06:
        name = rng.choice(("data.csv", "data.jsonl", "data.tfrecord"))
        mutations.append("wrong name")
    elif fate < 0.08:
        content = rng.choice(
            (b"", b"PAR1", b"PAR1PAR1", b"age,label,pred\n1,a,a\n", b'{"label": "a"}\n')
        )
        mutations.append("other content")
    elif fate < 0.1:
        name, options = "data.bin", ["--format", "parquet"]
    chunk_rows = rng.choice((1, 7, 50))

    def reading(folder: Path) -> Reading:
        if name.endswith((".csv", ".jsonl", ".tfrecord")):
            raise UnreadableError("Parquet by another name")
        return read(folder / name)

    def direct(folder: Path) -> str:
        path = str(folder / name)
        source = open_parquet([StoredFile(path, path)]).in_chunks(chunk_rows)
        columns: dict[str, list[Any]] = {column: [] for column in source.schema.names}
        for split in source.splits:
            for chunk in read_split(source, split, source.schema.names):
                for column, values in zip(
                    chunk.table.column_names, chunk.table.columns, strict=True
                ):
                    columns[column] += values.to_pylist()
        try:
            found = read(folder / name)
        except UnreadableError as error:
            return f"chunks of {chunk_rows} were read, but: {error}"
        if found.unreadable:
            return f"{sorted(found.unreadable)} were read, which the independent reader cannot read"
        expected = pa.Table.from_pandas(found.frame, preserve_index=False).to_pydict()
        if {key: len(values) for key, values in columns.items()} != {
            key: len(values) for key, values in expected.items()
        }:
            return f"columns {sorted(columns)}, but {sorted(expected)} in the file, or other rows"
        plain = pd.DataFrame(
            {key: pd.Series(values, dtype=object) for key, values in expected.items()}
        )
        return judging.unlike(plain, columns)

    return Case(
        ["search", "--data", "{folder}/" + name, *options, *examples.flags(rng)],
        {name: content},
        name,
        mutations,
        reading,
        None if name != "data.parquet" else direct,
        whole=_frame(whole) if len(set(data.column_names)) == data.num_columns else None,
    )


def _frame(whole: io.BytesIO) -> pd.DataFrame | None:
    """Return what the undamaged file holds; None where Arrow cannot read what it wrote."""
    try:
        table = pq.read_table(whole)
    except pa.ArrowInvalid:
        # Lists of a fixed size of which some are missing.
        return None
    return table.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)


# ------------------------------------------------------------------------------------ mutations


def _odd_type(rng: random.Random, data: pa.Table) -> pa.Table:
    name, column = odd_column(rng, data.num_rows)
    return data.append_column(name, column)


def _odd_role(rng: random.Random, data: pa.Table) -> pa.Table:
    """Give the label or the prediction an odd type."""
    name = rng.choice(("label", "pred"))
    if data.column_names.count(name) != 1:
        return data
    _, column = odd_column(rng, data.num_rows)
    return data.set_column(data.column_names.index(name), name, column)


def _no_rows(rng: random.Random, data: pa.Table) -> pa.Table:
    return data.slice(0, rng.choice((0, 0, 1)))


def _no_columns(rng: random.Random, data: pa.Table) -> pa.Table:
    kept = rng.choice(([], ["label"], ["label", "pred"]))
    return data.select([at for at, name in enumerate(data.column_names) if name in kept])


def _same_names(rng: random.Random, data: pa.Table) -> pa.Table:
    name = rng.choice(data.column_names or ["x"])
    return data.append_column(name, data.column(0)) if data.num_columns else data


def _odd_name(rng: random.Random, data: pa.Table) -> pa.Table:
    odd = ("", " ", "a.b", "a\nb", "\x00", "\x1b[2J", "é", "x" * 3000, "age ", "{date}", "n")
    return data.append_column(rng.choice(odd), pa.array([n % 3 for n in range(data.num_rows)]))


def _nulls(rng: random.Random, data: pa.Table) -> pa.Table:
    if not data.num_columns:
        return data
    place = rng.randrange(data.num_columns)
    field = data.schema.field(place)
    kept = pa.array([rng.random() < 0.5 for _ in range(data.num_rows)])
    values = data.column(place).to_pylist()
    masked = [value if keep else None for value, keep in zip(values, kept.to_pylist(), strict=True)]
    return data.set_column(place, field.name, pa.array(masked, field.type))


_OF_TABLES = (
    *(_odd_type, _odd_type, _odd_type, _odd_type, _odd_type, _odd_type, _odd_role, _no_rows),
    *(_nulls, _no_columns, _same_names, _odd_name, _nulls),
)
