"""Names of columns, values and files are no paths, and no two of them are one."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.attribution.state import folder_name
from slicebeam.pipelines.run.work_folder import WorkFolder
from tests.running import names_of, search

ROWS = 1500
NAMES = (
    *("../../../../zz", "/abs", "x" * 300, "a\x01b\n", ".", "..", "CON", "🐟", "case", "Case"),
    *("x:y", "x-y", "x/y"),
)


def high(place, seed):
    return NAMES[(place + seed) % len(NAMES)]


def written(path, seed):
    random = np.random.default_rng(seed)
    columns = {"group": random.integers(0, 200, ROWS).astype(str)}
    some = random.choice(NAMES, ROWS)
    columns["../feature"] = some
    columns["/feature"] = random.choice(NAMES, ROWS)
    for place, name in enumerate(NAMES):
        # Each has findings of its own, in other places of each table.
        columns[name] = random.normal(0, 1, ROWS) + 2.0 * (some == high(place, seed))
    pq.write_table(pa.table(columns), path)
    return str(path)


def searched(output, data):
    options = {
        "metric": tuple(f"mean:{name}" for name in NAMES),
        "group": "group",
        "replicates": 100,
    }
    options |= {"features": ("../feature", "/feature"), "alternative": "worse"}
    return search(output, data=data, max_cross_size=1, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder so deep that what climbs out of an output is below it."""
    place = tmp_path_factory.mktemp("hostile") / "b" / "c" / "d" / "e"
    place.mkdir(parents=True)
    return place


@pytest.fixture(scope="module")
def runs(place):
    """Two runs with other data, one after the other, in the same output."""
    first, second = (written(place / f"{'🐟 é' * 20}{seed}.parquet", seed) for seed in (0, 1))
    return searched(place / "out", first), searched(place / "out", second)


def test_nothing_is_left_beside_the_result(place, runs):
    *_, last = runs
    root = place.parents[3]
    files = {one for one in root.rglob("*") if one.is_file() and one.parent != place}
    assert files == {place / "out" / name for name in names_of(last.document)}
    assert not list(root.rglob("zz*"))


def test_each_run_finds_what_is_in_its_own_data(runs):
    for seed, found in enumerate(runs):
        first = {
            one["metric"]: one["slice_id"] for one in found.document["findings"] if one["rank"] == 1
        }
        conditions = {
            one["slice_id"]: one["definition"]["predicate"]["all"]
            for one in found.document["slices"]
        }
        assert {name: conditions[slice_id] for name, slice_id in first.items()} == {
            f"mean:{name}": [{"field": "../feature", "op": "==", "value": high(place, seed)}]
            for place, name in enumerate(NAMES)
        }


@pytest.mark.parametrize("name", [one for one in (*NAMES, "", "a_b") if one not in ("x-y", "case")])
def test_a_stage_is_never_named_by_the_data(name, tmp_path):
    work = WorkFolder(tmp_path)
    for use in (work.path_of, work.folder, work.kept_folder, work.done, work.empty):
        with pytest.raises(ValueError, match="is not named by words and numbers"):
            use(f"findings-{name}")
    assert list(tmp_path.iterdir()) == []


def test_labels_of_two_slices_are_in_two_folders():
    ids = (*NAMES, "x_y", "0123456789abcdef", "fedcba9876543210")
    folders = [folder_name(one, "a text") for one in ids]
    assert len({one.casefold() for one in folders}) == len(ids)
    assert all(re.fullmatch(r"[0-9a-f]{10,16}-[0-9a-f]{10}", one) for one in folders)
    # Labels that are there already are not lost.
    assert folders[-1].startswith("fedcba9876543210-")
