"""Slice discovery: what an EM iteration costs, and which planted slices the mixture finds.

Run it alone: ``python tests/benchmarks/discovery.py [--only speed,planted] [--points 1000000]
--planted FOLDER``, where the folder has the Parquet files of planted slices: id, embedding, loss_old,
loss_new, planted. It prints Markdown tables, measured beside expected, and ends with 1 where a bar is
missed. All seeds are fixed, and one thread computes. The whole takes about two minutes.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[2]))

from slicebeam.metrics.discovery import mixture as em
from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.fitting import fit, initial
from slicebeam.metrics.randomness import hash64, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

COMPONENTS = 50
DIMENSIONS, KEPT = 384, 128
SAMPLE = 50_000
ITERATIONS = 3
# CPU seconds of an iteration over a million points, and bytes beyond the data.
MOST_CPU, MOST_MEMORY = 4.0, 1.5e9
REPORTED, SMALLEST, TYPICAL = 10, 20, 10
SHARE = 0.7


@dataclass(frozen=True)
class Setting:
    """How slices are discovered, and the least mean share of members among the typical points."""

    loss_weight: float
    part: str
    least: float | None


SETTINGS = (
    Setting(0.0, "all", 0.92),
    Setting(1.0, "70 %", 0.85),
    Setting(10.0, "70 %", None),
)


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


def ranked(r: FloatArray, change: FloatArray) -> NDArray[np.intp]:
    """Components of which the mean change is surest, at most ten: intp [slices]."""
    N = r.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = change @ r / N
        variance = np.maximum(np.square(change) @ r / N - np.square(mean), 0)
        z = np.abs(mean) / np.sqrt((variance + 0.05) / N)
    z[N < SMALLEST] = -1
    order = np.argsort(-z, kind="stable")[:REPORTED]
    return order[z[order] >= 0]


def found_of(path: Path, setting: Setting, seed: int) -> tuple[float, int]:
    """Return the precision at ten of a set of planted slices, and the iterations of EM."""
    table = pq.read_table(path)
    ids = table["id"].to_numpy()
    flat = table["embedding"].combine_chunks().flatten().to_numpy()
    z = flat.reshape(len(ids), -1).astype(np.float32)
    old, new = (table[name].to_numpy().astype(np.float64) for name in ("loss_old", "loss_new"))
    planted = table["planted"].to_numpy().astype(np.int64)
    if setting.part == "all":
        shaping = tested = np.ones(len(ids), bool)
    else:
        shaping = uniform(hash64(seed, 0, ids.astype(np.uint64))) < SHARE
        tested = ~shaping
    whole = all(np.isin(each, (0, 1)).all() for each in (old, new))
    classes = (2, 2) if whole else (None, None)
    losses = [old[shaping], new[shaping]]
    start = initial(
        z[shaping],
        losses,
        components=COMPONENTS,
        seed=seed,
        classes=classes,
        loss_weight=setting.loss_weight,
    )
    fitted = fit(z[shaping], losses, start)
    log_r, _ = em.log_responsibilities(fitted.mixture, z[tested])
    slices = ranked(np.exp(log_r), (old - new)[tested])
    odds = em.log_odds(log_r)
    typical = [np.argsort(-odds[:, j], kind="stable")[:TYPICAL] for j in slices]
    return precision_at(planted[tested], typical), len(fitted.mean_log_likelihoods)


def planted_slices(folder: Path, seeds: int) -> bool:
    """Print which planted slices are found, and return whether the bars are met."""
    paths = sorted(folder.glob("*.parquet"))
    print(f"\nShare of members in the ten most typical points, K = {COMPONENTS}, {seeds} starts\n")
    print("| set | " + " | ".join(f"γ {s.loss_weight:g}, {s.part}" for s in SETTINGS) + " |")
    print("|---" * (1 + len(SETTINGS)) + "|")
    results = np.array(
        [
            [
                np.mean([found_of(path, setting, seed) for seed in range(seeds)], axis=0)
                for setting in SETTINGS
            ]
            for path in paths
        ]
    )
    for path, row in zip(paths, results, strict=True):
        print(f"| {path.stem} | " + " | ".join(f"{p:.3f} ({n:.0f} it.)" for p, n in row) + " |")
    means = results[:, :, 0].mean(axis=0)
    print("| mean | " + " | ".join(f"{p:.3f}" for p in means) + " |")
    print("| bar | " + " | ".join("" if s.least is None else f"{s.least}" for s in SETTINGS) + " |")
    return all(s.least is None or p >= s.least for s, p in zip(SETTINGS, means, strict=True))


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="speed,planted")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--planted", type=Path, help="folder of the planted slices")
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    only, passed = options.only.split(","), True
    if "planted" in only and (
        options.planted is None or not any(options.planted.glob("*.parquet"))
    ):
        parser.error(f"--planted {options.planted} has no Parquet files")
    # The waiting of several threads would count as CPU seconds.
    with threadpool_limits(1):
        if "planted" in only:
            passed &= planted_slices(options.planted, options.starts)
        if "speed" in only:
            passed &= speed(options.points)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
