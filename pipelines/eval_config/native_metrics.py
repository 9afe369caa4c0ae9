"""Metrics of TensorFlow Model Analysis that have an equal of our own."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any, Literal

from slicebeam.metrics.errors import OptionError, nearest_hint

# What a prediction is: the probability of a class, a class or a number, or of no account.
Reads = Literal["score", "value", "nothing"]
_OWN_MODULES = ("tensorflow_model_analysis", "tensorflow", "tf_keras", "keras")
_CUT = frozenset({"thresholds", "threshold"})


@dataclass(frozen=True)
class NativeMetric:
    """A metric that slicebeam computes itself.

    Attributes
    ----------
    name : ours; ``mean:label`` and ``mean:prediction`` stand for the columns, ``calibration`` for the
        ratio of both, and ``example_count`` for the size of a slice
    reads : what a prediction is
    settings : keys of its JSON config that are understood, besides ``name`` and ``dtype``
    """

    name: str
    reads: Reads = "score"
    settings: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ConfiguredMetric:
    """A metric of an EvalConfig.

    Attributes
    ----------
    class_name : TFMA's
    key : what TFMA calls its values
    native : what computes it
    threshold : a score above it predicts the positive class; None where scores are not cut
    """

    class_name: str
    key: str
    native: NativeMetric
    threshold: float | None = None


def _cut(name: str) -> NativeMetric:
    return NativeMetric(name, settings=_CUT)


NATIVE: dict[str, NativeMetric] = {
    "BinaryAccuracy": _cut("accuracy"),
    "Precision": _cut("precision"),
    "PPV": _cut("precision"),
    "Recall": _cut("recall"),
    "TPR": _cut("recall"),
    "Specificity": _cut("specificity"),
    "TNR": _cut("specificity"),
    "FallOut": _cut("fpr"),
    "FPR": _cut("fpr"),
    "MissRate": _cut("fnr"),
    "FNR": _cut("fnr"),
    "F1Score": _cut("f1"),
    "BalancedAccuracy": _cut("balanced_accuracy"),
    "MatthewsCorrelationCoefficient": _cut("mcc"),
    "AUC": NativeMetric("auc", settings=frozenset({"curve", "num_thresholds", "summation_method"})),
    "BinaryCrossentropy": NativeMetric("log_loss", settings=frozenset({"from_logits"})),
    "BinaryCrossEntropy": NativeMetric("log_loss", settings=frozenset({"from_logits"})),
    "Accuracy": NativeMetric("accuracy", "value"),
    "MeanSquaredError": NativeMetric("mse", "value"),
    "MeanAbsoluteError": NativeMetric("mae", "value"),
    "MeanLabel": NativeMetric("mean:label", "nothing"),
    "MeanPrediction": NativeMetric("mean:prediction", "nothing"),
    "Calibration": NativeMetric("calibration", "nothing"),
    "ExampleCount": NativeMetric("example_count", "nothing"),
    "WeightedExampleCount": NativeMetric("example_count", "nothing"),
}
# Settings that change nothing where they have this value.
_USUAL = {
    "curve": "ROC",
    "summation_method": "interpolation",
    "from_logits": False,
    "label_smoothing": 0,
    "multi_label": False,
    "top_k": None,
    "class_id": None,
    "axis": -1,
    "num_labels": None,
    "label_weights": None,
}
_DEFAULT_THRESHOLD = 0.5


def configured_metric(where: str, class_name: str, module: str, config: str) -> ConfiguredMetric:
    """Return the metric of a MetricConfig.

    Parameters
    ----------
    where : how an error names its place
    config : JSON, with or without the outer braces

    Raises
    ------
    OptionError
        There is no such class, it has no equal of our own, or its settings have none.
    """
    if not class_name:
        raise OptionError(f"{where} has no class_name; name one, such as BinaryAccuracy")
    if class_name not in NATIVE or (
        module and module.split(".", maxsplit=1)[0] not in _OWN_MODULES
    ):
        raise OptionError(f"{where}: {_not_native(class_name, module)}")
    native = NATIVE[class_name]
    settings = _settings(f"{where} {class_name}", config)
    key = settings.pop("name", None) or _snake_case(class_name)
    for setting, value in settings.items():
        if setting in ("dtype", "num_thresholds"):
            continue
        if setting in _CUT and setting in native.settings:
            continue
        usual = setting in _USUAL and _same(value, _USUAL[setting])
        # Of no account where it is not set.
        if not usual and value is not None:
            raise OptionError(
                f"{where} {class_name}: {setting} = {value!r} cannot run natively; leave it out"
            )
    threshold = _threshold(f"{where} {class_name}", settings) if native.settings == _CUT else None
    return ConfiguredMetric(class_name, str(key), native, threshold)


def least_positive(threshold: float) -> float:
    """Return the smallest score above a threshold: TFMA's predicts by ``>``, ours by ``>=``.

    >>> least_positive(0.5)
    0.5000000000000001
    """
    return nextafter(threshold, inf)


def _same(value: Any, usual: Any) -> bool:
    return str(value).lower() == str(usual).lower() or value == usual


def _settings(where: str, config: str) -> dict[str, Any]:
    text = config.strip()
    if not text:
        return {}
    try:
        found = json.loads(text if text.startswith("{") else "{" + text + "}")
    except ValueError as error:
        raise OptionError(f"{where}: config {config!r} is no JSON ({error})") from error
    return dict(found)


def _threshold(where: str, settings: dict[str, Any]) -> float:
    given = settings.get("thresholds", settings.get("threshold"))
    listed = given if isinstance(given, list) else [_DEFAULT_THRESHOLD if given is None else given]
    if len(listed) != 1:
        raise OptionError(f"{where}: {len(listed)} thresholds; a run has a single one, so name one")
    threshold = float(listed[0])
    if not 0 <= threshold < 1:
        raise OptionError(
            f"{where}: threshold {threshold:g} cuts no probability; name one in [0, 1)"
        )
    return threshold


def _snake_case(name: str) -> str:
    """Return what TFMA and Keras call a metric without a name.

    >>> _snake_case("BinaryAccuracy"), _snake_case("AUC"), _snake_case("F1Score")
    ('binary_accuracy', 'auc', 'f1_score')
    """
    if name.isupper():
        return name.lower()
    return "".join(
        ("_" if at and one.isupper() and not name[at - 1].isupper() else "") + one.lower()
        for at, one in enumerate(name)
    )


def _not_native(class_name: str, module: str) -> str:
    """Return why a class cannot run natively; TFMA's own list of classes takes seconds to load."""
    native = f"metrics that run: {', '.join(NATIVE)}"
    if module and module.split(".", maxsplit=1)[0] not in _OWN_MODULES:
        return f"metric {class_name} of {module} cannot run natively; {native}"
    types = importlib.import_module("tensorflow_model_analysis.metrics.metric_types")
    keras = importlib.import_module("tf_keras").metrics
    known = {*types.registered_metrics(), *(one for one in dir(keras) if one[0].isupper())}
    if class_name in known:
        return f"metric {class_name} cannot run natively; {native}"
    return f"unknown metric {class_name!r}{nearest_hint(class_name, sorted(known))} {native}"
