"""Metrics of an EvalConfig that TFMA computes for a check: values equal its evaluator's."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.check import check_config
from tests.pipelines.eval_config.test_against_tfma import ONE_MODEL, TWO_MODELS, adult
from tests.pipelines.eval_config.tfma_runs import key_of, ours, tfma_values

pytestmark = pytest.mark.tfma
BY_SEX = 'slicing_specs {} slicing_specs { feature_keys: "sex" }'
OF_TFMA = """metrics_specs {
  metrics { class_name: "BinaryAccuracy" }
  metrics { class_name: "AUC" config: '"curve": "PR", "name": "auc_pr"' }
  metrics { class_name: "MeanLabel" }
  metrics { class_name: "MeanGap" module: "tests.own_tfma_metric" config: '{"power": 2}' }
}
metrics_specs {
  metrics { class_name: "NDCG" config: '"gain_key": "gain", "top_k_list": [3]' }
  query_key: "query"
}"""


OWN = "--tfma-module=tests.own_tfma_metric"


def ranked():
    frame = adult().iloc[:1000].reset_index(drop=True)
    frame["query"] = np.arange(len(frame)) % 83
    frame["gain"] = frame["label"] * 2.0 + (frame["age"] > 40)
    return frame


def found_values(document, name, side):
    """Return a number by TFMA's slice; side is ``after`` or ``before``."""
    (entry,) = [one for one in document["tfma_metrics"] if one["name"] == name]
    keys = {one["slice_id"]: key_of(one) for one in document["slices"]}
    whole = entry["overall" if side == "after" else "overall_before"]["value"]
    return {(): whole} | {keys[one["slice_id"]]: one[side]["value"] for one in entry["slices"]}


def test_two_models(tmp_path):
    config = f"{TWO_MODELS} {OF_TFMA} {BY_SEX}"
    theirs, _ = tfma_values(ranked(), config, tmp_path)
    code, document = ours(ranked(), config, tmp_path / "ours", "--replicates=4", OWN)
    assert code == 0
    assert [one["key"] for one in document["metrics"]] == ["accuracy"]
    for name in ("auc_pr", "mean_label", "mean_gap"):
        for side, model in (("after", "new"), ("before", "old")):
            own = found_values(document, name, side)
            assert set(own) == set(theirs)
            for key, value in own.items():
                assert value == pytest.approx(theirs[key][model, name], rel=1e-6), (key, name)
    for entry in document["tfma_metrics"]:
        for one in entry["slices"]:
            change = one["after"]["value"] - one["before"]["value"]
            assert one["delta"]["value"] == pytest.approx(change)
    changes = {one["name"]: one["overall_delta"]["value"] for one in document["tfma_metrics"]}
    assert changes["mean_label"] == 0.0
    assert changes["mean_gap"] != 0.0
    assert "ndcg@topK:3" in changes


def test_the_document_repeats_the_run(tmp_path):
    code, document = ours(
        ranked(), f"{ONE_MODEL} {OF_TFMA} {BY_SEX}", tmp_path, "--replicates=3", OWN
    )
    assert code == 0
    again = tmp_path / "again"
    first = str(tmp_path / "out" / "changelist.json")
    assert run(["run", first, "--output", str(again), "--quiet", OWN]) == 0
    repeated = json.loads((again / "changelist.json").read_text())
    assert repeated["tfma_metrics"] == document["tfma_metrics"] != []
    assert repeated["metrics"] == document["metrics"]


def test_the_viewer_reads_what_tfma_computed(tmp_path):
    import tensorflow_model_analysis as tfma

    config = f"{TWO_MODELS} {OF_TFMA} {BY_SEX}"
    _, document = ours(ranked(), config, tmp_path, "--replicates=3", OWN)
    folder = str(tmp_path / "viewer")
    assert run(["export", "tfma", str(tmp_path / "out"), "--to", folder, "--quiet"]) == 0
    for side, model in (("after", "candidate"), ("before", "baseline")):
        result = tfma.load_eval_result(folder, model_name=model)
        values = result.get_metrics_for_all_slices()
        for key, value in found_values(document, "mean_gap", side).items():
            own = values[key]["mean_gap"]["boundedValue"]
            assert own["value"] == pytest.approx(value)
            assert own["lowerBound"] < value < own["upperBound"]


def test_a_score_for_each_class(tmp_path):
    rng = np.random.default_rng(1)
    scores = rng.dirichlet([1.0, 1.0, 1.0], 300)
    frame = pd.DataFrame({"label": rng.integers(0, 3, 300), "side": ["a", "b"] * 150})
    frame["probabilities"] = list(scores)
    frame["predicted"] = scores.argmax(axis=1)
    config = """model_specs { label_key: "label" prediction_key: "probabilities" }
    metrics_specs { metrics { class_name: "Precision" } metrics { class_name: "AUC" }
      binarize { class_ids { values: [0, 2] } } }
    metrics_specs { metrics { class_name: "Recall" }
      aggregate { micro_average: true class_weights { key: 0 value: 1.0 }
        class_weights { key: 1 value: 1.0 } } binarize { class_ids { values: [0, 1] } } }
    slicing_specs {} slicing_specs { feature_keys: "side" }"""
    code, document = ours(frame, config, tmp_path, "--prediction", "predicted", "--replicates=2")
    assert code == 0
    expected = by_class(frame, config)
    compared = 0
    for entry in document["tfma_metrics"]:
        for key, value in found_values(document, entry["name"], "after").items():
            metric, _, of = entry["name"].partition("@")
            if of == "micro":
                of, metric = "", f"micro_average: true\n_{metric}"
            assert value == pytest.approx(expected[key][of][metric]["doubleValue"], rel=1e-6)
            compared += 1
    assert compared >= 15


def by_class(frame, config):
    """Return the values of TFMA's own evaluator by slice, class and metric."""
    import tensorflow_model_analysis as tfma
    from google.protobuf import text_format
    from tensorflow_model_analysis.proto import config_pb2

    message = text_format.Parse(config, config_pb2.EvalConfig())
    result = tfma.analyze_raw_data(frame, message)
    return {key: found[""] for key, found in result.slicing_metrics}


def test_metrics_of_tfma_join_the_users(tmp_path):
    path = tmp_path / "eval.pbtxt"
    path.write_text(f'{ONE_MODEL} metrics_specs {{ metrics {{ class_name: "Hinge" }} }}')
    base = {"data": ("d",), "output": "o", "eval_config": str(path)}
    found = check_config(base)
    assert (found.metric, found.tfma_metric) == (("accuracy",), ("tfma:Hinge",))
    assert any("no metric is slicebeam's own" in one for one in found.notes)
    found = check_config({**base, "metric": ("mse", "tfma:Poisson")})
    assert (found.prediction, found.score) == ("score", None)
    assert found.tfma_metric == ("tfma:Poisson", "tfma:Hinge")
