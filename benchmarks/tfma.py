"""CPU time of a check with a metric of TFMA beside TFMA's own run on the same slices, in one run.

    python benchmarks/tfma.py [--rows 5000] [--metric MeanLabel] [--no-intervals]

Both are given the same examples of 14 features, of which each of 50 slices has a fifth. The check is
the whole command, with the 20 replicates of TFMA's bootstrap also of the differences from all
examples; with ``--no-intervals`` it takes an EvalConfig, which says so. Values are compared; the ratio
of the times is held against the bar.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.pipelines.commands.cli import run
from slicebeam.transforms.tfma.evaluation import numbers_of
from slicebeam.transforms.tfma.install import tfma_module

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 1.3
FEATURES, VALUES, SLICED = 14, 5, 10
LABEL, SCORE = "label", "score"


def examples(rows: int) -> pa.Table:
    random = np.random.default_rng(1)
    score = random.uniform(size=rows)
    columns = {LABEL: (random.uniform(size=rows) < score) * 1, SCORE: score}
    columns |= {f"f{j}": random.integers(0, VALUES, rows) for j in range(FEATURES)}
    return pa.table(columns)


def eval_config(metric: str, *, has_intervals: bool) -> Any:
    config = tfma_module("proto.config_pb2").EvalConfig()
    config.model_specs.add(label_key=LABEL, prediction_key=SCORE)
    config.metrics_specs.add().metrics.add(class_name=metric)
    config.slicing_specs.add()
    for feature in range(SLICED):
        config.slicing_specs.add(feature_keys=[f"f{feature}"])
    if has_intervals:
        config.options.compute_confidence_intervals.value = True
        methods = config.options.confidence_intervals
        methods.method = methods.POISSON_BOOTSTRAP
    return config


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of a piece of work, child processes included."""
    before = os.times()[:4]
    work()
    return sum(os.times()[:4]) - sum(before)


def ours(path: Path, metric: str, config: Any) -> dict[str, float]:
    """Check the slices, and return the metric by the name of a slice."""
    out = path.parent / "ours"
    command = ["check", "--data", str(path), "--output", str(out), "--quiet"]
    if config.options.compute_confidence_intervals.value:
        slices = [
            {"all": [{"field": f"f{at // VALUES}", "op": "==", "value": at % VALUES}]}
            for at in range(SLICED * VALUES)
        ]
        file = path.parent / "slices.json"
        file.write_text(json.dumps(slices))
        command += ["--slices", str(file), "--label", LABEL, "--score", SCORE]
        command += ["--metric", f"accuracy,tfma:{metric}"]
    else:
        file = path.parent / "eval_config.pbtxt"
        file.write_text(str(config))
        command += ["--eval-config", str(file)]
    if run(command) != 0:
        raise SystemExit("the check failed")
    document = json.loads((out / "changelist.json").read_text("utf-8"))
    (number,) = document["tfma_metrics"]
    names = {part["slice_id"]: part["name"] for part in document["slices"]}
    values = {names[part["slice_id"]]: part["after"]["value"] for part in number["slices"]}
    return {"": number["overall"]["value"], **values}


def theirs(path: Path, config: Any) -> dict[str, float]:
    """Have TFMA evaluate the slices, and return the metric by the name of a slice."""
    out = str(path.parent / "theirs")
    tfma_module().analyze_raw_data(pq.read_table(path).to_pandas(), config, output_path=out)
    values = {}
    for message in tfma_module().load_metrics(out):
        keys = message.slice_key.single_slice_keys
        name = f"{keys[0].column} = {keys[0].int64_value}" if keys else ""
        values[name] = next(number.value for _, _, number in numbers_of(message))
    return values


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--metric", default="MeanLabel")
    parser.add_argument("--no-intervals", action="store_true")
    args = parser.parse_args()
    tfma_module()
    config = eval_config(args.metric, has_intervals=not args.no_intervals)
    values: dict[str, float] = {}
    expected: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "data.parquet"
        pq.write_table(examples(args.rows), path)
        other = cpu_seconds(lambda: expected.update(theirs(path, config)))
        own = cpu_seconds(lambda: values.update(ours(path, args.metric, config)))
    print(f"slicebeam: {own:.1f} CPU s for {args.rows:,} examples, {SLICED * VALUES} slices")
    print(f"TFMA:      {other:.1f} CPU s")
    if values.keys() != expected.keys():
        raise SystemExit("the slices differ")
    worst = max(abs(values[code] - number) for code, number in expected.items())
    print(f"largest difference of {len(expected)} values: {worst:.2g}")
    if worst > 1e-9:
        raise SystemExit("the values differ")
    print(f"{own / other:.2f} x TFMA's own run; at most {MOST}")
    if own > MOST * other:
        raise SystemExit("slicebeam takes longer than allowed")


if __name__ == "__main__":
    main()
