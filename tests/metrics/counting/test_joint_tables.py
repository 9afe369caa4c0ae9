"""Joint tables: every tuple in exactly one, of which it is a margin, and cheaper than alone."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.counting.counting import Margins
from slicebeam.metrics.counting.counting_plan import (
    MARGIN_CELL,
    TABLE_CELL,
    TABLE_ROW,
    TABLE_UNIT,
    Budget,
    JointTable,
    joint_tables,
)
from slicebeam.metrics.counting.lattice import Lattice

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=9)


def budget_of(rows, most_cells=1 << 17):
    return Budget(rows, columns=2, passes=1, layers=1, memory=8 * 16 * most_cells)


def cells(features, lattice):
    return int(np.prod([lattice.radices[f] for f in features]))


def seconds(tables, lattice, rows):
    return sum(
        rows * TABLE_ROW
        + TABLE_UNIT
        + cells(table.features, lattice) * 2 * (TABLE_CELL + len(table.tuples) * MARGIN_CELL)
        for table in tables
    )


@settings(max_examples=150, deadline=None)
@given(
    sizes=SIZES,
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([0, 1000, 50_000, 10**7]),
    most=st.sampled_from([1, 50, 3000, 1 << 17]),
    kept=st.floats(0.1, 1),
)
def test_every_tuple_is_read_once(sizes, seed, rows, most, kept):
    rng = np.random.default_rng(seed)
    lists = tuple((rng.random(len(sizes)) < 0.3).tolist())
    lattice = Lattice(tuple(sizes), 3, lists)
    tuples = [
        features
        for level in (1, 2, 3)
        for features in combinations(range(len(sizes)), level)
        if rng.random() <= kept
    ]
    tables = list(joint_tables(tuples, lattice, budget_of(rows, most)))
    assert sorted(features for table in tables for features in table.tuples) == sorted(tuples)
    for table in tables:
        assert list(table.features) == sorted(set(table.features))
        for features in table.tuples:
            summed = set(table.features) - set(features)
            assert summed | set(features) == set(table.features)
            # An example may stand in several cells of a list's axis, or in none.
            assert not any(lists[feature] for feature in summed)
        if table.features not in table.tuples:
            assert cells(table.features, lattice) <= most
    alone = [JointTable(features, (features,)) for features in tuples]
    # Pairs and singletons come with the triples, at no more than the adding up.
    slack = 2 * MARGIN_CELL * sum(cells(table.features, lattice) for table in tables) * 50
    assert seconds(tables, lattice, rows) <= seconds(alone, lattice, rows) + slack


def test_a_million_rows_of_fourteen_features_need_few_passes():
    lattice = Lattice((10,) * 14, 3)
    tuples = [features for level in (1, 2, 3) for features in combinations(range(14), level)]
    tables = list(joint_tables(tuples, lattice, budget_of(1_000_000)))
    # A table of five features holds ten triples: 364 of them need 37 at the very least.
    assert 37 <= len(tables) <= 60
    narrow = list(joint_tables(tuples, lattice, budget_of(1_000_000, 1000)))
    assert len(narrow) == 364


@pytest.mark.parametrize("features", [(0, 1, 2, 3), (0, 2), (3,), (1, 2, 3), (0, 3)])
def test_margins_are_sums_over_the_other_axes(features):
    lattice = Lattice((3, 5, 2, 4), 3)
    joint = np.random.default_rng(1).integers(0, 100, (2, 3, 3, 5, 2, 4))
    margins = Margins((0, 1, 2, 3), joint.reshape(2, -1), lattice, (2, 3))
    margins.of((0, 2, 3))
    others = tuple(2 + axis for axis in range(4) if axis not in features)
    np.testing.assert_array_equal(margins.of(features), joint.sum(axis=others).reshape(2, 3, -1))
