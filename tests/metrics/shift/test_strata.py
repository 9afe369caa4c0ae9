"""The counts of a stratum's halves."""

import math
from dataclasses import replace

import numpy as np
import pytest

from slicebeam.metrics.shift.estimates import estimate
from slicebeam.metrics.shift.strata import Sample, Strata, counts_of
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def halves_of(pool, asked, place):
    """Counts of the halves, by loops; `place` says where in its stratum's order an item is."""
    found = Sample.empty(1, 2 * len(pool.rows), pool.shape[1])
    for item in asked:
        half = 2 * pool.stratum[item] + place[item] % 2
        found.add(np.array([[half]]), np.array([[pool.new[item]]]), np.array([[pool.old[item]]]))
    return found


def sampled(rng, pool):
    """A sample of random items whose halves were asked unequally, each at least once."""
    place = np.empty(len(pool.items), int)
    asked = []
    for s in range(len(pool.rows)):
        members = [item for item in pool.items if pool.stratum[item] == s]
        for at, item in enumerate(rng.permutation(members).tolist()):
            place[item] = at
        for h in (0, 1):
            mine = sorted((i for i in members if place[i] % 2 == h), key=lambda i: place[i])
            asked += mine[: int(rng.integers(1, len(mine) + 1)) if mine else 0]
    sample = oracle.sample_of(pool, [asked])
    sample.halves = halves_of(pool, asked, place)
    return asked, place, sample


def test_counts_are_those_of_a_fixed_combination_of_the_halves():
    rng = np.random.default_rng(6)
    for _ in range(20):
        pool = oracle.random_pool(rng, largest=15, strata=6)
        asked, place, sample = sampled(rng, pool)
        found = counts_of(pool.strata(), sample)
        for s, size in enumerate(pool.sizes):
            mine = [
                [i for i in asked if pool.stratum[i] == s and place[i] % 2 == h] for h in (0, 1)
            ]
            part = [math.ceil(size / 2) / size, math.floor(size / 2) / size]
            alike = 1 / sum(a**2 / len(m) for a, m in zip(part, mine, strict=True) if m)
            assert found.asked[0, s] == pytest.approx(alike)
            for j in range(pool.shape[1]):
                for told, values in ((found.new, pool.new), (found.old, pool.old)):
                    mean = sum(
                        a * np.mean([values[i] == j for i in m])
                        for a, m in zip(part, mine, strict=True)
                        if m
                    )
                    assert told[0, s, j] / alike == pytest.approx(mean)


def test_a_half_without_an_answer_is_stood_for_by_the_other():
    strata = Strata(np.zeros(1, int), np.array([9]), (1, 2), np.zeros(1, int), np.array([[5, 4]]))
    sample = Sample.empty(1, 1, 2)
    sample.halves = Sample.empty(1, 2, 2)
    for counts, part in ((sample, [0, 0, 0]), (sample.halves, [1, 1, 1])):
        counts.add(np.array([part]), np.array([[0, 1, 1]]), np.array([[0, 0, 1]]))
    found = counts_of(strata, sample)
    assert found.asked.tolist() == [[3]]
    assert found.new.tolist() == [[[1, 2]]]
    assert found.old.tolist() == [[[2, 1]]]


def test_all_items_of_a_pool_are_the_pool():
    pool = oracle.random_pool(np.random.default_rng(7), largest=15, strata=6)
    _, _, sample = sampled(np.random.default_rng(8), pool)
    everything = list(pool.items)
    place = [i - pool.stratum.index(pool.stratum[i]) for i in everything]
    sample = oracle.sample_of(pool, [everything])
    sample.halves = halves_of(pool, everything, place)
    found = estimate(pool.strata(), sample)
    np.testing.assert_allclose(found.matrix[0], pool.matrix(pool.new), atol=1e-12)
    assert found.loss[0] == found.accuracy_variance[0] == 0


def test_slices_of_halves_are_weighted_as_the_whole_is():
    rng = np.random.default_rng(11)
    pool = oracle.random_pool(rng, largest=25, strata=6)
    _, _, sample = sampled(rng, pool)
    whole = estimate(pool.strata(), sample)
    counts, alike = counts_of(pool.strata(), sample), replace(sample, halves=None)
    assert not np.allclose(estimate(pool.strata(), alike).matrix, whole.matrix)
    share, direct = pool.strata().share, np.zeros(pool.shape)
    for s, row in enumerate(pool.rows):
        told = counts.old[0, s] / counts.asked[0, s] - pool.strata().old_shares[s]
        direct[row] += share[s] * (counts.new[0, s] / counts.asked[0, s] - whole.reliance[0] * told)
    np.testing.assert_allclose(whole.matrix[0], direct, atol=1e-12)
