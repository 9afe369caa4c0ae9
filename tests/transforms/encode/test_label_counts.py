"""Counts of the label by the values of features, against counting the pairs of all examples."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.transforms.encode.extract_predictions import count_labels, sum_labels


def summed(labels, codes, radix, cuts):
    """Count in shards, whose facts are JSON."""
    parts = zip(np.split(np.array(labels), cuts), np.split(codes, cuts), strict=True)
    shards = [count_labels(pa.array(own.tolist()), [code], [radix]) for own, code in parts]
    return sum_labels(json.loads(json.dumps(shards)), [radix])


@pytest.mark.parametrize("names", [["no", "yes", "maybe"], [0, 1, 7], [0.0, 2.0, -1.0]])
def test_counts_are_those_of_the_pairs_however_the_rows_are_cut(names):
    draw = np.random.default_rng(3)
    labels = [names[at] for at in draw.choice(3, 500, p=[0.9, 0.09, 0.01])]
    codes = draw.integers(0, 5, 500)
    pairs = Counter(zip(codes.tolist(), labels, strict=True))
    for cuts in ([], [100, 101, 480], list(range(20, 500, 20))):
        found = summed(labels, codes, 6, cuts)
        assert found is not None
        assert found.classes == tuple(sorted(set(labels)))
        assert found.sizes.tolist() == [labels.count(name) for name in found.classes]
        (table,) = found.tables
        assert table is not None
        assert table.tolist() == [[pairs[c, name] for name in found.classes] for c in range(6)]


def test_equal_numbers_are_one_class():
    found = sum_labels([count_labels(pa.array([0.0, -0.0, 1.0]), [np.array([0, 0, 1])], [2])], [2])
    assert found is not None
    assert found.classes == (0.0, 1.0)
    assert found.sizes.tolist() == [2, 1]
    assert found.tables[0] is not None
    assert found.tables[0].tolist() == [[2, 0], [0, 1]]


def test_what_has_too_many_cells_is_not_counted_however_the_rows_are_cut():
    # A shard has two classes, all shards have four: 1,100 codes are few enough for a shard only.
    labels, codes = ["a", "b"] * 10 + ["c", "d"] * 10, np.arange(40)
    for cuts in ([], [20]):
        found = summed(labels, codes, 1100, cuts)
        assert found is not None
        assert found.tables == (None,)
        assert found.sizes.tolist() == [10, 10, 10, 10]


def test_lists_are_not_counted():
    lists = Ragged(np.array([0, 1, 3]), np.array([0, 0, 1]))
    found = sum_labels([count_labels(pa.array(["a", "b"]), [lists], [2])], [2])
    assert found is not None
    assert found.tables == (None,)


def test_without_classes_there_are_no_counts():
    numbers = pa.array(list(range(1001)))
    assert count_labels(None, [], []) is None
    assert count_labels(numbers, [], []) is None
    assert sum_labels([None], []) is None
