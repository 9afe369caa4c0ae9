"""All tested slices: what the index answers is what the table says, whatever is asked."""

import hashlib
import json
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError, StorageError
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.config.adapt import ServeConfig
from slicebeam.pipelines.page import index_build, served
from slicebeam.pipelines.page.answers import RefusedError
from slicebeam.pipelines.page.app import application_of_runs
from slicebeam.pipelines.page.index import BuildingError, SliceIndex
from slicebeam.pipelines.page.index_build import Task
from slicebeam.pipelines.page.protection import PageSession
from slicebeam.pipelines.page.queries import Turns
from slicebeam.pipelines.page.runs import OverRuns, Runs
from slicebeam.pipelines.page.served import ServedOutput, state_folder
from tests.conftest import own_stores
from tests.pipelines.page.asking import PORT, page, ready, rows, served_page
from tests.pipelines.page.results import hostile_data, search_result
from tests.pipelines.page.test_report import column, unpacked
from tests.refusals import refuses


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return search_result(tmp_path_factory.mktemp("served"), baseline=True)


@pytest.fixture(scope="module")
def client(result):
    return ready(served_page(result))


@pytest.fixture(scope="module")
def table(result):
    """The table in the order in which a reader looks at it: findings, then the surely worst."""
    found = pq.read_table(result / "slices.parquet").to_pandas()
    found = found[found.metric == "accuracy"].reset_index(drop=True)
    bound = np.where(found.delta > 0, found.ci_low, found.ci_high).astype(np.float32)
    found = found.assign(rank=found.finding.fillna(1e9), bound=bound)
    return found.sort_values(["rank", "bound"], kind="stable", ignore_index=True)


def ids(found):
    return [one["slice_id"] for one in found["rows"]]


def test_every_filter_finds_the_rows_of_the_table(client, table):
    condition, white = "sex = Female", "race = White"
    has = table.slice.str.split(" & ").map(lambda parts: condition in parts)
    parent, lower = table.parent.dropna().iloc[0], table.slice.str.lower()
    said = lower.str.contains("married") & lower.str.contains("female")
    near = table.delta.astype(np.float32)
    unexplained = (table.label != "inherited") | table.finding.notna()
    cases = [
        ({}, table.n > 0),
        ({"significant": True}, table.significant),
        ({"significant": True, "inherited": False}, table.significant & unexplained),
        ({"label": "refines", "inherited": False}, table.label == "refines"),
        ({"label": "inherited", "inherited": False}, table.label == "inherited"),
        ({"direction": "worse"}, table.delta < 0),
        ({"direction": "better", "level": 1}, (table.delta > 0) & (table.cross_size == 1)),
        ({"least": 100, "most": 200}, table.n.between(100, 200)),
        ({"low": 0.02, "high": 0.05}, near.between(np.float32(0.02), np.float32(0.05))),
        ({"conditions": [condition]}, has),
        ({"conditions": [condition, white]}, has & table.slice.str.contains(white)),
        ({"text": "married & FEMALE"}, said),
        ({"text": "nowhere"}, table.n < 0),
        ({"text": table.slice_id[5][:9]}, table.index == 5),
        ({"under": parent}, table.parent == parent),
    ]
    for options, mask in cases:
        found, wanted = rows(client, **options), table[mask]
        assert found["found"] == found["shown"] == len(wanted), options
        assert ids(found) == wanted.slice_id[:500].tolist(), options
    whole = {one["slice_id"]: one for one in rows(client)["rows"]}
    for _, row in table[:40].iterrows():
        shown = whole[row.slice_id]
        assert (shown["name"], shown["n"]) == (row.slice, row.n)
        assert shown["finding"] == (0 if np.isnan(row.finding) else row.finding)
        for name in ("value", "value_low", "value_high", "delta", "ci_low", "ci_high", "reference"):
            assert shown[name] == pytest.approx(row[name], rel=1e-6), name
        assert 10 ** shown["q_value"] == pytest.approx(row.q_value, rel=1e-4)


@pytest.mark.parametrize(("sort", "descends"), [("n", True), ("delta", False), ("q_value", False)])
def test_windows_of_any_order_join_to_the_whole(client, table, sort, descends):
    key = np.log10(table[sort]) if sort == "q_value" else table[sort]
    order = key.astype(np.float32).sort_values(kind="stable", ascending=not descends)
    if descends:
        # Rows that are alike stay in the order of the table.
        order = (-key).sort_values(kind="stable")
    windows = [rows(client, 300, at, sort=sort, descends=descends) for at in (0, 300, 600)]
    joined = [one for window in windows for one in ids(window)]
    assert joined == table.slice_id[order.index[:900]].tolist()
    if sort == "delta":
        assert ids(rows(client, 100, descends=True)) == table.slice_id[::-1][:100].tolist()


def test_totals_count_all_slices(client, table):
    rows(client)
    totals = client.get("/api/totals").json()["accuracy"]
    assert totals["slices"] == len(table)
    assert totals["significant"] == table.significant.sum()
    x, y, counts, significant = zip(*totals["density"]["cells"], strict=True)
    assert (sum(counts), max(x), max(y)) == (table.delta.notna().sum(), 47, 39)
    assert sum(significant) == totals["significant"]


def test_facets_count_what_a_filter_finds(client, table):
    rows(client)
    asked = {"metric": "accuracy", "significant": True, "inherited": True}
    answer = client.post("/api/slices/beyond", json={"filter": asked, "tab": "facets"})
    facets, kept = answer.json()["facets"], table[table.significant]
    levels = kept.cross_size.value_counts()
    assert facets["levels"] == [levels.get(level, 0) for level in range(levels.index.max() + 1)]
    small, medium = (kept.n < 100).sum(), (kept.n < 1000).sum()
    assert facets["sizes"] == [small, medium - small, len(kept) - medium]
    fields = Counter(
        part["field"] for predicate in kept.predicate for part in json.loads(predicate)["all"]
    )
    assert sorted(count for _, count in facets["fields"]) == sorted(fields.values())[-10:]
    assert all(fields[field] == count for field, count in facets["fields"])


@pytest.mark.slow
def test_the_file_of_a_table_quotes_formulas(tmp_path, client, table):
    rows(client)
    text = client.post("/api/slices.csv", json={"metric": "accuracy", "significant": True}).text
    lines = text.splitlines()
    assert len(lines) == 1 + table.significant.sum()
    assert lines[0].startswith("slice_id,slice,n,metric,value,")
    hostile = served_page(hostile_data(tmp_path))
    assert any("=cmd" in one["name"] for one in rows(hostile)["rows"])
    text = hostile.post("/api/slices.csv", json={"metric": "accuracy"}).text
    frame = pd.read_csv(pd.io.common.StringIO(text))
    assert not frame.slice.str.match(r"^[=+@-]").any()
    assert frame.slice.str.startswith("'@sex").any()


UNION = "accuracy' UNION SELECT * FROM built --"
HOSTILE = ["'; DROP TABLE slices; --", '" OR 1=1 --', UNION, "%", "\x00"]


def test_a_slice_is_found_by_what_people_call_it(result, tmp_path):
    """By its name, description, notes, phrases and attributed words, and the conditions beside them."""
    copy = Path(shutil.copytree(result, tmp_path / "copy"))
    document = json.loads((copy / "changelist.json").read_text())
    one = document["slices"][3]
    one["name"], one["description"], one["notes"] = "Night shift", "Old scanners", ["ask Xenia"]
    estimate = {"value": 0.9, "lo": 0.8, "hi": 1.0, "confidence": 0.95}
    one["found"] = {"phrases": [{"text": "blurred digits", "score": 1.0, "source": "corpus"}]}
    told = {"text": "receipts", "state": "accepted", "labels_uri": "labels.csv", "looks": 1}
    told |= dict.fromkeys(("precision", "recall", "missed"), estimate)
    one["attribution"] = {**told, "least_precision": 0.8, "least_recall": 0.1}
    (copy / "changelist.json").write_text(json.dumps(document))
    client = ready(served_page(copy))
    for text in ("night SHIFT", "scanners", "xenia", "blurred", "receipts", "digits & night"):
        assert ids(rows(client, text=text)) == [one["slice_id"]], text
    assert rows(client, text="scanners & nowhere")["found"] == 0


@pytest.mark.parametrize("bound", [1e300, -1e300, 3.5e38])
def test_a_bound_beyond_the_numbers_of_the_table_is_a_bound(client, bound):
    every, compared = rows(client)["found"], rows(client, low=-1)["found"]
    wanted = {"low": 0 if bound > 0 else compared, "high": compared if bound > 0 else 0}
    for name, number in wanted.items():
        assert rows(client, **{name: bound})["found"] == number, name
    assert rows(client, least=1e300)["found"] == 0
    assert rows(client, most=1e300)["found"] == every


def test_what_is_asked_is_never_sql(client, table):
    rows(client)
    for text in HOSTILE:
        assert rows(client, text=text)["found"] == 0
        assert rows(client, conditions=[text])["found"] == 0
        names = ("metric", "sort", "direction", "under", "level", "n", "least")
        for options in (*({name: text} for name in names), {"high": "NaN"}, {text: 1}):
            given = {"filter": {"metric": "accuracy", **options}, "tab": "t"}
            answer = client.post("/api/slices", json=given)
            assert answer.status_code in (404, 422), (options, answer.text)
            assert set(answer.json()) == {"error"}
        assert client.post("/api/slice", json={"slice_id": text}).status_code == 422
    assert client.post("/api/slices", json="{").status_code == 422
    beyond = {"filter": {"metric": "accuracy"}, "tab": "t", "limit": 10**9}
    assert client.post("/api/slices", json=beyond).status_code == 422
    assert rows(client)["found"] == len(table)


def opened(result, state):
    uri = str(result / "changelist.json")
    state.mkdir(exist_ok=True)
    index = SliceIndex(uri, read_search(uri, ""), state)
    index.start()
    index.wait()
    return index


def test_the_index_reads_no_other_file_and_takes_no_settings(result, tmp_path):
    cursor = opened(result, tmp_path / "state").cursor()
    other = str(result / "slices.parquet")
    for sql in (
        f"FROM read_parquet('{other}')",
        f"COPY slices TO '{tmp_path}/copy.csv'",
        f"ATTACH '{tmp_path}/other.duckdb'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '9GB'",
        "DELETE FROM slices",
        "FROM glob('/*')",
    ):
        with pytest.raises(duckdb.Error):
            cursor.execute(sql).fetchall()
    assert not (tmp_path / "copy.csv").exists()


@pytest.mark.slow
def test_the_index_is_built_once_and_appears_whole(result, tmp_path, monkeypatch):
    state = tmp_path / "state"
    index = opened(result, state)
    made = index.path.stat().st_mtime_ns
    assert index.status()["state"] == "ready"
    assert [one.name for one in state.iterdir()] == [index.path.name]
    # What a killed server left is no index, and goes.
    assert opened(result, state).path.stat().st_mtime_ns == made
    index.path.unlink()
    index.path.with_suffix(".partial").write_bytes(b"half")
    (state / "slices-1-other.duckdb").write_bytes(b"of an earlier run")
    again = opened(result, state)
    assert [one.name for one in state.iterdir()] == [again.path.name]
    again.path.unlink()
    # What can't be built leaves nothing; the next start tries again.
    monkeypatch.setattr(SliceIndex, "_build", lambda _, task: Path(task.index).write_bytes(b"") / 0)
    refuses(BuildingError, "division by zero", opened, result, state)
    assert list(state.iterdir()) == []


@pytest.mark.slow
def test_another_table_has_another_index_or_is_refused(result, tmp_path):
    copy = Path(shutil.copytree(result, tmp_path / "copy"))
    document = json.loads((copy / "changelist.json").read_text())
    table = copy / document["files"]["slices"]["name"]

    def adopt():
        digest = f"sha256:{hashlib.sha256(table.read_bytes()).hexdigest()}"
        document["search"]["slices_fingerprint"] = digest
        document["files"]["slices"] |= {"sha256": digest, "size": table.stat().st_size}
        (copy / "changelist.json").write_text(json.dumps(document))

    first, few = opened(copy, tmp_path / "state").path, pq.read_table(table).slice(0, 10)
    pq.write_table(few, table)
    # The document is about another table: there is an index of that one only.
    shutil.rmtree(tmp_path / "state")
    refuses(BuildingError, "another run's", opened, copy, tmp_path / "state")
    adopt()
    second = opened(copy, tmp_path / "state")
    assert second.path != first
    assert second.totals["accuracy"].slices == 10
    pq.write_table(few.drop(["singleton_1", "singleton_2", "singleton_3"]), table)
    adopt()
    refuses(BuildingError, "run the search again", opened, copy, tmp_path / "state")


def test_a_query_that_was_overtaken_and_is_over_supersedes_an_earlier_one():
    turns, began = Turns(), []

    class Overtaken:
        """The index as it is when a second query comes and ends while the first one gets its connection."""

        def cursor(self):
            began.append(1)
            if len(began) == 1:
                with turns.turn(self, "tab"):
                    pass
            return SimpleNamespace(close=lambda: None)

    index = Overtaken()
    with pytest.raises(RefusedError, match="newer request") as caught, turns.turn(index, "tab"):
        pytest.fail("the first query runs though nobody waits for it")
    assert caught.value.status == 409
    with turns.turn(index, "tab") as cursor:
        assert cursor is not None
    assert len(began) == 3


def test_a_later_question_ends_an_earlier_one(result, tmp_path):
    index, turns = opened(result, tmp_path / "state"), Turns()
    began, came = threading.Event(), []

    def long():
        try:
            with turns.turn(index, "tab") as cursor:
                began.set()
                both = "range(10000000) a, range(1000000) b"
                cursor.execute(f"SELECT sum(a.range + b.range) FROM {both}")
        except RefusedError as error:
            came.append(error.status)

    thread = threading.Thread(target=long)
    thread.start()
    began.wait()
    time.sleep(0.05)
    with turns.turn(index, "tab") as cursor:
        assert cursor.execute("SELECT count(*) FROM slices").fetchall()[0][0] > 0
    thread.join(10)
    assert came == [409]


def test_what_is_kept_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    output = tmp_path / "out"
    output.mkdir()
    kept, states = state_folder(output), tmp_path / "cache" / "slicebeam" / "serve"
    assert kept.parent == states
    assert {one.stat().st_mode & 0o777 for one in (kept, states)} == {0o700}
    assert list(output.iterdir()) == []
    # An output is the same by every name that it has.
    (tmp_path / "link").symlink_to(output)
    assert state_folder(tmp_path / "link") == kept
    # What is somebody else's, or leads elsewhere, is not taken.
    (tmp_path / "victim").mkdir()
    for place in (kept, states, states.parent):
        shutil.rmtree(place)
        place.symlink_to(tmp_path / "victim")
        refuses(InputError, f"{place} is a link, .* set XDG_CACHE_HOME", state_folder, output)
        place.unlink()
        place.mkdir(mode=0o700)
    states.mkdir(mode=0o700)
    states.chmod(0o722)
    refuses(InputError, "others may write to it", state_folder, output)
    states.chmod(0o700)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    refuses(InputError, "another user's", state_folder, output)
    monkeypatch.undo()
    assert list((tmp_path / "victim").iterdir()) == []
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    refuses(InputError, "XDG_CACHE_HOME 'here' is not an absolute path", state_folder, output)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refuses(StorageError, "cannot write", state_folder, output)


def test_what_is_kept_goes_with_its_output(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = {}
    for name in ("gone", "there"):
        (tmp_path / name).mkdir()
        kept[name] = state_folder(tmp_path / name)
        (kept[name] / "slices-a.duckdb").write_text("index")
    kept["made"] = kept["there"].with_name("made")
    kept["made"].mkdir()
    (tmp_path / "gone").rmdir()
    assert state_folder(tmp_path / "there") == kept["there"]
    assert [name for name, one in kept.items() if one.exists()] == ["there", "made"]


def ids_in(tables):
    content, columns = unpacked(tables)
    found = column(columns, content["ids"]).tobytes().hex()
    return {found[at : at + 16] for at in range(0, len(found), 16)}


def test_a_slice_comes_with_its_neighbours(client, table):
    two = table[(table.cross_size == 2) & table.significant].iloc[0]
    one = table[(table.cross_size == 1) & (table.slice == two.slice.split(" & ")[0])].iloc[0]
    for row in (one, two):
        held = ids_in(client.post("/api/slice", json={"slice_id": row.slice_id}).json()["tables"])
        own = set(row.slice.split(" & "))
        is_near = table.slice.map(lambda other, own=own: len(own ^ set(other.split(" & "))) == 1)
        near = table.slice_id[is_near]
        assert {row.slice_id, *near} <= held
        assert len(near) > 1
    assert client.post("/api/slice", json={"slice_id": "0" * 16}).status_code == 404


@pytest.mark.slow
def test_a_folder_lists_its_runs_and_a_slice_over_them(result, tmp_path, monkeypatch):
    folder = tmp_path / "nights"
    for name, day in (("b", 1), ("a", 2), ("c", 3)):
        path = Path(shutil.copytree(result, folder / name)) / "changelist.json"
        document = json.loads(path.read_text())
        document["created_at"] = f"2026-11-0{day}T00:00:00Z"
        path.write_text(json.dumps(document))
    for name in ("d", ".hidden"):
        (folder / name).mkdir()
        (folder / name / "changelist.json").write_text("{}")
    # The table of one run is gone: its document knows the findings only.
    for one in (folder / "a").glob("*.parquet"):
        one.unlink()
    runs = Runs.within(str(folder))
    assert runs is not None
    assert Runs.within(str(result)) is None
    (tmp_path / "empty").mkdir()
    refuses(InputError, "neither this folder nor one in it", Runs.within, str(tmp_path / "empty"))
    session, config, names = PageSession(PORT), ServeConfig(changelist=str(folder)), []

    def open_run(name):
        names.append(name)
        return ServedOutput.open(str(folder / name), config)

    parsed = []
    read = Runs._document
    monkeypatch.setattr(
        Runs, "_document", lambda *of, **how: parsed.append(of[1]) or read(*of, **how)
    )
    client = page(application_of_runs(runs, open_run, session), session)
    listed = client.get("/api/page").json()["runs"]
    assert [one["name"] for one in listed] == ["c", "a", "b", "d"]
    assert "changelist" in listed[-1]["error"]
    for name in ("%2e%2e", "..%2fnights", ".hidden", "e", "a%00"):
        assert client.get(f"/runs/{name}/api/page").status_code in (404, 401, 403), name
    assert names == []
    table = pq.read_table(result / "slices.parquet").to_pandas()
    dull = table[(table.metric == "accuracy") & ~table.significant].iloc[-1]
    asked = {"slice_id": dull.slice_id, "metric": "accuracy"}
    found = client.post("/runs/c/api/history", json=asked).json()
    assert names == ["c"]
    before = len(parsed)
    assert client.post("/runs/c/api/history", json=asked).json() == found
    # What has not changed is not parsed again.
    assert len(parsed) == before
    assert [one["name"] for one in found] == ["b", "a", "c"]
    assert [one.get("value") for one in found] == [dull.value, None, dull.value]
    assert found[0]["value_low"] == dull.value_low
    assert "slices.parquet" in found[1]["missing"]
    first = json.loads((folder / "a" / "changelist.json").read_text())["slices"][0]
    asked = {"slice_id": first["slice_id"], "metric": "accuracy"}
    found = client.post("/runs/c/api/history", json=asked).json()
    assert len({one["value"] for one in found}) == 1
    assert client.get("/runs/c/api/page").json()["overview"]["title"]


def test_the_page_says_that_a_later_run_replaced_the_output(result, tmp_path):
    copy = Path(shutil.copytree(result, tmp_path / "copy"))
    client, path = served_page(copy), copy / "changelist.json"
    notes = client.get("/api/page").json()["overview"]["notes"]
    assert not any("replaced" in one for one in notes)
    document = json.loads(path.read_text())
    document["changelist_id"] = "00000000-0000-4000-8000-000000000000"
    path.write_text(json.dumps(document))
    now = client.get("/api/page").json()["overview"]["notes"]
    assert now[0].startswith("A later run has replaced this output.")
    assert now[1:] == notes
    path.unlink()
    now = client.get("/api/page").json()["overview"]["notes"]
    assert now[0].startswith("The output has changed since the server was started: ")


@pytest.mark.slow
@own_stores
def test_an_output_in_a_bucket(bucket, result, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("changelist.json", "slices.parquet"):
        bucket.write(f"nights/one/{name}", (result / name).read_bytes())
    uri = f"{bucket.uri}/nights"
    client = served_page(f"{uri}/one")
    assert rows(client)["found"] == 3363
    # Not each key that is typed lists the folder.
    listings = []
    monkeypatch.setattr(served, "revisions", lambda folder: listings.append(folder) or [])
    for text in ("f", "fe", "fem"):
        rows(client, text=text)
    assert len(listings) <= 1
    # What the server keeps is here, and the copy of the table is gone.
    kept = sorted(one.name for one in (tmp_path / "slicebeam" / "serve").glob("*/*"))
    assert [one.partition("-")[0] for one in kept] == ["output.txt", "slices"]
    assert kept[1].endswith(".duckdb")
    runs = Runs.within(uri)
    assert [one["name"] for one in runs.listing()] == ["one"]
    tested = rows(client)["rows"][7]
    moment = runs.over(OverRuns(slice_id=tested["slice_id"], metric="accuracy"))[0]
    assert moment["value"] == pytest.approx(tested["value"], rel=1e-6)


def test_an_index_that_does_not_fit_is_built_with_more_memory(result, tmp_path, monkeypatch):
    fingerprint = read_search(str(result / "changelist.json"), "").search.slices_fingerprint or ""
    index = tmp_path / "index.duckdb"
    task = Task(str(result / "slices.parquet"), fingerprint, {"accuracy": 1.0}, str(index))
    monkeypatch.setattr(index_build, "_MEMORY", (1, 64))
    index_build.build(task)
    with duckdb.connect(index, read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM slices").fetchall() == [(3363,)]
    index.unlink()
    monkeypatch.setattr(index_build, "_MEMORY", (1,))
    with pytest.raises(duckdb.OutOfMemoryException):
        index_build.build(task)
    assert not index.exists()
