"""The expectation from the findings so far: main effects that keep each finding's observed sum.

For rates it is a logistic regression on membership (De Bie 2011); for means it is least squares. Examples in the same
findings, a *pattern*, have the same expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray
from slicebeam.metrics.measures.target_sums import Kind, design

_MOST_STEPS = 200
_MOST_HALVINGS = 40
# Sums of the model agree with the observed ones to this part of all weight.
_EXACT, _SUFFICIENT = 1e-15, 1e-9
# The squared length of what a column adds to others, relative to its own: below this it adds nothing.
# Columns are zeros and ones, so that what they add is far above or is rounding.
_DEPENDENT = 1e-9
_STRICT = 0.5
# Log odds move by at most so much in a step.
_LONGEST_STEP = 3.0


@dataclass(frozen=True)
class ExpectationModel:
    """The expected target of each pattern."""

    kind: Kind  # ``rate`` (logistic) or ``mean`` (least squares)
    design: FloatArray  # [patterns, 1 + findings] of zeros and ones
    # [1 + findings] of the overall level and of each finding: log odds of a rate, units of the
    # target for a mean. A column that repeats others has 0.
    coefficients: FloatArray
    # [1 + findings] all 0 where the coefficients are finite. Otherwise the direction that the
    # coefficients leave along: log odds are ``design @ (coefficients + c·unbounded)`` for c → ∞,
    # which are finite for patterns with ``design @ unbounded == 0`` and ±∞ for others
    unbounded: FloatArray
    expected: FloatArray  # [patterns], exactly 0 or 1 where log odds are infinite
    # [patterns] whether targets may differ from the expectation: not where it is exactly 0 or 1,
    # nor in a pattern without weight
    varies: BoolArray
    # [rank] positions of columns that say all that the design says of patterns that vary
    columns: IntArray

    @property
    def variance(self) -> FloatArray:
        """The variance function [patterns]: μ(1 − μ) of a rate, 1 of a mean."""
        if self.kind == "mean":
            return np.ones(self.expected.shape)
        return np.asarray(self.expected * (1.0 - self.expected))


def fit(
    kind: Kind, masks: ArrayLike, findings: int, weight: ArrayLike, total: ArrayLike
) -> ExpectationModel:
    """Fit a model's sums to the observed ones: of all examples, and of each finding."""
    # Where patterns are separated, as by a finding that is wrong throughout, those on which a direction of recession acts
    # have exactly 0 or 1, and the others a model of their own: Albert and Anderson (1984), Biometrika 71:1.
    X = design(masks, findings)
    w, s = np.asarray(weight, dtype=np.float64), np.asarray(total, dtype=np.float64)
    filled, coefficients = w > 0, np.zeros(X.shape[1])
    if kind == "mean":
        columns, root = _independent(X[filled]), np.sqrt(w[filled])
        rows = X[np.ix_(filled, columns)]
        solved = np.linalg.lstsq(rows * root[:, None], s[filled] / root, rcond=None)[0]
        # One step of refinement brings the last digits of the sums.
        rest = s[filled] - w[filled] * (rows @ solved)
        gram = rows.T @ (rows * w[filled, None])
        coefficients[columns] = solved + np.linalg.solve(gram, rows.T @ rest)
        zero = np.zeros(X.shape[1])
        return ExpectationModel("mean", X, coefficients, zero, X @ coefficients, filled, columns)
    direction = _recession(X, w, s, filled)
    push = X @ direction
    varies = filled & (np.abs(push) < _STRICT)
    columns = _independent(X[varies])
    coefficients[columns] = _logistic(X[np.ix_(varies, columns)], w[varies], s[varies])
    expected = np.where(np.abs(push) < _STRICT, expit(X @ coefficients), (push > 0) * 1.0)
    return ExpectationModel("rate", X, coefficients, direction, expected, varies, columns)


def _independent(X: FloatArray) -> IntArray:
    """Return the columns that are no combination of those before them."""
    gram, kept = X.T @ X, list[int]()
    factor = np.zeros(gram.shape)
    for j in range(len(gram)):
        row = gram[j, kept].copy()
        for i in range(len(kept)):
            row[i] = (row[i] - row[:i] @ factor[i, :i]) / factor[i, i]
        left = gram[j, j] - row @ row
        if left > _DEPENDENT * max(gram[j, j], 1.0):
            factor[len(kept), : len(kept)] = row
            factor[len(kept), len(kept)] = np.sqrt(left)
            kept.append(j)
    return np.array(kept, dtype=np.int64)


def _recession(
    X: FloatArray, weight: FloatArray, total: FloatArray, filled: BoolArray
) -> FloatArray:
    """Return the direction that coefficients leave along; 0 where they are finite."""
    mixed = (total > 0) & (total < weight)
    pure, none = filled & ~mixed, np.zeros(X.shape[1])
    if not pure.any():
        return none
    # A basis [columns, dimension] of the directions that no mixed pattern moves along.
    columns = _independent(X[mixed])
    others = np.setdiff1d(np.arange(X.shape[1]), columns)
    if not others.size:
        return none
    free = np.zeros((X.shape[1], others.size))
    free[others, np.arange(others.size)] = 1.0
    if columns.size:
        rows = X[mixed]
        free[columns] = -np.linalg.lstsq(rows[:, columns], rows[:, others], rcond=None)[0]
    # The entries are ratios of small whole numbers: what is next to none is none.
    free[np.abs(free) < _DEPENDENT] = 0.0
    side = np.where(total[pure] > 0, 1.0, -1.0)
    direction = _one_sided(X[pure], side, free)
    if direction is not None:
        return direction
    # Loading it takes longer than most models need it for.
    from scipy.optimize import linprog

    rows = np.unique(side[:, None] * (X[pure] @ free), axis=0)
    count, width = rows.shape
    # max Σ t with t ≤ rows @ c and 0 ≤ t ≤ 1: the best c moves all that any c moves.
    solved = linprog(
        np.concatenate([np.zeros(width), -np.ones(count)]),
        A_ub=np.concatenate([-rows, np.eye(count)], axis=1),
        b_ub=np.zeros(count),
        bounds=[(None, None)] * width + [(0.0, 1.0)] * count,
        method="highs",
    )
    if not solved.success or solved.x is None:
        raise ArithmeticError(f"the search for separated patterns failed: {solved.message}")
    if solved.x[width:].max() < _STRICT:
        return none
    return np.asarray(np.round(free @ solved.x[:width], 9) + 0.0)


def _one_sided(pure: FloatArray, side: FloatArray, free: FloatArray) -> FloatArray | None:
    """Return the direction if findings that no mixed pattern is in, each of one side, move; None in other cases."""
    if (np.count_nonzero(free, axis=0) != 1).any():
        return None
    columns = np.abs(free).argmax(axis=0)
    inside = pure[:, columns] > 0
    while True:
        alone = inside & (inside.sum(axis=1) == 1)[:, None]
        up, down = ((alone & is_side[:, None]).any(axis=0) for is_side in (side > 0, side < 0))
        if not (up & down).any():
            break
        inside[:, up & down] = False
    sign = up * 1.0 - down
    if (inside & (side[:, None] != sign)).any():
        return None
    direction = np.zeros(len(free))
    direction[columns] = np.where(inside.any(axis=0), sign, 0.0)
    return direction


def _logistic(X: FloatArray, weight: FloatArray, total: FloatArray) -> FloatArray:
    """Return the coefficients [columns] of a likelihood that has its maximum inside."""
    beta = np.zeros(X.shape[1])
    if not X.size:
        return beta
    everything = float(weight.sum())
    beta[0] = logit(total.sum() / everything)
    likelihood = _log_likelihood(X @ beta, weight, total)
    best, least = beta, np.inf
    for _ in range(_MOST_STEPS):
        mu = expit(X @ beta)
        score = X.T @ (total - weight * mu)
        off = float(np.abs(score).max())
        if off < least:
            best, least = beta, off
        elif least <= _SUFFICIENT * everything:
            # Rounding decides from here on.
            break
        if off <= _EXACT * everything:
            break
        curvature = X.T @ (X * (weight * mu * (1.0 - mu))[:, None])
        step = np.linalg.lstsq(curvature, score, rcond=None)[0]
        # Far off a whole step may end where no target varies, and nothing leads back from there.
        longest = float(np.abs(X @ step).max())
        if longest > _LONGEST_STEP:
            step *= _LONGEST_STEP / longest
        for _ in range(_MOST_HALVINGS):
            value = _log_likelihood(X @ (beta + step), weight, total)
            # Near the top the likelihood is flat to the last digit, and whole steps are right.
            if value >= likelihood - 1e-12 * abs(likelihood):
                break
            step = 0.5 * step
        beta, likelihood = beta + step, value
    if least > _SUFFICIENT * everything:
        raise ArithmeticError(
            f"the model's sums stay {least:.3g} off the observed ones, with a total weight of {everything:.6g}"
        )
    return best


def _log_likelihood(log_odds: FloatArray, weight: FloatArray, total: FloatArray) -> float:
    return float(total @ log_odds - weight @ np.logaddexp(0.0, log_odds))
