"""Corrections, and the number of slices that could have been tested, against slow definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.kinds import CORRECTIONS
from slicebeam.metrics.testing import level_bound, multiplicity
from slicebeam.metrics.testing.level_bound import Visited
from slicebeam.pipelines.search.strategies import Iterative, Priority
from tests.oracles import lattice as oracle
from tests.oracles import significance
from tests.pipelines.search.test_strategies import RandomData, searched


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
    with pytest.raises(ValueError, match="level 2 has 2 p-values but only 1 tests"):
        multiplicity.adjusted([0.1, 0.2], [2, 2], [5, 1], "none", 2)
    with pytest.raises(ValueError, match="unknown correction 'holm'"):
        multiplicity.adjusted([0.1], [1], [5], "holm", 1)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_nothing_given(correction):
    q = multiplicity.adjusted([], [], [0, 0], correction, 2)
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


SEEDS = st.integers(0, 2**32)


def bounds_of(data, known, min_size):
    return level_bound.tests_per_level(
        data.lattice, Visited(known.keys, known.sizes), data.rows, min_size
    )


def true_counts(data, min_size):
    large = oracle.all_slices(data.masks, data.lattice.max_cross_size, min_size)
    levels = range(1, data.lattice.max_cross_size + 1)
    return [sum(len(one) == level for one in large) for level in levels]


@settings(max_examples=80, deadline=None)
@given(seed=SEEDS, min_size=st.integers(1, 6), iterative=st.booleans(), prune=st.booleans())
def test_the_bound_after_every_iteration(seed, min_size, iterative, prune):
    data = RandomData(seed)
    steps = (
        Iterative(data.lattice, prune_significant=prune)
        if iterative
        else Priority(data.lattice, iterations=5, max_candidates=12, prune_significant=prune)
    )
    sizes = {name: int(mask.sum()) for name, mask in data.masks.items()}
    truth = true_counts(data, min_size)
    before = None
    for known, _ in searched(data, steps, min_size):
        found = bounds_of(data, known, min_size)
        visited = {
            data.conjunction(key): int(n)
            for key, n in zip(known.keys.tolist(), known.sizes.tolist(), strict=True)
        }
        expected = [
            significance.level_bound(level, sizes, visited, data.rows, min_size, data.list_features)
            for level in range(1, data.lattice.max_cross_size + 1)
        ]
        assert found == expected
        assert all(bound >= true for bound, true in zip(found, truth, strict=True))
        # What was significant stays so, since no bound ever grows.
        assert before is None or all(now <= was for now, was in zip(found, before, strict=True))
        before = found


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, min_size=st.integers(1, 6))
def test_exact_after_a_complete_search(seed, min_size):
    data = RandomData(seed, most_levels=3)
    steps = Iterative(data.lattice, prune_significant=True)
    for known, _ in searched(data, steps, min_size, significant_share=0.0):
        found = bounds_of(data, known, min_size)
    assert found == true_counts(data, min_size)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, min_size=st.integers(1, 6), tuples=st.sampled_from([0, 3, 10**6]))
def test_with_too_many_tuples_it_is_still_a_bound(seed, min_size, tuples):
    data = RandomData(seed)
    truth = true_counts(data, min_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_bound, "_MOST_TUPLES", tuples)
        patch.setattr(level_bound, "_MOST_PAIRS", seed % 2 << 25)
        patch.setattr(level_bound, "_KEYS_AT_A_TIME", 7)
        steps = Priority(data.lattice, iterations=4, max_candidates=10, prune_significant=True)
        for known, _ in searched(data, steps, min_size):
            found = bounds_of(data, known, min_size)
            assert all(bound >= true for bound, true in zip(found, truth, strict=True))


@pytest.mark.parametrize("width", [1, 3, 1000])
def test_open_cells_are_counted_in_pieces(monkeypatch, width):
    monkeypatch.setattr(level_bound, "_PAIRS_AT_A_TIME", width)
    rng, sizes = np.random.default_rng(0), (5, 4, 6, 3)
    pairs, triples = (list(itertools.combinations(range(4), size)) for size in (2, 3))
    is_open = {(a, b): rng.random((sizes[a], sizes[b])) < 0.6 for a, b in pairs}
    expected = [
        np.einsum("ij,jk,ik", *(is_open[pair] * 1 for pair in ((a, b), (b, c), (a, c))))
        for a, b, c in triples
    ]
    assert level_bound._open_cells(np.array(triples), is_open).tolist() == expected


def test_nothing_was_visited_below_the_singletons():
    lattice = Lattice((2, 2), 3)
    visited = Visited(lattice.singleton_keys(), np.array([60, 40, 99, 1]))
    assert level_bound.tests_per_level(lattice, visited, 100, 20) == [3, 2, 0]
