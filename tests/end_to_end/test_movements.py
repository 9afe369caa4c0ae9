"""How single examples changed between two models: inconsistency, improved and degraded, against pandas."""

import numpy as np
import pandas as pd
import pytest

from tests.conftest import ADULT
from tests.page_commands import ROOT
from tests.running import rows_of, search

SENTENCES = ROOT / "examples" / "sentences" / "sentences.parquet"
INCOME = {
    "data": (str(ADULT),),
    "label": "income",
    "prediction": "prediction",
    "baseline_prediction": "prediction_old",
    "score": "score",
    "baseline_score": "score_old",
    "metric": ("accuracy", "recall", "log_loss", "precision"),
    "features": ("sex", "race"),
}
LEXICONS = {
    "data": (str(SENTENCES),),
    "label": "label",
    "prediction": "prediction_new",
    "baseline_prediction": "prediction_old",
    "metric": ("error_rate",),
    "features": ("source",),
}


def changes(frame, name, roles):
    """Each example's change of a metric, better where above 0; NaN outside the denominator."""
    label, positive = frame[roles["label"]], 1
    models = ((roles["prediction"], "score"), (roles["baseline_prediction"], "score_old"))
    if name == "log_loss":
        is_positive = label == positive
        losses = [
            -np.log(np.where(is_positive, frame[score], 1.0 - frame[score])) for _, score in models
        ]
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


@pytest.mark.parametrize(
    ("roles", "weight"),
    [(INCOME, None), (INCOME, "fnlwgt"), (LEXICONS, None)],
    ids=["income", "weighted", "lexicons"],
)
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
