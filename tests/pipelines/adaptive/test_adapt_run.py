"""``adapt run``, its gates, and ``import-checklist``: topics against pandas and scipy."""

import json
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from slicebeam.pipelines.adaptive.expectations import inputs_of
from slicebeam.pipelines.adaptive.topics import below
from slicebeam.pipelines.adaptive.topics_printed import show_topics
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from tests.oracles.adaptive_oracle import topics_of
from tests.running import importable

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
    importable(monkeypatch, tmp_path, "own_models", MODELS, "sentiment_models")
    importable(monkeypatch, tmp_path, "gate_models", OF_GATES)
    monkeypatch.syspath_prepend(str(EXAMPLES))


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
    assert "190 tests in 7 topics" in capsys.readouterr().out
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
    assert read_changelist(str(second / "changelist.json"), "--changelist").since is not None


def test_models_of_other_kinds(tmp_path):
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
    file = tmp_path / "expect.yaml"
    file.write_text("classes: [other, same]\ntests: {same: {0: should not output same}}")
    assert import_suite(suite, tree, "--expectations", str(file)) == 0
    assert import_suite(suite, tree) == 2
    labels = [(test.output, test.label) for test in read_tree(str(tree)).rows() if test.output]
    assert labels == [("same", "pass"), ("same", "fail")]
    assert adapt(tree, out, "--model", "own_models:pairs") == 0
    # The model sees both texts of a pair; an invariance compares pairs.
    tests = pq.read_table(out / "tests.parquet").to_pandas()
    passed = {f"/Vocabulary%20%26%20more/{name}": name == "same" for name in ("same", "typos")}
    assert tests.groupby("topic").passed.all().to_dict() == passed


A, B, C = "Is Ann old?", "Is Ann very old?", "[sic] Ann?"
FORMS = {
    "a text": ("MFT", [A], "0", [(A, "", "0")]),
    "a text in brackets": ("MFT", [C], "0", [(C, "", "0")]),
    "a pair": ("MFT", [[A, B]], "1", [(A, B, "1")]),
    "variants": ("MFT", [[A, B], [A, B, C]], "1", [(A, "", "1", B), (A, "", "1", json.dumps([B, C]))]),
    "variants with labels": ("MFT", [[A, B, C]], "[0, 1, 1]", [(A, "", "0"), (B, "", "1", json.dumps([C]))]),
    "pairs": ("MFT", [[[A, B], [B, A]]], "1", [(A, B, "1", json.dumps([[B, A]]))]),
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
        of = "output" if kind == "MFT" else "value"
        found = [(one.input, one.second_input, getattr(one, of), one.other_inputs) for one in own]
        assert found == [(*fields, "")[:4] for fields in expected], name
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
    tests = [test for test in read_tree(str(tmp_path / "tree.csv")).rows() if test.output]
    assert [(test.input, test.output) for test in tests] == [
        ("good", "positive"),
        ("fine", "positive"),
        ("not bad", "positive"),
        ("not awful", "negative"),
    ]


def test_a_case_fails_if_any_of_its_inputs_does(tmp_path):
    rows = [
        ("all", json.dumps(["a good bed", "a clean bed"]), "pos"),
        ("any", json.dumps(["a good bed", "a hard bed", "a clean bed"]), "pos"),
        ("none", json.dumps(["a hard bed", "a soft bed"]), "pos"),
        ("one", "a hard bed", "neg"),
    ]
    frame = pd.DataFrame(rows, columns=["test", "input", "label"])
    suite, tree, out = (tmp_path / name for name in ("suite.csv", "tree.csv", "out"))
    frame.assign(type="MFT", capability="Bed", multi=[True] * 3 + [False]).to_csv(suite)
    assert import_suite(suite, tree) == 0
    for model in ("words", "factory"):
        assert adapt(tree, out, "--model", f"own_models:{model}", "--quiet") == 0
        tests = pq.read_table(out / "tests.parquet").to_pandas().set_index("topic")
        if model == "words":
            assert tests.passed.to_dict() == {
                "/Bed/all": True,
                "/Bed/any": False,
                "/Bed/none": False,
                "/Bed/one": True,
            }
        else:
            # Of probabilities the score is that of the worst input: ten of 60 letters are a sixth positive.
            assert tests.failure["/Bed/all"] == pytest.approx(1 - 10 / 60)


# The words of an input say what the new model makes of it, and the old one.
OF_GATES = """
def _output(word):
    if word == "raise":
        raise ValueError("no such word")
    return {"p": "pos", "f": "neg"}.get(word)

def new(texts):
    return [_output(text.split()[0]) for text in texts]

def old(texts):
    return [_output(text.split()[1]) for text in texts]
"""
NEW, OLD = "gate_models:new", "gate_models:old"
COLUMNS = ["topic", "input", "output", "label", "expectation", "value", "second_input"]


def rows_of(topic, words, **columns):
    """Return tests of a topic: ``8 pp, 2 fp`` are 10, of which the new model fails two."""
    given = {"topic": topic, "output": "pos", "label": "pass", **columns}
    found = []
    for part in words.split(", "):
        times, both = part.split()
        letters = " ".join({"p": "p", "f": "f", "n": "none", "r": "raise"}[one] for one in both)
        found += [{**given, "input": f"{letters} {one}"} for one in range(int(times))]
    return found


def judge(folder, rows, *options):
    frame = pd.DataFrame(rows, [f"id-{row}" for row in range(len(rows))], COLUMNS, dtype=object)
    frame.fillna("").to_csv(folder / "tree.csv")
    tree, out = str(folder / "tree.csv"), str(folder / "out")
    return run(["adapt", "run", tree, "--model", NEW, "--output", out, *options])


def topics_in(folder):
    document = json.loads((folder / "out" / "changelist.json").read_text())
    return {one["topic"]: one for one in document["adaptive"]["topics"]}


FINE = rows_of("/Fine", "30 pp")
GATES = {
    "a fifth exactly": (rows_of("/A", "4 pp, 1 fp"), 1, "1 topic (/A) fails"),
    "just below a fifth": (rows_of("/A", "401 pp, 100 fp"), 0, ""),
    "a fifth of those below": (rows_of("/A/B", "1 fp, 1 pp") + rows_of("/A", "3 pp") + rows_of("/A/C%20D", "1 pp"), 1, "1 topic (/A/B) fails"),
    "all fail": (rows_of("/A", "9 ff"), 1, "1 topic (/A) fails"),
    "topics without tests": ([{"topic": "/Empty", "label": "topic_marker"}, *rows_of("/A", "9 pp")], 0, ""),
    "labels that expect nothing": ([test for label in ("off_topic", "Unknown", "") for test in rows_of("/A", "9 ff", label=label)], 0, ""),
    "off topic, with an expectation": (rows_of("/A", "9 ff", label="off_topic", expectation="should output", value="pos"), 0, ""),
    "excused": (rows_of("/A", "9 ff", expectation="should have the same output as (unless=neg)", value="x"), 0, ""),
    "a misspelt expectation": (rows_of("/A", "9 pp", expectation="should outptu", value="pos"), 2, "1 topic (/A) can't be judged"),
    "few without output": (rows_of("/A", "9 pp, 1 np"), 0, ""),
    "a fifth without output": (rows_of("/A", "8 pp, 2 np"), 2, "1 topic (/A) can't be judged"),
    "together with failures a fifth": (rows_of("/A", "8 pp, 1 fp, 1 np"), 2, "1 topic (/A) can't be judged"),
    "no output at all": (rows_of("/A", "3 np"), 2, "1 topic (/A) can't be judged"),
    "some fail, others have no output": (rows_of("/A", "5 np") + rows_of("/B", "5 fp"), 1, "1 topic (/B) fails"),
    "another input without output": (rows_of("/A", "5 pp", expectation="should have the same output as", value="none p"), 2, "1 topic (/A) can't be judged"),
    "a model that raises": (rows_of("/A", "50 pp, 1 rp"), 2, "failed on 51 texts: ValueError: no such word"),
}  # fmt: skip


@pytest.mark.parametrize("name", GATES)
@pytest.mark.slow
def test_a_topic_that_fails_or_cannot_be_judged(tmp_path, capsys, name):
    rows, code, said = GATES[name]
    assert judge(tmp_path, [*FINE, *rows], "--fail-on=failing") == code
    assert said in capsys.readouterr().err
    if code == 2 and "judged" in said:
        assert (tmp_path / "out" / "changelist.json").exists()


@pytest.mark.parametrize(("words", "codes", "says"), [
    ("30 pp", (0, 0), ""),
    ("20 pp, 10 fp", (1, 1), "significantly worse on 1 slice"),
    # Broken by the rule, by chance.
    ("12 pp, 3 fp", (1, 0), ""),
    ("10 pp, 10 fp, 10 pf", (1, 0), ""),
    # Below a fifth, and significantly worse.
    ("90 pp, 12 fp", (0, 1), "significantly worse on 1 slice"),
    ("20 pp, 10 pf", (0, 0), ""),
    ("28 pp, 2 pn", (0, 0), ""),
    ("20 pp, 8 pn, 2 np", (2, 2), "1 topic (/A) can't be judged"),
])  # fmt: skip
@pytest.mark.slow
def test_a_topic_that_is_worse(tmp_path, capsys, words, codes, says):
    rows, old = rows_of("/A", words) + FINE, f"--baseline-model={OLD}"
    if codes[0] != codes[1]:
        assert judge(tmp_path, rows, old, "--fail-on=failing") == codes[0]
        capsys.readouterr()
    assert judge(tmp_path, rows, old, "--fail-on=worse") == codes[1]
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_without_an_old_model_worse_is_worse_than_all(tmp_path):
    rows = rows_of("/A", "20 fp, 10 pp") + rows_of("/B", "2 fp, 98 pp")
    assert judge(tmp_path, rows, "--fail-on=worse") == 1
    rows = rows_of("/A", "3 fp, 30 pp") + rows_of("/B", "10 fp, 98 pp")
    assert judge(tmp_path, rows, "--fail-on=worse") == 0


@pytest.mark.parametrize("seed", range(3))
def test_gates_say_what_scipy_says(tmp_path, seed):
    random, rows = np.random.default_rng(seed), []
    for topic in ("/A", "/A/B", "/A/B/C", "/D", "/D/E%2FF", "/G"):
        number = random.integers(1, 60)
        kinds = random.multinomial(number, random.dirichlet((8, 1 + 2 * (seed % 2), 1, 1)))
        words = [f"{n} {both}" for n, both in zip(kinds, ("pp", "fp", "pf", "ff"), strict=True)]
        rows += rows_of(topic, ", ".join(words))
    frame = pd.DataFrame(rows)
    frame["new"], frame["old"] = frame.input.str[0] == "f", frame.input.str[2] == "f"
    by_hand, gate = topics_of(frame), ("failing", "worse")[seed % 2]
    fails = {"failing": by_hand.rule.isin(["failing", "broken"])}
    expected = fails.get(gate, by_hand.significant == "broken").any()
    code = judge(tmp_path, rows, f"--baseline-model={OLD}", f"--fail-on={gate}")
    found = topics_in(tmp_path)
    for topic, row in by_hand.iterrows():
        one = found[str(topic)]
        assert one["rule"] == row["rule"], topic
        assert one.get("significant", "") == row["significant"], topic
    assert code == int(expected)
