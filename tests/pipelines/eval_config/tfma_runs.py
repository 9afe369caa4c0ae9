"""Runs TFMA's own evaluator and ours on the same examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest import mock

from slicebeam.pipelines.cli import run

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

Key = tuple[tuple[str, Any], ...]


def tfma_values(
    frame: pd.DataFrame, config: str, folder: Path
) -> tuple[dict[Key, dict[tuple[str, str], float]], Any]:
    """Return TFMA's metrics by slice, (model, name) and what it validates."""
    import tensorflow_model_analysis as tfma
    from google.protobuf import text_format
    from tensorflow_model_analysis.api import model_eval_lib
    from tensorflow_model_analysis.proto import config_pb2
    from tensorflow_model_analysis.utils import config_util

    message = text_format.Parse(config, config_pb2.EvalConfig())
    output = str(folder / "tfma")
    models = [spec.name for spec in message.model_specs]

    def with_baseline(given: Any, *_: Any, **__: Any) -> Any:
        # As TFX's Evaluator has it, where there is an old model.
        return config_util.update_eval_config_with_defaults(given, has_baseline=len(models) > 1)

    with mock.patch.object(model_eval_lib, "_update_eval_config_with_defaults", with_baseline):
        tfma.analyze_raw_data(frame, message, output_path=output)
    values: dict[Key, dict[tuple[str, str], float]] = {}
    for model in models if len(models) > 1 else [""]:
        result = tfma.load_eval_result(output, model_name=model or None)
        for key, metrics in result.get_metrics_for_all_slices().items():
            for name, value in metrics.items():
                values.setdefault(key, {})[model, name] = _number(value)
    return values, tfma.load_validation_result(output)


def _number(value: dict[str, Any]) -> float:
    return float(value.get("doubleValue", "nan"))


def ours(
    frame: pd.DataFrame, config: str, folder: Path, *options: str
) -> tuple[int, dict[str, Any]]:
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


def slice_values(document: dict[str, Any]) -> dict[Key, dict[str, tuple[float, float]]]:
    """Return our metrics by TFMA's slice: of the new model, and of the old one or NaN."""

    def of(changes: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
        return {
            one["metric"]: tuple(
                one.get(side, {}).get("value", float("nan")) for side in ("after", "before")
            )
            for one in changes
        }

    found = {(): of(document["global"])}
    for one in document["slices"]:
        conditions = one["definition"]["predicate"]["all"]
        key = tuple(sorted((each["field"], each["value"]) for each in conditions))
        found[key] = of(one["changes"])
    return found
