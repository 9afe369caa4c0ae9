"""Designs that measure the tests of means: random slices of many kinds of losses, and whole searches."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.calibration_designs import SIDES, Each, N, Result, in_turn
from slicebeam.metrics.counting.statistic_space import Range, fixed_point
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.significance.hall import against_rest
from tests.deviations import with_deviations

SIZES = (20, 25, 30, 50, 60, 150)
LEVELS = (0.05, 0.01, 1e-3, 1e-4)
# At most so many times the nominal rate, at .01 and at 1e-4.
BARS = {0.01: 1.15, 1e-4: 1.5}
LOSSES = (
    "bimodal log loss",
    "bimodal Brier",
    "lognormal",
    "heavy",
    "six values",
    "two values",
    "far value",
)
# A rate of which fewer are expected is left to chance.
LEAST_EXPECTED = 30
# Three values of which one is far off have a rate of their own at each size, and are held to it over all sizes.
DISCRETE = ("far value",)


def losses(name: str) -> np.ndarray:
    """Losses of 20,000 examples."""
    rng = np.random.default_rng([116, LOSSES.index(name)])
    if name == "lognormal":
        return rng.lognormal(0, 1, N)
    if name == "heavy":
        return np.abs(rng.standard_t(2.5, N))
    if name == "six values":
        return rng.choice(
            [0.0, 0.04, 0.16, 0.36, 0.64, 1.0], N, p=[0.5, 0.2, 0.15, 0.1, 0.03, 0.02]
        )
    if name == "far value":
        return rng.choice([0.0, 1.0, 50.0], N, p=[0.69, 0.3, 0.01])
    if name == "two values":
        return np.where(rng.random(N) < 0.1, 0.81, 0.01)
    score = np.clip(rng.beta(0.5, 0.5, N), 1e-6, 1 - 1e-6)
    right = np.where(rng.random(N) < score, score, 1 - score)
    return -np.log(right) if name == "bimodal log loss" else (1 - right) ** 2


def _random_slices(
    job: tuple[str, bool, int], draws: int, *, by_hall: bool
) -> dict[tuple[str, float], int]:
    """Return how many of the random slices each side of the test calls at each level."""
    name, weighted, n = job
    values = losses(name)
    rng = np.random.default_rng([117, LOSSES.index(name), n])
    weights = rng.lognormal(0, 0.7, N) if weighted else None
    space = statistic_space(["loss"], "overall", weighted=weighted)
    heaviest = 1.0 if weights is None else float(weights.max())
    space = space.scaled({("loss", False): Range(values.min(), values.max())}, heaviest, N)
    space = with_deviations(space, "loss", values, weights)
    weight = np.ones(N) if weights is None else weights
    columns = [np.ones(N, np.int64)]
    if weights is not None:
        scaled = zip((1, 2), space.weight_scales, strict=True)
        columns += [fixed_point(weights**power, scale) for power, scale in scaled]
    shifted = values - space.shift("loss")
    columns += [
        fixed_point(shifted**term.power * weight**term.weight_power, scale)
        for term, scale in zip(space.all_terms, space.scales, strict=True)
    ]
    each = np.stack(columns, axis=1)
    totals, own = each.sum(axis=0), each[:, : space.columns]
    found = dict.fromkeys([(side, level) for side, _ in SIDES for level in LEVELS], 0)
    order, left = np.arange(N), draws
    while left > 0:
        rng.shuffle(order)
        sums = own[order[: N // n * n]].reshape(-1, n, space.columns).sum(axis=1)[:left]
        left -= len(sums)
        for side, part in SIDES:
            p = _p(sums, totals, space, side, by_hall=by_hall)
            for level in LEVELS:
                found[side, level] += int((p <= level * part).sum())
    return found


def _p(sums: np.ndarray, totals: np.ndarray, space: Any, side: Any, *, by_hall: bool) -> np.ndarray:
    own, slices = metric("loss"), Slices(sums, space, totals)
    if not by_hall:
        return own.test(slices, side).p
    inside, rest, _ = own.against_rest(slices)  # type: ignore[attr-defined]
    return against_rest(inside, rest).p_value(own.tail(side))[0]


def random_slices(
    each: Each = in_turn,
    draws: int = 200_000,
    names: tuple[str, ...] = LOSSES,
    sizes: tuple[int, ...] = SIZES,
    *,
    slack: float = 0.0,
    by_hall: bool = False,
) -> Result:
    """Rates over nominal of means of random slices, with and without weights, on either side.

    At .01 every size is held to its bar, but of a far value; at 1e-4 all sizes together.
    """
    jobs = [(name, weighted, n) for name in names for weighted in (False, True) for n in sizes]
    found = each(partial(_random_slices, draws=draws, by_hall=by_hall), jobs)
    words, passed = [], True
    for level in LEVELS:
        single, pooled = [], []
        for name in names:
            for weighted in (False, True):
                for side, part in SIDES:
                    nominal = draws * level * part
                    rates = [
                        one[side, level] / nominal
                        for job, one in zip(jobs, found, strict=True)
                        if job[:2] == (name, weighted)
                    ]
                    pooled.append((float(np.mean(rates)), name, weighted, side))
                    if weighted or name not in DISCRETE:
                        single += rates
        if draws * len(sizes) * level / 2 >= LEAST_EXPECTED and level in BARS:
            held = [rate for rate, *_ in pooled] + (single if level == 0.01 else [])
            passed &= max(held) <= BARS[level] + slack
        worst = max(pooled)
        single_words = f", one size to {max(single):.2f}" if single and level >= 0.01 else ""
        words.append(
            f"{level:g}: {min(pooled)[0]:.2f} to {worst[0]:.2f} ({worst[1]}"
            f"{', weighted' if worst[2] else ''}, {worst[3]}){single_words}"
        )
    return Result("; ".join(words), bool(passed))


ROWS = 3000
KINDS = ("log_loss", "brier", "weighted", "grouped")


def _permuted(job: tuple[str, int]) -> bool:
    """Return whether a search calls any slice where chance alone says who has which loss."""
    # Beam is not imported for designs without a search.
    from tests.running import search

    kind, seed = job
    rng = np.random.default_rng([118, KINDS.index(kind), seed])
    score = np.clip(rng.beta(0.5, 0.5, ROWS), 1e-6, 1 - 1e-6)
    columns: dict[str, Any] = {
        f"f{i}": rng.integers(0, size, ROWS).astype(str) for i, size in enumerate((4, 5, 6, 6, 8))
    }
    columns |= {"label": (rng.random(ROWS) < score).astype(int), "score": score}
    options: dict[str, Any] = {"metric": ("brier" if kind == "brier" else "log_loss",)}
    if kind == "weighted":
        columns["w"] = rng.lognormal(0, 0.7, ROWS)
        options["weight"] = "w"
    if kind == "grouped":
        columns["g"] = rng.integers(0, 600, ROWS)
        options["group"] = "g"
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "permuted.parquet"
        pq.write_table(pa.table(columns), data)
        found = search(
            Path(name) / "out",
            data=[str(data)],
            label="label",
            score="score",
            max_cross_size=2,
            alternative="both",
            **options,
        )
    return bool(found.document["testing"]["significant"] > 0)


def permuted_losses(
    each: Each = in_turn, searches: int = 60, kinds: tuple[str, ...] = KINDS, *, slack: float = 0.0
) -> Result:
    """Share of whole searches that call a slice, where losses have nothing to do with the slices."""
    jobs = [(kind, seed) for kind in kinds for seed in range(searches)]
    found = np.array(each(_permuted, jobs)).reshape(len(kinds), searches).mean(axis=1)
    words = [f"{kind} {share:.3f}" for kind, share in zip(kinds, found, strict=True)]
    return Result(f"{', '.join(words)} of {searches}", bool(found.max() <= 0.08 + slack))
