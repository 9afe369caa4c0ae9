from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from tests.end_to_end import test_discover_end_to_end

world = test_discover_end_to_end.world


def test_reported_slices_tell_how_they_changed(world):
    slices = world.found.document["slices"]
    sign = -1 if world.is_accuracy else 1
    overall, rows = world.D.mean(), world.found.table.set_index("slice_id")
    for one in slices:
        predicate, told = one["definition"]["predicate"], one["found"]
        held = world.held(predicate)
        D = world.D[held]
        mean = D.mean() - (0.0 if world.has_old else overall)
        assert one["size"]["n"] == D.size
        assert told["z"] == pytest.approx(world.z_of_changes(held), rel=1e-9)
        (change,) = one["changes"]
        assert change["n"] == D.size
        assert change["delta"]["value"] == pytest.approx(-sign * mean, abs=1e-9)
        assert change["delta"]["lo"] < change["delta"]["value"] < change["delta"]["hi"]
        assert change["direction"] == ("improved" if mean > 0 else "degraded")
        row = rows.loc[one["slice_id"]]
        assert (change["p_value"], change["after"]["value"]) == (row["p_value"], row["value"])
        if world.has_old:
            assert change["before"]["value"] == row["reference"]
            counts = (told["improved"], told["degraded"], told["tied"])
            assert counts == tuple(map(np.count_nonzero, (D > 0, D < 0, D == 0)))
            assert told["opposite_to_global"] == (mean * overall < 0)
        else:
            assert not {"improved", "degraded", "tied"} & set(told)
            assert not told["opposite_to_global"]
        names = {condition["field"] for condition in predicate["all"]}
        assert one["origin"]["method"] == (
            "mixture" if names & set(world.joints) else "metadata_search"
        )


def test_shown_examples_are_the_most_typical_and_the_most_changed(world):
    positions = np.flatnonzero(world.tested)
    ids = world.table.column("id").to_pylist()
    shift = 0.0 if world.has_old else -world.D.mean()
    shown, slices = 0, world.found.document["slices"]
    for one in [one for one in slices if one.get("found", {}).get("examples")]:
        predicate = one["definition"]["predicate"]
        held, odds = world.held(predicate), world.odds(predicate)
        change = world.D + shift
        wanted = {
            "representative": np.lexsort((positions, -odds)),
            "boundary": np.lexsort((positions, odds)),
            "improved": np.lexsort((positions, -odds, -change)),
            "degraded": np.lexsort((positions, -odds, change)),
        }
        for role, order in wanted.items():
            among = held.copy()
            if role in ("improved", "degraded"):
                among &= change > 0 if role == "improved" else change < 0
            best = order[among[order]][:10]
            told = [each for each in one["found"]["examples"] if each["role"] == role]
            assert len(told) == len(best)
            at = np.searchsorted(positions, [each["row"] for each in told])
            assert held[at].all()
            # The same but for what rounding makes of equals.
            np.testing.assert_allclose(odds[at], odds[best], rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(change[at], change[best], rtol=1e-9, atol=1e-12)
            for each, place in zip(told, at, strict=True):
                shown += 1
                assert each["id"] == ids[each["row"]]
                assert each["change"] == pytest.approx(change[place], abs=1e-9)
                assert each["membership"] == pytest.approx(expit(odds[place]), rel=1e-7)
                row = world.frame.iloc[place]
                assert each["display"] == {
                    name: row[name] for name in world.case.options.get("features", ())
                }
    assert shown > 20
