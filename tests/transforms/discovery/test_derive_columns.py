from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import logsumexp

from slicebeam.pipelines.commands.cli import run
from tests.conftest import slow
from tests.discover_runs import embeddings, written
from tests.end_to_end import test_discover_end_to_end
from tests.oracles import discover_oracle as oracle
from tests.pipelines.discovery.test_discover_data import (
    GROUPS,
    ROWS,
    TABLE,
    found_in,
    groups,
    vectors,
    with_columns,
)

world = test_discover_end_to_end.world


def test_every_example_is_of_the_component_that_its_embedding_makes_most_likely(world):
    rows, K = world.found.membership, len(world.case.components)
    table = world.found.table
    components = table[table["slice"].str.fullmatch(r"cluster@\d+ = \d+")]
    named = dict(zip(components["slice_id"], components["slice"], strict=True))
    assert len(rows) == K * len(world.z)
    told = world.found.document["discovery"]
    assert told["evaluation_examples"] == world.tested.sum() == world.found.document["dataset"]["n"]
    assert told["discovery_examples"] == world.shaping.sum()
    assert world.tested.all() == (world.loss_weight == 0)
    for field_name, joint in world.joints.items():
        r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        names = {one: text for one, text in named.items() if text.startswith(f"{field_name} =")}
        own = rows[rows["slice_id"].isin(list(names))]
        at = dict(zip(world.table.column("id").to_pylist(), range(len(r)), strict=True))
        places = own["id"].map(at).to_numpy()
        component = world.components[field_name]
        listed = [int(text.split(" = ")[1]) for text in names.values()]
        assert len(own) == np.isin(component, listed).sum()
        assert [named[one] for one in own["slice_id"]] == [
            f"{field_name} = {one}" for one in component[places]
        ]
        expected = r[places, component[places]]
        np.testing.assert_allclose(own["responsibility"], expected, rtol=1e-6, atol=1e-9)
        assert own["log_odds"].dtype == np.float64
        np.testing.assert_allclose(
            own["log_odds"], oracle.log_odds(joint)[places, component[places]], rtol=1e-7, atol=1e-7
        )
        # Else any responsibility near 1 would do.
        assert (r.max(axis=1) < 0.99).any()
    split = rows.groupby("id", sort=False)["split"].nunique()
    assert (split == 1).all()
    assert split.index.tolist() == world.table.column("id").to_pylist()
    kinds = {"discovery", "evaluation"} if world.loss_weight else {"all"}
    assert set(rows["split"]) == kinds


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


@pytest.mark.parametrize(("dimensions", "scale"), [
    (2, 1e36), slow(128, 1e36), slow(128, 1e19),
])  # fmt: skip
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
