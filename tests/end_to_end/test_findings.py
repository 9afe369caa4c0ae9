"""Findings of whole runs, against models that scikit-learn and numpy fit to the rows themselves."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression

from tests.conftest import slow
from tests.oracles import predicates
from tests.running import search

EPS = np.finfo(float).eps
FEATURES = ("age", "education", "marital-status", "occupation", "relationship", "capital-gain")
OPTIONS = {"label": "income", "prediction": "prediction", "max_cross_size": 2}


class Rows:
    """What a metric averages, row by row: targets of those in the denominator, and their weights."""

    def __init__(self, frame, metric, *, paired, weight):
        y = frame["income"].to_numpy()
        new, old = (frame[name].to_numpy() for name in ("prediction", "prediction_old"))

        def loss(score):
            p = np.clip(frame[score].to_numpy(), EPS, 1 - EPS)
            return -np.where(y == 1, np.log(p), np.log1p(-p))

        self.is_rate, self.against = not paired and metric != "log_loss", not paired
        self.kept = np.ones(len(frame), bool)
        if metric == "log_loss":
            self.against = False
            self.target = loss("score") - (loss("score_old") if paired else 0.0)
        elif metric == "accuracy":
            self.target = (new == y) * 1.0 - (old == y) if paired else (new != y) * 1.0
        elif metric == "recall":
            self.kept = y == 1
            self.target = (new == 1) * 1.0 - (old == 1) if paired else (new != 1) * 1.0
        else:
            self.kept = (y == 1) | (new == 1)  # F1
            self.target = 1.0 - ((y == 1) & (new == 1))
        self.weight = np.ones(len(frame)) if weight is None else frame[weight].to_numpy() * 1.0
        self.metric = metric

    def value(self, mean):
        share = 1.0 - mean if self.against and self.metric != "log_loss" else mean
        return 2.0 * share / (1.0 + share) if self.metric == "f1" else share

    def mean(self, rows):
        rows = rows & self.kept
        return float((self.weight * self.target)[rows].sum() / self.weight[rows].sum())

    def expected(self, members, rows):
        """The mean over some rows of what a model of membership, fitted to all rows, expects."""
        X = np.stack([self.kept * 1.0, *members], axis=1)[self.kept]
        w, t = self.weight[self.kept], self.target[self.kept]
        if not members:
            fitted = np.full(t.size, np.average(t, weights=w))
        elif self.is_rate:
            model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-13, max_iter=500)
            # Rows that are alike are fitted as one.
            code = np.column_stack([t, X[:, 1:]]) @ 2.0 ** np.arange(X.shape[1])
            _, one, of = np.unique(code, return_index=True, return_inverse=True)
            model.fit(X[one, 1:], t[one], np.bincount(of, w))
            fitted = model.predict_proba(X[:, 1:])[:, 1]
        else:
            root = np.sqrt(w)
            fitted = X @ np.linalg.lstsq(X * root[:, None], t * root, rcond=None)[0]
        own = rows[self.kept]
        return float((w * fitted)[own].sum() / w[own].sum())


def _members(found, frame, finding):
    (one,) = [each for each in found.document["slices"] if each["slice_id"] == finding["slice_id"]]
    return predicates.mask(frame, one["definition"]["predicate"])


def _is_explained(section, rows, members):
    """Compare with a regression of the targets on membership, and the rank of membership."""
    X = np.stack([inside[rows.kept] * 1.0 for inside in members], axis=1)
    X -= X.mean(axis=0)
    target = rows.target[rows.kept] - rows.target[rows.kept].mean()
    gram = X.T @ X
    left = target - X @ (np.linalg.pinv(gram, rcond=1e-10, hermitian=True) @ (X.T @ target))
    assert section["r2"] == pytest.approx(1 - (left @ left) / (target @ target), rel=1e-8)
    rank = np.linalg.matrix_rank(gram, 1e-10 * gram.max(), hermitian=True)
    assert section["r2_expected"] == pytest.approx(rank / (target.size - 1), rel=1e-12)


CASES = {
    "accuracy": ("accuracy", {}),
    "recall": ("recall", {}),
    "F1": ("f1", {}),
    "log loss": ("log_loss", {"score": "score"}),
    "weighted accuracy": ("accuracy", {"weight": "fnlwgt"}),
    "weighted log loss": ("log_loss", {"score": "score", "weight": "fnlwgt"}),
    "accuracy of two models": ("accuracy", {"baseline_prediction": "prediction_old"}),
    "recall of two models": ("recall", {"baseline_prediction": "prediction_old"}),
    "log loss of two models": ("log_loss", {"score": "score", "baseline_prediction": "prediction_old", "baseline_score": "score_old"}),
    "weighted accuracy of two models": ("accuracy", {"baseline_prediction": "prediction_old", "weight": "fnlwgt"}),
    "weighted log loss of two models": (
        "log_loss",
        {
            "score": "score",
            "baseline_prediction": "prediction_old",
            "baseline_score": "score_old",
            "weight": "fnlwgt",
        },
    ),
    "accuracy by groups": ("accuracy", {"group": "household"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def table(adult_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "adult.parquet"
    rows = pq.read_table(adult_path).slice(0, 8000).to_pandas()
    rows["household"] = np.random.default_rng(0).integers(0, 5000, len(rows))
    rows.to_parquet(path)
    return path


QUICK = ("accuracy", "recall", "weighted accuracy of two models", "log loss")


@pytest.mark.parametrize("case", [case if case in QUICK else slow(case) for case in CASES])
def test_findings_equal_a_model_of_the_rows(case, table, tmp_path):
    metric, options = CASES[case]
    paired = "baseline_prediction" in options
    frame = pd.read_parquet(table)
    options = {"metric": (metric,), "alternative": "both", "features": FEATURES, **options}
    found = search(tmp_path / "out", data=table, **OPTIONS, **options)
    rows = Rows(frame, metric, paired=paired, weight=options.get("weight"))
    total = (rows.weight * rows.target)[rows.kept].sum()
    sides = found.document["finding_models"]
    assert [one["direction"] for one in sides] == ["worse", "better"]
    assert all(one["stop"] != "not possible" for one in sides)
    findings = found.document["findings"]
    assert len(findings) >= 3
    ranks = found.table.dropna(subset="finding").set_index("slice_id")["finding"].to_dict()
    for side in sides:
        members = []
        own = [one for one in findings if one["direction"] == side["direction"]]
        assert [one["rank"] for one in own] == [*range(1, len(own) + 1)]
        assert len(side.get("coefficients", ())) == 1 + len(own)
        for one in own:
            inside = _members(found, frame, one)
            assert one["n"] == (inside & rows.kept).sum()
            assert one["value"] == pytest.approx(rows.value(rows.mean(inside)), rel=1e-9, abs=1e-10)
            # scikit-learn stops at gradients of 1e-13 of the mean loss.
            expected = rows.value(rows.expected(members, inside))
            assert one["expected"] == pytest.approx(expected, rel=2e-8, abs=1e-9)
            assert one["difference"] == pytest.approx(one["value"] - one["expected"], abs=1e-15)
            is_harm = (one["difference"] > 0) == (metric == "log_loss")
            assert is_harm == (side["direction"] == "worse")
            low, high = one["interval"]
            assert low <= one["difference"] <= high
            assert low < high
            members.append(inside)
            held = np.any(members, axis=0)
            outside = rows.value(rows.mean(~held))
            assert one["rate_outside"] == pytest.approx(outside, rel=1e-9, abs=1e-10)
            if paired:
                assert "held_share" not in one
            else:
                share = (rows.weight * rows.target)[held & rows.kept].sum() / total
                assert one["held_share"] == pytest.approx(share, rel=1e-9)
            assert one["p_value"] <= 0.05 / 2 / 6  # no level has fewer tests than features
            assert ranks[one["slice_id"]] == one["rank"]
        _check_intersections(side, rows, members[:10])
        _check_coverage(side, rows, members, weighted="weight" in options)
    _check_coverage_of_the_slices(found.document, frame, rows, weighted="weight" in options)
    assert len(ranks) == len({one["slice_id"] for one in findings})


def _check_coverage(side, rows, members, *, weighted):
    if weighted or not members:
        assert not {"r2", "r2_expected"} & side.keys()
        return
    _is_explained(side, rows, members)


def _check_coverage_of_the_slices(document, frame, rows, *, weighted):
    if weighted:
        assert document["coverage"] == []
        return
    (one,) = document["coverage"]
    slices = document["slices"][:200]
    assert one["slices"] == len(slices)
    _is_explained(one, rows, [predicates.mask(frame, s["definition"]["predicate"]) for s in slices])


def _check_intersections(side, rows, members):
    sets = {}
    for row in np.flatnonzero(rows.kept):
        own = tuple(rank for rank, inside in enumerate(members, 1) if inside[row])
        sets.setdefault(own, np.zeros(len(rows.kept), bool))[row] = True
    whole = rows.weight[rows.kept].sum()
    shares = {own: rows.weight[inside].sum() / whole for own, inside in sets.items()}
    found = side.get("intersections", [])
    if not members:
        assert found == []
        return
    assert [one["share"] for one in found] == pytest.approx(
        sorted(shares.values(), reverse=True)[:20], rel=1e-12
    )
    for one in found:
        own = tuple(one["findings"])
        assert one["share"] == pytest.approx(shares[own], rel=1e-12)
        value = rows.value(rows.mean(sets[own]))
        assert one["value"] == pytest.approx(value, rel=1e-9, abs=1e-10)
