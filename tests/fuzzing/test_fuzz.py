"""Mutated inputs end in a result that an independent reader agrees with, or in a line or two.

The default run takes the same few cases every time, a run of the slow tests some hundreds.
``SLICEBEAM_FUZZ_CASES=10000 pytest tests/fuzzing -m slow`` takes so many new ones of each kind, with
``-n`` in many processes, and ``-rP`` prints how many ended how. A failure is made small, printed with
what makes it again, and its files are left in the folder of the test; so are those of a case that
ends the process.
"""

import collections
import io
import json
import math
import os
import random
import re
import resource
import struct
import sys
import tempfile
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slicebeam.metrics.errors import InputError, printable
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.commands import cli
from slicebeam.pipelines.config.common import memory_bytes
from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split
from slicebeam.transforms.formats import tfrecord
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.formats.json_lines import read_json_blocks
from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks
from slicebeam.transforms.storage.storage import storage_path
from tests.conftest import slow
from tests.fuzzing import (
    changelist_cases,
    command_cases,
    csv_cases,
    json_cases,
    json_reading,
    judging,
    parquet_cases,
    tfrecord_cases,
    yaml_cases,
)
from tests.fuzzing.case import Case, Reading, UnreadableError
from tests.refusals import refuses
from tests.running import refused, search
from tests.tfrecord_files import masked_crc

# Each kind with how many commands of it a run of the slow tests makes: data is what most runs get wrong.
KINDS = {
    "parquet": (parquet_cases.cases, 24),
    "csv": (csv_cases.cases, 30),
    "jsonl": (json_cases.cases, 24),
    "tfrecord": (tfrecord_cases.cases, 18),
    "yaml": (yaml_cases.cases, 12),
    "changelist": (changelist_cases.cases, 18),
    "command": (command_cases.cases, 24),
}
READ_DIRECTLY = [kind for kind in KINDS if kind != "command"]
# Address space beyond what is taken: a few bytes that ask for more must be refused.
MEMORY = 4 << 30
ENVIRONMENT = {
    # Stores that a mutated path names are never there.
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_EC2_METADATA_DISABLED": "true",
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
    "SLICEBEAM_STORAGE_TIMEOUT": "2",
}


@pytest.fixture
def attempt(tmp_path, monkeypatch, capfd):
    """Run a case in a place of its own, with little memory, and return what became of it."""
    for name, value in {**ENVIRONMENT, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    yield partial(judging.attempt, folder=tmp_path / "data", capture=capfd)
    resource.setrlimit(resource.RLIMIT_AS, before)


def try_cases(kind, count, judge):
    told, became = os.environ.get("SLICEBEAM_FUZZ_CASES"), collections.Counter()

    @settings(
        max_examples=int(told) if told else count,
        derandomize=not told,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(case=KINDS[kind][0]())
    def holds(case):
        became[judge(case)] += 1

    holds()
    print(kind, dict(became))
    return became


@pytest.mark.parametrize("kind", ["csv", "yaml", "command"])
def test_few_commands(attempt, kind):
    assert try_cases(kind, 2, attempt)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_commands(attempt, kind):
    became = try_cases(kind, KINDS[kind][1], attempt)
    # Else nothing would have been held against anything.
    assert became["exit 0, judged"] > became.total() // 40, became


@pytest.mark.parametrize("kind", READ_DIRECTLY)
@pytest.mark.parametrize("count", [25, slow(300)])
def test_the_reading_layer_alone(tmp_path, kind, count):
    def read_alone(case):
        is_read = judging.read_directly(case, judging.stored(case, tmp_path / "data"))
        return "read" if is_read else "refused"

    became = try_cases(kind, count, read_alone)
    assert min(became["read"], became["refused"]) > count // 10, became


def unforeseen(_):
    cli._say(cli.Invocation(), cli._unforeseen(KeyError("x")), 3)
    return 3


def long(_):
    cli._say(cli.Invocation(), "word " * 900, 2)
    return 2


def coloured(_):
    sys.stderr.write("slicebeam: \x1b[2J\n")
    return 2


COMMANDS = {
    "hangs": (lambda _: time.sleep(1000), "the command hangs"),
    "says nothing": (lambda _: 2, "0 lines"),
    "unforeseen": (unforeseen, "KeyError: 'x'"),
    "long": (long, "4[0-9]{3} characters"),
    "coloured": (coloured, "a control character"),
    "another exit code": (lambda _: 3, "exit code 3"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_judge_sees_what_a_command_does(attempt, name):
    run, message = COMMANDS[name]
    case = Case(["search"], {}, lambda _: Reading(pd.DataFrame()))
    refuses(AssertionError, message, attempt, case, run=run, hang_seconds=0.5)


def frame():
    rng, rows = random.Random(1), 60
    label = [rng.choice(["no", "yes"]) for _ in range(rows)]
    return pd.DataFrame(
        {
            "age": [rng.randrange(20, 60) for _ in range(rows)],
            "job": [rng.choice(["x", "y"]) for _ in range(rows)],
            "label": label,
            "pred": [one if rng.random() < 0.8 else "no" for one in label],
        }
    )


def turned(data, name):
    one, other = sorted(set(data[name]))
    value = other if data[name][3] == one else one
    return data.assign(**{name: data[name].mask(data.index == 3, value)})


MISREADINGS = {
    "a value": (lambda data: turned(data, "job"), "job = "),
    "a prediction": (lambda data: turned(data, "pred"), "accuracy"),
    "no prediction": (lambda data: data.assign(pred=data["pred"].mask(data.index == 3)), "'pred' has missing values"),
    "a column": (lambda data: data.assign(new=1), r"\['new'\] are lost"),
    "a type": (lambda data: data, "'age' is double in the file and was read as int64"),
    "a row": (lambda data: data.iloc[1:], "60 examples, but 59 in the file"),
}  # fmt: skip


def test_the_judge_sees_what_was_misread(tmp_path):
    data = frame()
    data.to_parquet(tmp_path / "data.parquet")
    roles = {"label": "label", "prediction": "pred", "max_cross_size": 1, "min_slice_size": 1}
    search(tmp_path / "out", data=tmp_path / "data.parquet", **roles)
    document, table = judging.published(tmp_path / "out")
    judging.misread(document, table, Reading(data, {"age": "int64"}))
    for name, (change, message) in MISREADINGS.items():
        types = {"age": "double" if name == "a type" else "int64"}
        reading = Reading(change(data), types)
        refuses(AssertionError, message, judging.misread, document, table, reading)


ROLES = {"label": "label", "prediction": "pred"}


def test_json_lines_that_only_look_odd(tmp_path):
    path, brackets, deep = tmp_path / "x.jsonl", "[{" * 100, "[" * 63 + "]" * 63
    lines = f'{{"a": "{brackets}", "b": {deep}}}\r\n\n \t\r\n  {{"a": "}}null"}}  \n'
    path.write_bytes(lines.encode())
    (table,) = read_json_blocks(str(path))
    assert table["a"].to_pylist() == [brackets, "}null"]


def test_a_wrong_length_in_a_tfrecord_takes_no_memory(tmp_path, monkeypatch):
    length = struct.pack("<Q", (1 << 31) - 1)
    checksum, path = struct.pack("<I", masked_crc(length)), tmp_path / "x.tfrecord"
    path.write_bytes(length + checksum + b"x" * 50)
    asked = []

    class Watched(io.BytesIO):
        def read(self, size=-1):
            asked.append(size or 0)
            return super().read(size)

    monkeypatch.setattr(tfrecord, "open_bytes", lambda _: Watched(path.read_bytes()))
    with pytest.raises(InputError, match="record 1: the file ends inside it"):
        list(read_tfrecord_blocks(str(path)))
    assert max(asked) <= 64 << 20


def test_a_byte_order_mark_of_a_value_is_kept(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("a,b\n\ufeff1,2\n".encode())
    (table,) = read_csv_blocks(str(path))
    assert table.to_pylist() == [{"a": "\ufeff1", "b": "2"}]


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path, write_page_checksum=True, compression="none")
    return path


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
    path = str(parquet(tmp_path / "none.parquet"))
    refuses(InputError, "there are no columns in it", open_parquet, [StoredFile(path, path)])
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
    return search(folder / "out", data=folder / "data.parquet", **options).document


def test_a_gap_after_the_first_bin_holds_nobody(tmp_path):
    document = earlier(tmp_path)
    domain = next(d for d in document["dataset"]["domains"] if d["name"] == "hours")
    assert domain["singletons"][0]["op"] == "<"
    del domain["singletons"][1]
    (tmp_path / "given.json").write_text(json.dumps(document))
    given = {"max_cross_size": 1, "min_slice_size": 1, "domains": tmp_path / "given.json"}
    found = search(tmp_path / "again", data=tmp_path / "data.parquet", **ROLES, **given)
    read = pd.read_parquet(tmp_path / "data.parquet")
    edge = domain["singletons"][0]["value"]
    row = found.table[found.table["slice"] == f"hours < {edge:g}"].iloc[0]
    assert row["n"] == (read["hours"] < edge).sum()


def with_first_slice(text, **changed):
    told = json.loads(text)
    told["slices"][0] |= changed
    return json.dumps(told)


CHANGE = '{"metric": "accuracy", "n": 1, "after": {}, "direction": "none"}'
DOCUMENTS = {
    "a key twice": (lambda text: text.replace('"n": 60', '"n": 60, "n": 61', 1), "occurs twice"),
    "truth for a number": (lambda text: text.replace('"n": 60', '"n": true', 1), "dataset.n: Input should be a valid integer"),
    "text for a number": (lambda text: text.replace('"n": 60', '"n": "60"', 1), "dataset.n: Input should be a valid integer"),
    "a number for truth": (lambda text: text.replace('"closed": true', '"closed": 1', 1), "dataset.domains.0.closed: Input should be a valid boolean"),
    "an infinite number": (lambda text: text.replace('"n": 60', '"n": 1e999', 1), "64 bits"),
    "nested without end": (lambda text: "[" * 100_000 + text, "nested deeper than 64 levels"),
    "a slice twice": (lambda text: json.dumps({**(told := json.loads(text)), "slices": told["slices"] * 2}), "occurs twice; keep one of the two"),
    "a metric twice": (lambda text: text.replace('"changes": [{', f'"changes": [{CHANGE}, {{'), "metric accuracy occurs twice"),
    "a slice without a change": (lambda text: with_first_slice(text, changes=[]), "not a valid ChangeList (slices.0.changes"),
    "no domains": (lambda text: '{"schema_version": "1.0"}', "not a valid ChangeList"),
}  # fmt: skip


def test_changelists(tmp_path):
    text, path = json.dumps(earlier(tmp_path)), tmp_path / "given.json"
    path.write_text(text)
    assert read_changelist(str(path), "--domains").dataset.n == 60
    for change, message in DOCUMENTS.values():
        path.write_text(change(text))
        refuses(InputError, re.escape(message), read_changelist, str(path), "--domains")


def test_options_that_no_machine_has(tmp_path):
    assert memory_bytes("9" * 400 + "GB") == 2**63
    nobody, null = "no user with that name", "a file name cannot contain a null character"
    refuses(InputError, nobody, storage_path, "~nobody-of-that-name/x", "--data")
    refuses(InputError, null, storage_path, "a\0b", "--data")


def test_what_a_message_quotes_does_not_rule_the_terminal(tmp_path, capsys):
    assert printable("a\x1b[2J\x00\u2028\tb\nc") == "a\\x1b[2J\\x00\\u2028\tb\nc"
    path = parquet(tmp_path / "x.parquet", **{"a\x1b[2J": [1, 2], "pred": [0, 1]})
    arguments = ["search", "--data", str(path), "--prediction", "pred", "--output", str(tmp_path)]
    said = refused([*arguments, "--label", "x" * 5000], capsys, folder=tmp_path)
    assert "\x1b" not in said
    assert "columns: a\\x1b[2J, pred" in said
    assert len(said) < 1000


few = settings(max_examples=80, derandomize=True, database=None, deadline=None)
few = settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    content, path = ("\n".join(pieces) + "\n" * has_end).encode(), tmp_path / "data.jsonl"
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
    places = changelist_cases.places(changed)
    numbers = [(part, key) for part, key in places if isinstance(part[key], float)]
    part, key = numbers[data.draw(st.integers(0, len(numbers) - 1))]
    part[key] = odd
    path = tmp_path / "changelist.json"
    path.write_text(json.dumps(changed))
    refuses(InputError, "is not a number in JSON", read_changelist, str(path), "--changelist")
    try:
        made = SearchChangeList.model_validate(changed)
    except ValidationError:
        return
    path.write_text(made.to_json())
    changelist_cases.read(path)
