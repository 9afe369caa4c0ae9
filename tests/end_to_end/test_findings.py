"""Findings of whole runs, and within findings, against models fitted to the rows themselves."""

import json
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import special, stats
from sklearn.linear_model import LogisticRegression

from slicebeam.metrics.findings import groups
from slicebeam.pipelines.commands.cli import run
from tests.conftest import slow
from tests.oracles import predicates
from tests.pipelines.page.asking import asks, served_page
from tests.running import read, search

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

    def fitted(self, members):
        """What a model of membership, fitted to all rows of the denominator, expects of each."""
        X = np.stack([self.kept * 1.0, *members], axis=1)[self.kept]
        w, t = self.weight[self.kept], self.target[self.kept]
        if not members:
            return np.full(t.size, np.average(t, weights=w))
        if self.is_rate:
            model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-13, max_iter=500)
            # Rows that are alike are fitted as one.
            code = np.column_stack([t, X[:, 1:]]) @ 2.0 ** np.arange(X.shape[1])
            _, one, of = np.unique(code, return_index=True, return_inverse=True)
            model.fit(X[one, 1:], t[one], np.bincount(of, w))
            return model.predict_proba(X[:, 1:])[:, 1]
        root = np.sqrt(w)
        return X @ np.linalg.lstsq(X * root[:, None], t * root, rcond=None)[0]


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


SCORE, WEIGHT = {"score": "score"}, {"weight": "fnlwgt"}
OLD, OLD_SCORE = {"baseline_prediction": "prediction_old"}, {"baseline_score": "score_old"}
CASES = {
    "accuracy": ("accuracy", {}),
    "recall": ("recall", {}),
    "F1": ("f1", {}),
    "log loss": ("log_loss", SCORE),
    "weighted accuracy": ("accuracy", WEIGHT),
    "weighted log loss": ("log_loss", SCORE | WEIGHT),
    "accuracy of two models": ("accuracy", OLD),
    "recall of two models": ("recall", OLD),
    "log loss of two models": ("log_loss", SCORE | OLD | OLD_SCORE),
    "weighted accuracy of two models": ("accuracy", OLD | WEIGHT),
    "weighted log loss of two models": ("log_loss", SCORE | OLD | OLD_SCORE | WEIGHT),
    "accuracy by groups": ("accuracy", {"group": "household"}),
}


@pytest.fixture(scope="module")
def table(adult_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "adult.parquet"
    rows = pq.read_table(adult_path).slice(0, 8000).to_pandas()
    rows["household"] = np.random.default_rng(0).integers(0, 5000, len(rows))
    rows.to_parquet(path)
    return path


QUICK = ("accuracy", "recall", "weighted accuracy of two models")


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
            fitted, own_rows = rows.fitted(members), inside[rows.kept]
            weights = rows.weight[rows.kept][own_rows]
            expected = rows.value(np.average(fitted[own_rows], weights=weights))
            assert one["expected"] == pytest.approx(expected, rel=2e-8, abs=1e-9)
            assert one["difference"] == pytest.approx(one["value"] - one["expected"], abs=1e-15)
            is_harm = (one["difference"] > 0) == (metric == "log_loss")
            assert is_harm == (side["direction"] == "worse")
            low, high = one["interval"]
            assert low <= one["difference"] <= high
            assert low < high
            counts = rows.is_rate and metric != "f1" and not {"weight", "group"} & {*options}
            variances = (fitted * (1.0 - fitted))[own_rows]
            null_error = np.sqrt(variances.sum()) / one["n"] if counts else None
            _check_corrected(found.document, one, null_error)
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
        if members and "weight" not in options:
            _is_explained(side, rows, members)
        else:
            assert not {"r2", "r2_expected"} & side.keys()
    _check_coverage_of_the_slices(found.document, frame, rows, weighted="weight" in options)
    assert len(ranks) == len({one["slice_id"] for one in findings})


def _check_corrected(document, one, null_error):
    """By the p-value that the finding has, and the largest that it could have.

    That of counts is also bound by the gain, which is 0 where the log-likelihood ratio is that of the
    number of tests.
    """
    shown = one["corrected"]
    assert shown["low"] <= shown["difference"] <= shown["high"]
    assert 0 < shown["difference"] / one["difference"] <= 1 + 1e-9
    if null_error is None:
        return
    tests = document["testing"]["tested_per_level"]
    (size,) = [s["cross_size"] for s in document["slices"] if s["slice_id"] == one["slice_id"]]
    z, c = stats.norm.isf([one["p_value"], 0.05 / len(tests) / tests[size - 1]])
    pairs = (value := one["value"], one["expected"]), (1 - value, 1 - one["expected"])
    ratio = one["n"] * sum(special.rel_entr(*pair) for pair in pairs)
    c = max(c, z * np.sqrt(np.log(tests[size - 1]) / ratio))
    wanted = groups.corrected_difference(one["difference"], one["interval"], z, c, null_error)
    # A rate is between 0 and 1; what is expected has an error, as the observed interval allows for.
    low, high = one["interval"]
    limits = min(-one["expected"], low), max(1 - one["expected"], high)
    assert {low, high} & {shown["low"], shown["high"]}
    wanted = np.clip(wanted, *limits)
    assert list(shown.values()) == pytest.approx(wanted, rel=1e-6)


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
    largest = sorted(shares.values(), reverse=True)[:20]
    assert [one["share"] for one in found] == pytest.approx(largest, rel=1e-12)
    for one in found:
        own = tuple(one["findings"])
        assert one["share"] == pytest.approx(shares[own], rel=1e-12)
        value = rows.value(rows.mean(sets[own]))
        assert one["value"] == pytest.approx(value, rel=1e-9, abs=1e-10)


OUTCOME = ["--label=label", "--prediction=prediction"]
WORDS = {"red": ["apple", "rose"], "blue": ["sky", "sea"], "green": ["leaf", "grass"]}


@pytest.fixture(scope="module")
def frame():
    """Examples of which those of shop B are bad, and those of its red things worse."""
    rng, n = np.random.default_rng(3), 3000
    color, shop = rng.choice(list(WORDS), n), rng.choice(list("ABCD"), n)
    text = [f"{one} {rng.choice(WORDS[one])} thing" for one in color]
    label = rng.integers(0, 2, n)
    wrong = rng.random(n) < np.where(shop == "B", np.where(color == "red", 0.9, 0.4), 0.05)
    size, prediction = rng.integers(1, 100, n), np.where(wrong, 1 - label, label)
    columns = {"shop": shop, "size": size, "text": text, "label": label, "prediction": prediction}
    return pd.DataFrame({"id": np.arange(n) + 10_000, **columns})


@pytest.fixture(scope="module")
def found(frame, tmp_path_factory):
    """The folder of the data, in two files, with the results of a search and of a discovery."""
    folder = tmp_path_factory.mktemp("within")
    frame[:1000].to_parquet(folder / "part-0.parquet", row_group_size=300)
    frame[1000:].to_parquet(folder / "part-1.parquet", row_group_size=700)
    data = [f"--data={folder}/part-*.parquet", "--example-id=id", *OUTCOME, "--quiet"]
    assert run(["search", *data, "--features=shop", f"--output={folder}/search"]) == 0
    within = f"--within-findings={folder}/search/changelist.json"
    discover = ["discover", *data, "--text=text", "--components=3", within]
    assert run([*discover, f"--output={folder}/discover"]) == 0
    return folder


@pytest.fixture(scope="module")
def kept(frame, found):
    kept, document = frame[frame["shop"] == "B"], read(found / "discover").document
    within = document["dataset"]["within"]
    assert (document["dataset"]["n"], within["n"], within["of"]) == (len(kept), len(kept), 3000)
    return kept


def test_a_check_of_the_groups(found, kept, tmp_path):
    command = ["check", f"--changelist={found}/discover", "--data", f"{found}/part-*.parquet"]
    assert run([*command, *OUTCOME, "--quiet", f"--output={tmp_path}"]) == 0
    before, after = read(found / "discover").document, read(tmp_path).document
    both = (before, after)
    sizes = [{one["slice_id"]: one["size"]["n"] for one in each["slices"]} for each in both]
    assert sizes[0] == sizes[1]
    assert sum(sizes[1].values()) == len(kept) == after["dataset"]["n"]
    assert after["dataset"]["within"] == before["dataset"]["within"]


def test_slices_by_hand_are_of_the_same_examples(found, kept, tmp_path):
    """Defined by `define`, shown by the page of `serve`: neither counts an example of another shop."""
    out, ids = tmp_path / "out", tmp_path / "ids.txt"
    shutil.copytree(found / "discover", out)
    red = kept[kept["text"].str.contains("red")]
    ids.write_text("\n".join(map(str, red["id"])))
    for name, rule in (("small", "--where=size < 50"), ("listed", f"--ids={ids}")):
        assert run(["define", f"--changelist={out}", f"--name={name}", rule, "--quiet"]) == 0
    document = json.loads((out / "changelist.r2.json").read_text())
    small = kept[kept["size"] < 50]
    sizes = {one["name"]: one["size"]["n"] for one in document["slices"]}
    assert (sizes["small"], sizes["listed"]) == (len(small), len(red))
    page = asks(served_page(out))
    for one in document["slices"]:
        answer = page("examples", slice_id=one["slice_id"])
        assert (answer["n"], answer["held"]) == (one["size"]["n"],) * 2, one["name"]
        ids_of = {"small": small, "listed": red}.get(one["name"], kept)["id"]
        assert {int(each["id"]) for each in answer["examples"]} <= set(ids_of)


def test_data_without_an_example_in_the_findings(frame, found, tmp_path, capsys):
    """Both a discovery and a check of its slices say so, in a line."""
    frame[frame["shop"] != "B"].to_parquet(tmp_path / "others.parquet")
    data = [f"--data={tmp_path}/others.parquet", *OUTCOME, f"--output={tmp_path}/out"]
    within = f"--within-findings={found}/search/changelist.json"
    for command in (
        ["discover", "--text=text", within],
        ["check", f"--changelist={found}/discover"],
    ):
        assert run([*command, *data, "--quiet"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "none of the 2,246 examples is in one of its 1 findings" in line
    assert not (tmp_path / "out" / "changelist.json").exists()


def test_a_document_without_findings(frame, tmp_path, capsys):
    """Outside steps, where such a step is skipped, it is an error."""
    frame.assign(prediction=frame["label"]).to_parquet(tmp_path / "perfect.parquet")
    data = [f"--data={tmp_path}/perfect.parquet", *OUTCOME, "--quiet"]
    assert run(["search", *data, "--features=shop", f"--output={tmp_path}/search"]) == 0
    capsys.readouterr()
    within = f"--within-findings={tmp_path}/search/changelist.json"
    assert run(["discover", *data, "--text=text", within, f"--output={tmp_path}/out"]) == 2
    assert "has no findings, so there is nothing to examine" in capsys.readouterr().err
