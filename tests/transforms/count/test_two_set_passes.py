import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.counting.statistic_space import Range
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.significance import few_cells
from slicebeam.metrics.significance.random_subset import bin_sums
from slicebeam.transforms.count.two_set_passes import (
    CountPairs,
    CountValues,
    SumResiduals,
    TwoSetRows,
    bin_values,
    read_bins,
    starts,
)
from slicebeam.transforms.encode.shards import Scaling, Shard, write_shard

LATTICE = Lattice((3, 2), 2, unmatched=(False, True))


@pytest.fixture
def rows(tmp_path):
    """Two features, of which the second has rows without a predicate; cells: wrong, then earlier."""
    rng = np.random.default_rng(0)
    columns = {"first": rng.integers(0, 3, 500), "second": rng.integers(0, 3, 500)}
    columns |= {"wrong": rng.integers(0, 2, 500), "then": rng.integers(0, 2, 500)}
    cells = (columns["wrong"] + 2 * columns["then"]).astype(np.uint8)
    facts = {"start_row": 0, "rows": 500, "pairs": {}}
    codes = [columns["first"], columns["second"]]
    write_shard(tmp_path / "a.arrow", codes, [3, 3], {"cell": cells}, facts)
    return columns, [Shard(tmp_path / "a.arrow")]


def scaling():
    return Scaling(statistic_space(["accuracy"], "earlier"))


def two_sets(is_new=(), findings=()):
    new = np.zeros(6, bool)
    new[list(is_new)] = True
    keys = np.array(findings, np.int64)
    return TwoSetRows(metric("accuracy"), LATTICE, scaling(), new, keys)


def test_values_are_counted_by_data_set(rows):
    columns, shards = rows
    assert starts(LATTICE).tolist() == [0, 3, 6]
    counts = CountValues(LATTICE, scaling())(shards)["counts"].reshape(2, 6)
    for side in (0, 1):
        mine = columns["then"] == side
        expected = [np.bincount(columns[name][mine], minlength=3) for name in ("first", "second")]
        assert counts[side].tolist() == np.concatenate(expected).tolist()


def test_pairs_are_products_of_indicators(rows):
    columns, shards = rows
    first_and_second = LATTICE.keys_of_sets(np.array([[2, 4]]))
    found = CountPairs(two_sets(is_new=[2], findings=first_and_second))(shards)
    both, crossed = found["both"].reshape(2, 7, 7), found["crossed"].reshape(2, 7)
    Z = np.column_stack(
        [
            *(columns["first"] == value for value in range(3)),
            *(columns["second"] == value for value in range(3)),
            (columns["first"] == 1) & (columns["second"] == 0),
        ]
    ).astype(float)
    kept = columns["first"] != 2
    for side in (0, 1):
        mine = kept & (columns["then"] == side)
        product = Z[mine].T @ Z[mine]
        # What is below the diagonal is left out.
        assert np.allclose(np.triu(both[side]), np.triu(product))
        assert np.allclose(crossed[side], Z[mine].T @ columns["wrong"][mine])
        n, total = mine.sum(), columns["wrong"][mine].sum()
        assert found["sums"].reshape(2, 3)[side].tolist() == [n, total, total]


def test_values_are_counted_by_bin_about_a_centre(tmp_path):
    rng = np.random.default_rng(1)
    first, then = rng.integers(0, 3, 400), rng.integers(0, 2, 400)
    loss = rng.lognormal(0, 1, 400)
    columns = {"cell": then.astype(np.uint8), "new mae": loss}
    facts = {"start_row": 0, "rows": 400, "pairs": {}}
    codes = [first, np.zeros(400, int)]
    write_shard(tmp_path / "a.arrow", codes, [3, 3], columns, facts)
    space = statistic_space(["mae"], "earlier")
    space = space.scaled({("mae", False): Range(0.0, float(loss.max()))}, 1.0, 400)
    keys = np.sort(LATTICE.keys_of_sets(np.array([[1, 0], [2, 0]])))
    centres, deviations = np.array([1.0, 2.0]), np.array([0.5, 3.0])
    slices = pa.table({"key": keys, "centre": centres, "deviation": deviations})
    path = str(tmp_path / "a.arrow")
    written = bin_values(
        metric("mae"), LATTICE, Scaling(space), (path,), slices, tmp_path / "parts"
    )
    part = pa.Table.from_batches([written.function((0, 2), written.shared)])
    bins = read_bins(part)
    values = LATTICE.digits(part["key"].to_numpy())[:, 0] - 1
    for at, value in enumerate(values.tolist()):
        mine = (loss[first == value] - centres[at]) / deviations[at]
        expected = bin_sums(mine, few_cells.EDGES, few_cells.UNIT)
        assert np.abs(bins[at] - expected).max() <= 2
        assert bins[at, 0].sum() == mine.size


def test_residuals_are_by_the_first_finding(rows):
    columns, shards = rows
    keys = LATTICE.keys_of_sets(np.array([[2, 0], [4, 0]]))
    coefficients = np.array([0.0, 0.1, 0.2, 0.0, 0.05, -0.1, 0.0, 0.3])
    sums = SumResiduals(two_sets(findings=np.sort(keys)[::-1]), 0.25, coefficients)(shards)
    sums = sums["sums"].reshape(3, 3)
    now = columns["then"] == 0
    in_first, in_second = (columns["first"] == 1)[now], (columns["second"] == 0)[now]
    expected = 0.25 + coefficients[columns["first"]] + coefficients[3 + columns["second"]]
    deviation = (columns["wrong"] - expected)[now] - 0.3 * in_first
    cell = np.where(in_second, 0, np.where(in_first, 1, 2))
    for power in range(3):
        assert np.allclose(sums[:, power], np.bincount(cell, deviation**power, 3))
