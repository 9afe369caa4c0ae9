"""Mutated inputs end in a result that an independent reader agrees with, or in a line or two.

The default run takes the same few cases every time, a run of the slow tests some hundreds.
``SLICEBEAM_FUZZ_CASES=10000 pytest tests/fuzzing -m slow`` takes so many new ones of each kind, with
``-n`` in many processes, and ``-rP`` prints how many ended how. A failure is made small, printed with
what makes it again, and its files are left in the folder of the test; so are those of a case that
ends the process.
"""

import collections
import os
import random
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from slicebeam.pipelines import cli
from tests import tfrecord_files
from tests.conftest import slow
from tests.fuzzing import (
    changelist_cases,
    command_cases,
    csv_cases,
    csv_reading,
    json_cases,
    json_reading,
    judging,
    parquet_cases,
    tfrecord_cases,
    tfrecord_reading,
    yaml_cases,
)
from tests.fuzzing.case import Case, Reading, UnreadableError
from tests.running import search

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
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    taken = pages * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    yield partial(judging.attempt, folder=tmp_path / "data", capture=capfd)
    resource.setrlimit(resource.RLIMIT_AS, before)


def try_cases(kind, count, judge):
    told = os.environ.get("SLICEBEAM_FUZZ_CASES")
    became = collections.Counter()

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


def read_alone(folder, case):
    return "read" if judging.read_directly(case, judging.stored(case, folder)) else "refused"


@pytest.mark.parametrize("kind", READ_DIRECTLY)
@pytest.mark.parametrize("count", [25, slow(300)])
def test_the_reading_layer_alone(tmp_path, kind, count):
    became = try_cases(kind, count, partial(read_alone, tmp_path / "data"))
    assert min(became["read"], became["refused"]) > count // 10, became


# ------------------------------------------------------------------------------------ the judge


def endless(_):
    while True:
        time.sleep(0.1)


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
    "hangs": (endless, "the command hangs"),
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
    with pytest.raises(AssertionError, match=message):
        attempt(case, run=run, hang_seconds=0.5)


def frame():
    rng = random.Random(1)
    rows = 60
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
    return data.assign(
        **{name: data[name].mask(data.index == 3, other if data[name][3] == one else one)}
    )


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
        with pytest.raises(AssertionError, match=message):
            judging.misread(document, table, Reading(change(data), types))


FRAME = tfrecord_files.frame(b"\x0a\x00")
READERS = {
    "csv": (csv_reading.read, {
        "no rows of one length": b"a,b\n1\n", "no end of a quote": b'a\n"x', "no name": b"a,\n1,2\n",
        "a name twice": b"a,a\n1,2\n", "no UTF-8": b"a\n\xff\n", "nothing": b"",
    }),
    "json": (json_reading.read, {
        "no JSON": b'{"a": 1}\n{"a": \n', "no object": b"null\n", "a key twice": b'{"a": 1, "a": 1}\n',
        "two objects": b'{"a": 1}{"a": 2}\n', "two types": b'{"a": 1}\n{"a": "x"}\n',
        "rounded": b'{"a": 9007199254740993}\n{"a": 0.5}\n', "half a character": b'{"a": "\\ud800"}\n',
    }),
    "tfrecord": (tfrecord_reading.read, {
        "cut off": FRAME[:-1], "a length": b"\x05" + FRAME[1:], "data": FRAME[:12] + b"\x0b\x00" + b"\0" * 4,
        "no example": tfrecord_files.frame(b"\x0a\xff"), "nothing": b"",
    }),
    "gzip": (lambda data: csv_reading.read(csv_reading.unpacked(data)), {"no gzip": b"a\n1\n", "no end": b"\x1f\x8b\x08"}),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_the_independent_readers_refuse_damage(name):
    read, damaged = READERS[name]
    for what, content in damaged.items():
        with pytest.raises(UnreadableError):
            pytest.fail(f"{what}: {read(content)}")
