"""How surprising a candidate's sum is, given its expectation from the findings so far.

Under the hypothesis the model is right: examples of a pattern are alike, whether or not they are in
the candidate. The model was fitted to the same examples, the candidate's among them; all tests here
condition on the sums that it keeps, or take off what the fit takes off. With no finding they are the
tests of one slice against all examples: hypergeometric, or the law of random subsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtr

from slicebeam.metrics.significance.count_tests import deviance
from slicebeam.metrics.significance.pearson_iii import SMALLEST_P
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.findings.deviation_law import DeviationLaw
    from slicebeam.metrics.findings.model import ExpectationModel
    from slicebeam.metrics.findings.target_sums import TargetSums
    from slicebeam.metrics.kinds import Tail

# A variance below this part of what it would be with a known model is rounding: the findings
# determine the candidate's sum.
_DETERMINED = 1e-9
_MOST_STEPS = 60
# Steps end when the next one adds no more to the log-likelihood.
_NEAR, _SOLVED = 1e-3, 1e-8
# An odds ratio of e^20 is one that grows without end.
_ENDLESS = 20.0
_LONGEST_STEP = 4.0
# Below this root log(u/r)/r loses its digits.
_NEAR_MEAN = 1e-3


class Influence(NamedTuple):
    """How an example's deviation moves a candidate's sum away from its expectation.

    Attributes
    ----------
    inside, outside : float64 [patterns] of an example in the candidate, and of one that is not
    slopes : float64 [rank] by which the deviations summed over the model's columns count
    """

    inside: FloatArray
    outside: FloatArray
    slopes: FloatArray


def influence(model: ExpectationModel, weight: FloatArray, part: FloatArray) -> Influence:
    """Return the rest of each deviation after the fit of the model.

    Parameters
    ----------
    weight : float64 [patterns]
        Examples or summed weights of the patterns.
    part : float64 [patterns]
        The same of the candidate's examples.

    Notes
    -----
    With deviations d_i the candidate's excess over its fitted expectation is Σ a_i·d_i to first
    order, a = s − x·b, where s says whether the example is in the candidate and
    b = (XᵀHX)⁻¹·XᵀHs, H the weights times the variance function: the efficient score (Cox and
    Hinkley 1974, "Theoretical statistics", section 9.3). For least squares it is exact.
    """
    X = model.design[:, model.columns]
    v = np.where(model.varies, model.variance, 0.0)
    gram = X.T @ (X * (weight * v)[:, None])
    slopes = np.asarray(np.linalg.solve(gram, X.T @ (part * v)))
    outside = -(X @ slopes)
    return Influence(1.0 + outside, outside, slopes)


def rate_variances(model: ExpectationModel, weight: FloatArray, parts: FloatArray) -> FloatArray:
    """Return the variances [candidates] of counts given the counts that the model keeps.

    Parameters
    ----------
    model : ExpectationModel of a rate
    weight : float64 [patterns] examples
    parts : float64 [candidates, patterns] those in each candidate

    Notes
    -----
    What the linear regression of a candidate's membership on that of the findings leaves, see
    `influence`: the variance to first order, which the normal law would have.
    """
    X = model.design[:, model.columns]
    v = np.where(model.varies, model.variance, 0.0)
    gram = X.T @ (X * (weight * v)[:, None])
    cross = (parts * v) @ X
    taken = (cross * np.linalg.solve(gram, cross.T).T).sum(axis=1)
    return np.asarray(np.maximum(parts @ v - taken, 0.0))


def rate_p_value(
    model: ExpectationModel, weight: ArrayLike, part: ArrayLike, observed: float, tail: Tail
) -> float:
    """Return the mid-p of a candidate's count, given the counts that the model keeps.

    Parameters
    ----------
    model : ExpectationModel of a rate
    weight : float or int array [patterns]
        Examples of each pattern, as the model was fitted to them; not weighted.
    part : float or int array [patterns]
        Those of them that are in the candidate.
    observed : float
        Whole number of the candidate's examples whose target is 1.
    tail : {"upper", "lower", "both"}
        ``upper``: a high count is extreme.

    Returns
    -------
    float
        At least 1e-300; 1.0 where the findings determine the count.

    Notes
    -----
    With a known model the count is a sum of independent outcomes (Poisson-binomial). Given the
    counts of all examples and of each finding it is the law of exact conditional logistic regression
    (Cox 1970), whose tail is Φ(−r*), r* = r + log(u/r)/r, by the double saddle point (Skovgaard
    1987, J. Appl. Prob. 24:875; Barndorff-Nielsen 1986, Biometrika 73:307). With ψ the log odds
    ratio of the candidate against the rest of its patterns, fitted together with the findings,
    r = sign(ψ)·√(2(ℓ₁ − ℓ₀)) and u = 2·tanh(ψ/2)·√(|J₁|/|J₀|), where J are the informations with and
    without ψ. The tanh makes it the mid-p of a lattice (Daniels 1987, Int. Stat. Rev. 55:37), as
    in `count_tests.likelihood_mid_p`, which this is with no finding.

    A count at the end of what the findings' counts allow has no finite ψ. Its probability is taken
    half a step before the end, with 2·sinh(ψ/2) (Daniels' second continuity correction), and halved.
    """
    everything, own = np.asarray(weight, np.float64), np.asarray(part, np.float64)
    rows = model.varies
    sure = float(own[~rows] @ model.expected[~rows])
    problem = _Conditional(
        model.design[np.ix_(rows, model.columns)], everything[rows], own[rows], model.expected[rows]
    )
    upper, lower = problem.tails(observed - sure)
    p = select_tail(np.array([upper]), np.array([lower]), tail)
    return max(float(p[0]), SMALLEST_P)


class _Conditional:
    """The law of a candidate's count among the patterns that vary, given the model's sums.

    Parameters
    ----------
    X : float64 [patterns, rank] independent columns
    weight, part : float64 [patterns] examples, and those in the candidate
    expected : float64 [patterns] strictly within 0..1
    """

    def __init__(
        self, X: FloatArray, weight: FloatArray, part: FloatArray, expected: FloatArray
    ) -> None:
        self.X, self.inside, self.outside = X, part, weight - part
        self.expected, self.log_odds = expected, logit(expected)
        variance = expected * (1.0 - expected)
        self.mean = float(part @ expected)
        self.known = float(part @ variance)
        self.gram = X.T @ (X * (weight * variance)[:, None])
        self.cross = X.T @ (part * variance)
        self.slopes = np.linalg.solve(self.gram, self.cross)
        self.variance = self.known - float(self.cross @ self.slopes)

    def tails(self, observed: float) -> tuple[float, float]:
        """Return the upper and the lower mid-p."""
        if not self.variance > _DETERMINED * self.known:
            return 1.0, 1.0
        excess = observed - self.mean
        side = 1.0 if excess >= 0 else -1.0
        solved = self._solve(observed)
        if solved is not None:
            towards = float(ndtr(-side * self._corrected(*solved, mid=True)))
        else:
            solved = self._solve(observed - 0.5 * side)
            # Where not even half a step is left, nothing is known but that the end is reached.
            towards = 0.5
            if solved is not None:
                towards *= float(ndtr(-side * self._corrected(*solved, mid=False)))
        return (towards, 1.0 - towards) if side > 0 else (1.0 - towards, towards)

    def _solve(self, observed: float) -> tuple[float, float, float] | None:
        """Return ψ, r and √(|J₁|/|J₀|) where the candidate's fitted count is the observed one."""
        psi = (observed - self.mean) / self.variance
        psi = float(np.clip(psi, -_LONGEST_STEP, _LONGEST_STEP))
        shift = -self.slopes * psi
        target = self.X.T @ ((self.inside + self.outside) * self.expected)
        for _ in range(_MOST_STEPS):
            moved = self.X @ shift
            outside, inside = expit(self.log_odds + moved), expit(self.log_odds + moved + psi)
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
        apart = self._deviance(outside, self.outside) + self._deviance(inside, self.inside)
        # The log-likelihood ratio, which is stationary: what the last step would still add is nothing.
        apart += float(shift @ score) + psi * off
        root = float(np.copysign(np.sqrt(2.0 * max(apart, 0.0)), psi))
        log_ratio = np.linalg.slogdet(gram)[1] - np.linalg.slogdet(self.gram)[1]
        return psi + step, root, float(np.sqrt(variance) * np.exp(0.5 * log_ratio))

    def _deviance(self, fitted: FloatArray, count: FloatArray) -> float:
        """Return the examples' summed divergence of the fitted from the expected rates."""
        gap = fitted - self.expected
        parts = deviance(fitted, self.expected, gap)
        parts = parts + deviance(1.0 - fitted, 1.0 - self.expected, -gap)
        return float(count @ parts)

    @staticmethod
    def _corrected(psi: float, root: float, information: float, *, mid: bool) -> float:
        if abs(root) < _NEAR_MEAN:
            return root
        tilt = 2.0 * np.tanh(0.5 * psi) if mid else 2.0 * np.sinh(0.5 * psi)
        return float(root + np.log(tilt * information / root) / root)


def sum_p_value(
    model: ExpectationModel,
    variances: FloatArray,
    sums: FloatArray,
    part: FloatArray,
    observed: float,
    layout: TargetSums,
    law: DeviationLaw,
    tail: Tail,
) -> float:
    """Return the p-value of a candidate's weighted sum, given the sums that the model keeps.

    Parameters
    ----------
    variances : float64 [patterns]
        See `pattern_variances`.
    sums : float64 [patterns, columns]
        Of all examples of the patterns, as `TargetSums` lays them out.
    part : float64 [patterns, size columns]
        Sizes of the candidate's part of each pattern.
    observed : float
        Σ weight·target of the candidate's examples.
    law : DeviationLaw
        Of weight·(target − overall mean), of all examples.
    tail : {"upper", "lower", "both"}

    Returns
    -------
    float
        About the mid-p of discrete targets; 1.0 where the findings determine the sum.

    Notes
    -----
    The candidate's part of a pattern is a random one of its examples, whose deviations
    d = w·(x − μ) have the pattern's variance per squared weight and the shape of all examples'.
    With the influences a of `influence` the excess is Σ a·d over the examples inside and outside.
    """
    weight, own = layout.moment(sums, 1, 0), layout.size(part, 1)
    acts = influence(model, weight, own)
    inside, squares = layout.size(part, 2), layout.moment(sums, 2, 0)
    rest = float(((squares - inside) * acts.outside**2) @ variances)
    variance = float((inside * acts.inside**2) @ variances) + rest
    if not variance > _DETERMINED * float(inside @ variances):
        return 1.0
    # The squared weight of an example, on average.
    squared = float(squares.sum()) / law.examples
    excess = observed - float(own @ model.expected)
    return law.p_value(excess, inside / squared, acts.inside, variances * squared, rest, tail)


def pattern_variances(model: ExpectationModel, sums: FloatArray, layout: TargetSums) -> FloatArray:
    """Return the variance of each pattern's deviations, per squared weight: float64 [patterns].

    Parameters
    ----------
    sums : float64 [patterns, columns]

    Notes
    -----
    Σw²·(x − μ)²/Σw², divided by 1 − leverage as in HC2 (MacKinnon and White 1985, J. Econometrics
    29:305): with no finding the variance of a candidate's sum is n(N − n)/(N(N − 1))·Σ(x − x̄)², that
    of a random subset's (Cochran 1977, "Sampling techniques", section 2.3).
    """
    mu, squares = model.expected, layout.moment(sums, 2, 0)
    deviations = layout.moment(sums, 2, 2) - 2.0 * mu * layout.moment(sums, 2, 1) + mu**2 * squares
    weight = layout.moment(sums, 1, 0)
    some = model.varies & (squares > 0)
    size = np.where(some, squares, 1.0)
    heavy = np.where(some, model.variance, 0.0)
    X = model.design[:, model.columns]
    gram = X.T @ (X * (weight * heavy)[:, None])
    # Of an example whose weight is the pattern's mean, by weight.
    mean_weight = size / np.where(some, weight, 1.0)
    leverage = heavy * mean_weight * (X * np.linalg.solve(gram, X.T).T).sum(axis=1)
    left = np.maximum(1.0 - leverage, 0.5)
    return np.where(some, np.maximum(deviations, 0.0) / size / left, 0.0)
