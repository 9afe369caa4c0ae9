"""Coverage of the intervals by enumerating everything that can be observed."""

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import gammaln, xlogy

from slicebeam.metrics.intervals import intervals

RATES = np.linspace(0.02, 0.5, 49)


@pytest.mark.parametrize("n", [20, 21, 25, 40, 100, 500])
def test_agresti_coull_covers_every_share(n):
    x = np.arange(n + 1)
    low, high = intervals.agresti_coull(x, n, 0.95)
    assert ((low <= x / n) & (x / n <= high) & (low >= 0) & (high <= 1)).all()
    shares = np.linspace(0.0005, 0.9995, 1999)
    within = (low <= shares[:, None]) & (shares[:, None] <= high)
    coverage = (stats.binom.pmf(x, n, shares[:, None]) * within).sum(axis=1)
    assert coverage.min() >= 0.94
    assert coverage.mean() <= 0.975


def test_agresti_coull_is_statsmodels_formula():
    # z²/2 of either kind are added: with 4 added at 95 %, 2 of them marked.
    low, high = intervals.agresti_coull(7, 30, 0.95)
    z = stats.norm.ppf(0.975)
    share = (7 + z * z / 2) / (30 + z * z)
    half = stats.t.ppf(0.975, 30 + z * z - 1) * np.sqrt(share * (1 - share) / (30 + z * z))
    np.testing.assert_allclose([low, high], [share - half, share + half], rtol=1e-12)
    assert [float(end) for end in intervals.agresti_coull(0, 0, 0.95)] == [0.0, 1.0]


def test_wilson_equals_scipy():
    for x, n in ((0, 10), (3, 10), (10, 10), (150, 1000)):
        expected = stats.binomtest(x, n).proportion_ci(0.9, method="wilson")
        ours = intervals.wilson(x, n, 0.9)
        np.testing.assert_allclose(ours, expected, atol=1e-12)
    assert [float(end) for end in intervals.wilson(0, 0, 0.95)] == [0.0, 1.0]
    with pytest.raises(ValueError, match=r"confidence = 95"):
        intervals.wilson(1, 2, 95)


@pytest.mark.parametrize(("n", "share"), [(20, 0.05), (20, 0.5), (50, 0.1), (50, 0.5), (200, 0.3)])
def test_difference_from_overall_covers(n, share):
    N = round(n / share)
    m = N - n
    x, y = np.arange(n + 1), np.arange(m + 1)
    X, Y = np.meshgrid(x, y, indexing="ij")
    low, high = intervals.difference_from_overall(n, X, N, X + Y, 0.95)
    observed = X / n - (X + Y) / N
    assert ((low <= observed) & (observed <= high) & (low >= -1) & (high <= 1)).all()
    coverage = []
    for p in RATES[::6]:
        for q in RATES[::6]:
            delta = (1 - n / N) * (p - q)
            weights = np.outer(stats.binom.pmf(x, n, p), stats.binom.pmf(y, m, q))
            coverage.append(weights[(low <= delta) & (delta <= high)].sum())
    assert min(coverage) >= 0.93
    assert np.mean(coverage) <= 0.965


def test_difference_from_overall_is_newcombes_example_scaled():
    # Newcombe (1998), table II, contrast (a): 56/70 - 48/80, method 10: 0.0524 to 0.3339.
    low, high = intervals.difference_from_overall(70, 56, 150, 104, 0.95)
    scale = 1 - 70 / 150
    assert float(low) / scale == pytest.approx(0.0524, abs=5e-5)
    assert float(high) / scale == pytest.approx(0.3339, abs=5e-5)


def test_difference_from_overall_of_everything_and_of_nothing():
    low, high = intervals.difference_from_overall([10, 0], [3, 0], 10, 3, 0.95)
    np.testing.assert_array_equal(low, [0.0, -1.0])
    np.testing.assert_array_equal(high, [0.0, 1.0])


def all_pairs(n):
    b, c = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    return b[b + c <= n], c[b + c <= n]


@pytest.mark.parametrize("n", [20, 50, 200])
def test_paired_difference_covers(n):
    b, c = all_pairs(n)
    low, high = intervals.paired_difference(b, c, n, 0.95)
    observed = (b - c) / n
    assert ((low <= observed) & (observed <= high) & (low >= -1) & (high <= 1)).all()
    ways = gammaln(n + 1) - gammaln(b + 1) - gammaln(c + 1) - gammaln(n - b - c + 1)
    coverage = []
    for discordant in (0.02, 0.05, 0.1, 0.2, 0.4, 0.6):
        for balance in (-0.9, -0.5, 0.0, 0.3, 0.9):
            p, q = discordant * (1 + balance) / 2, discordant * (1 - balance) / 2
            weights = np.exp(ways + xlogy(b, p) + xlogy(c, q) + xlogy(n - b - c, 1 - p - q))
            coverage.append(weights[(low <= p - q) & (p - q <= high)].sum())
    assert min(coverage) >= 0.94
    # Where nearly nothing is discordant no interval can be exact.
    assert np.median(coverage) <= 0.985


def test_paired_difference_ends_where_the_score_equals_its_quantile():
    b, c, n = 14, 5, 60
    z = stats.norm.ppf(0.975)
    for end in intervals.paired_difference(b, c, n, 0.95):
        delta = float(end)

        def loss(q, delta=delta):
            return -(
                b * np.log(q + delta) + c * np.log(q) + (n - b - c) * np.log(1 - 2 * q - delta)
            )

        bounds = (max(0.0, -delta) + 1e-9, (1 - delta) / 2 - 1e-9)
        q = optimize.minimize_scalar(
            loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}
        ).x
        score = (b - c - n * delta) / np.sqrt(n * (2 * q + delta * (1 - delta)))
        assert abs(score) == pytest.approx(z, rel=1e-5)


def test_paired_difference_is_antisymmetric_and_closed_without_discordance():
    b, c = all_pairs(30)
    low, high = intervals.paired_difference(b, c, 30, 0.9)
    swapped_low, swapped_high = intervals.paired_difference(c, b, 30, 0.9)
    np.testing.assert_array_equal(low, -swapped_high)
    np.testing.assert_array_equal(high, -swapped_low)
    z = stats.norm.ppf(0.975)
    low, high = intervals.paired_difference([0, 0], [0, 0], [40, 0], 0.95)
    np.testing.assert_allclose(high, [z**2 / (40 + z**2), 1.0], atol=1e-12)
    np.testing.assert_allclose(low, [-(z**2) / (40 + z**2), -1.0], atol=1e-12)
