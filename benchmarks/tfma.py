"""CPU time of tfma:AUC on 50 slices beside TFMA's own evaluator on the same slices, in one run.

    python benchmarks/tfma.py [--rows 1000000] [--replicates 0]

Both are given examples with 14 features and the same 50 slices, a fifth of the examples each, and
compute the values without intervals; their values are compared. With --replicates the time of the
intervals is printed as well, for slicebeam alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.sources import StoredFile, open_parquet
from slicebeam.transforms.tfma.computations import Computations
from slicebeam.transforms.tfma.examples import MeasuredExamples
from slicebeam.transforms.tfma.install import tfma_module
from slicebeam.transforms.tfma.measure_slices import MeasureSlices, read_measured
from slicebeam.transforms.tfma.metric_specs import parse_metric

FLOOR = 10.0
FEATURES, VALUES, SLICES = 14, 5, 50


def examples(rows: int) -> pa.Table:
    random = np.random.default_rng(1)
    score = random.uniform(size=rows)
    columns = {"label": (random.uniform(size=rows) < score) * 1.0, "score": score}
    columns |= {f"f{j}": random.integers(0, VALUES, rows) for j in range(FEATURES)}
    return pa.table(columns)


def parts() -> list[tuple[str, int]]:
    return [(f"f{at // VALUES}", at % VALUES) for at in range(SLICES)]


def ours(path: Path, replicates: int, folder: Path) -> tuple[float, dict[int, float]]:
    source = open_parquet([StoredFile(str(path), str(path))])
    predicates = tuple((Singleton(name, "==", value),) for name, value in parts())
    measured = MeasuredExamples(
        source, SliceMembership(predicates), "label", "score", None, None, (), None, replicates, 0
    )
    computations = Computations(parse_metric("tfma:AUC"))
    begun = time.process_time()
    out = folder / f"values-{replicates}.json"
    with beam.Pipeline() as pipeline:
        _ = pipeline | MeasureSlices(computations, measured, out)
    seconds = time.process_time() - begun
    return seconds, {code: found.numbers[0]["auc"] for code, found in read_measured(out).items()}


class _Extracts(beam.DoFn):
    def process(self, rows: tuple[int, int, str]) -> Any:
        begin, end, path = rows
        table = pq.read_table(path).slice(begin, end - begin)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        slicer = tfma_module("slicer.slicer_lib")
        for at in range(end - begin):
            keys: list[Any] = [()]
            keys += [((name, value),) for name, value in parts() if columns[name][at] == value]
            yield {
                "labels": columns["label"][at : at + 1],
                "predictions": columns["score"][at : at + 1],
                "features": {},
                "_slice_key_types": slicer.slice_keys_to_numpy_array(keys),
            }


def _collected(found: Any, path: str) -> None:
    with Path(path).open("a") as stream:
        key, metrics = found
        for name, value in metrics.items():
            if name.name == "auc":
                stream.write(f"{key[0][0]} {key[0][1]} {value!r}\n" if key else f"- - {value!r}\n")


def theirs(path: Path, rows: int, folder: Path) -> tuple[float, dict[int, float]]:
    computations = Computations(parse_metric("tfma:AUC"))
    module = tfma_module("evaluators.metrics_plots_and_validations_evaluator")
    evaluator = module.MetricsPlotsAndValidationsEvaluator(computations.eval_config)
    out = folder / "theirs.txt"
    blocks = [(at, min(at + 10_000, rows), str(path)) for at in range(0, rows, 10_000)]
    begun = time.process_time()
    with beam.Pipeline() as pipeline:
        extracts = pipeline | beam.Create(blocks) | beam.ParDo(_Extracts())
        found = extracts | "Evaluate" >> evaluator.ptransform
        _ = found["metrics"] | "Collect" >> beam.Map(_collected, str(out))
    seconds = time.process_time() - begun
    values = {}
    for line in out.read_text().splitlines():
        name, value, number = line.split(" ", 2)
        code = -1 if name == "-" else parts().index((name, int(value)))
        values[code] = float(number.removeprefix("np.float64(").rstrip(")"))
    return seconds, values


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--replicates", type=int, default=0)
    given = parser.parse_args()
    tfma_module()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "data.parquet"
        pq.write_table(examples(given.rows), path)
        own, values = ours(path, 0, folder)
        print(f"slicebeam: {own:.1f} CPU s for {given.rows:,} examples and {SLICES} slices")
        if given.replicates:
            more, _ = ours(path, given.replicates, folder)
            print(f"slicebeam with {given.replicates} replicates: {more:.1f} CPU s")
        other, expected = theirs(path, given.rows, folder)
        print(f"TFMA's evaluator: {other:.1f} CPU s")
        assert values.keys() == expected.keys()
        worst = max(abs(values[code] - expected[code]) for code in values)
        assert worst < 1e-9, worst
        print(f"largest difference of values: {worst:.1g}")
        print(f"ratio: {other / own:.1f} (floor {FLOOR:.0f})")
        assert other / own >= FLOOR


if __name__ == "__main__":
    main()
