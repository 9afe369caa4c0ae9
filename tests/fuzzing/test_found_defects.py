"""The smallest input of each defect that mutated inputs found."""

import io
import json
import math
import re
import struct
from dataclasses import replace
from functools import cache

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slicebeam.metrics.errors import InputError, printable
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.config.common import memory_bytes
from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.formats.json_lines import read_json_blocks
from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks
from slicebeam.transforms.storage.storage import storage_path
from tests.fuzzing import changelist_cases, json_reading, parquet_cases
from tests.fuzzing.case import UnreadableError
from tests.fuzzing.test_fuzz import frame
from tests.running import refused, search
from tests.tfrecord_files import masked_crc

ROLES = {"label": "label", "prediction": "pred"}


def test_json_lines_that_only_look_odd(tmp_path):
    path = tmp_path / "x.jsonl"
    brackets = "[{" * 100
    deep = "[" * 63 + "]" * 63
    path.write_bytes(
        f'{{"a": "{brackets}", "b": {deep}}}\r\n\n \t\r\n  {{"a": "}}null"}}  \n'.encode()
    )
    (table,) = read_json_blocks(str(path))
    assert table["a"].to_pylist() == [brackets, "}null"]


def test_a_wrong_length_in_a_tfrecord_takes_no_memory(tmp_path):
    length = struct.pack("<Q", (1 << 31) - 1)
    checksum = struct.pack("<I", masked_crc(length))
    path = tmp_path / "x.tfrecord"
    path.write_bytes(length + checksum + b"x" * 50)
    asked = []

    class Watched(io.BytesIO):
        def read(self, size=-1):
            asked.append(size or 0)
            return super().read(size)

    with pytest.raises(InputError, match="record 1: the file ends inside it"):
        list(read_tfrecord_blocks(str(path), open_file=lambda name: Watched(path.read_bytes())))
    assert max(asked) <= 64 << 20


def test_a_byte_order_mark_of_a_value_is_kept(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("a,b\n\ufeff1,2\n".encode())
    (table,) = read_csv_blocks(str(path))
    assert table.to_pylist() == [{"a": "\ufeff1", "b": "2"}]


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path, write_page_checksum=True, compression="none")
    return path


def test_parquet_without_columns(tmp_path):
    path = str(parquet(tmp_path / "x.parquet"))
    with pytest.raises(InputError, match="there are no columns in it"):
        open_parquet([StoredFile(path, path)])


def test_damage_that_only_checksums_tell(tmp_path):
    path = parquet(tmp_path / "x.parquet", a=["abc", "abd"] * 50)
    content = path.read_bytes()
    at = content.index(b"abd")
    path.write_bytes(content[:at] + b"abX" + content[at + 3 :])
    assert parquet_cases.read(path).unreadable == {"a"}
    source = open_parquet([StoredFile(str(path), str(path))])
    with pytest.raises(InputError, match="CRC checksum verification failed"):
        list(read_split(source, source.splits[0], ["a"]))


def test_a_footer_that_tells_more_rows_than_there_are(tmp_path):
    path = str(parquet(tmp_path / "x.parquet", a=[1, 2, 3]))
    source = open_parquet([StoredFile(path, path)])
    told = replace(source.splits[0], rows=4)
    with pytest.raises(InputError, match="3 rows were read, but its footer says 4"):
        list(read_split(source, told, ["a"]))


def earlier(folder):
    data = frame()
    data["pred"] = data["label"].where(data["job"] == "y", "no")
    data["hours"] = [float(n % 10) for n in range(len(data))]
    data.to_parquet(folder / "data.parquet")
    options = {**ROLES, "max_cross_size": 1, "min_slice_size": 1, "bins": 4}
    found = search(folder / "out", data=folder / "data.parquet", **options)
    return found.document


def test_a_gap_after_the_first_bin_holds_nobody(tmp_path):
    document = earlier(tmp_path)
    domain = next(d for d in document["dataset"]["domains"] if d["name"] == "hours")
    assert domain["singletons"][0]["op"] == "<"
    del domain["singletons"][1]
    (tmp_path / "given.json").write_text(json.dumps(document))
    options = {**ROLES, "max_cross_size": 1, "min_slice_size": 1}
    options["domains"] = tmp_path / "given.json"
    found = search(tmp_path / "again", data=tmp_path / "data.parquet", **options)
    read = pd.read_parquet(tmp_path / "data.parquet")
    edge = domain["singletons"][0]["value"]
    row = found.table[found.table["slice"] == f"hours < {edge:g}"].iloc[0]
    assert row["n"] == (read["hours"] < edge).sum()


def with_first_slice(text, **changed):
    """Return the text of a document whose first slice has other content."""
    told = json.loads(text)
    told["slices"][0] |= changed
    return json.dumps(told)


CHANGE = '{"metric": "accuracy", "n": 1, "after": {}, "direction": "none"}'
DOCUMENTS = {
    "a key twice": (lambda text: text.replace('"n": 60', '"n": 60, "n": 61', 1), "occurs twice"),
    "truth for a number": (lambda text: text.replace('"n": 60', '"n": true', 1), "dataset.n has"),
    "text for a number": (lambda text: text.replace('"n": 60', '"n": "60"', 1), "dataset.n has"),
    "a number for truth": (lambda text: text.replace('"closed": true', '"closed": 1', 1), "dataset.domains.0.closed has the wrong type"),
    "an infinite number": (lambda text: text.replace('"n": 60', '"n": 1e999', 1), "64 bits"),
    "nested without end": (lambda text: "[" * 100_000 + text, "nested deeper than 64 levels"),
    "a slice twice": (lambda text: json.dumps({**(told := json.loads(text)), "slices": told["slices"] * 2}), "occurs twice; keep one of the two"),
    "a metric twice": (lambda text: text.replace('"changes": [{', f'"changes": [{CHANGE}, {{'), "metric accuracy occurs twice"),
    "a slice without a change": (lambda text: with_first_slice(text, changes=[]), "incomplete ChangeList (slices.0.changes"),
    "no domains": (lambda text: '{"schema_version": "1.0"}', "incomplete ChangeList"),
}  # fmt: skip


def test_changelists(tmp_path):
    text = json.dumps(earlier(tmp_path))
    path = tmp_path / "given.json"
    path.write_text(text)
    assert read_changelist(str(path), "--domains").dataset.n == 60
    for change, message in DOCUMENTS.values():
        path.write_text(change(text))
        with pytest.raises(InputError, match=re.escape(message)):
            read_changelist(str(path), "--domains")


def test_options_that_no_machine_has(tmp_path):
    assert memory_bytes("9" * 400 + "GB") == 2**63
    for path, message in {
        "~nobody-of-that-name/x": "no user with that name",
        "a\0b": "a file name cannot contain a null character",
    }.items():
        with pytest.raises(InputError, match=message):
            storage_path(path, "--data")


def test_what_a_message_quotes_does_not_rule_the_terminal(tmp_path, capsys):
    assert printable("a\x1b[2J\x00\u2028\tb\nc") == "a\\x1b[2J\\x00\\u2028\tb\nc"
    path = parquet(tmp_path / "x.parquet", **{"a\x1b[2J": [1, 2], "pred": [0, 1]})
    arguments = ["search", "--data", str(path), "--prediction", "pred", "--output", str(tmp_path)]
    said = refused([*arguments, "--label", "x" * 5000], capsys, folder=tmp_path)
    assert "\x1b" not in said
    assert "columns: a\\x1b[2J, pred" in said
    assert len(said) < 1000


few = settings(
    max_examples=80,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Objects, nothing, and what a reader may take for one row, for many or for none.
PIECES = (
    *('{"a": 1}', '{"a": 2}', '{"b": "x"}', '{"a": 3, "b": "}\\n{"}', "{}"),
    *("", "  ", "\r", "\t", "null", '{"a": 1} {"a": 2}', '{"a":\n1}', '{\n"a": 1}', "[]"),
    *('{"a": 1}\r', ' {"a": 1} ', '{"b": "y"}null', '{"a": 1} null', '{"a": 1}\n\n'),
)


@few
@given(
    pieces=st.lists(st.sampled_from(PIECES[:8]) | st.sampled_from(PIECES), min_size=1, max_size=12),
    has_end=st.booleans(),
    block_bytes=st.sampled_from((8, 24, 64, 4096)),
)
def test_as_many_rows_are_read_as_the_file_has(pieces, has_end, block_bytes, tmp_path):
    content = ("\n".join(pieces) + "\n" * has_end).encode()
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    try:
        read = sum(block.num_rows for block in read_json_blocks(str(path), block_bytes=block_bytes))
    except InputError:
        return
    try:
        rows = len(json_reading.objects(content))
    except UnreadableError as error:
        pytest.fail(f"{read} rows of a file of which the independent reader says: {error}")
    assert read == rows


@cache
def document():
    return changelist_cases.base(odd_types=False)[1]


@few
@given(data=st.data(), odd=st.sampled_from((math.nan, math.inf, -math.inf)))
def test_no_document_holds_what_is_no_number(data, odd, tmp_path):
    """Written it is JSON all the same, and one that someone else has written is refused."""
    changed = json.loads(document())
    numbers = [
        (part, key)
        for part, key in changelist_cases.places(changed)
        if isinstance(part[key], float)
    ]
    part, key = numbers[data.draw(st.integers(0, len(numbers) - 1))]
    part[key] = odd
    path = tmp_path / "changelist.json"
    path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match="is not a number in JSON"):
        read_changelist(str(path), "--changelist")
    try:
        made = SearchChangeList.model_validate(changed)
    except ValidationError:
        # It has bounds.
        return
    path.write_text(made.to_json())
    changelist_cases.read(path)
