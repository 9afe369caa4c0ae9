"""Failure scores: how far outputs are from what is expected, in [0, 1]; above ½ a test fails.

A score grows with the distance to what is expected, so that tests that nearly fail come before
those that are safe: with probabilities it is (1 + the best wrong one − the right one) / 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray

# A test fails where its score is above this.
FAILS_ABOVE = 0.5


def fails(score: ArrayLike) -> BoolArray:
    """Return which tests fail; one without a score (NaN) does not."""
    failed: BoolArray = np.asarray(score, dtype=np.float64) > FAILS_ABOVE
    return failed


def output_failure(probabilities: FloatArray, wanted: IntArray) -> FloatArray:
    """Return how far a model is from predicting the wanted class.

    >>> output_failure(np.array([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]]), np.array([1, 0]))
    array([0.75, 0.45])
    """
    rows = np.arange(len(wanted))
    known = np.maximum(wanted, 0)
    others = probabilities.copy()
    own = others[rows, known]
    others[rows, known] = -np.inf
    best = others.max(axis=1, initial=-np.inf)
    # Of a single class there is no other.
    score = 0.5 * (1.0 + np.where(np.isneginf(best), own - 1.0, best) - own)
    return np.where(wanted < 0, 1.0, np.clip(score, 0.0, 1.0))


def change_failure(change: ArrayLike, tolerance: float) -> FloatArray:
    """Return how far a change in the wrong direction is from what is tolerated.

    >>> change_failure([-0.3, 0.0, 0.05, 0.1, 0.6], 0.1)
    array([0.        , 0.        , 0.25      , 0.5       , 0.66666667])
    """
    moved = np.maximum(np.asarray(change, dtype=np.float64), 0.0)
    within = 0.5 * moved / tolerance if tolerance > 0 else np.zeros(moved.shape)
    beyond = moved - tolerance
    with np.errstate(invalid="ignore"):
        share = np.where(np.isinf(beyond), 1.0, beyond / (1.0 + np.maximum(beyond, 0.0)))
    score = np.where(beyond > 0, 0.5 + 0.5 * share, within)
    return np.where(np.isnan(moved), np.nan, score)
