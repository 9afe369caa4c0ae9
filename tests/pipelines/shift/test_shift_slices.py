"""Shifts of slices: every number against a direct computation, item by item."""

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.shift.estimates import Slices, estimate
from slicebeam.metrics.shift.strata import Sample, Strata
from slicebeam.pipelines.cli import run
from tests.oracles import shift_oracle
from tests.shift_runs import (
    REPLAYED,
    Z,
    asked_items,
    document,
    made,
    matrix,
    oracle_pool,
    saved,
    shift,
    stratified,
    within_shares,
)


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
        value = f"{column} is null" if is_null else condition["value"]
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
        new = within_shares(slow.matrix, share)[:, :-1]
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
