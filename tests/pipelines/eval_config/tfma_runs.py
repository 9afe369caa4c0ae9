"""Runs TFMA's own evaluator and ours on the same examples."""

import json
from unittest import mock

from slicebeam.pipelines.cli import run


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


def tfma_values(frame, config, folder):
    """Return TFMA's metrics by slice, (model, name) and what it validates."""
    results, validation, _ = tfma_results(frame, config, folder)
    values = {}
    for model, result in results.items():
        for key, metrics in result.get_metrics_for_all_slices().items():
            for name, value in metrics.items():
                values.setdefault(key, {})[model, name] = float(value.get("doubleValue", "nan"))
    return values, validation


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


def slice_values(document):
    """Return our metrics by TFMA's slice: of the new model, and of the old one or NaN."""

    def of(changes):
        return {
            one["metric"]: tuple(
                one.get(side, {}).get("value", float("nan")) for side in ("after", "before")
            )
            for one in changes
        }

    found = {(): of(document["global"])}
    return found | {key_of(one): of(one["changes"]) for one in document["slices"]}
