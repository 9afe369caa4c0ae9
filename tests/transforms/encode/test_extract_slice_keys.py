import pandas as pd
import pytest

from slicebeam.pipelines.commands.cli import run
from tests.end_to_end.test_wrong_input import MANY, ROLES, saved, two_models, warnings, with_zeros
from tests.running import read, search


@pytest.mark.parametrize("metric", [("accuracy",), ("auc", "log_loss"), ("f1_macro",), ("mae",)])
def test_models_that_agree_everywhere_are_noted(tmp_path, metric):
    frame = two_models().assign(copy=lambda one: one["pred"], score2=lambda one: one["score"])
    options = ROLES | {"metric": metric, "baseline_prediction": "copy", "chunk_rows": 100}
    options |= {"features": ("place",)}
    if metric[0] == "auc":
        options |= {"score": "score", "baseline_score": "score2", "replicates": 10}
    said = "The two models agree on every example, so nothing can have changed."
    found = search(tmp_path / "out", data=saved(tmp_path, frame), **options)
    assert said in warnings(found)
    frame.loc[MANY - 1, "copy"] = 1 - frame.loc[MANY - 1, "copy"]
    frame.loc[MANY - 1, "score2"] = 0.5
    found = search(tmp_path / "other", data=saved(tmp_path, frame), **options)
    assert said not in warnings(found)


FLAGS = ("--label=label", "--prediction=pred", "--quiet")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_negative_zero_in_data_makes_the_same_slices(tmp_path, kind):
    found = {}
    for name, zero in (("plus", 0.0), ("minus", -0.0)):
        frame = with_zeros(zero)
        path = tmp_path / f"{name}.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        assert run(["search", f"--data={path}", *FLAGS, f"--output={tmp_path}/{name}"]) == 0
        found[name] = read(tmp_path / name).table
    assert "x = 0" in found["plus"]["slice"].tolist()
    pd.testing.assert_frame_equal(found["plus"], found["minus"])
