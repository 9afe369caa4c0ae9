"""AUC by the scores themselves: values against scikit-learn, bounds, verdicts, and equal bytes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from slicebeam.metrics.counting.statistic_space import BUCKETS
from slicebeam.metrics.errors import EngineError
from slicebeam.metrics.measures.registry import statistic_space
from slicebeam.metrics.significance import auc
from slicebeam.metrics.significance.auc import Areas, ScoredRows
from slicebeam.pipelines.commands.api import check
from slicebeam.transforms.count import slice_sums
from tests.conftest import slow
from tests.discover_runs import discover
from tests.running import Found, check_within_errors, rows_of, search

pytestmark = pytest.mark.filterwarnings("error")
AUC = {"label": "y", "score": "s", "metric": ("auc",), "alternative": "both"}
OPTIONS = {**AUC, "features": ("a", "b", "seg"), "max_cross_size": 2}


def examples(rows=12_000, rare=90, *, overlap=0.0, seed=1):
    """A frame whose segment ``rare`` has all scores in a band that is thinner than a bucket; its AUC is 1 where nothing overlaps."""
    rng = np.random.default_rng(seed)
    y = rng.random(rows) < 0.3
    latent = rng.normal(2.0 * y)
    frame = pd.DataFrame({
        "a": rng.choice(list("uvwxz"), rows), "b": rng.integers(0, 4, rows).astype(str),
        "seg": rng.choice(["p", "q"], rows), "y": y.astype(int),
        "s": 1.0 / (1.0 + np.exp(-latent)),
    })  # fmt: skip
    # Somewhat worse in one slice, so that not only the segment is found.
    worse = (frame["a"] == "u") & (frame["b"] == "1")
    frame.loc[worse, "s"] = rng.random(worse.sum())
    at = rng.choice(rows, rare, replace=False)
    own = (np.arange(rare) < rare / 3).astype(int)
    within = np.where(
        rng.random(rare) < overlap, rng.random(rare), 0.5 * own + 0.4 * rng.random(rare)
    )
    low, high = np.quantile(frame["s"], [0.5005, 0.5015])
    frame.loc[at, "seg"] = "rare"
    frame.loc[at, "y"] = own
    frame.loc[at, "s"] = low + (high - low) * within
    return frame


def tables():
    continuous, rng = examples(), np.random.default_rng(2)
    some = rng.random(len(continuous)) < 0.3
    rarely = continuous["y"] * (rng.random(len(continuous)) < 0.02)
    one_class = continuous["y"] * (continuous["b"] != "2")
    return {
        "continuous": continuous,
        "ties": continuous.assign(s=continuous["s"].round(3)),
        "heavy": continuous.assign(s=np.where(some, 0.25, continuous["s"])),
        "imbalanced": continuous.assign(
            y=rarely.where(continuous["seg"] != "rare", continuous["y"])
        ),
        "one class": continuous.assign(y=one_class),
        "far apart": continuous.assign(s=np.where(some, -np.inf, 1e300 * continuous["s"])),
    }


def run(folder, frame, **options):
    folder.mkdir(exist_ok=True)
    table = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame)
    pq.write_table(table, folder / "data.parquet")
    return search(folder / "out", data=folder / "data.parquet", **{**OPTIONS, **options})


def area(some, score="s", weight=None):
    if some["y"].nunique() < 2:
        return float("nan")
    ranks = some[score].rank(method="dense")  # scikit-learn refuses infinite scores
    return float(roc_auc_score(some["y"], ranks, sample_weight=some[weight] if weight else None))


def of_segment(found, name="rare"):
    return found.table[found.table["slice"] == f"seg = {name}"].iloc[0]


def expected_p(frame, held, tail="both"):
    """P-value with every score in a bucket of its own."""
    rank = frame["s"].rank(method="dense").astype(int).to_numpy() - 1
    label = frame["y"].to_numpy()
    histogram = np.stack([np.bincount(rank[label == k], minlength=rank.max() + 1) for k in (0, 1)])
    whole, n1 = auc.placements(histogram[None]), label[held].sum()
    own = whole._replace(auc=np.array([area(frame[held])]))
    slices = auc.Sides(own, n1, held.sum() - n1)
    of_all = auc.Sides(whole, label.sum(), len(label) - label.sum())
    return float(auc.z_p_value(slices, of_all, tail)[0])


@pytest.mark.parametrize(
    "kind", [one if one in ("continuous", "one class") else slow(one) for one in tables()]
)
def test_what_is_significant_is_exact_and_the_rest_within_its_bound(tmp_path, kind):
    frame = tables()[kind]
    found = run(tmp_path, frame)
    assert check_within_errors(found, frame, {"auc": area}) >= 2
    assert found.table["significant"].sum() >= 1
    for row, held in rows_of(found, frame):
        if row.value_error == 0 and row.reason is None:
            assert row.p_value == pytest.approx(expected_p(frame, held), rel=0.02)


def test_a_slice_within_one_bucket_has_its_own_auc(tmp_path):
    frame = examples()
    found = run(tmp_path, frame)
    row = of_segment(found)
    assert row.value == 1.0
    assert row.delta == pytest.approx(1.0 - area(frame), abs=1e-12)
    assert row.significant
    assert 0 < row.ci_low < row.delta
    stated = next(one for one in found.document["testing"]["warnings"] if "AUC" in one)
    rough = found.table["value_error"]
    assert f"except for {(rough > 0).sum()} listed slices" in stated
    assert float(stated.partition("at most ")[2].split()[0]) == pytest.approx(rough.max(), rel=0.1)
    assert float(stated.partition("at most ")[2].split()[0]) >= rough.max()


def test_what_buckets_call_worse_is_not_where_the_scores_are_as_good(tmp_path):
    frame = examples(overlap=0.17)
    held = (frame["seg"] == "rare").to_numpy()
    assert abs(area(frame[held]) - area(frame)) < 0.04
    row = of_segment(run(tmp_path, frame, alternative="worse"))
    assert row.value_error == 0
    assert row.value == pytest.approx(area(frame[held]), abs=1e-12)
    assert not row.significant
    assert row.p_value == pytest.approx(expected_p(frame, held, "lower"), rel=0.02)


@pytest.mark.parametrize("strategy", ["iterative", "priority"])
def test_every_strategy_decides_by_exact_auc(tmp_path, strategy):
    frame = examples()
    how = {"strategy": strategy, "max_cross_size": 3, "prune_significant": True}
    found = run(tmp_path, frame, **how)
    assert check_within_errors(found, frame, {"auc": area}) >= 2
    assert of_segment(found).significant
    # Nothing is visited below what is significant by its exact AUC alone.
    assert not found.table["slice"].str.contains("seg = rare & |& seg = rare").any()


def test_slices_above_are_exact_where_labels_are_given(tmp_path):
    frame = examples()
    found = run(tmp_path, frame, strategy="iterative")
    assert check_within_errors(found, frame, {"auc": area}) >= 2
    labels = found.table[found.table["significant"]].set_index("slice")["label"]
    assert (labels["seg = rare"], labels["a = u & b = 1"]) == ("new", "refines")


def test_a_check_has_exact_values_only(tmp_path):
    frame = examples()
    document = str(run(tmp_path, frame).folder / "changelist.json")
    table = check(frame, changelist=document, output=str(tmp_path / "c"), **AUC).slices.to_pandas()
    assert (table["complement_error"] == 0).all()
    exact = check_within_errors(Found({}, table, tmp_path), frame, {"auc": area})
    assert exact == len(table) >= 2


def test_list_features(tmp_path):
    frame, rng = examples(rows=6000), np.random.default_rng(3)
    tags = [sorted(set(rng.choice(list("abcd"), rng.integers(0, 4)))) for _ in range(len(frame))]
    tags = [
        [*own, *["rare"] * is_rare]
        for own, is_rare in zip(tags, frame["seg"] == "rare", strict=True)
    ]
    table = pa.Table.from_pandas(frame.drop(columns="seg")).append_column("tags", pa.array(tags))
    found = run(tmp_path, table, features=("a", "tags"), max_cross_size=2, memory_budget="16MB")
    held = (frame["seg"] == "rare").to_numpy()
    row = found.table[found.table["slice"] == "tags contains rare"].iloc[0]
    assert row.n == held.sum()
    assert row.value == 1.0
    assert row.significant
    assert row.complement == pytest.approx(area(frame[~held]), abs=1e-12)


def test_weights(tmp_path):
    frame = examples(rows=6000)
    frame["w"] = np.random.default_rng(4).lognormal(0.0, 0.5, len(frame))
    found = run(tmp_path, frame, weight="w", replicates=100)
    weighted = {"auc": partial(area, weight="w")}
    assert check_within_errors(found, frame, weighted) >= 2
    row = of_segment(found)
    assert row.value == pytest.approx(1.0, abs=1e-12)
    assert row.significant
    assert row.test == "bootstrap of examples, t"


def two_models():
    """The old score of the segment says nothing; that, and the new one, is within a bucket."""
    frame, rng = examples(rows=6000), np.random.default_rng(5)
    held = (frame["seg"] == "rare").to_numpy()
    noise = rng.normal(0.0, 0.3, len(frame))
    old = 1.0 / (1.0 + np.exp(-(np.log(frame["s"] / (1.0 - frame["s"])) + noise)))
    frame["old"] = np.where(held, rng.permutation(frame["s"]), old)
    frame.loc[held, "old"] = rng.permutation(frame.loc[held, "s"])
    return frame


def test_two_models(tmp_path):
    frame = two_models()
    found = run(tmp_path, frame, baseline_score="old", replicates=100, features=("a", "seg"))
    assert "seg = rare" in set(found.table[found.table["significant"]]["slice"])
    for row, held in rows_of(found, frame):
        expected = area(frame[held]), area(frame[held], "old")
        for value, right in zip((row.value, row.reference), expected, strict=True):
            assert abs(value - right) <= row.value_error + 1e-12
        if row.significant:
            assert row.value_error == 0
    document = found.document["global"][0]
    assert document["after"]["value"] == pytest.approx(area(frame), abs=1e-12)
    assert document["before"]["value"] == pytest.approx(area(frame, "old"), abs=1e-12)


@pytest.mark.parametrize(
    "extra", [slow({}, id="plain"), slow({"weight": "w", "replicates": 20}, id="weights")]
)
def test_bytes_do_not_depend_on_how_it_is_run(tmp_path, extra):
    # Enough examples that they don't fit the smallest memory at once.
    frame = examples(rows=20_000)
    frame["w"] = np.random.default_rng(6).lognormal(0.0, 0.5, len(frame))
    one = run(tmp_path, frame, **extra)
    assert of_segment(one).value_error == 0
    cut = {"chunk_rows": 3000, "memory_budget": "16MB", "runner_option": ("workers=2",)}
    other = search(tmp_path / "other", data=tmp_path / "data.parquet", **OPTIONS, **extra, **cut)
    assert other.slices_bytes == one.slices_bytes
    documents = [found.timeless() for found in (one, other)]
    for document in documents:
        document["provenance"]["config"].pop("runner_option", None)
    assert documents[0] == documents[1]


def test_a_run_goes_on_after_its_pass_over_the_scores_was_interrupted(tmp_path, monkeypatch):
    whole = run(tmp_path, examples())
    data, counted = str(tmp_path / "data.parquet"), slice_sums.exact_areas
    calls = []

    def failing(plan, keys, sizes):
        calls.append(keys.tolist() == [slice_sums.WHOLE])
        if not calls[-1]:
            raise OSError("the disk is gone")
        return counted(plan, keys, sizes)

    with monkeypatch.context() as patched:
        patched.setattr(slice_sums, "exact_areas", failing)
        with pytest.raises(EngineError):
            search(tmp_path / "again", data=data, **OPTIONS)
    assert calls == [True, False]
    found = search(tmp_path / "again", data=data, resume=True, **OPTIONS)
    assert found.slices_bytes == whole.slices_bytes


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 300),
    scores=st.integers(1, 200),
    slices=st.integers(1, 5),
    groups=st.integers(1, 6),
    is_weighted=st.booleans(),
)
def test_areas_are_those_of_all_pairs(seed, rows, scores, slices, groups, is_weighted):
    rng = np.random.default_rng(seed)
    score = np.sort(rng.integers(0, scores, rows))
    label, owner = rng.random(rows) < 0.4, rng.integers(0, slices, rows)
    weight = rng.integers(1, 1 << 40, rows) if is_weighted else np.ones(rows, np.int64)
    drawn = rng.poisson(1.0, rows).astype(np.uint8)

    def by_class(some):
        return [int(weight[some & ~label].sum()), int(weight[some & label].sum())]

    found = []
    for cuts in (np.sort(rng.integers(0, scores, groups - 1)), np.zeros(0)):
        sizes = np.array([by_class(owner == one) for one in range(slices)])
        areas = Areas(sizes, np.array(by_class(np.ones(rows, bool))), 2)
        group = np.searchsorted(cuts, score, side="right")
        for number in range(len(cuts) + 1):
            here = np.flatnonzero(group == number)
            rank = np.unique(score[here], return_inverse=True)[1]
            own = weight[here] if is_weighted else None
            areas.begin(ScoredRows(rank, label[here], own))
            areas.add(owner[here], np.arange(here.size), [drawn[here]])
        found.append((areas.values(), areas.complements(), areas.placements()))
    # The same to the last bit wherever the groups are cut.
    assert [one.tobytes() for one in found[0][:2]] == [one.tobytes() for one in found[1][:2]]
    values, complements, placed = found[0]
    np.testing.assert_array_equal(placed.spread1, found[1][2].spread1)

    def direct(some, times):
        own = (weight * times)[some].astype(float)
        win = np.sign(score[some][:, None] - score[some][None, :]) / 2 + 0.5
        pairs = (own * label[some])[:, None] * (own * ~label[some])[None, :]
        return float((pairs * win).sum() / pairs.sum()) if pairs.sum() else float("nan")

    for one in range(slices):
        for layer, times in enumerate((np.ones(rows, np.int64), drawn)):
            np.testing.assert_allclose(values[one, layer], direct(owner == one, times), atol=1e-12)
        np.testing.assert_allclose(
            complements[one], direct(owner != one, np.ones(rows, np.int64)), atol=1e-11
        )


@pytest.mark.parametrize(("n1", "n0"), [(3000, 3000), (40, 6000)])
def test_placements_of_areas_are_near_those_of_the_scores(n1, n0):
    rng = np.random.default_rng(n1)
    label = np.arange(n1 + n0) < n1
    label = label[np.argsort(rng.normal(3.0 * label))]
    sizes = np.array([[n0, n1]])
    areas = Areas(sizes, sizes[0], 1)
    every = np.arange(label.size)
    areas.begin(ScoredRows(every, label, None))
    areas.add(np.zeros(label.size, np.int64), every)
    right = auc.placements(np.stack([~label, label]).astype(np.int64)[None])
    for name, own in areas.placements()._asdict().items():
        # What ties in a cell add counts by 1/(n1·n0) only.
        tolerance = 2e-2 if name in ("interaction", "mixed", "mixed1", "mixed0") else 2e-3
        np.testing.assert_allclose(own, getattr(right, name), rtol=tolerance, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 400), different=st.integers(1, 2000))
def test_the_stated_error_is_that_of_the_pairs_in_a_bucket(seed, rows, different):
    rng = np.random.default_rng(seed)
    score = rng.choice(rng.normal(size=different), rows)
    label, held = rng.random(rows) < 0.5, rng.random(rows) < 0.5
    bucket = np.searchsorted(auc.bucket_edges(score, 12), score, side="right")
    coarse = np.array([np.unique(score[bucket == b]).size > 1 for b in range(BUCKETS)])
    space = replace(statistic_space(["auc"], "overall"), coarse=(tuple(coarse.tolist()),))
    sums = np.zeros((2, space.raw_columns), np.int64)
    for row, some in enumerate((held, np.ones(rows, bool))):
        sums[row, : space.cells] = np.bincount(label[some], minlength=2)
        cells = label[some].astype(int), bucket[some]
        np.add.at(space.histogram(sums[row : row + 1])[0], cells, 1)
    area = space.area(space.reduce(sums[:1], sums[1:]))
    for some, value, error in (
        (held, area.value, area.error),
        (~held, area.complement, area.complement_error),
    ):
        s1, s0 = score[some & label], score[some & ~label]
        if not s1.size * s0.size:
            assert np.isnan(value[0])
            assert error[0] == 0
            continue
        b1, b0 = bucket[some & label], bucket[some & ~label]
        exact = np.mean((s1[:, None] > s0) + 0.5 * (s1[:, None] == s0))
        open_pairs = (b1[:, None] == b0) & coarse[b1][:, None]
        assert error[0] == pytest.approx(open_pairs.mean() / 2, abs=1e-12)
        assert abs(value[0] - exact) <= error[0] + 1e-12


@pytest.mark.slow
def test_a_discovery_decides_by_exact_auc(tmp_path):
    frame, rng = examples(rows=3000), np.random.default_rng(7)
    place = 4.0 * rng.normal(size=(6, 5))[rng.integers(0, 6, len(frame))]
    near = place + rng.normal(size=place.shape)
    table = pa.Table.from_pandas(frame[["y", "s"]])
    table = table.append_column("e", pa.FixedSizeListArray.from_arrays(near.ravel(), 5))
    pq.write_table(table, tmp_path / "data.parquet")
    found = discover(tmp_path / "out", data=(str(tmp_path / "data.parquet"),), embedding="e", **AUC)
    membership = found.membership[found.membership["split"].astype(str) != "discovery"]
    tested = frame.iloc[np.unique(membership["id"])]
    assert (abs(found.table["reference"] - area(tested)) <= 1e-12).all()
    ids = membership.groupby(membership["slice_id"].astype(str))["id"]
    looked_at = 0
    for row in found.table.itertuples():
        if row.slice_id in ids.groups:
            expected = area(frame.iloc[ids.get_group(row.slice_id)])
            assert np.isnan(row.value) or abs(row.value - expected) <= row.value_error + 1e-12
            looked_at += row.value_error > 0
    assert looked_at > 3
    assert (found.table[found.table["significant"]]["value_error"] == 0).all()


def test_slices_that_another_metric_reports_are_exact(tmp_path):
    """Their AUC is far from significant, and is shown all the same."""
    rng, rows = np.random.default_rng(8), 6000
    frame = pd.DataFrame({"a": rng.choice(list("vwxyz"), rows), "label": rng.integers(0, 2, rows)})
    frame["score"] = 1 / (1 + np.exp(-rng.normal(frame["label"] * 1.0, 1.0)))
    right = rng.random(rows) < np.where(frame["a"] == "z", 0.5, 0.8)
    frame["pred"] = np.where(right, frame["label"], 1 - frame["label"])
    frame.to_parquet(tmp_path / "data.parquet")
    roles = {"label": "label", "prediction": "pred", "score": "score"}
    data = tmp_path / "data.parquet"
    found = search(tmp_path / "out", data=data, metric=["auc", "accuracy"], **roles)
    own = found.table[found.table["slice"] == "a = z"].set_index("metric")
    assert own.loc["accuracy", "significant"]
    assert not own.loc["auc", "significant"]
    assert own.loc["auc", "value_error"] == 0
    part = frame[frame["a"] == "z"]
    expected = roc_auc_score(part["label"], part["score"])
    assert own.loc["auc", "value"] == pytest.approx(expected, rel=1e-12)


def edges_of_auc():
    """Slices of all examples, of one label, of all weight, and of no example."""
    frame, rng = examples(3000, 0), np.random.default_rng(6)
    positive = frame["y"] == 1
    frame["tags"] = [["all", "some"] if one else ["all"] for one in rng.random(3000) < 0.4]
    kinds = np.where(positive, "positives", "negatives")
    frame["kind"] = np.where(rng.random(3000) < 0.5, kinds, "both")
    frame["w"] = np.where(frame["seg"] == "p", rng.gamma(2.0, size=3000), 0.0)
    return frame


EDGES = ("tags contains all", "kind = positives", "kind = negatives", "a = nowhere", "seg = p")


@pytest.mark.parametrize(
    "options", [{}, {"weight": "w", "replicates": 20}], ids=["plain", "weighted"]
)
@pytest.mark.parametrize("metric", [("auc",), ("accuracy", "auc", "log_loss")], ids=len)
def test_slices_at_the_edges_of_auc(tmp_path, options, metric):
    frame = edges_of_auc()
    listed = "\n".join(f"  - {one}" for one in EDGES)
    (tmp_path / "slices.yaml").write_text(f"slices:\n{listed}\n")
    options |= {"slices": str(tmp_path / "slices.yaml"), "metric": metric}
    table = check(frame, label="y", score="s", **options).slices.to_pandas()
    assert not table[["p_value", "q_value"]].isna().any(axis=None)
    own = table[table["metric"] == "auc"].set_index("slice")
    empty, none = "the denominator is empty", "no examples satisfy it"
    assert own.loc[list(EDGES[1:4]), "reason"].tolist() == [empty, empty, none]
    whole, weight = own.loc["tags contains all"], options.get("weight")
    assert whole["value"] == pytest.approx(area(frame, weight=weight), rel=1e-9)
    assert (whole["delta"], whole["reason"]) == (0.0, "the slice is all examples")
    assert np.isnan(whole["complement"])
    # Outside a slice without examples there are all of them.
    assert own.loc["a = nowhere", "complement"] == own.loc["a = nowhere", "reference"]
    if weight:
        assert own.loc["seg = p", "reason"] == "the slice is all examples"


@pytest.mark.parametrize("metric", [("auc",), ("brier", "auc")], ids=len)
def test_a_searched_slice_of_all_examples_has_their_auc(tmp_path, metric):
    frame = edges_of_auc()
    found = run(tmp_path, frame, metric=metric, features=("tags", "kind", "seg"))
    whole = found.table[found.table["metric"] == "auc"].set_index("slice").loc["tags contains all"]
    assert (whole["delta"], whole["reason"]) == (0.0, "the slice is all examples")
    assert whole["value"] == pytest.approx(area(frame), rel=1e-9)
    assert whole["value_error"] == 0.0
