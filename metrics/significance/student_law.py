"""The law of Student's t of independent values from a population: its tail by a saddle point.

With θ = Σx/√(n·Σx²) = t/√(t² + n − 1) and K(s, u) = log E exp(s·x + u·x²) solve K_s = θ·v, K_u = v²,
s·θ + 2·u·v = 0. Then r = sign(θ)·√(2(s·θ·v + u·v² − K)), q = s·√D/(2v), D = θ²·K_uu − 4θ·v·K_su + 4v²·K_ss + 2u·det K″,
and P(t of n values ≥ t) ≈ Φ(−w), w = √n·r + log(q/r)/(r·√n): Daniels and Young (1991), Biometrika 78:169; Jing, Shao and
Zhou (2004), Ann. Statist. 32:2674, for values without moments. r and q do not depend on n: one table serves all sizes.

Assumption: but for a scale, values vary in a slice as in all examples. Under the null these are tilted to the mean that
is tested (Hall and Presnell 1999, J. R. Stat. Soc. B 61:143), so that values of exactly 0 stay there.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.arrays import ArrayLike, FloatArray, Pair, floats
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.significance.outcome_codes import select_tail
from slicebeam.metrics.significance.random_subset import Population

# Steps of √(−log(1 − θ²)), which is r for normal values.
_STEP, _MOST_STEPS, _MOST_CORRECTIONS, _SOLVED = 0.06, 200, 30, 1e-10
# Where the correction is larger the law has lumps, which a saddle point does not see.
_LARGEST_CORRECTION = 0.5
# On a lattice a tail begins this part of the span nearer to the mean: it has .8 of the chance of the value itself.
_OF_SPAN = 0.3
# Deviations are tilted by at most e to this.
_LARGEST_TILT = 50.0
_ROUNDING = 1e-12


def p_value(
    n: ArrayLike, total: ArrayLike, squares: ArrayLike, of: Population, mean: float, tail: Tail
) -> FloatArray:
    """Return the p-value [slices] of t of n values about ``mean``, if this is the mean of all: from Σx and Σx²."""
    size, first, second = floats(n, total, squares)
    law = _law(of, mean)
    nearer = _OF_SPAN * of.span
    upper, _ = law.tails(size, first - nearer, second)
    _, lower = law.tails(size, first + nearer, second)
    return select_tail(upper, lower, tail)


class StudentLaw:
    """The law of t of values of a population whose mean is tilted to the given one, or moved if that is out of reach."""

    def __init__(self, of: Population, mean: float) -> None:
        x = np.asarray(of.points) - mean
        # What rounding leaves of 0 is on neither side of it.
        x[np.abs(x) <= _ROUNDING * np.abs(x).max()] = 0.0
        self.chance = _tilted_to_zero(x, np.asarray(of.counts) / np.sum(of.counts))
        x = x - (self.chance * x).sum()
        x /= np.sqrt((self.chance * x * x).sum())
        self.powers = np.array([x, x**2, x**3, x**4])
        below, above = self._march(-1.0), self._march(1.0)
        path = np.concatenate([below[:, ::-1], above], axis=1)
        # At 0 the slope of the root is 1.
        self.place, self.slope, self.correction = np.insert(
            path, below.shape[1], [0.0, 1.0, 0.0], axis=1
        )
        self.correction[below.shape[1]] = np.interp(0.0, path[0], path[2])

    def tails(self, n: FloatArray, total: FloatArray, squares: FloatArray) -> Pair:
        """Return the upper and lower tail [slices]; beyond the table they are those of its ends."""
        theta = np.clip(total / np.sqrt(np.where(squares > 0, n * squares, 1.0)), -1.0, 1.0)
        with np.errstate(divide="ignore"):
            place = np.sign(theta) * np.sqrt(-np.log1p(-np.square(theta)))
        place = np.clip(place, self.place[0], self.place[-1])
        root = place * np.interp(place, self.place, self.slope)
        correction = np.interp(place, self.place, self.correction) / np.sqrt(n)
        w = np.sqrt(n) * root + np.clip(correction, -_LARGEST_CORRECTION, _LARGEST_CORRECTION)
        return ndtr(-w), ndtr(w)

    def _march(self, sign: float) -> FloatArray:
        """Return place, root over place and correction [3, steps], outwards as far as there is a solution."""
        path: list[tuple[float, float, float]] = []
        point, past = np.zeros(2), np.zeros(2)
        for step in range(1, _MOST_STEPS):
            place = sign * _STEP * step
            theta = sign * np.sqrt(-np.expm1(-(place**2)))
            # Where values are normal it is near (θ, −θ²/2) at first.
            start = 2.0 * point - past if path else np.array([theta, -0.5 * theta**2])
            solved = self._solve(theta, start)
            if solved is None:
                break
            past, (point, root, correction) = point, solved
            path.append((place, sign * root / place, sign * correction))
        return np.array(path).reshape(-1, 3).T

    def _solve(self, theta: float, point: FloatArray) -> tuple[FloatArray, float, float] | None:
        """Return (s, u), abs(r) and log(q/r)/abs(r) at θ by Newton's method; None where there are none."""
        for _ in range(_MOST_CORRECTIONS):
            s, u = point
            exponent = point @ self.powers[:2]
            largest = exponent.max()
            tilted = self.chance * np.exp(exponent - largest)
            whole = tilted.sum()
            m1, m2, m3, m4 = self.powers @ tilted / whole
            v = np.sqrt(m2)
            ss, su, uu = m2 - m1**2, m3 - m1 * m2, m4 - m2**2
            off = np.array([m1 - theta * v, s * theta + 2.0 * u * v])
            a, b = ss - theta * su / (2.0 * v), su - theta * uu / (2.0 * v)
            c, d = theta + u * su / v, 2.0 * v + u * uu / v
            determinant = a * d - b * c
            if not np.isfinite(determinant) or determinant == 0.0:
                return None
            move = np.array([b * off[1] - d * off[0], c * off[0] - a * off[1]]) / determinant
            if (np.abs(move) <= _SOLVED * (1.0 + np.abs(point))).all():
                break
            point = point + move
        else:
            return None
        D = theta**2 * uu - 4.0 * theta * v * su + 4.0 * m2 * ss + 2.0 * u * (ss * uu - su**2)
        half = s * theta * v + u * m2 - largest - np.log(whole)
        if not (D > 0.0 and half > 0.0):
            return None
        root = np.sqrt(2.0 * half)
        return point, root, np.log(abs(s) * np.sqrt(D) / (2.0 * v * root)) / root


def _tilted_to_zero(x: FloatArray, chance: FloatArray) -> FloatArray:
    """Return the chances times e^(λ·x), with which the mean is 0; unchanged where that is out of reach."""
    if not x.min() < 0.0 < x.max():
        return chance
    unit = np.sqrt((chance * x * x).sum())

    def tilted(tilt: float) -> FloatArray:
        exponent = tilt / unit * x
        weights = chance * np.exp(exponent - exponent.max())
        return np.asarray(weights / weights.sum())

    low, high = -_LARGEST_TILT, _LARGEST_TILT
    if not (tilted(low) * x).sum() < 0.0 < (tilted(high) * x).sum():
        return chance
    while high - low > _SOLVED:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if (tilted(middle) * x).sum() < 0.0 else (low, middle)
    return tilted(high)


@lru_cache(maxsize=16)
def _law(of: Population, mean: float) -> StudentLaw:
    return StudentLaw(of, mean)
