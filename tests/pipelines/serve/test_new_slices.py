"""Slices that are made in the page: of words, of marked examples, of an attribute."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression

from slicebeam.transforms.encoders.lsa import LsaEncoder
from tests.conftest import ADULT, slow
from tests.discovered import topics
from tests.pipelines.page.results import search
from tests.pipelines.serve.asking import asks, document, served_page


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
    ask = asks(served_page(result))
    one = new_slice(
        result, ask("edits/define", revision=0, name="", where="topic = food & id >= 30")
    )
    assert one["name"] == "topic = food & id >= 30"
    assert one["size"]["n"] == 120 - 1


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
