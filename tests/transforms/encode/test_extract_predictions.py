"""What is measured of each example, by columns or models; and what is refused."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.measures.registry import metric, needs_of
from slicebeam.transforms.encode.column import Chunk
from slicebeam.transforms.encode.extract_predictions import (
    Outcome,
    Predictor,
    count_labels,
    extract_predictions,
    sum_labels,
)


def chunk(**columns):
    return Chunk(0, 0, "data.csv", 40, 40, pa.table(columns))


def outcome(name, *, weight=None):
    score = name in ("auc", "log_loss", "brier")
    new, positive = (Predictor(score="s"), 1) if score else (Predictor(column="p"), None)
    needs = metric(name).needs
    return Outcome("y", "int64", new, positive_class=positive, needs=needs, weight=weight)


INF, NAN = float("inf"), float("nan")
ERRORS = ("mse", "mae", "bias")


@pytest.mark.parametrize(("names", "columns", "message"), [
    (("auc", "log_loss", "brier"), {"y": [0, 1, 1], "s": [0.1, NAN, 0.7]}, r"'s' has no value in row 42 of data\.csv"),
    (("log_loss", "brier"), {"y": [0, 1, 1], "s": [-INF, INF, 0.7]}, "'s' holds -inf in row 41 .*probabilities, 0 to 1"),
    (ERRORS, {"y": [1.0, 2.0], "p": [0.5, INF]}, "'p' holds inf in row 42"),
    (ERRORS, {"y": [1.0, -INF], "p": [0.5, 1.0]}, "'y' holds -inf in row 42"),
    (ERRORS, {"y": [1.0, 2.0], "p": [1e80, 1.0]}, r"'p' holds 1e\+80 in row 41"),
    (ERRORS, {"y": [1.0, 2.0], "p": [1.0, NAN]}, "'p' has no value in row 42"),
    (("mape",), {"y": [1.0, 0.0], "p": [1.0, 1.0]}, "'y' holds 0 in row 42 .*, by which --metric mape divides; drop"),
    (("mape",), {"y": [1e-300, 1.0], "p": [1.0, 1.0]}, "'y' holds 1e-300 in row 41 .* too large to be summed"),
    (("poisson_deviance",), {"y": [0.0, -1.0], "p": [1.0, 1.0]}, "'y' holds -1 in row 42 .*, but --metric poisson_deviance takes labels of at least 0"),
    (("poisson_deviance",), {"y": [0.0, 1.0], "p": [1.0, 0.0]}, "'p' holds 0 in row 42 .* predictions above 0"),
    (("mean:x",), {"x": [1.0, INF]}, "'x' holds inf"),
    (("mean:x",), {"x": [1.0, NAN]}, "'x' has no value"),
    (("accuracy",), {"y": [0, 1], "p": [0, 1], "w": [1.0, -1.0]}, "'w' holds -1 in row 42"),
    (("accuracy",), {"y": [0, 1], "p": [0, 1], "w": [1.0, INF]}, "'w' holds inf in row 42"),
])  # fmt: skip
def test_values_that_are_refused(names, columns, message):
    for name in names:
        with pytest.raises(InputError, match=message):
            extract_predictions(
                chunk(**columns), outcome(name, weight="w" if "w" in columns else None)
            )


def test_infinite_scores_have_ranks():
    found = extract_predictions(chunk(y=[0, 1, 1], s=[-INF, INF, 0.7]), outcome("auc"))
    assert found.scores["prediction"].tolist() == [-INF, INF, 0.7]


def test_the_log_loss_of_certain_scores_is_finite():
    data = chunk(y=[0, 1, 0, 1], s=[0.0, 1.0, 1.0, 0.0])
    losses = extract_predictions(data, outcome("log_loss")).values["log_loss", False]
    assert np.isfinite(losses).all()
    assert (losses >= 0).all()
    np.testing.assert_allclose(losses[2:], -np.log(np.finfo(float).eps))


def test_scores_are_cut_at_the_threshold_and_have_losses():
    y, s = np.array([0, 1, 1, 0, 1]), np.array([0.3, 0.3, 0.9, 0.6, 0.2])
    needs = needs_of(["brier", "log_loss", "accuracy", "recall", "f1_macro"])
    cut = Outcome("y", "int64", Predictor(score="s"), positive_class=1, threshold=0.3, needs=needs)
    found = extract_predictions(chunk(y=y, s=s), cut)
    above = s >= 0.3
    wanted = {"positive": y == 1, "predicted": above, "wrong": above != (y == 1)}
    assert {name: mask.tolist() for (name, _), mask in found.indicators.items()} == {
        name: mask.tolist() for name, mask in wanted.items()
    }
    # The name of the other class may be in another chunk.
    assert found.classes["prediction"].to_pylist() == [1 if one else None for one in above]
    np.testing.assert_allclose(found.values["brier", False], (s - y) ** 2)
    each = [log_loss([label], [score], labels=[0, 1]) for label, score in zip(y, s, strict=True)]
    np.testing.assert_allclose(found.values["log_loss", False], each)


def test_errors_are_predictions_minus_labels():
    data = chunk(y=[1.0, 2.0, -4.0], p=[3.0, 1.5, 0.0])
    for name, wanted in (
        ("bias", [2, -0.5, 4]),
        ("mae", [2, 0.5, 4]),
        ("mse", [4, 0.25, 16]),
        ("rmse", [4, 0.25, 16]),
        ("mape", [2, 0.25, 1]),
        ("smape", [1, 2 / 7, 2]),
        ("pinball:0.75", [0.5, 0.375, 1]),
    ):
        assert extract_predictions(data, outcome(name)).values[name, False].tolist() == wanted
    zeros = extract_predictions(chunk(y=[0.0], p=[0.0]), outcome("smape"))
    assert zeros.values["smape", False].tolist() == [0]


# Counts of the label by the values of features, against counting the pairs of all examples.


def summed(labels, codes, radix, cuts):
    parts = zip(np.split(np.array(labels), cuts), np.split(codes, cuts), strict=True)
    shards = [count_labels(pa.array(own.tolist()), [code], [radix]) for own, code in parts]
    return sum_labels(json.loads(json.dumps(shards)), [radix])


@pytest.mark.parametrize("names", [["no", "yes", "maybe"], [0, 1, 7], [0.0, 2.0, -1.0]])
def test_counts_are_those_of_the_pairs_however_the_rows_are_cut(names):
    draw = np.random.default_rng(3)
    labels = [names[at] for at in draw.choice(3, 500, p=[0.9, 0.09, 0.01])]
    codes = draw.integers(0, 5, 500)
    pairs = Counter(zip(codes.tolist(), labels, strict=True))
    for cuts in ([], [100, 101, 480], list(range(20, 500, 20))):
        found = summed(labels, codes, 6, cuts)
        assert found.classes == tuple(sorted(set(labels)))
        assert found.sizes.tolist() == [labels.count(name) for name in found.classes]
        (table,) = found.tables
        assert table.tolist() == [[pairs[c, name] for name in found.classes] for c in range(6)]


def test_equal_numbers_are_one_class():
    found = sum_labels([count_labels(pa.array([0.0, -0.0, 1.0]), [np.array([0, 0, 1])], [2])], [2])
    assert found.classes == (0.0, 1.0)
    assert found.sizes.tolist() == [2, 1]
    assert found.tables[0].tolist() == [[2, 0], [0, 1]]


def test_too_many_cells_however_the_rows_are_cut_and_lists_are_not_counted():
    # A shard has two classes, all shards have four: 1,100 codes are few enough for a shard only.
    labels, codes = ["a", "b"] * 10 + ["c", "d"] * 10, np.arange(40)
    for cuts in ([], [20]):
        found = summed(labels, codes, 1100, cuts)
        assert found.tables == (None,)
        assert found.sizes.tolist() == [10, 10, 10, 10]
    lists = Ragged(np.array([0, 1, 3]), np.array([0, 0, 1]))
    found = sum_labels([count_labels(pa.array(["a", "b"]), [lists], [2])], [2])
    assert found.tables == (None,)


def test_without_classes_there_are_no_counts():
    numbers = pa.array(list(range(1001)))
    assert count_labels(None, [], []) is None
    assert count_labels(numbers, [], []) is None
    assert sum_labels([None], []) is None
