"""What ``slicebeam discover`` publishes, against the formulas of discovery on all examples at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.discover_runs import Discovered, discover, embeddings, examples, written
from tests.oracles import discover_oracle as oracle
from tests.oracles.mixture_oracle import log_joint
from tests.oracles.significance import benjamini_hochberg

CLASSES = {"label": "label", "prediction": "new", "baseline_prediction": "old"}
LOSSES = {"loss": "loss_new", "baseline_loss": "loss_old"}
ZERO_ONE = {"loss": "wrong_new", "baseline_loss": "wrong_old"}
SEED = 5


@dataclass(frozen=True)
class Case:
    """A run: what it is told, and how its data is stored."""

    options: dict[str, Any]
    stored: str = "list<double>"
    components: tuple[int, ...] = (6,)
    data: int = 3


CASES = {
    "accuracy, two resolutions": Case(CLASSES, components=(4, 9)),
    "accuracy of one model": Case({"label": "label", "prediction": "new"}, "fixed_size_list<float>"),
    "losses, principal components": Case({**LOSSES, "dimensions": 3}, "JSON Lines"),
    "losses of one model": Case({"loss": "loss_new"}, "several files"),
    "losses of 0 and 1": Case(ZERO_ONE, "float16"),
    "features crossed": Case({**CLASSES, "features": ("source", "length"), "max_cross_size": 2}, "small row groups"),
    "groups": Case({**CLASSES, "group": "author"}, "float16"),
    "told of classes": Case({**CLASSES, "loss_weight": 1.0, "discovery_share": 0.5}, components=(5, 8)),
    "told of losses": Case({**LOSSES, "loss_weight": 10.0, "dimensions": 4}, "several files"),
    "told of one model's losses": Case({"loss": "loss_new", "loss_weight": 1.0, "discovery_share": 0.4}),
    "told of losses of 0 and 1": Case({**ZERO_ONE, "loss_weight": 2.0}),
}  # fmt: skip


def stored(folder, table, kind):
    at, z = table.schema.get_field_index("z"), embeddings(table)
    if kind == "JSON Lines":
        path = folder / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), "utf-8")
        return (str(path),)
    if kind == "several files":
        edges = [0, 1, 300, 450, len(z)]
        return tuple(
            written(folder / f"{number}.parquet", table.slice(begin, end - begin))
            for number, (begin, end) in enumerate(pairwise(edges))
        )
    if kind == "float16":
        halves = [one.astype(np.float16) for one in z]
        table = table.set_column(at, "z", pa.array(halves, pa.list_(pa.float16())))
    elif kind == "fixed_size_list<float>":
        flat = pa.array(z.ravel(), pa.float32())
        table = table.set_column(at, "z", pa.FixedSizeListArray.from_arrays(flat, z.shape[1]))
    how = {"row_group_size": 77} if kind == "small row groups" else {}
    return (written(folder / "data.parquet", table, **how),)


@dataclass
class World:
    """A run, and what the formulas make of the same examples."""

    case: Case
    table: pa.Table
    found: Discovered

    @property
    def loss_weight(self):
        return float(self.case.options.get("loss_weight", 0.0))

    @property
    def has_old(self):
        return "baseline_loss" in self.case.options or "baseline_prediction" in self.case.options

    @property
    def is_accuracy(self):
        return "label" in self.case.options

    @property
    def is_zero_one(self):
        return self.is_accuracy or self.case.options["loss"].startswith("wrong")

    @cached_property
    def losses(self):
        frame, options = self.table.to_pandas(), self.case.options
        if self.is_accuracy:
            names = [options["prediction"], options.get("baseline_prediction")][: 1 + self.has_old]
            return [(frame[name] != frame[options["label"]]).to_numpy(float) for name in names]
        names = [options["loss"], options.get("baseline_loss")][: 1 + self.has_old]
        return [frame[name].to_numpy(float) for name in names]

    @cached_property
    def D(self):
        """Change of the tested examples; of one model minus its loss."""
        change = self.losses[1] - self.losses[0] if self.has_old else -self.losses[0]
        return change[self.tested]

    @cached_property
    def z(self):
        return embeddings(self.table)

    @cached_property
    def x(self):
        return oracle.coordinates(self.z, self.found.mixture)

    @cached_property
    def tested(self):
        """Which examples are tested; the hash that decides is tested in test_embeddings."""
        told = self.found.membership.drop_duplicates("id").set_index("id")["split"]
        return np.isin(told[self.table.column("id").to_pylist()].astype(str), ["all", "evaluation"])

    @cached_property
    def shaping(self):
        return ~self.tested if self.loss_weight else np.ones(len(self.z), bool)

    @cached_property
    def fits(self):
        told = [loss[self.shaping] for loss in self.losses] if self.loss_weight else []
        how = {"zero_one": self.is_zero_one, "loss_weight": self.loss_weight}
        x = self.x[self.shaping]
        return {
            f"cluster@{k}": oracle.fitted(x, told, k, SEED, **how) for k in self.case.components
        }

    @cached_property
    def joints(self):
        """Of every example, from its embedding alone."""
        return {name: log_joint(fit, self.x) for name, (fit, _) in self.fits.items()}

    @cached_property
    def components(self):
        return {name: joint.argmax(axis=1) for name, joint in self.joints.items()}

    @cached_property
    def frame(self):
        frame = self.table.to_pandas()
        for name, component in self.components.items():
            frame[name] = component.astype(str)
        return frame[self.tested].reset_index(drop=True)

    def held(self, predicate):
        return oracle.held_by(self.frame, predicate)

    def odds(self, predicate):
        """How typical tested examples are of a slice: the least of its components' log odds."""
        each = [
            oracle.log_odds(self.joints[one["field"]])[self.tested, int(one["value"])]
            for one in predicate["all"]
            if one["field"] in self.joints
        ]
        return np.min([*each, np.full(len(self.D), np.finfo(np.float64).max)], axis=0)

    def z_of_changes(self, held):
        return oracle.z_of_changes(self.D[held], of=0.0 if self.has_old else self.D.mean())

    def p(self, held):
        """Return the p-value of a slice; None for a test that other tests know."""
        if "group" in self.case.options:
            return None
        new, *old = (loss[self.tested] for loss in self.losses)
        if self.is_accuracy and old:
            return oracle.p_accuracy(new > 0, old[0] > 0, held)
        if self.is_accuracy:
            return oracle.p_error(new > 0, held)
        return oracle.p_paired(self.D, held) if old else None


_WORLDS = {}
LONGER = {name for name in CASES if name.startswith("losses of") or name.endswith("0 and 1")}
LONGER |= {"told of one model's losses"}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in LONGER else []) for name in CASES]
)
def world(request, tmp_path_factory):
    name = request.param
    if name not in _WORLDS:
        case = CASES[name]
        folder = tmp_path_factory.mktemp("discover")
        table = examples(case.data, n=700, apart=1.0)
        options = {"embedding": "z", "example_id": "id", "seed": SEED, "chunk_rows": 250}
        options |= {"components": case.components, **case.options}
        found = discover(folder / "out", data=stored(folder, table, case.stored), **options)
        _WORLDS[name] = World(case, table, found)
    return _WORLDS[name]


def test_mixtures_are_those_of_em(world):
    arrays, told = world.found.mixture, world.found.document["discovery"]
    assert told["loss_weight"] == world.loss_weight
    assert [name for name in arrays if name.startswith("encoder/")] == []
    assert list(world.fits) == list(world.found.resolutions)
    for name, (fit, history) in world.fits.items():
        own = world.found.resolutions[name]
        assert own["iterations"] == len(history) > 2
        assert own["converged"]
        assert own["mean_log_likelihood"] == pytest.approx(history[-1], rel=1e-11)
        wanted = fit.arrays()
        own = {one for one in arrays if one.startswith(f"{name}/")}
        assert own == {f"{name}/{one}" for one in wanted}
        for part, values in wanted.items():
            assert arrays[f"{name}/{part}"].dtype == np.float64
            np.testing.assert_allclose(
                arrays[f"{name}/{part}"], values, rtol=1e-8, atol=1e-10, err_msg=f"{name} {part}"
            )


def test_table_of_slices_is_counted_and_tested_right(world):
    table, testing = world.found.table, world.found.document["testing"]
    sign = -1 if world.is_accuracy else 1
    levels = world.case.options.get("max_cross_size", 1)
    for row in table.itertuples():
        held = world.held(row.predicate)
        assert row.n == held.sum() >= 20
        assert row.share == pytest.approx(held.mean(), rel=1e-12)
        of_new = world.losses[0][world.tested]
        value, whole = of_new[held].mean(), of_new.mean()
        reference = world.losses[1][world.tested][held].mean() if world.has_old else whole
        assert row.delta == pytest.approx(sign * (value - reference), abs=1e-9)
        assert row.value == pytest.approx(1 - value if world.is_accuracy else value, rel=1e-9)
        if not world.has_old:
            rest = of_new[~held].mean()
            assert row.complement == pytest.approx(
                1 - rest if world.is_accuracy else rest, rel=1e-9
            )
        p = world.p(held)
        if p is not None:
            # All changes are kept in bins.
            error = 0.01 if world.has_old and not world.is_accuracy else 1e-6
            assert row.p_value == pytest.approx(p, rel=error, abs=1e-300), row.slice
    for level in range(1, levels + 1):
        own = table[table["cross_size"] == level]
        assert len(own) == testing["tested_per_level"][level - 1] >= 3
        tests = testing["family_per_level"][level - 1]
        q = benjamini_hochberg(own["p_value"], tests, levels)
        np.testing.assert_allclose(own["q_value"], q, rtol=1e-12)
    np.testing.assert_array_equal(table["significant"], table["q_value"] <= 0.05)
    assert testing["significant"] == table["significant"].sum()
    singles = table[table["cross_size"] == 1]
    for name, component in world.components.items():
        sizes = np.bincount(component[world.tested])
        assert len(singles[singles["slice"].str.startswith(f"{name} =")]) == (sizes >= 20).sum()
        assert world.found.resolutions[name]["nonempty"] == np.count_nonzero(sizes)


def test_coverage_of_the_slices_is_that_of_a_regression_on_tested_examples(world):
    document = world.found.document
    (own,) = document["coverage"]
    slices = document["slices"][:200]
    assert own["slices"] == len(slices) > 0
    members = [world.held(one["definition"]["predicate"]) for one in slices]
    X = np.column_stack([np.ones(len(world.D)), np.transpose(members)]).astype(float)
    left = world.D - X @ np.linalg.lstsq(X, world.D, rcond=None)[0]
    assert own["r2"] == pytest.approx(1 - left.var() / world.D.var(), rel=1e-8)
    rank = np.linalg.matrix_rank(X) - 1
    assert own["r2_expected"] == pytest.approx(rank / (len(world.D) - 1), rel=1e-12)


def test_significant_slices_are_reported_once_in_the_order_of_z(world):
    slices, table = world.found.document["slices"], world.found.table
    called = table[table["significant"]].set_index("slice_id")
    assert len(slices) == world.found.document["search"]["reported"] > 0
    assert {one["slice_id"] for one in slices} <= set(called.index)
    own = [world.held(one["definition"]["predicate"]) for one in slices]
    kinds = {held.tobytes() for held in own}
    assert len(kinds) == len(slices)
    if world.case.options.get("max_cross_size", 1) == 1:
        assert kinds == {world.held(text).tobytes() for text in called["predicate"]}
    z = [world.z_of_changes(held) for held in own]
    assert z == pytest.approx(sorted(z, reverse=True), rel=1e-9)


@pytest.mark.slow
def test_weights_count_in_metrics_and_not_in_mixtures(tmp_path):
    table = examples(3, n=500, apart=1.0)
    told = {**LOSSES, "embedding": "z", "example_id": "id", "components": (5,), "seed": SEED}
    data = (written(tmp_path / "data.parquet", table),)
    weighted = discover(tmp_path / "weighted", data=data, weight="weight", **told)
    plain = discover(tmp_path / "plain", data=data, **told)
    assert {*weighted.mixture} == {*plain.mixture}
    for name, values in plain.mixture.items():
        np.testing.assert_array_equal(values, weighted.mixture[name])
    assert weighted.membership.equals(plain.membership)
    frame = table.to_pandas()
    component = plain.membership.set_index("id")["slice_id"].loc[frame["id"]].to_numpy()
    for row in weighted.table.itertuples():
        own = frame[component == row.slice_id]
        new, old = (np.average(own[name], weights=own["weight"]) for name in LOSSES.values())
        assert row.n == len(own)
        assert (row.value, row.reference) == pytest.approx((new, old), rel=1e-6)
        assert row.delta == pytest.approx(new - old, abs=1e-6)
    assert len(weighted.table) == 5
    assert not np.allclose(weighted.table["delta"], plain.table["delta"], atol=1e-3)
