"""How examples are split into those that shape mixtures and those that are tested."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from tests.discover_runs import discover, examples, written
from tests.pipelines.discovery.test_discover_degenerate import LOSSES

TOLD = {"embedding": "z", "components": (5,), "loss_weight": 1.0, "seed": 4}


def ran(folder, name, table, **options):
    data = (written(folder / f"{name}.parquet", table),)
    told = {"example_id": "id", **(LOSSES if "label" not in options else {}), **TOLD, **options}
    return discover(folder / name, data=data, **told)


def split_of(found):
    of_id = found.membership.groupby("id")["split"]
    assert (of_id.nunique() == 1).all()
    return of_id.first().astype(str)


def changed(table, column, values):
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
        found = ran(tmp_path, "ids", changed(table, "id", group), example_id="id")
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
        other = changed(other, column, values)
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
    shaped = ran(tmp_path, "shaped", changed(table, "loss_new", values))
    means = "cluster@5/loss_means0"
    assert not np.array_equal(shaped.mixture[means], found.mixture[means])
