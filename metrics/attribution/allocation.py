"""How labels are divided between the slice and what is outside it."""

from __future__ import annotations

import math

import numpy as np

from slicebeam.metrics.attribution.estimates import fay_feuer, jeffreys

# Draws outside the slice of which one is a hit, as long as nobody knows; the division hardly depends
# on it. With m/4 hits of equal weight Q̂ has the relative variance 4/m that the interval reckons with.
_DRAWS_FOR_A_HIT = 4.0
# Thresholds at the ends would leave nothing to find.
_LEAST, _MOST = 0.5, 0.95
# Divisions that are tried.
_TRIED = 100
# Of a budget, so that a few labels don't leave one of the two unknown altogether.
_LEAST_SHARE = 0.25


def split_labels(
    budget: int,
    *,
    size: int,
    size_outside: int,
    labelled: int = 0,
    drawn: int = 0,
    precision: float = 0.8,
    recall: float = 0.8,
    least_weight: float = 0.2,
    confidence: float = 0.95,
) -> tuple[int, int]:
    """Return how many examples of the slice to label, and how many draws outside it.

    Minimises the width of the interval of P plus that of R after this round, as `jeffreys` and
    `fay_feuer` would give them if P and R were the thresholds, since it is there that a decision is
    hardest, and one draw in four a hit. With few labels the example that is least likely to be drawn
    decides how wide the interval of R is, so that more of them go outside than the variances of P̂
    and Q̂ alone would have it. Neither gets less than a quarter, as far as there are examples.

    What was answered so far is left out on purpose: the numbers of draws must be fixed beforehand
    for Q̂ of several rounds to be unbiased (`Draws.merged`).
    """
    left = size - labelled
    if budget >= left + size_outside:
        return left, size_outside
    each = min(int(_LEAST_SHARE * budget), left, size_outside)
    fewest, most = max(each, budget - size_outside), min(budget - each, left)
    inside = np.unique(np.linspace(fewest, most, min(most - fewest + 1, _TRIED)).round())
    P, R = (min(max(one, _LEAST), _MOST) for one in (precision, recall))
    of_slice = labelled + inside
    low, high = jeffreys(P * of_slice, of_slice, np.full(inside.size, size), confidence)
    width = high - low
    if size_outside:
        # Less than one draw would divide by nothing.
        outside = np.maximum(drawn + budget - inside, math.ulp(1.0))
        found = size * P
        missed = found * (1 - R) / R / size_outside
        variance = missed**2 * _DRAWS_FOR_A_HIT / outside
        least, most_missed = fay_feuer(
            np.full(inside.size, missed), variance, 1 / (least_weight * outside), confidence
        )
        most_missed = np.minimum(most_missed, 1.0)
        with_all, with_none = size * high, size * low
        width = width + with_all / (with_all + size_outside * least)
        width = width - with_none / (with_none + size_outside * most_missed)
    best = int(inside[np.argmin(width)])
    return best, min(budget - best, size_outside)
