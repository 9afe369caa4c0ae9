"""MeasureSlices: a metric of TFMA on slices, with its replicates of the Poisson bootstrap."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np

from slicebeam.metrics.randomness import poisson_weights, splitmix64
from slicebeam.transforms.storage.storage import StoragePath, written_whole
from slicebeam.transforms.tfma.computations import LABEL, PREDICTION, WEIGHT, Computations, merged
from slicebeam.transforms.tfma.examples import ROW, MeasuredExamples, ReadMeasured, examples_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.counting import Ragged

# The key of all examples; slices are numbered from 0.
EVERYTHING = -1
# How many of what is resampled are counted; intervals do not depend on larger numbers.
MOST_UNITS = 1000


def _by_query(item: Any, key: str) -> Iterator[tuple[Any, Any]]:
    columns, codes, _ = item
    for row in range(len(columns[LABEL])):
        own = {name: values[row : row + 1] for name, values in columns.items()}
        slices = codes.codes[codes.offsets[row] : codes.offsets[row + 1]].tolist()
        yield str(columns[key][row]), (own, slices)


def _gathered(item: tuple[str, Iterable[Any]]) -> tuple[dict[str, Any], list[int], int]:
    """Return a query with all its examples, and the slices that any of them is in, as TFMA does."""
    query, rows = item
    # As they are in the data, since TFMA ranks equal scores by their order.
    listed = sorted(rows, key=lambda row: int(row[0][ROW][0]))
    names = listed[0][0].keys() - {ROW}
    columns = {name: np.concatenate([own[name] for own, _ in listed]) for name in sorted(names)}
    slices = sorted({code for _, codes in listed for code in codes})
    hashed = splitmix64(np.frombuffer(query.encode().ljust(8, b"\0")[:8], np.uint64).copy())
    for at in range(8, len(query.encode()), 8):
        word = np.frombuffer(query.encode()[at : at + 8].ljust(8, b"\0"), np.uint64)
        hashed = splitmix64(hashed ^ word)
    return columns, slices, int(hashed[0])


def _members(codes: Ragged, rows: int) -> dict[int, NDArray[np.int64]]:
    """Return the rows of a chunk that are in each slice."""
    of_rows = np.repeat(np.arange(rows), np.diff(codes.offsets))
    members = {EVERYTHING: np.arange(rows)}
    order = np.argsort(codes.codes, kind="stable")
    found, sizes = np.unique(codes.codes, return_counts=True)
    ends = np.cumsum(sizes).tolist()
    for code, size, end in zip(found.tolist(), sizes.tolist(), ends, strict=True):
        members[code] = of_rows[order[end - size : end]]
    return members


class _AccumulateFn(beam.DoFn):
    """Examples -> ``((slice, replicate), accumulator)``."""

    def __init__(self, computations: Computations, replicates: int, seed: int) -> None:
        self.computations, self.replicates, self.seed = computations, replicates, seed

    def process(self, item: Any) -> Iterator[Any]:
        columns, codes, ids = item
        members = _members(codes, len(ids))
        weights = _weights(self.seed, self.replicates, ids)
        if self.computations.histograms is not None:
            yield from self._histograms(columns, members, weights)
        else:
            yield from _looped(
                self.computations, list(self.computations.inputs(columns)), members, weights
            )

    def _histograms(
        self, columns: dict[str, Any], members: dict[int, Any], weights: NDArray[np.uint8]
    ) -> Iterator[Any]:
        own = columns.get(WEIGHT, np.ones(len(columns[LABEL])))
        for code, rows in members.items():
            label, score, base = columns[LABEL][rows], columns[PREDICTION][rows], own[rows]
            for replicate in range(self.replicates + 1):
                weight = base * weights[replicate][rows]
                some = weight > 0 if replicate else slice(None)
                accumulators = tuple(
                    self.computations.counted(one, label[some], score[some], weight[some])
                    for one in self.computations.histograms or ()
                )
                yield (code, replicate), accumulators


class _AccumulateQueriesFn(beam.DoFn):
    """``(columns, slices, hash)`` of queries -> ``((slice, replicate), accumulator)``."""

    def __init__(self, computations: Computations, replicates: int, seed: int) -> None:
        self.computations, self.replicates, self.seed = computations, replicates, seed

    def process(self, item: Any) -> Iterator[Any]:
        columns, slices, hashed = item
        weights = _weights(self.seed, self.replicates, np.array([hashed], np.uint64))
        members = {code: np.zeros(1, np.int64) for code in (EVERYTHING, *slices)}
        inputs = list(self.computations.inputs(columns))
        yield from _looped(self.computations, inputs, members, weights)


def _weights(seed: int, replicates: int, ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the weight of each example in each replicate, of which the first is the data itself."""
    drawn = [poisson_weights(seed, b, ids) for b in range(replicates)]
    return np.stack([np.ones(len(ids), np.uint8), *drawn])


def _looped(
    computations: Computations,
    inputs: list[Any],
    members: dict[int, Any],
    weights: NDArray[np.uint8],
) -> Iterator[Any]:
    combiner = computations.combiner
    for code, rows in members.items():
        for replicate, drawn in enumerate(weights):
            accumulator = combiner.create_accumulator()
            for row in np.repeat(rows, drawn[rows]).tolist():
                accumulator = combiner.add_input(accumulator, inputs[row])
            yield (code, replicate), accumulator


def _units_of_rows(item: Any) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the smallest ids of the examples of each slice."""
    _, codes, ids = item
    for code, rows in _members(codes, len(ids)).items():
        yield code, _smallest(ids[rows])


def _units_of_query(item: Any) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    _, slices, hashed = item
    for code in (EVERYTHING, *slices):
        yield code, np.array([hashed], np.uint64)


def _smallest(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.unique(ids)[:MOST_UNITS]


class _CountUnitsFn(beam.CombineFn):
    """Counts distinct ids, up to `MOST_UNITS`; of so many the smallest are kept."""

    def create_accumulator(self) -> NDArray[np.uint64]:
        return np.zeros(0, np.uint64)

    def add_input(
        self, accumulator: NDArray[np.uint64], ids: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        return _smallest(np.concatenate([accumulator, ids]))

    def merge_accumulators(self, accumulators: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
        return _smallest(np.concatenate(list(accumulators)))

    def extract_output(self, accumulator: NDArray[np.uint64]) -> int:
        return int(accumulator.size)


def _output(computations: Computations, accumulator: Any) -> dict[str, float] | str:
    """Return numbers by name, or plots as text."""
    if computations.is_plot:
        return base64.b64encode(computations.plots(accumulator)).decode()
    return computations.values(accumulator)


class _MergeHistogramsFn(beam.CombineFn):
    """Adds histograms, and says what the metric is."""

    def __init__(self, computations: Computations) -> None:
        self.computations = computations

    def create_accumulator(self) -> list[Any]:
        return []

    def add_input(self, accumulator: list[Any], histograms: Any) -> list[Any]:
        return self.merge_accumulators([accumulator, list(histograms)])

    def merge_accumulators(self, accumulators: Iterable[list[Any]]) -> list[Any]:
        listed = [one for one in accumulators if one]
        if len(listed) < 2:
            return listed[0] if listed else []
        return [merged(each) for each in zip(*listed, strict=True)]

    def extract_output(self, accumulator: list[Any]) -> dict[str, float] | str:
        return _output(self.computations, self.computations.of_histograms(accumulator))


class _MergeFn(beam.CombineFn):
    """Merges accumulators, and says what the metric is."""

    def __init__(self, computations: Computations) -> None:
        self.computations = computations

    def create_accumulator(self) -> Any:
        return self.computations.combiner.create_accumulator()

    def add_input(self, accumulator: Any, other: Any) -> Any:
        return self.computations.combiner.merge_accumulators([accumulator, other])

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        return self.computations.combiner.merge_accumulators(list(accumulators))

    def extract_output(self, accumulator: Any) -> dict[str, float] | str:
        return _output(self.computations, accumulator)


def _write(item: tuple[None, Iterable[Any]], path: StoragePath) -> str:
    values: dict[str, dict[str, dict[str, float] | str]] = defaultdict(dict)
    units: dict[str, int] = {}
    for key, found in item[1]:
        if isinstance(key, tuple):
            values[str(key[0])][str(key[1])] = found
        else:
            units[str(key)] = found
    with written_whole(path) as stream:
        stream.write(json.dumps({"values": values, "units": units}).encode())
    return str(path)


@dataclass
class MeasureSlices(beam.PTransform):
    """Write a metric of all examples and of each slice, in each replicate: pipeline -> a path.

    Attributes
    ----------
    computations : of the metric
    measured : the examples and slices
    path : of a JSON file: ``values``, slice -> replicate -> name -> number, where replicate 0 is the
        data itself, and has the text of plots in place of numbers; ``units``, slice -> how many are resampled, up to `MOST_UNITS`
    """

    computations: Computations
    measured: MeasuredExamples
    path: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[str]:
        """Wire the transform."""
        own = (self.computations, self.measured.replicates, self.measured.seed)
        examples = (
            pipeline
            | "Read" >> ReadMeasured(self.measured)
            | "Take columns" >> beam.Map(examples_of, self.measured)
        )
        if key := self.computations.spec.query_key:
            queries = (
                examples
                | "Key by query" >> beam.FlatMap(_by_query, key)
                | "Group queries" >> beam.GroupByKey()
                | "Gather" >> beam.Map(_gathered)
            )
            accumulators = queries | "Accumulate" >> beam.ParDo(_AccumulateQueriesFn(*own))
            units = queries | "Ids" >> beam.FlatMap(_units_of_query)
        else:
            accumulators = examples | "Accumulate" >> beam.ParDo(_AccumulateFn(*own))
            units = examples | "Ids" >> beam.FlatMap(_units_of_rows)
        is_counted = not key and self.computations.histograms is not None
        merge = _MergeHistogramsFn if is_counted else _MergeFn
        values = accumulators | "Merge" >> beam.CombinePerKey(merge(self.computations))
        counts = units | "Count" >> beam.CombinePerKey(_CountUnitsFn())
        return (
            (values, counts)
            | beam.Flatten()
            | "One key" >> beam.Map(lambda found: (None, found))
            | "Gather values" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write, self.path)
        )


@dataclass(frozen=True)
class SliceValues:
    """What a metric is on a slice.

    Attributes
    ----------
    numbers : by name, of the data and of each replicate that had any; of a plot none
    plots : a serialized PlotsForSlice without a slice key; empty for numbers
    units : how many are resampled, up to `MOST_UNITS`
    """

    numbers: list[dict[str, float]]
    plots: bytes
    units: int


def read_measured(path: StoragePath) -> dict[int, SliceValues]:
    """Return what was written, by slice."""
    with path.open("rb") as stream:
        content = json.loads(stream.read())
    found = {}
    for code, by in content["values"].items():
        drawn = [by[number] for number in sorted(by, key=int)]
        is_plot = isinstance(drawn[0], str)
        plots = base64.b64decode(drawn[0]) if is_plot else b""
        found[int(code)] = SliceValues([] if is_plot else drawn, plots, content["units"][code])
    return found
