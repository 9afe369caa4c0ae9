"""Has TFMA evaluate what a search or check lists: its metrics, plots and thresholds.

TFMA's own ``ExtractAndEvaluate`` does it, once for a run. Where an EvalConfig names the slices, TFMA
slices by it; otherwise the number of each listed slice is a feature, by whose values TFMA slices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from scipy.special import stdtr

from slicebeam.metrics.errors import OptionError, nearest_hint
from slicebeam.pipelines.changelist.discovered import PredicateDefinition
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.tfma import TfmaMetric, TfmaValue
from slicebeam.pipelines.changelist.validation import FailedThreshold, Validation
from slicebeam.pipelines.run.run_stage import run_stage
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.tfma.messages import TfmaMessage
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.tfma.eval_config import eval_plan, json_settings, models_of, snake_case
from slicebeam.transforms.tfma.evaluation import (
    SLICES,
    EvaluatedExamples,
    EvaluateSlices,
    key_name,
    number_column,
    numbers_of,
    prediction_column,
)
from slicebeam.transforms.tfma.install import is_metric, metric_classes, tfma_module
from slicebeam.transforms.tfma.metric_specs import is_own, is_plain, parse_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.tfma.eval_config import EvalPlan
    from slicebeam.transforms.tfma.evaluation import TfmaNumber

CANDIDATE, BASELINE = "candidate", "baseline"
CONFIDENCE = 0.95
# Of TFMA's bootstrap, which has no setting for it.
REPLICATES = 20
# CPU seconds of an example in a slice, without a bootstrap; measured, and rough.
_SECONDS_OF_EXAMPLE = 3e-4


@dataclass(frozen=True)
class Evaluation:
    """What TFMA is asked to evaluate.

    Attributes
    ----------
    config : the run's options
    plan : of the EvalConfig; None for metrics of ``--metric`` only
    """

    config: RunConfig
    plan: EvalPlan | None

    @property
    def validates(self) -> bool:
        """Whether TFMA decides on thresholds."""
        return self.plan is not None and self.plan.has_thresholds and self.config.command == "check"

    @property
    def has_own_slices(self) -> bool:
        """Whether the slices are those of the EvalConfig."""
        return self.plan is not None and self.config.command == "check"

    @property
    def compares(self) -> bool:
        """Whether there is an old model."""
        return self.config.comparison == "baseline"

    @cached_property
    def message(self) -> Any:
        """The EvalConfig, with TFMA's defaults; None where it has nothing to evaluate."""
        message = tfma_module("proto.config_pb2", "--metric tfma:").EvalConfig()
        if self.plan is not None:
            message.MergeFromString(self.plan.message.SerializeToString())
            if not self.validates:
                _without(message, self.plan.native)
        for text in self.config.tfma_metric:
            _add_metric(message, parse_metric(text, self.config.tfma_module))
        if not any(spec.metrics for spec in message.metrics_specs):
            return None
        self._name_columns(message)
        self._name_slices(message)
        if self.has_intervals:
            options = message.options
            options.compute_confidence_intervals.value = True
            methods = options.confidence_intervals
            if methods.method == methods.UNKNOWN_CONFIDENCE_INTERVAL_METHOD:
                methods.method = methods.POISSON_BOOTSTRAP
        return tfma_module("utils.config_util").update_eval_config_with_defaults(
            message, has_baseline=self.compares
        )

    @property
    def has_intervals(self) -> bool:
        """Whether numbers have intervals, for which TFMA resamples the examples."""
        wants = (
            self.plan is not None and self.plan.message.options.compute_confidence_intervals.value
        )
        return bool(self.config.tfma_metric) or bool(wants)

    def _name_columns(self, message: Any) -> None:
        """Let the models of an EvalConfig name the columns that TFMA is given."""
        config = self.config
        new, old = models_of(message)
        new = message.model_specs.add() if new is None else new
        if self.compares and old is None:
            new.name = new.name or CANDIDATE
            old = message.model_specs.add()
            old.CopyFrom(new)
            old.name, old.is_baseline = BASELINE, True
            old.ClearField("prediction_key")
        elif not self.compares and old is not None:
            message.model_specs.remove(old)
            old = None
        sides: tuple[tuple[Any, Side, str | None], ...] = (
            (new, "prediction", config.score or config.prediction),
            (old, "baseline", config.baseline_score or config.baseline_prediction),
        )
        for spec, side, predictions in sides:
            if spec is None:
                continue
            spec.ClearField("signature_name")
            spec.ClearField("preprocessing_function_names")
            for name, default in (
                ("label_key", config.label),
                ("prediction_key", predictions),
                ("example_weight_key", config.weight),
            ):
                several = getattr(spec, f"{name}s")
                for output, column in list(several.items()):
                    several[output] = number_column(column)
                column = getattr(spec, name) or ("" if several else default or "")
                if column:
                    setattr(spec, name, number_column(column))
                elif name == "prediction_key" and not several:
                    spec.prediction_key = prediction_column(side)

    def _name_slices(self, message: Any) -> None:
        if self.has_own_slices:
            return
        del message.slicing_specs[:]
        del message.cross_slicing_specs[:]
        # They are as large as the run wants them to be.
        message.options.ClearField("min_slice_size")
        slices = message.slicing_specs
        slices.add()
        slices.add(feature_keys=[SLICES])
        if not self.compares:
            # The differences from all examples have intervals of their own.
            cross = message.cross_slicing_specs.add(slicing_specs=slices[1:])
            cross.baseline_spec.SetInParent()

    def numbers(self) -> tuple[str, ...]:
        """Return the columns of labels, predictions and weights."""
        prefix = number_column("")
        named = (
            column
            for spec in self.message.model_specs
            for name in ("label_key", "prediction_key", "example_weight_key")
            for column in (getattr(spec, name), *getattr(spec, f"{name}s").values())
        )
        numbers = (name.removeprefix(prefix) for name in named if name.startswith(prefix))
        return tuple(dict.fromkeys(numbers))

    def features(self) -> tuple[str, ...]:
        """Return the columns that metrics read, and those of the EvalConfig's slices."""
        names: list[str] = []
        for spec in self.message.metrics_specs:
            names += [spec.query_key] if spec.query_key else []
            for metric in spec.metrics:
                settings = json_settings(metric.class_name, metric.config)
                names += [str(settings[key]) for key in settings if key.endswith("_key")]
        for slices in self.message.slicing_specs if self.has_own_slices else ():
            names += [*slices.feature_keys, *slices.feature_values]
        return tuple(dict.fromkeys(names))


def _without(message: Any, names: frozenset[str]) -> None:
    """Remove metrics that slicebeam computes itself, which are not evaluated twice."""
    for spec in message.metrics_specs:
        others = [config for config in spec.metrics if _own_name(config) not in names]
        del spec.metrics[:]
        spec.metrics.extend(others)
    filled = [spec for spec in message.metrics_specs if spec.metrics]
    del message.metrics_specs[:]
    message.metrics_specs.extend(filled)


def _own_name(config: Any) -> str:
    settings = json_settings(config.class_name, config.config)
    return str(settings.get("name") or snake_case(config.class_name))


def _add_metric(message: Any, spec: Any) -> None:
    from google.protobuf import json_format  # type: ignore[import-untyped]

    specs = message.metrics_specs.add()
    try:
        json_format.ParseDict(spec.scope, specs)
    except json_format.ParseError as error:
        raise OptionError(f"--metric {spec.text}: {error}") from error
    specs.metrics.add(class_name=spec.class_name, module=spec.module, config=spec.config)


def evaluation_of(config: RunConfig) -> Evaluation | None:
    """Return what TFMA has to evaluate in a run, after it was checked; None for nothing.

    Raises
    ------
    InputError
        TFMA is not installed, or a metric is not possible.
    """
    uri = getattr(config, "eval_config", None)
    plan = None if uri is None else eval_plan(uri)
    evaluation = Evaluation(config, plan)
    has_others = plan is not None and plan.has_others
    if not (config.tfma_metric or has_others or evaluation.validates):
        return None
    if evaluation.message is None:
        return None
    for text in config.tfma_metric:
        spec = parse_metric(text, config.tfma_module)
        _check_class(f"--metric {text}", spec.class_name, spec.module, config, spec.arguments)
    if plan is not None:
        for number, specs in enumerate(plan.message.metrics_specs, 1):
            for metric in specs.metrics:
                where = f"--eval-config {uri}: metrics_specs {number} {metric.class_name}"
                settings = json_settings(where, metric.config)
                _check_class(where, metric.class_name, metric.module, config, settings)
    if config.group and evaluation.has_intervals:
        raise OptionError(
            "--group: TFMA resamples examples, not groups, for the intervals of its metrics; leave out "
            "--group, or the metrics of TFMA"
        )
    try:
        tfma_module("metrics.metric_specs").to_computations(
            list(evaluation.message.metrics_specs), eval_config=evaluation.message
        )
    except Exception as error:
        shown = f"--eval-config {uri}" if uri else f"--metric {config.tfma_metric[0]}"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"{shown}: {reason}") from error
    return evaluation


def _check_class(
    where: str, class_name: str, module: str, config: RunConfig, settings: Mapping[str, Any]
) -> None:
    """Refuse a class that there is not, and what would run code that nobody has confirmed."""
    for name, value in settings.items():
        # Keras makes an object of a mapping that names a class.
        if not is_plain(value):
            raise OptionError(
                f"{where}: {name} is not a number, a text, true, false, none or a list of these"
            )
    if is_own(module):
        if module not in config.tfma_module:
            raise OptionError(
                f"{where}: {module} is not a module of TFMA, and importing it runs its code; if you "
                f"trust it, add --tfma-module {module}"
            )
        try:
            imported = import_module(module)
        except ImportError as error:
            raise OptionError(f"{where}: {error}; see PYTHONPATH") from error
        if not is_metric(getattr(imported, class_name, None)):
            names = [name for name, kind in vars(imported).items() if is_metric(kind)]
            hint = nearest_hint(class_name, names).rstrip(";")
            raise OptionError(f"{where}: {module} has no metric {class_name}{hint}")
        return
    known = metric_classes(where)
    if class_name not in known:
        hint = nearest_hint(class_name, sorted(known))
        raise OptionError(
            f"{where}: neither TFMA nor Keras has {class_name!r}{hint} name your own by its module, as "
            "tfma:module.Class with --tfma-module module"
        )
    if class_name == "Bleu" and "tokenize" in settings:
        raise OptionError(
            f"{where}: some values of tokenize fetch files from elsewhere; leave it out"
        )


def seconds_of(evaluation: Evaluation, examples: int) -> float:
    """Return about how many CPU seconds TFMA takes on slices of so many examples in all."""
    replicates = REPLICATES if evaluation.has_intervals else 0
    models = 2 if evaluation.compares else 1
    return examples * _SECONDS_OF_EXAMPLE * (1 + replicates) * models


def cost_lines(config: RunConfig, rows: int) -> list[str]:
    """Return what TFMA costs, for what is said before anything runs."""
    evaluation = evaluation_of(config)
    if evaluation is None:
        return []
    seconds = seconds_of(evaluation, rows)
    share = "and as much times its share for each listed slice"
    return [f"TFMA: about {seconds:.3g} s of CPU over all examples, {share}"]


def with_tfma(
    document: SearchChangeList,
    evaluation: Evaluation | None,
    prepared: EncodedDataset,
    work: WorkFolder,
    engine: Engine,
    say: Callable[[Stage], None],
) -> tuple[SearchChangeList, list[TfmaMessage]]:
    """Return the document with what TFMA says of its slices, and TFMA's messages.

    Raises
    ------
    InputError
        A metric is not possible, or a column is not there or holds no numbers.
    EngineError
        The engine or the storage failed.
    """
    if evaluation is None:
        return document, []
    config = evaluation.config
    slices = [one for one in document.slices if isinstance(one.definition, PredicateDefinition)]
    seconds = seconds_of(evaluation, prepared.rows + sum(one.size.n for one in slices))
    say(Stage(f"TFMA evaluates {len(slices):,} slices: about {seconds:.3g} s of CPU"))
    numbers, features = evaluation.numbers(), evaluation.features()
    source = prepared.source
    for name in (*numbers, *features):
        source.column_type(name, "metrics of TFMA")
    keys = {spec.prediction_key for spec in evaluation.message.model_specs}
    sides: tuple[tuple[Side, str | None], ...] = (
        ("prediction", config.model),
        ("baseline", config.baseline_model),
    )
    models = {
        side: model
        for side, model in sides
        if model is not None and prediction_column(side) in keys
    }
    examples = EvaluatedExamples(
        source,
        None if evaluation.has_own_slices else SliceMembership(tuple(map(_conditions, slices))),
        numbers,
        features,
        prepared.outcome.positive_class,
        models,
        {side: prepared.model_columns[side] for side in models},
    )
    path = work.folder("tfma") / "messages.parquet"
    serialized = evaluation.message.SerializeToString(deterministic=True)
    run_stage(
        work,
        engine,
        "tfma",
        partial(_build, EvaluateSlices(examples, serialized, config.seed, path)),
        path.is_file,
        job="tfma",
        seconds=seconds,
        reads_data=True,
    )
    with path.open("rb") as stream:
        rows = pq.read_table(stream).to_pylist()
    return _Read(evaluation, slices, rows).document(document)


def _build(transform: EvaluateSlices, pipeline: Any) -> Any:
    return pipeline | "TFMA" >> transform


def _conditions(one: Slice) -> tuple[Singleton, ...]:
    definition = one.definition
    parts = definition.predicate.all if isinstance(definition, PredicateDefinition) else ()
    return tuple(Singleton(part.field, part.op, part.value) for part in parts)


class _Read:
    """Reads TFMA's messages about the slices of a document."""

    def __init__(
        self, evaluation: Evaluation, slices: Sequence[Slice], rows: list[dict[str, Any]]
    ) -> None:
        self.evaluation, self.slices = evaluation, slices
        _, old = models_of(evaluation.message)
        self.old = None if old is None else old.name
        self.names = {one.slice_id: one.name for one in slices}
        self.ids: dict[Any, str | None] = {(): None}
        for number, one in enumerate(slices):
            key = ((SLICES, number),)
            if evaluation.has_own_slices:
                parts = ((c.field, _typed(c.value)) for c in _conditions(one))
                key = tuple(sorted(parts))  # type: ignore[assignment]
            self.ids[key] = one.slice_id
        pb = tfma_module("proto.metrics_for_slice_pb2")
        self.metrics = [
            pb.MetricsForSlice.FromString(row["content"])
            for row in rows
            if row["kind"] == "metrics"
        ]
        self.plots = [
            pb.PlotsForSlice.FromString(row["content"]) for row in rows if row["kind"] == "plots"
        ]
        results = tfma_module("proto.validation_result_pb2").ValidationResult
        (self.result,) = [
            results.FromString(row["content"]) for row in rows if row["kind"] == "validation"
        ]

    def document(self, document: SearchChangeList) -> tuple[SearchChangeList, list[TfmaMessage]]:
        """Return the document with TFMA's numbers and verdict, and the messages to publish."""
        update: dict[str, Any] = {"tfma_metrics": tuple(self._entries())}
        if self.evaluation.validates:
            update["validation"] = self._validation()
        return document.model_copy(update=update), list(self._messages())

    def _entries(self) -> Iterator[TfmaMetric]:
        plan = self.evaluation.plan
        native = frozenset[str]() if plan is None else plan.native
        found: dict[tuple[str, str], dict[str | None, dict[str, TfmaNumber]]] = {}
        for message in self.metrics:
            is_cross = message.HasField("cross_slice_key")
            key = message.cross_slice_key.comparison_slice_key if is_cross else message.slice_key
            if is_cross and (
                self.evaluation.compares
                or message.cross_slice_key.baseline_slice_key.single_slice_keys
            ):
                continue
            slice_key = _key(key)
            if slice_key not in self.ids:
                continue
            for number in numbers_of(message):
                if number.name in native and not number.output:
                    continue
                side = "after"
                if is_cross or number.is_difference:
                    side = "delta"
                elif self.old is not None and number.model == self.old:
                    side = "before"
                by_slice = found.setdefault((number.name, number.output), {})
                by_slice.setdefault(self.ids[slice_key], {})[side] = number
        for (name, output), by_slice in found.items():
            yield self._entry(name, output, by_slice)

    def _entry(
        self, name: str, output: str, by_slice: dict[str | None, dict[str, TfmaNumber]]
    ) -> TfmaMetric:
        compares = self.evaluation.compares
        overall = by_slice.get(None, {})
        listed = []
        for one in self.slices:
            sides = by_slice.get(one.slice_id)
            if sides is None:
                continue
            after = _estimate(sides.get("after"))
            # TFMA subtracts a slice from all examples.
            delta = _estimate(sides.get("delta"), sign=1 if compares else -1)
            of_all = _estimate(overall.get("after")).value
            if "delta" not in sides and after.value is not None and of_all is not None:
                delta = Estimate(value=after.value - of_all)
            listed.append(
                TfmaValue(
                    slice_id=one.slice_id,
                    after=after,
                    before=_estimate(sides.get("before")) if compares else None,
                    delta=delta,
                    p_value=_p_value(sides.get("delta")),
                )
            )
        return TfmaMetric(
            name=name,
            output=output or None,
            replicates=REPLICATES if self.evaluation.has_intervals else 0,
            overall=_estimate(overall.get("after")),
            overall_before=_estimate(overall.get("before")) if compares else None,
            overall_delta=_estimate(overall.get("delta")) if compares else None,
            slices=tuple(listed),
        )

    def _validation(self) -> Validation:
        failures = []
        for part in self.result.metric_validations_per_slice:
            cross = part.cross_slice_key if part.HasField("cross_slice_key") else None
            key = _key(part.slice_key if cross is None else cross.baseline_slice_key)
            other = None if cross is None else self._name(_key(cross.comparison_slice_key))
            for failure in part.failures:
                value = float(failure.metric_value.double_value.value)
                has_value = failure.HasField("metric_value") and math.isfinite(value)
                failures.append(
                    FailedThreshold(
                        metric=key_name(failure.metric_key),
                        slice=self._name(key),
                        slice_id=self.ids.get(key),
                        compared_with=other,
                        value=value if has_value else None,
                        reason=" ".join(failure.message.split()) or None,
                        bounds=_bounds(failure.metric_threshold),
                    )
                )
        missing = [_spec_name(spec) for spec in self.result.missing_slices]
        missing += [
            f"{_spec_name(spec.baseline_spec)} against "
            + (", ".join(map(_spec_name, spec.slicing_specs)) or "all others")
            for spec in self.result.missing_cross_slices
        ]
        details = self.result.validation_details.slicing_details
        return Validation(
            passed=self.result.validation_ok,
            checked=sum(detail.num_matching_slices for detail in details),
            failures=tuple(failures),
            missing_slices=tuple(missing),
        )

    def _name(self, key: Any) -> str:
        if not key:
            return "all examples"
        slice_id = self.ids.get(key)
        if slice_id is not None:
            return self.names[slice_id]
        return " & ".join(f"{column} = {value}" for column, value in key)

    def _messages(self) -> Iterator[TfmaMessage]:
        """Yield what is published, with the names that an export has for the models."""
        for kind, messages in (("metrics", self.metrics), ("plots", self.plots)):
            for message in messages:
                key = _key(message.slice_key)
                if message.HasField("cross_slice_key") or key not in self.ids:
                    continue
                entries = (
                    message.metric_keys_and_values
                    if kind == "metrics"
                    else message.plot_keys_and_values
                )
                if not entries:
                    continue
                for entry in entries:
                    self._rename(entry.key)
                yield TfmaMessage(
                    kind, self.ids[key], message.SerializeToString(deterministic=True)
                )
        if self.evaluation.validates:
            for part in self.result.metric_validations_per_slice:
                for failure in part.failures:
                    self._rename(failure.metric_key)
            yield TfmaMessage("validation", None, self.result.SerializeToString(deterministic=True))

    def _rename(self, key: Any) -> None:
        if self.evaluation.compares:
            key.model_name = BASELINE if key.model_name == self.old else CANDIDATE


def _key(message: Any) -> tuple[tuple[str, Any], ...]:
    """Return a SliceKey as columns with their values, sorted."""
    parts = []
    for single in message.single_slice_keys:
        kind = single.WhichOneof("kind")
        value = getattr(single, kind) if kind else ""
        parts.append((single.column, value.decode("utf-8") if isinstance(value, bytes) else value))
    return tuple(sorted(parts))


def _typed(value: Any) -> Any:
    """Return a value of the data as a slice key of TFMA has it."""
    if isinstance(value, bool | int):
        return int(value)
    return float(np.float32(value)) if isinstance(value, float) else str(value)


def _spec_name(spec: Any) -> str:
    values = (f"{name} = {value}" for name, value in sorted(spec.feature_values.items()))
    return " & ".join([*sorted(spec.feature_keys), *values]) or "all examples"


def _bounds(threshold: Any) -> str:
    """Return the bounds of a MetricThreshold in words."""
    if threshold.HasField("value_threshold"):
        bound = threshold.value_threshold
        parts = [
            f"{words} {getattr(bound, name).value:g}"
            for name, words in (("lower_bound", "at least"), ("upper_bound", "at most"))
            if bound.HasField(name)
        ]
        return " and ".join(parts) or "a value"
    bound = threshold.change_threshold
    side = "at most" if bound.direction == 1 else "at least"
    parts = [
        f"{side} {getattr(bound, name).value:+g}{words}"
        for name, words in (("absolute", ""), ("relative", " of the old value"))
        if bound.HasField(name)
    ]
    return "a change of " + (" and ".join(parts) or "any size")


def _estimate(number: TfmaNumber | None, sign: int = 1) -> Estimate:
    if number is None or not math.isfinite(number.value):
        return Estimate()
    low, high = sorted((sign * number.low, sign * number.high))
    value = sign * number.value
    # What no replicate changes has no interval: that nothing varied does not say that nothing could.
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return Estimate(value=value)
    return Estimate(value=value, lo=low, hi=high, confidence=CONFIDENCE)


def _p_value(number: TfmaNumber | None) -> float | None:
    if number is None or not (number.error > 0 and number.freedom > 0):
        return None
    # TFMA's interval is around the mean of the replicates; so is the test that agrees with it.
    centre = (number.low + number.high) / 2
    return float(2 * stdtr(number.freedom, -abs(centre) / number.error))
