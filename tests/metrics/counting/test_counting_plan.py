"""Plans: every slice once, within the memory, and never a different result."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.counting import counting_plan
from slicebeam.metrics.counting.counting import (
    Margins,
    Resampling,
    SumReader,
    Tables,
    selector_bytes,
    table_cells,
)
from slicebeam.metrics.counting.counting_plan import (
    MARGIN_CELL,
    TABLE_CELL,
    TABLE_ROW,
    TABLE_UNIT,
    Budget,
    blocks,
    joint_tables,
    plan_all,
    plan_listed,
    plan_within,
)
from slicebeam.metrics.counting.lattice import Lattice
from tests.metrics.counting.test_counting import (
    COUNTS,
    EVERYTHING,
    SEEDS,
    VALUES,
    WEIGHTS,
    Table,
    assert_same,
)

PLANNED = {"seed": SEEDS, "memory": st.sampled_from([1500, 6000, 10**9]), "small": st.booleans()}
PLANNED |= {"replicates": st.integers(0, 2), "space": st.sampled_from([COUNTS, WEIGHTS, VALUES])}


def budget_for(table, layers, memory):
    space = table.space
    return Budget(table.rows, space.raw_columns, space.passes, layers, memory, 1e-4)


def read(table, planned, resampling):
    """Count a plan block by block; a slice that is reported twice fails."""
    layers = 1 + (resampling.replicates if resampling else 0)
    reader = SumReader(table.lattice, table.space, layers, 1)
    found = {}
    for block in planned:
        units = [one.unit for one in block]
        tables = Tables(units, table.lattice, table.space, resampling)
        for rows in table.blocks([13, 29]):
            tables.add(rows)
        for some in reader.slices(units, tables.state()):
            assert not found.keys() & set(some.keys.tolist())
            found.update(zip(some.keys.tolist(), some.sums, strict=True))
    return found


def table_bytes(unit, lattice, budget):
    """The memory of a unit's tables, by what they are; at least for sparse ones."""
    if unit.method == "dense":
        cells = table_cells(unit.features, lattice)
    elif unit.method == "sparse":
        cells = min(table_cells(unit.features, lattice), budget.rows) // unit.parts
    else:
        assert unit.bases is not None
        bases = np.unique(unit.bases).size
        own = selector_bytes(bases, table_cells(unit.features, lattice))
        return own + unit.bases.size * budget.cell_bytes
    return cells * budget.cell_bytes


def check_memory(planned, lattice, budget):
    for block in planned:
        assert block
        size = sum(table_bytes(one.unit, lattice, budget) for one in block)
        assert size <= sum(one.bytes for one in block)
        if sum(one.bytes for one in block) > budget.memory:
            assert len(block) == 1
            unit = block[0].unit
            # What can be cut was cut: a dense table fits, and so do listed slices without their lookups.
            assert unit.method != "dense"
            if unit.method == "sparse":
                assert block[0].bytes <= budget.memory + unit.parts
            else:
                assert unit.candidates is not None
                width = unit.candidates.size
                assert width == 1 or width * budget.cell_bytes <= budget.memory // 2
        assert all(one.seconds >= 0 for one in block)
        assert sum(one.seconds for one in block[:-1]) < budget.block_seconds


def small_tables(patch, *, select):
    """Let tables of a few cells count as large, and selecting be cheap or dear."""
    patch.setattr(counting_plan, "_SMALL_TABLE", 4)
    patch.setattr(counting_plan, "_CELLS_PER_ROW", 0.5)
    patch.setattr(counting_plan, "_SELECT_ROW", select)
    patch.setattr(counting_plan, "TABLE_UNIT", select)
    patch.setattr(counting_plan, "_INSIDE_ROW", min(select, 15e-9))


@settings(max_examples=30, deadline=None)
@given(**PLANNED)
def test_all_slices_once(seed, memory, replicates, space, *, small):
    table = Table(seed, space=space)
    resampling = Resampling(replicates, 5) if replicates else None
    budget = budget_for(table, 1 + replicates, memory)
    with pytest.MonkeyPatch.context() as patch:
        if small:
            small_tables(patch, select=5e-9)
        planned = list(blocks(plan_all(table.lattice, budget), budget))
    check_memory(planned, table.lattice, budget)
    expected = table.all_counts(table.tuples(), resampling)
    nonempty = {key: value for key, value in expected.items() if table.is_nonempty(value)}
    assert_same(read(table, planned, resampling), nonempty)


def candidates_of(table, rng):
    """Random candidates; most have a base, which is any of their parents."""
    chosen, bases, sizes = [], [], []
    for features in table.tuples():
        for codes in table.slices(features):
            if rng.random() < 0.4:
                continue
            chosen.append(table.key(features, codes))
            base, size = 0, 0
            if len(features) > 1 and rng.random() < 0.8:
                dropped = int(rng.integers(len(features)))
                names = features[:dropped] + features[dropped + 1 :]
                values = codes[:dropped] + codes[dropped + 1 :]
                base, size = table.key(names, values), len(table.members(names, values))
            bases.append(base)
            sizes.append(size)
    order = rng.permutation(len(chosen))
    return tuple(np.array(some, np.int64)[order] for some in (chosen, bases, sizes))  # type: ignore[return-value]


@settings(max_examples=40, deadline=None)
@given(**PLANNED, select=st.sampled_from([0.0, 5e-9, 1.0]))
def test_listed_slices_once(seed, memory, replicates, space, *, small, select):
    table = Table(seed, space=space)
    resampling = Resampling(replicates, 5) if replicates else None
    budget = budget_for(table, 1 + replicates, memory)
    candidates, bases, sizes = candidates_of(table, np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        if small:
            small_tables(patch, select=select)
        planned = list(blocks(plan_listed(candidates, bases, sizes, table.lattice, budget), budget))
    check_memory(planned, table.lattice, budget)
    listed = [one.unit.candidates for block in planned for one in block]
    assert all(some is not None for some in listed)
    every = np.concatenate([np.zeros(0, np.int64), *listed])  # type: ignore[arg-type]
    assert sorted(every.tolist()) == sorted(candidates.tolist())
    expected = table.all_counts(table.tuples(), resampling)
    wanted = {key: expected[key] for key in candidates.tolist()}
    assert_same(read(table, planned, resampling), wanted)


@settings(max_examples=25, deadline=None)
@given(
    seed=SEEDS,
    memory=st.sampled_from([3000, 100_000, 10**9]),
    replicates=st.integers(0, 3),
    space=st.sampled_from([COUNTS, VALUES, EVERYTHING]),
)
def test_chosen_slices_once(seed, memory, replicates, space):
    table = Table(seed, space=space)
    resampling = Resampling(replicates, 5) if replicates else None
    budget = budget_for(table, 1 + replicates, memory)
    rng = np.random.default_rng(seed)
    expected = table.all_counts(table.tuples(), resampling)
    keys = rng.permutation(np.array(list(expected), np.int64))
    keys = keys[: int(rng.integers(0, keys.size + 1))]
    sizes = np.array([space.sizes(expected[key][0]) for key in keys.tolist()], np.int64)
    planned = list(blocks(plan_within(keys, keys, sizes, table.lattice, budget), budget))
    for block in planned:
        assert {one.unit.method for one in block} == {"listed"}
        for one in block:
            assert table_bytes(one.unit, table.lattice, budget) <= one.bytes
            # What can be cut was cut.
            assert one.unit.candidates is not None
            width = one.unit.candidates.size
            assert width == 1 or width * budget.cell_bytes <= memory // 2
        assert len(block) == 1 or sum(one.bytes for one in block) <= memory
    wanted = {key: expected[key] for key in keys.tolist()}
    assert_same(read(table, planned, resampling), wanted)


def test_every_method_is_chosen():
    """The two tests above mean something only if their plans differ."""
    methods = set()
    most_parts, most_added, most_bases = 1, 1, 1
    with pytest.MonkeyPatch.context() as patch:
        small_tables(patch, select=0.0)
        for seed in range(40):
            table = Table(seed)
            candidates = candidates_of(table, np.random.default_rng(seed))
            for memory in (1500, 20_000, 10**9):
                budget = Budget(table.rows, 4, 1, 1, memory)
                for one in plan_listed(*candidates, table.lattice, budget):
                    methods.add(one.unit.method)
                    if one.unit.bases is not None and one.unit.candidates is not None:
                        added = table.lattice.added(one.unit.candidates, one.unit.bases)
                        owners = table.lattice.feature_of[added]
                        most_added = max(most_added, np.unique(owners).size)
                        most_bases = max(most_bases, np.unique(one.unit.bases).size)
                parts = [one.unit.parts for one in plan_all(table.lattice, budget)]
                most_parts = max(most_parts, *parts)
    assert methods == {"dense", "listed"}
    assert most_parts > 3
    assert most_added > 1
    assert most_bases > 1


def test_large_tables_of_few_rows_are_not_counted_inside_at_any_price():
    """Where a table does not fit, the alternative to base slices is to look for the candidates alone."""
    lattice = Table(1, sizes=(900, 900, 900)).lattice
    pair = lattice.keys(np.arange(1, 901)[:, None] * [1, 1] + [0, 900])
    grown = lattice.digits(pair)
    grown[:, 2] = 1801
    candidates = lattice.keys(grown)
    budget = Budget(200_000, 2, 1, 1, 16_000_000)
    sizes = np.full(pair.size, 100_000)
    planned = list(plan_listed(candidates, pair, sizes, lattice, budget))
    assert {one.unit.method for one in planned} == {"listed"}
    assert all(one.unit.bases.tolist() == one.unit.candidates.tolist() for one in planned)  # type: ignore[union-attr]
    few = list(plan_listed(candidates[:3], pair[:3], sizes[:3] // 1000, lattice, budget))
    assert [one.unit.bases.tolist() for one in few] == [pair[:3].tolist()]  # type: ignore[union-attr]


def test_no_candidates():
    table, none = Table(2), np.zeros(0, np.int64)
    budget = Budget(10, 2, 1, 1, 100)
    assert list(plan_listed(none, none, none, table.lattice, budget)) == []
    assert list(plan_within(none, none, none, table.lattice, budget)) == []
    assert list(blocks([], budget)) == []


def budget_of(rows, most_cells=1 << 17):
    return Budget(rows, columns=2, passes=1, layers=1, memory=8 * 16 * most_cells)


def seconds(tables, lattice, rows):
    return sum(
        rows * TABLE_ROW
        + TABLE_UNIT
        + table_cells(features, lattice) * 2 * (TABLE_CELL + len(covered) * MARGIN_CELL)
        for features, covered in tables
    )


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    seed=SEEDS,
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
    assert sorted(features for _, covered in tables for features in covered) == sorted(tuples)
    for members, covered in tables:
        assert list(members) == sorted(set(members))
        for features in covered:
            summed = set(members) - set(features)
            assert summed | set(features) == set(members)
            # An example may stand in several cells of a list's axis, or in none.
            assert not any(lists[feature] for feature in summed)
        if members not in covered:
            assert table_cells(members, lattice) <= most
    alone = [(features, (features,)) for features in tuples]
    # Pairs and singletons come with the triples, at no more than the adding up.
    slack = 2 * MARGIN_CELL * sum(table_cells(members, lattice) for members, _ in tables) * 50
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
