"""How surprising a candidate's sum is, given its expectation from the findings so far.

Tests condition on the sums that the model keeps, or take off what its fit takes off. With no finding they are those of
one slice against all examples: hypergeometric, or the law of random subsets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtr

from slicebeam.metrics.arrays import ArrayLike, FloatArray
from slicebeam.metrics.findings.model import ExpectationModel
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.metrics.significance.count_tests import NEAR_MEAN, deviance, mcnemar_mid_p
from slicebeam.metrics.significance.outcome_codes import select_tail
from slicebeam.metrics.significance.permutation import SMALLEST_P
from slicebeam.metrics.significance.random_subset import Population

# A variance below this part of what it would be with a known model is rounding: the findings
# determine the candidate's sum.
_DETERMINED = 1e-9
# Newton's steps, of a count and of a sum; they end when the next one adds no more to the likelihood.
_MOST_STEPS, _MOST_LAW_STEPS = 60, 100
_NEAR, _SOLVED = 1e-3, 1e-8
# An odds ratio of e^20 is one that grows without end.
_ENDLESS = 20.0
_LONGEST_STEP = 4.0
# Patterns are merged into so many classes of like variance, so that a tail costs about the same.
_CLASSES = 64
# Further than this no double has a logarithm of a tail.
_LARGEST_EXPONENT = 600.0


class Influence(NamedTuple):
    """How an example's deviation moves a candidate's sum away from its expectation, 1 more inside."""

    outside: FloatArray  # [patterns] of an example that is not in the candidate
    slopes: FloatArray  # [rank] by which the deviations summed over the model's columns count


def _information(
    model: ExpectationModel, weight: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the variance function v [patterns], independent columns X, and XᵀHX, H = weight·v."""
    v, X = np.where(model.varies, model.variance, 0.0), model.design[:, model.columns]
    return v, X, X.T @ (X * (weight * v)[:, None])


def influence(model: ExpectationModel, weight: FloatArray, part: FloatArray) -> Influence:
    """Return the efficient score s − x·(XᵀHX)⁻¹·XᵀHs of a part s, for weights of all and of the part [patterns]."""
    v, X, gram = _information(model, weight)
    slopes = np.asarray(np.linalg.solve(gram, X.T @ (part * v)))
    return Influence(-(X @ slopes), slopes)


def rate_variances(model: ExpectationModel, weight: FloatArray, parts: FloatArray) -> FloatArray:
    """Return the variances [candidates] of counts given those that the model keeps, to first order."""
    v, X, gram = _information(model, weight)
    cross = (parts * v) @ X
    taken = (cross * np.linalg.solve(gram, cross.T).T).sum(axis=1)
    return np.asarray(np.maximum(parts @ v - taken, 0.0))


def rate_p_value(
    model: ExpectationModel, weight: ArrayLike, part: ArrayLike, observed: float, tail: Tail
) -> float:
    """Return the mid-p of a candidate's count, given the counts that the model keeps."""
    # r* of conditional logistic regression, u = 2·tanh(ψ/2)·√(|J₁|/|J₀|), ψ the log odds ratio: Skovgaard (1987). At the
    # end of the support half of that half a step before, by 2·sinh(ψ/2).
    law = _Conditional(model, np.asarray(weight, np.float64), np.asarray(part, np.float64))
    observed -= law.sure
    if not law.variance > _DETERMINED * law.known:
        return 1.0
    side = 1.0 if observed - law.mean >= 0 else -1.0
    solved = law.solve(observed)
    is_end = solved is None
    towards = 0.5 if is_end else 1.0
    # Where not even half a step is left, nothing is known but that the end is reached.
    if solved is not None or (solved := law.solve(observed - 0.5 * side)) is not None:
        psi, root, information = solved
        tilt = np.sinh(0.5 * psi) if is_end else np.tanh(0.5 * psi)
        towards *= float(ndtr(-side * _corrected(root, 2.0 * tilt * information)))
    return max(p_of_side(towards, tail, above=side > 0), SMALLEST_P)


def p_of_side(towards: float, tail: Tail, *, above: bool) -> float:
    """Return the p-value where the tail on the side of the observation has this probability."""
    upper, lower = (towards, 1.0 - towards) if above else (1.0 - towards, towards)
    return float(select_tail(np.array([upper]), np.array([lower]), tail)[0])


def _corrected(root: float, u: float) -> float:
    """Return r* = r + log(u/r)/r."""
    return root if abs(root) < NEAR_MEAN else float(root + np.log(u / root) / root)


class _Conditional:
    """The law of a candidate's count among the patterns that vary, given the model's sums."""

    def __init__(self, model: ExpectationModel, weight: FloatArray, part: FloatArray) -> None:
        rows = model.varies
        X, expected = model.design[np.ix_(rows, model.columns)], model.expected[rows]
        self.sure = float(part[~rows] @ model.expected[~rows])
        weight, part = weight[rows], part[rows]
        self.X, self.inside, self.outside, self.expected = X, part, weight - part, expected
        variance = expected * (1.0 - expected)
        self.mean = float(part @ expected)
        self.known = float(part @ variance)
        self.gram = X.T @ (X * (weight * variance)[:, None])
        self.cross = X.T @ (part * variance)
        self.slopes = np.linalg.solve(self.gram, self.cross)
        self.variance = self.known - float(self.cross @ self.slopes)

    def solve(self, observed: float) -> tuple[float, float, float] | None:
        """Return ψ, r and √(|J₁|/|J₀|) where the candidate's fitted count is the observed one."""
        psi = (observed - self.mean) / self.variance
        psi = float(np.clip(psi, -_LONGEST_STEP, _LONGEST_STEP))
        shift, log_odds = -self.slopes * psi, logit(self.expected)
        target = self.X.T @ ((self.inside + self.outside) * self.expected)
        for _ in range(_MOST_STEPS):
            moved = self.X @ shift
            outside, inside = expit(log_odds + moved), expit(log_odds + moved + psi)
            v_out = self.outside * outside * (1.0 - outside)
            v_in = self.inside * inside * (1.0 - inside)
            gram = self.X.T @ (self.X * (v_out + v_in)[:, None])
            cross = self.X.T @ v_in
            score = target - self.X.T @ (self.outside * outside + self.inside * inside)
            off = observed - float(self.inside @ inside)
            try:
                slopes, along = np.linalg.solve(gram, np.stack([cross, score], axis=1)).T
            except np.linalg.LinAlgError:
                return None
            variance = float(v_in.sum() - cross @ slopes)
            if not variance > 0:
                return None
            step = (off - float(cross @ along)) / variance
            change = along - slopes * step
            largest = max(abs(step), float(np.abs(change).max(initial=0.0)))
            if not np.isfinite(largest) or abs(psi) > _ENDLESS:
                return None
            decrement = float(score @ change) + off * step
            if largest <= _NEAR and decrement <= _SOLVED:
                break
            # Far from the solution the likelihood is not a parabola.
            scale = min(1.0, _LONGEST_STEP / largest)
            psi, shift = psi + scale * step, shift + scale * change
        else:
            return None
        # The log-likelihood ratio, which is stationary: what the last step would still add is nothing.
        apart = 0.0
        for fitted, count in ((outside, self.outside), (inside, self.inside)):
            gap = fitted - self.expected
            parts = deviance(fitted, self.expected, gap)
            parts = parts + deviance(1.0 - fitted, 1.0 - self.expected, -gap)
            apart += float(count @ parts)
        apart += float(shift @ score) + psi * off
        root = float(np.copysign(np.sqrt(2.0 * max(apart, 0.0)), psi))
        log_ratio = np.linalg.slogdet(gram)[1] - np.linalg.slogdet(self.gram)[1]
        return psi + step, root, float(np.sqrt(variance) * np.exp(0.5 * log_ratio))


def sum_p_value(
    model: ExpectationModel,
    variances: FloatArray,
    sums: FloatArray,
    part: FloatArray,
    observed: float,
    layout: TargetSums,
    law: DeviationLaw | None,
    tail: Tail,
) -> float:
    """Return the p-value of a candidate's weighted sum, given the sums that the model keeps; without a law that of counts."""
    # The excess is Σ a·d, a of `influence`, and d = w·(x − μ) has the pattern's variance per squared weight and the
    # shape of all examples'.
    weight, held = layout.moment(sums, 1, 0), layout.size(part, 1)
    if law is None:
        return rate_p_value(model, weight, held, observed, tail)
    outside, _ = influence(model, weight, held)
    inside, squares = layout.size(part, 2), layout.moment(sums, 2, 0)
    rest = float(((squares - inside) * outside**2) @ variances)
    variance = float((inside * (1.0 + outside) ** 2) @ variances) + rest
    if not variance > _DETERMINED * float(inside @ variances):
        return 1.0
    # The squared weight of an example, on average.
    squared = float(squares.sum()) / law.examples
    excess = observed - float(held @ model.expected)
    return law.p_value(excess, inside / squared, 1.0 + outside, variances * squared, rest, tail)


def pattern_variances(model: ExpectationModel, sums: FloatArray, layout: TargetSums) -> FloatArray:
    """Return Σw²·(x − μ)²/Σw² [patterns] over 1 − leverage, MacKinnon and White's (1985) HC2."""
    deviations = layout.squared_deviations(sums, model.expected)
    squares, weight = layout.moment(sums, 2, 0), layout.moment(sums, 1, 0)
    valid = model.varies & (squares > 0)
    size = np.where(valid, squares, 1.0)
    v, X, gram = _information(model, np.where(valid, weight, 0.0))
    # Of an example whose weight is the pattern's mean, by weight.
    mean_weight = size / np.where(valid, weight, 1.0)
    leverage = v * mean_weight * (X * np.linalg.solve(gram, X.T).T).sum(axis=1)
    left = np.maximum(1.0 - leverage, 0.5)
    return np.where(valid, np.maximum(deviations, 0.0) / size / left, 0.0)


class DeviationLaw:
    """The deviations from the mean of all examples, each times its weight.

    With M their moment-generating function, that of a pattern with θ times their variance is taken as 1 + θ·(M − 1);
    examples outside count as normal: Lugannani and Rice (1980), Adv. Appl. Prob. 12:475, on a lattice Daniels (1987).
    """

    def __init__(self, of: Population) -> None:
        counts, points = np.asarray(of.counts, np.float64), np.asarray(of.points, np.float64)
        self.examples, self.span = float(counts.sum()), of.span
        self.chances = counts / self.examples
        self.points = points - float(self.chances @ points)
        self.variance = float(self.chances @ self.points**2)
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
        """Return the tail of Σ influence·deviation of ``number`` examples inside of variance ``second`` [patterns]."""
        often = second / self.variance
        held = (number > 0) & (influence**2 * often > 0)
        n, a, often = _merged(number[held], influence[held], often[held])
        variance = float((n * a**2 * often).sum()) * self.variance + outside
        if not variance > 0:
            return 1.0
        side, excess = (1.0 if excess >= 0 else -1.0), abs(excess)
        reach = float(np.abs(self.points).max()) * float(np.abs(a).max(initial=0.0))
        low, high = 0.0, _LARGEST_EXPONENT / reach if reach > 0 else np.inf
        t = min(excess / variance, 0.5 * high)
        for _ in range(_MOST_LAW_STEPS):
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
        tilt = 2.0 / self.span * np.tanh(0.5 * self.span * t) if self.span else t
        towards = float(ndtr(-_corrected(root, tilt * np.sqrt(bend))))
        return max(p_of_side(towards, tail, above=side > 0), SMALLEST_P)


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


def change_p_value(net: float, squares: float, tail: Tail, *, counts: bool) -> float:
    """Return p of a slice's summed change against 0: of counts McNemar's mid-p, else the normal tail of net/√squares."""
    if not squares > 0:
        return 1.0
    if counts:
        worse, better = np.rint([(squares + net) / 2, (squares - net) / 2])
        return float(mcnemar_mid_p(worse, better, tail))
    z = net / np.sqrt(squares)
    p = select_tail(np.array([ndtr(-z)]), np.array([ndtr(z)]), tail)
    return max(float(p[0]), SMALLEST_P)
