"""Reads TFMA's EvalConfig: the options of a run, its slices, and what TFMA has to evaluate."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from functools import lru_cache
from math import inf, nextafter
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slicebeam.metrics.errors import OptionError, install_hint, nearest_hint
from slicebeam.transforms.storage.storage import named_content, storage_path
from slicebeam.transforms.tfma.metric_specs import is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What a metric reads as a prediction: the probability of a class; or a class or a number.
Reads = Literal["score", "value"]
# Fields of an EvalConfig that hold thresholds end so.
THRESHOLDS = ("threshold", "thresholds")
# Of a ModelSpec: the columns of its labels, predictions and weights.
KEYS = ("label_key", "prediction_key", "example_weight_key")
_CUT = frozenset({"threshold", "thresholds"})
# TFMA's metrics that slicebeam has itself, those of thresholds first.
_AT_A_THRESHOLD = {
    "BinaryAccuracy": "accuracy",
    "Precision": "precision",
    "PPV": "precision",
    "Recall": "recall",
    "TPR": "recall",
    "Specificity": "specificity",
    "TNR": "specificity",
    "FallOut": "fpr",
    "FPR": "fpr",
    "MissRate": "fnr",
    "FNR": "fnr",
    "F1Score": "f1",
    "BalancedAccuracy": "balanced_accuracy",
    "MatthewsCorrelationCoefficient": "mcc",
}
_OTHERS: dict[str, tuple[str, Reads]] = {
    "AUC": ("auc", "score"),
    "BinaryCrossentropy": ("log_loss", "score"),
    "BinaryCrossEntropy": ("log_loss", "score"),
    "Accuracy": ("accuracy", "value"),
    "MeanSquaredError": ("mse", "value"),
    "MeanAbsoluteError": ("mae", "value"),
}
# The size of a slice is always there.
_COUNTS = ("ExampleCount", "WeightedExampleCount")
# Metrics that read a score for each class.
_OF_CLASSES = ("Categorical", "Sparse", "TopK", "MultiClass", "MultiLabel")


# What a message of an EvalConfig needs one of to have an effect; TFMA ignores it otherwise.
_NEEDED = {
    "MetricThreshold": ("value_threshold", "change_threshold"),
    "GenericValueThreshold": ("lower_bound", "upper_bound"),
    "GenericChangeThreshold": ("absolute", "relative"),
    "CrossSliceMetricThreshold": ("cross_slicing_specs",),
    "ExampleWeightOptions": ("weighted", "unweighted"),
}


class NativeMetric(NamedTuple):
    """A metric of an EvalConfig that slicebeam has itself; a score above the threshold is positive."""

    name: str
    reads: Reads
    threshold: float | None
    is_weighted: bool


@dataclass(frozen=True)
class SliceSpec:
    """A SlicingSpec: columns of which every value is a slice, and columns with one value each."""

    keys: tuple[str, ...]
    values: tuple[tuple[str, str | int | float], ...]

    def __str__(self) -> str:
        parts = [*self.keys, *(f"{name} = {value}" for name, value in self.values)]
        return " & ".join(parts)


@dataclass(frozen=True)
class EvalPlan:
    """What an EvalConfig wants.

    ``message``: the EvalConfig. ``others``: the same without the metrics that slicebeam has itself.
    ``options``: of a search or check, by name. ``specs``: of the slices, without that of all
    examples. ``has_thresholds``: whether it says when a model is good enough. ``notes``: what is
    ignored, a line each.
    """

    message: Any
    others: Any
    options: Mapping[str, Any]
    specs: tuple[SliceSpec, ...]
    has_thresholds: bool
    notes: tuple[str, ...]


def eval_plan(uri: str) -> EvalPlan:
    """Return what the EvalConfig in a file wants."""
    try:
        path = storage_path(uri, "--eval-config")
        return _plan(named_content(path, f"--eval-config {uri}").decode())
    except UnicodeDecodeError as error:
        raise OptionError(f"--eval-config {uri}: it is not text ({error})") from error
    except OptionError as error:
        raise OptionError(f"--eval-config {uri}: {error}") from error


def _eval_config() -> Any:
    """Return an empty EvalConfig; TFMA itself, which takes seconds, is not imported."""
    # The module needs it and does not import it.
    from google.protobuf import wrappers_pb2  # type: ignore[import-untyped]  # noqa: F401

    package = importlib.util.find_spec("tensorflow_model_analysis")
    if package is None or package.origin is None:
        raise OptionError(
            f"reading it needs TensorFlow Model Analysis, which is not installed; {install_hint('tfma')}"
        )
    return run_path(str(Path(package.origin).parent / "proto" / "config_pb2.py"))["EvalConfig"]()


def _parsed(text: str) -> Any:
    from google.protobuf import json_format, text_format

    message = _eval_config()
    try:
        if text.lstrip().startswith("{"):
            content = json.loads(text)
            # As TFMA writes it beside its results.
            content = content.get("evalConfig", content.get("eval_config", content))
            return json_format.ParseDict(content, message)
        return text_format.Parse(text, message)
    except (ValueError, json_format.ParseError, text_format.ParseError) as error:
        raise OptionError(f"it is not an EvalConfig ({' '.join(str(error).split())})") from error


def models_of(message: Any) -> tuple[Any, Any]:
    """Return the ModelSpecs of the new and of the old model; None where there is none."""
    old = [spec for spec in message.model_specs if spec.is_baseline]
    new = [spec for spec in message.model_specs if not spec.is_baseline]
    if len(new) > 1 or len(old) > 1:
        raise OptionError(
            f"model_specs has {len(new) + len(old)} models; slicebeam compares one with at most one of "
            "which is_baseline is true"
        )
    if old and not new:
        raise OptionError("model_specs has a baseline only; add the model that is evaluated")
    return (new[0] if new else None), (old[0] if old else None)


def _column_of(spec: Any, name: str, outputs: Iterable[str]) -> str:
    """Return a column that a ModelSpec names, of the first of several outputs; empty for none."""
    if spec is None:
        return ""
    several = getattr(spec, f"{name}s")
    output = next((output for output in outputs if output in several), next(iter(several), ""))
    return str(getattr(spec, name) or (several[output] if several else ""))


@lru_cache(maxsize=8)
def _plan(text: str) -> EvalPlan:
    message = _parsed(text)
    new, old = models_of(message)
    outputs = [name for spec in message.metrics_specs for name in spec.output_names]
    _check_outputs(new, old, outputs)
    native: list[NativeMetric] = []
    others = type(message)()
    others.CopyFrom(message)
    del others.metrics_specs[:]
    for number, spec in enumerate(message.metrics_specs, 1):
        _check_complete(f"metrics_specs {number}", spec)
        _check_models(f"metrics_specs {number}", spec, message)
        rest = []
        for config in spec.metrics:
            metric = _native(f"metrics_specs {number}", spec, config, new)
            if metric is not None and _go_together(metric, native):
                native.append(metric)
            elif config.class_name not in _COUNTS:
                rest.append(config)
        if rest:
            kept = others.metrics_specs.add()
            kept.CopyFrom(spec)
            del kept.metrics[:]
            kept.metrics.extend(rest)
    specs = [slice_spec(spec) for spec in message.slicing_specs]
    notes = [
        f"{name} of model_specs is ignored: columns are read as they stand in the data"
        for name in ("signature_name", "preprocessing_function_names")
        if any(getattr(spec, name) for spec in message.model_specs)
    ]
    if others.metrics_specs and not native:
        notes.append(
            "none of its metrics is slicebeam's own; the first of --metric (accuracy) is tested, and "
            "TFMA computes the others afterwards"
        )
    return EvalPlan(
        message,
        others,
        _options(message, new, old, native, outputs),
        tuple(dict.fromkeys(spec for spec in specs if spec.keys or spec.values)),
        any(map(has_thresholds, message.metrics_specs)),
        tuple(notes),
    )


def _check_outputs(new: Any, old: Any, outputs: list[str]) -> None:
    """Refuse columns of which nothing says which output they are of."""
    for spec in filter(None, (new, old)):
        for name in KEYS:
            several = getattr(spec, f"{name}s")
            if getattr(spec, name) and several:
                raise OptionError(f"model_specs {spec.name!r} has {name} and {name}s; keep one")
            missing = [output for output in outputs if several and output not in several]
            if missing:
                raise OptionError(
                    f"{name}s has {', '.join(map(repr, sorted(several)))}, and no output "
                    f"{missing[0]!r}; add it"
                )
    if len(set(outputs)) > 1 and (new is None or not new.prediction_keys):
        raise OptionError(
            "metrics_specs has several output_names; add prediction_keys to model_specs, a column for "
            "each"
        )


def _check_complete(where: str, message: Any) -> None:
    """Refuse thresholds and weights that TFMA would ignore, in a part of an EvalConfig."""
    kind = message.DESCRIPTOR.name
    where += f" {message.class_name}" if kind == "MetricConfig" else ""
    fields = {field.name for field, _ in message.ListFields()}
    needed = _NEEDED.get(kind, ())
    if needed and not fields & set(needed):
        raise OptionError(f"{where}: {kind} has no effect without {' or '.join(needed)}")
    if kind == "GenericChangeThreshold" and "direction" not in fields:
        raise OptionError(
            f"{where}: change_threshold has no direction; add HIGHER_IS_BETTER or LOWER_IS_BETTER"
        )
    for field, value in message.ListFields():
        if field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            parts = value.values() if is_map else value if field.is_repeated else [value]
            for part in parts:
                if hasattr(part, "DESCRIPTOR"):
                    _check_complete(where, part)


def _check_models(where: str, spec: Any, message: Any) -> None:
    """Refuse models of a MetricsSpec that there are not, and thresholds that apply to no model."""
    models = {model.name: model.is_baseline for model in message.model_specs}
    if len(models) < 2:
        # TFMA has these names for models that a file does not name.
        models |= {"candidate": False, "baseline": True}
    for name in spec.model_names:
        if name not in models:
            raise OptionError(
                f"{where}: model_names has {name!r}, and no model is named so{nearest_hint(name, models)}"
            )
    of_baseline = spec.model_names and all(models[name] for name in spec.model_names)
    if of_baseline and has_thresholds(spec):
        raise OptionError(
            f"{where}: thresholds are not applied to the baseline, the only model of its model_names"
        )


def has_thresholds(spec: Any) -> bool:
    """Return whether a MetricsSpec says when a model is good enough."""
    return any(
        field.name.endswith(THRESHOLDS)
        for part in (spec, *spec.metrics)
        for field, _ in part.ListFields()
    )


def _native(where: str, spec: Any, config: Any, model: Any) -> NativeMetric | None:
    """Return a metric that slicebeam has itself; None for one that TFMA computes."""
    class_name = config.class_name
    if not class_name:
        raise OptionError(f"{where} has no class_name; name one, such as BinaryAccuracy")
    settings = json_settings(f"{where} {class_name}", config.config)
    of_new = not spec.model_names or (model is not None and model.name in spec.model_names)
    is_plain = of_new and not (
        spec.query_key
        or spec.output_names
        or spec.HasField("binarize")
        or spec.HasField("aggregate")
        or is_own(config.module)
    )
    weights = [model is not None and bool(model.example_weight_key or model.example_weight_keys)]
    if spec.HasField("example_weights"):
        wants = spec.example_weights
        weights = [True] * wants.weighted + [False] * wants.unweighted
    cuts = class_name in _AT_A_THRESHOLD
    if not is_plain or len(weights) != 1 or not (cuts or class_name in _OTHERS):
        return None
    extra = _CUT if cuts else {"num_thresholds"} if class_name == "AUC" else set()
    if not settings.keys() <= {"name", "dtype", *extra}:
        return None
    if not cuts:
        return NativeMetric(*_OTHERS[class_name], None, weights[0])
    cut = settings.get("thresholds", settings.get("threshold", 0.5))
    listed = cut if isinstance(cut, list) else [0.5 if cut is None else cut]
    if len(listed) != 1 or not isinstance(listed[0], (int, float)) or not 0 <= listed[0] < 1:
        return None
    return NativeMetric(_AT_A_THRESHOLD[class_name], "score", listed[0], weights[0])


def _go_together(metric: NativeMetric, others: Iterable[NativeMetric]) -> bool:
    """Whether a run can have a metric beside others: it has one threshold and one kind of weights."""
    for other in others:
        cuts = {metric.threshold, other.threshold} - {None}
        if metric.is_weighted != other.is_weighted or len(cuts) > 1:
            return False
        # A column of probabilities is read as numbers, too, but not as classes.
        classes = {each.reads for each in (metric, other) if each.name == "accuracy"}
        if "value" in classes and metric.reads != other.reads:
            return False
    return True


def json_settings(where: str, config: str) -> dict[str, Any]:
    """Return the settings of a MetricConfig: JSON, with or without the outer braces."""
    text = config.strip()
    try:
        return dict(json.loads(text if text.startswith("{") else "{" + text + "}"))
    except ValueError as error:
        raise OptionError(f"{where}: config {config!r} is not valid JSON ({error})") from error


def typed(value: str) -> str | int | float:
    """Return the number that a text stands for, as TFMA reads values.

    >>> typed("20"), typed("0.5"), typed("us")
    (20, 0.5, 'us')
    """
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        return value


def slice_spec(spec: Any) -> SliceSpec:
    """Return a SlicingSpec that slicebeam can read."""
    if spec.slice_keys_sql:
        raise OptionError(
            "slicing_specs: slice_keys_sql cannot be used; write feature_keys and feature_values, or "
            "predicates for --slices"
        )
    both = sorted(set(spec.feature_keys) & set(spec.feature_values))
    if both:
        raise OptionError(
            f"slicing_specs: {both[0]!r} is in feature_keys and feature_values; keep one"
        )
    values = tuple(sorted((name, typed(value)) for name, value in spec.feature_values.items()))
    return SliceSpec(tuple(sorted(set(spec.feature_keys))), values)


def _options(
    message: Any, new: Any, old: Any, native: list[NativeMetric], outputs: list[str]
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    label = _column_of(new, "label_key", outputs)
    old_label = _column_of(old, "label_key", outputs)
    if label and old_label not in ("", label):
        raise OptionError(
            f"label_key is {label!r} and, of the baseline, {old_label!r}; a run has one label"
        )
    # Scores for each class are not read by a metric of slicebeam's own.
    of_classes = any(
        spec.HasField("binarize")
        or spec.HasField("aggregate")
        or any(config.class_name.startswith(_OF_CLASSES) for config in spec.metrics)
        for spec in message.metrics_specs
    )
    of_values = bool(native) and all(metric.reads == "value" for metric in native)
    for spec, prefix in ((new, ""), (old, "baseline_")):
        prediction = _column_of(spec, "prediction_key", outputs)
        if prediction and not of_classes:
            options[prefix + ("prediction" if of_values else "score")] = prediction
    if label:
        options["label"] = label
    weight = _column_of(new, "example_weight_key", outputs)
    if weight and (not native or native[0].is_weighted):
        options["weight"] = weight
    if native:
        options["metric"] = tuple(dict.fromkeys(metric.name for metric in native))
    cut = next((metric.threshold for metric in native if metric.threshold is not None), None)
    if cut is not None:
        # TFMA predicts by >, slicebeam by >=.
        options["threshold"] = nextafter(cut, inf)
    if (smallest := message.options.min_slice_size.value) > 0:
        options["min_slice_size"] = smallest
    return options
