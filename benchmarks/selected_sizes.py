"""Differences of findings on examples that they were not chosen on, as observed and as corrected.

Each table is split at random: one half is searched, and the other, of which the search saw nothing,
measures each finding with the model of the same list fitted there. The ratios are of summed
differences, in units of the target's standard deviation; an interval holds a difference of the other
half if that is within the interval widened by its own error. After ± is the standard error over the
halves of these tables, 2.4 times as large with 4 halves. ``--goal`` fails where the bar is missed.

    python benchmarks/selected_sizes.py FOLDER

FOLDER has electricity.csv, compas_discretized.csv, sentences.parquet and the tables of the FrugalML
release (rafdb, imdb, shop), at any depth; Adult is that of the demo.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from slicebeam.metrics.findings.conditional import influence
from slicebeam.metrics.findings.groups import of_patterns
from slicebeam.metrics.findings.model import fit
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.pipelines.changelist.slices import Finding
from slicebeam.pipelines.commands.api import search
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.passes import one_thread
from slicebeam.transforms.encode.predicates import Singleton

ADULT = Path(__file__).parents[1] / "pipelines" / "demo_data" / "adult_scored.parquet"
Z = 1.959963984540054
SMALL = 100
# Ratio and share of intervals that hold, of all findings and of those below 100 examples.
BARS = {"all": (0.93, 1.07, 0.93), f"n < {SMALL}": (0.8, 1.2, 0.90)}


class Task(NamedTuple):
    """A table with what is measured on it."""

    table: str
    kind: str  # ``one model``, ``two models`` or ``loss``
    frame: pd.DataFrame
    target: np.ndarray  # the metric of each example, or its change
    options: dict[str, Any]


class Measured(NamedTuple):
    """A finding, and its difference on the other half."""

    n: int
    observed: tuple[float, float, float]  # in the finding's direction, as all differences
    corrected: tuple[float, float, float]
    other: float
    error: float  # of the other
    scale: float  # the target's standard deviation


def tasks(folder: Path) -> Iterator[Task]:
    """Yield one and two models on each table, and the mean of a loss on some."""

    def path(name: str) -> Path:
        return next(folder.rglob(name))

    adult = pd.read_parquet(ADULT).drop(columns=["row_id", "fnlwgt"])
    yield from _pair("Adult", adult, "income", "prediction", "prediction_old")
    chance = np.clip(adult["score"], 1e-6, 1 - 1e-6)
    yield _loss("Adult", adult, -np.log(np.where(adult["income"] == 1, chance, 1 - chance)))
    elec = pd.read_csv(path("electricity.csv")).drop(columns="date")
    half, names = len(elec) // 2, list(elec.columns.drop("class"))
    learners = (
        HistGradientBoostingClassifier(early_stopping=False),
        DecisionTreeClassifier(max_depth=4),
    )
    later = elec[half:].reset_index(drop=True)
    for name, learner in zip(("prediction", "prediction_old"), learners, strict=True):
        later[name] = learner.fit(elec[names][:half], elec["class"][:half]).predict(
            elec[names][half:]
        )
    yield from _pair("electricity", later, "class", "prediction", "prediction_old")
    compas = pd.read_csv(path("compas_discretized.csv"))
    codes = pd.get_dummies(compas.drop(columns=["class", "predicted"]))
    compas["learned"] = cross_val_predict(
        DecisionTreeClassifier(max_depth=4), codes, compas["class"]
    )
    yield from _pair("COMPAS", compas, "class", "predicted", "learned")
    words = pd.read_parquet(path("sentences.parquet")).drop(columns=["id", "text", "embedding"])
    yield from _pair("sentences", words, "label", "prediction_new", "prediction_old")
    frame = words[["source", "label", "words", "score_new", "score_old"]]
    yield _loss("sentences", frame, np.abs(words["rating"] - 4 * words["score_new"]))
    for name, new, old in (
        ("rafdb", "microsoft", "google"),
        ("imdb", "google", "amazon"),
        ("shop", "baidu", "google"),
    ):
        whole = pd.read_parquet(path(f"{name}.parquet")).drop(columns="example_id")[:30_000]
        # What the classes of other models say of an example is a property of it.
        yield from _pair(name, whole, "label", f"prediction_{new}", f"prediction_{old}")


def _pair(table: str, frame: pd.DataFrame, label: str, new: str, old: str) -> Iterator[Task]:
    right, before = ((frame[label] == frame[name]).to_numpy(float) for name in (new, old))
    used = {"label": label, "prediction": new}
    others = [name for name in frame.columns if name not in (label, new, old)]
    one = {**used, "features": [name for name in others if "score" not in name]}
    yield Task(table, "one model", frame, right, one)
    both = {**one, "baseline_prediction": old, "alternative": "both"}
    yield Task(table, "two models", frame, right - before, both)


def _loss(table: str, frame: pd.DataFrame, loss: Any) -> Task:
    frame = frame.assign(loss=np.asarray(loss, float))
    features = [name for name in frame.columns if not name.startswith(("score", "pred", "loss"))]
    return Task(
        table, "loss", frame, frame["loss"].to_numpy(), {"loss": "loss", "features": features}
    )


def measured(task: Task, half: np.ndarray) -> Iterator[Measured]:
    """Search the half, and measure its findings on the rest."""
    found = search(task.frame[half], **task.options)
    predicates = {one.slice_id: one.definition.predicate for one in found.changelist.slices}
    lists: dict[tuple[str, str], list[Finding]] = {}
    for one in found.changelist.findings:
        lists.setdefault((one.metric, one.direction), []).append(one)
    rest, target = task.frame[~half], task.target[~half]
    for of_list in lists.values():
        conditions = tuple(
            tuple(Singleton(one.field, one.op, one.value) for one in predicates[f.slice_id].all)
            for f in of_list
        )
        membership = SliceMembership(conditions)
        codes = membership.codes(_table(rest[list(membership.columns)]))
        inside = np.zeros((len(rest), len(of_list)), bool)
        inside[np.repeat(np.arange(len(rest)), np.diff(codes.offsets)), codes.codes] = True
        kind = "rate" if task.kind == "one model" else "mean"
        for at, one in enumerate(of_list):
            if inside[:, at].any():
                other, error = difference(kind, inside[:, : at + 1], target)
                sign = np.sign(one.difference)
                yield Measured(
                    one.n,
                    _ends(sign, one.difference, *one.interval),
                    _ends(sign, *one.corrected.model_dump().values()),
                    float(sign * other),
                    error,
                    float(task.target.std()),
                )


def _table(frame: pd.DataFrame) -> pa.Table:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    kinds = {pa.large_string(): pa.string()}
    return table.cast(
        pa.schema([one.with_type(kinds.get(one.type, one.type)) for one in table.schema])
    )


def _ends(sign: float, middle: float, low: float | None, high: float | None) -> tuple[float, ...]:
    low, high = (-np.inf if low is None else low, np.inf if high is None else high)
    return (sign * middle, *sorted((sign * low, sign * high)))


def difference(kind: Any, inside: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Return how far the mean of the last slice is from what the others let expect, and its error."""
    bits = inside @ (1 << np.arange(inside.shape[1]))
    masks, pattern = np.unique(bits, return_inverse=True)
    layout = TargetSums(kind)
    powers = [np.bincount(pattern, target**power) for _, power in layout.powers]
    sums = np.stack(powers, axis=1)
    weight, total = sums[:, 0], sums[:, 1]
    bit = 1 << (inside.shape[1] - 1)
    is_in = (masks & bit) > 0
    before, was = np.unique(masks & ~bit, return_inverse=True)
    merged = [np.bincount(was, some) for some in (weight, total, weight * is_in)]
    with one_thread():
        model = fit(kind, before, inside.shape[1] - 1, *merged[:2])
        after = fit(kind, masks, inside.shape[1], weight, total)
        acts = influence(model, merged[0], merged[2])
        covariance = of_patterns(after, sums, layout, is_in, -acts.outside[was])
    size = weight[is_in].sum()
    value, expected = total[is_in].sum() / size, float(merged[2] @ model.expected) / size
    return value - expected, covariance.error


def row(name: str, tables: list[list[list[Measured]]]) -> tuple[str, float, float]:
    """Return a line of findings by table and half, and the corrected ratio and share that hold."""
    places = [
        (table, half)
        for table, halves in enumerate(tables)
        for half, some in enumerate(halves)
        for _ in some
    ]
    findings = [one for halves in tables for some in halves for one in some]
    shape = len(tables), max(map(len, tables))

    def ratio(of: np.ndarray, to: np.ndarray) -> tuple[float, float]:
        """Return a ratio of sums and its error, by the residuals of halves (Cochran 1977, ch. 6)."""
        value, sums = of.sum() / to.sum(), np.zeros(shape)
        np.add.at(sums, tuple(np.transpose(places)), of - value * to)
        variance = sums.var(axis=1, ddof=1).sum() * shape[1] if shape[1] > 1 else np.nan
        return float(value), float(np.sqrt(variance) / abs(to.sum()))

    scale = np.array([one.scale for one in findings])
    other, error = (
        np.array([getattr(one, n) for one in findings]) / scale for n in ("other", "error")
    )
    measures = []
    for kind in ("observed", "corrected"):
        middle, low, high = np.array([getattr(one, kind) for one in findings]).T / scale
        down, up = np.hypot(middle - low, Z * error), np.hypot(high - middle, Z * error)
        holds = (other >= middle - down) & (other <= middle + up)
        measures += [ratio(other, middle), ratio(holds.astype(float), np.ones(holds.size))]
    (seen, _), (held, _), (corrected, off), (hold, around) = measures
    cells = (
        f"{seen:.2f}",
        f"{corrected:.2f} ± {off:.2f}",
        f"{held:.2f}",
        f"{hold:.3f} ± {around:.3f}",
    )
    return " | ".join((f"| {name}", str(len(findings)), *cells)) + " |", corrected, hold


def main() -> int:
    """Print the ratios by kind and size, and by table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--halves", type=int, default=24, help="random halves of each table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="tables to take, by commas")
    parser.add_argument("--goal", action="store_true", help="exit with 1 where the bar is missed")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    of: dict[tuple[str, str], list[list[Measured]]] = {}
    for task in tasks(options.folder):
        if options.only and task.table not in options.only.split(","):
            continue
        for _ in range(options.halves):
            half = rng.permutation(len(task.frame)) < len(task.frame) // 2
            of.setdefault((task.table, task.kind), []).append(list(measured(task, half)))
    print(
        "| findings | number | other half / observed | / corrected | holds: observed | corrected |"
    )
    print("|---|---|---|---|---|---|")
    missed = []
    groups = {
        "all": (0, np.inf),
        f"n < {SMALL}": (0, SMALL),
        f"{SMALL} to 300": (SMALL, 301),
        "above 300": (301, np.inf),
    }
    for kind in dict.fromkeys(kind for _, kind in of):
        tables = [halves for (_, other), halves in of.items() if other == kind]
        for name, (low, high) in groups.items():
            sized = [
                [[one for one in some if low <= one.n < high] for some in halves]
                for halves in tables
            ]
            if not any(some for halves in sized for some in halves):
                continue
            line, ratio, holds = row(f"{kind}: {name}", sized)
            print(line)
            least, most, share = BARS.get(name, (-np.inf, np.inf, 0.0))
            if not least <= ratio <= most or holds < share:
                missed.append(f"{kind}: {name}")
    for (table, kind), halves in of.items():
        name = f"{table}, {kind}"
        print(row(name, [halves])[0] if any(halves) else f"| {name} | 0 | | | | |")
    print("Bar missed: " + (", ".join(missed) or "nowhere"))
    return int(options.goal and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
