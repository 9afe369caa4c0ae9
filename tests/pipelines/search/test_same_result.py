"""The result is the same however the work was cut, spread or ordered."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run.work_folder import WorkFolder
from tests.running import search

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
    pattern = str(tmp_path / "*.parquet")
    found = search(tmp_path / "out", data=pattern, **(OPTIONS | WAYS[way]))
    _same(found, plain(way))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["batch", "priority", "paper"])
def test_two_worker_processes(tmp_path, adult_path, plain, way):
    spread = {"runner_config": "direct_multi", "chunk_rows": 5000, "memory_budget": "16MB"}
    found = search(tmp_path, data=adult_path, **(OPTIONS | WAYS[way]), **spread)
    _same(found, plain(way))
    assert found.document["provenance"]["runner"] == "direct, 2 processes"


def test_shards_dealt_to_workers_are_summed(tmp_path, adult_path, plain, monkeypatch):
    """Where blocks are few, the tables of groups of shards are shuffled and summed."""
    from slicebeam.pipelines.search import slice_counter
    from slicebeam.transforms.count.combine_slice_metrics import work_items

    monkeypatch.setattr(
        slice_counter, "work_items", lambda blocks, shards, *_: work_items(blocks, shards, 99.0, 99)
    )
    found = search(tmp_path, data=adult_path, **OPTIONS, chunk_rows=2000)
    _same(found, plain("batch"))
    assert found.document["search"]["iterations"][0]["shuffled_bytes"] > 0
    assert plain("batch").document["search"]["iterations"][0]["shuffled_bytes"] == 0


def test_resume_refuses_another_run(tmp_path, adult_path):
    data = tmp_path / "data.parquet"
    data.write_bytes(adult_path.read_bytes())
    options = {"data": (str(data),), "output": str(tmp_path), **OPTIONS}
    config = search_config(options)
    work = WorkFolder(tmp_path / "_work")
    work.begin(config, [str(data)], resume=False)
    work.begin(config, [str(data)], resume=True)
    other = search_config({**options, "bins": 5})
    with pytest.raises(InputError, match="--bins is 5 but was 10"):
        work.begin(other, [str(data)], resume=True)
    os.utime(data, (1, 1))
    with pytest.raises(InputError, match=r"the data has changed .*data\.parquet"):
        work.begin(config, [str(data)], resume=True)


def test_a_foreign_folder_is_not_cleared(tmp_path, adult_path):
    work = tmp_path / "mine"
    work.mkdir()
    (work / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="contains files that no run wrote"):
        search(tmp_path / "out", data=adult_path, work_dir=work, **OPTIONS)
    assert (work / "thesis.tex").read_text() == "precious"


def test_two_runs_do_not_share_a_work_folder(tmp_path, adult_path):
    config = search_config({"data": (str(adult_path),), "output": str(tmp_path), **OPTIONS})
    folder = tmp_path / "_work"
    for resume in (False, True):
        with WorkFolder(folder) as work:
            work.begin(config, [str(adult_path)], resume=resume)
            work.folder("domains")
            work.finish("domains", {"found": 1})
            for other in (False, True):
                with pytest.raises(EngineError, match=f"process {os.getpid()}"):
                    WorkFolder(folder).begin(config, [str(adult_path)], resume=other)
            assert work.done("domains") == {"found": 1}
    with WorkFolder(folder) as work:
        work.begin(config, [str(adult_path)], resume=False)
        assert work.done("domains") is None


@pytest.mark.parametrize("nonsense", ["", "abc", "[]", "{}", '{"layout": 4, "id": "0"}'])
def test_a_damaged_marker_is_named(tmp_path, adult_path, nonsense):
    config = search_config({"data": (str(adult_path),), "output": str(tmp_path), **OPTIONS})
    with WorkFolder(tmp_path / "_work") as work:
        work.begin(config, [str(adult_path)], resume=False)
        (work.path / "run.json").write_text(nonsense)
        with pytest.raises(InputError, match=r"_work/run\.json is damaged.* leave --resume out"):
            work.begin(config, [str(adult_path)], resume=True)
    with WorkFolder(tmp_path / "_work") as work:
        work.begin(config, [str(adult_path)], resume=False)


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


def test_resume_refuses_another_model(tmp_path, adult_path):
    model = tmp_path / "m.pkl"
    model.write_bytes(b"one")
    options = {"data": (str(adult_path),), "output": str(tmp_path), "label": "income"}
    config = search_config({**options, "model": str(model)})
    work = WorkFolder(tmp_path / "_work")
    work.begin(config, [str(adult_path)], resume=False)
    model.write_bytes(b"another")
    with pytest.raises(InputError, match=r"changed since the run began .*m\.pkl"):
        work.begin(config, [str(adult_path)], resume=True)


def test_domains_of_an_earlier_run(tmp_path, adult_path, plain):
    earlier = plain("batch").folder / "changelist.json"
    found = search(tmp_path, data=adult_path, domains=earlier, **OPTIONS)
    assert found.slices_bytes == plain("batch").slices_bytes
    shapes = json.loads(earlier.read_text())["dataset"]["domains"]
    singletons = [one["singletons"] for one in found.document["dataset"]["domains"]]
    assert singletons == [one["singletons"] for one in shapes]
