"""Rows of listed slices: their groups, and sums of their hashes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.counting import counting, membership
from slicebeam.metrics.counting.membership import distinct_groups
from tests.metrics.counting.test_counting import CUTS, SEEDS, Table


def grouped(seed, groups, rows=40):
    """A table whose examples are in groups of very different sizes."""
    table, rng = Table(seed, rows=rows), np.random.default_rng(seed)
    numbers = rng.permutation(2**63 - 1 - np.arange(groups)).astype(np.uint64) * np.uint64(2)
    table.ids = numbers[(rng.random(rows) ** 3 * groups).astype(int)]
    return table


def expected(table):
    ids = table.ids.tolist()
    return {
        table.key(features, codes): len({ids[row] for row in table.members(features, codes)})
        for features in table.tuples()
        for codes in table.slices(features)
    }


def check(table, cuts, seed, enough):
    wanted = expected(table)
    keys = np.random.default_rng(seed).permutation(np.array(list(wanted), np.int64))
    keys = keys[: max(1, keys.size * 2 // 3)]
    found = distinct_groups(keys, table.lattice, table.blocks(cuts))
    assert found.dtype == np.uint64
    for key, groups in zip(keys.tolist(), found.tolist(), strict=True):
        assert groups == min(wanted[key], enough)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, cuts=CUTS, groups=st.integers(1, 60), enough=st.sampled_from([1, 4, 100]))
def test_groups_are_those_of_sets(seed, cuts, groups, enough):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "ENOUGH_GROUPS", enough)
        check(grouped(seed, groups), cuts, seed, enough)


@pytest.mark.parametrize("lookup", [0, 1 << 18])
def test_slices_are_searched_or_looked_up(monkeypatch, lookup):
    monkeypatch.setattr(counting, "_LOOKUP_CELLS", lookup)
    for seed in range(6):
        check(grouped(seed, 15), [9, 23], seed, 100)


def test_a_slice_of_many_groups_has_enough():
    table = grouped(8, 4000, rows=3000)
    assert max(expected(table).values()) > 2 * membership.ENOUGH_GROUPS
    check(table, [50, 51, 700, 1900], 8, membership.ENOUGH_GROUPS)


def test_no_rows_and_no_slices():
    table = Table(3)
    keys = np.array([table.key((0,), (0,))], np.int64)
    assert distinct_groups(keys, table.lattice, []).tolist() == [0]
    blocks = [table.block(0, table.rows)]
    assert distinct_groups(keys[:0], table.lattice, blocks).size == 0


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, cuts=CUTS)
def test_sums_of_hashes_tell_slices_apart(seed, cuts):
    table = Table(seed, rows=12)
    members = {
        table.key(features, codes): frozenset(table.members(features, codes))
        for features in table.tuples()
        for codes in table.slices(features)
    }
    keys = np.random.default_rng(seed).permutation(np.array(list(members), np.int64))
    by_members = {}
    found = membership.hash_sums(keys, table.lattice, table.blocks(cuts))
    for key, total in zip(keys.tolist(), found.tolist(), strict=True):
        by_members.setdefault(members[key], set()).add(total)
    assert all(len(sums) == 1 for sums in by_members.values())
    assert len(set.union(*by_members.values())) == len(by_members)
    assert by_members.get(frozenset(), {0}) == {0}
