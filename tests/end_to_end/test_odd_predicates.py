"""Predicates that looked right: intervals without a value, and zeros with a sign."""

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.running import read, refused

ROLES = ("--label=label", "--prediction=pred", "--quiet")


def examples(zero=0.0):
    rng = np.random.default_rng(6)
    x = rng.choice([-2.5, zero, 0.5, 3.0], 600)
    label = rng.integers(0, 2, 600)
    return pd.DataFrame({"x": x, "label": label, "pred": np.where(x == 3, 1 - label, label)})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    examples().to_parquet(path)
    return path


def test_an_empty_interval_is_an_error(data, tmp_path, capsys):
    for written in ("x in [2, 1)", "{all: [{field: x, op: between, value: [2, 1]}]}"):
        (tmp_path / "slices.yaml").write_text(f"- x < 1\n- {written}\n")
        flags = [f"--data={data}", f"--slices={tmp_path}/slices.yaml", *ROLES]
        said = refused(["check", *flags, f"--output={tmp_path}/out"], capsys, folder=tmp_path)
        assert said == (
            "--slices DIR/slices.yaml, slice 2: column 'x': 'x in [2, 1)' contains no value, "
            "because the bounds are swapped; write 'x in [1, 2)'"
        )
    search = ["search", f"--data={data}", *ROLES, f"--output={tmp_path}/found"]
    said = refused([*search, "--explain=x in [2, 1)"], capsys, folder=tmp_path)
    assert "'x in [2, 1)' contains no value" in said
    assert run([*search, "--quiet"]) == 0
    define = ["define", f"--changelist={tmp_path}/found", "--name=none", "--where=x in [2, 2)"]
    said = refused(define, capsys, folder=tmp_path)
    assert said == (
        "--where: 'x in [2, 2)' contains no value, because the upper bound is not part of the interval; write 'x = 2'"
    )


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_negative_zero_in_data_makes_the_same_slices(tmp_path, kind):
    found = {}
    for name, zero in (("plus", 0.0), ("minus", -0.0)):
        frame = examples(zero)
        path = tmp_path / f"{name}.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        assert run(["search", f"--data={path}", *ROLES, f"--output={tmp_path}/{name}"]) == 0
        found[name] = read(tmp_path / name).table
    assert "x = 0" in found["plus"]["slice"].tolist()
    pd.testing.assert_frame_equal(found["plus"], found["minus"])


def test_negative_zero_in_a_slice_is_the_same_slice(data, tmp_path):
    ids = []
    for name, written in (("plus", "0.0"), ("minus", "-0.0")):
        predicates = f"- x = {written}\n- {{field: x, op: '>=', value: {written}}}\n"
        (tmp_path / f"{name}.yaml").write_text(predicates)
        flags = [f"--data={data}", f"--slices={tmp_path}/{name}.yaml", *ROLES]
        assert run(["check", *flags, f"--output={tmp_path}/{name}"]) == 0
        ids.append(read(tmp_path / name).table["slice_id"].tolist())
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2
