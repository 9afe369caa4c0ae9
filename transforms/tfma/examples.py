"""Examples as metrics of TFMA take them, with the slices that they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import ColumnError
from slicebeam.metrics.randomness import splitmix64
from slicebeam.transforms.encode.column import id_hashes
from slicebeam.transforms.encode.extract_predictions import model_column
from slicebeam.transforms.encode.extract_slice_keys import ReadExamples
from slicebeam.transforms.tfma.computations import LABEL, PREDICTION, WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.transforms.encode.conditions import SliceMembership
    from slicebeam.transforms.encode.extract_predictions import Side
    from slicebeam.transforms.encode.sources import Chunk, Source
    from slicebeam.transforms.tfma.computations import Computations

# The column of the number of each example.
ROW = "\0row"


@dataclass(frozen=True)
class MeasuredExamples:
    """Which columns are measured.

    Attributes
    ----------
    source : the examples
    slices : their predicates
    label, prediction : columns; the prediction is a score where there is one, and empty where a model
        predicts
    weight : column of weights
    id_field : column of what is resampled together; None for examples one by one
    features : further columns that the metric reads
    positive_class : the class that is 1, where labels are classes
    replicates, seed : of the bootstrap
    model : file or ``module:function`` of the model that predicts
    model_columns : what it reads
    side : which of two models it is
    is_by_query : whether examples are gathered, for which their order in the data is kept
    """

    source: Source
    slices: SliceMembership
    label: str
    prediction: str
    weight: str | None
    id_field: str | None
    features: tuple[str, ...]
    positive_class: Any
    replicates: int
    seed: int
    model: str | None = None
    model_columns: tuple[str, ...] = ()
    side: Side = "prediction"
    is_by_query: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        wanted = [self.label, self.prediction, self.weight, self.id_field]
        wanted += [*self.features, *self.slices.columns, *self.model_columns]
        return list(dict.fromkeys(name for name in wanted if name))


@dataclass
class ReadMeasured(beam.PTransform):
    """Read chunks with what their model gives, if one predicts: pipeline -> `Chunk`."""

    measured: MeasuredExamples

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[Chunk]:
        """Wire the transform."""
        measured = self.measured
        chunks = pipeline | ReadExamples(measured.source, measured.columns)
        if measured.model is None:
            return chunks
        from slicebeam.transforms.encode.run_model import WantedPredictions, run_model

        wanted = WantedPredictions(outputs=True, positive=measured.positive_class)
        return chunks | run_model(measured.model, measured.model_columns, measured.side, wanted)


def examples_of(
    chunk: Chunk, measured: MeasuredExamples
) -> tuple[dict[str, Any], Any, NDArray[np.uint64]]:
    """Return examples as ``(columns, slices of each, ids)``."""
    table = chunk.table
    name = measured.prediction
    predicted = table.column(name or model_column(measured.side, "output"))
    shown = name or f"the predictions of {measured.model}"
    columns = {
        LABEL: _number(table.column(measured.label), measured.positive_class, measured.label),
        PREDICTION: _number(predicted, measured.positive_class, shown),
    }
    if measured.weight:
        columns[WEIGHT] = _number(table.column(measured.weight), None, measured.weight)
    for name in measured.features:
        columns[name] = _feature(table.column(name))
    if measured.is_by_query:
        columns[ROW] = np.arange(table.num_rows) + chunk.start_row
    if measured.id_field:
        ids = id_hashes(table.column(measured.id_field).combine_chunks(), chunk)
    else:
        ids = splitmix64(np.arange(table.num_rows, dtype=np.uint64) + np.uint64(chunk.start_row))
    return columns, measured.slices.codes(table), ids


def _number(column: Any, positive: Any, name: str) -> NDArray[Any]:
    array = column.combine_chunks()
    if array.null_count:
        raise ColumnError(f"column {name!r} has missing values, which no metric of TFMA takes")
    if pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return _rows_of(array, name)
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "OSU":
        if positive is None:
            raise ColumnError(
                f"column {name!r} is text, but metrics of TFMA take numbers; give --positive-class, or "
                "write classes as numbers"
            )
        return (values == positive).astype(np.float64)
    return values.astype(np.float64) if values.dtype.kind in "bui" else values


def _rows_of(array: Any, name: str) -> NDArray[np.float64]:
    """Return a column of lists, a score for each class [rows, classes]."""
    lengths = set(pc.list_value_length(array).to_pylist())
    if len(lengths) != 1:
        raise ColumnError(f"column {name!r} has lists of different lengths: {sorted(lengths)}")
    flat = array.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float64).reshape(len(array), -1)


def _feature(column: Any) -> NDArray[Any]:
    array = column.combine_chunks()
    values = array.to_numpy(zero_copy_only=False)
    return np.array([str(one) for one in values]) if values.dtype.kind == "O" else values


def needed_features(computations: Computations, source: Source) -> tuple[str, ...]:
    """Return the columns that a metric names in its arguments ending in ``_key``.

    Raises
    ------
    InputError
        There is no such column.
    """
    spec = computations.spec
    named = {
        name: value
        for name, value in (*spec.arguments.items(), ("query_key", spec.query_key))
        if name.endswith("_key") and value
    }
    for name, value in named.items():
        source.column_type(str(value), f"--metric {spec.text}: {name}")
    return tuple(dict.fromkeys(map(str, named.values())))
