"""Peak memory of searches that are large in different ways, beyond what the imports take.

Run it alone: ``python benchmarks/memory.py`` prints a table.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Loads what a search loads, and its native libraries, but no data.
_IMPORTS = """
import resource
import slicebeam.pipelines.search.search, slicebeam.pipelines.commands.cli, apache_beam.runners
import pyarrow.parquet, pyarrow.compute, pandas, datasketches
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
# The child measures itself: the peak of a parent's children is that of the largest ever.
_SEARCH = """
import resource, sys
from slicebeam.pipelines.commands.cli import run
if code := run(sys.argv[1:]):
    sys.exit(code)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
LABELS = ("label", "prediction")


@dataclass(frozen=True)
class Case:
    """A search: its data and flags."""

    name: str
    rows: int
    features: int
    values: int
    flags: tuple[str, ...]

    def write(self, path: Path) -> None:
        """Write the data: text columns of so many values, or numbers for 0 values."""
        rng = np.random.default_rng(0)
        wrong = np.full(self.rows, 0.1)
        schema = pa.schema(
            [(f"f{i}", pa.string() if self.values else pa.float64()) for i in range(self.features)]
            + [(name, pa.string()) for name in LABELS]
        )
        with pq.ParquetWriter(path, schema) as writer:
            for begin in range(0, self.rows, 1 << 17):
                rows = min(1 << 17, self.rows - begin)
                columns: dict[str, object] = {}
                for i in range(self.features):
                    if self.values:
                        code = (rng.random(rows) ** 1.5 * self.values).astype(int)
                        columns[f"f{i}"] = pa.array(np.char.add("v", code.astype("U8")))
                    else:
                        columns[f"f{i}"] = pa.array(rng.normal(size=rows))
                label = rng.random(rows) < 0.5
                prediction = label ^ (rng.random(rows) < wrong[begin : begin + rows])
                for name, column in zip(LABELS, (label, prediction), strict=True):
                    columns[name] = pa.array(np.where(column, "yes", "no"))
                writer.write_table(pa.table(columns, schema=schema))


CASES = (
    Case("few rows, very many values", 200_000, 3, 3000, ("--top-values", "3000")),
    Case("120 numbers, L=2", 20_000, 120, 0, ("--max-cross-size", "2")),
    Case("120 numbers, L=3", 20_000, 120, 0, ("--max-cross-size", "3")),
    Case("2M x 14, L=3", 2_000_000, 14, 12, ()),
    Case(
        "200 replicates, L=2", 20_000, 14, 12, ("--max-cross-size", "2", "--test", "bootstrap-rows")
    ),
)


def imports_peak() -> float:
    """Return the peak memory in MB of a process that only imports."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1]) / 1024


def peak(case: Case, data: Path, output: Path, budget: str) -> tuple[float, float]:
    """Return the peak memory in MB of a search, and its seconds."""
    begun = time.perf_counter()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _SEARCH,
            "search",
            *("--data", str(data), "--label", "label", "--prediction", "prediction"),
            *("--output", str(output), "--memory-budget", budget, "--quiet", *case.flags),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout.split()[-1]) / 1024, time.perf_counter() - begun


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="part of a case's name")
    parser.add_argument("--budget", action="append", help="a memory budget; 128MB and 512MB")
    chosen = parser.parse_args()
    imported = imports_peak()
    print(f"imports: {imported:.0f} MB")
    print(f"{'case':30} {'budget':>7} {'peak':>8} {'beyond':>8} {'seconds':>8}")
    for case in CASES:
        if chosen.only and chosen.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.parquet"
            case.write(data)
            for budget in chosen.budget or ("128MB", "512MB"):
                most, seconds = peak(case, data, Path(folder) / "out", budget)
                beyond = most - imported
                print(f"{case.name:30} {budget:>7} {most:8.0f} {beyond:8.0f} {seconds:8.1f}")
                sys.stdout.flush()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU of all: {used.ru_utime + used.ru_stime:.0f} s")


if __name__ == "__main__":
    main()
