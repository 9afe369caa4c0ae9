"""Corrections against their definitions, written as slow loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.kinds import CORRECTIONS
from slicebeam.metrics.significance import hypergeometric
from slicebeam.metrics.significance.smallest_p import hypergeometric_smallest_p
from slicebeam.metrics.testing import multiplicity


def slow_bh(p: list[float], m: int) -> list[float]:
    everything = sorted(p) + [1.0] * (m - len(p))
    return [
        min(everything[j] * m / (j + 1) for j in range(m) if everything[j] >= value) for value in p
    ]


def test_bh_is_its_definition_with_the_missing_tests_at_one():
    rng = np.random.default_rng(1)
    for size, m in ((1, 1), (7, 7), (7, 30), (60, 100)):
        p = np.round(rng.random(size) ** 3, 2)
        np.testing.assert_allclose(multiplicity.bh_adjusted(p, m), slow_bh(p.tolist(), m))


def test_bh_and_by_equal_scipy_without_missing_tests():
    p = np.random.default_rng(2).random(200) ** 2
    ours = multiplicity.bh_adjusted(p, 200)
    np.testing.assert_allclose(ours, stats.false_discovery_control(p, method="bh"))
    ours = multiplicity.by_adjusted(p, 200)
    np.testing.assert_allclose(ours, stats.false_discovery_control(p, method="by"))


def test_by_factor_of_many_tests():
    m = 1_000_000
    harmonic = float(np.sum(1.0 / np.arange(1, m + 1)))
    assert float(multiplicity.by_adjusted([1e-12], m)[0]) == pytest.approx(
        1e-12 * m * harmonic, rel=1e-9, abs=0
    )


def test_too_few_tests_are_refused():
    with pytest.raises(ValueError, match="m = 2 tests are fewer than the 3"):
        multiplicity.bh_adjusted([0.1, 0.2, 0.3], 2)
    with pytest.raises(ValueError, match="level 2 has 2 p-values but only 1 tests"):
        multiplicity.adjusted([0.1, 0.2], [2, 2], [5, 1], "none", 2)
    with pytest.raises(ValueError, match=r"levels 1\.\.3 were given"):
        multiplicity.adjusted([0.1, 0.2], [1, 3], [5, 5], "bh", 2)
    with pytest.raises(ValueError, match="3 entries for 2 levels"):
        multiplicity.adjusted([0.1], [1], [5, 5, 5], "bh", 2)
    with pytest.raises(ValueError, match="unknown correction 'holm'"):
        multiplicity.adjusted([0.1], [1], [5], "holm", 1)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_nothing_given(correction):
    q = multiplicity.adjusted([], [], [0, 0], correction, 2, [])
    assert q.shape == (0,)
    assert q.dtype == np.float64


def test_levels_are_corrected_apart_and_share_alpha():
    p = np.array([1e-5, 0.004, 0.3, 1e-6, 0.02])
    level = np.array([1, 1, 1, 2, 2])
    tests = [10, 400]
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


def test_family_wise_and_false_discovery_rates_under_the_null_and_beside_it():
    rng = np.random.default_rng(4)
    runs, tests = 2000, [50, 200]
    level = np.repeat([1, 2], tests)
    alarms = {"fdr-level": 0, "fwer-level": 0}
    shares = []
    for _ in range(runs):
        p = rng.random(level.size)
        for correction in alarms:
            q = multiplicity.adjusted(p, level, tests, correction, 2)
            alarms[correction] += bool((q <= 0.05).any())
        p[:30] *= 1e-3
        called = multiplicity.adjusted(p, level, tests, "fdr-level", 2) <= 0.05
        shares.append(called[30:].sum() / max(1, called.sum()))
    assert max(alarms.values()) / runs <= 0.065
    assert min(alarms.values()) / runs >= 0.03
    assert np.mean(shares) <= 0.05


def random_tables(rng, size):
    """Levels, and p-values and smallest p-values of small tables; some p are nearly 0."""
    level = rng.integers(1, 4, size)
    n = rng.integers(1, 30, size)
    K = rng.integers(1, 20, size)
    x = rng.hypergeometric(K, 60 - K, n)
    x = np.where(rng.random(size) < 0.3, np.minimum(n, K), x)
    p = hypergeometric.mid_p(n, x, 60, K, "upper")
    return level, p, hypergeometric_smallest_p(n, 60, K, "upper")


def slow_tarone(p, smallest, unvisited, level_alpha):
    """Reject p ≤ some c with c·M(c) ≤ α/L, by walking the steps of M up to the largest such c."""
    starts = sorted({0.0, *smallest.tolist()})
    for i, start in enumerate(starts):
        count = unvisited + int((smallest <= start).sum())
        if start * count > level_alpha:
            # M jumps here, so that every c below holds, but not this one.
            return p < start
        end = starts[i + 1] if i + 1 < len(starts) else np.inf
        if level_alpha < end * count:
            return p <= level_alpha / count
    return np.ones(p.size, dtype=bool)


def test_tarone_rejects_up_to_the_largest_threshold():
    rng = np.random.default_rng(5)
    for _ in range(30):
        level, p, smallest = random_tables(rng, 40)
        tests = np.bincount(level, minlength=4)[1:] + rng.integers(0, 15, 3)
        q = multiplicity.adjusted(p, level, tests, "fwer-tarone", 3, smallest)
        for alpha in (1e-4, 0.013, 0.05, 0.3, 0.9):
            for at in (1, 2, 3):
                here = level == at
                unvisited = int(tests[at - 1] - here.sum())
                slow = slow_tarone(p[here], smallest[here], unvisited, alpha / 3)
                np.testing.assert_array_equal(q[here] <= alpha, slow)


def test_tarone_by_hand():
    p = [0.001, 0.004, 0.02, 0.002]
    smallest = [0.0005, 0.003, 0.02, 0.002]
    q = multiplicity.adjusted(p, [1, 1, 1, 2], [5, 9], "fwer-tarone", 2, smallest)
    # Two slices of the first level and eight of the second were not given.
    np.testing.assert_allclose(q, [0.002 * 3, 0.008 * 4, 0.04 * 5, 0.004 * 9])


def test_tarone_is_monotone_and_between_p_and_bonferroni():
    rng = np.random.default_rng(6)
    for _ in range(30):
        level, p, smallest = random_tables(rng, 60)
        tests = np.bincount(level, minlength=4)[1:] + 7
        q = multiplicity.adjusted(p, level, tests, "fwer-tarone", 3, smallest)
        bonferroni = multiplicity.adjusted(p, level, tests, "fwer-level", 3)
        assert (q <= bonferroni).all()
        assert (q < bonferroni).any()
        assert (q >= p).all()
        for at in (1, 2, 3):
            order = np.argsort(p[level == at])
            assert (np.diff(q[level == at][order]) >= 0).all()
        unknown = multiplicity.adjusted(p, level, tests, "fwer-tarone", 3, np.zeros(60))
        np.testing.assert_array_equal(unknown, bonferroni)


def test_tarone_counts_slices_that_differ_from_p_by_rounding_only():
    p = np.array([1e-4, 1e-4 * (1 + 1e-12), 1e-4 * (1 - 1e-12)])
    q = multiplicity.adjusted(p, [1, 1, 1], [3], "fwer-tarone", 1, p)
    np.testing.assert_allclose(q, 3e-4, rtol=1e-9)
    # A p below its smallest one, as of an approximate test, counts itself all the same.
    q = multiplicity.adjusted([1e-5, 0.5], [1, 1], [2], "fwer-tarone", 1, [1e-3, 1e-3])
    np.testing.assert_allclose(q, [1e-5, 1.0])


def test_tarone_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="'fwer-tarone' needs smallest_p"):
        multiplicity.adjusted([0.1], [1], [5], "fwer-tarone", 1)
    with pytest.raises(ValueError, match="1 p-values but 2 smallest"):
        multiplicity.adjusted([0.1], [1], [5], "fwer-tarone", 1, [0.1, 0.1])
    for wrong in (-0.1, 1.5, np.nan):
        with pytest.raises(ValueError, match=f"smallest_p holds {wrong}, which is not within"):
            multiplicity.adjusted([0.1], [1], [5], "fwer-tarone", 1, [wrong])


@pytest.fixture(scope="module")
def null_tables():
    """2,000 null data sets of 4 levels of 60 small tables: exact and mid-p, and their smallest."""
    rng = np.random.default_rng(7)
    level = np.repeat([1, 2, 3, 4], 60)
    N, K = 200, 60
    n = rng.integers(2, 25, level.size)
    x = rng.hypergeometric(K, N - K, n, size=(2000, level.size))
    sizes, counts = np.arange(25)[:, None], np.arange(25)[None, :]
    # One row for each size: every p-value is looked up in it.
    exact = hypergeometric.weighted_tail(sizes, counts, N, K, 1.0)
    mid = hypergeometric.mid_p(sizes, counts, N, K, "upper")
    smallest = hypergeometric_smallest_p(n, N, K, "upper")
    return level, {"exact": (exact[n, x], 2.0 * smallest), "mid": (mid[n, x], smallest)}


def alarm_rate(level, p, smallest, correction, visited_below=1.0):
    alarms = 0
    for row in p:
        # Only the promising slices are visited; the others keep their place in the count.
        seen = row <= visited_below
        q = multiplicity.adjusted(row[seen], level[seen], [60] * 4, correction, 4, smallest[seen])
        alarms += bool((q <= 0.05).any())
    return alarms / len(p)


def test_tarone_family_wise_rate_of_small_tables(null_tables):
    level, kinds = null_tables
    for p, smallest in kinds.values():
        everything = alarm_rate(level, p, smallest, "fwer-tarone")
        # Three standard errors of 2,000 runs; counting each level at α would give 0.07 and more.
        assert everything <= 0.05 + 0.0146
        # Seeing the promising slices only would multiply the rate if the others did not count.
        assert alarm_rate(level, p, smallest, "fwer-tarone", 0.05) <= everything
        assert everything >= alarm_rate(level, p, smallest, "fwer-level")
    p, smallest = kinds["mid"]
    assert alarm_rate(level, p, smallest, "fwer-tarone") >= 0.03
