"""``--since`` a document to which a person added slices that no search makes."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.cli import run
from tests.edited_documents import ROWS, examples, stand_in
from tests.pipelines.check.test_check import check
from tests.running import search

ROLES = {"label": "label", "prediction": "prediction"}
SEARCH = ROLES | {"example_id": "id", "exclude_features": ("text", "other"), "max_cross_size": 1}
# By their predicates, whether the search has them; what it says of the others.
HAND_MADE = {
    "age < 30": "the search had no predicate 'age < 30'",
    "age in {20, 21}": "the search had no predicate 'age in {20, 21}'",
    "sex = Male & age in [41, 62)": "the search had no predicate 'age in [41, 62)'",
    "price < 1.5": "the search had no predicate 'price < 1.5'",
    "price = 0.25": None,
    "day >= 2024-03-01": "the search had no predicate 'day >= 2024-03-01'",
    "city is missing": None,
    "city not in {a, b}": "the search had no predicate 'city not in {a, b}'",
    "tags contains x": None,
    "other < 2": "'other' was not a feature",
    "sex = Male & other < 2": "'other' was not a feature",
}
NO_PREDICATE = "it was not searched for: no predicate describes it"
EXPECTED = HAND_MADE | {"merged": NO_PREDICATE, "listed": NO_PREDICATE}


def frame(seed):
    random = np.random.default_rng(seed)
    found = examples()
    found["price"] = random.choice([0.1, 0.25, 1.5, 2.75, 9.5], ROWS)
    days = random.integers(0, 300, ROWS)
    found["day"] = [dt.date(2024, 1, 1) + dt.timedelta(days=int(one)) for one in days]
    found["city"] = random.choice(np.array(["a", "b", "c", None], object), ROWS)
    found["tags"] = [list("xyz"[: random.integers(0, 4)]) for _ in range(ROWS)]
    found["other"] = random.integers(0, 5, ROWS)
    return found


def written(folder, name, seed):
    path = folder / name
    pq.write_table(pa.Table.from_pandas(frame(seed), preserve_index=False), path)
    return str(path)


@pytest.fixture(scope="module")
def new_data(tmp_path_factory):
    return (written(tmp_path_factory.mktemp("new"), "new.parquet", 2),)


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edited")
    search(folder / "out", data=written(folder, "old.parquet", 1), **SEARCH)
    (folder / "ids.txt").write_text("".join(f"n{row}\n" for row in range(200)))
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, frame(1))
        for text in HAND_MADE:
            define(folder, text, f"--where={text}")
        define(folder, "listed", f"--ids={folder}/ids.txt")
        define(folder, "one", "--where=age < 40")
        define(folder, "other", "--where=price < 2")
        both = ("--slice=one", "--slice=other", "--name=merged")
        assert run(["edit", "merge", f"--changelist={folder}/out", *both, "--quiet"]) == 0
    (*_, last) = sorted(
        (folder / "out").glob("changelist.r*.json"), key=lambda one: one.stat().st_mtime_ns
    )
    return str(last)


def define(folder, name, definition):
    assert (
        run(["define", f"--changelist={folder}/out", f"--name={name}", definition, "--quiet"]) == 0
    )


def reasons(found):
    """Why each slice is in one run only."""
    return {one["name"]: one.get("missing") for one in found.document["since"]["slices"]}


def expected(when):
    return {name: reason and f"{when} {reason}" for name, reason in EXPECTED.items()}


def test_a_check_since_the_edited_document(edited, new_data, tmp_path):
    found = reasons(check(tmp_path, data=new_data, changelist=edited, since=edited))
    assert {name: found[name] for name in EXPECTED} == expected("then")
    # Those of the search are in both runs.
    assert len(found) > len(EXPECTED)
    assert not any(found[name] for name in {*found} - {*EXPECTED})


def test_a_search_since_the_edited_document(edited, new_data, tmp_path):
    found = search(tmp_path, data=new_data, since=edited, **SEARCH)
    assert {name: reasons(found)[name] for name in EXPECTED} == expected("now")


def test_a_search_since_a_check_of_other_slices(new_data, tmp_path):
    (tmp_path / "slices.yaml").write_text("[age < 30, price = 0.25, other < 2]")
    checked = check(tmp_path / "then", data=new_data, slices=f"{tmp_path}/slices.yaml", **ROLES)
    since = str(checked.folder / "changelist.json")
    found = reasons(search(tmp_path / "now", data=new_data, since=since, **SEARCH))
    for name in ("age < 30", "price = 0.25", "other < 2"):
        reason = HAND_MADE[name]
        assert found[name] == (reason and f"now {reason}")
