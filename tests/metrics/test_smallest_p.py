"""Smallest p-values against the mid-p over the whole support."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from slicebeam.metrics.significance import hypergeometric, mcnemar
from slicebeam.metrics.significance.smallest_p import (
    hypergeometric_smallest_p,
    mcnemar_smallest_p,
)

TAILS = ("upper", "lower", "both")


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("N", [1, 2, 3, 9, 24])
def test_hypergeometric_is_the_smallest_over_the_support(N, tail):
    n, K, x = (axis.ravel() for axis in np.meshgrid(*[np.arange(N + 1)] * 3, indexing="ij"))
    possible = (x <= np.minimum(n, K)) & (x >= n + K - N)
    p = np.where(possible, hypergeometric.mid_p(n, x, N, K, tail), np.inf)
    brute = p.reshape(N + 1, N + 1, N + 1).min(axis=2)
    side = np.arange(N + 1)
    smallest = hypergeometric_smallest_p(side[:, None], N, side[None, :], tail)
    np.testing.assert_allclose(smallest, brute, rtol=1e-11)
    assert smallest.shape == (N + 1, N + 1)
    empty = np.isin(side, [0, N])
    assert (smallest[empty] == 1.0).all()
    assert (smallest[:, empty] == 1.0).all()


@pytest.mark.parametrize("tail", TAILS)
def test_no_attainable_hypergeometric_p_is_smaller(tail):
    rng = np.random.default_rng(1)
    N = rng.integers(2, 3000, 400)
    n, K = rng.integers(0, N + 1), rng.integers(0, N + 1)
    smallest = hypergeometric_smallest_p(n, N, K, tail)
    low, high = np.maximum(0, n + K - N), np.minimum(n, K)
    shares = np.array([0.0, 0.01, 0.3, 0.5, 0.8, 0.99, 1.0])[:, None]
    x = low + np.rint(shares * (high - low)).astype(np.int64)
    assert (hypergeometric.mid_p(n, x, N, K, tail) >= smallest * (1 - 1e-9)).all()


def test_hypergeometric_is_exact_in_the_deep_tail():
    for n, N, K in ((30, 1000, 30), (12, 100_000, 4000), (60, 20_000, 900)):
        upper = comb(K, n) / comb(N, n) / 2
        lower = comb(N - K, n) / comb(N, n) / 2
        found = [float(hypergeometric_smallest_p(n, N, K, tail)) for tail in TAILS]
        assert found == pytest.approx([upper, lower, 2 * min(upper, lower)], rel=1e-9, abs=0)
    assert float(hypergeometric_smallest_p(5000, 10_000, 5000, "upper")) == 0.0


@pytest.mark.parametrize("tail", TAILS)
def test_mcnemar_is_the_smallest_over_the_splits(tail):
    b, d = np.meshgrid(np.arange(41), np.arange(41))
    p = np.where(b <= d, mcnemar.mid_p(b, np.maximum(d - b, 0), tail), np.inf)
    np.testing.assert_allclose(mcnemar_smallest_p(np.arange(41), tail), p.min(axis=1), rtol=1e-11)


def test_mcnemar_far_out():
    assert float(mcnemar_smallest_p(0, "upper")) == 1.0
    assert float(mcnemar_smallest_p(1000, "upper")) == 2.0**-1001
    assert float(mcnemar_smallest_p(1000, "both")) == 2.0**-1000
    assert float(mcnemar_smallest_p(2**40, "lower")) == 0.0


@pytest.mark.parametrize("tail", TAILS)
def test_nothing_given(tail):
    assert hypergeometric_smallest_p([], 10, 3, tail).shape == (0,)
    assert mcnemar_smallest_p([], tail).shape == (0,)


def test_wrong_margins_and_tails_are_refused():
    with pytest.raises(ValueError, match=r"n = 11 is not within 0\.\.N = 10"):
        hypergeometric_smallest_p(11, 10, 3, "upper")
    with pytest.raises(ValueError, match="discordant = -1 is negative"):
        mcnemar_smallest_p([3, -1], "upper")
    with pytest.raises(ValueError, match="unknown tail 'two'"):
        hypergeometric_smallest_p(3, 10, 3, "two")
    with pytest.raises(ValueError, match="unknown tail 'two'"):
        mcnemar_smallest_p(3, "two")
