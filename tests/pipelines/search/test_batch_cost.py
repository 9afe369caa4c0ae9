"""The default strategy: batch where it is short, by an estimate that only the data's shape decides."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.registry import statistic_space
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.search import batch_cost
from tests.running import read

ROLES = {"data": ("x.parquet",), "output": "out", "label": "y", "prediction": "p"}


def cost(rows, features, **options):
    config = search_config(ROLES | options)
    lattice = Lattice((9,) * features, 3)
    return batch_cost.batch_cost(config, lattice, statistic_space(config.metric, "overall"), rows)


@pytest.mark.parametrize(
    ("rows", "features", "options", "strategy"),
    [
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
    ],
)
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
