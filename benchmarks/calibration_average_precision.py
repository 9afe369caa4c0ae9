"""Designs that measure the test of average precision, and how often its intervals hold that of all examples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from benchmarks.calibration_designs import SIDES, Each, N, Result, in_turn
from slicebeam.metrics.counting.statistic_space import BUCKETS
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space

# Prevalence, and examples of the slice: at least ten positives are expected.
SHAPES = ((0.03, 1000), (0.1, 150), (0.1, 300), (0.4, 60), (0.4, 200), (0.7, 200))
# How far the scores of positives are above those of negatives, in standard deviations.
DISTANCES = (0.5, 1.5, 3.0)
LEVELS = (0.05, 0.01, 0.001)
HIGHEST, LEAST = 1.4, 0.93


def _random_slices(job: tuple[tuple[float, int], float], draws: int) -> Slices:
    """Return random subsets of N examples, whose scores have a bucket each."""
    (prevalence, n), apart = job
    rng = np.random.default_rng([125, round(100 * prevalence), n, round(10 * apart)])
    labels = (np.arange(N) < prevalence * N).astype(np.int64)
    scores = rng.normal(apart * labels)
    bucket = np.searchsorted(np.quantile(scores, np.arange(1, BUCKETS) / BUCKETS), scores)
    whole = np.bincount(BUCKETS * labels + bucket, minlength=2 * BUCKETS)
    drawn = rng.multivariate_hypergeometric(whole, n, size=draws, method="marginals")
    space = statistic_space(["average_precision"], "overall")
    by_score = tuple(map(tuple, whole.reshape(2, BUCKETS).tolist()))
    space = replace(space, by_score=by_score, coarse=((False,) * BUCKETS,))
    sums, totals = (
        np.concatenate([each.reshape(-1, 2, BUCKETS).sum(axis=2), each.reshape(-1, 2 * BUCKETS)], 1)
        for each in (drawn, whole)
    )
    return Slices(space.reduce(sums, totals), space, space.reduce(totals, totals)[0])


def _rates(job: tuple[tuple[float, int], float], draws: int) -> list[list[float]]:
    """Return false-positive rates ÷ nominal [sides, levels], those of a side by twice the level."""
    slices, measured = _random_slices(job, draws), metric("average_precision")
    p = [(measured.test(slices, side).p, part) for side, part in SIDES]
    return [[float((some <= at * part).mean()) / at / part for at in LEVELS] for some, part in p]


def random_slices(
    each: Each = in_turn, draws: int = 40_000, *, slack: float = 0.0, step: int = 1
) -> Result:
    """False-positive rates of average precision ÷ nominal, at .05, .01 and .001."""
    jobs = list(product(SHAPES, DISTANCES))[::step]
    rates = np.array(each(partial(_rates, draws=draws), jobs))
    words = []
    for (name, _), of in zip(SIDES, rates.swapaxes(0, 1), strict=True):
        spans = zip(of.min(axis=0), of.max(axis=0), strict=True)
        words.append(f"{name} {'/'.join(f'{low:.2f} to {high:.2f}' for low, high in spans)}")
    # At .001 the rates of 40,000 draws themselves vary by a quarter.
    return Result("; ".join(words), bool(rates[:, :, :2].max() <= HIGHEST + slack))


def _coverage(job: tuple[tuple[float, int], float], draws: int) -> list[float]:
    """Return how often the intervals of value and difference hold those of all examples."""
    slices, measured = _random_slices(job, draws), metric("average_precision")
    whole = float(measured.value(slices.total)[0])
    few = slices.count("positive") < 10
    held = []
    for (low, high), truth in (
        (measured.value_interval(slices, 0.95), whole),
        (measured.delta_interval(slices, 0.95), 0.0),
    ):
        held.append(float(((low <= truth) & (truth <= high))[~few].mean()))
    return held


def intervals(
    each: Each = in_turn, draws: int = 10_000, *, slack: float = 0.0, step: int = 1
) -> Result:
    """Coverage of the intervals of average precision at .95, of slices with ten positives or more."""
    jobs = list(product(SHAPES, DISTANCES))[::step]
    held = np.array(each(partial(_coverage, draws=draws), jobs))
    words = [
        f"{name} {of.min():.3f} to {of.max():.3f}, mean {of.mean():.3f}"
        for name, of in zip(("value", "difference"), held.T, strict=True)
    ]
    return Result("; ".join(words), bool(held.min() >= LEAST - slack))
