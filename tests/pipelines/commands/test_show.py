"""``slicebeam show``: slices and examples, by words and by how near they are to a text."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.cli import run
from slicebeam.transforms.encoders.lsa import LsaEncoder
from tests.discovered import topics

TEXT = "a camera for the scene"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A discovery of which a part of the examples shaped the groups, with a slice defined by words."""
    folder = tmp_path_factory.mktemp("show")
    done = topics(folder, loss_weight=0.5)
    for name in ("director", "battery"):
        command = ["define", "--changelist", str(folder / "out"), "--name", f"the {name}"]
        assert run([*command, "--text-filter", name, "--quiet"]) == 0
    return done


def show(capsys, *arguments):
    assert run(["show", *map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def embedded(found, text):
    """Embed the texts of the data and another one with the stored arrays: float64 [n, D] and [D]."""
    stored = [name for name in found.mixture if name.startswith("encoder/")]
    encoder = LsaEncoder.from_arrays({one.partition("/")[2]: found.mixture[one] for one in stored})
    texts = pq.read_table(found.folder.parent / "data.parquet").column("text").to_pylist()
    return encoder.encode(texts).astype(float), encoder.encode([text])[0].astype(float)


def cosine(vector, query):
    return vector @ query / (np.linalg.norm(vector) * np.linalg.norm(query))


def test_slices_are_ordered_by_the_cosine_of_their_centroid(found, capsys):
    z, query = embedded(found, TEXT)
    rows = show(capsys, found.folder, "--text", TEXT)
    document = json.loads((found.folder / "changelist.r2.json").read_text())
    membership = found.membership
    tested = membership.loc[membership["split"] == "evaluation", "id"].unique() // 10
    expected = {}
    for one in document["slices"]:
        if "query" in one["definition"]:
            _, word = embedded(found, one["definition"]["query"])
            near = z @ word / (np.linalg.norm(z, axis=1) * np.linalg.norm(word))
            inside = np.flatnonzero(near >= one["definition"]["threshold"])
        else:
            inside = membership.loc[membership["slice_id"] == one["slice_id"], "id"] // 10
            # Examples that shaped the components count for other slices only.
            inside = np.intersect1d(inside, tested)
        assert len(inside) == one["size"]["n"]
        expected[one["slice_id"]] = cosine(z[inside].mean(axis=0), query)
    order = sorted(expected, key=expected.__getitem__, reverse=True)
    assert len(order) >= 3
    assert [one["slice_id"] for one in rows] == order
    shown = [one["similarity"] for one in rows]
    np.testing.assert_allclose(shown, [expected[one] for one in order], atol=1e-6)


def test_examples_are_ordered_by_their_cosine(found, capsys):
    z, query = embedded(found, TEXT)
    membership = found.membership
    (slice_id,) = {one["slice_id"] for one in found.document["slices"][:1]}
    is_in = (membership["slice_id"] == slice_id) & (membership["split"] == "evaluation")
    places = (membership.loc[is_in, "id"] // 10).to_numpy()
    near = {int(at) * 10: cosine(z[at], query) for at in places}
    rows = show(capsys, found.folder, "--slice", slice_id, "--text", TEXT, "--limit", 10_000)
    assert sorted(one["id"] for one in rows) == sorted(near)
    shown = [one["similarity"] for one in rows]
    assert shown == sorted(shown, reverse=True)
    np.testing.assert_allclose(shown, [near[one["id"]] for one in rows], atol=1e-6)
    # Without a text those that the model gets wrong come first.
    roles = [one["role"] for one in show(capsys, found.folder, "--slice", slice_id)]
    assert (roles, len(roles)) == (sorted(roles, reverse=True), 20)


def test_words_filter_names_and_phrases(found, capsys):
    shown = show(capsys, found.folder, "--words", "BATTERY & the")
    assert [one["slice"] for one in shown] == ["the battery"]
    assert run(["show", str(found.folder), "--limit", "1"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert "--limit shows more" in said.err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--text", "xyzzy"], "--text 'xyzzy': the encoder knows none of its words; use other words"),
    (["--text", " "], "--text is empty; write a text like the examples that you look for"),
    (["--words", "a", "--slice", "b"], "--words filters slices, and --slice shows the examples of one"),
    (["--slice", "nothing"], "--slice: unknown slice 'nothing'"),
])  # fmt: skip
def test_wrong_options(found, capsys, arguments, message):
    assert run(["show", str(found.folder), *arguments]) == 2
    assert message in capsys.readouterr().err


def changed(found, folder, **discovery):
    shutil.copytree(found.folder, folder)
    path = folder / "changelist.json"
    document = json.loads(path.read_text())
    document["discovery"] = {**document["discovery"], **discovery}
    path.write_text(json.dumps(document))
    return path


def test_runs_without_an_encoder_and_other_encoders_are_refused(found, tmp_path, capsys):
    vectors = pa.array(list(np.eye(3)[np.arange(360) % 3]), pa.list_(pa.float64()))
    data = tmp_path / "vectors.parquet"
    table = pq.read_table(found.folder.parent / "data.parquet")
    pq.write_table(table.append_column("z", vectors), data)
    cases = (
        ("words need the encoder that made column 'z'", {"encoder": "none", "text_field": None, "embedding_field": "z"}),
        ("has changed since the discovery", {"encoder_fingerprint": "sha256:0"}),
        ("confirm it with --encoder openai:http://127.0.0.1:9", {"encoder": "openai:http://127.0.0.1:9"}),
    )  # fmt: skip
    for at, (message, discovery) in enumerate(cases):
        path = changed(found, tmp_path / str(at), **discovery)
        assert run(["show", str(path), "--data", str(data), "--text", "soup"]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.strip().splitlines()) == 1
    searched = tmp_path / "0" / "changelist.json"
    document = json.loads(searched.read_text())
    del document["discovery"]
    searched.write_text(json.dumps(document))
    assert run(["show", str(searched), "--data", str(data), "--text", "soup"]) == 2
    assert "is not the document of a discovery" in capsys.readouterr().err
    other = tmp_path / "half.parquet"
    pq.write_table(table.slice(0, 100), other)
    assert run(["show", str(found.folder), "--data", str(other), "--text", "soup"]) == 2
    assert "name the data that the document is about with --data" in capsys.readouterr().err
