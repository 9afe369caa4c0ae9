import datetime as dt
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.convert import CsvLayout, file_blocks, first_columns
from tests.refusals import refuses
from tests.transforms.encode.test_sources import ROWS, check, classes, left_out, names, searched
from tests.transforms.formats import test_tfrecord as tfrecord


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_csv(tmp_path, suffix, monkeypatch):
    """Quotes, line ends in values, blanks, spellings of missing, a type that changes late."""
    monkeypatch.setattr("slicebeam.transforms.encode.convert._BLOCK_BYTES", 500)
    rows = [[" lead", 'say ""hi""', "a, b", "two\nlines", "", None][i % 6] for i in range(ROWS)]
    amounts = [["1", " 2.5", "NA", "N/A", "-3e2", "null", "inf"][i % 7] for i in range(ROWS)]
    late = [str(i % 9) for i in range(ROWS - 1)] + ["x"]
    codes = [["007", "010", "9"][i % 3] for i in range(ROWS)]
    days = [f"2024-01-{i % 28 + 1:02d}" for i in range(ROWS)]
    label, prediction = (column.to_pylist() for column in classes())
    lines = ["name,amount,late,code,day,label,prediction"]
    for values in zip(rows, amounts, late, codes, days, label, prediction, strict=True):
        name = "" if values[0] is None else f'"{values[0]}"'
        lines.append(",".join([name, *values[1:]]))
    text = "\n".join(lines) + "\n"
    path = tmp_path / f"data{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    found = searched(tmp_path / "out", [path])
    number = {"NA": None, "N/A": None, "null": None}
    frame = pd.DataFrame(
        {
            "name": [None if name is None else name.replace('""', '"') for name in rows],
            "amount": [number.get(value, value) for value in amounts],
            "late": late,
            "code": codes,
            "day": pd.Series([dt.date.fromisoformat(day) for day in days], dtype=object),
        }
    ).astype({"amount": float})
    assert names(found) == set(frame)
    check(found, frame, np.array(label) == np.array(prediction))


def test_csv_without_a_header(tmp_path):
    label, prediction = (column.to_pylist() for column in classes())
    lines = [f"{i % 4}, {a}, {b}" for i, (a, b) in enumerate(zip(label, prediction, strict=True))]
    (tmp_path / "adult.data").write_text("|junk\n" + "\n".join(lines))
    options = {"format": "csv", "column_names": ("n", "label", "prediction"), "skip_rows": 1}
    found = searched(tmp_path / "out", [tmp_path / "adult.data"], **options)
    frame = pd.DataFrame({"n": [i % 4 for i in range(ROWS)]})
    check(found, frame, np.array(label) == np.array(prediction))


def test_json_lines(tmp_path):
    label, prediction = (column.to_pylist() for column in classes())
    rows = [
        {
            "n": [1, 2.5, None, -7][i % 4],
            "text": ["a", "NA", "", None, "ü"][i % 5],
            "tags": [["x", "y"], [], None, ["x", "x"]][i % 4],
            "flag": [True, False, None][i % 3],
            "at": f"2024-01-{i % 28 + 1:02d}T10:00:00Z",
            "label": label[i],
            "prediction": prediction[i],
            **({"rare": i % 2} if i % 5 == 0 else {}),
        }
        for i in range(ROWS)
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found, frame = searched(tmp_path / "out", [path]), pd.DataFrame(rows)
    frame["at"] = pd.to_datetime(frame["at"])
    assert names(found) == {"n", "text", "tags", "flag", "at", "rare"}
    check(found, frame, np.array(label) == np.array(prediction))


@pytest.fixture
def without_keys(tmp_path):
    """JSON Lines with columns that Parquet cannot store."""
    useless = {"inner": {"a": [{}, {}]}, "nothing": None}
    rows = [
        {"n": i % 3, "empty": [{}, None][i % 2], **useless, "label": label, "prediction": guess}
        for i, (label, guess) in enumerate(zip(*map(pa.Array.to_pylist, classes()), strict=True))
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_json_objects_without_keys_are_left_out(tmp_path, without_keys):
    found = searched(tmp_path / "out", [without_keys])
    assert names(found) == {"n"}
    inner = "Parquet cannot store struct<a: list<item: struct<>>>"
    empty, nothing = "Parquet cannot store struct<>", "every value is missing"
    assert left_out(found) == {"empty": empty, "inner": inner, "nothing": nothing}


@pytest.mark.parametrize(
    "role", ["label", "prediction", "weight", "group", "example_id", "features"]
)
def test_objects_without_keys_have_no_role(tmp_path, without_keys, role):
    flag, given = role.replace("_", "-"), ("empty",) if role == "features" else "empty"
    why = r"\(Parquet cannot store struct<>\); name another"
    with pytest.raises(InputError, match=f"--{flag}: column 'empty' cannot be read {why}"):
        searched(tmp_path / "out", [without_keys], **{role: given})
    assert not (tmp_path / "out" / "changelist.json").exists()


def test_tfrecord(tmp_path):
    label, prediction = (column.to_pylist() for column in classes())
    rows = [
        {
            "n": [[1], [2], [], [3]][i % 4],
            "x": [[i % 30 / 4], [0.5]][i % 2],
            "tags": [[b"a", b"b"], [b"a"], []][i % 3],
            "label": [label[i].encode()],
            "prediction": [prediction[i].encode()],
        }
        for i in range(ROWS)
    ]
    shards = [
        tfrecord.write(tmp_path / f"{name}-of-00002", map(tfrecord.example, part))
        for name, part in (("e.tfrecord-00000", rows[:100]), ("e.tfrecord-00001", rows[100:]))
    ]
    found = searched(tmp_path / "out", [Path(path) for path in shards])
    one = {name: [row[name][0] if row[name] else None for row in rows] for name in ("n", "x")}
    # A feature without a value is missing: the format knows no empty list.
    tags = [[tag.decode() for tag in row["tags"]] or None for row in rows]
    frame = pd.DataFrame({**one, "tags": tags})
    assert names(found) == {"n", "x", "tags"}
    check(found, frame, np.array(label) == np.array(prediction))


@pytest.mark.parametrize(("name", "text", "layout", "names"), [
    ("a.csv", "x,y\n1,2\n", CsvLayout(), ["x", "y"]),
    ("a.csv", "note\nx;y\n1;2\n", CsvLayout(skip_rows=1, delimiter=";"), ["x", "y"]),
    ("a.csv", "1,2\n", CsvLayout(("p", "q")), ["p", "q"]),
    ("a.jsonl", '{"x": 1}\n{"y": 2}\n', CsvLayout(), ["x", "y"]),
])  # fmt: skip
def test_columns_and_blocks_of_text(name, text, layout, names, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    assert first_columns(str(path), None, layout) == names
    (block,) = file_blocks(str(path), path.suffix[1:], layout, 1 << 16)
    assert block.column_names == names


def test_columns_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1], "y": [2]}), path)
    assert first_columns(str(path), None, CsvLayout()) == ["x", "y"]
    path.write_bytes(path.read_bytes()[:-6])
    refuses(InputError, "a.parquet", first_columns, str(path), None, CsvLayout())
