"""The bootstrap of examples and of groups, held against weights that numpy applies row by row."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from slicebeam.metrics.randomness import poisson_weights, splitmix64
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
            p = quick.table["p_value"][mine].to_numpy() / 10
            padded = np.concatenate([p, np.ones(tests - p.size)])
            q = family.size * stats.false_discovery_control(padded)[: p.size]
            promising[mine] = q <= 0.05
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
