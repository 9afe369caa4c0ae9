"""Tests that are judged in the browser: into the tree's file, a key at a time, whatever stops."""

from unittest.mock import Mock

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.suggestions.desk import TestDesk
from slicebeam.pipelines.adaptive.tree import Test
from slicebeam.pipelines.adaptive.tree_files import read_tree, write_tree
from slicebeam.pipelines.config.adapt_suggest import AdaptSuggestConfig
from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.serve import judging
from slicebeam.pipelines.serve.answers import HANDLERS
from slicebeam.pipelines.serve.served import ServedOutput
from tests.refusals import refuses

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
    kept = [line for line in path.read_text().splitlines() if line.startswith(("0a", "0b"))]
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
