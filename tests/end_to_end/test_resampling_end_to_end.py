"""The bootstrap, and how examples changed between two models, held against numpy and pandas row by row."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from slicebeam.metrics.randomness import poisson_weights, splitmix64
from tests.conftest import ADULT, slow
from tests.oracles.significance import benjamini_hochberg
from tests.page_commands import ROOT
from tests.random_subsets import subset_tails
from tests.running import rows_of, search, search_noting_ids

B = 40
SEED = 11
NOT_RESAMPLED = "far from significant by the first, quick test, so it was not resampled"
ROWS = (
    {"label": "income", "prediction": "prediction", "score": "score"}
    | {"features": ("age", "sex", "race", "relationship"), "bins": 4, "max_cross_size": 2}
    | {"min_slice_size": 20, "metric": ("accuracy", "log_loss", "f1"), "alternative": "both"}
    | {"test": "bootstrap-rows", "replicates": B, "seed": SEED}
)
OLD = {"baseline_prediction": "prediction_old", "baseline_score": "score_old"}


@pytest.fixture(scope="module")
def adult(adult):
    """Enough examples for some slices to be significant, few enough to be resampled in numpy."""
    return adult.iloc[:5000]


@pytest.fixture(scope="module")
def adult_path(tmp_path_factory, adult):
    path = tmp_path_factory.mktemp("rows") / "data.parquet"
    adult.to_parquet(path)
    return path


def drawn(ids, replicates=B, seed=SEED):
    """Weights [replicates, rows]."""
    numbers = np.arange(replicates)[:, None]
    return poisson_weights(seed, numbers, ids.astype(np.uint64)).astype(float)


def t_p_value(delta, replicates, tail="both"):
    """Return p of delta / sd on B - 1 degrees of freedom, and sd."""
    replicates = replicates[~np.isnan(replicates)]
    sd = replicates.std(ddof=1)
    law, t = stats.t(replicates.size - 1), delta / sd
    return {"lower": law.cdf(t), "upper": law.sf(t), "both": 2 * law.sf(abs(t))}[tail], sd


def f1(y, p, w):
    return 2 * (w @ (y & p)) / (w @ y.astype(float) + w @ p.astype(float))


def measures(frame, old=""):
    """Functions of (weights [replicates, rows], examples of the slice)."""
    y = frame["income"].to_numpy() == 1
    p = frame["prediction" + old].to_numpy() == 1
    eps = np.finfo(float).eps
    s = np.clip(frame["score" + old].to_numpy(float), eps, 1 - eps)
    values = {"accuracy": (y == p).astype(float), "log_loss": -np.log(np.where(y, s, 1 - s))}

    def mean(x):
        return lambda w, held: (w[:, held] @ x[held]) / w[:, held].sum(axis=1)

    found = {name: mean(x) for name, x in values.items()}
    found["f1"] = lambda w, held: f1(y[held], p[held], w[:, held])
    return found


def check(found, frame, ids, old=None, tail=lambda name: "both"):
    """Hold p and interval of each resampled slice against numpy; return how many there are."""
    w, one = drawn(ids), np.ones((1, len(frame)))
    every = np.ones(len(frame), bool)
    new, reference = measures(frame), measures(frame, old or "")
    counted = dict.fromkeys(found.table["metric"].unique(), 0)
    for row, held in rows_of(found, frame):
        if isinstance(row.reason, str):
            assert row.p_value == 1
            assert pd.isna(row.test)
            continue
        against = held if old else every
        own, other = new[row.metric], reference[row.metric]
        delta = (own(one, held) - other(one, against))[0]
        p, sd = t_p_value(delta, own(w, held) - other(w, against), tail(row.metric))
        assert row.test == "bootstrap of examples, t"
        assert row.delta == pytest.approx(delta, abs=1e-12)
        assert row.p_value == pytest.approx(p, rel=1e-6), (row.metric, row.slice)
        reach = stats.t(B - 1).ppf(0.975) * sd
        assert row.ci_low == pytest.approx(max(delta - reach, -1), abs=1e-9) or row.ci_low < -1
        assert row.ci_high == pytest.approx(min(delta + reach, 1), abs=1e-9) or row.ci_high > 1
        counted[row.metric] += 1
    return counted


@pytest.fixture(scope="module")
def found_and_ids(tmp_path_factory, adult_path):
    folder = tmp_path_factory.mktemp("of_rows")
    return search_noting_ids(folder, 5000, data=(str(adult_path),), **ROWS)


@pytest.fixture(scope="module")
def of_rows(found_and_ids):
    return found_and_ids[0]


def test_p_values_are_those_of_resampled_rows(found_and_ids, adult):
    of_rows, ids = found_and_ids
    assert min(check(of_rows, adult, ids).values()) > 10
    how = {"replicates": B, "kind": "poisson", "unit": "rows", "seed": SEED}
    assert of_rows.document["testing"]["bootstrap"] == how


def test_what_is_not_resampled_has_p_1_and_says_why(of_rows, tmp_path, adult_path):
    """The first test is the metric's own; a slice that p / 10 would make significant is resampled."""
    reasons = of_rows.table["reason"]
    left = of_rows.table[reasons == NOT_RESAMPLED]
    assert len(left) > 10
    assert (left["p_value"] == 1).all()
    assert (left["q_value"] == 1).all()
    assert not left["significant"].any()
    options = {name: value for name, value in ROWS.items() if name not in ("replicates", "test")}
    quick = search(tmp_path, data=adult_path, **options, test="auto")
    pd.testing.assert_series_equal(quick.table["slice_id"], of_rows.table["slice_id"])
    family = np.array(of_rows.document["testing"]["family_per_level"])
    promising = np.zeros(len(quick.table), bool)
    for name in ROWS["metric"]:
        for level, tests in enumerate(family.tolist(), start=1):
            mine = (quick.table["metric"] == name) & (quick.table["cross_size"] == level)
            p, factor = quick.table["p_value"][mine] / 10, len(ROWS["metric"]) * family.size
            promising[mine] = benjamini_hochberg(p, tests, factor) <= 0.05
    chosen = set(quick.table["slice_id"][promising])
    # A slice is resampled for all metrics when it is promising in one.
    expected = quick.table["slice_id"].isin(chosen)
    assert (of_rows.table["test"].notna() <= expected).all()
    np.testing.assert_array_equal((reasons == NOT_RESAMPLED) & expected, False)


def test_two_models(tmp_path, adult_path, adult):
    found, ids = search_noting_ids(tmp_path, len(adult), data=(str(adult_path),), **ROWS | OLD)
    assert min(check(found, adult, ids, old="_old").values()) > 10


def test_without_ids_the_order_of_the_examples_changes_nothing(tmp_path, adult):
    rng = np.random.default_rng(3)
    few = adult.iloc[:1500].assign(score=adult["score"].round(1))
    few["tags"] = [rng.choice(list("abc"), rng.integers(0, 3), replace=False) for _ in range(1500)]
    # Many examples are equal in all that is read.
    data = few.iloc[np.concatenate([np.arange(1500), rng.integers(0, 700, 1500)])]
    options = {"features": ("sex", "relationship", "tags"), "replicates": 20}
    options = ROWS | options | {"metric": ("accuracy", "log_loss")}
    data.to_parquet(tmp_path / "0.parquet")
    one = search(tmp_path / "one", data=tmp_path / "0.parquet", **options)
    shuffled = data.sample(frac=1, random_state=4)
    for number, part in enumerate(np.array_split(np.arange(len(data)), [40, 41, 1700])):
        shuffled.iloc[part].to_parquet(tmp_path / f"part{number}.parquet", row_group_size=300)
    cut = {"chunk_rows": 170, "memory_budget": "16MB"}
    other = search(tmp_path / "other", data=tmp_path / "part*", **options, **cut)
    assert one.table["test"].notna().sum() > 5
    assert other.slices_bytes == one.slices_bytes
    assert other.document["slices"] == one.document["slices"]
    assert other.document["global"] == one.document["global"]


def grouped_examples():
    """Groups of 20 whose examples fail together; regions of 20, 60 and 160 groups."""
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(240) * 7 - 500, 20)
    number = np.arange(group.size) // 20
    region = np.select([number < 20, number < 80], ["few", "some"], "many")
    rate = np.select([number < 20, number < 80], [0.5, 0.35], 0.15)
    of_group = np.clip(rate + rng.normal(0, 0.1, 240)[number], 0.01, 0.9)
    frame = pd.DataFrame({"group": group, "region": region})
    frame["device"] = rng.choice(["a", "b", "c"], len(frame))
    frame["label"] = rng.integers(0, 2, len(frame))
    wrong = rng.random(len(frame)) < of_group
    frame["pred"] = np.where(wrong, 1 - frame["label"], frame["label"])
    return frame


GROUPS = (
    {"label": "label", "prediction": "pred", "features": ("region", "device")}
    | {"max_cross_size": 2, "metric": ("error_rate",), "replicates": B, "seed": SEED}
    | {"group": "group"}
)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("groups"), grouped_examples()
    frame.to_parquet(folder / "data.parquet")
    found = search(folder / "out", data=folder / "data.parquet", **GROUPS)
    return frame, folder / "data.parquet", found


def test_groups_are_resampled_together(grouped):
    frame, _, found = grouped
    w = drawn(splitmix64(frame["group"].to_numpy(np.int64).view(np.uint64)))
    wrong = (frame["label"] != frame["pred"]).to_numpy(float)
    rate = wrong.mean()
    reasons = {}
    for row, held in rows_of(found, frame):
        if isinstance(row.reason, str):
            assert row.p_value == 1
            reasons[row.slice] = row.reason
            continue
        replicates = (w[:, held] @ wrong[held]) / w[:, held].sum(axis=1) - (w @ wrong) / w.sum(1)
        p, _ = t_p_value(wrong[held].mean() - rate, replicates, "upper")
        assert row.p_value == pytest.approx(p, rel=1e-6)
        assert frame["group"][held].nunique() >= 30
        reasons[row.slice] = ""
    few = [name for name in reasons if "region = few" in name]
    assert len(few) == 4
    assert {reasons[name] for name in few} == {"fewer than 30 groups"}
    some = [name for name in reasons if "region = some" in name]
    assert {reasons[name] for name in some} == {""}
    assert found.document["testing"]["bootstrap"]["unit"] == "groups"
    assert found.document["dataset"]["group_field"] == "group"


def test_few_groups_are_warned_of(grouped):
    _, _, found = grouped
    some = found.table[found.table["significant"]]["slice"].str.contains("region = some").sum()
    assert some > 0
    warning = next(w for w in found.document["testing"]["warnings"] if "groups" in w)
    assert warning.startswith(f"{some} significant slices have fewer than 100 groups")


def test_no_interval_of_groups_takes_examples_for_independent(grouped):
    _, _, found = grouped
    skipped = found.table["reason"].fillna("").str.startswith("far from significant")
    assert skipped.any()
    assert found.table.loc[skipped, "ci_low"].isna().all()
    assert found.table.loc[~skipped, "ci_low"].notna().all()
    assert "lo" not in found.document["global"][0]["after"]
    for one in found.document["slices"]:
        change = one["changes"][0]
        # As wide as the delta's replicates make it, whose width is nearly the value's own.
        width = change["after"]["hi"] - change["after"]["lo"]
        delta = change["delta"]["hi"] - change["delta"]["lo"]
        assert 0.6 * delta < width < 2.0 * delta


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


def test_groups_of_which_no_slice_needs_an_exact_auc(tmp_path):
    """Of two scores the buckets know everything."""
    rng, rows = np.random.default_rng(1), 600
    frame = pd.DataFrame({"f": rng.choice(list("ab"), rows), "y": rng.integers(0, 2, rows)})
    frame = frame.assign(s=rng.choice([0.2, 0.8], rows), u=np.arange(rows) % 100)
    frame.to_parquet(tmp_path / "d.parquet")
    roles = {"label": "y", "score": "s", "group": "u", "features": ("f",)}
    found = search(tmp_path / "out", data=tmp_path / "d.parquet", metric=("auc",), **roles)
    assert (found.table["p_value"] == 1).all()
    assert (found.table["value_error"] == 0).all()


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
