"""Time of testing 100,000 slices by each metric's own test, against plain scipy or numpy.

Run it alone: ``python benchmarks/testing.py``. Slices are of 20 to 10,000 examples of a million
and of 20,000, most of them small, with errors as the UCI Adult data has them. The peer of a metric
is measured in the same run:

``hypergeom``  ``scipy.stats.hypergeom.sf`` and ``pmf`` of every hundredth slice, times 100, always of
               a million: of 20,000, where Boost multiplies primes, it takes 80 times as long
``binom``      ``scipy.stats.binom.sf`` and ``pmf`` of every hundredth slice, times 100
``Welch``      ``scipy.stats.ttest_ind_from_stats`` of all slices
``paired``     ``scipy.stats.t.sf`` of all slices
``log``        a hundred ``np.log`` of an array of all slices
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from slicebeam.metrics.counting.statistic_space import Deviations, Range, fixed_point
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.measures.slice_test import SliceTest
from slicebeam.metrics.significance import hall, random_subset
from tests.deviations import with_deviations

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.metrics.counting.statistic_space import StatisticSpace, Term
    from slicebeam.metrics.kinds import Comparison

# CPU seconds for 100,000 slices.
BARS = {("accuracy", "overall"): 1.0, ("log_loss", "overall"): 2.0}
CASES: tuple[tuple[str, Comparison, str], ...] = (
    ("accuracy", "overall", "hypergeom"),
    ("precision", "overall", "hypergeom"),
    ("f1", "overall", "hypergeom"),
    ("fbeta:2", "overall", "log"),
    ("balanced_accuracy", "overall", "log"),
    ("mcc", "overall", "log"),
    ("f1_macro", "overall", "log"),
    ("log_loss", "overall", "Welch"),
    ("brier", "overall", "Welch"),
    ("accuracy", "baseline", "binom"),
    ("f1", "baseline", "log"),
    ("mcc", "baseline", "log"),
    ("log_loss", "baseline", "paired"),
)
SMALLEST, LARGEST = 20, 10_000
SAMPLED = 100
ROWS = 1_000_000


def sizes(slices: int, rng: np.random.Generator) -> np.ndarray:
    """Return the examples of slices: as many of 20 to 40 as of 5,000 to 10,000."""
    return np.exp(rng.uniform(np.log(SMALLEST), np.log(LARGEST), slices)).astype(np.int64)


def cells_of(space: StatisticSpace, n: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return counts by cell [slices, cells] of data with 24 % positives and 13 % errors."""
    examples = 100_000
    positive = rng.random(examples) < 0.24
    codes = np.zeros(examples, np.int64)
    for old in (False, True)[: space.sides]:
        wrong = rng.random(examples) < np.where(positive, 0.3, 0.08)
        predicted = positive ^ wrong
        of = {
            "positive": positive,
            "predicted": predicted,
            "wrong": wrong,
            "label_class": positive,
            "predicted_class": predicted,
        }
        for (axis, is_old), (stride, _) in space.axes.items():
            if is_old is old:
                codes += stride * of[axis]
    shares = np.bincount(codes, minlength=space.cells) / examples
    # Slices differ: a Dirichlet law about the shares, which keeps a share of 0.
    near = rng.gamma(np.maximum(shares * 200, 1e-9), size=(n.size, space.cells)) * (shares > 0)
    near[:, np.argmax(shares)] += 1e-9
    return rng.multinomial(n, near / near.sum(axis=1, keepdims=True))


def losses(space: StatisticSpace, value: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return losses of examples by model, and their change."""
    found = {}
    label = rng.random(100_000) < 0.24
    for source in ("new", "old")[: space.sides]:
        score = rng.beta(0.6 + 2 * label, 1.8, label.size)
        right = np.where(label, score, 1 - score)
        found[source] = -np.log(right) if value == "log_loss" else (1 - right) ** 2
    if space.sides == 2:
        found["change"] = found["new"] - found["old"]
    return found


def sums_of(
    space: StatisticSpace, n: np.ndarray, rows: int, rng: np.random.Generator
) -> tuple[StatisticSpace, np.ndarray, np.ndarray]:
    """Return the scaled space, sums [slices, columns] and totals."""
    cells = cells_of(space, np.append(n, rows), rng)
    if space.comparison == "overall":
        cells[-1] = np.maximum(cells[-1], cells[:-1].max(axis=0))
    if not space.terms:
        return space, cells[:-1], cells[-1]
    (value,) = {term.value for term in space.terms}
    of = losses(space, value, rng)
    ranges = {
        (value, source == "old"): Range(float(of[source].min()), float(of[source].max()))
        for source in ("new", "old")[: space.sides]
    }
    space = space.scaled(ranges, 1.0, rows)
    # As many examples of each loss, or change, as the totals have.
    old = of["old"] if space.comparison == "baseline" else None
    centre, few = dict(with_deviations(space, value, of["new"], old=old).deviations)[value]
    counts = tuple(count * rows / of["new"].size for count in few.counts)
    space = replace(space, deviations=((value, Deviations(centre, few._replace(counts=counts))),))
    # The same examples for all terms: consecutive ones of a sequence that is summed up.
    begins = rng.integers(0, of["new"].size, n.size)

    def column(term: Term, scale: float) -> tuple[np.ndarray, int]:
        fixed = fixed_point((of[term.source] - space.shift(value)) ** term.power, scale)
        running = np.concatenate([[0], np.cumsum(np.concatenate([fixed, fixed[:LARGEST]]))])
        return running[begins + n] - running[begins], int(fixed.sum() * (rows / fixed.size))

    every = (*space.terms, *space.total_terms)
    columns = [column(term, scale) for term, scale in zip(every, space.scales, strict=True)]
    sums = np.stack([n, *(own for own, _ in columns[: len(space.terms)])], axis=1)
    return space, sums, np.array([rows, *(total for _, total in columns)])


def seconds(run: Callable[[], object]) -> float:
    """Return the CPU seconds of the faster of two runs, neither of which knows what the other solved."""
    times = []
    for _ in range(2):
        random_subset._parts.cache_clear()
        hall._law.cache_clear()
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return min(times)


def peer_seconds(peer: str, n: np.ndarray, rng: np.random.Generator) -> float:
    """Return what scipy or numpy take for about the same."""
    if peer == "log":
        values = rng.random(n.size)
        return seconds(lambda: [np.log(values) for _ in range(100)])
    if peer == "Welch":
        mean, deviation = rng.random(n.size), rng.random(n.size)
        rest = (mean * 0.9, deviation * 1.1, ROWS - n)
        return seconds(
            lambda: stats.ttest_ind_from_stats(mean, deviation, n, *rest, equal_var=False)
        )
    if peer == "paired":
        t = rng.normal(size=n.size)
        return seconds(lambda: stats.t.sf(np.abs(t), n - 1))
    some = n[::SAMPLED]
    hits = rng.binomial(some, 0.13)
    if peer == "binom":
        law = stats.binom(hits, 0.5)
        hits = rng.binomial(hits, 0.5)
    else:
        law = stats.hypergeom(ROWS, int(0.13 * ROWS), some)
    return seconds(lambda: law.sf(hits) + law.pmf(hits)) * n.size / some.size


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=100_000)
    parser.add_argument("--only", help="a metric")
    chosen = parser.parse_args()
    print(
        f"{chosen.slices:,} slices\n"
        f"{'metric':18} {'compares':9} {'N':>9} {'tested':>6} {'CPU s':>7} {'bar':>5} {'peer':>10} {'s':>7} {'ratio':>6}"
    )
    missed = False
    for name, comparison, peer in CASES:
        if chosen.only not in (None, name):
            continue
        assert metric(name)
        for rows in (ROWS, 20_000):
            rng = np.random.default_rng(0)
            n = sizes(chosen.slices, rng)
            space, sums, totals = sums_of(statistic_space([name], comparison), n, rows, rng)
            test = SliceTest(name, space, "auto", "worse")
            tested = float(np.mean(test.run(sums[:, None], totals[None]).tested.reasons == 0))
            own = seconds(lambda: test.run(sums[:, None], totals[None]))  # noqa: B023
            other = peer_seconds(peer, n, rng)
            bar = BARS.get((name, comparison))
            missed |= bar is not None and own > bar * chosen.slices / 100_000
            print(
                f"{name:18} {comparison:9} {rows:9,} {tested:6.1%} {own:7.2f} {bar or '':>5} {peer:>10} "
                f"{other:7.2f} {own / other:6.2f}"
            )
            sys.stdout.flush()
    if missed:
        sys.exit("slower than its bar")


if __name__ == "__main__":
    main()
