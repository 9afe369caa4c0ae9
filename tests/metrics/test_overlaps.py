"""Which examples are in the same slices, against plain sets, however the rows are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.counting import overlaps
from slicebeam.metrics.counting.overlaps import Overlaps
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from tests.metrics.test_counting import COUNTS, CUTS, SEEDS, VALUES, WEIGHTS, Table

Found = dict[frozenset[int], list[int]]


def some_keys(table: Table, seed: int, most: int) -> np.ndarray:
    keys = [table.key(f, codes) for f in table.tuples() for codes in table.slices(f)]
    return np.random.default_rng(seed).permutation(np.array(keys, np.int64))[:most]


def expected(table: Table, keys: np.ndarray) -> Found:
    """Sums of the examples by the set of slices that they are in; those in none are left out."""
    inside: list[set[int]] = [set() for _ in range(table.rows)]
    wanted = set(keys.tolist())
    for features in table.tuples():
        for codes in table.slices(features):
            key = table.key(features, codes)
            if key in wanted:
                for row in table.members(features, codes):
                    inside[row].add(key)
    matrix = table.matrix()[:, : table.space.raw_columns]
    found: Found = {}
    for row, slices in enumerate(inside):
        if slices:
            before = found.get(frozenset(slices), [0] * matrix.shape[1])
            sums = zip(before, matrix[row].tolist(), strict=True)
            found[frozenset(slices)] = [one + other for one, other in sums]
    return found


def named(of: Overlaps, patterns: np.ndarray, sums: np.ndarray) -> Found:
    members = of.members(patterns)
    assert members.shape == (len(patterns), of.keys.size)
    found = {
        frozenset(of.keys[inside].tolist()): own.tolist()
        for inside, own in zip(members, sums, strict=True)
    }
    assert len(found) == len(patterns)
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    cuts=CUTS,
    most=st.sampled_from([1, 7, 8, 9, 40]),
    waiting=st.sampled_from([0, 1 << 17]),
    space=st.sampled_from([COUNTS, WEIGHTS, VALUES]),
)
def test_patterns_are_those_of_sets(
    seed: int, cuts: list[int], most: int, waiting: int, space: StatisticSpace
) -> None:
    table = Table(seed, space=space)
    keys = some_keys(table, seed, most)
    wanted = expected(table, keys)
    owners = np.random.default_rng(seed).integers(0, 2, len(table.blocks(cuts)))
    one, other = (Overlaps(keys, table.lattice, space) for _ in range(2))
    whole = Overlaps(keys, table.lattice, space)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlaps, "_WAITING", waiting)
        for block, owner in zip(table.blocks(cuts), owners, strict=True):
            (one, other)[owner].add(block)
            whole.add(block)
    assert named(whole, *whole.merge()) == wanted
    patterns, sums = other.merge()
    assert named(one, *one.merge_with([patterns], [sums])) == wanted
    # What was merged is kept.
    assert named(one, *one.merge()) == wanted


def test_the_order_of_rows_does_not_matter() -> None:
    for seed in range(8):
        table = Table(seed, space=VALUES)
        keys = some_keys(table, seed, 20)
        merged = []
        for some in (table, table.reordered(np.random.default_rng(seed).permutation(table.rows))):
            own = Overlaps(keys, table.lattice, VALUES)
            for block in some.blocks([seed, 3 * seed]):
                own.add(block)
            merged.append(own.merge())
        for one, same in zip(*merged, strict=True):
            np.testing.assert_array_equal(one, same)


def test_no_rows() -> None:
    table = Table(5)
    own = Overlaps(some_keys(table, 5, 3), table.lattice, COUNTS)
    patterns, sums = own.merge()
    assert len(patterns) == len(sums) == 0
    assert own.members(patterns).shape == (0, own.keys.size)
