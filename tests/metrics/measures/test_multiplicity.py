"""Corrections for many tests, against slow definitions and scipy."""

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.measures import multiplicity
from tests.option_words import CORRECTIONS


def slow_bh(p, m):
    every = sorted(p) + [1.0] * (m - len(p))
    return [min(every[j] * m / (j + 1) for j in range(m) if every[j] >= value) for value in p]


def test_bh_is_its_definition_with_the_missing_tests_at_one():
    rng = np.random.default_rng(1)
    for size, m in ((1, 1), (7, 7), (7, 30), (60, 100)):
        p = np.round(rng.random(size) ** 3, 2)
        np.testing.assert_allclose(multiplicity.bh_adjusted(p, m), slow_bh(p.tolist(), m))


def test_bh_and_by_equal_scipy_without_missing_tests():
    p = np.random.default_rng(2).random(200) ** 2
    for method, ours in (("bh", multiplicity.bh_adjusted), ("by", multiplicity.by_adjusted)):
        np.testing.assert_allclose(ours(p, 200), stats.false_discovery_control(p, method=method))


def test_by_factor_of_many_tests():
    m = 1_000_000
    harmonic = float(np.sum(1.0 / np.arange(1, m + 1)))
    assert float(multiplicity.by_adjusted([1e-12], m)[0]) == pytest.approx(
        1e-12 * m * harmonic, rel=1e-9, abs=0
    )


def test_too_few_tests_are_refused():
    with pytest.raises(ValueError, match="level 2 has 2 p-values but only 1 tests"):
        multiplicity.adjusted([0.1, 0.2], [2, 2], [5, 1], "none", 2)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_nothing_given(correction):
    q = multiplicity.adjusted([], [], [0, 0], correction, 2)
    assert q.shape == (0,)
    assert q.dtype == np.float64


def test_levels_are_corrected_apart_and_share_alpha():
    p = np.array([1e-5, 0.004, 0.3, 1e-6, 0.02])
    level, tests = np.array([1, 1, 1, 2, 2]), [10, 400]
    q = multiplicity.adjusted(p, level, tests, "fdr-level", 2)
    expected = [*slow_bh([1e-5, 0.004, 0.3], 10), *slow_bh([1e-6, 0.02], 400)]
    np.testing.assert_allclose(q, np.minimum(1.0, 2 * np.array(expected)))
    q = multiplicity.adjusted(p, level, tests, "fwer-level", 2)
    np.testing.assert_allclose(q, [2e-4, 0.08, 1.0, 8e-4, 1.0])
    for correction, adjust in (("bh", multiplicity.bh_adjusted), ("by", multiplicity.by_adjusted)):
        q = multiplicity.adjusted(p, level, tests, correction, 2)
        np.testing.assert_array_equal(q, adjust(p, 410))
    np.testing.assert_array_equal(multiplicity.adjusted(p, level, tests, "none", 2), p)


def test_fdr_level_rejects_what_bh_at_alpha_over_levels_rejects():
    rng = np.random.default_rng(3)
    alpha, levels, m = 0.05, 3, 500
    p = np.sort(np.where(rng.random(300) < 0.2, rng.random(300) * 1e-3, rng.random(300)))
    q = multiplicity.adjusted(p, np.full(300, 2), [1, m, 1], "fdr-level", levels)
    below = np.flatnonzero(p <= (np.arange(300) + 1) * alpha / levels / m)
    assert (q <= alpha).sum() == below.max() + 1
