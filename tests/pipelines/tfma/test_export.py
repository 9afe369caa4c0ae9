"""What TensorFlow Model Analysis itself reads from a folder that was exported."""

import json
import sys
from pathlib import Path

import pytest

from slicebeam.pipelines.cli import run
from tests.conftest import ADULT
from tests.pipelines.tfma.tfma_runs import (
    BY_SEX,
    ONE_MODEL,
    TWO_MODELS,
    adult,
    metrics,
    ours,
    theirs,
)

pytestmark = pytest.mark.tfma
DATA = ["--data", str(ADULT), "--label", "income", "--features", "age,sex,occupation,race"]
NEW, OLD = ["--prediction", "prediction"], ["--baseline-prediction", "prediction_old"]


def exported(folder, *options):
    out = folder / "out"
    assert run(["search", *DATA, *NEW, *options, "--output", str(out), "--quiet"]) == 0
    assert run(["export", "tfma", str(out), "--to", str(folder / "tfma"), "--quiet"]) == 0
    return json.loads((out / "changelist.json").read_text()), str(folder / "tfma")


def key_of(folder, slice_id):
    index = json.loads(Path(folder, "slices.json").read_text())
    (found,) = [one["slice_key"] for one in index if one["slice_id"] == slice_id]
    return tuple((column, value) for column, value in found)


def test_one_model(tmp_path):
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis.view import util

    document, folder = exported(tmp_path)
    result = tfma.load_eval_result(folder)
    slices = document["slices"]
    metrics = dict(result.slicing_metrics)
    assert len(metrics) == len(slices) + 1 > 10
    overall = metrics[()][""][""]
    assert overall["example_count"] == {"doubleValue": document["dataset"]["n"]}
    assert overall["accuracy"]["boundedValue"]["value"] == document["global"][0]["after"]["value"]
    ops = set()
    for one in slices:
        ops |= {part["op"] for part in one["definition"]["predicate"]["all"]}
        found = result.get_metrics_for_slice(key_of(folder, one["slice_id"]))
        change = one["changes"][0]
        assert found["example_count"] == {"doubleValue": one["size"]["n"]}
        for name, part in (("accuracy", "after"), ("accuracy_delta", "delta")):
            bounds = found[name]["boundedValue"]
            assert bounds["value"] == change[part]["value"]
            ends = (change[part]["lo"], change[part]["hi"])
            assert (bounds["lowerBound"], bounds["upperBound"]) == ends
        assert found["accuracy_p_adjusted"]["doubleValue"] == change["p_adjusted"]
    assert {"==", "between"} <= ops
    first = document["findings"][0]
    found = result.get_metrics_for_slice(key_of(folder, first["slice_id"]))
    assert found["accuracy_finding_rank"]["doubleValue"] == 1
    # What the widget draws, without the widget.
    spec = tfma.slicer.SingleSliceSpec(columns=["age (range)"])
    drawn = util.get_slicing_metrics(result.slicing_metrics, slicing_spec=spec)
    assert {one["slice"].partition(":")[0] for one in drawn} == {"age (range)"}
    assert util.get_slicing_config(result.config) == {"weightedExamplesColumn": "example_count"}
    assert result.data_location == str(ADULT)


def test_validation_is_the_verdict(tmp_path):
    import tensorflow_model_analysis as tfma

    document, folder = exported(tmp_path)
    found = tfma.load_validation_result(folder)
    assert not found.validation_ok
    failed = {
        tfma.slicer.slicer_lib.deserialize_slice_key(one.slice_key): one.failures[0]
        for one in found.metric_validations_per_slice
        if one.slice_key.single_slice_keys
    }
    worse = [one for one in document["slices"] if one["changes"][0]["significant"]]
    assert set(failed) == {key_of(folder, one["slice_id"]) for one in worse}
    failure = failed[key_of(folder, worse[0]["slice_id"])]
    assert failure.metric_value.double_value.value == worse[0]["changes"][0]["delta"]["value"]
    assert "adjusted p" in failure.message
    # Nothing is found among slices that are too small.
    _, folder = exported(tmp_path / "none", "--min-slice-size", "4000", "--alpha", "1e-300")
    assert tfma.load_validation_result(folder).validation_ok


def test_two_models(tmp_path):
    import tensorflow_model_analysis as tfma

    document, folder = exported(tmp_path, *OLD, "--alternative", "both")
    one = document["slices"][0]
    change, key = one["changes"][0], key_of(folder, one["slice_id"])
    for model, part in (("candidate", "after"), ("baseline", "before")):
        result = tfma.load_eval_result(folder, model_name=model)
        value = result.get_metrics_for_slice(key)["accuracy"]["boundedValue"]["value"]
        assert value == change[part]["value"]
    result = tfma.load_eval_result(folder, model_name="candidate")
    diff = result.get_metrics_for_slice(key)["accuracy_diff"]["boundedValue"]
    assert diff["value"] == change["delta"]["value"]
    assert [spec.is_baseline for spec in result.config.model_specs] == [True, False]


def test_a_folder_of_somebody_else(tmp_path, capsys):
    _, folder = exported(tmp_path)
    out = str(tmp_path / "out")
    assert run(["export", "tfma", out, "--to", folder, "--quiet"]) == 0
    (tmp_path / "tfma" / "plots-00000-of-00002.tfrecord").touch()
    assert run(["export", "tfma", out, "--to", folder]) == 2
    assert "plots-00000-of-00002.tfrecord is there" in capsys.readouterr().err
    assert run(["export", "tfma", str(tmp_path / "nowhere"), "--to", folder]) == 2
    assert "OUTPUT" in capsys.readouterr().err


def test_without_tfma(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    assert run(["search", *DATA, *NEW, "--output", str(out), "--quiet"]) == 0
    monkeypatch.setitem(sys.modules, "tensorflow_model_analysis", None)
    assert run(["export", "tfma", str(out), "--to", str(tmp_path / "x")]) == 2
    assert "in the checkout, run pip install '.[tfma]'" in capsys.readouterr().err


PLOTS = metrics(
    "BinaryAccuracy", 'CalibrationPlot|"num_buckets": 20', "ConfusionMatrixPlot", "MeanLabel"
)


def test_the_viewer_reads_plots_and_numbers_of_tfma(tmp_path, capsys):
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis.view import util

    config = TWO_MODELS + PLOTS + BY_SEX
    output, _ = theirs(adult(), config, tmp_path)
    code, _ = ours(adult(), config, tmp_path / "ours")
    assert code == 0
    out, folder = tmp_path / "ours" / "out", str(tmp_path / "exported")
    assert run(["export", "tfma", str(out), "--to", folder, "--quiet"]) == 0
    for mine, its in (("candidate", "new"), ("baseline", "old")):
        result = tfma.load_eval_result(folder, model_name=mine)
        expected = tfma.load_eval_result(output, model_name=its)
        assert len(result.plots) == 3
        plots = dict(expected.plots)
        for key, found in result.plots:
            assert json.dumps(found, sort_keys=True) == json.dumps(plots[key], sort_keys=True)
        numbers = expected.get_metrics_for_all_slices()
        for key, found in result.get_metrics_for_all_slices().items():
            assert found["mean_label"] == numbers[key]["mean_label"]
        spec = tfma.slicer.SingleSliceSpec(features=[("sex", "Female")])
        data, settings = util.get_plot_data_and_config(result.plots, spec)
        assert set(data) == {"calibrationHistogramBuckets", "confusionMatrixAtThresholds"}
        assert settings["sliceName"] == "sex:Female"
    # Without plots, those of the earlier export are gone.
    assert run(["search", *DATA, *NEW, "--output", str(out), "--quiet"]) == 0
    assert run(["export", "tfma", str(out), "--to", folder, "--quiet"]) == 0
    assert tfma.load_eval_result(folder).plots == []


def test_messages_that_are_gone_are_a_line(tmp_path, capsys):
    code, _ = ours(adult(), ONE_MODEL + metrics("BinaryAccuracy", "MeanLabel") + BY_SEX, tmp_path)
    assert code == 0
    for path in (tmp_path / "out").glob("tfma*"):
        path.unlink()
    assert run(["export", "tfma", str(tmp_path / "out"), "--to", str(tmp_path / "viewer")]) == 2
    assert "is gone; run it again" in capsys.readouterr().err
