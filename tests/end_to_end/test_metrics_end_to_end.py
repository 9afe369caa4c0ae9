"""Every metric of a search, held against scikit-learn, scipy and pandas on the raw rows."""

from __future__ import annotations

import pickle
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from sklearn import metrics as sk
from sklearn.linear_model import LinearRegression, LogisticRegression

from slicebeam.metrics.errors import InputError
from tests.random_subsets import saddle_point
from tests.running import Found, rows_of, search

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Array = np.ndarray

BINARY = (
    *("accuracy", "error_rate", "precision", "recall", "f1", "fbeta:2", "fbeta:0.5", "fpr", "fnr"),
    *("specificity", "balanced_accuracy", "mcc", "prediction_rate", "log_loss", "brier"),
    *("precision_micro", "recall_micro", "f1_micro"),
)
# The same for every model, so that two models cannot be compared by it.
OF_ONE_MODEL = ("label_rate", "mean:age")
ADULT: dict[str, Any] = {
    "label": "income",
    "prediction": "prediction",
    "score": "score",
    "features": ("race", "relationship"),
    "max_cross_size": 2,
    "min_slice_size": 20,
    "alternative": "both",
}
OLD: dict[str, Any] = {"baseline_prediction": "prediction_old", "baseline_score": "score_old"}


def binary(y: Array, p: Array, s: Array | None) -> dict[str, float]:
    """The metrics of labels, predictions (0 or 1) and scores; NaN where one is not defined."""
    nan = {"zero_division": np.nan}
    tn, fp, fn, tp = sk.confusion_matrix(y, p, labels=[0, 1]).ravel()
    both, margins = 0 < y.sum() < y.size, (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    found = {
        "accuracy": sk.accuracy_score(y, p),
        "error_rate": 1 - sk.accuracy_score(y, p),
        "precision": sk.precision_score(y, p, **nan),
        "recall": sk.recall_score(y, p, **nan),
        "f1": sk.f1_score(y, p, **nan),
        "fbeta:2": sk.fbeta_score(y, p, beta=2, **nan),
        "fbeta:0.5": sk.fbeta_score(y, p, beta=0.5, **nan),
        "fpr": fp / (fp + tn) if fp + tn else np.nan,
        "fnr": fn / (fn + tp) if fn + tp else np.nan,
        "specificity": sk.recall_score(y, p, pos_label=0, **nan),
        "balanced_accuracy": sk.balanced_accuracy_score(y, p) if both else np.nan,
        "mcc": sk.matthews_corrcoef(y, p) if margins else np.nan,
        "prediction_rate": p.mean(),
        "label_rate": y.mean(),
        **{f"{name}_micro": sk.accuracy_score(y, p) for name in ("precision", "recall", "f1")},
    }
    if s is not None:
        found["log_loss"] = sk.log_loss(y, s, labels=[0, 1])
        found["brier"] = sk.brier_score_loss(y, s)
        found["auc"] = sk.roc_auc_score(y, s) if both else np.nan
    return found


def check_values(
    found: Found,
    frame: pd.DataFrame,
    of: Callable[[pd.DataFrame], dict[str, float]],
    old: Callable[[pd.DataFrame], dict[str, float]] | None = None,
    tolerance: float = 1e-12,
) -> int:
    """Hold n, value, reference, complement, delta and impact of each row against an oracle."""
    seen: dict[str, list[dict[str, float]]] = {}
    whole = of(frame)
    for row, held in rows_of(found, frame):
        if row.slice_id not in seen:
            inside = frame[held]
            other = [of(frame[~held])] if old is None and not held.all() else []
            seen[row.slice_id] = [of(inside), whole if old is None else old(inside), *other]
        value, reference, *complement = (one[row.metric] for one in seen[row.slice_id])
        where = f"{row.metric} of {row.slice}"
        assert row.n == held.sum()
        assert row.value == pytest.approx(value, abs=tolerance, nan_ok=True), where
        assert row.reference == pytest.approx(reference, abs=tolerance, nan_ok=True), where
        assert row.delta == pytest.approx(value - reference, abs=2 * tolerance, nan_ok=True), where
        if not np.isnan(value - reference):
            assert row.impact == pytest.approx(row.n * row.delta)
            assert row.ci_low - 1e-9 <= row.delta <= row.ci_high + 1e-9, where
        if complement:
            assert row.complement == pytest.approx(complement[0], abs=tolerance, nan_ok=True), where
        else:
            assert np.isnan(row.complement)
        assert 0 < row.p_value <= 1
        assert pd.isna(row.test) != pd.isna(row.reason), where
    return len(seen)


def of_new(frame: pd.DataFrame) -> dict[str, float]:
    y, p, s = (frame[c].to_numpy(float) for c in ("income", "prediction", "score"))
    return binary(y, p, s) | {"mean:age": frame["age"].mean()}


def of_old(frame: pd.DataFrame) -> dict[str, float]:
    y, p, s = (frame[c].to_numpy(float) for c in ("income", "prediction_old", "score_old"))
    return binary(y, p, s)


@pytest.fixture(scope="module")
def overall(tmp_path_factory: pytest.TempPathFactory, adult_path: Path) -> Found:
    folder = tmp_path_factory.mktemp("overall")
    return search(folder, data=(str(adult_path),), metric=(*BINARY, *OF_ONE_MODEL), **ADULT)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory, adult_path: Path) -> Found:
    folder = tmp_path_factory.mktemp("baseline")
    return search(folder, data=(str(adult_path),), metric=BINARY, **ADULT, **OLD)


def test_values_overall(overall: Found, adult: pd.DataFrame) -> None:
    assert check_values(overall, adult, of_new) > 20
    assert overall.table["value"].isna().any()
    whole = of_new(adult)
    for change in overall.document["global"]:
        assert change["after"]["value"] == pytest.approx(whole[change["metric"]], abs=1e-12)
        assert "before" not in change


@pytest.mark.slow
def test_values_of_two_models(baseline: Found, adult: pd.DataFrame) -> None:
    assert check_values(baseline, adult, of_new, of_old) > 20
    new, old = of_new(adult), of_old(adult)
    for change in baseline.document["global"]:
        name = change["metric"]
        assert change["after"]["value"] == pytest.approx(new[name], abs=1e-12)
        assert change["before"]["value"] == pytest.approx(old[name], abs=1e-12)
        assert change["delta"]["value"] == pytest.approx(new[name] - old[name], abs=1e-12)


def test_every_metric_has_a_row_for_every_slice(overall: Found) -> None:
    per_metric = overall.table.groupby("metric", sort=False)["slice_id"].apply(list)
    assert set(per_metric.index) == {*BINARY, *OF_ONE_MODEL}
    assert all(ids == per_metric.iloc[0] for ids in per_metric)
    assert [one["key"] for one in overall.document["metrics"]] == [*BINARY, *OF_ONE_MODEL]
    assert [one["primary"] for one in overall.document["metrics"]].count(True) == 1
    for one in overall.document["slices"]:
        assert [change["metric"] for change in one["changes"]] == [*BINARY, *OF_ONE_MODEL]


def stated_error(found: Found) -> float:
    text = next(one for one in found.document["testing"]["warnings"] if "AUC" in one)
    return float(re.search(r"off by at most ([0-9.e-]+) \(", text)[1])


def test_auc_to_the_error_that_is_stated(
    tmp_path: Path, adult_path: Path, adult: pd.DataFrame
) -> None:
    found = search(tmp_path, data=(str(adult_path),), metric=("auc",), **ADULT)
    most = stated_error(found)
    whole = sk.roc_auc_score(adult["income"], adult["score"])
    assert found.document["global"][0]["after"]["value"] == pytest.approx(whole, abs=1e-12)
    for row, held in rows_of(found, adult):
        assert row.n == held.sum()
        for value, error, some in (
            (row.value, row.value_error, adult[held]),
            (row.complement, row.complement_error, adult[~held]),
        ):
            if some["income"].nunique() < 2:
                assert np.isnan(value)
                continue
            expected = sk.roc_auc_score(some["income"], some["score"])
            assert abs(value - expected) <= error + 1e-12
        assert np.isnan(row.value) or row.value_error <= (0 if row.significant else most)


@pytest.mark.slow
def test_auc_of_few_distinct_scores_is_exact(tmp_path: Path, adult: pd.DataFrame) -> None:
    frame = adult.assign(score=adult["score"].round(2), score_old=adult["score_old"].round(2))
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"data": (str(tmp_path / "data.parquet"),), "metric": ("auc",), **ADULT}
    one = search(tmp_path / "overall", **options)
    assert check_values(one, frame, of_new, tolerance=1e-10) > 20
    options["features"] = ("relationship",)
    two = search(tmp_path / "baseline", replicates=20, **options, **OLD)
    assert check_values(two, frame, of_new, of_old, tolerance=1e-10) == 6
    assert not [w for f in (one, two) for w in f.document["testing"]["warnings"] if "AUC" in w]


def mid_p(x: Any, n: Any, N: int, K: int, tail: str = "both") -> Array:
    law = stats.hypergeom(N, K, n)
    upper, lower = law.sf(x) + law.pmf(x) / 2, law.cdf(x) - law.pmf(x) / 2
    both = np.minimum(1, 2 * np.minimum(upper, lower))
    return {"upper": upper, "lower": lower, "both": both}[tail]


def tables(frame: pd.DataFrame, p: str) -> dict[str, tuple[Array, Array]]:
    """Of each share: which examples are marked, and which are in the denominator."""
    y, p = (frame[c].to_numpy() == 1 for c in ("income", p))
    every = np.ones(len(frame), bool)
    return {
        "accuracy": (y == p, every),
        "error_rate": (y != p, every),
        "precision": (y & p, p),
        "recall": (y & p, y),
        "fnr": (y & ~p, y),
        "fpr": (p & ~y, ~y),
        "specificity": (~p & ~y, ~y),
        "f1": (y & p, y | p),
        "prediction_rate": (p, every),
        "label_rate": (y, every),
    }


def check_mid_p(found: Found, frame: pd.DataFrame, tail: Callable[[str], str]) -> None:
    marks = tables(frame, "prediction")
    tested = dict.fromkeys(marks, 0)
    for row, held in rows_of(found, frame):
        if row.metric not in marks:
            continue
        marked, within = marks[row.metric]
        x, n, K, N = (held & marked).sum(), (held & within).sum(), marked.sum(), within.sum()
        small = n == 0 or (n < 10 and n < held.sum())
        if small or n == N:
            assert row.p_value == 1
            assert isinstance(row.reason, str)
            continue
        expected = mid_p(x, n, N, K, tail(row.metric))
        assert row.p_value == pytest.approx(expected, rel=1e-7, abs=1e-12), row
        assert row.test == "hypergeometric mid-p"
        tested[row.metric] += 1
    assert all(count > 8 for name, count in tested.items() if name in set(found.table["metric"]))


def test_p_values_of_shares_are_mid_p_within_the_denominator(
    overall: Found, adult: pd.DataFrame
) -> None:
    check_mid_p(overall, adult, lambda name: "both")


def test_p_values_of_shares_one_sided(
    tmp_path: Path, adult_path: Path, adult: pd.DataFrame
) -> None:
    names = ("error_rate", "precision", "recall", "f1", "fpr")
    options = {**ADULT, "data": (str(adult_path),), "metric": names}
    worse_is_high = ("error_rate", "fpr")
    for alternative, high, low in (("worse", "upper", "lower"), ("better", "lower", "upper")):
        found = search(tmp_path / alternative, **(options | {"alternative": alternative}))
        check_mid_p(found, adult, lambda name, h=high, lo=low: h if name in worse_is_high else lo)


def test_p_values_of_two_models_are_mcnemars(baseline: Found, adult: pd.DataFrame) -> None:
    new, old = tables(adult, "prediction"), tables(adult, "prediction_old")
    fixed = ("accuracy", "error_rate", "recall", "fnr", "fpr", "specificity", "prediction_rate")
    tested = 0
    for row, held in rows_of(baseline, adult):
        if row.metric not in fixed:
            continue
        (marked, within), (before, _) = new[row.metric], old[row.metric]
        b, c = (held & marked & ~before).sum(), (held & before & ~marked).sum()
        n = (held & within).sum()
        if b + c == 0 or n == 0 or (n < 10 and n < held.sum()):
            assert row.p_value == 1
            assert isinstance(row.reason, str)
            continue
        law = stats.binom(b + c, 0.5)
        tails = law.sf(b) + law.pmf(b) / 2, law.cdf(b) - law.pmf(b) / 2
        assert row.p_value == pytest.approx(min(1, 2 * min(tails)), rel=1e-7)
        assert row.test == "McNemar mid-p"
        tested += 1
    assert tested > 80


def raised(n: float, variance: float, reference: float, gamma: float) -> float:
    """A variance as if γ²/2 more values spread as the reference were in the sample."""
    added = gamma**2 / 2
    return max(variance, ((n - 1) * variance + added * reference) / (n - 1 + added))


def t_bent(t: float, G: float) -> float:
    return t + G * t**2 / 3 + G**2 * t**3 / 27 + G / 6


def hall_paired(change: Array, everything: Array) -> float | None:
    gamma, n = stats.skew(everything), change.size
    if abs(gamma) > np.sqrt(n):
        return None
    variance = raised(n, change.var(ddof=1), everything.var(ddof=1), gamma)
    T = t_bent(change.mean() / np.sqrt(variance / n), gamma / np.sqrt(n))
    law = stats.t(n - 1)
    return min(1, 2 * min(law.sf(T), law.cdf(T)))


def losses(frame: pd.DataFrame, score: str) -> dict[str, Array]:
    y, s = frame["income"].to_numpy(float), frame[score].to_numpy(float)
    eps = np.finfo(float).eps
    s_ = np.clip(s, eps, 1 - eps)
    log_loss = -(y * np.log(s_) + (1 - y) * np.log1p(-s_))
    return {"log_loss": log_loss, "brier": (s - y) ** 2, "mean:age": frame["age"].to_numpy(float)}


@pytest.mark.slow
def test_p_values_of_means_are_those_of_random_subsets(overall: Found, adult: pd.DataFrame) -> None:
    values = losses(adult, "score")
    tested = 0
    for row, held in rows_of(overall, adult):
        if row.metric in values and row.p_value > 1e-12:
            value = values[row.metric]
            upper, lower = saddle_point(value, int(held.sum()), float(value[held].sum()))
            assert row.p_value == pytest.approx(min(1, 2 * min(upper, lower)), rel=0.01), row.slice
            assert row.test == "law of random subsets, saddle point"
            tested += 1
    assert tested > 20


def test_p_values_of_paired_means_are_halls(baseline: Found, adult: pd.DataFrame) -> None:
    new, old = losses(adult, "score"), losses(adult, "score_old")
    tested = 0
    for row, held in rows_of(baseline, adult):
        if row.metric in ("log_loss", "brier"):
            change = new[row.metric] - old[row.metric]
            expected = hall_paired(change[held], change)
            if expected is None:
                assert row.reason == "too skewed, or weighted too unequally, for so few examples"
                continue
            assert row.p_value == pytest.approx(expected, rel=1e-6, abs=1e-300), row.slice
            assert row.test == "Hall's paired t"
            tested += 1
    assert tested > 30


@pytest.mark.slow
@pytest.mark.parametrize("compared", [{}, OLD], ids=["overall", "baseline"])
def test_a_metric_says_the_same_beside_others(
    tmp_path: Path, adult_path: Path, overall: Found, baseline: Found, compared: dict[str, Any]
) -> None:
    together = baseline if compared else overall
    for name in ("recall", "log_loss"):
        alone = search(
            tmp_path / name,
            data=(str(adult_path),),
            metric=(name,),
            **ADULT,
            **compared,
        )
        beside = together.table[together.table["metric"] == name].reset_index(drop=True)
        numbers = ["n", "value", "reference", "delta", "p_value", "q_value", "ci_low", "ci_high"]
        pd.testing.assert_frame_equal(alone.table[numbers], beside[numbers], rtol=1e-9)


def test_a_mean_needs_no_more_examples_than_a_share(
    tmp_path: Path, adult_path: Path, overall: Found
) -> None:
    options = {**ADULT, "data": (str(adult_path),), "metric": ("accuracy", "brier")}
    del options["min_slice_size"]
    found = search(tmp_path, **options).table
    small = (found["metric"] == "brier") & (found["n"] < 50)
    assert small.sum() > 2
    assert found[small]["n"].min() >= 20
    assert found[small]["reason"].isna().all()
    both = found.merge(overall.table, on=["slice_id", "metric"])
    assert len(both) == len(found)
    np.testing.assert_allclose(both["p_value_x"], both["p_value_y"], rtol=1e-9)


def test_mcc_says_the_same_beside_others(tmp_path: Path, adult_path: Path, overall: Found) -> None:
    alone = search(tmp_path, data=(str(adult_path),), metric=("mcc",), **ADULT)
    beside = overall.table[overall.table["metric"] == "mcc"].reset_index(drop=True)
    pd.testing.assert_series_equal(alone.table["p_value"], beside["p_value"], rtol=1e-9)


def test_accuracy_keeps_its_test_beside_auc(tmp_path: Path, adult_path: Path) -> None:
    options = {**ADULT, **OLD, "data": (str(adult_path),), "max_cross_size": 1}
    alone = search(tmp_path / "alone", metric=("accuracy",), **options)
    found = search(tmp_path / "beside", metric=("accuracy", "auc"), **options)
    beside = found.table[found.table["metric"] == "accuracy"].reset_index(drop=True)
    pd.testing.assert_series_equal(alone.table["p_value"], beside["p_value"], rtol=1e-9)


@pytest.fixture(scope="module")
def small() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    rows = 1500
    frame = pd.DataFrame(
        {"a": rng.choice(["x", "y", "z"], rows), "b": rng.choice(["u", "v"], rows)}
    )
    y = rng.random(rows) < np.where(frame["a"] == "x", 0.6, 0.3)
    frame["s"] = np.clip(0.5 * y + rng.normal(0.25, 0.25, rows), 0, 1).round(3)
    frame["y"] = y
    return frame


FORMS: dict[str, tuple[Callable[[pd.Series], Any], Any]] = {
    "boolean": (lambda y: y.astype(bool), None),
    "boolean, false": (lambda y: y.astype(bool), "false"),
    "integer": (lambda y: y.astype("int64"), None),
    "small integer": (lambda y: y.astype("uint8"), "1"),
    "other integers": (lambda y: np.where(y, 7, -3), "7"),
    "float": (lambda y: y.astype(float), None),
    "text": (lambda y: np.where(y, "yes", "no"), "yes"),
    "text, other": (lambda y: np.where(y, "yes", "no"), "no"),
    "category": (lambda y: pd.Categorical(np.where(y, "yes", "no")), "yes"),
}
SLOW_FORMS = ("text", "boolean", "integer", "small integer", "float", "text, other")


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=[pytest.mark.slow] if form in SLOW_FORMS else []) for form in FORMS],
)
def test_labels_of_all_kinds(tmp_path: Path, small: pd.DataFrame, form: str) -> None:
    shape, positive = FORMS[form]
    predicted = small["s"] >= 0.5
    frame = small.assign(y=shape(small["y"]), p=shape(predicted))
    frame.to_parquet(tmp_path / "data.parquet")
    named = {} if positive is None else {"positive_class": positive}
    found = search(
        tmp_path / "out",
        data=(str(tmp_path / "data.parquet"),),
        label="y",
        prediction="p",
        score="s",
        features=("a", "b"),
        metric=("recall", "precision", "f1", "fpr", "mcc", "label_rate", "brier"),
        **named,
    )
    flipped = positive in ("false", "no")

    def of(some: pd.DataFrame) -> dict[str, float]:
        y = (small.loc[some.index, "y"].to_numpy() != flipped).astype(int)
        p = (predicted[some.index].to_numpy() != flipped).astype(int)
        return binary(y, p, some["s"].to_numpy())

    assert check_values(found, frame, of) == 11


def test_a_threshold_makes_the_predictions(tmp_path: Path, small: pd.DataFrame) -> None:
    frame = small.assign(old=1 - small["s"])
    frame.to_parquet(tmp_path / "data.parquet")
    found = search(
        tmp_path / "out",
        data=(str(tmp_path / "data.parquet"),),
        label="y",
        score="s",
        baseline_score="old",
        threshold=0.3,
        features=("a", "b"),
        metric=("recall", "precision", "accuracy", "brier"),
    )

    def side(column: str) -> Callable[[pd.DataFrame], dict[str, float]]:
        def of(some: pd.DataFrame) -> dict[str, float]:
            s = some[column].to_numpy()
            return binary(some["y"].to_numpy().astype(int), (s >= 0.3).astype(int), s)

        return of

    assert check_values(found, frame, side("s"), side("old")) == 11


def test_macro_averages_of_a_threshold(tmp_path: Path, small: pd.DataFrame) -> None:
    small.to_parquet(tmp_path / "data.parquet")
    found = search(
        tmp_path / "out",
        data=(str(tmp_path / "data.parquet"),),
        label="y",
        score="s",
        features=("a", "b"),
        metric=("f1_macro",),
    )

    def of(some: pd.DataFrame) -> dict[str, float]:
        return {"f1_macro": sk.f1_score(some["y"], some["s"] >= 0.5, average="macro")}

    assert check_values(found, small, of) == 11


CLASSES = np.array(["ant", "bee", "cat", "dog"])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """Four classes, one of them rare, so that some slices miss it in label or prediction."""
    rng = np.random.default_rng(8)
    rows = 3000
    codes = rng.choice(4, rows, p=[0.45, 0.3, 0.23, 0.02])
    centre = np.array([[0, 0], [2, 0], [0, 2], [2, 2]])[codes]
    x = centre + rng.normal(0, 1, (rows, 2))
    model = LogisticRegression(max_iter=300).fit(x[:1000], codes[:1000])
    frame = pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "site": rng.choice(list("PQRS"), rows)})
    frame["label"] = CLASSES[codes]
    frame["new"] = CLASSES[model.predict(x)]
    frame["old"] = CLASSES[np.where(rng.random(rows) < 0.2, 0, model.predict(x))]
    path = tmp_path_factory.mktemp("four") / "data.parquet"
    frame.to_parquet(path)
    return path, frame


def averages(p: str) -> Callable[[pd.DataFrame], dict[str, float]]:
    def of(some: pd.DataFrame) -> dict[str, float]:
        y, predicted = some["label"], some[p]
        found = {"accuracy": sk.accuracy_score(y, predicted)}
        scores = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, score in scores.items():
                for average in ("macro", "micro"):
                    key = f"{name}_{average}"
                    found[key] = score(y, predicted, average=average, zero_division=0)
                found[name] = score(y == "cat", predicted == "cat", zero_division=np.nan)
        return found

    return of


@pytest.mark.slow
@pytest.mark.parametrize("compared", ["overall", "baseline"])
def test_many_classes(tmp_path: Path, four: tuple[Path, pd.DataFrame], compared: str) -> None:
    path, frame = four
    old = {"baseline_prediction": "old"} if compared == "baseline" else {}
    plain = ("accuracy", "precision_macro", "recall_macro", "f1_macro", "f1_micro")
    options = {
        "data": (str(path),),
        "label": "label",
        "prediction": "new",
        "features": ("x0", "site"),
        "bins": 3,
        "max_cross_size": 1,
        **old,
    }
    oracle = (averages("new"), averages("old")) if old else (averages("new"),)
    found = search(tmp_path / "averages", metric=plain, **options)
    assert check_values(found, frame, *oracle) == 7
    assert found.document["dataset"]["classes"] == CLASSES.tolist()
    of_class = search(
        tmp_path / "class",
        metric=("recall", "precision", "f1"),
        positive_class="cat",
        **options,
    )
    assert check_values(of_class, frame, *oracle) == 7


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    rng = np.random.default_rng(3)
    rows = 2500
    frame = pd.DataFrame({"area": rng.gamma(3, 30, rows), "town": rng.choice(list("ABC"), rows)})
    frame["price"] = frame["area"] * 2.5 + rng.gamma(2, 20, rows)
    shift = np.where(frame["town"] == "C", 30, 0)
    frame["guess"] = (frame["price"] + rng.normal(shift, 25, rows)).astype("float32")
    frame["older"] = np.rint(frame["price"] + rng.normal(0, 40, rows)).astype(int)
    frame["rent"] = rng.integers(-5, 50, rows)
    path = tmp_path_factory.mktemp("prices") / "data.parquet"
    frame.to_parquet(path)
    return path, frame


def errors(p: str) -> Callable[[pd.DataFrame], dict[str, float]]:
    def of(some: pd.DataFrame) -> dict[str, float]:
        y, guess = some["price"], some[p].astype(float)
        return {
            "mse": sk.mean_squared_error(y, guess),
            "mae": sk.mean_absolute_error(y, guess),
            "bias": (guess - y).mean(),
            "mean:rent": some["rent"].mean(),
            "mean:price": y.mean(),
        }

    return of


def test_regression(tmp_path: Path, prices: tuple[Path, pd.DataFrame]) -> None:
    path, frame = prices
    options: dict[str, Any] = {
        "data": (str(path),),
        "label": "price",
        "prediction": "guess",
        "features": ("area", "town"),
        "max_cross_size": 2,
        "alternative": "both",
    }
    names = ("mse", "mae", "bias")
    found = search(tmp_path / "a", metric=(*names, "mean:rent", "mean:price"), **options)
    assert check_values(found, frame, errors("guess"), tolerance=1e-9) > 30
    squares = ((frame["guess"].astype(float) - frame["price"]) ** 2).to_numpy()
    for row, held in rows_of(found, frame):
        if row.metric == "mse":
            tails = saddle_point(squares, int(held.sum()), float(squares[held].sum()))
            assert row.p_value == pytest.approx(min(1, 2 * min(tails)), rel=0.01)
    assert {"town = C"} <= set(found.table[found.table["significant"]]["slice"])
    two = search(tmp_path / "b", metric=names, baseline_prediction="older", **options)
    assert check_values(two, frame, errors("guess"), errors("older"), tolerance=1e-9) > 30


def test_a_mean_needs_no_predictions(tmp_path: Path, prices: tuple[Path, pd.DataFrame]) -> None:
    path, frame = prices
    # The least that can be said: what each slice's rent is.
    found = search(
        tmp_path,
        data=(str(path),),
        label="price",
        prediction="guess",
        features=("town",),
        metric=("mean:rent",),
    )
    assert check_values(found, frame, errors("guess")) == 3


@pytest.mark.slow
def test_a_classifier_as_a_file(tmp_path: Path, small: pd.DataFrame) -> None:
    frame = small.assign(x=(np.arange(len(small)) * 37 % 101) / 101)
    frame["label"] = np.where(frame["y"], "yes", "no")
    model = LogisticRegression().fit(frame[["s", "x"]], frame["label"])
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(model))
    frame.drop(columns="y").to_parquet(tmp_path / "data.parquet")
    found = search(
        tmp_path / "out",
        data=(str(tmp_path / "data.parquet"),),
        label="label",
        model=str(tmp_path / "m.pkl"),
        positive_class="yes",
        features=("a", "b"),
        metric=("auc", "log_loss", "brier", "accuracy", "recall"),
    )
    place = list(model.classes_).index("yes")

    def of(some: pd.DataFrame) -> dict[str, float]:
        p = model.predict(some[["s", "x"]]) == "yes"
        s = model.predict_proba(some[["s", "x"]])[:, place]
        return binary(some["y"].to_numpy().astype(int), p.astype(int), s)

    auc = found.table["metric"] == "auc"
    for row, held in rows_of(Found(found.document, found.table[auc], found.folder), frame):
        assert row.value == pytest.approx(of(frame[held])["auc"], abs=3 * stated_error(found))
    rest = Found(found.document, found.table[~auc], found.folder)
    assert check_values(rest, frame, of, tolerance=1e-11) == 11
    by_column = search(
        tmp_path / "column",
        data=(str(tmp_path / "data.parquet"),),
        label="label",
        model=str(tmp_path / "m.pkl"),
        score="s",
        positive_class="yes",
        features=("a", "b"),
        metric=("brier",),
    )
    for row, held in rows_of(by_column, frame):
        some = frame[held]
        assert row.value == pytest.approx(((some["s"] - some["y"]) ** 2).mean(), abs=1e-12)


def test_a_regressor_as_a_file(tmp_path: Path, prices: tuple[Path, pd.DataFrame]) -> None:
    path, frame = prices
    model = LinearRegression().fit(frame[["area", "rent"]], frame["price"])
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(model))
    found = search(
        tmp_path / "out",
        data=(str(path),),
        label="price",
        model=str(tmp_path / "m.pkl"),
        features=("area", "town"),
        metric=("mse", "mae", "bias"),
    )
    guessed = frame.assign(m=model.predict(frame[["area", "rent"]]))
    assert check_values(found, guessed, errors("m"), tolerance=1e-8) > 10


@pytest.mark.parametrize(("compared", "most"), [(False, 64), (True, 16)])
def test_macro_averages_of_too_many_classes(tmp_path: Path, *, compared: bool, most: int) -> None:
    label = np.arange(400) % (most + 1)
    columns = {"label": label, "new": label, "old": label, "f": label % 2}
    pq.write_table(pa.table(columns), tmp_path / "many.parquet")
    options: dict[str, Any] = {
        "data": (str(tmp_path / "many.parquet"),),
        "label": "label",
        "prediction": "new",
        "features": ("f",),
        "metric": ("f1_macro",),
    }
    if compared:
        options["baseline_prediction"] = "old"
    with pytest.raises(InputError, match=f"have {most + 1} classes.*for at most {most} classes"):
        search(tmp_path / "out", **options)
