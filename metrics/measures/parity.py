"""The largest gap between groups in a share, with an interval and a test that allow for the choice.

Of the rate of positive predictions it is the difference of demographic parity; the larger one of true and false positive
rates is that of equalised odds (Hardt, Price and Srebro 2016, NeurIPS; Agarwal et al. 2018, ICML).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Literal

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
from slicebeam.metrics.significance.intervals import agresti_coull, bisect, mover
from slicebeam.metrics.significance.permutation import drawn_cells

Measure = Literal["prediction_rate", "true_positive_rate", "false_positive_rate", "accuracy"]
# Fewer examples than this, of those that a share is of, say too little of a group.
LEAST_EXAMPLES = 30
_DRAWS = 9_999
_WIDEST_RANGE = 40.0
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LargestGap:
    """Two groups by position, the difference of their shares with its interval, and p of the largest of any pair."""

    lowest: int
    highest: int
    gap: float
    low: float
    high: float
    p: float


def shares(
    cells: IntArray, positive: BoolArray, predicted: BoolArray
) -> dict[Measure, tuple[IntArray, IntArray]]:
    """Return for each measure how many examples [groups] are marked, of how many, from counts [groups, cells]."""
    everywhere = np.ones(positive.shape, bool)
    marked: dict[Measure, tuple[BoolArray, BoolArray]] = {
        "prediction_rate": (predicted, everywhere),
        "true_positive_rate": (predicted & positive, positive),
        "false_positive_rate": (predicted & ~positive, ~positive),
        "accuracy": (predicted == positive, everywhere),
    }
    return {
        name: (cells[:, part].sum(axis=1), cells[:, whole].sum(axis=1))
        for name, (part, whole) in marked.items()
    }


def largest_gap(marked: IntArray, sizes: IntArray, confidence: float) -> LargestGap:
    """Return the largest gap between shares marked/sizes of at least two groups."""
    # The interval is `mover`'s of Agresti and Coull's, at the critical value of Tukey's studentised range, so that those
    # of all pairs hold together: Agresti, Bini, Bertaccini and Ryu (2008), Biometrics 64:1270. The test is exact given
    # how many examples are marked in all: Monte Carlo's p (Barnard 1963) of the largest studentised difference of a pair.
    share = marked / sizes
    lowest, highest = int(share.argmin()), share.size - 1 - int(share[::-1].argmax())
    two_sided = 2.0 * float(ndtr(critical_value(sizes.size, confidence))) - 1.0
    first, second = (
        (share[at], *(end[0] for end in agresti_coull(marked[[at]], sizes[[at]], two_sided)))
        for at in (highest, lowest)
    )
    gap = float(share[highest] - share[lowest])
    below, above = map(float, mover(first, second))
    p = p_value(marked, sizes)
    return LargestGap(lowest, highest, gap, gap - below, gap + above, p)


@cache
def critical_value(groups: int, confidence: float) -> float:
    """Return Tukey's quantile: the largest of all pairs' standardised differences is below it."""
    z = np.linspace(-8.0, 8.0, 1025)
    density = groups * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (z[1] - z[0])

    def keeps(width: FloatArray) -> BoolArray:
        below = (ndtr(z) - ndtr(z - width)) ** (groups - 1) @ density
        return np.asarray(below <= confidence)[None]

    (width,) = bisect(keeps, np.zeros(1), np.full(1, _WIDEST_RANGE))
    return float(width / np.sqrt(2.0))


def p_value(marked: IntArray, sizes: IntArray, draws: int = _DRAWS) -> float:
    """Return p of the test that no group differs; see `largest_gap`."""
    # Every table has draws of its own, so that their luck is not the same in all uses of the test.
    generator = np.random.default_rng([*sizes, *marked])
    drawn = drawn_cells(generator, sizes, int(marked.sum()), draws)
    # What was observed comes first.
    apart = _largest_difference((np.concatenate([marked[None, :], drawn]) / sizes).T, sizes)
    return int(np.count_nonzero(apart >= apart[0] * (1.0 - _ROUNDING))) / (1 + draws)


def _largest_difference(share: FloatArray, sizes: IntArray) -> FloatArray:
    """Return the largest difference [tables] of shares [groups, tables] in standard errors, but for a factor."""
    share, largest = np.ascontiguousarray(share), np.zeros(share.shape[1])
    for first, second in combinations(range(sizes.size), 2):
        apart = np.abs(share[first] - share[second])
        apart /= np.sqrt(1.0 / sizes[first] + 1.0 / sizes[second])
        np.maximum(largest, apart, out=largest)
    return largest
