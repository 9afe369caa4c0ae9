"""Failure scores: how far outputs are from what is expected, in [0, 1], and the states of topics."""

from __future__ import annotations

import numpy as np

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, NDArray

# A test fails where its score is above this.
FAILS_ABOVE = 0.5
# From this share of failing tests on a topic fails.
FAILS_FROM = 0.2
STATES = ("passing", "failing", "fixed", "broken")


def fails(score: ArrayLike) -> BoolArray:
    """Return which tests fail; one without a score (NaN) does not."""
    return np.asarray(np.asarray(score, dtype=np.float64) > FAILS_ABOVE)


def output_failure(probabilities: FloatArray, wanted: IntArray) -> FloatArray:
    """Return ½(1 + max of the other probabilities − that of the wanted class); 1 of a class of −1."""
    rows = np.arange(len(wanted))
    known = np.maximum(wanted, 0)
    others = probabilities.copy()
    right = others[rows, known]
    others[rows, known] = -np.inf
    best = others.max(axis=1, initial=-np.inf)
    # Of a single class there is no other.
    score = 0.5 * (1.0 + np.where(np.isneginf(best), right - 1.0, best) - right)
    return np.where(wanted < 0, 1.0, np.clip(score, 0.0, 1.0))


def change_failure(change: ArrayLike, tolerance: float) -> FloatArray:
    """Return how far a change in the wrong direction, above 0, is from what is tolerated.

    0 without a change, ½ at the tolerance, above ½ just beyond it, 1 at infinity; NaN stays NaN.
    """
    moved = np.maximum(np.asarray(change, dtype=np.float64), 0.0)
    within = 0.5 * moved / tolerance if tolerance > 0 else np.zeros(moved.shape)
    beyond = moved - tolerance
    with np.errstate(invalid="ignore"):
        share = np.where(np.isinf(beyond), 1.0, beyond / (1.0 + np.maximum(beyond, 0.0)))
    score = np.where(beyond > 0, 0.5 + 0.5 * share, within)
    return np.where(np.isnan(moved), np.nan, score)


def fails_by_rule(failures: ArrayLike, tests: ArrayLike) -> NDArray[np.bool_]:
    """Return which topics fail, a fifth of their tests: Ribeiro and Lundberg (2022), Adaptive Testing, ACL."""
    # In whole numbers, since 0.2 is no binary fraction.
    n = np.asarray(tests, dtype=np.int64)
    return np.asarray((5 * np.asarray(failures, dtype=np.int64) >= n) & (n > 0))


def state_by_rule(
    failures: ArrayLike, tests: ArrayLike, failures_before: ArrayLike | None = None
) -> list[str]:
    """Return of each topic one of `STATES`."""
    now = fails_by_rule(failures, tests)
    before = now if failures_before is None else fails_by_rule(failures_before, tests)
    return [
        "failing" if new and old else "broken" if new else "fixed" if old else "passing"
        for new, old in zip(now.tolist(), before.tolist(), strict=True)
    ]
