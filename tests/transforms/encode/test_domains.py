"""Feature domains: how columns are cut, the code of every value, and where values come from."""

import datetime as dt
import decimal
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.transforms.encode.column_values import arrow_type
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.domains import ColumnSummary, FeatureDomain, LeftOutColumn
from slicebeam.transforms.encode.frozen_domains import FrozenBins, FrozenDomain, with_new_values
from slicebeam.transforms.encode.learn_domains import learn_domain
from slicebeam.transforms.encode.predicates import Singleton, arrow_values, json_values
from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split
from slicebeam.transforms.encode.value_counts import ColumnCounter, ValueCounts
from tests.conftest import slow
from tests.oracles import predicates
from tests.running import search
from tests.transforms.encode.test_inputs import (
    INF,
    check,
    cycled,
    left_out,
    names,
    raw,
    search_table,
    searched,
    with_roles,
)

SMALL = 1 << 15


def count(values, most_bytes=1 << 28, rows=5000):
    counter = ColumnCounter(values.type, most_bytes)
    for begin in range(0, len(values), rows):
        counter.add(pa.chunked_array([values.slice(begin, rows)]))
    return counter.result()


def learn(values, most_bytes=1 << 28, *, bins=10, top_values=100, **options):
    counted, error = count(values, most_bytes)
    options = {"named": False, "error": error, **options}
    return learn_domain("x", counted, bins=bins, top_values=top_values, **options)


def masks(domain, values):
    frame = raw(pa.table({"x": values}))
    return np.array([predicates.mask(frame, {"all": [s.to_json()]}) for s in domain.singletons])


def assert_encodes(domain, values):
    """The code of a value is the one predicate that it satisfies, or no code where there is none."""
    held = masks(domain, values)
    assert (held.sum(0) <= 1).all()
    expected = np.where(held.any(0), held.argmax(0), domain.size)
    np.testing.assert_array_equal(domain.encode(values), expected)
    if domain.closed:
        assert held.any(0).all()


KINDS = {
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=3)),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "milliseconds": (pa.time32("ms"), st.integers(0, 86_400_000 - 1)),
    "nanoseconds": (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    "zoned": (pa.timestamp("us", "America/New_York"), st.integers(0, 2 * 10**15)),
    "decimal": (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
}


@settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_predicates_survive_json(kind, data):
    data_type, value = KINDS[kind]
    values = pa.array(data.draw(st.lists(value, max_size=5)), data_type)
    text = json.dumps(json_values(values), allow_nan=False)
    back = arrow_values(json.loads(text), arrow_type(str(data_type)))
    assert back.type == data_type
    assert back.equals(values)


@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), bins=st.integers(2, 5), top_values=st.integers(1, 4))
@pytest.mark.slow
def test_codes_are_what_predicates_say(kind, data, bins, top_values):
    data_type, value = KINDS[kind]
    column = st.lists(st.none() | value, min_size=1, max_size=30)
    values = pa.array(data.draw(column), data_type)
    domain = learn(values, bins=bins, top_values=top_values)
    assume(isinstance(domain, FeatureDomain))
    assert_encodes(domain, values)
    # The same bins on other data: what satisfies none has no code.
    other = pa.array(data.draw(column), data_type)
    opened = FeatureDomain(
        domain.name, domain.kind, domain.data_type, domain.singletons, closed=False
    )
    assert_encodes(opened, other)


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


def _times(numbers):
    return pa.array(numbers, pa.timestamp("us"))


SKETCHED = {
    "double": lambda n: pa.array(n / 8),
    "float": lambda n: pa.array((n / 8).astype(np.float32)),
    "int": pa.array,
    "uint64": lambda n: pa.array(n.astype(np.uint64) + np.uint64(2**40)),
    "decimal": lambda n: pa.array([decimal.Decimal(v) / 100 for v in n.tolist()]),
    "timestamp": _times,
    "date": lambda n: pa.array((n % 40_000).astype(np.int32)).view(pa.date32()),
}


@pytest.mark.parametrize("share", [0.0, 0.3], ids=["all light", "one heavy"])
@pytest.mark.parametrize("kind", SKETCHED)
def test_numbers_beyond_the_exact_limit(kind, share):
    rng = np.random.default_rng(4)
    numbers = rng.integers(1, 20_000, 30_000)
    numbers[rng.random(30_000) < share] = 4000
    # No quantile is below or above these.
    numbers[:2] = [0, 30_000]
    values = SKETCHED[kind](numbers)
    domain = learn(values, SMALL, exact_edges=True)
    assert 0 < domain.error < 0.005
    held = masks(domain, values[:3000])
    assert (held.sum(0) == 1).all()
    np.testing.assert_array_equal(domain.encode(values[:3000]), held.argmax(0))
    codes = domain.encode(values)
    assert codes.max() < domain.size
    # An edge is off by the stated error at the most, and at each end by the grid of quantiles.
    sizes = np.bincount(codes, minlength=domain.size) / len(codes)
    ranges = [s for s, one in zip(sizes, domain.singletons, strict=True) if one.op != "=="]
    assert max(ranges) <= (1 - share) / 10 + 2 * (domain.error + 1 / 2000)
    points = [s for s, one in zip(sizes, domain.singletons, strict=True) if one.op == "=="]
    assert len(points) == bool(share)


def test_texts_beyond_the_exact_limit():
    numbers = np.minimum(np.random.default_rng(4).zipf(1.4, 60_000), 20_000)
    values = pa.array([f"word {n}" for n in numbers])
    counted, error = count(values, SMALL)
    true = pd.Series(values.to_pylist()).value_counts()
    assert 0 < error < 1e-3
    off = np.array(counted.counts) - true[counted.values.to_pylist()].to_numpy()
    assert np.abs(off).max() <= error * len(values)
    assert counted.distinct == pytest.approx(len(true), rel=0.05)
    domain = learn(values, SMALL, top_values=20)
    assert {one.value for one in domain.singletons[:20]} == set(true.index[:20])
    assert domain.singletons[-1].op == "not_in"
    assert_encodes(domain, values[:2000])


@pytest.mark.parametrize("kind", ["text", "int"])
def test_ids_beyond_the_exact_limit_are_left_out(kind):
    numbers = np.random.default_rng(4).permutation(40_000)
    values = pa.array(numbers) if kind == "int" else pa.array([f"id {n}" for n in numbers])
    domain = learn(values, SMALL)
    assert isinstance(domain, LeftOutColumn)
    assert "an id" in domain.reason


def test_lists_beyond_the_exact_limit():
    numbers = np.random.default_rng(4).integers(10**6, 2 * 10**6, 15_000)
    values = pa.array([[int(n), int(n) % 3, int(n) % 3] for n in numbers] + [None, []])
    domain = learn(values, SMALL, top_values=3)
    assert {one.value for one in domain.singletons[:3]} == {0, 1, 2}
    offsets, codes = domain.encode_lists(values)
    held = masks(domain, values)
    assert np.diff(offsets).tolist() == held.sum(0).tolist()
    np.testing.assert_array_equal(np.bincount(codes), held.sum(1))


def test_domains_of_an_earlier_run(tmp_path):
    """The same predicates on new data, some of whose values satisfy none."""
    first = with_roles(
        {
            "n": cycled(list(range(50))),
            "word": cycled(["a", "b", None]),
            "many": cycled([f"v{i}" for i in range(60)]),
            "day": cycled([dt.date(2024, 1, i + 1) for i in range(28)]),
            "tags": cycled([["x"], ["y", "x"], None]),
        }
    )
    before = search_table(tmp_path, first, top_values=5)
    second = with_roles(
        {
            "new": cycled([1, 2]),
            "tags": cycled([["x", "z"], ["z"], [], ["y"]]),
            "day": cycled([dt.date(2025, 1, i + 1) for i in range(28)]),
            "many": cycled(["v1", "never seen", None]),
            "word": cycled(["a", "c", "b"]),
            "n": cycled([-5.5, 3.0, 200.0, None]),
        }
    )
    pq.write_table(second, tmp_path / "second.parquet")
    domains = str(tmp_path / "out" / "changelist.json")
    after = search(
        tmp_path / "after",
        data=(str(tmp_path / "second.parquet"),),
        domains=domains,
        label="label",
        prediction="prediction",
        min_slice_size=1,
        max_cross_size=2,
    )
    shapes = [one.domains() for one in (before, after)]
    # What was not there, or not frequent, comes after what was.
    added = {"word": [("==", "c")], "tags": [("contains", "z")], "n": [("is_null", None)]}
    added["many"] = [("==", "never seen"), ("==", "v1"), ("is_null", None)]
    for f, singles in shapes[0].items():
        kept = [one for one in singles if one["all"][0]["op"] != "not_in"]
        now = [one for one in shapes[1][f] if one["all"][0]["op"] != "not_in"]
        assert now[: len(kept)] == kept
        new = [(one["all"][0]["op"], one["all"][0].get("value")) for one in now[len(kept) :]]
        assert new == added.get(f, [])
    assert {f: len(one) for f, one in after.domains().items() if f not in shapes[0]} == {"new": 2}
    assert after.document["dataset"]["left_out"] == []
    frame = raw(second)
    check(after, frame, (frame["label"] == frame["prediction"]).to_numpy(bool))
    words = after.table[after.table["slice"].isin(["word = a", "word = b", "word is missing"])]
    assert words["n"].unique().tolist() == [(frame["word"] == word).sum() for word in "ab"]


def again(folder, before, now, **options):
    """Search with the domains of another table, and hold the counts against pandas."""
    search_table(folder, with_roles(before), **options)
    table = with_roles(now)
    pq.write_table(table, folder / "now.parquet")
    domains = str(folder / "out" / "changelist.json")
    found = searched(folder / "now", [folder / "now.parquet"], domains=domains, max_cross_size=1)
    # numpy's types, as most users have them: pandas rounds a constant to their width.
    numbers = {name for name in now if pa.types.is_floating(now[name].type)}
    frame = raw(table)
    frame[[*numbers]] = table.select([*numbers]).to_pandas()
    check(found, frame, (frame["label"] == frame["prediction"]).to_numpy(bool))
    return found


TENTHS = [i / 10 for i in range(-30, 200, 7)]
NUMBERS = {
    "double": lambda: cycled([*TENTHS, 9.8, 0.25, -0.0, None, INF]),
    "float": lambda: cycled([*TENTHS, 9.8, 0.25, -0.0, None, -INF], pa.float32()),
    "int64": lambda: cycled([*range(-9, 20), 2**40, None]),
    "int8": lambda: cycled([*range(-9, 20), 127], pa.int8()),
    "uint64": lambda: cycled([*range(30)], pa.uint64()),
    "few": lambda: cycled([0, 1, 2, 5, 9, 16]),
    "mostly": lambda: cycled([0.25] * 9 + [0.5, 9.8, 1.0]),
}


# The others take long and differ less.
@pytest.mark.parametrize(
    "before", [kind if kind in ("double", "int64") else slow(kind) for kind in NUMBERS]
)
def test_domains_of_another_number_type(tmp_path, before):
    now = {kind: make() for kind, make in NUMBERS.items()}
    if before in ("int64", "int8"):
        # No unsigned column holds their negative edges.
        del now["uint64"]
    found = again(tmp_path, {kind: NUMBERS[before]() for kind in now}, now)
    assert names(found) == set(now)
    # The predicates are those of the earlier run; some examples of each type satisfy them.
    for kind in now:
        assert found.table["slice"].str.startswith(f"{kind} ").any()


def test_integers_that_pandas_reads_as_fractions(tmp_path):
    """Missing values make floats of a column of integers; they are none of the other values."""
    before = {"few": cycled([0, 1, 2]), "more": cycled([0, 0, 1, 2, 3])}
    before["list"] = cycled([[1, 2], [3], None])
    now = {
        "few": cycled([1.0, float("nan"), None, 2.0, -0.0, 0.5]),
        "more": cycled([1.0, float("nan"), 7.0, 0.0, None]),
        "list": cycled([[1.0, float("nan")], [3.0, None], None]),
    }
    found = again(tmp_path, before, now, top_values=2)
    sizes = dict(zip(found.table["slice"], found.table["n"], strict=True))
    assert sizes["more not in {0, 1}"] == now["more"].to_pylist().count(7.0)
    assert sizes["list is missing"] == now["list"].null_count


@pytest.mark.parametrize(("before", "now"), [
    slow(pa.timestamp("s"), pa.timestamp("us")),
    (pa.timestamp("us"), pa.timestamp("s")),
    (pa.timestamp("ns", "UTC"), pa.timestamp("ms", "Europe/Berlin")),
    slow(pa.time32("s"), pa.time64("us")),
    (pa.time64("ns"), pa.time32("ms")),
    slow(pa.decimal128(9, 1), pa.decimal128(12, 3)),
    (pa.decimal128(12, 3), pa.decimal128(9, 1)),
], ids=str)  # fmt: skip
def test_domains_of_a_finer_and_a_coarser_type(tmp_path, before, now):
    def column(kind):
        if pa.types.is_decimal(kind):
            step = decimal.Decimal(1).scaleb(-kind.scale)
            return cycled([i + step for i in range(50)], kind)
        second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return cycled([i * second + (second > 1) for i in range(50)], kind)

    assert len(again(tmp_path, {"x": column(before)}, {"x": column(now)}).table) >= 10


NAIVE = pa.timestamp("us")
NARROW = "float is too narrow to tell its predicates apart; cast the column to double"
MISFITS = {
    "text": (cycled([*range(50)]), cycled(["a", "b"]), "was int64 and is string now"),
    "decimal": (cycled([decimal.Decimal(i) / 8 for i in range(50)]), cycled([i / 8 for i in range(50)]), "was decimal128(4, 3) and is double now"),
    "no decimal": (cycled([*range(50)]), cycled([decimal.Decimal(i) for i in range(50)]), "was int64 and is decimal128(2, 0) now"),
    "zone": (cycled([*range(50)], NAIVE), cycled([*range(50)], pa.timestamp("us", "UTC")), "was timestamp[us] and is timestamp[us, tz=UTC] now"),
    "no zone": (cycled([*range(50)], pa.timestamp("us", "UTC")), cycled([*range(50)], NAIVE), "was timestamp[us, tz=UTC] and is timestamp[us] now"),
    "list": (cycled(["a", "b"]), cycled([["a"], ["b"]]), "was string and is list<string> now"),
    "no list": (cycled([["a"], ["b"]]), cycled(["a", "b"]), "was list<string> and is string now"),
    "list of numbers": (cycled([1, 2]), cycled([[1], [2]]), "was int64 and is list<int64> now"),
    "negative": (cycled([*range(-50, 50)]), cycled([*range(50)], pa.uint64()), "do not fit a column of uint64"),
    "narrow": (cycled([0.25] * 9 + [0.25 + 2**-50, 0.75, 0.5]), cycled([0.25, 0.5], pa.float32()), NARROW),
    "narrow integers": (cycled([2**24, 2**24 + 1]), cycled([1.0, 2.0], pa.float32()), NARROW),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_domains_that_do_not_fit(tmp_path, name):
    before, now, message = MISFITS[name]
    with pytest.raises(InputError) as caught:
        again(tmp_path, {"x": before}, {"x": now})
    path = tmp_path / "out" / "changelist.json"
    assert str(caught.value).startswith(f"--domains {path}: column 'x'")
    assert message in str(caught.value)


def test_features_that_the_data_lacks_are_said(tmp_path):
    found = again(tmp_path, {f: cycled([1, 2]) for f in ("a", "gone", "b")}, {"a": cycled([1])})
    path = tmp_path / "out" / "changelist.json"
    reason = f"in {path} but not in this data"
    assert left_out(found) == {"gone": reason, "b": reason}


@pytest.mark.parametrize(("values", "kind"), [
    ([9.8], pa.int64()),
    ([0.1 + 1e-12], pa.float32()),
    ([2**53 + 1], pa.float64()),
    (["1.5"], pa.float64()),
    ([-1], pa.uint64()),
    (["1.25"], pa.decimal128(9, 1)),
    (["2024-01-01T00:00:00.5"], pa.timestamp("s")),
    (["10:00:00.5"], pa.time32("s")),
    (["2024-01-01T10:00:00"], pa.date32()),
], ids=str)  # fmt: skip
def test_values_that_a_type_does_not_hold(values, kind):
    with pytest.raises(InputError, match="do not fit a column of"):
        arrow_values(values, kind)


def test_long_and_odd_texts_are_readable():
    long = "x" * 400_000
    for op, value in [("==", long), ("contains", long), ("in", [long]), ("not_in", [long, "a"])]:
        text = str(Singleton("f", op, value))
        assert 60 < len(text) < 90
        assert "x…" in text
    assert str(Singleton("f", "==", "x" * 60)) == "f = " + "x" * 60
    assert str(Singleton("f", "==", "a, " * 100)).endswith('a, a,…"')
    assert str(Singleton("f", "==", "two\nlines")) == 'f = "two\\nlines"'
    assert str(Singleton("f", "==", "\x9b1m\u2028")) == 'f = "\\u009b1m\\u2028"'
    assert str(Singleton("a word", "==", 1)) == "a word = 1"
    assert str(Singleton("a = b", "is_null")) == '"a = b" is missing'
    assert str(Singleton(" a", "between", [1, 2])) == '" a" in [1, 2)'
    assert str(Singleton("a\n", "not_in", [1])) == '"a\\n" not in {1}'
    assert str(Singleton("a\x1b", "in", [1])) == '"a\\u001b" in {1}'
    assert len(learn(pa.array([long])).reason) < 90


def test_a_search_beyond_the_exact_limit(tmp_path, monkeypatch):
    """Bins are approximate, and say so; what is counted in them is exact."""
    monkeypatch.setattr(
        "slicebeam.transforms.encode.learn_domains.ColumnCounter",
        lambda kind, _: ColumnCounter(kind, SMALL),
    )
    rng = np.random.default_rng(6)
    numbers = np.where(rng.random(8000) < 0.4, 0.0, rng.normal(size=8000))
    words = np.minimum(rng.zipf(1.4, 8000), 10**9)
    table = with_roles(
        {
            "number": pa.array(numbers, mask=rng.random(8000) < 0.1),
            "word": pa.array([f"word {n}" for n in words]),
            "id": pa.array([f"id {n}" for n in range(8000)]),
        }
    )
    found = search_table(tmp_path, table, top_values=4)
    domains = {one["name"]: one for one in found.document["dataset"]["domains"]}
    assert set(domains) == {"number", "word"}
    assert domains["number"]["error"] > 0
    assert {"field": "number", "op": "==", "value": 0.0} in domains["number"]["singletons"]


# Values that an earlier run's domain never saw: their codes, their gaps, and what is not known.


def domain_of(kind, data_type, *predicates, **how):
    singletons = tuple(Singleton("x", *one) for one in predicates)
    return FeatureDomain("x", kind, data_type, singletons, **{"closed": False, **how})


POINT, MISSING = ("==", 5.0), ("is_null",)
GAPS = domain_of(
    "numeric", "double", ("between", [0.0, 1.0]), POINT, ("between", [7.0, 8.0]), MISSING
)
TEXTS = domain_of("categorical", "string", ("==", "a"), ("==", "b"), MISSING)


@pytest.mark.parametrize(("open_domain", "values"), [
    (GAPS, [-1.0, 0.0, 0.5, 1.0, 4.9, 5.0, 5.1, 6.9, 7.0, 7.9, 8.0, 99.0, None]),
    (TEXTS, ["a", "c", None, "b"]),
])  # fmt: skip
def test_a_value_without_a_predicate_has_the_code_after_the_last(open_domain, values):
    assert_encodes(open_domain, pa.array(values))
    assert open_domain.radix == open_domain.size + 1


def test_a_value_that_a_closed_domain_does_not_hold_changed_while_it_was_read():
    with pytest.raises(ColumnError, match="changed while it was read: c has no bin"):
        learn(pa.array(["a", "b", "a", "b"])).encode(pa.array(["a", "c"]))


@pytest.mark.parametrize("rows", [1, 4, 11])
def test_numbers_outside_the_bins_are_counted_against_numpy(rows):
    """However they are cut into chunks, those at the very edges too."""
    values = np.array([-2.0, 0.0, 0.5, 1.0, 1.0, 5.0, 6.0, 7.5, 8.0, 8.0, 9.0])
    seen = ColumnSummary(0, low=0.0, high=8.0)
    bins = FrozenBins(FrozenDomain(domain_of("numeric", "double", *_of(GAPS), seen=seen), 100))
    for begin in range(0, len(values), rows):
        bins.add(pa.chunked_array([pa.array(values[begin : begin + rows])]))
    found = bins.result()
    assert found.closed
    assert_encodes(found, pa.array(values))
    held = ((values >= 0) & (values < 1)) | (values == 5) | ((values >= 7) & (values < 8))
    assert found.seen.other == (~held).sum()
    assert (found.seen.below, found.seen.above) == ((values < 0).sum(), (values > 8).sum())


def _of(of):
    return [(one.op, one.value) for one in of.singletons]


@pytest.mark.parametrize(("old", "largest", "missing"), [
    (domain_of("categorical", "string", ("==", "a"), closed=True), 0, 0),
    (domain_of("categorical", "string", ("==", "a"), MISSING, closed=True), 0, None),
    (domain_of("categorical", "string", ("==", "a"), ("not_in", ["a"]), closed=True), None, 0),
    (domain_of("list", "string", ("contains", "a"), closed=True), None, 0),
    (TEXTS, None, None),
    (domain_of("categorical", "string", ("==", "a"), seen=ColumnSummary(3, 9, 4)), 4, 3),
])  # fmt: skip
def test_what_a_document_of_an_older_version_does_not_tell_is_not_known(old, largest, missing):
    frozen = FrozenDomain(old, 100)
    assert (frozen.largest_other, frozen.missing) == (largest, missing)


def test_what_a_sketch_forgot_is_among_the_others():
    # Of 100 rows 5 are missing, 60 and 20 have names, 3 are others that the sketch kept.
    counted = ValueCounts(pa.array(["a", "b", "z"]), np.array([60, 20, 3]), rows=100, missing=5)
    found = with_new_values(FrozenDomain(TEXTS, 100), counted, top_values=9, smallest=10, error=0.1)
    assert found.seen.other == 100 - 5 - 60 - 20
    assert found.seen.largest_other == 3


@pytest.mark.parametrize(("row_group", "chunk_rows", "sizes"), [
    (100, 250, [200, 200, 200, 200, 200]),
    (100, 100, [100] * 10),
    (400, 250, [250, 150, 250, 150, 200]),
    (1000, 2000, [1000]),
])  # fmt: skip
def test_row_groups_that_fit_are_read_together(tmp_path, row_group, chunk_rows, sizes):
    path = str(tmp_path / "data.parquet")
    texts = [f"value {row % 7 + row // 300}" for row in range(1000)]
    table = pa.table({"number": range(1000), "text": texts})
    pq.write_table(table, path, row_group_size=row_group)
    source = open_parquet([StoredFile(path, path)]).in_chunks(chunk_rows)

    def chunks(columns):
        return [chunk for split in source.splits for chunk in read_split(source, split, columns)]

    numbers = chunks(["number"])
    assert [chunk.table.num_rows for chunk in numbers] == sizes
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    assert [chunk.start_row for chunk in numbers] == starts
    read = pa.concat_tables([chunk.table for chunk in numbers])
    assert read.column("number").to_pylist() == list(range(1000))
    # A chunk of texts may end where a dictionary does, with its row group: none is cut elsewhere.
    of_texts = chunks(["text"])
    if row_group <= chunk_rows:
        assert all(chunk.table.num_rows % row_group == 0 for chunk in of_texts)
    assert [one for c in of_texts for one in c.table.column("text").to_pylist()] == texts


def test_rows_of_any_slice_with_their_places(tmp_path):
    rng = np.random.default_rng(7)
    number, word = rng.integers(0, 50, 1000), rng.choice(["a", "b", "c"], 1000)
    path = str(tmp_path / "x.parquet")
    table = pa.table({"number": number, "word": word, "row": np.arange(1000)})
    pq.write_table(table, path, row_group_size=300)
    slices = (
        (Singleton("number", "<", 5), Singleton("word", "==", "a")),
        (Singleton("number", "==", 9),),
    )
    wanted = np.flatnonzero(((number < 5) & (word == "a")) | (number == 9))
    source = replace(open_parquet([StoredFile(path, path)]), within=SliceMembership(slices))
    (split,) = source.splits
    split = replace(split, rows=wanted.size, left_out=1000 - wanted.size)
    chunks = list(read_split(source.in_chunks(100), split, ["row"]))
    rows = [chunk.table["row"].to_pylist() for chunk in chunks]
    assert [row for own in rows for row in own] == wanted.tolist()
    assert [chunk.row_number(0) - 1 for chunk in chunks] == [own[0] for own in rows]
    assert [chunk.start_row for chunk in chunks] == [0, *np.cumsum(list(map(len, rows)))[:-1]]
