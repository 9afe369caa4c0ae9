"""Makes ``docs/explanation/benchmarks.md``: slicebeam, the floor and its peers side by side, and two plots.

    pip install -e '.[benchmark]' && python benchmarks/report.py [--folder DIR]

Runs `whole_runs`, `peers`, `paper_tables` and `shift_paper`, which can be run alone, one after another: half an
hour on two cores, with 16 GiB of memory for the peers. With ``--folder`` what is measured already is
kept there as JSON, and only what is missing is measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import paper_tables
import peers
import shift_paper
import whole_runs
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs" / "explanation"
ROWS = [16_281, 1_000_000]
OURS, OTHERS = "#0b6e4f", "#9aa5b1"
ORDERS = {"p-value": OURS, "breadth first": "#c8553d", "random": "#6c757d"}


def kept(path: Path, measure: Callable[[], Any]) -> Any:
    """Return what a file holds; first measure and write it where it is not there."""
    if not path.exists():
        path.write_text(json.dumps(measure(), indent=1), "utf-8")
    return json.loads(path.read_text("utf-8"))


def draw_peers(found: list[dict[str, Any]], path: Path) -> None:
    """Draw the CPU seconds of whole processes, and how many slices they report."""
    figure, axes = plt.subplots(1, len(ROWS), figsize=(11, 3.4))
    for axis, rows in zip(axes, ROWS, strict=True):
        mine = [one for one in found if one["rows"] == rows and one["cpu"] is not None][::-1]
        names = [one["system"] for one in mine]
        colors = [OURS if name.startswith("slicebeam") else OTHERS for name in names]
        seconds = [one["cpu"] for one in mine]
        bars = axis.barh(names, seconds, color=colors)
        texts = [
            f"{one['cpu']:.1f} s, {one['slices']:,} slices"
            if one["slices"] is not None
            else f"{one['cpu']:.1f} s, then out of memory"
            for one in mine
        ]
        axis.bar_label(bars, texts, padding=4, fontsize=8)
        axis.set_xlim(0, max(seconds) * 1.55)
        axis.set_xlabel("CPU seconds of the whole process")
        axis.set_title(f"{rows:,} rows", fontsize=10)
    _finish(figure, axes, path)


def draw_orders(curves: dict[str, Any], path: Path) -> None:
    """Draw the median significant slices found against the candidates computed."""
    figure, axes = plt.subplots(1, len(curves), figsize=(11, 3.4))
    for axis, (name, orders) in zip(axes, curves.items(), strict=True):
        for order, color in ORDERS.items():
            curve = orders[order]
            axis.plot(curve["candidates"], curve["significant"], color=color, label=order)
            if "low" in curve:
                axis.fill_between(
                    curve["candidates"], curve["low"], curve["high"], color=color, alpha=0.2, lw=0
                )
        axis.set_xlabel("candidates computed")
        axis.set_ylabel("significant slices found")
        axis.set_ylim(0)
        axis.set_title(name, fontsize=10)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    _finish(figure, axes, path)


def draw_costs(paper: dict[str, Any], path: Path) -> None:
    """Draw estimated against actual candidates, and the CPU seconds against rows (Figures 4 and 5)."""
    figure, (estimates, costs) = plt.subplots(1, 2, figsize=(11, 3.4))
    expected, actual = np.array(paper["estimates"]["pairs"]).T
    ends = [1, max(expected.max(), actual.max())]
    estimates.plot(ends, ends, color=OTHERS, ls="--", lw=1)
    estimates.scatter(expected, actual, color=OURS, s=8)
    estimates.set_xlabel("estimated candidates of an iteration")
    estimates.set_ylabel("actual")
    estimates.set_title("Candidates that are not empty", fontsize=10)
    for run, color in zip(("batch", "iterative", "priority"), ORDERS.values(), strict=True):
        some = [one for one in paper["cost_against_rows"] if one["run"] == run]
        x, y = ([one[key] for one in some] for key in ("rows", "cpu_seconds"))
        costs.plot(x, y, color=color, marker=".", label=run)
    costs.set_xlabel("rows of Census")
    costs.set_ylabel("CPU seconds of the whole process")
    costs.set_ylim(0)
    costs.set_title("Cost against rows", fontsize=10)
    costs.legend(frameon=False, fontsize=8)
    for axis in (estimates, costs):
        axis.set_xscale("log")
    estimates.set_yscale("log")
    _finish(figure, np.array([estimates, costs]), path)


def _finish(figure: Any, axes: np.ndarray[Any, np.dtype[Any]], path: Path) -> None:
    axis: Axes
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def page(
    runs: list[dict[str, Any]],
    help_wall: float,
    machine: str,
    beside: list[dict[str, Any]],
    paper: dict[str, Any],
    shift: dict[str, Any],
) -> str:
    """Return the page as Markdown."""
    return f"""# Benchmarks

This page shows what a search costs, how that compares with other systems, and how the published experiments of
AutoSlicer and MASA come out here.

Made by `pip install -e '.[benchmark]' && python benchmarks/report.py`, on this machine:

> {machine}

CPU seconds are those of whole processes: imports, reading Parquet, feature domains, encoding, search with the default
tests, published files. They vary by some 5 % from run to run.

## Whole runs and their bars

Adult has 16,281 rows and 14 features, and is repeated to 1, 4 and 10 million rows; *wide* is 47,655 ×
65 synthetic features in one batch of all 43,680 triples, *200-features* a million rows by `--strategy
priority` with 50,000 candidates in each of 5 iterations. `python benchmarks/whole_runs.py`
measures these alone.

{whole_runs.table(runs, help_wall)}

## Beside other systems

The task: conjunctions of up to three of Adult's predicates that hold for at least 1 % of the examples. Every system
searches the same predicates: slicebeam learns them within its measured process, the others get encoded data. Only
slicebeam tests what it finds; DivExplorer gives a t without correction, the others ten slices by a score. *Search
alone* is the peer's search call, and counting and testing here. The floor is two numpy `bincount` for each of the 469
feature tuples.

![CPU seconds of slicebeam and its peers](benchmarks-peers.svg)

{peers.table(beside)}

## AutoSlicer's experiments, rerun

Liu, Rosen and Paul Suganthan (2022), Tables 1 to 3, Figures 3 to 5 and the smallest slices of A.2.3, with `--test paper`, `--exact-edges` and the paper's
settings: 20 replicates, α = 0.01, no correction, slices from one example on, up to three predicates. Candidates and
significant slices are medians of {paper_tables.SEEDS} seeds, with the smallest and the largest; costs and the synthetic
data are of one. Electricity and Census are
samples of the same size as the paper's with models of our own; synthetic data stands in for Safe Driving, of which it
has the shape only. The paper's CPU seconds are of its cluster.

![Significant slices found against candidates](benchmarks-orders.svg)

![Estimated and actual candidates, and cost against rows](benchmarks-costs.svg)

{paper_tables.markdown(paper)}

How to read them:

- **Fewer significant slices than in the paper.** A slice gets no p-value where more than 5 % of its replicates are
  undefined, which with 20 replicates is so for nearly every slice of one or two examples. Without that rule the batch
  run finds {paper["undefined"]["electricity"]["significant"]} slices on Electricity, where the paper has 317, and
  {paper["undefined"]["electricity"]["of_two_or_fewer"]} of them have at most two examples: the rule makes the difference, and
  it is kept.
- **Batch and iterative find the same slices here**: an example's weight in a replicate is a hash, the same
  in every strategy. The paper's 317 and 327 differ by noise of the bootstrap.
- **Nothing is shuffled**, since one process counts a block of feature tuples over all shards. A cluster
  shuffles tables only where blocks are fewer than workers.
- **Priority pays on wide data**, not on these small ones, where counting everything takes a second.
- **The order by p-value** finds 90 % of what there is after {_of_breadth_first(paper, "electricity")} of the candidates that
  breadth first needs on Electricity, and after {_of_breadth_first(paper, "census")} on Census (medians of
  {paper_tables.SEEDS} seeds).

{shift_paper.markdown(shift)}"""


def _of_breadth_first(paper: dict[str, Any], name: str) -> str:
    curves = paper["curves"][name]
    by_p, breadth = (
        np.median(curves[order]["until_90_percent"]) for order in ("p-value", "breadth first")
    )
    return f"{by_p / breadth:.0%}"


def main() -> None:
    """Measure what is missing and write the page with its plots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where data and figures are kept")
    given = parser.parse_args()
    mpl.rcParams |= {"svg.hashsalt": "slicebeam", "font.size": 9}
    DOCS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as top:
        folder = (given.folder or Path(top)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        runs = kept(folder / "whole_runs.json", lambda: whole_runs.records(folder))
        help_wall = kept(folder / "help.json", whole_runs.help_seconds)
        beside = kept(folder / "peers.json", lambda: peers.records(ROWS, folder))
        paper = kept(folder / "paper.json", lambda: paper_tables.records(folder))
        shift = kept(folder / "shift.json", shift_paper.records)
        machine = peers.machine(folder / "environment" / "bin" / "python")
    draw_peers(beside, DOCS / "benchmarks-peers.svg")
    draw_orders(paper["curves"], DOCS / "benchmarks-orders.svg")
    draw_costs(paper, DOCS / "benchmarks-costs.svg")
    (DOCS / "benchmarks.md").write_text(
        page(runs, help_wall, machine, beside, paper, shift), "utf-8"
    )


if __name__ == "__main__":
    main()
