"""CPU time of TFMA's metrics on 50 slices beside TFMA's own run on the same slices, in one run.

    python benchmarks/tfma.py [--rows 20000] [--metric AUC] [--no-intervals]

Both are given the same examples of 14 features, of which each of 50 slices has a fifth, with the
20 replicates of TFMA's bootstrap. Their values are compared; the ratio of their times is held
against the bar.
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
from slicebeam.transforms.tfma.evaluation import (
    SLICES,
    EvaluatedExamples,
    EvaluateSlices,
    number_column,
    numbers_of,
)
from slicebeam.transforms.tfma.install import tfma_module

MOST = 1.3
FEATURES, VALUES, SLICED = 14, 5, 10


def examples(rows: int) -> pa.Table:
    random = np.random.default_rng(1)
    score = random.uniform(size=rows)
    columns = {"label": (random.uniform(size=rows) < score) * 1.0, "score": score}
    columns |= {f"f{j}": random.integers(0, VALUES, rows) for j in range(FEATURES)}
    return pa.table(columns)


def eval_config(metric: str, label: str, score: str, *, has_intervals: bool) -> Any:
    config = tfma_module("proto.config_pb2").EvalConfig()
    config.model_specs.add(label_key=label, prediction_key=score)
    config.metrics_specs.add().metrics.add(class_name=metric)
    config.slicing_specs.add()
    if has_intervals:
        config.options.compute_confidence_intervals.value = True
        methods = config.options.confidence_intervals
        methods.method = methods.POISSON_BOOTSTRAP
    return config


def value_of(message: Any) -> float:
    return next(number.value for number in numbers_of(message))


def ours(path: Path, config: Any, folder: Path) -> tuple[float, dict[int, float]]:
    config.slicing_specs.add(feature_keys=[SLICES])
    config = tfma_module("utils.config_util").update_eval_config_with_defaults(config)
    parts = [(f"f{at // VALUES}", at % VALUES) for at in range(SLICED * VALUES)]
    slices = SliceMembership(tuple((Singleton(name, "==", value),) for name, value in parts))
    source = open_parquet([StoredFile(str(path), str(path))])
    read = EvaluatedExamples(source, slices, ("label", "score"), (), None, {}, {})
    out = folder / "ours.parquet"
    begun = time.process_time()
    with beam.Pipeline() as pipeline:
        _ = pipeline | EvaluateSlices(read, config.SerializeToString(), 0, out)
    seconds = time.process_time() - begun
    messages = tfma_module("proto.metrics_for_slice_pb2").MetricsForSlice
    values = {}
    for row in pq.read_table(out).to_pylist():
        if row["kind"] == "metrics":
            message = messages.FromString(row["content"])
            keys = message.slice_key.single_slice_keys
            values[keys[0].int64_value if keys else -1] = value_of(message)
    return seconds, values


def theirs(path: Path, config: Any, folder: Path) -> tuple[float, dict[int, float]]:
    for feature in range(SLICED):
        config.slicing_specs.add(feature_keys=[f"f{feature}"])
    out = str(folder / "theirs")
    frame = pq.read_table(path).to_pandas()
    begun = time.process_time()
    tfma_module().analyze_raw_data(frame, config, output_path=out)
    seconds = time.process_time() - begun
    values = {}
    for message in tfma_module().load_metrics(out):
        keys = message.slice_key.single_slice_keys
        code = int(keys[0].column[1:]) * VALUES + keys[0].int64_value if keys else -1
        values[code] = value_of(message)
    return seconds, values


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--metric", default="AUC")
    parser.add_argument("--no-intervals", action="store_true")
    args = parser.parse_args()
    tfma_module()
    columns = ("label", "score")
    intervals = not args.no_intervals
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "data.parquet"
        pq.write_table(examples(args.rows), path)
        other, expected = theirs(
            path, eval_config(args.metric, *columns, has_intervals=intervals), folder
        )
        config = eval_config(args.metric, *map(number_column, columns), has_intervals=intervals)
        own, values = ours(path, config, folder)
    print(f"slicebeam: {own:.1f} CPU s for {args.rows:,} examples, {SLICED * VALUES} slices")
    print(f"TFMA:      {other:.1f} CPU s")
    worst = max(abs(values[code] - number) for code, number in expected.items())
    print(f"largest difference of {len(expected)} values: {worst:.2g}")
    if worst > 1e-9 or values.keys() != expected.keys():
        raise SystemExit("the values differ")
    print(f"{own / other:.2f} x TFMA's own run; at most {MOST}")
    if own > MOST * other:
        raise SystemExit("slicebeam takes longer than allowed")


if __name__ == "__main__":
    main()
