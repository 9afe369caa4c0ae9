"""Passes: numbers of equal examples, and rows of results held against queries grouped by pandas."""

from collections import Counter
from itertools import count

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn import metrics as sk

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.randomness import occurrence_ids, poisson_weights, repeats
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.api import check
from slicebeam.pipelines.define.document_data import DocumentData
from slicebeam.pipelines.define.predicates import column_types
from slicebeam.pipelines.discovery.known import PublishedDiscovery
from slicebeam.pipelines.prepare import source
from slicebeam.transforms.encode.passes import _numbers
from slicebeam.transforms.storage.work_files import write_arrow
from tests.conftest import slow
from tests.end_to_end.test_metrics_end_to_end import check_values
from tests.refusals import refuses
from tests.running import search

SIDES = ("", "_old")
OPTIONS = {"label": "gain", "score": "score", "metric": ("ndcg:3", "map:9")}
LISTED = ["gain", "score", "score_old"]


def results():
    """Rows of 400 queries in any order: no result of some is relevant, no two have the same score."""
    draw, queries = np.random.default_rng(7), 400
    frame = pd.DataFrame({"query": [f"q{at}" * (1 + at % 3) for at in range(queries)]})
    frame["country"] = draw.choice(["P", "Q", None], queries)
    frame["words"] = np.where(draw.random(queries) < 0.1, np.nan, draw.integers(1, 6, queries))
    frame["tags"] = [sorted(set(draw.choice(list("abc"), 2))) for _ in range(queries)]
    frame["weight"] = draw.integers(1, 4, queries)
    frame["user"] = draw.integers(0, 60, queries)
    frame = frame.loc[np.repeat(np.arange(queries), draw.integers(2, 9, queries))]
    frame = frame.reset_index(drop=True)
    frame["once"] = np.arange(len(frame)) == 20
    frame["place"] = np.arange(len(frame)) % 3
    frame["gain"] = draw.integers(0, 3, len(frame)) * draw.integers(0, 2, len(frame))
    for side in SIDES:
        noise = draw.normal(size=len(frame))
        frame["score" + side] = np.where(frame["country"] == "P", 0, frame["gain"]) + noise
    return frame.sample(frac=1, random_state=0)


ROWS = results()
FEATURES = ["country", "words", "tags", "weight", "user"]


def by_pandas():
    """One row for each query, with what scikit-learn measures of it."""
    grouped = ROWS.groupby("query")
    queries = grouped[FEATURES].first().join(grouped[LISTED].agg(list)).reset_index()
    for side in SIDES:
        pairs = list(zip(queries["gain"], queries["score" + side], strict=True))
        queries["ndcg:3" + side] = [sk.ndcg_score([gain], [score], k=3) for gain, score in pairs]
        queries["map:9" + side] = [
            sk.average_precision_score(np.array(gain) > 0, score) if any(gain) else 0
            for gain, score in pairs
        ]
    return queries


def write(folder, frame=ROWS, files=2):
    folder.mkdir(exist_ok=True)
    for number in range(files):
        part = frame[number::files].reset_index(drop=True)
        table = pa.Table.from_pandas(part)
        # Not a null, as pandas has it, but not a number.
        at = table.schema.names.index("words")
        pq.write_table(
            table.set_column(at, "words", pa.array(part["words"].to_numpy())),
            folder / f"{number}.parquet",
        )
    return str(folder / "*.parquet")


def of(side):
    return lambda some: {name: some[name + side].mean() for name in OPTIONS["metric"]}


@pytest.mark.parametrize("sides", [1, 2])
def test_values_are_those_of_scikit_learn_for_each_query(tmp_path, sides):
    data, queries = write(tmp_path / "rows"), by_pandas()
    options = {**OPTIONS, "features": ("country", "words", "tags"), "max_cross_size": 1}
    options |= {"baseline_score": "score_old"} if sides == 2 else {}
    found = search(tmp_path / "a", data=data, query="query", **options)
    assert found.document["dataset"]["n"] == len(queries) == 400
    assert found.document["dataset"]["id_field"] == "query"
    assert check_values(found, queries, *map(of, SIDES[:sides])) > 6
    listed = write(tmp_path / "lists", queries)
    own = search(tmp_path / "b", data=listed, example_id="query", **options)
    assert found.slices_bytes == own.slices_bytes


@pytest.mark.parametrize("options", [
    {"weight": "weight", "test": "bootstrap-rows"},
    {"group": "user"},
    {"baseline_score": "score_old", "exclude_features": ("user",)},
    slow({"runner_config": "direct_multi"}),
])  # fmt: skip
def test_the_order_of_rows_and_the_number_of_parts_decide_nothing(tmp_path, monkeypatch, options):
    options = {**OPTIONS, **options, "query": "query", "max_cross_size": 1}
    found = search(tmp_path / "a", data=write(tmp_path / "rows"), **options)
    left_out = {one["name"]: one["reason"] for one in found.document["dataset"]["left_out"]}
    expected = {"once", "place", "score_old"} - {options.get("baseline_score")}
    assert left_out == dict.fromkeys(expected, "varies within queries")
    monkeypatch.setattr(source, "_CELL_BYTES", 1 << 13)
    data = write(tmp_path / "others", ROWS.sort_values("score"), files=3)
    options |= {"memory_budget": "40MB", "chunk_rows": 300, "runner_config": "direct"}
    again = search(tmp_path / "b", data=data, **options)
    assert again.slices_bytes == found.slices_bytes
    for name in ("fingerprint", "left_out", "n"):
        assert again.document["dataset"][name] == found.document["dataset"][name]


def test_slices_are_checked_and_examples_are_read_by_query(tmp_path):
    data = write(tmp_path / "rows")
    options = {**OPTIONS, "query": "query", "features": ("country",)}
    search(tmp_path / "out", data=data, **options)
    uri = str(tmp_path / "out" / "changelist.json")
    document = read_search(uri, "--changelist")
    assert {"place", "once", "country"} - column_types(uri, document, [data]).keys() == {
        "place",
        "once",
    }
    read = DocumentData(PublishedDiscovery(uri, document), None)
    assert read.source.rows == len(read.ids.unique()) == 400
    assert "place" in read.source.varying
    read.close()
    checked = check(data, changelist=uri).slices
    assert set(checked["slice"].to_pylist()) == {"country = P"}
    assert checked["n"][0].as_py() == (by_pandas()["country"] == "P").sum()


WRONG = ROWS.reset_index(drop=True)


@pytest.mark.parametrize(("column", "value", "options", "message"), [
    ("query", None, {}, "--query query has no value in row 7 of .*0.parquet"),
    ("score", np.nan, {}, "column 'score' has no value in row 7 of .*0.parquet"),
    ("gain", -1, {}, "column 'gain' holds -1 in row 7 of .*0.parquet, but a relevance is at least 0; drop"),
    ("weight", -1, {"weight": "weight"}, "weight column 'weight' holds -1 in row 7 of .*0.parquet; a weight"),
    ("user", None, {"group": "user"}, "--group has no value in row 7 of .*0.parquet"),
    ("weight", 9, {"weight": "weight"}, "column 'weight' holds .* in query 'q.*, but a query has one; write the same"),
    ("user", 9, {"group": "user"}, "column 'user' holds .* in query 'q.*, but a query has one; write the same"),
    (None, None, {"features": ("place",)}, "--features: column 'place' varies within queries; leave it out"),
    (None, None, {"features": ("plac",)}, "--features: unknown column 'plac'; did you mean 'place'"),
    (None, None, {"query": "querry"}, "--query: unknown column 'querry'; did you mean 'query'"),
    (None, None, {"query": "score_old"}, "--query score_old column is double; an id is text or an integer"),
    (None, None, {"query": "gain"}, "--query 'gain' is the label; name another column"),
    (None, None, {"label": "tags"}, "column 'tags' is list<.*, but a relevance is a number"),
    (None, None, {"query": None}, "column 'gain' is int64, not a list of numbers for each query, which --query makes"),
    (None, None, {"example_id": "user"}, "--example-id has no effect with --query, whose queries are the examples"),
    (None, None, {"metric": ("mrr", "accuracy")}, "--query is for metrics of rankings, and accuracy is not one; name others by --metric, such"),
    (None, None, {"threshold": 0.3}, "--threshold is for scores, but --metric ndcg:3, map:9 compares no classes; leave"),
    (None, None, {"positive_class": "1"}, "--positive-class is for .* one class, but the metric is ndcg:3, map:9; leave"),
])  # fmt: skip
def test_queries_that_are_refused(tmp_path, column, value, options, message):
    frame = WRONG
    if column is not None:
        frame = frame.assign(**{column: frame[column].mask(np.arange(len(frame)) == 12, value)})
    options = {"query": "query", **OPTIONS, **options}
    refuses(
        InputError, message, search, tmp_path / "out", data=write(tmp_path / "in", frame), **options
    )


def test_slices_of_what_varies_are_refused(tmp_path):
    (tmp_path / "slices.yaml").write_text("- place = 1")
    given = {"slices": str(tmp_path / "slices.yaml"), "query": "query", **OPTIONS}
    message = "unknown column 'place'.*; of queries, what varies within them is left out: once, place, score_old"
    refuses(InputError, message, check, write(tmp_path / "rows"), **given)


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
