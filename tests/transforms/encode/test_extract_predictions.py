"""What is measured of each example: losses, errors, predicted classes; and what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.registry import metric, needs_of
from slicebeam.transforms.encode.extract_predictions import Outcome, Predictor, extract_predictions
from slicebeam.transforms.encode.sources import Chunk


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
    data = chunk(y=[0, 1, 1], s=[-INF, INF, 0.7])
    found = extract_predictions(data, outcome("auc"))
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
    of_scores = Outcome(
        "y", "int64", Predictor(score="s"), positive_class=1, threshold=0.3, needs=needs
    )
    found = extract_predictions(chunk(y=y, s=s), of_scores)
    above = s >= 0.3
    wanted = {"positive": y == 1, "predicted": above, "wrong": above != (y == 1)}
    assert {name: mask.tolist() for (name, _), mask in found.indicators.items()} == {
        name: mask.tolist() for name, mask in wanted.items()
    }
    # The name of the other class may be in another chunk.
    assert found.pairs["prediction"].to_pylist() == [1 if one else None for one in above]
    np.testing.assert_allclose(found.values["brier", False], (s - y) ** 2)
    each = [log_loss([label], [score], labels=[0, 1]) for label, score in zip(y, s, strict=True)]
    np.testing.assert_allclose(found.values["log_loss", False], each)


def test_errors_are_predictions_minus_labels():
    data = chunk(y=[1.0, 2.0, -4.0], p=[3.0, 1.5, 0.0])
    for name, wanted in (("bias", [2, -0.5, 4]), ("mae", [2, 0.5, 4]), ("mse", [4, 0.25, 16])):
        assert extract_predictions(data, outcome(name)).values[name, False].tolist() == wanted
