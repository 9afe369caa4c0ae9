"""Tests that are judged in the browser: into the tree's file, a key at a time, as the person said."""

import hashlib
import math
import subprocess
import sys
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
from slicebeam.pipelines.adaptive.suggestions.review import TestReview
from slicebeam.pipelines.adaptive.tree import Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.adapt import AdaptSuggestConfig, ServeConfig
from slicebeam.pipelines.page import judging
from slicebeam.pipelines.page.answers import HANDLERS
from slicebeam.pipelines.page.served import ServedOutput
from tests.conftest import slow
from tests.oracles.adaptive_oracle import failed
from tests.pipelines.adaptive.completions_server import completions_server
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
def review(tmp_path):
    return opened(tree_in(tmp_path))


def opened(path, baseline=None, **more):
    config = AdaptSuggestConfig(tree=str(path), model=MODEL, **more)
    return TestReview(config, baseline, print)


def labels(path):
    tree = read_tree(str(path))
    return {one.id: one.label for one in tree.rows(tree.is_test)}


def suggested(review, *args, **more):
    review.suggest(*args, **more)
    return review.view("")["suggestions"]


def shown(review, id_):
    view = review.view("")
    return next(one for one in (*view["tests"], *view["suggestions"]) if one["id"] == id_)


def test_suggestions_become_tests_and_other_rows_stay_as_they_were(review, tmp_path):
    (yielded,) = review.suggest("/Negation", 12, ["templates"])["yields"]
    found = review.view("")["suggestions"]
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert max(scores) > 0.5
    failing = sum(score > 0.5 for score in scores)
    assert (yielded["proposals"], yielded["failing"]) == (len(scores), failing)
    assert yielded["per_hundred"] == pytest.approx(100 * failing / len(scores))
    first, second, third = (one["id"] for one in found[:3])
    review.judge(first, "fail", "anna")
    review.judge(second, "off_topic", "anna")
    review.judge("0c", "fail", "anna")
    review.remove([third])
    left = review.view("")["suggestions"]
    assert [one["id"] for one in left] == [one["id"] for one in found[3:]]
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


def test_what_was_rejected_is_not_proposed_again(tmp_path):
    texts = ("Good day.", "No bad day.", "Great.")
    other = [Test("/Negation", text, "positive", "pass") for text in texts]
    write_tree(TestTree.of_tests(other), str(tmp_path / "other.csv"))
    review = opened(tree_in(tmp_path), other_tree=str(tmp_path / "other.csv"))
    first = [one["id"] for one in suggested(review, "/Negation", 9, ["tree"])]
    assert len(first) == 3
    review.remove(first[:1])
    again = [one["id"] for one in suggested(review, "/Negation", 9, ["tree"])]
    assert sorted(again) == sorted(first[1:])


def test_every_change_can_be_undone(review, tmp_path):
    (one, *_) = suggested(review, "/Negation", 3, ["templates"])
    review.judge(one["id"], "pass", "anna")
    review.edit("0c", {"input": "This is not great.", "topic": "/Negation"}, "anna")
    # Passes no more: the label says that the output positive is right.
    edited = shown(review, "0c")
    assert (edited["input"], edited["score"], edited["topic"]) == (
        "This is not great.",
        0.0,
        "/Negation",
    )
    review.remove(["0a"])
    for _ in range(3):
        review.undo()
    assert one["id"] in {each["id"] for each in review.view("")["suggestions"]}
    review.undo()
    refuses(InputError, "nothing to undo", review.undo)
    assert labels(tmp_path / "tree.csv") == {"0a": "fail", "0b": "fail", "0c": "pass"}
    assert read_tree(str(tmp_path / "tree.csv")).test("0c").input == "This is great."


def test_an_edited_suggestion_is_scored_again(review, tmp_path):
    found = suggested(review, "/Negation", 10, ["templates"])
    one = next(each for each in found if each["expectation"] and each["score"] > 0.5)
    wanted = {"positive": "A great day.", "negative": "A terrible day."}.get(one["value"], "A day.")
    review.edit(one["id"], {"input": wanted}, "anna")
    after = shown(review, one["id"])
    assert (after["score"], after["output"]) == (0.0, one["value"])
    # Another program reads it as it was edited.
    kept = read_tree(str(tmp_path / "tree.suggestions.csv")).test(one["id"])
    assert kept.input == wanted
    refuses(InputError, "not a valid topic", review.edit, one["id"], {"topic": "Negation"}, "anna")
    refuses(InputError, "no test 'zz' any more", review.judge, "zz", "pass", "anna")


def test_what_a_person_expects_is_the_label(review, tmp_path):
    review.edit("0c", {"expectation": "should output", "value": "negative"}, "anna")
    test = read_tree(str(tmp_path / "tree.csv")).test("0c")
    assert (test.label, test.labeler, test.output) == ("fail", "anna", "positive")
    review.edit("0c", {"value": "positive"}, "bo")
    test = read_tree(str(tmp_path / "tree.csv")).test("0c")
    assert (test.label, test.labeler, shown(review, "0c")["score"]) == ("pass", "bo", 0.0)
    wrong = {"expectation": "should be nice"}
    refuses(InputError, "should be nice", review.edit, "0c", wrong, "anna")
    assert read_tree(str(tmp_path / "tree.csv")).test("0c").expectation == "should output"


def test_a_test_and_a_topic_by_hand(review, tmp_path):
    assert review.add_topic("/Praise/Very good", "anna") == "/Praise/Very%20good"
    refuses(
        InputError, "there is a topic /Praise/Very good", review.add_topic, "/Praise/Very good", ""
    )
    texts = {"input": "Not great.", "expectation": "should output", "value": "negative"}
    review.add("/Praise/Very good", texts, "anna")
    review.add("/Praise/Very good", {"input": "No good."}, "anna")
    view = review.view("/Praise/Very good")
    topics = {one["topic"]: (one["failing"], one["tests"]) for one in view["topics"]}
    # 0a and 0b fail, and the test that was added.
    assert topics == {
        "": (3, 4),
        "/Negation": (2, 2),
        "/Praise": (1, 2),
        "/Praise/Very%20good": (1, 1),
    }
    (waiting,) = view["suggestions"]
    assert (waiting["input"], waiting["output"], waiting["score"]) == ("No good.", "positive", None)
    review.judge(waiting["id"], "fail", "anna")
    added = read_tree(str(tmp_path / "tree.csv")).test(waiting["id"])
    assert (added.topic, added.label) == ("/Praise/Very%20good", "fail")


def test_a_guess_counts_only_when_it_is_judged(tmp_path):
    path = tree_in(tmp_path)
    guess = Test(
        "/Negation",
        "So good.",
        expectation="should output",
        value="negative",
        labeler="imputed",
        id="g",
    )
    write_tree(read_tree(str(path)).add([guess]), str(path))
    review = opened(path)
    assert review.view("")["topics"][0]["failing"] == 2
    assert (shown(review, "g")["is_guess"], shown(review, "g")["score"]) == (True, None)
    review.judge("g", "fail", "anna")
    assert (shown(review, "g")["is_guess"], review.view("")["topics"][0]["failing"]) == (False, 3)


def test_two_models_side_by_side(tmp_path, monkeypatch):
    importable(
        monkeypatch,
        tmp_path,
        "old_model",
        "def old(texts):\n    return ['negative'] * len(texts)\n",
    )
    path = tree_in(tmp_path)
    guess = {"expectation": "should output", "value": "positive", "labeler": "imputed"}
    write_tree(read_tree(str(path)).add([Test("/Praise", "Fine.", id="g", **guess)]), str(path))
    review = opened(path, "old_model:old")
    assert shown(review, "g")["before"] == {"output": "negative", "score": 1.0}
    (one, *_) = suggested(review, "/Negation", 3, ["templates"])
    assert one["before"]["output"] == "negative"
    assert one["before"]["score"] == (0.0 if one["value"] == "negative" else 1.0)
    # The label of 0c says that positive is right.
    assert shown(review, "0c")["before"] == {"output": "negative", "score": 1.0}


def test_suggestions_of_the_command_are_opened(tmp_path):
    path = tree_in(tmp_path)
    command = ["adapt", "suggest", str(path), "--model", MODEL, "-k", "5", "--quiet"]
    assert run(command) == 0
    kept = read_tree(str(tmp_path / "tree.suggestions.csv"))
    found = opened(path).view("")["suggestions"]
    wanted = [one.id for one in kept.rows(kept.is_test)]
    assert [one["id"] for one in found] == wanted
    scores = kept.column(f"{MODEL} score")[kept.is_test]
    assert [one["score"] for one in found] == [float(one) for one in scores]
    # What was copied into the tree since does not wait.
    write_tree(read_tree(str(path)).add([kept.test(wanted[0])]), str(path))
    assert [one["id"] for one in opened(path).view("")["suggestions"]] == wanted[1:]


def test_a_file_that_another_program_changes_is_not_overwritten(review, tmp_path):
    path = tmp_path / "tree.csv"
    review.judge("0b", "pass", "anna")
    write_tree(read_tree(str(path)).add([Test("/Praise", "Lovely.", id="0d")]), str(path))
    before = path.read_bytes()
    refuses(InputError, "was changed by another program", review.judge, "0c", "fail", "anna")
    refuses(InputError, "was changed by another program", review.undo)
    assert path.read_bytes() == before
    assert shown(review, "0c")["label"] == "pass"
    review.read()
    review.judge("0c", "fail", "anna")
    assert labels(path) == {"0a": "fail", "0b": "pass", "0c": "fail", "0d": ""}


def test_a_tree_that_cannot_be_written_stays_as_it_was(review, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        fault = Mock(side_effect=OSError(28, "No space left on device"))
        patched.setattr("slicebeam.pipelines.adaptive.suggestions.review.write_tree", fault)
        with pytest.raises(OSError, match="No space left"):
            review.judge("0b", "pass", "anna")
    assert (labels(tmp_path / "tree.csv")["0b"], shown(review, "0b")["label"]) == ("fail", "fail")
    review.judge("0b", "pass", "anna")
    assert labels(tmp_path / "tree.csv")["0b"] == "pass"


KILLED = """
import sys
from slicebeam.pipelines.adaptive.suggestions.review import TestReview
from slicebeam.pipelines.config.adapt import AdaptSuggestConfig

review = TestReview(AdaptSuggestConfig(tree=sys.argv[1], model=sys.argv[2]), None, print)
review.suggest("/Negation", 60, ["templates"])
for one in review.view("")["suggestions"]:
    review.judge(one["id"], "fail", "anna")
    print(one["id"], flush=True)
"""


@pytest.mark.parametrize("verdicts", [1, 2, 5, 11])
def test_a_kill_loses_no_verdict(tmp_path, verdicts):
    path = tree_in(tmp_path)
    command = [sys.executable, "-c", KILLED, str(path), MODEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        confirmed = [process.stdout.readline().strip() for _ in range(verdicts)]
        process.kill()
    found = labels(path)
    assert all(found[id_] == "fail" for id_ in confirmed)
    assert not {one["id"] for one in opened(path).view("")["suggestions"]} & set(confirmed)


def client_of(tmp_path, **options):
    served = ServedOutput(
        "", tmp_path, None, (), ServeConfig(changelist="out", **options), tmp_path
    )
    routes = [Mount("/api", routes=judging.routes(served))]
    return TestClient(Starlette(routes=routes, exception_handlers=HANDLERS))


def test_routes(tmp_path):
    client = client_of(tmp_path, tree=str(tree_in(tmp_path)), tree_model=MODEL)
    begun = client.get("/api/tests").json()
    assert [one["topic"] for one in begun["view"]["topics"]] == ["", "/Negation", "/Praise"]
    assert [one["tests"] for one in begun["view"]["topics"]] == [3, 2, 1]
    assert "endpoint" not in begun["proposers"]

    def ask(path, **body):
        return client.post(f"/api/tests/{path}", json=body).json()

    found = ask("suggest", number=5)["view"]["suggestions"]
    assert len(found) == 5
    judged = {"id": found[0]["id"], "label": "pass", "name": "<b>anna</b>"}
    assert len(ask("judge", **judged)["view"]["suggestions"]) == 4
    assert ask("undo")["view"]["suggestions"][0]["id"] == judged["id"]
    assert ask("remove", ids=[judged["id"]])["view"]["undo"]
    assert ask("edit", id="0c", topic="/Negation", focus="/Negation")["view"]["total"] == 3
    assert ask("add-topic", topic="/New one")["view"]["topic"] == "/New%20one"
    texts = {"input": "Great", "expectation": "should output", "value": "negative"}
    added = ask("add", topic="/New one", focus="/New one", **texts)["view"]
    assert (added["total"], added["tests"][0]["score"]) == (1, 1.0)
    assert ask("topic", focus="/Praise")["view"]["total"] == 0
    for path, body, status in (
        ("judge", {"id": "0a", "label": "maybe"}, 422),
        ("judge", {"id": "nobody", "label": "pass"}, 400),
        ("suggest", {"number": 1_000}, 422),
        ("suggest", {"proposers": ["rm -rf"]}, 400),
        ("edit", {"id": "0a"}, 422),
        ("add", {"input": ""}, 422),
        ("add-topic", {"topic": "/Praise"}, 400),
        ("topic", {"focus": "no slash"}, 400),
    ):
        answer = client.post(f"/api/tests/{path}", json=body)
        assert (answer.status_code, bool(answer.json()["error"])) == (status, True), path
    client = client_of(tmp_path)
    assert client.get("/api/tests").json() == {"tree": None}
    assert client.post("/api/tests/topic", json={}).status_code == 404


def labelled_completion(key):
    """Go on with a list of texts and outputs, each time by another one."""
    return (
        f'The place {hashlib.sha256(key.encode()).hexdigest()[:12]} was bad." "positive"\nAnd more'
    )


def test_completions_are_paid_once_and_never_beyond_the_budget(tmp_path):
    path = tree_in(tmp_path)
    with completions_server() as server:
        server.text = labelled_completion
        options = {"tree": str(path), "tree_model": MODEL, "endpoint": server.url, "budget": "6"}
        wanted = {"focus": "/Negation", "number": 4, "proposers": ["endpoint"]}
        client = client_of(tmp_path, **options)
        assert "endpoint" in client.get("/api/tests").json()["proposers"]
        answer = client.post("/api/tests/suggest", json=wanted).json()
        assert "view" in answer, answer
        first = answer["view"]["suggestions"]
        assert len(first) == len(server.charged) == 4
        assert all(one["is_guess"] and one["origin"] == "endpoint: completions" for one in first)
        # Another server repeats the round: nothing is paid.
        client = client_of(tmp_path, **options)
        again = client.post("/api/tests/suggest", json=wanted).json()["view"]["suggestions"]
        assert [one["id"] for one in again] == [one["id"] for one in first]
        assert sum(server.charged.values()) == 4
        for one in first:
            body = {"id": one["id"], "label": "fail"}
            assert client.post("/api/tests/judge", json=body).status_code == 200
        notes = client.post("/api/tests/suggest", json=wanted).json()["round"]["notes"]
        assert any("--budget buys 6 calls" in line for line in notes)
        assert sum(server.charged.values()) == 6
        for one in client.post("/api/tests/topic", json={}).json()["view"]["suggestions"]:
            client.post("/api/tests/judge", json={"id": one["id"], "label": "fail"})
        spent = client.post("/api/tests/suggest", json=wanted)
        assert (spent.status_code, sum(server.charged.values())) == (400, 6)
        assert "--budget buys 6 calls, and 6 are paid" in spent.json()["error"]


def test_topics_of_a_language_model_are_added_by_hand(tmp_path):
    with completions_server() as server:
        server.text = lambda key: f'Not {hashlib.sha256(key.encode()).hexdigest()[:6]}"\nmore'
        path = tree_in(tmp_path)
        client = client_of(tmp_path, tree=str(path), tree_model=MODEL, endpoint=server.url)
        wanted = {"number": 3, "topics": True, "proposers": ["endpoint"]}
        found = client.post("/api/tests/suggest", json=wanted).json()["round"]["new_topics"]
        assert [one["proposer"] for one in found] == ["endpoint"] * 3
        assert labels(path) == {"0a": "fail", "0b": "fail", "0c": "pass"}
        body = {"topic": found[0]["shown"]}
        view = client.post("/api/tests/add-topic", json=body).json()["view"]
        assert view["topic"] == found[0]["topic"]
        assert found[0]["topic"] in read_tree(str(path)).topics()


def test_a_paid_model_is_refused(tmp_path):
    (tmp_path / "api.yaml").write_text("url: http://127.0.0.1:1/\n")
    config = AdaptSuggestConfig(tree=str(tree_in(tmp_path)), model=str(tmp_path / "api.yaml"))
    refuses(InputError, "its answers cost money", TestReview, config, None, print)


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
    write_tree(TestTree.of_tests(tests), str(folder / "tree.csv"))
    model = f"verdict_models:{kind}"
    config = AdaptSuggestConfig(tree=str(folder / "tree.csv"), model=model, classes=classes)
    if waiting:
        found = TestReview(config, None, print).target.score(waiting)
        pairs = zip(waiting, found.outputs.tolist(), strict=True)
        shown = [replace(one, output=said or "") for one, said in pairs]
        scores = ["" if math.isnan(one) else repr(one) for one in found.failures.tolist()]
        tree = TestTree.of_tests(shown).with_column(f"{model} score", scores)
        write_tree(tree, config.suggestions)
    return TestReview(config, None, print)


def said_by(kind, text):
    said = SAID[kind][text]
    return max(said, key=said.get) if isinstance(said, dict) else str(said)


def judged_now(review, id_):
    """Return a test with the score that it has in the tree."""
    (test,) = review._with_outputs([review._state.tree.test(id_)])
    return {"output": test.output, "score": review._score(test)}


KINDS = [*((kind, False) for kind in SAID), ("three", True), slow("texts", True)]


@pytest.mark.parametrize(("kind", "is_in_tree"), KINDS)
def test_a_verdict_is_what_the_test_expects(tmp_path, kind, is_in_tree):
    tests = suggestions(kind)[:: 3 if is_in_tree else 1]
    names = sorted({one.value for one in tests} & {"pos", "neg", "neu", "0.5", "-0.25"})
    # Every class is declared: what a model may not have is for other tests.
    declared = [f"{name}={name}" for name in names]
    others = [Test("/B", "one", expectation="should output", value=name) for name in names]
    review = opened_with(
        tmp_path, kind, *((tests, []) if is_in_tree else (others, tests)), *declared
    )
    judged = {}
    for at, one in enumerate(tests):
        label = ("pass", "fail")[(at + at // 2) % 2]
        review.judge(one.id, label, "anna")
        after = judged_now(review, one.id)
        judged[one.id] = (one, label)
        assert after["output"] == said_by(kind, one.input)
        # The page shows the test as it is then.
        assert (after["score"] > 0.5) == (label == "fail"), (one, label, after)
        # Another verdict on the same output, and back again.
        if at % 5 == 0:
            other = "fail" if label == "pass" else "pass"
            review.judge(one.id, other, "anna")
            turned = judged_now(review, one.id)
            assert (turned["score"] > 0.5) == (other == "fail"), (one, turned)
            review.undo()
    shown = {one["id"]: one for one in review.view("")["tests"]}
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
    review = opened_with(tmp_path, kind, [Test("/A", "one", "pos", "pass")], tests)
    for one in tests:
        label = "pass" if said_by(kind, one.input) == truth[one.input] else "fail"
        review.judge(one.id, label, "anna")
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
    config = AdaptSuggestConfig(tree=str(tmp_path / "tree.csv"), model="verdict_models:silent")
    review = TestReview(config, None, print)
    said = "gives no output for this test; judge it off topic"
    for label in ("pass", "fail"):
        refuses(InputError, said, review.judge, "a", label, "anna")
    review.judge("a", "off_topic", "anna")
    assert labels(tmp_path / "tree.csv") == {"a": "off_topic"}
