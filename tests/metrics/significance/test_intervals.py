"""Coverage of the intervals by enumerating everything that can be observed, and degenerate tables."""

import itertools

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import gammaln, xlogy

from slicebeam.metrics.significance import hall, intervals
from slicebeam.metrics.significance.intervals import wilson
from tests.conftest import slow

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
        np.testing.assert_allclose(intervals.wilson(x, n, 0.9), expected, atol=1e-12)
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
        d = float(end)

        def loss(q, d=d):
            return -(b * np.log(q + d) + c * np.log(q) + (n - b - c) * np.log(1 - 2 * q - d))

        bounds = (max(0.0, -d) + 1e-9, (1 - d) / 2 - 1e-9)
        q = optimize.minimize_scalar(
            loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}
        ).x
        score = (b - c - n * d) / np.sqrt(n * (2 * q + d * (1 - d)))
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


CASES = list(itertools.product((0.1, 0.3, 0.5), (0.05, 0.2), (0.05, 0.2)))


def shares(prevalence, miss, alarm):
    """Return the probabilities of tp, fp, fn, tn."""
    p = prevalence
    return np.array([p * (1 - miss), (1 - p) * alarm, p * miss, (1 - p) * (1 - alarm)])


def phi(table):
    tp, fp, fn, tn = table
    return (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))


def f_beta(tp, fp, fn, beta):
    return (1 + beta**2) * tp / ((1 + beta**2) * tp + beta**2 * fn + fp)


def coverage(ends, truth, counted):
    low, high = ends
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    inside = (low <= truth + 1e-12) & (truth - 1e-12 <= high)
    # Too few draws with the denominator tell nothing.
    return float(inside[counted].mean()) if counted.mean() > 0.5 else 0.95


@pytest.mark.parametrize("n", [20, *(slow(n) for n in (30, 50, 200, 2000))])
def test_coverage(n):
    rng = np.random.default_rng(n)
    for case in CASES:
        q = shares(*case)
        tp, fp, fn, tn = rng.multinomial(n, q, 6_000).T
        found = {
            f"F{beta}": coverage(
                intervals.fbeta(tp, fp, fn, beta, 0.95), f_beta(*q[:3], beta), tp + fp + fn >= 5
            )
            for beta in (0.5, 1.0, 2.0)
        }
        labels = (tp + fn >= 5) & (tn + fp >= 5)
        found["balanced accuracy"] = coverage(
            intervals.balanced_accuracy(tp, fp, fn, tn, 0.95), 1 - 0.5 * (case[1] + case[2]), labels
        )
        found["MCC"] = coverage(
            intervals.mcc(tp, fp, fn, tn, 0.95), phi(q), labels & (tp + fp > 0) & (fn + tn > 0)
        )
        for name, share in found.items():
            # Of 20 examples one error is expected in each label: a lattice of few tables.
            assert share >= (0.915 if n == 20 else 0.92), (name, case)
            # No interval is needlessly wide once the slice is large.
            assert n < 200 or share <= 0.975, (name, case)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_f1_is_wilson_of_its_share(confidence):
    tp, fp, fn = np.array([[0, 3, 10, 900, 7], [1, 2, 30, 41, 0], [2, 4, 1, 80, 0]])
    low, high = wilson(tp, tp + fp + fn, confidence)
    ends = intervals.fbeta(tp, fp, fn, 1.0, confidence)
    np.testing.assert_allclose(ends[0], 2 * low / (1 + low), atol=1e-9)
    np.testing.assert_allclose(ends[1], 2 * high / (1 + high), atol=1e-9)


def all_tables(largest):
    return np.array(list(itertools.product(range(largest + 1), repeat=4))).T


def test_ends_hold_the_estimate_and_stay_in_the_range():
    big = np.array([[10**9, 5, 3 * 10**9], [10**9, 0, 1], [0, 10**9, 1], [2, 10**9, 3 * 10**9]])
    table = np.concatenate([all_tables(5), big], axis=1)
    tp, fp, fn, tn = table
    found = {}
    with np.errstate(all="ignore"):
        for beta in (0.3, 1.0, 3.0):
            value = f_beta(tp, fp, fn, beta)
            found[f"F{beta}"] = value, intervals.fbeta(tp, fp, fn, beta, 0.95), (0, 1)
        value = 0.5 * (tp / (tp + fn) + tn / (tn + fp))
        ends = intervals.balanced_accuracy(tp, fp, fn, tn, 0.95)
        found["balanced accuracy"] = value, ends, (0, 1)
        ends = intervals.mcc(tp, fp, fn, tn, 0.95)
        found["MCC"] = np.clip(phi(table.astype(float)), -1, 1), ends, (-1, 1)
    for name, (value, (low, high), (least, most)) in found.items():
        undefined = np.isnan(value)
        assert (low[undefined] == least).all(), name
        assert (high[undefined] == most).all(), name
        assert (low >= least).all(), name
        assert (high <= most).all(), name
        defined = ~undefined
        assert (low[defined] <= value[defined] + 1e-12).all(), name
        assert (high[defined] >= value[defined] - 1e-12).all(), name
        assert (high > low).all(), name


def test_no_warnings_on_degenerate_tables():
    tp, fp, fn, tn = all_tables(2)
    with np.errstate(all="raise", under="ignore"):
        intervals.fbeta(tp, fp, fn, 2.0, 0.95)
        intervals.balanced_accuracy(tp, fp, fn, tn, 0.95)
        intervals.mcc(tp, fp, fn, tn, 0.95)


def test_swapping_the_labels_keeps_balanced_accuracy_and_mcc():
    tp, fp, fn, tn = np.array([[30, 4], [5, 0], [7, 3], [60, 9]])
    ends = intervals.mcc(tp, fp, fn, tn, 0.9)
    np.testing.assert_allclose(ends, intervals.mcc(tn, fn, fp, tp, 0.9))
    low, high = intervals.mcc(fn, tn, tp, fp, 0.9)
    np.testing.assert_allclose(ends, (-high, -low))
    ends = intervals.balanced_accuracy(tp, fp, fn, tn, 0.9)
    np.testing.assert_allclose(ends, intervals.balanced_accuracy(tn, fn, fp, tp, 0.9))
    # The same as of two classes, and beside a class that is no label.
    classes = [tp, tn, 0 * tp], [tp + fn, tn + fp, 0 * tp]
    np.testing.assert_allclose(ends, intervals.mean_recall(*classes, 0.9))
    assert np.transpose(intervals.mean_recall([[0]], [[0]], 0.9)).tolist() == [[0, 1]]


def test_by_delta_method():
    value = np.array([0.5, 0.02, 1.0, np.nan, 0.5, 0.5])
    variance = np.array([0.01, 1e-4, 0.0, 0.01, np.nan, 0.01])
    size = np.array([1001, 1001, 41, 50, 50, 1])
    low, high = intervals.by_delta_method(value, variance, (0.0, 1.0), size, 0.95)
    assert low[0] == pytest.approx(0.5 - 1.9623 * 0.1, abs=1e-4)
    assert high[0] == pytest.approx(0.5 + 1.9623 * 0.1, abs=1e-4)
    assert (low[1], high[1]) == (pytest.approx(0.0004, abs=1e-4), pytest.approx(0.0396, abs=1e-4))
    # All 41 right: the end is Wilson's.
    assert high[2] == 1.0
    assert low[2] == pytest.approx(float(wilson(41, 41, 0.95)[0]))
    np.testing.assert_array_equal(low[3:], 0.0)
    np.testing.assert_array_equal(high[3:], 1.0)
    unbounded = intervals.by_delta_method([2.0, np.nan], 0.0, (0.0, np.inf), 50, 0.95)
    np.testing.assert_array_equal(unbounded, [[2.0, 0.0], [2.0, np.inf]])


def test_coverage_of_the_difference_from_overall():
    # A slice of 200 of 1,000 examples; F_2 by the delta method for the ratio of variances.
    rng = np.random.default_rng(8)
    inside, outside = 200 * shares(0.3, 0.2, 0.1), 800 * shares(0.2, 0.1, 0.05)
    slices, rest = (rng.poisson(mean, (4_000, 4)) for mean in (inside, outside))
    totals = slices + rest

    def gradient(cells):
        tp, fp, fn, _ = cells.T
        whole = 5 * tp + 4 * fn + fp
        value = 5 * tp / whole
        parts = [5 * (1 - value) / whole, -value / whole, -4 * value / whole, 0 * whole]
        return value, np.stack(parts, axis=1)

    value, own = gradient(slices)
    overall, whole = gradient(totals)
    tp, fp, fn, _ = slices.T
    of_value = value, *intervals.fbeta(tp, fp, fn, 2.0, 0.95)
    variances = [hall.ahead_variance(own, of_all, slices, totals) for of_all in (0 * whole, whole)]
    low, high = intervals.shrunk_to_delta(of_value, variances, overall, 1.0, 0.95)
    truth = gradient(inside[None])[0] - gradient((inside + outside)[None])[0]
    assert 0.94 <= ((low <= truth) & (truth <= high)).mean() <= 0.965


def test_difference_from_overall_of_special_slices():
    value = np.array([0.8, 1.0, 1.0, 0.7, np.nan, 0.5])
    low, high = np.array([0.7, 0.9, 0.9, 0.6, 0.0, 0.0]), np.array([0.9, 1.0, 1.0, 0.8, 1.0, 1.0])
    own = np.array([0.01, 0.0, 0.0, 0.01, 0.01, np.nan])
    both = np.array([0.0025, 0.0, 1e-4, 0.0, 0.01, 0.01])
    overall = [0.6, 1.0, 0.9, 0.7, 0.7, 0.7]
    ends = intervals.shrunk_to_delta((value, low, high), (own, both), overall, 1.0, 0.95)
    np.testing.assert_allclose(ends[0][:2], [0.15, -0.1])
    np.testing.assert_allclose(ends[1][:2], [0.25, 0.0], atol=1e-12)
    # An all-right slice: its own arm, and the overall value's.
    assert ends[0][2] == pytest.approx(0.1 - np.hypot(0.1, 0.0196), abs=1e-5)
    assert ends[1][2] == pytest.approx(0.1 + 0.0196, abs=1e-5)
    # The whole differs from itself by nothing; what is undefined may be anything.
    assert ends[0][3] == ends[1][3] == 0.0
    np.testing.assert_array_equal(ends[0][4:], -1.0)
    np.testing.assert_array_equal(ends[1][4:], 1.0)
