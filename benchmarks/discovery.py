"""Slice discovery: what it costs, which planted slices it finds, and what it finds where nothing is.

Run it alone: ``python benchmarks/discovery.py [--only process,speed,members,planted,null]
[--points 1000000] --planted FOLDER``, where the folder has the Parquet files of planted slices: id,
embedding, loss_old, loss_new, planted. It prints Markdown tables, measured beside expected, and ends
with 1 where a bar is missed. All seeds are fixed, and one thread computes. The whole takes about
ten minutes.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import logsumexp
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[1]))

from slicebeam.metrics.discovery import mixture as em
from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.mixture import initial
from slicebeam.pipelines.commands.api import discover
from tests.fitted_mixture import fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.pipelines.changelist.document import SearchChangeList

    FloatArray = NDArray[np.float64]

COMPONENTS = 50
DIMENSIONS, KEPT = 384, 128
SAMPLE = 50_000
ITERATIONS = 3
# CPU seconds of an iteration over a million points, and bytes beyond the data.
MOST_CPU, MOST_MEMORY = 4.0, 1.5e9
REPORTED, TYPICAL = 10, 10
# Of reported slices, of data sets without a difference, and CPU seconds of the command.
MOST_DECOYS, MOST_FALSE, MOST_PROCESS = 0.05, 0.1, 8.0
# Share of members among the ten that membership.parquet ranks highest: mean of all sets, lowest set.
LEAST_MEAN, LEAST_SET = 0.985, 0.95
# Widths of clusters on the sphere; in the last, clusters run into each other.
WIDTHS, BARRED_WIDTH, SPHERES = (1.1, 1.4, 2.0), 1.4, 10


@dataclass(frozen=True)
class Setting:
    """How slices are discovered, and the least mean share of members among the typical points."""

    loss_weight: float
    part: str
    least: float | None


SETTINGS = (Setting(0.0, "all", 0.92), Setting(1.0, "70 %", 0.85), Setting(10.0, "70 %", None))


def cpu() -> float:
    """CPU seconds of this process."""
    return time.process_time()


def peak() -> int:
    """Most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def embeddings(points: int) -> NDArray[np.float32]:
    """Clusters in a space of few directions, and noise in all: float32 [points, 384]."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((COMPONENTS * 2, 40)) @ rng.standard_normal((40, DIMENSIONS)) / 40
    z = np.empty((points, DIMENSIONS), np.float32)
    for begin in range(0, points, 10_000):
        block = z[begin : begin + 10_000]
        block[:] = rng.standard_normal(block.shape, dtype=np.float32) * np.float32(0.3)
        block += centres[rng.integers(len(centres), size=len(block))].astype(np.float32)
    return z


def floor(z: NDArray[np.float32], mixture: em.Mixture, dtype: type, block: int = 1024) -> float:
    """CPU seconds of the bare products and the softmax, on one block again and again."""
    few = z[:block].astype(dtype)
    squares = np.square(few)
    linear = (mixture.means / mixture.variances).astype(dtype)
    square = (-0.5 / mixture.variances).astype(dtype)
    start = cpu()
    for _ in range(0, len(z), block):
        joint = linear @ few.T
        joint += square @ squares.T
        joint -= joint.max(axis=0)
        np.exp(joint, out=joint)
        joint /= joint.sum(axis=0)
        joint @ few
        joint @ squares
    return cpu() - start


def speed(points: int) -> bool:
    """Print what each step costs, and return whether the bars are met."""
    z = embeddings(points)
    before, times, clock = peak(), {}, cpu()
    found = pca.sums(z)
    times[f"PCA sums, {DIMENSIONS} dimensions"] = cpu() - clock
    clock = cpu()
    axes = pca.components(found, KEPT)
    reduced = pca.projected(z, axes)
    times[f"projection to {KEPT}"] = cpu() - clock
    clock = cpu()
    mixture = initial(reduced[:SAMPLE], components=COMPONENTS, seed=0)
    times[f"start from a sample of {min(SAMPLE, points):,}"] = cpu() - clock
    wrong = (z[:, 0] > 0).astype(np.int64)
    heads = initial(
        reduced[:SAMPLE],
        [wrong[:SAMPLE]] * 2,
        components=COMPONENTS,
        seed=0,
        classes=(2, None),
        loss_weight=1.0,
    )
    clock = cpu()
    mixture = fit(reduced, [], mixture, most_iterations=ITERATIONS, tolerance=0).mixture
    iteration = (cpu() - clock) / ITERATIONS
    times["EM iteration"] = iteration
    # Before anything is computed that is only compared.
    memory = peak() - before
    clock = cpu()
    em.sums(heads, reduced, [wrong, wrong])
    times["EM iteration with a zero-one and a real loss"] = cpu() - clock
    times["bare products and softmax, float64"] = floor(reduced, mixture, np.float64)
    times["bare products and softmax, float32"] = floor(reduced, mixture, np.float32)
    most = MOST_CPU * points / 1e6
    print(f"\n{points:,} points, K = {COMPONENTS}, d = {KEPT}, one thread\n")
    print("| step | CPU seconds | bar |\n|---|---|---|")
    for name, seconds in times.items():
        bar = f"{most:.1f}" if name.startswith("EM iteration") else ""
        print(f"| {name} | {seconds:.2f} | {bar} |")
    print(
        f"\nPeak memory beyond the {z.nbytes / 1e9:.2f} GB of data: {memory / 1e9:.2f} GB, of which "
        f"{reduced.nbytes / 1e9:.2f} GB are the projected points (bar {MOST_MEMORY / 1e9} GB)"
    )
    slowest = max(value for name, value in times.items() if name.startswith("EM iteration"))
    return slowest <= most and memory <= MOST_MEMORY


def precision_at(planted: NDArray[np.int64], slices: Sequence[NDArray[np.intp]]) -> float:
    """Mean over planted slices of the best share of members in one slice's typical points."""
    shares = [
        max(float(np.mean(planted[typical] == number)) for typical in slices)
        for number in range(planted.max() + 1)
    ]
    return float(np.mean(shares))


def sphere(seed: int, width: float) -> tuple[pa.Table, NDArray[np.int64]]:
    """Clusters of unequal sizes on the unit sphere of 64 dimensions, and the cluster of each point.

    Ten are planted, of 100 points; 4,000 points are in thirty others, of 1 to 800. Most of a
    cluster's variance is along eight directions of its own, so all dimensions are correlated.
    """
    rng = np.random.default_rng(seed)
    rest = rng.choice(30, 4000, p=rng.dirichlet(np.ones(30)))
    of = rng.permutation(np.concatenate([np.repeat(np.arange(10), 100), 10 + rest]))
    centres = rng.standard_normal((40, 64))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    z = centres[of] + rng.standard_normal((5000, 64)) * width / 16
    deviations = width * 1.5 / np.sqrt(8) * np.linspace(1, 0.125, 8)
    for number in range(40):
        own = np.flatnonzero(of == number)
        axes = np.linalg.qr(rng.standard_normal((64, 8)))[0].T
        z[own] += rng.standard_normal((own.size, 8)) * deviations @ axes
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    is_planted = of < 10
    vectors = pa.FixedSizeListArray.from_arrays(z.astype(np.float32).ravel(), 64)
    columns = {
        "id": np.arange(5000),
        "embedding": vectors,
        "loss_old": (rng.random(5000) < 0.1).astype(np.float64),
        "loss_new": (rng.random(5000) < np.where(is_planted, 0.5, 0.1)).astype(np.float64),
        "planted": np.where(is_planted, of, -1),
    }
    return pa.table(columns), of


def published_precision(table: pa.Table, seed: int) -> float:
    """Precision at ten of the slices in membership.parquet, whose members are ranked by log_odds."""
    planted = table["planted"].to_numpy().astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        discovered(table, 0.0, seed, output=folder)
        members = pq.read_table(Path(folder) / "membership.parquet").to_pandas()
    planted_of = dict(zip(table["id"].to_pylist(), range(len(planted)), strict=True))
    ranked = members.sort_values("log_odds", ascending=False, kind="stable")
    typical = [
        np.array([planted_of[one] for one in own.head(TYPICAL)["id"]], np.intp)
        for _, own in ranked.groupby("slice_id", observed=True)
    ]
    return precision_at(planted, typical)


def precision_from(table: pa.Table, labels: NDArray[np.integer]) -> float:
    """Precision at ten of the mixture that EM leads to from clusters of the points."""
    z = vectors_of(table)
    centre = z.mean(axis=0, dtype=np.float64)
    zero = em.MixtureSums.empty(int(labels.max()) + 1, centre, (), 0.0)
    fitted = fit(z, [], em.updated(em.sums_of_labels(labels, z, (), zero)))
    component, odds = em.most_likely(em.log_responsibilities(fitted.mixture, z)[0])
    order = np.argsort(-odds, kind="stable")
    typical = [order[component[order] == one][:TYPICAL] for one in np.unique(component)]
    return precision_at(table["planted"].to_numpy().astype(np.int64), typical)


def published_members(folder: Path, starts: int) -> bool:
    """Print which share of the published ten are members, and return whether the bars are met."""
    print(
        f"\nShare of members in the ten highest log_odds of membership.parquet, K = {COMPONENTS}\n"
    )
    print("| geometry | sets | mean | lowest set | one k-means | lowest | true clusters | lowest |")
    print("|---" * 8 + "|")
    every: list[float] = []

    def line(
        name: str, sets: Sequence[tuple[pa.Table, NDArray[np.int64] | None, int]], *, counts: bool
    ) -> None:
        found = [published_precision(table, seed) for table, _, seed in sets]
        alone = [
            precision_from(table, KMeans(COMPONENTS, n_init=1, random_state=seed).fit(z).labels_)
            for table, _, seed in sets
            for z in [vectors_of(table)]
        ]
        known = [precision_from(table, of) for table, of, _ in sets if of is not None]
        cells = [
            f"{np.mean(some):.3f} | {min(some):.3f}" if some else " | "
            for some in (found, alone, known)
        ]
        print(f"| {name} | {len(sets)} | " + " | ".join(cells) + " |", flush=True)
        if counts:
            every.extend(found)

    kinds: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")):
        kinds.setdefault(path.stem.rpartition("_")[0], []).append(path)
    for kind, paths in kinds.items():
        own = [(read_set(path), None, seed) for path in paths for seed in range(starts)]
        line(kind, own, counts=True)
    for width in WIDTHS:
        spheres = [(*sphere(1000 + seed, width), seed) for seed in range(SPHERES)]
        # Beyond the bar's width, the last column says what the data leave to be found.
        line(f"sphere, width {width}", spheres, counts=width <= BARRED_WIDTH)
    print(f"| bar, of widths to {BARRED_WIDTH} | | {LEAST_MEAN} | {LEAST_SET} | | | | |")
    print(f"| all of these | {len(every)} | {np.mean(every):.3f} | {min(every):.3f} | | | | |")
    return bool(np.mean(every) >= LEAST_MEAN and min(every) >= LEAST_SET)


def domino_order(r: FloatArray, change: FloatArray) -> NDArray[np.intp]:
    """Components by Domino's own ranking, the difference of rates, at most ten: intp [slices]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        difference = np.abs(change @ r / r.sum(axis=0))
    return np.argsort(-np.nan_to_num(difference), kind="stable")[:REPORTED]


def read_set(path: Path) -> pa.Table:
    """A set of planted slices."""
    return pq.read_table(path)


def vectors_of(table: pa.Table) -> NDArray[np.float32]:
    """The embeddings of a set: float32 [points, dimensions]."""
    return np.stack(table["embedding"].to_numpy()).astype(np.float32)


def by_domino(table: pa.Table, loss_weight: float, seed: int) -> float:
    """Precision at ten of Domino's ranking, of a mixture that the same examples shaped."""
    z = vectors_of(table)
    losses = [table[name].to_numpy().astype(np.float64) for name in ("loss_old", "loss_new")]
    whole = all(np.isin(each, (0, 1)).all() for each in losses)
    start = initial(
        z,
        losses,
        components=COMPONENTS,
        seed=seed,
        classes=(2, 2) if whole else (None, None),
        loss_weight=loss_weight,
    )
    fitted = fit(z, losses, start)
    log_r, _ = em.log_responsibilities(fitted.mixture, z, losses)
    order = domino_order(np.exp(log_r), losses[0] - losses[1])
    # Ranked by log-odds: most responsibilities are 1 to the last digit.
    others = [logsumexp(np.delete(log_r, j, axis=1), axis=1) for j in order]
    odds = [log_r[:, j] - other for j, other in zip(order, others, strict=True)]
    typical = [np.argsort(-own, kind="stable")[:TYPICAL] for own in odds]
    return precision_at(table["planted"].to_numpy().astype(np.int64), typical)


def discovered(
    table: pa.Table, loss_weight: float, seed: int, output: str | None = None
) -> SearchChangeList:
    """The document of the command on a set; its files stay in `output`."""
    return discover(
        table.select(["id", "embedding", "loss_old", "loss_new"]),
        embedding="embedding",
        loss="loss_new",
        baseline_loss="loss_old",
        example_id="id",
        components=(COMPONENTS,),
        loss_weight=loss_weight,
        slices=REPORTED,
        seed=seed,
        output=output,
    ).changelist


def by_command(table: pa.Table, loss_weight: float, seed: int) -> tuple[float, int, int]:
    """Precision at ten, slices reported, and decoys among them.

    A decoy has fewer than 2 % of planted points among those of its examples that are shown.
    """
    planted = table["planted"].to_numpy().astype(np.int64)
    slices = discovered(table, loss_weight, seed).slices[:REPORTED]
    shown = [one.found.examples if one.found else () for one in slices]
    typical = [
        np.array([one.row for one in some if one.role == "representative"], np.intp)
        for some in shown
    ]
    decoys = sum(float(np.mean(planted[[e.row for e in some]] >= 0)) < 0.02 for some in shown)
    return precision_at(planted, typical), len(slices), decoys


def planted_slices(folder: Path, seeds: int) -> bool:
    """Print which planted slices are found, and return whether the bars are met."""
    paths = sorted(folder.glob("*.parquet"))
    print(f"\nShare of members in the ten most typical points, K = {COMPONENTS}, {seeds} starts\n")
    heads = [f"γ {s.loss_weight:g}, {s.part}" for s in SETTINGS]
    heads += ["γ 10, Domino's ranking", "γ 0, Domino's ranking"]
    print("| set | " + " | ".join(heads) + " |")
    print("|---" * (1 + len(heads)) + "|")
    means, reported, decoys = [], np.zeros(len(SETTINGS)), np.zeros(len(SETTINGS))
    for path in paths:
        table, row = read_set(path), []
        for number, setting in enumerate(SETTINGS):
            found = [by_command(table, setting.loss_weight, seed) for seed in range(seeds)]
            row.append(np.mean([one[0] for one in found]))
            reported[number] += sum(one[1] for one in found)
            decoys[number] += sum(one[2] for one in found)
        row += [
            np.mean([by_domino(table, loss_weight, seed) for seed in range(seeds)])
            for loss_weight in (10.0, 0.0)
        ]
        means.append(row)
        print(f"| {path.stem} | " + " | ".join(f"{p:.3f}" for p in row) + " |", flush=True)
    mean = np.mean(means, axis=0)
    print("| mean | " + " | ".join(f"{p:.3f}" for p in mean) + " |")
    bars = ["" if s.least is None else f"{s.least}" for s in SETTINGS]
    print("| bar | " + " | ".join([*bars, "", ""]) + " |")
    shares = decoys / np.maximum(reported, 1)
    print("| decoys | " + " | ".join([*(f"{share:.1%}" for share in shares), "", ""]) + " |")
    right = all(s.least is None or p >= s.least for s, p in zip(SETTINGS, mean, strict=False))
    return right and bool((shares <= MOST_DECOYS).all())


def no_false_slices(folder: Path, sets: int) -> bool:
    """Print how many data sets without a difference have a significant slice."""
    paths = sorted(folder.glob("*.parquet"))
    print(f"\nLosses permuted among points: data sets of {sets} with a significant slice\n")
    print("| γ | data sets | bar |\n|---|---|---|")
    most = math.ceil(sets * MOST_FALSE)
    passed = True
    for setting in SETTINGS:
        false = 0
        for number in range(sets):
            table = read_set(paths[number % len(paths)])
            order = np.random.default_rng(number).permutation(table.num_rows)
            for name in ("loss_old", "loss_new"):
                column = table.schema.get_field_index(name)
                table = table.set_column(column, name, table[name].take(pa.array(order)))
            false += bool(discovered(table, setting.loss_weight, number).testing.significant)
        print(f"| {setting.loss_weight:g} | {false} | {most} |", flush=True)
        passed &= false <= most
    return passed


def whole_process(path: Path) -> bool:
    """Print what the command costs as a process of its own, imports and all."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "slicebeam.pipelines.commands.cli",
            "discover",
            "--data",
            str(path),
        ]
        command += ["--embedding", "embedding", "--loss", "loss_new", "--baseline-loss", "loss_old"]
        command += ["--id", "id", "--quiet", "--output", str(Path(folder) / "out")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"\n5,000 × 64, the whole process: {seconds:.1f} CPU s (bar {MOST_PROCESS})")
    return seconds <= MOST_PROCESS


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="process,speed,members,planted,null")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--planted", type=Path, help="folder of the planted slices")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--sets", type=int, default=50, help="without a difference")
    options = parser.parse_args()
    only, passed = options.only.split(","), True
    if set(only) - {"speed"} and (
        options.planted is None or not any(options.planted.glob("*.parquet"))
    ):
        parser.error(f"--planted {options.planted} has no Parquet files")
    # The waiting of several threads would count as CPU seconds.
    if "process" in only:
        passed &= whole_process(min(options.planted.glob("*.parquet")))
    with threadpool_limits(1):
        if "members" in only:
            passed &= published_members(options.planted, options.starts)
        if "planted" in only:
            passed &= planted_slices(options.planted, options.starts)
        if "null" in only:
            passed &= no_false_slices(options.planted, options.sets)
        if "speed" in only:
            passed &= speed(options.points)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
