"""``slicebeam shift``: every number against a direct computation, and all that it may be asked."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats
from sklearn.linear_model import LogisticRegression

from slicebeam.metrics.shift.estimates import Slices, estimate
from slicebeam.metrics.shift.strata import Sample, Strata
from slicebeam.pipelines.changelist import json_schema
from slicebeam.pipelines.cli import run
from tests import shift_oracle
from tests.running import refused
from tests.shift_runs import (
    REPLAYED,
    ROLES,
    asked_items,
    document,
    made,
    matrix,
    oracle_pool,
    saved,
    shift,
    stratified,
    timeless,
    within_shares,
)

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ("plus", "masa", "proportional", "uniform")
Z = stats.norm.isf(0.025)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return made()


@pytest.fixture(scope="module")
def pool(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(frame, tmp_path_factory.mktemp("pool"))


def bound_of(direct: shift_oracle.Direct) -> float:
    """The stopping rule's bound, as it is documented."""
    z = stats.norm.ppf(0.95)
    spread = 2 * (direct.variance**2).sum()
    degrees = max(0.5, direct.loss**2 / spread) if spread else 0.5
    scale = direct.loss + z * direct.loss_error + z**2 * direct.loss_unseen
    return float(np.sqrt(scale * stats.chi2.ppf(0.95, degrees) / degrees))


def uniform_estimate(whole: shift_oracle.Pool, asked: list[int]) -> shift_oracle.Direct:
    """The pool as one stratum, whose classes are the cells."""
    labels, predictions = whole.shape
    cells = [whole.label(item) * predictions + whole.new[item] for item in whole.items]
    one = shift_oracle.Pool([0] * len(cells), cells, cells, [0], (1, labels * predictions), [0])
    found = shift_oracle.estimate(one, asked, 0.0)
    right = [float(whole.is_right(item, whole.new[item])) for item in asked]
    found.accuracy = float(np.mean(right))
    share = len(asked) / len(cells)
    found.accuracy_variance = float(np.var(right, ddof=1)) * (1 - share) / len(asked)
    found.matrix = found.matrix.reshape(whole.shape)
    found.variance = found.variance.reshape(whole.shape)
    found.unseen = np.repeat(found.unseen, labels)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_every_number_against_a_direct_computation(
    method: str, frame: pd.DataFrame, pool: str, tmp_path: Path
) -> None:
    flags = ["--data", pool, *REPLAYED, "--difficulty", "confidence", "--method", method]
    found = shift(tmp_path, *flags, "--budget", 90, "--price", 0.25, "--seed", 5)
    told, change = found["shift"], found["global"][0]
    stratum, rows = stratified(frame, "confidence", 3, signed=method == "plus")
    calls = [one["calls"] for one in told["strata"]]
    assert [one["label"] for one in told["strata"]] == rows
    assert [one["size"] for one in told["strata"]] == stratum.value_counts(
        sort=False
    ).sort_index().tolist()
    assert sum(calls) == told["cost"]["calls"] == 90
    if method == "uniform":
        hashed = asked_items(pd.Series(np.zeros(len(frame), int)), [90], 5)
        assert calls == np.bincount(stratum[hashed], minlength=len(rows)).tolist()
        asked = hashed
    else:
        asked = asked_items(stratum, calls, 5)
    if method in ("plus", "proportional"):
        assert calls == direct_calls(frame, stratum, method, 90)
    whole = oracle_pool(frame, stratum, rows)
    reliance = shift_oracle.reliance(whole, asked) if method == "plus" else 0.0
    assert told.get("reliance") == (pytest.approx(reliance) if method == "plus" else None)
    if method == "uniform":
        direct = uniform_estimate(whole, asked)
    else:
        direct = shift_oracle.estimate(whole, asked, reliance)
    old = matrix(frame, "old", told)
    share = old.sum(axis=1, keepdims=True)
    # No answer was none, so that the last column is not told.
    new = np.clip(direct.matrix[:, :-1], 0, share)
    errors = np.sqrt(direct.variance + 3 * direct.unseen[:, None] ** 2)[:, :-1]
    change_of = new - old
    near = {"rel": 1e-9, "abs": 1e-12}
    assert told["old_matrix"] == [pytest.approx(row, **near) for row in old.tolist()]
    assert told["new_matrix"] == [pytest.approx(row, **near) for row in new.tolist()]
    assert told["new_errors"] == [pytest.approx(row, **near) for row in errors.tolist()]
    assert told["shift"] == [pytest.approx(row, **near) for row in change_of.tolist()]
    low = np.maximum(change_of - Z * errors, -old)
    high = np.minimum(change_of + Z * errors, share - old)
    assert told["shift_lo"] == [pytest.approx(row, **near) for row in low.tolist()]
    assert told["shift_hi"] == [pytest.approx(row, **near) for row in high.tolist()]
    # The cells of "no result" did not change, and are among those that are corrected for.
    p = np.ones((3, 4))
    p[:, :-1] = 2 * stats.norm.sf(np.abs(change_of) / errors)
    q = stats.false_discovery_control(p.ravel()).reshape(p.shape)
    changed = {(one["label"], one["prediction"]): one for one in told["changed"]}
    assert set(changed) == {(int(i), int(j)) for i, j in np.argwhere(q <= 0.05)}
    for (i, j), one in changed.items():
        assert (one["p_value"], one["p_adjusted"]) == pytest.approx((p[i, j], q[i, j]), rel=1e-6)
        assert one["shift"]["value"] == pytest.approx(change_of[i, j])
    was = (frame["label"] == frame["old"]).mean()
    error = np.sqrt(direct.accuracy_variance)
    moved = direct.accuracy - was
    assert change["before"]["value"] == pytest.approx(was)
    after, delta = change["after"], change["delta"]
    assert (after["value"], after["lo"], after["hi"]) == pytest.approx(
        (direct.accuracy, direct.accuracy - Z * error, min(1, direct.accuracy + Z * error))
    )
    assert (delta["value"], delta["lo"], delta["hi"]) == pytest.approx(
        (moved, moved - Z * error, min(moved + Z * error, 1 - was))
    )
    assert change["p_value"] == pytest.approx(2 * stats.norm.sf(abs(moved) / error))
    assert change["significant"] == (change["p_value"] <= 0.05)
    assert told["frobenius_bound"] == pytest.approx(bound_of(direct))
    assert (told["cost"]["price"], told["cost"]["spent"]) == (0.25, 22.5)


def direct_calls(frame: pd.DataFrame, stratum: pd.Series, method: str, budget: int) -> list[int]:
    """Argmax g/N one call after another, two of each stratum first."""
    sizes = stratum.value_counts().sort_index().to_numpy()
    share = sizes / sizes.sum()
    weights = share
    if method == "plus":
        spread = 1 - np.array(
            [
                (frame["old"][stratum == s].value_counts(normalize=True) ** 2).sum()
                for s in range(len(sizes))
            ]
        )
        weights = share * np.sqrt(spread / 2 + share @ spread / 2)
    counts = np.zeros(len(sizes), int)
    for _ in range(budget):
        score = np.where(counts < sizes, weights / np.maximum(counts, 1), -np.inf)
        score[counts < np.minimum(2, sizes)] = np.inf
        counts[np.argmax(score)] += 1
    return counts.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_the_whole_pool_tells_the_exact_matrices(
    method: str, frame: pd.DataFrame, pool: str, tmp_path: Path
) -> None:
    found = shift(tmp_path, "--data", pool, *REPLAYED, "--method", method, "--budget", 10_000)
    told, change = found["shift"], found["global"][0]
    old, new = matrix(frame, "old", told), matrix(frame, "new", told)
    np.testing.assert_allclose(told["old_matrix"], old, atol=1e-12)
    np.testing.assert_allclose(told["new_matrix"], new, atol=1e-12)
    assert (told["stopped"], told["cost"]["calls"]) == ("pool", len(frame))
    assert told["frobenius_bound"] == pytest.approx(0, abs=1e-9)
    after = change["after"]
    assert after["lo"] == pytest.approx(after["hi"], abs=1e-9)
    assert after["value"] == pytest.approx((frame["label"] == frame["new"]).mean())
    assert change["significant"]
    really = {(int(i), int(j)) for i, j in np.argwhere(np.abs(new - old) > 1e-12)}
    assert {(one["label"], one["prediction"]) for one in told["changed"]} == really
    assert len(really) >= 6


def test_a_pool_that_did_not_change_is_told_so(pool: str, tmp_path: Path) -> None:
    flags = ["--data", pool, *ROLES, "--replay-prediction", "old"]
    for budget in (60, 10_000):
        found = shift(tmp_path, *flags, "--budget", budget)
        assert found["shift"]["changed"] == []
        change = found["global"][0]
        assert (change["p_value"], change["significant"], change["direction"]) == (1, False, "none")
        assert found["shift"]["reliance"] == pytest.approx(1)
        np.testing.assert_allclose(found["shift"]["shift"], 0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_first_of_a_study_with_its_seed(
    method: str,
    frame: pd.DataFrame,
    pool: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--data", pool, *REPLAYED, "--difficulty", "confidence", "--method", method]
    flags += ["--budget", "331", "--seed", "11"]
    found = shift(tmp_path / "one", *flags)
    capsys.readouterr()
    study = ["shift", "--output", str(tmp_path / "two"), "--json", "--repeat", "1", *flags]
    assert run(study) == 0
    told = json.loads(capsys.readouterr().out)
    error = ((found["shift"]["new_matrix"] - matrix(frame, "new", found["shift"])) ** 2).sum()
    assert told["mse_frobenius"] == pytest.approx(error, rel=1e-9)
    bias = found["global"][0]["after"]["value"] - (frame["label"] == frame["new"]).mean()
    assert told["accuracy_bias"] == pytest.approx(bias, abs=1e-12)
    assert set(told) == {
        *("method", "budget", "repeat", "mse_frobenius", "q95_frobenius", "accuracy_bias"),
        *("accuracy_coverage", "cell_coverage", "target_error", "calls_for_target"),
    }
    assert not (tmp_path / "two").exists() or not list((tmp_path / "two").iterdir())


def slice_estimate(
    whole: shift_oracle.Pool, asked: list[int], held: list[bool], lam: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """The matrix of a slice, its variances, its accuracy and that one's widened error, item by item.

    As the notes of `slicebeam.metrics.shift.estimates.estimate` have it.
    """
    L, P = whole.shape
    M = len(whole.items)
    size = sum(held)
    q = size / M
    matrix, variance, unseen = np.zeros((L, P)), np.zeros((L, P)), np.zeros(L)
    ratio = np.zeros((L, P))
    accuracy_variance = 0.0
    asked_of = shift_oracle.by_stratum(whole, asked)
    for i in range(L):
        mine = [item for item in whole.items if held[item] and whole.label(item) == i]
        share = len(mine) / size
        old = [sum(whole.old[item] == j for item in mine) / size for j in range(P)]
        above, seen = np.zeros(P), 0.0
        for s, items in enumerate(asked_of):
            if whole.rows[s] != i:
                continue
            weight = whole.sizes[s] / M / len(items)
            for item in items:
                if held[item]:
                    above[whole.new[item]] += weight
                    above[whole.old[item]] -= weight * lam
                    seen += weight
        if seen > 0:
            ratio[i] = above / seen
            matrix[i] = share * ratio[i] + lam * np.array(old)
        else:
            matrix[i] = old
    for s, items in enumerate(asked_of):
        i, n = whole.rows[s], len(items)
        p = whole.sizes[s] / M
        p_i = sum(whole.sizes[t] for t, row in enumerate(whole.rows) if row == i) / M
        w = p**2 / n * (1 - n / whole.sizes[s])
        if any(held[item] for item in whole.items if whole.label(item) == i):
            unseen[i] += w / p_i / q
        right = whole.right[i]
        for j in range(P):
            values = [
                held[item] * ((whole.new[item] == j) - lam * (whole.old[item] == j) - ratio[i, j])
                for item in items
            ]
            spread = shift_oracle.variance(values)
            variance[i, j] += w * spread / q**2
            if j == right:
                accuracy_variance += w * spread / q**2
    accuracy = sum(matrix[i, whole.right[i]] for i in range(L))
    error = np.sqrt(accuracy_variance + 3 * (unseen**2).sum())
    return matrix, np.sqrt(variance + 3 * unseen[:, None] ** 2), accuracy, error


def with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    part = frame["part"].mask(frame["size"] == 0)
    size = frame["size"].astype("Int64").mask(frame["part"] == "b")
    new = frame["is_new"].astype("boolean").mask(frame["size"] == 1)
    weight = (frame["size"] / 2).mask(frame["part"] == "a")
    return frame.assign(part=part, size=size, is_new=new, weight=weight)


@pytest.mark.parametrize("column", ["part", "size", "is_new", "weight"])
def test_slices_by_a_column(column: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    data = with_gaps(frame)
    flags = ["--data", saved(data, tmp_path), *REPLAYED, "--difficulty", "confidence"]
    found = shift(tmp_path / "out", *flags, "--budget", 80, "--by", column)
    told = found["shift"]
    stratum, rows = stratified(frame, "confidence", 3, signed=True)
    whole = oracle_pool(frame, stratum, rows)
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
        is_null = condition["op"] == "is_null"
        held = (
            expected[f"{column} is null" if is_null else condition["value"]].astype(bool).tolist()
        )
        assert condition["field"] == column
        assert (one["size"]["n"], one["origin"]["method"]) == (sum(held), "manual")
        mine, change = by_id[one["slice_id"]], one["changes"][0]
        assert mine["calls"] == sum(held[item] for item in asked)
        # The reliance is that of the slice's own items.
        (lam,) = slice_reliance(whole, asked, held)
        new, errors, accuracy, error = slice_estimate(whole, asked, held, lam)
        old = matrix(frame[held], "old", told)
        share = old.sum(axis=1, keepdims=True)
        new = within_shares(new, share)[:, :-1]
        np.testing.assert_allclose(mine["old_matrix"], old, atol=1e-12)
        np.testing.assert_allclose(mine["new_matrix"], new, atol=1e-9)
        low = np.maximum(new - old - Z * errors[:, :-1], -old)
        high = np.minimum(new - old + Z * errors[:, :-1], share - old)
        np.testing.assert_allclose(mine["shift_lo"], low, atol=1e-9)
        np.testing.assert_allclose(mine["shift_hi"], high, atol=1e-9)
        was = (frame["label"] == frame["old"])[held].mean()
        delta, after = change["delta"], change["after"]
        accuracy = min(max(accuracy, 0), 1)
        assert change["before"]["value"] == pytest.approx(was)
        assert after["value"] == pytest.approx(accuracy)
        assert delta["value"] == pytest.approx(accuracy - was, abs=1e-9)
        assert delta["lo"] == pytest.approx(max(accuracy - was - Z * error, -was), abs=1e-9)
        assert delta["hi"] == pytest.approx(min(accuracy - was + Z * error, 1 - was), abs=1e-9)
        p_values.append(change["p_value"])
        assert one["impact"] == pytest.approx(sum(held) * (accuracy - was), abs=1e-6)
    q = stats.false_discovery_control(p_values)
    assert [one["changes"][0]["p_adjusted"] for one in found["slices"]] == pytest.approx(q.tolist())


def slice_reliance(whole: shift_oracle.Pool, asked: list[int], held: list[bool]) -> tuple[float]:
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


def test_slices_by_label_are_the_rows_of_the_matrix(frame: pd.DataFrame, tmp_path: Path) -> None:
    flags = ["--data", saved(frame, tmp_path), *REPLAYED, "--method", "proportional"]
    found = shift(tmp_path, *flags, "--budget", 200, "--by", "label")["shift"]
    shares = np.array(found["old_matrix"]).sum(axis=1)
    by_label = [
        next(one for one in found["slices"] if sum(one["old_matrix"][row]) > 0) for row in range(3)
    ]
    for row, mine in enumerate(by_label):
        for name in ("old_matrix", "new_matrix", "shift", "shift_lo", "shift_hi"):
            of_slice, of_all = np.array(mine[name]), np.array(found[name][row]) / shares[row]
            np.testing.assert_allclose(of_slice[row], of_all, atol=1e-9)
            assert not np.delete(of_slice, row, axis=0).any()


def test_slices_of_a_search(frame: pd.DataFrame, tmp_path: Path) -> None:
    wrong = (frame["part"] == "b") & (frame["size"] >= 2)
    worse = frame["label"].mask(wrong, (frame["label"] + 1) % 3)
    data = saved(frame.assign(old=worse), tmp_path)
    searched = ["search", "--data", data, "--label", "label", "--prediction", "old", "--quiet"]
    searched += ["--features", "part,size", "--output", str(tmp_path / "search")]
    assert run(searched) == 0
    slices = document(tmp_path / "search")["slices"]
    assert slices
    flags = ["--data", data, *REPLAYED, "--budget", 200]
    given = ["--changelist", tmp_path / "search" / "changelist.json"]
    found = shift(tmp_path / "out", *flags, *given)
    assert {one["slice_id"] for one in found["slices"]} == {one["slice_id"] for one in slices}
    held = {one["slice_id"]: one["size"]["n"] for one in slices}
    for one in found["slices"]:
        assert one["size"]["n"] == held[one["slice_id"]]
        assert one["origin"]["method"] == "imported"
    assert found["slices"][0]["changes"][0]["direction"] == "improved"
    assert found["slices"][0]["changes"][0]["significant"]


def test_a_slice_without_a_call_is_unsure(frame: pd.DataFrame, tmp_path: Path) -> None:
    rare = frame.assign(part=["rare"] + ["often"] * (len(frame) - 1))
    flags = ["--data", saved(rare, tmp_path), *REPLAYED, "--budget", 30, "--by", "part"]
    seed = next(s for s in range(9) if 0 not in asked_items(frame["label"], [10] * 3, s))
    found = shift(tmp_path / "out", *flags, "--seed", seed)
    (one,) = (one for one in found["slices"] if one["size"]["n"] == 1)
    assert [
        each["calls"] for each in found["shift"]["slices"] if each["slice_id"] == one["slice_id"]
    ] == [0]
    change = one["changes"][0]
    assert change["delta"]["value"] == 0
    assert (change["after"]["lo"], change["after"]["hi"]) == (0, 1)
    assert not change["significant"]


def test_intervals_of_slices_cover() -> None:
    random = np.random.default_rng(3)
    rows, runs, budget = 3000, 200, 300
    label = np.sort(random.integers(0, 3, rows))
    old = np.where(random.random(rows) < 0.8, label, random.integers(0, 3, rows))
    new = np.where(random.random(rows) < 0.12, random.integers(0, 3, rows), old)
    slice_of = random.choice(4, rows, p=[0.5, 0.3, 0.15, 0.05])
    sizes = np.bincount(label)
    old_counts = np.stack([np.bincount(old[label == i], minlength=4) for i in range(3)])
    strata = Strata(np.arange(3), sizes, (3, 4), np.arange(3), old_counts)
    cells = np.zeros((4, 3, 4))
    np.add.at(cells, (slice_of, label, old), 1)
    held = np.bincount(slice_of)
    told = Slices(held / rows, cells.sum(axis=2) / held[:, None], cells / held[:, None, None])
    truth = np.array([(new == label)[slice_of == g].mean() for g in range(4)])
    covered = np.zeros(4)
    for _ in range(runs):
        asked = np.concatenate(
            [
                random.choice(np.flatnonzero(label == i), budget // 3, replace=False)
                for i in range(3)
            ]
        )
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


def test_an_earlier_document_tells_the_old_matrix(frame: pd.DataFrame, tmp_path: Path) -> None:
    first = ["--data", saved(frame, tmp_path, "one.parquet"), *REPLAYED]
    earlier = shift(tmp_path / "one", *first, "--budget", 150)
    later = made(seed=2, churn=0)
    # Other shares of the labels, and label 2 is gone; class 2 is known from the document only.
    later = later[(later["label"] == 0) | (later.index % 3 > 0)]
    later = later.assign(label=later["label"].replace(2, 1), new=later["old"].replace(2, 1))
    second = ["--data", saved(later, tmp_path, "two.parquet"), "--label", "label"]
    second += ["--replay-prediction", "new", "--old-matrix", tmp_path / "one" / "changelist.json"]
    found = shift(tmp_path / "two", *second, "--budget", 120)
    told = found["shift"]
    assert (told["labels"], told["predictions"]) == ([0, 1], [0, 1, 2])
    assert (told["method"], told["old_from"]) == ("proportional", "document")
    before = np.array(earlier["shift"]["new_matrix"])[:2]
    shares = later["label"].value_counts(normalize=True).sort_index().to_numpy()
    scale = (shares / before.sum(axis=1))[:, None]
    np.testing.assert_allclose(told["old_matrix"], before * scale, rtol=1e-9)
    assert any("--old-matrix" in line for line in told["warnings"])
    errors = np.array(earlier["shift"]["new_errors"])[:2] * scale
    together = np.hypot(errors, told["new_errors"])
    moved = np.array(told["shift"])
    np.testing.assert_allclose(told["shift_lo"], np.maximum(moved - Z * together, -shares[:, None]))
    np.testing.assert_allclose(told["shift_hi"], np.minimum(moved + Z * together, shares[:, None]))
    was, now = earlier["global"][0]["after"], found["global"][0]["after"]
    delta = found["global"][0]["delta"]
    width = np.hypot(was["hi"] - was["lo"], now["hi"] - now["lo"])
    assert delta["hi"] - delta["lo"] == pytest.approx(width)
    assert found["global"][0]["before"]["value"] == pytest.approx(np.trace(before * scale))


def test_answers_that_were_none_stay_in_the_old_matrix(frame: pd.DataFrame, tmp_path: Path) -> None:
    silent = frame.assign(new=frame["new"].where(frame.index % 5 > 0))
    first = ["--data", saved(silent, tmp_path, "one.parquet"), *REPLAYED]
    earlier = shift(tmp_path / "one", *first, "--budget", 600)["shift"]
    assert earlier["predictions"] == [0, 1, 2, None]
    second = ["--data", saved(frame, tmp_path), "--label", "label", "--replay-prediction", "new"]
    second += ["--old-matrix", tmp_path / "one" / "changelist.json"]
    told = shift(tmp_path / "two", *second, "--budget", 600)["shift"]
    assert told["predictions"] == [0, 1, 2, None]
    np.testing.assert_allclose(told["old_matrix"], earlier["new_matrix"])
    np.testing.assert_allclose(told["new_matrix"], matrix(frame, "new", told), atol=1e-12)
    assert {(one["label"], one.get("prediction")) for one in told["changed"]} >= {(0, None)}


def test_a_target_error_stops_early_or_warns(tmp_path: Path) -> None:
    data = saved(made(3000, churn=0.03), tmp_path)
    flags = ["--data", data, *REPLAYED, "--target-error", "0.03"]
    reached = shift(tmp_path / "one", *flags)["shift"]
    assert reached["stopped"] == "target_error"
    assert 100 <= reached["cost"]["calls"] < 3000
    assert reached["frobenius_bound"] <= 0.03
    assert reached["warnings"] == []
    short = shift(tmp_path / "two", *flags, "--budget", 110)["shift"]
    assert (short["stopped"], short["cost"]["calls"]) == ("budget", 110)
    assert short["frobenius_bound"] > 0.03
    (warning,) = short["warnings"]
    assert "ended before the target error" in warning


@pytest.mark.parametrize(
    ("budget", "price", "calls", "spent"),
    [("$1.5", 0.025, 60, 1.5), ("1.51 eur", 0.03, 50, 1.5), ("1GBP", 0, 600, 0.0)],
)
def test_a_budget_in_money(
    budget: str, price: float, calls: int, spent: float, pool: str, tmp_path: Path
) -> None:
    flags = ["--data", pool, *REPLAYED, "--budget", budget, "--price", price]
    cost = shift(tmp_path, *flags)["shift"]["cost"]
    currency = {"$1.5": "USD", "1.51 eur": "EUR", "1GBP": "GBP"}[budget]
    assert (cost["calls"], cost["spent"], cost["currency"]) == (calls, spent, currency)
    assert run(["run", str(tmp_path / "changelist.json"), "--quiet"]) == 0
    assert document(tmp_path)["shift"]["cost"] == cost


HANDLERS = '''
import time
from pathlib import Path

import numpy as np
from apache_beam.ml.inference.base import ModelHandler, RemoteModelHandler

HERE = Path(__file__).parent


def note(row):
    with (HERE / "calls").open("a") as log:
        log.write(row["key"] + "\\n")


class Local(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        for row in batch:
            note(row)
            if (HERE / "slow").exists():
                time.sleep(0.005)
            yield row["new"]


class Remote(RemoteModelHandler):
    def __init__(self):
        super().__init__(namespace="remote", num_retries=1)

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        for row in batch:
            note(row)
        return [row["new"] for row in batch]


class Odd(Local):
    """Answers with what is no class, but every fifth time."""

    def run_inference(self, batch, model, inference_args=None):
        odd = [None, float("nan"), [1], {"a": 1}, np.int64(1)]
        for row in batch:
            note(row)
            yield odd[int(row["key"].split("-")[1]) % 5]
'''


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "handlers"
    folder.mkdir()
    (folder / "handlers_of_a_test.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delitem(sys.modules, "handlers_of_a_test", raising=False)
    return folder


def calls_of(folder: Path) -> list[str]:
    log = folder / "calls"
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("handler", [pytest.param("Local", marks=pytest.mark.slow), "Remote"])
def test_a_model_handler_answers_once(
    handler: str, frame: pd.DataFrame, pool: str, handlers: Path, tmp_path: Path
) -> None:
    flags = ["--data", pool, *ROLES, "--model", f"handlers_of_a_test:{handler}"]
    found = shift(tmp_path / "out", *flags, "--budget", 100, "--by", "part")
    replayed = shift(
        tmp_path / "recorded", "--data", pool, *REPLAYED, "--budget", 100, "--by", "part"
    )
    for told in (found, replayed):
        del told["shift"]["cost"]
    assert found["shift"] == replayed["shift"]
    asked = asked_items(frame["label"], [one["calls"] for one in found["shift"]["strata"]], 0)
    assert sorted(calls_of(handlers)) == sorted(frame["key"][asked])
    assert not (tmp_path / "out" / "_work").exists()
    again = shift(tmp_path / "out", *flags, "--budget", 130)["shift"]["cost"]
    assert (again["calls"], again["replayed"]) == (130, 100)
    assert len(calls_of(handlers)) == len(set(calls_of(handlers))) == 130
    adaptive = [*flags, "--method", "masa", "--ledger", tmp_path / "out" / "ledger"]
    shift(tmp_path / "masa", *adaptive, "--budget", 40)
    assert len(calls_of(handlers)) == len(set(calls_of(handlers))) < 170


def test_what_is_no_class_is_no_result(pool: str, handlers: Path, tmp_path: Path) -> None:
    flags = ["--data", pool, *ROLES, "--model", "handlers_of_a_test:Odd", "--budget", 100]
    told = shift(tmp_path / "out", *flags)["shift"]
    asked = [int(key.split("-")[1]) % 5 for key in calls_of(handlers)]
    assert told["cost"]["no_result"] == sum(number < 4 for number in asked)
    assert told["predictions"] == [0, 1, 2, None]
    again = shift(tmp_path / "out", *flags)["shift"]
    assert (again["cost"]["replayed"], again["new_matrix"]) == (100, told["new_matrix"])
    assert len(calls_of(handlers)) == 100


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_a_killed_run_asks_only_what_it_has_no_answer_to(
    resume: bool, pool: str, handlers: Path, tmp_path: Path
) -> None:
    flags = ["shift", "--data", pool, *ROLES, "--model", "handlers_of_a_test:Local", "--quiet"]
    flags += ["--budget", "400", "--output", str(tmp_path / "out")]
    (handlers / "slow").touch()
    program = "from slicebeam.pipelines.cli import main; main()"
    running = subprocess.Popen([sys.executable, "-c", program, *flags], env=os.environ)
    kept = tmp_path / "out" / "_work" / "answers"
    while not list(kept.glob("*.json")) or len(calls_of(handlers)) < 150:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    settled = set()
    for path in kept.glob("*.json"):
        settled |= set(json.loads(path.read_text())["facts"])
    before = len(calls_of(handlers))
    (handlers / "slow").unlink()
    assert run([*flags, *(["--resume"] if resume else [])]) == 0
    later = calls_of(handlers)[before:]
    assert settled
    assert not settled & {f"#{key.split('-')[1]}" for key in later}
    assert len(set(calls_of(handlers))) == 400
    assert run(flags) == 0
    assert len(calls_of(handlers)) == before + len(later)
    told = document(tmp_path / "out")["shift"]
    undisturbed = shift(tmp_path / "recorded", "--data", pool, *REPLAYED, "--budget", 400)["shift"]
    assert (told["new_matrix"], told["cost"]["replayed"]) == (undisturbed["new_matrix"], 400)


def test_a_scikit_learn_model(
    frame: pd.DataFrame, pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = LogisticRegression().fit(frame[["x1", "x2"]], frame["label"])
    unnamed = LogisticRegression().fit(frame[["x1", "x2"]].to_numpy(), frame["label"])
    for name, model in (("named", named), ("unnamed", unnamed)):
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(model))
    flags = ["--data", pool, *ROLES, "--budget", 600, "--model"]
    one = shift(tmp_path / "one", *flags, tmp_path / "named.pkl")
    two = shift(tmp_path / "two", *flags, tmp_path / "unnamed.pkl", "--features", "x1,x2")
    predicted = frame.assign(new=named.predict(frame[["x1", "x2"]]))
    for found in (one, two):
        told = found["shift"]
        np.testing.assert_allclose(told["new_matrix"], matrix(predicted, "new", told), atol=1e-12)
    # Another model under the same name does not answer with what the first one said.
    (tmp_path / "named.pkl").write_bytes(pickle.dumps(unnamed))
    arguments = ["shift", *map(str, flags), str(tmp_path / "named.pkl"), "--features", "x1,x2"]
    arguments += ["--output", str(tmp_path / "one"), "--quiet"]
    assert "belong to something else" in refused(arguments, capsys, folder=tmp_path)


def described(folder: Path, **options: Any) -> str:
    (folder / "run.yaml").write_text(yaml.safe_dump({"command": "shift", **options}))
    return str(folder / "run.yaml")


def test_a_file_describes_a_shift(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", str(tmp_path / "there"))
    options = {"data": pool, "label": "label", "old_prediction": "old", "replay_prediction": "new"}
    file = described(tmp_path, **options, budget=150, output="${WHERE}/{date}", quiet=True)
    assert run(["run", file, "--date", "2026-03-01"]) == 0
    found = tmp_path / "there" / "2026-03-01"
    flags = ["--data", pool, *REPLAYED, "--budget", 150]
    shift(tmp_path / "flags", *flags)
    assert timeless(found) == timeless(tmp_path / "flags")
    again = tmp_path / "again"
    repeated = ["run", str(found / "changelist.json"), "--output", str(again), "--quiet"]
    assert run(repeated) == 0
    assert timeless(again) == timeless(found)


def test_the_old_document_of_a_file_may_be_yesterdays(frame: pd.DataFrame, tmp_path: Path) -> None:
    pool = saved(frame, tmp_path)
    shift(tmp_path / "2026-02-28", "--data", pool, *REPLAYED, "--budget", 150)
    file = described(
        tmp_path,
        data=pool,
        label="label",
        replay_prediction="new",
        old_matrix="{here}/{date-1}/changelist.json",
        budget=100,
        output="{here}/{date}",
        quiet=True,
    )
    assert run(["run", file, "--date", "2026-03-01"]) == 0
    assert document(tmp_path / "2026-03-01")["shift"]["old_from"] == "document"


def test_the_document_of_a_shift_is_refused_where_slices_are_wanted(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shift(tmp_path / "out", "--data", pool, *REPLAYED, "--budget", 100)
    made_by = str(tmp_path / "out" / "changelist.json")
    outcome = ["--data", pool, "--label", "label", "--prediction", "new"]
    output = ["--output", str(tmp_path / "other")]
    for arguments in (
        ["search", *outcome, "--domains", made_by],
        ["search", *outcome, "--since", made_by],
        ["check", *outcome, "--changelist", made_by],
        ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--changelist", made_by],
    ):
        told = refused([*arguments, *output], capsys, folder=tmp_path)
        assert "is the document of a shift; name that of a search or a check" in told
    assert not (tmp_path / "other" / "changelist.json").exists()
    assert run(["search", *outcome, "--features", "part", "--quiet", *output]) == 0
    other = ["shift", "--data", pool, "--label", "label", "--replay-prediction", "new"]
    other += ["--budget", "100", "--old-matrix", str(tmp_path / "other" / "changelist.json")]
    told = refused([*other, "--output", str(tmp_path / "third")], capsys, folder=tmp_path)
    assert told.startswith("--old-matrix DIR/other/changelist.json is not the document of a shift")


def test_fail_on_worse(frame: pd.DataFrame, tmp_path: Path) -> None:
    pool = saved(frame, tmp_path)
    flags = ["--data", pool, *ROLES, "--budget", 300, "--fail-on", "worse"]
    shift(tmp_path / "worse", *flags, "--replay-prediction", "new", code=1)
    shift(tmp_path / "same", *flags, "--replay-prediction", "old")
    better = saved(frame.assign(new=frame["label"]), tmp_path, "better.parquet")
    shift(tmp_path / "better", "--data", better, *flags[2:], "--replay-prediction", "new")
    # Worse on one slice, better by far elsewhere.
    bad = frame["part"] == "a"
    mixed = frame.assign(old=frame["label"].where(bad, (frame["label"] + 1) % 3))
    mixed = mixed.assign(
        new=frame["label"].mask(bad & (frame.index % 3 == 0), (frame["label"] + 1) % 3)
    )
    data = saved(mixed, tmp_path, "mixed.parquet")
    arguments = ["--data", data, *flags[2:], "--replay-prediction", "new"]
    found = shift(tmp_path / "mixed", *arguments, "--by", "part", code=1)
    assert found["global"][0]["direction"] == "improved"
    shift(tmp_path / "mixed", *arguments)


def test_what_a_machine_reads(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--price", "0.01"]
    flags += ["--by", "part", "--output", str(tmp_path)]
    assert run([*flags, "--log-format", "json"]) == 0
    printed = capsys.readouterr()
    events = [json.loads(line) for line in printed.err.splitlines()]
    (published,) = (event for event in events if event["event"] == "published")
    assert (published["calls"], published["spent"], published["exit_code"]) == (100, 1.0, 0)
    assert published["changelist"] == str(tmp_path / "changelist.json")
    assert {"stage", "published"} <= {event["event"] for event in events}
    assert run([*flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = document(tmp_path)
    assert (told["calls"], told["spent"], told["currency"]) == (100, 1.0, "USD")
    assert told["accuracy"] == found["global"][0]["after"]["value"]
    assert told["shift"] == found["shift"]["shift"]
    assert len(told["changed"]) == len(found["shift"]["changed"])
    assert len(told["slices"]) == 3
    assert set(told) == {
        *("summary", "changelist", "examples", "method", "calls", "replayed", "no_result"),
        *("unaccounted", "spent", "currency", "stopped", "frobenius_bound", "accuracy"),
        *("accuracy_was", "accuracy_shift", "significant", "labels", "predictions", "shift"),
        *("changed", "slices", "warnings"),
    }
    assert (
        run([*flags[:-4], "--output", str(tmp_path / "none"), "--log-format=json", "--seed=x"]) == 2
    )
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["exit_code"]) for line in lines] == [("error", 2)]


def test_a_plan_says_what_budgets_would_give(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "shift",
        "--data",
        pool,
        *ROLES,
        "--difficulty",
        "confidence",
        "--plan",
        "--repeat",
        "8",
    ]
    flags += ["--price", "0.5", "--output", str(tmp_path / "out")]
    assert run([*flags, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {one["method"] for one in planned} == set(METHODS)
    assert {one["churn"] for one in planned} == {0.02, 0.05, 0.1, None}
    assert {(one["budget"], one["cost"]) for one in planned} == {(250, 125.0), (500, 250.0)}
    assert not (tmp_path / "out" / "changelist.json").exists()
    assert not (tmp_path / "out" / "_work").exists()
    assert run([*flags, "--budget", "50USD", "--method", "plus"]) == 0
    shown = capsys.readouterr().out
    assert "a whole new API" in shown
    assert "2% of the predictions change" in shown
    assert "50.00" in shown


def test_the_schema_holds_for_every_command(pool: str, tmp_path: Path) -> None:
    outcome = ["--data", pool, "--label", "label", "--prediction", "old", "--quiet"]
    assert run(["search", *outcome, "--features=part,size", "--output", str(tmp_path / "a")]) == 0
    (tmp_path / "slices.yaml").write_text("- part = b\n")
    slices = ["--slices", str(tmp_path / "slices.yaml"), "--output", str(tmp_path / "b")]
    assert run(["check", *outcome, *slices]) == 0
    flags = ["--data", pool, *REPLAYED, "--budget", 100, "--by", "part", "--price", "0.1"]
    shift(tmp_path / "c", *flags, "--difficulty", "confidence")
    validator = jsonschema.Draft202012Validator(json_schema())
    for name in "abc":
        validator.validate(document(tmp_path / name))
    wrong = document(tmp_path / "c")
    wrong["shift"]["method"] = "guess"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(wrong)


@pytest.mark.slow
def test_the_same_document_however_it_is_read(frame: pd.DataFrame, tmp_path: Path) -> None:
    flags = [*REPLAYED, "--difficulty", "confidence", "--budget", 200, "--by", "part"]
    flags += ["--example-id", "key"]
    pool = saved(frame, tmp_path)
    (tmp_path / "csv").mkdir()
    table = tmp_path / "csv" / "pool.parquet"
    frame.to_csv(table, index=False)
    ways: dict[str, list[Any]] = {
        "plain": ["--data", pool],
        "chunks": ["--data", pool, "--chunk-rows", 100],
        "csv": ["--data", table, "--format", "csv"],
        "multi": [
            *("--data", pool, "--chunk-rows", 150),
            *("--runner-config", "direct_multi", "--runner-option", "workers=2"),
        ],
    }
    documents = {}
    for name, way in ways.items():
        shift(tmp_path / name, *way, *flags)
        text = timeless(tmp_path / name, "chunk_rows", "runner_config", "runner_option", "format")
        content = json.loads(text)
        del content["provenance"]["runner"], content["provenance"]["config"]["data"]
        del content["dataset"]["uri"], content["changelist_id"]
        documents[name] = json.dumps(content)
    assert {name for name, text in documents.items() if text != documents["plain"]} == set()


def test_the_same_document_after_being_killed(tmp_path: Path) -> None:
    pool = saved(made(3000), tmp_path)
    flags = ["--data", pool, *REPLAYED, "--difficulty", "confidence", "--budget", 500]
    flags += ["--chunk-rows", 100]
    shift(tmp_path / "undisturbed", *flags)
    arguments = ["shift", "--quiet", "--output", str(tmp_path / "out"), *map(str, flags)]
    program = "from slicebeam.pipelines.cli import main; main()"
    running = subprocess.Popen([sys.executable, "-c", program, *arguments])
    marks = [tmp_path / "out" / "_work" / name for name in ("pool-values", "pool-items")]
    while not (marks[0] / "learned.json").exists():
        assert running.poll() is None
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "out" / "changelist.json").exists()
    before = (marks[0] / "learned.json").stat().st_ino
    assert before
    assert run([*arguments, "--resume"]) == 0
    assert timeless(tmp_path / "out") == timeless(tmp_path / "undisturbed")
