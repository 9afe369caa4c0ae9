import datetime as dt
import decimal
import json
import re
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.config.search import search_config
from slicebeam.transforms.encode.domains import FeatureDomain, LeftOutColumn
from slicebeam.transforms.encode.learn_domains import learn_domain
from slicebeam.transforms.encode.predicates import Singleton, parse_predicate
from slicebeam.transforms.encode.value_counts import ColumnCounter, ValueCounts
from tests.conftest import slow
from tests.transforms.encode.test_domains import KINDS, count, in_pairs, learn, masks, singletons
from tests.transforms.encode.test_sources import search_table, searched, with_roles
from tests.transforms.encode.test_value_counts import SKETCHED, SMALL


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


ADULT = "pipelines/demo_data/adult_scored.parquet"


def domain_of(values, bins, *, exact_edges=False):
    domain = learn(values, bins=bins, exact_edges=exact_edges, named=True)
    assert isinstance(domain, FeatureDomain)
    assert domain.kind == "numeric"
    return domain


def is_numeric(values, bins):
    domain = learn(values, bins=bins, named=True)
    return isinstance(domain, FeatureDomain) and domain.kind == "numeric"


def ranges(domain):
    return [(one.op, one.value) for one in domain.singletons if one.op != "is_null"]


def digits(number):
    """Return how many significant digits an integer has; 0 has none."""
    return len(str(abs(number)).strip("0"))


def held(rows, low, high):
    return int(np.count_nonzero((rows >= low) & (rows < high)))


def searched_edges(rows, exact, bins):
    """Return where the bins begin, by trying every integer for each edge in turn."""
    others = int(np.count_nonzero(~np.isin(rows, [v for op, v in exact if op == "=="])))
    before = [-np.inf if op == "<" else v[0] if op == "between" else v for op, v in exact]
    after = list(before)
    for i in range(1, len(exact)):
        if exact[i][0] == "==":
            continue
        end = before[i + 1] if i + 1 < len(exact) else np.inf
        is_after_point = exact[i - 1][0] == "=="
        found = []
        for edge in range(min(rows), max(rows) + 1):
            if is_after_point:
                fits = edge > after[i - 1] and held(rows, edge, end) == held(rows, before[i], end)
            else:
                fits = True
                for low, high, was_low, was_high in (
                    (after[i - 1], edge, before[i - 1], before[i]),
                    (edge, end, before[i], end),
                ):
                    now, was = held(rows, low, high), held(rows, was_low, was_high)
                    fits &= now > 0 and 4 * bins * abs(now - was) <= others
            if fits:
                found.append((digits(edge), abs(edge - before[i]), edge))
        after[i] = min(found)[2]
    return after


def begins(bins):
    return [-np.inf if op == "<" else value[0] if op == "between" else value for op, value in bins]


ROWS = st.integers(-60, 60) | st.integers(-1500, 1500) | st.sampled_from([-7, 0, 113])
UNITS = {
    "integers": lambda rows: pa.array(rows, pa.int64()),
    "doubles": lambda rows: pa.array([row / 1000 for row in rows]),
    "tens of thousands": lambda rows: pa.array([row * 1e4 for row in rows]),
    "tiny": lambda rows: pa.array([float(f"{row}e-300") for row in rows]),
    "floats": lambda rows: pa.array([row / 1000 for row in rows], pa.float32()),
    "decimals": lambda rows: pa.array([decimal.Decimal(row).scaleb(-2) for row in rows], pa.decimal128(9, 2)),
}  # fmt: skip


@settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.slow
@given(rows=st.lists(ROWS, min_size=12, max_size=60), bins=st.integers(2, 5))
def test_no_number_of_fewer_digits_would_do(unit, rows, bins):
    assume(is_numeric(UNITS["integers"](rows), bins))
    assert_fewest(unit, rows, bins)


def test_no_number_of_fewer_digits_would_do_on_some_columns():
    rng = np.random.default_rng(0)
    for unit in UNITS:
        rows = np.round(rng.lognormal(4, 1, 100) * rng.choice([-1, 0, 1], 100, p=[0.2, 0.3, 0.5]))
        assert_fewest(unit, rows.clip(-500, 500).astype(int).tolist(), 4)


def assert_fewest(unit, rows, bins):
    exact = domain_of(UNITS["integers"](rows), bins, exact_edges=True)
    expected = searched_edges(np.array(rows), ranges(exact), bins)
    found = ranges(domain_of(UNITS[unit](rows), bins))
    assert [op for op, _ in found] == [op for op, _ in ranges(exact)]
    scaled = {
        "integers": lambda edge: edge,
        "decimals": lambda edge: int(decimal.Decimal(edge).scaleb(2)),
        "doubles": lambda edge: round(edge * 1000),
        "floats": lambda edge: round(edge * 1000),
        "tens of thousands": lambda edge: round(edge / 1e4),
        "tiny": lambda edge: int(decimal.Decimal(repr(edge)).scaleb(300)),
    }[unit]
    finite = [one if one == -np.inf else scaled(one) for one in begins(found)]
    assert finite == expected
    if unit == "doubles":
        # What is printed is the very double, which no further digit follows.
        for edge in begins(found)[1:]:
            assert repr(float(edge)) == repr(round(edge, 3))


@settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("bool", "text")])
@pytest.mark.slow
@given(data=st.data(), bins=st.integers(2, 6))
def test_shares_change_little_and_no_bin_is_lost(kind, data, bins):
    data_type, value = KINDS[kind]
    values = pa.array(data.draw(st.lists(st.none() | value, min_size=13, max_size=50)), data_type)
    assume(is_numeric(values, bins))
    assert_kept(values, bins)


def assert_kept(values, bins):
    domain = domain_of(values, bins)
    exact = domain_of(values, bins, exact_edges=True)
    now, was = masks(domain, values), masks(exact, values)
    present = len(values) - (now[-1].sum() if domain.singletons[-1].op == "is_null" else 0)
    points = np.array([one.op == "==" for one in exact.singletons])
    others = present - was[points].sum()
    assert [one.op for one in domain.singletons] == [one.op for one in exact.singletons]
    assert now.any(1).all()
    assert (now.sum(0) == 1).all()
    assert (4 * bins * np.abs(now.sum(1) - was.sum(1)) <= others).all()
    assert (now[points] == was[points]).all()
    # The codes that the search counts are what the predicates say.
    np.testing.assert_array_equal(domain.encode(values), now.argmax(0))
    for one, same in zip(domain.singletons, exact.singletons, strict=True):
        if one.op == "==":
            assert one == same
        if one.op == "between":
            low, high = domain.constants(one.value).to_pylist()
            assert low < high
    text = json.dumps([one.to_json() for one in domain.singletons], allow_nan=False)
    back = tuple(Singleton(one["field"], one["op"], one.get("value")) for one in json.loads(text))
    assert back == domain.singletons


MIDNIGHT = dt.datetime.fromisoformat("2024-01-01")
COLUMNS = {
    "scores": (pa.array((np.arange(1000) + 0.4) ** 2 / 1e6), [0.01, 0.04, 0.09, 0.16, 0.25, 0.36, 0.5]),
    "negative": (pa.array(-((np.arange(1000) + 0.4) ** 2) / 1e6), [-0.8, -0.6, -0.49, -0.36]),
    "around zero": (pa.array((np.arange(1001) - 499.7) / 3333), [-0.12, -0.09, -0.06, -0.03, 0.0]),
    "huge": (pa.array((np.arange(1000) + 0.4) * 1.7e305), [2e307, 3.4e307, 5e307, 7e307]),
    "least": (pa.array(np.arange(1, 1001) * 5e-324), [5e-322, 1e-321, 1.5e-321, 2e-321]),
    "large integers": (pa.array(np.arange(1000, dtype=np.int64) + (2**63 - 1001)), [9223372036854774900, 9223372036854775000, 9223372036854775100]),
    "largest integers": (pa.array([2**64 - 1 - one for one in range(999, -1, -1)], pa.uint64()), [18446744073709550700, 18446744073709550800, 18446744073709550900]),
    "signed bytes": (pa.array(np.arange(-128, 128), pa.int8()), [-100, -80, -50, -30, 0, 30]),
    "days": (pa.array([MIDNIGHT.date() + dt.timedelta(days=5 * one) for one in range(730)]), ["2025-01-01", "2026-01-01", "2027-01-01", "2028-01-01"]),
    "hours": (
        pa.array([MIDNIGHT + dt.timedelta(minutes=5 * one, microseconds=7) for one in range(1200)]),
        ["2024-01-01T10:00:00.000000", "2024-01-01T20:00:00.000000", "2024-01-02T06:00:00.000000"],
    ),
    "before 1970": (
        pa.array([MIDNIGHT - dt.timedelta(days=27_000) + dt.timedelta(hours=one) for one in range(20_000)]),
        ["1950-05-01T00:00:00.000000", "1950-08-01T00:00:00.000000", "1950-10-06T00:00:00.000000"],
    ),
    "time of day": (
        pa.array([dt.time(one // 30, 2 * one % 60, 31) for one in range(720)]),
        ["02:00:00.000000", "05:00:00.000000", "07:00:00.000000", "10:00:00.000000"],
    ),
    "in New York": (
        pa.array([MIDNIGHT + dt.timedelta(hours=8 * one) for one in range(1095)], pa.timestamp("us", "America/New_York")),
        ["2024-02-01T00:00:00.000000-0500", "2024-03-14T00:00:00.000000-0400"],
    ),
    "prices": (pa.array([decimal.Decimal(one) / 100 for one in range(1, 2001)], pa.decimal128(9, 2)), ["2.00", "4.00", "6.00", "8.00", "10.00", "12.00"]),
    "infinite": (pa.array([-np.inf] * 40 + [0.123, 0.25] * 50 + [np.inf] * 40), ["-Infinity", 0.123, 0.25, "Infinity"]),
}  # fmt: skip


@pytest.mark.parametrize("name", [slow(one) if one == "before 1970" else one for one in COLUMNS])
def test_edges_are_what_a_reader_would_write(name):
    values, first = COLUMNS[name]
    found = begins(ranges(domain_of(values, 10)))
    found = found[1:] if found[0] == -np.inf else found
    assert found[: len(first)] == first
    assert_kept(values, 10)


def test_a_value_on_an_edge_is_in_the_upper_bin():
    values = pa.array([0.1] * 10 + [0.2999] * 10 + [0.3] * 10 + [0.30004] * 10 + [0.5] * 10)
    domain = domain_of(values, 3)
    edges = [one for _, value in ranges(domain) for one in np.atleast_1d(value).tolist()]
    assert 0.3 in edges
    assert_kept(values, 3)


def test_an_edge_after_a_point_leaves_out_nothing():
    """The bin after a value of its own begins above that value, and below every other."""
    rows = [0.0] * 400 + [0.0173, *np.linspace(0.02, 9, 300)]
    assert ranges(domain_of(pa.array(rows), 4))[:2] == [("==", 0.0), ("between", [0.01, 2.0])]
    rows = [3.0] * 400 + [3.0000173, *np.linspace(3.02, 9, 300)]
    assert ranges(domain_of(pa.array(rows), 4))[1][1][0] == 3.00001
    # What is heavily tied stays apart, however few the others are.
    few = [0] * 9000 + list(range(1000, 1100))
    (_, zero), *others = ranges(domain_of(pa.array(few), 10))
    assert zero == 0
    sizes = [
        held(np.array(few[9000:]), low, high) for low, high in pairwise([*begins(others), 10_000])
    ]
    assert len(sizes) == 10
    assert all(abs(size - 10) <= 5 for size in sizes)


@pytest.mark.parametrize("kind", [kind for kind in SKETCHED if kind != "text"])
def test_edges_of_sketches_are_short_and_hold_every_value(kind):
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 10**9, 30_000)
    numbers[rng.random(30_000) < 0.3] = 12_345
    values = SKETCHED[kind](numbers)
    counted = count(values, 1 << 15)
    assert counted.error > 0
    options = {"bins": 10, "top_values": 100, "named": True}
    both = [learn_domain("x", counted, exact_edges=exact, **options) for exact in (False, True)]
    assert (both[0].encode(values) < both[0].size).all()
    sizes = [np.bincount(one.encode(values), minlength=one.size) for one in both]
    # The sketch knows what an edge moves up to its error, at either end of a bin.
    most = 1 / 40 + 2 * counted.error + 2 / 2000
    assert (np.abs(sizes[0] - sizes[1]) <= most * len(values)).all()
    texts = [json.dumps([one.value for one in each.singletons]) for each in both]
    printed = [len(re.sub("-01|[^1-9]", "", text)) for text in texts]
    assert printed[0] < printed[1]


def test_edges_depend_on_no_order():
    numbers = np.round(np.random.default_rng(1).lognormal(0, 2, 4000), 4)
    numbers[:900] = 0
    domains = set()
    for rows, seed in ((5000, 0), (7, 1), (611, 2)):
        values = pa.array(np.random.default_rng(seed).permutation(numbers))
        counted = count(values, rows=rows)
        domain = learn(values)
        assert isinstance(domain, FeatureDomain)
        assert domain.size == 11
        domains.add(json.dumps(asdict(domain)))
        assert domain == learn_domain("x", counted, bins=10, top_values=100, named=False)
    assert len(domains) == 1


# As they were before edges were rounded.
ADULT_EDGES = {
    "age": [22, 26, 30, 34, 38, 42, 46, 51, 59],
    "fnlwgt": [66095, 105381, 130018, 156916, 177831, 196253, 221172, 260782, 327258],
    "capital-gain": [0, 114, 2290, 3137, 4101, 5013, 7262, 7688, 8614, 15024, 15831],
    "capital-loss": [0, 213, 1564, 1628, 1740, 1887, 1902, 1911, 1977, 2002, 2282],
    "hours-per-week": [19, 25, 31, 36, 40, 41, 45, 48, 50, 53, 61],
    "score": [*(0.0024, 0.0079, 0.0165), *(0.0337, 0.073, 0.1606), *(0.2982, 0.4892, 0.7529)],
}
ROUND_EDGES = {
    "age": [22, 26, 30, 34, 38, 42, 46, 50, 59],
    "fnlwgt": [70000, 110000, 130000, 160000, 180000, 200000, 220000, 260000, 330000],
    "capital-gain": [0, 100, 2300, 3200, 4000, 5000, 7000, 7600, 9000, 15000, 20000],
    "capital-loss": [0, 200, 1500, 1600, 1740, 1880, 1900, 1910, 1970, 2000, 2300],
    "hours-per-week": [20, 25, 31, 36, 40, 41, 45, 48, 50, 53, 70],
    "score": [0.002, 0.008, 0.016, 0.03, 0.07, 0.16, 0.3, 0.5, 0.8],
}


@pytest.mark.parametrize("feature", ADULT_EDGES)
def test_edges_of_census_data(feature):
    column = pq.read_table(ADULT, columns=[feature]).column(0).combine_chunks()
    for edges, is_exact in ((ADULT_EDGES, True), (ROUND_EDGES, False)):
        domain = domain_of(column, 10, exact_edges=is_exact)
        found = [one for one in begins(ranges(domain)) if one != -np.inf]
        assert repr(found) == repr(edges[feature])
    assert_kept(column, 10)


def mixed(rows=400):
    rng = np.random.default_rng(5)
    score = rng.beta(0.7, 2, rows)
    days = rng.integers(0, 3000, rows).astype("datetime64[D]")
    return {
        "score": pa.array(score),
        "narrow": pa.array(score.astype(np.float32)),
        "amount": pa.array(np.where(rng.random(rows) < 0.6, 0, rng.lognormal(6, 1, rows)).round(2)),
        "count": pa.array(rng.integers(-5000, 90_000, rows)),
        "day": pa.array(days),
    }


def test_pandas_selects_the_rows_that_were_counted(tmp_path):
    table = with_roles(mixed())
    found = search_table(tmp_path, table, bins=4, max_cross_size=1)
    frame = table.to_pandas()
    frame["day"] = pd.to_datetime(frame["day"])
    sizes = found.table.set_index("slice")["n"]
    select = {
        "<": lambda c, v: c < v, ">=": lambda c, v: c >= v, "==": lambda c, v: c == v,
        "between": lambda c, v: (c >= v[0]) & (c < v[1]),
    }  # fmt: skip
    for domain in found.document["dataset"]["domains"]:
        assert domain["name"] in mixed()
        for one in domain["singletons"]:
            rows = select[one["op"]](frame[domain["name"]], one.get("value"))
            text = str(Singleton(domain["name"], one["op"], one.get("value")))
            assert rows.sum() == sizes[text], text
    edges = {text for text in sizes.index if text.startswith(("score", "narrow"))}
    assert max(map(len, edges)) <= len("narrow in [0.26, 0.45)")


@pytest.mark.slow
def test_an_earlier_run_keeps_its_long_edges(tmp_path):
    table = with_roles(mixed())
    options = {"bins": 4, "max_cross_size": 1, "keep_outputs": True}
    old = search_table(tmp_path, table, exact_edges=True, **options)
    lows = [value[0] for op, value in singletons(old, "score") if op == "between"]
    assert set(lows) <= set(table.column("score").to_pylist())
    assert old.document["provenance"]["config"]["exact_edges"] is True
    path = tmp_path / "out" / "changelist.json"

    def later(name, **options):
        data = [tmp_path / "data.parquet"]
        return searched(tmp_path / name, data, max_cross_size=1, keep_outputs=True, **options)

    for option in ("domains", "since"):
        new = later(option, **{option: str(path)})
        assert new.domains() == old.domains()
        assert "exact_edges" not in new.document["provenance"]["config"]
    # Edges of few digits are kept as well, in the column of floats too.
    short = search_table(tmp_path, table, **options)
    again = later("again", domains=str(short.folder / "changelist.json"))
    assert again.domains() == short.domains() != old.domains()
    assert list(again.table["n"]) == list(short.table["n"])


def test_a_gap_ends_at_the_edge_that_is_printed(tmp_path):
    """Later numbers between a value with a bin of its own and the bin after it, in a narrow column."""
    above = np.random.default_rng(0).uniform(0.0173, 1, 200)
    then = {"x": pa.array([*[0.0] * 800, 0.0173, *above], pa.float32())}
    new = {"x": pa.array([*[0.0] * 700, *[0.005] * 101, *above], pa.float32())}
    earlier, found = in_pairs(tmp_path, then, new)
    was, now = singletons(earlier, "x"), singletons(found, "x")
    assert was[:1] == now[:1] == [("==", 0.0)]
    assert was[1][1][0] == 0.01
    assert now[1] == ("between", [1e-45, 0.01])
    assert now[2:] == was[1:]


def test_exact_edges_beside_domains_have_no_effect():
    options = {"data": ["x"], "output": "y", "label": "l", "prediction": "p", "domains": "z"}
    with pytest.raises(InputError, match="--exact-edges has no effect with --domains"):
        search_config({**options, "exact_edges": True})


def test_short_edges_are_printed_short():
    column = {"income": pa.float64()}
    for low, high, text in (
        (0.26, 0.5, "income in [0.26, 0.5)"),
        (1.25e6, 3e7, "income in [1250000, 30000000)"),
        (-3e9, 1.5e-7, "income in [-3000000000, 1.5e-07)"),
        (4e15, 3e300, "income in [4e+15, 3e+300)"),
    ):
        one = Singleton("income", "between", [low, high])
        assert str(one) == text
        assert parse_predicate(text, column) == (one,)


@pytest.mark.parametrize("exact", [True, False])
def test_floats_are_written_with_their_own_digits(exact, tmp_path):
    """A float32 0.2 is 0.2, not the 0.20000000298023224 of its double; the rows are the same."""
    scores = np.random.default_rng(0).random(400).astype(np.float32)
    scores[:120] = np.float32(0.2)
    table = with_roles({"score": pa.array(scores)})
    found = search_table(tmp_path, table, bins=4, max_cross_size=1, exact_edges=exact)
    (domain,) = found.document["dataset"]["domains"]
    printed = json.dumps([one["value"] for one in domain["singletons"]])
    numbers = [float(number) for number in re.findall(r"[0-9.e-]+", printed)]
    assert 0.2 in numbers
    assert all(number == float(str(np.float32(number))) for number in numbers)
    sizes = found.table.set_index("slice")["n"]
    assert sizes["score = 0.2"] == np.count_nonzero(scores == np.float32(0.2)) == 120
