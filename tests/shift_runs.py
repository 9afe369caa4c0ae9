"""Pools for the tests of ``slicebeam shift``, its runs in this process, and what they published."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slicebeam.metrics.randomness import hash64
from slicebeam.pipelines.cli import run
from tests.oracles import shift_oracle

if TYPE_CHECKING:
    from pathlib import Path

ROLES = ("--label", "label", "--old-prediction", "old")
REPLAYED = (*ROLES, "--replay-prediction", "new")


def made(rows: int = 600, seed: int = 1, labels: int = 3, churn: float = 0.15) -> pd.DataFrame:
    """A pool whose old predictions are right four times in five, and change at random."""
    random = np.random.default_rng(seed)
    label = random.integers(0, labels, rows)
    old = np.where(random.random(rows) < 0.8, label, random.integers(0, labels, rows))
    new = np.where(random.random(rows) < churn, random.integers(0, labels, rows), old)
    return pd.DataFrame(
        {
            "key": [f"item-{row}" for row in range(rows)],
            "label": label,
            "old": old,
            "new": new,
            "confidence": random.random(rows).round(2),
            "part": random.choice(["a", "b", "c & d"], rows, p=[0.6, 0.3, 0.1]),
            "size": random.integers(0, 4, rows),
            "is_new": random.random(rows) < 0.3,
            "x1": label + random.normal(size=rows),
            "x2": random.normal(size=rows),
        }
    )


def saved(frame: pd.DataFrame, folder: Path, name: str = "pool.parquet") -> str:
    path = folder / name
    frame.to_csv(path, index=False) if name.endswith(".csv") else frame.to_parquet(path)
    return str(path)


def shift(output: Path, *flags: Any, code: int = 0) -> dict[str, Any]:
    """Run the command in this process and return the document."""
    assert run(["shift", "--quiet", "--output", str(output), *map(str, flags)]) == code
    return document(output)


def document(output: Path) -> dict[str, Any]:
    return json.loads((output / "changelist.json").read_text("utf-8"))


def timeless(output: Path, *less: str) -> str:
    """The document without its time, and without other keys of the configuration."""
    content = document(output)
    # The times of the data are in what is told of the run.
    del content["created_at"], content["provenance"]["run"]
    for name in ("output", *less):
        content["provenance"]["config"].pop(name, None)
    return json.dumps(content, sort_keys=True)


def stratified(
    frame: pd.DataFrame, difficulty: str | None, bins: int, *, signed: bool
) -> tuple[pd.Series, list[Any]]:
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


def oracle_pool(frame: pd.DataFrame, stratum: pd.Series, rows: list[Any]) -> shift_oracle.Pool:
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


def asked_items(stratum: pd.Series, calls: list[int], seed: int) -> list[int]:
    """Of each stratum so many rows, those whose positions have the smallest hashes."""
    hashes = hash64(seed, 0, np.arange(len(stratum), dtype=np.uint64))
    items: list[int] = []
    for number, most in enumerate(calls):
        mine = np.flatnonzero(stratum == number)
        items += mine[np.argsort(hashes[mine], kind="stable")][:most].tolist()
    return items


def matrix(frame: pd.DataFrame, prediction: str, told: dict[str, Any]) -> np.ndarray:
    """The exact confusion matrix in the order of the document's labels and predictions."""
    found = [
        [
            ((frame["label"] == label) & _is(frame[prediction], one)).mean()
            for one in told["predictions"]
        ]
        for label in told["labels"]
    ]
    return np.array(found)


def _is(column: pd.Series, value: Any) -> pd.Series:
    return column.isna() if value is None else column == value


def within_shares(estimate: np.ndarray, share: np.ndarray) -> np.ndarray:
    """An estimate without what no share can be, each row of which keeps its sum."""
    cut = np.clip(estimate, 0, share)
    for row, before in enumerate(estimate.sum(axis=1)):
        cut[row] *= min(1, before / cut[row].sum())
    return cut
