"""What is wrong is said in a line or two, with the value and the remedy, and nothing is published."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.end_to_end import test_losses, test_search_adult, test_silent_input
from tests.pipelines.discovery.test_discover_data import LOSSES, WITH_TEXT
from tests.refusals import refusing
from tests.running import refused
from tests.shift_runs import made

ROWS = 300


def examples():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "age": rng.integers(18, 80, ROWS), "sex": rng.choice(["F", "M"], ROWS),
        "label": rng.choice(["no", "yes"], ROWS), "score": rng.random(ROWS),
    })  # fmt: skip
    frame["pred"] = np.where(rng.random(ROWS) < 0.8, frame["label"], "no")
    frame["one"] = (frame["label"] == "yes").astype(int)
    return frame


@pytest.fixture
def folder(tmp_path):
    examples().to_parquet(tmp_path / "eval.parquet")
    return tmp_path


@pytest.fixture
def refuse(folder, capsys):
    return refusing("search", folder, capsys, "eval.parquet", label="label", prediction="pred")


def test_paths(folder, refuse):
    expected = "--data DIR/evl.parquet: no such file; did you mean 'DIR/eval.parquet'?"
    assert refuse(data="evl.parquet") == expected
    said = "--data DIR/no/x.csv: no such file; the folder DIR/no does not exist"
    assert refuse(data="no/x.csv") == said
    assert refuse(data="*.pq").startswith("--data DIR/*.pq: no file matches")
    assert refuse(data=".") == "--data DIR is a folder; name its files: 'DIR/*.parquet'"
    (folder / "eval.csv").write_text("a,label,pred\n1,x,x\n")
    mixed = refuse("--data", folder / "eval.csv")
    assert mixed == "--data mixes formats (csv, parquet); convert them to one format"
    (folder / "eval.data").write_text("a,label,pred\n1,x,x\n")
    assert "the name does not show the format; give --format" in refuse(data="eval.data")
    said = refuse("--work-dir", "gcs://bucket/x.parquet")
    assert said.startswith("--work-dir gcs://bucket/x.parquet: unknown store 'gcs://'")
    assert "did you mean 'gs://'?" in said


def test_output(folder, refuse):
    file = folder / "file"
    file.write_text("x")
    assert refuse(output=file) == "--output DIR/file is a file; name a folder"
    said = "cannot make the output folder DIR/file/x: Not a directory"
    assert refuse(output=file / "x", code=3) == said
    assert "cannot make the output folder /proc/x" in refuse(output="/proc/x", code=3)
    assert refuse(work_dir=file) == "--work-dir DIR/file is a file; name a folder"
    assert file.read_text() == "x"


def test_damaged_parquet(folder, refuse):
    good = (folder / "eval.parquet").read_bytes()
    flipped = bytearray(good)
    flipped[100:1500] = bytes(byte ^ 0xA5 for byte in flipped[100:1500])
    damaged = {"empty": b"", "cut": good[: len(good) // 2], "flipped": bytes(flipped)}
    damaged |= {"csv": b"a,label,pred\n1,x,x\n"}
    for name, content in damaged.items():
        (folder / f"{name}.parquet").write_bytes(content)
        message = refuse(data=f"{name}.parquet")
        assert message.startswith(f"DIR/{name}.parquet: not readable as Parquet (")
    assert "it starts like Parquet: give --format parquet" in refuse(format="csv")


@pytest.mark.parametrize("kind", ["plain", "dictionary", "list"])
def test_parquet_with_text_that_is_not_utf8(folder, refuse, kind):
    table = pq.read_table(folder / "eval.parquet")
    codes = pa.array([b"a", b"\xc0\xff"]).take(np.arange(table.num_rows) % 2)
    column = pa.StringArray.from_buffers(table.num_rows, *codes.buffers()[1:])
    if kind == "list":
        column = pa.ListArray.from_arrays(np.arange(table.num_rows + 1, dtype=np.int32), column)
    table = table.append_column("f", column)
    pq.write_table(table, folder / "x.parquet", use_dictionary=kind == "dictionary")
    message = refuse(data="x.parquet")
    assert message.startswith("DIR/x.parquet: column 'f' cannot be read (Invalid UTF8 sequence")
    assert message.endswith("write it again, text as UTF-8")


@pytest.mark.parametrize(("name", "text", "message"), [
    ("x.csv", "age,label,pred\n", "--data DIR/x.csv: there are no examples in it"),
    ("x.csv", "age,label,pred\n1,a,a\n2,b\n", "DIR/x.csv, line 3: 2 fields where the header has 3: '2,b'"),
    ("x.jsonl", '{"label": "a"}\n{"label": 1}\n', "DIR/x.jsonl, line 2: column 'label' holds the number 1"),
])  # fmt: skip
def test_text_files(folder, refuse, name, text, message):
    (folder / name).write_text(text)
    assert refuse(data=name).startswith(message)


SCORED = {"prediction": None, "score": "big", "positive_class": "yes"}
BEYOND = {
    "score": {**SCORED, "metric": "auc"},
    "threshold": SCORED,
    "mean": {"label": None, "prediction": None, "metric": "mean:big"},
    "weight": {"weight": "big"},
    "loss": {"label": None, "prediction": None, "loss": "big"},
    "number": {"label": "one", "prediction": "big", "metric": "mse"},
}


@pytest.mark.parametrize("name", BEYOND)
def test_integers_that_float64_rounds(folder, refuse, name):
    frame = examples()
    frame["big"] = 2**53
    frame.loc[237, "big"] = 2**60 + 1
    frame.to_parquet(folder / "big.parquet", row_group_size=100)
    assert refuse(data="big.parquet", **BEYOND[name]) == (
        "column 'big' holds 1152921504606846977 in row 238 of DIR/big.parquet, but integers "
        "beyond 2^53 lose digits as floating-point numbers; subtract a constant, or write the "
        "column as double"
    )
    assert not (folder / "out" / "_work").exists()


@pytest.mark.parametrize("column", ["label", "pred", "score"])
def test_missing_values_of_roles(folder, refuse, column):
    frame = examples()
    for name in ("a", "b"):
        frame.to_parquet(folder / f"{name}.parquet", row_group_size=100)
        frame.loc[237, column] = None
    options = {"prediction": None, "score": "score", "positive_class": "yes"}
    message = refuse(data="[ab].parquet", **(options if column == "score" else {}))
    assert message == (
        f"column {column!r} has no value in row 238 of DIR/b.parquet; drop such examples or fill "
        "the column"
    )


@pytest.mark.slow
def test_columns_that_are_no_classes(folder, refuse):
    frame = examples()
    changes = [
        ({"label": frame["score"] * 7, "pred": frame["score"]}, "label 'label' holds fractions ("),
        ({"label": np.inf, "pred": 1.0}, "label 'label' holds fractions (inf)"),
        ({"pred": "never"}, "prediction 'pred' never equals label 'label': labels are 'no', 'yes', predictions are"),
        ({"label": pd.Timestamp("2024-01-01")}, "column 'label' of timestamp["),
        ({"label": [[1]] * ROWS}, "column 'label' of list<"),
    ]  # fmt: skip
    for columns, message in changes:
        frame.assign(**columns).to_parquet(folder / "x.parquet")
        assert refuse(data="x.parquet").startswith(message)
    frame.iloc[:0].to_parquet(folder / "x.parquet")
    assert refuse(data="x.parquet") == "--data DIR/x.parquet: there are no examples in it"
    assert refuse(label="one", prediction="score").endswith("is it a score? give it as --score")


def test_more_classes_than_a_label_has(folder, refuse):
    numbers = pa.array(range(5000))
    table = pa.table({"n": pa.array([1, 2] * 2500), "label": numbers, "pred": numbers})
    pq.write_table(table, folder / "x.parquet")
    assert "label 'label' has more than 1,000 distinct values" in refuse(data="x.parquet")
    examples().assign(label=["a", "b", "c"] * (ROWS // 3)).to_parquet(folder / "x.parquet")
    options = {"prediction": None, "score": "score", "positive_class": "a"}
    assert "label 'label' has 3 classes" in refuse(data="x.parquet", **options)


def test_files_that_do_not_fit(folder, refuse):
    columns = {"n": pa.array([1, 2]), "label": pa.array(["a", "b"]), "pred": pa.array(["a", "b"])}
    table = pa.table(columns)
    pq.write_table(table, folder / "a.parquet")
    pq.write_table(table.drop_columns(["n"]), folder / "b.parquet")
    begins = "DIR/b.parquet: column 'n' is missing, which DIR/a.parquet has"
    assert refuse(data="[ab].parquet").startswith(begins)
    pq.write_table(table.set_column(0, "n", pa.array([[True], [False]])), folder / "b.parquet")
    assert "column 'n' is int64 in DIR/a.parquet but list<" in refuse(data="[ab].parquet")
    twice = pa.table([*table.columns, table["n"]], names=[*table.column_names, "n"])
    pq.write_table(twice, folder / "b.parquet")
    said = "DIR/b.parquet: two columns are named 'n'; rename one of them"
    assert refuse(data="b.parquet") == said


def test_resume_over_what_is_no_document(refuse):
    message = "DIR/out/changelist.json is not a document of this command; leave --resume out to replace it"
    assert message in refuse("--resume")


OLD = '{"old": "document"}'
# What each part of the table is about: a command, its data, and the options that it has by default.
SUBJECTS = {
    "search": ("search", examples, {"label": "label", "prediction": "pred"}),
    "statistics": ("search", test_search_adult.examples, {"label": "label", "prediction": "pred"}),
    "losses": ("search", test_losses.examples, {"features": "sex"}),
    "two models": ("search", test_silent_input.examples, {}),
    "check": ("check", examples, {"label": "label", "prediction": "pred"}),
    "discover": ("discover", lambda: WITH_TEXT, {"embedding": "z", "components": 3, **LOSSES}),
    "shift": ("shift", lambda: made(120), {"label": "label", "old_prediction": "old", "replay_prediction": "new", "budget": 60}),
}  # fmt: skip
# Name of a wrong use: its options, and how what the command says of them begins.
TABLE_OF = yaml.safe_load(Path(__file__).with_name("wrong_options.yaml").read_text("utf-8"))
# Beside the data, for a check.
FILES = {"s.yaml": "- age < 25\n", "empty.json": "{}", "like.json": '{"schema_version": "1.0"}'}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for subject, (_, data, _) in SUBJECTS.items():
        found[subject] = tmp_path_factory.mktemp(subject.replace(" ", "-"))
        made_of = data()
        table = made_of if isinstance(made_of, pa.Table) else pa.Table.from_pandas(made_of)
        pq.write_table(table, found[subject] / "eval.parquet")
        for name, text in FILES.items():
            (found[subject] / name).write_text(text)
    return found


@pytest.mark.parametrize(
    ("subject", "name"), [(subject, name) for subject in TABLE_OF for name in TABLE_OF[subject]]
)
def test_wrong_options(subject, name, folders, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(folders[subject])
    options, message = TABLE_OF[subject][name]
    assert refuse_options(subject, options, folders[subject], tmp_path, capsys).startswith(message)


def refuse_options(subject, options, folder, output, capsys):
    command, _, defaults = SUBJECTS[subject]
    (output / "changelist.json").write_text(OLD)
    arguments = [command]
    named = {"data": str(folder / "eval.parquet"), "output": str(output), **defaults, **options}
    for option, value in named.items():
        if value is not None:
            flag = "--" + option.replace("_", "-")
            arguments.append(flag if value is True else f"{flag}={value}")
    said = refused(arguments, capsys, folder=folder)
    assert (output / "changelist.json").read_text() == OLD
    # Not even a ledger of paid answers is begun.
    assert {path.name for path in output.iterdir()} <= {"changelist.json", "_work"}
    return said
