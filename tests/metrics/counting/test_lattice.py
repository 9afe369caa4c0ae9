"""Slices as integers, against sets of (feature, code) from itertools."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.counting.lattice import Lattice, contains
from slicebeam.metrics.errors import InputError

LATTICES = st.builds(
    lambda sizes, most, extra: Lattice(
        tuple(sizes), most, unmatched=tuple(bool(extra >> i & 1) for i in range(len(sizes)))
    ),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(0, 31),
)


def conjunctions(lattice):
    """All slices, level by level, as ascending (feature, code) pairs."""
    found = []
    for level in range(1, lattice.max_cross_size + 1):
        for features in itertools.combinations(range(len(lattice.sizes)), level):
            codes = itertools.product(*(range(lattice.sizes[f]) for f in features))
            found += [tuple(zip(features, code, strict=True)) for code in codes]
    return found


def key_of(lattice, conjunction):
    """The key by its definition: digits of the singletons' numbers, the first one highest."""
    base = sum(lattice.sizes) + 1
    key = 0
    for position in range(lattice.max_cross_size):
        digit = 0
        if position < len(conjunction):
            feature, code = conjunction[position]
            digit = sum(lattice.sizes[:feature]) + code + 1
        key = key * base + digit
    return key


@settings(max_examples=60, deadline=None)
@given(LATTICES)
def test_keys_are_the_conjunctions(lattice):
    them = conjunctions(lattice)
    expected = [key_of(lattice, one) for one in them]
    assert len(set(expected)) == len(expected) == lattice.space()
    keys = np.array(expected, np.int64)
    np.testing.assert_array_equal(lattice.keys(lattice.digits(keys)), keys)
    shuffled = np.random.default_rng(0).permuted(lattice.digits(keys), axis=1)
    np.testing.assert_array_equal(lattice.keys_of_sets(shuffled), keys)
    assert lattice.cross_sizes(keys).tolist() == [len(one) for one in them]
    owners = [[feature for feature, _ in one] for one in them]
    assert [[f for f in row if f >= 0] for row in lattice.features(keys).tolist()] == owners
    assert lattice.singleton_keys().tolist() == [
        key for key, one in zip(expected, them, strict=True) if len(one) == 1
    ]
    assert [expected[i] for i in np.argsort(keys)] == [key_of(lattice, one) for one in sorted(them)]


@settings(max_examples=60, deadline=None)
@given(LATTICES)
def test_subsets_and_parents(lattice):
    by_level = {}
    for one in conjunctions(lattice):
        by_level.setdefault(len(one), []).append(one)
    for level, slices in by_level.items():
        keys = np.array([key_of(lattice, one) for one in slices], np.int64)
        found = np.stack([keys, *lattice.subsets(keys, range(1, level))], axis=1)
        parents = list(lattice.parents(keys))
        assert len(parents) == (level if level > 1 else 0)
        for row, (one, subsets) in enumerate(zip(slices, found.tolist(), strict=True)):
            expected = {
                key_of(lattice, some)
                for size in range(1, level + 1)
                for some in itertools.combinations(one, size)
            }
            assert set(subsets) == expected
            assert len(subsets) == len(expected)
            assert {int(parent[row]) for parent in parents} == {
                key_of(lattice, some)
                for some in itertools.combinations(one, level - 1)
                if level > 1
            }
    assert list(lattice.subsets(np.zeros(0, np.int64), [1])) == []
    assert list(lattice.parents(np.zeros(0, np.int64))) == []


@settings(max_examples=60, deadline=None)
@given(LATTICES)
def test_cells_and_keys_are_inverse(lattice):
    everything = np.array([key_of(lattice, one) for one in conjunctions(lattice)], np.int64)
    seen = []
    for level in range(1, min(lattice.max_cross_size, len(lattice.sizes)) + 1):
        tuples = [tuple(row) for row in lattice.tuples(level).tolist()]
        assert tuples == list(itertools.combinations(range(len(lattice.sizes)), level))
        for features in tuples:
            radices = [lattice.sizes[f] + lattice.unmatched[f] for f in features]
            assert [int(lattice.radices[f]) for f in features] == radices
            cells = np.arange(np.prod(radices))
            codes = list(itertools.product(*(range(radix) for radix in radices)))
            is_slice = [
                all(code < lattice.sizes[f] for f, code in zip(features, row, strict=True))
                for row in codes
            ]
            matched = lattice.matched(features, cells)
            assert (np.ones(cells.size, bool) if matched is None else matched).tolist() == is_slice
            kept = cells[np.array(is_slice)]
            keys = lattice.cell_keys(features, kept)
            expected = [
                key_of(lattice, tuple(zip(features, row, strict=True)))
                for row, inside in zip(codes, is_slice, strict=True)
                if inside
            ]
            assert keys.tolist() == expected
            np.testing.assert_array_equal(lattice.key_cells(keys, features), kept)
            seen += expected
            for some in itertools.combinations(features, level - 1):
                projected = lattice.key_cells(keys, some)
                shape = [lattice.sizes[f] + lattice.unmatched[f] for f in some]
                for key_codes, cell in zip(
                    (row for row, inside in zip(codes, is_slice, strict=True) if inside),
                    projected.tolist(),
                    strict=True,
                ):
                    mine = [key_codes[features.index(f)] for f in some]
                    assert cell == (np.ravel_multi_index(mine, shape) if some else 0)
    assert sorted(seen) == sorted(everything.tolist())


def test_too_many_singletons_are_refused():
    most = 2_097_150  # (2^21 - 1)^3 < 2^63
    assert Lattice((most,), 3).singletons == most
    with pytest.raises(InputError, match=r"2,097,151 singleton predicates .* lower"):
        Lattice((most, 1), 3)
    lattice = Lattice((most - 2, 1, 1), 3)
    last = lattice.keys(np.array([[most - 2, most - 1, most]]))
    assert lattice.digits(last).tolist() == [[most - 2, most - 1, most]]
    assert lattice.cell_keys((0, 1, 2), np.array([most - 3])).tolist() == last.tolist()
    assert Lattice((100,) * 1000, 3).space() == 100_000 + 4_995 * 10**6 + 166_167_000 * 10**6


@given(st.sets(st.integers(-5, 60)), st.lists(st.integers(-9, 70)))
def test_contains(haystack, needles):
    found = contains(np.array(sorted(haystack), np.int64), np.array(needles, np.int64))
    assert found.tolist() == [needle in haystack for needle in needles]
