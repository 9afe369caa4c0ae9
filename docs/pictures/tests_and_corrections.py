"""Makes the pictures of the page on statistics, from slicebeam's own tests.

Run it with ``python docs/pictures/tests_and_corrections.py [FOLDER]``; it needs the extra ``docs``.
The pictures are the same in every run with the same matplotlib.
"""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from scipy import stats

from slicebeam.metrics.measures.multiplicity import bh_adjusted, holm_adjusted
from slicebeam.metrics.randomness import poisson_weights
from slicebeam.metrics.significance import count_tests, hall
from slicebeam.metrics.significance.intervals import difference, wilson
from slicebeam.metrics.significance.permutation import linear_statistic_moments, pearson_iii_p_value
from slicebeam.metrics.significance.random_subset import (
    bin_edges,
    bin_sums,
    population,
    sum_p_value,
)

mpl.use("svg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STYLE = {
    "svg.hashsalt": "slicebeam",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
BLUE, RED, GREY, GREEN = "#3465a4", "#cc2936", "#9aa0a6", "#4e9a06"
SIZE = (7.0, 2.7)
_UNIT = 2.0**-40


def exact_rates(axis: Axes) -> None:
    """Draw the law of right answers in 453 random examples, and the slice of the tutorial."""
    n, x, N, K = 453, 362, 16_281, 14_193
    counts = np.arange(352, 425)
    chance = count_tests.pmf(counts, N, K, n)
    axis.bar(counts, chance, width=1.0, color=GREY, label="random groups of 453 people")
    axis.axvline(x, color=RED, label="the slice: 362 right")
    p = float(count_tests.mid_p(n, x, N, K, "lower"))
    axis.annotate(
        f"p = {p:.1e}", (x, 0.004), (366, 0.02), arrowprops={"arrowstyle": "-", "color": RED}
    )
    axis.set_xlabel("right predictions among 453 people drawn at random")
    axis.set_ylabel("probability")
    axis.set_xlim(350, 445)
    axis.legend(loc="upper right")


def corrected_root(axis: Axes) -> None:
    """Draw approximate p-values of a large table as multiples of the exact ones."""
    n, N, K = 20_000, 1_000_000, 100_000
    x = np.arange(2_040, 2_600, 4)
    exact = count_tests.mid_p(n, x, N, K, "upper")
    mean, deviation = n * K / N, np.sqrt(count_tests.variance(n, N, K))
    plain = stats.norm.sf((x - mean) / deviation)
    table = count_tests.Table.of(n, x, N, K)
    root = stats.norm.sf(np.sign(table.excess) * np.sqrt(2.0 * table.half_deviance))
    corrected = count_tests.likelihood_mid_p(n, x, N, K, "upper")
    for p, color, label in (
        (plain, GREY, "z of the difference"),
        (root, BLUE, "signed root r of the likelihood ratio"),
        (corrected, RED, "corrected root r* (used here)"),
    ):
        axis.plot(exact, p / exact, color=color, label=label)
    axis.set_xscale("log")
    axis.set_xlim(0.2, 1e-30)
    axis.set_ylim(0.8, 1.05)
    axis.set_xlabel("exact p-value")
    axis.set_ylabel("approximate ÷ exact")
    axis.legend(loc="lower left")


def mcnemar(axis: Axes) -> None:
    """Draw the law of the examples that only the new model gets wrong."""
    b, c = 15, 5
    counts = np.arange(b + c + 1)
    axis.bar(counts, stats.binom.pmf(counts, b + c, 0.5), color=GREY, label="if neither is better")
    axis.axvline(b, color=RED, label="the slice: 15 of 20")
    axis.set_xlabel("examples that only the new model gets wrong, of 20 on which the two differ")
    axis.set_ylabel("probability")
    axis.set_xticks(range(0, 21, 5))
    axis.legend(loc="upper left")


def _losses() -> Floats:
    """Return the log losses of a model that is mostly right, and sometimes surely wrong."""
    random = np.random.default_rng(1)
    score = np.clip(random.beta(8.0, 1.2, 20_000), 1e-3, 1 - 1e-3)
    right = random.random(20_000) < 0.9
    return np.asarray(-np.log(np.where(right, score, 1 - score)), np.float64)


def random_subsets(axis: Axes) -> None:
    """Draw how often random groups of 50 have so large a mean loss, and two formulas for it."""
    losses = _losses()
    n, N = 50, losses.size
    random = np.random.default_rng(2)
    means = np.sort([losses[random.choice(N, n, replace=False)].mean() for _ in range(20_000)])
    tail = 1 - np.arange(means.size) / means.size
    # Every drawn group where there are few, some of them where there are many.
    kept = np.unique(means.size - np.geomspace(1, means.size, 150).astype(int))
    axis.step(means[kept], tail[kept], color=GREY, lw=4, label="20,000 drawn")
    deviations = losses - losses.mean()
    edges = bin_edges(deviations.min(), deviations.max(), deviations.std())
    of = population(bin_sums(deviations, edges, _UNIT), edges, _UNIT)
    at = np.linspace(losses.mean(), 1.0, 120)
    tail = sum_p_value(n, (at - losses.mean()) * n, of, "upper")
    axis.plot(at, tail, color=RED, label="saddle point (used here)")
    error = losses.std() * np.sqrt((1 - n / N) / n)
    axis.plot(at, stats.norm.sf((at - losses.mean()) / error), color=BLUE, label="normal law")
    axis.set_yscale("log")
    axis.set_ylim(1e-5, 1)
    axis.set_xlim(losses.mean(), 1.0)
    axis.set_xlabel("mean log loss of 50 examples")
    axis.set_ylabel("probability of more")
    axis.legend(loc="lower left")


def hall_t(axis: Axes) -> None:
    """Draw t of skewed values, plain and corrected, beside Student's law."""
    n, runs = 30, 40_000
    random = np.random.default_rng(3)
    values = random.exponential(size=(runs, n)) - 1.0
    t = values.mean(axis=1) / (values.std(axis=1, ddof=1) / np.sqrt(n))
    # The skewness of exponential values is 2.
    corrected = hall.hall_transform(t, 2.0 / np.sqrt(n))
    edges = np.linspace(-5, 5, 61)
    for statistic, color, label in (
        (t, BLUE, "Student's t"),
        (corrected, RED, "Hall's T (used here)"),
    ):
        density, _ = np.histogram(statistic, edges, density=True)
        axis.stairs(density, edges, color=color, label=label)
    middle = np.linspace(-5, 5, 201)
    axis.plot(middle, stats.t.pdf(middle, n - 1), color="black", lw=1, label="what tables assume")
    axis.set_xlabel("statistic of 30 skewed values whose true mean is 0")
    axis.set_ylabel("density")
    axis.legend(loc="upper left")


def permutation(axis: Axes) -> None:
    """Draw the sum of scores in random groups, and the law with the same three moments."""
    scores = np.array([[0.0, 1.0, 6.0]])
    totals = np.array([9_000, 800, 200])
    n = 150
    random = np.random.default_rng(4)
    drawn = random.multivariate_hypergeometric(totals, n, size=20_000, method="marginals")
    sums = drawn @ scores[0]
    edges = np.arange(-0.5, 91, 3)
    density, _ = np.histogram(sums, edges, density=True)
    axis.stairs(density, edges, fill=True, color=GREY, label="20,000 random groups of 150")
    moments = linear_statistic_moments(scores, totals, np.array([n]))
    tail = pearson_iii_p_value(edges, moments.mean, moments.sd, moments.skewness, "upper")
    middle = (edges[1:] + edges[:-1]) / 2
    axis.plot(middle, -np.diff(tail) / np.diff(edges), color=RED, label="Pearson III (used here)")
    normal = stats.norm.pdf(middle, moments.mean[0], moments.sd[0])
    axis.plot(middle, normal, color=BLUE, label="normal law")
    axis.set_xlabel("sum of the scores of 150 examples")
    axis.set_ylabel("density")
    axis.set_xlim(-5, 90)
    axis.legend(loc="upper right")


def bootstrap(axis: Axes) -> None:
    """Draw the deltas of 2,000 replicates of one data set."""
    random = np.random.default_rng(5)
    N, n = 5_000, 400
    loss = random.exponential(0.4, N)
    loss[:n] += 0.06
    ids = np.arange(N, dtype=np.uint64)
    deltas = []
    for replicate in range(2_000):
        weights = poisson_weights(0, replicate, ids).astype(np.float64).reshape(-1)
        inside = np.average(loss[:n], weights=weights[:n])
        deltas.append(inside - np.average(loss, weights=weights))
    delta = loss[:n].mean() - loss.mean()
    density, edges = np.histogram(deltas, 25, density=True)
    axis.stairs(density, edges, fill=True, color=GREY, label="deltas of 2,000 replicates")
    axis.axvline(delta, color=RED, label="delta of the data")
    axis.axvline(0.0, color="black", lw=1, label="no difference")
    spread = float(np.std(deltas, ddof=1))
    axis.annotate(
        "", (delta - spread, 3), (delta, 3), arrowprops={"arrowstyle": "<->", "color": "black"}
    )
    axis.text(delta - spread / 2, 3.6, "sd", ha="center")
    axis.set_xlabel(f"delta; t = delta / sd = {delta / spread:.1f}")
    axis.set_ylabel("density")
    axis.legend(loc="upper right")


def mover(axis: Axes) -> None:
    """Draw two intervals and that of their difference."""
    confidence = 0.95
    then, now = (171, 180), (140, 165)
    rates = [x / n for x, n in (then, now)]
    ends = [wilson(x, n, confidence) for x, n in (then, now)]
    found = difference((rates[1], *ends[1]), (rates[0], *ends[0]), confidence)
    for at, (rate, (low, high), label) in enumerate(
        zip(rates, ends, ("last night: 171 of 180 right", "tonight: 140 of 165 right"), strict=True)
    ):
        axis.plot([low, high], [2 - at, 2 - at], color=BLUE, lw=2)
        axis.plot(rate, 2 - at, "o", color=BLUE)
        axis.text(high + 0.02, 2 - at, label, va="center")
    axis.plot([found.low, found.high], [0, 0], color=RED, lw=2)
    axis.plot(found.value, 0, "o", color=RED)
    axis.text(
        float(found.high) + 0.06, 0, f"tonight − last night, p = {float(found.p):.4f}", va="center"
    )
    axis.axvline(0.0, color="black", lw=1)
    axis.set_xlim(-0.25, 1.5)
    axis.set_ylim(-0.7, 2.7)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("accuracy, or difference of accuracies, with 95 % intervals")


def corrections(axis: Axes) -> None:
    """Draw ordered p-values, and the lines below which the corrections call them."""
    alpha, m = 0.05, 40
    p = np.sort(
        np.concatenate(
            [
                [2e-4, 9e-4, 0.0013, 0.004, 0.0052, 0.0063, 0.0078, 0.0091],
                np.linspace(0.02, 1.0, m - 8),
            ]
        )
    )
    rank = np.arange(1, m + 1)
    shown = rank <= 14
    called = bh_adjusted(p, m) <= alpha
    axis.plot(rank[shown], alpha * rank[shown] / m, color=RED, label="Benjamini-Hochberg: α·rank/m")
    axis.plot(
        rank[shown], alpha / (m + 1 - rank[shown]), color=BLUE, label="Holm: α/(m + 1 − rank)"
    )
    axis.plot(rank[shown], np.full(14, alpha / m), color=GREY, ls="--", label="Bonferroni: α/m")
    axis.plot(rank[shown & called], p[shown & called], "o", color=RED)
    axis.plot(rank[shown & ~called], p[shown & ~called], "o", mfc="white", mec=GREY)
    by_holm = int((holm_adjusted(p) <= alpha).sum())
    axis.set_title(
        f"of 40 tests, Benjamini-Hochberg calls {int(called.sum())} (filled), Holm {by_holm}",
        fontsize=9,
    )
    axis.set_ylim(0, 0.03)
    axis.set_xlabel("rank of the p-value, smallest first")
    axis.set_ylabel("p-value")
    axis.legend(loc="upper left")


def level_bound(axis: Axes) -> None:
    """Draw, for 1,000 examples, how many cells of each tuple can still be large enough."""
    cells = 12 * 9
    visited, held, large = 40, 760, 14
    left, smallest = 1_000 - held, 20
    could = min(cells - visited, left // smallest)
    axis.barh(["slices"], [large], color=BLUE, label=f"visited, at least 20 examples: {large}")
    axis.barh(
        ["slices"],
        [could],
        left=large,
        color=RED,
        label=f"not visited, count as p = 1: at most 240 ÷ 20 = {could}",
    )
    axis.barh(
        ["slices"],
        [cells - large - could],
        left=large + could,
        color=GREY,
        label=f"too small: {visited - large} visited, {cells - visited - could} others",
    )
    axis.set_xlim(0, cells)
    axis.set_yticks([])
    axis.set_ylim(-0.5, 2.2)
    axis.set_xlabel("cells of a pair of features with 12 and 9 values, of 1,000 examples")
    axis.legend(loc="upper left")


PICTURES = {
    "exact-rates": exact_rates,
    "corrected-root": corrected_root,
    "mcnemar": mcnemar,
    "random-subsets": random_subsets,
    "hall": hall_t,
    "permutation": permutation,
    "bootstrap": bootstrap,
    "mover": mover,
    "corrections": corrections,
    "level-bound": level_bound,
}


def draw(name: str) -> str:
    """Return a picture as SVG."""
    buffer = StringIO()
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=SIZE)
        PICTURES[name](axis)
        figure.tight_layout()
        metadata: dict[str, Any] = {"Date": None, "Creator": None}
        figure.savefig(buffer, format="svg", metadata=metadata)
        plt.close(figure)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name in PICTURES:
        (folder / f"{name}.svg").write_text(draw(name), "utf-8")
