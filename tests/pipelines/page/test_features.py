"""What the page of a served output asks for, and labels and slices that are made in it: no key is lost."""

import json
import pickle
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.attribution.session import estimate
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.adapt import ServeConfig
from slicebeam.pipelines.page import editing, labelling, protection
from slicebeam.pipelines.page.answers import HANDLERS
from slicebeam.pipelines.page.labelling import Labelling, _Label, _OfSession
from slicebeam.pipelines.page.protection import HEADER
from slicebeam.pipelines.page.served import OpenedData, ServedOutput, state_folder
from tests import attribute_runs as runs
from tests.conftest import ADULT
from tests.discovered import embedded, topics
from tests.oracles.predicates import mask
from tests.pipelines.page.asking import asks, document, served_page
from tests.pipelines.page.results import discovery_result, search, search_result
from tests.refusals import refuses


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    return search_result(tmp_path_factory.mktemp("searched"), baseline=True)


@pytest.fixture
def result(searched, tmp_path):
    return Path(shutil.copytree(searched, tmp_path / "out"))


def test_examples_are_those_of_the_slice_with_old_beside_new(result):
    page = served_page(result)
    ask, rows = asks(page), pq.read_table(ADULT).to_pylist()
    one = max(document(result)["slices"], key=lambda each: each["size"]["n"])
    seen, first = [], ask("examples", slice_id=one["slice_id"])
    assert first["is_same"] is True
    assert first["held"] == first["n"] == first["total"] == one["size"]["n"]
    for role, number in first["roles"].items():
        found = ask("examples", slice_id=one["slice_id"], role=role)
        assert found["total"] == number
        for each in found["examples"]:
            row = rows[each["row"]]
            said = {cell["is"]: cell["text"] for cell in each["outcome"]}
            columns = {"label": "income", "old": "prediction_old", "new": "prediction"}
            assert said == {model: str(row[column]) for model, column in columns.items()}
            was, now = (said[model] == said["label"] for model in ("old", "new"))
            expected = [["both wrong", "fixed"], ["broken", "both right"]]
            assert role == each["role"] == expected[was][now]
            for part in one["definition"]["predicate"]["all"]:
                if part["op"] == "==":
                    assert row[part["field"]] == part["value"]
    # The pages hold every example once, the broken ones first.
    for offset in range(0, first["total"], first["per_page"]):
        seen += ask("examples", slice_id=one["slice_id"], offset=offset)["examples"]
        if offset > 200:
            break
    assert len({each["row"] for each in seen}) == len(seen)
    order = list(dict.fromkeys(each["role"] for each in seen))
    assert order == sorted(order, key=["broken", "both wrong", "fixed", "both right"].index)
    cell = {"slice_id": one["slice_id"], "row": seen[0]["row"], "column": "income"}
    assert ask("examples/cell", **cell)["text"] == str(rows[seen[0]["row"]]["income"])
    for wrong in ({"column": "nonsense"}, {"row": 10**6}):
        assert asks(page, 404)("examples/cell", **{**cell, **wrong})


def test_a_slice_of_the_table_is_shown_and_added(result):
    page = served_page(result)
    table = pq.read_table(result / "slices.parquet").to_pylist()
    known = {one["slice_id"] for one in document(result)["slices"]}
    other = next(one for one in table if one["slice_id"] not in known and one["n"] > 100)
    found = asks(page)("examples", slice_id=other["slice_id"])
    assert found["held"] == found["n"] == other["n"]
    for odd in ("0" * 16, "'; DROP TABLE slices; --"):
        assert "neither in the document" in asks(page, 404)("examples", slice_id=odd)["error"]
    added = asks(page)("edits", op="add", revision=0, slice_id=other["slice_id"])
    assert added["slices"] == [other["slice_id"]]
    new = document(result, added["file"])["slices"][-1]
    assert (new["name"], new["size"]["n"]) == (other["slice"], other["n"])
    again = asks(page, 400)("edits", op="add", revision=1, slice_id=other["slice_id"])
    assert "has the same definition" in again["error"]


def test_other_data_shows_no_example(result, tmp_path):
    rows, other = pq.read_table(ADULT), tmp_path / "other.parquet"
    ages = rows["age"].take([*range(1, rows.num_rows), 0])
    pq.write_table(rows.set_column(rows.column_names.index("age"), "age", ages), other)
    page, slice_id = served_page(result, other), document(result)["slices"][0]["slice_id"]
    said = asks(page, 409)("examples", slice_id=slice_id)["error"]
    assert "is not what the document is about" in said
    # The fingerprint is kept for these very files only.
    pq.write_table(rows, other)
    assert asks(page)("examples", slice_id=slice_id)["is_same"] is True


@pytest.mark.slow
def test_edits_write_the_revisions_of_the_commands(result):
    page = served_page(result)
    ask, slice_id = asks(page), document(result)["slices"][0]["slice_id"]
    hostile = "<img src=x onerror=alert(1)>"
    done = ask("edits", op="rename", revision=0, slice_id=slice_id, name=hostile)
    assert done["file"] == "changelist.r1.json"
    refused = asks(page, 409)("edits", op="note", revision=0, slice_id=slice_id, note="late")
    assert "revision 1 has come" in refused["error"]
    assert ask("examples", slice_id=slice_id)["name"] == hostile
    ask("edits", op="note", revision=1, slice_id=slice_id, note="look at this")
    ask("edits", op="describe", revision=2, slice_id=slice_id, text="wives")
    ask("edits", op="remove", revision=3, slice_id=slice_id)
    listed = page.get("/api/edits").json()["edits"]
    # What was removed still has its name.
    assert listed[0]["slice"] == listed[-1]["what"] == repr(hostile)
    assert [one["op"] for one in listed] == ["remove_slice", "describe", "annotate", "rename"]
    for revision in range(4, 8):
        ask("edits", op="undo", revision=revision)
    assert "nothing to undo" in asks(page, 400)("edits", op="undo", revision=8)["error"]
    first, last = document(result), document(result, "changelist.r8.json")
    assert (last["slices"], last["coverage"]) == (first["slices"], first["coverage"])
    rename = ["edit", "rename", "--changelist", str(result), "--slice", slice_id]
    assert run([*rename, "--name", "a", "--quiet"]) == 0
    assert (result / "changelist.r9.json").exists()


def wait_for_end(page):
    end = time.monotonic() + 60
    while (status := page.get("/api/own").json())["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    return status


def bring(page, name, content):
    kind = {"content-type": "application/octet-stream"}
    return page.post("/api/upload/own", params={"name": name}, content=content, headers=kind)


def test_a_file_is_kept_under_a_name_of_our_own(result, monkeypatch):
    page, state = served_page(result), state_folder(result)
    for name in ("../../evil.csv", "/etc/passwd.csv", "a\x00b.csv", "<img src=x onerror=x>.csv"):
        answer = bring(page, name, b"a,b\n1,2\n")
        assert answer.status_code == 200, answer.text
        assert [one.name for one in (state / "own").iterdir()] == ["data.csv"]
        assert "\x00" not in answer.json()["file"]
    assert bring(page, "x.exe", b"MZ").status_code == 415
    assert bring(page, "x.csv", b"").status_code == 400
    monkeypatch.setattr(protection, "MOST_UPLOADED", 1000)
    assert bring(page, "x.csv", b"x" * 2000).status_code == 413
    assert list((state / "own").iterdir()) == []
    assert page.get("/api/own").json()["brought"] is None
    assert asks(page, 400)("own/start")["error"] == "choose a file first"
    # Only files of the command line can be named.
    assert asks(page, 404)("own/start", file=0)
    assert asks(page, 422)("own/start", file="/etc/passwd")


@pytest.mark.slow
def test_own_data_is_checked_beside_the_document(result, tmp_path):
    half = tmp_path / "half.parquet"
    pq.write_table(pq.read_table(ADULT).slice(0, 9_000), half)
    page = served_page(result, half)
    assert page.get("/api/own").json() == {"state": "none", "files": [str(half)], "brought": None}
    assert bring(page, "mine.parquet", half.read_bytes()).status_code == 200
    brought = asks(page)("own/start")
    assert (brought["state"], brought["file"]) == ("running", "mine.parquet")
    assert "a check runs" in asks(page, 409)("own/start", file=0)["error"]
    assert "a check runs" in bring(page, "b.csv", b"1").json()["error"]
    found = wait_for_end(page)
    assert (found["state"], found["n"]) == ("done", 9_000), found
    asks(page)("own/start", file=0)
    assert wait_for_end(page)["slices"] == found["slices"]
    output, uri = tmp_path / "checked", str(result / "changelist.json")
    command = ["check", "--changelist", uri, "--since", uri, "--data", str(half), "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    for one, other in zip(found["slices"], document(output)["since"]["slices"], strict=True):
        assert (one["slice_id"], one["now"]["n"]) == (other["slice_id"], other["now"]["n"])
        assert one["now"]["delta"] == other["now"]["delta"]
        assert one.get("value_change") == other.get("value_change")
    assert bring(page, "b.csv", b"a,b\n1,2\n").status_code == 200
    asks(page)("own/start")
    failed = wait_for_end(page)
    assert failed["state"] == "failed"
    assert "income" in failed["error"]


def processes_of(result):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return [one for one in found if str(result) in one and " check " in one]


@pytest.mark.slow
def test_a_check_is_cancelled_and_leaves_no_process(result, tmp_path):
    page = served_page(result, ADULT)
    asks(page)("own/start", file=0)
    assert processes_of(result)
    assert asks(page)("own/cancel")["state"] == "cancelled"
    assert processes_of(result) == []
    asks(page)("own/start", file=0)
    assert wait_for_end(page)["state"] == "done"


@pytest.mark.slow
def test_examples_of_a_discovery_are_those_that_were_tested(tmp_path):
    discovery_result(tmp_path)
    data, output = f"--data={tmp_path}/reviews.parquet", tmp_path / "shaped"
    command = ["discover", data, "--text=text", f"--output={output}", "--quiet"]
    command += ["--label=label", "--example-id=id", "--prediction=new", "--baseline-prediction=old"]
    assert run([*command, "--components=3", "--loss-weight=1", "--discovery-share=0.4"]) == 0
    ask = asks(served_page(output))
    assert document(output)["discovery"]["discovery_share"] == 0.4
    for one in document(output)["slices"]:
        found = ask("examples", slice_id=one["slice_id"])
        assert found["held"] == found["n"] == one["size"]["n"] > 0
        assert found["is_same"] is None
        assert found["examples"][0]["fields"][0]["name"] == "text"


_HANDLER = """
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

class Old(ModelHandler):
    def load_model(self):
        return 40

    def run_inference(self, batch, model, inference_args=None):
        for row in batch:
            yield PredictionResult(row, int(int(row["age"]) > model))

def old():
    return Old()
"""


@pytest.mark.slow
def test_both_models_and_the_slices_of_an_input(tmp_path, monkeypatch):
    rows = pq.read_table(ADULT).to_pandas()
    read = ["age", "education-num", "hours-per-week"]
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(rows[read], rows["income"])
    path = tmp_path / "new.pickle"
    path.write_bytes(pickle.dumps(model))
    (tmp_path / "own_old_model.py").write_text(_HANDLER)
    monkeypatch.syspath_prepend(tmp_path)
    output = tmp_path / "out"
    command = ["search", "--data", str(ADULT), "--label", "income", "--prediction", "prediction"]
    command += ["--exclude-features", "row_id,fnlwgt,score,score_old,prediction_old", "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    page = served_page(output, model=str(path), baseline_model="own_old_model:old")
    ask = asks(page)
    example = ask("playground/example", row=17)
    values = {one["name"]: one["value"] for one in example["fields"]}
    assert values["age"] == str(rows["age"][17])
    assert [one["is"] for one in example["models"]] == ["old", "new"]
    for age in (rows["age"][17], 77, 19):
        values["age"] = str(age)
        found = ask("playground/answer", values=values)
        old, new = found["models"]
        given = rows.loc[[17], read].assign(age=age)
        assert old["predicted"] == str(int(age > 40))
        assert new["predicted"] == str(model.predict(given)[0])
        assert dict(new["scores"])["1"] == pytest.approx(model.predict_proba(given)[0, 1])
        changed, slices = rows.loc[17].to_dict() | {"age": age}, document(output)["slices"]
        held = [mask(pd.DataFrame([changed]), one["definition"]["predicate"]) for one in slices]
        expected = [one["slice_id"] for one, is_in in zip(slices, held, strict=True) if is_in[0]]
        assert (found["slices"], found["unknown"]) == (expected, 0)
    # What a model makes of a missing value is for it to say.
    (old, _) = ask("playground/answer", values={**values, "age": ""})["models"]
    assert "NaN to integer" in old["error"]
    for wrong in ({"age": "old"}, {"nonsense": "1"}, {"age": 3}):
        assert asks(page, 422)("playground/answer", values={**values, **wrong})
    assert asks(page, 404)("playground/example", row=10**7)
    # Nothing that a request names is ever loaded.
    assert asks(page, 422)("playground/answer", values=values, model="os:abort")
    sys.modules.pop("own_old_model")
    # A model of the playground has no part in what is checked.
    assert ask("examples", slice_id=slices[0]["slice_id"])["is_same"] is True


@pytest.mark.slow
def test_a_text_falls_into_the_groups_of_a_discovery(tmp_path):
    output = discovery_result(tmp_path)
    ask = asks(served_page(output))
    names = {one["slice_id"]: one["name"] for one in document(output)["slices"]}
    texts = ("soup bread waiter menu kitchen taste", "actor scene plot camera director ending")
    found = [ask("playground/answer", values={"text": text}) for text in texts]
    assert all(one["unknown"] == 0 for one in found)
    groups = [{names[slice_id] for slice_id in one["slices"]} for one in found]
    assert groups[0]
    assert not groups[0] & groups[1]


ANNA = "anna"


def kept(folder):
    lines = runs.labels_file(folder).read_text().splitlines()
    labels = {record["item"]: record["label"] for record in map(json.loads, lines)}
    return {item: label for item, label in labels.items() if label}


class Desk(Labelling):
    """The one session, held here, in place of routes and an opening."""

    def __init__(self, session, budget):
        super().__init__(None, _session=session)
        session.sample(budget)
        self.of = {"desk": session.folder.name}

    def shown(self):
        return self._shown(self._session)

    def press(self, item, label):
        return self.label(_Label(**self.of, item=item, label=label, name=ANNA))

    def do(self, what):
        return getattr(self, what)(_OfSession(**self.of))


def test_labels_are_those_of_the_command(tmp_path):
    people = runs.population()
    with runs.opened(tmp_path, people) as session:
        desk = Desk(session, 60)
        drawn = {str(item) for item in session.open_items}
        given, now = [], desk.shown()
        while now["item"] is not None:
            given.append(now["item"]["id"])
            now = desk.press(given[-1], ("no", "yes")[people.truth_of(int(given[-1]))])
        assert sorted(given) == sorted(drawn)
        standing = now["standing"]
        # The last label of a round is followed by a look, as planned.
        assert (standing["looked"], standing["labelled"]) == (1, len(drawn))
        assert standing["decision"] is not None
        assert standing["precision"]["lo"] <= people.precision <= standing["precision"]["hi"]
    assert len(kept(tmp_path)) == len(drawn)
    # The command reads what the browser wrote.
    with runs.opened(tmp_path, people, begins=False) as session:
        finished = estimate(session)
    assert runs.attribution_in(Path(str(finished.document)))["rounds"][0]["labeler"] == ANNA


def test_undo_takes_labels_back_one_by_one_and_shows_their_items(tmp_path):
    with runs.opened(tmp_path, runs.population(textual=True)) as session:
        desk, items = Desk(session, 10), []
        for label in ("yes", "no", "yes"):
            items.append(desk.shown()["item"]["id"])
            desk.press(items[-1], label)
        for left in (2, 1, 0):
            now = desk.do("undo")
            assert now["item"]["id"] == items[left]
            assert set(kept(tmp_path)) == set(items[:left])
        assert not now["undo"]
        refuses(InputError, "no label to undo", desk.do, "undo")
        refuses(InputError, "was not drawn", desk.press, "a stranger's", "yes")


def test_the_decision_comes_with_a_look_only(tmp_path):
    people = runs.population()
    with runs.opened(tmp_path, people, looks=2) as session:
        desk = Desk(session, 120)
        now = desk.shown()
        assert now["standing"]["decision"] is None
        assert "precision" not in now["standing"]
        for _ in range(40):
            item = now["item"]["id"]
            now = desk.press(item, ("no", "yes")[people.truth_of(int(item))])
        running = now["standing"]
        # Numbers run with every key, at the confidence that two looks leave.
        assert (running["decision"], running["looked"]) == (None, 0)
        assert running["precision"]["confidence"] == pytest.approx(0.975)
        looked = desk.do("look")["standing"]
        assert (looked["decision"], looked["looked"]) == ("label more", 1)
        assert desk.do("look")["standing"]["looked"] == 1


@pytest.fixture
def client(tmp_path, monkeypatch):
    """The routes over a document of one slice whose examples are in memory."""
    people = runs.population()
    path = runs.published(tmp_path, people)

    monkeypatch.setattr(OpenedData, "of", lambda *_: people)
    served = ServedOutput.open(str(path.parent), ServeConfig(changelist=str(path.parent)))
    routes = Mount("/api", routes=[*labelling.routes(served), *editing.routes(served)])
    app = Starlette(routes=[routes], exception_handlers=HANDLERS)
    return TestClient(app, raise_server_exceptions=False), people


def label_all(ask, people, begin, **more):
    shown = ask.post("/api/labels/begin", json=begin).json()
    while shown["item"] is not None:
        item = shown["item"]["id"]
        label = "yes" if people.truth_of(int(item)) else "no"
        sent = {"desk": shown["desk"], "item": item, "label": label}
        shown = ask.post("/api/labels/label", json={**sent, **more}).json()
    return shown


def test_the_routes_label_look_and_publish_a_revision(client, tmp_path):
    ask, people = client
    begin = {"slice_id": runs.SLICE, "text": runs.TEXT, "least_precision": 0.5}
    # Nothing was drawn yet, and nothing is left open by the attempt.
    refused = ask.post("/api/labels/begin", json=begin)
    assert (refused.status_code, "no items" in refused.json()["error"]) == (400, True)
    assert ask.get("/api/labels").json()["labels"] == []
    shown = ask.post("/api/labels/begin", json={**begin, "budget": 30}).json()
    assert {name for name, _ in shown["item"]["fields"]} == {"text", "data.label"}
    # The command can't have the labels meanwhile.
    with pytest.raises(EngineError, match="--labels-dir"), runs.opened(tmp_path, people):
        pass
    desk = {"desk": shown["desk"]}
    # A tab that was left behind does not label for another slice.
    left = {"desk": f"{runs.SLICE}-other", "item": shown["item"]["id"], "label": "yes"}
    assert ask.post("/api/labels/label", json=left).status_code == 410
    bad = {**desk, "item": shown["item"]["id"], "label": "perhaps"}
    assert ask.post("/api/labels/label", json=bad).status_code == 422
    bad = {**bad, "label": "yes", "name": "a\u202eb"}
    assert "can't be printed" in ask.post("/api/labels/label", json=bad).json()["error"]
    assert not runs.labels_file(tmp_path).exists()
    shown = label_all(ask, people, begin, name=" <b>x ")
    assert shown["left"] == 0
    assert shown["standing"]["decision"] is not None
    assert ask.get("/api/labels").json()["labels"][0]["open"]
    other_plan = ask.post("/api/labels/begin", json={**begin, "looks": 7})
    assert "--looks 7, but the first round" in other_plan.json()["error"]
    edit = {"revision": 0, "slice_id": runs.SLICE, "name": "films"}
    assert (
        ask.post("/api/edits", json={"op": "rename", **edit}).json()["file"] == "changelist.r1.json"
    )
    done = ask.post("/api/labels/publish", json=desk).json()
    decision = shown["standing"]["decision"]
    assert done == {"decision": decision, "revision": "changelist.r2.json", "proposed": None}
    assert runs.attribution_in(tmp_path / "changelist.r2.json")["rounds"][0]["labeler"] == "<b>x"
    assert read_search(str(tmp_path / "changelist.r2.json"), "").slices[0].name == "films"
    assert ask.post("/api/labels/undo", json=desk).status_code == 410
    # Who labels goes on where the browser ended.
    with runs.opened(tmp_path, people) as session:
        assert not session.open_items


@pytest.mark.slow
def test_labels_of_a_train_round_propose_a_better_slice(client, tmp_path):
    ask, people = client
    people.member[:] = np.random.default_rng(3).permutation(people.member)
    begin = {"slice_id": runs.SLICE, "text": runs.TEXT, "budget": 60}
    for train in (False, True):
        shown = label_all(ask, people, {**begin, "train": train})
        assert shown["standing"]["decision"] == "update"
    done = ask.post("/api/labels/publish", json={"desk": shown["desk"]}).json()
    assert done["proposed"] == f"{runs.TEXT} (classifier)"
    last = read_search(str(tmp_path / done["revision"]), "")
    assert [one.name for one in last.slices][1:] == [done["proposed"]]


@pytest.fixture(scope="module")
def discovered(tmp_path_factory):
    return topics(tmp_path_factory.mktemp("topics"), features=("topic",))


@pytest.fixture
def of_topics(discovered, tmp_path):
    return Path(shutil.copytree(discovered.folder, tmp_path / "out"))


def new_slice(of_topics, answer):
    slices = {one["slice_id"]: one for one in document(of_topics, answer["file"])["slices"]}
    return slices[answer["slices"][0]]


def test_a_slice_of_words_has_the_examples_that_are_similar(discovered, of_topics):
    ask = asks(served_page(of_topics))
    z, query = embedded(discovered, "the battery")
    near = z @ query / np.linalg.norm(z, axis=1) / np.linalg.norm(query)
    one = new_slice(of_topics, ask("edits", op="define", revision=0, name="", text="the battery"))
    assert (one["name"], one["origin"]["method"]) == ("the battery", "text_filter")
    assert one["size"]["n"] == (near >= near.mean() + 2 * near.std()).sum()
    given = {"name": "wider", "text": "the battery", "threshold": 0.3}
    one = new_slice(of_topics, ask("edits", op="define", revision=1, **given))
    assert one["size"]["n"] == (near >= 0.3).sum()


def test_a_slice_of_marked_examples(discovered, of_topics):
    ask = asks(served_page(of_topics))
    only = new_slice(
        of_topics, ask("edits", op="define", revision=0, name="these", yes=[4, 31, 100])
    )
    assert (only["definition"]["ids"], only["size"]["n"]) == ([40, 310, 1000], 3)
    marks = {"yes": [2, 5, 8, 11], "no": [0, 1, 3, 4]}
    like = new_slice(of_topics, ask("edits", op="define", revision=1, name="like these", **marks))
    z, _ = embedded(discovered, "the battery")
    wanted = [True] * 4 + [False] * 4
    model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=1000)
    model.fit(z[marks["yes"] + marks["no"]], wanted)
    assert like["origin"]["method"] == "classifier"
    assert like["size"]["n"] == (model.predict_proba(z)[:, 1] >= 0.5).sum()


def test_a_slice_of_an_attribute(discovered, of_topics):
    ask, where = asks(served_page(of_topics)), "topic = food & id >= 30"
    one = new_slice(of_topics, ask("edits", op="define", revision=0, name="", where=where))
    assert (one["name"], one["size"]["n"]) == (where, 120 - 1)


@pytest.mark.parametrize(("given", "status", "said"), [
    ({}, 422, "a slice needs one of where, text, and marked rows"),
    ({"text": "a", "where": "topic = food"}, 422, "a slice needs one of where, text, and marked rows"),
    ({"text": " "}, 422, "text: String should have at least 1 character"),
    ({"text": "soup", "threshold": 2}, 422, "threshold"),
    ({"text": "soup", "threshold": 1}, 400, "give a lower threshold"),
    ({"where": "topics = food"}, 400, "did you mean 'topic'"),
    ({"no": [1]}, 400, "no example is marked yes; mark at least one"),
    ({"yes": [1], "no": [1]}, 400, "row 1 is marked both yes and no; keep one of the marks"),
    ({"yes": [1, 360]}, 400, "row 360 is not in the data, which has 360"),
    ({"yes": [-1]}, 422, "yes.0"),
])  # fmt: skip
def test_wrong_slices_are_refused_in_a_sentence(of_topics, given, status, said):
    page = served_page(of_topics)
    answer = asks(page, status)("edits", op="define", revision=0, name="", **given)["error"]
    assert said in answer
    assert "--" not in answer
    assert not (of_topics / "changelist.r1.json").exists()


def test_an_edit_of_a_superseded_revision_is_refused(of_topics):
    listed = served_page(of_topics).get("/api/edits").json()
    assert [listed[f"has_{one}"] for one in ("words", "embeddings", "ids")] == [True] * 3
    late = asks(served_page(of_topics), 409)("edits", op="define", revision=7, name="", text="soup")
    assert "revision 0 has come" in late["error"]


@pytest.mark.slow
def test_a_search_has_no_embeddings_to_define_slices_by(tmp_path):
    roles = ["--max-cross-size", "1", "--label", "income", "--exclude-features", "row_id,fnlwgt"]
    page = served_page(search(ADULT, tmp_path / "searched", *roles))
    listed = page.get("/api/edits").json()
    assert [listed[f"has_{one}"] for one in ("words", "embeddings", "ids")] == [False] * 3
    for given, said in (
        ({"text": "wives"}, "text-filter needs embeddings, and this document has none"),
        ({"yes": [1], "no": [2]}, "needs embeddings, and this document has none"),
        ({"yes": [1]}, "needs ids, but the document has no column of ids"),
    ):
        assert said in asks(page, 400)("edits", op="define", revision=0, name="", **given)["error"]


def is_worse(listed, slice_id):
    (slice_,) = (each for each in listed["slices"] if each["slice_id"] == slice_id)
    return any(one["significant"] and one["direction"] == "degraded" for one in slice_["changes"])


def test_a_slice_that_is_marked_as_known_is_in_the_file_that_the_next_run_reads(tmp_path):
    result, known = search_result(tmp_path), tmp_path / "known.yaml"
    page = served_page(result, known=str(known))
    ask = asks(page)
    listed = document(result)
    parts = {each["slice_id"]: set(each["name"].split(" & ")) for each in listed["slices"]}
    finding, inside = next(
        (outer, inner)
        for outer in parts
        for inner in parts
        if parts[outer] < parts[inner] and is_worse(listed, outer) and is_worse(listed, inner)
    )
    name = next(each["name"] for each in listed["slices"] if each["slice_id"] == finding)
    assert ask("known/of", slice_id=finding) == {"file": str(known), "entry": None, "within": []}
    marked = ask("known", slice_id=finding, is_known=True, note=" ticket 41 ", until="2999-01-31")
    assert marked["entry"]["state"] == "worse"
    # The note and the day stand in the file, whose text is the slice's.
    assert yaml.safe_load(known.read_text()) == [
        {"slice": name, "note": "ticket 41", "until": "2999-01-31"}
    ]
    # A slice within it is said to be known by it.
    assert [one["slice"] for one in ask("known/of", slice_id=inside)["within"]] == [name]
    again = ask("known", slice_id=finding, is_known=True, note="other")
    assert again["entry"]["note"] == "other"
    assert yaml.safe_load(known.read_text()) == [{"slice": name, "note": "other"}]
    assert ask("known", slice_id=finding, is_known=False)["entry"] is None
    assert yaml.safe_load(known.read_text()) == []
    # No revision is written for it.
    assert page.get("/api/edits").json()["revision"] == 0


def test_known_slices_need_a_file_and_the_token(result, tmp_path):
    slice_id = document(result)["slices"][0]["slice_id"]
    page = served_page(result)
    assert asks(page)("known/of", slice_id=slice_id)["file"] is None
    said = asks(page, 409)("known", slice_id=slice_id, is_known=True)["error"]
    assert "--known FILE" in said
    page = served_page(result, known=str(tmp_path / "known.yaml"))
    page.headers[HEADER] = "another"
    assert page.post("/api/known", json={"slice_id": slice_id, "is_known": True}).status_code == 401
    assert not (tmp_path / "known.yaml").exists()
