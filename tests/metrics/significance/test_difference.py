"""The difference of two runs against Newcombe, scipy and simulation."""

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.significance.intervals import difference
from tests.conftest import slow

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
    own, wrong = metric("accuracy"), rng.binomial(n, rate, draws)
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
    slow(50, 0.4), (3000, 0.25), slow(50, 0.1), slow(300, 0.1),
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
