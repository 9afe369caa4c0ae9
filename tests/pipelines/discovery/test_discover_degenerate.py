"""Odd data of a discovery, how examples are split, and how slices are folded, by direct computation."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.show.worst_slices import worst_slices
from tests.conftest import slow
from tests.discover_runs import discover, embeddings, examples, written
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


@pytest.mark.parametrize(("kind", "expected"), [
    # As many components as are asked for, but only so many places to be.
    ([[float(group), 1.0] for group in GROUPS], 3),
    slow([[float(group)] for group in GROUPS], 3),
    ([[1.0, -2.0, 3.0]] * ROWS, 1),
], ids=["three points", "one dimension", "one point"])  # fmt: skip
def test_fewer_points_than_components(kind, expected, tmp_path):
    found = found_in(tmp_path, with_columns(z=vectors(kind)))
    assert groups(found) == [tuple(range(group, ROWS, expected)) for group in range(expected)]
    assert found.resolutions["cluster@5"]["nonempty"] == expected
    assert len(found.table) == expected


SCALED = embeddings(TABLE)


@pytest.mark.parametrize(("dimensions", "scale"), [(2, 1e36), slow(128, 1e36), slow(128, 1e19)])
def test_large_vectors_fall_into_the_same_groups(dimensions, scale, tmp_path, recwarn):
    """Squares of these overflow single precision."""
    # Apart enough that the least variance, which does not grow with them, decides nothing.
    one = found_in(tmp_path, with_columns(z=vectors(SCALED * 64)), dimensions=dimensions)
    many = found_in(tmp_path, with_columns(z=vectors(SCALED * scale)), dimensions=dimensions)
    assert groups(many) == groups(one)
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


@pytest.mark.parametrize("n", [2, 5])
def test_as_few_examples_as_components(n, tmp_path):
    """Each is a component of its own where there are as many, and no test says anything of one."""
    table = with_columns(TABLE.slice(0, n), z=vectors(100.0 * np.eye(n)))
    found = found_in(tmp_path, table, components=(n,))
    assert groups(found) == [(row,) for row in range(n)]
    assert found.table["p_value"].eq(1).all()
    assert not found.document["slices"]


def test_more_dimensions_than_examples(tmp_path):
    z = np.random.default_rng(3).standard_normal((24, 300)) * 0.1
    z[np.arange(24), np.arange(24) % 2] += 10.0
    table = with_columns(TABLE.slice(0, 24), z=vectors(z))
    found = found_in(tmp_path, table, components=(2,), dimensions=64)
    assert groups(found) == [tuple(range(0, 24, 2)), tuple(range(1, 24, 2))]
    told = found.document["discovery"]
    # Of 24 points only 23 directions have a variance.
    assert (told["dimensions"], told["kept_dimensions"]) == (300, 23)
    assert told["kept_variance"] == pytest.approx(1.0)


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


@pytest.mark.parametrize("text", [
    "word " * 200_000 + "w" * 1_000_000,
    *(slow(text) for text in ("", "!!!", "\x00 film")),
], ids=["2 MB", "empty", "no words", "zero"])  # fmt: skip
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


@pytest.mark.slow
def test_a_search_of_a_column_that_is_called_like_components(tmp_path):
    """Of a document without a discovery it is a column as others are."""
    halves = {"cluster@5": ["a", "b"], "loss_new": [0.1, 0.9], "loss_old": [0.3, 0.4]}
    table = with_columns(**{name: both * 60 for name, both in halves.items()})
    noise = 0.01 * np.random.default_rng(0).random(ROWS)
    table = with_columns(table, loss_new=table["loss_new"].to_numpy() + noise)
    data = written(tmp_path / "e.parquet", table)
    arguments = ["--data", data, "--loss", "loss_new", "--baseline-loss", "loss_old", "--quiet"]
    search = ["search", "--features", "cluster@5", "--alternative", "both"]
    assert run([*search, *arguments, "--output", str(tmp_path / "out")]) == 0
    document = str(tmp_path / "out" / "changelist.json")
    check = ["check", "--changelist", document, "--data", data, "--quiet"]
    assert run([*check, "--output", str(tmp_path / "new")]) == 0
    define = ["define", "--changelist", document, "--name", "x", "--quiet"]
    assert run([*define, "--where", "cluster@5 = a"]) == 2
    assert run([*define, "--where", "cluster@5 = a & source = web"]) == 0
    revision = json.loads((tmp_path / "out" / "changelist.r1.json").read_text())
    (defined,) = (one for one in revision["slices"] if one["name"] == "x")
    members = (table["source"].to_numpy() == "web") & (np.arange(ROWS) % 2 == 0)
    assert defined["size"]["n"] == members.sum()


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


TOLD = {"embedding": "z", "components": (5,), "loss_weight": 1.0, "seed": 4}


def ran(folder, name, table, **options):
    data = (written(folder / f"{name}.parquet", table),)
    told = {"example_id": "id", **(LOSSES if "label" not in options else {}), **TOLD, **options}
    return discover(folder / name, data=data, **told)


def split_of(found):
    of_id = found.membership.groupby("id")["split"]
    assert (of_id.nunique() == 1).all()
    return of_id.first().astype(str)


@pytest.fixture(scope="module")
def table():
    return examples(2, n=600, apart=1.5)


@pytest.fixture(scope="module")
def found(table, tmp_path_factory):
    return ran(tmp_path_factory.mktemp("split"), "out", table, features=("source",))


def test_split_is_a_hash_of_the_id(table, found, tmp_path):
    wanted = split_of(found)
    share = (wanted == "discovery").mean()
    # Of a binomial with n = 600.
    assert stats.binomtest(round(share * 600), 600, 0.7).pvalue > 1e-3
    order = np.random.default_rng(0).permutation(table.num_rows)
    shuffled = ran(tmp_path, "shuffled", table.take(pa.array(order)), chunk_rows=83)
    # The rows that stay are in the part that they were in.
    for other in (shuffled, ran(tmp_path, "fewer", table.slice(100, 300), discovery_share=0.7)):
        split = split_of(other)
        assert split.equals(wanted[split.index])
    assert shuffled.membership["id"].tolist() == table.column("id").take(order).to_pylist()
    seeded = split_of(ran(tmp_path, "seeded", table, seed=5))
    # Another seed splits otherwise, and independently.
    assert 0.4 < ((wanted == "discovery") & (seeded[wanted.index] == "discovery")).mean() < 0.58


@pytest.mark.slow
def test_a_larger_share_only_adds_to_what_shapes(table, found, tmp_path):
    less = split_of(ran(tmp_path, "less", table, discovery_share=0.4))
    wanted, shaping = split_of(found), set(less.index[less == "discovery"])
    assert shaping < set(wanted.index[wanted == "discovery"])
    assert 0.3 < len(shaping) / table.num_rows < 0.5


@pytest.mark.parametrize("grouped", [False, True], ids=["ids", "groups"])
def test_what_goes_together_is_on_one_side(table, tmp_path, *, grouped):
    group = table.column("author").to_numpy()
    if grouped:
        found = ran(tmp_path, "groups", table, group="author")
        of_id = split_of(found)[table.column("id").to_pylist()].to_numpy()
    else:
        found = ran(tmp_path, "ids", with_columns(table, id=group), example_id="id")
        of_id = split_of(found)[group].to_numpy()
        counts = found.membership.groupby("id").size()
        assert counts.to_dict() == dict(zip(*np.unique(group, return_counts=True), strict=True))
    sides = {one: set(of_id[group == one]) for one in np.unique(group)}
    assert all(len(side) == 1 for side in sides.values())
    number = sum(side == {"discovery"} for side in sides.values())
    assert stats.binomtest(number, len(sides), 0.7).pvalue > 1e-3


@pytest.mark.slow
def test_without_ids_positions_decide(table, tmp_path):
    one = ran(tmp_path, "one", table, example_id=None)
    cut = ran(tmp_path, "cut", table, example_id=None, chunk_rows=71)
    assert split_of(one).equals(split_of(cut))
    assert one.membership["id"].tolist() == list(range(table.num_rows))


def test_losses_of_tested_examples_shape_nothing(table, found, tmp_path):
    evaluated = (split_of(found)[table.column("id").to_pylist()] == "evaluation").to_numpy()
    rng, other = np.random.default_rng(1), table
    for column in ("loss_new", "loss_old"):
        values = table.column(column).to_numpy().copy()
        values[evaluated] = rng.permutation(values[evaluated]) * 3 + 1
        other = with_columns(other, **{column: values})
    found_again = ran(tmp_path, "other", other, features=("source",))
    assert found_again.mixture.keys() == found.mixture.keys()
    for name, values in found.mixture.items():
        np.testing.assert_array_equal(found_again.mixture[name], values)
    assert found_again.membership.equals(found.membership)
    fingerprint = found.document["discovery"]["mixture_fingerprint"]
    assert found_again.document["discovery"]["mixture_fingerprint"] == fingerprint
    assert not np.allclose(found_again.table["delta"], found.table["delta"], atol=0.01)
    # Those of the others do shape it.
    values = table.column("loss_new").to_numpy().copy()
    values[~evaluated] = rng.permutation(values[~evaluated])
    shaped = ran(tmp_path, "shaped", with_columns(table, loss_new=values))
    means = "cluster@5/loss_means0"
    assert not np.array_equal(shaped.mixture[means], found.mixture[means])


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
