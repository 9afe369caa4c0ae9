import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from tests.discover_runs import discover, embeddings, examples, written
from tests.pipelines.discovery import test_discover_data
from tests.pipelines.discovery.test_discover_data import LOSSES, ROWS, TEXT, TEXTS
from tests.pipelines.discovery.test_discover_data import WITH_TEXT as TABLE
from tests.refusals import slow_where

refuse = test_discover_data.refuse
DOUBLES = pa.list_(pa.float64())


def changed(**columns):
    table = TABLE.drop_columns([name for name in columns if name in TABLE.schema.names])
    for name, values in columns.items():
        if values is not None:
            table = table.append_column(name, pa.array(values))
    return table


def with_vector(row, vector, kind=DOUBLES):
    vectors = embeddings(TABLE).tolist()
    vectors[row] = vector
    return changed(z=pa.array(vectors, kind))


def but(row, odd, usual):
    return pa.array([odd if at == row else usual for at in range(ROWS)])


def all_of(value, kind=None):
    return changed(z=pa.array([value] * ROWS, kind))


LENGTH = "all embeddings must have the same length"
FINITE = "embeddings must be finite numbers whose squares are too: leave the example out, or embed it again"
NUMBERS = "an embedding is a list of numbers, the same number for every example"
FILE = "DIR/data.parquet"
WRITE = "write Parquet or JSON Lines, or name a column"


# Name: the examples, and how the message begins.
VECTORS = {
    "short": (with_vector(7, [1.0, 2.0]), f"column 'z' has 2 numbers in row 8 of {FILE} and 4 in row 1; {LENGTH}"),
    "first is empty": (with_vector(0, []), f"column 'z' has 4 numbers in row 2 of {FILE} and 0 in row 1; {LENGTH}"),
    "all are empty": (all_of([], DOUBLES), f"column 'z' of {FILE} contains vectors without numbers"),
    "nan": (with_vector(7, [1.0, np.nan, 0, 0]), f"{FILE}: the embedding of row 8 has nan in dimension 1; {FINITE}"),
    "infinity": (with_vector(119, [1.0, 0, 0, -np.inf]), f"{FILE}: the embedding of row 120 has -inf in dimension 3; {FINITE}"),
    "null element": (with_vector(7, [1.0, None, 0, 0]), f"{FILE}: the embedding of row 8 has nan in dimension 1; {FINITE}"),
    "null element of whole numbers": (changed(z=pa.array([[1, 2], [3, None]] * 60, pa.list_(pa.int64()))), f"{FILE}: the embedding of row 2 has nan in dimension 1; {FINITE}"),
    "too large for single precision": (with_vector(7, [0, 0, -1e39, 0]), f"{FILE}: the embedding of row 8 has -1e+39 in dimension 2, too large for single"),
    "too large to be squared": (with_vector(7, [1.7e308, 0, 0, 0]), f"{FILE}: the embedding of row 8 has 1.7e+308 in dimension 0, too large for"),
    "null": (with_vector(7, None), f"column 'z' has no value in row 8 of {FILE}; drop such examples"),
    "null of fixed length": (with_vector(7, None, pa.list_(pa.float32(), 4)), f"{FILE}: a list of a column of fixed length has no value (Expected all lists to be of"),
    "all are null": (all_of(None, DOUBLES), f"column 'z' has no value in row 1 of {FILE}; drop such examples"),
    "no type": (changed(z=pa.nulls(ROWS)), f"--embedding: column 'z' is null; {NUMBERS}"),
    "text": (changed(z=TEXTS), f"--embedding: column 'z' is text; {NUMBERS}: {WRITE}"),
    "numbers": (changed(z=range(ROWS)), f"--embedding: column 'z' is int64; {NUMBERS}"),
    "lists of text": (all_of(["0.1"]), f"--embedding: column 'z' is list<element: string>; {NUMBERS}"),
    "lists of booleans": (all_of([True]), f"--embedding: column 'z' is list<element: bool>; {NUMBERS}"),
    "nested lists": (all_of([[0.5]]), f"--embedding: column 'z' is list<element: list<element: double>>; {NUMBERS}"),
    "structs": (all_of({"a": 0.5}), f"--embedding: column 'z' is struct<a: double>; {NUMBERS}"),
}  # fmt: skip
NO_WORD = "--encoder lsa: none of the 120 texts has a word of two letters or more"
ID = {"example_id": "id"}
COLUMNS = {
    "column of components": (changed(**{"cluster@3": ["x"] * ROWS}), {}, "the data has a column 'cluster@3', the name of the components; rename it"),
    "no example": (TABLE.slice(0, 0), {}, f"--data {FILE}: there are no examples in it; name files with some"),
    "one example": (TABLE.slice(0, 1), {"components": 2}, "--components 2 cannot be initialised from 1 examples; give fewer components or more data"),
    "loss nan": (changed(loss_new=but(33, np.nan, 0.5)), {}, f"column 'loss_new' has no value in row 34 of {FILE}; drop such examples or fill the"),
    "loss infinite": (changed(loss_old=but(33, np.inf, 0.5)), {}, f"column 'loss_old' holds inf in row 34 of {FILE}, which cannot be summed; drop such"),
    "losses that weigh, infinite": (changed(loss_old=but(33, np.inf, 0.5)), {"loss_weight": 1}, f"column 'loss_old' holds inf in row 34 of {FILE}"),
    "loss as text": (changed(loss_new=["0.5"] * ROWS), {}, "column 'loss_new' is string, but a loss is a number; name a numeric column"),
    "id null": (changed(id=but(5, None, 1)), ID, f"--example-id has no value in row 6 of {FILE}"),
    "id null, of a split": (changed(id=but(5, None, 1)), {**ID, "loss_weight": 1}, f"--example-id has no value in row 6 of {FILE}"),
    "id with fractions": (changed(id=np.arange(ROWS) / 2), ID, "--example-id column is double; an id is text or an integer"),
    "id true or false": (changed(id=np.arange(ROWS) % 2 == 0), ID, "--example-id column is bool; an id is text or an integer"),
    "text null": (changed(text=but(7, None, "a film")), TEXT, f"column 'text' has no text in row 8 of {FILE}; drop such examples"),
    "text without words": (changed(text=["!" * (row % 5 + 1) for row in range(ROWS)]), TEXT, f"{NO_WORD}; is --text the right"),
    "text empty": (changed(text=[""] * ROWS), TEXT, NO_WORD),
    "text all equal": (changed(text=["a film"] * ROWS), TEXT, "--encoder lsa: the 120 texts have the same words, so nothing distinguishes them"),
}  # fmt: skip


# Most of what these run through, others do.
SELDOM = {
    *("all are empty", "infinity", "null element of whole numbers", "too large to be squared"),
    *("all are null", "no type", "lists of booleans", "nested lists", "structs"),
    *("losses that weigh, infinite", "id with fractions", "text empty"),
}


@pytest.mark.parametrize("what", slow_where([*VECTORS, *COLUMNS], SELDOM))
def test_wrong_columns(what, refuse):
    table, *options, message = (VECTORS | COLUMNS)[what]
    assert refuse(data=table, **dict(*options)).startswith(message)


def test_the_row_is_that_of_the_file(tmp_path, refuse):
    """Whatever chunks and row groups it is read by."""
    said = refuse(chunk_rows=4, data=with_vector(102, [1.0, 2.0]))
    assert said.startswith(f"column 'z' has 2 numbers in row 103 of {FILE} and 4 in row 101;")
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=50)
    pq.write_table(with_vector(70, [np.nan] * 4), tmp_path / "b.parquet", row_group_size=50)
    said = refuse(data="[ab].parquet")
    assert said.startswith("DIR/b.parquet: the embedding of row 71 has nan in dimension 0")


def test_lengths_that_differ_between_chunks_and_files(tmp_path, refuse):
    vectors = embeddings(TABLE).tolist()
    half = [vector if row < 60 else vector[:3] for row, vector in enumerate(vectors)]
    told = "'z' has 3 dimensions in {} (from row {} of all) and 4 in {} (from row 1); " + LENGTH
    said = refuse(chunk_rows=60, data=changed(z=pa.array(half, DOUBLES)))
    assert said == told.format(FILE, 61, FILE)
    pq.write_table(TABLE, tmp_path / "a.parquet")
    short = changed(z=pa.array([vector[:3] for vector in vectors], DOUBLES))
    pq.write_table(short, tmp_path / "b.parquet")
    assert refuse(data="[ab].parquet") == told.format("DIR/b.parquet", 121, "DIR/a.parquet")


def test_vectors_in_text_files(tmp_path, refuse):
    lines = ["z,loss_new,loss_old", *['"[0.1, 0.2]",0.5,0.4'] * 30]
    (tmp_path / "e.csv").write_text("\n".join(lines))
    said = refuse(data="e.csv")
    assert said.startswith(f"--embedding: column 'z' is text; {NUMBERS}: write Parquet")
    good = {"z": [0.5, 1], "loss_new": 0.5, "loss_old": 0.4}
    for vector, message in {
        "[1]": f"column 'z' has 1 numbers in row 21 of DIR/e.jsonl and 2 in row 1; {LENGTH}",
        "null": "column 'z' has no value in row 21 of DIR/e.jsonl; drop such examples",
        '[1, "x"]': "DIR/e.jsonl, line 21: column 'z[]' holds the string \"x\", but a number in line 1",
        "[1, null]": "DIR/e.jsonl: the embedding of row 21 has nan in dimension 1",
    }.items():
        one = json.dumps({**good, "z": None}).replace('"z": null', f'"z": {vector}')
        (tmp_path / "e.jsonl").write_text("\n".join([*[json.dumps(good)] * 20, one]) + "\n")
        assert refuse(data="e.jsonl").startswith(message)


TOLD = {"embedding": "z", "components": (5,), "loss_weight": 1.0, "seed": 4}


def ran(folder, name, table, **options):
    data = (written(folder / f"{name}.parquet", table),)
    told = {"example_id": "id", **(LOSSES if "label" not in options else {}), **TOLD, **options}
    return discover(folder / name, data=data, **told)


def split_of(found):
    of_id = found.membership.groupby("id")["split"]
    assert (of_id.nunique() == 1).all()
    return of_id.first().astype(str)


def with_values(table, column, values):
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values))


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
    wanted = split_of(found)
    shaping = set(less.index[less == "discovery"])
    assert shaping < set(wanted.index[wanted == "discovery"])
    assert 0.3 < len(shaping) / table.num_rows < 0.5


@pytest.mark.parametrize("grouped", [False, True], ids=["ids", "groups"])
def test_what_goes_together_is_on_one_side(table, tmp_path, *, grouped):
    group = table.column("author").to_numpy()
    if grouped:
        found = ran(tmp_path, "groups", table, group="author")
        of_id = split_of(found)[table.column("id").to_pylist()].to_numpy()
    else:
        found = ran(tmp_path, "ids", with_values(table, "id", group), example_id="id")
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
        other = with_values(other, column, values)
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
    shaped = ran(tmp_path, "shaped", with_values(table, "loss_new", values))
    means = "cluster@5/loss_means0"
    assert not np.array_equal(shaped.mixture[means], found.mixture[means])
