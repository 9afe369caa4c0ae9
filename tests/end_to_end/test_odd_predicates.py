"""Predicates that looked right: intervals without a value, and zeros with a sign."""

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.running import read

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
