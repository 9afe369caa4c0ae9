"""The tail of a sum of deviations whose law is known from all examples, for means of any shape.

Three cumulants do not tell a small slice's tail: a change of −1, 0 or 1 that is rare both ways is next
to symmetric, and still nothing like normal. All examples show the shape of the deviations. A pattern
whose variance is another has deviations of the same sizes, more often or more rarely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.significance.pearson_iii import SMALLEST_P
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail
    from slicebeam.metrics.significance.subset_law import Population

# Patterns are merged into so many classes of like variance, so that a tail costs about the same.
_CLASSES = 64
_MOST_STEPS = 100
_SOLVED = 1e-8
# Further than this no double has a logarithm of a tail.
_LARGEST_EXPONENT = 600.0
_NEAR_MEAN = 1e-3


class DeviationLaw:
    """The deviations from the mean of all examples, each times its weight.

    With M the moment-generating function of the deviations, that of a pattern with θ times their
    variance is taken as 1 + θ·(M − 1): the same deviations, θ times as often. The examples outside
    the candidate move its sum a little each, and count as normal. The saddle point t solves
    K′(t) = z; the tail is Φ(−r*), r* = r + log(u/r)/r, r = ±√(2(t·z − K)) and u = t·√K″, or
    (2/d)·tanh(t·d/2)·√K″ on a lattice of span d, which makes it the mid-p: Lugannani and Rice (1980),
    Adv. Appl. Prob. 12:475; Daniels (1987), Int. Stat. Rev. 55:37; Barndorff-Nielsen (1986). For
    sampling without replacement: Robinson (1982), Ann. Statist. 10:458, whose law this is to the
    order of the share of all examples that the candidate holds.
    """

    def __init__(self, of: Population) -> None:
        counts = np.asarray(of.counts, np.float64)
        points = np.asarray(of.points, np.float64)
        self.examples = float(counts.sum())
        self.chances = counts / self.examples
        self.points = points - float(self.chances @ points)
        self.variance = float(self.chances @ self.points**2)
        self.span = of.span
        if not self.variance > 0:
            raise ValueError("all examples have the same deviation: there is no law")

    def p_value(
        self,
        excess: float,
        number: FloatArray,
        influence: FloatArray,
        second: FloatArray,
        outside: float,
        tail: Tail,
    ) -> float:
        """Return the tail of Σ influence·deviation."""
        often = second / self.variance
        held = (number > 0) & (influence**2 * often > 0)
        classes = _merged(number[held], influence[held], often[held])
        variance = float((classes[0] * classes[1] ** 2 * classes[2]).sum()) * self.variance
        variance += outside
        if not variance > 0:
            return 1.0
        side = 1.0 if excess >= 0 else -1.0
        towards = float(ndtr(-self._root(side * excess, side, classes, outside, variance)))
        upper, lower = (towards, 1.0 - towards) if side > 0 else (1.0 - towards, towards)
        return max(float(select_tail(np.array([upper]), np.array([lower]), tail)[0]), SMALLEST_P)

    def _root(
        self,
        excess: float,
        side: float,
        classes: tuple[FloatArray, FloatArray, FloatArray],
        outside: float,
        variance: float,
    ) -> float:
        """Return r* of an excess ≥ 0."""
        n, a, often = classes
        reach = float(np.abs(self.points).max()) * float(np.abs(a).max(initial=0.0))
        most = _LARGEST_EXPONENT / reach if reach > 0 else np.inf
        low, high = 0.0, most
        t = min(excess / variance, 0.5 * most)
        for _ in range(_MOST_STEPS):
            e = self.chances * np.expm1(side * t * a[:, None] * self.points)
            moved = self.chances * self.points + e * self.points
            inner = 1.0 + often * e.sum(axis=1)
            first = side * often * moved.sum(axis=1) / inner
            curve = often * (moved * self.points).sum(axis=1) / inner - first**2
            slope = float((n * a * first).sum()) + t * outside
            bend = float((n * a**2 * curve).sum()) + outside
            off = excess - slope
            # K′ rises: the solution stays between what is too low and too high.
            low, high = (t, high) if off > 0 else (low, t)
            if abs(off) <= _SOLVED * np.sqrt(bend) or high - low <= 1e-15 * high:
                break
            step = t + off / bend
            t = step if low < step < high else 0.5 * (low + min(high, 4.0 * max(low, t)))
        K = float((n * np.log(inner)).sum()) + 0.5 * t * t * outside
        root = float(np.sqrt(2.0 * max(t * slope - K, 0.0)))
        if root < _NEAR_MEAN:
            return root
        tilt = 2.0 / self.span * np.tanh(0.5 * self.span * t) if self.span else t
        return float(root + np.log(tilt * np.sqrt(bend) / root) / root)


def _merged(
    number: FloatArray, influence: FloatArray, often: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return at most this many classes of similar patterns, with the same number and variance."""
    if number.size <= _CLASSES:
        return number, influence, often
    order = np.argsort(often, kind="stable")
    n, a, times = number[order], influence[order], often[order]
    begins = np.unique(np.searchsorted(np.cumsum(n), np.linspace(0, n.sum(), _CLASSES + 1)[:-1]))
    examples = np.add.reduceat(n, begins)
    mean = np.add.reduceat(n * a, begins) / examples
    spread = np.add.reduceat(n * a**2 * times, begins)
    return examples, mean, spread / (examples * np.maximum(mean**2, 1e-300))
