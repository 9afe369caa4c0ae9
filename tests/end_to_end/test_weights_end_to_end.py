"""Sampling weights: Hájek values, repeated rows, variances, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from tests.random_subsets import subset_tails
from tests.running import rows_of, search

METRICS = (
    *("accuracy", "error_rate", "precision", "recall", "f1", "fbeta:2", "fpr", "specificity"),
    *("balanced_accuracy", "mcc", "prediction_rate", "log_loss", "brier", "mse", "mae", "bias"),
    *("auc", "f1_macro", "recall_micro"),
)
OF_THE_DATA = ("label_rate", "mean:age")
OPTIONS = {"label": "income", "prediction": "prediction", "score": "score", "alternative": "both"}
OPTIONS |= {"features": ("sex", "relationship"), "max_cross_size": 2, "min_slice_size": 20}
OPTIONS |= {"replicates": 20}
OLD = {"baseline_prediction": "prediction_old", "baseline_score": "score_old"}


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


@pytest.mark.parametrize("compared", ["overall", pytest.param("baseline", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_whole_weights_are_repeated_rows(tmp_path, frame, compared):
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
        assert_allclose(both[column], both[f"{column}_rows"], atol=1e-10)


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


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [-1000, 1000])
def test_weights_of_any_size(tmp_path, frame, exponent):
    """Weights that are all multiplied by a power of two change nothing, to the last bit."""
    options = {"metric": METRICS, "weight": "w", "features": ("sex",)}
    plain = searched(tmp_path / "plain", frame, **options)
    other = frame.assign(w=np.ldexp(frame["w"], exponent))
    scaled = searched(tmp_path / "scaled", other, **options)
    pd.testing.assert_frame_equal(plain.table, scaled.table, check_exact=True)


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 1e200])
def test_the_unit_of_weights_draws_no_other_replicates(tmp_path, frame, factor):
    """Without an id examples are resampled by their content, of which the weight is a part."""
    options = {"metric": ("auc",), "weight": "w", "features": ("relationship", "race")}
    plain = searched(tmp_path / "plain", frame, **options).table
    other = searched(tmp_path / "other", frame.assign(w=frame["w"] * factor), **options).table
    resampled = plain["test"] == "bootstrap of examples, t"
    assert resampled.sum() >= 5
    for column in ("p_value", "ci_low", "ci_high"):
        assert_allclose(other[column], plain[column], rtol=1e-6)
