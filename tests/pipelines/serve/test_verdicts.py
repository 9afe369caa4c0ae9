"""What is stored of a verdict: the same model passes or fails the test as the person said, and no other label."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import EXPECTATIONS
from slicebeam.pipelines.adaptive.suggestions.desk import TestDesk
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.adapt_suggest import AdaptSuggestConfig
from tests.conftest import slow
from tests.oracles.adaptive_oracle import failed
from tests.refusals import refuses
from tests.running import importable

# What each model says of three texts. The first and the second differ, the last is a tie of two classes.
TEXTS = ("one", "two", "three")
SAID = {
    "two": {"one": {"neg": 0.2, "pos": 0.8}, "two": {"neg": 0.7, "pos": 0.3}, "three": {"neg": 0.5, "pos": 0.5}},
    "three": {"one": {"neg": 0.1, "neu": 0.2, "pos": 0.7}, "two": {"neg": 0.3, "neu": 0.6, "pos": 0.1}, "three": {"neg": 0.4, "neu": 0.4, "pos": 0.2}},
    "strings": {"one": "pos", "two": "neg", "three": "neu"},
    "texts": {"one": "pos it is", "two": "rather neg", "three": "neg, a neg text"},
    "scale": {"one": 0.5, "two": -0.25, "three": 0.75},
}  # fmt: skip
MODELS = f"""
import numpy as np
SAID = {SAID!r}

def _model(kind):
    said = SAID[kind]
    def model(texts):
        found = [said.get(text, said["one"]) for text in texts]
        if kind in ("two", "three"):
            return np.array([list(one.values()) for one in found])
        return np.array(found) if kind == "scale" else found
    if kind in ("two", "three"):
        model.output_names = list(said["one"])
    return model

two, three, strings, texts, scale = map(_model, SAID)

def worse(texts):
    return ["bad"] * len(texts)
"""


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    importable(monkeypatch, tmp_path, "verdict_models", MODELS)


def suggestions(kind):
    found = [Test("/A", text) for text in TEXTS]
    named = {"two": ("pos", "neg"), "scale": ("0.5", "-0.25")}
    classes = named.get(kind, ("pos", "neg", "neu"))
    for name, expectation in EXPECTATIONS.items():
        values = {"output": classes, "inputs": ("two", '["one", "three"]', "three"), "": ("",)}
        labelers = ("", "imputed") if name.endswith("output") else ("",)
        for text, value, guess in product(TEXTS, values[expectation.value], labelers):
            found.append(Test("/A", text, expectation=name, value=value, labeler=guess))
    return found


def opened(folder, kind, tests, waiting, *classes):
    state = folder / "state"
    state.mkdir()
    write_tree(TestTree.of_tests(tests), str(folder / "tree.csv"))
    model = f"verdict_models:{kind}"
    config = AdaptSuggestConfig(tree=str(folder / "tree.csv"), model=model, classes=classes)
    if waiting:
        desk = TestDesk(config, state, print)
        found = desk.target.score(waiting)
        desk.close()
        pairs = zip(waiting, found.outputs.tolist(), strict=True)
        shown = [replace(one, output=said or "") for one, said in pairs]
        scores = ["" if math.isnan(one) else repr(one) for one in found.failures.tolist()]
        tree = TestTree.of_tests(shown).with_column(f"{model} score", scores)
        write_tree(tree, str(state / "suggestions.csv"))
    return TestDesk(config, state, print)


def said_by(kind, text):
    said = SAID[kind][text]
    return max(said, key=said.get) if isinstance(said, dict) else str(said)


KINDS = [*((kind, False) for kind in SAID), ("three", True), slow("texts", True)]


@pytest.mark.parametrize(("kind", "is_in_tree"), KINDS)
def test_a_verdict_is_what_the_test_expects(tmp_path, kind, is_in_tree):
    tests = suggestions(kind)[:: 3 if is_in_tree else 1]
    names = sorted({one.value for one in tests} & {"pos", "neg", "neu", "0.5", "-0.25"})
    # Every class is declared: what a model may not have is for other tests.
    declared = [f"{name}={name}" for name in names]
    others = [Test("/B", "one", expectation="should output", value=name) for name in names]
    desk = opened(tmp_path, kind, *((tests, []) if is_in_tree else (others, tests)), *declared)
    judged = {}
    for at, one in enumerate(tests):
        label = ("pass", "fail")[(at + at // 2) % 2]
        after = desk.judge(one.id, label, "anna")["test"]
        judged[one.id] = (one, label)
        assert after["output"] == said_by(kind, one.input)
        # The page shows the test as it is then.
        assert (after["score"] > 0.5) == (label == "fail"), (one, label, after)
        # Another verdict on the same output, and back again.
        if at % 5 == 0:
            other = "fail" if label == "pass" else "pass"
            turned = desk.judge(one.id, other, "anna")["test"]
            assert (turned["score"] > 0.5) == (other == "fail"), (one, turned)
            desk.undo()
    shown = {one["id"]: one for one in desk.topic("")["tests"]}
    desk.close()
    stored = read_tree(str(tmp_path / "tree.csv"))
    for id_, (before, label) in judged.items():
        test, said = stored.test(id_), said_by(kind, before.input)
        assert (test.label, test.labeler, test.output) == (label, "anna", said)
        row = {name: getattr(test, name) for name in ("topic", "input", "label", "output")}
        row |= {"expectation": test.expectation, "value": test.value}
        assert failed(row, lambda text: SAID[kind][text]) == (label == "fail"), (before, test)
        if id_ in shown:
            assert (shown[id_]["score"] > 0.5) == (label == "fail")
        name = test.expectation or ("should output" if label == "pass" else "should not output")
        value = test.value or test.output
        if name == "should output":
            # A right answer is that which was judged; after a wrong one that which was known before.
            assert (value == said) == (label == "pass")
            assert label == "pass" or (before.value == value and not before.labeler)
        elif name == "should not output":
            assert (label, value) == ("fail", said)
        else:
            # It says nothing of the label, and agrees.
            assert (before.expectation, before.value) == (test.expectation, test.value)
            assert "same" not in name


BEGINNINGS = ("should output", "should not output", "should have")


@pytest.mark.parametrize("labels", [("pos", "neg"), ("pos", "neg", "neu")])
def test_training_data_gets_the_label_that_was_judged(tmp_path, labels):
    kind = "two" if len(labels) == 2 else "three"
    truth = {"one": "pos", "two": "pos", "three": "neg"}
    # Only what nobody can know before is right, or a guess.
    tests = [
        one
        for one in suggestions(kind)
        if one.expectation.startswith(BEGINNINGS) or not one.expectation
        if one.labeler or one.expectation != "should output" or one.value == truth[one.input]
    ]
    # Each in a text of its own, so that no test contradicts another.
    desk = opened(tmp_path, kind, [Test("/A", "one", "pos", "pass")], tests)
    for one in tests:
        label = "pass" if said_by(kind, one.input) == truth[one.input] else "fail"
        desk.judge(one.id, label, "anna")
    desk.close()
    tree, out = tmp_path / "tree.csv", tmp_path / "out"
    texts = [f"row {at}" for at in range(99)]
    rows = {"id": np.arange(99), "text": texts, "label": np.resize(labels, 99)}
    rows["text"][:3] = ["two", "one", "three"]
    # What the data says of the other text of a relation is not a verdict on this one.
    rows["label"][:3] = ["neg", "neg", "neg"]
    pd.DataFrame(rows).to_csv(tmp_path / "data.csv", index=False)
    found = {}
    for model in (f"verdict_models:{kind}", "verdict_models:worse"):
        kept = read_tree(str(tree))
        judged = [one for one in kept.rows(kept.is_test) if "same" not in one.expectation]
        names = sorted({one.value if one.expectation else one.output for one in judged})
        classes = ("--classes", ",".join(f"{name}={name}" for name in names))
        command = ["adapt", "run", str(tree), "--model", model, "--output", str(out), "--quiet"]
        assert run([*command, *classes]) == 0
        command = ["adapt", "export-training", str(tree), "--changelist", str(out), "--label"]
        more = ["label", "--data", str(tmp_path / "data.csv"), "--to", str(tmp_path / "more.csv")]
        assert run([*command, *more, "--quiet"]) == 0
        frame = pd.read_csv(tmp_path / "more.csv")
        for text, label in zip(frame["text"], frame["label"], strict=True):
            found.setdefault(text, set()).add(label)
    assert found == {text: {label} for text, label in truth.items()}


def test_an_output_that_is_none_is_not_judged(tmp_path):
    write_tree(TestTree.of_tests([Test("/A", "one", id="a")]), str(tmp_path / "tree.csv"))
    silent = "def silent(texts):\n    return [None] * len(texts)\n"
    (tmp_path / "verdict_models.py").write_text(silent)
    state = tmp_path / "state"
    state.mkdir()
    config = AdaptSuggestConfig(tree=str(tmp_path / "tree.csv"), model="verdict_models:silent")
    desk = TestDesk(config, state, print)
    said = "gives no output for this test; judge it off topic"
    for label in ("pass", "fail"):
        refuses(InputError, said, desk.judge, "a", label, "anna")
    assert desk.judge("a", "off_topic", "anna")["test"]["label"] == "off_topic"
    desk.close()
