"""Reads TFMA's EvalConfig: the options of a run, its slices, and what TFMA has to evaluate."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from math import inf, nextafter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slicebeam.metrics.errors import OptionError, install_hint, nearest_hint
from slicebeam.transforms.storage.storage import named_content, storage_path
from slicebeam.transforms.tfma.metric_specs import is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_UNKNOWN_FIELD = re.compile(r'(?:[Mm]essage type ")([\w.]+)" has no field named "([\w]+)"')
# What a metric reads as a prediction: the probability of a class; or a class or a number.
Reads = Literal["score", "value"]
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
# Metrics whose value is more than a number.
_WITHOUT_A_NUMBER = ("AtThresholds", "Plot")


class NativeMetric(NamedTuple):
    """A metric of an EvalConfig that slicebeam computes itself.

    ``name``: slicebeam's. ``key``: TFMA's name of its value. ``reads``: what a prediction is.
    ``threshold``: a score above it predicts the positive class; None where scores are not cut.
    ``is_weighted``: whether examples have weights.
    """

    name: str
    key: str
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

    ``message``: the EvalConfig. ``others``: the same without the metrics that slicebeam computes
    itself. ``options``: of a search or check, by name. ``native``: TFMA's names of the numbers that
    slicebeam computes itself, and whether they are weighted. ``specs``: of the slices, without that
    of all examples. ``has_thresholds``: whether it says when a model is good enough. ``changes``:
    names of metrics with a change_threshold, which needs the old model. ``notes``: what is ignored,
    a line each.
    """

    message: Any
    others: Any
    options: Mapping[str, Any]
    native: frozenset[tuple[str, bool]]
    specs: tuple[SliceSpec, ...]
    has_thresholds: bool
    changes: tuple[str, ...]
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


def _messages() -> Any:
    """Return TFMA's module of messages; TFMA itself, which takes seconds, is not imported."""
    # The module needs it and does not import it.
    from google.protobuf import wrappers_pb2  # type: ignore[import-untyped]  # noqa: F401

    package = importlib.util.find_spec("tensorflow_model_analysis")
    places = (package.submodule_search_locations or ()) if package is not None else ()
    for place in places:
        path = Path(place) / "proto" / "config_pb2.py"
        spec = importlib.util.spec_from_file_location("tfma_config_pb2", path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise OptionError(
        f"reading it needs TensorFlow Model Analysis, which is not installed; {install_hint('tfma')}"
    )


def _parsed(text: str) -> Any:
    from google.protobuf import json_format, text_format

    message = _messages().EvalConfig()
    try:
        if text.lstrip().startswith("{"):
            content = json.loads(text)
            # As TFMA writes it beside its results.
            content = content.get("evalConfig", content.get("eval_config", content))
            json_format.ParseDict(content, message)
        else:
            text_format.Parse(text, message)
    except (ValueError, json_format.ParseError, text_format.ParseError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(
            f"it is not an EvalConfig ({reason}){_nearest_field(message, reason)}"
        ) from error
    return message


def _nearest_field(message: Any, reason: str) -> str:
    match = _UNKNOWN_FIELD.search(reason)
    if match is None:
        return ""
    pool = message.DESCRIPTOR.file.pool
    try:
        fields = [field.name for field in pool.FindMessageTypeByName(match[1]).fields]
    except KeyError:
        return ""
    return f"{nearest_hint(match[2], fields)} fields: {', '.join(fields)}"


def models_of(message: Any) -> tuple[Any, Any]:
    """Return the ModelSpecs of the new and of the old model; None where there is none."""
    listed = list(message.model_specs)
    old = next((spec for spec in listed if spec.is_baseline), None)
    new = [spec for spec in listed if not spec.is_baseline]
    if len(new) > 1 or len(listed) > 2:
        raise OptionError(
            f"model_specs has {len(listed)} models; slicebeam compares one with at most one of which "
            "is_baseline is true"
        )
    if listed and not new:
        raise OptionError("model_specs has a baseline only; add the model that is evaluated")
    return (new[0] if new else None), old


def column_of(spec: Any, name: str, outputs: Iterable[str] = ()) -> str:
    """Return a column that a ModelSpec names, of the first of several outputs; empty for none."""
    if spec is None:
        return ""
    several = getattr(spec, f"{name}s")
    output = next((one for one in outputs if one in several), next(iter(several), ""))
    return str(getattr(spec, name) or (several[output] if several else ""))


@lru_cache(maxsize=8)
def _plan(text: str) -> EvalPlan:
    message = _parsed(text)
    new, old = models_of(message)
    outputs = [name for spec in message.metrics_specs for name in spec.output_names]
    _check_outputs(new, old, outputs)
    native: list[NativeMetric] = []
    counts: set[tuple[str, bool]] = set()
    changes: dict[str, None] = {}
    has_thresholds = False
    others = type(message)()
    others.CopyFrom(message)
    del others.metrics_specs[:]
    for number, spec in enumerate(message.metrics_specs, 1):
        where = f"metrics_specs {number}"
        _refuse(where, spec)
        rest = []
        for config in spec.metrics:
            metric = _native(where, spec, config, new)
            if config.class_name in _COUNTS:
                counts |= {(metric_key(config), weighted) for weighted in (True, False)}
            elif metric is not None and _go_together(metric, native):
                native.append(metric)
            else:
                rest.append(config)
        if rest:
            kept = others.metrics_specs.add()
            kept.CopyFrom(spec)
            del kept.metrics[:]
            kept.metrics.extend(rest)
        for name, threshold in _thresholds(spec):
            has_thresholds = True
            if threshold.HasField("change_threshold"):
                changes[name] = None
    specs = [_slice_spec(spec) for spec in message.slicing_specs]
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
        frozenset([*counts, *((metric.key, metric.is_weighted) for metric in native)]),
        tuple(dict.fromkeys(spec for spec in specs if spec.keys or spec.values)),
        has_thresholds,
        tuple(changes),
        tuple(notes),
    )


def _check_outputs(new: Any, old: Any, outputs: list[str]) -> None:
    """Refuse columns of which nothing says which output they are of."""
    for spec in filter(None, (new, old)):
        for name in ("label_key", "prediction_key", "example_weight_key"):
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


def _refuse(where: str, spec: Any) -> None:
    if spec.output_weights:
        raise OptionError(f"{where}: output_weights cannot be used; leave them out")
    for config in spec.metrics:
        if not config.class_name:
            raise OptionError(f"{where} has no class_name; name one, such as BinaryAccuracy")
        json_settings(f"{where} {config.class_name}", config.config)
    keys = {metric_key(config): config.class_name for config in spec.metrics}
    for name, _ in _thresholds(spec):
        if name not in keys:
            raise OptionError(
                f"{where}: a threshold is for {name!r}, a metric that is saved with the model, which is "
                f"not run{nearest_hint(name, sorted(keys))} name its class in metrics"
            )
        if keys[name].endswith(_WITHOUT_A_NUMBER):
            raise OptionError(
                f"{where}: {keys[name]} has a threshold, but no single number {name!r} to hold it "
                "against; leave the threshold out"
            )


def _native(where: str, spec: Any, config: Any, model: Any) -> NativeMetric | None:
    """Return a metric that slicebeam has itself; None for one that TFMA computes."""
    is_of_new = not spec.model_names or (model is not None and model.name in spec.model_names)
    weights = _weightings(spec, model)
    is_plain = (
        is_of_new
        and len(weights) == 1
        and not (
            spec.query_key
            or spec.output_names
            or spec.HasField("binarize")
            or spec.HasField("aggregate")
        )
    )
    class_name = config.class_name
    cuts = class_name in _AT_A_THRESHOLD
    if not is_plain or is_own(config.module) or not (cuts or class_name in _OTHERS):
        return None
    settings = json_settings(where, config.config)
    extra = _CUT if cuts else {"num_thresholds"} if class_name == "AUC" else set()
    if not settings.keys() <= {"name", "dtype", *extra}:
        return None
    if not cuts:
        name, reads = _OTHERS[class_name]
        threshold = None
    else:
        name, reads = _AT_A_THRESHOLD[class_name], "score"
        cut = settings.get("thresholds", settings.get("threshold"))
        listed = cut if isinstance(cut, list) else [0.5 if cut is None else cut]
        threshold = listed[0] if len(listed) == 1 else None
        if not isinstance(threshold, (int, float)) or not 0 <= threshold < 1:
            return None
    return NativeMetric(name, metric_key(config), reads, threshold, weights[0])


def _weightings(spec: Any, model: Any) -> list[bool]:
    """Return whether a MetricsSpec wants weighted numbers, unweighted ones, or both."""
    if spec.HasField("example_weights"):
        wants = (spec.example_weights.weighted, spec.example_weights.unweighted)
        return [
            weighted for weighted, is_wanted in zip((True, False), wants, strict=True) if is_wanted
        ]
    return [model is not None and bool(model.example_weight_key or model.example_weight_keys)]


def _go_together(metric: NativeMetric, others: Iterable[NativeMetric]) -> bool:
    """Whether a run can have a metric beside others: it has one threshold and one kind of weights."""
    for other in others:
        cuts = {metric.threshold, other.threshold} - {None}
        if metric.is_weighted != other.is_weighted or len(cuts) > 1:
            return False
        # A column of probabilities is read as numbers, too, but not as classes.
        classes = {one.reads for one in (metric, other) if one.name == "accuracy"}
        if "value" in classes and metric.reads != other.reads:
            return False
    return True


def metric_key(config: Any) -> str:
    """Return TFMA's name of the value of a MetricConfig."""
    settings = json_settings(config.class_name, config.config)
    return str(settings.get("name") or snake_case(config.class_name))


def snake_case(name: str) -> str:
    """Return what TFMA and Keras call a metric without a name.

    >>> snake_case("BinaryAccuracy"), snake_case("AUC"), snake_case("F1Score")
    ('binary_accuracy', 'auc', 'f1_score')
    """
    if name.isupper():
        return name.lower()
    return "".join(
        ("_" if at and sign.isupper() and not name[at - 1].isupper() else "") + sign.lower()
        for at, sign in enumerate(name)
    )


def json_settings(where: str, config: str) -> dict[str, Any]:
    """Return the settings of a MetricConfig: JSON, with or without the outer braces."""
    text = config.strip()
    if not text:
        return {}
    try:
        return dict(json.loads(text if text.startswith("{") else "{" + text + "}"))
    except ValueError as error:
        raise OptionError(f"{where}: config {config!r} is not valid JSON ({error})") from error


def _thresholds(spec: Any) -> Iterator[tuple[str, Any]]:
    """Yield every threshold of a MetricsSpec with the name of its metric."""
    for config in spec.metrics:
        if config.HasField("threshold"):
            yield metric_key(config), config.threshold
        for scoped in (*config.per_slice_thresholds, *config.cross_slice_thresholds):
            yield metric_key(config), scoped.threshold
    for name, threshold in spec.thresholds.items():
        yield name, threshold
    for by_name in (spec.per_slice_thresholds, spec.cross_slice_thresholds):
        for name, listed in by_name.items():
            for scoped in listed.thresholds:
                yield name, scoped.threshold


def typed(value: str) -> str | int | float:
    """Return the number that a text stands for, as TFMA reads values.

    >>> typed("20"), typed("0.5"), typed("us")
    (20, 0.5, 'us')
    """
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        return value


def _slice_spec(spec: Any) -> SliceSpec:
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
    label = column_of(new, "label_key", outputs)
    old_label = column_of(old, "label_key", outputs)
    if label and old_label not in ("", label):
        raise OptionError(
            f"label_key is {label!r} and, of the baseline, {old_label!r}; a run has one label"
        )
    # Scores for each class are not read by a metric of slicebeam's own.
    of_classes = any(
        spec.HasField("binarize")
        or spec.HasField("aggregate")
        or any(
            config.class_name.startswith(
                ("Categorical", "Sparse", "TopK", "MultiClass", "MultiLabel")
            )
            for config in spec.metrics
        )
        for spec in message.metrics_specs
    )
    of_values = bool(native) and all(metric.reads == "value" for metric in native)
    for spec, prefix in ((new, ""), (old, "baseline_")):
        prediction = column_of(spec, "prediction_key", outputs)
        if prediction and not of_classes:
            options[prefix + ("prediction" if of_values else "score")] = prediction
    if label:
        options["label"] = label
    weight = column_of(new, "example_weight_key", outputs)
    if weight and (native[0].is_weighted if native else True):
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
