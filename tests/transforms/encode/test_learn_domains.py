import numpy as np
import pyarrow as pa
import pytest

from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
from slicebeam.transforms.encode.learn_domains import learn_domain
from slicebeam.transforms.encode.value_counts import ColumnCounter, ValueCounts
from tests.transforms.encode.test_domains import learn, masks
from tests.transforms.encode.test_sources import search_table, with_roles
from tests.transforms.encode.test_value_counts import SMALL


def test_top_values_and_the_rest():
    domain = learn(pa.array(["a"] * 5 + ["b"] * 4 + ["c"] * 4 + ["d", None]), top_values=2)
    assert [one.to_json() for one in domain.singletons] == [
        {"field": "x", "op": "==", "value": "a"},
        {"field": "x", "op": "==", "value": "b"},
        {"field": "x", "op": "not_in", "value": ["a", "b"]},
        {"field": "x", "op": "is_null"},
    ]


def test_a_heavy_value_has_a_bin_of_its_own_and_no_range_holds_it():
    rng = np.random.default_rng(0)
    numbers = np.round(rng.normal(size=2000), 3)
    numbers[rng.random(2000) < 0.4] = 0.25
    domain = learn(pa.array(numbers), exact_edges=True)
    held = masks(domain, pa.array([0.25]))[:, 0]
    assert [one.op for one, is_in in zip(domain.singletons, held, strict=True) if is_in] == ["=="]
    edges = {e for one in domain.singletons for e in np.atleast_1d(one.value).tolist()}
    assert edges <= set(numbers.tolist())
    sizes = np.bincount(domain.encode(pa.array(numbers)))
    light = np.delete(sizes, held.argmax())
    # A bin may be cut in two where the heavy value is.
    assert light.max() <= 0.11 * (2000 - sizes.max())
    assert 10 <= light.size <= 11


def test_quantile_bins_hold_equal_shares():
    numbers = pa.array(np.random.default_rng(0).permutation(10_000) / 7)
    domain = learn(numbers, bins=8, exact_edges=True)
    assert [one.op for one in domain.singletons] == ["<", *["between"] * 6, ">="]
    assert np.bincount(domain.encode(numbers)).tolist() == [1250] * 8


@pytest.mark.parametrize("kind", ["text", "int"])
def test_ids_beyond_the_exact_limit_are_left_out(kind):
    numbers = np.random.default_rng(4).permutation(40_000)
    values = pa.array(numbers) if kind == "int" else pa.array([f"id {n}" for n in numbers])
    domain = learn(values, SMALL)
    assert isinstance(domain, LeftOutColumn)
    assert "an id" in domain.reason


def test_a_search_beyond_the_exact_limit(tmp_path, monkeypatch):
    """Bins are approximate, and say so; what is counted in them is exact."""
    monkeypatch.setattr(
        "slicebeam.transforms.encode.learn_domains.ColumnCounter",
        lambda kind, _: ColumnCounter(kind, SMALL),
    )
    rng = np.random.default_rng(6)
    numbers = np.where(rng.random(8000) < 0.4, 0.0, rng.normal(size=8000))
    words = np.minimum(rng.zipf(1.4, 8000), 10**9)
    table = with_roles({
        "number": pa.array(numbers, mask=rng.random(8000) < 0.1),
        "word": pa.array([f"word {n}" for n in words]),
        "id": pa.array([f"id {n}" for n in range(8000)]),
    })  # fmt: skip
    found = search_table(tmp_path, table, top_values=4)
    domains = {one["name"]: one for one in found.document["dataset"]["domains"]}
    assert set(domains) == {"number", "word"}
    assert domains["number"]["error"] > 0
    assert {"field": "number", "op": "==", "value": 0.0} in domains["number"]["singletons"]


def learned(values, *, named=False):
    unique, counts = np.unique(np.array(values), return_counts=True)
    counted = ValueCounts(pa.array(unique.tolist()), counts, 0, len(values))
    return learn_domain("x", counted, bins=10, top_values=100, named=named)


def test_ids_of_pairs_are_left_out():
    pairs = np.repeat(np.arange(1000), 2)
    for values in (pairs.tolist(), [f"user {one}" for one in pairs]):
        left = learned(values)
        assert isinstance(left, LeftOutColumn)
        begins = "1,000 distinct values in 2,000, about twice each: an id of pairs"
        assert left.reason.startswith(begins)
        assert "--features" in left.reason
        assert isinstance(learned(values, named=True), FeatureDomain)
    # Some lost their partner, some have a third.
    some = np.concatenate([pairs[60:], np.arange(500, 530)])
    assert isinstance(learned(some.tolist()), LeftOutColumn)
    assert isinstance(learned([f"user {one}" for one in some]), LeftOutColumn)


def test_measurements_that_repeat_as_seldom_stay():
    rng = np.random.default_rng(3)
    for most in (500, 1000, 2000, 10_000, 10**6):
        assert isinstance(learned(rng.integers(0, most, 2000).tolist()), FeatureDomain), most
    # Some names are frequent, though most occur about twice.
    names = [f"name {one}" for one in np.repeat(np.arange(900), 2)] + ["Miller"] * 200
    assert isinstance(learned(names), FeatureDomain)
