"""``slicebeam adapt run`` and ``import-checklist``: topics against pandas and scipy."""

import json
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines import api
from slicebeam.pipelines.adaptive.expectations import inputs_of
from slicebeam.pipelines.adaptive.topics import below
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.show.adaptive import show_topics
from tests.oracles.adaptive_oracle import topics_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "adaptive"
HOTELS = EXAMPLES / "hotel_tree.csv"
MODELS = '''
import numpy as np

def short(texts):
    return ["neg" if len(text) < 30 else "pos" for text in texts]

def words(texts):
    good = {"good", "friendly", "excellent", "attentive", "close", "clean"}
    return ["pos" if good & set(text.lower().split()) else "neg" for text in texts]

def same(texts):
    return words(texts)

def broken(texts):
    raise ValueError("no weights")

class Sized:
    """Made by a factory, and says of which classes it is."""
    output_names = ["neg", "pos"]
    def __call__(self, texts):
        share = np.array([min(len(text), 60) / 60 for text in texts])
        return np.stack([1 - share, share], axis=1)

def factory():
    return Sized()

def pairs(texts):
    return ["same" if one.split()[:2] == other.split()[:2] else "other" for one, other in texts]
'''


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("own_models", "sentiment_models"):
        sys.modules.pop(name, None)


def adapt(tree, output, *options):
    return run(["adapt", "run", str(tree), "--output", str(output), *options])


def check_topics(output, expected):
    document = json.loads((output / "changelist.json").read_text())
    topics = {one["topic"]: one for one in document["adaptive"]["topics"]}
    changes = {one["slice_id"]: one["changes"][0] for one in document["slices"]}
    assert set(topics) == set(expected.index)
    for topic, row in expected.iterrows():
        one = topics[str(topic)]
        for name in row.index.difference(["p", "q", "significant"]):
            assert one[name] == row[name], (topic, name)
        assert one.get("significant", "") == row.significant, topic
        change = changes[one["slice_id"]]
        assert change["p_value"] == pytest.approx(row.p, rel=1e-9), topic
        assert change["p_adjusted"] == pytest.approx(row.q, rel=1e-9), topic
        assert change["after"]["lo"] <= row.failures / row.tests <= change["after"]["hi"]
    return document


def test_a_tree_that_both_models_fail_altogether(tmp_path):
    tests = [Test("/A", f"a good text {at}", output="neg", label="pass") for at in range(3)]
    write_tree(TestTree.of_tests(tests), str(tmp_path / "tree.csv"))
    models = ("--model", "own_models:words", "--baseline-model", "own_models:same")
    # Both models only say pos, so that nothing but the user knows that they have the class.
    declared = ("--classes", "neg=neg", "--quiet")
    assert adapt(tmp_path / "tree.csv", tmp_path / "out", *models, *declared) == 0
    (topic,) = json.loads((tmp_path / "out" / "changelist.json").read_text())["adaptive"]["topics"]
    assert (topic["failures"], topic["failures_before"], topic["rule"]) == (3, 3, "failing")


def test_a_tree_of_adatest_by_two_models(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    words, short = "own_models:words", "own_models:short"
    assert adapt(HOTELS, out, "--model", words, "--baseline-model", short) == 0
    frame = pd.read_csv(HOTELS, index_col=0, dtype=str, keep_default_na=False)
    frame = frame[frame.label.isin(["pass", "fail"])]
    sys.modules.pop("own_models", None)
    import own_models

    for name, function in (("new", own_models.words), ("old", own_models.short)):
        is_same = np.array(function(frame.input.tolist())) == frame.output
        frame[name] = np.where(frame.label == "pass", ~is_same, is_same)
    document = check_topics(out, topics_of(frame.astype({"new": bool, "old": bool})))
    assert document["adaptive"]["models"] == [short, words]
    assert {one["prediction_field"] for one in document["models"]} == {"passed", "baseline_passed"}
    text = capsys.readouterr().out
    assert "190 tests in 7 topics" in text
    tests = pq.read_table(out / "tests.parquet").to_pandas().set_index("id")
    assert ((tests.failure > 0.5) == frame.new.reindex(tests.index)).all()
    read = read_changelist(str(out / "changelist.json"), "--changelist")
    for width in (80, 100, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        show_topics(read)
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= width
        assert "/Facilities/Pool" in shown
    # The document is one of a check, which all that reads such documents reads.
    assert run(["report", str(out)]) == 0
    options = ["check", "--data", str(out / "tests.parquet"), "--slices", str(out / "topics.yaml")]
    options += ["--label", "expected", "--prediction", "passed", "--metric", "error_rate"]
    options += ["--baseline-prediction", "baseline_passed", "--alternative", "both"]
    options += ["--correction", "bh", "--min-slice-size", "1", "--output", str(tmp_path / "check")]
    assert run([*options, "--quiet"]) == 0
    again = json.loads((tmp_path / "check" / "changelist.json").read_text())
    assert again["slices"] == document["slices"]


def test_gates_and_since(tmp_path, capsys):
    rows = [
        Test(topic, f"{word} stay {number}", label, "pass")
        for topic, word, label in (("/Good", "good", "pos"), ("/Bad", "awful", "neg"))
        for number in range(12)
    ]
    tree = tmp_path / "tree.csv"
    write_tree(TestTree.of_tests(rows), str(tree))
    short = ["--model", "own_models:short"]
    first, second = tmp_path / "first", tmp_path / "second"
    worse = ["--baseline-model", "own_models:words", "--fail-on", "worse"]
    assert adapt(tree, first, "--model", "own_models:same", *worse[:2], "--fail-on", "failing") == 0
    assert adapt(tree, second, *short, *worse, "--since", str(first / "changelist.json")) == 1
    assert "error_rate is significantly worse on 1 slice" in capsys.readouterr().err
    document = read_changelist(str(second / "changelist.json"), "--changelist")
    assert document.since is not None


def test_models_of_other_kinds(tmp_path):
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    frame = pd.read_csv(HOTELS, index_col=0, dtype=str, keep_default_na=False)
    frame = frame[frame.label.isin(["pass", "fail"])]
    model = make_pipeline(CountVectorizer(), LogisticRegression())
    model.fit(frame.input, np.where((frame.label == "pass"), frame.output, "neg"))
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(model))
    out = tmp_path / "out"
    options = {"model": str(path), "baseline_model": "own_models:factory", "output": str(out)}
    found = api.adapt.run(str(HOTELS), **options)
    probability = model.predict_proba(frame.input)
    places = [list(model.classes_).index(one) for one in frame.output]
    wanted = probability[np.arange(len(frame)), places]
    tests = pq.read_table(out / "tests.parquet").to_pandas().set_index("id").loc[frame.index]
    failure = np.where(frame.label == "pass", 1 - wanted, wanted)
    np.testing.assert_allclose(tests.failure, failure, atol=1e-12)
    long = np.array([min(len(text), 60) / 60 for text in frame.input])
    wanted = np.where(frame.output == "pos", long, 1 - long)
    failure = np.where(frame.label == "pass", 1 - wanted, wanted)
    np.testing.assert_allclose(tests.baseline_failure, failure, atol=1e-12)
    assert found.changelist.adaptive.tests == len(frame)


@pytest.mark.parametrize(("options", "message"), [
    (["--model", "own_models:none"], "--model own_models:none: module 'own_models' has no"),
    (["--model", "own_models:broken"], "--model own_models:broken failed on 190 texts: ValueError"),
    (["--model", "nowhere.pkl"], "--model nowhere.pkl: no such file; name module:function"),
    (["--model", "own_models:words", "--budget", "3"], "--budget is for endpoints"),
    (["--model", "own_models:words", "--budget", "much"], "--budget 'much': write calls"),
    (["--model", "own_models:words", "--baseline-model", "own_models:words"], "does not differ"),
    (["--model", "own_models:words", "--fail-on", "better"], "choose from worse, failing"),
])  # fmt: skip
def test_wrong_input(tmp_path, capsys, options, message):
    out = tmp_path / "out"
    assert adapt(HOTELS, out, *options) == 2
    assert message in capsys.readouterr().err
    assert not (out / "changelist.json").exists()


def import_suite(suite, to, *options):
    return run(["adapt", "import-checklist", str(suite), "--to", str(to), *options])


def test_pairs_of_a_suite_are_scored(tmp_path):
    pairs = [["Who am I?", "Who am we?"], ["What is it?", "Where is it?"]]
    typos = json.dumps([pairs[0], ["Who an I?", pairs[0][1]]])
    rows = [
        ("MFT", "same", json.dumps(pairs[0]), 1, False),
        ("MFT", "same", json.dumps(pairs[1]), 0, False),
        ("INV", "typos", typos, None, True),
    ]
    suite, tree, out = (tmp_path / name for name in ("suite.parquet", "tree.csv", "out"))
    frame = pd.DataFrame(rows, columns=["type", "test", "input", "label", "multi"])
    frame.assign(capability="Vocabulary & more").to_parquet(suite)
    (tmp_path / "expect.yaml").write_text(
        "classes: [other, same]\ntests: {same: {0: should not output same}}"
    )
    assert import_suite(suite, tree, "--expectations", str(tmp_path / "expect.yaml")) == 0
    assert import_suite(suite, tree) == 2
    labels = [(test.output, test.label) for test in read_tree(str(tree)).rows() if test.output]
    assert labels == [("same", "pass"), ("same", "fail")]
    assert adapt(tree, out, "--model", "own_models:pairs") == 0
    # The model sees both texts of a pair; an invariance compares pairs.
    tests = pq.read_table(out / "tests.parquet").to_pandas()
    assert tests.groupby("topic").passed.all().to_dict() == {
        "/Vocabulary%20%26%20more/same": True,
        "/Vocabulary%20%26%20more/typos": False,
    }


A, B, C = "Is Ann old?", "Is Ann very old?", "[sic] Ann?"
FORMS = {
    "a text": ("MFT", [A], "0", [(A, "", "0")]),
    "a text in brackets": ("MFT", [C], "0", [(C, "", "0")]),
    "a pair": ("MFT", [[A, B]], "1", [(A, B, "1")]),
    "variants": ("MFT", [[A, B], [A, B, C]], "1", [(A, "", "1"), (B, "", "1")] + [(one, "", "1") for one in (A, B, C)]),
    "variants with labels": ("MFT", [[A, B, C]], "[0, 1, 2]", [(A, "", "0"), (B, "", "1"), (C, "", "2")]),
    "pairs": ("MFT", [[[A, B], [B, A]]], "1", [(A, B, "1"), (B, A, "1")]),
    "variants compared": ("INV", [[A, B]], "", [(A, "", B)]),
    "more variants compared": ("INV", [[A, B, C]], "", [(A, "", json.dumps([B, C]))]),
    "pairs compared": ("INV", [[[A, B], [B, A]]], "", [(A, B, json.dumps([[B, A]]))]),
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_all_forms_of_a_suites_input(tmp_path, suffix):
    rows = [
        (name, kind, case if isinstance(case, str) else json.dumps(case), label or None)
        for name, (kind, cases, label, _) in FORMS.items()
        for case in cases
    ]
    frame = pd.DataFrame(rows, columns=["test", "type", "input", "label"]).assign(capability="All")
    suite, tree = tmp_path / f"suite.{suffix}", tmp_path / "tree.csv"
    frame.to_parquet(suite) if suffix == "parquet" else frame.to_csv(suite, index=False)
    assert import_suite(suite, tree) == 0
    tests = [test for test in read_tree(str(tree)).rows() if test.label != "topic_marker"]
    for name, (kind, _, _, expected) in FORMS.items():
        own = [one for one in tests if one.topic == below("/All", name)]
        said = [
            (one.input, one.second_input, one.output if kind == "MFT" else one.value) for one in own
        ]
        assert said == expected, name
    assert len({test.id for test in tests}) == len(tests)


def test_what_of_a_suite_is_left_out(tmp_path, capsys):
    rows = [
        ("labelled", "MFT", "[1, 2, 3]", "1", False),
        ("a function", "MFT", A, None, False),
        ("alone", "INV", A, None, False),
        ("no list", "INV", A, None, True),
        ("empty", "MFT", "", "1", False),
        ("odd", "XYZ", A, "1", False),
        ("symmetry", "DIR", json.dumps([A, B]), None, True),
        ("short", "MFT", json.dumps([A, B]), '["1"]', True),
    ]
    frame = pd.DataFrame(rows, columns=["test", "type", "input", "label", "multi"])
    suite, tree = tmp_path / "suite.parquet", tmp_path / "tree.csv"
    frame.assign(capability="All").to_parquet(suite)
    assert import_suite(suite, tree, "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        "tree": str(tree), "tests": 1, "cases": 1,
        "left_out": {"a function": "it has no label", "symmetry": "its direction"},
        "unread": {
            "one input alone, where INV and DIR compare several": 1,
            "the input is not a JSON list, and multi is true": 1,
            "no test, or no text as input": 1,
            "its list of labels is not as long as that of its inputs": 1,
            "type 'XYZ' is not MFT, INV or DIR": 1,
        },
    }  # fmt: skip
    (test,) = [one for one in read_tree(str(tree)).rows() if one.label == "pass"]
    assert test.input == "[1, 2, 3]"
    assert "1 rows could not be read: type 'XYZ' is not MFT, INV or DIR" in said.err
    frame.iloc[1:].to_parquet(suite)
    for file, message in (
        ("suite.parquet", "unknown column 'capability'"),
        ("suite.pkl", "a suite is a table, .parquet or .csv"),
        ("nowhere.csv", "no such file"),
        ("broken.parquet", "it can't be read"),
    ):
        (tmp_path / "broken.parquet").write_text("no Parquet")
        assert import_suite(tmp_path / file, tmp_path / "other.csv") == 2
        assert message in capsys.readouterr().err
    frame.iloc[1:].assign(capability="All").to_parquet(suite)
    assert import_suite(suite, tmp_path / "other.csv") == 2
    assert "nothing in it can be imported" in capsys.readouterr().err


def test_the_expectations_of_checklists_sentiment_suite(tmp_path):
    """What each test of the suite expects, as the functions that made it say."""
    tree = tmp_path / "tree.csv"
    options = ["--expectations", str(EXAMPLES / "checklist_sentiment.yaml")]
    assert import_suite(EXAMPLES / "checklist_sentiment.parquet", tree, *options) == 0
    suite = pd.read_parquet(EXAMPLES / "checklist_sentiment.parquet")
    found = pd.read_csv(tree, index_col=0, dtype=str, keep_default_na=False)
    found = found[found.label != "topic_marker"].set_index("topic", append=True)
    reduces = "should not score {} than (tolerance=0.1, unless=neutral)"
    adds = "should not score {} than (class=positive - negative, tolerance=0.1)"
    directions = {
        "intensifiers": reduces.format("higher"),
        "reducers": reduces.format("lower"),
        '"used to" should reduce': reduces.format("lower"),
        "add positive phrases": adds.format("higher"),
        "add negative phrases": adds.format("lower"),
    }
    names = ["negative", "neutral", "positive"]
    for (capability, name), cases in suite.groupby(["capability", "test"], sort=False):
        own = found.xs(below(below("", capability), name), level="topic")
        assert len(own) == len(cases)
        for test, case in zip(own.itertuples(), cases.itertuples(), strict=True):
            texts = json.loads(case.input) if case.multi else [case.input]
            assert test.input == texts[0]
            if case.type == "MFT":
                not_negative = pd.isna(case.label) or (name == "Q & A: no" and case.label == 1)
                said = ("negative", "fail") if not_negative else (names[int(case.label)], "pass")
                assert (test.output, test.label, test.expectation) == (*said, "")
            else:
                same = "should have the same output as (tolerance=0.1)"
                assert test.expectation == directions.get(name, same)
                assert inputs_of(test.value) == texts[1:]


class MFT:
    """As CheckList's test of a capability."""

    def __init__(self, data, labels):
        self.data, self.labels = data, labels


def test_the_page_writes_the_table_of_a_suite(tmp_path, monkeypatch):
    page = (EXAMPLES.parents[1] / "docs/how-to/test-trees.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    suite = types.SimpleNamespace(
        tests={
            "praise": MFT(["good", "fine"], "positive"),
            "negation": MFT([["not bad", "not awful"]], [["positive", "negative"]]),
        },
        info={"praise": {"capability": "Words"}, "negation": {"capability": "Negation"}},
    )
    module = types.ModuleType("checklist.test_suite")
    module.TestSuite = types.SimpleNamespace(from_file=lambda name: suite)
    monkeypatch.setitem(sys.modules, "checklist", types.ModuleType("checklist"))
    monkeypatch.setitem(sys.modules, "checklist.test_suite", module)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "test-trees.md", "exec"), {})
    table = pd.read_parquet("sentiment.parquet")
    assert table["type"].tolist() == ["MFT"] * 3
    assert table["multi"].tolist() == [False, False, True]
    assert json.loads(table["input"][2]) == ["not bad", "not awful"]
    assert table["label"].tolist()[:2] == ["positive", "positive"]
    assert import_suite(tmp_path / "sentiment.parquet", tmp_path / "tree.csv") == 0
    assert set(pd.read_csv(tmp_path / "tree.csv")["topic"]) >= {"/Words/praise"}
