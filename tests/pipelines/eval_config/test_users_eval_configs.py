"""EvalConfigs as users of TFMA have them: every number equals that of TFMA's evaluator."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.check import check_config
from tests.pipelines.eval_config.oracle import compare_all, key_of, our_numbers, ours, their_numbers
from tests.pipelines.eval_config.test_against_tfma import (
    ONE_MODEL,
    TWO_MODELS,
    adult,
    digits,
    prices,
)

pytestmark = pytest.mark.tfma
BY_SEX = 'slicing_specs {} slicing_specs { feature_keys: "sex" }'
WEIGHTED = (
    """model_specs { label_key: "label" prediction_key: "score" example_weight_key: "weight" }"""
)
CLASSES = 'model_specs { label_key: "label" prediction_key: "probabilities" }'


def ranked():
    frame = adult().iloc[:600].reset_index(drop=True)
    frame["query"] = np.arange(len(frame)) % 83
    frame["gain"] = frame["label"] * 2.0 + (frame["age"] > 40)
    return frame


def classes():
    rng = np.random.default_rng(1)
    scores = rng.dirichlet([1.0, 1.0, 1.0], 300)
    frame = pd.DataFrame({"label": rng.integers(0, 3, 300), "sex": ["a", "b"] * 150})
    frame["probabilities"] = list(scores)
    frame["predicted"] = scores.argmax(axis=1)
    return frame


def two_heads():
    frame = adult()[["label", "score", "sex", "age"]]
    frame["is_old"] = (frame["age"] > 45).astype(np.int64)
    frame["old_score"] = np.clip(frame["age"] / 90, 0, 1)
    return frame.drop(columns="age")


def tagged():
    """An example with several values is in several slices."""
    tags = [["a"], ["a", "b"], ["b", "c"], [], ["c"]]
    frame = adult()[["label", "score", "sex"]]
    return frame.assign(tag=[tags[at % 5] for at in range(len(frame))])


def specs(*names, more=""):
    listed = " ".join(
        f'metrics {{ class_name: "{name.partition("|")[0]}" '
        + (f"config: '{name.partition('|')[2]}'" if "|" in name else "")
        + " }"
        for name in names
    )
    return f"metrics_specs {{ {listed} {more} }}"


BINARY = ("BinaryAccuracy", "Precision", "Recall", "Specificity", "FallOut", "MissRate", "F1Score")
BINARY += ("BalancedAccuracy", "MatthewsCorrelationCoefficient", "BinaryCrossentropy")
BINARY += ("MeanSquaredError", "MeanAbsoluteError")
SLICES = """slicing_specs {} slicing_specs { feature_keys: "race" }
slicing_specs { feature_keys: "sex" feature_keys: "relationship" }
slicing_specs { feature_keys: "sex" feature_values { key: "age" value: "30" } }"""
CONFIGS = {
    "every binary metric, and what the guide has": (
        adult,
        ONE_MODEL
        + specs(
            *("ExampleCount", *BINARY, "AUC", "MeanLabel", "MeanPrediction", "Calibration"),
            *('AUC|"curve": "PR", "name": "auc_pr"',),
            'ConfusionMatrixAtThresholds|"thresholds": [0.3, 0.5, 0.8]',
        )
        + SLICES,
        (),
        300,
    ),
    "every binary metric of two weighted models": (
        adult,
        TWO_MODELS.replace("prediction_key", 'example_weight_key: "weight" prediction_key')
        + specs(*BINARY)
        + SLICES,
        (),
        400,
    ),
    "another threshold": (
        adult,
        ONE_MODEL
        + specs(
            *('BinaryAccuracy|"threshold": 0.3', 'Precision|{"thresholds": [0.3]}'),
            'Recall|"thresholds": 0.3',
        )
        + SLICES,
        (),
        50,
    ),
    "several values of an example": (
        tagged,
        ONE_MODEL
        + specs("BinaryAccuracy")
        + 'slicing_specs {} slicing_specs { feature_keys: ["tag", "sex"] }',
        (),
        7,
    ),
    "classes": (
        digits,
        'model_specs { label_key: "label" prediction_key: "class" }'
        + specs("Accuracy")
        + 'slicing_specs {} slicing_specs { feature_keys: ["pen", "page"] }',
        (),
        9,
    ),
    "numbers of two models": (
        prices,
        """model_specs { name: "new" label_key: "label" prediction_key: "price" }
        model_specs { name: "old" label_key: "label" prediction_key: "price_old" is_baseline: true }"""
        + specs("MeanSquaredError", "MeanAbsoluteError")
        + 'slicing_specs {} slicing_specs { feature_keys: "town" }',
        (),
        24,
    ),
    "weighted, two models, a loss of Keras and one of their own": (
        adult,
        TWO_MODELS.replace("prediction_key", 'example_weight_key: "weight" prediction_key')
        + specs("BinaryAccuracy", "Recall", "Hinge", "MeanLabel", "WeightedExampleCount")
        + """metrics_specs { metrics { class_name: "MeanGap" module: "tests.own_tfma_metric"
               config: '{"power": 2}' } example_weights { unweighted: true } }"""
        + BY_SEX,
        ("--tfma-module=tests.own_tfma_metric",),
        30,
    ),
    "ranking, two models": (
        ranked,
        TWO_MODELS
        + specs("BinaryAccuracy")
        + specs(
            'NDCG|"gain_key": "gain", "top_k_list": [1, 3]',
            "MinLabelPosition",
            more='query_key: "query"',
        )
        + BY_SEX,
        (),
        30,
    ),
    "several classes": (
        classes,
        CLASSES
        + specs("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy")
        + specs(
            *("Precision", "AUC", 'ConfusionMatrixAtThresholds|"thresholds": [0.4, 0.6]'),
            more="binarize { class_ids { values: [0, 2] } }",
        )
        + specs("Recall", more="binarize { top_k_list { values: [1, 2] } }")
        + BY_SEX,
        ("--prediction", "predicted"),
        40,
    ),
    "averages over classes": (
        classes,
        CLASSES
        + specs(
            "Precision",
            more="aggregate { macro_average: true class_weights { key: 0 value: 1.0 } "
            "class_weights { key: 1 value: 2.0 } class_weights { key: 2 value: 1.0 } } "
            "binarize { class_ids { values: [0, 1, 2] } }",
        )
        + specs("Recall", more="aggregate { micro_average: true }")
        + BY_SEX,
        ("--prediction", "predicted"),
        10,
    ),
    "numbers": (
        prices,
        'model_specs { label_key: "label" prediction_key: "price" }'
        + specs(
            *("ExampleCount", "MeanSquaredError", "MeanAbsoluteError", "RootMeanSquaredError"),
            *("MeanAbsolutePercentageError", "SquaredPearsonCorrelation", "Calibration"),
        )
        + """slicing_specs {} slicing_specs { feature_keys: "town" }
             slicing_specs { feature_values { key: "rooms" value: "2" } }""",
        (),
        30,
    ),
    "fairness: rates at a threshold, small slices left out": (
        adult,
        WEIGHTED
        + specs(
            *("TruePositives", "FalseNegatives", "FalsePositives", "TN", "FalseDiscoveryRate"),
            *(
                "NegativePredictiveValue",
                "FalseOmissionRate",
                "PredictedPositiveRate",
                "Prevalence",
            ),
            *('RecallAtPrecision|"precision": 0.6', "AUCPrecisionRecall", "ThreatScore"),
            'SpecificityAtSensitivity|"sensitivity": 0.8',
        )
        + """slicing_specs {} slicing_specs { feature_keys: "race" }
             options { min_slice_size { value: 100 } }""",
        (),
        35,
    ),
    "a matrix of classes": (
        classes,
        CLASSES
        + specs(
            'MultiClassConfusionMatrixAtThresholds|"thresholds": [0.5]',
            'SparseTopKCategoricalAccuracy|"k": 2',
            "ExampleCount",
        )
        + BY_SEX,
        ("--prediction", "predicted"),
        5,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_number_is_tfmas(name, tmp_path):
    frame, config, options, at_least = CONFIGS[name]
    compared, _ = compare_all(frame(), config, tmp_path, *options)
    assert compared >= at_least


BOUNDS = "threshold { value_threshold { lower_bound { value: 0.32 } } }"
OF_SLICE = """per_slice_thresholds { slicing_specs { feature_values { key: "sex" value: "a" } }
  threshold { value_threshold { upper_bound { value: 0.4 } } } }"""
OF_CROSS = """cross_slice_thresholds { cross_slicing_specs { baseline_spec {}
  slicing_specs { feature_keys: "sex" } }
  threshold { value_threshold { upper_bound { value: 0.005 } } } }"""
AVERAGE = """aggregate { macro_average: true class_weights { key: 0 value: 1.0 }
  class_weights { key: 1 value: 1.0 } class_weights { key: 2 value: 1.0 } }"""


def test_thresholds_hold_of_each_class_and_average(tmp_path):
    config = f"""{CLASSES}
    metrics_specs {{
      metrics {{ class_name: "Precision" {BOUNDS} {OF_SLICE} {OF_CROSS} }}
      binarize {{ class_ids {{ values: [0, 2] }} }} {AVERAGE} }}
    metrics_specs {{ metrics {{ class_name: "Recall" {BOUNDS.replace("0.32", "0.66")} }}
      binarize {{ top_k_list {{ values: 2 }} }} }}
    {BY_SEX} cross_slicing_specs {{ baseline_spec {{}} slicing_specs {{ feature_keys: "sex" }} }}"""
    from tensorflow_model_analysis.metrics import metric_types

    _, validation, _ = their_numbers(classes(), config, tmp_path)
    options = ("--prediction", "predicted", "--replicates=2")
    code, document = ours(classes(), config, tmp_path / "ours", *options)
    assert code == 1
    theirs, own = [], []
    for one in validation.metric_validations_per_slice:
        key, against = one.slice_key, "None"
        if one.HasField("cross_slice_key"):
            key = one.cross_slice_key.baseline_slice_key
            against = _shown(one.cross_slice_key.comparison_slice_key)
        for failure in one.failures:
            of = metric_types.MetricKey.from_proto(failure.metric_key)
            name = of.name + (f"@{of.sub_key}" if of.sub_key else "")
            name += "@macro" if of.aggregation_type else ""
            theirs.append((_shown(key), against, name, failure.metric_value.double_value.value))
    for one in document["validation"]["failures"]:
        against = str(one.get("compared_with"))
        own.append((one["slice"], against, one["metric"], one["value"]))
    assert len(own) == len(theirs) >= 6
    assert {"precision@classId:0", "precision@macro", "recall@topK:2"} <= {one[2] for one in own}
    for one, other in zip(sorted(own), sorted(theirs), strict=True):
        assert one[:3] == other[:3]
        assert one[3] == pytest.approx(other[3], abs=1e-6)


def _shown(key):
    parts = [f"{one.column} = {one.bytes_value.decode()}" for one in key.single_slice_keys]
    return " & ".join(parts) or "all examples"


def test_each_output_is_as_a_model_of_its_own(tmp_path):
    metrics = {"income": ("BinaryAccuracy", "AUC"), "old": ("BinaryAccuracy", "MeanLabel")}
    columns = {"income": ("label", "score"), "old": ("is_old", "old_score")}
    keys, listed = "", ""
    for output, (label, score) in columns.items():
        keys += f"""label_keys {{ key: "{output}" value: "{label}" }}
        prediction_keys {{ key: "{output}" value: "{score}" }}"""
        least = f'output_names: "{output}"'
        listed += specs(*metrics[output], more=least).replace(
            'class_name: "BinaryAccuracy"',
            f'class_name: "BinaryAccuracy" {BOUNDS.replace("32", "86")}',
        )
    config = f"model_specs {{ {keys} }} {listed} {BY_SEX}"
    code, document = ours(two_heads(), config, tmp_path / "ours", "--replicates=2")
    own = our_numbers(document, config, tmp_path)
    failed = set()
    for output, (label, score) in columns.items():
        single = f'model_specs {{ label_key: "{label}" prediction_key: "{score}" }}'
        folder = tmp_path / output
        theirs, _, _ = their_numbers(two_heads(), single + specs(*metrics[output]) + BY_SEX, folder)
        for key, numbers in theirs.items():
            for number, expected in numbers.items():
                found = own[key][number._replace(output=output)]
                assert found == pytest.approx(expected, abs=1e-6), (key, number, output)
                if number.name == "binary_accuracy" and expected < 0.86:
                    failed.add((" & ".join("sex = " + v for _, v in key) or "all examples", output))
    failures = document["validation"]["failures"]
    assert {(one["slice"], one["metric"].partition("/")[0]) for one in failures} == failed
    assert code == (1 if failed else 0) == 1


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
