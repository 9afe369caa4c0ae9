"""Whether the default search of a wide table finds the slice below its diluted parents.

    python benchmarks/descent.py [--seeds 10] [--save FILE] [--against FILE]

Each table has 150,000 rows and 100 features, and a planted conjunction of three predicates that holds
for 480 to 500 rows, of which half are wrong, against a tenth elsewhere. Its parents are significant
too. Printed are the place of the planted slice among the findings, the seconds of the whole command,
how many of the tables have it among the first three findings, and the ratio of the times to those of
``--against``, a file that ``--save`` wrote.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.planted import planted_triple

FIRST = 3


def searched(data: Path, output: Path, options: list[str]) -> tuple[dict[str, Any], float, float]:
    """Return the document of a search, and the wall and CPU seconds of the command."""
    command = [
        *(sys.executable, "-m", "slicebeam.pipelines.commands.cli", "search", "--quiet"),
        *("--data", str(data), "--label", "label", "--prediction", "prediction"),
        *("--output", str(output), *options),
    ]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads((output / "changelist.json").read_text("utf-8")), wall, cpu


def main() -> int:
    """Print the table; 1 if fewer than nine tenths of the planted slices come first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--save", type=Path, help="where to write the results as JSON")
    parser.add_argument("--against", type=Path, help="results of an earlier version")
    arguments, options = parser.parse_known_args()
    print(
        "| seed | strategy | planted rows | its place | wall s | CPU s |\n|---|---|---|---|---|---|"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            data = Path(folder) / "data.parquet"
            planted = planted_triple(seed, arguments.rows, arguments.features)
            pq.write_table(pa.table(planted.columns), data)
            document, wall, cpu = searched(data, Path(folder) / f"out{seed}", options)
            place = planted.place(document)
            strategy = document["search"]["strategy"]
            rows.append({"seed": seed, "place": place, "wall": wall, "cpu": cpu})
            print(
                f"| {seed} | {strategy} | {planted.n} | {place} | {wall:.1f} | {cpu:.1f} |",
                flush=True,
            )
    count = sum(row["place"] is not None and row["place"] <= FIRST for row in rows)
    print(f"\nAmong the first {FIRST} findings: {count} of {len(rows)}")
    for name in ("wall", "cpu"):
        print(f"median {name}: {statistics.median(row[name] for row in rows):.1f} s")
    if arguments.save:
        arguments.save.write_text(json.dumps(rows), "utf-8")
    if arguments.against:
        earlier = {row["seed"]: row for row in json.loads(arguments.against.read_text("utf-8"))}
        for name in ("wall", "cpu"):
            ratios = [
                row[name] / earlier[row["seed"]][name] for row in rows if row["seed"] in earlier
            ]
            print(
                f"{name} / earlier: median {statistics.median(ratios):.2f}, most {max(ratios):.2f}"
            )
    return int(10 * count < 9 * len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
