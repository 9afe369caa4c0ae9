"""Refinement tests against enumeration in integers, simulation and their error rate."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from slicebeam.metrics.significance import count_tests, refinement


def enumerated(n, b, c, n_parent, b_parent, c_parent):
    agreeing = n_parent - b_parent - c_parent
    twice = 0
    for more in range(min(b_parent, n) + 1):
        for less in range(max(0, n - more - agreeing), min(c_parent, n - more) + 1):
            ways = (
                math.comb(b_parent, more)
                * math.comb(c_parent, less)
                * math.comb(agreeing, n - more - less)
            )
            twice += ways * (1 + int(np.sign((more - less) - (b - c))))
    return Fraction(twice, 2 * math.comb(n_parent, n))


def random_pairs(rng, size, largest):
    """Children drawn at random, and children that took all they could of one kind."""
    rows = []
    for _ in range(size):
        n_parent = int(rng.integers(4, largest))
        b_parent, c_parent = (int(value) for value in rng.integers(1, n_parent // 3 + 2, 2))
        agreeing = n_parent - b_parent - c_parent
        n = int(rng.integers(1, n_parent))
        if rng.random() < 0.6:
            b, c, _ = rng.multivariate_hypergeometric([b_parent, c_parent, agreeing], n)
        else:
            b = min(b_parent, n)
            c = max(0, n - b - agreeing)
        rows.append((n, int(b), int(c), n_parent, b_parent, c_parent))
    return np.array(rows).T


def test_paired_equals_enumeration_in_integers():
    pairs = random_pairs(np.random.default_rng(1), 150, 160)
    exact = np.array([float(enumerated(*row)) for row in pairs.T.tolist()])
    np.testing.assert_allclose(refinement.p_refine_paired(*pairs), exact, rtol=1e-10)
    assert exact.min() < 1e-30


def test_paired_far_above_its_mean_equals_enumeration():
    # The discordant count of the child is 170, that of a random child 12 ± 3.
    row = (300, 170, 0, 10_000, 300, 100)
    exact = float(enumerated(*row))
    assert 0 < exact < 1e-100
    assert refinement.p_refine_paired(*row)[0] == pytest.approx(exact, rel=1e-9, abs=0)


def test_paired_without_short_cuts_is_the_same(monkeypatch):
    n_parent, n = 100_000, 30_000
    b_parent, c_parent = 10_000, 12_000
    z = np.array([-3.0, -1.0, 0.0, 0.4, 2.0, 5.0, 11.0])
    b, c = np.rint(3000 + 33 * z).astype(int), np.rint(3600 - 33 * z).astype(int)
    quick = refinement.p_refine_paired(n, b, c, n_parent, b_parent, c_parent)
    monkeypatch.setattr(refinement, "_STEPS_PER_DEVIATION", 1e9)
    monkeypatch.setattr(count_tests, "EXACT_UP_TO_VARIANCE", 1e18)
    slow = refinement.p_refine_paired(n, b, c, n_parent, b_parent, c_parent)
    np.testing.assert_allclose(quick, slow, rtol=1e-5)
    assert slow.min() < 1e-20


def test_paired_keeps_its_level_on_random_children():
    rng = np.random.default_rng(2)
    n, n_parent, b_parent, c_parent = 150, 1000, 80, 120
    drawn = rng.multivariate_hypergeometric(
        [b_parent, c_parent, n_parent - b_parent - c_parent], n, size=20_000
    )
    b, c = drawn[:, 0], drawn[:, 1]
    distinct, place = np.unique(b * 1000 + c, return_inverse=True)
    p = refinement.p_refine_paired(
        n, distinct // 1000, distinct % 1000, n_parent, b_parent, c_parent
    )[place]
    assert 0.007 <= (p < 0.01).mean() <= 0.013
    assert 0.045 <= (p < 0.05).mean() <= 0.055
    assert p.mean() == pytest.approx(0.5, abs=0.01)


def test_paired_with_nothing_to_test_is_one():
    p = refinement.p_refine_paired(
        [10, 0, 5, 4], [3, 0, 0, 4], [2, 0, 0, 0], 10, [3, 3, 0, 10], [2, 2, 0, 0]
    )
    np.testing.assert_array_equal(p, 1.0)
    assert refinement.p_refine_paired([], [], [], [], [], []).shape == (0,)


def test_paired_sums_in_bounded_memory():
    rng = np.random.default_rng(4)
    n_parent = rng.integers(15_000, 20_000, 1000)
    n = n_parent // 3
    b_parent, c_parent = n_parent // 20, n_parent // 15
    tracemalloc.start()
    refinement.p_refine_paired(n, b_parent // 3, c_parent // 3, n_parent, b_parent, c_parent)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120e6
