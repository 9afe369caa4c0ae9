"""Whole runs of the command against their bars: CPU, wall and peak memory of the process.

    python tests/benchmarks/whole_runs.py [--only adult,1m] [--largest]

Makes the data once in a temporary folder: Adult as it ships, Adult repeated to a million (and with
``--largest`` ten million) rows, and synthetic wide data. Prints a table with the bar of each run, and
the ratio to a floor that is measured in the same run: two numpy ``bincount`` a feature tuple.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

ADULT = Path(__file__).parents[2] / "pipelines" / "demo_data" / "adult_scored.parquet"
COMMON = ("--label", "income", "--quiet")
PLAIN = ("--prediction", "prediction", "--exclude-features")
MILLION, TEN_MILLION = 1_000_000, 10_000_000


@dataclass(frozen=True)
class Run:
    """A run of the command and what it may cost."""

    name: str
    data: str
    options: tuple[str, ...]
    cpu: float
    megabytes: float


OLD = "row_id,score,score_old,prediction_old"
RUNS = (
    Run("adult", "adult", (*COMMON, *PLAIN, OLD), 4, 600),
    Run("1m", "1m", (*COMMON, *PLAIN, OLD), 6, 900),
    Run(
        "1m-baseline",
        "1m",
        (*COMMON, "--baseline-prediction", "prediction_old", *PLAIN, "row_id,score,score_old"),
        6 * 1.6,
        900,
    ),
    Run(
        "1m-log_loss",
        "1m",
        (
            *(*COMMON, "--score", "score", "--metric", "log_loss"),
            *("--exclude-features", "row_id,prediction,score_old,prediction_old"),
        ),
        6 * 2.5,
        900,
    ),
    Run(
        "1m-bootstrap",
        "1m",
        (*COMMON, "--test", "bootstrap-rows", "--max-cross-size", "1", *PLAIN, OLD),
        60,
        900,
    ),
    Run(
        "wide",
        "wide",
        ("--label", "label", "--prediction", "prediction", "--strategy", "batch", "--quiet"),
        60,
        2000,
    ),
    Run(
        "200-features",
        "200",
        (
            *("--label", "label", "--prediction", "prediction", "--quiet"),
            *("--strategy", "priority", "--max-candidates", "50000"),
        ),
        120,
        2000,
    ),
    Run("10m", "10m", (*COMMON, *PLAIN, OLD), 40, 1200),
)
LARGEST = ("10m",)


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Return what a function returns in a process of its own.

    A process begins with the memory of the one that starts it, which must stay small here.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def make_data(name: str, folder: Path) -> Path:
    """Write the data of a run, unless it is there."""
    path = folder / f"{name}.parquet"
    if name == "adult":
        return ADULT
    if path.exists():
        return path
    if name in ("1m", "10m"):
        rows = MILLION if name == "1m" else TEN_MILLION
        table = pq.read_table(ADULT)
        # Row groups of a quarter million rows, as data sets of this size have.
        block = pa.concat_tables([table] * 16)
        with pq.ParquetWriter(path, table.schema) as writer:
            while rows > 0:
                writer.write_table(block.slice(0, rows))
                rows -= block.num_rows
        return path
    rng = np.random.default_rng(0)
    rows, numeric, categorical = (47_655, 58, 7) if name == "wide" else (MILLION, 150, 50)
    columns = {f"x{i}": rng.normal(size=rows).astype(np.float32) for i in range(numeric)}
    columns |= {f"c{i}": rng.integers(0, 8, rows).astype(np.int8) for i in range(categorical)}
    rate = 0.1 + 0.3 * ((columns["x0"] > 1) & (columns["c0"] == 3))
    columns["label"] = np.ones(rows, np.int8)
    columns["prediction"] = (rng.random(rows) > rate).astype(np.int8)
    pq.write_table(pa.table(columns), path, row_group_size=1 << 17)
    return path


def floor_seconds(rows: int) -> float:
    """Return the CPU seconds of two bincounts for each tuple of up to three of Adult's features."""
    table = pq.read_table(ADULT)
    names = [n for n in table.column_names if n not in ("income", "prediction", *OLD.split(","))]
    times = -(-rows // table.num_rows)
    codes, sizes = [], []
    for name in names:
        values, code = np.unique(np.array(table.column(name).to_pylist()), return_inverse=True)
        size = min(values.size, 10)
        codes.append(np.tile(code * size // values.size, times)[:rows])
        sizes.append(size)
    wrong = np.array(table.column("income")) != np.array(table.column("prediction"))
    weight = np.tile(wrong, times)[:rows].astype(np.float64)
    begun = time.process_time()
    for level in (1, 2, 3):
        for chosen in combinations(range(len(names)), level):
            packed = np.zeros(rows, np.int64)
            cells = 1
            for feature in chosen:
                packed = packed * sizes[feature] + codes[feature]
                cells *= sizes[feature]
            np.bincount(packed, minlength=cells)
            np.bincount(packed, weight, minlength=cells)
    return time.process_time() - begun


def measure(run: Run, folder: Path) -> tuple[float, float, float]:
    """Return CPU seconds, wall seconds and peak megabytes of a run in a process of its own."""
    data = apart(make_data, run.data, folder)
    command = [sys.executable, "-m", "slicebeam.pipelines.cli", "search", "--data", str(data)]
    command += [*run.options, "--output", str(folder / f"out-{run.name}")]
    begun = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begun
    if status:
        raise SystemExit(f"{run.name}: the command failed: {' '.join(command)}")
    scale = 1 if sys.platform == "darwin" else 1024
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * scale / 1e6


def main() -> int:
    """Print the table; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of runs, by commas")
    parser.add_argument("--largest", action="store_true", help="ten million rows too")
    parser.add_argument("--folder", help="where the data is kept between runs")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else [run.name for run in RUNS]
    chosen = [run for run in RUNS if run.name in names]
    if not given.only and not given.largest:
        chosen = [run for run in chosen if run.name not in LARGEST]
    missed = False
    with tempfile.TemporaryDirectory() as top:
        folder = Path(given.folder or top)
        folder.mkdir(parents=True, exist_ok=True)
        print("| run | CPU s | bar | wall s | peak MB | bar | CPU ÷ floor |")
        print("|---|---|---|---|---|---|---|")
        for run in chosen:
            cpu, wall, megabytes = measure(run, folder)
            rows = {"1m": MILLION, "10m": TEN_MILLION}.get(run.data)
            ratio = f"{cpu / apart(floor_seconds, rows):.2f}" if rows == MILLION else ""
            missed |= cpu > run.cpu or megabytes > run.megabytes
            print(
                f"| {run.name} | {cpu:.1f} | {run.cpu:g} | {wall:.1f} | {megabytes:.0f} "
                f"| {run.megabytes:g} | {ratio} |",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
