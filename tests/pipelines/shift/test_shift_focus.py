"""``--focus``: the weighted estimate, the variances and optima of the strata, the gate, wrong input."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from slicebeam.metrics.shift.estimates import Sample, Strata, Subpools, estimate
from slicebeam.pipelines.commands.cli import run
from tests import shift_runs
from tests.option_words import METHODS
from tests.oracles import shift_oracle
from tests.refusals import refusing
from tests.shift_runs import REPLAYED, Z, asked_items, made, matrix, saved, shift, stratified

FRAME = made(600)
WEIGHTS = np.array([[0, 2.0, 0.5], [1.5, 0, 0], [0, 3.0, 0]])
CELLS = [f"{WEIGHTS[i, j]},{j},{i}\n" for i, j in np.argwhere(WEIGHTS)]
TABLE = "weight,prediction,label\n" + "".join(CELLS)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return saved(FRAME, tmp_path_factory.mktemp("pool"))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "weights.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture
def refuse(tmp_path, capsys):
    roles = {"label": "label", "old_prediction": "old", "replay_prediction": "new"}
    return refusing("shift", tmp_path, capsys, FRAME, budget=60, **roles)


def weighted(items, lam, column="new"):
    """Σ_j W_ij·(1[new = j] − λ·1[old = j]) of items, and its parts by class."""
    rows = FRAME.loc[items]
    differences = [(rows[column] == j).astype(float) - lam * (rows["old"] == j) for j in range(3)]
    parts = {j: WEIGHTS[rows["label"], j] * one for j, one in enumerate(differences)}
    return pd.DataFrame(parts, index=rows.index)


@pytest.mark.parametrize("method", METHODS)
def test_the_weighted_estimate_variances_and_optima(method, pool, table, tmp_path):
    flags = ["--data", pool, *REPLAYED, "--difficulty", "confidence", "--method", method]
    told = shift(tmp_path / "out", *flags, "--budget", 90, "--seed", 5, "--focus", table)["shift"]
    focus, calls = told["focus"], np.array([one["calls"] for one in told["strata"]])
    assert (focus["weights"], focus["of"]) == (WEIGHTS.tolist(), str(table))
    stratum, rows = stratified(FRAME, "confidence", 3, signed=method == "plus")
    sizes, asked = np.bincount(stratum), asked_items(stratum, calls.tolist(), 5)
    cells = weighted(asked, told.get("reliance", 0.0))
    strata = cells.groupby(stratum[asked])
    # The variance of each stratum and the allocation by p·σ.
    spread = strata.var().sum(axis=1, min_count=1).reindex(range(len(sizes)))
    known = [one.get("variance", np.nan) for one in told["strata"]]
    np.testing.assert_allclose(known, spread, atol=1e-12)
    best = sizes * np.sqrt(spread)
    best = 90 * best / best.sum()
    optimal = [one.get("optimal_calls", np.nan) for one in told["strata"]]
    np.testing.assert_allclose(optimal, best, atol=1e-9)
    # The sum, its error, and the interval.
    new, old = (matrix(FRAME, column, told) for column in ("new", "old"))
    before = float((WEIGHTS * old).sum())
    value = float((WEIGHTS * np.array(told["new_matrix"])).sum())
    share = sizes / sizes.sum()
    w = share**2 * (1 - calls / sizes) / calls
    of_label = np.bincount(rows, w) / np.bincount(rows, share)
    unseen = (WEIGHTS.max(axis=1) * of_label) ** 2
    squared = (w * cells.sum(axis=1).groupby(stratum[asked]).var().fillna(0)).sum()
    squared += 3 * unseen.sum()
    error = np.sqrt(squared)
    assert focus["before"] == pytest.approx(before)
    assert focus["after"]["value"] == pytest.approx(value)
    moved, half = value - before, stats.norm.ppf(0.975) * error
    assert focus["shift"]["value"] == pytest.approx(moved)
    if method == "masa":
        # It is widened for the bias, as the accuracy is.
        assert focus["shift"]["hi"] - moved > half
        return
    assert focus["shift"]["lo"] == pytest.approx(moved - half)
    assert focus["shift"]["hi"] == pytest.approx(moved + half)
    assert focus["after"]["hi"] == pytest.approx(value + half)
    assert focus["p_value"] == pytest.approx(2 * stats.norm.sf(abs(moved) / error))
    assert abs(value - (WEIGHTS * new).sum()) < 4 * error


@pytest.mark.parametrize("method", METHODS)
def test_variances_without_a_focus_are_the_scores_of_the_paper(method, pool, tmp_path):
    told = shift(tmp_path, "--data", pool, *REPLAYED, "--method", method, "--budget", 120)["shift"]
    assert "focus" not in told
    if method == "plus":
        return
    stratum = FRAME["label"]
    calls = [one["calls"] for one in told["strata"]]
    asked = asked_items(stratum, calls, 0)
    shares = FRAME.loc[asked].groupby("label")["new"].value_counts(normalize=True)
    # σ̂² = (1 − Σ μ̂²)·N/(N − 1).
    score = (1 - (shares**2).groupby("label").sum()) * np.array(calls) / (np.array(calls) - 1)
    np.testing.assert_allclose([one["variance"] for one in told["strata"]], score)
    assert sum(one["optimal_calls"] for one in told["strata"]) == pytest.approx(120)


def test_the_focus_on_the_accuracy_is_the_accuracy_and_asks_for_it(pool, tmp_path):
    flags = ["--data", pool, *REPLAYED, "--budget", 200]
    plain = shift(tmp_path / "plain", *flags)
    found = shift(tmp_path / "focus", *flags, "--focus", "accuracy")
    focus, change = found["shift"]["focus"], found["global"][0]
    assert focus["weights"] == np.eye(3).tolist()
    assert (focus["before"], focus["after"]) == (change["before"]["value"], change["after"])
    assert (focus["shift"], focus["p_value"]) == (change["delta"], change["p_value"])
    assert focus["higher_is_better"]
    assert found["shift"]["frobenius_bound"] < plain["shift"]["frobenius_bound"]


def test_the_focus_on_a_cell_is_the_cell(pool, tmp_path):
    found = shift(tmp_path, "--data", pool, *REPLAYED, "--budget", 300, "--focus", "1:2")["shift"]
    focus = found["focus"]
    assert focus["weights"] == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    at = (found["shift"][1][2], found["shift_lo"][1][2], found["shift_hi"][1][2])
    assert tuple(focus["shift"][key] for key in ("value", "lo", "hi")) == pytest.approx(at)
    assert not focus["higher_is_better"]
    calls = [one["calls"] for one in found["strata"]]
    # All of the label, and no other label until it is used up.
    assert calls[1] == min(296, found["strata"][1]["size"])


def test_a_target_error_is_of_the_weighted_cells(pool, table, tmp_path):
    flags = ["--data", pool, *REPLAYED, "--target-error", 0.03]
    plain = shift(tmp_path / "plain", *flags)["shift"]
    cell = shift(tmp_path / "cell", *flags, "--focus", "1:2")["shift"]
    assert cell["stopped"] == "target_error"
    assert cell["frobenius_bound"] <= 0.03
    assert cell["cost"]["calls"] < plain["cost"]["calls"]


def test_the_gate_judges_the_focus_alone(tmp_path, capsys):
    # Label 0 is taken for 1 more often, and label 1 is always right now: the accuracy rises.
    old = FRAME["label"].mask(FRAME["label"] == 1, 2)
    new = FRAME["label"].mask((FRAME["label"] == 0) & (FRAME["x2"] > 0), 1)
    pool = saved(FRAME.assign(old=old, new=new), tmp_path)
    flags = ["--data", pool, *REPLAYED, "--budget", 300, "--fail-on", "worse"]
    shift(tmp_path / "accuracy", *flags)
    shift(tmp_path / "focus accuracy", *flags, "--focus", "accuracy")
    found = shift(tmp_path / "worse", *flags, "--focus", "0:1", code=1)
    assert found["gate"]["reasons"][0].startswith("--focus 0:1: 0 → 0.")
    assert found["global"][0]["direction"] == "improved"
    found = shift(tmp_path / "right", *flags, "--focus", "0:0", code=1)
    assert found["shift"]["focus"]["direction"] == "degraded"
    found = shift(tmp_path / "better", *flags, "--focus", "1:2")
    assert found["shift"]["focus"]["direction"] == "improved"
    assert found["summary"].startswith("PASS")
    mixed = tmp_path / "weights.csv"
    mixed.write_text("label,prediction,weight\n0,0,1\n0,1,1\n")
    focus = ["--focus", str(mixed), "--output", str(tmp_path / "m")]
    assert run(["shift", *map(str, flags), *focus]) == 2
    said = capsys.readouterr().err
    assert "cannot judge --focus: right and wrong predictions have weights" in said
    told = shift(tmp_path / "mixed", *flags[:-2], "--focus", mixed)["shift"]["focus"]
    assert told["direction"] == "none"


def test_what_is_shown_of_a_focus(pool, tmp_path, capsys):
    flags = ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--focus", "1:2"]
    assert run([*flags, "--output", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "points (95% interval" in said
    assert said.count("--focus 1:2: 0.") == 1
    assert "Frobenius, weighted by --focus 1:2" in said
    assert run([*flags, "--output", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["shift"]["focus"]
    assert told["of"] == "1:2"
    assert told["after"]["lo"] < told["after"]["value"] < told["after"]["hi"]


def test_a_study_measures_the_weighted_error(pool, capsys):
    flags = ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--repeat", "20", "--json"]
    errors = []
    for focus in ([], ["--focus", "1:2"]):
        assert run([*flags, *focus]) == 0
        errors.append(json.loads(capsys.readouterr().out)["mse_frobenius"])
    assert errors[1] < errors[0] / 3


LABELS = {0: "a", 1: "a:b", 2: "b"}
NAMED = FRAME.assign(**{name: FRAME[name].map(LABELS) for name in ("label", "old", "new")})


CELLS_OF = {"a:b": (0, 2), "b:a": (2, 0), "a:b:a": (1, 0), "b:a:b": (2, 1), "a:no result": None}


@pytest.mark.parametrize(("focus", "cell"), CELLS_OF.items())
def test_names_of_classes_may_contain_colons(focus, cell, tmp_path):
    flags = ["--data", saved(NAMED, tmp_path), *REPLAYED, "--budget", 60, "--focus", focus]
    weights = np.array(shift(tmp_path / "out", *flags)["shift"]["focus"]["weights"])
    # No answer was "no result", so that its column is not reported.
    assert [tuple(at) for at in np.argwhere(weights)] == ([] if cell is None else [cell])


WRONG = {
    "precision": "--focus 'precision' is not a valid focus; give accuracy, a cell LABEL:PREDICTION or",
    "1:22": "--focus: unknown prediction '22'; did you mean '2'? predictions: 0, 1, 2, no result",
    "11:2": "--focus: unknown label '11'; did you mean '1'? labels: 0, 1, 2",
    "x:y": "--focus: unknown label 'x'; labels: 0, 1, 2",
    "DIR/none.csv": "--focus DIR/none.csv: no such file",
}


@pytest.mark.parametrize("focus", WRONG)
def test_a_focus_that_is_wrong(focus, refuse, tmp_path):
    assert WRONG[focus] in refuse(focus=focus.replace("DIR", str(tmp_path)))


def test_a_cell_that_could_be_two(refuse):
    names, classes = ("label", "old", "new"), {0: "a", 1: "a:a", 2: "b"}
    frame = FRAME.assign(**{name: FRAME[name].map(classes) for name in names})
    said = "--focus 'a:a:a' could be label 'a' or 'a:a'; name the cell in a table"
    assert said in refuse(data=frame, focus="a:a:a")


TABLES = {
    "": "is empty; start with a header line",
    "label,weight\n0,1\n": "its columns are label, weight; give label, prediction and weight, each once",
    "label,prediction,weight,note\n0,1,1,x\n": "its columns are label, prediction, weight, note; give",
    "label,prediction,weight\n0,1\n": "row 1: 2 cells under a header of 3",
    "label,prediction,weight\n0,1,1\n0,9,1\n": "row 2: unknown prediction '9'; predictions: 0, 1, 2,",
    "label,prediction,weight\n7,1,1\n": "row 1: unknown label '7'; labels: 0, 1, 2",
    "label,prediction,weight\n0,1,1\n0,1,2\n": "row 2: 0, 1 is there twice; keep one weight",
    "label,prediction,weight\n0,1,-1\n": "row 1: weight '-1' is not a valid weight; give 0, or a number from",
    "label,prediction,weight\n0,1,nan\n": "row 1: weight 'nan' is not",
    "label,prediction,weight\n0,1,inf\n": "row 1: weight 'inf' is not",
    "label,prediction,weight\n0,1,1_0\n": "row 1: weight '1_0' is not",
    "label,prediction,weight\n0,1,\n": "row 1: weight '' is not",
    "label,prediction,weight\n0,1,1e-9\n": "row 1: weight '1e-9' is not",
    "label,prediction,weight\n0,1,0\n": "no cell has a weight above 0",
    "label,prediction,weight\n": "no cell has a weight above 0",
}


@pytest.mark.parametrize("text", TABLES)
def test_a_table_that_is_wrong(text, refuse, tmp_path):
    path = tmp_path / "weights.csv"
    path.write_text(text)
    said = refuse(focus=path)
    assert said.startswith("--focus DIR/weights.csv")
    assert TABLES[text] in said


def test_the_accuracy_is_not_surer_than_the_few_calls_of_other_cells(tmp_path):
    """Strata of other labels get two calls each, which often agree."""
    rng = np.random.default_rng(4)
    label = rng.integers(0, 2, 3000)
    new = np.where(rng.random(3000) < 0.1, 1 - label, label)
    frame = pd.DataFrame({"label": label, "old": label, "new": new})
    pool, truth, held = saved(frame, tmp_path), float((new == label).mean()), []
    for seed in range(10):
        flags = ["--data", pool, *REPLAYED, "--seed", seed, "--focus", "1:0"]
        (change,) = shift(tmp_path / "out", *flags, "--budget", 150)["global"]
        held.append(change["after"]["lo"] <= truth <= change["after"]["hi"])
    assert sum(held) >= 9


@pytest.fixture(scope="module")
def frame():
    return made()


def with_gaps(frame):
    part = frame["part"].mask(frame["size"] == 0)
    size = frame["size"].astype("Int64").mask(frame["part"] == "b")
    new = frame["is_new"].astype("boolean").mask(frame["size"] == 1)
    weight = (frame["size"] / 2).mask(frame["part"] == "a")
    return frame.assign(part=part, size=size, is_new=new, weight=weight)


@pytest.mark.parametrize("column", ["part", "size", "is_new", "weight"])
def test_slices_by_a_column(column, frame, tmp_path):
    data = with_gaps(frame)
    flags = ["--data", saved(data, tmp_path), *REPLAYED, "--difficulty", "confidence"]
    found = shift(tmp_path / "out", *flags, "--budget", 80, "--by", column)
    told = found["shift"]
    stratum, rows = stratified(frame, "confidence", 3, signed=True)
    whole = shift_runs.oracle_pool(frame, stratum, rows)
    asked = asked_items(stratum, [one["calls"] for one in told["strata"]], 0)
    values = data[column]
    expected = {f"{column} is null": values.isna()}
    for value in values.dropna().unique():
        expected[value] = (values == value).fillna(value=False)
    assert len(found["slices"]) == len(expected)
    by_id = {one["slice_id"]: one for one in told["slices"]}
    p_values = []
    for one in found["slices"]:
        (condition,) = one["definition"]["predicate"]["all"]
        value = f"{column} is null" if condition["op"] == "is_null" else condition["value"]
        held = expected[value].astype(bool).tolist()
        assert condition["field"] == column
        assert (one["size"]["n"], one["origin"]["method"]) == (sum(held), "manual")
        mine, change = by_id[one["slice_id"]], one["changes"][0]
        assert mine["calls"] == sum(held[item] for item in asked)
        # The reliance is that of the slice's own items.
        (lam,) = slice_reliance(whole, asked, held)
        slow = shift_oracle.slice_estimate(whole, asked, set(np.flatnonzero(held)), lam)
        errors = np.sqrt(slow.variance + 3 * slow.unseen[:, None] ** 2)
        error = np.sqrt(slow.accuracy_variance + 3 * (slow.unseen**2).sum())
        old = matrix(frame[held], "old", told)
        share = old.sum(axis=1, keepdims=True)
        new = shift_runs.within_shares(slow.matrix, share)[:, :-1]
        np.testing.assert_allclose(mine["old_matrix"], old, atol=1e-12)
        np.testing.assert_allclose(mine["new_matrix"], new, atol=1e-9)
        low = np.maximum(new - old - Z * errors[:, :-1], -old)
        high = np.minimum(new - old + Z * errors[:, :-1], share - old)
        np.testing.assert_allclose(mine["shift_lo"], low, atol=1e-9)
        np.testing.assert_allclose(mine["shift_hi"], high, atol=1e-9)
        was = (frame["label"] == frame["old"])[held].mean()
        delta, after = change["delta"], change["after"]
        accuracy = min(max(slow.accuracy, 0), 1)
        assert change["before"]["value"] == pytest.approx(was)
        assert after["value"] == pytest.approx(accuracy)
        assert delta["value"] == pytest.approx(accuracy - was, abs=1e-9)
        assert delta["lo"] == pytest.approx(max(accuracy - was - Z * error, -was), abs=1e-9)
        assert delta["hi"] == pytest.approx(min(accuracy - was + Z * error, 1 - was), abs=1e-9)
        p_values.append(change["p_value"])
        assert one["impact"] == pytest.approx(sum(held) * (accuracy - was), abs=1e-6)
    q = stats.false_discovery_control(p_values)
    assert [one["changes"][0]["p_adjusted"] for one in found["slices"]] == pytest.approx(q.tolist())


def slice_reliance(whole, asked, held):
    """Λ of the items of a slice, where an item outside of it counts as 0."""
    above = below = 0.0
    for items in shift_oracle.by_stratum(whole, asked):
        p = whole.sizes[whole.stratum[items[0]]] / len(whole.items)
        for j in range(whole.shape[1]):
            new = [float(held[item] and whole.new[item] == j) for item in items]
            old = [float(held[item] and whole.old[item] == j) for item in items]
            above += p**2 / len(items) * shift_oracle.covariance(new, old)
            below += p**2 / len(items) * shift_oracle.variance(old)
    return (min(1.0, max(0.0, above / below)) if below > 0 else 0.0,)


def test_slices_by_label_are_the_rows_of_the_matrix(frame, tmp_path):
    flags = ["--data", saved(frame, tmp_path), *REPLAYED, "--method", "proportional"]
    found = shift(tmp_path, *flags, "--budget", 200, "--by", "label")["shift"]
    shares = np.array(found["old_matrix"]).sum(axis=1)
    for row in range(3):
        mine = next(one for one in found["slices"] if sum(one["old_matrix"][row]) > 0)
        for name in ("old_matrix", "new_matrix", "shift", "shift_lo", "shift_hi"):
            of_slice, of_all = np.array(mine[name]), np.array(found[name][row]) / shares[row]
            np.testing.assert_allclose(of_slice[row], of_all, atol=1e-9)
            assert not np.delete(of_slice, row, axis=0).any()


def test_slices_of_a_search(frame, tmp_path):
    wrong = (frame["part"] == "b") & (frame["size"] >= 2)
    worse = frame["label"].mask(wrong, (frame["label"] + 1) % 3)
    data = saved(frame.assign(old=worse), tmp_path)
    searched = ["search", "--data", data, "--label", "label", "--prediction", "old", "--quiet"]
    searched += ["--features", "part,size", "--output", str(tmp_path / "search")]
    assert run(searched) == 0
    slices = shift_runs.document(tmp_path / "search")["slices"]
    assert slices
    flags = ["--data", data, *REPLAYED, "--budget", 200]
    given = ["--changelist", tmp_path / "search" / "changelist.json"]
    found = shift(tmp_path / "out", *flags, *given)
    held = {one["slice_id"]: one["size"]["n"] for one in slices}
    assert {one["slice_id"] for one in found["slices"]} == set(held)
    for one in found["slices"]:
        assert (one["size"]["n"], one["origin"]["method"]) == (held[one["slice_id"]], "imported")
    change = found["slices"][0]["changes"][0]
    assert (change["direction"], change["significant"]) == ("improved", True)


def test_a_slice_without_a_call_is_unsure(frame, tmp_path):
    rare = frame.assign(part=["rare"] + ["often"] * (len(frame) - 1))
    flags = ["--data", saved(rare, tmp_path), *REPLAYED, "--budget", 30, "--by", "part"]
    seed = next(s for s in range(9) if 0 not in asked_items(frame["label"], [10] * 3, s))
    found = shift(tmp_path / "out", *flags, "--seed", seed)
    (one,) = (one for one in found["slices"] if one["size"]["n"] == 1)
    calls = {each["slice_id"]: each["calls"] for each in found["shift"]["slices"]}
    assert calls[one["slice_id"]] == 0
    change = one["changes"][0]
    assert change["delta"]["value"] == 0
    assert (change["after"]["lo"], change["after"]["hi"]) == (0, 1)
    assert not change["significant"]


def test_intervals_of_slices_cover():
    random = np.random.default_rng(3)
    rows, runs, budget = 3000, 200, 300
    label = np.sort(random.integers(0, 3, rows))
    old = np.where(random.random(rows) < 0.8, label, random.integers(0, 3, rows))
    new = np.where(random.random(rows) < 0.12, random.integers(0, 3, rows), old)
    slice_of, sizes = random.choice(4, rows, p=[0.5, 0.3, 0.15, 0.05]), np.bincount(label)
    old_counts = np.stack([np.bincount(old[label == i], minlength=4) for i in range(3)])
    strata = Strata(np.arange(3), sizes, (3, 4), np.arange(3), old_counts)
    cells = np.zeros((4, 3, 4))
    np.add.at(cells, (slice_of, label, old), 1)
    held = np.bincount(slice_of)
    told = Subpools(held / rows, cells.sum(axis=2) / held[:, None], cells / held[:, None, None])
    truth = np.array([(new == label)[slice_of == g].mean() for g in range(4)])
    covered = np.zeros(4)
    for _ in range(runs):
        rows_of = [np.flatnonzero(label == i) for i in range(3)]
        asked = np.concatenate([random.choice(r, budget // 3, replace=False) for r in rows_of])
        sample = Sample.empty(4, 3, 4)
        sample.asked[:] = budget // 3
        at = (slice_of[asked], label[asked])
        np.add.at(sample.new, (*at, new[asked]), 1)
        np.add.at(sample.old, (*at, old[asked]), 1)
        same = (new == old)[asked]
        np.add.at(sample.both, (*(one[same] for one in at), new[asked][same]), 1)
        found = estimate(strata, sample, slices=told)
        error = np.sqrt(found.accuracy_variance + 3 * (found.unseen**2).sum(axis=1))
        covered += np.abs(found.accuracy - truth) <= Z * error
    assert 0.93 <= covered.mean() / runs <= 0.999
