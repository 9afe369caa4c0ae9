"""How often a comparison of two data sets is wrong, and what it finds: ``python benchmarks/earlier_data.py``.

Real tables are cut into two random parts, where nothing changed; or a slice of one part is made worse. Prints, for each
table and design, how many of the runs exit with 1 by ``--fail-on worse``, list a finding, find the slice that was made
worse first (by the Jaccard index of the examples), and list more than that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.calibration_means import losses
from slicebeam.metrics.significance.few_cells import EDGES, UNIT, own_values_p
from slicebeam.metrics.significance.hall import Moments, against_rest
from slicebeam.metrics.significance.random_subset import BINS, add_bin_sums
from slicebeam.pipelines.commands.api import search
from slicebeam.pipelines.search.summary import gate_of
from tests.oracles import predicates

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
LABEL = {"adult": "income", "compas": "class", "electricity": "class"}


def tables() -> dict[str, pd.DataFrame]:
    """Return the tables, with a label and a prediction."""
    adult = pd.read_parquet(ROOT / "pipelines" / "demo_data" / "adult_scored.parquet")
    found = {
        "adult": adult.drop(columns=["row_id", "fnlwgt", "score", "score_old", "prediction_old"])
    }
    if (SHARED / "compas").is_dir():
        compas = pd.read_csv(SHARED / "compas" / "compas_discretized.csv")
        found["compas"] = compas.rename(columns={"predicted": "prediction"})
    if (SHARED / "electricity").is_dir():
        found["electricity"] = electricity(pd.read_csv(SHARED / "electricity" / "electricity.csv"))
    return found


def electricity(table: pd.DataFrame) -> pd.DataFrame:
    """Return the second half, with the predictions of a model of the first."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    half, X = len(table) // 2, table.drop(columns=["class", "date"])
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=0)
    model.fit(X[:half], table["class"][:half])
    later = table[half:].reset_index(drop=True)
    return later.drop(columns=["date"]).assign(prediction=model.predict(X[half:]))


def planted(
    table: pd.DataFrame,
    label: str,
    predicate: dict[str, Any],
    fall: float,
    rng: np.random.Generator,
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a table in which a slice is worse, and which rows it has."""
    inside = predicates.mask(table, predicate)
    right = (table[label] == table["prediction"]).to_numpy()
    flip = inside & right & (rng.random(len(table)) < fall / max(right[inside].mean(), 1e-9))
    values = list(pd.unique(table[label]))
    prediction = table["prediction"].to_numpy().copy()
    other = {values[0]: values[1], values[1]: values[0]}
    prediction[flip] = [other[value] for value in table[label].to_numpy()[flip]]
    return table.assign(prediction=prediction), inside


def of_the_size(
    table: pd.DataFrame, label: str, shares: tuple[float, float], levels: list[int]
) -> list[list[dict[str, Any]]]:
    """Return the predicates of all slices of some shares of the examples, for each number of conditions."""
    slices = search(table, label=label, prediction="prediction").slices.to_pandas()
    slices = slices[slices["share"].between(*shares)]
    among = [slices[slices["cross_size"] == level]["predicate"] for level in levels]
    return [[json.loads(predicate) for predicate in some] for some in among if len(some)]


def run(now: pd.DataFrame, then: pd.DataFrame, label: str, folder: Path, **more: Any) -> Any:
    """Return the report of a search of today's data against earlier data."""
    return search(now, baseline_data=then, label=label, prediction="prediction", **more)


def first_overlap(report: Any, table: pd.DataFrame, inside: np.ndarray) -> float:
    """Return the Jaccard index of the first finding's examples and those that were made worse."""
    findings = report.changelist.findings
    if not findings:
        return 0.0
    slices = {slice_.slice_id: slice_ for slice_ in report.changelist.slices}
    first = slices[findings[0].slice_id].definition.predicate
    holds = predicates.mask(table, json.loads(first.model_dump_json()))
    return float((holds & inside).sum() / max((holds | inside).sum(), 1))


# Examples today and then, of which means are compared.
_SIZES = ((20, 20), (50, 200), (20, 1000), (50, 2000), (500, 50))


def of_means(draws: int) -> None:
    """Print how often means of two samples of one law are called, for Hall's t alone and with the law of their values."""
    print(
        "rate / nominal at .05, .01, .001, of a rise and of a fall; Hall's t, then with the law of the values"
    )
    for name in ("lognormal", "bimodal log loss", "heavy", "six values"):
        law = losses(name)
        skewness = float(((law - law.mean()) ** 3).mean() / law.std() ** 3)
        for n, m in _SIZES:
            rng = np.random.default_rng([n, m])
            p = {tail: [] for tail in ("upper", "lower")}
            for _ in range(draws // 1000):
                values = rng.choice(law, (1000, n + m))
                sides = [
                    Moments(
                        np.full(1000, part.shape[1]), part.mean(1), part.var(1, ddof=1), skewness
                    )
                    for part in (values[:, :n], values[:, n:])
                ]
                spread = values.std(axis=1, keepdims=True)
                z = (values - values.mean(axis=1, keepdims=True)) / np.where(
                    spread > 0, spread, 1.0
                )
                bins, of_slice = (
                    np.zeros((1000, 3, BINS), np.int64),
                    np.repeat(np.arange(1000), n + m),
                )
                add_bin_sums(bins, z.ravel(), EDGES, UNIT, of_slice)
                for tail, of in p.items():
                    hall = against_rest(*sides).p_value(tail)[0]
                    own = own_values_p(bins, np.full(1000, n), z[:, :n].sum(axis=1), tail)
                    of.append(np.stack([hall, np.maximum(hall, own)]))
            for tail, of in p.items():
                both = np.concatenate(of, axis=1)
                rates = [(both <= level).mean(axis=1) / level for level in (0.05, 0.01, 0.001)]
                shown = "   ".join(
                    "  ".join(f"{x:5.2f}" for x in row) for row in np.transpose(rates)
                )
                way = "rise" if tail == "upper" else "fall"
                print(f"{name:18} {n:5} {m:5} {way}   {shown}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--falls", default="0,0.15")
    parser.add_argument("--rows", type=int, default=40_000, help="of a table, for both data sets")
    parser.add_argument("--shares", default="0.04,0.06", help="of today's examples that fall")
    parser.add_argument("--levels", default="1,2,3", help="how many conditions what falls may have")
    parser.add_argument(
        "--nights", type=int, default=1, help="of earlier data, each as large as today's"
    )
    parser.add_argument("--correction", default="fdr-level")
    parser.add_argument("--only", help="names of tables")
    parser.add_argument("--table", action="append", default=[], help="PATH=LABEL, with predictions")
    parser.add_argument("--means", type=int, help="draws of means of two samples, and nothing else")
    arguments = parser.parse_args()
    if arguments.means:
        of_means(arguments.means)
        return
    every = tables()
    for named in arguments.table:
        path, _, label = named.partition("=")
        every[Path(path).stem] = pd.read_parquet(path)
        LABEL[Path(path).stem] = label
    heads = (
        "exit 1",
        "with findings",
        "first J >= .7",
        "first J >= .9",
        "more than one",
        "than two",
    )
    print(f"{'table':12}  fall   runs  {'  '.join(f'{head:>13}' for head in heads)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, table in every.items():
            if arguments.only and name not in arguments.only.split(","):
                continue
            low, high = map(float, arguments.shares.split(","))
            among = of_the_size(
                table, LABEL[name], (low, high), list(map(int, arguments.levels.split(",")))
            )
            for fall in map(float, arguments.falls.split(",")):
                counts = np.zeros(6, int)
                for seed in range(arguments.runs):
                    rng = np.random.default_rng([seed, int(1000 * fall)])
                    kept = table.sample(min(len(table), arguments.rows), random_state=seed)
                    today = rng.random(len(kept)) < 1.0 / (1 + arguments.nights)
                    now, then = (kept[some].reset_index(drop=True) for some in (today, ~today))
                    inside = np.zeros(len(now), bool)
                    if fall:
                        of_level = among[rng.integers(len(among))]
                        predicate = of_level[rng.integers(len(of_level))]
                        now, inside = planted(now, LABEL[name], predicate, fall, rng)
                    more = {"correction": arguments.correction}
                    report = run(now, then, LABEL[name], Path(folder), **more)
                    findings = [x for x in report.changelist.findings if x.direction == "worse"]
                    overlap = first_overlap(report, now, inside) if fall else 0.0
                    counts += [
                        gate_of(report.changelist, "worse").exit_code == 1,
                        bool(findings),
                        overlap >= 0.7,
                        overlap >= 0.9,
                        len(findings) > 1,
                        len(findings) > 2,
                    ]
                shown = "  ".join(f"{count / arguments.runs:13.3f}" for count in counts)
                print(f"{name:12}  {fall:.2f}  {arguments.runs:5}  {shown}", flush=True)


if __name__ == "__main__":
    main()
