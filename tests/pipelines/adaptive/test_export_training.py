"""``slicebeam adapt export-training``: what is exported, and what a retest says of it."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import date
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.adaptive import training
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from tests.oracles.adaptive_oracle import failed, topics_of
from tests.pipelines.adaptive.test_adapt_run import check_topics
from tests.refusals import refuses

MODELS = """
def word(texts):
    return ["1" if "good" in text else "0" for text in texts]

def long(texts):
    return ["1" if "good" in text or "fine" in text else "0" for text in texts]

def pairs(texts):
    return ["0" for _ in texts]
"""
# What the model gets wrong, with the label that is right; None where the test does not say it.
FAILING = {
    one.id: (one, label)
    for one, label in (
        (Test("/A", "fine, really", "1", "pass", id="says it"), 1),
        (Test("/A", 'it is "fine"\nto me', expectation="should be", value="1", id="older"), 1),
        (Test("/A/B", "not good", "1", "fail", id="the other of two"), 0),
        (Test("/A/B", "good?", expectation="should output", value="0", id="says 0"), 0),
        (Test("/C", "so fine", expectation="should have the same output as (tolerance=0.1)", value="so good", id="as another"), None),
        (Test("/C", "a case", "1", "pass", other_inputs='["another case", "good case"]', id="of several"), 1),
        (Test("/N", "a fine text", expectation="should contain", value="1", id="no label"), None),
        (Test("/D", "fine guess", "1", "pass", "imputed", id="a guess"), None),
        (Test("/D", "both fine", "1", "pass", id="one of two"), 1),
        (Test("/A", "both fine", expectation="should not output", value="0", id="the same"), 1),
        (Test("/D/E", "both, good", "0", "pass", id="against"), None),
        (Test("/D/E", "both, good", "1", "pass", id="for"), None),
    )
}  # fmt: skip
PASSING = [
    Test("/A", "good", "1", "pass"),
    Test("/A", "bad", "0", "pass"),
    Test("/C", "no end", "0", "pass"),
    Test("/C", "good good", expectation="should have the same output as", value="good"),
    Test("/Only good", "very good", "1", "pass"),
    Test("/Off", "fine", "1", "off_topic"),
]


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    (folder / "export_models.py").write_text(MODELS)
    sys.path.insert(0, str(folder))
    other = {"author": "someone, who", "note": ""}
    every = (*(one for one, _ in FAILING.values()), *PASSING)
    tests = [replace(test, other=other) for test in every]
    write_tree(TestTree.of_tests(tests), str(folder / "tree.csv"))
    assert adapt_run(folder / "tree.csv", folder / "out", "--model", "export_models:word") == 0
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("export_models", None)


def adapt_run(tree, output, *options):
    return run(["adapt", "run", str(tree), "--output", str(output), "--quiet", *options])


def training_rows():
    rows = range(60)
    columns = {
        "id": np.arange(60) + 10**15,
        "text": [f'row {row}, "quoted"\nü' if row % 7 == 0 else f"row {row}" for row in rows],
        "label": pd.array([row % 2 for row in rows], "Int64"),
        "code": [None if row % 5 == 0 else f"{row:03d}" for row in rows],
    }
    frame = pd.DataFrame(columns)
    frame.loc[1:5, "text"] = ["so good", "good two", "so good", "good two", "good two"]
    frame.loc[6, "label"] = frame.loc[8, "label"] = pd.NA
    frame.loc[9, "text"] = None
    return frame


def write_data(frame, path):
    if path.suffix != ".parquet":
        frame.to_csv(path, index=False)
        return
    fields = [
        ("id", pa.int64()),
        ("text", pa.dictionary(pa.int32(), pa.string())),
        ("label", pa.int8()),
        ("code", pa.large_string()),
        ("days", pa.list_(pa.date32())),
    ]
    days = [[date(2026, 1, 1 + one % 28)] for one in range(len(frame))]
    table = pa.Table.from_pandas(frame.assign(days=days), pa.schema(fields), preserve_index=False)
    pq.write_table(table, path, row_group_size=11)


def read_export(path):
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    assert list(frame) == ["text", "label", "topic", "weight"]
    assert frame["label"].dtype == np.int64
    return frame


def export(tree, scored, data, to, *options):
    command = ["adapt", "export-training", str(tree), "--changelist", str(scored / "out")]
    return run([*command, "--mix", str(data), "--to", str(to), *options])


@pytest.mark.parametrize("data", ["data.parquet", "data.csv", "data.csv.gz"])
@pytest.mark.parametrize("to", ["more.parquet", "more.csv"])
def test_what_is_exported(data, to, scored, tmp_path, capsys):
    tree, data, to = (tmp_path / name for name in ("tree.csv", data, to))
    shutil.copy(scored / "tree.csv", tree)
    write_data(training_rows(), data)
    assert export(tree, scored, data, to) == 0
    printed = capsys.readouterr().out
    assert (
        "7 failing tests of 4 topics and 3 passing ones\n11 rows of the training data\n" in printed
    )
    for number, reason in (
        (1, "'should have the same output as' says no label"),
        (1, "'should contain' says no label"),
        (1, "what is expected is a guess"),
        (1, "tests of the same input expect different labels"),
    ):
        assert f"not exported: {number} tests: {reason}" in printed
    # CSV has its labels as texts, which a CSV file has as numbers again.
    if data.suffix != ".parquet" and to.suffix == ".parquet":
        found = pd.read_parquet(to).astype({"label": int})
    else:
        found = read_export(to)
    found["topic"] = found["topic"].fillna("")
    mixed, found = found[found.topic == ""], found[found.topic != ""]
    # The passing tests of the topics are anchors; of a case all inputs are rows, of a text one is.
    expected = {(one.input, label) for one, label in FAILING.values() if label is not None}
    expected |= {("another case", 1), ("good case", 1), ("good", 1), ("bad", 0), ("no end", 0)}
    assert set(zip(found["text"], found["label"], strict=True)) == expected
    assert len(found) == len(expected) == 11
    # Labels weigh the same, and so do the topics of a label.
    cells = found.groupby(["label", "topic"]).weight.agg(["sum", "nunique"])
    assert (cells["nunique"] == 1).all()
    for _, sums in cells["sum"].groupby("label"):
        assert sums.sum() == pytest.approx(11 / 2)
        assert sums.to_numpy() == pytest.approx(sums.mean())
    assert mixed.label.value_counts().to_dict() in ({0: 5, 1: 6}, {0: 6, 1: 5})
    rows = {(text, label) for text, label in training_rows()[["text", "label"]].dropna().to_numpy()}
    assert set(zip(mixed["text"], mixed["label"], strict=True)) <= rows
    written, marked = to.read_bytes(), tree.read_bytes()
    assert export(tree, scored, data, to) == 0
    assert (to.read_bytes(), tree.read_bytes()) == (written, marked)


@pytest.mark.parametrize("name", ["tree.csv", "tree.csv.gz"])
def test_only_exported_tests_are_marked(name, scored, tmp_path):
    tree, data, to = (tmp_path / one for one in (name, "data.parquet", "more.parquet"))
    write_data(training_rows(), data)
    write_tree(read_tree(str(scored / "tree.csv")), str(tree))
    before, marked = read_tree(str(tree)).table, []
    for topics in (["--topic", "/A/B/", "--topic", "/C"], []):
        assert export(tree, scored, data, to, *topics) == 0
        table = read_tree(str(tree)).table
        assert table.drop_columns("training").equals(before)
        marks = dict(zip(table["id"].to_pylist(), table["training"].to_pylist(), strict=True))
        marked.append({id_ for id_, mark in marks.items() if mark})
        assert set(marks.values()) == {"", "exported"}
    exported = {id_ for id_, (_, label) in FAILING.items() if label is not None}
    assert [ids & set(FAILING) for ids in marked] == [
        {"the other of two", "says 0", "of several"},
        exported,
    ]


def test_a_stop_between_the_files_leaves_no_lie(scored, tmp_path, monkeypatch):
    tree, data, to = (tmp_path / name for name in ("tree.csv", "data.parquet", "more.parquet"))
    shutil.copy(scored / "tree.csv", tree)
    write_data(training_rows(), data)
    before = tree.read_bytes()
    stopped, given = Mock(side_effect=KeyboardInterrupt), {"changelist": scored / "out"}

    def exported():
        return api.adapt.export_training(tree, **given, mix=data, to=to)

    files = set(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        # Before the data is whole nothing has changed.
        patch.setattr(training.pq, "write_table", stopped)
        refuses(KeyboardInterrupt, "", exported)
        assert set(tmp_path.iterdir()) == files
    with monkeypatch.context() as patch:
        patch.setattr(training, "write_tree", stopped)
        with pytest.raises(KeyboardInterrupt):
            exported()
    assert tree.read_bytes() == before
    first = to.read_bytes()
    assert set(tmp_path.iterdir()) == {*files, to}
    found = exported()
    assert to.read_bytes() == first
    assert (found.tests, found.topics) == (7, ("/A", "/A/B", "/C", "/D"))
    assert read_tree(str(tree)).table["training"].to_pylist().count("exported") == 10


def test_tests_that_changed(scored, tmp_path, capsys):
    tree, data, to = (tmp_path / name for name in ("tree.csv", "data.csv", "more.csv"))
    now = read_tree(str(scored / "tree.csv")).remove(["says it"])
    write_tree(now.change(["older"], input="another text"), str(tree))
    write_data(training_rows().iloc[:3], data)
    assert export(tree, scored, data, to) == 0
    told = capsys.readouterr().out
    assert "1 tests: no longer in the tree" in told
    assert "1 tests: changed in the tree since the run" in told
    assert export(tree, scored, data, to, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tests"], found["tree"], len(read_export(to))) == (5, str(tree), 11)


def test_pairs(scored, tmp_path, capsys):
    tests = [Test("/P", "one", "1", "pass", second_input=text) for text in ("a", "b, c")]
    same = {"expectation": "should output", "value": "1"}
    tests.append(Test("/P", "one", second_input="d", **same))
    tree = tmp_path / "tree.csv"
    write_tree(TestTree.of_tests(tests), str(tree))
    # Each test fails, and the model has the class.
    options = ("--model", "export_models:pairs", "--classes", "1=1")
    assert adapt_run(tree, tmp_path / "out", *options) == 0
    data, to = tmp_path / "data.csv", tmp_path / "more.csv"
    write_data(training_rows().dropna().assign(other="x"), data)
    assert export(tree, tmp_path, data, to) == 2
    assert "inputs of" in capsys.readouterr().err
    assert export(tree, tmp_path, data, to, "--text", "text,other") == 0
    found = pd.read_csv(to)
    found = found[found["topic"].notna()]
    rows = set(zip(found["text"], found["other"], found["label"], strict=True))
    assert rows == {("one", "a", 1), ("one", "b, c", 1), ("one", "d", 1)}
    assert export(scored / "tree.csv", scored, data, to, "--text", "text", "--text", "other") == 2
    assert "name one column" in capsys.readouterr().err


def test_three_labels_rule_out_less(scored, tmp_path, capsys):
    tree, data, to = (tmp_path / name for name in ("tree.csv", "data.csv", "more.csv"))
    shutil.copy(scored / "tree.csv", tree)
    rows = training_rows()
    rows.loc[10, "label"] = 2
    write_data(rows, data)
    assert export(tree, scored, data, to, "--topic", "/A/B") == 0
    assert "it rules one label out, and there are more than two" in capsys.readouterr().out
    found = read_export(to).dropna()
    assert found[["text", "label"]].to_numpy().tolist() == [["good?", 0]]


def test_tests_alone(scored, tmp_path, capsys):
    tree, to = tmp_path / "tree.csv", tmp_path / "more.csv"
    shutil.copy(scored / "tree.csv", tree)
    command = ["adapt", "export-training", str(tree), "--changelist", str(scored / "out")]
    assert run([*command, "--to", str(to)]) == 0
    told = capsys.readouterr().out
    # Without training data nobody knows whether there are but two labels.
    assert "it rules one label out, and only --mix says how many there are" in told
    assert "rows of the training data" not in told
    found = read_export(to)
    assert found["topic"].notna().all()
    assert {"fine, really", "good?", "both fine"} <= set(found["text"])
    assert "not good" not in set(found["text"])


def test_a_rare_label_weighs_ten_at_most():
    labels = np.array(["a"] * 99 + ["b"], object)
    weights = training._weights(labels, pa.array(["/A"] * 100))
    assert weights[-1] == 10
    assert weights[:-1] == pytest.approx(50 / 99)


WRONG = {
    "label": (["--label", "labl"], "unknown column 'labl'; did you mean 'label'?"),
    "text": (["--text", "txt"], "--text txt: {data}: unknown column 'txt'"),
    "columns": (["--text", "a,b,c"], "--text a,b,c: name the column of the texts, or the two"),
    "no texts": (["--text", "id"], "the column has int64 values, which are no texts"),
    "no labels": (["--label", "days"], "values, which are no labels; name another column"),
    "topic": (["--topic", "/Nowhere"], "unknown topic '/Nowhere'"),
    "no topic": (["--topic", "A"], "'A' is not a valid topic; write it as /Price/Taxes"),
    "none fails": (["--topic", "/Only good"], "no test in /Only good fails by"),
    "says nothing": (["--topic", "/N"], "no failing test of {tree} says which label is right"),
    "itself": (["--to", "{data}"], "is --mix itself; name another file"),
    "another name": (["--to", "folder/../data.parquet"], "is --mix itself; name another file"),
    "of the run": (["--to", "{tests}"], "belongs to --changelist; name another file"),
    "tree": (["--to", "{tree}"], "is the tree itself; name another file"),
    "format": (["--to", "more.jsonl"], "--to more.jsonl: name a file of Parquet or CSV"),
    "data's format": (["--mix", "data.txt"], "--mix data.txt: name a file of Parquet or CSV"),
    "twice": (["--label", "weight"], "two columns of --to would be named 'weight'"),
    "no data": (["--mix", "nowhere.csv"], "--mix nowhere.csv: no such file"),
    "no run": (["--changelist", "nowhere.json"], "nowhere.json: no such file"),
    "unknown label": (["--label", "code"], "failing tests name the class '1', which is not a label in"),
    "other run": (["--changelist", "{other}"], "is not a result of a test tree; name that of slicebeam"),
    "folder": (["--to", "nowhere/more.parquet"], "nowhere/more.parquet"),
}  # fmt: skip


@pytest.fixture(scope="module")
def another_run(scored):
    found = json.loads((scored / "out" / "changelist.json").read_text())
    path = scored / "other.json"
    path.write_text(json.dumps({**found, "adaptive": None}))
    return path


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case, scored, another_run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree, data = tmp_path / "tree.csv", tmp_path / "data.parquet"
    shutil.copy(scored / "tree.csv", tree)
    write_data(training_rows(), data)
    before = data.read_bytes(), tree.read_bytes()
    names = {"data": str(data), "tree": str(tree), "other": str(another_run)}
    names["tests"] = str(scored / "out" / "tests.parquet")
    options, message = WRONG[case]
    given = [one.format(**names) for one in options]
    code = export(tree, scored, data, tmp_path / "more.parquet", *given)
    assert code == (3 if case == "folder" else 2)
    told = capsys.readouterr().err
    assert message.format(**names) in told
    assert len(told.splitlines()) <= 2
    assert (data.read_bytes(), tree.read_bytes()) == before
    assert set(tmp_path.iterdir()) == {tree, data}


def test_a_retest_marks_what_was_trained(scored, tmp_path, capsys):
    tree, data, out = tmp_path / "tree.csv", tmp_path / "data.parquet", tmp_path / "out"
    shutil.copy(scored / "tree.csv", tree)
    write_data(training_rows(), data)
    assert export(tree, scored, data, tmp_path / "more.parquet", "--topic", "/A/B") == 0
    models = ["--model", "export_models:long", "--baseline-model", "export_models:word"]
    capsys.readouterr()
    assert run(["adapt", "run", str(tree), "--output", str(out), *models]) == 0
    shown = capsys.readouterr().out
    assert "/A/B (trained)" in shown
    assert "(trained): tests of the topic, or of one below it, were exported" in shown
    # By pandas and the models themselves.
    import export_models

    rows = []
    for test in [*(one for one, _ in FAILING.values()), *PASSING]:
        row = {"topic": test.topic}
        for name, model in (("new", export_models.long), ("old", export_models.word)):
            row[name] = failed(vars(test), lambda text, model=model: model([text])[0])
        rows += [row] if row["new"] is not None else []
    document = check_topics(out, topics_of(pd.DataFrame(rows)))
    trained = {one["topic"] for one in document["adaptive"]["topics"] if one["trained"]}
    assert trained == {"/A", "/A/B"}
    named = {one["name"] for one in document["slices"]}
    assert {"/A (trained)", "/A/B (trained)", "/C", "/D"} <= named
    assert run(["report", str(out)]) == 0
    page = (out / "report.html").read_text("utf-8")
    assert "(trained): tests of the topic, or of one below it, were exported" in page
    states = {one["topic"]: one["rule"] for one in document["adaptive"]["topics"]}
    assert states["/A/B"] == "failing"
    assert "broken" in states.values() or "fixed" in states.values()
