"""Designs that measure how often each test is wrong, and how often it finds what is there.

Every design draws data of which the truth is known, hands it to the library's public functions, and
holds the rates against a bar. How many draws it takes is a parameter: the full numbers are the
defaults, the tests take fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy import stats
from scipy.special import ndtri

from slicebeam.metrics.counting.statistic_space import Range, fixed_point
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.measures.slice_test import t_p_value
from slicebeam.metrics.significance import auc, count_tests
from tests.deviations import with_deviations

ADULT = Path(__file__).parents[1] / "pipelines" / "demo_data" / "adult_scored.parquet"
N = 20_000
RATES = (0.02, 0.1, 0.2, 0.5)
# How a function is applied to each of many inputs: one after the other, or by several processes.
Each = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
# An alternative, and what a nominal level is for it: one side is held to half of the level.
SIDES = (("both", 1.0), ("worse", 0.5), ("better", 0.5))
CountTest = Callable[[np.ndarray, np.ndarray, int, int, str], np.ndarray]


class Result(NamedTuple):
    """What was measured, in words, and whether it meets the bar."""

    measured: str
    passed: bool


def in_turn(function: Callable[[Any], Any], inputs: Iterable[Any]) -> list[Any]:
    """Apply a function to each input in this process."""
    return [function(one) for one in inputs]


def _span(values: Iterable[float]) -> str:
    some = list(values)
    return f"{min(some):.4f} to {max(some):.4f}"


# 1


def mid_p_against_scipy(_: Each = in_turn, tables: int = 1000) -> Result:
    """Relative error of the mid-p, both tails, of tables far from their mean."""
    rng = np.random.default_rng(101)
    population = rng.integers(10, 30_000, tables)
    K, n = rng.integers(1, population), rng.integers(1, population)
    deviation = np.sqrt(count_tests.variance(n, population, K))
    x = np.rint(n * K / population + rng.uniform(-32, 32, tables) * deviation).astype(int)
    x = np.clip(x, np.maximum(0, n + K - population), np.minimum(n, K))
    law = stats.hypergeom(population, K, n)
    worst, smallest = 0.0, 1.0
    for tail, beyond in (("upper", law.sf(x)), ("lower", law.cdf(x - 1))):
        expected = beyond + 0.5 * law.pmf(x)
        compared = expected > 1e-250
        ours = count_tests.mid_p(n, x, population, K, tail)
        worst = max(worst, float(np.abs(ours / expected - 1.0)[compared].max()))
        smallest = min(smallest, float(expected[compared].min()))
    return Result(f"{worst:.1e}, tails to {smallest:.0e}", worst < 1e-8)


# 2 and 3


def accuracy_p(n: np.ndarray, x: np.ndarray, size: int, K: int, alternative: str) -> np.ndarray:
    """The default test of accuracy, of slices with x of n wrong."""
    space = statistic_space(["accuracy"], "overall")
    sums = np.stack([n - x, x], axis=1)
    return metric("accuracy").test(Slices(sums, space, np.array([size - K, K])), alternative).p


def wald_p(n: np.ndarray, x: np.ndarray, size: int, K: int, alternative: str) -> np.ndarray:
    """The Wald test, which is wrong on small slices: kept as an example of what misses the bars."""
    rate, rest = x / n, (K - x) / (size - n)
    error = np.sqrt(rate * (1 - rate) / n + rest * (1 - rest) / (size - n))
    z = (rate - rest) / np.maximum(error, 1e-12)
    upper, lower = stats.norm.sf(z), stats.norm.cdf(z)
    both = 2 * np.minimum(upper, lower)
    return {"both": both, "worse": upper, "better": lower}[alternative]


def _rates_of_counts(
    job: tuple[float, list[int], float], draws: int, test: CountTest
) -> list[list[float]]:
    """Return [sizes, sides] false-positive rates of random slices, those of a side doubled."""
    error_rate, sizes, nominal = job
    K = round(N * error_rate)
    rng = np.random.default_rng([102, K, sizes[0]])
    rates = []
    for n in sizes:
        x, times = np.unique(rng.hypergeometric(K, N - K, n, draws), return_counts=True)
        own = np.full(x.size, n)
        rates.append(
            [
                times[test(own, x, N, K, side) <= nominal * part].sum() / draws / part
                for side, part in SIDES
            ]
        )
    return rates


def many_expected(
    each: Each = in_turn, draws: int = 100_000, sizes: int = 40, test: CountTest = accuracy_p
) -> Result:
    """False-positive rate at .01 where at least ten errors, or ten right ones, are expected."""
    jobs = []
    for rate in RATES:
        spread = np.geomspace(10 / rate, 5000, sizes)
        jobs.append((rate, np.unique(np.ceil(spread).astype(int)).tolist(), 0.01))
    # Here the variance is above that from which the likelihood ratio is taken.
    jobs.append((0.5, [6000, 7000, 8000, 9000, 10_000, 11_000, 12_000], 0.01))
    found = each(partial(_rates_of_counts, draws=draws, test=test), jobs)
    means = [mean for rates in found for mean in np.mean(rates, axis=0).tolist()]
    both = [row[0] for rates in found for row in rates]
    side = [rate for rates in found for row in rates for rate in row[1:]]
    return Result(
        f"means {_span(means)}; single sizes {_span(both)} (twice a side {_span(side)})",
        min(means) >= 0.007 and max(means) <= 0.013,
    )


def few_expected(
    each: Each = in_turn, draws: int = 100_000, step: int = 1, test: CountTest = accuracy_p
) -> Result:
    """False-positive rate at .01 and .05 where fewer than ten are expected, from one example on."""
    levels = ((0.01, 0.013), (0.05, 0.07))
    jobs = [
        (rate, list(range(1, round(10 / rate), step)), nominal)
        for nominal, _ in levels
        for rate in RATES
    ]
    found = each(partial(_rates_of_counts, draws=draws, test=test), jobs)
    words, passed = [], True
    for at, (nominal, bar) in enumerate(levels):
        some = found[at * len(RATES) : (at + 1) * len(RATES)]
        mean = max(float(np.mean(rates, axis=0).max()) for rates in some)
        single = np.max([np.max(rates, axis=0) for rates in some], axis=0)
        words.append(
            f"at {nominal}: means to {mean:.4f}, worst single size {single[0]:.4f} "
            f"(twice a side {single[1:].max():.4f})"
        )
        passed &= mean <= bar
    return Result("; ".join(words), passed)


# 4


def deep_tail(_: Each = in_turn, *, normal: bool = False) -> Result:
    """Exact rate over nominal at 8e-7; by the normal limit, which is wrong there, if asked."""
    nominal, ratios = 8e-7, []
    for n, rate in product((20, 50, 100, 200, 500, 1000, 2000, 5000), RATES):
        K = round(N * rate)
        x = np.arange(min(n, K) + 1)
        chance = count_tests.pmf(x, N, K, n)
        own = np.full(x.size, n)
        p = wald_p(own, x, N, K, "both") if normal else accuracy_p(own, x, N, K, "both")
        ratios.append(float(chance[p <= nominal].sum()) / nominal)
    return Result(f"mean {np.mean(ratios):.2f}, largest {max(ratios):.2f}", max(ratios) <= 1.6)


# 5


def power(_: Each = in_turn, draws: int = 100_000, slack: float = 0.0) -> Result:
    """How often an error rate of .25, where it is .15 elsewhere, is found at .01."""
    rng = np.random.default_rng(105)
    words, passed = [], True
    for n, bar in ((50, 0.23), (100, 0.48), (200, 0.82), (500, 0.99)):
        x = rng.binomial(n, 0.25, draws)
        K = x + rng.binomial(N - n, 0.15, draws)
        both = float((count_tests.mid_p(n, x, N, K, "both") <= 0.01).mean())
        side = float((count_tests.mid_p(n, x, N, K, "upper") <= 0.005).mean())
        words.append(f"{both:.3f}")
        passed &= min(both, side) >= bar - slack
    return Result("/".join(words), passed)


# 7


def paper_mode(
    _: Each = in_turn,
    draws: int = 100_000,
    slack: float = 0.0,
    sizes: tuple[int, ...] = (500, 5000),
) -> Result:
    """False-positive rate of the paper's test at .01, error rate .2, 20 replicates."""
    K = N // 5
    rates = []
    for n in sizes:
        rng = np.random.default_rng([107, n])
        x = rng.hypergeometric(K, N - K, n, draws)
        # A sum of Poisson weights is a Poisson number: replicates are drawn from the counts.
        atoms = np.stack([x, n - x, K - x, N - K - n + x])
        wrong, right, outside_wrong, outside_right = rng.poisson(atoms[:, :, None], (4, draws, 20))
        share = wrong / (wrong + right)
        everything = wrong + right + outside_wrong + outside_right
        deltas = share - (wrong + outside_wrong) / everything
        rates.append(float((t_p_value(x / n - K / N, deltas, "both")[0] <= 0.01).mean()))
    return Result(
        "/".join(f"{rate:.4f}" for rate in rates),
        all(0.009 - slack <= rate <= 0.014 + slack for rate in rates),
    )


# 8


def paired_models(_: Each = in_turn, draws: int = 100_000, *, exact: bool = False) -> Result:
    """False-positive rate of McNemar's mid-p at .01; of the exact test, too cautious, if asked."""
    rng = np.random.default_rng(108)
    rates = []
    for expected, share in product((30, 40, 60, 100, 300, 1000), (0.02, 0.1, 0.3)):
        discordant = rng.binomial(round(expected / share), share, draws)
        b = rng.binomial(discordant, 0.5)
        for tail, part in (("both", 1.0), ("upper", 0.5), ("lower", 0.5)):
            p = count_tests.mcnemar_mid_p(b, discordant - b, tail)
            if exact:
                p = p + stats.binom.pmf(b, discordant, 0.5) * (0.5 / part)
            rates.append(float((p <= 0.01 * part).mean()) / part)
    return Result(_span(rates), min(rates) >= 0.007 and max(rates) <= 0.013)


# 9


def _log_losses(name: str) -> np.ndarray:
    """Log losses of a calibrated classifier with beta-distributed scores, or of the demo data."""
    if name == "adult":
        table = pq.read_table(ADULT, columns=["income", "score"]).to_pandas()
        truth = (table["income"] == ">50K").to_numpy()
        score = table["score"].clip(1e-6, 1 - 1e-6).to_numpy()
    else:
        rng = np.random.default_rng(109)
        a, b = (float(part) for part in name.split(","))
        score = np.clip(rng.beta(a, b, N), 1e-6, 1 - 1e-6)
        truth = rng.random(N) < score
    return -np.log(np.where(truth, score, 1.0 - score))


def _loss_rates(job: tuple[str, int], draws: int, *, corrected: bool) -> list[float]:
    """Return false-positive rates [sides] of slices of n random examples, those of a side doubled."""
    name, n = job
    losses = _log_losses(name)
    space = statistic_space(["log_loss"], "overall")
    space = space.scaled({("log_loss", False): Range(losses.min(), losses.max())}, 1.0, losses.size)
    # Without the correction: as if the losses had a normal law of the same variance.
    normal = np.random.default_rng(0).normal(losses.mean(), losses.std(), losses.size)
    space = with_deviations(space, "log_loss", losses if corrected else normal)
    centred = losses - space.shift("log_loss")
    terms = (*space.terms, *space.total_terms)
    summed = [
        fixed_point(centred**term.power, scale)
        for term, scale in zip(terms, space.scales, strict=True)
    ]
    columns = np.stack([np.ones(losses.size, np.int64), *summed], axis=1)
    totals = columns.sum(axis=0)
    rng = np.random.default_rng([109, n])
    sums = np.empty((draws, space.columns), np.int64)
    for draw in range(draws):
        some = rng.choice(losses.size, n, replace=False, shuffle=False)
        sums[draw] = columns[some, : space.columns].sum(axis=0)
    return [
        float((metric("log_loss").test(Slices(sums, space, totals), side).p <= 0.01 * part).mean())
        / part
        for side, part in SIDES
    ]


def mean_losses(
    each: Each = in_turn,
    draws: int = 16_000,
    sizes: tuple[int, ...] = (50, 100, 500, 5000),
    *,
    slack: float = 0.0,
    corrected: bool = True,
) -> Result:
    """False-positive rate of the mean log loss at .01; of a normal law of the same variance if asked.

    Two-sided in every design, and the side that is worse on average.
    """
    jobs = [(name, n) for name in ("2,5", "0.5,0.5", "1,9", "adult") for n in sizes]
    found = np.array(each(partial(_loss_rates, draws=draws, corrected=corrected), jobs))
    both, worse, better = found.T
    return Result(
        f"both {_span(both)}; twice worse mean {worse.mean():.4f}, max {worse.max():.4f}; "
        f"twice better {_span(better)}",
        bool(
            both.min() >= 0.007 - slack
            and both.max() <= 0.013 + slack
            and 0.005 <= worse.mean() <= 0.013
        ),
    )


# 10


def _ranking_rates(job: tuple[float, float, int], draws: int, *, conditional: bool) -> list[float]:
    """Return false-positive rates [sides] of AUC on random slices, those of a side doubled."""
    prevalence, area, n = job
    rng = np.random.default_rng([110, round(prevalence * 100), round(area * 100), n])
    labels = (np.arange(N) < prevalence * N).astype(np.int64)
    scores = rng.normal(np.sqrt(2.0) * ndtri(area) * labels)
    edges = auc.bucket_edges(scores, 256)
    bucket = np.searchsorted(edges, scores, side="right")
    whole = np.stack([np.bincount(bucket[labels == k], minlength=256) for k in (0, 1)])
    n1 = round(n * prevalence)
    drawn = np.stack(
        [
            rng.multivariate_hypergeometric(row, size, size=draws, method="marginals")
            for row, size in zip(whole, (n - n1, n1), strict=True)
        ],
        axis=1,
    )
    own, reference = auc.placements(drawn).auc, auc.placements(whole[None])
    N0, N1 = whole.sum(axis=1)
    if not conditional:
        # The variance of single pairs, as if each pair were an observation of its own.
        shift = (own - reference.auc) / np.sqrt(reference.auc * (1 - reference.auc) / n)
        sides = 2 * stats.norm.sf(np.abs(shift)), stats.norm.cdf(shift), stats.norm.sf(shift)
    else:
        sides = tuple(
            auc.z_p_value(
                auc.Sides(reference._replace(auc=own), n1, n - n1),
                auc.Sides(reference, N1, N0),
                tail,
            )
            for tail in ("both", "lower", "upper")
        )
    return [
        float((p <= 0.01 * part).mean()) / part for p, (_, part) in zip(sides, SIDES, strict=True)
    ]


def ranking(
    each: Each = in_turn,
    draws: int = 10_000,
    *,
    slack: float = 0.0,
    step: int = 1,
    conditional: bool = True,
) -> Result:
    """False-positive rate of AUC's z at .01; by another variance, which is wrong, if asked."""
    shapes = ((0.03, 1000), (0.1, 300), (0.4, 200), (0.7, 200), (0.1, 5000))
    jobs = [(share, area, n) for share, n in shapes for area in (0.7, 0.85, 0.95)][::step]
    found = np.array(each(partial(_ranking_rates, draws=draws, conditional=conditional), jobs))
    both, sides = found[:, 0], found[:, 1:]
    return Result(
        f"both {_span(both)}; twice a side, mean {_span(sides.mean(axis=0))}, all {_span(sides.ravel())}",
        bool(
            both.min() >= 0.006 - slack
            and both.max() <= 0.014 + slack
            and sides.mean(axis=0).min() >= 0.006 - slack
            and sides.mean(axis=0).max() <= 0.014 + slack
        ),
    )


# 14


def _inherited(seed: int) -> list[tuple[float, float, float]]:
    """Return p of each child: within its planted parent, the largest of all parents, within all.

    Two parents are worse; their children are random parts of them, as features are independent.
    """
    rng = np.random.default_rng([114, seed])
    codes = rng.integers(0, 5, (6, N))
    masks = {(f, v): codes[f] == v for f in range(6) for v in range(5)}
    rate = np.full(N, 0.1)
    planted = [frozenset({(0, 0)}), frozenset({(1, 0), (2, 0)})]
    for one, worse in zip(planted, (0.2, 0.3), strict=True):
        rate[np.logical_and.reduce([masks[single] for single in one])] = worse
    wrong = rng.random(N) < rate
    known: dict[frozenset[tuple[int, int]], tuple[int, int]] = {}

    def counts(conjunction: frozenset[tuple[int, int]]) -> tuple[int, int]:
        if conjunction not in known:
            inside = np.logical_and.reduce([masks[single] for single in conjunction])
            known[conjunction] = int(inside.sum()), int((inside & wrong).sum())
        return known[conjunction]

    rows: list[tuple[int, ...]] = []
    owner: list[int] = []
    children = 0
    for parent, size in ((planted[0], 1), (planted[0], 2), (planted[1], 1)):
        for features in combinations((3, 4, 5), size):
            for values in product(range(5), repeat=size):
                child = parent | frozenset(zip(features, values, strict=True))
                if counts(child)[0] < 20:
                    continue
                above = [parent, *(child - {single} for single in child)]
                rows += [(*counts(child), *counts(one)) for one in above]
                rows.append((*counts(child), N, int(wrong.sum())))
                owner += [children] * (len(above) + 1)
                children += 1
    p = count_tests.mid_p(*np.array(rows).T, "upper")
    of = np.array(owner)
    split = [p[of == child] for child in range(children)]
    return [(float(one[0]), float(one[1:-1].max()), float(one[-1])) for one in split]


def inherited_children(
    each: Each = in_turn, data_sets: int = 200, *, slack: float = 0.0, against_all: bool = False
) -> Result:
    """How often a random part of a worse slice is called a refinement at .01.

    ``against_all`` compares it with all examples instead, as if it were no part of a worse slice.
    """
    found = np.array([one for some in each(_inherited, range(data_sets)) for one in some])
    own, every, overall = (found <= 0.01).mean(axis=0).tolist()
    if against_all:
        own = every = overall
    return Result(
        f"{own:.4f} within the worse parent, {every:.4f} within each parent "
        f"({len(found):,} children)",
        max(own, every) <= 0.02 + slack,
    )
