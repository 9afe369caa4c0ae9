"""Numbers, plots, verdicts and exports are those of TFMA's own evaluator on the same slices."""

import json
import math
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.changelist.testing import FailedThreshold, Validation
from slicebeam.pipelines.commands.cli import run
from tests import python_models
from tests.conftest import ADULT
from tests.transforms.tfma.tfma_runs import (
    BY_RACE,
    BY_SEX,
    CLASSES,
    ONE_MODEL,
    TWO_MODELS,
    adult,
    classes,
    metrics,
    ours,
    prices,
    theirs,
)

pytestmark = pytest.mark.tfma
OWN = "--tfma-module=tests.own_tfma_metric"
# What slicebeam computes itself, under TFMA's name and its own.
NATIVE = {name: name for name in ("accuracy", "precision", "recall", "specificity", "auc")}
NATIVE |= {"balanced_accuracy": "balanced_accuracy", "binary_accuracy": "accuracy"}
NATIVE |= {"fall_out": "fpr", "miss_rate": "fnr", "f1_score": "f1"}
NATIVE |= {"binary_crossentropy": "log_loss", "matthews_correlation_coefficient": "mcc"}
NATIVE |= {"mean_squared_error": "mse", "mean_absolute_error": "mae"}
WEIGHTED = ONE_MODEL.replace("prediction_key", 'example_weight_key: "weight" prediction_key')
AVERAGE = """aggregate { macro_average: true class_weights { key: 0 value: 1.0 }
  class_weights { key: 1 value: 2.0 } class_weights { key: 2 value: 1.0 } }"""
MEAN_GAP = """metrics_specs { metrics { class_name: "MeanGap" module: "tests.own_tfma_metric"
  config: '{"power": 2}' } example_weights { unweighted: true } }"""
# fmt: off
CONFIGS = {
    "binary": (adult, ONE_MODEL + metrics(
        "ExampleCount", "BinaryAccuracy", "BinaryCrossentropy", "AUC", "Precision", "Recall", "Specificity", "FallOut",
        "MissRate", "F1Score", "BalancedAccuracy", "MatthewsCorrelationCoefficient", "MeanLabel", "Calibration",
        'AUC|"curve": "PR", "name": "auc_pr"', 'ConfusionMatrixAtThresholds|"thresholds": [0.3, 0.5, 0.8]',
        'Precision|"thresholds": 0.3, "name": "at_another_threshold"') + BY_RACE
        + 'slicing_specs { feature_keys: ["sex"] feature_values { key: "age" value: "30" } }', ()),
    "two models, weighted and not, a metric of one's own": (
        adult, TWO_MODELS.replace("prediction_key", 'example_weight_key: "weight" prediction_key')
        + metrics("BinaryAccuracy", "Recall", "Hinge", "WeightedExampleCount") + MEAN_GAP + BY_SEX, (OWN,)),
    "ranking": (adult, TWO_MODELS + metrics("BinaryAccuracy") + metrics(
        'NDCG|"gain_key": "gain", "top_k_list": [1, 3]', "MinLabelPosition", more='query_key: "query"') + BY_SEX, ()),
    "several classes": (
        classes, CLASSES + metrics("SparseCategoricalAccuracy", 'MultiClassConfusionMatrixAtThresholds|"thresholds": [0.5]')
        + metrics("Precision", "AUC", more="binarize { class_ids { values: [0, 2] } }")
        + metrics("Recall", more="binarize { top_k_list { values: [1, 2] } }")
        + metrics("F1Score", more=AVERAGE + " binarize { class_ids { values: [0, 1, 2] } }") + BY_SEX,
        ("--prediction", "predicted")),
    "numbers": (prices, 'model_specs { label_key: "label" prediction_key: "price" }' + metrics(
        "ExampleCount", "MeanSquaredError", "MeanAbsoluteError", "SquaredPearsonCorrelation")
        + 'slicing_specs {} slicing_specs { feature_keys: "town" feature_values { key: "rooms" value: "2" } }', ()),
    "weighted, small slices left out": (adult, WEIGHTED + metrics(
        "BinaryAccuracy", "TruePositives", "NegativePredictiveValue", 'RecallAtPrecision|"precision": 0.6')
        + BY_RACE + "options { min_slice_size { value: 100 } }", ()),
}
# fmt: on


def messages(folder):
    from tensorflow_model_analysis.proto import metrics_for_slice_pb2 as pb

    table = pd.read_parquet(folder / "out" / "tfma.parquet").query("kind == 'metrics'")
    return {
        slice_id: pb.MetricsForSlice.FromString(content)
        for slice_id, content in zip(table["slice_id"], table["content"], strict=True)
    }


def key_of(one):
    conditions = one["definition"]["predicate"]["all"]
    return tuple(sorted((each["field"], each["value"]) for each in conditions))


def their_messages(output):
    import tensorflow_model_analysis as tfma

    found = {}
    for message in tfma.load_metrics(output):
        if not message.HasField("cross_slice_key"):
            key = tfma.slicer.slicer_lib.deserialize_slice_key(message.slice_key)
            found[key] = message.metric_keys_and_values
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_every_number_is_tfmas(name, tmp_path):
    make, config, options = CONFIGS[name]
    output, _ = theirs(make(), config, tmp_path)
    code, document = ours(make(), config, tmp_path / "ours", *options)
    assert code == 0
    keys = {None: (), **{one["slice_id"]: key_of(one) for one in document["slices"]}}
    changes = {None: document["global"]}
    changes |= {one["slice_id"]: one["changes"] for one in document["slices"]}
    found = messages(tmp_path / "ours")
    numbers = {(one["name"], one.get("output", "")): one for one in document["tfma_metrics"]}
    roles = {"": "after", "candidate": "after", "new": "after"}
    roles |= {"baseline": "before", "old": "before"}
    compared = 0
    for slice_id, key in keys.items():
        listed = found[slice_id].metric_keys_and_values if slice_id in found else []
        of_tfma = {entry.key.SerializeToString(): entry.value for entry in listed}
        own = {one["metric"]: one for one in changes[slice_id]}
        for entry in their_messages(output).get(key, []):
            model = entry.key.model_name
            role = "delta" if entry.key.is_diff else roles[model]
            value = entry.value.double_value.value
            is_plain = not any(map(entry.key.HasField, ("sub_key", "aggregation_type")))
            if is_plain and entry.key.name in NATIVE and entry.value.HasField("double_value"):
                mine = own[NATIVE[entry.key.name]].get(role, {}).get("value", math.nan)
                # TFMA sums AUC over 10,000 thresholds, and calls it 0 where there is one class.
                close = 1e-3 if entry.key.name == "auc" else 1e-6
                if not (entry.key.name == "auc" and math.isnan(mine)):
                    assert mine == pytest.approx(value, rel=close, abs=close, nan_ok=True), entry
            elif not entry.key.name.endswith("example_count"):
                model = {"new": "candidate", "old": "baseline"}.get(model, model)
                entry.key.model_name = model
                mine = of_tfma[entry.key.SerializeToString()]
                assert mine == entry.value or math.isnan(value), entry.key
                if is_plain and entry.value.HasField("double_value"):
                    is_unweighted = "weight_field" in document["dataset"] and (
                        entry.key.HasField("example_weighted")
                        and not entry.key.example_weighted.value
                    )
                    suffix = "@unweighted" if is_unweighted else ""
                    shown = _shown(numbers[entry.key.name + suffix, ""], slice_id, role)
                    assert shown == pytest.approx(value, nan_ok=True)
            compared += 1
    assert compared >= 2 * len(keys)


def test_each_output_is_as_a_model_of_its_own(tmp_path):
    outputs = {"income": ("label", "score"), "old": ("is_old", "old_score")}
    keys = "".join(
        f'label_keys {{ key: "{name}" value: "{label}" }} '
        f'prediction_keys {{ key: "{name}" value: "{score}" }}'
        for name, (label, score) in outputs.items()
    )
    of = {name: metrics("MeanLabel", "Hinge", more=f'output_names: "{name}"') for name in outputs}
    average = metrics(
        'MeanLabel|"name": "average"',
        more="""output_names: "income" output_names: "old"
      output_weights { key: "income" value: 1 } output_weights { key: "old" value: 3 }""",
    )
    config = f"model_specs {{ {keys} }} {''.join(of.values())} {average} {BY_SEX}"
    code, document = ours(adult(), config, tmp_path / "ours")
    assert code == 0
    ids = {None: (), **{one["slice_id"]: key_of(one) for one in document["slices"]}}
    numbers = {(one["name"], one.get("output")): one for one in document["tfma_metrics"]}
    assert len(numbers) == 7
    for slice_id in ids:
        parts = [_shown(numbers["mean_label", output], slice_id, "after") for output in outputs]
        average = _shown(numbers["average", None], slice_id, "after")
        assert average == pytest.approx((parts[0] + 3 * parts[1]) / 4)
    for output, (label, score) in outputs.items():
        single = f'model_specs {{ label_key: "{label}" prediction_key: "{score}" }}'
        folder = tmp_path / output
        alone, _ = theirs(adult(), single + metrics("MeanLabel", "Hinge") + BY_SEX, folder)
        expected = their_messages(alone)
        for slice_id, key in ids.items():
            for entry in expected[key]:
                value = _shown(numbers[entry.key.name, output], slice_id, "after")
                assert value == pytest.approx(entry.value.double_value.value)


def _shown(number, slice_id, role):
    if slice_id is None:
        part = number[{"after": "overall"}.get(role, f"overall_{role}")]
    else:
        (entry,) = [one for one in number["slices"] if one["slice_id"] == slice_id]
        part = entry[role]
    return part.get("value", math.nan)


LOWER = "threshold { value_threshold { lower_bound { value: 0.86 } } }"


def change(direction, kind, size):
    how = f"direction: {direction} {kind} {{ value: {size} }}"
    return f"threshold {{ change_threshold {{ {how} }} }}"


def of_slices(*thresholds, column="sex"):
    return " ".join(
        f'per_slice_thresholds {{ slicing_specs {{ feature_keys: "{column}" }} {one} }}'
        for one in thresholds
    )


CROSS = 'cross_slicing_specs { baseline_spec {} slicing_specs { feature_keys: "race" } }'
OF_CROSS = f"""cross_slice_thresholds {{ {CROSS} threshold {{ value_threshold {{
  lower_bound {{ value: -0.02 }} upper_bound {{ value: 0.02 }} }} }} }}"""
SMALL = "options { min_slice_size { value: 100 } }"
# fmt: off
THRESHOLDS = {
    "value": ONE_MODEL + metrics("BinaryAccuracy", each=LOWER) + BY_RACE,
    "all pass": ONE_MODEL + metrics("Recall", each=LOWER.replace("0.86", "0.01")) + BY_SEX,
    "per slice": ONE_MODEL + metrics("AUC", "F1Score", each=of_slices(LOWER)) + BY_RACE,
    "a slice that does not occur": ONE_MODEL + metrics("AUC", each=of_slices(LOWER, column="age")) + BY_RACE,
    "undefined": ONE_MODEL + metrics("Precision", each=LOWER) + 'slicing_specs { feature_keys: ["race", "relationship"] }',
    "small": ONE_MODEL + metrics("BinaryAccuracy", each=of_slices(LOWER)) + BY_RACE + SMALL,
    "cross": ONE_MODEL + metrics("BinaryAccuracy", each=OF_CROSS) + BY_RACE + CROSS,
    "different thresholds and weights": WEIGHTED + metrics("BinaryAccuracy", 'Precision|"thresholds": 0.3', each=LOWER)
        + metrics("Recall", each=LOWER, more="example_weights { unweighted: true }") + BY_SEX,
    "higher, absolute": TWO_MODELS + metrics("BinaryAccuracy", each=change("HIGHER_IS_BETTER", "absolute", 0.0)) + BY_RACE,
    "lower, relative": TWO_MODELS + metrics("FallOut", each=of_slices(change("LOWER_IS_BETTER", "relative", -0.01))) + BY_RACE,
    "of a loss of Keras": TWO_MODELS + metrics("Poisson", each=change("LOWER_IS_BETTER", "absolute", -0.05)) + BY_RACE,
    "of no metric, and of a plot": ONE_MODEL + metrics("AUC", more=f'thresholds {{ key: "auk" value {{ {LOWER.removeprefix("threshold {")} }}')
        + metrics("ConfusionMatrixPlot", each=LOWER) + BY_SEX,
    "by name": ONE_MODEL + metrics("AUC", more=f'thresholds {{ key: "auc" value {{ {LOWER.removeprefix("threshold {")} }}') + BY_SEX,
}
# fmt: on


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_verdict_is_tfmas_in_the_document_and_in_the_export(name, tmp_path):
    import tensorflow_model_analysis as tfma

    _, validation = theirs(adult(), THRESHOLDS[name], tmp_path)
    code, document = ours(adult(), THRESHOLDS[name], tmp_path / "ours")
    folder = str(tmp_path / "viewer")
    assert run(["export", "tfma", str(tmp_path / "ours" / "out"), "--to", folder, "--quiet"]) == 0
    exported = tfma.load_validation_result(folder)
    for result in (exported, validation):
        for part in result.metric_validations_per_slice:
            for failure in part.failures:
                failure.metric_key.model_name = ""
    assert _failures(exported) == _failures(validation)
    assert exported.validation_ok == validation.validation_ok == document["validation"]["passed"]
    assert len(document["validation"]["failures"]) == len(_failures(validation))
    missing = len(validation.missing_slices) + len(validation.missing_cross_slices)
    assert len(document["validation"]["missing_slices"]) == missing
    assert code == (0 if validation.validation_ok else 1)
    assert validation.validation_ok == (name == "all pass")


def _failures(validation):
    return sorted(
        (str(part.slice_key), str(part.cross_slice_key), str(failure))
        for part in validation.metric_validations_per_slice
        for failure in part.failures
    )


def test_the_verdict_in_words(tmp_path, capsys):
    specs = BY_SEX.removeprefix("slicing_specs {}")
    config = ONE_MODEL + metrics("BinaryAccuracy", each=LOWER) + specs
    code, document = ours(adult(), config, tmp_path)
    assert code == 1
    (failure,) = document["validation"]["failures"]
    frame = adult()
    men = frame[frame["sex"] == "Male"]
    value = ((men["score"] > 0.5) == men["label"]).mean()
    assert failure["value"] == pytest.approx(value)
    bounds = "value_threshold { lower_bound { value: 0.86 } }"
    assert (failure["slice"], failure["bounds"]) == ("sex = Male", bounds)
    line = f"binary_accuracy is {value:.6g} on sex = Male, but the threshold is {bounds}"
    assert line in capsys.readouterr().err


def test_failed_thresholds_in_words():
    sizes = {"metric": "auc", "slice": "sex = F", "bounds": "change_threshold { absolute {} }"}
    change = FailedThreshold(**sizes, value=-0.25)
    expected = (
        "auc changes by -0.25 on sex = F, but the threshold is change_threshold { absolute {} }"
    )
    assert str(change) == expected
    undefined = FailedThreshold(**sizes, reason="Metric not found.")
    assert str(undefined).startswith("auc is undefined (Metric not found.) on sex = F, but")
    nothing = Validation(passed=False, checked=0)
    assert nothing.reasons() == ("TFMA has compared nothing with a threshold",)


@pytest.mark.parametrize(("metric", "name"), [
    ('ConfusionMatrixAtThresholds|"thresholds": [0.5]', "confusion_matrix_at_thresholds"),
    ('Precision|"thresholds": [0.3, 0.5]', "precision"),
])  # fmt: skip
def test_a_threshold_for_what_is_no_single_number_fails_by_name(metric, name, tmp_path):
    """TFMA's own run ends with a TypeError."""
    import tensorflow_model_analysis as tfma

    passed = LOWER.replace("0.86", "0.01")
    intervals = """options { compute_confidence_intervals { value: true }
    confidence_intervals { method: POISSON_BOOTSTRAP } }"""
    config = TWO_MODELS + metrics("AUC", metric, each=passed) + BY_SEX + intervals
    code, document = ours(adult(100), config, tmp_path)
    assert code == 1
    failures = document["validation"]["failures"]
    reasons = {(each["metric"], each["reason"], "value" in each) for each in failures}
    assert reasons == {(name, "its value is not a single number", False)}
    assert {each["slice"] for each in failures} == {"all examples", "sex = Female", "sex = Male"}
    assert document["validation"].get("missing_slices", []) == []
    places = {"precision": "precision[1]"}
    names = [each["name"] for each in document["tfma_metrics"]]
    assert places.get(name, f"{name}.matrices[0].true_positives") in names
    folder = str(tmp_path / "viewer")
    assert run(["export", "tfma", str(tmp_path / "out"), "--to", folder, "--quiet"]) == 0
    exported = tfma.load_validation_result(folder)
    assert (exported.validation_ok, len(_failures(exported))) == (False, 3)


def test_slices_that_tfma_passes_over_fail_by_name(tmp_path, capsys):
    """TFMA finds no text that looks like a number, and says nothing of it."""
    import tensorflow_model_analysis as tfma

    frame = adult(300)
    frame["code"] = np.where(frame["age"] > 40, "1", "b")
    passed = LOWER.replace("0.86", "0.01")
    wanted = "".join(
        f'slicing_specs {{ feature_values {{ key: "{name}" value: "{value}" }} }}'
        for name, value in (("code", "1"), ("code", "b"), ("age", "30"), ("sex", "none"))
    )
    config = ONE_MODEL + metrics("BinaryAccuracy", each=passed) + "slicing_specs {} " + wanted
    _, validation = theirs(frame, config, tmp_path)
    assert validation.validation_ok
    code, document = ours(frame, config, tmp_path / "ours")
    assert (code, document["validation"]["missing_slices"]) == (1, ["code = 1"])
    said = capsys.readouterr().err
    assert "FAIL: TFMA has not checked the threshold for code = 1" in said
    (values,) = [number["slices"] for number in document["tfma_metrics"]]
    names = {one["slice_id"]: one["name"] for one in document["slices"]}
    assert {names[value["slice_id"]] for value in values} == {"code = b", "age = 30"}
    folder = str(tmp_path / "viewer")
    assert run(["export", "tfma", str(tmp_path / "ours" / "out"), "--to", folder, "--quiet"]) == 0
    assert not tfma.load_validation_result(folder).validation_ok
    # Without thresholds for every slice nothing fails, and an empty slice is noted.
    path = str(tmp_path / "ours" / "eval.pbtxt")
    Path(path).write_text(ONE_MODEL + metrics("MeanLabel") + "slicing_specs {} " + wanted)
    data = ["--data", str(tmp_path / "ours" / "e.parquet"), "--output", str(tmp_path / "again")]
    assert run(["check", *data, "--eval-config", path]) == 0
    assert "no example is in slicing_specs sex = none" in capsys.readouterr().err


def test_columns_of_every_type(tmp_path):
    rows = np.arange(400)
    random = np.random.default_rng(2)
    hundredths = random.integers(0, 101, 400)
    label = random.random(400) < hundredths / 100
    moments = np.array(["2026-01-01T12:00", "2026-01-02T12:30"], "datetime64[us]")[rows % 2]
    fees = [[Decimal("0.10"), Decimal("9.99"), None][row % 3] for row in rows]
    words = [["Zürich", "a = b & c", None, "1"][row % 4] for row in rows]
    frame = pd.DataFrame({"label": label, "score": [Decimal(int(x)) / 100 for x in hundredths]})
    frame["weight"] = [Decimal("0.5") + int(row % 2) for row in rows]
    frame = frame.assign(moment=moments, day=moments.astype("datetime64[D]"), fee=fees, word=words)
    frame["day"] = frame["day"].dt.date
    frame["tags"] = [[None, ["x"], ["x", "y"]][row % 3] for row in rows]
    frame["rate"] = np.where(rows % 5 == 0, np.nan, 0.1)
    features = ["moment", "day", "fee", "word", "tags", "rate"]
    specs = "".join(f'slicing_specs {{ feature_keys: "{name}" }} ' for name in features)
    passed = LOWER.replace("0.86", "0.01")
    config = WEIGHTED + metrics("MeanPrediction", each=passed) + "slicing_specs {} " + specs
    code, document = ours(frame, config, tmp_path)
    assert code == 0
    assert document["validation"]["checked"] == len(document["slices"]) + 1 == 13
    (number,) = document["tfma_metrics"]
    values = {value["slice_id"]: value["after"]["value"] for value in number["slices"]}
    table = frame[["score", "weight"]].astype(float)

    def mean(held):
        return pytest.approx(np.average(table["score"][held], weights=table["weight"][held]))

    assert number["overall"]["value"] == mean(rows >= 0)
    texts = frame.assign(moment=np.datetime_as_string(moments), day=frame["day"].astype(str))
    for one in document["slices"]:
        (condition,) = one["definition"]["predicate"]["all"]
        name, wanted = condition["field"], condition["value"]
        if name == "tags":
            held = [tags is not None and wanted in tags for tags in frame["tags"]]
        elif name == "rate":
            held = frame["rate"] == wanted
        else:
            held = texts[name].map(str) == wanted
        assert values[one["slice_id"]] == mean(np.array(held)), one["name"]


def test_missing_values_are_a_line(tmp_path, capsys):
    frame = adult(100)
    frame["query"] = np.where(np.arange(100) == 7, np.nan, frame["query"])
    frame.loc[8, "old_score"] = np.nan
    ranks = metrics('NDCG|"gain_key": "gain", "top_k_list": [1]', more='query_key: "query"')
    assert ours(frame, ONE_MODEL + ranks + BY_SEX, tmp_path / "a")[0] == 2
    assert "column 'query' has no value in row 8 of" in capsys.readouterr().err
    outputs = """label_keys { key: "a" value: "label" } label_keys { key: "b" value: "is_old" }
    prediction_keys { key: "a" value: "score" } prediction_keys { key: "b" value: "old_score" }"""
    both = metrics("AUC", more='output_names: ["a", "b"]')
    assert ours(frame, f"model_specs {{ {outputs} }} {both} {BY_SEX}", tmp_path / "b")[0] == 2
    assert "column 'old_score' has no value in row 9 of" in capsys.readouterr().err


def test_slices_of_a_single_example(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"label": random.integers(0, 2, 200), "score": random.random(200)})
    frame["g"] = ["a"] * 100 + ["b"] * 99 + ["rare"]
    config = ONE_MODEL + 'slicing_specs {} slicing_specs { feature_keys: "g" }'
    names = "BinaryAccuracy ExactMatch SquaredPearsonCorrelation MeanLabel Calibration"
    code, document = ours(frame, config + metrics(*names.split()), tmp_path)
    assert code == 0
    (rare,) = [one["slice_id"] for one in document["slices"] if one["name"] == "g = rare"]
    for number in document["tfma_metrics"]:
        after = {one["slice_id"]: one["after"] for one in number["slices"]}
        if number["name"] == "mean_label":
            assert after[rare]["value"] == frame["label"].iloc[-1]
        if number["name"] == "squared_pearson_correlation":
            assert after[rare] == {}


def checked(frame, folder, *options):
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / "data.parquet")
    slices = [{"all": [{"field": "sex", "op": "==", "value": "Female"}]}]
    slices += [{"all": [{"field": "age", "op": "between", "value": [20, 40]}]}]
    (folder / "slices.json").write_text(json.dumps(slices))
    arguments = ["check", "--data", str(folder / "data.parquet"), "--label", "label", *options]
    arguments += ["--slices", str(folder / "slices.json"), "--quiet"]
    assert run([*arguments, "--output", str(folder / "out")]) == 0
    return json.loads((folder / "out" / "changelist.json").read_text())["tfma_metrics"]


def test_intervals_are_those_of_tfmas_bootstrap(tmp_path):
    frame = adult(400)
    names = "accuracy,tfma:MeanLabel,tfma:tests.own_tfma_metric.MeanGap(power=2)"
    metric = ("--metric", names, OWN)
    one = checked(frame, tmp_path, "--score", "score", *metric)
    gap = (frame["score"] - frame["label"]) ** 2
    truths = {"mean_label": frame["label"].astype(float), "mean_gap": gap}
    held = [frame["age"].between(20, 39), frame["sex"] == "Female"]
    for number in one:
        assert number["replicates"] == 20
        values = truths[number["name"]]
        assert number["overall"]["value"] == pytest.approx(values.mean(), rel=1e-6)
        for part, rows in zip(number["slices"], held, strict=True):
            after, delta = part["after"], part["delta"]
            assert after["value"] == pytest.approx(values[rows].mean(), rel=1e-6)
            difference = values[rows].mean() - values.mean()
            assert delta["value"] == pytest.approx(difference, rel=1e-5)
            # 20 draws give the width of an interval of a mean within a factor.
            width = 2 * 2.09 * values[rows].std() / np.sqrt(rows.sum())
            assert 0.5 < (after["hi"] - after["lo"]) / width < 2.0
            assert delta["lo"] < delta["value"] < delta["hi"]
            assert (part["p_value"] < 0.05) == (delta["lo"] > 0 or delta["hi"] < 0)
    # A run repeats: the bootstrap has the run's seed.
    assert checked(frame, tmp_path / "again", "--score", "score", *metric) == one


def test_a_model_predicts_as_its_column_does(tmp_path):
    frame = adult(300).rename(columns={"gain": "hours"})[["age", "hours", "sex", "label"]]
    scores = {"new": python_models.probability(frame), "old": python_models.old_probability(frame)}
    metric = ("--metric", "accuracy,tfma:Hinge")
    columns = ("--score", "new", "--baseline-score", "old", *metric)
    expected = checked(frame.assign(**scores), tmp_path / "columns", *columns)
    names = ("tests.python_models:probability", "tests.python_models:old_probability")
    models = ("--model", names[0], "--baseline-model", names[1], *metric)
    assert checked(frame, tmp_path / "models", *models) == expected
    (number,) = expected
    assert number["overall"]["value"] != number["overall_before"]["value"]
    assert number["overall_delta"]["lo"] < number["overall_delta"]["hi"]
    # A score for each of three classes.
    three = frame.assign(label=np.arange(len(frame)) % 3)
    right = python_models.of_each_class(frame).argmax(axis=1) == three["label"]
    metric = ("--metric", "accuracy,tfma:SparseCategoricalAccuracy")
    model = ("--model", "tests.python_models:of_each_class")
    (number,) = checked(three, tmp_path / "classes", *model, *metric)
    assert number["overall"]["value"] == pytest.approx(right.mean(), rel=1e-6)


# fmt: off
IMPOSSIBLE = [
    ("accuracy,tfma:NDC(gain_key=g)", "did you mean 'NDCG'?"),
    ("accuracy,tfma:NDCG(gain_key=gain,top_k_list=[3])", "a query_key is required"),
    ("accuracy,tfma:NDCG(gain_key=gian,top_k_list=[3],query_key=query)", "did you mean 'gain'?"),
    ("accuracy,tfma:AUC(nonsense=3)", "nonsense"),
    ("accuracy,tfma:AUC(3)", "can't be read"),
    ("accuracy,tfma:tests.own_tfma_metric.MeanGab", "did you mean 'MeanGap'?"),
    ("accuracy,tfma:no_such.Thing", "No module named 'no_such'"),
    # What a module of metrics holds besides metrics is not called.
    ("accuracy,tfma:tests.own_tfma_metric.beam", "has no metric beam"),
    ("accuracy,tfma:tests.own_tfma_metric._Gap(key=1,config=2,power=3)", "has no metric _Gap"),
    ("accuracy,tfma:MeanMetricWrapper(fn='mse')", "neither TFMA nor Keras has"),
    ("accuracy,tfma:Metric(name='x')", "neither TFMA nor Keras has"),
    ("accuracy,tfma:Bleu(tokenize='flores200')", "leave it out"),
    ("tfma:AUC", "can't steer a search"),
]
# fmt: on


@pytest.mark.parametrize(("metric", "message"), IMPOSSIBLE)
def test_what_is_not_possible_is_a_line(metric, message, tmp_path, capsys):
    adult(100).to_parquet(tmp_path / "data.parquet")
    options = ["--data", str(tmp_path / "data.parquet"), "--label", "label", "--score", "score"]
    options += ["--output", str(tmp_path / "out"), "--features", "sex,race"]
    assert run(["search", *options, OWN, "--tfma-module", "no_such", "--metric", metric]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len([line for line in error.splitlines() if line.startswith("slicebeam: ")]) == 1


def test_groups_are_not_resampled(tmp_path, capsys):
    adult(100).to_parquet(tmp_path / "data.parquet")
    options = ["--data", str(tmp_path / "data.parquet"), "--label", "label", "--score", "score"]
    options += ["--output", str(tmp_path / "out"), "--group", "query"]
    assert run(["search", *options, "--metric", "accuracy,tfma:MeanLabel"]) == 2
    assert "TFMA resamples examples, not groups" in capsys.readouterr().err


def test_the_cost_is_said_before(tmp_path, capsys):
    adult(300).to_parquet(tmp_path / "data.parquet")
    options = ["--data", str(tmp_path / "data.parquet"), "--label", "label", "--score", "score"]
    options += ["--output", str(tmp_path / "out"), "--features", "sex", "--metric"]
    assert run(["search", *options, "accuracy,tfma:MeanLabel", "--dry-run"]) == 0
    assert "TFMA: about 1.89 s of CPU over all examples" in capsys.readouterr().out
    assert run(["search", *options, "accuracy,tfma:MeanLabel"]) == 0
    shown = capsys.readouterr()
    assert "TFMA evaluates " in shown.err
    assert "TFMA mean_label: " in shown.out
    assert "95% intervals of 20 replicates" in shown.out


DATA = ["--data", str(ADULT), "--label", "income", "--features", "age,sex,occupation,race"]
NEW, OLD = ["--prediction", "prediction"], ["--baseline-prediction", "prediction_old"]


def exported(folder, *options):
    out = folder / "out"
    assert run(["search", *DATA, *NEW, *options, "--output", str(out), "--quiet"]) == 0
    assert run(["export", "tfma", str(out), "--to", str(folder / "tfma"), "--quiet"]) == 0
    return json.loads((out / "changelist.json").read_text()), str(folder / "tfma")


def index_key(folder, slice_id):
    index = json.loads(Path(folder, "slices.json").read_text())
    (found,) = [one["slice_key"] for one in index if one["slice_id"] == slice_id]
    return tuple((column, value) for column, value in found)


def test_one_model(tmp_path):
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis.view import util

    document, folder = exported(tmp_path)
    result, slices = tfma.load_eval_result(folder), document["slices"]
    metrics = dict(result.slicing_metrics)
    assert len(metrics) == len(slices) + 1 > 10
    overall = metrics[()][""][""]
    assert overall["example_count"] == {"doubleValue": document["dataset"]["n"]}
    assert overall["accuracy"]["boundedValue"]["value"] == document["global"][0]["after"]["value"]
    ops = set()
    for one in slices:
        ops |= {part["op"] for part in one["definition"]["predicate"]["all"]}
        found = result.get_metrics_for_slice(index_key(folder, one["slice_id"]))
        change = one["changes"][0]
        assert found["example_count"] == {"doubleValue": one["size"]["n"]}
        for name, part in (("accuracy", "after"), ("accuracy_delta", "delta")):
            bounds = found[name]["boundedValue"]
            assert bounds["value"] == change[part]["value"]
            ends = (change[part]["lo"], change[part]["hi"])
            assert (bounds["lowerBound"], bounds["upperBound"]) == ends
        assert found["accuracy_p_adjusted"]["doubleValue"] == change["p_adjusted"]
    assert {"==", "between"} <= ops
    found = result.get_metrics_for_slice(index_key(folder, document["findings"][0]["slice_id"]))
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
    assert set(failed) == {index_key(folder, one["slice_id"]) for one in worse}
    failure = failed[index_key(folder, worse[0]["slice_id"])]
    assert failure.metric_value.double_value.value == worse[0]["changes"][0]["delta"]["value"]
    assert "adjusted p" in failure.message
    # Nothing is found among slices that are too small.
    _, folder = exported(tmp_path / "none", "--min-slice-size", "4000", "--alpha", "1e-300")
    assert tfma.load_validation_result(folder).validation_ok


def test_two_models(tmp_path):
    import tensorflow_model_analysis as tfma

    document, folder = exported(tmp_path, *OLD, "--alternative", "both")
    one = document["slices"][0]
    change, key = one["changes"][0], index_key(folder, one["slice_id"])
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


def test_the_viewer_reads_plots_and_numbers_of_tfma(tmp_path, capsys):
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis.view import util

    plots = ("BinaryAccuracy", 'CalibrationPlot|"num_buckets": 20', "ConfusionMatrixPlot")
    config = TWO_MODELS + metrics(*plots, "MeanLabel") + BY_SEX
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
