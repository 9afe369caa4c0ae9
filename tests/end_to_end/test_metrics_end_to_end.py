"""Every metric of a search, held against scikit-learn, scipy and pandas on the raw rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from sklearn.preprocessing import MultiLabelBinarizer

from slicebeam.metrics.errors import InputError
from tests.conftest import slow
from tests.pipelines.search.test_check import check
from tests.refusals import refuses
from tests.running import check_within_errors, rows_of, search

# One of each kind: tests/metrics/measures/test_metric.py has the formulas of all.
BINARY = ("accuracy", "precision", "f1", "fpr", "mcc", "log_loss", "recall_micro")
BINARY += ("calibration_in_the_large",)
# The same for every model, so that two models cannot be compared by it.
OF_ONE_MODEL = ("label_rate", "mean:age")
ADULT = {"label": "income", "prediction": "prediction", "score": "score", "alternative": "both"}
ADULT |= {"features": ("race", "relationship"), "max_cross_size": 2, "min_slice_size": 20}


def binary(y, p, s):
    """The metrics of labels, predictions (0 or 1) and scores; NaN where one is not defined."""
    tn, fp, fn, tp = sk.confusion_matrix(y, p, labels=[0, 1]).ravel()
    margins = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return {
        "accuracy": sk.accuracy_score(y, p),
        "precision": sk.precision_score(y, p, zero_division=np.nan),
        "f1": sk.f1_score(y, p, zero_division=np.nan),
        "fpr": fp / (fp + tn) if fp + tn else np.nan,
        "mcc": sk.matthews_corrcoef(y, p) if margins else np.nan,
        "log_loss": sk.log_loss(y, s, labels=[0, 1]),
        "calibration_in_the_large": y.mean() - s.mean(),
        "recall_micro": sk.accuracy_score(y, p),
        "label_rate": y.mean(),
    }


def check_values(found, frame, of, old=None, tolerance=1e-12):
    """Hold n, value, reference, complement, delta and impact of each row against an oracle."""
    seen = {}
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


def of_new(frame):
    columns = (frame[name].to_numpy(float) for name in ("income", "prediction", "score"))
    return binary(*columns) | {"mean:age": frame["age"].mean()}


@pytest.fixture(scope="module")
def overall(tmp_path_factory, adult_path):
    folder = tmp_path_factory.mktemp("overall")
    return search(folder, data=(str(adult_path),), metric=(*BINARY, *OF_ONE_MODEL), **ADULT)


def test_values_overall(overall, adult):
    assert check_values(overall, adult, of_new) > 20
    assert overall.table["value"].isna().any()
    whole = of_new(adult)
    for change in overall.document["global"]:
        assert change["after"]["value"] == pytest.approx(whole[change["metric"]], abs=1e-12)
        assert "before" not in change


def test_every_metric_has_a_row_for_every_slice(overall):
    per_metric = overall.table.groupby("metric", sort=False)["slice_id"].apply(list)
    assert set(per_metric.index) == {*BINARY, *OF_ONE_MODEL}
    assert all(ids == per_metric.iloc[0] for ids in per_metric)
    assert [one["key"] for one in overall.document["metrics"]] == [*BINARY, *OF_ONE_MODEL]
    assert [one["primary"] for one in overall.document["metrics"]].count(True) == 1
    for one in overall.document["slices"]:
        assert [change["metric"] for change in one["changes"]] == [*BINARY, *OF_ONE_MODEL]


@pytest.fixture(scope="module")
def small():
    rng, rows = np.random.default_rng(5), 1500
    frame = pd.DataFrame({"a": rng.choice(list("xyz"), rows), "b": rng.choice(list("uv"), rows)})
    y = rng.random(rows) < np.where(frame["a"] == "x", 0.6, 0.3)
    frame["s"] = np.clip(0.5 * y + rng.normal(0.25, 0.25, rows), 0, 1).round(3)
    frame["y"] = y
    return frame


def of_small(folder):
    data = (str(folder / "data.parquet"),)
    return {"data": data, "label": "y", "score": "s", "features": ("a", "b")}


FORMS = {
    "boolean, false": (lambda y: y.astype(bool), "false"),
    "small integer": (lambda y: y.astype("uint8"), None),
    "other integers": (lambda y: np.where(y, 7, -3), "7"),
    "float": (lambda y: y.astype(float), None),
    "category, other": (lambda y: pd.Categorical(np.where(y, "yes", "no")), "no"),
}


@pytest.mark.parametrize(
    "form",
    ["boolean, false", "other integers", *map(slow, ("small integer", "float", "category, other"))],
)
def test_labels_of_all_kinds(tmp_path, small, form):
    shape, positive = FORMS[form]
    predicted = small["s"] >= 0.5
    frame = small.assign(y=shape(small["y"]), p=shape(predicted))
    frame.to_parquet(tmp_path / "data.parquet")
    names = ("precision", "f1", "fpr", "mcc", "label_rate", "log_loss")
    named = {} if positive is None else {"positive_class": positive}
    found = search(tmp_path / "out", **of_small(tmp_path), prediction="p", metric=names, **named)
    flipped = positive in ("false", "no")

    def of(some):
        y = (small.loc[some.index, "y"].to_numpy() != flipped).astype(int)
        p = (predicted[some.index].to_numpy() != flipped).astype(int)
        return binary(y, p, some["s"].to_numpy())

    assert check_values(found, frame, of) == 11


def test_a_threshold_makes_the_predictions(tmp_path, small):
    frame = small.assign(old=1 - small["s"])
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"metric": ("precision", "accuracy", "log_loss", "f1_macro")}
    options |= {"baseline_score": "old", "threshold": 0.3}
    found = search(tmp_path / "out", **of_small(tmp_path), **options)

    def side(column):
        def of(some):
            y, s = some["y"].to_numpy().astype(int), some[column].to_numpy()
            macro = sk.f1_score(y, s >= 0.3, average="macro", zero_division=0)
            return binary(y, (s >= 0.3).astype(int), s) | {"f1_macro": macro}

        return of

    assert check_values(found, frame, side("s"), side("old")) == 11


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    rng, rows = np.random.default_rng(3), 2500
    frame = pd.DataFrame({"area": rng.gamma(3, 30, rows), "town": rng.choice(list("ABC"), rows)})
    frame["price"] = frame["area"] * 2.5 + rng.gamma(2, 20, rows)
    shift = np.where(frame["town"] == "C", 30, 0)
    frame["guess"] = (frame["price"] + rng.normal(shift, 25, rows)).astype("float32")
    frame["older"] = np.rint(frame["price"] + rng.normal(0, 40, rows)).astype(int)
    frame["rent"] = rng.integers(-5, 50, rows)
    path = tmp_path_factory.mktemp("prices") / "data.parquet"
    frame.to_parquet(path)
    return path, frame


def errors(p):
    def of(some):
        y, guess = some["price"], some[p].astype(float)
        return {
            "mse": sk.mean_squared_error(y, guess), "mae": sk.mean_absolute_error(y, guess),
            "rmse": sk.root_mean_squared_error(y, guess), "bias": (guess - y).mean(),
            "mean:rent": some["rent"].mean(), "mean:price": y.mean(),
        }  # fmt: skip

    return of


def test_regression(tmp_path, prices):
    path, frame = prices
    options = {"data": (str(path),), "label": "price", "prediction": "guess"}
    options |= {"features": ("area", "town"), "max_cross_size": 2, "alternative": "both"}
    names = ("rmse", "mse", "mae", "bias")
    found = search(tmp_path / "a", metric=(*names, "mean:rent", "mean:price"), **options)
    assert check_values(found, frame, errors("guess"), tolerance=1e-9) > 30
    assert {"town = C"} <= set(found.table[found.table["significant"]]["slice"])
    two = search(tmp_path / "b", metric=names, baseline_prediction="older", **options)
    assert check_values(two, frame, errors("guess"), errors("older"), tolerance=1e-9) > 30


def test_average_precision(tmp_path):
    draw, rows = np.random.default_rng(6), 3000
    frame = pd.DataFrame({"y": draw.random(rows) < 0.3, "site": draw.choice(list("PQR"), rows)})
    frame = frame.assign(y=frame["y"].astype(int), kind=draw.choice(list("uvw"), rows))
    frame["s"] = draw.normal(np.where(frame["site"] == "P", 0.2, 1.5) * frame["y"])
    # Far more scores than buckets, and some that many examples have.
    frame.loc[::4, "s"] = frame["s"].round(1)
    assert frame["s"].nunique() > 2000
    frame.assign(w=1.0, old=0.5).to_parquet(tmp_path / "data.parquet")
    options = {"data": (str(tmp_path / "data.parquet"),), "label": "y", "score": "s"}
    options |= {"features": ("site", "kind"), "metric": ("average_precision", "auc")}
    found = search(tmp_path / "a", **options)
    of = {"average_precision": sk.average_precision_score, "auc": sk.roc_auc_score}
    of = {name: lambda some, score=score: score(some["y"], some["s"]) for name, score in of.items()}
    assert check_within_errors(found, frame, of) < len(found.table) - 5
    assert (found.table["complement_error"] < 0.01).all()
    assert {"site = P"} <= set(found.table[found.table["significant"]]["slice"])
    # Given slices are exact, all of them.
    document = str(tmp_path / "a" / "changelist.json")
    checked = check(tmp_path / "b", data=options["data"], changelist=document)
    assert check_within_errors(checked, frame, of) == len(checked.table) > 0
    for option in ({"weight": "w"}, {"baseline_score": "old"}, {"group": "w"}):
        with pytest.raises(InputError, match="--metric average_precision"):
            search(tmp_path / "c", **options, **option)


@pytest.mark.parametrize("weight", [None, "w"])
def test_recall_at_a_false_positive_rate_of_all_examples(tmp_path, weight):
    draw, rows = np.random.default_rng(6), 1200
    frame = pd.DataFrame({"y": draw.integers(0, 2, rows), "site": draw.choice(list("PQR"), rows)})
    helps = np.where(frame["site"] == "P", 0.1, 1.5) * frame["y"]
    # Some scores are equal, and some infinite.
    frame["s"], frame["old"] = (np.round(draw.normal(helps), 1) for _ in range(2))
    frame.loc[:3, "s"] = np.inf
    frame["w"] = draw.gamma(2, 1, rows)
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"data": (str(tmp_path / "data.parquet"),), "label": "y", "features": ("site",)}
    options |= {"metric": ("recall_at_fpr:0.1", "auc"), "score": "s", "weight": weight}

    def of(side):
        # In ranks, since infinite scores are refused.
        ranks = frame[side].rank(method="dense")
        w = frame[weight] if weight else None
        fpr, _, cuts = sk.roc_curve(frame["y"], ranks, sample_weight=w, drop_intermediate=False)
        above = ranks >= cuts[fpr <= 0.1][-1]

        def of_some(some):
            y, held = some["y"] == 1, some[weight] if weight else pd.Series(1, some.index)
            return {
                "recall_at_fpr:0.1": np.average(above[some.index][y], weights=held[y]),
                "auc": sk.roc_auc_score(y, ranks[some.index], sample_weight=held),
            }

        return of_some

    found = search(tmp_path / "a", **options)
    assert check_values(found, frame, of("s")) == 3
    assert {"site = P"} <= set(found.table[found.table["significant"]]["slice"])
    assert [one["metric"] for one in found.document["findings"]] == ["recall_at_fpr:0.1"]
    two = search(tmp_path / "b", baseline_score="old", **options)
    assert check_values(two, frame, of("s"), of("old")) == 3
    frame.assign(y=1).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(InputError, match=r"recall_at_fpr:0\.1: no example has a negative label"):
        search(tmp_path / "c", **options)


def of_lists(side):
    def of(some):
        p, y = np.array(some["scores" + side].tolist()), some["label"]
        both = MultiLabelBinarizer(classes=list("abcd")).fit([])
        sets = [both.transform(some[name]) for name in ("truth", "tags" + side)]
        return {
            "log_loss_multiclass": sk.log_loss(y, p, labels=["ant", "bee", "cat"]),
            "brier_multiclass": sk.brier_score_loss(y, p, labels=["ant", "bee", "cat"]),
            "top_k_accuracy:2": sk.top_k_accuracy_score(y, p, k=2, labels=["ant", "bee", "cat"]),
            "ndcg:2": sk.ndcg_score(some["gains"].tolist(), p, k=2, ignore_ties=True),
            "jaccard": sk.jaccard_score(*sets, average="samples", zero_division=1),
            "hamming": 4 * sk.hamming_loss(*sets),
        }

    return of


def test_lists_of_scores_and_of_labels(tmp_path):
    draw, rows, frame = np.random.default_rng(2), 1500, pd.DataFrame()
    frame["site"] = draw.choice(list("PQR"), rows)
    frame["label"] = draw.choice(["ant", "bee", "cat"], rows)
    for side in ("", "_old"):
        right = np.equal.outer(frame["label"].to_numpy(), np.array(["ant", "bee", "cat"]))
        scores = draw.gamma(1 + np.where(frame["site"] == "P", 0, 2)[:, None] * right)
        frame["scores" + side] = (scores / scores.sum(axis=1, keepdims=True)).tolist()
        frame["tags" + side] = [list(set(draw.choice(list("abcd"), 2))) for _ in range(rows)]
    frame["gains"] = draw.integers(0, 3, (rows, 3)).tolist()
    frame["truth"] = [list(set(draw.choice(list("abcd"), 3))) for _ in range(rows)]
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"data": (str(tmp_path / "data.parquet"),), "features": ("site",)}
    classes = {"label": "label", "score": "scores", "score_classes": ("ant", "bee", "cat")}
    classes["metric"] = ("log_loss_multiclass", "brier_multiclass", "top_k_accuracy:2")
    found = search(tmp_path / "a", **classes, **options)
    assert check_values(found, frame, of_lists("")) == 3
    # Each averages a value of its examples: each has findings.
    assert {one["metric"] for one in found.document["findings"]} == set(classes["metric"])
    two = search(tmp_path / "b", baseline_score="scores_old", **classes, **options)
    assert check_values(two, frame, of_lists(""), of_lists("_old")) == 3
    # As a column for each class the scores are the same, and the columns name the classes.
    names = {side: [f"p{side}_{name}" for name in ("ant", "bee", "cat")] for side in ("", "_old")}
    for side, columns in names.items():
        frame[columns] = frame["scores" + side].tolist()
    frame.to_parquet(tmp_path / "data.parquet")
    classes |= {"score": ",".join(names[""]), "score_classes": ()}
    three = search(tmp_path / "e", baseline_score=",".join(names["_old"]), **classes, **options)
    assert three.slices_bytes == two.slices_bytes
    queries = {"label": "gains", "score": "scores", "baseline_score": "scores_old"}
    two = search(tmp_path / "d", metric=("ndcg:2",), **queries, **options)
    assert check_values(two, frame, of_lists(""), of_lists("_old")) == 3
    sets = {"label": "truth", "prediction": "tags", "metric": ("jaccard", "hamming")}
    two = search(tmp_path / "c", baseline_prediction="tags_old", **sets, **options)
    assert check_values(two, frame, of_lists(""), of_lists("_old")) == 3


def test_scores_of_classes_that_are_refused(tmp_path):
    frame = pd.DataFrame({"f": range(6), "y": list("ababab")})
    frame[["p_a", "p_b", "q_a"]] = [0.25, 0.75, 0.25]
    frame["lists"] = [[0.25, 0.75]] * 4 + [[1.0, 0.0, 0.0]] * 2
    for name, value in (("p_none", np.nan), ("p_much", 0.5)):
        frame[name] = frame["p_b"].mask(frame["f"] == 4, value)
    options = {"data": (str(tmp_path / "data.parquet"),), "label": "y", "score": "p_a,p_b"}
    options |= {"metric": ("brier_multiclass",), "chunk_rows": 2}
    for number, (own, message) in enumerate((
        ({"score": "p_a,p_much", "score_classes": ("a", "b")}, "score column 'p_a,p_much' holds 0.75 in row 5 of .*add up to 1; divide by the sum"),
        ({"score": "p_a,p_none", "score_classes": ("a", "b")}, "column 'p_a,p_none' has a list with a missing number in row 5 of"),
        ({"score": "p_a,p_c"}, "--score: unknown column 'p_c'; did you mean"),
        ({"score": "p_a,y"}, "--score: column 'y' is string, but a score is a number"),
        ({"score": "q_a,p_b"}, "label 'y' holds 'a' in row 1 .*its classes are q_a, p_b; name them by --score-classes"),
        ({"baseline_score": "p_b,p_a"}, "--score has the classes a, b, and --baseline-score b, a; name the same ones"),
        ({"features": ("f", "p_a")}, "--features: 'p_a' is the label, a prediction, a score"),
        ({"score": "lists", "label": "f"}, "label 'f' holds 2 in row 3 .*its classes are 0, 1"),
        ({"score": "lists", "label": "zero"}, "score column 'lists' holds 2 numbers in row 1 of .*data.parquet, but 3 in row 5 of .*data.parquet; each class has one"),
        ({"score": "lists", "score_classes": ("a", "b")}, "--score-classes names 2 classes, but --score has 3 numbers in row 5 of"),
    )):  # fmt: skip
        frame.assign(zero=0).to_parquet(tmp_path / "data.parquet")
        refuses(InputError, message, search, tmp_path / f"{number}", **{**options, **own})


@pytest.mark.parametrize(("compared", "most"), [(False, 64), (True, 16)])
def test_macro_averages_of_too_many_classes(tmp_path, *, compared, most):
    label = np.arange(400) % (most + 1)
    columns = {"label": label, "new": label, "old": label, "f": label % 2}
    pd.DataFrame(columns).to_parquet(tmp_path / "many.parquet")
    options = {"data": (str(tmp_path / "many.parquet"),), "label": "label", "prediction": "new"}
    options |= {"features": ("f",), "metric": ("f1_macro",)}
    options |= {"baseline_prediction": "old"} if compared else {}
    with pytest.raises(InputError, match=f"have {most + 1} classes.*for at most {most} classes"):
        search(tmp_path / "out", **options)


CLASSES = np.array(["ant", "bee", "cat", "dog"])


def averages(p):
    def of(some):
        y, guess = some["label"], some[p]
        found = {"accuracy": sk.accuracy_score(y, guess), "kappa": sk.cohen_kappa_score(y, guess)}
        scores = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, score in scores.items():
                for average in ("macro", "micro"):
                    found[f"{name}_{average}"] = score(y, guess, average=average, zero_division=0)
                found[name] = score(y == "cat", guess == "cat", zero_division=np.nan)
        return found

    return of


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Four classes, one of them rare, so that some slices miss it in label or prediction."""
    rng, rows = np.random.default_rng(8), 3000
    codes = rng.choice(4, rows, p=[0.45, 0.3, 0.23, 0.02])
    x = np.array([[0, 0], [2, 0], [0, 2], [2, 2]])[codes] + rng.normal(0, 1, (rows, 2))
    guessed = (x > 1) @ [1, 2]
    frame = pd.DataFrame({"x0": x[:, 0], "site": rng.choice(list("PQRS"), rows)})
    frame["label"], frame["new"] = CLASSES[codes], CLASSES[guessed]
    frame["old"] = CLASSES[np.where(rng.random(rows) < 0.2, 0, guessed)]
    path = tmp_path_factory.mktemp("four") / "data.parquet"
    frame.to_parquet(path)
    return path, frame


@pytest.mark.slow
@pytest.mark.parametrize("sides", [("new",), ("new", "old")], ids=len)
def test_many_classes(tmp_path, four, sides):
    path, frame = four
    roles = dict(zip(("prediction", "baseline_prediction"), sides, strict=False))
    options = {"data": (str(path),), "label": "label", "features": ("x0", "site"), "bins": 3}
    options |= {"max_cross_size": 1, **roles}
    for names in (
        {"metric": ("accuracy", "precision_macro", "f1_macro", "f1_micro", "kappa")},
        {"metric": ("recall", "f1"), "positive_class": "cat"},
    ):
        found = search(tmp_path / names["metric"][0], **names, **options)
        assert check_values(found, frame, *map(averages, sides)) == 7
        assert found.document["dataset"]["classes"] == CLASSES.tolist()
