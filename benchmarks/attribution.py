"""Coverage of the intervals of precision and recall, and of what was published, beside it.

Run it alone: ``python benchmarks/attribution.py [--runs 1000]``. It prints Markdown tables and
ends with 1 where a bar is missed. All seeds are fixed. The whole takes about four minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from slicebeam.metrics.attribution.estimates import YES, fay_feuer, jeffreys
from tests.attribution_populations import OUTSIDE, PROPOSALS, Outcomes, Population, simulate
from tests.attribution_populations import population as make

SIZES = (60, 400, 2000)
SHARES = (0.5, 0.9, 0.98)
MISSED = (0.002, 0.02, 0.2)
LABELS = (50, 100, 300)
LEAST = 0.92
# Standard errors of a simulation within which a mean of so many cells is no bias.
MOST_ERRORS = 4.5
BOOTSTRAPS = 400
# Runs of each cell that are resampled.
RESAMPLED = 40
TAILS = (0.025, 0.975)


def draw_deviation(pool: Population, labels: int) -> float:
    """Standard deviation of Q̂, over all draws."""
    each = [
        float((pool.outside / one.weight(np.arange(OUTSIDE))).mean()) - pool.missed**2
        for one in pool.rounds
    ]
    return float(np.sqrt(np.mean(each) / labels))


def with_largest_hit(found: Outcomes, labels: int, truth: float) -> np.ndarray:
    """Whether the interval of Q holds with w_M the largest among the hits; of a hit at least."""
    part = [1 / each.weight[each.label == YES] / labels for each in found.draws]
    part = [each for each in part if each.size]
    if not part:
        return np.zeros(0, bool)
    low, high = fay_feuer(
        [each.sum() for each in part],
        [np.square(each).sum() for each in part],
        [each.max() for each in part],
    )
    return (low <= truth) & (truth <= high)


def recall_of(pool: Population, share: np.ndarray, missed: np.ndarray) -> np.ndarray:
    """R̂; 1 where nothing was found at all, as the interval has it."""
    inside = pool.inside.size * np.asarray(share)
    total = inside + pool.outside.size * np.asarray(missed)
    return np.where(total > 0, inside / np.where(total > 0, total, 1), 1.0)


def published(pool: Population, share: np.ndarray, missed: np.ndarray) -> np.ndarray:
    """R̂ as it is printed in appendix B.2."""
    inside = pool.outside.size * np.asarray(share)
    total = inside + (pool.inside.size + pool.outside.size) * np.asarray(missed)
    return np.where(total > 0, inside / np.where(total > 0, total, 1), 1.0)


def bootstrap(
    pool: Population, found: Outcomes, rng: np.random.Generator
) -> tuple[list[bool], list[bool]]:
    """Whether percentile intervals of R hold: by R̂ and by the printed formula."""
    ours, theirs = [], []
    for labels, draws in zip(found.labels[:RESAMPLED], found.draws, strict=False):
        share = (labels == YES)[rng.integers(0, labels.size, (BOOTSTRAPS, labels.size))].mean(1)
        part = np.where(draws.label == YES, 1 / draws.weight, 0)
        missed = part[rng.integers(0, part.size, (BOOTSTRAPS, part.size))].mean(1)
        for formula, hold in ((recall_of, ours), (published, theirs)):
            low, high = np.quantile(formula(pool, share, missed), TAILS)
            hold.append(bool(low - 1e-12 <= pool.recall <= high + 1e-12))
    return ours, theirs


def enumerated_precision() -> tuple[float, float]:
    """Least and mean coverage of P over all populations of the sizes, exactly."""
    least, means = 1.0, []
    for size, n in product(SIZES, LABELS):
        if n >= size:
            continue
        marked, x = np.arange(size + 1)[:, None], np.arange(n + 1)
        low, high = jeffreys(x, n, size)
        holds = (low <= marked / size + 1e-12) & (marked / size <= high + 1e-12)
        coverage = (stats.hypergeom.pmf(x, size, marked, n) * holds).sum(axis=1)
        least = min(least, float(coverage.min()))
        means.append(float(coverage.mean()))
    return least, float(np.mean(means))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="of each of 567 cells")
    runs = parser.parse_args().runs
    start = time.perf_counter()
    misses: list[str] = []

    def bar(name: str, holds: bool) -> None:
        if not holds:
            misses.append(name)

    rng = np.random.default_rng(21)
    columns = ("P", "Q", "R", "no hit: Q", "no hit: R", "Q by hits", "bootstrap", "printed")
    coverage: dict[str, dict[tuple[object, ...], list[np.ndarray]]] = {
        each: defaultdict(list) for each in columns
    }
    rows = defaultdict(list)
    off: dict[str, dict[tuple[object, ...], list[float]]] = {
        "P": defaultdict(list),
        "Q": defaultdict(list),
    }
    bias = defaultdict(list)
    cells = product(PROPOSALS, MISSED, LABELS, SIZES, SHARES)
    for seed, (kind, missed, labels, size, share) in enumerate(cells, start=100):
        pool = make(size, share, missed, kind, seed=seed)
        found = simulate(pool, labels, runs, seed)
        # The interval of Q depends on nothing inside, that of P on nothing outside.
        of_Q, of_P, cell = (kind, missed, labels), (size, share, labels), seed
        covers = {
            name: found.covers(what, truth)
            for name, what, truth in (
                ("P", "precision", pool.precision),
                ("Q", "missed", pool.missed),
                ("R", "recall", pool.recall),
            )
        }
        coverage["P"][of_P].append(covers["P"])
        coverage["Q"][of_Q].append(covers["Q"])
        coverage["R"][(cell,)].append(covers["R"])
        coverage["no hit: Q"][of_Q].append(covers["Q"][found.no_hit])
        coverage["no hit: R"][of_Q].append(covers["R"][found.no_hit])
        coverage["Q by hits"][of_Q].append(with_largest_hit(found, labels, pool.missed))
        by_ours, by_printed = bootstrap(pool, found, rng)
        coverage["bootstrap"][of_Q].append(np.array(by_ours))
        coverage["printed"][of_Q].append(np.array(by_printed))
        # Unbiased: means over the runs, in standard errors of them.
        P = np.array([each.precision.estimate for each in found.alignment])
        n = min(labels, size)
        P_error = np.sqrt(
            pool.precision * (1 - pool.precision) * (1 - n / size) * size / (size - 1) / n
        )
        if P_error > 0:
            off["P"][of_P].append((P.mean() - pool.precision) / P_error)
        Q_error = draw_deviation(pool, labels)
        off["Q"][of_Q].append((found.missed.mean() - pool.missed) / Q_error)
        R = np.array([each.recall.estimate for each in found.alignment])
        bias[labels].append(R.mean() - pool.recall)
        printed = published(pool, P, found.missed)
        rows[kind].append(
            (
                *(covers[name].mean() for name in "PQR"),
                np.mean([each.recall.low for each in found.alignment]),
                np.mean(R) - pool.recall,
                np.abs(printed - pool.recall).mean(),
                np.abs(R - pool.recall).mean(),
                np.mean(by_ours),
                np.mean(by_printed),
            )
        )

    print(f"## Coverage of 95 % intervals, {runs} runs in each of {seed - 99} cells\n")
    print("| interval | least of a cell | mean | runs of a cell |\n|---|---|---|---|")
    for name, of_cells in coverage.items():
        pooled = [np.concatenate(each) for each in of_cells.values()]
        # A share of a few runs says nothing: of those without a hit, of a twentieth at least.
        least_runs = 0.05 * 9 * runs if name.startswith("no hit") else 1
        pooled = [each for each in pooled if each.size >= least_runs]
        least = min(float(each.mean()) for each in pooled)
        mean = float(np.mean([each.mean() for each in pooled]))
        sizes = sorted(each.size for each in pooled)
        print(f"| {name} | {least:.3f} | {mean:.3f} | {sizes[0]}–{sizes[-1]} |")
        if name not in {"Q by hits", "bootstrap", "printed"}:
            bar(f"coverage of {name}", least >= LEAST)
    least, mean = enumerated_precision()
    print(f"| P, enumerated over all shares | {least:.3f} | {mean:.3f} | |")
    bar("enumerated coverage of P", least >= LEAST - 0.005)

    print("\n## By proposal: means over the cells\n")
    print("| proposal | P | Q | R | lower end of R | mean R̂ − R | abs(printed − R) | abs(R̂ − R) "
          "| bootstrap | bootstrap, printed |\n" + "|---" * 10 + "|")  # fmt: skip
    for kind, values in rows.items():
        print(f"| {kind} | " + " | ".join(f"{each:.3f}" for each in np.mean(values, axis=0)) + " |")

    print("\n## Estimates against the truth\n")
    for name, of_cells in off.items():
        errors = [np.sum(each) * np.sqrt(runs / len(each)) for each in of_cells.values()]
        most = float(np.abs(errors).max())
        print(
            f"- {name}̂: a mean is off by {most:.1f} standard errors at the most (bar {MOST_ERRORS})"
        )
        bar(f"bias of {name}", most <= MOST_ERRORS)
    for labels, values in bias.items():
        print(
            f"- R̂ at {labels} labels: mean − truth {np.mean(values):+.3f}, the most {max(values):+.3f}"
        )
    worst = 0.0
    for kind in PROPOSALS:
        pool = make(400, 0.9, 0.02, kind, seed=7)
        labels = 40_000
        found = simulate(pool, labels, 60, 7)
        # What is known of the whole outside by then would make it exact.
        R = recall_of(pool, pool.precision, found.missed)
        deviation = draw_deviation(pool, labels) / pool.missed
        expected = pool.recall * (1 - pool.recall) ** 2 * deviation**2
        error = pool.recall * (1 - pool.recall) * deviation / np.sqrt(60)
        worst = max(worst, abs(R.mean() - pool.recall - expected) / error)
    print(
        f"- R̂ at 40,000 draws: off by {worst:.1f} standard errors at the most (bar {MOST_ERRORS})"
    )
    bar("bias of R", worst <= MOST_ERRORS)

    pool = make(120, 0.9, 0.005, "informative", seed=5)
    printed = published(pool, pool.precision, pool.missed)
    print(
        f"- every example labelled, P {pool.precision:.2f}, Q {pool.missed:.3f}: true R "
        f"{pool.recall:.3f}, R̂ {recall_of(pool, pool.precision, pool.missed):.3f}, printed {printed:.3f}"
    )
    print("\n## Recall that can be shown, without a hit, P̂ = .9 of 100\n")
    print("| uniform share | labels outside | slice 5 % | 20 % | 50 % |\n|---|---|---|---|---|")
    low_P = float(jeffreys(90, 100, 10**6)[0])
    for share, labels in product((0.2, 0.5, 1.0), (100, 300, 1000)):
        _, Q = fay_feuer(0, 0, 1 / (share * labels))
        found_R = [f * low_P / (f * low_P + (1 - f) * min(1, float(Q))) for f in (0.05, 0.2, 0.5)]
        print(f"| {share} | {labels} | " + " | ".join(f"{each:.2f}" for each in found_R) + " |")
    print(
        f"\n{time.perf_counter() - start:.0f} s. "
        + (f"Missed: {', '.join(misses)}" if misses else "All bars met.")
    )
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
