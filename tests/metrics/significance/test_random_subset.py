"""The saddle point of random subsets, against enumeration, the hypergeometric law and draws."""

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.significance import count_tests
from slicebeam.metrics.significance.random_subset import (
    BINS,
    SubsetLaw,
    bin_edges,
    bin_sums,
    population,
    sum_p_value,
)
from tests.conftest import slow
from tests.deviations import compressed
from tests.metrics.significance.test_hall import log_losses
from tests.random_subsets import all_sums, mid_p, saddle_point

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def draws(values, n, number, rng):
    """Sums of disjoint random subsets, from as many permutations as it takes."""
    sums, order = [], values.copy()
    for _ in range(-(-number // (values.size // n))):
        rng.shuffle(order)
        sums.append(order[: values.size // n * n].reshape(-1, n).sum(axis=1))
    return np.concatenate(sums)[:number]


VALUES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed": lambda rng, size: rng.exponential(size=size),
    "bimodal": log_losses,
    "one outlier": lambda rng, size: np.append(rng.normal(size=size - 1), 25.0),
}


@pytest.mark.parametrize("n", [6, 12])
@pytest.mark.parametrize("name", VALUES)
def test_every_subset_of_18_values(name, n):
    """Tails above 1e-3 are within 15 % of the share of the 18,564 subsets; deeper, within 30 %."""
    values = VALUES[name](np.random.default_rng(1), 18)
    values -= values.mean()
    sums, of = all_sums(values, n), compressed(values)
    totals = np.quantile(sums, [0.0005, 0.002, 0.01, 0.05, 0.3, 0.7, 0.95, 0.99, 0.998, 0.9995])
    size = np.full(totals.size, n)
    upper, lower = (sum_p_value(size, totals, of, tail) for tail in ("upper", "lower"))
    for total, above, below in zip(totals, upper, lower, strict=True):
        for expected, found in zip(mid_p(sums, total), (above, below), strict=True):
            assert found == pytest.approx(expected, rel=0.15 if expected > 1e-3 else 0.3)
    # The extremes are single subsets, by half.
    both = sum_p_value(np.full(2, n), np.array([sums.min(), sums.max()]), of, "both")
    np.testing.assert_allclose(both, 1 / 18564, rtol=0.02)


@pytest.mark.parametrize("n", [20, 33, 100, 450, 1500, 1930])
@pytest.mark.parametrize("name", ["normal", "skewed", "bimodal"])
def test_the_formula_on_all_values(name, n):
    """Compressed and interpolated it is the saddle point of all 2,000 values to a relative 1 %."""
    values = VALUES[name](np.random.default_rng(2), 2000)
    values -= values.mean()
    of = compressed(values)
    deviation = values.std() * np.sqrt(n * (1 - n / values.size))
    lowest, highest = np.sort(values)[:n].sum(), np.sort(values)[-n:].sum()
    for total in np.array([-3.5, -1.5, 0.4, 1.5, 3.5, 5.0]) * deviation:
        if not 0.9 * lowest < total < 0.9 * highest:
            continue
        upper, lower = saddle_point(values, n, total)
        size, at = np.array([n]), np.array([total])
        assert sum_p_value(size, at, of, "upper")[0] == pytest.approx(upper, rel=0.01)
        assert sum_p_value(size, at, of, "lower")[0] == pytest.approx(lower, rel=0.01)
        both = min(1, 2 * min(upper, lower))
        assert sum_p_value(size, at, of, "both")[0] == pytest.approx(both, rel=0.01)


@pytest.mark.parametrize("n", [5, 20, 47, 200, 3000, 15_000])
def test_errors_have_the_hypergeometric_mid_p(n):
    """Of a loss of 0 or 1 the tail is the mid-p that accuracy has, to 8 %."""
    N, K = 20_000, 2000
    wrong = (np.arange(N) < K).astype(float)
    of = compressed(wrong - wrong.mean())
    assert of.span == pytest.approx(1.0, rel=1e-9)
    spread = 8 * np.sqrt(n * 0.09)
    x = np.arange(max(0, int(n * 0.1 - spread)), min(n, int(n * 0.1 + spread)) + 1)
    size = np.full(x.size, n)
    for tail in ("upper", "lower"):
        expected = count_tests.mid_p(size, x, N, K, tail)
        found = sum_p_value(size, x - n * 0.1, of, tail)
        np.testing.assert_allclose(found, expected, rtol=0.08 if n < 1000 else 2e-3)


@pytest.mark.parametrize(("name", "n"), [
    ("bimodal", 20),
    *(slow(*one) for one in (("weighted", 25), ("bimodal", 60), ("heavy", 30))),
])  # fmt: skip
def test_tails_are_the_share_of_random_subsets(name, n):
    """A Monte Carlo oracle: of 400,000 random subsets, at .01 and .001, either side."""
    rng = np.random.default_rng(3)
    values = log_losses(rng, 20_000)
    if name == "heavy":
        values = np.abs(rng.standard_t(2.5, 20_000))
    weights = rng.lognormal(0, 0.7, values.size) if name == "weighted" else np.ones(values.size)
    values = weights * (values - np.average(values, weights=weights))
    of, sums = compressed(values), draws(values, n, 400_000, rng)
    for tail in ("upper", "lower"):
        p = sum_p_value(np.full(sums.size, n), sums, of, tail)
        # Four standard errors, and what a saddle point is off.
        assert (p <= 0.01).mean() == pytest.approx(0.01, rel=0.063 + 0.05)
        assert (p <= 0.001).mean() == pytest.approx(0.001, rel=0.2 + 0.05)


def test_a_tail_is_the_same_whatever_else_is_tested():
    rng = np.random.default_rng(4)
    values = rng.gamma(0.7, size=5000)
    values -= values.mean()
    n = rng.integers(1, 5000, 300)
    totals = rng.normal(size=300) * 3 * values.std() * np.sqrt(n * (1 - n / 5000))
    together = sum_p_value(n, totals, compressed(values), "upper")
    for some in (slice(0, 1), slice(17, 31), slice(299, None, -7)):
        # So many other populations that what was solved of this one is forgotten.
        for other in range(20):
            sum_p_value(2, 1.0, compressed(np.repeat([-1.0, 1.0], 10 + other)), "upper")
        found = sum_p_value(n[some], totals[some], compressed(values), "upper")
        np.testing.assert_array_equal(found, together[some])


def test_a_step_along_the_tail_costs_little(monkeypatch):
    """One evaluation for the tilted law and about one to find it, whatever other sizes still need."""
    values = log_losses(np.random.default_rng(8), 20_000)
    law = SubsetLaw(*compressed(values - values.mean()), is_part=False)
    evaluated, exp = [], np.exp
    monkeypatch.setattr(np, "exp", lambda x: evaluated.append(np.size(x)) or exp(x))
    law._solve(np.arange(law.nodes.size))
    steps = sum(solved.total.size for solved in law.solved.values())
    assert sum(evaluated) / (steps * law.points.size) < 2.6


def test_tails_fall_towards_the_extreme_sum():
    values = np.round(np.random.default_rng(5).exponential(size=3000), 1)
    values -= values.mean()
    for n in (7, 20, 45, 1000, 2990):
        highest = np.sort(values)[-n:].sum()
        totals = np.linspace(-highest / 4, highest, 400)
        p = sum_p_value(np.full(totals.size, n), totals, compressed(values), "upper")
        assert np.all(np.diff(p) <= 0)
        assert p[-1] < p[0]


def test_bins_keep_the_moments_in_any_order():
    rng = np.random.default_rng(6)
    values = rng.lognormal(0, 1.5, 30_000)
    values -= values.mean()
    edges = bin_edges(values.min(), values.max(), values.std())
    unit = 2.0**-40
    sums = bin_sums(values, edges, unit)
    assert sums.shape == (3, BINS)
    order = rng.permutation(values.size)
    parts = [bin_sums(values[some], edges, unit) for some in np.array_split(order, 7)]
    np.testing.assert_array_equal(np.sum(parts, axis=0), sums)
    of = population(sums, edges, unit)
    assert len(of.points) <= 2 * BINS
    points, counts = np.array(of.points), np.array(of.counts)
    assert counts.sum() == values.size
    for power, rel in ((2, 1e-9), (3, 1e-3), (4, 1e-3)):
        assert counts @ points**power == pytest.approx((values**power).sum(), rel=rel)
    assert points.max() == pytest.approx(values.max(), rel=1e-9)
    assert points.min() == pytest.approx(values.min(), rel=0.02)


@pytest.mark.parametrize(
    ("levels", "span"),
    [((0.0, 1.0), 1.0), ((0.01, 0.81), 0.8), ((0.0, 0.25, 1.0), 0.25), ((0.0, 1.0, np.pi), 0.0)],
)
def test_lattices(levels, span):
    values = np.repeat(levels, 200)
    assert compressed(values - values.mean()).span == pytest.approx(span, rel=1e-6)


def test_degenerate_slices():
    of = compressed(np.repeat([-1.0, 1.0], 30))
    p = sum_p_value(np.array([0, 60, 1, 59]), np.array([0.0, 0.0, 1.0, -1.0]), of, "upper")
    assert p[:2].tolist() == [1.0, 1.0]
    assert p[2] == pytest.approx(0.25, rel=0.02)
    assert p[3] == pytest.approx(0.75, rel=0.02)


@pytest.mark.parametrize("kind", ["few far off", "log-likelihood"])
def test_rare_values_far_off_make_no_other_sum_extreme(kind):
    """Subsets without any of them are nothing special, though their sums stand apart."""
    rng, N = np.random.default_rng(5), 3900
    if kind == "few far off":
        values = np.where(rng.random(N) < 0.004, 36.0, rng.exponential(0.3, N))
    else:
        logit = np.where(rng.random(N) < 0.06, -3.5, 3.5) + rng.normal(0, 0.8, N)
        values = -np.log1p(np.exp(-logit))
    deviations = values - values.mean()
    of, draws = compressed(deviations), 6000
    for n in (25, 60):
        drawn = np.array([rng.choice(N, n, replace=False, shuffle=False) for _ in range(draws)])
        for side in ("lower", "upper", "both"):
            p = sum_p_value(np.full(draws, n), deviations[drawn].sum(axis=1), of, side)
            # Lumps of the law leave single levels above their rate, never many times so.
            for level in (0.01, 1e-3):
                most = 2.5 * level * draws + 4.0 * np.sqrt(level * draws)
                assert np.count_nonzero(p <= level) <= most, side
            assert np.count_nonzero(p <= 1e-6) == 0, side


def sums_of_three_values(n, N, ones, far, count):
    """All sums of n of N values, which are 0, 1 and a far one, with their probabilities."""
    held, x = np.arange(min(n, count) + 1), np.arange(min(n, ones) + 1)
    chance = stats.hypergeom.pmf(held, N, count, n)
    low = min(0, far * held[-1])
    law = np.zeros(far * held[-1] * np.sign(far) + x.size)
    for k in held[chance > 1e-15]:
        # By its logarithm: what adds a density's terms exactly takes a hundred times as long.
        own = np.exp(stats.hypergeom.logpmf(x, N - count, ones, n - k))
        law[k * far - low : k * far - low + x.size] += chance[k] * own
    sums = np.flatnonzero(law > 1e-30)
    return sums + low, law[sums]


@pytest.mark.parametrize(("count", "far"), [(50, 50), (50, -50), (250, 20), (10, 50)])
def test_a_far_value_that_occurs_several_times(count, far):
    """Both tails are the exact mid-p, on either side of the size beyond which no lump shows."""
    N, ones = 5_000, 1_500
    values = np.repeat([0.0, 1.0, float(far)], [N - ones - count, ones, count])
    of = compressed(values - values.mean())
    for n in (20, 50, 1500):
        sums, chance = sums_of_three_values(n, N, ones, far, count)
        above = chance[::-1].cumsum()[::-1] - chance / 2
        below = chance.cumsum() - chance / 2
        some = np.linspace(0, sums.size - 1, 300).astype(int)
        totals = sums[some] - n * values.mean()
        for tail, exact in (("upper", above[some]), ("lower", below[some])):
            found = sum_p_value(np.full(totals.size, n), totals, of, tail)
            deep = exact > 1e-9
            np.testing.assert_allclose(found[deep], exact[deep], rtol=0.08)
