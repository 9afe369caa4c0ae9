"""Rates of all tests and of whole searches, each against its bar.

Run it alone: ``python benchmarks/calibration.py [--only 2,9,11]``. It prints a Markdown table
and ends with 1 if a bar is missed. All seeds are fixed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import calibration_auc, calibration_margins
from benchmarks import calibration_average_precision as average_precision
from benchmarks import calibration_counts as counts
from benchmarks import calibration_designs as designs
from benchmarks import calibration_means as means
from benchmarks.calibration_designs import ADULT, Each, Result, in_turn
from slicebeam.metrics.counting.lattice import Lattice, contains
from slicebeam.metrics.kinds import Correction
from slicebeam.metrics.measures.multiplicity import Visited, adjusted, tests_per_level
from slicebeam.metrics.measures.registry import statistic_space
from slicebeam.metrics.measures.slice_test import SliceTest
from slicebeam.metrics.randomness import poisson_weights
from slicebeam.pipelines.search.strategies import Priority, SearchState

PROCESSES = 2


# 11


class PermutedRun(NamedTuple):
    """Share of the tested slices with p ≤ .01, and whether any slice is significant."""

    rate: float
    found: bool


def _permuted_adult(job: tuple[int, str], correction: str, test: str) -> PermutedRun:
    """Search the demo data with labels and predictions, as pairs, in random order."""
    # Beam is not imported for designs without a search.
    from tests.running import search

    seed, alternative = job
    roles = ["income", "prediction"]
    frame = pq.read_table(ADULT).to_pandas()
    order = np.random.default_rng([111, seed]).permutation(len(frame))
    frame[roles] = frame[roles].to_numpy()[order]
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "permuted.parquet"
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), data)
        found = search(
            Path(name) / "out",
            data=[str(data)],
            label="income",
            prediction="prediction",
            exclude_features=["row_id", "fnlwgt", "score", "score_old", "prediction_old"],
            max_cross_size=2,
            min_slice_size=20,
            correction=correction,
            alpha=0.05,
            alternative=alternative,
            test=test,
        )
    p = found.table["p_value"].to_numpy()
    assert found.document["testing"]["significant"] == int(found.table["significant"].sum())
    return PermutedRun(float((p <= 0.01).mean()), found.document["testing"]["significant"] > 0)


def permuted_adult(
    each: Each = in_turn,
    permutations: int = 200,
    two_sided: int = 40,
    *,
    slack: float = 0.0,
    correction: str = "fwer-level",
    test: str = "auto",
) -> Result:
    """Whole searches on the demo data where chance alone says which examples are wrong."""
    jobs = [(seed, "worse") for seed in range(permutations)]
    jobs += [(seed, "both") for seed in range(two_sided)]
    runs = each(partial(_permuted_adult, correction=correction, test=test), jobs)
    words, passed = [], True
    for side, some in (("worse", runs[:permutations]), ("both", runs[permutations:])):
        if not some:
            continue
        rate = float(np.mean([run.rate for run in some]))
        wrong = sum(run.found for run in some)
        words.append(f"{side}: mean rate {rate:.4f}, family-wise {wrong}/{len(some)}")
        passed &= 0.007 - slack <= rate <= 0.011 + slack and wrong / len(some) <= 0.08 + 10 * slack
    return Result("; ".join(words), passed)


# 12

# Eight independent features; nearly all of their 24,003 conjunctions have 20 examples or more.
VALUES = (7, 7, 7, 7, 8, 8, 8, 7)
BASE_RATE = 0.1
# By level: how many slices are planted, and how much higher their error rate is. Bonferroni within
# the level would find about seven in ten of them.
PLANTED = {1: (1, 0.03), 2: (2, 0.09), 3: (2, 0.29)}
# A slice is truly worse if its error rate is above that of all by more than this.
TRIVIAL = 0.005

Slice = frozenset[tuple[str, str]]


def _true_excess(one: Slice, planted: dict[Slice, float]) -> float:
    """Return how much a slice's expected error rate is above that of all examples.

    Features are independent and their values equally frequent: the share of a slice that is in a
    planted one is the product over the planted predicates, 1 where the slice has the predicate, 0
    where it has another value of that feature, and the value's frequency else.
    """
    value_of = dict(one)
    excess = 0.0
    for other, more in planted.items():
        inside = everywhere = 1.0
        for field, value in other:
            share = 1.0 / VALUES[int(field[1:])]
            everywhere *= share
            inside *= float(value_of[field] == value) if field in value_of else share
        excess += more * (inside - everywhere)
    return excess


def _jaccard(one: Slice, other: Slice) -> float:
    """Return the expected overlap of a slice and a part of it over the slice; 0 if not nested."""
    if not (one <= other or other <= one):
        return 0.0
    share = 1.0
    for field, _ in one ^ other:
        share /= VALUES[int(field[1:])]
    return share


class PlantedRun(NamedTuple):
    """What the report of a data set holds, and of how many tested slices.

    ``false`` are false discoveries, ``beside`` those that are neither above nor below a planted
    slice, ``covered`` planted slices.
    """

    false: int
    beside: int
    reported: int
    covered: int
    tested: int


def _planted(seed: int, correction: str, test: str) -> PlantedRun:
    from tests.running import search

    rng = np.random.default_rng([112, seed])
    rows = designs.N
    names = [f"f{i}" for i in range(len(VALUES))]
    codes = np.stack([rng.integers(0, size, rows) for size in VALUES])
    planted: dict[Slice, float] = {}
    rate = np.full(rows, BASE_RATE)
    for level, (number, more) in PLANTED.items():
        for _ in range(number):
            features = sorted(rng.choice(len(VALUES), level, replace=False).tolist())
            values = [int(rng.integers(VALUES[f])) for f in features]
            inside = np.logical_and.reduce(
                [codes[f] == v for f, v in zip(features, values, strict=True)]
            )
            rate[inside] += more
            one = frozenset((f"f{f}", f"v{v}") for f, v in zip(features, values, strict=True))
            planted[one] = more
    wrong = rng.random(rows) < rate
    label = rng.integers(0, 2, rows)
    columns = {
        name: pa.array(np.char.add("v", code.astype(str)))
        for name, code in zip(names, codes, strict=True)
    }
    columns |= {"label": pa.array(label), "prediction": pa.array(label ^ wrong)}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "planted.parquet"
        pq.write_table(pa.table(columns), data)
        document = search(
            Path(folder) / "out",
            data=[str(data)],
            label="label",
            prediction="prediction",
            features=names,
            max_cross_size=3,
            min_slice_size=20,
            correction=correction,
            test=test,
        ).document
    reported = [
        frozenset((part["field"], part["value"]) for part in one["definition"]["predicate"]["all"])
        for one in document["slices"]
    ]
    return PlantedRun(
        sum(_true_excess(one, planted) <= TRIVIAL for one in reported),
        sum(not any(one <= other or other <= one for other in planted) for one in reported),
        len(reported),
        sum(any(_jaccard(one, other) >= 0.5 for other in reported) for one in planted),
        sum(document["testing"]["tested_per_level"]),
    )


def planted_slices(
    each: Each = in_turn,
    data_sets: int = 100,
    *,
    slack: float = 0.0,
    correction: str = "fdr-level",
    test: str = "auto",
) -> Result:
    """False discoveries of the published report, and how many planted slices it has.

    A reported slice is a false discovery unless its expected error rate is above that of all
    examples by more than `TRIVIAL`: that is so for planted slices, for parts of them, and for what
    shares a predicate with them as far as it has more of their examples. A planted slice is covered
    by itself, or by a slice above or below it with a Jaccard overlap of at least a half.
    """
    runs = each(partial(_planted, correction=correction, test=test), range(data_sets))
    rate, beside = (
        float(np.mean([getattr(run, kind) / max(run.reported, 1) for run in runs]))
        for kind in ("false", "beside")
    )
    number = sum(count for count, _ in PLANTED.values())
    covered = float(np.mean([run.covered / number for run in runs]))
    reported, tested = (
        float(np.mean([getattr(run, kind) for run in runs])) for kind in ("reported", "tested")
    )
    return Result(
        f"FDR {rate:.3f} (neither above nor below a planted slice: {beside:.3f}), "
        f"covered {covered:.2f}; {reported:.1f} of {tested:,.0f} slices reported",
        rate <= 0.07 + slack and covered >= 0.68 - 2 * slack,
    )


# 13

NULL_VALUES = (3, 3, 4, 4, 5, 5)
NULL_ROWS = 4000
NULL_SMALLEST = 20
NULL_ITERATIONS = 12


class NullData(NamedTuple):
    """All slices of a data set.

    ``keys`` and ``sizes`` are [slices], sorted; ``members`` [tuples, rows] are positions of slices.
    """

    lattice: Lattice
    keys: np.ndarray
    sizes: np.ndarray
    members: np.ndarray


@cache
def _null_data() -> NullData:
    rng = np.random.default_rng(113)
    codes = np.stack([rng.integers(0, size, NULL_ROWS) for size in NULL_VALUES])
    lattice = Lattice(NULL_VALUES, 3)
    of_rows = []
    for level in (1, 2, 3):
        for features in combinations(range(len(NULL_VALUES)), level):
            cells = np.ravel_multi_index(codes[list(features)], [NULL_VALUES[f] for f in features])
            of_rows.append(lattice.cell_keys(features, cells))
    keys, members = np.unique(np.stack(of_rows), return_inverse=True)
    members = members.reshape(len(of_rows), NULL_ROWS)
    return NullData(lattice, keys, np.bincount(members.ravel()), members)


def _prioritised(seeds: range, *, within_batch: bool, correction: Correction) -> int:
    """Return in how many permutations the default search by priority calls any slice.

    ``within_batch`` corrects for the slices of the same iteration only, though these were chosen by
    their parents' p-values.
    """
    data = _null_data()
    lattice, found = data.lattice, 0
    K = round(0.15 * NULL_ROWS)
    for seed in seeds:
        wrong = np.random.default_rng([113, seed]).choice(NULL_ROWS, K, replace=False)
        x = np.bincount(data.members[:, wrong].ravel(), minlength=data.keys.size)
        large = data.sizes >= NULL_SMALLEST
        p = np.full(data.keys.size, np.nan)
        p[large] = designs.accuracy_p(data.sizes[large], x[large], NULL_ROWS, K, "worse")
        known = SearchState(NULL_SMALLEST)
        steps = Priority(
            lattice, iterations=NULL_ITERATIONS, max_candidates=60, prune_significant=False
        )
        while (proposal := steps.next(known)) is not None:
            at = np.minimum(np.searchsorted(data.keys, proposal.candidates), data.keys.size - 1)
            exists = data.keys[at] == proposal.candidates
            known.add(proposal.candidates, np.where(exists, data.sizes[at], 0))
            some = at[exists]
            delta = x[some] / data.sizes[some] - K / NULL_ROWS
            known.learn(data.keys[some], p[some], delta=delta)
            tested = known.sizes >= NULL_SMALLEST
            if within_batch:
                tested &= contains(proposal.candidates, known.keys)
            levels = lattice.cross_sizes(known.keys[tested])
            if within_batch:
                tests = np.bincount(levels, minlength=lattice.max_cross_size + 1)[1:].tolist()
            else:
                visited = Visited(known.keys, known.sizes)
                tests = tests_per_level(lattice, visited, NULL_ROWS, NULL_SMALLEST)
            q = adjusted(known.p[tested], levels, tests, correction, len(tests))
            known.significant[tested] = q <= 0.05
        found += bool(known.significant.any())
    return found


def priority_selection(
    each: Each = in_turn,
    permutations: int = 3000,
    *,
    slack: float = 0.0,
    within_batch: bool = False,
    correction: Correction = "fwer-level",
) -> Result:
    """Family-wise rate at .05 of a search that goes where p-values are low."""
    step = min(permutations, 50)
    chunks = [
        range(begin, min(begin + step, permutations)) for begin in range(0, permutations, step)
    ]
    found = sum(
        each(partial(_prioritised, within_batch=within_batch, correction=correction), chunks)
    )
    return Result(
        f"{found / permutations:.4f} of {permutations:,}", found / permutations <= 0.06 + slack
    )


# 15


def _grouped(seeds: range, replicates: int, *, by_group: bool) -> np.ndarray:
    """Return p-values [seeds, slices] of random slices of data that is correlated within groups."""
    groups, size, rate, correlation = 1000, 20, 0.15, 0.3
    ids = np.arange(groups * size, dtype=np.uint64)
    # Whole groups: 100 and 300 of them. The third slice is half the members of 200 groups.
    inside = np.zeros((3, groups, size), bool)
    inside[0, :100] = inside[1, 100:400] = inside[2, 400:600, :10] = True
    space = statistic_space(["accuracy"], "overall")
    beta = rate * (1 / correlation - 1), (1 - rate) * (1 / correlation - 1)
    p = []
    for seed in seeds:
        rng = np.random.default_rng([115, seed])
        wrong = rng.random((groups, size)) < rng.beta(*beta, groups)[:, None]
        layers = np.arange(replicates)[:, None]
        if by_group:
            weights = poisson_weights(seed, layers, ids[None, :groups])
            units = np.stack([inside & ~wrong, inside & wrong], axis=-1).sum(axis=2)
            whole = np.stack([~wrong, wrong], axis=-1).sum(axis=1)
        else:
            weights = poisson_weights(seed, layers, ids[None, :])
            units = np.stack([inside & ~wrong, inside & wrong], axis=-1).reshape(3, ids.size, 2)
            whole = np.stack([~wrong, wrong], axis=-1).reshape(ids.size, 2)
        drawn = np.vstack([np.ones(whole.shape[0]), weights])
        flat = np.concatenate([units.transpose(1, 0, 2).reshape(-1, 6), whole], axis=1)
        sums = np.rint(drawn @ flat).astype(np.int64)
        test = SliceTest("accuracy", space, "bootstrap-rows", "both")
        tested = test.run(sums[:, :6].reshape(-1, 3, 2).transpose(1, 0, 2), sums[:, 6:])
        p.append(tested.tested.p)
    return np.stack(p)


def group_bootstrap(
    each: Each = in_turn, draws: int = 5000, *, slack: float = 0.0, by_group: bool = True
) -> Result:
    """False-positive rate at .01 with 200 replicates of groups; of rows, too many, if asked."""
    step = min(draws, 50)
    chunks = [range(begin, min(begin + step, draws)) for begin in range(0, draws, step)]
    found = each(partial(_grouped, replicates=200, by_group=by_group), chunks)
    rates = (np.concatenate(found) <= 0.01).mean(axis=0).tolist()
    return Result("/".join(f"{rate:.4f}" for rate in rates), max(rates) <= 0.02 + slack)


CHECKS: dict[int, tuple[str, str, Callable[[Each], Result]]] = {
    1: ("mid-p against scipy", "< 1e-8", designs.mid_p_against_scipy),
    2: ("false positives at .01, np ≥ 10", ".007–.013", designs.many_expected),
    3: ("the same, np < 10", "≤ .013 at .01, ≤ .07 at .05", designs.few_expected),
    4: ("deep tail, 8e-7", "ratio ≤ 1.6", designs.deep_tail),
    5: ("power, n = 50/100/200/500", "≥ .23/.48/.82/.99", designs.power),
    7: ("paper mode, n = 500/5000", ".009–.014", designs.paper_mode),
    8: ("McNemar mid-p", ".007–.013", designs.paired_models),
    9: ("mean log loss", ".007–.013", designs.mean_losses),
    10: ("AUC z", ".006–.014", designs.ranking),
    11: ("permuted Adult", "rate .007–.011, family-wise ≤ .08", permuted_adult),
    12: ("planted slices", "FDR ≤ .07, covered ≥ .68", planted_slices),
    13: ("priority under the null", "≤ .06", priority_selection),
    14: ("inherited children", "≤ .02", designs.inherited_children),
    15: ("group bootstrap", "≤ .02", group_bootstrap),
    16: ("means of random slices", "≤ 1.15 × at .01, ≤ 1.5 × at 1e-4", means.random_slices),
    17: ("permuted losses", "false slices in ≤ .08 of searches", means.permuted_losses),
    18: ("intervals of AUC", "≥ .93 at .95", calibration_auc.intervals),
    19: ("tests against a margin", "≤ 1.15 ×", calibration_margins.margin_rates),
    20: ("two models by contributions", "median ≥ .6, each ≤ 1.15 ×", counts.two_models),
    21: ("few cells at 1e-4", "≤ 1.3 ×", counts.far_out),
    22: ("means of few values", "≤ 1.15 ×", counts.few_values),
    23: ("changes of losses", ".7–1.15 × at .01, .5–1.5 × at .001", counts.changes_of_losses),
    24: ("margins by contributions", "≤ 1.15 ×", counts.margins_of_contributions),
    25: (
        "average precision of random slices",
        "≤ 1.4 × at .05 and .01",
        average_precision.random_slices,
    ),
    26: ("intervals of average precision", "≥ .93 at .95", average_precision.intervals),
}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=_numbers, help="such as 2,9,11; all without")
    chosen = parser.parse_args().only or list(CHECKS)
    unknown = [number for number in chosen if number not in CHECKS]
    if unknown:
        parser.error(f"--only: there is no check {unknown[0]}; they are {sorted(CHECKS)}")
    # One thread of linear algebra in each process: there are as many processes as cores.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    rows, passed, begun = [], True, time.time()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for number in chosen:
            name, bar, check = CHECKS[number]

            def each(
                function: Callable[[Any], Any], inputs: Iterable[Any], name: str = name
            ) -> list[Any]:
                jobs, done = list(inputs), []
                for result in pool.imap(function, jobs):
                    done.append(result)
                    print(f"\r{name}: {len(done)}/{len(jobs)} ", end="", file=sys.stderr)
                return done

            started = time.time()
            result = check(each)
            passed &= bool(result.passed)
            rows.append((number, name, result.measured, bar, "yes" if result.passed else "NO"))
            print(f"\r{name}: {time.time() - started:.0f} s, {result}", file=sys.stderr)
    print("| # | check | measured | bar | pass |\n|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(f"{time.time() - begun:.0f} s in all", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
