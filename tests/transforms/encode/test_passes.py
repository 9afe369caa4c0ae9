from collections import Counter
from itertools import count

import numpy as np
import pytest

from slicebeam.metrics.randomness import occurrence_ids, poisson_weights, repeats
from slicebeam.transforms.encode.passes import _numbers
from slicebeam.transforms.storage.work_files import write_arrow


def numbers_of(contents):
    numbers = np.zeros(contents.size, np.uint64)
    rows, found = repeats(contents)
    numbers[rows] = found
    return numbers


@pytest.mark.parametrize("distinct", [1, 3, 700, 10**9])
def test_equal_examples_are_numbered_from_0(distinct):
    contents = np.random.default_rng(distinct).integers(0, distinct, 2000).astype(np.uint64)
    counters = {value: count() for value in contents.tolist()}
    expected = [next(counters[value]) for value in contents.tolist()]
    np.testing.assert_array_equal(numbers_of(contents), expected)
    rows, _ = repeats(contents)
    assert (np.diff(rows) > 0).all()


def test_equals_that_differ_by_rounding_are_numbered_in_any_order():
    contents = np.array([7, 7, 5, 7], np.uint64)
    weights = np.array([0.3, 0.1 + 0.2, 1.0, 0.1])
    of = {}
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [1, 3, 2, 0]):
        rows, found = repeats(contents[order], weights[order])
        numbers = np.zeros(4, np.int64)
        numbers[rows] = found
        of[tuple(order)] = dict(zip(weights[order].tolist(), numbers.tolist(), strict=True))
    assert all(one == {0.1: 0, 0.3: 1, 0.1 + 0.2: 2, 1.0: 0} for one in of.values())


def test_no_examples():
    assert [one.size for one in repeats(np.zeros(0, np.uint64))] == [0, 0]


def test_ids_are_distinct_and_the_same_in_any_order():
    rng = np.random.default_rng(5)
    contents = rng.integers(0, 2**64, 800, dtype=np.uint64)[rng.integers(0, 800, 3000)]
    ids = occurrence_ids(contents, numbers_of(contents))
    assert np.unique(ids).size == 3000
    shuffled = rng.permutation(contents)
    other = occurrence_ids(shuffled, numbers_of(shuffled))
    np.testing.assert_array_equal(np.sort(ids), np.sort(other))
    # The weights of equal examples are independent: 3,000 copies of one are as many as 3,000 others.
    same = np.full(3000, 12345, np.uint64)
    total = poisson_weights(1, np.arange(400)[:, None], occurrence_ids(same, numbers_of(same))).sum(
        1
    )
    assert total.mean() == pytest.approx(3000, abs=4 * np.sqrt(3000 / 400))
    assert total.var() == pytest.approx(3000, rel=0.3)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_numbers_over_shards_are_a_count_of_all(tmp_path, parts):
    import pyarrow as pa

    rng = np.random.default_rng(8)
    values = rng.integers(0, 2**64, 60, dtype=np.uint64)
    shards, contents = [], []
    for number, rows in enumerate((500, 0, 1, 900)):
        own = values[rng.integers(0, values.size, rows)]
        batch = pa.record_batch([pa.array(own, pa.uint64())], names=["content"])
        write_arrow(tmp_path / f"{number}.arrow", batch.schema, [batch])
        shards.append(tmp_path / f"{number}.arrow")
        contents.append(own)
    found = [np.zeros(own.size, np.uint64) for own in contents]
    for part in range(parts):
        batches = list(_numbers([*map(str, shards)], "content", parts, 0.0, part))
        assert len(batches) == len(shards)
        for at, batch in enumerate(batches):
            found[at][batch.column("row").to_numpy()] += batch.column("number").to_numpy()
    together, numbers = np.concatenate(contents), np.concatenate(found)
    for value, times in Counter(together.tolist()).items():
        assert sorted(numbers[together == value].tolist()) == list(range(times))
