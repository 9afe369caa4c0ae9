"""Of many overlapping slices the few that explain most of the excess, say of errors.

Significant slices overlap: most of them repeat a handful of causes. The cover takes, again and
again, the slice that holds the most excess among the examples which no slice taken before holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.significance.tails import BoolArray, FloatArray, IntArray

# Rows of members that are held as floats at once: 200 columns of them stay in the cache.
_BLOCK = 2048
# Sums of whole numbers up to 2^53 are exact, so that no order of summation changes them. Rounding
# the groups to whole units adds less than one unit each, which the next power of two allows for.
_UNIT_BITS = 51
# Gains that differ by less are equal: groups' excesses such as 3 − 0.1·7 carry rounding themselves.
_TIE = 2.0**12


class Cover(NamedTuple):
    """The chosen candidates, and how much the first 1, 2, ... of them explain together.

    ``chosen`` holds positions of candidates, int64 [chosen], in the order of their choice;
    ``explained`` the share of the excess, float64 [chosen], increasing and at most 1.
    """

    chosen: IntArray
    explained: FloatArray


def greedy_cover(
    members: BoolArray, excess: ArrayLike, *, most: int = 20, smallest_gain: float = 0.01
) -> Cover:
    """Choose the candidates that cover most of the excess, greedily.

    Parameters
    ----------
    members : bool array [patterns, candidates]
        Rows are groups of examples that are in the same candidates: which these are.
    excess : float array [patterns]
        Summed excess of each group, for instance its errors minus the overall error rate times its
        examples; may be negative.
    most : int
        The most candidates to choose.
    smallest_gain : float
        Choosing ends before the first candidate that adds less than this share.

    Returns
    -------
    Cover
        Of several candidates with the same gain the one of the lowest position is chosen. Nothing
        is chosen if no candidate has a positive excess.

    Raises
    ------
    ValueError
        If the shapes do not match, if an excess is not finite, or if `most` or `smallest_gain` is
        negative.

    Notes
    -----
    Each step takes the candidate with the largest excess over the examples that are not yet
    covered, and ends when none is positive. Where no group has a negative excess, the covered
    excess is monotone and submodular, and the first k choices reach at least 1 − (1 − 1/k)^k >
    1 − 1/e of what the best k candidates could: Nemhauser, Wolsey and Fisher (1978), Math.
    Program. 14:265, theorem 4.2. With negative groups there is no such guarantee, and a later gain
    may be larger than an earlier one.

    ``explained`` is relative to the summed excess of the union of all candidates. Where negative
    groups let greedy choice without `most` and `smallest_gain` collect more than the union has, it
    is relative to what that collects, so that the share never exceeds 1. It describes the data that
    the candidates were found on, and is no estimate for other data.

    Excesses are rounded to multiples of 2^−51 of (about) the sum of their absolute values, whose
    sums are exact: the result is bit for bit the same in any order of the rows. Gains that differ
    by less than about 2^−39 of that sum count as the same, and smaller ones as none. Each row is
    added once and subtracted at most once, so that the cost is about twice that of
    ``excess @ members`` whatever the number of choices.
    """
    inside = np.asarray(members, dtype=np.bool_)
    amounts = np.asarray(excess, dtype=np.float64)
    _validate(inside, amounts, most, smallest_gain)
    units = _whole_units(amounts)
    rows = np.flatnonzero((units != 0.0) & inside.any(axis=1))
    union = float(units[rows].sum())
    order, gains = _all_choices(inside, units, rows)
    total = max(union, float(gains.sum()))
    too_small = np.flatnonzero(gains < smallest_gain * total)
    count = min(most, int(too_small[0]) if too_small.size else order.size)
    # Without a choice the total may be 0, and there is nothing to divide.
    explained = np.cumsum(gains[:count]) / total if count else np.empty(0)
    return Cover(order[:count], explained)


def _validate(members: BoolArray, excess: FloatArray, most: int, smallest_gain: float) -> None:
    if members.ndim != 2 or excess.shape != members.shape[:1]:
        raise ValueError(
            f"members of shape {members.shape} and excess of shape {excess.shape}: [patterns, "
            "candidates] and [patterns] are needed"
        )
    if not np.isfinite(excess).all():
        raise ValueError("an excess is not a finite number")
    if most < 0:
        raise ValueError(f"most = {most} is negative")
    if not smallest_gain >= 0.0:
        raise ValueError(f"smallest_gain = {smallest_gain} is not a share ≥ 0")


def _whole_units(excess: FloatArray) -> FloatArray:
    """Return the excesses as whole numbers whose sums, of any rows in any order, are exact."""
    largest = float(np.abs(excess).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(excess.shape)
    # Into −1..1 first, as the sum of large excesses might overflow.
    scaled = np.ldexp(excess, -int(np.frexp(largest)[1]))
    # Sorted, since the unit too must not depend on the order of the rows.
    exponent = int(np.frexp(np.sort(np.abs(scaled)).sum())[1])
    return np.asarray(np.rint(np.ldexp(scaled, _UNIT_BITS - exponent)), dtype=np.float64)


def _all_choices(
    members: BoolArray, units: FloatArray, rows: IntArray
) -> tuple[IntArray, FloatArray]:
    """Return all greedy choices while there is a gain, and their gains; rows are not covered."""
    remaining = _summed(members, units, rows)
    order: list[int] = []
    gains: list[float] = []
    # What was chosen has exactly 0 left, so that the gain of another one is positive or none is.
    while remaining.size and (largest := float(remaining.max())) > _TIE:
        best = int(np.argmax(remaining >= largest - _TIE))
        order.append(best)
        gains.append(float(remaining[best]))
        newly = members[rows, best]
        remaining -= _summed(members, units, rows[newly])
        rows = rows[~newly]
    return np.array(order, dtype=np.int64), np.array(gains, dtype=np.float64)


def _summed(members: BoolArray, units: FloatArray, rows: IntArray) -> FloatArray:
    """Return each candidate's sum over the given rows, float64 [candidates]."""
    total = np.zeros(members.shape[1])
    for start in range(0, rows.size, _BLOCK):
        block = rows[start : start + _BLOCK]
        total += units[block] @ members[block].astype(np.float64)
    return total
