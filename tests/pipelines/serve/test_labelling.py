"""Labels that are given in the browser: nobody gets another's item, and no key is lost."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from slicebeam.metrics.attribution.estimates import NO, YES
from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.attribution.rounds import estimate
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.define import examples
from slicebeam.pipelines.serve import editing, labelling
from slicebeam.pipelines.serve.answers import HANDLERS
from slicebeam.pipelines.serve.label_desk import LabelDesk
from slicebeam.pipelines.serve.served import ServedOutput
from tests.attribute_runs import (
    SLICE,
    TEXT,
    attribution_in,
    labels_folder,
    opened,
    population,
    published,
)

ANNA, BO = "anna-browser", "bo-browser"


def kept(folder):
    lines = (labels_folder(folder) / "labels.jsonl").read_text().splitlines()
    return {record["item"]: record["label"] for record in map(json.loads, lines)}


def test_two_labelers_at_once_lose_nothing_and_never_have_the_same_item(tmp_path):
    people = population()
    with opened(tmp_path, people) as session:
        desk = LabelDesk(session)
        desk.begin(60)
        drawn = {str(item) for item in session.open_items}
        given = {ANNA: [], BO: []}

        def work(labeler):
            shown = desk.shown(labeler)
            while shown["item"] is not None:
                item = shown["item"]["id"]
                given[labeler].append(item)
                truth = YES if people.truth_of(int(item)) else NO
                shown = desk.label(labeler, labeler, item, truth)

        threads = [threading.Thread(target=work, args=(who,)) for who in given]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert sorted(given[ANNA] + given[BO]) == sorted(drawn)
        standing = desk.shown(ANNA)["standing"]
        # The last label of a round is followed by a look, as planned.
        assert (standing["looked"], standing["labelled"]) == (1, len(drawn))
        assert standing["decision"] is not None
        assert standing["precision"]["lo"] <= people.precision <= standing["precision"]["hi"]
    assert len(kept(tmp_path)) == len(drawn)
    # The command reads what the browser wrote.
    with opened(tmp_path, people, begins=False) as session:
        finished = estimate(session)
    assert attribution_in(Path(str(finished.document)))["rounds"][0]["labeler"] == f"{ANNA}, {BO}"


def test_an_item_goes_to_another_labeler_after_ten_minutes_and_both_labels_are_kept(tmp_path):
    now = [0.0]
    with opened(tmp_path, population()) as session:
        desk = LabelDesk(session, lambda: now[0])
        desk.begin(4)
        first, second = (desk.shown(who)["item"]["id"] for who in (ANNA, BO))
        assert first != second
        # Whoever asks again has the same item, and hears of the other's.
        again = desk.shown(ANNA)
        assert (again["item"]["id"], again["others"]) == (first, 1)
        now[0] = 599
        assert desk.label(BO, "bo", second, YES)["item"]["id"] not in (first, second)
        now[0] = 601
        assert desk.shown("carl-browser")["item"]["id"] == first
        desk.label("carl-browser", "carl", first, NO)
        desk.label(ANNA, "anna", first, YES)
        with pytest.raises(InputError, match="labelled by anna since"):
            desk.undo("carl-browser")
    lines = (labels_folder(tmp_path) / "labels.jsonl").read_text().splitlines()
    mine = [record for record in map(json.loads, lines) if str(record["item"]) == first]
    assert [(record["labeler"], record["label"]) for record in mine] == [
        ("carl", "no"),
        ("anna", "yes"),
    ]


def test_undo_takes_labels_back_one_by_one_and_shows_their_items(tmp_path):
    with opened(tmp_path, population(textual=True)) as session:
        desk = LabelDesk(session)
        desk.begin(10)
        items = []
        for label in (YES, NO, YES):
            item = desk.shown(ANNA)["item"]["id"]
            items.append(item)
            desk.label(ANNA, "anna", item, label)
        # Another labeler's labels are not for her to undo.
        with pytest.raises(InputError, match="no label of yours"):
            desk.undo(BO)
        for left in (2, 1, 0):
            shown = desk.undo(ANNA)
            assert shown["item"]["id"] == items[left]
            assert set(kept(tmp_path)) == set(items[:left])
        assert not shown["undo"]
        with pytest.raises(InputError, match="was not drawn"):
            desk.label(ANNA, "anna", "a stranger's", YES)


def test_the_decision_comes_with_a_look_only(tmp_path):
    people = population()
    with opened(tmp_path, people, looks=2) as session:
        desk = LabelDesk(session)
        desk.begin(120)
        shown = desk.shown(ANNA)
        assert shown["standing"]["decision"] is None
        assert "precision" not in shown["standing"]
        for _ in range(40):
            item = shown["item"]["id"]
            shown = desk.label(ANNA, "anna", item, YES if people.truth_of(int(item)) else NO)
        running = shown["standing"]
        # Numbers run with every key, at the confidence that two looks leave.
        assert running["decision"] is None
        assert running["looked"] == 0
        assert running["precision"]["confidence"] == pytest.approx(0.975)
        looked = desk.look(ANNA)["standing"]
        assert (looked["decision"], looked["looked"]) == ("label more", 1)
        # The same labels once more are no further look.
        assert desk.look(ANNA)["standing"]["looked"] == 1


@pytest.fixture
def client(tmp_path, monkeypatch):
    """The routes over a document of one slice whose examples are in memory."""
    people = population()
    path = published(tmp_path, people)

    def open_one(uri, slice_name, **_):
        document = read_search(uri, "")
        assert slice_name == document.slices[0].slice_id
        return people, document, document.slices[0]

    monkeypatch.setattr(examples, "open_population", open_one)
    config = ServeConfig(changelist=str(path.parent))
    served = ServedOutput.open(str(path.parent), config)
    routes = Mount("/api", routes=[*labelling.routes(served), *editing.routes(served)])
    app = Starlette(routes=[routes], exception_handlers=HANDLERS)
    return TestClient(app, raise_server_exceptions=False), people


def label_all(ask, people, begin, **more):
    """Begin, label each item with the truth, and return what is shown at the end."""
    shown = ask.post("/api/labels/begin", json=begin).json()
    while shown["item"] is not None:
        item = shown["item"]["id"]
        label = "yes" if people.truth_of(int(item)) else "no"
        sent = {"desk": shown["desk"], "labeler": begin["labeler"], "item": item, "label": label}
        shown = ask.post("/api/labels/label", json={**sent, **more}).json()
    return shown


def test_the_routes_label_look_and_publish_a_revision(client, tmp_path):
    ask, people = client
    begin = {"slice_id": SLICE, "text": TEXT, "labeler": ANNA, "least_precision": 0.5}
    # Nothing was drawn yet, and nothing is left open by the attempt.
    refused = ask.post("/api/labels/begin", json=begin)
    assert refused.status_code == 400
    assert "no items" in refused.json()["error"]
    assert ask.get("/api/labels").json()["labels"] == []
    shown = ask.post("/api/labels/begin", json={**begin, "budget": 30}).json()
    assert {name for name, _ in shown["item"]["fields"]} == {"text", "data.label"}
    # The command can't have the labels meanwhile, and a second browser gets another item.
    with pytest.raises(EngineError, match="--labels-dir"), opened(tmp_path, people):
        pass
    other = ask.post("/api/labels/begin", json={**begin, "labeler": BO, "least_precision": None})
    assert other.json()["item"]["id"] != shown["item"]["id"]
    desk = shown["desk"]
    bad = {"desk": desk, "labeler": ANNA, "item": shown["item"]["id"], "label": "perhaps"}
    assert ask.post("/api/labels/label", json=bad).status_code == 422
    bad = {**bad, "label": "yes", "name": "a\u202eb"}
    assert "can't be printed" in ask.post("/api/labels/label", json=bad).json()["error"]
    assert not (labels_folder(tmp_path) / "labels.jsonl").exists()
    for who in (ANNA, BO):
        shown = label_all(ask, people, {**begin, "labeler": who}, name=" <b>x ")
    assert shown["left"] == 0
    assert shown["standing"]["decision"] is not None
    assert ask.get("/api/labels").json()["labels"][0]["open"]
    other_plan = ask.post("/api/labels/begin", json={**begin, "looks": 7})
    assert "--looks 7, but the first round" in other_plan.json()["error"]
    # What was edited meanwhile stays.
    edit = {"revision": 0, "slice_id": SLICE, "name": "films"}
    assert ask.post("/api/edits/rename", json=edit).json()["file"] == "changelist.r1.json"
    done = ask.post("/api/labels/publish", json={"desk": desk}).json()
    decision = shown["standing"]["decision"]
    assert done == {"decision": decision, "revision": "changelist.r2.json", "proposed": None}
    assert attribution_in(tmp_path / "changelist.r2.json")["rounds"][0]["labeler"] == "<b>x"
    assert read_search(str(tmp_path / "changelist.r2.json"), "").slices[0].name == "films"
    gone = ask.post("/api/labels/undo", json={"desk": desk, "labeler": ANNA})
    assert gone.status_code == 410
    # Who labels goes on where the browser ended.
    with opened(tmp_path, people) as session:
        assert not session.open_items


@pytest.mark.slow
def test_labels_of_a_train_round_propose_a_better_slice(client, tmp_path):
    ask, people = client
    people.member[:] = np.random.default_rng(3).permutation(people.member)
    begin = {"slice_id": SLICE, "text": TEXT, "labeler": ANNA, "budget": 60}
    for train in (False, True):
        shown = label_all(ask, people, {**begin, "train": train})
        assert shown["standing"]["decision"] == "update"
    done = ask.post("/api/labels/publish", json={"desk": shown["desk"]}).json()
    assert done["proposed"] == f"{TEXT} (classifier)"
    last = read_search(str(tmp_path / done["revision"]), "")
    assert [one.name for one in last.slices][1:] == [done["proposed"]]
