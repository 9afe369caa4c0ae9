"""What a run says of the number of slices that its correction counts."""

import re

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.running import search

PRUNE = "--prune-significant"
NAMES = ("a", "b", "c", "d")
OPTIONS = {"label": "label", "prediction": "pred", "max_cross_size": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Examples with a few bad slices."""
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({name: rng.choice([*"uvwxyz"], 3000) for name in NAMES})
    label = rng.integers(0, 2, 3000)
    bad = (frame["a"] == "u") | (frame["b"] == "v")
    frame["label"], wrong = label, rng.random(3000) < np.where(bad, 0.5, 0.1)
    frame["pred"] = np.where(wrong, 1 - label, label)
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    frame.to_parquet(path)
    return path


@pytest.mark.parametrize("strategy", ["iterative", "priority"])
def test_slices_that_were_not_visited_are_counted_by_a_bound(data, tmp_path, strategy):
    options = OPTIONS | {"strategy": strategy}
    if strategy == "priority":
        options |= {"iterations": 2, "max_candidates": 60}
    else:
        options |= {"prune_significant": True}
    testing = search(tmp_path / "out", data=data, **options).document["testing"]
    batch = search(tmp_path / "batch", data=data, **OPTIONS).document["testing"]
    family, tested = testing["family_size"], sum(testing["tested_per_level"])
    there_are = sum(batch["tested_per_level"])
    assert tested < there_are <= family
    assert testing["corrected_for"].endswith(
        f"The correction counts {family:,} slices: {tested:,} that were tested and, with p = 1, at most "
        f"{family - tested:,} that were not visited (an upper bound)."
    )
    assert batch["family_size"] == there_are
    assert "upper bound" not in batch["corrected_for"]


def test_explain_says_so_too(data, tmp_path, capsys):
    arguments = ["search", f"--data={data}", "--label=label", "--prediction=pred"]
    arguments.append("--explain=a = u")
    for strategy, bound in ((["--strategy=iterative", PRUNE], "at most "), ([], "")):
        assert run([*arguments, f"--output={tmp_path / 'out'}", *strategy]) == 0
        said = re.search(r"q: fdr-level; (.*?)\d+ slices of level 1", capsys.readouterr().out)
        assert said[1] == bound
