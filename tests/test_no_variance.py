"""Where nothing varies a difference is tested exactly, or the run says that it could not be tested."""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.cell_metric import CellMetric, exchange_p_value
from slicebeam.metrics.registry import metric, statistic_space
from slicebeam.pipelines.cli import run

if TYPE_CHECKING:
    from pathlib import Path

N = 1000
DRAWN = np.random.default_rng(1)
SHOP = DRAWN.choice(list("wxyz"), N)
LABEL = DRAWN.integers(0, 2, N)
BAD = SHOP == "x"


def searched(folder: Path, frame: pd.DataFrame, *options: str) -> tuple[int, pd.DataFrame, Any]:
    """Return exit code, slices and what was tested of a search for slices of one shop."""
    frame.to_parquet(folder / "data.parquet")
    flags = ["--label=y", "--prediction=p", "--features=shop", "--max-cross-size=1", "--quiet"]
    paths = [f"--data={folder}/data.parquet", f"--output={folder}/out"]
    code = run(["search", *paths, *flags, "--fail-on=worse", *options])
    document = json.loads((folder / "out" / "changelist.json").read_text())
    return code, pd.read_parquet(folder / "out" / "slices.parquet"), document["testing"]["metrics"]


def test_a_perfect_model_that_fails_on_a_slice(tmp_path: Path) -> None:
    frame = pd.DataFrame({"shop": SHOP, "y": LABEL, "p": np.where(BAD, 0, LABEL), "o": LABEL})
    options = ("--baseline-prediction=o", "--metric=f1,balanced_accuracy")
    code, table, _ = searched(tmp_path, frame, *options)
    assert code == 1
    own = table[table["slice"] == "shop = x"]
    assert own["delta"].tolist() == [-1.0, -0.5]
    assert own["significant"].all()
    others = table[table["slice"] != "shop = x"]
    assert set(others["reason"]) == {"the two models never differ on the slice"}


def test_every_prediction_turned_round(tmp_path: Path) -> None:
    frame = pd.DataFrame({"shop": SHOP, "y": LABEL, "p": 1 - LABEL, "o": LABEL})
    metrics = "precision,f1,fbeta:2,balanced_accuracy,f1_macro,mcc"
    options = ("--baseline-prediction=o", f"--metric={metrics}")
    code, table, _ = searched(tmp_path, frame, *options)
    assert code == 1
    assert table["significant"].all()
    assert set(table["test"]) == {"exchange of the two models"}
    np.testing.assert_allclose(table["p_value"], 0.5 ** table["n"], rtol=1e-12)


@pytest.mark.parametrize("name", ["precision", "f1", "fbeta:2", "balanced_accuracy", "mcc"])
@pytest.mark.parametrize(("negatives", "positives"), [(4, 6), (1, 3), (7, 2)])
def test_exchange_is_the_share_of_all_exchanges(name: str, negatives: int, positives: int) -> None:
    space = statistic_space((name,), "baseline", weighted=False)
    own = metric(name)
    assert isinstance(own, CellMetric)
    right, was_right = (
        space.holds("positive") == space.holds("predicted", old=old) for old in (False, True)
    )
    of_label = [space.holds("positive") == label for label in (False, True)]

    def counts(swapped: tuple[int, int]) -> np.ndarray:
        found = np.zeros((1, space.cells), np.int64)
        for swaps, size, cells in zip(swapped, (negatives, positives), of_label, strict=True):
            found[0, cells & was_right & ~right] = size - swaps
            found[0, cells & right & ~was_right] = swaps
        return found

    def change(swapped: tuple[int, int]) -> float:
        # A class that is never predicted has a precision of 0, as in scikit-learn.
        cells = counts(swapped).astype(np.float64)
        new, old = (own.of_cells(cells, space, old=old) for old in (False, True))
        return float(np.nan_to_num(new)[0] - np.nan_to_num(old)[0])

    observed = change((0, 0))
    total = 0
    for swapped in itertools.product(range(negatives + 1), range(positives + 1)):
        ways = math.comb(negatives, swapped[0]) * math.comb(positives, swapped[1])
        total += ways * (change(swapped) <= observed + 1e-12)
    expected = total / 2 ** (negatives + positives)
    lower, upper, both = (
        exchange_p_value(counts((0, 0)), np.array([observed]), space, tail)[0]
        for tail in ("lower", "upper", "both")
    )
    assert lower == pytest.approx(expected, rel=1e-12)
    assert (upper, both) == (1.0, 2 * lower)
    # What goes either way is not for this test.
    mixed = exchange_p_value(counts((1, 0)), np.array([observed]), space, "lower")
    assert np.isnan(mixed).all()


def test_a_weight_beside_which_all_others_vanish(tmp_path: Path) -> None:
    weight, label = np.ones(N), LABEL.copy()
    weight[5], label[5] = 1e12, 0
    right = DRAWN.random(N) < np.where(BAD, 0.2, 0.8)
    predicted = np.where(right, label, 1 - label)
    predicted[5] = 0
    frame = pd.DataFrame({"shop": SHOP, "y": label, "p": predicted, "w": weight})
    code, table, (tests,) = searched(tmp_path, frame, "--weight=w", "--metric=recall")
    assert code == 2
    assert (table["delta"].abs() > 0.1).any()
    assert tests["tested"] == 0
    assert "weighted too unequally" in tests["blind"]


def test_one_heavy_example_raises_no_alarm(tmp_path: Path) -> None:
    weight = np.ones(N)
    weight[5] = 1e4
    right = DRAWN.random(N) < 0.6
    right[5] = True
    frame = pd.DataFrame(
        {"shop": SHOP, "y": LABEL, "p": np.where(right, LABEL, 1 - LABEL), "w": weight}
    )
    code, table, _ = searched(tmp_path, frame, "--weight=w")
    assert code == 0
    assert not table["significant"].any()
    outside = table[table["slice"] != f"shop = {SHOP[5]}"]
    assert outside["reason"].str.contains("weighted too unequally").all()


def test_all_weight_in_one_slice(tmp_path: Path) -> None:
    right = DRAWN.random(N) < 0.6
    frame = pd.DataFrame(
        {"shop": SHOP, "y": LABEL, "p": np.where(right, LABEL, 1 - LABEL), "w": BAD * 1.0}
    )
    code, table, (tests,) = searched(tmp_path, frame, "--weight=w")
    assert code == 2
    assert table.set_index("slice").loc["shop = x", "reason"] == "the slice is all examples"
    assert "the denominator is empty" in tests["blind"]
