"""Reads TFMA's EvalConfig, as text or JSON, and says it in options of our own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import FileError, OptionError
from slicebeam.pipelines.eval_config.message import parsed
from slicebeam.pipelines.eval_config.model_keys import model_keys
from slicebeam.pipelines.eval_config.native_metrics import (
    ConfiguredMetric,
    NotNativeError,
    configured_metric,
    json_settings,
    least_positive,
    snake_case,
)
from slicebeam.pipelines.eval_config.scopes import (
    cross_spec,
    slice_spec,
    sub_keys,
    thresholds_by_name,
    thresholds_of,
)
from slicebeam.pipelines.eval_config.thresholds import CrossSpec, SliceSpec, Threshold
from slicebeam.transforms.storage.storage import storage_path
from slicebeam.transforms.tfma.metric_specs import (
    COLUMNS,
    OF_CLASSES,
    SCOPE,
    OwnColumns,
    is_own,
    metric_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MEANS = {
    "mean:label": ("label_key",),
    "mean:prediction": ("prediction_key",),
    "calibration": ("label_key", "prediction_key"),
}
# Metrics that take a score for each class.
_OF_SCORES = ("Categorical", "SparseCategorical", "TopK", "SparseTopK", "MultiClass", "MultiLabel")


@dataclass(frozen=True)
class FoundMetric:
    """A number that TFMA computes for what is found.

    Attributes
    ----------
    key : what thresholds call it
    number : what TFMA calls it
    text : our name of its metric
    """

    key: str
    number: str
    text: str


@dataclass(frozen=True)
class EvalPlan:
    """What an EvalConfig wants.

    Attributes
    ----------
    options : of a search or check, by name
    metrics : that slicebeam computes itself, in their order
    found : that TFMA computes for what is found
    specs : of the slices, without that of all examples
    is_overall : whether all examples are a slice of their own
    crosses : pairs of slices that are compared
    thresholds : of the new model's metrics
    smallest : slices with fewer examples have no values
    notes : what is passed over, a line each
    """

    options: Mapping[str, Any]
    metrics: tuple[ConfiguredMetric, ...]
    found: tuple[FoundMetric, ...]
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


def _key(output: str, name: str, of: str) -> str:
    """Return what thresholds call a number: of an output, and of a class, rank or average."""
    return f"{output}/{name}{of}" if output else f"{name}{of}"


class _Reader:
    """Reads one EvalConfig."""

    def __init__(self, message: Any, has_baseline: bool) -> None:
        self.message, self.notes = message, dict[str, None]()
        old = next((one for one in message.model_specs if one.is_baseline), None)
        # A spec may be for some models only.
        self.specs = [
            (f"metrics_specs {number}", one)
            for number, one in enumerate(message.metrics_specs, 1)
            if not (old is not None and set(one.model_names) == {old.name})
        ]
        self.keys = model_keys(message.model_specs, [one for _, one in self.specs])
        self.new, self.old = self.keys.new, self.keys.old
        self.has_baseline = self.old is not None or has_baseline
        # A column of scores for each class is read by no metric of our own.
        self.of_classes = any(
            not self._scope(spec).keys().isdisjoint(OF_CLASSES)
            or any(config.class_name.startswith(_OF_SCORES) for config in spec.metrics)
            for _, spec in self.specs
        )

    def plan(self) -> EvalPlan:
        metrics: dict[tuple[str, str], ConfiguredMetric] = {}
        found: dict[FoundMetric, None] = {}
        thresholds: list[Threshold] = []
        weighted: dict[bool, str] = {}
        if len(self.specs) < len(self.message.metrics_specs):
            self._note("metrics_specs for the baseline only are passed over")
        for where, spec in self.specs:
            self._refuse(where, spec)
            for output in spec.output_names if self.keys.has_several else ("",):
                names = set()
                for config in spec.metrics:
                    native = self._native(where, spec, config)
                    if native is not None:
                        key = native.key
                        keys = [key]
                        metrics[key, native.native.name] = native
                        if native.native.name != "example_count":
                            weighted[self._is_weighted(spec)] = where
                    else:
                        key, text = self._of_tfma(where, spec, config, output)
                        keys = [_key(output, key, one) for one in sub_keys(spec)]
                        for own, one in zip(keys, sub_keys(spec), strict=True):
                            found[FoundMetric(own, f"{key}{one}", text)] = None
                    names.add(key)
                    for own in keys:
                        thresholds += thresholds_of(f"{where} {own}", own, config)
                own_name = partial(_key, output)
                thresholds += thresholds_by_name(where, spec, names, own_name)
        if len(weighted) > 1:
            raise OptionError(
                "some metrics_specs are weighted and others are not; a run has either, so split the file"
            )
        of_tfma = tuple(found)
        # Metrics of our own decide whether all of a run is weighted.
        is_weighted = weighted or dict.fromkeys(self._is_weighted(one) for _, one in self.specs)
        options = self._options(tuple(metrics.values()), True in is_weighted)
        if of_tfma and not metrics:
            self._note(
                "no metric is slicebeam's own; the first of --metric (accuracy) is tested, and TFMA's are "
                "computed afterwards"
            )
        if of_tfma:
            texts = dict.fromkeys(one.text for one in of_tfma)
            options["metric"] = (*options.get("metric", ()), *texts)
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
        is_plain = self._scope(spec).keys() <= {"example_weights"}
        # Whether there is such a plot is known when TFMA is imported to compute it.
        if self.keys.has_several or not is_plain or config.class_name.endswith("Plot"):
            return None
        try:
            one = configured_metric(where, config.class_name, config.module, config.config)
        except NotNativeError:
            return None
        if one.native.name in _MEANS:
            # Means are of columns, and of one model.
            reads = _MEANS[one.native.name]
            has_columns = all(self.keys.key(self.new, name) for name in reads)
            if self.has_baseline or self.of_classes or not has_columns:
                return None
        return one

    @staticmethod
    def _scope(spec: Any) -> dict[str, Any]:
        """Return what a MetricsSpec says of how its metrics are computed."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        content = json_format.MessageToDict(spec, preserving_proto_field_name=True)
        return {name: content[name] for name in SCOPE if content.get(name)}

    def _of_tfma(self, where: str, spec: Any, config: Any, output: str) -> tuple[str, str]:
        """Return what TFMA calls the values of a metric, and our name of it."""
        arguments = json_settings(f"{where} {config.class_name}", config.config)
        scope = self._scope(spec)
        keys, columns = self.keys, OwnColumns()
        if scope.pop("example_weights", None) and spec.example_weights.unweighted:
            scope["example_weights"] = {"unweighted": True}
        elif self._is_weighted(spec):
            columns = replace(columns, weight=keys.key(self.new, "example_weight_key", output))
        if keys.has_several or self.of_classes:
            columns = replace(
                columns,
                prediction=keys.key(self.new, "prediction_key", output),
                baseline_prediction=keys.key(self.old, "prediction_key", output),
            )
        if keys.has_several:
            if self.new is None or not self.new.prediction_keys:
                raise OptionError(
                    f"{where} has several output_names; add prediction_keys to model_specs, a column for "
                    "each"
                )
            columns = replace(columns, label=keys.key(self.new, "label_key", output))
            scope["output_name"] = output
        own = asdict(columns)
        scope |= {name: own[field] for name, field in COLUMNS.items() if own[field]}
        path = (
            f"{config.module}.{config.class_name}" if is_own(config.module) else config.class_name
        )
        key = str(arguments.get("name") or snake_case(config.class_name))
        return key, metric_text(path, {**arguments, **scope})

    def _refuse(self, where: str, spec: Any) -> None:
        """Refuse what a MetricsSpec says and slicebeam has no equal of."""
        if spec.output_weights:
            raise OptionError(
                f"{where}: output_weights cannot run; leave them out, and each of output_names has its "
                "own numbers"
            )
        if self.keys.has_several and not spec.output_names:
            raise OptionError(
                f"{where} has no output_names, where others have; add them: {', '.join(self.keys.outputs)}"
            )

    def _is_weighted(self, spec: Any) -> bool:
        weights = spec.example_weights
        if weights.weighted and weights.unweighted:
            raise OptionError("example_weights is weighted and unweighted; a run has either")
        has_key = self.new is not None and (
            self.new.example_weight_key or self.new.example_weight_keys
        )
        return bool(has_key) and not weights.unweighted

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
            key = self.keys.key(spec, "prediction_key")
            if key and not self.of_classes:
                found[prefix + ("score" if is_score else "prediction")] = key
        if self.new is not None:
            if label := self.keys.key(self.new, "label_key"):
                found["label"] = label
            weight = self.keys.key(self.new, "example_weight_key")
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
        if (
            self.old is not None
            and label
            and (own := self.keys.key(self.old, name)) not in ("", label)
        ):
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
