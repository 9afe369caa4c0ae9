"""``slicebeam adapt run`` and ``import-checklist``: topics against pandas and scipy."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import stats

from slicebeam.pipelines import api
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.show.adaptive import show_topics

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("own_models", "sentiment_models"):
        sys.modules.pop(name, None)


def adapt(tree: Any, output: Path, *options: str) -> int:
    return run(["adapt", "run", str(tree), "--output", str(output), *options])


def bh(p: pd.Series) -> pd.Series:
    """Benjamini and Hochberg's q, by scipy."""
    return pd.Series(stats.false_discovery_control(p, method="bh"), p.index)


def by_hand(tests: pd.DataFrame) -> pd.DataFrame:
    """Each topic with those below it: failures of both models, and the exact McNemar mid-p."""
    rows = {}
    every = {
        "/".join(topic.split("/")[:end])
        for topic in tests.topic
        for end in range(2, len(topic.split("/")) + 1)
    }
    for topic in sorted(every):
        some = tests[(tests.topic == topic) | tests.topic.str.startswith(f"{topic}/")]
        only_new = int((some.new & ~some.old).sum())
        only_old = int((some.old & ~some.new).sum())
        law = stats.binom(only_new + only_old, 0.5)
        p = 1.0
        if only_new + only_old:
            least = min(only_new, only_old)
            p = min(1.0, 2 * (law.cdf(least) - law.pmf(least) / 2))
        was, now = some.old.mean() >= 0.2, some.new.mean() >= 0.2
        rule = {(True, True): "failing", (False, True): "broken", (True, False): "fixed"}
        rows[topic] = {
            "tests": len(some),
            "failures": int(some.new.sum()),
            "failures_before": int(some.old.sum()),
            "newly_failing": only_new,
            "newly_passing": only_old,
            "rule": rule.get((bool(was), bool(now)), "passing"),
            "p": p,
        }
    found = pd.DataFrame.from_dict(rows, orient="index")
    found["q"] = bh(found.p)
    worse = found.newly_failing > found.newly_passing
    found["significant"] = np.where(found.q > 0.05, "", np.where(worse, "broken", "fixed"))
    return found


def check_topics(output: Path, expected: pd.DataFrame) -> dict[str, Any]:
    document = json.loads((output / "changelist.json").read_text())
    topics = {one["topic"]: one for one in document["adaptive"]["topics"]}
    changes = {one["slice_id"]: one["changes"][0] for one in document["slices"]}
    assert set(topics) == set(expected.index)
    for topic, row in expected.iterrows():
        one = topics[str(topic)]
        for name in (
            "tests",
            "failures",
            "failures_before",
            "newly_failing",
            "newly_passing",
            "rule",
        ):
            assert one[name] == row[name], (topic, name)
        assert one.get("significant", "") == row.significant, topic
        change = changes[one["slice_id"]]
        assert change["p_value"] == pytest.approx(row.p, rel=1e-9), topic
        assert change["p_adjusted"] == pytest.approx(row.q, rel=1e-9), topic
        assert change["after"]["lo"] <= row.failures / row.tests <= change["after"]["hi"]
    return document


def test_a_tree_that_both_models_fail_altogether(tmp_path: Path) -> None:
    tests = [Test("/A", f"a good text {at}", output="neg", label="pass") for at in range(3)]
    write_tree(TestTree.of_tests(tests), str(tmp_path / "tree.csv"))
    models = ("--model", "own_models:words", "--baseline-model", "own_models:same")
    assert adapt(tmp_path / "tree.csv", tmp_path / "out", *models, "--quiet") == 0
    (topic,) = json.loads((tmp_path / "out" / "changelist.json").read_text())["adaptive"]["topics"]
    assert (topic["failures"], topic["failures_before"], topic["rule"]) == (3, 3, "failing")


def test_a_tree_of_adatest_by_two_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words, short = "own_models:words", "own_models:short"
    assert adapt(HOTELS, out, "--model", words, "--baseline-model", short) == 0
    frame = pd.read_csv(HOTELS, index_col=0, dtype=str, keep_default_na=False)
    frame = frame[frame.label.isin(["pass", "fail"])]
    sys.modules.pop("own_models", None)
    import own_models  # type: ignore[import-not-found]

    for name, function in (("new", own_models.words), ("old", own_models.short)):
        is_same = np.array(function(frame.input.tolist())) == frame.output
        frame[name] = np.where(frame.label == "pass", ~is_same, is_same)
    document = check_topics(out, by_hand(frame.astype({"new": bool, "old": bool})))
    assert document["adaptive"]["models"] == [short, words]
    assert {one["prediction_field"] for one in document["models"]} == {"passed", "baseline_passed"}
    text = capsys.readouterr().out
    assert "190 tests in 7 topics" in text
    tests = pq.read_table(out / "tests.parquet").to_pandas().set_index("id")
    assert ((tests.failure > 0.5) == frame.new.reindex(tests.index)).all()
    read = read_changelist(str(out / "changelist.json"), "--changelist")
    for width in (80, 100, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        show_topics(read)  # type: ignore[arg-type]
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


def test_gates_and_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_models_of_other_kinds(tmp_path: Path) -> None:
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
    found = api.adapt.run(str(HOTELS), **options)  # type: ignore[attr-defined]
    probability = model.predict_proba(frame.input)
    wanted = probability[
        np.arange(len(frame)), [list(model.classes_).index(one) for one in frame.output]
    ]
    tests = pq.read_table(out / "tests.parquet").to_pandas().set_index("id").loc[frame.index]
    failure = np.where(frame.label == "pass", 1 - wanted, wanted)
    np.testing.assert_allclose(tests.failure, failure, atol=1e-12)
    long = np.array([min(len(text), 60) / 60 for text in frame.input])
    wanted = np.where(frame.output == "pos", long, 1 - long)
    np.testing.assert_allclose(
        tests.baseline_failure, np.where(frame.label == "pass", 1 - wanted, wanted), atol=1e-12
    )
    assert found.changelist.adaptive.tests == len(frame)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "own_models:none"], "--model own_models:none: module 'own_models' has no"),
        (
            ["--model", "own_models:broken"],
            "--model own_models:broken failed on 190 texts: ValueError",
        ),
        (["--model", "nowhere.pkl"], "--model nowhere.pkl: no such file; name module:function"),
        (["--model", "own_models:words", "--budget", "3"], "--budget is for endpoints"),
        (["--model", "own_models:words", "--budget", "much"], "--budget 'much': write calls"),
        (
            ["--model", "own_models:words", "--baseline-model", "own_models:words"],
            "does not differ",
        ),
        (["--model", "own_models:words", "--fail-on", "better"], "choose from worse, failing"),
    ],
)
def test_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert adapt(HOTELS, out, *options) == 2
    assert message in capsys.readouterr().err
    assert not (out / "changelist.json").exists()
    assert not list(out.glob("_scored*"))


def import_suite(suite: Path, to: Path, *options: str) -> int:
    return run(["adapt", "import-checklist", str(suite), "--to", str(to), *options])


def test_suites_of_pairs_and_their_expectations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [["Who am I?", "Who am we?"], ["What is it?", "Where is it?"]]
    rows = [
        *(
            ("MFT", "paraphrases", json.dumps(one), 1 - place, False)
            for place, one in enumerate(pairs)
        ),
        ("INV", "typos", json.dumps([pairs[0], ["Who an I?", pairs[0][1]]]), None, True),
        ("DIR", "symmetry", json.dumps([pairs[0], pairs[0][::-1]]), None, True),
    ]
    frame = pd.DataFrame(rows, columns=["type", "test", "input", "label", "multi"])
    frame["capability"] = "Vocabulary & more"
    suite = tmp_path / "suite.parquet"
    frame.to_parquet(suite)
    expectations = tmp_path / "expect.yaml"
    expectations.write_text(yaml.safe_dump({"classes": ["other", "same"]}))
    tree = tmp_path / "tree.csv"
    assert import_suite(suite, tree, "--expectations", str(expectations)) == 0
    assert "1 tests are left out" in capsys.readouterr().err
    read = read_tree(str(tree))
    assert read.topics() == [
        "",
        "/Vocabulary%20%26%20more",
        "/Vocabulary%20%26%20more/paraphrases",
        "/Vocabulary%20%26%20more/typos",
    ]
    out = tmp_path / "out"
    assert adapt(tree, out, "--model", "own_models:pairs") == 0
    tests = pq.read_table(out / "tests.parquet").to_pandas()
    # The model sees both texts of a pair; an invariance compares pairs.
    assert tests.set_index("expectation").passed.to_dict() == {
        "should output": True,
        "should have the same output as (tolerance=0.1)": False,
    }
    assert import_suite(suite, tree) == 2
    assert "exists; name a new file" in capsys.readouterr().err
    lines = tmp_path / "tests_n500.txt"
    lines.write_text("one\n\ntwo\n")
    assert import_suite(lines, tmp_path / "lines.csv") == 0
    assert "none is scored until it is labelled" in capsys.readouterr().err
    assert adapt(tmp_path / "lines.csv", out, "--model", "own_models:words") == 2
    assert "no test says what it expects (2: no label" in capsys.readouterr().err


def sentiment_by_hand(suite: pd.DataFrame) -> pd.DataFrame:
    """Score CheckList's cases with VADER and AFINN without the code under test."""
    import sentiment_models  # type: ignore[import-not-found]

    rules = {
        "intensifiers": (-1, None, "neutral"),
        "reducers": (1, None, "neutral"),
        '"used to" should reduce': (1, None, "neutral"),
        "add positive phrases": (-1, "polar", None),
        "add negative phrases": (1, "polar", None),
    }
    cases = [
        json.loads(text) if multi else [text]
        for text, multi in zip(suite.input, suite.multi, strict=True)
    ]
    texts = sorted({text for case in cases for text in case})
    found = pd.DataFrame(
        {
            "topic": [
                f"/{capability}/{test}"
                for capability, test in zip(suite.capability, suite.test, strict=True)
            ]
        }
    )
    for column, function in (("new", sentiment_models.afinn), ("old", sentiment_models.vader)):
        by_text = dict(zip(texts, function(texts), strict=True))
        failed: list[bool | None] = []
        for case, test, kind, label in zip(cases, suite.test, suite.type, suite.label, strict=True):
            probabilities = np.array([by_text[text] for text in case])
            predicted = probabilities.argmax(axis=1)
            if kind == "MFT":
                if pd.isna(label) or (test == "Q & A: no" and label == 1):
                    failed.append(bool(predicted[0] == 0))
                else:
                    failed.append(bool(predicted[0] != label))
            elif kind == "INV":
                moved = np.abs(probabilities[:, predicted[0]] - probabilities[0, predicted[0]])
                failed.append(bool(((predicted != predicted[0]) & (moved > 0.1))[1:].any()))
            else:
                sign, what, unless = rules[test]
                value = probabilities[:, predicted[0]]
                if what == "polar":
                    value = probabilities[:, 2] - probabilities[:, 0]
                is_excused = unless is not None and predicted[0] == 1
                failed.append(
                    None if is_excused else bool((sign * (value[1:] - value[0]) > 0.1).any())
                )
        found[column] = failed
    return found.dropna().astype({"new": bool, "old": bool})


def compare_on_suite(suite: pd.DataFrame, tmp_path: Path) -> dict[str, Any]:
    path, tree, out = tmp_path / "suite.parquet", tmp_path / "tree.csv", tmp_path / "out"
    suite.to_parquet(path)
    options = ["--expectations", str(EXAMPLES / "checklist_sentiment.yaml")]
    assert import_suite(path, tree, *options) == 0
    models = ["--model", "sentiment_models:afinn", "--baseline-model", "sentiment_models:vader"]
    assert adapt(tree, out, *models) == 0
    expected = by_hand(sentiment_by_hand(suite))
    document = json.loads((out / "changelist.json").read_text())
    from urllib.parse import unquote

    for one in document["adaptive"]["topics"]:
        one["topic"] = unquote(one["topic"])
    (out / "changelist.json").write_text(json.dumps(document))
    return check_topics(out, expected)


@pytest.fixture(scope="module")
def suite() -> pd.DataFrame:
    pytest.importorskip("vaderSentiment")
    pytest.importorskip("afinn")
    return pd.read_parquet(EXAMPLES / "checklist_sentiment.parquet")


def test_checklists_sentiment_suite_by_vader_and_afinn(tmp_path: Path, suite: pd.DataFrame) -> None:
    few = suite.groupby("test", sort=False).head(12).reset_index(drop=True)
    document = compare_on_suite(few, tmp_path)
    states = {one["rule"] for one in document["adaptive"]["topics"]}
    assert {"broken", "failing", "passing"} <= states
    assert any(one.get("significant") == "broken" for one in document["adaptive"]["topics"])
    assert any("excused" in reason for reason in document["adaptive"]["unscored"])
