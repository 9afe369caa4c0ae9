"""Tests of counts against exact integers and scipy; their error rates are in `test_calibration`."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from scipy.special import betainc

from slicebeam.metrics.measures.slice_test import t_p_value
from slicebeam.metrics.significance import count_tests
from slicebeam.metrics.significance.outcome_codes import Reason


def log_of_ratio(numerator, denominator):
    """log of a ratio of integers of any size."""
    shift = denominator.bit_length() - numerator.bit_length() + 70
    scaled = (numerator << shift) // denominator if shift > 0 else numerator // denominator
    return math.log(scaled) - max(shift, 0) * math.log(2.0)


def exact_mid_p(n, x, N, K):
    """Upper mid-p in integers; the common divisor of all probabilities is C(N, n)."""
    first = ways = math.comb(K, x) * math.comb(N - K, n - x)
    total = first
    for k in range(x, min(n, K)):
        # Each from the one before, of which it is a ratio of integers.
        ways = ways * (K - k) * (n - k) // ((k + 1) * (N - K - n + k + 1))
        total += ways
    return Fraction(2 * total - first, 2 * math.comb(N, n))


def random_tables(rng, size, largest):
    N = rng.integers(10, largest, size)
    K, n = rng.integers(1, N), rng.integers(1, N)
    deviation = np.sqrt(count_tests.variance(n, N, K))
    x = np.rint(n * K / N + rng.uniform(-32, 32, size) * deviation).astype(int)
    return n, np.clip(x, np.maximum(0, n + K - N), np.minimum(n, K)), N, K


def test_pmf_equals_exact_integers_up_to_ten_million():
    rng = np.random.default_rng(1)
    for _ in range(20):
        N = int(rng.integers(100_000, 10_000_000))
        K, n = (int(value) for value in rng.integers(1, 10_000, 2))
        mean = n * K / N
        x = min(n, K, max(0, int(mean + rng.normal() * 15 * math.sqrt(mean))))
        exact = log_of_ratio(math.comb(K, x) * math.comb(N - K, n - x), math.comb(N, n))
        assert math.log(count_tests.pmf(x, N, K, n)) == pytest.approx(exact, abs=1e-9)


def test_pmf_equals_scipy_and_is_zero_outside_the_support():
    x = np.arange(-2, 25)
    ours = count_tests.pmf(x, 50, 30, 22)
    np.testing.assert_allclose(ours, stats.hypergeom.pmf(x, 50, 30, 22), rtol=1e-11)
    assert ours[x < 2].tolist() == [0.0] * 4
    assert count_tests.pmf([23, 1], 50, 30, 22).tolist() == [0.0, 0.0]


def test_pmf_with_an_empty_margin_is_a_point():
    np.testing.assert_array_equal(
        count_tests.pmf(
            [0, 1, 5, 0, 3, 0], [9, 9, 9, 9, 9, 0], [5, 5, 5, 0, 9, 0], [0, 0, 9, 4, 3, 0]
        ),
        [1.0, 0.0, 1.0, 1.0, 1.0, 1.0],
    )


def test_mid_p_equals_exact_integers_in_the_deep_tail():
    n, x, N, K = random_tables(np.random.default_rng(2), 1500, 1500)
    ours = count_tests.mid_p(n, x, N, K, "upper")
    compared = 0
    for row in range(n.size):
        table = (int(n[row]), int(x[row]), int(N[row]), int(K[row]))
        exact = exact_mid_p(*table)
        if exact < Fraction(1, 10**250):
            continue
        assert ours[row] == pytest.approx(float(exact), rel=1e-9, abs=0), table
        compared += 1
    assert compared > 1000
    assert ours.min() < 1e-250


@pytest.mark.parametrize("tail", ["upper", "lower"])
def test_mid_p_equals_scipy(tail):
    n, x, N, K = random_tables(np.random.default_rng(3), 1000, 30_000)
    law = stats.hypergeom(N, K, n)
    outer = law.sf(x) if tail == "upper" else law.cdf(x - 1)
    expected = outer + 0.5 * law.pmf(x)
    ours = count_tests.mid_p(n, x, N, K, tail)
    assert np.isfinite(ours).all()
    kept = expected > 1e-250
    np.testing.assert_allclose(ours[kept], expected[kept], rtol=1e-8)


def test_tails_rank_at_1e_300():
    p = count_tests.mid_p(600, np.arange(400, 430), 1_000_000, 100_000, "upper")
    assert (np.diff(p) < 0).all()
    assert 0.0 < p.min() < 1e-280


def test_two_sided_is_twice_the_smaller_tail():
    x = np.arange(0, 41)
    upper, lower, both = (
        count_tests.mid_p(40, x, 1000, 150, tail) for tail in ("upper", "lower", "both")
    )
    np.testing.assert_allclose(upper + lower, 1.0, rtol=1e-12)
    np.testing.assert_allclose(both, np.minimum(1.0, 2 * np.minimum(upper, lower)), rtol=1e-12)


def test_equal_rows_and_arrays_of_margins_agree():
    rng = np.random.default_rng(4)
    n = rng.integers(1, 60, (30, 40))
    x = rng.hypergeometric(200, 1800, n)
    shared = count_tests.mid_p(n, x, 2000, 200, "both")
    assert shared.shape == (30, 40)
    # One table with other margins keeps the rows from being shared.
    rows = count_tests.mid_p(
        np.append(n, 5),
        np.append(x, 1),
        np.append(np.full(n.size, 2000), 10),
        np.append(np.full(n.size, 200), 5),
        "both",
    )
    np.testing.assert_array_equal(shared.ravel(), rows[:-1])


@pytest.mark.parametrize("law", [count_tests.mid_p, count_tests.likelihood_mid_p])
def test_nothing_to_test_is_one(law):
    p = law([0, 10, 4, 4], [0, 3, 0, 4], 10, [3, 3, 0, 10], "upper")
    np.testing.assert_array_equal(p, 1.0)
    assert law([], [], 10, 3, "both").shape == (0,)


def test_weighted_tail_beyond_the_support():
    ours = count_tests.weighted_tail(20, [-1, 0, 5, 20, 21], 40, 25, [0.5, 1.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(ours, stats.hypergeom.sf([-1, -1, 5, 19, 20], 40, 25, 20), 1e-11)


def test_populations_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="N = 4000000000 is above 3037000499"):
        count_tests.mid_p(3, 2, 4_000_000_000, 5, "upper")


def test_variance_is_scipys():
    n, _, N, K = random_tables(np.random.default_rng(5), 100, 1000)
    np.testing.assert_allclose(count_tests.variance(n, N, K), stats.hypergeom.var(N, K, n))
    assert count_tests.variance(1, 1, 1) == 0.0


def test_a_hundred_thousand_slices_are_quick():
    rng = np.random.default_rng(7)
    n = rng.integers(20, 7000, 100_000)
    x = rng.hypergeometric(150_000, 850_000, n)
    started = time.process_time()
    count_tests.mid_p(n, x, 1_000_000, 150_000, "upper")
    # About 0.15 s; the margin is for busy machines.
    assert time.process_time() - started < 1.5


def test_deviance_of_a_table_is_half_the_g_statistic_of_scipy():
    for n, x, N, K in ((50, 20, 1000, 150), (50, 2, 1000, 150), (300, 45, 1000, 151)):
        table = [[x, n - x], [K - x, N - K - n + x]]
        g = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood").statistic
        assert float(count_tests.Table.of(n, x, N, K).half_deviance) == pytest.approx(0.5 * g)
    assert float(count_tests.Table.of(50, 5, 100, 10).half_deviance) == 0.0


def large_tables(seed, least, most):
    rng, size = np.random.default_rng(seed), 20_000
    N = np.exp(rng.uniform(np.log(1e5), np.log(1e7), size)).astype(int)
    K = (N * np.exp(rng.uniform(np.log(0.002), np.log(0.998), size))).astype(int)
    n = np.exp(rng.uniform(np.log(1000), np.log(0.9 * N))).astype(int)
    variance = count_tests.variance(n, N, K)
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
    exact = count_tests.mid_p(*table, tail)
    kept = exact > 1e-30
    assert kept.sum() > 1000
    assert exact[kept].min() < 1e-25
    ours = count_tests.likelihood_mid_p(*table, tail)
    np.testing.assert_allclose(ours[kept], exact[kept], rtol=bar)


@pytest.mark.parametrize(("least_p", "bar"), [(1e-30, 1e-4), (1e-290, 1e-3)])
def test_p_value_of_rare_marks_and_deep_tails(least_p, bar):
    """What the page on statistics and ``--explain`` promise: shares from 1e-4, at variances next to 1,000."""
    rng, size = np.random.default_rng(3), 200_000
    N = np.exp(rng.uniform(np.log(4500), np.log(1e7), size)).astype(int)
    share, part = np.exp(rng.uniform(np.log(1e-4), 0, (2, size)))
    K, n = (np.clip((N * own).astype(int), 1, N - 1) for own in (share, part))
    variance = count_tests.variance(n, N, K)
    kept = (variance > 1000) & (variance < 1600)
    N, K, n, deviation = N[kept], K[kept], n[kept], np.sqrt(variance[kept])
    x = np.rint(n * (K / N) + rng.uniform(-36, 36, N.size) * deviation).astype(int)
    x = np.clip(x, np.maximum(0, n + K - N), np.minimum(n, K))
    exact = count_tests.weighted_tail(n, x, N, K, np.full(n.size, 0.5))
    some = (exact > least_p) & (exact < 0.9)
    assert exact[some].min() < least_p * 1e3
    ours = count_tests.likelihood_mid_p(n, x, N, K, "upper")
    np.testing.assert_allclose(ours[some], exact[some], rtol=bar)


def test_p_value_with_an_empty_cell_is_finite():
    p = count_tests.likelihood_mid_p([30, 30], [0, 30], 1000, [100, 100], "both")
    assert np.isfinite(p).all()
    np.testing.assert_allclose(
        np.log(p), np.log(count_tests.mid_p([30, 30], [0, 30], 1000, 100, "both")), rtol=0.05
    )


def log_exact_upper(b, c):
    n = b + c
    twice = 2 * sum(math.comb(n, k) for k in range(b + 1, n + 1)) + math.comb(n, b)
    # A float holds integers up to 2**1023.
    shift = max(0, twice.bit_length() - 900)
    return math.log(twice >> shift) + (shift - n - 1) * math.log(2.0)


def test_mcnemar_is_exact_down_to_1e_300():
    for b, c in ((3, 1), (40, 2), (1000, 10), (990, 0), (2000, 400), (5000, 2600), (30, 30)):
        p = float(count_tests.mcnemar_mid_p(b, c, "upper"))
        assert math.log(p) == pytest.approx(log_exact_upper(b, c), abs=1e-10)
        assert float(count_tests.mcnemar_mid_p(c, b, "lower")) == pytest.approx(p, rel=1e-13, abs=0)


def test_mcnemar_equals_scipy_for_every_pair():
    b, c = np.meshgrid(np.arange(60), np.arange(60))
    law = stats.binom(b + c, 0.5)
    upper, lower, both = (
        count_tests.mcnemar_mid_p(b, c, tail) for tail in ("upper", "lower", "both")
    )
    some = b + c > 0
    np.testing.assert_allclose(upper[some], (law.sf(b) + 0.5 * law.pmf(b))[some], rtol=1e-10)
    np.testing.assert_allclose(lower[some], (law.sf(c) + 0.5 * law.pmf(c))[some], rtol=1e-10)
    np.testing.assert_allclose(both, np.where(some, np.minimum(1, 2 * np.minimum(upper, lower)), 1))
    assert upper[0, 0] == lower[0, 0] == both[0, 0] == 1.0


def test_deviance_part_is_smooth_where_its_formula_changes():
    mean = 1000.0
    x = np.array([0.0, 700.0, 818.0, 819.0, 999.0, 1000.0, 1001.0, 1222.0, 1223.0, 4000.0])
    exact = [float(mean) if k == 0 else k * math.log(k / mean) + mean - k for k in x.tolist()]
    np.testing.assert_allclose(count_tests.deviance(x, mean), exact, atol=1e-11)
    assert float(count_tests.deviance(1e7, 1e7 + 1e-3)) == pytest.approx(0.5e-13, rel=1e-3, abs=0)


def test_p_is_scipys_t_on_the_replicates_left():
    rng = np.random.default_rng(1)
    replicates = rng.normal(0.02, 0.1, (40, 60))
    replicates[5, :3] = np.nan
    delta = rng.normal(0, 0.3, 40)
    for tail, factor in (("upper", 1), ("lower", -1)):
        p, reasons, error = t_p_value(delta, replicates, tail)
        left = np.isfinite(replicates).sum(axis=1)
        sd = np.nanstd(replicates, axis=1, ddof=1)
        np.testing.assert_allclose(p, stats.t.sf(factor * delta / sd, left - 1), rtol=1e-10)
        np.testing.assert_allclose(error, sd, rtol=1e-12)
        assert not reasons.any()
    both = t_p_value(delta, replicates, "both")[0]
    np.testing.assert_allclose(both, 2 * stats.t.sf(np.abs(delta / sd), left - 1), rtol=1e-10)


def test_far_tails_rank():
    delta = np.array([100.0, 150.0, 200.0, 250.0])
    p, _, error = t_p_value(delta, np.tile(np.linspace(-1, 1, 200), (4, 1)), "upper")
    # Student's tail by the incomplete beta function, another formula than scipy's own.
    expected = 0.5 * betainc(199 / 2, 0.5, 199 / (199 + np.square(delta / error)))
    np.testing.assert_allclose(p, expected, rtol=1e-9)
    assert 0 < p[-1] < 1e-280


def test_degenerate_slices_have_p_one_and_a_reason():
    replicates = np.random.default_rng(2).normal(size=(6, 20))
    replicates[0, 0] = np.nan  # 5 %: still tested
    replicates[1, :2] = np.nan
    replicates[2] = 0.1
    replicates[4] = np.nan
    delta = np.array([5.0, 5.0, 5.0, np.nan, 5.0, 5.0])
    p, reasons, error = t_p_value(delta, replicates, "upper")
    undefined, constant = Reason.UNDEFINED_REPLICATES, Reason.NO_VARIANCE
    assert reasons.tolist() == [0, undefined, constant, undefined, undefined, 0]
    assert reasons.dtype == np.int8
    assert (p == 1.0).tolist() == [False, True, True, True, True, False]
    assert np.isnan(error).tolist() == [False, True, False, True, True, False]
    assert t_p_value([1.0], [[0.3]], "both")[1].tolist() == [undefined]
    assert t_p_value([], np.empty((0, 20)), "both")[0].shape == (0,)


def test_false_positive_rate_of_small_slices_is_as_bad_as_documented():
    rng = np.random.default_rng(9)
    x = rng.hypergeometric(2000, 18_000, 10, 4000)
    atoms = np.stack([x, 10 - x, 2000 - x, 18_000 - 10 + x])
    wrong, right, other_wrong, other_right = rng.poisson(atoms[:, :, None], (4, 4000, 20))
    size = wrong + right
    share = np.divide(wrong, size, out=np.full(size.shape, np.nan), where=size > 0)
    deltas = share - (wrong + other_wrong) / (size + other_wrong + other_right)
    assert 0.3 < (t_p_value(x / 10 - 0.1, deltas, "both")[0] < 0.01).mean() < 0.4
