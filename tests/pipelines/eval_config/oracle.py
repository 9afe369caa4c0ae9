"""TFMA's own evaluator and a check by the same EvalConfig on the same examples: every number."""

import json
import math
from typing import NamedTuple
from unittest import mock

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.eval_config.plan import eval_plan

# TFMA sums in 10,000 thresholds, which tie scores that are nearer than this.
OF_BUCKETS = 1e-3
# Ours: after, before and the difference of two models.
SIDES = ("after", "before", "delta")


class Number(NamedTuple):
    """Which number of a slice; ``of`` is the class, rank or average, as TFMA names it."""

    side: str
    output: str
    of: str
    name: str


def tfma_results(frame, config, folder):
    """Run TFMA's evaluator; return its results by model, of a single one under "".

    Beside them are what it validates, and the configuration.
    """
    import tensorflow_model_analysis as tfma
    from google.protobuf import text_format
    from tensorflow_model_analysis.api import model_eval_lib
    from tensorflow_model_analysis.proto import config_pb2
    from tensorflow_model_analysis.utils import config_util

    message = text_format.Parse(config, config_pb2.EvalConfig())
    output = str(folder / "tfma")
    models = [spec.name for spec in message.model_specs]

    def with_baseline(given, *_, **__):
        # As TFX's Evaluator has it, where there is an old model.
        return config_util.update_eval_config_with_defaults(given, has_baseline=len(models) > 1)

    with mock.patch.object(model_eval_lib, "_update_eval_config_with_defaults", with_baseline):
        tfma.analyze_raw_data(frame, message, output_path=output)
    results = {
        model: tfma.load_eval_result(output, model_name=model or None)
        for model in (models if len(models) > 1 else [""])
    }
    return results, tfma.load_validation_result(output), message


def key_of(one):
    """Return TFMA's key of a slice of our document."""
    conditions = one["definition"]["predicate"]["all"]
    return tuple(sorted((each["field"], each["value"]) for each in conditions))


def ours(frame, config, folder, *options):
    """Return the exit code and the document of a check."""
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / "e.parquet")
    (folder / "eval.pbtxt").write_text(config)
    out = folder / "out"
    code = run(
        [
            *("check", "--data", str(folder / "e.parquet"), "--eval-config"),
            *(str(folder / "eval.pbtxt"), "--output", str(out), "--quiet", *options),
        ]
    )
    return code, json.loads((out / "changelist.json").read_text()) if code in (0, 1) else {}


def their_numbers(frame, config, folder):
    """Return all numbers of TFMA, what it validates, and its result."""
    results, validation, message = tfma_results(frame, config, folder)
    baselines = [spec.name for spec in message.model_specs if spec.is_baseline]
    numbers = {}
    for model, result in results.items():
        side = "before" if model in baselines else "after"
        for key, by_output in result.slicing_metrics:
            for name_of_output, by_sub_key in by_output.items():
                for of, metrics in by_sub_key.items():
                    for name, value in metrics.items():
                        if name == "__ERROR__":
                            # It is too small.
                            numbers[key] = {}
                            continue
                        is_diff = name.endswith("_diff")
                        own = Number("delta" if is_diff else side, name_of_output, of, "")
                        for part, number in _flat(name.removesuffix("_diff"), value):
                            numbers.setdefault(key, {})[own._replace(name=part)] = number
    return numbers, validation, result


def _flat(name, value):
    if "boundedValue" in value:
        yield name, float(value["boundedValue"]["value"])
    elif "doubleValue" in value:
        yield name, float(value["doubleValue"])
    elif "confusionMatrixAtThresholds" in value:
        for at, matrix in enumerate(value["confusionMatrixAtThresholds"]["matrices"]):
            for ours_, theirs in (
                ("tp", "truePositives"),
                ("tn", "trueNegatives"),
                ("fp", "falsePositives"),
                ("fn", "falseNegatives"),
                ("thresholds", "threshold"),
            ):
                yield f"{name}.{ours_}[{at}]", float(matrix.get(theirs, 0.0))
    elif "multiClassConfusionMatrixAtThresholds" in value:
        matrices = value["multiClassConfusionMatrixAtThresholds"]["matrices"]
        for at, matrix in enumerate(matrices):
            for entry in matrix["entries"]:
                of = f"[{entry.get('actualClassId', 0)}][{entry.get('predictedClassId', 0)}]"
                yield f"{name}.matrices[{at}]{of}", float(entry["numWeightedExamples"])
    elif "arrayValue" in value:
        listed = value["arrayValue"].get("float64Values") or value["arrayValue"]["float32Values"]
        if len(listed) == 1:
            yield name, float(listed[0])
        else:
            yield from ((f"{name}[{at}]", float(one)) for at, one in enumerate(listed))
    else:
        raise TypeError(f"{name}: {value}")


def our_numbers(document, config, folder):
    """Return all numbers of a check by TFMA's names."""
    path = folder / "of_oracle.pbtxt"
    path.write_text(config)
    compares = document["comparison"]["kind"] == "baseline"
    plan = eval_plan(str(path), has_baseline=compares)
    true = f"mean:{plan.options.get('label')}"
    predicted = f"mean:{plan.options.get('score', plan.options.get('prediction'))}"
    found = {(): {}}
    ids = {}
    for one in document["slices"]:
        ids[one["slice_id"]] = key = key_of(one)
        found[key] = {}
    for key, size, changes in [
        ((), document["dataset"]["n"], document["global"]),
        *((ids[one["slice_id"]], one["size"]["n"], one["changes"]) for one in document["slices"]),
    ]:
        values = {change["metric"]: change for change in changes}
        for metric in plan.metrics:
            if metric.native.name == "example_count" and "weight" not in plan.options:
                found[key][Number("after", "", "", metric.key)] = size
            if metric.native.name == "calibration":
                mean, label = (values[name]["after"]["value"] for name in (predicted, true))
                ratio = mean / label if label else math.nan
                found[key][Number("after", "", "", metric.key)] = ratio
            named = {"mean:prediction": predicted, "mean:label": true}
            for change in changes:
                if change["metric"] == named.get(metric.native.name, metric.native.name):
                    for side in SIDES if compares else SIDES[:1]:
                        value = change.get(side, {}).get("value", math.nan)
                        found[key][Number(side, "", "", metric.key)] = value
    for entry in document.get("tfma_metrics", []):
        name, _, of = entry["name"].partition("@")
        # What follows a class or rank is what the metric has many of.
        of, dot, rest = of.partition(".")
        of, _, average = of.rpartition("@")
        if average in ("micro", "macro", "weighted_macro"):
            name = f"{average}_average: true\n_{name}"
        else:
            of = average
        name, output = name + dot + rest, entry.get("output", "")
        whole = (("", "after"), ("_before", "before"), ("_delta", "delta"))
        for suffix, side in whole if compares else whole[:1]:
            value = entry[f"overall{suffix}"].get("value", math.nan)
            found[()][Number(side, output, of, name)] = value
        for one in entry["slices"]:
            for side in SIDES if compares else SIDES[:1]:
                value = one[side].get("value", math.nan)
                found[ids[one["slice_id"]]][Number(side, output, of, name)] = value
    return found


def compare_all(frame, config, folder, *options):
    """Hold every number of TFMA against ours, and return how many there were and our document."""
    theirs, _, _ = their_numbers(frame, config, folder)
    path = folder / "of_plan.pbtxt"
    path.write_text(config)
    # Only what TFMA computes is resampled here.
    if eval_plan(str(path), has_baseline="is_baseline" in config).found:
        options = (*options, "--replicates=2")
    code, document = ours(frame, config, folder / "ours", *options)
    assert code in (0, 1)
    own = our_numbers(document, config, folder)
    assert own.keys() == theirs.keys()
    compared, wrong = 0, []
    for key, numbers in theirs.items():
        for number, expected in numbers.items():
            if number.name.endswith("example_count") and number not in own[key]:
                # The size of a slice is of no model.
                continue
            value = own[key].get(number)
            if number.name == "auc" and expected == 0.0 and value is not None and math.isnan(value):
                # Of one class only, as TFMA has it.
                value = 0.0
            close = OF_BUCKETS if number.name.startswith("auc") else 1e-6
            same = value is not None and (
                (math.isnan(value) and math.isnan(expected))
                or math.isclose(value, expected, rel_tol=close, abs_tol=close)
            )
            if not same:
                wrong.append((key, number, value, expected))
            compared += 1
    assert not wrong, (len(wrong), wrong[:5], sorted(own[wrong[0][0]]))
    return compared, document
