"""Plots that a check writes, and a model that predicts for metrics of TFMA."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests import python_models
from tests.conftest import ADULT
from tests.pipelines.eval_config.oracle import ours, their_numbers
from tests.pipelines.eval_config.test_against_tfma import TWO_MODELS, adult

pytestmark = pytest.mark.tfma
PLOTS = """metrics_specs { metrics { class_name: "BinaryAccuracy" }
  metrics { class_name: "CalibrationPlot" config: '"num_buckets": 20' }
  metrics { class_name: "ConfusionMatrixPlot" } }
slicing_specs {} slicing_specs { feature_keys: "sex" }"""


def test_the_viewer_reads_the_plots(tmp_path, capsys):
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis.view import util

    frame = adult()[["label", "score", "score_old", "sex"]]
    config = TWO_MODELS + PLOTS
    their_numbers(frame, config, tmp_path)
    code, _ = ours(frame, config, tmp_path / "ours")
    assert code == 0
    out, folder = tmp_path / "ours" / "out", str(tmp_path / "exported")
    assert run(["export", "tfma", str(out), "--to", folder, "--quiet"]) == 0
    for mine, its in (("candidate", "new"), ("baseline", "old")):
        own = tfma.load_eval_result(folder, model_name=mine).plots
        theirs = dict(tfma.load_eval_result(str(tmp_path / "tfma"), model_name=its).plots)
        assert len(own) == len(theirs) == 3
        for key, found in own:
            for name, series in (
                ("calibrationHistogramBuckets", "buckets"),
                ("confusionMatrixAtThresholds", "matrices"),
            ):
                ours_, theirs_ = (one[""][""][name][series] for one in (found, theirs[key]))
                assert len(ours_) == len(theirs_) > 20
                for one, other in zip(ours_, theirs_, strict=True):
                    assert _numbers(one) == pytest.approx(_numbers(other), rel=1e-9, nan_ok=True)
        spec = tfma.slicer.SingleSliceSpec(features=[("sex", "Female")])
        data, settings = util.get_plot_data_and_config(own, spec)
        assert set(data) == {"calibrationHistogramBuckets", "confusionMatrixAtThresholds"}
        assert settings["sliceName"] == "sex:Female"
    # Without plots, those of the earlier export are gone.
    assert run(["search", "--data", str(ADULT), *SEARCH, "--output", str(out), "--quiet"]) == 0
    assert run(["export", "tfma", str(out), "--to", folder, "--quiet"]) == 0
    assert tfma.load_eval_result(folder).plots == []
    capsys.readouterr()


SEARCH = ("--label", "income", "--score", "score", "--features", "sex", "--min-slice-size", "1")


def _numbers(entry):
    return {
        f"{name}": float(value["value"] if isinstance(value, dict) else value)
        for name, value in entry.items()
        if not (isinstance(value, dict) and not value)
    }


def test_plots_that_are_gone_are_a_line(tmp_path, capsys):
    out, folder = tmp_path / "out", str(tmp_path / "exported")
    metric = ("--metric", "accuracy,tfma:CalibrationPlot")
    arguments = ["search", "--data", str(ADULT), *SEARCH, *metric, "--output", str(out)]
    assert run(arguments) == 0
    assert "plots are in plots.parquet" in capsys.readouterr().out
    for path in out.glob("plots*"):
        path.unlink()
    assert run(["export", "tfma", str(out), "--to", folder]) == 2
    assert "is gone; run it again" in capsys.readouterr().err


def checked(frame, folder, *options):
    folder.mkdir()
    frame.to_parquet(folder / "data.parquet")
    slices = [{"all": [{"field": "sex", "op": "==", "value": "Female"}]}]
    (folder / "slices.json").write_text(json.dumps(slices))
    arguments = ["check", "--data", str(folder / "data.parquet"), "--label", "label", *options]
    arguments += ["--slices", str(folder / "slices.json"), "--replicates", "3"]
    assert run([*arguments, "--output", str(folder / "out"), "--quiet"]) == 0
    return json.loads((folder / "out" / "changelist.json").read_text())["tfma_metrics"]


def test_a_model_predicts_as_its_column_does(tmp_path):
    frame = pd.read_parquet(ADULT).head(500).rename(columns={"hours-per-week": "hours"})
    frame["label"] = frame["income"].astype(np.int64)
    frame = frame[["age", "hours", "sex", "label"]].reset_index(drop=True)
    own = frame.assign(
        new=python_models.probability(frame), old=python_models.old_probability(frame)
    )
    metric = ("--metric", "accuracy,tfma:AUC,tfma:Hinge")
    columns = checked(
        own, tmp_path / "columns", "--score", "new", "--baseline-score", "old", *metric
    )
    names = ("tests.python_models:probability", "tests.python_models:old_probability")
    models = ("--model", names[0], "--baseline-model", names[1], *metric)
    assert checked(own, tmp_path / "models", *models) == columns
    assert len(columns) == 2
    assert columns[0]["overall"]["value"] != columns[0]["overall_before"]["value"]
    # A score for each of three classes.
    three = frame.assign(label=np.arange(len(frame)) % 3)
    scores = python_models.of_each_class(frame)
    metric = ("--metric", "accuracy,tfma:SparseCategoricalAccuracy")
    (found,) = checked(
        three, tmp_path / "classes", "--model", "tests.python_models:of_each_class", *metric
    )
    right = scores.argmax(axis=1) == three["label"]
    assert found["overall"]["value"] == pytest.approx(right.mean(), rel=1e-6)
    of_women = found["slices"][0]["after"]["value"]
    assert of_women == pytest.approx(right[frame["sex"] == "Female"].mean(), rel=1e-6)
