"""The corrected signed root against the exact mid-p."""

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.significance import hypergeometric, likelihood_ratio


def test_signed_root_is_the_g_statistic_of_scipy():
    for n, x, N, K in ((50, 20, 1000, 150), (50, 2, 1000, 150), (300, 45, 1000, 151)):
        table = [[x, n - x], [K - x, N - K - n + x]]
        g = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood").statistic
        sign = 1 if x / n > (K - x) / (N - n) else -1
        assert float(likelihood_ratio.signed_root(n, x, N, K)) == pytest.approx(sign * g**0.5)


def test_signed_root_is_zero_at_the_mean_and_with_empty_margins():
    np.testing.assert_array_equal(
        likelihood_ratio.signed_root(
            [50, 0, 10, 5], [5, 0, 1, 0], [100, 10, 10, 10], [10, 5, 1, 0]
        ),
        0.0,
    )


def large_tables(seed, least, most):
    rng = np.random.default_rng(seed)
    size = 20_000
    N = np.exp(rng.uniform(np.log(1e5), np.log(1e7), size)).astype(int)
    K = (N * np.exp(rng.uniform(np.log(0.002), np.log(0.998), size))).astype(int)
    n = np.exp(rng.uniform(np.log(1000), np.log(0.9 * N))).astype(int)
    variance = hypergeometric.variance(n, N, K)
    kept = (variance > least) & (variance < most)
    N, K, n, deviation = N[kept], K[kept], n[kept], np.sqrt(variance[kept])
    # A third of them next to the mean, where the correction is a limit.
    z = rng.uniform(-11.4, 11.4, N.size) * rng.choice([1.0, 0.1, 0.0], N.size)
    x = np.rint(n * K / N + z * deviation).astype(int)
    return n, np.clip(x, np.maximum(0, n + K - N), np.minimum(n, K)), N, K


@pytest.mark.parametrize("tail", ["upper", "lower", "both"])
@pytest.mark.parametrize(("least", "most", "bar"), [(1000, 5000, 3e-5), (5000, 30_000, 3e-6)])
def test_p_value_is_the_mid_p_of_large_tables(tail, least, most, bar):
    table = large_tables(1, least, most)
    exact = hypergeometric.mid_p(*table, tail)
    kept = exact > 1e-30
    assert kept.sum() > 1000
    assert exact[kept].min() < 1e-25
    ours = likelihood_ratio.p_value(*table, tail)
    np.testing.assert_allclose(ours[kept], exact[kept], rtol=bar)


@pytest.mark.parametrize(("least_p", "bar"), [(1e-30, 1e-4), (1e-290, 1e-3)])
def test_p_value_of_rare_marks_and_deep_tails(least_p, bar):
    """What the page on statistics and ``--explain`` promise: shares from 1e-4, at variances next to 1,000."""
    rng = np.random.default_rng(3)
    size = 200_000
    N = np.exp(rng.uniform(np.log(4500), np.log(1e7), size)).astype(int)
    share, part = np.exp(rng.uniform(np.log(1e-4), 0, (2, size)))
    K, n = (np.clip((N * own).astype(int), 1, N - 1) for own in (share, part))
    variance = hypergeometric.variance(n, N, K)
    kept = (variance > 1000) & (variance < 1600)
    N, K, n, deviation = N[kept], K[kept], n[kept], np.sqrt(variance[kept])
    x = np.rint(n * (K / N) + rng.uniform(-36, 36, N.size) * deviation).astype(int)
    x = np.clip(x, np.maximum(0, n + K - N), np.minimum(n, K))
    exact = hypergeometric.weighted_tail(n, x, N, K, np.full(n.size, 0.5))
    some = (exact > least_p) & (exact < 0.9)
    assert exact[some].min() < least_p * 1e3
    ours = likelihood_ratio.p_value(n, x, N, K, "upper")
    np.testing.assert_allclose(ours[some], exact[some], rtol=bar)


def test_p_value_with_an_empty_cell_is_finite():
    p = likelihood_ratio.p_value([30, 30], [0, 30], 1000, [100, 100], "both")
    assert np.isfinite(p).all()
    np.testing.assert_allclose(
        np.log(p), np.log(hypergeometric.mid_p([30, 30], [0, 30], 1000, 100, "both")), rtol=0.05
    )


def test_nothing_to_test_is_one():
    p = likelihood_ratio.p_value([0, 10, 4, 4], [0, 3, 0, 4], 10, [3, 3, 0, 10], "upper")
    np.testing.assert_array_equal(p, 1.0)
    assert likelihood_ratio.p_value([], [], 10, 3, "both").shape == (0,)


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match=r"x = 4 is not within 0\.\.3"):
        likelihood_ratio.p_value(3, 4, 10, 5, "upper")
