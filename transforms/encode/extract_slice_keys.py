"""Shards: every value becomes a small code, and every example a cell; written once."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.counting.statistic_space import THEN
from slicebeam.metrics.measures.registry import averaged_column
from slicebeam.metrics.randomness import splitmix64
from slicebeam.transforms.encode.column import ChunkColumn, id_hashes
from slicebeam.transforms.encode.extract_predictions import count_labels, extract_predictions
from slicebeam.transforms.encode.shards import (
    CLASS_COLUMNS,
    CONTENT,
    MOST_SHOWN,
    WEIGHT,
    score_column,
    value_column,
    write_shard,
)
from slicebeam.transforms.encode.sources import read_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.conditions import SliceMembership
    from slicebeam.transforms.encode.domains import FeatureDomain
    from slicebeam.transforms.encode.extract_predictions import Given, Outcome, Predicted, Side
    from slicebeam.transforms.encode.sources import Source, Split
    from slicebeam.transforms.storage.storage import StoragePath

# Whose classes each column of classes has.
_SIDES = {"label class": "label", "class": "prediction", "old class": "baseline"}
# An odd number without structure: 2^64 divided by pi.
_POLYNOMIAL_BASE = np.uint64(0x517CC1B727220A95)


@dataclass(frozen=True)
class Encoding:
    """How examples become shards.

    `space` has no scales yet. `example_id` identifies an example, or its group, where examples are
    resampled; else their content does. `given` are the slices of a check, which has no domains.
    """

    source: Source
    domains: tuple[FeatureDomain, ...]
    outcome: Outcome
    space: StatisticSpace
    folder: StoragePath
    example_id: str | None = None
    id_option: str = "--example-id"
    model_columns: dict[Side, tuple[str, ...]] = field(default_factory=dict)
    given: SliceMembership | None = None
    is_resampled: bool = False

    def columns(self) -> list[str]:
        """Return the columns that are read."""
        outcome = self.outcome
        predictors = outcome.predictors.values()
        wanted = [
            *(domain.name for domain in self.domains),
            *(self.given.columns if self.given is not None else ()),
            outcome.label,
            *(name for one in predictors for name in (one.column, one.score, one.loss)),
            *map(averaged_column, outcome.needs.values),
            outcome.weight,
            *chain.from_iterable(self.model_columns.values()),
            self.example_id,
        ]
        return list(dict.fromkeys(name for name in wanted if name))


def read_chunks(split: Split, encoding: Encoding) -> Iterator[Chunk]:
    """Yield the chunks of a split with the columns that are encoded."""
    return read_split(encoding.source, split, encoding.columns())


def encode_chunk(chunk: Chunk, encoding: Encoding) -> int:
    """Write the shard of a chunk, and return its number of rows."""
    predicted = extract_predictions(chunk, encoding.outcome)
    space = encoding.space
    cells = np.zeros(chunk.table.num_rows, np.int64)
    for (indicator, old), bits in predicted.indicators.items():
        if (indicator, old) in space.axes:
            cells += bits.astype(np.int64) * space.stride(indicator, old=old)
    if encoding.source.splits[chunk.split].file.is_earlier:
        cells += space.stride(THEN)
    codes = [domain.codes(ChunkColumn.of(chunk, domain.name).array) for domain in encoding.domains]
    radices = [max(domain.radix, domain.size) for domain in encoding.domains]
    if encoding.given is not None:
        codes.append(encoding.given.codes(chunk.table))
        radices.append(encoding.given.size)
    measured: dict[str, NDArray[Any]] = {"cell": cells.astype(np.min_scalar_type(space.cells))}
    measured |= _measured(predicted)
    pairs, coded = _coded_classes(predicted, space)
    # Classes that no metric counts tell no two examples apart.
    distinct = measured | coded if space.classes else measured
    contents = whole = row_contents(codes, cells, _bits(distinct, pairs))
    measured |= coded
    if (weights := predicted.weights) is not None:
        # Weights are hashed later, relative to the largest one, so that their unit does not matter.
        measured[WEIGHT] = weights
        whole = splitmix64(contents ^ np.ascontiguousarray(weights).view(np.uint64))
    if encoding.example_id:
        ids = ChunkColumn.of(chunk, encoding.example_id).array
        measured["id"] = id_hashes(ids, chunk, encoding.id_option)
    elif encoding.is_resampled:
        measured[CONTENT] = contents
    facts = {
        "start_row": chunk.start_row,
        "rows": chunk.table.num_rows,
        "split": chunk.split,
        "classes": predicted.listed_classes(encoding.outcome),
        "lengths": predicted.lengths,
        "pairs": pairs,
        "ranges": [
            [name, old, float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))]
            for (name, old), values in predicted.values.items()
        ],
        "differs": _differs(predicted, classes=encoding.outcome.needs.classes),
        "labels": count_labels(predicted.classes.get("label"), codes, radices),
        "heaviest": 1.0 if weights is None else float(weights.max(initial=0)),
        "content": int(whole.sum(dtype=np.uint64)),
    }
    path = encoding.folder / f"{chunk.split:06d}-{chunk.batch:06d}.arrow"
    write_shard(path, codes, radices, measured, facts)
    return chunk.table.num_rows


def _coded_classes(
    predicted: Predicted, space: StatisticSpace
) -> tuple[dict[str, list[Any]], dict[str, IntArray]]:
    """Return the classes of a chunk, and their numbers [rows], by column; nothing if none counts many."""
    classes: dict[str, list[Any]] = {}
    numbers: dict[str, IntArray] = {}
    for axis, name in CLASS_COLUMNS.items():
        side = _SIDES[name]
        if axis not in replace(space, classes=2).axes:
            continue
        if side not in predicted.classes:
            return {}, {}
        coded = predicted.classes[side].dictionary_encode(null_encoding="encode")
        classes[name] = coded.dictionary.to_pylist()
        numbers[name] = coded.indices.to_numpy()
    if space.classes:
        return classes, numbers
    if max(map(len, classes.values())) > MOST_SHOWN:
        return {}, {}
    return classes, {name: one.astype(np.uint8) for name, one in numbers.items()}


def _differs(predicted: Predicted, *, classes: bool) -> bool | None:
    """Return whether the two models differ in anything measured; None if there is one model."""
    both = [
        (of_rows[name, False], of_rows[name, True])
        for of_rows in (predicted.indicators, predicted.values)
        for name, old in of_rows
        if old
    ]
    if "baseline" in predicted.scores:
        both.append((predicted.scores["prediction"], predicted.scores["baseline"]))
    equal = [np.array_equal(*pair) for pair in both]
    if classes and "baseline" in predicted.classes:
        equal.append(predicted.classes["prediction"].equals(predicted.classes["baseline"]))
    return not all(equal) if equal else None


def _measured(predicted: Predicted) -> dict[str, FloatArray]:
    scores = {score_column(old=side == "baseline"): one for side, one in predicted.scores.items()}
    values = {value_column(name, old=old): one for (name, old), one in predicted.values.items()}
    return {**scores, **values}


def _bits(
    measured: dict[str, NDArray[Any]], pairs: dict[str, list[Any]]
) -> list[NDArray[np.uint64]]:
    """Return 64 bits [rows] of each measured column, independent of the chunk's class numbers."""
    bits = []
    for name, values in measured.items():
        if name in pairs:
            hashed = [zlib.crc32(json.dumps(one).encode()) for one in pairs[name]]
            bits.append(np.array(hashed, np.uint64)[values])
        elif name != "cell":
            bits.append(np.ascontiguousarray(values, np.float64).view(np.uint64))
    return bits


def row_contents(
    codes: Sequence[IntArray | Ragged], cells: IntArray, measured: Sequence[NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    """Return a hash [rows] of each example's codes and measurements."""
    state = cells.astype(np.uint64)
    for bits in measured:
        state = splitmix64(state ^ bits)
    for code in codes:
        if isinstance(code, Ragged):
            lengths = np.diff(code.offsets)
            rows = np.repeat(np.arange(lengths.size), lengths)
            mixed = np.zeros(lengths.size, np.uint64)
            np.add.at(mixed, rows, splitmix64(code.codes.astype(np.uint64)))
        else:
            mixed = code.astype(np.uint64)
        # A polynomial in the codes: mixing each of them would cost ten times that.
        state *= _POLYNOMIAL_BASE
        state += mixed
    return splitmix64(state)


@dataclass
class ReadExamples(beam.PTransform):
    """Read the splits of a source: pipeline -> PCollection of `Chunk`."""

    source: Source
    columns: list[str]

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[Chunk]:
        """Wire the transform."""
        read = partial(read_split, self.source, columns=self.columns)
        splits = list(self.source.splits)
        return pipeline | "Splits" >> beam.Create(splits) | "Read" >> beam.FlatMap(read)


@dataclass
class ExtractPredictions(beam.PTransform):
    """Add the predictions of model files to chunks; columns of predictions need nothing."""

    encoding: Encoding

    def expand(self, chunks: beam.PCollection[Chunk]) -> beam.PCollection[Chunk]:
        """Wire the transform."""
        outcome = self.encoding.outcome
        for side, columns in self.encoding.model_columns.items():
            from slicebeam.transforms.encode.models import LoadedModel
            from slicebeam.transforms.encode.run_model import run_model

            predictor, positive = outcome.predictors[side], outcome.positive_class
            if predictor.model is None:
                continue
            wanted: dict[Given, Any] = {}
            if outcome.needs.predicted_classes:
                wanted["class"] = LoadedModel.classes
            if outcome.needs.predicted_classes and outcome.cuts_models:
                cut = {"positive": positive, "threshold": outcome.threshold}
                wanted["class"] = partial(LoadedModel.above, **cut)
            # A column of scores is used where one is named.
            if outcome.needs.scores and predictor.score is None:
                wanted["score"] = partial(LoadedModel.scores, positive=positive)
            if outcome.needs.predicted_numbers and predictor.score is None:
                wanted["number"] = LoadedModel.numbers
            chunks = chunks | f"Run {side}" >> run_model(predictor.model, columns, side, wanted)
        return chunks
