"""Cell permutation against enumeration, scipy, exact tests, and its false-positive rate."""

import itertools

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.significance import count_tests, permutation
from slicebeam.metrics.significance.outcome_codes import Reason
from tests.conftest import slow

TOTALS = np.array([4000, 1000, 1500, 13500])


def mcc(cells):
    tp, fp, fn, tn = cells.T.astype(float)
    products = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    value = (tp * tn - fp * fn) / np.sqrt(np.where(products > 0, products, 1.0))
    return np.where(products > 0, value, np.nan)


def share(cells):
    return cells[:, 0] / np.maximum(cells.sum(axis=1), 1)


def draw(totals, n, draws, seed):
    rng = np.random.default_rng(seed)
    return rng.multivariate_hypergeometric(totals, n, size=draws, method="marginals")


def doubled(lower, upper):
    return np.minimum(1.0, 2.0 * np.minimum(lower, upper))


@pytest.mark.parametrize("skewness", [-1.5, -0.3, -0.0101, -0.0099, 0.002, 0.05, 0.4, 2.0])
def test_pearson_iii_equals_scipy(skewness):
    law = stats.pearson3(skewness, loc=3.0, scale=0.5)
    x = law.isf(np.array([1 - 1e-9, 0.99, 0.6, 0.5, 0.4, 0.01, 1e-9]))
    upper, lower, both = (
        permutation.pearson_iii_p_value(x, 3.0, 0.5, skewness, tail)
        for tail in ("upper", "lower", "both")
    )
    np.testing.assert_allclose(upper, law.sf(x), rtol=1e-6)
    np.testing.assert_allclose(lower, law.cdf(x), rtol=1e-6)
    np.testing.assert_allclose(both, doubled(lower, upper))


def test_pearson_iii_approaches_the_normal_law_without_a_step():
    z = np.linspace(-8, 8, 65)
    for skewness in (0.0, 1e-12, 1e-8, -1e-8):
        p = permutation.pearson_iii_p_value(z, 0, 1, skewness, "upper")
        np.testing.assert_allclose(p, stats.norm.sf(z), rtol=1e-5)
    near, far = (
        permutation.pearson_iii_p_value(z, 0, 1, 0.01 * (1 + side), "lower")
        for side in (-1e-9, 1e-9)
    )
    np.testing.assert_allclose(near, far, rtol=1e-6)


def test_pearson_iii_is_never_0_nor_nan():
    statistic = [-10.0, 10.0, 0.0, np.nan, 0.0, 0.0]
    sd = [1.0, 1.0, 0.0, 1.0, np.nan, 1.0]
    skewness = [1.0, -1.0, 0.5, 0.5, 0.5, np.inf]
    p = permutation.pearson_iii_p_value(statistic, 0.0, sd, skewness, "both")
    assert (p[:2] > 0).all()
    assert (p[:2] < 1e-200).all()
    np.testing.assert_array_equal(p[2:], 1.0)


def test_moments_equal_the_enumerated_ones():
    totals = np.array([3, 4, 2])
    scores = np.array([[1.0, -0.5, 2.0], [0.0, 1.0, 0.0], [5.0, 5.0, 5.0]])
    values = np.repeat(scores, totals, axis=1)
    for n in range(10):
        subsets = np.array(list(itertools.combinations(range(9), n)), dtype=int)
        sums = values[:, subsets].sum(axis=2)
        moments = [permutation.linear_statistic_moments(row, totals, n) for row in scores]
        mean, sd, skewness = np.array(moments).T
        np.testing.assert_allclose(mean, sums.mean(axis=1), atol=1e-13)
        np.testing.assert_allclose(sd, sums.std(axis=1), atol=1e-13)
        third = ((sums - sums.mean(axis=1, keepdims=True)) ** 3).mean(axis=1)
        np.testing.assert_allclose(skewness * sd**3, third, atol=1e-12)
        assert sd[2] == skewness[2] == 0.0


def test_moments_of_0_1_scores_are_hypergeometric():
    K, N, scores = 300, 1000, np.array([1.0, 0.0])
    for n in (1, 20, 700, 999):
        moments = permutation.linear_statistic_moments(scores, np.array([K, N - K]), n)
        law = stats.hypergeom(N, K, n)
        expected = law.mean(), law.std(), law.stats(moments="s")
        np.testing.assert_allclose(moments, expected, rtol=1e-9)


def rates(low, upper):
    two = doubled(low, upper)
    return (
        float((two <= 0.01).mean()),
        float((low <= 0.005).mean()),
        float((upper <= 0.005).mean()),
    )


@pytest.mark.parametrize("n", [50, *(slow(n) for n in (100, 500)), 5000])
def test_false_positive_rate(n):
    cells = draw(TOTALS, n, 40_000, n)
    value = mcc(cells)
    two, lower, upper = rates(
        *(
            permutation.permutation_p_value(mcc, cells, TOTALS, value, tail, 20_000).p
            for tail in ("lower", "upper")
        )
    )
    assert 0.0065 <= two <= 0.0125
    assert min(lower, upper) >= 0.0025
    assert max(lower, upper) <= 0.0065


def test_draws_give_the_exact_tail_of_a_share():
    # For a linear metric the moments are exact whatever the draws.
    n = np.array([60, 60, 60, 700, 700, 5000])
    x = np.array([15, 5, 40, 80, 200, 900])
    counts = np.stack([x, n - x, 0 * n, 0 * n], axis=1)
    tested = permutation.permutation_p_value(share, counts, TOTALS, x / n, "both", 2000)
    exact = count_tests.mid_p(n, x, TOTALS.sum(), TOTALS[0], "both")
    np.testing.assert_array_equal(tested.reasons, 0)
    np.testing.assert_allclose(np.log(tested.p), np.log(exact), rtol=0.13, atol=0.12)
    np.testing.assert_allclose(np.log(tested.p[3:]), np.log(exact[3:]), rtol=0.02)


def test_a_slice_does_not_depend_on_the_others():
    rng = np.random.default_rng(3)
    n = rng.integers(20, 15_000, 300)
    counts = np.stack([n, 0 * n, 0 * n, 0 * n], axis=1)
    observed = rng.uniform(0.5, 0.7, 300)
    together = permutation.permutation_p_value(mcc, counts, TOTALS, observed, "both", 500)
    for at in range(0, 300, 60):
        own = slice(at, at + 1)
        alone = permutation.permutation_p_value(
            mcc, counts[own], TOTALS, observed[own], "both", 500
        )
        np.testing.assert_allclose(alone.p, together.p[own], rtol=1e-12)


def test_interpolated_moments_meet_the_own_ones_where_the_grid_starts():
    observed = np.array([0.5, 0.75])
    counts = np.array([[200, 0, 0, 0], [201, 0, 0, 0]])
    for value in observed:
        p = permutation.permutation_p_value(mcc, counts, TOTALS, [value] * 2, "both", 20_000).p
        assert p[0] == pytest.approx(p[1], rel=0.1)


@pytest.mark.parametrize("n", [40, 2_000, 30_000_000, 2_000_000_000])
def test_populations_beyond_numpys_limit(n):
    totals = np.array([3, 1, 1, 4], dtype=np.int64) * 1_000_000_000
    cells = permutation.drawn_cells(np.random.default_rng(2), totals, n, 4000)
    np.testing.assert_array_equal(cells.sum(axis=1), n)
    sd = np.sqrt(n * (1 / 3) * (2 / 3) * (1 - n / totals.sum()))
    assert cells[:, 0].mean() == pytest.approx(n / 3, abs=5 * sd / np.sqrt(4000))
    assert cells[:, 0].std() == pytest.approx(sd, rel=0.05)
    observed, counts = np.array([1 / 3 + 3 * sd / n]), np.array([[n, 0, 0, 0]])
    tested = permutation.permutation_p_value(share, counts, totals, observed, "upper", 5000)
    assert tested.p[0] == pytest.approx(stats.norm.sf(3.0), rel=0.6 if n == 40 else 0.15)


UNDEFINED, SAME = Reason.UNDEFINED_REPLICATES, Reason.NO_VARIANCE
NEGATIVE = np.array([0, 0, 0, 9000])


@pytest.mark.parametrize(("value_of", "counts", "totals", "observed", "reason"), [
    (mcc, [TOTALS], TOTALS, [0.6], SAME),
    (share, [[30, 0], [300, 0]], np.array([1000, 0]), [1.0, 1.0], SAME),
    # With 1 % positives most small slices have none.
    (mcc, [[20, 0, 0, 0]] * 2, np.array([50, 150, 50, 19750]), [0.1, np.nan], UNDEFINED),
    (mcc, [[500, 0, 0, 0]], NEGATIVE, [np.nan], UNDEFINED),
    (mcc, [[500, 0, 0, 0]], NEGATIVE, [0.2], UNDEFINED),
    (mcc, np.empty((0, 4), int), TOTALS, [], UNDEFINED),
])  # fmt: skip
def test_degenerate_slices_have_p_1_and_a_reason(value_of, counts, totals, observed, reason):
    tested = permutation.permutation_p_value(value_of, counts, totals, observed, "both", 500)
    assert tested.p.tolist() == [1.0] * len(counts)
    assert tested.reasons.tolist() == [reason] * len(counts)
