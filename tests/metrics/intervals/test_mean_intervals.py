import numpy as np
import pytest

from slicebeam.metrics.intervals.mean_intervals import (
    of_difference_from_overall,
    of_mean,
    of_paired,
)
from slicebeam.metrics.significance.hall import Moments, paired, welch

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

DRAWS = 12_000
# Three standard errors of a coverage of .93.
BAR = 0.93 - 3 * np.sqrt(0.93 * 0.07 / DRAWS)


def log_losses(rng, size):
    p = np.clip(rng.beta(0.5, 0.5, size), 1e-6, 1 - 1e-6)
    return -np.log(np.where(rng.random(size) < p, p, 1 - p))


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
    n = np.float64(x.shape[axis])
    return Moments(n, mean, x.var(axis, ddof=1), skewness)


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
    assert held(of_paired(centred, 0.95, everything), 0.0) >= BAR
    m = len(x) - n
    rest_mean = (x.sum() - n * sample.mean) / m
    rest = Moments(np.float64(m), rest_mean, everything.variance, everything.skewness)
    ends = of_difference_from_overall(sample, rest, n / len(x), 0.95)
    assert held(ends, 0.0) >= BAR


@pytest.mark.parametrize("name", ["log loss", "exponential", "squared error"])
def test_coverage_of_a_shifted_and_wider_slice(name):
    rng = np.random.default_rng(5)
    x = POPULATIONS[name](rng, 20_000)
    everything = moments(x)
    sample = moments(1.0 + 2.0 * x[rng.integers(0, len(x), (DRAWS, 50))])
    rest = everything._replace(n=everything.n - 50)
    truth = (1 - 0.0025) * (1.0 + 2.0 * everything.mean - everything.mean)
    assert held(of_difference_from_overall(sample, rest, 0.0025, 0.95), truth) >= BAR
    assert held(of_mean(sample, 0.95, everything), 1.0 + 2.0 * everything.mean) >= BAR


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize("skewness", [-4.0, 0.0, 4.0])
def test_zero_is_outside_where_the_test_is_significant(confidence, skewness):
    rng = np.random.default_rng(6)
    n = rng.integers(20, 200, 3000).astype(float)
    sample = Moments(n, rng.normal(0, 3 / np.sqrt(n)), rng.gamma(2, 0.5, 3000), np.zeros(3000))
    rest = Moments(np.float64(500), np.float64(0), np.float64(1), np.float64(skewness))
    p, too_skewed = welch(sample, rest, "both")
    low, high = of_difference_from_overall(sample, rest, n / (n + 500), confidence)
    assert not too_skewed.any()
    significant = p < 1 - confidence
    assert 0 < significant.sum() < 3000
    np.testing.assert_array_equal((low > 0) | (high < 0), significant)
    for everything in (None, rest):
        p, _ = paired(sample, "both", everything)
        low, high = of_paired(sample, confidence, everything)
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
    low, high = of_difference_from_overall(sample, rest, 0.25, confidence)
    delta = 0.75 * (sample.mean - 0.1)
    assert ((low <= delta) & (delta <= high)).all()


def test_degenerate_slices():
    nan, inf = np.nan, np.inf
    sample = Moments(
        np.array([0.0, 1.0, 2.0, 30.0]),
        np.array([nan, 0.1, 0.1, 0.5]),
        np.array([nan, nan, 0.0, -1e-20]),
        np.array([nan, nan, nan, nan]),
    )
    constant = Moments(np.float64(100), np.float64(0.5), np.float64(0), np.float64(nan))
    for low, high in (of_mean(sample, 0.95), of_mean(sample, 0.95, constant)):
        assert low.tolist() == [-inf, -inf, 0.1, 0.5]
        assert high.tolist() == [inf, inf, 0.1, 0.5]
    low, high = of_difference_from_overall(sample, constant, 0.5, 0.95)
    assert low.tolist() == [-inf, -inf, -0.2, 0.0]
    assert high.tolist() == [inf, inf, -0.2, 0.0]
    empty = Moments(np.float64(0), np.float64(nan), np.float64(nan), np.float64(nan))
    low, high = of_difference_from_overall(constant, empty, np.array([1.0, 0.9]), 0.95)
    assert low.tolist() == [0.0, -inf]
    assert high.tolist() == [0.0, inf]


def test_a_slice_that_does_not_vary_gets_a_width_from_all_examples():
    sample = Moments(np.float64(20), np.float64(0), np.float64(0), np.float64(0))
    everything = Moments(np.float64(1e4), np.float64(0.1), np.float64(0.09), np.float64(2.67))
    low, high = of_mean(sample, 0.95, everything)
    assert low <= 0.0
    assert 0.1 < high < 0.5


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0])
def test_wrong_confidence(confidence):
    sample = Moments(np.float64(20), np.float64(0), np.float64(1), np.float64(0))
    with pytest.raises(ValueError, match="confidence"):
        of_mean(sample, confidence)
