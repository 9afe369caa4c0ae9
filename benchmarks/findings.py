"""CPU time of choosing findings among tens of thousands of significant slices.

Run it alone: ``python benchmarks/findings.py``. A table of 30,000 rows and 24 features, each a noisy
view of one of six causes of error, has about 64,000 slices of up to three conditions that are
significantly worse. The floor sums what is expected of the rows of each candidate, once for each
finding. ``--goal 1.5`` fails where the choice, with all that it counts, takes more CPU seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import combinations
from typing import NoReturn

import numpy as np

from slicebeam.metrics.counting.counting import RowBlock
from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.findings.choice import Candidates, Choice
from slicebeam.metrics.findings.inside import HeldExamples
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.metrics.significance import count_tests
from slicebeam.transforms.encode.passes import one_thread

ROWS, FEATURES, CAUSES, BINS = 30_000, 24, 6, 7
SMALLEST, LEVELS, ALPHA = 20, 3, 0.05
MOST_KEPT = 64_000
SPACE = StatisticSpace(("wrong",), "overall")


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes [rows, features] and errors [rows]."""
    rng = np.random.default_rng(seed)
    causes = rng.normal(size=(ROWS, CAUSES))
    noise = rng.normal(size=(ROWS, FEATURES)) * rng.uniform(0.4, 1.5, FEATURES)
    views = causes[:, np.arange(FEATURES) % CAUSES] + noise
    edges = np.quantile(views, np.linspace(0, 1, BINS + 1)[1:-1], axis=0)
    codes = (views[:, :, None] > edges.T[None]).sum(axis=2)
    # Causes act together and not along a line, as in real tables.
    log_odds = -2.4 + 0.9 * np.maximum(causes[:, 0], 0) + 0.8 * (causes[:, 1] > 0.8)
    log_odds += 1.2 * ((causes[:, 2] > 0.3) & (causes[:, 3] > 0.3)) + 0.4 * causes[:, 4]
    return codes, (rng.random(ROWS) < 1 / (1 + np.exp(-log_odds))).astype(np.float64)


def candidates(
    codes: np.ndarray, wrong: np.ndarray, lattice: Lattice
) -> tuple[Candidates, list[int]]:
    """Return the significantly worse slices, and how many of each level could have been tested."""
    keys, sizes, totals, levels, tests = [], [], [], [], []
    for level in range(1, LEVELS + 1):
        tested = 0
        for features in combinations(range(FEATURES), level):
            cell = np.zeros(ROWS, np.int64)
            for feature in features:
                cell = cell * lattice.radices[feature] + codes[:, feature]
            cells = int(np.prod(lattice.radices[list(features)]))
            n = np.bincount(cell, minlength=cells)
            some = np.flatnonzero(n >= SMALLEST)
            tested += some.size
            keys.append(lattice.cell_keys(features, some))
            sizes.append(n[some])
            totals.append(np.bincount(cell, wrong, cells)[some])
            levels.append(np.full(some.size, level))
        tests.append(tested)
    key, n, x, level = map(np.concatenate, (keys, sizes, totals, levels))
    order = np.argsort(key)
    key, n, x, level = key[order], n[order], x[order], level[order]
    p = count_tests.mid_p(n, x.astype(np.int64), ROWS, int(wrong.sum()), "upper")
    # The smallest p-values, as many as the table in question has significant slices.
    called = p <= min(ALPHA, float(np.sort(p)[min(MOST_KEPT, p.size) - 1]))
    harm = x / n - wrong.mean()
    return Candidates(level, key, n[:, None], x, called, harm), tests


class Held(HeldExamples):
    """Holds the examples, and sums the CPU time that this takes."""

    def __init__(self, codes: np.ndarray, wrong: np.ndarray, keys: np.ndarray, lattice: Lattice):
        ids, none = np.arange(ROWS, dtype=np.uint64), np.zeros((0, ROWS), np.int64)
        cells, columns = wrong.astype(np.int64), codes.T.astype(np.int8)
        block = RowBlock(ROWS, columns.__getitem__, cells, ids, ids, none, none, none)
        begin = time.process_time()
        super().__init__([block], keys, lattice, SPACE, np.ones(SPACE.cells, bool))
        self.seconds = time.process_time() - begin


def not_held(chosen: int, positions: np.ndarray) -> NoReturn:
    """Say that examples are counted, where all of them are held."""
    raise AssertionError(f"candidate {chosen} of {positions.size} is counted")


def main() -> int:
    """Print the findings and what they cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, help="most CPU seconds")
    options = parser.parse_args()
    codes, wrong = table(options.seed)
    lattice = Lattice((BINS,) * FEATURES, LEVELS)
    some, tests = candidates(codes, wrong, lattice)
    held: list[Held] = []

    def hold(positions: np.ndarray) -> Held:
        held.append(Held(codes, wrong, some.id[positions], lattice))
        return held[0]

    begin = time.process_time()
    with one_thread():
        found = Choice(
            candidates=some,
            everything=np.array([ROWS - wrong.sum(), wrong.sum()], np.int64),
            layout=TargetSums("rate"),
            count_inside=not_held,
            hold=hold,
            upward=True,
            tests_per_level=tests,
            alpha=ALPHA,
            moments=lambda sums: metric("error_rate").target_sums(Slices(sums, SPACE)),
        ).run()
    whole = time.process_time() - begin
    holding = sum(one.seconds for one in held)
    # What no choice can do without: for each finding, the expected sums of all candidates anew.
    # Without patterns these are sums over all rows of each candidate.
    members = int(some.sizes[some.significant & (some.harm > 0)].sum())
    expected = np.linspace(0.0, 1.0, ROWS)
    at = np.random.default_rng(0).integers(0, ROWS, 1_000_000)
    begin = time.process_time()
    for _ in range(5):
        expected[at].sum()
    a_row = (time.process_time() - begin) / 5 / at.size
    floor = a_row * members * max(len(found.findings), 1)
    for finding in found.findings:
        print(
            f"n={finding.size:6.0f} rate={finding.value:.3f} expected={finding.expected:.3f} "
            f"p={finding.p_value:.1e} held={finding.cumulative_total / wrong.sum():.3f} outside={finding.outside:.3f}"
        )
    print(f"{found.candidates:,} candidates of {sum(tests):,} slices; stop: {found.stop}")
    print(
        f"{len(found.findings)} findings, {found.masks.size:,} patterns; {members:,} examples of candidates"
    )
    print(
        f"{whole:.2f} CPU s, {holding:.2f} of them to hold examples; to sum the examples of "
        f"candidates once for each finding takes {floor:.2f}: {whole / floor:.1f} of it"
    )
    return int(options.goal is not None and whole > options.goal)


if __name__ == "__main__":
    sys.exit(main())
