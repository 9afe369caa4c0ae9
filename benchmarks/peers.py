"""The same search by slicebeam and by its peers: CPU, wall, peak memory, and what one gets.

    python benchmarks/peers.py [--folder DIR] [--rows 16281,1000000] [--json FILE]

The task is Adult as it ships, and repeated to more rows: conjunctions of up to three predicates on
different features, of at least 1 % of the examples; the outcome is whether the model is wrong. Every
system searches the very same predicates, those that slicebeam learns: it does so within its measured
process, from the raw columns, while the peers get codes that are ready. A peer's search alone is its
search call; slicebeam's is counting and tests, as its ChangeList tells. Peers are installed in an
environment of their own and run in processes of their own, limited in memory and time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions, version
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import peer_search
import whole_runs

SEARCH = Path(peer_search.__file__)
DATA = {16_281: "adult", 1_000_000: "1m", 10_000_000: "10m"}
OPTIONS = (*whole_runs.COMMON, *whole_runs.PLAIN, whole_runs.OLD, "--strategy", "batch")
# Few rows, on which a peer compiles what it keeps compiled, before it is measured.
WARM = 2_000

# What pip installs.
PINS = ("pysubgroup==0.9.0", "divexplorer==0.2.6", "sliceline[optimized]==0.3.0")
# Peer of `peer_search`, its name in the table, and what one gets.
PEERS = (
    ("pysubgroup-apriori", "pysubgroup, Apriori", "the top 10 by WRAcc, no test"),
    ("pysubgroup-dfs", "pysubgroup, DFS", "the top 10 by WRAcc, no test"),
    (
        "divexplorer",
        "DivExplorer, FP-growth",
        "every slice with its rate and t, no p, no correction",
    ),
    ("sliceline", "SliceLine", "the top 10 (and ties) by its score, no test"),
)
GIVES = "every slice with p, q and interval, from the raw columns"


def environment(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return the Python of the peers' environment and why a peer is not in it, if so.

    What is installed already is left as it is, without asking the network.
    """
    home = folder / "environment"
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    # Each is resolved together with those before it, whose limits on common packages stay in force.
    kept: list[str] = []
    missing = {}
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for pin in PINS:
        done = subprocess.run([*pip, *kept, pin], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            missing[name_of(pin)] = (lines or ["pip failed"])[-1]
        else:
            kept.append(pin)
    return python, missing


def name_of(pin: str) -> str:
    """Return the package of a requirement."""
    return pin.partition("==")[0].partition("[")[0]


def prepare(data: Path, changelist: Path, target: Path) -> None:
    """Write the codes [features, rows] of the predicates of a ChangeList, and the outcome.

    With pandas' quantile bins the capital gains, mostly zero, would be a single predicate that all
    examples meet; in slicebeam's domains zero has a predicate of its own.
    """
    import pyarrow.parquet as pq

    from slicebeam.transforms.encode.learn_domains import domain_from_json

    table = pq.read_table(data)
    shapes = json.loads(changelist.read_text("utf-8"))["dataset"]["domains"]
    codes = np.empty((len(shapes), table.num_rows), np.int16)
    for row, shape in zip(codes, shapes, strict=True):
        row[:] = domain_from_json(shape).encode(table.column(shape["name"]).combine_chunks())
    wrong = table.column("income").to_numpy() != table.column("prediction").to_numpy()
    np.savez(target, names=[shape["name"] for shape in shapes], codes=codes, wrong=wrong)


def measure_peer(python: Path, peer: str, file: Path, rows: int, seconds: float) -> dict[str, Any]:
    """Return what a peer tells of its search, and what its process took.

    Keys: ``cpu``, ``wall`` and ``megabytes``; ``cpu_search``, ``slices`` and ``evaluated`` (None
    where a peer does not tell), or ``failed`` where it ran out of something.
    """
    with tempfile.TemporaryFile("w+") as said:
        begun = time.monotonic()
        process = subprocess.Popen(
            [str(python), str(SEARCH), peer, str(file), str(rows)], stdout=said, stderr=said
        )
        timer = Timer(seconds, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        wall = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().splitlines()
    told = next((json.loads(line) for line in reversed(lines) if line.startswith('{"')), {})
    if wall >= seconds:
        told["failed"] = f"over {seconds:g} s"
    elif not told:
        told["failed"] = f"exit {process.returncode}: {(lines or [''])[-1]}"
    scale = 1 if sys.platform == "darwin" else 1024
    cpu, megabytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale / 1e6
    return told | {"cpu": cpu, "wall": wall, "megabytes": megabytes}


def measure_slicebeam(rows: int, folder: Path, least: int | None) -> dict[str, Any]:
    """Return what the whole command takes; its search alone is counting and tests."""
    size = () if least is None else ("--min-slice-size", str(least))
    run = whole_runs.Run(f"{rows}-{least or 'default'}", DATA[rows], (*OPTIONS, *size), 0, 0)
    cpu, wall, megabytes = whole_runs.measure(run, folder)
    told = json.loads((folder / f"out-{run.name}" / "changelist.json").read_text("utf-8"))
    smallest = told["testing"]["min_slice_size"]
    return {
        "system": f"slicebeam, n ≥ {smallest:,}" + (" (default)" if least is None else ""),
        "version": version("slicebeam"),
        "rows": rows,
        "cpu_search": sum(one["cpu_seconds"] for one in told["search"]["iterations"]),
        "cpu": cpu,
        "wall": wall,
        "megabytes": megabytes,
        "slices": sum(told["testing"]["tested_per_level"]),
        "gives": GIVES,
    }


def records(rows_of: list[int], folder: Path, seconds: float = 900) -> list[dict[str, Any]]:
    """Return a record for each system and number of rows; None is what is not known.

    Everything that needs memory is done in processes apart: a process begins with the peak of the
    one that starts it.
    """
    python, missing = environment(folder)
    versions = {name_of(pin): pin.partition("==")[2] for pin in PINS}
    found = []
    for number, rows in enumerate(rows_of):
        floor = whole_runs.apart(whole_runs.floor_seconds, rows)
        found.append({"system": "floor", "rows": rows, "cpu_search": floor})
        found[-1]["gives"] = "two numpy bincounts a feature tuple, no slice reported"
        least = peer_search.least(rows)
        found += [measure_slicebeam(rows, folder, size) for size in (least, None)]
        data = whole_runs.apart(whole_runs.make_data, DATA[rows], folder)
        file = folder / f"codes-{rows}.npz"
        whole_runs.apart(prepare, data, folder / f"out-{rows}-{least}" / "changelist.json", file)
        for peer, system, gives in PEERS:
            print(f"{system}, {rows:,} rows", file=sys.stderr, flush=True)
            package = peer.partition("-")[0]
            one = {"system": system, "version": versions[package], "rows": rows, "gives": gives}
            if package in missing:
                one["gives"] = f"not installed: {missing[package]}"
            else:
                if number == 0:
                    measure_peer(python, peer, file, WARM, seconds)
                one |= measure_peer(python, peer, file, rows, seconds)
                one["gives"] = one.get("failed", gives)
            found.append(one)
    keys = ("system", "version", "rows", "cpu_search", "cpu", "wall", "megabytes", "slices")
    return [{key: one.get(key) for key in (*keys, "evaluated", "gives")} for one in found]


def table(found: list[dict[str, Any]]) -> str:
    """Return the records as a Markdown table."""
    columns = {
        "system": ("system", ""),
        "version": ("version", ""),
        "rows": ("rows", ",d"),
        "cpu_search": ("CPU s, search alone", ".2f"),
        "cpu": ("CPU s, whole process", ".1f"),
        "wall": ("wall s", ".1f"),
        "megabytes": ("peak MB", ",.0f"),
        "slices": ("slices told", ",d"),
        "gives": ("gives", ""),
    }
    lines = [f"| {' | '.join(head for head, _ in columns.values())} |", "|---" * len(columns) + "|"]
    for one in found:
        cells = [
            "" if one[key] is None else format(one[key], shape)
            for key, (_, shape) in columns.items()
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine(python: Path) -> str:
    """Return one line on the machine and on what else is installed for slicebeam and the peers."""
    places = [str(place) for place in python.parents[1].glob("lib/python*/site-packages")]
    theirs = {one.name.lower(): one.version for one in distributions(path=places)}
    listed = ", ".join(
        f"{name} {theirs[name]}"
        for name in ("numpy", "pandas", "scipy", "scikit-learn", "numba")
        if name in theirs
    )
    return f"{whole_runs.machine()}; peers with {listed}."


def main() -> None:
    """Print the machine and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where the environment and the data are kept between runs")
    parser.add_argument("--rows", default="16281,1000000", help="numbers of rows, by commas")
    parser.add_argument("--seconds", type=float, default=900, help="wall limit of a peer")
    parser.add_argument("--json", help="file for the records")
    given = parser.parse_args()
    rows_of = [int(rows) for rows in given.rows.split(",")]
    if unknown := set(rows_of) - DATA.keys():
        parser.error(f"--rows {min(unknown)}: there is data of {', '.join(map(str, DATA))} rows")
    with tempfile.TemporaryDirectory() as top:
        folder = Path(given.folder or top).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found = records(rows_of, folder, given.seconds)
        if given.json:
            Path(given.json).write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(machine(folder / "environment" / "bin" / "python"), "", table(found), sep="\n")


if __name__ == "__main__":
    main()
