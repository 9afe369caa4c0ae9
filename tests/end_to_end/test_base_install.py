"""What ``pip install .`` alone brings runs the commands, on columns of every type."""

import csv
import json
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import base_install
from tests.tfrecord_files import example, frame
from tests.transforms.encode.test_sources import COLUMNS, ROWS, USELESS, with_roles

ROOT = Path(__file__).parent.parent.parent
WORDS = ("good", "awful", "slow", "great", "poor")
ROLES = ["--label=label", "--prediction=prediction"]
CLASSES = "--classes=cat=positive,dog=negative,eel=neutral"
QUICK = ["--max-cross-size=1", "--quiet"]


def table():
    columns = {name: make() for name, make in COLUMNS.items()}
    columns |= {name: make() for name, (make, _) in USELESS.items() if name != "id"}
    columns["id"] = pa.array([f"r{i}" for i in range(ROWS)])
    words = [f"the {WORDS[i % 5]} room {i % 7} was {WORDS[i * i % 5]}" for i in range(ROWS)]
    columns["words"] = pa.array(words)
    columns["nanosecond_durations"] = pa.array(range(ROWS), pa.duration("ns"))
    # One room is where the model is wrong.
    columns["room"] = pa.array(["good" if i % 5 else "bad" for i in range(ROWS)])
    label = with_roles(columns)["label"].to_pylist()
    wrong = {"cat": "dog", "dog": "eel", "eel": "cat"}
    columns["label"] = columns["old"] = pa.array(label)
    predicted = [one if i % 5 and i % 9 else wrong[one] for i, one in enumerate(label)]
    columns["prediction"] = pa.array(predicted)
    return pa.table(columns)


def text(value):
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str | int | list | dict | None) else str(value)


@pytest.fixture(scope="module")
def absent(tmp_path_factory):
    path = tmp_path_factory.mktemp("absent") / "absent.json"
    path.write_text(json.dumps(base_install.absent_modules()))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place, everything = tmp_path_factory.mktemp("base"), table()
    pq.write_table(everything, place / "data.parquet")
    flat = everything.drop_columns(
        [
            *("int64", "uint64"),  # JSON has no such integers.
            *(one.name for one in everything.schema if pa.types.is_nested(one.type)),
            *(one.name for one in everything.schema if getattr(one.type, "unit", "") == "ns"),
        ]
    )
    rows = [{name: text(value) for name, value in row.items()} for row in flat.to_pylist()]
    with (place / "data.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, flat.column_names)
        writer.writeheader()
        writer.writerows(rows)
    (place / "data.jsonl").write_text("\n".join(json.dumps({**row, "none": {}}) for row in rows))
    features = [
        {name: [] if value is None else [value] for name, value in row.items()}
        for row in everything.select(["words", "few_ints", "label", "prediction"]).to_pylist()
    ]
    (place / "data.tfrecord").write_bytes(b"".join(frame(example(one)) for one in features))
    (place / "run.yaml").write_text(
        "command: search\ndata: data.csv\noutput: run\nlabel: label\nprediction: prediction\n"
        "features: [float, date]\n"
    )
    return place


def commands():
    """The main commands by what they show, in an order in which they can run."""
    searches = {
        f"search of {kind}": ["search", f"--data=data.{kind}", *ROLES, *QUICK, f"--output={kind}"]
        for kind in ("parquet", "csv", "jsonl", "tfrecord")
    }
    searches["search of parquet"] += ["--example-id=id", "--exclude-features=old"]
    discovery = ["--text=words", "--components=3", "--features=nanoseconds,date", *ROLES]
    shift = ["--label=label", "--old-prediction=old", "--replay-prediction=prediction", "--by=date"]
    label = ["--changelist=discovery", "--slice=some", "--text=a slow room", "--budget=20"]
    of_parquet = "--changelist=parquet"
    return searches | {
        "report": ["report", "parquet", "--examples=3"],
        "define": ["define", of_parquet, "--name=early", "--where=decimal < 0.1 & nanoseconds >= 2001-01-01"],
        "edit": ["edit", "rename", of_parquet, "--slice=early", "--name=old"],
        "check": ["check", of_parquet, "--data=data.parquet", "--output=check"],
        "dry run": ["search", "--data=data.jsonl", *ROLES, "--dry-run", "--output=none"],
        "run": ["run", "run.yaml"],
        "discover": ["discover", "--data=data.parquet", "--example-id=id", *discovery, "--output=discovery"],
        "report of a discovery": ["report", "discovery", "--examples=3"],
        "define a slice of a discovery": ["define", "--changelist=discovery", "--name=some", "--where=date >= 2020-01-01"],
        "attribute": ["attribute", "run", *label, "--labels=bool", "--labels-dir=labels"],
        "attribute sample": ["attribute", "sample", *label],
        "shift": ["shift", "--data=data.parquet", *shift, "--budget=60", "--output=shift"],
        "adapt from": ["adapt", "from", "parquet", "--text=words", "--to=tests.csv"],
        "adapt run": ["adapt", "run", "tests.csv", "--model=sentiment_model:sentiment", CLASSES, "--output=tests"],
        "schema": ["schema"],
    }  # fmt: skip


def started(absent, folder, *arguments, **options):
    script = [sys.executable, str(ROOT / "tests" / "base_install.py"), str(absent), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.Popen(script, cwd=folder, env=environment, text=True, **options)


@pytest.fixture(scope="module")
def codes(absent, folder):
    """The exit codes of all commands, which share a process, since importing takes seconds."""
    path = folder / "commands.json"
    path.write_text(json.dumps(list(commands().values())))
    pipe = subprocess.PIPE
    with started(absent, folder, str(path), stdout=pipe, stderr=subprocess.STDOUT) as process:
        print(process.communicate()[0])
    assert process.returncode == 0
    return dict(zip(commands(), json.loads(path.with_suffix(".codes").read_text()), strict=True))


def test_what_extras_bring_is_absent(absent):
    modules = set(json.loads(absent.read_text()))
    brought = {"pandas", "aiohttp", "jmespath", "boto3", "google.cloud", "google.auth", "pytest"}
    assert brought <= modules
    needed = {"slicebeam", "numpy", "pyarrow", "google", "sklearn", "duckdb", "starlette"}
    assert not modules & needed


@pytest.mark.parametrize("name", commands())
def test_the_main_commands_run(codes, name):
    assert codes[name] == 0


def test_the_page_is_served(absent, folder, codes):
    with started(absent, folder, "serve", "parquet", "--quiet", stdout=subprocess.PIPE) as process:
        try:
            with urlopen(process.stdout.readline().strip(), timeout=60) as answer:
                assert b"<html" in answer.read()
        finally:
            process.terminate()


def test_a_model_without_pandas_names_the_extra(absent, folder, codes):
    arguments = ("search", "--data=data.csv", "--label=label", "--output=model", "--features=float")
    pipe = subprocess.PIPE
    with started(
        absent, folder, *arguments, "--model=sentiment_model:sentiment", stderr=pipe
    ) as process:
        _, said = process.communicate()
    assert process.returncode == 2
    extra = "whose frames it reads; in the checkout, run pip install '.[sklearn]'"
    assert f"--model needs pandas, {extra}" in said


def test_no_line_installs_from_a_registry():
    """Nobody publishes this package, so that a registry could have anything under its name."""
    known = base_install.project()["optional-dependencies"]
    places = ("metrics", "transforms", "pipelines", "runner_configs", "docs", "examples", ".ci")
    suffixes = (".py", ".pyi", ".md", ".yaml", ".yml", "")
    paths = [*ROOT.glob("*.md"), *chain(*((ROOT / name).rglob("*") for name in places))]
    paths = [path for path in paths if path.suffix in suffixes and "node_modules" not in path.parts]
    texts = [path.read_text("utf-8") for path in paths if path.is_file()]
    extras = re.compile(r"""'\.\[([\w,]+)\]'|install_hint\(["'](\w+)["']\)""")
    found = chain(*(one for text in texts for one in extras.findall(text)))
    named = {extra for one in found if one for extra in one.split(",")}
    assert {"gs", "s3", "api", "text", "tfma", "dataflow", "sklearn", "docs", "test"} <= named
    assert named <= known.keys()
    wrong = re.compile(r"""slicebeam\[|install\s+(-\S+\s+)*["']*slicebeam\b""")
    assert [found[0] for text in texts for found in wrong.finditer(text)] == []
