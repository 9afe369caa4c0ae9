"""Tests that are judged in the browser: into the tree's file, a key at a time, as the person said."""

import math
from dataclasses import replace
from itertools import product
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import EXPECTATIONS
from slicebeam.pipelines.adaptive.suggestions.desk import TestDesk
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.adapt import AdaptSuggestConfig, ServeConfig
from slicebeam.pipelines.page import judging
from slicebeam.pipelines.page.answers import HANDLERS
from slicebeam.pipelines.page.served import ServedOutput
from tests.conftest import slow
from tests.oracles.adaptive_oracle import failed
from tests.refusals import refuses
from tests.running import importable

MODEL = "tests.sentiment_model:sentiment"
# As another program writes rows: quotes that are not needed, and a column of its own.
FILE = """,topic,input,output,label,labeler,description,author
0a,/Negation,"This is not good.",positive,fail,anna,"",x
0b,/Negation,This is not bad.,negative,fail,anna,,
0c,/Praise,This is great.,positive,pass,bo,,
"""


def tree_in(folder):
    path = folder / "tree.csv"
    path.write_text(FILE)
    return path


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def desk(tmp_path, state):
    found = opened(tree_in(tmp_path), state)
    yield found
    found.close()


def opened(path, state):
    return TestDesk(AdaptSuggestConfig(tree=str(path), model=MODEL), state, print)


def labels(path):
    tree = read_tree(str(path))
    return {one.id: one.label for one in tree.rows(tree.is_test)}


def test_suggestions_become_tests_and_other_rows_stay_as_they_were(desk, tmp_path):
    found = desk.suggest("/Negation", 12, ["templates"])
    scores = [one["score"] for one in found["suggestions"]]
    assert scores == sorted(scores, reverse=True)
    assert max(scores) > 0.5
    (yielded,) = found["yields"]
    failing = sum(score > 0.5 for score in scores)
    assert (yielded["proposals"], yielded["failing"]) == (len(scores), failing)
    assert yielded["per_hundred"] == pytest.approx(100 * failing / len(scores))
    first, second, third = (one["id"] for one in found["suggestions"][:3])
    desk.judge(first, "fail", "anna")
    desk.judge(second, "off_topic", "anna")
    desk.judge("0c", "fail", "anna")
    desk.remove([third])
    left = desk.topic("")["suggestions"]
    assert [one["id"] for one in left] == [one["id"] for one in found["suggestions"][3:]]
    desk.close()
    path, expected = tmp_path / "tree.csv", dict.fromkeys(("0a", "0b", "0c", first), "fail")
    assert labels(path) == {**expected, second: "off_topic"}
    kept = [line for line in path.read_text().splitlines() if line.startswith(("0a,", "0b,"))]
    # The new tests have columns of their own, which are empty elsewhere; needless quotes go.
    before = FILE.replace('"', "").splitlines()[1:3]
    assert [line.rstrip(",") for line in kept] == [line.rstrip(",") for line in before]
    added = read_tree(str(path)).test(first)
    assert added.labeler == "anna"
    assert added.topic.startswith("/Negation")
    assert added.other["origin"].startswith("templates: ")


def test_every_change_can_be_undone(desk, tmp_path):
    (one, *_) = desk.suggest("/Negation", 3, ["templates"])["suggestions"]
    desk.judge(one["id"], "pass", "anna")
    desk.edit("0c", {"input": "This is not great.", "topic": "/Negation"})
    shown = next(test for test in desk.topic("/Negation")["tests"] if test["id"] == "0c")
    # Passes no more: the label says that the output positive is right.
    assert (shown["input"], shown["score"]) == ("This is not great.", 0.0)
    desk.remove(["0a"])
    desk.undo()
    desk.undo()
    assert desk.undo()["suggestion"]["id"] == one["id"]
    assert one["id"] in {each["id"] for each in desk.topic("")["suggestions"]}
    refuses(InputError, "nothing to undo", desk.undo)
    desk.close()
    found = read_tree(str(tmp_path / "tree.csv"))
    assert labels(tmp_path / "tree.csv") == {"0a": "fail", "0b": "fail", "0c": "pass"}
    assert found.test("0c").input == "This is great."


def test_an_edited_suggestion_is_scored_again(desk):
    found = desk.suggest("/Negation", 10, ["templates"])["suggestions"]
    one = next(each for each in found if each["expectation"] and each["score"] > 0.5)
    wanted = {"positive": "A great day.", "negative": "A terrible day."}.get(one["value"], "A day.")
    after = desk.edit(one["id"], {"input": wanted})["test"]
    assert (after["score"], after["output"]) == (0.0, one["value"])
    refuses(InputError, "'Negation' is no topic", desk.edit, one["id"], {"topic": "Negation"})
    refuses(InputError, "no test 'zz' any more", desk.judge, "zz", "pass", "anna")


def test_what_was_not_yet_in_the_file_is_there_after_a_crash(tmp_path, state):
    path = tree_in(tmp_path)
    first = opened(path, state)
    found = first.suggest("/Negation", 6, ["templates"])["suggestions"]
    first.judge(found[0]["id"], "fail", "anna")
    first.judge("0b", "pass", "anna")
    # The process is gone: what it would have written a second later is not written.
    first._timer.cancel()
    assert labels(path) == {"0a": "fail", "0b": "fail", "0c": "pass"}
    with (state / "judged.jsonl").open("ab") as stream:
        stream.write(b'{"add": [], "rem')
    # Meanwhile another program has added a test, and removed one that was judged.
    tree = read_tree(str(path)).add([Test("/Praise", "Lovely.", id="0d")]).remove(["0b"])
    write_tree(tree, str(path))
    second = opened(path, state)
    assert labels(path) == {"0a": "fail", "0c": "pass", "0d": "", found[0]["id"]: "fail"}
    again = second.topic("")["suggestions"]
    assert [one["id"] for one in again] == [one["id"] for one in found[1:]]
    assert [one["score"] for one in again] == pytest.approx([one["score"] for one in found[1:]])
    assert (state / "judged.jsonl").stat().st_size == 0


def test_a_file_that_another_program_changes_keeps_both(desk, tmp_path):
    path = tmp_path / "tree.csv"
    desk.judge("0b", "pass", "anna")
    write_tree(read_tree(str(path)).add([Test("/Praise", "Lovely.", id="0d")]), str(path))
    desk.save()
    assert labels(path) == {"0a": "fail", "0b": "pass", "0c": "pass", "0d": ""}


def test_a_tree_that_cannot_be_written_loses_nothing(desk, tmp_path, state, monkeypatch):
    with monkeypatch.context() as patched:
        fault = Mock(side_effect=OSError(28, "No space left on device"))
        patched.setattr("slicebeam.pipelines.adaptive.suggestions.desk.write_tree", fault)
        desk.judge("0b", "pass", "anna")
        desk._save_later()
        assert "can't be written" in desk.topic("")["trouble"]
    assert labels(tmp_path / "tree.csv")["0b"] == "fail"
    desk.save()
    assert (labels(tmp_path / "tree.csv")["0b"], desk.topic("")["trouble"]) == ("pass", "")


def test_routes(tmp_path, state):
    config = ServeConfig(changelist="out", tree=str(tree_in(tmp_path)), tree_model=MODEL)

    def client_of(config):
        served = ServedOutput("", tmp_path, None, (), config, state)
        routes = [Mount("/api", routes=judging.routes(served))]
        return TestClient(Starlette(routes=routes, exception_handlers=HANDLERS))

    client = client_of(config)
    begun = client.get("/api/tests").json()
    assert [one["topic"] for one in begun["topics"]] == ["", "/Negation", "/Praise"]
    assert [one["tests"] for one in begun["topics"]] == [3, 2, 1]
    found = client.post("/api/tests/suggest", json={"topic": "", "number": 5}).json()
    assert len(found["suggestions"]) == 5
    judged = {"id": found["suggestions"][0]["id"], "label": "pass", "name": "<b>anna</b>"}
    assert client.post("/api/tests/judge", json=judged).json()["waiting"] == 4
    assert client.post("/api/tests/undo", json={}).json()["suggestion"]["id"] == judged["id"]
    for path, body, status in (
        ("judge", {"id": "0a", "label": "maybe"}, 422),
        ("judge", {"id": "nobody", "label": "pass"}, 400),
        ("suggest", {"topic": "", "number": 1_000}, 422),
        ("suggest", {"topic": "", "proposers": ["rm -rf"]}, 400),
        ("edit", {"id": "0a"}, 422),
        ("topic", {"topic": "no slash"}, 400),
    ):
        answer = client.post(f"/api/tests/{path}", json=body)
        assert (answer.status_code, bool(answer.json()["error"])) == (status, True), path
    client = client_of(ServeConfig(changelist="out"))
    assert client.get("/api/tests").json() == {"tree": None}
    assert client.post("/api/tests/topic", json={"topic": ""}).status_code == 404


def test_a_paid_model_is_refused(tmp_path, state):
    (tmp_path / "api.yaml").write_text("url: http://127.0.0.1:1/\n")
    config = AdaptSuggestConfig(tree=str(tree_in(tmp_path)), model=str(tmp_path / "api.yaml"))
    refuses(InputError, "its answers cost money", TestDesk, config, state, print)


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


def opened_with(folder, kind, tests, waiting, *classes):
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
    desk = opened_with(tmp_path, kind, *((tests, []) if is_in_tree else (others, tests)), *declared)
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
    desk = opened_with(tmp_path, kind, [Test("/A", "one", "pos", "pass")], tests)
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
        command = ["adapt", "export-training", str(tree), "--changelist", str(out)]
        more = ["--mix", str(tmp_path / "data.csv"), "--to", str(tmp_path / "more.csv")]
        assert run([*command, *more, "--quiet"]) == 0
        frame = pd.read_csv(tmp_path / "more.csv").dropna()
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
