"""JSON lines; and JSON and YAML that two readers would understand in two ways are refused, and so are bombs."""

import gzip
import json
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.formats.json_lines import read_json_blocks
from slicebeam.transforms.formats.schemas import conform, unify_schemas
from tests.transforms.formats.reading import assert_damage_of_gzip_is_told, refused, write

error_of = partial(refused, read_json_blocks)


def read(path, **options):
    blocks = list(read_json_blocks(path, **options))
    schema = unify_schemas([(path, block.schema) for block in blocks], allow_missing=True)
    return pa.concat_tables(conform(block, schema) for block in blocks)


def test_types_and_missing_keys(tmp_path):
    lines = (
        '{"a": 1, "b": "x", "t": ["u", "v"]}\n\n  \r\n{"b": null, "c": 1.5}\n{"c": 2, "d": true}'
    )
    (table,) = read_json_blocks(write(tmp_path / "a.jsonl", lines))
    assert table.column_names == ["a", "b", "t", "c", "d"]
    none = dict.fromkeys(table.column_names)
    assert table.to_pylist() == [
        none | {"a": 1, "b": "x", "t": ["u", "v"]},
        none | {"c": 1.5},
        none | {"c": 2.0, "d": True},
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_blocks_in_order(tmp_path, name):
    data = b"\xef\xbb\xbf" + b"".join(b'{"a": %d, "b": "x"}\n' % i for i in range(5000))
    path = write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    blocks = list(read_json_blocks(path, block_bytes=4096))
    assert len(blocks) > 10
    assert pa.concat_tables(blocks)["a"].to_pylist() == list(range(5000))


def test_line_longer_than_a_block(tmp_path):
    rows = [{"a": "x" * size} for size in (5, 5000, 1, 70000, 3)]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert read(path, block_bytes=64).to_pylist() == rows


values = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**53), 2**53),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "s": st.none() | st.text(max_size=5) | st.dates().map(str) | st.datetimes().map(str),
        "l": st.none() | st.lists(st.text(max_size=3), max_size=3),
        "b": st.none() | st.booleans(),
    },
)


@settings(max_examples=150, deadline=None)
@given(st.lists(values, min_size=1, max_size=10), st.sampled_from([32, 1 << 20]), st.booleans())
def test_what_json_writes_is_read_back(tmp_path_factory, rows, block, ascii_only):
    assume(any(rows))
    text = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    table = read(write(tmp_path_factory.mktemp("json") / "a.jsonl", text), block_bytes=block)
    assert table.num_rows == len(rows)
    for row, found in zip(rows, table.to_pylist(), strict=True):
        assert found == {name: row.get(name) for name in table.column_names}


def test_dates_stay_strings_in_every_block(tmp_path):
    rows = [
        {"n": i, "t": f"2020-01-01 00:00:{i % 60:02d}", "in": {"t": ["2020-01-01"]}}
        for i in range(300)
    ]
    rows[250]["t"] = "unknown"
    del rows[100]["t"]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    blocks = list(read_json_blocks(path, block_bytes=512))
    assert {str(block.schema.field("t").type) for block in blocks} == {"string"}
    assert all(block.column_names == ["n", "t", "in"] for block in blocks)
    assert pa.concat_tables(blocks).to_pylist() == [{"n": 0, "t": None} | row for row in rows]


@pytest.mark.parametrize(("data", "message"), [
    ("", "the file is empty"),
    ("\n \n", "the file is empty"),
    ("{}\n{}\n", "no object has a key"),
    ('{"a": "2020-01-01"}\n' * 100 + '{"a": 5}\n', "line 101: column 'a' holds the number 5, but a string before line"),
    # Zero bytes are text, and no sign of UTF-16.
    (b'e\0e\0{\0"', "line 1: not JSON"),
    (json.dumps([{"a": 1}, {"a": 2}], indent=1), "line 1: not JSON"),
    (b'{"a": 1} {"a": 2}\n', "line 1: not JSON (Extra data)"),  # two objects on a line
    (b'{"a":\n1}\n', "line 1: not JSON (Expecting value)"),  # an object over two lines
    (b'{"a": 1}{"a":\n2}\n', "line 1: not JSON (Extra data)"),  # both
    (b'{"a": 1}\nnull\n', "line 2: null instead of an object"),  # null for an object
    (b'{"a": {"b": [1]}}\nnull\n', "line 2: null instead of an object"),  # null beside a nested value, of which Arrow dies
    (b'{"a": {"b": [1]}}null{"a": {}}\n', "line 1: not JSON (Extra data)"),  # null after an object
    (b'{"a": ' + b"9" * 400 + b'}\n{"a": 0.5}\n', "line 1: column 'a' holds 999"),  # an integer beyond any float
    (b'{"a": ' + b"9" * 5000 + b"}\n", "line 1: "),  # more digits than Python reads
    (b'{"a": [9007199254740993, 0.5]}\n', "line 1: column 'a' holds 9007199254740993"),  # a rounded integer in a list
    (b'{"b": 1}\n{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}\n", "line 2: values are nested deeper than 64 levels"),  # an endless nest of lists
    (b'{"a":' * 65 + b"1" + b"}" * 65 + b"\n", "line 1: values are nested deeper than 64 levels"),  # an endless nest of objects
    *[
        (f'{{"m": {{"id": {value}}}}}\n{{"m": {{"id": 0.5}}}}', f"line 1: column 'm.id' holds {value}, which")
        for value in (2**53 + 1, -(2**53) - 1, 2**63 + 1, 10**30 + 1)
    ],
])  # fmt: skip
def test_files_that_are_refused(tmp_path, data, message):
    block = {"block_bytes": 256} if "2020" in str(data) else {}
    assert message in error_of(write(tmp_path / "a.jsonl", data), **block)


@pytest.mark.parametrize(("line", "parts"), [
    ('{"a": 1,}', ["line 302: not JSON", "'{\"a\": 1,}'"]),
    ("{'a': 1}", ["line 302: not JSON"]),
    ("[1, 2]", ["line 302: array instead of an object"]),
    ("7", ["line 302: number instead of an object"]),
    ('{"a": "x"}', ["line 302: column 'a' holds the string \"x\", but a number"]),
    ('{"a": true}', ["line 302: column 'a' holds the boolean true"]),
    ('{"a": 1, "a": 2}', ["line 302: the key 'a' occurs twice"]),
    ('{"o": {"p": [1, "x"]}}', ["line 302: column 'o.p[]' holds the string", "in line 302"]),
    ('{"a": 12345678901234567891}', ["line 302: column 'a' holds 12345678901234567891"]),
])  # fmt: skip
@pytest.mark.parametrize("block", [256, 1 << 20])
def test_bad_line_is_named(tmp_path, line, parts, block):
    data = '{"a": 1}\n\n' * 150 + '{"a": null}\n' + line + "\n" + '{"a": 5}\n' * 20
    message = error_of(write(tmp_path / "a.jsonl", data), block_bytes=block)
    assert "a.jsonl, " in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_not_utf8(tmp_path, block):
    path = write(tmp_path / "a.jsonl", b'{"a": "x"}\n' * 20 + b'{"a": "caf\xe9"}\n')
    assert "line 21: not UTF-8" in error_of(path, block_bytes=block)


def test_corrupt_gzip(tmp_path):
    plain = "".join(f'{{"a": {i * 7919 % 10007}}}\n' for i in range(30000))
    assert_damage_of_gzip_is_told(read_json_blocks, tmp_path / "a.jsonl.gz", plain.encode())


numbers = st.floats(-1e18, 1e18) | st.integers(-(2**66), 2**66)
lists = st.none() | st.lists(numbers, max_size=2)
nested = {"k": st.none() | numbers, "x": st.none() | numbers, "l": lists}
nested = st.fixed_dictionaries({}, optional=nested)


def integers(value):
    """The integers of a row in order, those in lists and objects too; None for other values."""
    if isinstance(value, dict):
        return [one for key in sorted(value) for one in integers(value[key])]
    if isinstance(value, list):
        return [one for part in value for one in integers(part)]
    is_whole = isinstance(value, float) and value.is_integer()
    return [value if isinstance(value, int) else int(value) if is_whole else None]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.fixed_dictionaries({"o": nested, "i": numbers}), min_size=1, max_size=4))
def test_integers_within_objects_are_exact_or_refused(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("nested") / "a.jsonl"
    path = write(path, "\n".join(json.dumps(row) for row in rows))
    try:
        (table,) = read_json_blocks(path)
    except InputError as error:
        table, reason = None, str(error)
    if table is None:
        assert "cannot hold exactly" in reason
        held = [one for row in rows for one in integers(row) if one is not None]
        assert any(int(float(one)) != one for one in held)
        return
    for row, back in zip(rows, table.to_pylist(), strict=True):
        own = {"o": {key: back["o"][key] for key in row["o"]}, "i": back["i"]}
        assert integers(own) == integers(row)


def test_an_exact_integer_beside_large_fractions_is_read(tmp_path):
    path = write(tmp_path / "a.jsonl", f'{{"m": {{"id": {2**53 + 1}, "x": 1e18}}}}')
    (table,) = read_json_blocks(path)
    assert table["m"].to_pylist() == [{"id": 2**53 + 1, "x": 1e18}]
