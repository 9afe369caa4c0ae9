"""The computations of a metric of TFMA, and what it is worth on a group of examples."""

from __future__ import annotations

import copy
import json
import numbers
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from slicebeam.metrics.errors import InputError, OptionError, nearest_hint
from slicebeam.transforms.tfma.install import is_metric, metric_classes, tfma_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.transforms.tfma.metric_specs import MetricSpec

LABEL, PREDICTION, WEIGHT = "label", "prediction", "example_weight"
# The numbers of buckets [k], and their labels, scores and weights [3, k], summed.
Histogram: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.float64]]"
_EVALUATOR = "evaluators.metrics_plots_and_validations_evaluator"


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """Return the sums of histograms."""
    ids = np.concatenate([one[0] for one in histograms])
    sums = np.concatenate([one[1] for one in histograms], axis=1)
    every, at = np.unique(ids, return_inverse=True)
    added = [np.bincount(at, row, every.size) for row in sums]
    return every, np.array(added, np.float64).reshape(3, every.size)


@dataclass(frozen=True)
class Computations:
    """What TFMA computes for one metric; made anew wherever it is used, as it is not small.

    Attributes
    ----------
    spec : the metric
    is_weighted : whether examples have weights
    """

    spec: MetricSpec
    is_weighted: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "is_weighted": self.is_weighted}

    def check(self) -> None:
        """Refuse what can't be computed.

        Raises
        ------
        InputError
            TFMA is not installed, there is no such metric, or its arguments are wrong.
        """
        tfma_module(needed_by=f"--metric {self.spec.text}")
        self._check_class()
        try:
            parts = self._separated
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise OptionError(f"--metric {self.spec.text}: {reason}") from error
        if parts.cross_slice_computations or parts.ci_derived_computations:
            raise OptionError(
                f"--metric {self.spec.text} compares slices with each other, which is not possible "
                "here; leave it out"
            )
        keys = self._keys
        if not keys or all(key.is_diff for key in keys):
            raise OptionError(
                f"--metric {self.spec.text} reads the predictions of both models at once, which is not "
                "possible here; leave it out"
            )

    @property
    def is_plot(self) -> bool:
        """Whether it is a plot, which has no value."""
        kind = tfma_module("metrics.metric_types").PlotKey
        return any(isinstance(key, kind) for key in self._keys)

    @property
    def _keys(self) -> list[Any]:
        parts = self._separated
        computed = (*parts.non_derived_computations, *parts.derived_computations)
        return [key for one in computed for key in one.keys if not key.name.startswith("_")]

    def names(self) -> set[str]:
        """Return the names of what it computes, of which each may be several numbers."""
        return set() if self.is_plot else {_name(key) for key in self._keys}

    def _check_class(self) -> None:
        spec = self.spec
        shown = f"--metric {spec.text}"
        if spec.module:
            try:
                module = import_module(spec.module)
            except ImportError as error:
                raise OptionError(f"{shown}: {error}; see PYTHONPATH") from error
            if not is_metric(getattr(module, spec.class_name, None)):
                names = [name for name, one in vars(module).items() if is_metric(one)]
                hint = nearest_hint(spec.class_name, names).rstrip(";")
                raise OptionError(f"{shown}: {spec.module} has no metric {spec.class_name}{hint}")
            return
        known = metric_classes(shown)
        if spec.class_name not in known:
            hint = nearest_hint(spec.class_name, sorted(known))
            raise OptionError(
                f"{shown}: neither TFMA nor Keras has {spec.class_name!r}{hint} name your "
                "own by its module, as tfma:module.Class with --tfma-module module"
            )
        if spec.class_name == "Bleu" and "tokenize" in spec.arguments:
            raise OptionError(
                f"{shown}: some values of tokenize fetch files from elsewhere; leave it out"
            )

    @cached_property
    def eval_config(self) -> Any:
        """The EvalConfig that says what TFMA would be asked."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        config = tfma_module("proto.config_pb2").EvalConfig()
        model = config.model_specs.add(label_key=LABEL, prediction_key=PREDICTION)
        if self.is_weighted:
            model.example_weight_key = WEIGHT
        specs = config.metrics_specs.add()
        try:
            json_format.ParseDict(json.loads(self.spec.scope), specs)
        except json_format.ParseError as error:
            raise OptionError(f"--metric {self.spec.text}: {error}") from error
        specs.metrics.add(
            class_name=self.spec.class_name, module=self.spec.module, config=self.spec.config
        )
        return tfma_module("utils.config_util").update_eval_config_with_defaults(config)

    @cached_property
    def _separated(self) -> Any:
        metric_specs = tfma_module("metrics.metric_specs")
        computations = metric_specs.to_computations(
            list(self.eval_config.metrics_specs), eval_config=self.eval_config
        )
        return tfma_module(_EVALUATOR)._filter_and_separate_computations(computations)  # noqa: SLF001

    @cached_property
    def _preprocessor(self) -> Any:
        made = tfma_module(_EVALUATOR)._PreprocessorDoFn(self._separated.non_derived_computations)  # noqa: SLF001
        made.setup()
        return made

    @cached_property
    def combiner(self) -> Any:
        """The combiner of all that is not derived from something else."""
        made = tfma_module(_EVALUATOR)._ComputationsCombineFn(  # noqa: SLF001
            self._separated.non_derived_computations
        )
        made.setup()
        return made

    @cached_property
    def histograms(self) -> list[Any] | None:
        """The combiners where all of them are histograms of scores; None for any other metric."""
        module = tfma_module("metrics.calibration_histogram")
        kind = module._CalibrationHistogramCombiner  # noqa: SLF001
        combiners = [one.combiner for one in self._separated.non_derived_computations]
        plain = all(
            type(one) is kind
            and one._key.sub_key is None  # noqa: SLF001
            and one._aggregation_type is None  # noqa: SLF001
            and not one._class_weights  # noqa: SLF001
            and one._prediction_based_bucketing  # noqa: SLF001
            for one in combiners
        )
        return combiners if combiners and plain else None

    def inputs(self, columns: dict[str, Any]) -> Iterator[Any]:
        """Yield what the combiner takes of each example, or of the query that they are.

        Parameters
        ----------
        columns : arrays [rows] by name; label, prediction and weight by the names above
        """
        extracts = [self._extracts(columns, row) for row in range(len(columns[LABEL]))]
        if self.spec.query_key:
            extracts = [tfma_module("utils.util").merge_extracts(extracts)]
        for one in extracts:
            yield from self._preprocessor.process(one)

    def _extracts(self, columns: dict[str, Any], row: int) -> dict[str, Any]:
        constants = tfma_module("constants")
        own = {name: values[row : row + 1] for name, values in columns.items()}
        extracts = {
            constants.LABELS_KEY: own.pop(LABEL),
            constants.PREDICTIONS_KEY: own.pop(PREDICTION),
            constants.SLICE_KEY_TYPES_KEY: np.array([]),
        }
        if WEIGHT in own:
            extracts[constants.EXAMPLE_WEIGHTS_KEY] = own.pop(WEIGHT)
        extracts[constants.FEATURES_KEY] = own
        return extracts

    def counted(
        self, combiner: Any, label: NDArray[Any], score: NDArray[Any], weight: NDArray[np.float64]
    ) -> Histogram:
        """Return the buckets of a histogram, whose sums are those of the combiner's own loop.

        Raises
        ------
        InputError
            A label is neither 0 nor 1, nor between.
        """
        if label.size and not (label.min() >= 0 and label.max() <= 1):
            raise InputError(f"--metric {self.spec.text} takes labels from 0 to 1; write them so")
        span, left, size = combiner._range, combiner._left, combiner._num_buckets  # noqa: SLF001
        place = np.clip((score.astype(np.float64) - left) / span * size + 1, 0, size + 1)
        ids, at = np.unique(place.astype(np.int64), return_inverse=True)
        sums = [
            np.bincount(at, values, ids.size) for values in (label * weight, score * weight, weight)
        ]
        return ids, np.array(sums, np.float64).reshape(3, ids.size)

    def of_histograms(self, histograms: Sequence[Histogram]) -> tuple[Any, ...]:
        """Return histograms as the accumulators of TFMA's combiners."""
        bucket = tfma_module("metrics.calibration_histogram").Bucket
        return tuple(
            {
                number: bucket(number, *each)
                for number, each in zip(ids.tolist(), sums.T.tolist(), strict=True)
            }
            for ids, sums in histograms
        )

    def values(self, accumulator: Any) -> dict[str, float]:
        """Return the numbers that the metric has, by name."""
        found: dict[str, float] = {}
        for key, value in self._outputs(accumulator).items():
            found.update(_numbers(_name(key), value))
        return found

    def plots(self, accumulator: Any) -> bytes:
        """Return a plot as a serialized PlotsForSlice without a slice key."""
        writer = tfma_module("writers.metrics_plots_and_validations_writer")
        found = writer.convert_slice_plots_to_proto(((), self._outputs(accumulator)), None)
        return bytes(found.SerializeToString(deterministic=True))

    def _outputs(self, accumulator: Any) -> dict[Any, Any]:
        metrics = dict(self.combiner.extract_output(accumulator))
        for one in self._separated.derived_computations:
            metrics.update(one.result(copy.copy(metrics)))
        return {key: value for key, value in metrics.items() if not key.name.startswith("_")}


def _name(key: Any) -> str:
    """Return the name of a metric, with the class, rank or average that it is of."""
    of = "" if key.sub_key is None else f"@{key.sub_key}"
    if key.aggregation_type is not None:
        of += f"@{key.aggregation_type}"
    return f"{key.name}{of}"


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Return the numbers of a value of TFMA, which may have many."""
    if isinstance(value, (numbers.Number, np.number)):
        return {name: float(value)}  # type: ignore[arg-type]
    if isinstance(value, np.ndarray):
        if value.size == 1:
            return {name: float(value.ravel()[0])}
        return {f"{name}[{at}]": float(one) for at, one in enumerate(value.ravel())}
    if isinstance(value, dict):
        # Matrices of classes, by threshold.
        return {
            f"{name}.matrices[{at}][{true}][{predicted}]": float(number)
            for at, threshold in enumerate(sorted(value))
            for (true, predicted), number in value[threshold].items()
        }
    fields = getattr(value, "__dict__", None) or getattr(value, "_asdict", dict)()
    lists = {field: one for field, one in fields.items() if isinstance(one, (list, tuple))}
    if not lists:
        raise InputError(f"{name} is a {type(value).__name__}, which has no numbers to report")
    return {
        f"{name}.{field}[{at}]": float(one)
        for field, listed in lists.items()
        for at, one in enumerate(listed)
    }
