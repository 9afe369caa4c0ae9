"""Coverage of the interval of the largest gap, and false positives of its test: ``python benchmarks/parity.py``.

For 2, 5 and 20 groups of 30, of 5,000, and of sizes between these in geometric progression. Coverage
is of the true difference of the pair that was chosen, and the smallest over the rates of `RATES`; false
positives are where all groups have one rate, over all such rates. Bars: .93; 1.15 times the level.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from slicebeam.metrics.measures import parity

LEVELS = (0.05, 0.01)
# The lowest and the highest rate; those of the other groups are between, or the other way round.
RATES = ((0.003, 0.003), (0.01, 0.01), (0.05, 0.05), (0.2, 0.2), (0.5, 0.5), (0.97, 0.97), (0.02, 0.3), (0.3, 0.02),
         (0.45, 0.65), (0.003, 0.1))  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--covered", type=int, default=4000, help="data sets for coverage")
    parser.add_argument("--tested", type=int, default=800, help="data sets for false positives")
    arguments = parser.parse_args()
    generator, test = np.random.default_rng(1), parity.p_value
    print("groups  sizes        coverage   at .05   at .01")
    for groups in (2, 5, 20):
        for low, high in ((30, 30), (30, 5000), (5000, 5000)):
            sizes = np.geomspace(low, high, groups).astype(np.int64)
            coverage, positives = [], []
            for first, last in RATES:
                rates = np.linspace(first, last, groups)
                parity.p_value = lambda *_: 1.0  # the interval alone is quick
                inside = [
                    found.low <= rates[found.highest] - rates[found.lowest] <= found.high
                    for marked in generator.binomial(sizes, rates, (arguments.covered, groups))
                    for found in [parity.largest_gap(marked, sizes, 0.95)]
                ]
                coverage.append(np.mean(inside))
                if first == last:
                    drawn = generator.binomial(sizes, rates, (arguments.tested, groups))
                    p = np.array([test(marked, sizes, draws=999) for marked in drawn])
                    positives.append([np.mean(p <= level) for level in LEVELS])
            at = np.mean(positives, axis=0)
            print(
                f"{groups:>6}  {low:>4}-{high:<6} {min(coverage):>9.3f} {at[0]:>8.3f} {at[1]:>8.3f}"
            )


if __name__ == "__main__":
    main()
