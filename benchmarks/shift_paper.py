"""The tables of MASA's paper on real prediction APIs: Table 1, Figure 5 and Figure 7.

Run it alone: ``python benchmarks/shift_paper.py [--runs 200]``. It prints Markdown tables; all seeds are
fixed. Items are drawn with replacement and a call is allocated at a time, as in the paper.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
from shift import BINS, BUDGETS, TARGET, Real, Report, read, steps

from slicebeam.metrics.shift.allocation import smallest_budget
from slicebeam.metrics.shift.quality import Quality, calls_for_target, qualities

if TYPE_CHECKING:
    from collections.abc import Sequence


# Bins of the difficulty (K) of the paper's Figure 7.
PARTITIONS = (1, 3, 10)
# Data, new API, old API, and the calls of the paper's Table 1: MASA, and uniform or equal per label.
POOLS: tuple[tuple[str, str, str, tuple[int, int] | None], ...] = (
    ("imdb", "amazon", "google", (10_300, 20_800)),
    ("shop", "amazon", "google", (4_800, 20_800)),
    ("rafdb", "microsoft", "facepp", None),
    ("digit", "ibm", "google", (3_600, 17_000)),
    ("digit", "google", "ibm", (4_200, 17_000)),
    ("command", "google", "microsoft", (1_600, 15_200)),
)
EQUAL = "equal per label"
BASELINES = ("uniform", EQUAL, "masa")


def paper(report: Report, runs: int) -> None:
    """The paper's Table 1 and Figures 5 and 7: with replacement, a call at a time."""
    errors = f"Root mean squared Frobenius error over {runs} runs, with replacement"
    shown = (*(f"{calls:,} calls" for calls in BUDGETS), "")
    pools = [(f"{name}, {new}", read(name, new, old), beside) for name, new, old, beside in POOLS]
    report.head(f"{errors} (Figure 5)", "data, new API", "method", *shown)
    for name, real, _ in pools:
        for method in BASELINES:
            found = _with_replacement(real, method, BUDGETS, runs)
            report.row(
                name, method, *(f"{found[calls].mean_squared ** 0.5:.4f}" for calls in BUDGETS)
            )
    report.head(
        f"{errors}, of MASA with K bins of the difficulty (Figure 7)", "data, new API", "K", *shown
    )
    for name, real, _ in pools:
        for bins in PARTITIONS:
            found = _with_replacement(real, "masa", BUDGETS, runs, bins)
            cells = (
                f"{found[calls].mean_squared ** 0.5:.4f}" if calls in found else "too few"
                for calls in BUDGETS
            )
            report.row(name, bins, *cells)
    report.head(
        f"Calls for an error of {TARGET} in 95 % of {runs} runs, with replacement (Table 1)",
        *("data, new API", *BASELINES, "MASA saves of uniform", "of equal per label"),
        *("Table 1: MASA", "uniform or equal per label", ""),
    )
    for name, real, beside in pools:
        calls = []
        for method, most in zip(BASELINES, (24_000, 16_000, 14_000), strict=True):
            found = _with_replacement(real, method, steps(800, most), runs)
            calls.append(calls_for_target(list(found.values()), TARGET) or np.nan)
        saved = (f"{1 - calls[-1] / each:.0%}" for each in calls[:2])
        cells = (f"{each:,.0f}" for each in (*calls, *(beside or ())))
        measured = [*cells, *([] if beside else ["not in it"] * 2)]
        report.row(name, *measured[:3], *saved, *measured[3:])


def _with_replacement(
    real: Real, method: str, checks: Sequence[int], runs: int, bins: int = BINS
) -> dict[int, Quality]:
    """Return the quality of a baseline of the paper, or of MASA, by calls that suffice for it."""
    strata, items = real.cut(bins=1 if method == EQUAL else bins)
    least = 2 if method == "uniform" else smallest_budget(strata)
    found = qualities(
        *(strata, items, "proportional" if method == EQUAL else method),
        *([calls for calls in checks if calls >= least], runs, 1),
        replacement=True,
        batch=1,
        weights=np.ones(strata.count) if method == EQUAL else None,
    )
    return {each.calls: each for each in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    paper(Report(), parser.parse_args().runs)


if __name__ == "__main__":
    main()
