"""``--metric loss``: columns of losses that a search, a check or a discovery averages."""

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.conftest import slow
from tests.running import read, refused, rows_of, search

ROWS = 300


def examples():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, ROWS),
            "sex": rng.choice(["F", "M"], ROWS),
            "label": rng.choice(["no", "yes"], ROWS),
            "new": rng.gamma(2.0, 0.3, ROWS),
            "old": rng.gamma(2.0, 0.2, ROWS),
            "zero": 0.0,
            "weight": rng.choice([0.5, 1.0, 3.0], ROWS),
        }
    )
    frame.loc[frame["sex"] == "F", "new"] += 0.5
    frame["prediction"] = np.where(rng.random(ROWS) < 0.8, frame["label"], "no")
    return frame


OPTIONS = {"features": "age,sex", "min_slice_size": 5, "alternative": "both"}
NUMBERS = ["slice", "n", "value", "reference", "delta", "ci_low", "ci_high", "p_value", "q_value"]
NUMBERS += ["significant", "test", "reason"]


def searched(folder, frame, **options):
    path = folder / "e.parquet"
    frame.to_parquet(path)
    given = {**OPTIONS, **options}
    given["features"] = tuple(given["features"].split(","))
    return search(folder / "out", data=path, **given)


@pytest.mark.parametrize("options", [{}, slow({"weight": "weight"})], ids=["plain", "weighted"])
def test_a_loss_is_what_an_error_is(options, tmp_path):
    """Of a label 0 the absolute error is the prediction itself, so that all numbers are the same."""
    frame = examples()
    losses = searched(tmp_path, frame, loss="new", baseline_loss="old", **options).table
    roles = {"label": "zero", "prediction": "new", "baseline_prediction": "old"}
    errors = searched(tmp_path, frame, metric=("mae",), **roles, **options).table
    pd.testing.assert_frame_equal(losses[NUMBERS], errors[NUMBERS])


@pytest.mark.parametrize("kind", ["decimal", *map(slow, ("whole", "boolean", "single"))])
def test_numbers_of_any_type(kind, tmp_path):
    frame = examples()
    tenths = (frame["new"] * 4).astype(int)
    same = frame.assign(new=tenths.astype(float) if kind != "boolean" else (tenths > 1) * 1.0)
    expected = searched(tmp_path, same, loss="new").table
    other = {
        "whole": tenths.astype("int8"),
        "boolean": tenths > 1,
        "decimal": [Decimal(int(one)) for one in tenths],
        "single": tenths.astype("float32"),
    }[kind]
    found = searched(tmp_path, frame.assign(new=other), loss="new").table
    pd.testing.assert_frame_equal(found[NUMBERS], expected[NUMBERS])


def test_losses_beside_another_metric(tmp_path):
    frame = examples()
    both = {"metric": ("accuracy", "loss"), "label": "label", "prediction": "prediction"}
    found = searched(tmp_path, frame, loss="new", **both)
    right = (frame["label"] == frame["prediction"]).to_numpy()
    told = {one["name"]: one for one in found.document["slices"]}
    alone = searched(tmp_path, frame, loss="new").table.set_index("slice")
    tables = found.table.set_index(["metric", "slice"])
    for row, held in rows_of(found, frame[["age", "sex"]]):
        if row.metric == "accuracy":
            assert row.value == pytest.approx(right[held].mean(), rel=1e-12)
            other = tables.loc[("loss", row.slice)]
            assert other["value"] == alone.loc[row.slice, "value"]
    assert all(len(one["changes"]) == 2 for one in told.values())


@pytest.mark.parametrize(("slope", "code"), [(1, 1), (-1, 0)])
def test_the_gate_sees_constants(slope, code, tmp_path):
    """Neither a constant change nor two constants pass for no difference."""
    frame = examples()
    frame["old"] = 0.5
    frame["new"] = 0.5 + slope * 0.25 * (frame["sex"] == "F")
    frame.to_parquet(tmp_path / "e.parquet")
    arguments = ["search", "--data", str(tmp_path / "e.parquet"), "--features", "sex", "--quiet"]
    arguments += ["--loss", "new", "--fail-on", "worse", "--output", str(tmp_path / "out")]
    assert run([*arguments, "--baseline-loss", "old"]) == code
    # Held against all examples, either women's or men's losses are larger.
    assert run([*arguments, "--compare", "overall", "--output", str(tmp_path / "alone")]) == 1


def test_a_check_takes_the_losses_over(tmp_path):
    frame = examples()
    first = searched(tmp_path, frame, loss="new", baseline_loss="old")
    document = str(tmp_path / "out" / "changelist.json")
    check = ["check", "--changelist", document, "--data", str(tmp_path / "e.parquet"), "--quiet"]
    assert run([*check, "--output", str(tmp_path / "new")]) == 0
    checked = {one["slice_id"]: one for one in read(tmp_path / "new").document["slices"]}
    assert first.document["slices"]
    for one in first.document["slices"]:
        assert checked[one["slice_id"]]["changes"][0]["delta"] == one["changes"][0]["delta"]
    # Other losses, of one model.
    other = ["--output", str(tmp_path / "new"), "--loss", "old", "--compare", "overall"]
    assert run([*check, *other]) == 0
    for row, held in rows_of(read(tmp_path / "new"), frame):
        assert row.value == pytest.approx(frame["old"][held].mean(), rel=1e-12)


def test_losses_of_new_data_are_needed(tmp_path, capsys):
    frame = examples()
    searched(tmp_path, frame, loss="new", baseline_loss="old")
    frame.drop(columns="old").to_parquet(tmp_path / "new.parquet")
    check = ["check", "--changelist", str(tmp_path / "out" / "changelist.json")]
    check += ["--data", str(tmp_path / "new.parquet"), "--output", str(tmp_path / "checked")]
    said = refused(check, capsys, folder=tmp_path)
    assert said.startswith("--baseline-loss: unknown column 'old'")
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert document["provenance"]["config"]["metric"] == ["loss"]
