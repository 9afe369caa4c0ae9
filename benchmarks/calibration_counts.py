"""Designs that measure the tests of F-beta, MCC and the like, of means of few values, and of changes of losses."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
from scipy import stats

from benchmarks.calibration_designs import Each, Result, in_turn
from slicebeam.metrics.measures.mean import subset_p
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance.random_subset import Population
from tests.metrics.significance.test_delta_method import LAWS, METRICS, paired_rates
from tests.metrics.significance.test_few_cells import NAMES, SPACE, TOTALS, p_of, tables
from tests.metrics.significance.test_margins import FALLS, rates_of_a_fall
from tests.metrics.significance.test_student_law import LAWS as CHANGES
from tests.metrics.significance.test_student_law import rates

# Chances of 0, 1, 2 …
COLUMNS = (
    (0.95, 0.05),
    (0.7, 0.3),
    (0.5, 0.5),
    (0.6, 0.3, 0.1),
    (0.4, 0.3, 0.15, 0.1, 0.03, 0.02),
    tuple(stats.poisson.pmf(range(25), 8)),
)
SIZES = (20, 25, 30, 40, 50, 60, 80, 100, 150, 300)


def _paired(job: tuple[str, tuple[float, ...]], n: int, draws: int) -> list[float]:
    return paired_rates(*job, n, draws)


def two_models(each: Each = in_turn, draws: int = 80_000, n: int = 200) -> Result:
    """Rates over nominal at .01 of worse and better, of models of the same precision, F2, and so on."""
    found = each(partial(_paired, n=n, draws=draws), list(product(METRICS, LAWS)))
    rates = np.concatenate(found)
    median, most = float(np.median(rates)), float(rates.max())
    # Two standard errors of the largest.
    passed = median >= 0.6 and most <= 1.15 + 2 * (100 / draws) ** 0.5
    return Result(f"{rates.min():.2f} to {most:.2f}, median {median:.2f}", passed)


def far_out(_: Each = in_turn, n: int = 60) -> Result:
    """Rates over nominal at 1e-4, of all tables of n examples, each with its chance."""
    counts, chance = tables(n, TOTALS)
    rates = []
    for name, tail in product(NAMES, ("lower", "upper")):
        tested = metric(name).untestable(Slices(counts, SPACE, TOTALS)) == 0
        p = p_of(name, counts[tested], TOTALS, tail)
        rates.append(float((chance[tested] * (p <= 1e-4)).sum() / 1e-4))
    return Result(f"{min(rates):.2f} to {max(rates):.2f}", max(rates) <= 1.3)


def few_values(
    _: Each = in_turn,
    columns: tuple[tuple[float, ...], ...] = COLUMNS,
    sizes: tuple[int, ...] = SIZES,
) -> Result:
    """Rates over nominal at .01 of means of whole numbers, by the law of their sum."""
    rates = []
    for column, n in product(columns, sizes):
        counts = np.rint(10_000_000 * np.array(column))
        population = Population(tuple(map(float, range(counts.size))), tuple(counts), 1.0)
        chance = np.ones(1)
        for _ in range(n):
            chance = np.convolve(chance, counts / counts.sum())
        total = np.flatnonzero(chance > 1e-13)
        for tail in ("upper", "lower"):
            p = subset_p(np.full(total.size, n), total.astype(float), population, tail)
            rates.append(float(chance[total][p <= 0.01].sum() / 0.01))
    return Result(f"{min(rates):.2f} to {max(rates):.2f}", max(rates) <= 1.15)


def _changed(job: tuple[str, int, float], draws: int) -> list[float]:
    name, n, level = job
    return rates(CHANGES[name], n, draws, level)


def changes_of_losses(each: Each = in_turn, draws: int = 100_000) -> Result:
    """Rates over nominal at .01 and 10⁻³ of worse, better and both, of values with the mean 0; two values have fewer."""
    words, passed = [], True
    for level, least, most in ((0.01, 0.7, 1.15), (0.001, 0.5, 1.5)):
        jobs = list(product(CHANGES, (25, 50, 100), (level,)))
        found = np.array(each(partial(_changed, draws=draws), jobs))
        many = found[[name != "two values" for name, *_ in jobs]]
        passed &= bool(found.max() <= most and many.min() >= least)
        words.append(
            f"{level:g}: {many.min():.2f} to {many.max():.2f}, two values to {found.max():.2f}"
        )
    return Result("; ".join(words), passed)


def _fallen(job: tuple[str, tuple[float, ...], int], draws: int) -> list[float]:
    return rates_of_a_fall(*job, draws)


def margins_of_contributions(each: Each = in_turn, draws: int = 40_000) -> Result:
    """Rates over nominal at .05 and .01 where precision, F2, balanced accuracy or MCC fell by the margin."""
    jobs = list(product(METRICS, FALLS, (200, 400, 1000)))
    found = np.array(each(partial(_fallen, draws=draws), jobs)).max(axis=0)
    # Two standard errors of the largest.
    passed = (
        found[0] <= 1.15 + 2 * (20 / draws) ** 0.5 and found[1] <= 1.15 + 2 * (100 / draws) ** 0.5
    )
    return Result(f".05: to {found[0]:.2f}, .01: to {found[1]:.2f}", bool(passed))
