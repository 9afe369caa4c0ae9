"""Whole runs of the command against their bars: CPU, wall and peak memory of the process.

    python benchmarks/whole_runs.py [--only adult,1m] [--folder DIR] [--json FILE]

Makes the data in a temporary folder, or once in the folder that is named: Adult as it ships, Adult
repeated to one, two, four and ten million rows, and synthetic wide data. Prints a table with the bar of
each run, then what is compared between runs: rows, memory, metrics, processes, and the floor, which
is measured in the same run: two numpy ``bincount`` for each tuple of up to three features.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

ADULT = Path(__file__).parents[1] / "pipelines" / "demo_data" / "adult_scored.parquet"
COMMON = ("--label", "income", "--quiet")
PLAIN = ("--prediction", "prediction", "--exclude-features")
MILLION = 1_000_000
HELP_BAR = 0.3
MISSED = '<span style="color: red">missed: '
REPEATED = {
    "1m": MILLION,
    "1m-then": MILLION,
    "2m": 2 * MILLION,
    "4m": 4 * MILLION,
    "10m": 10 * MILLION,
}


@dataclass(frozen=True)
class Run:
    """A run of the command and what it may cost."""

    name: str
    data: str
    options: tuple[str, ...]
    cpu: float = float("inf")
    megabytes: float = float("inf")
    earlier: str = ""  # the data that it is compared with


OLD = "row_id,score,score_old,prediction_old"
RUNS = (
    Run("adult", "adult", (*COMMON, *PLAIN, OLD), 4, 600),
    Run("1m", "1m", (*COMMON, *PLAIN, OLD), 6, 900),
    Run(
        "1m-baseline",
        "1m",
        (*COMMON, "--baseline-prediction", "prediction_old", *PLAIN, "row_id,score,score_old"),
        megabytes=900,
    ),
    Run(
        "1m-log_loss",
        "1m",
        (
            *(*COMMON, "--score", "score", "--metric", "log_loss"),
            *("--exclude-features", "row_id,prediction,score_old,prediction_old"),
        ),
        megabytes=900,
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
    Run("2m", "2m", (*COMMON, *PLAIN, OLD)),
    Run("1m-earlier", "1m", (*COMMON, *PLAIN, OLD), earlier="1m-then"),
    Run("4m", "4m", (*COMMON, *PLAIN, OLD)),
    Run("10m", "10m", (*COMMON, *PLAIN, OLD), 40),
    Run("10m-two-processes", "10m", (*COMMON, *PLAIN, OLD, "--runner-config", "direct_multi")),
)


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
    if name in REPEATED:
        rows = REPEATED[name]
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
    command = [
        sys.executable,
        "-m",
        "slicebeam.pipelines.commands.cli",
        "search",
        "--data",
        str(data),
    ]
    if run.earlier:
        command += ["--baseline-data", str(apart(make_data, run.earlier, folder))]
    command += [*run.options, "--output", str(folder / f"out-{run.name}")]
    begun = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begun
    if status:
        raise SystemExit(f"{run.name}: the command failed: {' '.join(command)}")
    scale = 1 if sys.platform == "darwin" else 1024
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * scale / 1e6


def machine() -> str:
    """Return in a line on what, and with what, figures are made."""
    model, facts = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    lines = facts.read_text("utf-8").splitlines() if facts.exists() else []
    model = next((line.partition(": ")[2] for line in lines if "model name" in line), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ("slicebeam", "apache-beam", "numpy", "pyarrow", "scipy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    python = platform.python_version()
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB; Python {python}; {versions}"


def help_seconds() -> float:
    """Return the wall seconds of ``slicebeam --help``, the best of five."""
    command = [sys.executable, "-m", "slicebeam.pipelines.commands.cli", "--help"]
    walls = []
    for _ in range(5):
        begun = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.monotonic() - begun)
    return min(walls)


def records(folder: Path, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Measure runs, all of them or those that are named."""
    found = []
    for run in RUNS:
        if names and run.name not in names:
            continue
        cpu, wall, megabytes = measure(run, folder)
        # The workers' seconds and memory are their own.
        is_alone = "--runner-config" not in run.options
        record = {"run": run.name, "wall": wall, "cpu_bar": run.cpu, "megabytes_bar": run.megabytes}
        record |= {"cpu": cpu, "megabytes": megabytes} if is_alone else {}
        if run.name == "1m":
            record["floor"] = apart(floor_seconds, MILLION)
        found.append(record)
        print(f"measured {run.name}: {wall:.1f} s", file=sys.stderr, flush=True)
    return found


def compared(found: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Return what is compared between runs, as far as they were measured, and its bar."""
    of = {record["run"]: record for record in found}
    lines = []

    def line(what: str, bar: float, ratio: Callable[[], float]) -> None:
        with suppress(KeyError):
            lines.append((what, ratio(), bar))

    line("1m: CPU ÷ floor", 3, lambda: of["1m"]["cpu"] / of["1m"]["floor"])
    line(
        "4m ÷ 1m: CPU beyond that of 16,281 rows",
        4.2,
        lambda: (of["4m"]["cpu"] - of["adult"]["cpu"]) / (of["1m"]["cpu"] - of["adult"]["cpu"]),
    )
    line("10m ÷ 1m: memory", 1.3, lambda: of["10m"]["megabytes"] / of["1m"]["megabytes"])
    line("two models ÷ one: CPU", 1.6, lambda: of["1m-baseline"]["cpu"] / of["1m"]["cpu"])
    line("log loss ÷ accuracy: CPU", 2.5, lambda: of["1m-log_loss"]["cpu"] / of["1m"]["cpu"])
    line("1m beside 1m ÷ 2m: CPU", 1.15, lambda: of["1m-earlier"]["cpu"] / of["2m"]["cpu"])
    line(
        "10m: wall of two processes ÷ one",
        0.65,
        lambda: of["10m-two-processes"]["wall"] / of["10m"]["wall"],
    )
    return lines


def table(found: list[dict[str, Any]], help_wall: float) -> str:
    """Return the figures and their bars as Markdown."""
    lines = ["| run | CPU s | bar | wall s | peak MB | bar |", "|---|---|---|---|---|---|"]
    for record in found:
        cells = [
            _figure(record["cpu"], record["cpu_bar"], 1) if "cpu" in record else "",
            _bar(record["cpu_bar"]),
            f"{record['wall']:.1f}",
            _figure(record["megabytes"], record["megabytes_bar"], 0) if "cpu" in record else "",
            _bar(record["megabytes_bar"]),
        ]
        lines.append(f"| {record['run']} | {' | '.join(cells)} |")
    lines += ["", "| compared | measured | bar |", "|---|---|---|"]
    every = [*compared(found), ("`slicebeam --help`: wall s", help_wall, HELP_BAR)]
    lines += [f"| {what} | {_figure(value, bar, 2)} | {bar:g} |" for what, value, bar in every]
    return "\n".join(lines)


def _figure(value: float, bar: float, digits: int) -> str:
    """Return a figure, in red where it misses its bar."""
    shown = f"{value:.{digits}f}"
    return f"{MISSED}{shown}</span>" if value > bar else shown


def _bar(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else ""


def missed(found: list[dict[str, Any]], help_wall: float) -> bool:
    """Return whether a bar is missed."""
    alone = [record for record in found if "cpu" in record]
    return (
        any(record["cpu"] > record["cpu_bar"] for record in alone)
        or any(record["megabytes"] > record["megabytes_bar"] for record in alone)
        or any(ratio > bar for _, ratio, bar in compared(found))
        or help_wall > HELP_BAR
    )


def main() -> int:
    """Print the tables; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of runs, by commas")
    parser.add_argument("--folder", help="where the data is kept between runs")
    parser.add_argument("--json", help="file that gets the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        folder = Path(given.folder or top)
        folder.mkdir(parents=True, exist_ok=True)
        found = records(folder, tuple(given.only.split(",")) if given.only else ())
    help_wall = help_seconds()
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1), "utf-8")
    print(table(found, help_wall))
    return int(missed(found, help_wall))


if __name__ == "__main__":
    sys.exit(main())
