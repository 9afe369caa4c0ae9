"""Feature domains: how columns are cut, the code of every value, and where values come from."""

import datetime as dt
import decimal
import json
import runpy
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.pipelines.changelist.document import Domain, Seen
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.prepare.inherited import why_absent
from slicebeam.transforms.encode.definitions import Condition
from slicebeam.transforms.encode.domains import (
    ColumnSummary,
    FeatureDomain,
    FrozenBins,
    FrozenDomain,
    with_new_values,
)
from slicebeam.transforms.encode.learn_domains import learn_domain
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.value_counts import ColumnCounter, ValueCounts
from tests.conftest import slow
from tests.oracles import predicates
from tests.running import read, search
from tests.transforms.encode.test_sources import (
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

ROLES = {"label": "label", "prediction": "prediction"}
FLAGS = ["--label=label", "--prediction=prediction", "--max-cross-size=2"]
SCRIPT = Path(__file__).parents[3] / "examples" / "scheduled" / "make_nights.py"
ROWS = 2000


def count(values, most_bytes=1 << 28, rows=5000):
    counter = ColumnCounter(values.type, most_bytes)
    for begin in range(0, len(values), rows):
        counter.add(pa.chunked_array([values.slice(begin, rows)]))
    return counter.result()


def learn(values, most_bytes=1 << 28, *, bins=10, top_values=100, **options):
    options = {"named": False, **options}
    return learn_domain("x", count(values, most_bytes), bins=bins, top_values=top_values, **options)


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
    wide = FeatureDomain(
        domain.name, domain.kind, domain.data_type, domain.singletons, closed=False
    )
    assert_encodes(wide, other)


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


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """The data of the two nights of the documentation, and the first night's result."""
    folder, module = tmp_path_factory.mktemp("nights"), runpy.run_path(str(SCRIPT))
    module["main"](str(folder))
    pq.write_table(module["night"](7, has_drifted=False), folder / "quiet.parquet")
    search(folder / "then", data=folder / "first.parquet", max_cross_size=2, **ROLES)
    return folder


@pytest.fixture(scope="module")
def now(nights):
    return search_since(nights / "now", nights, "second")


def search_since(output, nights, night, **options):
    since = str(nights / "then" / "changelist.json")
    given = {"max_cross_size": 2, "since": since, "compare": "overall", **ROLES, **options}
    return search(output, data=nights / f"{night}.parquet", **given)


def singletons(found, name):
    return [(one["all"][0]["op"], one["all"][0].get("value")) for one in found.domains()[name]]


def domain(found, name):
    (own,) = (one for one in found.document["dataset"]["domains"] if one["name"] == name)
    return dict(own)


def row(found, text):
    (own,) = found.table[found.table["slice"] == text].itertuples()
    return own


def in_pairs(folder, then, new, **options):
    """Search two tables, the second with the first one's domains, and check all of its counts."""
    found = []
    for name, columns in (("then", then), ("now", new)):
        rows, rng = len(next(iter(columns.values()))), np.random.default_rng(3)
        label = rng.integers(0, 2, rows)
        prediction = np.where(rng.random(rows) < 0.8, label, 1 - label)
        table = pa.table({**columns, "label": label, "prediction": prediction})
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.parquet"
        pq.write_table(table, path)
        given = {"max_cross_size": 1, **ROLES, **options}
        if found:
            given = {k: v for k, v in given.items() if k not in ("bins", "top_values")}
            given["domains"] = str(folder / "out-then" / "changelist.json")
        found.append(search(folder / f"out-{name}", data=path, **given))
        frame = table.to_pandas(types_mapper=pd.ArrowDtype)
        check(found[-1], frame, (frame["label"] == frame["prediction"]).to_numpy(bool))
    return found[0], found[1]


def again(folder, found, data="now", **options):
    options = {"domains": found.folder / "changelist.json", "max_cross_size": 1, **options}
    return search(folder / "again", data=folder / f"{data}.parquet", **ROLES, **options)


def drift(found):
    path = found.document["provenance"]["config"]["domains"]
    return [one.replace(path, "DOC") for one in found.document["dataset"]["drift"]]


@pytest.mark.parametrize("option", ["since", slow("domains")])
def test_new_and_missing_values_are_found(option, nights, tmp_path, capsys):
    flags = ["search", f"--data={nights}/second.parquet", *FLAGS, "--fail-on=worse"]
    flags.append("--compare=overall")
    given = f"--{option}={nights}/then/changelist.json"
    assert run([*flags, given, f"--output={tmp_path}"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    found = read(tmp_path)
    frame = pd.read_parquet(nights / "second.parquet")
    frame["right"] = frame["label"] == frame["prediction"]
    polish, unknown = frame["country"] == "PL", frame["speed"].isna()
    for text, held in (("country = PL", polish), ("speed is missing", unknown)):
        one = row(found, text)
        assert (one.n, one.value) == (held.sum(), frame["right"][held].mean())
        # The hypergeometric mid-p of so many right ones among the slice's.
        law = stats.hypergeom(len(frame), frame["right"].sum(), held.sum())
        hits = frame["right"][held].sum()
        assert one.p_value == pytest.approx(law.cdf(hits) - law.pmf(hits) / 2, rel=1e-6)
        assert one.significant
        assert one.q_value < 1e-50
    share, lost = (frame["country"] == "PL").mean(), frame["speed"].isna().mean()
    assert drift(found) == [
        f"country: {share:.1%} of the examples have 1 value that DOC does not have (PL).",
        f"speed: {lost:.1%} missing, none in DOC.",
    ]
    for line in found.document["dataset"]["drift"]:
        assert line in printed
    assert run([*flags, given, f"--output={tmp_path}", "--json"]) == 1
    assert (
        json.loads(capsys.readouterr().out)["dataset"]["drift"]
        == found.document["dataset"]["drift"]
    )
    assert run([*flags, given, f"--output={tmp_path}", "--log-format=json"]) == 1
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    warnings = [one["text"] for one in events if one["event"] == "warning"]
    assert warnings[:2] == found.document["dataset"]["drift"]
    assert f"{nights}/then/changelist.json" in warnings[0]


def test_the_documentation_shows_what_is_printed(nights, tmp_path, monkeypatch, capsys):
    page = (SCRIPT.parents[2] / "docs" / "how-to" / "scheduled.md").read_text("utf-8")
    _, _, section = page.partition("## What the earlier run did not have\n")
    commands, shown = section.split("```bash\n")[1].split("```text\n")
    lines = commands.replace("\\\n", " ").splitlines()
    (tmp_path / "nights").symlink_to(nights)
    monkeypatch.chdir(tmp_path)
    for line in (one for one in lines if one.startswith("slicebeam ")):
        command, _, code = line.partition("  # exit code ")
        assert run(shlex.split(command)[1:]) == int(code)
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    expected = [" ".join(line.split()) for line in shown.split("```")[0].splitlines()]
    assert len(expected) == 6
    assert [line for line in expected if line not in printed] == []


def test_as_if_the_values_had_been_in_the_domains(nights, now, tmp_path):
    """Every number is that of a run whose domains a person has completed."""
    document = json.loads((nights / "then" / "changelist.json").read_text())
    country, _, speed = document["dataset"]["domains"]
    country["singletons"].append({"field": "country", "op": "==", "value": "PL"})
    speed["singletons"].append({"field": "speed", "op": "is_null"})
    (tmp_path / "edited.json").write_text(json.dumps(document))
    options = {"domains": tmp_path / "edited.json", "max_cross_size": 2, **ROLES}
    edited = search(tmp_path / "out", data=nights / "second.parquet", **options)
    assert edited.slices_bytes == now.slices_bytes
    assert domain(edited, "country")["new_values"] == []


def test_what_the_document_says(nights, now):
    frame = pd.read_parquet(nights / "second.parquet")
    new = [{"value": "PL", "n": int((frame["country"] == "PL").sum()), "occurred": False}]
    assert domain(now, "country")["new_values"] == new
    assert domain(now, "speed")["new_values"] == []
    seen, before = domain(now, "speed")["seen"], domain(read(nights / "then"), "speed")["seen"]
    first = pd.read_parquet(nights / "first.parquet")["speed"]
    bounds = {"low": first.min(), "high": first.max(), "distinct": first.nunique()}
    assert before == {"missing": 0, "other": 0, "largest_other": 0, **bounds}
    assert (seen["low"], seen["high"]) == (frame["speed"].min(), frame["speed"].max())
    assert seen["missing"] == frame["speed"].isna().sum()
    assert seen["below"] == (frame["speed"] < first.min()).sum()
    assert seen["above"] == (frame["speed"] > first.max()).sum()
    listed = {one["name"]: one for one in now.document["since"]["slices"]}
    reasons = {"country = PL": "then no example had this value of 'country'"}
    reasons["speed is missing"] = "then no value of 'speed' was missing"
    for name, reason in reasons.items():
        assert (listed[name]["status"], listed[name]["missing"]) == ("new", reason)
        assert "then" not in listed[name]
    assert "binned differently" not in " ".join(now.document["since"]["warnings"])


def test_an_ordinary_night_is_quiet(nights, now, tmp_path):
    """Nothing is added where nothing is new, and a record of a continuous column is no news."""
    found = search_since(tmp_path, nights, "quiet")
    assert found.domains() == read(nights / "then").domains()
    assert drift(found) == []
    # The night after knows what was new, and compares its slices.
    options = {"since": now.folder / "changelist.json", "max_cross_size": 2, **ROLES}
    options["compare"] = "overall"
    after = search(tmp_path, data=nights / "second.parquet", **options)
    assert (after.domains(), drift(after)) == (now.domains(), [])
    assert (after.document["since"]["new"], after.slices_bytes) == (0, now.slices_bytes)


def drawn(values, shares, rows=ROWS):
    listed = []
    for value, share in zip(values, shares, strict=True):
        listed += [value] * round(share * rows)
    return [listed[i] for i in np.random.default_rng(2).permutation(len(listed))]


EITHER = drawn(["a", "b"], [0.5, 0.5])
# The column then and now, its predicates, examples of some slices, and what is said of it.
PAIRS = {
    "lists": (
        drawn([["a"], ["a", "b"], []], [0.4, 0.4, 0.2]),
        drawn([["a"], ["b", "n"], None, ["n", "n"], ["r"]], [0.5, 0.2, 0.1, 0.198, 0.002]),
        [("contains", "a"), ("contains", "b"), ("contains", "n"), ("is_null", None)],
        {"x contains n": 796, "x is missing": 200},
        ["x: 1 value that DOC does not have (n in 39.8% of the examples); 10.0% missing, none in DOC."],
    ),
    "new values too few to be tested each, and enough together": (
        EITHER,
        # Of d there are just enough.
        drawn(["a", "b", "c", "d", *(f"rare {i}" for i in range(10))], [0.5, 0.34, 0.1, 0.01, *[0.005] * 10]),
        [("==", "a"), ("==", "b"), ("==", "c"), ("==", "d"), ("not_in", ["a", "b", "c", "d"])],
        {"x = d": 20, "x not in {a, b, c, … 1 more}": 100},
        ["x: 11.0% of the examples have 2 values that DOC does not have (c, d); 5.0% have other values, none in DOC."],
    ),
    "both truth values": (drawn([True, False], [0.5, 0.5]), drawn([True, False, None], [0.5, 0.4, 0.1]), [("==", False), ("==", True), ("is_null", None)], {}, ["x: 10.0% missing, none in DOC."]),
    "a truth value that came late": (drawn([True, None], [0.5, 0.5]), drawn([True, False, None], [0.4, 0.1, 0.5]), [("==", True), ("is_null", None), ("==", False)], {"x = false": 200}, ["x: 10.0% of the examples have 1 value that DOC does not have (false)."]),
    "integers that are doubles once some are missing, as pandas writes them": (
        pa.array(drawn([0, 1, 2], [0.4, 0.3, 0.3]), pa.int64()),
        pa.array(drawn([0.0, 1.0, 2.0, 7.0, None, 0.5], [0.4, 0.2, 0.1, 0.1, 0.1, 0.1]), pa.float64()),
        [("==", 0), ("==", 1), ("==", 2), ("==", 7), ("not_in", [0, 1, 2, 7]), ("is_null", None)],
        {"x not in {0, 1, 2, … 1 more}": 200},
        ["x: 10.0% of the examples have 1 value that DOC does not have (7); 10.0% have other values, none in DOC; 10.0% missing, none in DOC."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_values_that_are_new(name, tmp_path):
    then, new, predicates, sizes, said = PAIRS[name]
    _, found = in_pairs(tmp_path, {"x": then}, {"x": new})
    assert singletons(found, "x") == predicates
    assert {text: row(found, text).n for text in sizes} == sizes
    assert drift(found) == said
    if "too few" in name:
        assert domain(found, "x")["seen"] == {"missing": 0, "other": 100, "largest_other": 10}
        # The document of such a run is read, too, on the data of before.
        assert again(tmp_path, found, "then").domains() == found.domains()
    else:
        assert again(tmp_path, found).slices_bytes == found.slices_bytes


def test_a_value_that_outgrows_the_others(tmp_path):
    """It is named where it is surely more frequent than any of the others was; *other* then is split."""
    long = [f"v{i}" for i in range(10)]
    then = {"word": drawn(["a", "b", *long], [0.5, 0.3, *[0.02] * 10])}
    new = {"word": drawn(["a", "b", *long], [0.5, 0.3, 0.06, 0.025, *[0.115 / 8] * 8])}
    earlier, found = in_pairs(tmp_path, then, new, top_values=2)
    assert singletons(earlier, "word")[2] == ("not_in", ["a", "b"])
    # Among the two most frequent are but the old ones.
    assert singletons(found, "word") == singletons(earlier, "word")
    assert found.document["provenance"]["config"]["top_values"] == 2
    more = again(
        tmp_path, earlier, since=earlier.folder / "changelist.json", compare="overall", top_values=4
    )
    # v1 is among four, too, but no more frequent than chance makes it.
    named = [("==", "a"), ("==", "b"), ("not_in", ["a", "b", "v0"]), ("==", "v0")]
    assert singletons(more, "word") == named
    assert domain(more, "word")["new_values"] == [{"value": "v0", "n": 120, "occurred": True}]
    assert drift(more) == [
        "word: 6.0% of the examples have 1 value that DOC counted among its other values (v0)."
    ]


def test_since_says_that_other_was_split(tmp_path):
    """The others of then are bad, and have no like now; what was new is told from what was hidden."""
    rng = np.random.default_rng(8)
    for name, shares in (("then", [0.5, 0.3, 0.1, 0.1, 0]), ("now", [0.5, 0.2, 0.1, 0.1, 0.1])):
        word = drawn(["a", "b", "c", "d", "e"], shares)
        bad, label = ~np.isin(word, ["a", "b"]), rng.integers(0, 2, ROWS)
        right = rng.random(ROWS) < np.where(bad, 0.4, 0.9)
        columns = {"word": word, "label": label, "prediction": np.where(right, label, 1 - label)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    first = search(tmp_path / "first", data=tmp_path / "then.parquet", top_values=2, **ROLES)
    document = first.folder / "changelist.json"

    def searched():
        options = {"compare": "overall", "top_values": 3, "max_cross_size": 3}
        found = again(tmp_path, first, since=document, **options)
        return found, {one["name"]: one for one in found.document["since"]["slices"]}

    found, listed = searched()
    # c, d and e are as frequent; c comes first by its value, and was no rarer then.
    assert singletons(found, "word") == singletons(first, "word")
    assert listed["word not in {a, b}"]["status"] == "stays"
    grown = pq.read_table(tmp_path / "now.parquet").to_pandas()
    grown["word"] = grown["word"].replace("e", "c")
    grown.to_parquet(tmp_path / "now.parquet")
    _, listed = searched()
    assert listed["word = c"]["missing"] == "then this value of 'word' was among the other values"
    for name, status, reason in (
        (
            "word not in {a, b}",
            "gone",
            "now c has a predicate apart from the other values of 'word'",
        ),
        ("word not in {a, b, c}", "new", "then the other values of 'word' contained c, too"),
    ):
        assert (listed[name]["status"], listed[name]["missing"]) == (status, reason)


@pytest.mark.parametrize(("kind", "op", "uncounted"), [
    ("categorical", "==", "then no example had this value of 'w'"),
    # Elements without a predicate are not counted as missing.
    ("list", "contains", "then this value of 'w' was among the other values"),
])  # fmt: skip
def test_why_only_one_of_two_runs_has_a_predicate(kind, op, uncounted):
    known = [Condition(field="w", op=op, value=value) for value in "abcdef"]
    other = Condition(field="w", op="not_in", value=["a", "b"])
    shape = {"name": "w", "kind": kind, "data_type": "string", "error": 0.0, "closed": True}
    then = Domain(singletons=(*known[:2], other), **shape)
    now = Domain(singletons=tuple(known), **shape)
    of_others = "now c, d, e, … 1 more have predicates apart from the other values of 'w'"
    assert why_absent(other, then, now) == of_others
    assert why_absent(known[2], then, now) == "then this value of 'w' was among the other values"
    whole = then.model_copy(update={"singletons": tuple(known[:2]), "seen": Seen(missing=0)})
    assert why_absent(known[2], whole, now) == "then no example had this value of 'w'"
    assert why_absent(known[2], whole.model_copy(update={"seen": None}), now) == uncounted


def test_columns_that_had_no_domain(tmp_path):
    then = {"a": drawn([1, 2], [0.5, 0.5]), "one": ["US"] * ROWS, "out": drawn([1, 2], [0.5, 0.5])}
    new = {"out": then["out"], "one": drawn(["US", "CA"], [0.9, 0.1])}
    new |= {"fresh": drawn(["x", "y"], [0.5, 0.5]), "still": ["z"] * ROWS}
    for name, columns in (("then", then), ("now", {**new, "a": then["a"]})):
        rng = np.random.default_rng(3)
        roles = {name: rng.integers(0, 2, ROWS) for name in ("label", "prediction")}
        pq.write_table(pa.table({**columns, **roles}), tmp_path / f"{name}.parquet")
    options = {"max_cross_size": 1, "exclude_features": ("out",), **ROLES}
    first = search(tmp_path / "first", data=tmp_path / "then.parquet", **options)
    document = first.folder / "changelist.json"
    found = again(tmp_path, first)
    assert row(found, "one = CA").n == 200
    assert row(found, "fresh = x").n == 1000
    assert drift(found) == [
        "one: left out in DOC (one value only ('US')); its values are now tested.",
        "fresh: left out in DOC (not in its data); its values are now tested.",
    ]
    left = {one["name"]: one["reason"] for one in found.document["dataset"]["left_out"]}
    assert left == {"out": f"it has no domain in {document}", "still": "one value only ('z')"}


DEGENERATE = {
    "all new": lambda: (EITHER, drawn(["c", "d"], [0.5, 0.5]), {"x = c": 1000, "x = d": 1000}),
    "all new and rare": lambda: (EITHER, [f"v{i % 400}" for i in range(ROWS)], {"x not in {a, b}": 2000}),
    "one value": lambda: (drawn(["a", None], [0.5, 0.5]), drawn(["a", "b"], [0.5, 0.5]), {"x = a": 1000, "x = b": 1000}),
    "one element": lambda: (drawn([["a"], []], [0.5, 0.5]), drawn([["a"], ["b"]], [0.5, 0.5]), {"x contains a": 1000, "x contains b": 1000}),
    "all missing": lambda: (EITHER, [None] * ROWS, {"x is missing": 2000}),
    "two points": lambda: (
        drawn([0.25, 0.5], [0.5, 0.5]),
        drawn([0.125, 0.375, 0.75, float("nan")], [0.25, 0.25, 0.25, 0.25]),
        {"x < 0.25": 500, "x in [0.25000000000000006, 0.5)": 500, "x >= 0.5000000000000001": 500},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_domains(name, tmp_path):
    then, new, sizes = DEGENERATE[name]()
    beside = {"beside": drawn(["u", "v"], [0.5, 0.5])}
    _, found = in_pairs(tmp_path, {"x": then, **beside}, {"x": new, **beside})
    held = dict(zip(found.table["slice"], found.table["n"], strict=True))
    assert {text: held.get(text) for text in sizes} == sizes
    assert sum(n for text, n in held.items() if text.startswith("x ")) == ROWS


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


def next_run(folder, before, now, **options):
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
    found = next_run(tmp_path, {kind: NUMBERS[before]() for kind in now}, now)
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
    found = next_run(tmp_path, before, now, top_values=2)
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

    assert len(next_run(tmp_path, {"x": column(before)}, {"x": column(now)}).table) >= 10


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
        next_run(tmp_path, {"x": before}, {"x": now})
    path = tmp_path / "out" / "changelist.json"
    assert str(caught.value).startswith(f"--domains {path}: column 'x'")
    assert message in str(caught.value)


def test_features_that_the_data_lacks_are_said(tmp_path):
    found = next_run(tmp_path, {f: cycled([1, 2]) for f in ("a", "gone", "b")}, {"a": cycled([1])})
    path = tmp_path / "out" / "changelist.json"
    reason = f"in {path} but not in this data"
    assert left_out(found) == {"gone": reason, "b": reason}


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


def test_what_a_document_does_not_tell_is_not_known():
    for old, told in ((TEXTS, (None, None)), (replace(TEXTS, seen=ColumnSummary(3, 9, 4)), (4, 3))):
        frozen = FrozenDomain(old, 100)
        assert (frozen.largest_other, frozen.missing) == told


def test_what_a_sketch_forgot_is_among_the_others():
    # Of 100 rows 5 are missing, 60 and 20 have names, 3 are others that the sketch kept.
    counted = ValueCounts(pa.array(["a", "b", "z"]), np.array([60, 20, 3]), 5, 100, error=0.1)
    found = with_new_values(FrozenDomain(TEXTS, 100), counted, top_values=9, smallest=10)
    assert found.seen.other == 100 - 5 - 60 - 20
    assert found.seen.largest_other == 3
