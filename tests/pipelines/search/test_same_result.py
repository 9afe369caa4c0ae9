"""The result is the same however the work was cut, whatever is saved, and whatever names are."""

import json
import re
from itertools import product
from typing import get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.state import folder_name
from slicebeam.pipelines.config.search import Strategy, search_config
from slicebeam.pipelines.run.work_folder import WorkFolder
from tests.conftest import slow
from tests.option_words import CORRECTIONS
from tests.refusals import refuses
from tests.running import names_of, search

FEATURES = "age,workclass,education,marital-status,occupation,hours-per-week,native-country"
OPTIONS = {"label": "income", "prediction": "prediction", "features": tuple(FEATURES.split(","))}
EVERY_FEATURE = FEATURES + ",fnlwgt,relationship,race,sex,capital-gain,capital-loss,education-num"
WAYS = {
    "batch": {},
    "wide": {"features": tuple(EVERY_FEATURE.split(","))},
    "iterative": {"strategy": "iterative"},
    "priority": {"strategy": "priority", "max_candidates": 400},
    "baseline": {"baseline_prediction": "prediction_old", "alternative": "both"},
    "paper": {"test": "paper", "example_id": "row_id", "max_cross_size": 2},
}
# Some in the default run, all in the longer one.
EVERY_WAY = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "baseline" else pytest.mark.slow) for way in WAYS]
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, adult_path):
    """The undisturbed result of each way."""
    found = {}

    def once(way):
        if way not in found:
            folder = tmp_path_factory.mktemp(way)
            found[way] = search(folder, data=adult_path, **(OPTIONS | WAYS[way]))
        return found[way]

    return once


def _same(one, other):
    assert one.slices_bytes == other.slices_bytes
    assert one.timeless() == other.timeless()


@EVERY_WAY
def test_chunk_size_shards_and_memory(tmp_path, adult_path, plain, way):
    cut = {"chunk_rows": 1111, "memory_budget": "16MB"}
    found = search(tmp_path, data=adult_path, **(OPTIONS | WAYS[way]), **cut)
    _same(found, plain(way))
    assert found.document["testing"]["significant"] > 5


@EVERY_WAY
def test_order_of_examples_files_and_row_groups(tmp_path, adult, plain, way):
    shuffled = adult.sample(frac=1, random_state=4)
    bounds = [0, 3000, 3001, 16281]
    for number in range(3):
        part = shuffled.iloc[bounds[number] : bounds[number + 1]]
        table = pa.Table.from_pandas(part, preserve_index=False)
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=700)
    found = search(tmp_path / "out", data=str(tmp_path / "*.parquet"), **(OPTIONS | WAYS[way]))
    _same(found, plain(way))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["batch", "priority", "paper"])
def test_two_worker_processes(tmp_path, adult_path, plain, way):
    spread = {"runner_config": "direct_multi", "chunk_rows": 5000, "memory_budget": "16MB"}
    found = search(tmp_path, data=adult_path, **(OPTIONS | WAYS[way]), **spread)
    _same(found, plain(way))
    assert found.document["provenance"]["runner"] == "direct, 2 processes"


def test_what_others_put_into_a_work_folder_stays(tmp_path, adult_path):
    config = search_config({"data": (str(adult_path),), "output": str(tmp_path), **OPTIONS})
    with WorkFolder(tmp_path / "_work") as work:
        work.begin(config, [str(adult_path)], resume=False)
    (work.path / "thesis.txt").write_text("precious")
    (work.path / "mine").mkdir()
    search(tmp_path, data=adult_path, **OPTIONS)
    assert sorted(path.name for path in work.path.iterdir()) == ["mine", "thesis.txt"]


def test_the_output_is_no_work_folder(tmp_path, adult_path):
    with pytest.raises(InputError, match="is the output"):
        search(tmp_path, data=adult_path, work_dir=tmp_path, **OPTIONS)


def test_domains_of_an_earlier_run(tmp_path, adult_path, plain):
    earlier = plain("batch").folder / "changelist.json"
    found = search(tmp_path, data=adult_path, domains=earlier, **OPTIONS)
    assert found.slices_bytes == plain("batch").slices_bytes
    shapes = json.loads(earlier.read_text())["dataset"]["domains"]
    singletons = [one["singletons"] for one in found.document["dataset"]["domains"]]
    assert singletons == [one["singletons"] for one in shapes]


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
    metric = tuple(f"mean:{name}" for name in NAMES)
    options = {"metric": metric, "group": "group", "replicates": 100}
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


@pytest.mark.slow
def test_nothing_is_left_beside_the_result(place, runs):
    *_, last = runs
    root = place.parents[3]
    files = {one for one in root.rglob("*") if one.is_file() and one.parent != place}
    assert files == {place / "out" / name for name in names_of(last.document)}
    assert not list(root.rglob("zz*"))


@pytest.mark.slow
def test_each_run_finds_what_is_in_its_own_data(runs):
    for seed, found in enumerate(runs):
        first = {
            one["metric"]: one["slice_id"] for one in found.document["findings"] if one["rank"] == 1
        }
        definitions = {one["slice_id"]: one["definition"] for one in found.document["slices"]}
        conditions = {key: one["predicate"]["all"] for key, one in definitions.items()}
        assert {name: conditions[slice_id] for name, slice_id in first.items()} == {
            f"mean:{name}": [{"field": "../feature", "op": "==", "value": high(place, seed)}]
            for place, name in enumerate(NAMES)
        }


@pytest.mark.parametrize("name", [one for one in (*NAMES, "", "a_b") if one not in ("x-y", "case")])
def test_a_stage_is_never_named_by_the_data(name, tmp_path):
    work = WorkFolder(tmp_path)
    for use in (work.path_of, work.folder, work.done, work.empty):
        refuses(ValueError, "is not named by words and numbers", use, f"findings-{name}")
    assert list(tmp_path.iterdir()) == []


def test_labels_of_two_slices_are_in_two_folders():
    ids = (*NAMES, "x_y", "0123456789abcdef", "fedcba9876543210")
    folders = [folder_name(one, "a text") for one in ids]
    assert len({one.casefold() for one in folders}) == len(ids)
    assert all(re.fullmatch(r"[0-9a-f]{10,16}-[0-9a-f]{10}", one) for one in folders)
    assert folders[-1].startswith("fedcba9876543210-")


MANY = 4000
SAVING = {"label": "label", "prediction": "pred", "positive_class": "1", "alternative": "both"}
SAVING |= {"metric": ("accuracy", "recall"), "max_cross_size": 2, "min_slice_size": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(11)
    frame = pd.DataFrame({name: rng.choice([*"stuvwxyz"], MANY) for name in "abcd"})
    # Slices so small that nothing could make them significant.
    frame["e"] = rng.integers(0, 60, MANY).astype(str)
    label = rng.integers(0, 2, MANY)
    rate = 0.15 + 0.2 * (frame["a"] == "u") + 0.05 * (frame["b"] == "v")
    rate += 0.3 * ((frame["c"] == "x") & (frame["d"] == "y"))
    frame["label"] = label
    frame["pred"] = np.where(rng.random(MANY) < rate, 1 - label, label)
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    frame.to_parquet(path)
    return path


def said(found):
    """The document without what must differ: which rows the table has."""
    document = found.timeless()
    del document["files"], document["changelist_id"]
    del document["provenance"]["config"]["save_slices"]
    del document["search"]["saved_slices"], document["search"]["slices_fingerprint"]
    return document


@pytest.mark.parametrize(("correction", "strategy"), [
    one if "fdr-level" in one or one == ("none", "batch") else slow(*one)
    for one in product(CORRECTIONS, get_args(Strategy))
])  # fmt: skip
def test_the_document_is_the_same(data, tmp_path, correction, strategy):
    options = SAVING | {"correction": correction, "strategy": strategy, "data": (str(data),)}
    if strategy == "priority":
        options |= {"iterations": 3, "max_candidates": 150}
    kinds = ("tested", "significant")
    whole, part = (search(tmp_path / name, save_slices=name, **options) for name in kinds)
    assert said(part) == said(whole)
    assert 1 < len(whole.document["slices"]) < len(whole.table)
    rows = whole.table
    called = rows.groupby("slice_id")["significant"].transform("any")
    kept = rows[called | (rows["cross_size"] == 1)]
    assert part.table.equals(kept.reset_index(drop=True))
    assert len(kept) < len(rows)
