"""Pools at the edge of what a shift can tell: every number still is that of a direct computation."""

import itertools
import json
import math
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from slicebeam.pipelines.commands.cli import run
from tests import shift_runs
from tests.conftest import slow
from tests.shift_runs import METHODS, REPLAYED, ROLES, made, matrix, saved, shift

NAMES = ["", ' "é"\n,=', "null"]


@cache
def worlds():
    random, some = np.random.default_rng(5), made(90, churn=0.2)
    row, label, old, new = (some.index, some["label"], some["old"], some["new"])
    confidence, roles = some["confidence"], some[["label", "old", "new"]]
    none, strange = pd.Series([None] * 90, dtype=object), new.mask(random.random(90) < 0.2, -1)
    return {
        "nothing degenerate": some,
        "classes that are no label": some.assign(old=old.replace(2, 10), new=strange),
        "labels never predicted": some.assign(old=old.replace(2, 0), new=new.replace(2, 1)),
        "never predicted again": some.assign(new=new.replace(2, 1)),
        "strata of one item": some.assign(label=label.mask(row == 0, 7).mask(row == 1, 8)),
        "equal confidences": some.assign(confidence=0.5),
        "two confidences": some.assign(confidence=np.where(row % 3 == 0, 0.1, 0.9)),
        "some confidences missing": some.assign(confidence=confidence.mask(row % 2 == 0)),
        "a label without confidence": some.assign(confidence=confidence.mask(label == 1)),
        "no confidence": some.assign(confidence=np.nan),
        "confidences of all sizes": some.assign(confidence=(-1.0) ** row * 10.0 ** (row * 6 - 300)),
        "some answers are none": some.assign(new=new.astype(object).mask(row % 4 == 0, None)),
        "no answer at all": some.assign(new=none.astype("Int64")),
        "all changed": some.assign(new=(old + 1) % 3),
        "none changed": some.assign(new=old),
        "old always right": some.assign(old=label),
        "new always right": some.assign(new=label),
        "always right": some.assign(old=label, new=label),
        "one label": some.assign(label=0),
        "one class": some.assign(label=0, old=0, new=0),
        "30 labels": made(150, labels=30, churn=0.3),
        "odd names": some.assign(**roles.map(lambda one: NAMES[one])),
        "text that looks like numbers": some.assign(**roles.map(lambda one: f"{one}.0")),
        "booleans": some.assign(**roles.map(lambda one: one == 1)),
        "booleans and whole floats": some.assign(label=label == 1, old=(old == 1) * 1.0),
        "a rare label": some.assign(label=(row < 3) * 1, old=(row < 2) * 1, new=(row % 9 == 2) * 1),
    }


# Much like worlds that run by default.
ALIKE = {"never predicted again", "two confidences", "no confidence", "always right", "one class"}
ALIKE |= {"text that looks like numbers", "booleans", "old always right"}


def everything(turn, step):
    """All methods on all worlds, of which by default every so many run, with one method each."""
    names = list(enumerate(list(worlds())[turn::step], turn))
    turns = {(name, METHODS[at % len(METHODS)]) for at, name in names if name not in ALIKE}
    # Where a control variate leads to less than nothing.
    turns.add(("30 labels", "plus"))
    return [pair if pair in turns else slow(*pair) for pair in itertools.product(worlds(), METHODS)]


def numbers(part):
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from numbers(one)
    elif isinstance(part, (int, float)):
        yield part


def check_shares(told):
    names = ("shift", "old_matrix", "new_matrix", "shift_lo", "shift_hi")
    shift_of, old, new, low, high = (np.array(told[name]) for name in names)
    rows = old.sum(axis=1, keepdims=True)
    assert old.min() >= 0
    assert old.sum() == pytest.approx(1)
    assert new.min() >= 0
    assert (new <= rows + 1e-12).all()
    if "strata" in told:
        # The shares of the labels are known.
        assert new.sum(axis=1) == pytest.approx(rows[:, 0])
    np.testing.assert_allclose(shift_of, new - old, atol=1e-12)
    assert (low <= shift_of + 1e-12).all()
    assert (shift_of <= high + 1e-12).all()
    assert (low >= -old - 1e-12).all()
    assert (high <= rows - old + 1e-12).all()


def check_sound(found):
    assert all(math.isfinite(one) for one in numbers(found))
    told = found["shift"]
    for one in [found["global"][0], *(each["changes"][0] for each in found["slices"])]:
        assert 0 <= one["p_value"] <= 1
        for part in (one["after"], one["delta"]):
            assert part["lo"] - 1e-12 <= part["value"] <= part["hi"] + 1e-12
    for one in told["changed"]:
        assert 0 <= one["p_value"] <= one["p_adjusted"] <= 0.05
    check_shares(told)
    for one in told["slices"]:
        check_shares(one)
    assert told["cost"]["calls"] == sum(one["calls"] for one in told["strata"])


def weights_of(frame, stratum, method):
    share = stratum.value_counts(normalize=True, sort=False).sort_index().to_numpy()
    if method == "proportional":
        return share
    spread = 1 - (pd.crosstab(stratum, frame["old"], normalize="index").to_numpy() ** 2).sum(axis=1)
    # Where no old prediction varies within a stratum there is nothing to go by but sizes.
    return share * np.sqrt((spread + share @ spread) / 2) if spread.max() > 1e-12 else share


def check_calls(calls, weights, sizes):
    """Hold each stratum's last call against those that were not made: none was more wanted."""
    made_of = np.array(calls)
    assert (made_of >= np.minimum(sizes, 2)).all()
    last = (weights / np.maximum(made_of - 1, 1))[made_of > 2].min(initial=np.inf)
    assert last >= (weights / made_of)[made_of < sizes].max(initial=0) * (1 - 1e-9)


def flags_of(name, folder, method):
    flags = ["--data", saved(worlds()[name], folder), *REPLAYED, "--method", method]
    return [*flags, "--difficulty", "confidence", "--price", 0, "--by", "part"]


@pytest.mark.parametrize(("name", "method"), [
    pair if pair[0] == "nothing degenerate" else slow(*pair) for pair in itertools.product(worlds(), METHODS)
])  # fmt: skip
def test_every_number_of_a_degenerate_pool(name, method, tmp_path):
    frame, seed = worlds()[name], 3
    difficulty = None if frame["confidence"].isna().all() else "confidence"
    stratum, _ = shift_runs.stratified(frame, difficulty, 3, signed=method == "plus")
    sizes = stratum.value_counts(sort=False).sort_index()
    budget = max(int(np.minimum(sizes, 2).sum()), len(frame) // 2)
    found = shift(tmp_path, *flags_of(name, tmp_path, method), "--budget", budget, "--seed", seed)
    check_sound(found)
    _, calls = shift_runs.check_every_number(found, frame, method, difficulty, seed)
    assert sum(calls) == budget
    if method in ("plus", "proportional"):
        check_calls(calls, weights_of(frame, stratum, method), sizes.to_numpy())


@pytest.mark.parametrize(("name", "method"), everything(2, 6))
def test_a_budget_of_the_whole_pool_tells_it_exactly(name, method, tmp_path):
    frame = worlds()[name]
    found = shift(tmp_path, *flags_of(name, tmp_path, method), "--budget", len(frame))
    check_sound(found)
    told, change = found["shift"], found["global"][0]
    old, new = matrix(frame, "old", told), matrix(frame, "new", told)
    for part, exact in (("old_matrix", old), ("new_matrix", new), ("new_errors", 0 * new)):
        np.testing.assert_allclose(told[part], exact, atol=1e-12)
    for part in ("shift_lo", "shift_hi"):
        np.testing.assert_allclose(told[part], new - old, atol=1e-12)
    really = np.argwhere(np.abs(new - old) > 1e-12).tolist()
    assert {(one["label"], one.get("prediction")) for one in told["changed"]} == {
        (told["labels"][i], told["predictions"][j]) for i, j in really
    }
    assert told["frobenius_bound"] == pytest.approx(0, abs=1e-9)
    assert (told["stopped"], told["cost"]["calls"]) == ("pool", len(frame))
    right = (frame["label"] == frame["new"]).fillna(value=False).mean()
    was = (frame["label"] == frame["old"]).mean()
    for bound in ("value", "lo", "hi"):
        assert change["after"][bound] == pytest.approx(right)
        assert change["delta"][bound] == pytest.approx(right - was, abs=1e-12)
    assert change["p_value"] == (1 if abs(right - was) < 1e-12 else 0)
    # Slices too are known wholly.
    for one in found["slices"]:
        (condition,) = one["definition"]["predicate"]["all"]
        held = frame[frame["part"] == condition["value"]]
        right = (held["label"] == held["new"]).fillna(value=False).mean()
        assert one["size"]["n"] == len(held)
        assert one["changes"][0]["after"]["value"] == pytest.approx(right)
        assert one["changes"][0]["after"]["lo"] == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("method", ["plus", *map(slow, METHODS[1:])])
def test_few_answers_that_agree_are_no_certainty(method, tmp_path):
    frame = worlds()["new always right"]
    flags = ["--data", saved(frame, tmp_path), *REPLAYED, "--method", method, "--budget", 6]
    change = shift(tmp_path, *flags, "--seed", 1)["global"][0]
    assert change["after"]["value"] == pytest.approx(1)
    assert change["before"]["value"] < 0.9
    # Right six times in six: the rule of three has it that this may be one in two.
    assert change["after"]["lo"] < 0.6
    assert change["p_value"] > 0.5
    assert not change["significant"]


@pytest.mark.parametrize("method", ["plus", *map(slow, METHODS[1:])])
def test_a_pool_of_one_item(method, tmp_path, capsys):
    one = made(1).assign(label=1, old=1, new=None)
    one["new"] = one["new"].astype("Int64")
    flags = ["--data", saved(one, tmp_path), *REPLAYED, "--difficulty", "confidence"]
    found = shift(tmp_path, *flags, "--method", method, "--budget", 1)
    check_sound(found)
    told = found["shift"]
    assert (told["labels"], told["predictions"]) == ([1], [1, None])
    assert (told["old_matrix"], told["new_matrix"]) == ([[1, 0]], [[0, 1]])
    assert len(told["changed"]) == 2
    assert found["global"][0]["after"] == {"value": 0, "lo": 0, "hi": 0, "confidence": 0.95}
    plan = ["--plan", "--repeat", "2", "--json", "--method", method, "--output", str(tmp_path)]
    assert run(["shift", *flags[:2], *ROLES, *plan]) == 0
    planned = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert {(each["budget"], each["q95_frobenius"]) for each in planned} == {(1, 0)}


@pytest.mark.parametrize("method", ["plus", *map(slow, METHODS[1:])])
def test_a_target_that_any_sample_reaches(method, tmp_path):
    # One class: nothing varies, and the rule still waits for what was not seen.
    one = made(400).assign(label=0, old=0, new=0)
    flags = ["--data", saved(one, tmp_path), *REPLAYED, "--method", method]
    found = shift(tmp_path, *flags, "--target-error", 0.1)
    check_sound(found)
    told = found["shift"]
    assert told["stopped"] == "target_error"
    assert 100 <= told["cost"]["calls"] < 400
    calls = told["cost"]["calls"]
    unseen = 2 * (1 - calls / 400) / calls**2 * stats.norm.ppf(0.95) ** 2
    bound = math.sqrt(unseen * stats.chi2.ppf(0.95, 0.5) / 0.5)
    assert told["frobenius_bound"] == pytest.approx(bound)


STUDIED = ["none changed", "no answer at all"]
STUDIED += map(slow, ["one class", "strata of one item", "one label"])


@pytest.mark.parametrize("name", STUDIED)
def test_studies_and_plans_of_degenerate_pools(name, tmp_path, capsys):
    frame = worlds()[name]
    flags = ["shift", "--data", saved(frame, tmp_path), "--difficulty", "confidence", "--json"]
    flags += ["--output", str(tmp_path / "out"), "--quiet", "--repeat", "5"]
    budget = ["--budget", str(len(frame))]
    assert run([*flags, *REPLAYED, *budget]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    # The whole pool was asked in each run.
    assert told["mse_frobenius"] == pytest.approx(0, abs=1e-12)
    assert told["accuracy_bias"] == pytest.approx(0, abs=1e-12)
    assert (told["accuracy_coverage"], told["cell_coverage"]) == (1, 1)
    if name in ("none changed", "one class"):
        assert run([*flags, *ROLES, "--plan", *budget]) == 0
        planned = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert {one["method"] for one in planned} == set(METHODS)
        assert [one["q95_frobenius"] for one in planned] == pytest.approx([0] * len(planned))
