"""Hall's t: its formula written down, error rates, coverage, and degenerate slices."""

import math

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.significance.hall import (
    Moments,
    against_rest,
    against_zero,
    difference_from_overall,
    hall_transform,
    inverse_hall_transform,
)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
TAILS = ("upper", "lower", "both")
nan = np.nan
# Slices of no, one, and two equal values, and of thirty whose variance is rounding.
DEGENERATE = Moments(
    np.array([0.0, 1.0, 2.0, 30.0]), np.array([nan, 0.1, 0.1, 0.5]), np.array([nan, nan, 0.0, -1e-20]), np.full(4, nan)
)  # fmt: skip


def welch(sample, rest, tail):
    return against_rest(sample, rest).p_value(tail)


def paired(differences, tail, everything=None):
    return against_zero(differences, everything or differences).p_value(tail)


def of_mean(sample, confidence, everything=None):
    return against_zero(sample, everything or sample).interval(confidence)


def slow_tails(difference, error, df, bend):
    t = difference / error
    corrected = t + bend * t**2 / 3 + bend**2 * t**3 / 27 + bend / 6
    upper, lower = stats.t.sf(corrected, df), stats.t.cdf(corrected, df)
    return {"upper": upper, "lower": lower, "both": min(1.0, 2 * min(upper, lower))}


def raised(n, variance, reference, skewness):
    added = skewness**2 / 2
    return max(variance, ((n - 1) * variance + added * reference) / (n - 1 + added))


def slow_welch(n, mean, variance, m, rest_mean, rest_variance, skewness):
    a = raised(n, variance, rest_variance, skewness) / n
    b = raised(m, rest_variance, variance, skewness) / m
    r = a / (a + b)
    bend = skewness * (r**1.5 / math.sqrt(n) - (1 - r) ** 1.5 / math.sqrt(m))
    df = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))
    return slow_tails(mean - rest_mean, math.sqrt(a + b), df, bend)


def log_losses(rng, size, a=0.5, b=0.5):
    p = np.clip(rng.beta(a, b, size), 1e-6, 1 - 1e-6)
    return -np.log(np.where(rng.random(size) < p, p, 1 - p))


def skewness_of(x):
    return float(np.mean((x - x.mean()) ** 3) / x.std() ** 3)


def random_slices(x, n, draws, rng):
    """Moments of random slices of n of the values, and of their complements."""
    total, squares, N = x.sum(), (x * x).sum(), len(x)
    mean, variance = np.empty(draws), np.empty(draws)
    for start in range(0, draws, 2000):
        stop = min(draws, start + 2000)
        values = x[rng.integers(0, N, (stop - start, n))]
        mean[start:stop], variance[start:stop] = values.mean(1), values.var(1, ddof=1)
    m = N - n
    rest_mean = (total - n * mean) / m
    inside = variance * (n - 1) + n * mean**2
    rest_variance = (squares - inside - m * rest_mean**2) / (m - 1)
    skewness = np.float64(skewness_of(x))
    return (
        Moments(np.float64(n), mean, variance, np.full(draws, np.nan)),
        Moments(np.float64(m), rest_mean, rest_variance, skewness),
    )


def rates(p_of, level=0.005):
    return [float(np.mean(p_of(tail)[0] < level)) for tail in ("upper", "lower")]


@pytest.mark.parametrize("tail", TAILS)
def test_welch_is_the_formula_written_down(tail):
    rng = np.random.default_rng(1)
    cases = []
    for _ in range(200):
        n, m = int(rng.integers(40, 900)), int(rng.integers(40, 9000))
        cases.append(
            (n, rng.normal(), rng.gamma(2), m, rng.normal(), rng.gamma(2), rng.uniform(-6, 6))
        )
    n, mean, variance, m, rest_mean, rest_variance, skewness = np.array(cases).T
    sample = Moments(n, mean, variance, np.full(len(n), np.nan))
    p, too_skewed = welch(sample, Moments(m, rest_mean, rest_variance, skewness), tail)
    assert not too_skewed.any()
    np.testing.assert_allclose(p, [slow_welch(*case)[tail] for case in cases], rtol=1e-9)


@pytest.mark.parametrize("tail", TAILS)
def test_paired_is_the_formula_written_down(tail):
    rng = np.random.default_rng(2)
    n, mean = rng.integers(30, 400, 100).astype(float), rng.normal(0, 0.3, 100)
    variance, skewness = rng.gamma(2, size=100), rng.uniform(-4, 4, 100)
    own, _ = paired(Moments(n, mean, variance, skewness), tail)
    everything = Moments(np.float64(5e3), np.float64(0), np.float64(2.5), np.float64(3.0))
    known, _ = paired(Moments(n, mean, variance, skewness), tail, everything)
    for i in range(100):
        of = n[i], mean[i], variance[i], skewness[i]
        root = math.sqrt(of[0])
        slow = slow_tails(of[1], math.sqrt(of[2]) / root, of[0] - 1, of[3] / root)[tail]
        assert own[i] == pytest.approx(slow, rel=1e-9)
        error = math.sqrt(raised(of[0], of[2], 2.5, 3.0)) / root
        assert known[i] == pytest.approx(
            slow_tails(of[1], error, of[0] - 1, 3.0 / root)[tail], rel=1e-9
        )


def test_without_skewness_it_is_scipys_welch():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.2, 1, 40), rng.normal(0, 3, 300)
    sides = [Moments(np.float64(len(x)), x.mean(), x.var(ddof=1), np.float64(0)) for x in (a, b)]
    p, _ = welch(*sides, "both")
    assert p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-10)
    one, _ = paired(sides[0], "both")
    assert one == pytest.approx(stats.ttest_1samp(a, 0).pvalue, rel=1e-10)


def test_small_tails_are_precise():
    rest = Moments(np.float64(1e6), np.float64(0), np.float64(1), np.float64(0))
    p, _ = welch(
        Moments(np.float64(5e3), np.float64(0.5), np.float64(1), rest.skewness), rest, "upper"
    )
    slow = slow_welch(5e3, 0.5, 1.0, 1e6, 0.0, 1.0, 0.0)["upper"]
    assert 0 < p < 1e-200
    assert p == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize("bend", [-1.0, -1e-3, -1e-17, 0.0, 1e-9, 0.3, 1.0, 4.0])
def test_straightened_undoes_bent(bend):
    t = np.linspace(-30, 30, 601)
    np.testing.assert_allclose(
        inverse_hall_transform(hall_transform(t, bend), bend), t, rtol=1e-6, atol=1e-4
    )


# Rates at .005 a side: a correction of the wrong sign gives (.000, .08) and none (.000, .033) here.
@pytest.mark.parametrize("n", [50, 100, 400])
@pytest.mark.parametrize("shape", [(2, 5), (0.5, 0.5)])
def test_random_slices_of_log_losses_are_rarely_significant(n, shape):
    rng = np.random.default_rng(n)
    sample, rest = random_slices(log_losses(rng, 20_000, *shape), n, 16_000, rng)
    upper, lower = rates(lambda tail: welch(sample, rest, tail))
    assert 0.0035 <= upper <= 0.0080
    assert lower <= 0.0075
    assert 0.005 <= upper + lower <= 0.013


# Without the constant G/6 the rates are .19 and .22: in the middle the other terms are small.
def test_the_sides_are_balanced():
    rng = np.random.default_rng(7)
    sample, rest = random_slices(log_losses(rng, 20_000), 100, 60_000, rng)
    upper, lower = rates(lambda tail: welch(sample, rest, tail), 0.2)
    assert upper == pytest.approx(0.2, abs=0.01)
    assert upper == pytest.approx(lower, abs=0.01)


def test_a_small_complement_is_as_rarely_significant():
    rng = np.random.default_rng(8)
    rest, sample = random_slices(log_losses(rng, 20_000), 100, 16_000, rng)
    large = Moments(sample.n, sample.mean, sample.variance, np.float64(0))
    small = Moments(rest.n, rest.mean, rest.variance, sample.skewness)
    upper, lower = rates(lambda tail: welch(large, small, tail))
    assert 0.005 <= upper + lower <= 0.013
    assert upper <= 0.0075


def test_a_slice_without_rare_losses_is_not_called_better():
    rng = np.random.default_rng(9)
    x = (rng.random(20_000) < 0.02) * rng.uniform(3, 5, 20_000) + 0.01 * rng.random(20_000)
    sample, rest = random_slices(x, 100, 8_000, rng)
    assert max(rates(lambda tail: welch(sample, rest, tail))) <= 0.0085


def test_power():
    rng = np.random.default_rng(11)
    x = log_losses(rng, 20_000)
    sample, rest = random_slices(x, 500, 500, rng)
    worse = sample._replace(mean=sample.mean + 0.3 * x.std())
    assert (welch(worse, rest, "upper")[0] < 0.01).mean() > 0.99
    assert (welch(worse, rest, "lower")[0] > 0.9).all()
    better = sample._replace(mean=sample.mean - 0.3 * x.std())
    assert (welch(better, rest, "lower")[0] < 0.01).mean() > 0.99


def test_too_skewed_is_refused():
    sample = Moments(np.array([20.0, 50.0, 1.0]), np.float64(9), np.float64(1), np.float64(0))
    rest = Moments(np.float64(900), np.float64(0), np.float64(1), np.float64(-5.0))
    p, too_skewed = welch(sample, rest, "both")
    assert too_skewed.tolist() == [True, False, False]
    assert p[[0, 2]].tolist() == [1.0, 1.0]
    assert p[1] < 1e-6
    # The complement may be the small side.
    _, too_skewed = welch(rest, sample._replace(skewness=np.float64(5.0)), "both")
    assert too_skewed.tolist() == [True, False, False]
    p, too_skewed = paired(sample._replace(skewness=np.float64(5.0)), "both")
    assert too_skewed.tolist() == [True, False, False]
    assert p[[0, 2]].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("tail", TAILS)
def test_degenerate_slices_have_p_of_1(tail):
    rest = Moments(np.float64(100), np.float64(0.5), np.float64(0), np.float64(nan))
    sample = DEGENERATE
    for p, too_skewed in (
        welch(sample, rest, tail),
        welch(rest, sample, tail),
        paired(sample, tail),
        paired(sample, tail, rest),
    ):
        assert p.tolist() == [1.0] * 4
        assert not too_skewed.any()


def test_extreme_values_give_no_nan():
    rest = Moments(np.float64(100), np.float64(0), np.float64(1e-300), np.float64(9.9))
    sample = Moments(np.float64(100), np.array([-1e300, 1e300]), np.float64(1e-300), rest.skewness)
    for tail in TAILS:
        p, _ = welch(sample, rest, tail)
        assert ((p >= 0) & (p <= 1)).all()


def test_scalars_and_tables_broadcast():
    rest = Moments(np.full((3, 1), 1e3), np.float64(0), np.float64(1), np.ones((3, 1)))
    sample = Moments(np.full(4, 60.0), np.zeros(4), np.ones(4), np.zeros(4))
    p, too_skewed = welch(sample, rest, "both")
    assert p.shape == too_skewed.shape == (3, 4)


DRAWS = 12_000
# Three standard errors of a coverage of .93.
BAR = 0.93 - 3 * np.sqrt(0.93 * 0.07 / DRAWS)
POPULATIONS = {
    "log loss": log_losses,
    "rare outcome": lambda rng, size: (rng.random(size) < 0.1).astype(float),
    "Brier": lambda rng, size: (np.square(np.where(rng.random(size) < 0.1, 0.9, 0.1)) + rng.normal(0, 0.003, size)),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "squared error": lambda rng, size: rng.normal(size=size) ** 2,
}  # fmt: skip


def moments(x, axis=-1):
    mean, spread = x.mean(axis), x.std(axis)
    centred = x - np.expand_dims(mean, axis)
    third = (centred**3).mean(axis)
    skewness = np.divide(third, spread**3, out=np.zeros_like(spread), where=spread > 0)
    return Moments(np.float64(x.shape[axis]), mean, x.var(axis, ddof=1), skewness)


def held(ends, truth):
    low, high = ends
    return np.mean((low <= truth) & (truth <= high))


@pytest.mark.parametrize("n", [20, 60])
@pytest.mark.parametrize("name", POPULATIONS)
def test_coverage(name, n):
    rng = np.random.default_rng(n)
    x = POPULATIONS[name](rng, 20_000)
    everything = moments(x)
    sample = moments(x[rng.integers(0, len(x), (DRAWS, n))])
    assert held(of_mean(sample, 0.95, everything), everything.mean) >= BAR
    centred = sample._replace(mean=sample.mean - everything.mean)
    assert held(of_mean(centred, 0.95, everything), 0.0) >= BAR
    m = len(x) - n
    rest_mean = (x.sum() - n * sample.mean) / m
    rest = Moments(np.float64(m), rest_mean, everything.variance, everything.skewness)
    assert held(difference_from_overall(sample, rest, n / len(x), 0.95), 0.0) >= BAR


@pytest.mark.parametrize("name", ["log loss", "exponential", "squared error"])
def test_coverage_of_a_shifted_and_wider_slice(name):
    rng = np.random.default_rng(5)
    x = POPULATIONS[name](rng, 20_000)
    everything = moments(x)
    sample = moments(1.0 + 2.0 * x[rng.integers(0, len(x), (DRAWS, 50))])
    rest = everything._replace(n=everything.n - 50)
    truth = (1 - 0.0025) * (1.0 + 2.0 * everything.mean - everything.mean)
    assert held(difference_from_overall(sample, rest, 0.0025, 0.95), truth) >= BAR
    assert held(of_mean(sample, 0.95, everything), 1.0 + 2.0 * everything.mean) >= BAR


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize("skewness", [-4.0, 0.0, 4.0])
def test_zero_is_outside_where_the_test_is_significant(confidence, skewness):
    rng = np.random.default_rng(6)
    n = rng.integers(20, 200, 3000).astype(float)
    sample = Moments(n, rng.normal(0, 3 / np.sqrt(n)), rng.gamma(2, 0.5, 3000), np.zeros(3000))
    rest = Moments(np.float64(500), np.float64(0), np.float64(1), np.float64(skewness))
    p, too_skewed = welch(sample, rest, "both")
    low, high = difference_from_overall(sample, rest, n / (n + 500), confidence)
    assert not too_skewed.any()
    significant = p < 1 - confidence
    assert 0 < significant.sum() < 3000
    np.testing.assert_array_equal((low > 0) | (high < 0), significant)
    for everything in (None, rest):
        p, _ = paired(sample, "both", everything)
        low, high = of_mean(sample, confidence, everything)
        np.testing.assert_array_equal((low > 0) | (high < 0), p < 1 - confidence)


def test_the_longer_side_is_where_the_values_are_skewed_to():
    sample = Moments(np.float64(50), np.float64(1), np.float64(1), np.float64(2))
    low, high = of_mean(sample, 0.95)
    assert high - 1 > 1.2 * (1 - low)
    low, high = of_mean(sample._replace(skewness=np.float64(-2)), 0.95)
    assert 1 - low > 1.2 * (high - 1)
    low, high = of_mean(sample._replace(skewness=np.float64(0)), 0.95)
    assert high - 1 == pytest.approx(1 - low)


@pytest.mark.parametrize("confidence", [1e-6, 0.05, 0.95])
def test_ends_hold_the_estimate(confidence):
    rng = np.random.default_rng(7)
    n, skewness = rng.integers(2, 50, 2000).astype(float), rng.normal(0, 9, 2000)
    sample = Moments(n, rng.normal(size=2000), rng.gamma(1, size=2000), skewness)
    rest = Moments(np.float64(80), np.float64(0.1), np.float64(2), skewness)
    for low, high in (of_mean(sample, confidence), of_mean(sample, confidence, rest)):
        assert np.isfinite(low).all()
        assert np.isfinite(high).all()
        assert ((low <= sample.mean) & (sample.mean <= high)).all()
    low, high = difference_from_overall(sample, rest, 0.25, confidence)
    delta = 0.75 * (sample.mean - 0.1)
    assert ((low <= delta) & (delta <= high)).all()


def test_intervals_of_degenerate_slices():
    inf, sample = np.inf, DEGENERATE
    constant = Moments(np.float64(100), np.float64(0.5), np.float64(0), np.float64(nan))
    for low, high in (of_mean(sample, 0.95), of_mean(sample, 0.95, constant)):
        assert low.tolist() == [-inf, -inf, 0.1, 0.5]
        assert high.tolist() == [inf, inf, 0.1, 0.5]
    low, high = difference_from_overall(sample, constant, 0.5, 0.95)
    assert low.tolist() == [-inf, -inf, -0.2, 0.0]
    assert high.tolist() == [inf, inf, -0.2, 0.0]
    empty = Moments(np.float64(0), np.float64(nan), np.float64(nan), np.float64(nan))
    low, high = difference_from_overall(constant, empty, np.array([1.0, 0.9]), 0.95)
    assert low.tolist() == [0.0, -inf]
    assert high.tolist() == [0.0, inf]


def test_a_slice_that_does_not_vary_gets_a_width_from_all_examples():
    sample = Moments(np.float64(20), np.float64(0), np.float64(0), np.float64(0))
    everything = Moments(np.float64(1e4), np.float64(0.1), np.float64(0.09), np.float64(2.67))
    low, high = of_mean(sample, 0.95, everything)
    assert low <= 0.0
    assert 0.1 < high < 0.5
