"""The pool of a shift is what pandas makes of the same data; what an assessment makes of answers."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.metrics.randomness import hash64
from slicebeam.pipelines.shift import difficulties as df
from slicebeam.pipelines.shift import pool as pool_module
from slicebeam.pipelines.shift.answers import LOST
from slicebeam.pipelines.shift.assessment import Stopping, assess, check_budget, strata_of
from slicebeam.pipelines.shift.candidates import PoolCandidates, smallest
from slicebeam.pipelines.shift.pool import (
    LabelledPool,
    PoolColumns,
    PoolItems,
    all_classes,
    by_values,
    read_pool,
)
from slicebeam.transforms.encode import sources
from slicebeam.transforms.encode.column import Chunk, id_hashes
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.convert import Conversion, convert_file, converted_source
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.sources import StoredFile, open_parquet
from tests.refusals import refuses

SEED = 5
TEXT = PoolColumns("y", "o", "c", "r", "id", None, "string")


def frame_of(rows, kind="text", seed=1):
    """A pool with ties, missing confidences, rare labels, and classes of only one side."""
    rng = np.random.default_rng(seed)
    codes = {
        "y": rng.choice(5, rows, p=[0.5, 0.3, 0.15, 0.05, 0.0]),
        "o": rng.choice(6, rows, p=[0.4, 0.3, 0.1, 0.0, 0.1, 0.1]),
        "r": rng.choice(7, rows, p=[0.4, 0.2, 0.1, 0.0, 0.1, 0.1, 0.1]),
    }
    # One label is there once: its stratum has one example.
    codes["y"][rows // 2] = 4
    names = {
        "text": [f"class {code}" for code in range(7)],
        "int": [3, -1, 40, 7, 100, 2, 5],
        "bool": [False, True, False, True, True, False, True],
    }
    classes = np.array(names[kind], object)
    frame = pd.DataFrame({role: classes[code] for role, code in codes.items()})
    confidence = rng.choice([0.5, 1.0, np.nan], rows, p=[0.2, 0.7, 0.1])
    frame["c"] = np.where(rng.random(rows) < 0.5, confidence, rng.random(rows))
    frame["r"] = frame["r"].where(rng.random(rows) < 0.9, None)
    frame["id"] = [f"item {number}" for number in rng.permutation(rows)]
    frame["city"] = rng.choice(["Paris", "Rome", None], rows, p=[0.6, 0.3, 0.1])
    frame["text"] = [f"text {row % 11}" for row in range(rows)]
    frame["image"] = [bytes([row % 256, 0, 255]) for row in range(rows)]
    frame["words"] = [[f"w{row % 3}"] * (row % 4) for row in range(rows)]
    return frame


def source_of(frame, folder, patch=None, *, files=1, row_group=1000, chunk=1 << 18, split=None):
    folder.mkdir(exist_ok=True)
    stored = []
    bounds = np.linspace(0, len(frame), files + 1).astype(int)
    for number, (begin, end) in enumerate(pairwise(bounds)):
        path = str(folder / f"{number}.parquet")
        table = pa.Table.from_pandas(frame.iloc[begin:end], preserve_index=False)
        pq.write_table(table, path, row_group_size=row_group)
        stored.append(StoredFile(path, path))
    if split is not None:
        patch.setattr(sources, "CHUNK_ROWS", split)
    return open_parquet(stored).in_chunks(chunk)


def pool_of(columns, source, **options):
    options = {"bins": 3, "signed": False, "seed": SEED, "most": 20, **options}
    return read_pool(columns, source, **options)


def check(pool, frame, columns, *, bins=3, signed=False, most=20):
    roles = {"y": columns.label, "o": columns.old_prediction, "r": columns.recorded}
    roles = {short: name for short, name in roles.items() if name}
    classes = {
        short: frame[name].map(lambda one: int(one) if isinstance(one, (bool, np.bool_)) else one)
        for short, name in roles.items()
    }
    every = set().union(*(column.dropna() for column in classes.values()))
    assert (pool.rows, pool.classes) == (len(frame), tuple(sorted(every)))
    assert all(type(one) in (str, int, float) for one in pool.classes)
    code = {name: place for place, name in enumerate(pool.classes)}
    label = classes["y"].map(code).to_numpy()
    assert pool.labels.tolist() == sorted(set(label))
    bin_ = np.zeros(len(frame), int)
    if columns.difficulty:
        value = frame[columns.difficulty].to_numpy(float)
        if signed:
            value = np.where(classes["y"] == classes["o"], value, -value)
        edges = np.unique(np.quantile(value[~np.isnan(value)], np.arange(1, bins) / bins))
        assert pool.edges.tolist() == edges.tolist()
        bin_ = np.array([-1 if np.isnan(v) else int((edges <= v).sum()) for v in value])
    else:
        assert pool.edges.size == 0
    strata = sorted(set(zip(label, bin_, strict=True)))
    assert list(zip(pool.labels[pool.stratum_row], pool.stratum_bin, strict=True)) == strata
    stratum = np.array([strata.index(one) for one in zip(label, bin_, strict=True)])
    assert pool.sizes.tolist() == np.bincount(stratum).tolist()
    old = classes["o"].map(code).to_numpy() if "o" in roles else None
    if old is None:
        assert pool.old is None
        assert pool.items.old is None
    else:
        wanted = np.zeros((len(strata), len(code)), int)
        np.add.at(wanted, (stratum, old), 1)
        assert pool.old.tolist() == wanted.tolist()
    if columns.example_id:
        array = pa.array(frame[columns.example_id])
        array = array.cast(pa.string()) if pa.types.is_large_string(array.type) else array
        identity = id_hashes(array, Chunk(0, 0, "", 0, 0, pa.table({})))
        keys = frame[columns.example_id].astype(str).to_numpy()
    else:
        identity = np.arange(len(frame), dtype=np.uint64)
        keys = np.array([f"#{row}" for row in range(len(frame))])
    hashes, chosen = hash64(SEED, 0, identity), []
    for number in range(len(strata)):
        rows = np.flatnonzero(stratum == number)
        assert pool.starts[number] == len(chosen)
        chosen += rows[np.argsort(hashes[rows])][:most].tolist()
    items = pool.items
    assert (pool.starts[-1], items.stratum.dtype) == (len(chosen), np.int32)
    assert items.stratum.tolist() == stratum[chosen].tolist()
    assert items.identity.tolist() == identity[chosen].tolist()
    assert items.keys.to_pylist() == keys[chosen].tolist()
    if old is not None:
        assert items.old.tolist() == old[chosen].tolist()
    if "r" in roles:
        assert items.recorded.tolist() == classes["r"].map(code).fillna(-1)[chosen].tolist()
    else:
        assert items.recorded is None
    assert items.row.tolist() == chosen


@pytest.mark.parametrize("kind", ["text", "int", "bool"])
@pytest.mark.parametrize("signed", [False, True])
def test_a_pool_is_what_pandas_says(tmp_path, kind, signed):
    frame = frame_of(700, kind)
    columns = replace(TEXT, class_type="string" if kind == "text" else "int64")
    pool = pool_of(columns, source_of(frame, tmp_path / "d"), signed=signed)
    check(pool, frame, columns, signed=signed)
    assert kind == "bool" or 1 in pool.sizes
    assert -1 in pool.stratum_bin


def test_whole_numbers_that_were_read_as_floats_are_classes(tmp_path):
    frame = frame_of(300, "int")
    frame["r"] = frame["r"].astype(float)
    columns = replace(TEXT, class_type="double")
    pool = pool_of(columns, source_of(frame, tmp_path / "d"))
    check(pool, frame, columns)
    assert pool.classes == (-1.0, 2.0, 3.0, 5.0, 7.0, 40.0, 100.0)


WITHOUT = ["difficulty", "old_prediction recorded", "example_id", "difficulty recorded"]


@pytest.mark.parametrize("without", WITHOUT)
@pytest.mark.parametrize("most", [1, None])
def test_what_is_not_there_is_left_out(tmp_path, without, most):
    frame, columns = frame_of(400), replace(TEXT, **dict.fromkeys(without.split()))
    pool = pool_of(columns, source_of(frame, tmp_path / "d", chunk=90), most=most)
    check(pool, frame, columns, most=most)


def same(one, other):
    assert (one.classes, one.fingerprint) == (other.classes, other.fingerprint)
    for name in ("labels", "stratum_row", "stratum_bin", "edges", "sizes", "old", "starts"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for name in ("stratum", "identity", "old", "recorded", "row"):
        assert getattr(one.items, name).tobytes() == getattr(other.items, name).tobytes()
    assert one.items.keys.equals(other.items.keys)


@pytest.mark.slow
def test_a_pool_does_not_depend_on_how_it_is_cut(tmp_path, monkeypatch):
    frame, columns = frame_of(1000, seed=3), replace(TEXT, example_id=None)
    options = {"signed": True, "bins": 4, "most": 30}
    whole = pool_of(columns, source_of(frame, tmp_path / "d"), **options)
    check(whole, frame, columns, signed=True, bins=4, most=30)
    cuts = ((1, 100, 37, 300), (3, 500, 100, 500), (7, 5000, 4000, 1 << 18), (2, 50, 50, 50))
    for number, cut in enumerate(cuts):
        how = dict(zip(("files", "row_group", "chunk", "split"), cut, strict=True))
        source = source_of(frame, tmp_path / f"d{number}", monkeypatch, **how)
        same(pool_of(columns, source, **options), whole)
    assert len(source.splits) == 20


def test_edges_of_many_values_do_not_depend_on_how_they_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "MOST_DISTINCT", 200)
    frame = frame_of(3000, seed=4)
    frame["c"] = np.random.default_rng(4).normal(size=3000)
    columns = replace(TEXT, example_id=None)
    whole = pool_of(columns, source_of(frame, tmp_path / "d"))
    source = source_of(frame, tmp_path / "e", monkeypatch, row_group=100, chunk=70, split=200)
    same(pool_of(columns, source), whole)
    exact = np.unique(np.nanquantile(frame["c"], [1 / 3, 2 / 3]))
    assert whole.edges.tolist() != exact.tolist()
    np.testing.assert_allclose(whole.edges, exact, rtol=0.05)


def test_a_csv_file_is_the_pool_that_its_parquet_is(tmp_path):
    frame = frame_of(400, "int").drop(columns=["image", "words"])
    columns = replace(TEXT, class_type="int64")
    (tmp_path / "pool.csv").write_text(frame.to_csv(index=False), "utf-8")
    (tmp_path / "parts").mkdir()
    conversion = Conversion(tmp_path / "parts")
    convert_file(conversion, (0, str(tmp_path / "pool.csv"), "csv"))
    source = converted_source(conversion, [str(tmp_path / "pool.csv")]).in_chunks(64)
    check(pool_of(columns, source, most=None), frame, columns, most=None)


def test_counts_and_candidates_of_slices(tmp_path):
    frame, paris = frame_of(600), Singleton("city", "==", "Paris")
    others = ((Singleton("city", "is_null"),), (Singleton("city", "==", "Oslo"),))
    by = SliceMembership(((paris,), *others, (Singleton("c", ">=", 0.5), paris)))
    columns, source = replace(TEXT, by=by), source_of(frame, tmp_path / "d", chunk=77)
    pool = pool_of(columns, source)
    check(pool, frame, columns)
    city = frame["city"]
    sure = (frame["c"] >= 0.5) & (city == "Paris")
    held = np.stack([city == "Paris", city.isna(), city == "Oslo", sure])
    code = {name: place for place, name in enumerate(pool.classes)}
    wanted = np.zeros((4, len(pool.labels), len(code)), int)
    row = {int(label): place for place, label in enumerate(pool.labels)}
    for y, o, member in zip(frame["y"], frame["o"], held.T, strict=True):
        wanted[member, row[code[y]], code[o]] += 1
    assert pool.slices.old.tolist() == wanted.tolist()
    assert pool.slices.labels.tolist() == wanted.sum(axis=2).tolist()
    assert pool.slices.sizes.tolist() == held.sum(axis=1).tolist()
    ragged = pool.items.slices
    assert ragged is not None
    place = {key: at for at, key in enumerate(frame["id"])}
    for number, key in enumerate(pool.items.keys.to_pylist()):
        found = ragged.codes[ragged.offsets[number] : ragged.offsets[number + 1]]
        assert found.tolist() == np.flatnonzero(held[:, place[key]]).tolist()
    without = pool_of(replace(columns, old_prediction=None), source)
    assert without.slices.old is None
    assert without.slices.labels.tolist() == pool.slices.labels.tolist()


def test_classes_that_only_an_answer_may_have(tmp_path):
    frame, columns = frame_of(200), replace(TEXT)
    source = source_of(frame, tmp_path / "d")
    plain = pool_of(columns, source)
    more = pool_of(columns, source, extra_classes=["aaa", "class 1"])
    assert more.classes == ("aaa", *plain.classes)
    assert more.labels.tolist() == (plain.labels + 1).tolist()
    assert more.old[:, 0].tolist() == [0] * len(plain.sizes)
    assert more.old[:, 1:].tolist() == plain.old.tolist()
    assert more.fingerprint == plain.fingerprint
    said = "class 7 is not a class of label 'y', whose classes are"
    refuses(InputError, said, pool_of, columns, source, extra_classes=[7])


def test_the_fingerprint_is_of_the_classes_of_each_example(tmp_path):
    columns = PoolColumns("y", "o", None, None, None, None, "int64")
    rows = [([1, 2, 2], [1, 1, 2]), ([1, 2, 1], [1, 1, 2])]
    rows += [([1, 2, 2], [1, 2, 1]), ([2, 1, 2], [1, 1, 2])]
    frames = [pd.DataFrame({"y": y, "o": o}) for y, o in rows]
    sources = [source_of(frame, tmp_path / f"d{at}") for at, frame in enumerate(frames)]
    assert len({pool_of(columns, source).fingerprint for source in sources}) == 4


def test_a_class_that_was_not_there_before_is_told():
    columns = PoolColumns("y", None, None, None, None, None, "string")
    counts = pool_module._Counts(columns, ("a",), np.zeros(0), 1, 9, signed=False)
    chunk = Chunk(0, 0, "pool.csv", 100, 40, pa.table({"y": ["a", "b"]}))
    refuses(InputError, r"'y' of pool\.csv changed while it was read", counts.add, chunk)


def test_an_extra_class_of_another_kind_is_refused():
    columns = PoolColumns("y", None, None, None, None, None, "int64")
    known = {"label": pa.array([0, 1])}
    assert all_classes(columns, known, [True, 2.0]) == [0, 1, 2]
    said = "whose classes are whole numbers; write it like"
    for value in ("x", 1.5, float("nan"), float("inf"), None):
        refuses(InputError, said, all_classes, columns, known, [value])


def test_a_pool_of_one_example(tmp_path):
    frame = frame_of(1)
    frame["o"] = frame["r"] = frame["y"]
    for number, confidence in enumerate((0.5, np.nan)):
        frame["c"] = [confidence]
        pool = pool_of(TEXT, source_of(frame, tmp_path / f"d{number}"))
        assert pool.sizes.tolist() == [1]
        assert pool.edges.tolist() == ([0.5] if number == 0 else [])
        assert pool.stratum_bin.tolist() == ([1] if number == 0 else [-1])
        assert pool.items.keys.to_pylist() == ["item 0"]


@pytest.mark.parametrize("other", ["the same stratum", "another stratum"])
def test_an_id_that_occurs_twice_is_shown(tmp_path, other):
    frame = frame_of(200)
    frame["id"] = np.arange(200) * 7
    rows = np.flatnonzero((frame["y"] == frame["y"][0]) == (other == "the same stratum"))
    twice = int(rows[rows > 0][0])
    frame.loc[twice, "id"] = frame["id"][0]
    columns, source = replace(TEXT, difficulty=None), source_of(frame, tmp_path / "d")
    said = rf"'0' more than once \(examples 1 and {twice + 1} of"
    refuses(InputError, said, pool_of, columns, source, most=None)


@pytest.mark.parametrize(("column", "values", "message"), [
    ("y", np.arange(1200), r"label 'y' has more than 1,000 distinct values: it is not a class"),
    ("o", np.arange(1200), r"prediction 'o' has more than 1,000 distinct values"),
    ("r", np.arange(1200), r"prediction 'r' has more than 1,000 distinct values"),
    ("o", np.arange(1200) % 600 + 1, r"have 1,101 classes in all, and at most 1,000"),
])  # fmt: skip
def test_columns_that_are_no_classes_are_refused(tmp_path, column, values, message):
    rows = np.arange(1200)
    frame = pd.DataFrame({"y": rows % 2, "o": rows % 2, "r": rows % 2, "c": rows / 9, "id": rows})
    if "in all" in message:
        frame["r"] = rows % 500 + 601
        frame.loc[0, "r"] = 1
    frame[column] = values
    columns = replace(TEXT, class_type="double")
    refuses(InputError, message, pool_of, columns, source_of(frame, tmp_path / "d"))


def test_recorded_answers_may_all_be_missing(tmp_path):
    frame = frame_of(100)
    frame["r"] = pd.Series([None] * 100, dtype="string")
    pool = pool_of(replace(TEXT), source_of(frame, tmp_path / "d"))
    assert set(pool.items.recorded) == {-1}


def test_too_many_slices_of_too_many_classes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "_MOST_ENTRIES", 99)
    by = SliceMembership(tuple((Singleton("city", "==", str(number)),) for number in range(10)))
    source = source_of(frame_of(100), tmp_path / "d")
    said = "--by: 10 slices of confusion matrices of 5 × 7"
    refuses(InputError, said, pool_of, replace(TEXT, by=by), source)


def test_values_of_a_column_as_slices(tmp_path):
    values = {
        "text": ["b", "a", None, "b"],
        "flag": [True, False, True, True],
        "whole": [3, 1, 2, 3],
        "number": [0.5, np.nan, -0.0, 0.0],
        "day": pd.to_datetime(["2024-01-02", "2024-01-01", None, "2024-01-02"]).tolist(),
        "tags": [["x", "y"], [], None, ["y"]],
    }
    frame = pd.DataFrame({name: four * 5 for name, four in values.items()})
    frame = frame.assign(many=np.arange(20), image=[b"1"] * 20)
    source = source_of(frame, tmp_path / "d", chunk=3)

    def told(column):
        found = by_values(source, column)
        assert all(len(conditions) == 1 for conditions in found.predicates)
        return [(one.op, one.value) for (one,) in found.predicates]

    assert told("text") == [("==", "a"), ("==", "b"), ("is_null", None)]
    assert told("flag") == [("==", False), ("==", True)]
    assert told("whole") == [("==", 1), ("==", 2), ("==", 3)]
    assert told("number") == [("==", 0.0), ("==", 0.5), ("is_null", None)]
    assert told("tags") == [("contains", "x"), ("contains", "y"), ("is_null", None)]
    days = told("day")
    assert [str(value)[:10] for _, value in days] == ["2024-01-01", "2024-01-02", "None"]
    names = list(frame.columns[:6])
    read = [sources.read_split(source, split, names) for split in source.splits]
    table = pa.concat_tables(chunk.table for chunks in read for chunk in chunks)
    for column in ("text", "flag", "whole", "number", "day"):
        assert np.diff(by_values(source, column).codes(table).offsets).tolist() == [1] * 20
    said = "--by many: it has more than 19 different values, each"
    refuses(InputError, said, by_values, source, "many", most=19)
    assert by_values(source, "many", most=20).size == 20
    refuses(InputError, "--by image: a column of binary has no values", by_values, source, "image")
    said = r"--by: unknown column 'txt'; did you mean 'text'\?"
    refuses(InputError, said, by_values, source, "txt")


def chunk_of(**columns):
    return Chunk(0, 0, "pool.csv", 100, 40, pa.table(columns))


def counted(values):
    distinct, counts = np.unique(values, return_counts=True)
    return distinct, counts.astype(np.int64)


@pytest.mark.parametrize("bins", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("size", [1, 2, 3, 10, 101, 1000])
def test_edges_are_those_of_numpy(bins, size):
    rng, quantiles = np.random.default_rng(size * 100 + bins), np.arange(1, bins) / bins
    for values in (
        rng.normal(size=size),
        rng.random(size) * 1e-3 - 5e-4,
        rng.choice([0.2, 0.9, 1.0], size, p=[0.1, 0.2, 0.7]),
        rng.integers(-3, 4, size).astype(float),
    ):
        wanted = np.unique(np.quantile(values, quantiles))
        assert df.quantile_edges(*counted(values), bins).tolist() == wanted.tolist()


def test_a_value_at_an_edge_is_in_the_bin_above_and_a_missing_one_in_none():
    values = np.array([0.1, 0.5, 0.7, 0.9, np.nan, -1.0])
    assert df.difficulty_bins(values, np.array([0.5, 0.9])).tolist() == [0, 1, 1, 2, -1, 0]
    assert df.difficulty_bins(values, np.zeros(0)).tolist() == [0, 0, 0, 0, -1, 0]
    # Without values there are no edges.
    assert df.quantile_edges(np.zeros(0), np.zeros(0, np.int64), 3).size == 0


@pytest.mark.parametrize(("values", "wanted"), [
    (pa.array([0.5, None, float("nan"), -1.0]), [0.5, -9, -9, -1]),
    (pa.array([3, None, 0, 2], pa.int32()), [3, -9, 0, 2]),
    (pa.array([True, False, None, True]), [1, 0, -9, 1]),
    (pa.nulls(4), [-9] * 4),
    (pa.array(["a", "b", None, "c"]).dictionary_encode(), "'x' is string, but a difficulty is a number"),
    (pa.array([0.1, None, float("inf"), 0.2]), r"'x' holds inf in row 103 of pool\.csv"),
])  # fmt: skip
def test_difficulties_are_finite_numbers_or_missing(values, wanted):
    chunk = chunk_of(x=values)
    given = (chunk.table.column("x"), "x", chunk)
    if isinstance(wanted, list):
        assert np.nan_to_num(df.difficulties(*given), nan=-9).tolist() == wanted
    else:
        refuses(InputError, wanted, df.difficulties, *given)


@pytest.mark.parametrize("most", [1, 3, 1000, None])
@pytest.mark.parametrize("cells", [5, 100_000])
def test_the_smallest_hashes_of_each_cell(most, cells):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "cell": rng.choice(rng.integers(0, cells, 5), 400).astype(np.int32),
            # Some are equal, and then the row decides.
            "hash": rng.choice(rng.integers(0, 2**64, 150, np.uint64), 400),
            "row": rng.permutation(400),
        }
    )
    wanted = frame.sort_values(["cell", "hash", "row"])
    if most is not None:
        wanted = wanted.groupby("cell").head(most)
    found = smallest(*(frame[name].to_numpy() for name in frame), most)
    assert found.tolist() == wanted.index.tolist()
    assert smallest(*(frame[name].to_numpy()[:0] for name in frame), most).size == 0


@pytest.mark.parametrize("parts", [1, 2, 9, 100])
def test_candidates_of_parts_are_those_of_the_whole(parts):
    rng, rows = np.random.default_rng(parts), 60_000
    frame = pd.DataFrame(
        {
            "cell": rng.choice(4, rows, p=[0.7, 0.2999, 0.0001, 0]).astype(np.int32),
            "hash": rng.integers(0, 2**64, rows, np.uint64),
            "row": np.arange(rows),
            "text": rng.choice(["a", "b"], rows),
        }
    )
    wanted = frame.sort_values(["cell", "hash", "row"]).groupby("cell").head(10_000)
    candidates = PoolCandidates(10_000, 4)
    for part in np.array_split(rng.permutation(rows), parts):
        candidates.add(pa.Table.from_pandas(frame.iloc[part], preserve_index=False))
    assert candidates.smallest().to_pydict() == {name: wanted[name].tolist() for name in wanted}


BEYOND = [*((pa.int64(), one) for one in (2**53 + 1, -(2**53) - 1, -(2**63)))]
BEYOND += [(pa.uint64(), 2**64 - 1)]


@pytest.mark.parametrize(("kind", "value"), BEYOND)
@pytest.mark.parametrize("missing", [None, 5])
def test_integers_that_float64_rounds_are_no_difficulty(kind, value, missing):
    def known(last):
        chunk = chunk_of(x=pa.chunked_array([pa.array([missing, 2**53, last], kind)]))
        return df.difficulties(chunk.table.column("x"), "x", chunk).tolist()

    first = float("nan") if missing is None else missing
    assert known(2**53) == pytest.approx([first, 2.0**53, 2.0**53], rel=0, nan_ok=True)
    said = f"column 'x' holds {value} in row 103 of pool.csv, but integers beyond 2^53 lose digits"
    refuses(InputError, re.escape(said), known, value)


def drawn_pool(random):
    classes, strata = int(random.integers(2, 4)), int(random.integers(1, 7))
    sizes = random.integers(1, 60, strata)
    labels, row = np.unique(np.sort(random.integers(0, classes, strata)), return_inverse=True)
    stratum = np.repeat(np.arange(strata), sizes).astype(np.int32)
    old = random.integers(0, classes, stratum.size).astype(np.int32)
    counts = np.zeros((strata, classes), np.int64)
    np.add.at(counts, (stratum, old), 1)
    keys = pa.array([str(place) for place in range(stratum.size)])
    identity = random.integers(0, 2**63, stratum.size).astype(np.uint64)
    return LabelledPool(
        rows=stratum.size,
        classes=tuple(range(classes)),
        labels=labels,
        stratum_row=row,
        stratum_bin=np.zeros(strata, np.int64),
        edges=np.zeros(0),
        sizes=sizes,
        old=counts,
        items=PoolItems(stratum, identity, keys, old, None, np.arange(len(stratum)), None),
        starts=np.concatenate([[0], np.cumsum(sizes)]),
        fingerprint=0,
        slices=None,
    )


class _LossyAnswers:
    """Answers of which some never come; it notes what it is asked."""

    def __init__(self, codes):
        self.all = codes
        self.asked = []

    def codes(self, items, most_calls):
        assert most_calls is None or items.size <= most_calls
        self.asked += items.tolist()
        return self.all[items]


@pytest.mark.parametrize("method", ["plus", "masa", "proportional"])
def test_each_item_is_asked_about_once_until_the_budget_or_the_pool_ends(method):
    random, estimated = np.random.default_rng(5), 0
    for _ in range(60):
        pool = drawn_pool(random)
        stratum, lossy = pool.items.stratum, random.random(pool.sizes.size) < 0.5
        lost = (random.random(pool.rows) < random.choice([0, 0.1, 0.4, 0.8])) & lossy[stratum]
        codes = np.where(lost, LOST, random.integers(-1, len(pool.classes), pool.rows))
        least = 2 * pool.sizes.size
        calls = None if random.random() < 0.2 else int(random.integers(least, pool.rows + least))
        check_budget(strata_of(pool), method, calls)
        answers = _LossyAnswers(codes)
        try:
            found = assess(pool, method, answers, Stopping(calls, None, 0.95))
        except EngineError as error:
            assert "have no answer, because" in str(error)  # noqa: PT017
            continue
        expected = pool.rows if calls is None else min(calls, pool.rows)
        assert len(answers.asked) == len(set(answers.asked)) == expected
        assert found.lost == int(lost[answers.asked].sum())
        assert found.items.size == expected - found.lost
        assert found.stopped == ("pool" if expected == pool.rows else "budget")
        estimated += 1
    assert estimated > 45
