"""Metrics of few cells, and tests against a margin: enumeration, and false-positive rates."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize, special, stats

from benchmarks.calibration_margins import _rates as rates_at_the_margin
from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric, statistic_space
from slicebeam.metrics.significance import count_tests, few_cells, margins
from slicebeam.metrics.testing.slice_test import has_margin_test, worse_by_more_p

SPACE = statistic_space(["mcc"], "overall")
TOTALS = np.array([15_000, 900, 1100, 3000])  # by cell: TN, FN, FP, TP
NAMES = ("fbeta:2", "fbeta:0.5", "balanced_accuracy", "mcc")


def p_of(name, counts, totals, tail):
    own = metric(name)
    return few_cells.p_value(
        lambda cells: (own.value(Slices(cells, SPACE)), own.gradient(Slices(cells, SPACE))),
        counts, totals, own.strata(Slices(counts, SPACE)), tail,
    )  # fmt: skip


def tables(n, totals):
    """All counts [tables, 4] of n examples of at least 1e-15, with their chance."""
    counts = np.stack(np.meshgrid(*[np.arange(n + 1)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    counts = counts[counts.sum(axis=1) <= n]
    counts = np.concatenate([n - counts.sum(axis=1, keepdims=True), counts], axis=1)
    counts = counts[(counts <= totals).all(axis=1)]

    def ways(of_all, taken):
        return -np.log(of_all + 1.0) - special.betaln(of_all - taken + 1.0, taken + 1.0)

    chance = np.exp(ways(totals, counts).sum(axis=1) - ways(totals.sum(), np.float64(n)))
    return counts[chance > 1e-15], chance[chance > 1e-15]


@pytest.mark.parametrize("tail", ["lower", "upper"])
@pytest.mark.parametrize("name", NAMES)
def test_rates_of_all_tables_of_60(name, tail):
    """At most 1.3 times the nominal rate down to 1e-4, and near it where tables are not too few."""
    counts, chance = tables(60, TOTALS)
    assert chance.sum() == pytest.approx(1, abs=1e-10)
    tested = metric(name).untestable(Slices(counts, SPACE, TOTALS)) == 0
    counts, chance = counts[tested], chance[tested]
    p = p_of(name, counts, TOTALS, tail)
    for level in (0.05, 0.01, 1e-3, 1e-4):
        assert (chance * (p <= level)).sum() <= 1.3 * level, level
    if name.startswith("fbeta"):
        assert (chance * (p <= 0.01)).sum() >= 0.009


@pytest.mark.parametrize("name", ["f1", "recall"])
def test_shares_have_their_hypergeometric_tail(name):
    """Of F1 and of recall the exact law is known."""
    counts = np.random.default_rng(1).multivariate_hypergeometric(TOTALS, 400, 600)
    counts[0] = [320, 0, 20, 60]
    counts[1] = [340, 60, 0, 0]
    within = metric(name).strata(Slices(TOTALS[None], SPACE))[0]
    n, N = counts[:, within].sum(axis=1), TOTALS[within].sum()
    for tail in ("lower", "upper"):
        exact = count_tests.mid_p(n, counts[:, 3], N, TOTALS[3], tail)
        p = p_of(name, counts, TOTALS, tail)
        ends = ((counts[:, 3] == 0) | (counts[:, 3] == n)) & (exact < 0.09)
        assert ends.any() == (name == "recall" or tail == "lower")
        np.testing.assert_allclose(p[ends], exact[ends], rtol=1e-9)
        some = (exact < 0.09) & ~ends
        assert some.sum() > 20
        # A continuous law beside a lattice.
        np.testing.assert_allclose(p[some], exact[some], rtol=0.08)


def net_p(n, b, c, n_parent, b_parent, c_parent):
    """Of a child with b examples for the worse and c for the better, of its parent."""
    own, above = (
        np.array([[n - b - c, b, c]]),
        [n_parent - b_parent - c_parent, b_parent, c_parent],
    )
    scores = np.array([0.0, 1.0, -1.0])
    return few_cells.p_value(
        lambda cells: (cells @ scores, np.broadcast_to(scores, cells.shape)),
        own, above, [np.ones(3, bool)], "upper", 1.0,
    )[0]  # fmt: skip


def enumerated(n, b, c, n_parent, b_parent, c_parent):
    """P(B − C > b − c) + ½P(B − C = b − c), in integers."""
    agreeing = n_parent - b_parent - c_parent
    twice = 0
    for more in range(min(b_parent, n) + 1):
        for less in range(max(0, n - more - agreeing), min(c_parent, n - more) + 1):
            ways = (
                math.comb(b_parent, more)
                * math.comb(c_parent, less)
                * math.comb(agreeing, n - more - less)
            )
            twice += ways * (1 + int(np.sign((more - less) - (b - c))))
    return float(Fraction(twice, 2 * math.comb(n_parent, n)))


def test_net_changes_equal_enumeration_in_integers():
    rng = np.random.default_rng(1)
    off = []
    for _ in range(250):
        n_parent = int(rng.integers(30, 200))
        b_parent, c_parent = (int(value) for value in rng.integers(3, n_parent // 3 + 2, 2))
        n = int(rng.integers(10, n_parent - 8))
        drawn = rng.multivariate_hypergeometric(
            [b_parent, c_parent, n_parent - b_parent - c_parent], n
        )
        row = (n, int(drawn[0]), int(drawn[1]), n_parent, b_parent, c_parent)
        exact = enumerated(*row)
        if exact < 0.09:
            off.append(net_p(*row) / exact)
    assert len(off) > 15
    np.testing.assert_allclose(off, 1.0, rtol=0.03)
    # 170 discordant examples where a random child has 12 ± 3, and all that there are.
    for row in ((300, 170, 0, 10_000, 300, 100), (40, 30, 0, 200, 30, 20)):
        exact = enumerated(*row)
        assert 0 < exact < 1e-15
        assert net_p(*row) == pytest.approx(exact, rel=0.03, abs=0)


def test_a_child_that_took_all_it_could():
    """The end of the support: every example for the worse and none for the better."""
    row = (12, 12, 0, 100, 20, 30)
    assert net_p(*row) == pytest.approx(enumerated(*row), rel=1e-9)


def test_nothing_to_vary_has_no_p_value():
    assert np.isnan(net_p(5, 0, 0, 10, 0, 0))
    assert np.isnan(net_p(5, 5, 0, 10, 10, 0))
    assert np.isnan(net_p(10, 3, 2, 10, 3, 2))
    everything = np.tile(TOTALS, (2, 1))
    for name in NAMES:
        assert np.isnan(p_of(name, everything, TOTALS, "both")).all()
        assert p_of(name, everything[:0], TOTALS, "both").shape == (0,)


def test_slices_do_not_depend_on_the_others():
    counts = np.random.default_rng(3).multivariate_hypergeometric(TOTALS, 300, 60)
    together = p_of("mcc", counts, TOTALS, "both")
    for at in range(0, 60, 12):
        alone = p_of("mcc", counts[at : at + 1], TOTALS, "both")
        np.testing.assert_allclose(alone, together[at], rtol=1e-6)


def test_billions_of_examples_do_not_overflow():
    counts, totals = np.array([[9_000_000, 149_500, 150_000, 700_500]]), TOTALS * 2_000_000
    for name in NAMES:
        p = p_of(name, counts, totals, "both")
        assert ((p > 0) & (p < 1)).all()


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
        assert margins.paired_p_value(b, c, n, d, tail) == pytest.approx(expected, rel=1e-5)


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
        assert margins.unpaired_p_value(x, n, y, m, d, tail) == pytest.approx(expected, rel=1e-5)


def test_large_counts_join_the_small_ones():
    """The normal law corrected for skewness takes over without a step, and is Tango's z in the end."""
    for law, counts in (
        (margins.paired_p_value, (np.array([360]), 700, 20_000, -0.012)),
        (margins.unpaired_p_value, (np.array([300]), 1600, 4000, 16_000, -0.02)),
    ):
        summed = law(*counts, "lower")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(margins, "_SUMMED_UP_TO_VARIANCE", 0.0)
            normal = law(*counts, "lower")
        assert 1e-5 < summed[0] < 0.05
        assert summed == pytest.approx(normal, rel=0.1)
    # 400,000 more lost than gained of 10 million, 380,000 of which the margin allows.
    z = -20_000 / np.sqrt(1e7 * (0.24 - 0.038**2))
    p = margins.paired_p_value(1_000_000, 1_400_000, 10_000_000, -0.038, "lower")
    assert p == pytest.approx(stats.norm.cdf(z), rel=0.01)


def normal_law(x, n, y, m, d, tail):
    """Farrington and Manning's score test by the normal law, too liberal for few of a slice against many."""
    p = margins._farrington_manning(*map(np.asarray, (x, float(n), y, float(m), d)))
    q = p - d
    z = (x / n - y / m - d) / np.sqrt(p * (1 - p) / n + q * (1 - q) / m)
    return stats.norm.sf(z) if tail == "upper" else stats.norm.cdf(z)


def test_rates_where_the_difference_is_the_margin():
    def rates(job, unpaired=margins.unpaired_p_value):
        return np.array(rates_at_the_margin(job, 30_000, margins.paired_p_value, unpaired))

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
    assert ours == margins.unpaired_p_value(30, 50, 150, 150, -0.08, "lower")
    assert worse_by_more_p("recall", Slices(sums, space, totals), 0.06, "both") == pytest.approx(
        2 * ours
    )
    space = statistic_space(["error_rate"], "baseline")
    wrong, was = space.holds("wrong"), space.holds("wrong", old=True)
    sums = np.zeros((1, space.cells), np.int64)
    sums[0, wrong & ~was], sums[0, ~wrong & was], sums[0, ~wrong & ~was] = (9, 2, 89)
    ours = worse_by_more_p("error_rate", Slices(sums, space, 10 * sums[0]), 0.02, "worse")
    assert ours == margins.paired_p_value(9, 2, 100, 0.02, "upper")


def test_rates_of_a_precision_that_fell_by_the_margin():
    """No example but three in a hundred change, all for the worse: few of them are told apart."""
    space = statistic_space(["precision"], "baseline")
    predicted, was = space.holds("predicted"), space.holds("predicted", old=True)
    positive, chance = space.holds("positive"), np.zeros(space.cells)
    chance[positive & predicted & was] = 0.45
    chance[~positive & predicted & was] = 0.05
    chance[~positive & predicted & ~was] = 0.03
    chance[~predicted & ~was] = 0.47 / 2
    fall = 0.45 / 0.5 - 0.45 / 0.53
    sums = np.random.default_rng(4).multinomial(400, chance, 20_000)
    whole = np.round(20_000 * chance).astype(np.int64)
    p = worse_by_more_p("precision", Slices(sums, space, whole), fall, "worse")
    for level in (0.05, 0.01):
        assert 0.6 <= (p <= level).mean() / level <= 1.25
    fewer = np.random.default_rng(4).multinomial(60, chance, 2000)
    assert (
        worse_by_more_p("precision", Slices(fewer, space, whole), fall, "worse") == 1.0
    ).mean() > 0.99


@pytest.mark.parametrize(("name", "comparison", "weighted", "expected"), [
    ("accuracy", "overall", False, True), ("accuracy", "baseline", False, True), ("accuracy", "overall", True, False),
    ("precision", "overall", False, True), ("precision", "baseline", False, True), ("f1", "overall", False, False),
    ("auc", "baseline", False, False), ("mcc", "baseline", True, True), ("log_loss", "overall", True, True),
])  # fmt: skip
def test_which_metrics_have_one(name, comparison, weighted, expected):
    assert has_margin_test(name, comparison, weighted=weighted) == expected
