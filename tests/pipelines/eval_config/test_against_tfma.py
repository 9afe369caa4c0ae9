"""The thresholds that a check fails are those that TFMA's own evaluator fails."""

import numpy as np
import pandas as pd
import pytest

from tests.conftest import ADULT
from tests.pipelines.eval_config.oracle import key_of, ours, tfma_results

pytestmark = pytest.mark.tfma


def adult():
    frame = pd.read_parquet(ADULT).iloc[:3000].reset_index(drop=True)
    frame["label"] = frame["income"].astype(np.int64)
    assert 0.2 < frame["label"].mean() < 0.3
    frame["weight"] = np.random.default_rng(3).choice([0.5, 1.0, 3.0], len(frame))
    # On the border, where TFMA predicts the negative class.
    frame.loc[:20, "score"] = 0.5
    columns = ["label", "score", "score_old", "weight", "race", "sex", "relationship", "age"]
    return frame[columns]


def digits():
    """Three classes, predicted as classes."""
    rng = np.random.default_rng(4)
    label = rng.integers(0, 3, 900)
    wrong = rng.random(900) < 0.2
    return pd.DataFrame(
        {
            "label": label,
            "class": np.where(wrong, (label + 1) % 3, label),
            "pen": rng.choice(["thin", "thick"], 900),
            "page": rng.integers(1, 5, 900),
        }
    )


def prices():
    rng = np.random.default_rng(5)
    label = rng.gamma(3.0, 2.0, 800)
    return pd.DataFrame(
        {
            "label": label,
            "price": label + rng.normal(0.3, 1.0, 800),
            "price_old": label + rng.normal(0.0, 1.3, 800),
            "town": rng.choice(["A", "B", "C"], 800),
            "rooms": rng.integers(1, 4, 800),
        }
    )


def metrics(*names, each=""):
    listed = " ".join(f'metrics {{ class_name: "{name}" {each} }}' for name in names)
    return f"metrics_specs {{ {listed} }}"


ONE_MODEL = 'model_specs { label_key: "label" prediction_key: "score" }'
TWO_MODELS = """model_specs { name: "new" label_key: "label" prediction_key: "score" }
model_specs { name: "old" label_key: "label" prediction_key: "score_old" is_baseline: true }"""
BY_RACE = (
    'slicing_specs {} slicing_specs { feature_keys: "race" } slicing_specs { feature_keys: "sex" }'
)
LOWER = "threshold { value_threshold { lower_bound { value: 0.86 } } }"


def change(direction, kind, size):
    return (
        f"threshold {{ change_threshold {{ direction: {direction} {kind} {{ value: {size} }} }} }}"
    )


def of_slices(*thresholds):
    return " ".join(
        f'per_slice_thresholds {{ slicing_specs {{ feature_keys: "sex" }} {one} }}'
        for one in thresholds
    )


CROSS = """cross_slicing_specs { baseline_spec {} slicing_specs { feature_keys: "race" } }
cross_slicing_specs { baseline_spec { feature_values { key: "sex" value: "Male" } }
                      slicing_specs { feature_values { key: "sex" value: "Female" } } }"""
OF_CROSS = """cross_slice_thresholds { cross_slicing_specs { baseline_spec {}
  slicing_specs { feature_keys: "race" } } threshold { value_threshold {
  lower_bound { value: -0.02 } upper_bound { value: 0.02 } } } }"""
THRESHOLDS = {
    "value": f"{ONE_MODEL} {metrics('BinaryAccuracy', each=LOWER)} {BY_RACE}",
    "all pass": f"{ONE_MODEL} {metrics('Recall', each=LOWER.replace('0.86', '0.01'))} " 'slicing_specs { feature_keys: "sex" }',
    "per slice": f"{ONE_MODEL} {metrics('AUC', 'F1Score', each=of_slices(LOWER))} {BY_RACE}",
    "a slice that does not occur": f"{ONE_MODEL} {metrics('AUC', each=of_slices(LOWER).replace('sex', 'age'))} {BY_RACE}",
    "undefined": f"{ONE_MODEL} {metrics('Precision', each=LOWER)} " 'slicing_specs { feature_keys: ["race", "relationship"] }',
    "small": f"{ONE_MODEL} {metrics('BinaryAccuracy', each=of_slices(LOWER))} {BY_RACE} options {{ min_slice_size {{ value: 100 }} }}",
    "cross": f"{ONE_MODEL} {metrics('BinaryAccuracy', each=OF_CROSS)} {BY_RACE} {CROSS}",
    "higher, absolute": f"{TWO_MODELS} {metrics('BinaryAccuracy', each=change('HIGHER_IS_BETTER', 'absolute', 0.0))} {BY_RACE}",
    "lower, absolute": f"{TWO_MODELS} {metrics('MeanSquaredError', each=change('LOWER_IS_BETTER', 'absolute', -0.002))} {metrics('AUC')} {BY_RACE}",
    "higher, relative": f"{TWO_MODELS} {metrics('F1Score', each=change('HIGHER_IS_BETTER', 'relative', 0.01))} {BY_RACE}",
    "lower, relative, per slice": f"{TWO_MODELS} {metrics('FallOut', each=of_slices(change('LOWER_IS_BETTER', 'relative', -0.01)))} {BY_RACE}",
    "computed by TFMA": f"{ONE_MODEL} "
    f"{metrics('BinaryAccuracy')} {metrics('Hinge', each=LOWER)} {BY_RACE} "
    "options { min_slice_size { value: 100 } }",
    "computed by TFMA, change": f"{TWO_MODELS} {metrics('Poisson', each=change('LOWER_IS_BETTER', 'absolute', -0.05))} {BY_RACE}",
    "cross, computed by TFMA": f"{ONE_MODEL} {metrics('Hinge', each=OF_CROSS)} {BY_RACE} {CROSS}",
    "cross, change": f"{TWO_MODELS} "
    f"{metrics('BinaryAccuracy', each=OF_CROSS.replace('value_threshold', 'change_threshold').replace('lower_bound { value: -0.02 } upper_bound { value: 0.02 }', 'direction: HIGHER_IS_BETTER absolute { value: 0.001 }'))} {BY_RACE} {CROSS}",
}  # fmt: skip


def their_failures(validation):
    def key(one):
        return tuple(
            (
                each.column,
                each.bytes_value.decode() if each.HasField("bytes_value") else each.int64_value,
            )
            for each in one.single_slice_keys
        )

    found = []
    for one in validation.metric_validations_per_slice:
        of = key(one.slice_key)
        against = None
        if one.HasField("cross_slice_key"):
            of = key(one.cross_slice_key.baseline_slice_key)
            against = key(one.cross_slice_key.comparison_slice_key)
        found += [(of, against, each.metric_key.name) for each in one.failures]
    return sorted(found, key=str)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_same_slices_fail(name, tmp_path):
    _, validation, _ = tfma_results(adult(), THRESHOLDS[name], tmp_path)
    options = ["--replicates=2"] if "by TFMA" in name else []
    code, document = ours(adult(), THRESHOLDS[name], tmp_path / "ours", *options)
    own = document["validation"]
    slices = {None: None, "all examples": ()}
    slices |= {one["name"]: key_of(one) for one in document["slices"]}
    failures = [
        (slices[one["slice"]], slices[one.get("compared_with") or None], one["metric"])
        for one in own["failures"]
    ]
    assert sorted(failures, key=str) == their_failures(validation)
    assert len(own["missing_slices"]) == len(validation.missing_slices)
    passed = validation.validation_ok
    if name.startswith("cross"):
        # TFMA 0.52 takes every pair of slices for missing, though it has checked it.
        assert len(validation.missing_cross_slices) == 1
        passed = not failures
    assert own["passed"] == passed
    assert code == (0 if passed else 1)
    assert validation.validation_ok == (name == "all pass")
