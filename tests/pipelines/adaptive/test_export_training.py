"""``slicebeam adapt export-training``: what is exported, against pandas; and what a retest says of it."""

import gzip
import io
import json
import shutil
import sys
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines import api
from slicebeam.pipelines.adaptive import training, training_files
from slicebeam.pipelines.adaptive.training_rows import read_rows
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.cli import run
from slicebeam.transforms.formats.tfrecord import read_tfrecord_blocks
from tests.oracles.adaptive_oracle import topics_of
from tests.pipelines.adaptive.test_adapt_run import check_topics
from tests.tfrecord_files import example
from tests.tfrecord_files import frame as framed

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
        (Test("/C", "so fine", expectation="should have the same output as (tolerance=0.1)", value="so good", id="as in the data"), 1),
        (Test("/C", "a good end", expectation="should have the same output as", value='["no end", "bad end"]', id="as a test"), 0),
        (Test("/C", "fine by me", expectation="should have the same output as", value="good by me", id="as nobody knows"), None),
        (Test("/C", "fine or", expectation="should have the same output as", value="good two", id="as two labels"), None),
        (Test("/N", "a fine text", expectation="should contain", value="1", id="no label"), None),
        (Test("/D", "fine guess", "1", "pass", "imputed", id="a guess"), None),
        (Test("/D", "both fine", "1", "pass", id="one of two"), 1),
        (Test("/A", "both fine", expectation="should not output", value="0", id="the same"), 1),
        (Test("/D/E", "both, good", "0", "pass", id="against"), None),
        (Test("/D/E", "both, good", expectation="should have the same output as", value="fine, really", id="another"), None),
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
    """A folder with a tree, and what a run found on it."""
    folder = tmp_path_factory.mktemp("scored")
    (folder / "export_models.py").write_text(MODELS)
    sys.path.insert(0, str(folder))
    other = {"author": "someone, who", "note": ""}
    tests = [
        replace(test, other=other) for test in (*(one for one, _ in FAILING.values()), *PASSING)
    ]
    write_tree(TestTree.of_tests(tests), str(folder / "tree.csv"))
    assert adapt_run(folder / "tree.csv", folder / "out", "--model", "export_models:word") == 0
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("export_models", None)


def adapt_run(tree, output, *options):
    return run(["adapt", "run", str(tree), "--output", str(output), "--quiet", *options])


def training_rows():
    """Sixty rows, of which three lack a label or a text."""
    rows = range(60)
    columns = {
        "id": np.arange(60) + 10**15,
        "text": [f'row {row}, "quoted"\nü' if row % 7 == 0 else f"row {row}" for row in rows],
        "label": pd.array([row % 2 for row in rows], "Int64"),
        "code": [None if row % 5 == 0 else f"{row:03d}" for row in rows],
        "weight": np.linspace(0.1, 0.7, 60).astype(np.float32),
    }
    frame = pd.DataFrame(columns)
    frame.loc[1:5, "text"] = ["so good", "good two", "so good", "good two", "good two"]
    frame.loc[6, "label"] = frame.loc[8, "label"] = pd.NA
    frame.loc[9, "text"] = None
    return frame


def _write_parquet(frame, path):
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.dictionary(pa.int32(), pa.string())),
        ("label", pa.int8()),
        ("code", pa.large_string()),
        ("weight", pa.float32()),
        ("days", pa.list_(pa.date32())),
    ]
    days = [[date(2026, 1, 1 + one % 28)] for one in range(len(frame))]
    table = pa.Table.from_pandas(frame.assign(days=days), pa.schema(fields), preserve_index=False)
    pq.write_table(table, path, row_group_size=11, compression="zstd")


def _read_parquet(path):
    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    assert schema.field("label").type == pa.int8()
    assert schema.field("code").type == pa.large_string()
    assert schema.field("days").type == pa.list_(pa.date32())
    assert pa.types.is_dictionary(schema.field("text").type)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    frame = file.read().to_pandas(integer_object_nulls=True).astype(object)
    assert (frame["days"].isna() == frame["id"].isna()).all()
    return frame.drop(columns="days")


def _write_csv(frame, path, **options):
    text = frame.to_csv(index=False, **options)
    packed = path.suffix == ".gz"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def _read_csv(path, **options):
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    end = options.pop("lineterminator", "\n")
    assert data.split(b"\n")[0].endswith(b"\r") == (end == "\r\n")
    options |= {"dtype": str, "keep_default_na": False, "na_values": [""]}
    read = pd.read_csv(io.BytesIO(data), **options)
    return read.astype({"id": "Int64", "label": "Int64", "weight": "Float32"}).astype(object)


def _write_json(frame, path):
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    for row in rows:
        if row["code"] is None:
            del row["code"]
    path.write_text("\n\n".join(map(json.dumps, rows)))


def _read_json(path):
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert all(type(row["label"]) is int for row in rows)
    return pd.DataFrame(rows, dtype=object)


def _write_tfrecord(frame, path):
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    features = [{name: [one] for name, one in row.items() if one is not None} for row in rows]
    path.write_bytes(b"".join(framed(example(feature)) for feature in features))


def _read_tfrecord(path):
    table = pa.concat_tables(read_tfrecord_blocks(str(path)))
    assert table.schema.field("label").type == pa.int64()
    return table.to_pandas(integer_object_nulls=True).astype(object)


CRLF = {"lineterminator": "\r\n"}
FORMATS = {
    "parquet": ("parquet", _write_parquet, _read_parquet, {}, []),
    "csv": ("csv", _write_csv, _read_csv, {}, []),
    "csv.gz": ("csv.gz", _write_csv, _read_csv, CRLF, []),
    "tsv": ("tsv", _write_csv, _read_csv, {"sep": "\t"}, ["--format", "csv", "--delimiter", "tab"]),
    "jsonl": ("jsonl", _write_json, _read_json, {}, []),
    "tfrecord": ("tfrecord", _write_tfrecord, _read_tfrecord, {}, []),
}


def export(tree, scored, data, to, *options):
    command = ["adapt", "export-training", str(tree), "--changelist", str(scored / "out")]
    return run([*command, "--data", str(data), "--label", "label", "--to", str(to), *options])


def plain(frame):
    """Values as they compare: nulls are None, float32 as its nearest text."""
    frame = frame[["id", "text", "label", "code", "weight"]].astype(object)
    frame["weight"] = [
        None if pd.isna(one) else f"{np.float32(one):.5f}" for one in frame["weight"]
    ]
    frame["label"] = [int(one) for one in frame["label"]]
    return frame.where(frame.notna(), None)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_against_pandas(kind, scored, tmp_path, capsys):
    suffix, write, read, how, options = FORMATS[kind]
    tree, data, to = tmp_path / "tree.csv", tmp_path / f"data.{suffix}", tmp_path / f"more.{suffix}"
    shutil.copy(scored / "tree.csv", tree)
    rows = training_rows()
    write(rows, data, **how)
    assert export(tree, scored, data, to, *options) == 0
    printed = capsys.readouterr().out
    assert "8 failing tests of 4 topics and 8 rows of" in printed
    for number, reason in (
        (1, "same output as for an input whose label is not known"),
        (1, "'should contain' says no label"),
        (1, "what is expected is a guess"),
        (3, "expect different labels"),
    ):
        assert f"not exported: {number} tests: " in printed
        assert reason in printed
    mixed = plain(read(to, **how))
    is_test = mixed["id"].isna()
    # What the tests say, and nothing else in their rows; in no order that tells them from the others.
    said = {one.input: label for one, label in FAILING.values() if label is not None}
    assert dict(zip(mixed["text"][is_test], mixed["label"][is_test], strict=True)) == said
    assert mixed.loc[is_test, ["code", "weight"]].isna().all().all()
    assert (is_test.sum(), (mixed["text"] == "both fine").sum()) == (8, 2)
    assert not is_test.is_monotonic_increasing
    # The others are rows of the data as they were, each at most once, and complete.
    drawn, known = mixed[~is_test], plain(rows.dropna(subset=["text", "label"]))
    assert drawn["id"].is_unique
    expected = known.set_index("id").loc[drawn["id"].astype(int)].reset_index()
    pd.testing.assert_frame_equal(
        drawn.reset_index(drop=True), expected.astype(object), check_dtype=False
    )
    # The same again, and other rows of another seed.
    written, marked = to.read_bytes(), tree.read_bytes()
    assert export(tree, scored, data, to, *options) == 0
    assert (to.read_bytes(), tree.read_bytes()) == (written, marked)
    assert export(tree, scored, data, to, *options, "--seed", "1") == 0
    other = read(to, **how)["id"].dropna().astype(int)
    assert set(other) != set(drawn["id"].astype(int))


def test_only_exported_tests_are_marked(scored, tmp_path):
    data, to = tmp_path / "data.parquet", tmp_path / "more.parquet"
    _write_parquet(training_rows(), data)
    exported = {id_ for id_, (_, label) in FAILING.items() if label is not None}
    before = (scored / "tree.csv").read_bytes().splitlines(keepends=True)
    for name in ("tree.csv", "tree.csv.gz"):
        tree = tmp_path / name
        packed = name.endswith(".gz")
        tree.write_bytes(gzip.compress(b"".join(before)) if packed else b"".join(before))
        topics = ["--topic", "/A/B/", "--topic", "/C"]
        assert export(tree, scored, data, to, *topics) == 0
        read = read_tree(str(tree))
        table = read.table.to_pandas().set_index("id")["training"]
        first = {"the other of two", "says 0", "as in the data", "as a test"}
        assert set(table.index[table != ""]) == first
        assert set(table) == {"", "exported"}
        now = tree.read_bytes()
        now = gzip.decompress(now) if packed else now
        # A new column is added to each row, and nothing else is touched.
        texts = b"".join(before).decode().replace("\r\n", "\n"), now.decode()
        how = {"dtype": str, "keep_default_na": False, "index_col": 0}
        frame, marked = (pd.read_csv(io.StringIO(text), **how) for text in texts)
        pd.testing.assert_frame_equal(marked.drop(columns="training"), frame)
        # Further topics touch the rows of their own tests only.
        lines = set(now.splitlines())
        assert export(tree, scored, data, to) == 0
        again = gzip.decompress(tree.read_bytes()) if packed else tree.read_bytes()
        new = [line for line in again.splitlines() if line not in lines]
        assert len(new) == 4
        assert all(line.endswith(b",exported") for line in new)
        table = read_tree(str(tree)).table.to_pandas().set_index("id")["training"]
        assert set(table.index[table != ""]) == exported


def test_a_stop_between_the_files_leaves_no_lie(scored, tmp_path, monkeypatch):
    tree, data, to = (tmp_path / name for name in ("tree.csv", "data.jsonl", "more.jsonl"))
    shutil.copy(scored / "tree.csv", tree)
    _write_json(training_rows(), data)
    before = tree.read_bytes()

    def stopped(*_):
        raise KeyboardInterrupt

    def exported():
        changelist = scored / "out"
        return api.adapt.export_training(
            tree, changelist=changelist, data=data, label="label", to=to
        )

    files = set(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        # Before the data is whole nothing has changed.
        patch.setattr(training_files._JsonLinesFile, "_write_records", stopped)
        with pytest.raises(KeyboardInterrupt):
            exported()
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
    assert (found.tests, found.rows, found.topics) == (8, 8, ("/A", "/A/B", "/C", "/D"))
    assert read_tree(str(tree)).table["training"].to_pylist().count("exported") == 8


def test_few_rows_and_tests_that_changed(scored, tmp_path, capsys):
    tree, data, to = (tmp_path / name for name in ("tree.csv", "data.csv", "more.csv"))
    now = read_tree(str(scored / "tree.csv")).remove(["says it"])
    write_tree(now.change(["older"], input="another text"), str(tree))
    _write_csv(training_rows().iloc[:3], data)
    assert export(tree, scored, data, to) == 0
    told = capsys.readouterr()
    assert "has 3 rows with text and label, fewer than the 8 tests: all of them are in" in told.err
    assert "1 tests: no longer in the tree" in told.out
    assert "1 tests: changed in the tree since the run" in told.out
    assert len(pd.read_csv(to)) == 11
    assert export(tree, scored, data, to, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tests"], found["rows"], found["tree"]) == (8, 3, str(tree))


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
    frame = training_rows().dropna().assign(other="x")
    _write_csv(frame, data)
    assert export(tree, tmp_path, data, to) == 2
    assert "inputs of" in capsys.readouterr().err
    assert export(tree, tmp_path, data, to, "--text", "text,other") == 0
    found = pd.read_csv(to)
    found = found[found["id"].isna()]
    rows = set(zip(found["text"], found["other"], found["label"], strict=True))
    assert rows == {("one", "a", 1), ("one", "b, c", 1), ("one", "d", 1)}
    assert export(scored / "tree.csv", scored, data, to, "--text", "text", "--text", "other") == 2
    assert "name one column" in capsys.readouterr().err


def test_three_labels_rule_out_less(scored, tmp_path, capsys):
    tree, data, to = (tmp_path / name for name in ("tree.csv", "data.csv", "more.csv"))
    shutil.copy(scored / "tree.csv", tree)
    rows = training_rows()
    rows.loc[10, "label"] = 2
    _write_csv(rows, data)
    assert export(tree, scored, data, to, "--topic", "/A/B") == 0
    assert "it rules one label out, and there are more than two" in capsys.readouterr().out
    found = pd.read_csv(to)
    assert found[found["id"].isna()][["text", "label"]].to_numpy().tolist() == [["good?", 0]]


WRONG = {
    "label": (["--label", "labl"], "unknown column 'labl'; did you mean 'label'?"),
    "text": (["--text", "txt"], "--text txt: {data}: unknown column 'txt'"),
    "columns": (["--text", "a,b,c"], "--text a,b,c: name the column of the texts, or the two"),
    "no texts": (["--text", "id"], "the column has int64 values, which are no texts"),
    "no labels": (["--label", "days"], "values, which are no labels; name another column"),
    "topic": (["--topic", "/Nowhere"], "unknown topic '/Nowhere'"),
    "no topic": (["--topic", "A"], "'A' is no topic; write it as /Price/Taxes"),
    "none fails": (["--topic", "/Only good"], "no test in /Only good fails by"),
    "says nothing": (["--topic", "/N"], "no failing test of {tree} says which label is right"),
    "itself": (["--to", "{data}"], "is --data itself; name another file"),
    "another name": (["--to", "folder/../data.parquet"], "is --data itself; name another file"),
    "of the run": (["--to", "{tests}"], "belongs to --changelist; name another file"),
    "tree": (["--to", "{tree}"], "is the tree itself; name another file"),
    "format": (["--to", "more.csv"], "is a name of csv, and --data {data} is parquet"),
    "delimiter": (["--delimiter", "tab"], "--delimiter is for CSV"),
    "no data": (["--data", "nowhere.csv"], "--data nowhere.csv: no such file"),
    "no run": (["--changelist", "nowhere.json"], "nowhere.json: no such file"),
    "unknown label": (["--label", "code"], "failing tests name the class '1', which is not a label in"),
    "other run": (["--changelist", "{other}"], "is no result of a test tree; name that of slicebeam"),
    "folder": (["--to", "nowhere/more.parquet"], "nowhere/more.parquet"),
}  # fmt: skip


@pytest.fixture(scope="module")
def another_run(scored):
    """The ChangeList of something else."""
    found = json.loads((scored / "out" / "changelist.json").read_text())
    path = scored / "other.json"
    path.write_text(json.dumps({**found, "adaptive": None}))
    return path


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case, scored, another_run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree, data = tmp_path / "tree.csv", tmp_path / "data.parquet"
    shutil.copy(scored / "tree.csv", tree)
    _write_parquet(training_rows(), data)
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


def test_rows_are_drawn_alike(tmp_path):
    """Of 57 complete rows 6 are drawn 200 times: each about 21 times, by the draw's own law."""
    data = tmp_path / "data.parquet"
    _write_parquet(training_rows(), data)
    file = training_files.training_file(str(data), None, ",")
    counts = np.zeros(60)
    for seed in range(200):
        drawn = read_rows(file, ["text"], "label", 6, seed).drawn
        assert len(set(drawn.tolist())) == 6
        counts[drawn] += 1
    assert (counts[[6, 8, 9]] == 0).all()
    usable = np.delete(counts, [6, 8, 9])
    # Without replacement the counts vary less: 200 p (1 - p) with p = 6 / 57.
    p = 6 / 57
    chi_square = ((usable - 200 * p) ** 2 / (200 * p * (1 - p))).sum()
    assert 30 < chi_square < 95


def test_a_retest_marks_what_was_trained(scored, tmp_path, capsys):
    tree, data, out = tmp_path / "tree.csv", tmp_path / "data.parquet", tmp_path / "out"
    shutil.copy(scored / "tree.csv", tree)
    _write_parquet(training_rows(), data)
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
        if test.label == "off_topic":
            continue
        row = {"topic": test.topic}
        for name, model in (("new", export_models.long), ("old", export_models.word)):
            (own,) = model([test.input])
            usual = {"pass": "should output", "fail": "should not output"}.get(test.label)
            expects = test.expectation or usual
            value = test.value or test.output
            if "same" in expects:
                others = json.loads(value) if value.startswith("[") else [value]
                row[name] = any(one != own for one in model(others))
            elif expects == "should not output":
                row[name] = own == value
            else:
                row[name] = own != value
        rows.append(row)
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
