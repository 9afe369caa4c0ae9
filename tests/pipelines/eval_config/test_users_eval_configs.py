"""EvalConfigs as users of TFMA have them: every number equals that of TFMA's evaluator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from tests.pipelines.eval_config.oracle import compare_all
from tests.pipelines.eval_config.test_against_tfma import ONE_MODEL, TWO_MODELS, adult, prices

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.tfma
BY_SEX = 'slicing_specs {} slicing_specs { feature_keys: "sex" }'
WEIGHTED = (
    """model_specs { label_key: "label" prediction_key: "score" example_weight_key: "weight" }"""
)
CLASSES = 'model_specs { label_key: "label" prediction_key: "probabilities" }'


def ranked() -> pd.DataFrame:
    frame = adult().iloc[:600].reset_index(drop=True)
    frame["query"] = np.arange(len(frame)) % 83
    frame["gain"] = frame["label"] * 2.0 + (frame["age"] > 40)
    return frame


def classes() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    scores = rng.dirichlet([1.0, 1.0, 1.0], 300)
    frame = pd.DataFrame({"label": rng.integers(0, 3, 300), "sex": ["a", "b"] * 150})
    frame["probabilities"] = list(scores)
    frame["predicted"] = scores.argmax(axis=1)
    return frame


def specs(*names: str, more: str = "") -> str:
    listed = " ".join(
        f'metrics {{ class_name: "{name.partition("|")[0]}" '
        + (f"config: '{name.partition('|')[2]}'" if "|" in name else "")
        + " }"
        for name in names
    )
    return f"metrics_specs {{ {listed} {more} }}"


CONFIGS = {
    "binary, as in the guide": (
        adult,
        ONE_MODEL
        + specs(
            *("ExampleCount", "BinaryAccuracy", "BinaryCrossentropy", "AUC", "Precision", "Recall"),
            *("MeanLabel", "MeanPrediction", "Calibration", 'AUC|"curve": "PR", "name": "auc_pr"'),
            'ConfusionMatrixAtThresholds|"thresholds": [0.3, 0.5, 0.8]',
        )
        + BY_SEX
        + 'slicing_specs { feature_keys: ["race", "sex"] }',
        (),
        150,
    ),
    "weighted, two models, a loss of Keras and one of their own": (
        adult,
        TWO_MODELS.replace("prediction_key", 'example_weight_key: "weight" prediction_key')
        + specs("BinaryAccuracy", "Recall", "Hinge", "MeanLabel", "WeightedExampleCount")
        + """metrics_specs { metrics { class_name: "MeanGap" module: "tests.own_tfma_metric"
               config: '{"power": 2}' } example_weights { unweighted: true } }"""
        + BY_SEX,
        (),
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
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_number_is_tfmas(name: str, tmp_path: Path) -> None:
    frame, config, options, at_least = CONFIGS[name]
    compared, _ = compare_all(frame(), config, tmp_path, *options)
    assert compared >= at_least
