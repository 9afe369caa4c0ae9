"""Upper bounds of the tests by level, against all slices of random data."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.measures import multiplicity
from slicebeam.metrics.measures.multiplicity import Visited
from slicebeam.pipelines.search.strategies import Iterative, Priority
from tests.oracles import lattice as oracle
from tests.oracles import significance
from tests.pipelines.search.test_strategies import RandomData, searched

SEEDS = st.integers(0, 2**32)


def bounds_of(data, known, min_size):
    return multiplicity.tests_per_level(
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
    truth, before = true_counts(data, min_size), None
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
        patch.setattr(multiplicity, "_MOST_TUPLES", tuples)
        patch.setattr(multiplicity, "_MOST_PAIRS", seed % 2 << 26)
        patch.setattr(multiplicity, "_KEYS_AT_A_TIME", 7)
        steps = Priority(data.lattice, iterations=4, max_candidates=10, prune_significant=True)
        for known, _ in searched(data, steps, min_size):
            found = bounds_of(data, known, min_size)
            assert all(bound >= true for bound, true in zip(found, truth, strict=True))


@pytest.mark.parametrize("width", [1, 3, 1000])
def test_open_cells_are_counted_in_pieces(monkeypatch, width):
    monkeypatch.setattr(multiplicity, "_PAIRS_AT_A_TIME", width)
    rng, sizes = np.random.default_rng(0), (5, 4, 6, 3)
    pairs, triples = (list(itertools.combinations(range(4), size)) for size in (2, 3))
    lattice, matrix = Lattice(sizes, 3), np.zeros((19, 19), bool)
    is_open = {(a, b): rng.random((sizes[a], sizes[b])) < 0.6 for a, b in pairs}
    for (a, b), some in is_open.items():
        first, second = 1 + lattice.offsets[a], 1 + lattice.offsets[b]
        matrix[first : first + sizes[a], second : second + sizes[b]] = some
    expected = [
        np.einsum("ij,jk,ik", *(is_open[pair] * 1 for pair in ((a, b), (b, c), (a, c))))
        for a, b, c in triples
    ]
    assert multiplicity._open_cells(lattice, matrix).tolist() == expected


def test_nothing_was_visited_below_the_singletons():
    lattice = Lattice((2, 2), 3)
    visited = Visited(lattice.singleton_keys(), np.array([60, 40, 99, 1]))
    assert multiplicity.tests_per_level(lattice, visited, 100, 20) == [3, 2, 0]
