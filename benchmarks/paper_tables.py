"""The experiments of AutoSlicer's paper, rerun: its tables, its curves, and its figures beside.

    python benchmarks/paper_tables.py [--folder DIR] [--json FILE] [--only electricity,census]

Source: Liu, Rosen and Paul Suganthan (2022), "AutoSlicer: Scalable automated data slicing for ML
model analysis", Tables 1 to 3 and Figures 3 to 5, with the paper's settings (``--test paper``: 20
replicates, alpha 0.01, no correction, slices of one example on; 3 predicates, 10 bins, 100 values).

Models and samples are not the paper's. Electricity and Census have its numbers of rows; synthetic
data stands for Safe Driving, of which it has the shape only: 47,655 rows, 58 numeric features and 7
categorical ones. A candidate is a slice that is not empty; significant slices found are the top-most
ones, as in the paper. The curves are lists of x and y in the JSON, ready to be drawn.

Replicates are drawn, so that each count is the median of ten seeds, with the smallest and the largest: the command runs
every strategy with the first seed, and only batch with the others, whose p-values the strategies are replayed with. Bins
have values of the data as edges, as in the paper.

The library refuses a p-value where more than one replicate has no example of the slice: that is so for nearly all slices
of one or two examples. The paper has no such rule: a row has the batch run without it. It takes a quarter of an hour,
mostly synthetic data.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from whole_runs import ADULT, OLD, Run, apart, machine, make_data, measure

from slicebeam.metrics.counting.lattice import Lattice, contains
from slicebeam.metrics.measures import slice_test
from slicebeam.metrics.randomness import hash64
from slicebeam.pipelines.commands.cli import run as run_command
from slicebeam.pipelines.search.strategies import Iterative, Priority, SearchState
from slicebeam.transforms.encode.predicates import Singleton

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys

    Array = NDArray[Any]
    Rows = list[dict[str, Any]]
    Order = Callable[[Keys], Array]

ELECTRICITY = Path(__file__).parents[1] / "examples" / "electricity" / "electricity_scored.parquet"
ALPHA, LEVELS, ITERATIONS = 0.01, 3, 5
CURVE_CANDIDATES, SEEDS = 2000, 10
# Slices that the iterative strategy refines: the paper's A.2.3.
SMALLEST = (1, 50, 100)
OF_STRATEGY = {
    "batch": ("--strategy", "batch"),
    "iterative": ("--strategy", "iterative", "--prune-significant"),
    "priority": ("--strategy", "priority", "--prune-significant"),
}
# Configurations of priority: shares of batch's candidates, and K where the paper had no batch.
CONFIGURATIONS = ((0.1, 2500), (0.2, 5000), (0.4, 10_000), (0.6, 20_000))
CENSUS_ROWS, CENSUS_TIMES = 3918, (0.25, 1, 4, 16)

# What the paper reports, its Table 3; its Safe Driving stands beside the synthetic data.
FIGURES = ("candidates", "significant", "cpu_seconds", "shuffled_gigabytes")
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "electricity": {
        "batch": (30_000, 317, 168_000, 233),
        "iterative": (23_499, 327, 90_600, 19.3),
        "priority 1": (2859, 101, 14_100, 0.967),
        "priority 2": (5638, 163, 17_800, 2.72),
        "priority 3": (10_724, 261, 40_300, 8.36),
        "priority 4": (15_114, 302, 54_900, 9.68),
    },
    "census": {
        "batch": (63_861, 303, 412_000, 971),
        "iterative": (29_079, 316, 213_000, 70.1),
        "priority 1": (5690, 195, 14_100, 2.8),
        "priority 2": (10_784, 258, 15_200, 5.88),
        "priority 3": (24_484, 321, 46_400, 29.6),
        "priority 4": (30_308, 374, 50_800, 43.4),
    },
    "synthetic": {"priority 1": (10_532, 369, 1_190_000, 442)},
}
# How many candidates fewer with each smallest slice than with the one before.
PAPER_SMALLEST = {50: -0.583, 100: -0.334}
# At how many candidates 90 % of the slices are found: by p-value, and in both other orders.
PAPER_UNTIL = {"electricity": ("14,000", "20,000"), "census": ("< 12,000", "25,000")}
LABELS = {"electricity": "class", "census": "income", "synthetic": "label"}


def write_data(name: str, folder: Path) -> None:
    """Write a data set to the folder, unless it is there.

    ``census`` has as many examples as the paper's, ``census-x16`` all of them 16 times over.
    """
    path = folder / f"{name}.parquet"
    if name == "synthetic" and not path.exists():
        make_data("wide", folder).rename(path)
    if path.exists():
        return
    table = pq.read_table(ELECTRICITY if name == "electricity" else ADULT)
    table = table.select([one for one in table.column_names if one not in OLD.split(",")])
    times = float(name.partition("-x")[2] or CENSUS_ROWS / table.num_rows)
    if name != "electricity" and times < 1:
        order = np.random.default_rng(0).permutation(table.num_rows)
        table = table.take(np.sort(order[: round(times * table.num_rows)]))
    pq.write_table(pa.concat_tables([table] * max(1, round(times))), path)


class Results(NamedTuple):
    """The saved slices of a run: their lattice, keys (sorted), and an array [slices] of each fact."""

    lattice: Lattice
    keys: Keys
    sizes: Array
    p: Array
    significant: Array


def read_results(output: Path) -> Results:
    """Read what a run published, with the slices as keys of its lattice."""
    document = json.loads((output / "changelist.json").read_text("utf-8"))
    domains = [one["singletons"] for one in document["dataset"]["domains"] if "singletons" in one]
    lattice = Lattice(tuple(map(len, domains)), LEVELS)
    texts = [Singleton(**shape).json_text() for domain in domains for shape in domain]
    # A slice's text is split where a singleton begins, which takes its own beginning and brace away.
    begins = '{"field": '
    known = pa.array([text.removeprefix(begins).removesuffix("}") for text in texts])
    parts = []
    names = ["predicate", "n", "p_value", "significant"]
    # A part at a time: the texts of millions of slices would take gigabytes.
    for batch in pq.ParquetFile(output / "slices.parquet").iter_batches(1 << 18, columns=names):
        inner = pc.utf8_slice_codeunits(batch["predicate"], len('{"all": [' + begins), -3)
        split = pc.split_pattern(inner, "}, " + begins)
        lengths = pc.list_value_length(split).to_numpy()
        digits = np.zeros((lengths.size, LEVELS), np.int64)
        numbers = pc.index_in(split.flatten(), known).to_numpy()
        digits[np.arange(LEVELS) < lengths[:, None]] = numbers + 1
        values = [batch[name].to_numpy(zero_copy_only=False) for name in names[1:]]
        parts.append([lattice.keys(digits), *values])
    joined = [np.concatenate(some) for some in zip(*parts, strict=True)]
    order = np.argsort(joined[0])
    return Results(lattice, *(column[order] for column in joined))


def top_most(lattice: Lattice, keys: Keys) -> Keys:
    """Return those of the significant slices (sorted) of which no sub-conjunction is significant.

    The slices of sub-conjunctions are the ones that hold a slice, whatever the data.
    """
    levels = lattice.cross_sizes(keys)
    top = np.ones(keys.size, bool)
    for level in range(2, lattice.max_cross_size + 1):
        mine = np.flatnonzero(levels == level)
        for above in lattice.subsets(keys[mine], range(1, level)):
            top[mine] &= ~contains(keys, above)
    return keys[top]


def found(output: Path) -> int:
    """Return how many significant slices a run found."""
    results = read_results(output)
    return top_most(results.lattice, results.keys[results.significant]).size


def of_paper(data: str) -> list[str]:
    """Return the options of every run of a data set."""
    options = ["--test", "paper", "--max-cross-size", str(LEVELS), "--exact-edges", "--quiet"]
    return [*options, "--label", LABELS[data.partition("-")[0]], "--prediction", "prediction"]


def searched(name: str, data: str, options: list[str], folder: Path) -> dict[str, Any]:
    """Return what a run of the command cost, in a process of its own."""
    apart(write_data, data, folder)
    run = Run(name, data, (*of_paper(data), *options), np.inf, np.inf)
    cpu, _, megabytes = measure(run, folder)
    published = folder / f"out-{name}" / "changelist.json"
    iterations = json.loads(published.read_text("utf-8"))["search"]["iterations"]
    return {
        "candidates": sum(one["nonempty"] for one in iterations),
        "cpu_seconds": cpu,
        "counting_cpu_seconds": sum(one["cpu_seconds"] for one in iterations),
        "peak_megabytes": megabytes,
        "shuffled_gigabytes": sum(one["shuffled_bytes"] for one in iterations) / 1e9,
        # All singletons exist: the first iteration has nothing to estimate.
        "estimates": [[one["nonempty_estimated"], one["nonempty"]] for one in iterations[1:]],
    }


def tables(name: str, folder: Path) -> Rows:
    """Run batch, iterative and four configurations of priority; the rows of the paper's Table 3."""
    # Of tens of millions of slices, only the significant ones are written.
    saved = "significant" if name == "synthetic" else "tested"
    rows: Rows = []
    for run in PAPER["electricity"]:
        strategy, _, number = run.partition(" ")
        options, most = [*OF_STRATEGY[strategy], "--save-slices", saved], None
        if number:
            share, most = CONFIGURATIONS[int(number) - 1]
            if name != "synthetic":
                most = round(share * rows[0]["candidates"] / ITERATIONS)
            options += ["--iterations", str(ITERATIONS), "--max-candidates", str(most)]
        output = f"{name}-{strategy}{number}"
        row = {"run": run, "max_candidates": most, **searched(output, name, options, folder)}
        row["significant"] = apart(found, folder / f"out-{output}")
        row["paper"] = dict(zip(FIGURES, PAPER[name].get(run, ()), strict=False))
        print(name, row, file=sys.stderr)
        rows.append(row)
    return rows


class Ordered(Priority):
    """The priority strategy with its queue in another order, ties by predicate."""

    def __init__(self, lattice: Lattice, order: Order, **how: Any) -> None:
        super().__init__(lattice, **how)
        self.order = order

    def _queue(self, known: SearchState) -> Keys:
        waiting = super()._queue(known)
        return waiting[np.lexsort((waiting, self.order(waiting)))]


def batch(name: str, folder: Path, seed: int = 0, *, keeps_undefined: bool = False) -> Results:
    """Test every slice in this process, with a seed, and with any number of undefined replicates or few."""
    write_data(name, folder)
    output = folder / f"out-{name}-seed{seed}{'-undefined' * keeps_undefined}"
    arguments = ["search", *of_paper(name), "--data", str(folder / f"{name}.parquet"), "--seed"]
    arguments += [str(seed), "--output", str(output), *OF_STRATEGY["batch"]]
    before = slice_test.UNDEFINED_SHARE
    slice_test.UNDEFINED_SHARE = 1.0 if keeps_undefined else before
    try:
        code = run_command([*arguments, "--save-slices", "tested"])
    finally:
        slice_test.UNDEFINED_SHARE = before
    if code:
        raise SystemExit(f"{name}, seed {seed}: the command failed")
    return read_results(output)


def undefined_kept(name: str, folder: Path) -> dict[str, int]:
    """Return how many significant slices the paper's rule finds, and how many of them are tiny."""
    whole = batch(name, folder, keeps_undefined=True)
    top = top_most(whole.lattice, whole.keys[whole.significant])
    sizes = whole.sizes[np.searchsorted(whole.keys, top)]
    return {"significant": top.size, "of_two_or_fewer": int(np.count_nonzero(sizes <= 2))}


class Replay(NamedTuple):
    """What a search over known results knew in the end, and lists with an entry an iteration."""

    known: SearchState
    candidates: list[int]
    significant: list[int]
    estimates: list[list[float]]


def replay(whole: Results, steps: Priority | Iterative, min_size: int = 1) -> Replay:
    """Search with the p-values of a run that tested every slice.

    Replicate weights are hashes of the examples, so that a slice has the same p-value whichever
    strategy visits it.
    """
    done = Replay(SearchState(min_size=min_size), [], [], [])
    known = done.known
    while (proposal := steps.next(known)) is not None:
        at = np.minimum(np.searchsorted(whole.keys, proposal.candidates), whole.keys.size - 1)
        exists = whole.keys[at] == proposal.candidates
        known.add(proposal.candidates, np.where(exists, whole.sizes[at], 0))
        p = np.where(whole.sizes[at] < min_size, np.nan, whole.p[at])
        known.learn(proposal.candidates[exists], p[exists])
        known.significant = known.p <= ALPHA
        if done.candidates:
            done.estimates.append([proposal.expected, int(exists.sum())])
        done.candidates.append(int(np.count_nonzero(known.sizes)))
        done.significant.append(top_most(whole.lattice, known.keys[known.significant]).size)
    return done


def check_replay(whole: Results, ran: Results, most: int) -> None:
    """Stop unless a replay visits, and calls, exactly the slices that the command did."""
    how = {"iterations": ITERATIONS, "max_candidates": most, "prune_significant": True}
    known = replay(whole, Priority(whole.lattice, **how)).known
    exist = known.sizes > 0
    ours = known.keys[exist], known.significant[exist]
    if not all(map(np.array_equal, ours, (ran.keys, ran.significant))):
        raise SystemExit(f"the replay with K = {most} is not the search that was run")


def candidates_until(done: Replay, share: float) -> float:
    """Return at how many candidates a share of the final significant slices is found."""
    x, y = [0, *done.candidates], [0, *done.significant]
    wanted = share * y[-1]
    after = int(np.argmax(np.array(y) >= wanted))
    # Between two iterations, on the straight line.
    return float(np.interp(wanted, y[after - 1 : after + 1], x[after - 1 : after + 1]))


def counts(whole: Results, most: list[int]) -> dict[str, tuple[int, int]]:
    """Return candidates and significant slices of each strategy, with so many candidates an iteration."""
    lattice = whole.lattice
    how: dict[str, Any] = {"iterations": ITERATIONS, "prune_significant": True}
    steps: dict[str, Priority | Iterative] = {
        "iterative": Iterative(lattice, prune_significant=True)
    }
    for number, one in enumerate(most, 1):
        steps[f"priority {number}"] = Priority(lattice, max_candidates=one, **how)
    found = {"batch": (whole.keys.size, top_most(lattice, whole.keys[whole.significant]).size)}
    for name, one in steps.items():
        done = replay(whole, one)
        found[name] = done.candidates[-1], done.significant[-1]
    return found


def by_seed(name: str, folder: Path, most: list[int]) -> dict[str, Any]:
    """Return what differs from seed to seed: counts of each run, candidates by N_min, and the curves."""
    wholes = [batch(name, folder, seed) for seed in range(SEEDS)]
    # What `tables` ran, with so many candidates an iteration, is replayed first.
    for number, one in enumerate(most, 1):
        check_replay(wholes[0], read_results(folder / f"out-{name}-priority{number}"), one)
    some = [counts(whole, most) for whole in wholes]
    smallest = [
        [
            replay(whole, Iterative(whole.lattice, prune_significant=True), least).candidates[-1]
            for whole in wholes
        ]
        for least in SMALLEST
    ]
    return {
        "counts": {run: [one[run] for one in some] for run in some[0]},
        "smallest": smallest,
        "curves": curves(wholes),
    }


def curves(wholes: list[Results]) -> dict[str, Any]:
    """Return significant slices against candidates for three orders of the queue (Figure 3)."""

    def by_random(seed: int) -> Order:
        return lambda keys: hash64(seed, 0, keys.view(np.uint64))

    how = {"iterations": 10**6, "max_candidates": CURVE_CANDIDATES, "prune_significant": True}
    queues: dict[str, Callable[[int, Lattice], Priority]] = {
        "p-value": lambda _, lattice: Priority(lattice, **how),
        "breadth first": lambda _, lattice: Ordered(lattice, lattice.cross_sizes, **how),
        "random": lambda seed, lattice: Ordered(lattice, by_random(seed), **how),
    }
    curve: dict[str, Any] = {}
    for order, queue in queues.items():
        some = [replay(whole, queue(seed, whole.lattice)) for seed, whole in enumerate(wholes)]
        x = np.unique([0, *(number for done in some for number in done.candidates)]).tolist()
        y = np.stack([np.interp(x, [0, *d.candidates], [0, *d.significant]) for d in some])
        curve[order] = {"candidates": x, "significant": np.median(y, axis=0).tolist()}
        curve[order] |= {"low": y.min(axis=0).tolist(), "high": y.max(axis=0).tolist()}
        curve[order]["until_90_percent"] = [candidates_until(done, 0.9) for done in some]
        curve[order]["estimates"] = some[0].estimates
    return curve


def cost_against_rows(folder: Path, most: int) -> Rows:
    """Return the cost of each strategy on a quarter of the census data to 16 times all (Figure 5)."""
    costs = []
    for data in (f"census-x{times}" for times in CENSUS_TIMES):
        for strategy in ("batch", "iterative", "priority"):
            options = [*OF_STRATEGY[strategy], "--save-slices", "significant"]
            options += ["--max-candidates", str(most)] if strategy == "priority" else []
            cost = searched("rows", data, options, folder)
            rows = pq.read_metadata(folder / f"{data}.parquet").num_rows
            costs.append({"rows": rows, "run": strategy, **cost})
            print(costs[-1], file=sys.stderr)
    return costs


def records(folder: Path, only: tuple[str, ...] = tuple(PAPER)) -> dict[str, Any]:
    """Run everything, and return it as it stands in the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"tables": {}, "curves": {}, "undefined": {}, "smallest": {}}
    pairs: list[list[float]] = []
    for name in only:
        rows = record["tables"][name] = tables(name, folder)
        most = [row["max_candidates"] for row in rows[2:]]
        # No slice of the synthetic data is empty, so that there is nothing to estimate.
        if name != "synthetic":
            record["undefined"][name] = apart(undefined_kept, name, folder)
            seeds = apart(by_seed, name, folder, most)
            record["curves"][name] = seeds["curves"]
            record["smallest"][name] = seeds["smallest"]
            for row in rows:
                row["by_seed"] = seeds["counts"][row["run"]]
            pairs += [pair for row in rows[2:] for pair in row["estimates"]]
            pairs += record["curves"][name]["p-value"]["estimates"]
        if name == "census":
            record["cost_against_rows"] = cost_against_rows(folder, most[-1])
    errors = [abs(estimated - actual) / actual for estimated, actual in pairs if actual]
    error = float(np.median(errors)) if errors else None
    return record | {"estimates": {"pairs": pairs, "median_relative_error": error}}


def _text(value: float | str | None) -> str:
    """Return a cell as a reader wants it: 12.3, 1,234, 0.967; nothing for what is not known."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """Return the median, and in brackets the smallest and the largest value where they differ."""
    middle, low, high = float(np.median(values)), min(values), max(values)
    return f"{middle:,.0f}" if low == high else f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def smallest_lines(name: str, found: list[list[int]]) -> list[str]:
    """Return the table of the iterative strategy with several smallest sizes (A.2.3)."""
    medians = [float(np.median(candidates)) for candidates in found]
    fell = ["", *(f"{after / before - 1:+.1%}" for before, after in pairwise(medians))]
    rows = [
        [least, spread(candidates), change, f"{PAPER_SMALLEST[least]:+.1%}" if change else ""]
        for least, candidates, change in zip(SMALLEST, found, fell, strict=True)
    ]
    return markdown_table(
        f"| {name}: smallest slice | candidates of iterative | change | paper's, Electricity |",
        rows,
    )


def markdown_table(header: str, rows: list[list[Any]]) -> list[str]:
    body = [f"| {' | '.join(map(_text, row))} |" for row in rows]
    return [header, "|" + "---|" * (header.count("|") - 1), *body, ""]


def markdown(record: dict[str, Any]) -> str:
    """Return the tables of what `records` returned."""
    lines: list[str] = []
    cost = ("cpu_seconds", "counting_cpu_seconds", "peak_megabytes", "shuffled_gigabytes")
    words = "CPU s | of it counting, testing | peak MB | GB shuffled |"
    for name, rows in record["tables"].items():
        source = "paper's" if name != "synthetic" else "Safe Driving's"
        header = f"| run | K | candidates | significant | {words}"
        header += f" {source} candidates | significant | CPU s | GB shuffled |"
        keys = ("run", "max_candidates", "candidates", "significant", *cost)
        cells = [[row[key] for key in keys] for row in rows]
        for cell, row in zip(cells, rows, strict=True):
            if "by_seed" in row:
                cell[2:4] = (spread(some) for some in zip(*row["by_seed"], strict=True))
            cell += [row["paper"].get(key, "did not finish") for key in FIGURES]
        lines += [f"### {name}", "", *markdown_table(header, cells)]
        if kept := record["undefined"].get(name):
            lines.append(
                f"Without the rule about undefined replicates the first batch run finds {kept['significant']:,}, "
                f"{kept['of_two_or_fewer']:,} of them of at most two examples.\n"
            )
        cells = []
        for order, curve in record["curves"].get(name, {}).items():
            x, y, until = (curve[k] for k in ("candidates", "significant", "until_90_percent"))
            early = np.interp(np.array([0.1, 0.2, 0.4, 0.6, 0.8]) * x[-1], x, y).tolist()
            cells.append([order, spread(until), f"{y[-1]:,.0f} of {x[-1]:,}"])
            cells[-1] += [f"{number:,.0f}" for number in early]
            cells[-1].insert(2, PAPER_UNTIL[name][order != "p-value"])
        header = f"| {name}: order | 90 % at candidates | paper's | in all, of candidates "
        header += "| at 10 % | 20 % | 40 % | 60 % | 80 % |"
        lines += markdown_table(header, cells) if cells else []
        lines += smallest_lines(name, record["smallest"][name]) if cells else []
    if costs := record.get("cost_against_rows"):
        cells = [[row[key] for key in ("rows", "run", "candidates", *cost)] for row in costs]
        lines += markdown_table(f"| census, rows | run | candidates | {words}", cells)
    if pairs := record["estimates"]["pairs"]:
        words = f"median relative error {record['estimates']['median_relative_error']:.1%}"
        lines.append(f"Estimated candidates of {len(pairs)} iterations by priority: {words}.")
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for, print the tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where data and results are kept")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--only", default=",".join(PAPER), help="data sets, by commas")
    given = parser.parse_args()
    only = tuple(given.only.split(","))
    if unknown := set(only) - set(PAPER):
        parser.error(f"--only: there is no {', '.join(unknown)}; choose from {', '.join(PAPER)}")
    with tempfile.TemporaryDirectory() as top:
        record = records(given.folder or Path(top), only)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1), "utf-8")
    print(machine(), "", markdown(record), sep="\n")


if __name__ == "__main__":
    main()
