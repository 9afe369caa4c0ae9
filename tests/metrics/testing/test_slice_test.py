"""Every metric by every test, and the difference of two runs against scipy and simulation."""

import itertools

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.kinds import ALTERNATIVES, COMPARISONS, TESTS
from slicebeam.metrics.measures import cell_metric
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric, metrics, statistic_space
from slicebeam.metrics.significance.outcome_codes import REASONS, Method, Reason
from slicebeam.metrics.testing.difference import difference
from slicebeam.metrics.testing.slice_test import SliceTest
from tests.conftest import slow


def fits(name, comparison):
    return comparison == "overall" or metric(name).compares_models


REPLICATES = 20
# Metrics of counts; the others have no counts to make up.
EVERY = [
    (name, comparison, test, alternative)
    for name, comparison, test, alternative in itertools.product(
        metrics(), COMPARISONS, TESTS, ALTERNATIVES
    )
    if isinstance(metric(name), CellMetric) and fits(name, comparison)
]
SHARES = ("accuracy", "error_rate")


def run(test, counts, totals):
    """Test counts [slices, cells]; the replicates of examples are drawn cell by cell."""
    layers, all_layers = counts[:, None, :], totals[None, :]
    if test.test != "auto":
        rng = np.random.default_rng(0)
        outside = totals - counts
        inside = rng.poisson(np.repeat(layers, REPLICATES, axis=1))
        # All examples are resampled once, for all slices; here for the first of them.
        drawn = rng.poisson(np.repeat(outside[:1, None], REPLICATES, axis=1))[0] + inside[0]
        layers = np.concatenate([layers, inside], axis=1)
        all_layers = np.concatenate([all_layers, drawn], axis=0)
    tested, errors = test.run(layers, all_layers)
    return tested.p, tested.reasons, errors


def made(name, comparison, test, alternative):
    return SliceTest(name, statistic_space([name], comparison), test, alternative)


@pytest.mark.parametrize(("name", "comparison", "test"), sorted({one[:3] for one in EVERY}))
def test_p_is_a_probability_whatever_the_counts(monkeypatch, name, comparison, test):
    monkeypatch.setattr(cell_metric, "_PERMUTATIONS", 200)
    rng = np.random.default_rng(3)
    size = statistic_space([name], comparison).cells
    for scale in (1, 4, 300, 10**6):
        totals = rng.integers(0, 3 * scale, size) * rng.integers(0, 2, size) + (scale > 1)
        totals[0] += 1
        counts = rng.binomial(totals, rng.choice([0.0, 0.05, 0.5, 1.0], (40, size)))
        counts[0], counts[1] = totals, 0
        counts = counts[counts.sum(axis=1) > 0]
        for alternative in ALTERNATIVES:
            with np.errstate(all="raise", under="ignore"):
                p, reasons, errors = run(made(name, comparison, test, alternative), counts, totals)
            assert p.shape == reasons.shape == errors.shape == (len(counts),)
            assert not np.isnan(p).any()
            assert ((p > 0) & (p <= 1)).all()
            assert (p[reasons != 0] == 1).all()
            assert set(reasons.tolist()) <= set(range(len(REASONS)))
            drawn = errors[(reasons == 0) & ~np.isnan(errors)]
            assert (drawn > 0).all()
            if test == "auto":
                assert drawn.size == 0
            elif comparison == "overall" or test == "paper":
                # Of two models a change that does not vary has the metric's own test.
                assert drawn.size == np.count_nonzero(reasons == 0)


@pytest.mark.parametrize(
    ("name", "comparison", "test", "alternative"), [one for one in EVERY if one[0] in SHARES]
)
def test_degenerate_slices_say_why(name, comparison, test, alternative):
    if comparison == "overall":
        totals = np.array([80, 20])
        cases = [(totals, totals, {Reason.WHOLE})]
        # All are right, or all wrong.
        for constant in (np.array([100, 0]), np.array([0, 100])):
            wanted = {Reason.CONSTANT} if test == "auto" else {Reason.NO_VARIANCE}
            cases.append((constant // 4, constant, wanted))
            cases.append((constant, constant, {Reason.WHOLE, Reason.CONSTANT}))
    else:
        totals = np.array([50, 20, 10, 20])
        wanted = {Reason.UNCHANGED} if test == "auto" else {Reason.NO_VARIANCE}
        cases = [
            (np.array([30, 0, 0, 0]), totals, wanted),
            (np.array([30, 0, 0, 9]), totals, wanted),
            (np.array([0, 0, 0, 9]), np.array([0, 0, 0, 100]), wanted),
        ]
    for counts, of_all, wanted in cases:
        p, reasons, _ = run(made(name, comparison, test, alternative), counts[None, :], of_all)
        assert p.tolist() == [1.0]
        assert reasons[0] in wanted


@pytest.mark.parametrize(
    ("name", "comparison", "test"), list(itertools.product(SHARES, COMPARISONS, TESTS))
)
def test_directions(name, comparison, test):
    """More errors are worse, whether right or wrong examples are counted."""
    if comparison == "overall":
        totals = np.array([8000, 2000])
        worse, better = np.array([60, 40]), np.array([98, 2])
    else:
        # Cells: both right, new wrong, old wrong, both wrong.
        totals = np.array([7000, 1000, 1000, 1000])
        worse, better = np.array([60, 30, 4, 6]), np.array([60, 4, 30, 6])
    p = {}
    for alternative in ALTERNATIVES:
        tested = made(name, comparison, test, alternative)
        p[alternative] = run(tested, np.stack([worse, better]), totals)[0]
    assert p["worse"][0] < 0.01
    assert p["worse"][1] > 0.9
    assert p["better"][1] < 0.01
    assert p["better"][0] > 0.9
    np.testing.assert_allclose(p["both"], 2 * np.minimum(p["worse"], p["better"]), rtol=1e-9)


def test_no_slices():
    for test in TESTS:
        tested = made("accuracy", "overall", test, "worse")
        layers = 1 if test == "auto" else 1 + REPLICATES
        found, errors = tested.run(np.zeros((0, layers, 2), np.int64), np.full((layers, 2), 5))
        assert found.p.size == found.reasons.size == found.methods.size == errors.size == 0


def test_many_slices_are_tested_in_pieces(monkeypatch):
    from slicebeam.metrics.testing import slice_test

    rng = np.random.default_rng(2)
    totals = np.array([400, 100])
    counts = rng.binomial(totals, rng.random((50, 1)))
    for test in TESTS:
        tested = made("accuracy", "overall", test, "both")
        whole = run(tested, counts, totals)
        with monkeypatch.context() as patch:
            patch.setattr(slice_test, "_SLICES_AT_A_TIME", 7)
            patch.setattr(slice_test, "_NUMBERS_AT_A_TIME", 7)
            for one, other in zip(whole, run(tested, counts, totals), strict=True):
                np.testing.assert_array_equal(one, other)


def test_the_method_is_named():
    """A slice says which test it had, by its size where there are two."""
    totals = np.array([800_000, 200_000])
    counts = np.array([[60, 40], [60_000, 16_000], [800_000, 200_000]])
    tested = made("accuracy", "overall", "auto", "worse")
    methods = tested.run(counts[:, None], totals[None]).tested.methods
    assert methods.tolist() == [Method.HYPERGEOMETRIC, Method.LIKELIHOOD_RATIO, 0]
    by_name = {
        ("mcc", "overall", "auto"): Method.FEW_CELLS,
        ("f1_macro", "overall", "auto"): Method.CELL_PERMUTATION,
        ("mcc", "baseline", "auto"): Method.HALL_PAIRED,
        ("accuracy", "baseline", "auto"): Method.MCNEMAR,
        ("precision", "baseline", "auto"): Method.HALL_PAIRED,
        ("accuracy", "overall", "bootstrap-rows"): Method.BOOTSTRAP_ROWS,
        ("accuracy", "overall", "paper"): Method.PAPER,
    }
    for (name, comparison, test), method in by_name.items():
        size = statistic_space([name], comparison).cells
        everything = np.arange(1, size + 1) * 1000
        own = made(name, comparison, test, "worse")
        layers = 1 if test == "auto" else 1 + REPLICATES
        weights = np.random.default_rng(0).poisson(100, (layers, size)) / 100
        weights[0] = 1
        all_layers = np.rint(everything * weights).astype(np.int64)
        some = (all_layers * np.linspace(0.1, 0.2, size)).astype(np.int64)[None]
        assert own.run(some, all_layers).tested.methods.tolist() == [method]


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_p_is_never_zero(comparison):
    """Slices that no float64 can say how unlikely they are still have a p-value above 0."""
    totals = np.array([10**6, 10**5]) if comparison == "overall" else np.array([10**6, 10**5, 0, 0])
    counts = np.zeros((1, totals.size), np.int64)
    # All the slice's examples are wrong: for baseline, wrong now and right before.
    counts[0, 1] = 50_000
    p, reasons, _ = run(made("accuracy", comparison, "auto", "worse"), counts, totals)
    assert p[0] == np.nextafter(0.0, 1.0)
    assert reasons[0] == 0


Z = stats.norm.ppf(0.975)


def wilson(errors, n):
    share = errors / n
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return [share], [middle - half], [middle + half]


@pytest.mark.parametrize(("one", "other", "low", "high"), [
    # Newcombe (1998), Statistics in Medicine 17:873, table II, method 10.
    ((56, 70), (48, 80), 0.0524, 0.3339),
    ((9, 10), (3, 10), 0.1705, 0.8090),
    ((6, 7), (2, 7), 0.0582, 0.8062),
    ((5, 56), (0, 29), -0.0381, 0.1926),
    ((0, 10), (0, 20), -0.1611, 0.2775),
    ((0, 10), (0, 10), -0.2775, 0.2775),
    ((10, 10), (0, 20), 0.6791, 1.0000),
])  # fmt: skip
def test_shares_give_newcombes_hybrid_score_interval(one, other, low, high):
    found = difference(wilson(*one), wilson(*other), 0.95)
    assert (found.low[0], found.high[0]) == pytest.approx((low, high), abs=5e-5)


def test_symmetric_intervals_give_the_z_test():
    rng = np.random.default_rng(1)
    samples = [(rng.normal(0.3, 2, 4000), rng.normal(0.2, 1, 9000)) for _ in range(20)]
    ends = []
    for side in (0, 1):
        means = np.array([pair[side].mean() for pair in samples])
        errors = np.array([stats.sem(pair[side]) for pair in samples])
        ends.append((means, means - Z * errors, means + Z * errors))
    found = difference(ends[0], ends[1], 0.95)
    welch = [stats.ttest_ind(*pair, equal_var=False) for pair in samples]
    # Of thousands of examples Student's law is the normal one.
    assert found.p == pytest.approx([one.pvalue for one in welch], rel=0.06)
    intervals = [one.confidence_interval(0.95) for one in welch]
    assert found.low == pytest.approx([one.low for one in intervals], abs=1e-4)
    assert found.high == pytest.approx([one.high for one in intervals], abs=1e-4)


def test_p_and_interval_agree_for_any_interval():
    rng = np.random.default_rng(2)
    value, reach = rng.normal(size=(2, 5000)), rng.exponential(size=(4, 5000))
    now = value[0], value[0] - reach[0], value[0] + reach[1]
    then = value[1], value[1] - reach[2], value[1] + reach[3]
    found = difference(now, then, 0.9)
    excludes = (found.low > 0) | (found.high < 0)
    assert 500 < excludes.sum() < 4500
    assert ((found.p < 0.1) == excludes).all()
    back = difference(then, now, 0.9)
    assert (back.value, back.low, back.high) == (
        pytest.approx(-found.value),
        pytest.approx(-found.high),
        pytest.approx(-found.low),
    )
    assert back.p == pytest.approx(found.p)


def test_what_is_undefined_stays_so():
    nan = float("nan")
    now = [0.1, nan, 0.1, 0.1, 0.2], [0.0, nan, nan, 0.1, 0.3], [0.2, nan, 0.2, 0.1, 0.4]
    then = [0.1, 0.1, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.1, 0.0], [0.2, 0.2, 0.2, 0.1, 0.2]
    found = difference(now, then, 0.95)
    assert np.isnan(found.p).tolist() == [False, True, True, False, True]
    assert np.isnan(found.low).tolist() == np.isnan(found.p).tolist()
    assert (found.p[0], found.p[3]) == (1.0, 1.0)
    assert difference(([0.2], [0.2], [0.2]), ([0.1], [0.1], [0.1]), 0.95).p[0] == 0.0
    with pytest.raises(ValueError, match=r"confidence = 1\.5"):
        difference(now, then, 1.5)


def runs(n, rate, rng, draws):
    """Deltas of accuracy and their intervals, as searches of 20,000 examples publish them."""
    space = statistic_space(["accuracy"], "overall")
    own = metric("accuracy")
    wrong = rng.binomial(n, rate, draws)
    rest = rng.binomial(20_000 - n, 0.1, draws)
    sums = np.stack([n - wrong, wrong], axis=1).astype(np.int64)
    others = np.stack([20_000 - n - rest, rest], axis=1).astype(np.int64)
    delta, low, high = np.empty(draws), np.empty(draws), np.empty(draws)
    for at in range(draws):
        some, totals = sums[at : at + 1], sums[at] + others[at]
        delta[at] = own.delta(Slices(some, space, totals))[0]
        ends = own.delta_interval(Slices(some, space, totals), 0.95)
        low[at], high[at] = ends[0][0], ends[1][0]
    return delta, low, high


@pytest.mark.parametrize(("n", "rate"), [
    slow(50, 0.4),
    (3000, 0.25),
    slow(50, 0.1),
    slow(300, 0.1),
])  # fmt: skip
@pytest.mark.slow
def test_error_rate_and_coverage_on_the_intervals_of_searches(n, rate):
    rng = np.random.default_rng(n)
    now, then = runs(n, rate, rng, 4000), runs(n, rate, rng, 4000)
    found = difference(now, then, 0.95)
    # Four thousand draws tell rates of 5 % and 1 % to 0.7 and 0.3 points (two standard errors).
    assert 0.02 <= np.mean(found.p <= 0.05) <= 0.06
    assert np.mean(found.p <= 0.01) <= 0.015
    # And where the slice did become worse.
    found = difference(runs(n, rate + 0.1, rng, 4000), then, 0.95)
    truth = -0.1 * (1 - n / 20_000)
    assert 0.935 <= np.mean((found.low <= truth) & (truth <= found.high)) <= 0.985
