"""Odd data of a discovery, how examples are split, and how slices are folded, by direct computation."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.show.worst_slices import worst_slices
from tests.conftest import slow
from tests.discover_runs import discover, examples, written
from tests.running import refused
from tests.transforms.encoders import test_endpoint

server = test_endpoint.server
ROWS = 120
TABLE = examples(0, n=ROWS, dimensions=4, groups=3, apart=6.0)
LOSSES = {"loss": "loss_new", "baseline_loss": "loss_old"}
CLASSES = {"label": "label", "prediction": "new", "baseline_prediction": "old"}
OPTIONS = {"embedding": "z", "components": (5,), "min_slice_size": 1, **LOSSES}


def with_columns(table=TABLE, **columns):
    for name, values in columns.items():
        column = values if isinstance(values, pa.Array) else pa.array(values)
        if name in table.schema.names:
            table = table.set_column(table.schema.get_field_index(name), name, [column])
        else:
            table = table.append_column(name, [column])
    return table


def vectors(values, kind=None):
    return pa.array(list(values), kind or pa.list_(pa.float64()))


def found_in(tmp_path, table, **options):
    """Discover, and hold the table of slices against a direct computation."""
    data = written(tmp_path / "e.parquet", table)
    found = discover(tmp_path / "out", data=(data,), **{**OPTIONS, **options})
    assert_counted(found, table, {**OPTIONS, **options})
    return found


def assert_counted(found, table, options):
    """Each slice's size and mean losses are those of the examples that membership.parquet tells."""
    told = found.membership
    (components,) = options["components"]
    assert len(told) == table.num_rows
    tested = (told["split"] != "discovery").to_numpy()
    of = told["slice_id"].astype(str).to_numpy()
    expected, least = set(of[tested]), options["min_slice_size"]
    sizes = {name: int((tested & (of == name)).sum()) for name in expected}
    rows = found.table.set_index("slice_id")
    rows = rows[rows["slice"].str.fullmatch(rf"cluster@{components} = \d+")]
    assert dict(rows["n"]) == {name: n for name, n in sizes.items() if n >= least}
    if "loss" in options:
        new, old = (table[options[name]].to_numpy().astype(float) for name in LOSSES)
    else:
        label, *both = (table[options[name]].to_numpy() for name in CLASSES)
        new, old = ((label == predicted).astype(float) for predicted in both)
    for name, row in rows.iterrows():
        members = tested & (of == name)
        assert row["value"] == pytest.approx(new[members].mean(), rel=1e-12, abs=1e-12)
        assert row["reference"] == pytest.approx(old[members].mean(), rel=1e-12, abs=1e-12)
        change = new[members].mean() - old[members].mean()
        assert row["delta"] == pytest.approx(change, rel=1e-9, abs=1e-12)
        assert 0 < row["p_value"] <= 1
    assert told["responsibility"].between(0, 1).all()


def groups(found):
    """The positions of the examples of each component, in the order of the first."""
    of = found.membership["slice_id"].astype(str)
    return sorted(tuple(rows.tolist()) for rows in of.groupby(of).indices.values())


GROUPS = np.arange(ROWS) % 3


@pytest.mark.parametrize("order", ["ab", slow("ba")])
@pytest.mark.slow
def test_files_without_row_groups(order, tmp_path):
    whole = discover(tmp_path / "one", data=(written(tmp_path / "x.parquet", TABLE),), **OPTIONS)
    paths = []
    for number, kind in enumerate(order):
        path = tmp_path / f"{number}.parquet"
        if kind == "a":
            pq.ParquetWriter(path, TABLE.schema).close()
            assert pq.ParquetFile(path).num_row_groups == 0
        else:
            written(path, TABLE)
        paths.append(str(path))
    found = discover(tmp_path / "out", data=tuple(paths), **OPTIONS)
    pd.testing.assert_frame_equal(found.table, whole.table)


def test_models_that_are_always_right(tmp_path):
    """No pair is discordant, so that nothing can be significant."""
    table = with_columns(new=TABLE["label"].combine_chunks(), old=TABLE["label"].combine_chunks())
    named = {name: value for name, value in OPTIONS.items() if name not in LOSSES} | CLASSES
    found = discover(tmp_path / "out", data=(written(tmp_path / "e.parquet", table),), **named)
    assert_counted(found, table, named)
    assert found.table["p_value"].eq(1).all()
    assert found.table["reason"].str.contains("never differ").all()
    # The same where losses say so, and where all are of one class.
    zero = with_columns(loss_new=[0.0] * ROWS, loss_old=[0.0] * ROWS)
    assert found_in(tmp_path, zero).table["p_value"].eq(1).all()
    one = with_columns(**dict.fromkeys(("label", "new", "old"), ["ant"] * ROWS))
    found = discover(tmp_path / "out", data=(written(tmp_path / "e.parquet", one),), **named)
    assert_counted(found, one, named)
    assert found.table["value"].eq(1).all()


@pytest.mark.slow
def test_columns_of_the_same_names_as_those_of_a_result(tmp_path):
    own = {name: ["a", "b"] * 60 for name in ("slice", "slice_id", "row", "split", "log odds")}
    table = with_columns(**own, **{"cluster@7": ["x"] * ROWS, "cluster@5 ": ["y", "z"] * 60})
    features = (*own, "cluster@5 ")
    plain = found_in(tmp_path, table, features=features, max_cross_size=2).table.set_index("slice")
    assert plain.loc["slice = a", "n"] == 60
    mean = table["loss_new"].to_numpy()[1::2].mean()
    assert plain.loc["slice_id = b", "value"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("text", ["word " * 200_000 + "w" * 1_000_000, "", "!!!", "\x00 film"], ids=["2 MB", "empty", "no words", "zero"])  # fmt: skip
@pytest.mark.slow
def test_one_text_of_another_kind(text, tmp_path):
    kinds = ["news bad x", "film good x", "news good x", "film bad x", "news good x", "film good x"]
    texts = kinds * (ROWS // 6)
    texts[7] = text
    found = found_in(tmp_path, with_columns(text=texts), embedding=None, text="text")
    members = [group for group in groups(found) if 9 in group]
    assert {row for row in range(ROWS) if texts[row] == texts[9]} <= set(members[0])
    for one in found.document["slices"]:
        assert all(len(each["display"]["text"]) <= 300 for each in one["found"].get("examples", ()))


ENCODED = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    "kind", [ENCODED, slow(pa.large_string()), slow(pa.string_view())], ids=str
)
def test_text_of_any_type(kind, tmp_path):
    plain = pa.array([["a film that is good", "bad news", "the plot"][group] for group in GROUPS])
    column = plain.dictionary_encode().cast(kind) if "dict" in str(kind) else plain.cast(kind)
    found = found_in(tmp_path, with_columns(text=column), embedding=None, text="text")
    assert groups(found) == [tuple(range(group, ROWS, 3)) for group in range(3)]


@pytest.mark.slow
def test_check_on_odd_data(tmp_path):
    """New data without what only shows an example, of one example, and where a slice has none."""
    loss = np.where(GROUPS, 0.9, 0.1) + 0.001 * np.arange(ROWS)
    z = 10.0 * np.eye(3)[GROUPS]
    table = with_columns(z=vectors(z), loss_new=loss, text=[f"text {row}" for row in range(ROWS)])
    table = with_columns(table, loss_old=[0.5] * ROWS)
    first = found_in(tmp_path, table, text="text", components=(3,))
    assert len(first.document["slices"]) == 3
    for rows, sizes in ((1, [0, 0, 1]), (3, [1, 1, 1]), (120, [40] * 3)):
        path = written(tmp_path / "new.parquet", table.drop_columns(["text"]).slice(0, rows))
        arguments = ["check", "--changelist", str(tmp_path / "out" / "changelist.json")]
        arguments += ["--data", path, "--output", str(tmp_path / "new"), "--quiet"]
        assert run(arguments) == 0
        document = json.loads((tmp_path / "new" / "changelist.json").read_text())
        assert sorted(one["size"]["n"] for one in document["slices"]) == sizes
    earlier = {one["slice_id"]: one["changes"][0] for one in first.document["slices"]}
    for one in document["slices"]:
        assert one["changes"][0]["delta"] == earlier[one["slice_id"]]["delta"]


@pytest.mark.parametrize(("status", "code", "resume"), [(500, 3, False), slow(401, 2, False), slow(500, 3, True)])  # fmt: skip
def test_an_endpoint_that_fails_half_way(server, status, code, resume, tmp_path, capsys):
    """Begun again, no text is asked twice; what is kept is said."""
    texts = [f"text {row}" for row in range(300)]
    table = pa.table({"text": texts, "loss": np.random.default_rng(0).random(300)})
    data = written(tmp_path / "e.parquet", table)
    server.rule = lambda _: None if sum(server.answered.values()) < 128 else (status, {}, "no more")
    arguments = ["discover", "--data", data, "--text", "text", "--loss", "loss"]
    arguments += ["--encoder", f"openai:{server.url}", "--components", "3"]
    arguments += ["--chunk-rows", "100", "--output", str(tmp_path / "out")]
    said = refused([*arguments, "--quiet"], capsys, folder=tmp_path, code=code)
    assert said.startswith(f"--encoder openai:{server.url}: ")
    assert f"HTTP {status}: no more" in said
    if code == 3:
        assert "finished embeddings are kept" in said
        work = "finished work is in DIR/out/_work; continue with the same command and --resume"
        assert said.endswith(work)
    assert 0 < sum(server.answered.values()) < 300
    server.rule = lambda _: None
    assert run([*arguments, *(["--resume"] if resume else [])]) == 0
    assert set(texts) <= set(server.answered)
    assert set(server.answered.values()) == {1}


@pytest.fixture(scope="module")
def folding(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folded")
    data = (written(folder / "data.parquet", examples(8, n=2000, apart=2.0)),)
    roles = {"label": "label", "prediction": "new", "embedding": "z"}
    return discover(folder / "out", data=data, components=(8, 20), slices=4, **roles)


@pytest.fixture(scope="module")
def members(folding):
    return {key: set(own) for key, own in folding.membership.groupby("slice_id")["id"]}


def test_slices_mostly_in_one_above_are_left_out(folding, members):
    (shown,) = worst_slices(SearchChangeList.model_validate(folding.document))
    kept, folded = [], 0
    slices = [one["slice_id"] for one in folding.document["slices"]]
    for one in slices:
        if len(kept) == 12:
            break
        if any(len(members[one] & members[other]) > len(members[one]) / 2 for other in kept):
            folded += 1
        else:
            kept.append(one)
    assert [one.slice_id for one, _ in shown.rows] == kept
    assert shown.folded == folded >= 3
    assert shown.rest == len(slices) - len(kept) - folded


def test_findings_do_not_repeat_examples(folding, members):
    for side in ("worse", "better"):
        findings = [one for one in folding.document["findings"] if one["direction"] == side]
        held = [members[one["slice_id"]] for one in findings]
        assert held
        for number, own in enumerate(held):
            assert max([len(own & other) / len(own) for other in held[:number]], default=0.0) <= 0.5


def test_findings_are_described_before_the_others(folding):
    """What tables begin with has examples, also where others changed more."""
    slices = folding.document["slices"]
    described = {one["slice_id"] for one in slices if one["found"]["examples"]}
    ranked = sorted(folding.document["findings"], key=lambda one: one["rank"])
    assert described == {one["slice_id"] for one in ranked[:4]}
    assert described != {one["slice_id"] for one in slices[:4]}
