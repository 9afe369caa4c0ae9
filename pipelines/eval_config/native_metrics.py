"""Metrics of TensorFlow Model Analysis that have an equal of our own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any, Literal

from slicebeam.metrics.errors import OptionError, nearest_hint
from slicebeam.transforms.tfma.install import metric_classes
from slicebeam.transforms.tfma.metric_specs import is_own

# What a prediction is: the probability of a class, a class or a number, or of no account.
Reads = Literal["score", "value", "nothing"]
_CUT = frozenset({"thresholds", "threshold"})


class NotNativeError(OptionError):
    """A metric of TFMA or Keras, or a user's own, has no equal of ours."""


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
    NotNativeError
        It has no equal of our own, or its settings have none.
    OptionError
        There is no such class, or its settings are wrong.
    """
    if not class_name:
        raise OptionError(f"{where} has no class_name; name one, such as BinaryAccuracy")
    if class_name not in NATIVE or is_own(module):
        _check_known(where, class_name, module)
        raise NotNativeError(f"{where}: metric {class_name} cannot run natively")
    native = NATIVE[class_name]
    settings = json_settings(f"{where} {class_name}", config)
    key = settings.pop("name", None) or snake_case(class_name)
    for setting, value in settings.items():
        if setting in ("dtype", "num_thresholds"):
            continue
        if setting in _CUT and setting in native.settings:
            continue
        usual = setting in _USUAL and _same(value, _USUAL[setting])
        # Of no account where it is not set.
        if not usual and value is not None:
            raise NotNativeError(f"{where} {class_name}: {setting} = {value!r} cannot run natively")
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


def json_settings(where: str, config: str) -> dict[str, Any]:
    """Return the settings of a MetricConfig: JSON, with or without the outer braces.

    Raises
    ------
    OptionError
        It is no JSON.
    """
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
        raise NotNativeError(f"{where}: {len(listed)} thresholds, of which a run has a single one")
    threshold = float(listed[0])
    if not 0 <= threshold < 1:
        raise OptionError(
            f"{where}: threshold {threshold:g} cuts no probability; name one in [0, 1)"
        )
    return threshold


def snake_case(name: str) -> str:
    """Return what TFMA and Keras call a metric without a name.

    >>> snake_case("BinaryAccuracy"), snake_case("AUC"), snake_case("F1Score")
    ('binary_accuracy', 'auc', 'f1_score')
    """
    if name.isupper():
        return name.lower()
    return "".join(
        ("_" if at and one.isupper() and not name[at - 1].isupper() else "") + one.lower()
        for at, one in enumerate(name)
    )


def _check_known(where: str, class_name: str, module: str) -> None:
    """Refuse a class that neither TFMA nor Keras has; their list takes seconds to load."""
    if is_own(module):
        return
    known = metric_classes("the list of its metrics")
    if class_name not in known:
        raise OptionError(
            f"{where}: unknown metric {class_name!r}{nearest_hint(class_name, sorted(known))} name your "
            "own with its module"
        )
