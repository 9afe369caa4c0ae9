"""Labels that are given and slices that are made in the browser: no key is lost."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
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
from slicebeam.transforms.encoders.lsa import LsaEncoder
from tests import attribute_runs as runs
from tests.conftest import ADULT, slow
from tests.discovered import topics
from tests.pipelines.page.results import search
from tests.pipelines.serve.asking import asks, document, served_page
from tests.refusals import refuses

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
    assert ask.post("/api/edits/rename", json=edit).json()["file"] == "changelist.r1.json"
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
def result(discovered, tmp_path):
    return Path(shutil.copytree(discovered.folder, tmp_path / "out"))


def embedded(discovered):
    stored = [name for name in discovered.mixture if name.startswith("encoder/")]
    arrays = {one.partition("/")[2]: discovered.mixture[one] for one in stored}
    texts = pq.read_table(discovered.folder.parent / "data.parquet").column("text").to_pylist()
    encoder = LsaEncoder.from_arrays(arrays)
    return encoder.encode(texts).astype(float), encoder.encode(["the battery"])[0].astype(float)


def new_slice(result, answer):
    slices = {one["slice_id"]: one for one in document(result, answer["file"])["slices"]}
    return slices[answer["slices"][0]]


def test_a_slice_of_words_has_the_examples_that_are_similar(discovered, result):
    ask = asks(served_page(result))
    z, query = embedded(discovered)
    near = z @ query / np.linalg.norm(z, axis=1) / np.linalg.norm(query)
    one = new_slice(result, ask("edits/define", revision=0, name="", text="the battery"))
    assert (one["name"], one["origin"]["method"]) == ("the battery", "text_filter")
    assert one["size"]["n"] == (near >= near.mean() + 2 * near.std()).sum()
    given = {"name": "wider", "text": "the battery", "threshold": 0.3}
    one = new_slice(result, ask("edits/define", revision=1, **given))
    assert one["size"]["n"] == (near >= 0.3).sum()


def test_a_slice_of_marked_examples(discovered, result):
    ask = asks(served_page(result))
    only = new_slice(result, ask("edits/define", revision=0, name="these", yes=[4, 31, 100]))
    assert (only["definition"]["ids"], only["size"]["n"]) == ([40, 310, 1000], 3)
    marks = {"yes": [2, 5, 8, 11], "no": [0, 1, 3, 4]}
    like = new_slice(result, ask("edits/define", revision=1, name="like these", **marks))
    z, _ = embedded(discovered)
    wanted = [True] * 4 + [False] * 4
    model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=1000)
    model.fit(z[marks["yes"] + marks["no"]], wanted)
    assert like["origin"]["method"] == "classifier"
    assert like["size"]["n"] == (model.predict_proba(z)[:, 1] >= 0.5).sum()


def test_a_slice_of_an_attribute(discovered, result):
    ask, where = asks(served_page(result)), "topic = food & id >= 30"
    one = new_slice(result, ask("edits/define", revision=0, name="", where=where))
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
def test_wrong_slices_are_refused_in_a_sentence(result, given, status, said):
    page = served_page(result)
    answer = asks(page, status)("edits/define", revision=0, name="", **given)["error"]
    assert said in answer
    assert "--" not in answer
    assert not (result / "changelist.r1.json").exists()


def test_an_edit_of_a_superseded_revision_is_refused(result):
    listed = served_page(result).get("/api/edits").json()
    assert [listed[f"has_{one}"] for one in ("words", "embeddings", "ids")] == [True] * 3
    late = asks(served_page(result), 409)("edits/define", revision=7, name="", text="soup")
    assert "revision 0 has come" in late["error"]


@slow
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
        assert said in asks(page, 400)("edits/define", revision=0, name="", **given)["error"]
