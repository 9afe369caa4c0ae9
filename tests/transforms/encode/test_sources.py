import datetime as dt
import decimal
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.column import Chunk
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.sources import ReservedRows, StoredFile, open_parquet, read_split
from tests.oracles import lattice, predicates
from tests.running import search

ROWS = 240
ROLES = {"label": "label", "prediction": "prediction"}


def cycled(values, kind=None, rows=ROWS):
    return pa.array([values[(i * i + i // 7) % len(values)] for i in range(rows)], kind)


def classes(rows=ROWS):
    """Labels of three classes, and predictions that are wrong for about every fifth."""
    rng = np.random.default_rng(5)
    label = rng.choice(["cat", "dog", "eel"], rows)
    guess = rng.choice(["cat", "dog", "eel"], rows)
    return pa.array(label), pa.array(np.where(rng.random(rows) < 0.7, label, guess))


def with_roles(columns):
    label, prediction = classes(len(next(iter(columns.values()))))
    return pa.table({**columns, "label": label, "prediction": prediction})


def raw(table):
    """The table as pandas has it, where null and NaN stay apart and no integer is rounded."""
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def check(found, frame, right):
    """Every row says what the raw table says, and each example is in one bin of each feature."""
    lists = {d["name"] for d in found.document["dataset"]["domains"] if d["kind"] == "list"}
    masks = {
        name: predicates.mask(frame, predicate)
        for name, predicate in lattice.singletons(found.domains()).items()
    }
    for feature in {name[0] for name in masks} - lists:
        held = sum(mask.astype(int) for name, mask in masks.items() if name[0] == feature)
        assert (held == 1).all(), feature
    for row, conjunction in zip(found.table.itertuples(), found.conjunctions(), strict=True):
        held = np.logical_and.reduce([masks[name] for name in conjunction])
        assert row.n == held.sum() > 0, row.slice
        assert row.value == pytest.approx(right[held].mean(), abs=1e-15), row.slice
    most = found.document["search"]["max_cross_size"]
    tested = found.document["testing"]["min_slice_size"]
    assert set(found.conjunctions()) == set(lattice.all_slices(masks, most, tested))


def searched(output, data, **options):
    defaults = {**ROLES, "min_slice_size": 1, "max_cross_size": 2}
    return search(output, data=tuple(map(str, data)), **{**defaults, **options})


def search_table(folder, table, **options):
    """Search a table that is written to Parquet first, and check all that it says."""
    pq.write_table(table, folder / "data.parquet", row_group_size=options.pop("group", None))
    found = searched(folder / "out", [folder / "data.parquet"], **options)
    frame = raw(table)
    check(found, frame, (frame["label"] == frame["prediction"]).to_numpy(bool))
    return found


def names(found):
    return {domain["name"] for domain in found.document["dataset"]["domains"]}


def left_out(found):
    return {one["name"]: one["reason"] for one in found.document["dataset"]["left_out"]}


INF = float("inf")
MOMENT = dt.datetime(2024, 3, 30, 23, 15, tzinfo=dt.timezone.utc)
HOURS = [MOMENT + dt.timedelta(hours=i, microseconds=i) for i in range(60)]
NAIVE = [hour.replace(tzinfo=None) for hour in HOURS]
COLUMNS = {
    "float": lambda: cycled([1.5, None, float("nan"), INF, -INF, 0.0, -0.0, *np.arange(30) / 7]),
    "infinities": lambda: cycled([INF, -INF, None]),
    "float32": lambda: cycled((np.arange(40) / 10).tolist(), pa.float32()),
    "float16": lambda: cycled((np.arange(40) / 10).tolist(), pa.float16()),
    "text": lambda: cycled(["", " ", "a", None, 'ü, "q"\n', "None", "NaN", "nan"]),
    "large_text": lambda: cycled(["x", "y", None], pa.large_string()),
    "dictionary": lambda: cycled(["b", None, "a"]).dictionary_encode(),
    "dictionary_of_ints": lambda: cycled([7, 5, None, 9]).dictionary_encode(),
    "texts": lambda: cycled([["a", "b"], [], None, ["a", "a"], ["", None], ["c"]]),
    "ints": lambda: cycled([[1, 2], [], None, [2, 2, None], [-3]]),
    "bools": lambda: cycled([[True], [True, False], [], None]),
    "large_lists": lambda: cycled([["a"], ["b", "a"], None], pa.large_list(pa.large_string())),
    "decimal": lambda: cycled([decimal.Decimal(i) / 100 for i in range(-30, 30)]),
    "decimal256": lambda: cycled([decimal.Decimal(i) / 8 for i in range(9)], pa.decimal256(60, 3)),
    "wide_decimal": lambda: cycled([decimal.Decimal("12345678901234.5"), decimal.Decimal("-0.1"), None], pa.decimal128(38, 1)),
    "date": lambda: cycled([dt.date(2020, 1, 1) + dt.timedelta(i) for i in range(-20, 40)]),
    "date64": lambda: cycled([dt.date(1969, 12, 20 + i) for i in range(12)], pa.date64()),
    "zoned": lambda: cycled([*HOURS, None], pa.timestamp("us", "Europe/Berlin")),
    "zoned_utc": lambda: cycled(HOURS, pa.timestamp("ms", "UTC")),
    "nanoseconds": lambda: cycled([*range(10**18, 10**18 + 50), None], pa.timestamp("ns")),
    "naive": lambda: cycled(NAIVE, pa.timestamp("us")),
    "seconds": lambda: cycled(list(range(-9, 40)), pa.timestamp("s")),
    "time": lambda: cycled([dt.time(i % 24, 5, i) for i in range(50)], pa.time64("us")),
    "time32": lambda: cycled(list(range(0, 86400, 1700)), pa.time32("s")),
    "bool": lambda: cycled([True, False, None]),
    "uint64": lambda: cycled([2**64 - 1, 2**63, 2**63 - 1, *range(40)], pa.uint64()),
    "int64": lambda: cycled([2**53 + 1, 2**53, -(2**63), 2**63 - 1, *range(40)], pa.int64()),
    "int8": lambda: cycled(list(range(-128, 128, 5)), pa.int8()),
    "few_ints": lambda: cycled([3, 1, 2, None]),
    "mostly_zero": lambda: cycled([0.0] * 20 + [0.5, 1.5, 2.5, -1.0, -2.0]),
}  # fmt: skip
# Columns of no use, and a word of the reason.
USELESS = {
    "constant": (lambda: cycled(["same"]), "one value only"),
    "null": (lambda: pa.nulls(ROWS), "missing"),
    "no_value": (lambda: pa.nulls(ROWS, pa.float64()), "missing"),
    "nan": (lambda: cycled([float("nan")]), "missing"),
    "empty_lists": (lambda: cycled([[]], pa.list_(pa.string())), "missing"),
    "id": (lambda: pa.array(range(ROWS)), "an id"),
    "comment": (lambda: pa.array([f"said {i}" for i in range(ROWS)]), "free text"),
    "digits": (lambda: cycled([decimal.Decimal(10**20 + i) for i in range(50)]), "18 digits"),
    "struct": (lambda: cycled([{"a": 1}, {"a": 2}]), "no values to compare"),
    "bytes": (lambda: cycled([b"a", b"b"]), "no values to compare"),
    "durations": (lambda: cycled([1, 2], pa.duration("s")), "no values to compare"),
    "float_lists": (lambda: cycled([[0.5], [1.5]]), "no values to compare"),
}


@pytest.mark.parametrize("some", [list(COLUMNS)[i::4] for i in range(4)], ids=lambda n: n[0])
def test_every_type_in_parquet(tmp_path, some):
    table = with_roles({name: COLUMNS[name]() for name in some})
    assert names(search_table(tmp_path, table, group=100, chunk_rows=64)) == set(some)


def test_columns_of_no_use_are_left_out(tmp_path):
    table = with_roles(
        {"bool": COLUMNS["bool"](), **{n: make() for n, (make, _) in USELESS.items()}}
    )
    found = search_table(tmp_path, table)
    assert names(found) == {"bool"}
    for name, (_, word) in USELESS.items():
        assert word in left_out(found)[name], name


def test_an_id_that_is_asked_for_is_a_feature(tmp_path):
    table = with_roles({name: USELESS[name][0]() for name in ("id", "comment")})
    found = search_table(tmp_path, table, features=("id", "comment"), top_values=5)
    assert names(found) == {"id", "comment"}
    assert "not_in" in {one["op"] for one in found.document["dataset"]["domains"][1]["singletons"]}


@pytest.mark.parametrize("old", [cycled([1.5, None]), cycled([[1]]), cycled(["fish"])])
def test_old_predictions_do_not_matter_beside_all_examples(tmp_path, old):
    table = with_roles({"n": cycled([1, 2, 3]), "old": old})
    found = search_table(tmp_path, table, baseline_prediction="old", compare="overall")
    assert names(found) == {"n"}
    assert "old" not in left_out(found)
    with pytest.raises(InputError, match="--baseline-prediction: unknown column 'odl'"):
        search_table(tmp_path, table, baseline_prediction="odl", compare="overall")


@pytest.mark.slow
def test_300_columns(tmp_path):
    rng = np.random.default_rng(1)
    table = with_roles({f"c{i}": pa.array(rng.integers(0, 3, 400)) for i in range(300)})
    assert len(search_table(tmp_path, table, max_cross_size=1).table) == 900


def test_one_row(tmp_path):
    columns = {"a": pa.array([1, 1]), "tags": pa.array([["x", "y"], ["x"]])}
    found = search_table(tmp_path, with_roles(columns).slice(0, 1))
    assert found.table["slice"].tolist() == ["tags contains x", "tags contains y"]


def test_files_of_compatible_schemas(tmp_path):
    label, prediction = classes(200)
    first = {
        "number": cycled(list(range(30)), pa.int16(), 100),
        "text": cycled(["a", "b"], None, 100).dictionary_encode(),
        "day": cycled([dt.date(2024, 1, i + 1) for i in range(25)], None, 100),
        "empty": pa.nulls(100),
        "tags": cycled([["x"], ["y", "x"]], None, 100),
    }
    second = {
        "tags": cycled(["x", "z", None], None, 100),
        "empty": cycled([None, "filled"], None, 100),
        "day": cycled(NAIVE, pa.timestamp("us"), 100),
        "text": cycled(["c", "b", None], pa.large_string(), 100),
        "number": cycled([i / 4 for i in range(50)], None, 100),
    }
    for number, columns in enumerate((first, second)):
        begin = 100 * number
        roles = {"label": label[begin : begin + 100], "prediction": prediction[begin : begin + 100]}
        table = pa.table({**columns, **roles})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=40)
    found = searched(tmp_path / "out", [tmp_path / "*.parquet"], chunk_rows=33)
    both = {name: first[name].to_pylist() + second[name].to_pylist() for name in first}
    both["number"] = list(map(float, both["number"]))
    both["day"] = pd.Series(list(map(pd.Timestamp, both["day"])), dtype=object)
    both["tags"] = [[tag] if isinstance(tag, str) else tag for tag in both["tags"]]
    assert names(found) == set(first)
    check(found, pd.DataFrame(both), np.array(label) == np.array(prediction))


def test_another_run_into_the_same_folder(tmp_path):
    """Nothing of the run before is in the results of the next, in the same process."""
    for values in (["a", "b"], ["b", "a", "c"], [2, 1]):
        search_table(tmp_path, with_roles({"x": cycled(values)}))


@pytest.mark.parametrize("kind", ["text", "bool", "int", "dictionary"])
def test_kinds_of_labels(tmp_path, kind):
    truth = np.random.default_rng(2).integers(0, 2, ROWS)
    guess = np.where(np.arange(ROWS) % 5, truth, 1 - truth)
    texts, letters = pa.array([" no", "yes"]), pa.array(["n", "y"])
    label, prediction = {
        "text": (texts.take(truth), texts.take(guess)),
        "bool": (pa.array(truth.astype(bool)), pa.array(guess.astype(np.int8))),
        "int": (pa.array(truth), pa.array(guess.astype(float))),
        "dictionary": tuple(letters.take(pa.array(y)).dictionary_encode() for y in (truth, guess)),
    }[kind]
    table = pa.table({"n": cycled([1, 2, 3]), "label": label, "prediction": prediction})
    pq.write_table(table, tmp_path / "data.parquet")
    check(searched(tmp_path / "out", [tmp_path / "data.parquet"]), raw(table), truth == guess)


@pytest.mark.parametrize(
    ("label", "positive"), [(["no", "yes"], "yes"), ([0, 1], None), ([False, True], "true")]
)
def test_scores(tmp_path, label, positive):
    rng = np.random.default_rng(3)
    truth, score = rng.integers(0, 2, ROWS), rng.integers(0, 11, ROWS) / 10
    table = pa.table(
        {"n": cycled([1, 2, 3]), "label": [label[i] for i in truth], "score": score.astype("f4")}
    )
    pq.write_table(table, tmp_path / "data.parquet")
    options = {"prediction": None, "score": "score", "threshold": 0.25, "positive_class": positive}
    found = searched(tmp_path / "out", [tmp_path / "data.parquet"], **options)
    check(found, raw(table), truth == (score >= 0.25))


@st.composite
def tables(draw):
    rows, some = draw(st.integers(1, 12)), st.sampled_from
    numbers = st.floats(width=32)
    values = {
        "float": (pa.float64(), st.floats()),
        "few": (pa.float64(), some([0.0, -0.0, 1.0, INF, -INF, float("nan")])),
        "float32": (pa.float32(), numbers),
        "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        "uint": (pa.uint64(), st.integers(0, 2**64 - 1)),
        "small": (pa.int8(), st.integers(-3, 3)),
        "bool": (pa.bool_(), st.booleans()),
        "text": (pa.string(), st.text(max_size=2)),
        "word": (pa.string(), some(["", "a", "b"])),
        "date": (pa.date32(), st.dates()),
        "time": (pa.time64("us"), st.times()),
        "at": (pa.timestamp("us"), st.integers(-(10**15), 10**15)),
        "decimal": (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
        "texts": (pa.list_(pa.string()), st.lists(some(["a", "b", None]), max_size=3)),
        "ints": (pa.list_(pa.int32()), st.lists(some([1, 2, None]), max_size=3)),
    }
    columns = {}
    for name in draw(st.lists(some(sorted(values)), min_size=1, max_size=4, unique=True)):
        kind, value = values[name]
        column = st.lists(st.none() | value, min_size=rows, max_size=rows)
        columns[name] = pa.array(draw(column), kind)
    role = st.lists(some(["x", "y"]), min_size=rows, max_size=rows)
    # The first prediction is right, so that label and prediction speak of the same classes.
    label = draw(role)
    return pa.table({**columns, "label": label, "prediction": [label[0], *draw(role)[1:]]})


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tables(), st.integers(2, 4), st.integers(1, 3))
def test_any_table(tmp_path, table, bins, top_values):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    try:
        search_table(folder, table, bins=bins, top_values=top_values)
    except InputError as error:
        # A table may have no column that could be cut.
        assert "no feature" in str(error)  # noqa: PT017


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


def held(first, values, column=None, *, seed=0, is_reserved=True):
    table = pa.table({"id": values})
    rows = ReservedRows(0.3, seed, column, "--group", is_reserved)
    return rows.holds(Chunk(0, 0, "", first, first, table))


def test_a_share_of_the_positions_in_any_chunks():
    whole = held(0, np.zeros(20_000))
    assert abs(whole.mean() - 0.3) < 0.012
    assert np.array_equal(whole[5_000:6_000], held(5_000, np.zeros(1_000)))
    assert np.array_equal(whole, ~held(0, np.zeros(20_000), is_reserved=False))
    assert 0.3 < (whole != held(0, np.zeros(20_000), seed=1)).mean() < 0.54


def test_whole_groups_wherever_they_are():
    ids = np.random.default_rng(0).integers(0, 500, 20_000)
    for values in (ids, pa.array(ids).cast(pa.string())):
        reserved = held(0, values, "id")
        shares = np.bincount(ids, reserved) / np.bincount(ids)
        assert set(shares) == {0.0, 1.0}
        assert abs(shares.mean() - 0.3) < 0.08
        assert np.array_equal(reserved[7_000:], held(7_000, values[7_000:], "id"))
