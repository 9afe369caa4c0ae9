"""The experiments of MASA's paper on real prediction APIs, rerun: its Table 1, Figure 5 and Figure 7.

    python benchmarks/shift_paper.py [--runs 500] [--json FILE]

Source: Chen, Cai, Zaharia and Zou (2021), "Did the model change? Efficiently assessing machine learning API
shifts". Items are drawn with replacement and a call is allocated at a time, as in the paper; all seeds are
fixed. It prints Markdown and takes 5 minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from paper_tables import markdown_table
from shift import BUDGETS, TARGET, Real, read, steps, uniformly, with_replacement

from slicebeam.metrics.shift.allocation import smallest_budget
from slicebeam.metrics.shift.simulation import Quality, calls_for_target

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS = 500


class Pool(NamedTuple):
    """A data set, its new and old API, and the calls of the paper's Table 1."""

    data: str
    new: str
    old: str
    masa: int | None = None
    # Of uniform and of equal per label, which the paper has in a single column.
    baseline: int | None = None


POOLS = {
    "IMDB, Amazon": Pool("imdb", "amazon", "google", 10_300, 20_800),
    "shop reviews, Amazon": Pool("shop", "amazon", "google", 4_800, 20_800),
    "faces, Microsoft": Pool("rafdb", "microsoft", "facepp"),
    "digits, IBM": Pool("digit", "ibm", "google", 3_600, 17_000),
    "digits, Google": Pool("digit", "google", "ibm", 4_200, 17_000),
    "commands, Google": Pool("command", "google", "microsoft", 1_600, 15_200),
}


class Design(NamedTuple):
    """A method, and the bins of the difficulty (K) within a label."""

    method: str
    bins: int
    equal: bool = False


# Those of Figure 5 are the first two and MASA with three bins; those of Figure 7 are MASA's.
UNIFORM, EQUAL = "uniform", "equal per label"
MASA_1, MASA, MASA_10 = "MASA, K = 1", "MASA, K = 3", "MASA, K = 10"
# Calls at which K is compared.
COMPARED = 2000
DESIGNS = {
    UNIFORM: Design("uniform", 1),
    EQUAL: Design("proportional", 1, equal=True),
    MASA_1: Design("masa", 1),
    MASA: Design("masa", 3),
    MASA_10: Design("masa", 10),
}
# Up to how many calls the target is looked for.
MOST_CALLS = {UNIFORM: 24_000, EQUAL: 16_000, MASA: 14_000}


def measured(real: Real, design: Design, checks: Sequence[int], runs: int) -> dict[int, Quality]:
    """Return the quality of a design by calls, without those that are too few for its strata."""
    strata, items = real.cut(bins=design.bins)
    least = 2 if design.method == "uniform" else smallest_budget(strata)
    checks = [calls for calls in checks if calls >= least]
    if design.method == "uniform":
        found = uniformly(strata, items, checks, runs)
    else:
        weights = np.ones(strata.count) if design.equal else None
        found = with_replacement(strata, items, design.method, checks, runs, weights)
    return {each.calls: each for each in found}


def errors(name: str, runs: int) -> dict[str, list[list[float]]]:
    """Return for each design and budget the root mean squared error, and its standard error."""
    pool = POOLS[name]
    real = read(pool.data, pool.new, pool.old)
    found: dict[str, list[list[float]]] = {}
    for called, design in DESIGNS.items():
        by_calls = measured(real, design, BUDGETS, runs)
        found[called] = [_root_mean_squared(by_calls[n]) if n in by_calls else [] for n in BUDGETS]
        print(name, called, found[called], file=sys.stderr)
    return found


def _root_mean_squared(found: Quality) -> list[float]:
    squares = np.square(found.errors)
    root = float(np.sqrt(squares.mean()))
    return [root, float(squares.std(ddof=1) / np.sqrt(squares.size) / (2 * root))]


def calls_to_target(name: str, runs: int) -> dict[str, float]:
    """Return for each design of Table 1 the calls until 95 % of the runs have at most the target error."""
    pool = POOLS[name]
    real = read(pool.data, pool.new, pool.old)
    found = {}
    for called, most in MOST_CALLS.items():
        by_calls = measured(real, DESIGNS[called], steps(800, most), runs)
        calls = calls_for_target(list(by_calls.values()), TARGET)
        if calls is None:
            raise RuntimeError(
                f"{name}, {called}: {most} calls are too few for an error of {TARGET}"
            )
        found[called] = calls
    print(name, found, file=sys.stderr)
    return found


def records(runs: int = RUNS) -> dict[str, Any]:
    """Run everything, and return it as it stands in the JSON."""
    return {
        "runs": runs,
        "errors": {name: errors(name, runs) for name in POOLS},
        "calls": {name: calls_to_target(name, runs) for name in POOLS},
    }


def error_rows(name: str, found: dict[str, list[list[float]]]) -> list[list[str]]:
    """Return the rows of a pool in the table of errors."""
    return [
        [name, called, *(f"{each[0]:.4f}" if each else "too few" for each in by_calls)]
        for called, by_calls in found.items()
    ]


def calls_rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return the rows of the table of calls."""
    rows = []
    for name, calls in found.items():
        pool = POOLS[name]
        counts = (f"{n:,.0f}" for n in calls.values())
        saved = (f"{1 - calls[MASA] / calls[one]:.0%}" for one in (UNIFORM, EQUAL))
        paper = (f"{n:,}" if n else "not in it" for n in (pool.masa, pool.baseline))
        rows.append([name, *counts, *saved, f"{by_labels(calls):.0%}", *paper])
    return rows


def by_labels(calls: dict[str, float]) -> float:
    """Return the share of what MASA saves of uniform's calls that equal numbers per label save too."""
    return (calls[UNIFORM] - calls[EQUAL]) / (calls[UNIFORM] - calls[MASA])


def changes(record: dict[str, Any], before: str, after: str) -> str:
    """Return how the error differs between two designs, over the pools."""
    at = BUDGETS.index(COMPARED)
    some = [each[after][at][0] / each[before][at][0] - 1 for each in record["errors"].values()]
    return f"{min(some):+.0%} to {max(some):+.0%} (median {np.median(some):+.0%})"


def markdown(record: dict[str, Any]) -> str:
    """Return the section of ``docs/explanation/benchmarks.md`` from what `records` returned."""
    roots = [each for found in record["errors"].values() for each in chain(*found.values()) if each]
    noise = max(error / root for root, error in roots)
    shares = {name: by_labels(calls) for name, calls in record["calls"].items()}
    (low, least), *_, (high, most) = sorted(shares.items(), key=itemgetter(1))
    errors_header = f"| data, new API | method | {' | '.join(f'{n:,} calls' for n in BUDGETS)} |"
    calls_header = f"| data, new API | {UNIFORM} | {EQUAL} | {MASA} | MASA saves of uniform "
    calls_header += f"| of {EQUAL} | labels alone | paper's MASA | paper's uniform, {EQUAL} |"
    rows = [row for name, found in record["errors"].items() for row in error_rows(name, found)]
    return f"""## MASA's experiments, rerun

Chen, Cai, Zaharia and Zou (2021), Table 1 and Figures 5 and 7, on recorded answers of APIs of
2020 (`examples/prediction_apis`). Items are drawn with replacement, as in the paper; K is the number of bins of the
difficulty within a label. `python benchmarks/shift_paper.py` makes this section in 5 minutes.
[Shift of a prediction API](../how-to/shift.md) has the other methods, and MASA without replacement.

Root mean squared error (Frobenius) of the confusion matrix, over {record["runs"]} runs; a standard error is at most
{noise:.1%} of it:

{_lines(errors_header, rows)}
Calls for an error of {TARGET} in 95 % of {record["runs"]} runs; *labels alone* is the share of what MASA saves of uniform's calls
that equal numbers per label save as well:

{_lines(calls_header, calls_rows(record["calls"]))}
- **Labels alone** give {least:.0%} ({low}) to {most:.0%} ({high}) of MASA's saving, in the
  median {np.median(list(shares.values())):.0%}. The paper reports similar numbers for uniform and for equal per label.
- **Bins of the difficulty**: from K = 1 to 3 the error of {COMPARED:,} calls changes by {changes(record, MASA_1, MASA)},
  from 3 to 10 by {changes(record, MASA, MASA_10)}.
"""


def _lines(header: str, rows: list[list[Any]]) -> str:
    return "\n".join(markdown_table(header, rows))


def main() -> None:
    """Run everything, print the tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, help="file for all figures")
    given = parser.parse_args()
    record = records(given.runs)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1), "utf-8")
    print(markdown(record))


if __name__ == "__main__":
    main()
