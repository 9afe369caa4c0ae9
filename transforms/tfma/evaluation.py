"""Runs TFMA's evaluator over examples, as its own ``ExtractAndEvaluate``, and reads what it says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slicebeam.metrics.errors import ColumnError
from slicebeam.transforms.encode.column import ChunkColumn, is_number, missing_mask
from slicebeam.transforms.encode.extract_predictions import model_column
from slicebeam.transforms.encode.extract_slice_keys import ReadExamples
from slicebeam.transforms.encode.predicates import json_values
from slicebeam.transforms.storage.storage import written_whole
from slicebeam.transforms.tfma.eval_config import THRESHOLDS
from slicebeam.transforms.tfma.install import tfma_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.conditions import SliceMembership
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath

# Feature that holds the numbers of the slices that an example is in.
SLICES = "slicebeam:slices"
NO_NUMBER = "its value is not a single number"
_REMEDY = "; drop such examples or fill the column"
# Examples that TFMA takes at a time.
_BATCH = 1000


@dataclass(frozen=True)
class EvaluatedExamples:
    """Which columns TFMA reads.

    ``slices``: predicates, whose numbers are the feature `SLICES`; None for slices of TFMA's own.
    ``numbers``: columns that are numbers to TFMA: labels, predictions, weights. ``features``:
    further columns, of which ``complete`` must not have missing values. ``positive_class``: the class
    that is 1, where labels are classes. ``models``: file or ``module:function`` of each model that
    predicts. ``model_columns``: what they read.
    """

    source: Source
    slices: SliceMembership | None
    numbers: tuple[str, ...]
    features: tuple[str, ...]
    complete: tuple[str, ...]
    positive_class: Any
    models: dict[Side, str]
    model_columns: dict[Side, tuple[str, ...]]

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        wanted = [*self.numbers, *self.features, *(self.slices.columns if self.slices else ())]
        for columns in self.model_columns.values():
            wanted += columns
        return list(dict.fromkeys(wanted))


def number_column(name: str) -> str:
    """Return what TFMA's models name a column by: features of the same name stay as they are."""
    return f"slicebeam:number:{name}"


def prediction_column(side: Side) -> str:
    """Return what TFMA's models name the predictions of a model by."""
    return f"slicebeam:{side}"


def record_batches(chunk: Chunk, examples: EvaluatedExamples) -> Iterator[pa.RecordBatch]:
    """Yield examples as TFMA reads them: a list of values for each feature."""
    for name in examples.complete:
        ChunkColumn.of(chunk, name).require_values(_REMEDY)
    columns = {name: _feature(ChunkColumn.of(chunk, name)) for name in examples.features}
    numbers = {number_column(name): ChunkColumn.of(chunk, name) for name in examples.numbers}
    for side, model in examples.models.items():
        shown = f"predictions of {model}"
        numbers[prediction_column(side)] = ChunkColumn.of(
            chunk, model_column(side, "output"), shown
        )
    for key, column in numbers.items():
        columns[key] = _numbers(column, examples.positive_class)
    if examples.slices is not None:
        codes = examples.slices.codes(chunk.table)
        offsets = pa.array(codes.offsets.astype(np.int32))
        columns[SLICES] = pa.ListArray.from_arrays(offsets, pa.array(codes.codes.astype(np.int64)))
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    for start in range(0, batch.num_rows, _BATCH):
        yield batch.slice(start, _BATCH)


def _feature(column: ChunkColumn) -> pa.Array:
    """Return a column with the list of its values in each example, without missing ones."""
    array = column.plain
    is_list = pa.types.is_list(array.type)
    values = array.flatten() if is_list else array
    rows = pc.list_parent_indices(array) if is_list else pa.array(np.arange(len(array)))
    rows, values = rows.filter(values.is_valid()), values.drop_null()
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        # A tf.Example has numbers for truth values.
        values = values.cast(pa.int64())
    elif pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        values = pa.array(json_values(values), pa.string())
    elif not pa.types.is_floating(kind):
        values = values.cast(pa.string())
    ends = np.cumsum(np.bincount(rows.to_numpy() + 1, minlength=len(array) + 1))
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values)


def _numbers(column: ChunkColumn, positive: Any) -> pa.Array:
    """Return a column of numbers, or of lists of them, with the list of its values in each example."""
    kind, what = column.kind, f"column {column.name!r}"
    column.require_values(_REMEDY)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        array = column.plain.cast(pa.list_(pa.float64()))
        lengths = pc.list_value_length(array).unique().to_pylist()
        if len(lengths) > 1:
            raise ColumnError(f"{what} has lists of different lengths: {sorted(lengths)}")
        if missing_mask(array.flatten()) is not None:
            raise ColumnError(f"{what} has lists with missing values{_REMEDY}")
        return array
    if is_number(kind) or pa.types.is_boolean(kind):
        values = column.numbers("a metric of TFMA")
    elif positive is None:
        raise ColumnError(
            f"{what} is text, but metrics of TFMA take numbers; give --positive-class, or write classes "
            "as numbers"
        )
    else:
        values = column.plain.to_numpy(zero_copy_only=False) == positive
    return pa.ListArray.from_arrays(
        pa.array(np.arange(len(values) + 1, dtype=np.int32)), pa.array(values.astype(np.float64))
    )


@dataclass
class EvaluateSlices(beam.PTransform):
    """Evaluate an EvalConfig and write the messages of TFMA's output: pipeline -> a path.

    ``config``: a serialized EvalConfig, with defaults. ``seed``: of the Poisson bootstrap. ``path``:
    of a Parquet file, ``kind`` (``metrics``, ``plots``, ``validations``) and ``content``, a
    serialized MetricsForSlice, PlotsForSlice or ValidationResult.
    """

    examples: EvaluatedExamples
    config: bytes
    seed: int
    path: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[str]:
        """Wire the transform."""
        examples = self.examples
        chunks = pipeline | ReadExamples(examples.source, examples.columns)
        for side, model in examples.models.items():
            from slicebeam.transforms.encode.models import LoadedModel
            from slicebeam.transforms.encode.run_model import run_model

            outputs = partial(LoadedModel.outputs, positive=examples.positive_class)
            columns = examples.model_columns[side]
            chunks |= f"Predict {side}" >> run_model(model, columns, side, {"output": outputs})
        tfma = tfma_module()
        read = tfma_module("proto.config_pb2").EvalConfig.FromString
        config = read(self.config)
        # The evaluator's own comparison with thresholds ends the run at a value that is no number.
        evaluator = tfma_module("evaluators").MetricsPlotsAndValidationsEvaluator(
            eval_config=without_thresholds(read(self.config)), random_seed_for_testing=self.seed
        )
        evaluation = (
            chunks
            | "To TFMA" >> beam.FlatMap(record_batches, examples)
            | "To extracts" >> tfma.BatchedInputsToExtracts()
            | "Evaluate"
            >> tfma.ExtractAndEvaluate(extractors=_extractors(config), evaluators=[evaluator])
        )
        evaluation["validations"] = evaluation["metrics"] | beam.Map(_validated, config)
        writer = tfma_module("writers.metrics_plots_and_validations_writer")
        messages = {
            "metrics": beam.Map(writer.convert_slice_metrics_to_proto, None),
            "plots": beam.Map(writer.convert_slice_plots_to_proto, None),
            "validations": beam.CombineGlobally(writer.CombineValidations(config)),
        }
        rows = [
            evaluation[kind] | f"To {kind}" >> convert | f"Serialize {kind}" >> beam.Map(_row, kind)
            for kind, convert in messages.items()
        ]
        return (
            rows
            | beam.Flatten()
            | "One key" >> beam.Map(lambda row: (None, row))
            | "Gather" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write, self.path)
        )


def _extractors(config: Any) -> list[Any]:
    # TFMA's default ones drop the old model where predictions are columns.
    extractors = tfma_module("extractors")
    materialized = tfma_module("extractors.materialized_predictions_extractor")
    return [
        extractors.FeaturesExtractor(eval_config=config),
        extractors.LabelsExtractor(eval_config=config),
        extractors.ExampleWeightsExtractor(eval_config=config),
        materialized.MaterializedPredictionsExtractor(eval_config=config),
        extractors.UnbatchExtractor(),
        extractors.SliceKeyExtractor(eval_config=config),
    ]


def without_thresholds(config: Any) -> Any:
    """Remove the thresholds of an EvalConfig."""
    for specs in config.metrics_specs:
        for part in (specs, *specs.metrics):
            for field, _ in part.ListFields():
                if field.name.endswith(THRESHOLDS):
                    part.ClearField(field.name)
    return config


def _validated(sliced: tuple[Any, dict[Any, Any]], config: Any) -> Any:
    """Return TFMA's verdict on a slice; a value that is not a single number misses its threshold."""
    slice_key, values = sliced
    others = [key for key, value in values.items() if not _is_number(value)]
    numbers = values | dict.fromkeys(others, math.nan)
    validator = tfma_module("evaluators.metrics_validator")
    result = validator.validate_metrics((slice_key, numbers), config)
    # The key of a slice that is too small is a text.
    messages = [key.to_proto() for key in others if not isinstance(key, str)]
    for part in result.metric_validations_per_slice:
        for failure in part.failures:
            if failure.metric_key in messages:
                failure.message = NO_NUMBER
    return result


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _row(message: Any, kind: str) -> dict[str, Any]:
    return {"kind": kind, "content": message.SerializeToString(deterministic=True)}


def _write(gathered: tuple[None, Iterable[dict[str, Any]]], path: StoragePath) -> str:
    ordered = sorted(gathered[1], key=lambda row: (row["kind"], row["content"]))
    with written_whole(path) as stream:
        pq.write_table(pa.Table.from_pylist(ordered), stream)
    return str(path)


class TfmaNumber(NamedTuple):
    """A number of TFMA on a slice, with the interval and the error of its bootstrap; NaN without."""

    value: float
    low: float
    high: float
    standard_error: float
    degrees_of_freedom: float


def numbers_of(message: Any) -> Iterator[tuple[Any, str, TfmaNumber]]:
    """Yield every number of a MetricsForSlice, with its MetricKey and a name.

    The name is that of the metric, with the class, rank or average that it is of, and the number's
    place in a list. A slice that is too small has none.
    """
    for entry in message.metric_keys_and_values:
        interval, name = entry.confidence_interval, key_name(entry.key)
        bounds = [
            dict(_leaves(name, part))
            for part in (interval.lower_bound, interval.upper_bound, interval.standard_error)
        ]
        freedom = float(interval.degrees_of_freedom.value)
        for path, value in _leaves(name, entry.value):
            low, high, error = (part.get(path, math.nan) for part in bounds)
            yield entry.key, path, TfmaNumber(value, low, high, error, freedom)


def key_name(key: Any) -> str:
    """Return the name of a MetricKey, with the class, rank or average that it is of."""
    parts = [key.name]
    for field, value in key.sub_key.ListFields():
        parts.append(f"{field.json_name}:{value.value}")
    for field, _ in key.aggregation_type.ListFields():
        parts.append(field.name.removesuffix("_average"))
    return "@".join(parts)


def _leaves(name: str, message: Any) -> Iterator[tuple[str, float]]:
    """Yield all numbers of a message, by the path of fields that leads to each."""
    for field, value in message.ListFields():
        is_list = field.is_repeated
        if field.type == field.TYPE_MESSAGE:
            is_value = field.name.endswith("_value") or field.name in ("value", name)
            path = name if is_value else f"{name}.{field.name}"
            for at, part in enumerate(value if is_list else [value]):
                if field.message_type.full_name.startswith("google.protobuf."):
                    yield path, float(part.value)
                else:
                    yield from _leaves(f"{path}[{at}]" if is_list else path, part)
        elif field.name == "shape" or field.cpp_type in (field.CPPTYPE_STRING, field.CPPTYPE_ENUM):
            continue
        elif is_list:
            for at, number in enumerate(value):
                yield (name if len(value) == 1 else f"{name}[{at}]"), float(number)
        else:
            yield f"{name}.{field.name}", float(value)
