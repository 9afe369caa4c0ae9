"""How sure a finding's difference is: its covariance against rows, and intervals in simulation."""

import numpy as np
import pytest
from scipy.special import expit

from slicebeam.metrics.findings.candidates import Changes
from slicebeam.metrics.intervals.intervals import wilson
from tests.conftest import slow
from tests.encoded_table import EncodedTable

Z = 1.959963984540054


def two_features(seed, rows=4000):
    """Codes, and the log odds of errors where the effects of two overlapping slices add up."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, (rows, 2))
    codes[:, 1] = np.where(rng.random(rows) < 0.5, codes[:, 0], codes[:, 1])
    return rng, codes, -2.0 + 1.5 * (codes[:, 0] == 1) + 1.2 * (codes[:, 1] == 2)


def fit_rows(X, t, w, kind):
    """Fitted values and the variance function of a regression on rows, by Newton's steps."""
    beta = np.zeros(X.shape[1])
    for _ in range(60):
        mu = expit(X @ beta) if kind == "rate" else X @ beta
        v = mu * (1 - mu) if kind == "rate" else np.ones(mu.size)
        beta += np.linalg.solve(X.T @ (X * (w * v)[:, None]), X.T @ (w * (t - mu)))
    return mu, v


def of_rows(table, found, at, group=None):
    """The covariance of value and expectation of a finding, row by row."""
    members = [table.members(one.candidate) for one in found.findings[: at + 1]]
    w, t = table.weight, table.target
    X = np.column_stack([np.ones(table.rows), *members]).astype(float)
    _, v = fit_rows(X[:, :-1], t, w, table.layout.kind)
    inside = members[-1].astype(float)
    gram = X[:, :-1].T @ (X[:, :-1] * (w * v)[:, None])
    taken = X[:, :-1] @ np.linalg.solve(gram, X[:, :-1].T @ (w * v * inside))
    after, v = fit_rows(X, t, w, table.layout.kind)
    deviations = w * (t - after)
    of_value, of_expected = inside * deviations, taken * deviations
    if group is None:
        # Each pattern's mean squared deviation, and its leverage at the mean weight.
        pattern = np.unique(X, axis=0, return_inverse=True)[1]
        inverse = np.linalg.inv(X.T @ (X * (w * v)[:, None]))
        squares, size = np.bincount(pattern, w**2), np.bincount(pattern, w)
        leverage = (X @ inverse * X).sum(axis=1) * v * (squares / size)[pattern]
        scale = 1.0 / (1.0 - leverage)
    else:
        of_value, of_expected = np.bincount(group, of_value), np.bincount(group, of_expected)
        groups = np.unique(group).size
        scale = np.full(of_value.size, groups / (groups - 1.0))
    n = (w * inside).sum()
    products = of_value**2, of_value * of_expected, of_expected**2
    return [(scale * product).sum() / n**2 for product in products]


@pytest.mark.parametrize("kind", ["rate", "mean", "weights", "groups"])
def test_covariance_is_that_of_the_rows(kind):
    rng, codes, log_odds = two_features(3)
    wrong = (rng.random(log_odds.size) < expit(log_odds)) * 1.0
    weight = rng.integers(1, 6, wrong.size) if kind == "weights" else None
    target = rng.gamma(1.0, 1.0, wrong.size) + wrong if kind == "mean" else wrong
    table = EncodedTable(codes, target, "mean" if kind == "mean" else "rate", weight=weight)
    group = np.unique(rng.integers(0, 900, wrong.size), return_inverse=True)[1]
    group = group if kind == "groups" else None
    found = table.find(group=group)
    assert len(found.findings) >= 2
    for at, one in enumerate(found.findings):
        expected = of_rows(table, found, at, group)
        np.testing.assert_allclose(one.covariance, expected, rtol=1e-6, atol=1e-12)


def difference_interval(one, of_value):
    z = Z * np.sqrt(one.covariance.expected)
    around = one.expected - z, one.expected + z
    return one.covariance.interval_of_difference(one.value, of_value, one.expected, around)


# Share of the slice, its error rate, and the rate outside: each once covered by far too few or too wide.
RATES = {
    "half, less variable": (0.5, 0.97, 0.5),
    "always wrong": (0.5, 1.0, 0.3),
    "most of all": (0.8, 0.3, 0.05),
    "plain": (0.3, 0.4, 0.1),
}


@pytest.mark.parametrize("design", [
    "always wrong",
    *(
        slow(one)
        for one in list(RATES)
        if one != "always wrong"
    ),
])  # fmt: skip
def test_intervals_of_rates_cover(design):
    share, inside, outside = RATES[design]
    rng, rows, runs, covered, width, differences = np.random.default_rng(5), 1000, 300, 0, [], []
    for _ in range(runs):
        own = rng.random(rows) < share
        wrong = (rng.random(rows) < np.where(own, inside, outside)) * 1.0
        found = EncodedTable(np.where(own, 1, 0)[:, None], wrong, "rate", levels=1).find()
        one = found.findings[0]
        low, high = difference_interval(one, wilson(wrong[own].sum(), own.sum(), 0.95))
        truth = (1.0 - own.mean()) * (inside - outside)
        covered += low <= truth <= high
        width.append(high - low)
        differences.append(one.value - one.expected - truth)
    assert 0.92 <= covered / runs <= 0.98
    assert np.mean(width) == pytest.approx(2 * Z * np.std(differences), rel=0.12)


@pytest.mark.slow
def test_intervals_of_losses_cover_where_the_rest_varies_more():
    rng, rows, runs, covered = np.random.default_rng(6), 1000, 300, 0
    for _ in range(runs):
        own = rng.random(rows) < 0.4
        loss = np.where(own, rng.normal(2, 0.2, rows), rng.exponential(1, rows))
        table = EncodedTable(np.where(own, 1, 0)[:, None], loss, "mean", levels=1)
        one = table.find().findings[0]
        off = Z * np.sqrt(one.covariance.value)
        low, high = difference_interval(one, (one.value - off, one.value + off))
        covered += low <= (1.0 - own.mean()) <= high
    assert 0.92 <= covered / runs <= 0.98


@pytest.mark.slow
def test_intervals_of_a_second_finding_cover():
    runs, covered, seconds = 200, 0, 0
    for seed in range(runs):
        rng, codes, log_odds = two_features(100 + seed)
        wrong = (rng.random(log_odds.size) < expit(log_odds)) * 1.0
        table = EncodedTable(codes, wrong, "rate", levels=1)
        found = table.find()
        slices = [table.conditions(one.candidate) for one in found.findings]
        if slices[:2] != [((0, 1),), ((1, 2),)]:
            continue
        seconds += 1
        one = found.findings[1]
        own = codes[:, 1] == 2
        low, high = difference_interval(one, wilson(wrong[own].sum(), own.sum(), 0.95))
        # What the model of the first finding would expect of the true rates.
        first = codes[:, 0] == 1
        rates = expit(log_odds)
        fitted = np.where(first, rates[first].mean(), rates[~first].mean())
        covered += low <= (rates - fitted)[own].mean() <= high
    assert seconds > 150
    assert 0.92 <= covered / seconds <= 0.985


@pytest.mark.parametrize("counts", [True, slow(False)])
def test_a_slice_that_did_not_change_is_no_finding_however_much_others_did(counts):
    rng, runs, of_planted, of_others = np.random.default_rng(8), 60, 0, 0
    cluster = np.repeat(np.arange(50), 100)
    effect = np.where(cluster < 5, -0.6, np.where(cluster < 10, 0.55, 0.0))
    for _ in range(runs):
        change = rng.normal(effect, 0.5)
        if counts:
            change = np.sign(np.rint(change))
        table = EncodedTable(cluster[:, None], change, "mean", levels=1)
        squares = np.bincount(cluster, change**2)
        # Significant as a search with a false discovery rate calls slices: at 1 % here.
        called = table.total / np.sqrt(squares) > 2.33
        candidates = table.candidates(called, harm=table.total)
        found = table.find(candidates, changes=Changes(table.total, squares, counts))
        clusters = [table.conditions(one.candidate)[0][1] for one in found.findings]
        of_planted += sum(5 <= one < 10 for one in clusters)
        of_others += any(one >= 10 for one in clusters)
        for one in found.findings:
            assert one.p_value <= 0.05 / 50
    assert of_planted > 4.5 * runs
    # At most 5 % of runs: 6 of 60 have a probability of .08. Without the test of the change: 12 and more.
    assert of_others <= 6


def test_groups_that_did_not_change_are_no_findings():
    rng = np.random.default_rng(9)
    cluster = np.repeat(np.arange(20), 200)
    group = np.repeat(np.arange(800), 5)
    # All improved but the last, which has not changed; each group changes as one.
    change = np.where(cluster < 19, -1.0, 0.0) + rng.normal(0, 0.5, 800)[group]
    change -= np.where(cluster == 19, change[cluster == 19].mean() - 0.05, 0.0)
    table = EncodedTable(cluster[:, None], change, "mean", levels=1)
    squares = np.bincount(cluster, change**2)
    candidates = table.candidates(np.arange(20) == 19, harm=table.total)
    without = table.find(candidates, group=group)
    assert [table.conditions(one.candidate) for one in without.findings] == [((0, 19),)]
    found = table.find(candidates, group=group, changes=Changes(table.total, squares, False))
    assert found.findings == []
