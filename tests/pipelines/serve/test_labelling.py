"""Labels that are given in the browser: no key is lost."""

import json
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.attribution.session import estimate
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.serve import editing, labelling
from slicebeam.pipelines.serve.answers import HANDLERS
from slicebeam.pipelines.serve.labelling import Labelling, _Label, _OfSession
from slicebeam.pipelines.serve.served import OpenedData, ServedOutput
from tests.attribute_runs import (
    SLICE,
    TEXT,
    attribution_in,
    labels_file,
    opened,
    population,
    published,
)
from tests.refusals import refuses

ANNA = "anna"


def kept(folder):
    lines = labels_file(folder).read_text().splitlines()
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
    people = population()
    with opened(tmp_path, people) as session:
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
    with opened(tmp_path, people, begins=False) as session:
        finished = estimate(session)
    assert attribution_in(Path(str(finished.document)))["rounds"][0]["labeler"] == ANNA


def test_undo_takes_labels_back_one_by_one_and_shows_their_items(tmp_path):
    with opened(tmp_path, population(textual=True)) as session:
        desk = Desk(session, 10)
        items = []
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
    people = population()
    with opened(tmp_path, people, looks=2) as session:
        desk = Desk(session, 120)
        now = desk.shown()
        assert now["standing"]["decision"] is None
        assert "precision" not in now["standing"]
        for _ in range(40):
            item = now["item"]["id"]
            now = desk.press(item, ("no", "yes")[people.truth_of(int(item))])
        running = now["standing"]
        # Numbers run with every key, at the confidence that two looks leave.
        assert running["decision"] is None
        assert running["looked"] == 0
        assert running["precision"]["confidence"] == pytest.approx(0.975)
        looked = desk.do("look")["standing"]
        assert (looked["decision"], looked["looked"]) == ("label more", 1)
        assert desk.do("look")["standing"]["looked"] == 1


@pytest.fixture
def client(tmp_path, monkeypatch):
    """The routes over a document of one slice whose examples are in memory."""
    people = population()
    path = published(tmp_path, people)

    monkeypatch.setattr(OpenedData, "of", lambda *_: people)
    config = ServeConfig(changelist=str(path.parent))
    served = ServedOutput.open(str(path.parent), config)
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
    begin = {"slice_id": SLICE, "text": TEXT, "least_precision": 0.5}
    # Nothing was drawn yet, and nothing is left open by the attempt.
    refused = ask.post("/api/labels/begin", json=begin)
    assert refused.status_code == 400
    assert "no items" in refused.json()["error"]
    assert ask.get("/api/labels").json()["labels"] == []
    shown = ask.post("/api/labels/begin", json={**begin, "budget": 30}).json()
    assert {name for name, _ in shown["item"]["fields"]} == {"text", "data.label"}
    # The command can't have the labels meanwhile.
    with pytest.raises(EngineError, match="--labels-dir"), opened(tmp_path, people):
        pass
    desk = {"desk": shown["desk"]}
    # A tab that was left behind does not label for another slice.
    left = {"desk": f"{SLICE}-other", "item": shown["item"]["id"], "label": "yes"}
    assert ask.post("/api/labels/label", json=left).status_code == 410
    bad = {**desk, "item": shown["item"]["id"], "label": "perhaps"}
    assert ask.post("/api/labels/label", json=bad).status_code == 422
    bad = {**bad, "label": "yes", "name": "a\u202eb"}
    assert "can't be printed" in ask.post("/api/labels/label", json=bad).json()["error"]
    assert not labels_file(tmp_path).exists()
    shown = label_all(ask, people, begin, name=" <b>x ")
    assert shown["left"] == 0
    assert shown["standing"]["decision"] is not None
    assert ask.get("/api/labels").json()["labels"][0]["open"]
    other_plan = ask.post("/api/labels/begin", json={**begin, "looks": 7})
    assert "--looks 7, but the first round" in other_plan.json()["error"]
    edit = {"revision": 0, "slice_id": SLICE, "name": "films"}
    assert ask.post("/api/edits/rename", json=edit).json()["file"] == "changelist.r1.json"
    done = ask.post("/api/labels/publish", json=desk).json()
    decision = shown["standing"]["decision"]
    assert done == {"decision": decision, "revision": "changelist.r2.json", "proposed": None}
    assert attribution_in(tmp_path / "changelist.r2.json")["rounds"][0]["labeler"] == "<b>x"
    assert read_search(str(tmp_path / "changelist.r2.json"), "").slices[0].name == "films"
    assert ask.post("/api/labels/undo", json=desk).status_code == 410
    # Who labels goes on where the browser ended.
    with opened(tmp_path, people) as session:
        assert not session.open_items


@pytest.mark.slow
def test_labels_of_a_train_round_propose_a_better_slice(client, tmp_path):
    ask, people = client
    people.member[:] = np.random.default_rng(3).permutation(people.member)
    begin = {"slice_id": SLICE, "text": TEXT, "budget": 60}
    for train in (False, True):
        shown = label_all(ask, people, {**begin, "train": train})
        assert shown["standing"]["decision"] == "update"
    done = ask.post("/api/labels/publish", json={"desk": shown["desk"]}).json()
    assert done["proposed"] == f"{TEXT} (classifier)"
    last = read_search(str(tmp_path / done["revision"]), "")
    assert [one.name for one in last.slices][1:] == [done["proposed"]]
