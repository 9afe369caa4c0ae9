"""Sampling weights: Hájek values, repeated rows, variances, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as sk

from tests.running import Found, refused, rows_of, search

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Array = np.ndarray

METRICS = (
    *("accuracy", "error_rate", "precision", "recall", "f1", "fbeta:2", "fpr", "specificity"),
    *("balanced_accuracy", "mcc", "prediction_rate", "log_loss", "brier", "mse", "mae", "bias"),
    *("auc", "f1_macro", "recall_micro"),
)
OF_THE_DATA = ("label_rate", "mean:age")
OPTIONS: dict[str, Any] = {
    "label": "income",
    "prediction": "prediction",
    "score": "score",
    "features": ("sex", "relationship"),
    "max_cross_size": 2,
    "min_slice_size": 20,
    "alternative": "both",
    "replicates": 20,
}
OLD = {"baseline_prediction": "prediction_old", "baseline_score": "score_old"}


@pytest.fixture(scope="module")
def frame(adult: pd.DataFrame) -> pd.DataFrame:
    """Scores of two digits, of which AUC has a bucket each, and weights of three kinds."""
    rng = np.random.default_rng(9)
    some = adult.iloc[:4000].reset_index(drop=True)
    return some.assign(
        score=some["score"].astype(float).round(2),
        score_old=some["score_old"].astype(float).round(2),
        w=rng.gamma(1.5, 2, len(some)),
        whole=rng.integers(0, 4, len(some)),
        one=np.ones(len(some)),
    )


def searched(folder: Path, frame: pd.DataFrame, **options: Any) -> Found:
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / "data.parquet")
    return search(folder / "out", data=(str(folder / "data.parquet"),), **(OPTIONS | options))


def hajek(some: pd.DataFrame, weight: str, old: str = "") -> dict[str, float]:
    y, p, s = (some[c].to_numpy(float) for c in ("income", "prediction" + old, "score" + old))
    w = some[weight].to_numpy(float)
    if not w.sum():
        return dict.fromkeys((*METRICS, *OF_THE_DATA), np.nan)
    tp, fp, fn, tn = ((w * (y == a) * (p == b)).sum() for a, b in ((1, 1), (0, 1), (1, 0), (0, 0)))

    def over(above: float, below: float) -> float:
        return above / below if below > 0 else np.nan

    eps = np.finfo(float).eps
    clipped = np.clip(s, eps, 1 - eps)
    means = {
        "accuracy": y == p,
        "error_rate": y != p,
        "recall_micro": y == p,
        "prediction_rate": p,
        "label_rate": y,
        "log_loss": -np.where(y == 1, np.log(clipped), np.log1p(-clipped)),
        "brier": (s - y) ** 2,
        "mse": (p - y) ** 2,
        "mae": abs(p - y),
        "bias": p - y,
        "mean:age": some["age"].to_numpy(float),
    }
    found = {name: (w * x).sum() / w.sum() for name, x in means.items()}
    margins = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    both = min(tp + fn, tn + fp) > 0
    occurring = w > 0
    return found | {
        "precision": over(tp, tp + fp),
        "recall": over(tp, tp + fn),
        "f1": over(2 * tp, 2 * tp + fp + fn),
        "fbeta:2": over(5 * tp, 5 * tp + 4 * fn + fp),
        "fpr": over(fp, fp + tn),
        "specificity": over(tn, fp + tn),
        "balanced_accuracy": (over(tp, tp + fn) + over(tn, tn + fp)) / 2,
        "mcc": (tp * tn - fp * fn) / np.sqrt(margins) if margins > 0 else np.nan,
        "auc": sk.roc_auc_score(y, s, sample_weight=w) if both else np.nan,
        "f1_macro": sk.f1_score(
            y[occurring], p[occurring], sample_weight=w[occurring], average="macro", zero_division=0
        ),
    }


@pytest.mark.parametrize("weight", ["w", pytest.param("whole", marks=pytest.mark.slow)])
@pytest.mark.parametrize("compared", ["overall", "baseline"])
@pytest.mark.slow
def test_values_are_weighted_means(
    tmp_path: Path, frame: pd.DataFrame, compared: str, weight: str
) -> None:
    old = OLD if compared == "baseline" else {}
    names = METRICS if old else (*METRICS, *OF_THE_DATA)
    found = searched(tmp_path, frame, weight=weight, metric=names, **old)
    whole = hajek(frame, weight)
    seen: dict[str, tuple[dict[str, float], ...]] = {}
    for row, held in rows_of(found, frame):
        assert row.n == held.sum()
        if row.slice_id not in seen:
            inside = frame[held]
            before = hajek(inside, weight, "_old") if old else whole
            outside = hajek(frame[~held], weight) if not old else whole
            seen[row.slice_id] = hajek(inside, weight), before, outside
        value, reference, complement = (one[row.metric] for one in seen[row.slice_id])
        where = f"{row.metric} of {row.slice}"
        assert row.value == pytest.approx(value, abs=1e-10, nan_ok=True), where
        assert row.reference == pytest.approx(reference, abs=1e-10, nan_ok=True), where
        if not old:
            assert row.complement == pytest.approx(complement, abs=1e-10, nan_ok=True), where
        assert 0 < row.p_value <= 1
        assert pd.isna(row.test) != pd.isna(row.reason)
    assert len(seen) > 10
    assert found.document["dataset"]["weight_field"] == weight


@pytest.mark.parametrize("compared", ["overall", pytest.param("baseline", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_whole_weights_are_repeated_rows(
    tmp_path: Path, frame: pd.DataFrame, compared: str
) -> None:
    old = OLD if compared == "baseline" else {}
    names = METRICS if old else (*(set(METRICS) - {"f1_macro"}), *OF_THE_DATA)
    options = {"metric": names, "min_slice_size": 1, **old}
    repeated = frame.loc[frame.index.repeat(frame["whole"])]
    by_weight = searched(tmp_path / "weight", frame, weight="whole", **options)
    by_rows = searched(
        tmp_path / "rows", repeated, **{**options, "replicates": None} if not old else options
    )
    both = by_weight.table.merge(by_rows.table, on=["slice_id", "metric"], suffixes=("", "_rows"))
    assert len(both) == len(by_rows.table)
    for column in ("value", "reference", "delta", "complement"):
        np.testing.assert_allclose(both[column], both[f"{column}_rows"], atol=1e-10)


def kish(w: Array) -> float:
    return w.sum() ** 2 / (w**2).sum()


def linearised(x: Array, w: Array, held: Array) -> tuple[float, float]:
    """Delta of a weighted share and its variance, which a slice like all examples would not exceed."""
    inside, total = w[held].sum(), w.sum()
    mean, whole = (w * x)[held].sum() / inside, (w * x).sum() / total
    score = np.where(held, (x - mean) / inside, 0) - (x - whole) / total
    spread = (w**2 * (x - whole) ** 2).sum() / total**2 * kish(w)
    null = spread * (1 - inside / total) / kish(w[held])
    return mean - whole, max((w**2 * score**2).sum(), null)


@pytest.mark.parametrize("weight", ["w", "one"])
def test_p_values_are_linearised(tmp_path: Path, frame: pd.DataFrame, weight: str) -> None:
    found = searched(tmp_path, frame, weight=weight, metric=("accuracy",), replicates=None)
    x = (frame["income"] == frame["prediction"]).to_numpy(float)
    w = frame[weight].to_numpy(float)
    for row, held in rows_of(found, frame):
        delta, variance = linearised(x, w, held)
        law = stats.t(kish(w[held]) - 1)
        t = abs(delta) / np.sqrt(variance)
        assert row.test == "linearised t, weighted"
        # Where weights vary the spread of all examples can be estimated in more than one way.
        tolerance = 1e-6 if weight == "one" else 0.03
        assert law.isf(row.p_value / 2) == pytest.approx(t, rel=tolerance), row.slice


def test_weights_of_1_are_near_no_weights(tmp_path: Path, frame: pd.DataFrame) -> None:
    names = ("accuracy", "log_loss", "mean:age")
    options = {"metric": names, "replicates": None}
    weighted = searched(tmp_path / "one", frame, weight="one", **options).table
    plain = searched(tmp_path / "none", frame, **options).table
    assert weighted["slice_id"].equals(plain["slice_id"])
    assert weighted["reason"].fillna("").equals(plain["reason"].fillna(""))
    mean = plain["metric"].isin(("log_loss", "mean:age"))
    np.testing.assert_allclose(weighted["p_value"][mean], plain["p_value"][mean], rtol=1e-6)
    # The approximate test of a share is the cautious one.
    share = (plain["metric"] == "accuracy").to_numpy()
    z = [stats.norm.isf(p[share] / 2) for p in (weighted["p_value"], plain["p_value"])]
    assert share.sum() > 10
    assert (z[0] < 1.05 * z[1] + 0.1).all()
    assert (z[0] > 0.7 * z[1] - 0.1).all()


def test_weights_of_1_within_a_small_denominator(tmp_path: Path) -> None:
    """Of 600 examples of a slice 20 are predicted positive: precision is known as of 20."""
    predicted = np.repeat([1, 0, 1, 0], [20, 580, 900, 2100])
    right = np.repeat([1, 0, 1, 1, 0, 1], [19, 1, 580, 690, 210, 2100])
    frame = pd.DataFrame(
        {
            "s": np.repeat(["few", "most"], [600, 3000]),
            "pred": predicted,
            "label": np.where(right == 1, predicted, 1 - predicted),
            "one": 1.0,
        }
    )
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"label": "label", "prediction": "pred", "metric": ("precision",)}
    options |= {"data": (str(tmp_path / "data.parquet"),), "alternative": "both"}
    one = search(tmp_path / "one", weight="one", features=("s",), **options).table
    few = one[one["slice"] == "s = few"].iloc[0]
    law = stats.hypergeom(920, 709, 20)
    exact = 2 * (law.sf(19) + law.pmf(19) / 2)
    assert few["value"] == 0.95
    assert few["p_value"] > exact / 4


def test_the_unit_of_weights_does_not_matter(tmp_path: Path, frame: pd.DataFrame) -> None:
    names = ("accuracy", "mcc", "log_loss", "f1")
    options = {"weight": "w", "metric": names, "replicates": None}
    one = searched(tmp_path / "a", frame, **options).table
    other = searched(tmp_path / "b", frame.assign(w=frame["w"] * 1000), **options).table
    for column in ("value", "reference", "delta", "p_value", "ci_low", "ci_high"):
        np.testing.assert_allclose(one[column], other[column], rtol=1e-7, atol=1e-10)


@pytest.mark.slow
def test_the_same_whatever_the_chunks(tmp_path: Path, frame: pd.DataFrame) -> None:
    options = {"weight": "w", "metric": ("accuracy", "log_loss", "auc"), "max_cross_size": 1}
    one = searched(tmp_path / "a", frame, **options)
    other = searched(tmp_path / "b", frame, chunk_rows=777, memory_budget="16MB", **options)
    assert one.slices_bytes == other.slices_bytes


@pytest.fixture
def refuse(
    tmp_path: Path, frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> Callable[[Any], str]:
    def run_it(weights: Any) -> str:
        frame.assign(w=weights).to_parquet(tmp_path / "data.parquet")
        arguments = ["search", "--data", str(tmp_path / "data.parquet"), "--weight", "w"]
        arguments += ["--output", str(tmp_path / "out"), "--features", "sex"]
        arguments += ["--label", "income", "--prediction", "prediction"]
        said = refused(arguments, capsys, folder=tmp_path)
        assert not (tmp_path / "out" / "changelist.json").exists()
        return said

    return run_it


@pytest.mark.slow
def test_weights_that_are_none(refuse: Callable[[Any], str], frame: pd.DataFrame) -> None:
    w = frame["w"]
    message = refuse(w.where(frame.index != 41, -2.5))
    assert message == (
        "weight column 'w' holds -2.5 in row 42 of DIR/data.parquet; a weight is at least 0"
    )
    missing = "column 'w' has no value in row 7 of DIR/data.parquet; drop such examples or fill"
    assert refuse(w.where(frame.index != 6)).startswith(missing)
    assert refuse(w.where(frame.index != 6, np.inf)).startswith("column 'w' holds inf in row 7 of")
    assert refuse(w.astype(str)).startswith("column 'w' is string, but a weight is a number")
    assert refuse(np.zeros(len(frame))) == "--weight 'w' is 0 for every example"


@pytest.mark.parametrize("exponent", [pytest.param(-1000, marks=pytest.mark.slow), 1000])
def test_weights_of_any_size(tmp_path: Path, frame: pd.DataFrame, exponent: int) -> None:
    """Weights that are all multiplied by a power of two change nothing, to the last bit."""
    options = {"metric": METRICS, "weight": "w", "features": ("sex",)}
    plain = searched(tmp_path / "plain", frame, **options)
    other = frame.assign(w=np.ldexp(frame["w"], exponent))
    scaled = searched(tmp_path / "scaled", other, **options)
    pd.testing.assert_frame_equal(plain.table, scaled.table, check_exact=True)


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 1e200])
def test_the_unit_of_weights_draws_no_other_replicates(
    tmp_path: Path, frame: pd.DataFrame, factor: float
) -> None:
    """Without an id examples are resampled by their content, of which the weight is a part."""
    options = {"metric": ("auc",), "weight": "w", "features": ("relationship", "race")}
    plain = searched(tmp_path / "plain", frame, **options).table
    other = searched(tmp_path / "other", frame.assign(w=frame["w"] * factor), **options).table
    resampled = plain["test"] == "bootstrap of examples, t"
    assert resampled.sum() >= 5
    for column in ("p_value", "ci_low", "ci_high"):
        np.testing.assert_allclose(other[column], plain[column], rtol=1e-6)


def test_weights_times_any_number(tmp_path: Path, frame: pd.DataFrame) -> None:
    options = {"metric": ("log_loss", "accuracy"), "weight": "w", "features": ("sex",)}
    options["replicates"] = None
    plain = searched(tmp_path / "plain", frame, **options).table
    for factor in (1e-300, 1e-150, 1e300):
        found = searched(
            tmp_path / f"{factor}", frame.assign(w=frame["w"] * factor), **options
        ).table
        np.testing.assert_allclose(found["p_value"], plain["p_value"], rtol=1e-6)
        np.testing.assert_allclose(found["value"], plain["value"], rtol=1e-9)
