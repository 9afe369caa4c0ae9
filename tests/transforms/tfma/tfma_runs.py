"""Runs TFMA's own evaluator and a check on the same examples, and the examples."""

import json
from unittest import mock

import numpy as np
import pandas as pd

from slicebeam.pipelines.commands.cli import run
from tests.conftest import ADULT

ONE_MODEL = 'model_specs { label_key: "label" prediction_key: "score" }'
TWO_MODELS = """model_specs { name: "new" label_key: "label" prediction_key: "score" }
model_specs { name: "old" label_key: "label" prediction_key: "score_old" is_baseline: true }"""
CLASSES = 'model_specs { label_key: "label" prediction_key: "probabilities" }'
BY_SEX = 'slicing_specs {} slicing_specs { feature_keys: "sex" }'
BY_RACE = f'{BY_SEX} slicing_specs {{ feature_keys: "race" }}'


def adult(rows=1500):
    frame = pd.read_parquet(ADULT).iloc[:rows].reset_index(drop=True)
    frame["label"] = frame["income"].astype(np.int64)
    frame["weight"] = np.random.default_rng(3).choice([0.5, 1.0, 3.0], len(frame))
    # On the border, where TFMA predicts the negative class.
    frame.loc[:20, "score"] = 0.5
    frame["query"] = np.arange(len(frame)) % 83
    frame["gain"] = frame["label"] * 2.0 + (frame["age"] > 40)
    frame["is_old"] = (frame["age"] > 45).astype(np.int64)
    frame["old_score"] = np.clip(frame["age"] / 90, 0, 1)
    columns = ["label", "score", "score_old", "weight", "race", "sex", "relationship", "age"]
    return frame[[*columns, "query", "gain", "is_old", "old_score"]]


def classes():
    rng = np.random.default_rng(1)
    scores = rng.dirichlet([1.0, 1.0, 1.0], 300)
    frame = pd.DataFrame({"label": rng.integers(0, 3, 300), "sex": ["a", "b"] * 150})
    frame["probabilities"] = list(scores)
    frame["predicted"] = scores.argmax(axis=1)
    return frame


def prices():
    rng = np.random.default_rng(5)
    label = rng.gamma(3.0, 2.0, 800)
    frame = pd.DataFrame({"label": label, "price": label + rng.normal(0.3, 1.0, 800)})
    frame["town"] = rng.choice(["A", "B", "C"], 800)
    frame["rooms"] = rng.integers(1, 4, 800)
    return frame


def metrics(*names, each="", more=""):
    """A MetricsSpec; a name may be followed by a bar and its config."""
    listed = ""
    for name in names:
        class_name, bar, config = name.partition("|")
        config = f"config: '{config}'" if bar else ""
        listed += f'metrics {{ class_name: "{class_name}" {config} {each} }} '
    return f"metrics_specs {{ {listed} {more} }}"


def theirs(frame, config, folder):
    """Run TFMA's evaluator; return its output folder and its validation."""
    import tensorflow_model_analysis as tfma
    from google.protobuf import text_format
    from tensorflow_model_analysis.api import model_eval_lib
    from tensorflow_model_analysis.proto import config_pb2
    from tensorflow_model_analysis.utils import config_util

    message = text_format.Parse(config, config_pb2.EvalConfig())
    compares = len(message.model_specs) > 1

    def with_baseline(given, *_, **__):
        # As TFX's Evaluator has it, where there is an old model.
        return config_util.update_eval_config_with_defaults(given, has_baseline=compares)

    output = str(folder / "tfma")
    with mock.patch.object(model_eval_lib, "_update_eval_config_with_defaults", with_baseline):
        tfma.analyze_raw_data(frame, message, output_path=output)
    return output, tfma.load_validation_result(output)


def ours(frame, config, folder, *options):
    """Return the exit code of a check and its document."""
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / "e.parquet")
    (folder / "eval.pbtxt").write_text(config)
    out = folder / "out"
    files = ["--data", str(folder / "e.parquet"), "--eval-config", str(folder / "eval.pbtxt")]
    code = run(["check", *files, "--output", str(out), "--quiet", *options])
    return code, json.loads((out / "changelist.json").read_text()) if code in (0, 1) else {}
