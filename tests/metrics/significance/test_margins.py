"""Tests against a margin: enumeration, and false-positive rates."""

import numpy as np
import pytest
from scipy import optimize, stats

from benchmarks.calibration_margins import _rates as rates_at_the_margin
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.measures.slice_test import has_margin_test, worse_by_more_p
from slicebeam.metrics.significance import count_tests
from tests.metrics.significance.test_delta_method import SPACE as PAIRED
from tests.metrics.significance.test_delta_method import placed


def likeliest(log_likelihood, low, high):
    ends = (low + 1e-12, high - 1e-12)
    options = {"xatol": 1e-13}
    return optimize.minimize_scalar(
        lambda share: -log_likelihood(share), bounds=ends, method="bounded", options=options
    ).x


def tails(difference, observed, chance):
    """P(at least) and P(at most) what was observed."""
    above = np.round(difference - observed, 12)
    return chance[above >= 0].sum(), chance[above <= 0].sum()


@pytest.mark.parametrize(("b", "c", "n", "d"), [
    (3, 8, 30, -0.05), (0, 4, 25, -0.02), (5, 2, 20, 0.1), (1, 12, 25, -0.1), (10, 0, 20, 0.3),
])  # fmt: skip
def test_two_models_against_enumeration(b, c, n, d):
    def log_likelihood(old):
        return stats.multinomial.logpmf([b, c, n - b - c], n, [old + d, old, 1 - d - 2 * old])

    old = likeliest(log_likelihood, max(-d, 0.0), (1 - d) / 2)
    gained, lost = np.indices((n + 1, n + 1)).reshape(2, -1)
    cells = np.stack([gained, lost, n - gained - lost], axis=1)[gained + lost <= n]
    chance = stats.multinomial.pmf(cells, n, [old + d, old, 1 - d - 2 * old])
    upper, lower = tails(cells[:, 0] - cells[:, 1], b - c, chance)
    for tail, expected in (("upper", upper), ("lower", lower)):
        assert count_tests.paired_margin_p(b, c, n, d, tail) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("x", "n", "y", "m", "d"), [
    (8, 20, 10, 50, 0.05), (15, 20, 45, 50, -0.05), (0, 20, 5, 200, -0.01), (19, 30, 90, 100, -0.1),
    (3, 40, 1, 100, 0.02), (7, 30, 3, 12, -0.02),
])  # fmt: skip
def test_shares_against_enumeration(x, n, y, m, d):
    def log_likelihood(share):
        return stats.binom.logpmf(x, n, share) + stats.binom.logpmf(y, m, share - d)

    share = likeliest(log_likelihood, max(d, 0.0), min(1 + d, 1.0))
    first, second = np.indices((n + 1, m + 1))
    chance = stats.binom.pmf(first, n, share) * stats.binom.pmf(second, m, share - d)
    upper, lower = tails(first / n - second / m, x / n - y / m, chance)
    for tail, expected in (("upper", upper), ("lower", lower)):
        assert count_tests.unpaired_margin_p(x, n, y, m, d, tail) == pytest.approx(
            expected, rel=1e-5
        )


def test_large_counts_join_the_small_ones():
    """The normal law corrected for skewness takes over without a step, and is Tango's z in the end."""
    for law, counts in (
        (count_tests.paired_margin_p, (np.array([360]), 700, 20_000, -0.012)),
        (count_tests.unpaired_margin_p, (np.array([300]), 1600, 4000, 16_000, -0.02)),
    ):
        summed = law(*counts, "lower")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(count_tests, "_SUMMED_UP_TO_VARIANCE", 0.0)
            normal = law(*counts, "lower")
        assert 1e-5 < summed[0] < 0.05
        assert summed == pytest.approx(normal, rel=0.1)
    # 400,000 more lost than gained of 10 million, 380,000 of which the margin allows.
    z = -20_000 / np.sqrt(1e7 * (0.24 - 0.038**2))
    p = count_tests.paired_margin_p(1_000_000, 1_400_000, 10_000_000, -0.038, "lower")
    assert p == pytest.approx(stats.norm.cdf(z), rel=0.01)


def normal_law(x, n, y, m, d, tail):
    """Farrington and Manning's score test by the normal law, too liberal for few of a slice against many."""
    p = count_tests._farrington_manning(*map(np.asarray, (x, float(n), y, float(m), d)))
    q = p - d
    z = (x / n - y / m - d) / np.sqrt(p * (1 - p) / n + q * (1 - q) / m)
    return stats.norm.sf(z) if tail == "upper" else stats.norm.cdf(z)


def test_rates_where_the_difference_is_the_margin():
    def rates(job, unpaired=count_tests.unpaired_margin_p):
        return np.array(rates_at_the_margin(job, 30_000, count_tests.paired_margin_p, unpaired))

    chance = np.array([0.08, 0.17, 0.55])
    assert (rates((0.005, (1000, 0.0))) <= 1.0).all()
    assert (abs(rates((0.02, (200, 0.1))) - [0.87, 0.79, 0.6]) <= chance).all()
    unequal = (0.02, ((50, 1000), 0.99))
    assert (rates(unequal) <= 1.0 + 2 * chance).all()
    assert rates(unequal, normal_law)[2] > 3.0


def test_metrics_hand_over_their_counts():
    """The share of a slice, of the rest, and the margin from the rest, of which the slice is a part."""
    space = statistic_space(["recall"], "overall")
    positive, predicted = space.holds("positive"), space.holds("predicted")
    sums, totals = np.zeros((1, space.cells), np.int64), np.zeros(space.cells, np.int64)
    sums[0, positive & predicted], sums[0, positive & ~predicted] = 30, 20
    totals[positive & predicted], totals[positive & ~predicted], totals[~positive] = 180, 20, 500
    ours = worse_by_more_p("recall", Slices(sums, space, totals), 0.06, "worse")
    assert ours == count_tests.unpaired_margin_p(30, 50, 150, 150, -0.08, "lower")
    both = worse_by_more_p("recall", Slices(sums, space, totals), 0.06, "both")
    assert both == pytest.approx(2 * ours)
    space = statistic_space(["error_rate"], "baseline")
    wrong, was = space.holds("wrong"), space.holds("wrong", old=True)
    sums = np.zeros((1, space.cells), np.int64)
    sums[0, wrong & ~was], sums[0, ~wrong & was], sums[0, ~wrong & ~was] = (9, 2, 89)
    ours = worse_by_more_p("error_rate", Slices(sums, space, 10 * sums[0]), 0.02, "worse")
    assert ours == count_tests.paired_margin_p(9, 2, 100, 0.02, "upper")


# Prevalence, recall, fall-out; the shares of true positives that are lost, and of true negatives that are added.
FALLS = [(0.5, 0.9, 0.1, 0.0, 0.06), (0.3, 0.6, 0.1, 0.05, 0.03), (0.1, 0.6, 0.1, 0.1, 0.1)]


def rates_of_a_fall(name, law, n, draws):
    """Rates over nominal at .05 and .01 of a metric that falls by the margin, of which no example improves."""
    p, recall, fall_out, lost, added = law
    kept, q = 1 - fall_out, 1 - p
    cells = [q * kept * (1 - added), 0, q * kept * added, q * fall_out]
    cells = np.array([*cells, p * (1 - recall), p * recall * lost, 0, p * recall * (1 - lost)])
    whole = Slices(placed(1e6 * cells)[None], PAIRED)
    fall = (metric(name).value(whole.old) - metric(name).value(whole))[0]
    sums = placed(np.random.default_rng(n).multinomial(n, cells, draws))
    slices = Slices(sums, PAIRED, np.rint(whole.sums[0]).astype(np.int64))
    p = worse_by_more_p(name, slices, fall, "worse")
    return [float((p <= level).mean() / level) for level in (0.05, 0.01)]


@pytest.mark.parametrize(("name", "law", "n", "least"), [
    ("precision", 0, 400, 0.7), ("mcc", 0, 200, 0.7), ("mcc", 0, 400, 0.7), ("balanced_accuracy", 2, 200, 0.0),
    ("fbeta:2", 1, 400, 0.0), ("fbeta:2", 2, 1000, 0.7), ("precision", 0, 60, 0.0),
])  # fmt: skip
def test_rates_where_a_metric_fell_by_the_margin(name, law, n, least):
    of_20, of_100 = rates_of_a_fall(name, FALLS[law], n, 30_000)
    # Three standard errors; few of a slice's examples tell the models apart, and too few are not tested.
    assert least <= of_20 <= 1.15 + 0.08
    assert least <= of_100 <= 1.15 + 0.17
    assert n > 60 or of_20 < 0.1


@pytest.mark.parametrize(("name", "comparison", "weighted", "expected"), [
    ("accuracy", "overall", False, True), ("accuracy", "baseline", False, True), ("accuracy", "overall", True, False),
    ("precision", "overall", False, True), ("precision", "baseline", False, True), ("f1", "overall", False, False),
    ("auc", "baseline", False, False), ("rmse", "baseline", False, False), ("mcc", "baseline", True, True), ("log_loss", "overall", True, True),
])  # fmt: skip
def test_which_metrics_have_one(name, comparison, weighted, expected):
    assert has_margin_test(name, comparison, weighted=weighted) == expected
