"""McNemar's mid-p against exact integers, scipy, and its false-positive rate."""

import math

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.significance import mcnemar, saddle_point


def log_exact_upper(b, c):
    n = b + c
    twice = 2 * sum(math.comb(n, k) for k in range(b + 1, n + 1)) + math.comb(n, b)
    # A float holds integers up to 2**1023.
    shift = max(0, twice.bit_length() - 900)
    return math.log(twice >> shift) + (shift - n - 1) * math.log(2.0)


def test_mid_p_is_exact_down_to_1e_300():
    for b, c in ((3, 1), (40, 2), (1000, 10), (990, 0), (2000, 400), (5000, 2600), (30, 30)):
        p = float(mcnemar.mid_p(b, c, "upper"))
        assert math.log(p) == pytest.approx(log_exact_upper(b, c), abs=1e-10)
        assert float(mcnemar.mid_p(c, b, "lower")) == pytest.approx(p, rel=1e-13, abs=0)


def test_mid_p_equals_scipy_for_every_pair():
    b, c = np.meshgrid(np.arange(60), np.arange(60))
    law = stats.binom(b + c, 0.5)
    upper, lower, both = (mcnemar.mid_p(b, c, tail) for tail in ("upper", "lower", "both"))
    some = b + c > 0
    np.testing.assert_allclose(upper[some], (law.sf(b) + 0.5 * law.pmf(b))[some], rtol=1e-10)
    np.testing.assert_allclose(lower[some], (law.sf(c) + 0.5 * law.pmf(c))[some], rtol=1e-10)
    np.testing.assert_allclose(both, np.where(some, np.minimum(1, 2 * np.minimum(upper, lower)), 1))
    assert upper[0, 0] == lower[0, 0] == both[0, 0] == 1.0


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="c = -1"):
        mcnemar.mid_p([1, 2], [1, -1], "both")


@pytest.mark.parametrize(("n", "disagreeing"), [(300, 0.1), (60, 0.5), (2000, 0.05), (1500, 0.3)])
@pytest.mark.slow
def test_false_positive_rate(n, disagreeing):
    counts = np.arange(n + 1)
    m, b = np.meshgrid(counts, counts, indexing="ij")
    joint = stats.binom.pmf(m, n, disagreeing) * stats.binom.pmf(b, m, 0.5)
    likely = joint > 1e-14
    p = mcnemar.mid_p(b[likely], (m - b)[likely], "both")
    assert 0.007 <= joint[likely][p <= 0.01].sum() <= 0.013


def test_binomial_log_pmf_equals_scipy():
    rng = np.random.default_rng(1)
    n = rng.integers(0, 100_000, 500)
    p = rng.uniform(1e-4, 1 - 1e-4, 500)
    x = rng.binomial(n, p)
    ours = saddle_point.binomial_log_pmf(x, n, p)
    np.testing.assert_allclose(ours, stats.binom.logpmf(x, n, p), atol=1e-8)
    assert np.isneginf(saddle_point.binomial_log_pmf([-1, 6], 5, 0.3)).all()


def test_stirling_error_is_the_rest_of_stirlings_formula():
    n = np.array([1, 5, 15, 16, 17, 100, 170])
    exact = [
        math.log(math.factorial(k)) - 0.5 * math.log(2 * math.pi * k) - k * math.log(k) + k
        for k in n.tolist()
    ]
    np.testing.assert_allclose(saddle_point.stirling_error(n), exact, atol=3e-13)
    assert saddle_point.stirling_error(0) == 0.0


def test_deviance_part_is_smooth_where_its_formula_changes():
    mean = 1000.0
    x = np.array([0.0, 700.0, 818.0, 819.0, 999.0, 1000.0, 1001.0, 1222.0, 1223.0, 4000.0])
    exact = [float(mean) if k == 0 else k * math.log(k / mean) + mean - k for k in x.tolist()]
    np.testing.assert_allclose(saddle_point.deviance_part(x, mean), exact, atol=1e-11)
    tiny = saddle_point.deviance_part(1e7, 1e7 + 1e-3)
    assert float(tiny) == pytest.approx(0.5e-13, rel=1e-3, abs=0)
