"""The default strategy: batch where it is short, by an estimate that only the data's shape decides."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import EngineError
from slicebeam.metrics.registry import statistic_space
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.pipelines.search import batch_cost, findings
from slicebeam.pipelines.search.duplicates import nested_classes
from slicebeam.pipelines.search.report_order import given_order
from slicebeam.transforms.storage.arrow_files import open_arrow, write_arrow
from tests.oracles.predicates import mask
from tests.running import read, search

ROLES = {"data": ("x.parquet",), "output": "out", "label": "y", "prediction": "p"}


def cost(rows, features, **options):
    config = search_config(ROLES | options)
    lattice = Lattice((9,) * features, 3)
    return batch_cost.batch_cost(config, lattice, statistic_space(config.metric, "overall"), rows)


@pytest.mark.parametrize(("rows", "features", "options", "strategy"), [
    (16_281, 14, {}, "batch"),
    # More than ten million conjunctions, in seconds.
    (47_655, 65, {}, "batch"),
    (10_000, 50, {"correction": "by"}, "batch"),
    (150_000, 100, {}, "priority"),
    # Few conjunctions, of very many examples.
    (100_000_000, 40, {}, "priority"),
    # Every example counts in twenty replicates besides.
    (150_000, 70, {}, "batch"),
    (150_000, 70, {"test": "paper"}, "priority"),
    # All p-values are held together.
    (47_655, 65, {"correction": "by"}, "priority"),
    (150_000, 100, {"strategy": "batch"}, "batch"),
])  # fmt: skip
def test_the_default_strategy(rows, features, options, strategy):
    fits = cost(rows, features, **options).fits
    config = search_config(ROLES | options)
    assert config.resolved_strategy(10**8, batch_fits=fits) == strategy


def test_it_grows_with_the_data_and_with_nothing_else():
    seconds = [cost(rows, 40).seconds for rows in (1000, 30_000, 1_000_000)]
    assert seconds == sorted(seconds)
    assert cost(30_000, 41).seconds > seconds[1]
    elsewhere = cost(30_000, 40, memory_budget="4GB", runner_config="direct_multi")
    assert elsewhere == cost(30_000, 40, save_slices="tested", seed=3) == cost(30_000, 40)


def test_few_slices_are_large_enough_where_cells_outnumber_examples():
    few, many = cost(1000, 20), cost(1_000_000, 20)
    assert 0 < few.tested < many.tested / 20
    assert many.tested == pytest.approx(Lattice((9,) * 20, 3).space(), rel=0.01)
    assert cost(1, 1).tested == 0


def test_a_run_and_its_dry_run_choose_alike(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.choice([*"uvw"], 500) for name in "abcyp"})
    frame.to_parquet(tmp_path / "data.parquet")
    roles = [f"--data={tmp_path / 'data.parquet'}", "--label=y", "--prediction=p"]
    for most, strategy in ((60.0, "batch"), (0.0, "priority")):
        monkeypatch.setattr(batch_cost, "MOST_SECONDS", most)
        command = ["search", *roles, f"--output={tmp_path / strategy}"]
        assert run([*command, "--dry-run", "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)
        assert planned["strategy"] == strategy
        assert planned["batch_seconds"] > 0
        if strategy == "batch":
            stage = next(job for job in planned["jobs"] if job["stage"] == "iteration-1")
            assert stage["seconds"] == planned["batch_seconds"]
        assert run([*command, "--dry-run"]) == 0
        assert "counting and testing all of them takes about" in capsys.readouterr().out
        assert run(command) == 0
        assert read(tmp_path / strategy).document["search"]["strategy"] == strategy
        capsys.readouterr()


def test_nested_slices_of_one_size_are_one_class():
    lattice = Lattice((2, 2, 2), 3)
    digits = np.array([[1, 0, 0], [3, 0, 0], [1, 3, 0], [1, 5, 0], [1, 3, 5], [2, 4, 0]])
    keys = lattice.keys(digits)
    # a (40) = a&b (40); a&c (30) = a&b&c (30); b has 50; the last has 40 by chance.
    sizes = np.array([40, 50, 40, 30, 30, 40])
    classes = nested_classes(keys, sizes, np.arange(6), lattice)
    assert classes[0] == classes[2]
    assert classes[3] == classes[4]
    assert len(set(classes.tolist())) == 4


@pytest.mark.parametrize("chunk_rows", [100, 100_000])
def test_against_the_sets_of_examples(tmp_path, chunk_rows):
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 1500)
    frame = pd.DataFrame(
        {
            "kind": kind.astype(str),
            # Another name of the same, a coarser one, and one that only one kind has.
            "code": np.array(list("wxyz"))[kind],
            "half": kind // 2,
            "only": np.where(kind == 3, rng.integers(0, 2, 1500), 9),
            "other": rng.integers(0, 3, 1500).astype(str),
            "label": 1,
            "prediction": (rng.random(1500) > np.array([0.1, 0.1, 0.2, 0.6])[kind]).astype(int),
        }
    )
    frame.to_parquet(tmp_path / "data.parquet")
    roles = {"label": "label", "prediction": "prediction", "chunk_rows": chunk_rows}
    found = search(tmp_path / "out", data=tmp_path / "data.parquet", **roles)
    significant = found.table[found.table["significant"]]
    sets = {}
    for row in significant.itertuples():
        members = mask(frame, json.loads(row.predicate)).tobytes()
        size = row.cross_size if row.label != "inherited" else 99
        sets.setdefault(members, []).append((size, row.slice_id))
    shown = [sum(size != 99 for size, _ in alike) for alike in sets.values()]
    copies = sum(max(one - 1, 0) for one in shown)
    assert copies > 0
    assert found.document["search"]["reported"] == sum(one > 0 for one in shown)
    assert found.document["search"]["duplicates"] == copies
    for one in found.document["slices"]:
        alike = next(a for a in sets.values() if one["slice_id"] in [slice_id for _, slice_id in a])
        assert one["cross_size"] == min(size for size, _ in alike)
        others = {slice_id for _, slice_id in alike} - {one["slice_id"]}
        assert set(one.get("same_examples_as", [])) == others


def _leave_half_a_part(folder):
    """Leave what one of another number of workers may have written, of some slices or patterns."""
    for path in list(folder.glob("000000.arrow")):
        batch = open_arrow(path).get_batch(0)
        half = batch.slice(batch.num_rows // 2)
        write_arrow(path.with_stem("000007"), batch.schema, [half])
    assert list(folder.glob("000007.*"))


@pytest.mark.parametrize("stage", ["hashes", "findings-0-worse-2"])
def test_parts_of_a_stopped_run_are_not_added(tmp_path, adult_path, monkeypatch, stage):
    rng = np.random.default_rng(0)
    part = rng.integers(0, 10, 3000)
    # Any two of these are the examples of part 0: that takes three predicates to see, or hashes.
    frame = pd.DataFrame({name: np.isin(part, (0, 1 + at)) for at, name in enumerate("abcdef")})
    frame["label"] = 1
    frame["prediction"] = (rng.random(3000) > np.where(part == 0, 0.6, 0.1)).astype(int)
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"label": "label", "prediction": "prediction", "max_cross_size": 2}
    options["data"] = tmp_path / "data.parquet"
    # However few, examples are counted anew for each finding.
    monkeypatch.setattr(findings, "MOST_HELD", 0)
    if stage != "hashes":
        # Above a single slice explains everything; here many overlap.
        options = {"data": (str(adult_path),), "label": "income", "prediction": "prediction"}
        options["features"] = ("education", "relationship", "marital-status", "sex")
    expected = search(tmp_path / "plain", **options)
    assert stage != "hashes" or expected.document["search"]["duplicates"] > 10
    finish = WorkFolder.finish

    def stop(work, name, facts):
        if name == stage:
            _leave_half_a_part(work.path_of(stage))
            raise EngineError("stopped")
        finish(work, name, facts)

    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "finish", stop)
        with pytest.raises(EngineError, match="stopped"):
            search(tmp_path / "out", **options)
    found = search(tmp_path / "out", resume=True, **options)
    assert found.slices_bytes == expected.slices_bytes
    for part in ("slices", "findings", "finding_models"):
        assert found.document[part] == expected.document[part]


@pytest.mark.parametrize("metric", ["accuracy", "error_rate", "loss"])
def test_slices_without_a_delta_are_last_whatever_the_metric(metric):
    delta = np.array([np.nan, 0.1, -0.1, np.nan, 0.0])
    measured = SimpleNamespace(
        name=metric, delta=delta, low=delta - 0.05, high=delta + 0.05, significant=np.zeros(5, bool)
    )
    results = SimpleNamespace(metrics=[measured], keys=np.arange(1, 6))
    order = given_order(results)
    assert order.positions[0] == (2 if metric == "accuracy" else 1)
    assert order.positions[-2:].tolist() == [0, 3]
    assert order.by_metric[0].tolist() == order.positions.tolist()
