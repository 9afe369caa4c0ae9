"""Shifts of real prediction APIs: calls for an error, coverage, the stopping rule, and the cost.

Run it alone: ``python benchmarks/shift.py [--only queries,plus,replaced,coverage,starved,
stopping,pool,memory,calls] [--runs 500]``. It prints Markdown tables, measured beside expected, and ends with 1 where a bar is
missed. All seeds are fixed. The whole takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from slicebeam.metrics.randomness import hash64
from slicebeam.metrics.randomness import uniform as unit
from slicebeam.metrics.shift.allocation import Allocator, batch_size, smallest_budget, static_order
from slicebeam.metrics.shift.estimates import Strata, error_bound, estimate, first_check, summarise
from slicebeam.metrics.shift.simulation import (
    Items,
    Quality,
    calls_for_target,
    churned,
    qualities,
    simulate,
    true_matrices,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.kinds import Method

DATA = Path(__file__).parents[1] / "examples" / "prediction_apis"
BINS = 3
TARGET = 0.01
# New API, old API, calls for an error of 0.01 in 95 % of the runs: MASA with replacement, uniform,
# uniform and post-stratified by label, MASA without replacement, and the tolerance.
SETS: dict[str, tuple[str, str, tuple[float, float, float, float], float]] = {
    "imdb": ("amazon", "google", (9100, 19700, 10000, 6500), 0.15),
    "rafdb": ("microsoft", "facepp", (5500, 17100, 7300, 4100), 0.10),
    "digit": ("ibm", "google", (4100, 15300, 6000, 1200), 0.10),
    "command": ("google", "microsoft", (2200, 14100, 3200, 2200), 0.10),
}
# Share of the predictions that change, and the bar of the calls against MASA's.
CHURNS = {0.02: 0.25, 0.05: 0.45, 0.10: 0.65}
LEAST_COVERAGE = 0.93
# Calls of plus for MASA's error, where the API was replaced or much of it changed: at most, and on
# average. Below 20 calls a stratum MASA's bias makes its error smaller, which plus does not follow.
MOST_CALLS, MOST_MEAN_CALLS, MOST_FEW_CALLS, FEW_CALLS = 1.05, 1.0, 1.12, 20
# Where old predictions are drawn at random for each label, whether one was right tells nothing of how
# hard its item is: strata that are signed by it are worse than MASA's, whose error no allocation of
# calls to them reaches.
MOST_RANDOM_CALLS = 1.15
LEAST_STARVED_COVERAGE = 0.92
BUDGETS = (500, 1000, 2000, 4000)
TARGETS = (0.03, 0.02, 0.01)
# Seconds.
MOST_POOL_CPU, MOST_CALLS_WALL = 10.0, 10.0
# Peak memory of a run, imports included.
MOST_MB = 500
MEMORY_ROWS = (1_000_000, 10_000_000)
# The child measures itself: the peak of a parent's children is that of the largest ever.
_MEASURED = """
import resource, sys
from slicebeam.pipelines.commands.cli import run
if code := run(sys.argv[1:]):
    sys.exit(code)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True)
class Real:
    """A data set: labels, new predictions and a confidence of its items."""

    name: str
    label: NDArray[np.int64]
    new: NDArray[np.int64]
    old: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @property
    def classes(self) -> int:
        return int(max(self.label.max(), self.new.max(), self.old.max())) + 1

    def cut(
        self, old: NDArray[np.int64] | None = None, *, signed: bool = False, bins: int = BINS
    ) -> tuple[Strata, Items]:
        """Return the pool in strata of label and confidence, as slicebeam cuts it."""
        value = self.confidence
        if signed and old is not None:
            value = np.where(old == self.label, value, -value)
        edges = np.unique(np.quantile(value, np.arange(1, bins) / bins))
        place = np.searchsorted(edges, value, side="right")
        code, stratum = np.unique(self.label * (bins + 1) + place, return_inverse=True)
        order = np.argsort(stratum, kind="stable")
        labels = np.unique(self.label)
        counts = None
        if old is not None:
            counts = np.zeros((code.size, self.classes), np.int64)
            np.add.at(counts, (stratum, old), 1)
        strata = Strata(
            np.searchsorted(labels, code // (bins + 1)),
            np.bincount(stratum),
            (labels.size, self.classes),
            labels,
            counts,
        )
        own = None if old is None else old[order]
        return strata, Items(order.astype(np.uint64), self.new[order], own)

    def swapped(self) -> Real:
        """Return the data with the old API as the new one."""
        return replace(self, new=self.old, old=self.new)

    def part(self, rows: int) -> Real:
        """Return some of the items."""
        kept = np.random.default_rng(3).choice(
            self.label.size, min(rows, self.label.size), replace=False
        )
        columns = (getattr(self, one)[kept] for one in ("label", "new", "old", "confidence"))
        return Real(self.name, *columns)

    def before(self, churn: float | None) -> NDArray[np.int64]:
        """Return old predictions that the new ones came from, so many of them changed."""
        labels = np.unique(self.label)
        row = np.searchsorted(labels, self.label)
        shares = np.zeros((labels.size, self.classes))
        np.add.at(shares, (row, self.new), 1.0)
        return churned(self.new, row, shares, churn, 1, 7)[0].astype(np.int64)


def read(name: str, new: str = "", old: str = "") -> Real:
    if not new:
        new, old, *_ = SETS[name]
    table = pq.read_table(DATA / f"{name}.parquet")

    def column(name: str) -> NDArray[np.int64]:
        return table.column(name).to_numpy().astype(np.int64)

    return Real(
        name,
        column("label"),
        column(f"prediction_{new}"),
        column(f"prediction_{old}"),
        table.column("confidence_open_source").to_numpy().astype(np.float64),
    )


class Report:
    """Prints rows of a table, and remembers whether a bar was missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def head(self, title: str, *columns: str) -> None:
        print(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)

    def row(self, *cells: Any, held: bool = True) -> None:
        shown = [f"{cell:,.3g}" if isinstance(cell, float) else f"{cell}" for cell in cells]
        print(f"| {' | '.join(shown)} | {'' if held else '**missed**'} |", flush=True)
        if not held:
            self.missed.append(" ".join(shown))


def steps(least: int, most: int, number: int = 50) -> list[int]:
    return [int(step) for step in np.unique(np.geomspace(least, most, number).astype(np.int64))]


def queries(report: Report, runs: int) -> None:
    report.head(
        f"Calls for an error of {TARGET} in 95 % of {runs} runs",
        *("data", "method", "measured", "expected", "ratio", ""),
    )
    for name, (new, _, expected, tolerance) in SETS.items():
        real = read(name)
        strata, items = real.cut()
        checked = steps(max(smallest_budget(strata), 800), int(1.4 * expected[0]))
        uniform = steps(2000, int(1.3 * expected[1]))
        within = min(real.label.size, int(1.4 * expected[3]))
        without = steps(max(smallest_budget(strata), 600), within)
        found = {
            "masa, with replacement": with_replacement(strata, items, "masa", checked, runs),
            "uniform": uniformly(strata, items, uniform, runs),
            "uniform, post-stratified": uniformly(strata, items, uniform, runs, by_label=True),
            "masa, without": qualities(strata, items, "masa", without, runs, 1, batch=1),
        }
        for (method, by_calls), wanted in zip(found.items(), expected, strict=True):
            calls = calls_for_target(by_calls, TARGET)
            ratio = np.nan if calls is None else calls / wanted
            # The post-stratified comparison has no bar.
            held = method == "uniform, post-stratified" or abs(ratio - 1) <= tolerance
            measured = "none" if calls is None else f"{calls:,.0f}"
            report.row(f"{name}, {new}", method, measured, f"{wanted:,}", float(ratio), held=held)


def with_replacement(
    strata: Strata,
    items: Items,
    method: Method,
    checks: Sequence[int],
    runs: int,
    weights: NDArray[np.float64] | None = None,
) -> list[Quality]:
    """Return the errors of runs that draw with replacement and allocate a call at a time, as the paper does."""
    # No stratum is used up where each item is there so often; the shares stay what they are.
    many = replace(strata, sizes=strata.sizes << 32)
    allocator = Allocator(method, many, checks[-1], runs=runs, batch=1)
    if weights is not None:
        order = static_order(weights, many.sizes, checks[-1])
        allocator._planned = np.broadcast_to(order, (runs, order.size))
    starts = np.concatenate([[0], np.cumsum(strata.sizes)])
    seeds = np.arange(1, runs + 1, dtype=np.uint64)[:, None]
    truth, found = true_matrices(strata, items), []
    for check in checks:
        while (calls := allocator.next(check - allocator.paid)).part.size:
            of_run = hash64(0, calls.place, np.broadcast_to(seeds, calls.place.shape))
            share = unit(hash64(0, calls.stratum, of_run))
            item = starts[calls.stratum] + (share * strata.sizes[calls.stratum]).astype(np.int64)
            allocator.add(calls, items.new[item].astype(np.int64))
        matrix = estimate(many, allocator.sample, control=False).matrix
        found.append(_of_errors(check, matrix - truth))
    return found


def uniformly(
    strata: Strata, items: Items, checks: Sequence[int], runs: int, *, by_label: bool = False
) -> list[Quality]:
    """Return the errors of runs that draw from the whole pool alike, with replacement.

    ``by_label`` scales the rows of the matrix to the shares of the labels; a label that chance left out
    has no estimate but 0.
    """
    cells = strata.shape[0] * strata.shape[1]
    cell = np.repeat(strata.row, strata.sizes) * strata.shape[1] + items.new
    truth, found = true_matrices(strata, items), []
    drawn = np.empty((runs, checks[-1]), np.int64)
    for run, draws in enumerate(drawn):
        words = hash64(1 + run, 1, np.arange(draws.size, dtype=np.uint64))
        draws[:] = run * cells + cell[(unit(words) * cell.size).astype(np.int64)]
    for check in checks:
        counts = np.bincount(drawn[:, :check].ravel(), minlength=runs * cells)
        counts = counts.reshape(runs, *strata.shape)
        matrix = counts / check
        if by_label:
            rows = np.maximum(counts.sum(axis=2, keepdims=True), 1)
            matrix = strata.label_share[:, None] * counts / rows
        found.append(_of_errors(check, matrix - truth))
    return found


def _of_errors(calls: int, off: NDArray[np.float64]) -> Quality:
    return Quality(calls, np.sqrt(np.square(off).sum(axis=(1, 2))), *[np.nan] * 5)


def plus(report: Report, runs: int) -> None:
    report.head(
        "Calls of plus against MASA's without replacement, at an equal error of 95 % of the runs",
        *("data", "churn", "MASA's calls", "error", "ratio", "bar", ""),
    )
    ratios: dict[float, list[float]] = {churn: [] for churn in CHURNS}
    for name in SETS:
        real = read(name)
        strata, items = real.cut()
        calls = 2000 if real.label.size > 4000 else 1000
        error = qualities(strata, items, "masa", [calls], runs, 1, batch=1)[0].quantile()
        for churn in CHURNS:
            strata, items = real.cut(real.before(churn), signed=True)
            checks = steps(max(smallest_budget(strata), 60), calls)
            needed = calls_for_target(qualities(strata, items, "plus", checks, runs, 1), error)
            ratio = np.nan if needed is None else needed / calls
            ratios[churn].append(float(ratio))
            report.row(name, f"{churn:.0%}", f"{calls:,}", float(error), float(ratio), "")
    for churn, bar in CHURNS.items():
        mean = float(np.mean(ratios[churn]))
        report.row("mean of all", f"{churn:.0%}", "", "", mean, bar, held=mean <= bar)


def replaced(report: Report, runs: int) -> None:
    report.head(
        f"Calls of plus for MASA's root mean square error, {runs} runs",
        *("data", "new API", "before", "MASA's calls", "error", "ratio", "bar", ""),
    )
    ratios = []
    for name, swap in product(SETS, (False, True)):
        real = read(name).swapped() if swap else read(name)
        api = SETS[name][int(swap)]
        strata, items = real.cut()
        olds = {
            "the other API": real.old,
            "any API (100 %)": real.before(None),
            "30 % changed": real.before(0.3),
        }
        for calls in (500, 2000):
            if not 2.5 * strata.count <= calls <= real.label.size / 2:
                continue
            (masa,) = qualities(strata, items, "masa", [calls], runs, 1)
            for told, old in olds.items():
                own, of_own = real.cut(old, signed=True)
                checks = steps(max(smallest_budget(own), calls // 3), int(1.4 * calls), 25)
                found = qualities(own, of_own, "plus", checks, runs, 1)
                # Of mean squares, which vary less between runs than their quantiles.
                means = [replace(one, errors=np.array([one.mean_squared**0.5])) for one in found]
                needed = calls_for_target(means, masa.mean_squared**0.5)
                ratio = np.nan if needed is None else needed / calls
                ratios.append(ratio)
                bar = MOST_CALLS if calls >= FEW_CALLS * own.count else MOST_FEW_CALLS
                if told.startswith("any"):
                    bar = MOST_RANDOM_CALLS
                report.row(
                    *(name, api, told, f"{calls:,}", masa.mean_squared**0.5, float(ratio), bar),
                    held=ratio <= bar,
                )
    mean = float(np.mean(ratios))
    report.row(
        *("mean of all", "", "", "", "", mean, MOST_MEAN_CALLS), held=mean <= MOST_MEAN_CALLS
    )


def starved(report: Report, runs: int) -> None:
    runs = max(runs, 1000)
    report.head(
        f"Coverage of MASA's 95 % interval of the accuracy over {runs} runs, small pools",
        *("data", "items", "calls", "bias", "not widened", "width", "widened", "width", ""),
    )
    for name, rows in product(SETS, (500, 2000)):
        strata, items = read(name).part(rows).cut()
        accuracy = true_matrices(strata, items)[0][np.arange(strata.shape[0]), strata.right].sum()
        checks = [
            calls
            for calls in (rows // 10, rows // 4, rows // 2)
            if calls >= smallest_budget(strata) + 10
        ]
        for checked in simulate(strata, items, "masa", checks, runs, 1):
            plain = estimate(strata, checked.sample, control=False)
            wide = summarise("masa", strata, checked.sample)
            cells: list[Any] = [name, f"{rows:,}", f"{checked.calls:,}"]
            cells.append(float(plain.accuracy.mean() - accuracy))
            for one in (plain, wide):
                low, high = one.accuracies()
                cells.append(float(np.mean((low <= accuracy) & (accuracy <= high))))
                cells.append(float(np.mean(high - low)))
            report.row(*cells, held=cells[-2] >= LEAST_STARVED_COVERAGE)


def _updates(real: Real) -> Iterator[tuple[str, NDArray[np.int64]]]:
    for churn in CHURNS:
        yield f"{churn:.0%}", real.before(churn)
    yield "other API", real.old


def coverage(report: Report, runs: int) -> None:
    report.head(
        f"Coverage of 95 % intervals over {runs} runs (plus)",
        *("data", "update", "calls", "accuracy", "cells", "bias of accuracy", ""),
    )
    # What of a true .95 comes below the bar by chance three times of ten thousand.
    chance = 3.4 * float(np.sqrt(0.95 * 0.05 / runs))
    least = min(LEAST_COVERAGE, 0.95 - chance)
    for name in SETS:
        real = read(name)
        for update, old in _updates(real):
            strata, items = real.cut(old, signed=True)
            budgets = [calls for calls in BUDGETS if calls < 0.9 * real.label.size]
            for found in qualities(strata, items, "plus", budgets, runs, 1):
                held = found.accuracy_coverage >= least and found.cell_coverage >= LEAST_COVERAGE
                report.row(
                    *(name, update, f"{found.calls:,}", found.accuracy_coverage),
                    *(found.cell_coverage, found.accuracy_bias),
                    held=held,
                )


def stopping(report: Report, runs: int) -> None:
    report.head(
        f"The stopping rule, {runs} runs (plus)",
        *("data", "update", "target", "stopped", "mean calls", "error held", ""),
    )
    for name, target in product(SETS, TARGETS):
        real = read(name)
        for update, old in _updates(real):
            strata, items = real.cut(old, signed=True)
            calls, held = _stopped(strata, items, target, runs)
            ended = ~np.isnan(calls)
            if ended.any():
                share = float(held[ended].mean())
                mean = f"{np.mean(calls[ended]):,.0f}"
                report.row(
                    *(name, update, target, f"{ended.mean():.0%}", mean, share),
                    held=share >= LEAST_COVERAGE,
                )


def _stopped(
    strata: Strata, items: Items, target: float, runs: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the calls after which each run stops, and whether its error is below the target."""
    most = min(int(strata.sizes.sum()), 8000)
    checks, calls = [], 0
    while calls < most:
        calls = min(most, calls + batch_size(calls))
        if calls >= max(first_check(strata.count), smallest_budget(strata)):
            checks.append(calls)
    truth = true_matrices(strata, items)
    at, held = np.full(runs, np.nan), np.zeros(runs, bool)
    for checked in simulate(strata, items, "plus", checks, runs, 1):
        found = summarise("plus", strata, checked.sample)
        error = np.sqrt(np.square(found.matrix - truth).sum(axis=(1, 2)))
        fresh = (error_bound(found) <= target) & np.isnan(at[checked.runs])
        at[checked.runs][fresh] = checked.calls
        held[checked.runs][fresh] = error[fresh] <= target
        if not np.isnan(at).any():
            break
    return at, held


def pool(report: Report, _runs: int) -> None:
    """A million items: everything but the calls."""
    from slicebeam.pipelines.config.common import validated
    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.run.engine import Engine, runner_config
    from slicebeam.pipelines.shift.run import run_shift
    from slicebeam.pipelines.show.terminal import Terminal

    report.head(
        "A pool of a million items, 10,000 answers", *("method", "CPU s of the run", "bar", "")
    )
    rng = np.random.default_rng(5)
    rows, classes = 1_000_000, 10
    label = rng.integers(0, classes, rows)
    old = np.where(rng.random(rows) < 0.85, label, rng.integers(0, classes, rows))
    new = np.where(rng.random(rows) < 0.95, old, rng.integers(0, classes, rows))
    with tempfile.TemporaryDirectory() as name:
        columns = {"label": label, "old": old, "new": new, "confidence": rng.random(rows)}
        pq.write_table(pa.table(columns), Path(name) / "pool.parquet")
        # Numbers are read and libraries loaded once before the clock counts.
        for method in ("plus", "plus", "masa", "proportional"):
            config = validated(
                ShiftConfig,
                {
                    "data": (str(Path(name) / "pool.parquet"),),
                    "label": "label",
                    "old_prediction": "old",
                    "difficulty": "confidence",
                    "replay_prediction": "new",
                    "budget": "10000",
                    "method": method,
                    "output": str(Path(name) / "out"),
                },
            )
            cpu = time.process_time()
            with Engine(runner_config("direct", ())) as engine:
                run_shift(config, engine, Terminal(quiet=True))
            seconds = time.process_time() - cpu
            report.row(method, seconds, MOST_POOL_CPU, held=seconds <= MOST_POOL_CPU)


def memory(report: Report, _runs: int) -> None:
    """Peak memory by the size of the pool; every confidence is another number."""
    report.head(
        "Peak memory of `shift`, 30 strata, 2,000 answers", *("items", "peak MB", "bar", "")
    )
    for rows in MEMORY_ROWS:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "pool.parquet"
            rng, writer = np.random.default_rng(5), None
            for begin in range(0, rows, 1_000_000):
                number = min(1_000_000, rows - begin)
                label = rng.integers(0, 10, number)
                old = np.where(rng.random(number) < 0.85, label, rng.integers(0, 10, number))
                new = np.where(rng.random(number) < 0.95, old, rng.integers(0, 10, number))
                columns = {"label": label, "old": old, "new": new}
                table = pa.table({**columns, "confidence": rng.random(number)})
                writer = writer or pq.ParquetWriter(path, table.schema)
                writer.write_table(table)
            if writer is not None:
                writer.close()
            flags = ["shift", "--data", str(path), "--label", "label", "--old-prediction", "old"]
            flags += ["--difficulty", "confidence", "--replay-prediction", "new"]
            flags += ["--budget", "2000", "--output", str(Path(name) / "out")]
            child = subprocess.run(
                [sys.executable, "-c", _MEASURED, *flags],
                check=True,
                capture_output=True,
                text=True,
            )
        peak = int(child.stdout.rpartition("peak ")[2]) / 1024
        report.row(f"{rows:,}", f"{peak:,.0f}", MOST_MB, held=peak <= MOST_MB)


def calls(report: Report, _runs: int) -> None:
    """Ten thousand calls of a server that takes 20 ms for each, 64 at a time: the whole command."""
    from slicebeam.pipelines.config.common import validated
    from slicebeam.pipelines.config.shift import ShiftConfig
    from slicebeam.pipelines.run.engine import Engine, runner_config
    from slicebeam.pipelines.shift.run import run_shift
    from slicebeam.pipelines.show.terminal import Terminal
    from tests.paid_api import paid_api

    number, in_flight, latency = 10_000, 64, 0.02
    report.head(
        f"{number:,} calls, {in_flight} in flight, of {latency * 1000:.0f} ms each; the server, too, "
        "runs on this machine",
        *("method", "seconds", "of the calls alone", "bar", "most in flight", ""),
    )
    rng = np.random.default_rng(6)
    rows = 2 * number
    label = rng.choice(np.array(["a", "b", "c"]), rows)
    old = np.where(rng.random(rows) < 0.85, label, "a")
    new = np.where(rng.random(rows) < 0.9, old, "b")
    text = [f"text {row}" for row in range(rows)]
    columns = {
        "id": [f"item {row}" for row in range(rows)],
        "text": text,
        "label": label,
        "old": old,
        "confidence": rng.random(rows),
    }
    os.environ["API_KEY"] = "a key"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(pa.table(columns), folder / "pool.parquet")
        plan = {
            "answers": dict(zip(text, new.tolist(), strict=True)),
            "latency": (latency, latency),
        }
        for method in ("plus", "masa"):
            with paid_api(folder / method, **plan) as server:
                config = validated(
                    ShiftConfig,
                    {
                        "data": (str(folder / "pool.parquet"),),
                        "label": "label",
                        "old_prediction": "old",
                        "difficulty": "confidence",
                        "example_id": "id",
                        "api": server.file(concurrency=in_flight),
                        "budget": f"{number}",
                        "method": method,
                        "output": str(folder / method / "out"),
                    },
                )
                begun = time.perf_counter()
                with Engine(runner_config("direct", ())) as engine:
                    run_shift(config, engine, Terminal(quiet=True))
                seconds = time.perf_counter() - begun
                held = seconds <= MOST_CALLS_WALL and len(set(server.charged)) == number
                floor = number / in_flight * latency
                most = server.stats["most_in_flight"]
                report.row(method, seconds, floor, MOST_CALLS_WALL, most, held=held)


PARTS = {
    "queries": queries,
    "plus": plus,
    "replaced": replaced,
    "coverage": coverage,
    "starved": starved,
    "stopping": stopping,
    "pool": pool,
    "memory": memory,
    "calls": calls,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--runs", type=int, default=500)
    asked = parser.parse_args()
    report = Report()
    for part in asked.only.split(","):
        PARTS[part](report, asked.runs)
    print(f"\n{len(report.missed)} bars missed", *report.missed, sep="\n  ")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
