"""Where nothing varies a difference is tested exactly, or the run says that it could not be tested."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.measures.cell_metric import CellMetric, exchange_p_value
from slicebeam.metrics.registry import metric, statistic_space
from slicebeam.pipelines.cli import run

N = 1000
DRAWN = np.random.default_rng(1)
SHOP = DRAWN.choice(list("wxyz"), N)
LABEL = DRAWN.integers(0, 2, N)
BAD = SHOP == "x"


def searched(folder, frame, *options):
    """Return exit code, slices and what was tested of a search for slices of one shop."""
    frame.to_parquet(folder / "data.parquet")
    flags = ["--label=y", "--prediction=p", "--features=shop", "--max-cross-size=1", "--quiet"]
    paths = [f"--data={folder}/data.parquet", f"--output={folder}/out"]
    code = run(["search", *paths, *flags, "--fail-on=worse", *options])
    document = json.loads((folder / "out" / "changelist.json").read_text())
    return code, pd.read_parquet(folder / "out" / "slices.parquet"), document["testing"]["metrics"]


def test_a_perfect_model_that_fails_on_a_slice(tmp_path):
    frame = pd.DataFrame({"shop": SHOP, "y": LABEL, "p": np.where(BAD, 0, LABEL), "o": LABEL})
    options = ("--baseline-prediction=o", "--metric=f1,balanced_accuracy")
    code, table, _ = searched(tmp_path, frame, *options)
    assert code == 1
    own = table[table["slice"] == "shop = x"]
    assert own["delta"].tolist() == [-1.0, -0.5]
    assert own["significant"].all()
    others = table[table["slice"] != "shop = x"]
    assert set(others["reason"]) == {"the two models never differ on the slice"}


def test_every_prediction_turned_round(tmp_path):
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
def test_exchange_is_the_share_of_all_exchanges(name, negatives, positives):
    space = statistic_space((name,), "baseline", weighted=False)
    own = metric(name)
    assert isinstance(own, CellMetric)
    right, was_right = (
        space.holds("positive") == space.holds("predicted", old=old) for old in (False, True)
    )
    of_label = [space.holds("positive") == label for label in (False, True)]

    def counts(swapped):
        found = np.zeros((1, space.cells), np.int64)
        for swaps, size, cells in zip(swapped, (negatives, positives), of_label, strict=True):
            found[0, cells & was_right & ~right] = size - swaps
            found[0, cells & right & ~was_right] = swaps
        return found

    def change(swapped):
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


def test_a_weight_beside_which_all_others_vanish(tmp_path):
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


def test_one_heavy_example_raises_no_alarm(tmp_path):
    weight = np.ones(N)
    weight[5] = 1e4
    right = DRAWN.random(N) < 0.6
    right[5] = True
    frame = pd.DataFrame(
        {"shop": SHOP, "y": LABEL, "p": np.where(right, LABEL, 1 - LABEL), "w": weight}
    )
    code, table, _ = searched(tmp_path, frame, "--weight=w")
    assert code == 2
    assert table["reason"].str.contains("weighted too unequally").all()


def test_all_weight_in_one_slice(tmp_path):
    right = DRAWN.random(N) < 0.6
    frame = pd.DataFrame(
        {"shop": SHOP, "y": LABEL, "p": np.where(right, LABEL, 1 - LABEL), "w": BAD * 1.0}
    )
    code, table, (tests,) = searched(tmp_path, frame, "--weight=w")
    assert code == 2
    assert table.set_index("slice").loc["shop = x", "reason"] == "the slice is all examples"
    assert "the denominator is empty" in tests["blind"]


# A change in which nothing varies, by replicates ------------------------------------------------

USER = np.arange(N) // 4
BY_ROWS, BY_GROUPS = "--test=bootstrap-rows", "--group=u"


def turned_on_a_slice():
    """A model that was always right, and is always wrong on one shop."""
    predicted = np.where(BAD, 1 - LABEL, LABEL)
    shop = np.where(BAD, "x", SHOP)
    columns = {"shop": shop, "y": LABEL, "p": predicted, "o": LABEL, "u": USER}
    return pd.DataFrame({**columns, "w": 0.5 + DRAWN.random(N)})


@pytest.mark.parametrize(
    ("options", "name", "test"),
    [
        ((BY_ROWS,), "accuracy", "McNemar mid-p"),
        ((BY_ROWS,), "f1", "delta method, two models"),
        ((BY_ROWS,), "fbeta:2", "delta method, two models"),
        ((BY_ROWS, "--weight=w"), "accuracy", "exact sign flips, constant change"),
        ((BY_GROUPS,), "accuracy", "exact sign flips of whole groups, constant change"),
    ],
)
def test_replicates_that_do_not_vary(tmp_path, options, name, test):
    flags = ("--baseline-prediction=o", f"--metric={name}", *options)
    code, table, _ = searched(tmp_path, turned_on_a_slice(), *flags)
    assert code == 1
    (own,) = table[table["slice"] == "shop = x"].to_dict("records")
    assert (own["delta"], own["test"]) == (-1.0, test)
    if BY_GROUPS in options:
        groups = len(set(USER[BAD]))
        assert own["p_value"] == pytest.approx(0.5**groups, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "test"),
    [
        ((BY_ROWS,), "exact sign flips, constant change"),
        ((BY_GROUPS,), "exact sign flips of whole groups, constant change"),
    ],
)
def test_losses_that_all_rise_by_a_tenth(tmp_path, options, test):
    """A tenth is no binary fraction: what rounding leaves between replicates is no variance."""
    old = DRAWN.random(N)
    frame = pd.DataFrame({"shop": SHOP, "o": old, "n": old + 0.1 * BAD, "u": USER})
    frame.to_parquet(tmp_path / "data.parquet")
    flags = ["--loss=n", "--baseline-loss=o", "--metric=loss", "--features=shop"]
    paths = [f"--data={tmp_path}/data.parquet", f"--output={tmp_path}/out"]
    code = run(["search", *paths, *flags, "--max-cross-size=1", "--fail-on=worse", *options])
    table = pd.read_parquet(tmp_path / "out" / "slices.parquet").set_index("slice")
    assert code == 1
    assert table.loc["shop = x", "test"] == test
    fewest = len(set(USER[BAD])) if BY_GROUPS in options else BAD.sum()
    assert table.loc["shop = x", "p_value"] == pytest.approx(0.5**fewest, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [((BY_GROUPS,), "f1", 2), ((BY_GROUPS,), "recall", 2), (("--weight=w",), "recall", 1)],
)
def test_a_gate_does_not_see_what_nothing_varies_in(tmp_path, options, name, expected):
    """How many groups change in what counts is not known: exit code 2, though other slices are fine.

    Where examples are not grouped, the fall over all of them is tested.
    """
    flags = ("--baseline-prediction=o", f"--metric={name}", *options)
    code, table, _ = searched(tmp_path, turned_on_a_slice(), *flags)
    assert code == expected
    own = table[table["slice"] == "shop = x"]
    assert own["reason"].tolist() == [
        "the models differ, without variation that this test could go by"
    ]
    assert own["p_value"].tolist() == [1.0]
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert f"{name} on 1 slice: the models differ" in " ".join(document["testing"]["unseen"])
    assert document["gate"]["exit_code"] == expected


def test_a_gate_passes_what_is_surely_better(tmp_path):
    frame = turned_on_a_slice().rename(columns={"p": "o", "o": "p"})
    code, _, _ = searched(tmp_path, frame, "--baseline-prediction=o", "--metric=f1", BY_GROUPS)
    assert code == 0
