"""The strategies against plain transcriptions of the paper's algorithms, on random data."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.pipelines.search import strategies
from slicebeam.pipelines.search.strategies import Iterative, Priority, SearchState
from tests.oracles import lattice as oracle


class RandomData:
    def __init__(self, seed, *, most_levels=4):
        rng = np.random.default_rng(seed)
        features = int(rng.integers(1, 6))
        sizes = tuple(rng.integers(1, 4, features).tolist())
        self.rows = int(rng.integers(1, 60))
        self.levels = int(rng.integers(1, most_levels + 1))
        multi = tuple((rng.random(features) < 0.25).tolist())
        self.lattice = Lattice(sizes, self.levels, multi, multi)
        self.list_features = {self.name(f) for f in range(features) if multi[f]}
        self.masks = {}
        for feature, size in enumerate(sizes):
            # Skewed, so that small and empty slices are many.
            code = (rng.random(self.rows) ** 2 * size).astype(int)
            for value in range(size):
                mask = rng.random(self.rows) < 0.4 if multi[feature] else code == value
                self.masks[self.name(feature), value] = mask
        self.seed = seed
        self.size_of = cache(oracle.counter(self.masks))

    @staticmethod
    def name(feature):
        return f"f{feature}"

    def conjunction(self, key):
        digits = [d for d in self.lattice.digits(np.array([key]))[0].tolist() if d]
        owners = [int(self.lattice.feature_of[d]) for d in digits]
        return frozenset(
            (self.name(f), d - 1 - int(self.lattice.offsets[f]))
            for f, d in zip(owners, digits, strict=True)
        )

    def random_of(self, conjunction, purpose):
        digits = [int(name[1:]) * 10 + value for name, value in sorted(conjunction)]
        return float(np.random.default_rng([self.seed, purpose, *digits]).random())

    def p_value(self, conjunction):
        return round(self.random_of(conjunction, 1) * 4) / 4

    def delta(self, conjunction):
        return round(self.random_of(conjunction, 4) * 4 - 2) / 2

    def evidence(self, conjunction, visited):
        """The z of a slice's difference from the most similar of its visited parents."""
        z, delta = -float(ndtri(max(self.p_value(conjunction), 1e-300))), self.delta(conjunction)
        if z <= 0 or delta == 0:
            return z
        parents = [conjunction - {one} for one in conjunction]
        shares = [1 - self.delta(one) / delta for one in parents if one in visited]
        return z * min([1.0, *shares])

    def is_significant(self, conjunction, share):
        return self.random_of(conjunction, 2) < share

    def is_late(self, conjunction):
        return self.random_of(conjunction, 3) < 0.5

    def significant(self, large, share):
        """Significant slices of those visited: half of them only once there is a second level."""
        is_deep = any(len(one) > 1 for one in large)
        return {
            one
            for one in large
            if self.is_significant(one, share) and (is_deep or not self.is_late(one))
        }


def searched(data, steps, min_size, *, significant_share=0.2):
    """Drive a strategy as the search does, and yield what is known after each iteration."""
    known = SearchState(min_size)
    while (proposal := steps.next(known)) is not None:
        names = [data.conjunction(key) for key in proposal.candidates.tolist()]
        sizes = np.array([data.size_of(one) for one in names], np.int64)
        p = np.array([data.p_value(one) for one in names])
        known.add(proposal.candidates, sizes)
        added = np.searchsorted(known.keys, proposal.candidates)
        assert np.isnan(known.p[added]).all()
        assert not known.significant[added].any()
        tested = np.where(sizes >= min_size, p, np.nan)
        # The first test orders the queue, whatever replicates say of some slices later.
        delta = np.array([data.delta(one) for one in names])
        known.learn(proposal.candidates, np.minimum(tested * 1.5, 1.0), tested, delta)
        visited = {
            data.conjunction(key): size
            for key, size in zip(known.keys.tolist(), known.sizes.tolist(), strict=True)
            if size >= min_size
        }
        called = data.significant(visited, significant_share)
        known.significant[:] = [data.conjunction(key) in called for key in known.keys.tolist()]
        yield known, proposal


def check_proposal(data, known, proposal):
    """A candidate's base is a visited slice of one predicate less, with its size."""
    candidates = [data.conjunction(key) for key in proposal.candidates.tolist()]
    assert len(set(candidates)) == len(candidates)
    for one, base, size in zip(
        candidates, proposal.bases.tolist(), proposal.base_sizes.tolist(), strict=True
    ):
        if base == 0:
            assert len(one) == 1
            continue
        parent = data.conjunction(base)
        assert parent < one
        assert len(parent) == len(one) - 1
        assert size == data.size_of(parent) >= known.min_size


def generated_by(data, steps, min_size, share):
    generated, estimates = [], []
    known = SearchState(min_size)
    for known, proposal in searched(data, steps, min_size, significant_share=share):
        check_proposal(data, known, proposal)
        generated.append({data.conjunction(key) for key in proposal.candidates.tolist()})
        estimates.append(proposal.expected)
    assert np.all(np.diff(known.keys) > 0)
    assert steps.next(known) is None
    return generated, estimates, known


SEEDS = st.integers(0, 2**32)
SHARES = st.sampled_from([0.0, 0.1, 0.4])


@pytest.fixture(params=[1, 10, 1 << 18])
def _in_pieces(request, monkeypatch):
    """Children are generated some at a time; which does not matter."""
    monkeypatch.setattr(strategies, "_CHILDREN_AT_A_TIME", request.param)


@pytest.mark.usefixtures("_in_pieces")
def test_iterative_is_algorithm_1():
    @settings(max_examples=60, deadline=None)
    @given(seed=SEEDS, min_size=st.integers(1, 5), share=SHARES, prune=st.booleans())
    def check(seed, min_size, share, *, prune):
        data = RandomData(seed)
        steps = Iterative(data.lattice, prune_significant=prune)
        generated, estimates, known = generated_by(data, steps, min_size, share)
        expected = oracle.algorithm_1(
            list(data.masks),
            data.size_of,
            lambda large: data.significant(large, share) if prune else set(),
            data.levels,
            min_size,
        )
        assert generated == expected.generated
        assert estimates == [float(len(some)) for some in expected.generated]
        if prune:
            found = {data.conjunction(key) for key in known.keys[known.significant].tolist()}
            assert found == expected.significant

    check()


@pytest.mark.usefixtures("_in_pieces")
def test_priority_is_algorithm_2():
    @settings(max_examples=100, deadline=None)
    @given(
        seed=SEEDS,
        min_size=st.integers(1, 5),
        share=SHARES,
        prune=st.booleans(),
        iterations=st.integers(1, 6),
        most=st.sampled_from([1, 3, 8, 20, None]),
    )
    def check(seed, min_size, share, *, prune, iterations, most):
        data = RandomData(seed)
        steps = Priority(
            data.lattice, iterations=iterations, max_candidates=most, prune_significant=prune
        )
        generated, estimates, known = generated_by(data, steps, min_size, share)
        place = {name: number for number, name in enumerate(data.masks)}
        expected = oracle.algorithm_2(
            list(data.masks),
            data.size_of,
            lambda one, visited: data.p_value(one) if prune else -data.evidence(one, visited),
            lambda large: data.significant(large, share) if prune else set(),
            data.levels,
            min_size,
            iterations,
            float("inf") if most is None else most,
            lambda one: sorted(place[name] for name in one),
        )
        assert generated == expected.generated
        np.testing.assert_allclose(estimates, expected.estimates, rtol=1e-12)
        if prune:
            found = {data.conjunction(key) for key in known.keys[known.significant].tolist()}
            assert found == expected.significant

    check()


def test_knowledge_stays_sorted():
    known = SearchState(2)
    rng = np.random.default_rng(0)
    keys = rng.permutation(40)
    for some in np.split(keys, [5, 6, 20]):
        known.add(some, some + 1)
        known.learn(some, some / 40, some / 60)
        known.significant |= known.keys % 3 == 0
    assert known.keys.tolist() == sorted(keys.tolist())
    np.testing.assert_array_equal(known.sizes, known.keys + 1)
    np.testing.assert_array_equal(known.p, known.keys / 40)
    np.testing.assert_array_equal(known.first_p, known.keys / 60)
    known.learn(known.keys[3:5], np.array([0.25, 0.5]))
    assert known.p[3:5].tolist() == known.first_p[3:5].tolist() == [0.25, 0.5]
    assert known.p[5] == known.keys[5] / 40
    np.testing.assert_array_equal(known.significant, known.keys % 3 == 0)
    assert known.size_of(np.array([7, 3])).tolist() == [8, 4]
    assert known.barren(prune_significant=False).tolist() == [0]
    assert known.barren(prune_significant=True).tolist() == list(range(0, 40, 3))
