"""Columns that are derived from mixtures, by direct computation."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from tests.end_to_end import test_discover_end_to_end
from tests.oracles import discover_oracle as oracle

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
