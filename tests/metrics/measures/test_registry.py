"""Metrics are found by name and share statistics; ids of examples that have none."""

import itertools
from math import inf

import pytest

from slicebeam.metrics.counting.statistic_space import BUCKETS, StatisticSpace, Term
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.registry import averaged_column, metric, metrics, statistic_space
from tests.option_words import COMPARISONS
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
    assert (price.name, price.needs.values) == ("mean:price", ("mean:price",))
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
