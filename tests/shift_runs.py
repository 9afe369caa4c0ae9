"""Pools for the tests of ``slicebeam shift``, its runs in this process, and what they published."""

import json

import numpy as np
import pandas as pd

from slicebeam.metrics.randomness import hash64
from slicebeam.pipelines.cli import run
from tests.oracles import shift_oracle

ROLES = ("--label", "label", "--old-prediction", "old")
REPLAYED = (*ROLES, "--replay-prediction", "new")


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
    """Run the command in this process and return the document."""
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
        known = values[~np.isnan(values)]
        edges = np.unique(np.quantile(known, np.arange(1, bins) / bins))
        bin_of = np.searchsorted(edges, values, side="right")
        bin_of[np.isnan(values)] = -1
    groups = pd.DataFrame({"label": frame["label"], "bin": bin_of}).groupby(["label", "bin"])
    return groups.ngroup(), [label for label, _ in groups.groups]


def oracle_pool(frame, stratum, rows):
    """The pool as the oracle has it: classes as numbers, the last one "no result"."""
    classes = sorted({*frame["label"], *frame["old"], *frame["new"].dropna()})
    labels = sorted(set(frame["label"]))
    code = {value: number for number, value in enumerate(classes)}
    return shift_oracle.Pool(
        stratum.tolist(),
        [code[value] for value in frame["old"]],
        [code.get(value, len(classes)) for value in frame["new"]],
        [labels.index(label) for label in rows],
        (len(labels), len(classes) + 1),
        [code[label] for label in labels],
    )


def asked_items(stratum, calls, seed):
    """Of each stratum so many rows, those whose positions have the smallest hashes."""
    hashes = hash64(seed, 0, np.arange(len(stratum), dtype=np.uint64))
    items = []
    for number, most in enumerate(calls):
        mine = np.flatnonzero(stratum == number)
        items += mine[np.argsort(hashes[mine], kind="stable")][:most].tolist()
    return items


def matrix(frame, prediction, told):
    """The exact confusion matrix in the order of the document's labels and predictions."""
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
