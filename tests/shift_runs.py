"""Pools for the tests of ``slicebeam shift``, its runs in this process, and what they published."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from slicebeam.metrics.randomness import hash64
from slicebeam.pipelines.commands.cli import run
from tests.oracles import shift_oracle

ROLES = ("--label", "label", "--old-prediction", "old")
REPLAYED = (*ROLES, "--replay-prediction", "new")
METHODS = ("plus", "masa", "proportional")
Z, NEAR = stats.norm.isf(0.025), {"rel": 1e-9, "abs": 1e-9}


def made(rows=600, seed=1, labels=3, churn=0.15):
    """A pool whose old predictions are right four times in five, and change at random."""
    random = np.random.default_rng(seed)
    label = random.integers(0, labels, rows)
    old = np.where(random.random(rows) < 0.8, label, random.integers(0, labels, rows))
    new = np.where(random.random(rows) < churn, random.integers(0, labels, rows), old)
    frame = pd.DataFrame({"key": [f"item-{row}" for row in range(rows)]})
    frame = frame.assign(label=label, old=old, new=new, confidence=random.random(rows).round(2))
    frame["part"] = random.choice(["a", "b", "c & d"], rows, p=[0.6, 0.3, 0.1])
    frame["size"] = random.integers(0, 4, rows)
    frame["is_new"] = random.random(rows) < 0.3
    frame["x1"] = label + random.normal(size=rows)
    frame["x2"] = random.normal(size=rows)
    return frame


def saved(frame, folder, name="pool.parquet"):
    path = folder / name
    frame.to_csv(path, index=False) if name.endswith(".csv") else frame.to_parquet(path)
    return str(path)


def shift(output, *flags, code=0):
    assert run(["shift", "--quiet", "--output", str(output), *map(str, flags)]) == code
    return document(output)


def document(output):
    return json.loads((output / "changelist.json").read_text("utf-8"))


def timeless(output, *less):
    """The document without its time, and without other keys of the configuration."""
    content = document(output)
    # The times of the data are in what is told of the run.
    del content["created_at"], content["provenance"]["run"]
    for name in ("output", *less):
        content["provenance"]["config"].pop(name, None)
    return json.dumps(content, sort_keys=True)


def stratified(frame, difficulty, bins, *, signed):
    """The stratum of each row, numbered by label and bin; and the label of each stratum."""
    bin_of = np.zeros(len(frame), np.int64)
    if difficulty is not None:
        values = frame[difficulty].to_numpy(np.float64)
        if signed:
            values = np.where(frame["label"] == frame["old"], values, -values)
        edges = np.unique(np.quantile(values[~np.isnan(values)], np.arange(1, bins) / bins))
        bin_of = np.searchsorted(edges, values, side="right")
        bin_of[np.isnan(values)] = -1
    groups = pd.DataFrame({"label": frame["label"], "bin": bin_of}).groupby(["label", "bin"])
    return groups.ngroup(), [label for label, _ in groups.groups]


def oracle_pool(frame, stratum, rows):
    """The pool as the oracle has it: classes as numbers, the last one "no result"."""
    classes = sorted({*frame["label"], *frame["old"], *frame["new"].dropna()})
    labels = sorted(set(frame["label"]))
    code = {value: number for number, value in enumerate(classes)}
    old = [code[value] for value in frame["old"]]
    new = [code.get(value, len(classes)) for value in frame["new"]]
    places, shape = [labels.index(label) for label in rows], (len(labels), len(classes) + 1)
    right = [code[label] for label in labels]
    return shift_oracle.Pool(stratum.tolist(), old, new, places, shape, right)


def asked_items(stratum, calls, seed):
    """Of each stratum so many rows, those whose positions have the smallest hashes."""
    hashes = hash64(seed, 0, np.arange(len(stratum), dtype=np.uint64))
    items = []
    for number, most in enumerate(calls):
        mine = np.flatnonzero(stratum == number)
        items += mine[np.argsort(hashes[mine], kind="stable")][:most].tolist()
    return items


def matrix(frame, prediction, told):
    column = frame[prediction]
    is_one = [column.isna() if one is None else column == one for one in told["predictions"]]
    labels = [frame["label"] == label for label in told["labels"]]
    return np.array([[(label & one).mean() for one in is_one] for label in labels])


def within_shares(estimate, share):
    """An estimate without what no share can be, each row of which keeps its sum."""
    cut = np.clip(estimate, 0, share)
    for row, before in enumerate(estimate.sum(axis=1)):
        cut[row] *= min(1, before / cut[row].sum())
    return cut


def bound_of(direct):
    """The stopping rule's bound, as it is documented."""
    z, spread = stats.norm.ppf(0.95), 2 * (direct.variance**2).sum()
    degrees = max(0.5, direct.loss**2 / spread) if spread else 0.5
    scale = direct.loss + z * direct.loss_error + z**2 * direct.loss_unseen
    return float(np.sqrt(scale * stats.chi2.ppf(0.95, degrees) / degrees))


def check_every_number(found, frame, method, difficulty, seed):
    """Hold the numbers of a document against a direct computation from the items that were asked."""
    stratum, rows = stratified(frame, difficulty, 3, signed=method == "plus")
    told, change = found["shift"], found["global"][0]
    calls = [one["calls"] for one in told["strata"]]
    assert [one["label"] for one in told["strata"]] == rows
    sizes = stratum.value_counts(sort=False).sort_index().tolist()
    assert [one["size"] for one in told["strata"]] == sizes
    assert (told["labels"], sum(calls)) == (sorted(set(rows)), told["cost"]["calls"])
    whole, asked = oracle_pool(frame, stratum, rows), asked_items(stratum, calls, seed)
    reliance = shift_oracle.reliance(whole, asked) if method == "plus" else None
    direct = shift_oracle.estimate(whole, asked, reliance or 0.0)
    unseen = 3 * (direct.unseen**2).sum()
    if method == "masa":
        direct.accuracy_variance = shift_oracle.starved_variance(whole, asked)
    assert told.get("reliance") == (None if reliance is None else pytest.approx(reliance))
    none = int(sum(whole.new[item] == whole.shape[1] - 1 for item in asked))
    assert (told["cost"]["no_result"], None in told["predictions"]) == (none, none > 0)
    width, old = len(told["predictions"]), matrix(frame, "old", told)
    share = old.sum(axis=1, keepdims=True)
    new = within_shares(direct.matrix, share)
    errors = np.sqrt(direct.variance + 3 * direct.unseen[:, None] ** 2)
    moved = new - np.pad(old, ((0, 0), (0, whole.shape[1] - width)))
    assert told["old_matrix"] == [pytest.approx(row, **NEAR) for row in old.tolist()]
    assert told["new_matrix"] == [pytest.approx(row, **NEAR) for row in new[:, :width].tolist()]
    assert told["new_errors"] == [pytest.approx(row, abs=1e-7) for row in errors[:, :width]]
    assert told["shift"] == [pytest.approx(row, **NEAR) for row in moved[:, :width].tolist()]
    low = np.maximum((moved - Z * errors)[:, :width], -old)
    high = np.minimum((moved + Z * errors)[:, :width], share - old)
    assert told["shift_lo"] == [pytest.approx(row, abs=1e-7) for row in low.tolist()]
    assert told["shift_hi"] == [pytest.approx(row, abs=1e-7) for row in high.tolist()]
    # The cells of "no result" are among those that are corrected for.
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.norm.sf(np.where(np.abs(moved) < 1e-9, 0, np.abs(moved) / errors))
    q = stats.false_discovery_control(p.ravel()).reshape(p.shape)
    changed = {
        (one["label"], one.get("prediction")): (one["p_value"], one["p_adjusted"])
        for one in told["changed"]
    }
    assert changed == {
        (told["labels"][i], told["predictions"][j]): pytest.approx((p[i, j], q[i, j]), rel=1e-6)
        for i, j in np.argwhere(q <= 0.05)
    }
    for one in told["changed"]:
        i, j = told["labels"].index(one["label"]), told["predictions"].index(one.get("prediction"))
        assert one["shift"]["value"] == told["shift"][i][j]
    was = (frame["label"] == frame["old"]).mean()
    variance = direct.accuracy_variance if direct.accuracy_variance > 1e-12 else unseen
    half, now = Z * math.sqrt(variance), min(max(direct.accuracy, 0), 1)
    after, delta = change["after"], change["delta"]
    assert (change["before"]["value"], after["value"]) == pytest.approx((was, now))
    bounds = (max(direct.accuracy - half, 0), min(direct.accuracy + half, 1))
    assert (after["lo"], after["hi"]) == pytest.approx(bounds, **NEAR)
    assert delta["value"] == pytest.approx(now - was, **NEAR)
    bounds = (max(now - was - half, -was), min(now - was + half, 1 - was))
    assert (delta["lo"], delta["hi"]) == pytest.approx(bounds, **NEAR)
    if abs(now - was) < 1e-9 or variance == 0:
        assert change["p_value"] == (1 if abs(now - was) < 1e-9 else 0)
    else:
        expected = 2 * stats.norm.sf(abs(now - was) / math.sqrt(variance))
        assert change["p_value"] == pytest.approx(expected, rel=1e-6)
    assert change["significant"] == (change["p_value"] <= 0.05)
    assert told["frobenius_bound"] == pytest.approx(bound_of(direct), rel=1e-6, abs=1e-9)
    return stratum, calls
