"""Metrics are found by name and share statistics; ids of examples that have none."""

import itertools
from collections import Counter
from itertools import count
from math import inf

import numpy as np
import pytest

from slicebeam.metrics.counting.statistic_space import BUCKETS, StatisticSpace, Term
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.kinds import COMPARISONS
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.randomness import occurrence_ids, poisson_weights, repeats
from slicebeam.metrics.registry import averaged_column, metric, metrics, statistic_space
from slicebeam.transforms.encode.passes import _numbers
from slicebeam.transforms.storage.arrow_files import write_arrow
from tests.refusals import refuses


def test_every_metric_is_found_by_its_name():
    assert list(metrics()) == sorted(metrics())
    assert {"accuracy", "error_rate", "auc", "log_loss", "f1", "mcc"} <= set(metrics())
    for name, found in metrics().items():
        assert found.name == name
        assert metric(name) is found
        assert found.title
        assert found.range[0] < found.range[1]
        needs = found.needs
        assert needs.indicators or needs.classes or needs.values
        assert found.kind in ("pointwise", "aggregate")
        assert found.min_slice_size >= 20


def test_an_unknown_metric_names_its_neighbour():
    refuses(InputError, r"'acuracy'.*accuracy", metric, "acuracy")


def test_metrics_with_a_parameter():
    price = metric("mean:price")
    assert isinstance(price, Mean)
    assert price.name == "mean:price"
    assert price.needs.values == ("mean:price",)
    assert price.range == (-inf, inf)
    assert not price.compares_models
    assert metric("mean:a:b").needs.values == ("mean:a:b",)
    assert averaged_column("mean:a:b") == "a:b"
    assert averaged_column("accuracy") is None
    assert metric("fbeta:2.0").name == "fbeta:2"
    assert metric("fbeta:2").title == "F-beta (2)"


@pytest.mark.parametrize("number", ["0", "-1", "inf", "nan", "two", ""])
def test_a_wrong_number_is_refused(number):
    for name, expected in (
        ("fbeta", "beta must be a number above 0"),
        ("pinball", "the quantile must be between 0 and 1"),
        ("recall_at_fpr", "the rate must be between 0 and 1"),
        ("ndcg", ".* whole number above 0, such as ndcg:10"),
        ("top_k_accuracy", ".* whole number above 0"),
    ):
        refuses(InputError, f"{name}:{number}: {expected}", metric, f"{name}:{number}")


def test_a_mean_without_a_column_is_unknown():
    refuses(InputError, "mean:COLUMN", metric, "mean:")


def test_metrics_that_need_the_same_bits_share_cells():
    shared = statistic_space(["accuracy", "error_rate"], "overall")
    assert shared == StatisticSpace(("wrong",), "overall")
    paired = statistic_space(["accuracy"], "baseline")
    assert paired.cells == 4
    assert paired.holds("wrong").tolist() == [False, True, False, True]
    assert paired.holds("wrong", old=True).tolist() == [False, False, True, True]
    two = StatisticSpace(("label", "wrong"), "overall")
    assert two.cells == 4
    assert two.holds("wrong").tolist() == [False, False, True, True]
    # The label is one bit for both models.
    assert statistic_space(["recall", "precision"], "baseline").cells == 8


def test_metrics_of_the_same_value_share_sums():
    one = statistic_space(["log_loss"], "overall")
    assert one.terms == (Term("log_loss", "new", 1), Term("log_loss", "new", 2))
    assert one.total_terms == (Term("log_loss", "new", 3),)
    assert one.cells == 1
    assert statistic_space(["log_loss", "log_loss"], "overall") == one
    ranked = statistic_space(["auc"], "overall")
    assert (ranked.cells, ranked.raw_columns) == (2, 2 + 2 * BUCKETS)


@pytest.mark.parametrize(
    ("comparison", "weighted"), list(itertools.product(COMPARISONS, [False, True]))
)
def test_a_space_has_what_each_of_its_metrics_needs(comparison, *, weighted):
    names = [*metrics(), "fbeta:2"]
    everything = statistic_space(names, comparison, weighted=weighted)  # type: ignore[arg-type]
    for name in names:
        own = statistic_space([name], comparison, weighted=weighted)  # type: ignore[arg-type]
        assert set(own.terms) <= set(everything.terms)
        assert set(own.total_terms) <= set(everything.total_terms)
        assert set(own.axes) <= set(everything.axes)
        assert everything.ranked
        assert own.weighted is everything.weighted is weighted
    assert len(set(everything.terms)) == len(everything.terms)


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
    held = Counter(together.tolist())
    for value, times in held.items():
        assert sorted(numbers[together == value].tolist()) == list(range(times))
