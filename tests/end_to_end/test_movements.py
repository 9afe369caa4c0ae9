"""How examples changed between two models, and weights, against pandas."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from tests.conftest import ADULT, slow
from tests.page_commands import ROOT
from tests.random_subsets import subset_tails
from tests.running import rows_of, search

SENTENCES = ROOT / "examples" / "sentences" / "sentences.parquet"
INCOME = {"data": (str(ADULT),), "label": "income", "features": ("sex", "race")}
INCOME |= {"prediction": "prediction", "baseline_prediction": "prediction_old"}
INCOME |= {"score": "score", "baseline_score": "score_old"}
INCOME |= {"metric": ("accuracy", "recall", "log_loss", "precision")}
LEXICONS = {"data": (str(SENTENCES),), "label": "label", "features": ("source",)}
LEXICONS |= {"prediction": "prediction_new", "baseline_prediction": "prediction_old"}
LEXICONS |= {"metric": ("error_rate",)}


def changes(frame, name, roles):
    """Each example's change of a metric, better where above 0; NaN outside the denominator."""
    label, positive = frame[roles["label"]], 1
    models = ((roles["prediction"], "score"), (roles["baseline_prediction"], "score_old"))
    if name == "log_loss":
        is_positive = label == positive
        scores = [frame[score] for _, score in models]
        losses = [-np.log(np.where(is_positive, score, 1.0 - score)) for score in scores]
        return pd.Series(losses[1] - losses[0])
    right = [(frame[prediction] == label).astype(float) for prediction, _ in models]
    change = right[0] - right[1]
    return change.where(label == positive) if name == "recall" else change


def expected(change, weights):
    some = change.notna() & (weights > 0)
    if not some.any():
        return np.nan, 0, 0, 0
    mean = np.average(change[some], weights=weights[some])
    sigma = np.sqrt(np.average((change[some] - mean) ** 2, weights=weights[some]))
    return sigma, int((change > 0).sum()), int((change < 0).sum()), int(change.notna().sum())


@pytest.mark.parametrize(("roles", "weight"), [
    (INCOME, None), (INCOME, "fnlwgt"), (LEXICONS, None),
], ids=["income", "weighted", "lexicons"])  # fmt: skip
def test_movements_are_those_of_pandas(roles, weight, tmp_path):
    frame = pd.read_parquet(roles["data"][0])
    frame = frame.astype({name: float for name in frame if name.startswith("score")})
    found = search(tmp_path / "out", weight=weight, max_cross_size=2, **roles)
    weights = frame[weight] if weight else pd.Series(1.0, frame.index)
    rows = {row.Index: held for row, held in rows_of(found, frame)}
    listed = {one["slice_id"]: one["changes"] for one in found.document["slices"]}
    whole = {one["metric"]: one for one in found.document["global"]}
    for name in roles["metric"]:
        measured = found.table[found.table["metric"] == name]
        if name == "precision":
            assert measured[["inconsistency", "improved", "degraded"]].isna().all(axis=None)
            assert "inconsistency" not in whole[name]
            continue
        change = changes(frame, name, roles)
        for row in measured.itertuples():
            held = rows[row.Index]
            sigma, improved, degraded, _ = expected(change[held], weights[held])
            assert row.inconsistency == pytest.approx(sigma, rel=1e-9, nan_ok=True)
            if name != "log_loss":
                assert (row.improved, row.degraded) == (improved, degraded)
            for one in (one for one in listed.get(row.slice_id, ()) if one["metric"] == name):
                assert one["inconsistency"] == pytest.approx(sigma, rel=1e-9)
        sigma, improved, degraded, counted = expected(change, weights)
        assert whole[name]["inconsistency"] == pytest.approx(sigma, rel=1e-9)
        if name == "log_loss":
            assert not {"improved", "degraded"} & whole[name].keys()
            assert pd.isna(measured["improved"]).all()
            continue
        for key, number in (("improved", improved), ("degraded", degraded)):
            assert whole[name][key]["n"] == number
            share = whole[name][key]["share"]
            assert share["value"] == pytest.approx(number / counted)
            assert share["lo"] < share["value"] < share["hi"]


def test_a_single_model_has_no_movement(tmp_path):
    roles = {key: value for key, value in LEXICONS.items() if not key.startswith("baseline")}
    found = search(tmp_path, **roles)
    assert found.table[["inconsistency", "improved", "degraded"]].isna().all(axis=None)
    assert not {"inconsistency", "improved", "degraded"} & found.document["global"][0].keys()
    assert "improved" not in found.document["summary"]


def test_grouped_shares_have_no_interval(tmp_path):
    """Its formula takes the examples for independent."""
    found = search(tmp_path, group="id", **LEXICONS)
    assert "lo" not in found.document["global"][0]["improved"]["share"]


def test_disagreement_of_scores_and_classes(tmp_path):
    """A score tells the positive class from the others, at the threshold."""
    frame = pd.read_parquet(ADULT)
    roles = {"label": "income", "prediction": "prediction", "baseline_score": "score_old"}
    options = {"metric": ("disagreement", "accuracy"), "compare": "overall", "features": ("sex",)}
    found = search(tmp_path / "out", data=(str(ADULT),), threshold=0.3, **roles, **options)
    whole = {one["metric"]: one["after"]["value"] for one in found.document["global"]}
    differs = frame["prediction"] != (frame["score_old"] >= 0.3)
    assert whole["disagreement"] == pytest.approx(differs.mean())
    assert whole["accuracy"] == pytest.approx((frame["prediction"] == frame["income"]).mean())


OPTIONS = {"label": "income", "prediction": "prediction", "score": "score", "alternative": "both"}
OPTIONS |= {"features": ("sex", "relationship"), "max_cross_size": 2, "min_slice_size": 20}
OPTIONS |= {"replicates": 20}


@pytest.fixture(scope="module")
def frame(adult):
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


def searched(folder, frame, **options):
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / "data.parquet")
    return search(folder / "out", data=(str(folder / "data.parquet"),), **(OPTIONS | options))


@pytest.mark.parametrize("weight", ["w", "one"])
def test_p_values_are_of_random_subsets(tmp_path, frame, weight):
    """Of contributions w·(x − mean), or of counts where weights are equal."""
    found = searched(tmp_path, frame, weight=weight, metric=("accuracy",), replicates=None)
    assert found.document["dataset"]["weight_field"] == weight
    x = (frame["income"] == frame["prediction"]).to_numpy(float)
    w = frame[weight].to_numpy(float)
    for row, held in rows_of(found, frame):
        assert row.n == held.sum()
        assert row.value == pytest.approx((w * x)[held].sum() / w[held].sum(), abs=1e-10)
        assert row.complement == pytest.approx((w * x)[~held].sum() / w[~held].sum(), abs=1e-10)
        assert row.delta == pytest.approx(row.value - (w * x).sum() / w.sum(), abs=1e-10)
        if weight == "one":
            k, law = x[held].sum(), stats.hypergeom(x.size, int(x.sum()), int(held.sum()))
            tails = law.sf(k) + law.pmf(k) / 2, law.cdf(k) - law.pmf(k) / 2
        else:
            influence = w * (x - (w * x).sum() / w.sum()) / w.sum()
            tails = subset_tails(influence, w, [x == 0, x == 1], held)
        method = (
            "hypergeometric mid-p" if weight == "one" else "law of random subsets, weighted counts"
        )
        assert row.test == method
        assert row.p_value == pytest.approx(min(1, 2 * min(tails)), rel=1e-6), row.slice


def test_weights_of_1_within_a_small_denominator(tmp_path):
    """Of 600 examples of a slice 20 are predicted positive: precision is known as of 20."""
    predicted = np.repeat([1, 0, 1, 0], [20, 580, 900, 2100])
    right = np.repeat([1, 0, 1, 1, 0, 1], [19, 1, 580, 690, 210, 2100])
    label = np.where(right == 1, predicted, 1 - predicted)
    columns = {"s": np.repeat(["few", "most"], [600, 3000]), "pred": predicted, "label": label}
    pd.DataFrame({**columns, "one": 1.0}).to_parquet(tmp_path / "data.parquet")
    options = {"label": "label", "prediction": "pred", "metric": ("precision",)}
    options |= {"data": (str(tmp_path / "data.parquet"),), "alternative": "both"}
    one = search(tmp_path / "one", weight="one", features=("s",), **options).table
    few = one[one["slice"] == "s = few"].iloc[0]
    law = stats.hypergeom(920, 709, 20)
    assert few["value"] == 0.95
    assert few["p_value"] == pytest.approx(2 * (law.sf(19) + law.pmf(19) / 2), rel=1e-9)


@pytest.mark.parametrize("factor", [slow(0.1), 1 / 3, slow(1e200)])
def test_the_unit_of_weights_draws_no_other_replicates(tmp_path, frame, factor):
    """Without an id examples are resampled by their content, of which the weight is a part."""
    options = {"metric": ("auc",), "weight": "w", "features": ("relationship", "race")}
    plain = searched(tmp_path / "plain", frame, **options).table
    other = searched(tmp_path / "other", frame.assign(w=frame["w"] * factor), **options).table
    resampled = plain["test"] == "bootstrap of examples, t"
    assert resampled.sum() >= 5
    for column in ("p_value", "ci_low", "ci_high"):
        assert_allclose(other[column], plain[column], rtol=1e-6)


METRICS = (
    *("accuracy", "error_rate", "precision", "recall", "f1", "fbeta:2", "fpr", "specificity"),
    *("balanced_accuracy", "mcc", "prediction_rate", "log_loss", "brier", "mse", "mae", "bias"),
    *("auc", "f1_macro", "recall_micro"),
)


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [-1000, 1000])
def test_weights_of_any_size(tmp_path, frame, exponent):
    """Weights that are all multiplied by a power of two change nothing, to the last bit."""
    options = {"metric": METRICS, "weight": "w", "features": ("sex",)}
    plain = searched(tmp_path / "plain", frame, **options)
    other = frame.assign(w=np.ldexp(frame["w"], exponent))
    scaled = searched(tmp_path / "scaled", other, **options)
    pd.testing.assert_frame_equal(plain.table, scaled.table, check_exact=True)


OF_THE_DATA = ("label_rate", "mean:age")


OLD = {"baseline_prediction": "prediction_old", "baseline_score": "score_old"}


@pytest.mark.parametrize("compared", ["overall", pytest.param("baseline", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_whole_weights_are_repeated_rows(tmp_path, frame, compared):
    old = OLD if compared == "baseline" else {}
    names = METRICS if old else (*(set(METRICS) - {"f1_macro"}), *OF_THE_DATA)
    options = {"metric": names, "min_slice_size": 1, **old}
    repeated = frame.loc[frame.index.repeat(frame["whole"])]
    by_weight = searched(tmp_path / "weight", frame, weight="whole", **options)
    how = options if old else {**options, "replicates": None}
    by_rows = searched(tmp_path / "rows", repeated, **how)
    both = by_weight.table.merge(by_rows.table, on=["slice_id", "metric"], suffixes=("", "_rows"))
    assert len(both) == len(by_rows.table)
    for column in ("value", "reference", "delta", "complement"):
        assert_allclose(both[column], both[f"{column}_rows"], atol=1e-10)
