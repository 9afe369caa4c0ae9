"""Metrics of an EvalConfig that TFMA computes for a check: repeated, exported, beside others."""

import json

import numpy as np
import pytest

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.check import check_config
from tests.pipelines.eval_config.oracle import key_of, ours
from tests.pipelines.eval_config.test_against_tfma import ONE_MODEL, TWO_MODELS, adult

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
