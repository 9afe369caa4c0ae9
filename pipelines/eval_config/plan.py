"""Reads TFMA's EvalConfig, as text or JSON, and says it in options of our own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import FileError, OptionError
from slicebeam.pipelines.eval_config.message import parsed
from slicebeam.pipelines.eval_config.native_metrics import (
    ConfiguredMetric,
    NotNativeError,
    configured_metric,
    is_own,
    json_settings,
    least_positive,
    snake_case,
)
from slicebeam.pipelines.eval_config.scopes import (
    cross_spec,
    slice_spec,
    thresholds_by_name,
    thresholds_of,
)
from slicebeam.pipelines.eval_config.thresholds import CrossSpec, SliceSpec, Threshold
from slicebeam.transforms.storage.storage import storage_path
from slicebeam.transforms.tfma.metric_specs import OF_CLASSES, SCOPE, metric_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MEANS = ("mean:label", "mean:prediction", "calibration")


@dataclass(frozen=True)
class EvalPlan:
    """What an EvalConfig wants.

    Attributes
    ----------
    options : of a search or check, by name
    metrics : that slicebeam computes itself, in their order
    found : that TFMA computes for what is found: what it calls the values, and our name
    specs : of the slices, without that of all examples
    is_overall : whether all examples are a slice of their own
    crosses : pairs of slices that are compared
    thresholds : of the new model's metrics
    smallest : slices with fewer examples have no values
    notes : what is passed over, a line each
    """

    options: Mapping[str, Any]
    metrics: tuple[ConfiguredMetric, ...]
    found: tuple[tuple[str, str], ...]
    specs: tuple[SliceSpec, ...]
    is_overall: bool
    crosses: tuple[CrossSpec, ...]
    thresholds: tuple[Threshold, ...]
    smallest: int
    notes: tuple[str, ...]


def eval_plan(uri: str, *, has_baseline: bool = False) -> EvalPlan:
    """Return what the EvalConfig in a file wants.

    Parameters
    ----------
    has_baseline : whether the old model is given besides, as TFX's Evaluator does

    Raises
    ------
    FileError
        There is no such file.
    OptionError
        It is no EvalConfig, or asks for what cannot be done.
    """
    try:
        text = storage_path(uri, "--eval-config").read_text("utf-8")
    except FileNotFoundError as error:
        raise FileError(f"--eval-config {uri}: no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"--eval-config {uri} is a folder; name a file") from error
    except ValueError as error:
        raise OptionError(f"--eval-config {uri}: it is no text ({error})") from error
    try:
        return _plan(text, has_baseline)
    except OptionError as error:
        raise OptionError(f"--eval-config {uri}: {error}") from error


@lru_cache(maxsize=8)
def _plan(text: str, has_baseline: bool) -> EvalPlan:
    return _Reader(parsed(text), has_baseline).plan()


class _Reader:
    """Reads one EvalConfig."""

    def __init__(self, message: Any, has_baseline: bool) -> None:
        self.message, self.notes = message, dict[str, None]()
        self.of_classes = False
        if len(message.model_specs) > 2:
            raise OptionError(
                f"model_specs has {len(message.model_specs)} models; slicebeam compares one with at "
                "most one baseline"
            )
        self.old = next((one for one in message.model_specs if one.is_baseline), None)
        new = [one for one in message.model_specs if not one.is_baseline]
        if len(new) > 1:
            raise OptionError(
                "model_specs has two models and no is_baseline; set it on the old one"
            )
        if message.model_specs and not new:
            raise OptionError("model_specs has a baseline only; add the model that is evaluated")
        self.new = new[0] if new else None
        self.has_baseline = self.old is not None or has_baseline

    def plan(self) -> EvalPlan:
        metrics: dict[tuple[str, str], ConfiguredMetric] = {}
        found: dict[tuple[str, str], None] = {}
        thresholds: list[Threshold] = []
        weighted: dict[bool, str] = {}
        for number, spec in enumerate(self.message.metrics_specs, 1):
            where = f"metrics_specs {number}"
            if self._is_of_baseline_only(spec):
                self._note(f"{where} is for the baseline only, and is passed over")
                continue
            self._refuse(where, spec)
            keys = set()
            for config in spec.metrics:
                if config.class_name.endswith("Plot"):
                    self._note(f"{where}: {config.class_name} is a plot, and is passed over")
                    continue
                native = self._native(where, spec, config)
                if native is not None:
                    key = native.key
                    metrics[key, native.native.name] = native
                else:
                    key, name = self._of_tfma(where, spec, config)
                    found[key, name] = None
                keys.add(key)
                if native is None or native.native.name != "example_count":
                    weighted[self._is_weighted(spec)] = where
                thresholds += thresholds_of(f"{where} {key}", key, config)
            thresholds += thresholds_by_name(where, spec, keys)
        if len(weighted) > 1:
            raise OptionError(
                "some metrics_specs are weighted and others are not; a run has either, so split the file"
            )
        of_tfma = tuple(found)
        options = self._options(tuple(metrics.values()), weighted.get(True) is not None)
        if of_tfma and not metrics:
            self._note(
                "no metric is slicebeam's own; the first of --metric (accuracy) is tested, and TFMA's are "
                "computed afterwards"
            )
        if of_tfma:
            options["metric"] = (*options.get("metric", ()), *(name for _, name in of_tfma))
        specs = [slice_spec("slicing_specs", one) for one in self.message.slicing_specs]
        return EvalPlan(
            options,
            tuple(metrics.values()),
            of_tfma,
            tuple(dict.fromkeys(one for one in specs if one != SliceSpec())),
            not specs or SliceSpec() in specs,
            tuple(cross_spec(one) for one in self.message.cross_slicing_specs),
            tuple(thresholds),
            self.message.options.min_slice_size.value,
            tuple(self.notes),
        )

    def _note(self, text: str) -> None:
        self.notes[text] = None

    def _native(self, where: str, spec: Any, config: Any) -> ConfiguredMetric | None:
        """Return a metric of our own; None for one that TFMA computes."""
        if self._scope(spec):
            return None
        try:
            one = configured_metric(where, config.class_name, config.module, config.config)
        except NotNativeError:
            return None
        # Means of columns are of one model.
        return None if self.has_baseline and one.native.name in _MEANS else one

    @staticmethod
    def _scope(spec: Any) -> dict[str, Any]:
        """Return what a MetricsSpec says of how its metrics are computed."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        content = json_format.MessageToDict(spec, preserving_proto_field_name=True)
        return {name: content[name] for name in SCOPE if content.get(name)}

    def _of_tfma(self, where: str, spec: Any, config: Any) -> tuple[str, str]:
        """Return what TFMA calls the values of a metric, and our name of it."""
        arguments = json_settings(f"{where} {config.class_name}", config.config)
        scope = self._scope(spec)
        column = "" if self.new is None else self._key(self.new, "prediction_key")
        if column and not scope.keys().isdisjoint(OF_CLASSES):
            # It holds a score for each class, which no metric of our own reads.
            scope["prediction_key"] = column
            self.of_classes = True
        path = (
            f"{config.module}.{config.class_name}" if is_own(config.module) else config.class_name
        )
        key = str(arguments.get("name") or snake_case(config.class_name))
        return key, metric_text(path, {**arguments, **scope})

    def _is_of_baseline_only(self, spec: Any) -> bool:
        names = set(spec.model_names)
        return bool(names) and self.old is not None and names == {self.old.name}

    def _refuse(self, where: str, spec: Any) -> None:
        """Refuse what a MetricsSpec says and slicebeam has no equal of."""
        if spec.output_weights:
            raise OptionError(
                f"{where}: output_weights cannot run: a run has one output; leave it out"
            )
        if len(spec.output_names) > 1:
            raise OptionError(
                f"{where}: {len(spec.output_names)} output_names ({', '.join(spec.output_names)}); a run "
                "has one output, so keep one of them"
            )

    def _is_weighted(self, spec: Any) -> bool:
        weights = spec.example_weights
        if weights.weighted and weights.unweighted:
            raise OptionError("example_weights is weighted and unweighted; a run has either")
        has_key = self.new is not None and (
            self.new.example_weight_key or self.new.example_weight_keys
        )
        return bool(has_key) and not weights.unweighted

    def _key(self, spec: Any, name: str) -> str:
        """Return a key of a model, which may stand in the map of its only output."""
        single, several = getattr(spec, name), getattr(spec, f"{name}s")
        if single and several:
            raise OptionError(f"model_specs {spec.name!r} has {name} and {name}s; keep one")
        if len(set(several.values())) > 1:
            raise OptionError(
                f"{name}s names {len(several)} outputs ({', '.join(sorted(several))}); a run has one "
                "output, so keep one of them"
            )
        return str(single or next(iter(several.values()), ""))

    def _options(self, metrics: tuple[ConfiguredMetric, ...], is_weighted: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        reads = {one.native.reads for one in metrics} - {"nothing"}
        is_score = "score" in reads or not reads
        if is_score and any(one.class_name == "Accuracy" for one in metrics):
            raise OptionError(
                "Accuracy compares predictions with labels, and other metrics take them for scores; "
                "split the file, or use BinaryAccuracy"
            )
        for spec, prefix in ((self.new, ""), (self.old, "baseline_")):
            if spec is None:
                continue
            self._note_unused(spec)
            key = self._key(spec, "prediction_key")
            if key and not self.of_classes:
                found[prefix + ("score" if is_score else "prediction")] = key
        if self.new is not None:
            if label := self._key(self.new, "label_key"):
                found["label"] = label
            weight = self._key(self.new, "example_weight_key")
            if is_weighted and weight:
                found["weight"] = weight
        self._check_same("label_key", found.get("label"))
        names = tuple(dict.fromkeys(self._names(metrics, found)))
        if names:
            found["metric"] = names
        cuts = {one.threshold for one in metrics if one.threshold is not None}
        if len(cuts) > 1:
            raise OptionError(
                f"metrics have different thresholds ({', '.join(map(str, sorted(cuts)))}); a run has a "
                "single one, so split the file"
            )
        if cuts:
            found["threshold"] = least_positive(cuts.pop())
        smallest = self.message.options.min_slice_size.value
        if smallest > 0:
            found["min_slice_size"] = smallest
        return found

    def _check_same(self, name: str, label: str | None) -> None:
        if self.old is not None and label and (own := self._key(self.old, name)) not in ("", label):
            raise OptionError(
                f"{name} is {label!r} and, of the baseline, {own!r}; a run has one label"
            )

    def _note_unused(self, spec: Any) -> None:
        for name in ("signature_name", "preprocessing_function_names"):
            if getattr(spec, name):
                self._note(
                    f"{name} of model_specs is passed over: columns are read as they stand in the data"
                )

    def _names(
        self, metrics: tuple[ConfiguredMetric, ...], found: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield our names of the metrics."""
        for one in metrics:
            name = one.native.name
            if name == "example_count":
                continue
            if name in _MEANS:
                if name != "mean:prediction":
                    yield f"mean:{self._column(one, found, ('label',), 'label_key')}"
                if name != "mean:label":
                    column = self._column(one, found, ("score", "prediction"), "prediction_key")
                    yield f"mean:{column}"
                continue
            yield name

    def _column(
        self, one: ConfiguredMetric, found: Mapping[str, Any], names: Iterable[str], key: str
    ) -> str:
        column = next((found[name] for name in names if name in found), None)
        if column is None:
            raise OptionError(f"{one.class_name} averages a column; add {key} to model_specs")
        return str(column)
