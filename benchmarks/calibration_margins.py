"""Designs that measure the tests against a margin, where the difference is exactly the margin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np

from benchmarks.calibration_designs import Each, Result, in_turn
from slicebeam.metrics.significance import count_tests

MARGINS = (0.005, 0.02, 0.1)
# Examples, and the share that only the new model gets right; examples of slice and rest, and the rest's share.
PAIRED = tuple(product((50, 200, 1000, 10_000), (0.0, 0.002, 0.02, 0.1)))
UNPAIRED = tuple(product(((30, 100), (50, 1000), (200, 2000), (1000, 1000)), (0.5, 0.9, 0.99)))
LEVELS = (0.05, 0.01, 0.001)
MOST = 1.15
Job = tuple[float, tuple[int, float] | tuple[tuple[int, int], float]]
Law = Callable[..., np.ndarray]


def _rates(job: Job, draws: int, paired: Law, unpaired: Law) -> list[float]:
    """Return rates over nominal at each level."""
    margin, (sizes, share) = job
    rng = np.random.default_rng([120, round(1000 * margin), round(1000 * share)])
    if isinstance(sizes, tuple):
        n, rest = sizes
        if share - margin <= 0:
            return [0.0] * len(LEVELS)
        # Many pairs of counts occur once.
        draws //= 4
        drawn = np.stack([rng.binomial(n, share - margin, draws), rng.binomial(rest, share, draws)])
        different, which = np.unique(drawn, axis=1, return_inverse=True)
        p = unpaired(different[0], n, different[1], rest, -margin, "lower")
    else:
        shares = [share, share + margin, 1.0 - 2.0 * share - margin]
        drawn = rng.multinomial(sizes, shares, draws)[:, :2].T
        different, which = np.unique(drawn, axis=1, return_inverse=True)
        p = paired(different[0], different[1], sizes, -margin, "lower")
    return [float((p[which.ravel()] <= level).mean() / level) for level in LEVELS]


def margin_rates(
    each: Each = in_turn,
    draws: int = 30_000,
    *,
    step: int = 1,
    levels: int = 3,
    paired: Law = count_tests.paired_margin_p,
    unpaired: Law = count_tests.unpaired_margin_p,
) -> Result:
    """Rates over nominal of one side, where the truth is the margin; at most 1.15 within chance (3 errors)."""
    words, passed = [], True
    rates_of = partial(_rates, draws=draws, paired=paired, unpaired=unpaired)
    for name, shapes, drawn in (("two models", PAIRED, draws), ("shares", UNPAIRED, draws // 4)):
        found = np.array(each(rates_of, list(product(MARGINS, shapes))[::step]))[:, :levels]
        chance = 3.0 / np.sqrt(drawn * np.array(LEVELS[:levels]))
        passed &= bool((found.max(axis=0) <= MOST + chance).all())
        spans = zip(LEVELS, found.mean(axis=0), found.max(axis=0), strict=False)
        each_level = ", ".join(
            f"{level:g}: {mean:.2f} (to {most:.2f})" for level, mean, most in spans
        )
        words.append(f"{name} {each_level}")
    return Result("; ".join(words), passed)
