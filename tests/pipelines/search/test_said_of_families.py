"""What a run says of the number of slices that its correction counts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.cli import run
from tests.running import search

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("a", "b", "c", "d")
OPTIONS: dict[str, Any] = {"label": "label", "prediction": "pred", "max_cross_size": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples with a few bad slices, below which a search does not go on."""
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
def test_slices_that_were_not_visited_are_counted_by_a_bound(
    data: Path, tmp_path: Path, strategy: str
) -> None:
    options = OPTIONS | {"strategy": strategy}
    if strategy == "priority":
        options |= {"iterations": 2, "max_candidates": 60}
    testing = search(tmp_path / "out", data=(str(data),), **options).document["testing"]
    batch = search(tmp_path / "batch", data=(str(data),), **OPTIONS).document["testing"]
    family, tested = testing["family_size"], sum(testing["tested_per_level"])
    there_are = sum(batch["tested_per_level"])
    assert tested < there_are <= family
    assert testing["corrected_for"].endswith(
        f"The correction counts {family:,} slices: {tested:,} that were tested and, with p = 1, at most "
        f"{family - tested:,} that were not visited (an upper bound)."
    )
    assert batch["family_size"] == there_are
    assert "upper bound" not in batch["corrected_for"]


def test_explain_says_so_too(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "search",
        f"--data={data}",
        "--label=label",
        "--prediction=pred",
        "--explain=a = u",
    ]
    for strategy, bound in (("iterative", "at most "), ("batch", "")):
        assert run([*arguments, f"--output={tmp_path}/{strategy}", f"--strategy={strategy}"]) == 0
        said = re.search(r"q: fdr-level; (.*?)\d+ slices of level 1", capsys.readouterr().out)
        assert said is not None
        assert said[1] == bound
