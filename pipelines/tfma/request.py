"""What TFMA is asked to evaluate in a run: an EvalConfig, checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError, nearest_hint
from slicebeam.transforms.tfma.eval_config import KEYS, eval_plan, json_settings, models_of
from slicebeam.transforms.tfma.evaluation import (
    SLICES,
    EvaluatedExamples,
    number_column,
    prediction_column,
)
from slicebeam.transforms.tfma.install import is_metric, metric_names, tfma_module
from slicebeam.transforms.tfma.metric_specs import (
    check_confirmed,
    check_plain,
    is_own,
    parse_metric,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.transforms.encode.conditions import SliceMembership
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.tfma.eval_config import EvalPlan

CANDIDATE, BASELINE = "candidate", "baseline"
# Of TFMA's bootstrap, which has no setting for it.
REPLICATES = 20
# CPU seconds of an example in a slice, without a bootstrap; measured, and rough.
_SECONDS_OF_EXAMPLE = 3e-4


@dataclass(frozen=True)
class Evaluation:
    """What TFMA is asked to evaluate; the plan is None for metrics of ``--metric`` only."""

    config: RunConfig
    plan: EvalPlan | None

    @property
    def validates(self) -> bool:
        """Whether TFMA decides on thresholds."""
        return self.plan is not None and self.plan.has_thresholds and self.has_own_slices

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
        """The EvalConfig, with TFMA's defaults."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        message = tfma_module("proto.config_pb2").EvalConfig()
        utilities = tfma_module("utils.config_util")
        if self.plan is not None:
            wanted = self.plan.message if self.validates else self.plan.others
            message.MergeFromString(wanted.SerializeToString())
        for text in self.config.tfma_metric:
            metric = parse_metric(text, self.config.tfma_module)
            specs = json_format.ParseDict(metric.scope, message.metrics_specs.add())
            specs.metrics.add(
                class_name=metric.class_name, module=metric.module, config=metric.config
            )
        if self.validates and not self.compares and utilities.has_change_threshold(message):
            raise OptionError(
                "a change_threshold needs the old model; give --baseline-score, --baseline-prediction or "
                "--baseline-model"
            )
        self._name_columns(message)
        self._name_slices(message)
        if self.has_intervals:
            options = message.options
            options.compute_confidence_intervals.value = True
            methods = options.confidence_intervals
            methods.method = methods.method or methods.POISSON_BOOTSTRAP
        # Thresholds that nobody applies need no old model.
        return utilities.update_eval_config_with_defaults(
            message, has_baseline=self.compares, rubber_stamp=True
        )

    @property
    def has_intervals(self) -> bool:
        """Whether numbers have intervals, for which TFMA resamples the examples."""
        plan = self.plan
        wants = plan is not None and plan.message.options.compute_confidence_intervals.value
        return bool(self.config.tfma_metric) or bool(wants)

    def _models(self, message: Any) -> tuple[Any, Any]:
        """Return the models of an EvalConfig, named by their roles; None for an old model there is not."""
        new, old = models_of(message)
        new = message.model_specs.add() if new is None else new
        if self.compares:
            if old is None:
                old = message.model_specs.add()
                old.CopyFrom(new)
                old.name, old.is_baseline = BASELINE, True
                old.ClearField("prediction_key")
            roles = {new.name: CANDIDATE, old.name: BASELINE}
            for spec in message.metrics_specs:
                spec.model_names[:] = [roles.get(name, name) for name in spec.model_names]
            new.name, old.name = CANDIDATE, BASELINE
        elif old is not None:
            message.model_specs.remove(old)
            for spec in list(message.metrics_specs):
                if old.name and list(spec.model_names) == [old.name]:
                    message.metrics_specs.remove(spec)
            old = None
        return new, old

    def _name_columns(self, message: Any) -> None:
        """Let the models of an EvalConfig name the columns that TFMA gets."""
        config = self.config
        new, old = self._models(message)
        sides: tuple[tuple[Any, Side, str | None], ...] = (
            (new, "prediction", config.score or config.prediction),
            (old, "baseline", config.baseline_score or config.baseline_prediction),
        )
        for spec, side, predictions in sides:
            if spec is None:
                continue
            spec.ClearField("signature_name")
            spec.ClearField("preprocessing_function_names")
            defaults = zip(KEYS, (config.label, predictions, config.weight), strict=True)
            for name, default in defaults:
                several = getattr(spec, f"{name}s")
                for output, column in list(several.items()):
                    several[output] = number_column(column)
                column = getattr(spec, name) or default
                if column and not several:
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

    def examples(self, prepared: EncodedDataset, slices: SliceMembership) -> EvaluatedExamples:
        """Return the columns that TFMA reads, and the models that predict where no column does."""
        specs, config = self.message.model_specs, self.config
        keys = [getattr(spec, name) for spec in specs for name in KEYS]
        keys += [
            key for spec in specs for name in KEYS for key in getattr(spec, f"{name}s").values()
        ]
        prefix = number_column("")
        numbers = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
        read = [spec.query_key for spec in self.message.metrics_specs if spec.query_key]
        for spec in self.message.metrics_specs:
            for metric in spec.metrics:
                settings = json_settings(metric.class_name, metric.config)
                read += [str(settings[key]) for key in settings if key.endswith("_key")]
        features = [*read]
        if self.has_own_slices:
            slicing = [*self.message.slicing_specs]
            for cross in self.message.cross_slicing_specs:
                slicing += [cross.baseline_spec, *cross.slicing_specs]
            features += [
                name for spec in slicing for name in (*spec.feature_keys, *spec.feature_values)
            ]
        for name in (*numbers, *features):
            prepared.source.column_type(name, "metrics of TFMA")
        sides: dict[Side, str | None]
        sides = {"prediction": config.model, "baseline": config.baseline_model}
        models = {
            side: model
            for side, model in sides.items()
            if model and prediction_column(side) in keys
        }
        return EvaluatedExamples(
            prepared.source,
            None if self.has_own_slices else slices,
            tuple(dict.fromkeys(numbers)),
            tuple(dict.fromkeys(features)),
            tuple(dict.fromkeys(read)),
            prepared.outcome.positive_class,
            models,
            {side: prepared.model_columns[side] for side in models},
        )


def evaluation_of(config: RunConfig) -> Evaluation | None:
    """Return what TFMA has to evaluate in a run, after it was checked; None for nothing."""
    uri = config.eval_config
    plan = None if uri is None else eval_plan(uri)
    evaluation = Evaluation(config, plan)
    has_others = plan is not None and bool(plan.others.metrics_specs)
    if not (config.tfma_metric or has_others or evaluation.validates):
        return None
    if config.group and evaluation.has_intervals:
        raise OptionError(
            "--group: TFMA resamples examples, not groups, for the intervals of its metrics; leave out "
            "--group, or the metrics of TFMA"
        )
    try:
        message = evaluation.message
        tfma_module("utils.config_util").verify_eval_config(message)
        for specs in message.metrics_specs:
            for metric in specs.metrics:
                _check_class(metric, config.tfma_module)
        _check_names(message)
        tfma_module("metrics.metric_specs").to_computations(
            list(message.metrics_specs), eval_config=message
        )
    except Exception as error:
        options = [f"--eval-config {uri}"] * (uri is not None)
        options += [f"--metric {text}" for text in config.tfma_metric]
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"{' and '.join(options)}: {reason}") from error
    return evaluation


def _check_names(message: Any) -> None:
    """Refuse metrics of one name that differ: TFMA computes the first one for all."""
    keys_of = tfma_module("metrics.metric_specs").keys_and_metrics_from_specs
    defined: dict[Any, tuple[Any, ...]] = {}
    for specs in message.metrics_specs:
        for key, metric, _ in keys_of(message, [specs]):
            settings = json_settings(metric.class_name, metric.config)
            definition = (specs.query_key, metric.class_name, metric.module, settings)
            # These are part of the key of a number.
            is_own = settings.keys() & {"class_id", "top_k", "top_k_list"}
            if not is_own and defined.setdefault(key, definition) != definition:
                raise OptionError(
                    f"two metrics are named {key.name!r}, which TFMA takes for the same; add "
                    '"name" to the config of one'
                )


def _check_class(metric: Any, modules: Collection[str]) -> None:
    """Refuse a class that there is not, and what would run code that nobody has confirmed."""
    name, module = metric.class_name, metric.module
    settings = json_settings(name, metric.config)
    check_plain(name, settings)
    if is_own(module):
        check_confirmed(name, module, modules)
        try:
            classes = vars(import_module(module))
        except ImportError as error:
            raise OptionError(f"{error}; see PYTHONPATH") from error
        names = [each for each, kind in classes.items() if is_metric(kind)]
        if name not in names:
            near = nearest_hint(name, names).rstrip(";")
            raise OptionError(f"{module} has no metric {name}{near}")
        return
    names = metric_names()
    if name not in names:
        raise OptionError(
            f"neither TFMA nor Keras has {name!r}{nearest_hint(name, names)} name your own by its "
            "module, as tfma:module.Class with --tfma-module module"
        )
    if name.endswith("Attributions"):
        raise OptionError(f"{name} reads attributions, which no column holds; leave it out")
    if name == "Bleu" and "tokenize" in settings:
        raise OptionError("some values of Bleu's tokenize fetch files from elsewhere; leave it out")


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
