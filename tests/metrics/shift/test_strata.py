"""Samples of strata whose halves set the weights, by loops; that simulated intervals hold the truth."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from slicebeam.metrics.shift.allocation import (
    adapted_weights,
    masa_order,
    optimal_calls,
    static_weights,
)
from slicebeam.metrics.shift.estimates import (
    MatrixEstimate,
    Sample,
    Strata,
    counts_of,
    error_bound,
    estimate,
    first_check,
    starved_variance,
    stratum_variances,
    summarise,
    weighted_sum_errors,
)
from slicebeam.metrics.shift.simulation import qualities, simulate, true_matrices
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def halves_of(pool, asked, place, weights=None):
    """Counts of the halves, by loops; `place` says where in its stratum's order an item is."""
    of_halves = None if weights is None else np.repeat(weights[pool.rows], 2, axis=0)
    found = Sample.empty(1, 2 * len(pool.rows), pool.shape[1], of_halves)
    for item in asked:
        half = 2 * pool.stratum[item] + place[item] % 2
        found.add(np.array([[half]]), np.array([[pool.new[item]]]), np.array([[pool.old[item]]]))
    return found


def sampled(rng, pool):
    """A sample of random items whose halves were asked unequally, each at least once."""
    place = np.empty(len(pool.items), int)
    asked = []
    for s in range(len(pool.rows)):
        members = [item for item in pool.items if pool.stratum[item] == s]
        for at, item in enumerate(rng.permutation(members).tolist()):
            place[item] = at
        for h in (0, 1):
            mine = sorted((i for i in members if place[i] % 2 == h), key=lambda i: place[i])
            asked += mine[: int(rng.integers(1, len(mine) + 1)) if mine else 0]
    sample = oracle.sample_of(pool, [asked])
    sample.halves = halves_of(pool, asked, place)
    return asked, place, sample


def test_counts_are_those_of_a_fixed_combination_of_the_halves():
    rng = np.random.default_rng(6)
    for _ in range(20):
        pool = oracle.random_pool(rng, largest=15, strata=6)
        asked, place, sample = sampled(rng, pool)
        found = counts_of(pool.strata(), sample)
        for s, size in enumerate(pool.sizes):
            mine = [
                [i for i in asked if pool.stratum[i] == s and place[i] % 2 == h] for h in (0, 1)
            ]
            part = [math.ceil(size / 2) / size, math.floor(size / 2) / size]
            alike = 1 / sum(a**2 / len(m) for a, m in zip(part, mine, strict=True) if m)
            assert found.asked[0, s] == pytest.approx(alike)
            for j in range(pool.shape[1]):
                for told, values in ((found.new, pool.new), (found.old, pool.old)):
                    mean = sum(
                        a * np.mean([values[i] == j for i in m])
                        for a, m in zip(part, mine, strict=True)
                        if m
                    )
                    assert told[0, s, j] / alike == pytest.approx(mean)


def test_a_half_without_an_answer_is_stood_for_by_the_other():
    strata = Strata(np.zeros(1, int), np.array([9]), (1, 2), np.zeros(1, int), np.array([[5, 4]]))
    sample = Sample.empty(1, 1, 2)
    sample.halves = Sample.empty(1, 2, 2)
    for counts, part in ((sample, [0, 0, 0]), (sample.halves, [1, 1, 1])):
        counts.add(np.array([part]), np.array([[0, 1, 1]]), np.array([[0, 0, 1]]))
    found = counts_of(strata, sample)
    assert found.asked.tolist() == [[3]]
    assert found.new.tolist() == [[[1, 2]]]
    assert found.old.tolist() == [[[2, 1]]]


def test_all_items_of_a_pool_are_the_pool():
    pool = oracle.random_pool(np.random.default_rng(7), largest=15, strata=6)
    everything = list(pool.items)
    place = [i - pool.stratum.index(pool.stratum[i]) for i in everything]
    sample = oracle.sample_of(pool, [everything])
    sample.halves = halves_of(pool, everything, place)
    found = estimate(pool.strata(), sample)
    np.testing.assert_allclose(found.matrix[0], pool.matrix(pool.new), atol=1e-12)
    assert found.loss[0] == found.accuracy_variance[0] == 0


def test_slices_of_halves_are_weighted_as_the_whole_is():
    rng = np.random.default_rng(11)
    pool = oracle.random_pool(rng, largest=25, strata=6)
    _, _, sample = sampled(rng, pool)
    whole = estimate(pool.strata(), sample)
    counts, alike = counts_of(pool.strata(), sample), replace(sample, halves=None)
    assert not np.allclose(estimate(pool.strata(), alike).matrix, whole.matrix)
    share, direct = pool.strata().share, np.zeros(pool.shape)
    for s, row in enumerate(pool.rows):
        told = counts.old[0, s] / counts.asked[0, s] - pool.strata().old_shares[s]
        direct[row] += share[s] * (counts.new[0, s] / counts.asked[0, s] - whole.reliance[0] * told)
    np.testing.assert_allclose(whole.matrix[0], direct, atol=1e-12)


def weighted_pool(seed, largest=30):
    """A pool and random weights of its cells, a quarter of them 0."""
    rng = np.random.default_rng(seed)
    pool = oracle.random_pool(rng, largest=largest)
    weights = rng.uniform(0.2, 3, pool.shape) * (rng.random(pool.shape) > 0.25)
    return rng, pool, replace(pool.strata(), weights=weights), weights


def frame_of(pool, items, weights, lam=0.0):
    """A row for each item: its stratum, and for each class the weighted indicator variable."""
    rows = np.array([pool.label(item) for item in items])
    new, old = (np.array(all_)[items] for all_ in (pool.new, pool.old))
    columns = {
        j: weights[rows, j] * ((new == j).astype(float) - lam * (old == j))
        for j in range(pool.shape[1])
    }
    frame = pd.DataFrame(columns)
    frame["sum"] = frame.sum(axis=1)
    return frame.assign(stratum=np.array(pool.stratum)[items])


def counted(pool, asked, weights):
    sample = Sample.empty(1, len(pool.rows), pool.shape[1], weights[pool.rows])
    arrays = (np.array(each)[asked][None] for each in (pool.stratum, pool.new, pool.old))
    sample.add(*arrays)
    return sample


def factors(pool, asked):
    """p and w of each stratum."""
    size, n = np.array(pool.sizes), np.bincount(np.array(pool.stratum)[asked])
    p = size / size.sum()
    return p, p**2 * (1 - n / size) / n, n


def test_the_loss_and_its_bound_are_weighted_by_the_squares():
    for seed in range(25):
        rng, pool, strata, weights = weighted_pool(seed)
        asked = oracle.random_asked(rng, pool)
        found = estimate(strata, counted(pool, asked, weights))
        lam = found.reliance[0]
        p, w, n = factors(pool, asked)
        frame = frame_of(pool, asked, weights, lam)
        variances = frame.groupby("stratum").var().fillna(0).drop(columns="sum").to_numpy()
        tau = variances.sum(axis=1)
        pair = np.array([sum(sorted(weights[row] ** 2)[-2:]) for row in pool.rows])
        T, error, unseen = (w * tau).sum(), (pair * w**2 * tau / n).sum(), (pair * p * w / n).sum()
        assert found.loss[0] == pytest.approx(T)
        V = np.zeros(pool.shape)
        np.add.at(V, pool.rows, w[:, None] * variances)
        h = max(0.5, T**2 / (2 * (V**2).sum())) if T else 0.5
        scale = T + 1.6448536 * error**0.5 + 1.6448536**2 * unseen
        bound = (scale * stats.chi2.ppf(0.95, h) / h) ** 0.5
        assert error_bound(found)[0] == pytest.approx(bound, rel=1e-6)
        known = np.where(n > 1, tau, np.nan)
        shown = stratum_variances(strata, counted(pool, asked, weights), found.reliance)[0]
        np.testing.assert_allclose(shown, known, atol=1e-12)


def test_reliance_makes_the_weighted_loss_least():
    for seed in range(10):
        rng, pool, strata, weights = weighted_pool(seed)
        asked = oracle.random_asked(rng, pool)
        p, _, n = factors(pool, asked)

        def loss(lam, pool=pool, asked=asked, weights=weights, p=p, n=n):
            spread = frame_of(pool, asked, weights, lam).groupby("stratum").var().fillna(0)
            return (p**2 / n * spread.drop(columns="sum").sum(axis=1)).sum()

        best = estimate(strata, counted(pool, asked, weights)).reliance[0]
        assert loss(best) <= min(map(loss, np.linspace(0, 1, 101))) + 1e-12


@pytest.mark.parametrize("control", [True, False])
def test_the_weighted_sum_is_that_of_the_items(control):
    for seed in range(25):
        rng, pool, strata, weights = weighted_pool(seed)
        asked = oracle.random_asked(rng, pool)
        sample = counted(pool, asked, weights)
        found = estimate(strata, sample, control=control)
        lam = found.reliance[0]
        p, w, _ = factors(pool, asked)
        of_stratum = frame_of(pool, asked, weights, lam).groupby("stratum")["sum"]
        before = frame_of(replace(pool, new=pool.old), list(pool.items), weights, 0)["sum"].mean()
        unseen = weights.max(axis=1) * found.unseen[0]
        errors = weighted_sum_errors(strata, sample, weights, control=control, starved=False)
        value = (weights * found.matrix[0]).sum()
        assert value == pytest.approx((p * of_stratum.mean()).sum() + lam * before)
        error = (w * of_stratum.var().fillna(0)).sum() + 3 * (unseen**2).sum()
        assert errors[0] == pytest.approx(error**0.5)
        # It is certain where all items were asked.
        whole = counted(pool, list(pool.items), weights)
        sure = weighted_sum_errors(strata, whole, weights, control=control, starved=False)
        assert sure[0] == 0


def test_the_weighted_sum_of_the_right_cells_is_the_accuracy():
    rng, pool, strata, _ = weighted_pool(3)
    asked, weights = oracle.random_asked(rng, pool), np.zeros(pool.shape)
    weights[np.arange(3), pool.right] = 1
    strata, sample = replace(strata, weights=weights), counted(pool, asked, weights)
    found = estimate(strata, sample)
    errors = weighted_sum_errors(strata, sample, weights, control=True, starved=False)
    squared = found.accuracy_variance + 3 * np.square(found.accuracy_unseen)
    assert errors**2 == pytest.approx(squared)
    starved = weighted_sum_errors(strata, sample, 7 * weights, control=False, starved=True)
    wide = starved_variance(strata, sample, found.accuracy_unseen)
    assert starved == pytest.approx(7 * np.sqrt(wide))


def test_the_error_of_masas_weighted_sum_covers_what_it_starves():
    for seed in range(15):
        rng, pool, strata, weights = weighted_pool(seed)
        asked = oracle.random_asked(rng, pool)
        p, w, n = factors(pool, asked)
        largest = weights.max()
        frame = frame_of(pool, asked, weights / largest)
        frame["label"] = np.array(pool.rows)[frame["stratum"]]
        of_stratum = frame.groupby("stratum")["sum"]
        hits, counts = of_stratum.mean(), (weights[pool.rows] > 0).any(axis=1)
        middle = (n * hits + 1) / (n + 2)
        spread = np.maximum(of_stratum.var().fillna(0), middle * (1 - middle))
        labels = frame.groupby("label")["sum"]
        expected = ((labels.sum() + 0.5) / (labels.count() + 1)).reindex(pool.rows).to_numpy()
        pulled = (n * hits + 4 * expected) / (n + 4) - hits
        bias = (p * (1 - n / np.array(pool.sizes)) * pulled)[counts].sum()
        of_label = np.bincount(pool.rows, w, 3) / strata.label_share
        unseen = (weights.max(axis=1) / largest * of_label) ** 2
        squared = (w * spread)[counts].sum() + 3 * unseen.sum() + bias**2
        sample = counted(pool, asked, weights)
        errors = weighted_sum_errors(strata, sample, weights, control=False, starved=True)
        assert errors[0] == pytest.approx(largest * squared**0.5)


def test_the_weighted_sum_of_halves_is_their_fixed_combination():
    rng, pool, strata, weights = weighted_pool(5)
    asked, place, _ = sampled(rng, pool)
    cell = np.zeros(pool.shape)
    cell[0, 2] = 2.0
    for weighing in (weights, cell):
        weighed = replace(strata, weights=weighing)
        sample = counted(pool, asked, weighing)
        sample.halves = halves_of(pool, asked, place, weighing)
        found = estimate(weighed, sample)
        errors = weighted_sum_errors(weighed, sample, weighing, control=True, starved=False)
    assert errors[0] == pytest.approx(2 * found.cell_errors()[0, 0, 2])


def test_masa_takes_the_weighted_step():
    for seed in range(10):
        rng, pool, strata, weights = weighted_pool(seed)
        asked = oracle.random_asked(rng, pool)
        frame = frame_of(pool, asked, weights).drop(columns="sum")
        sigma = frame.groupby("stratum").var().fillna(0).sum(axis=1).to_numpy() ** 0.5
        p, _, n = factors(pool, asked)
        pair = np.array([sum(sorted(weights[row] ** 2)[-2:]) for row in pool.rows])
        score = p / n * (sigma + (1 / n) ** 0.25 * (pair / 2) ** 0.5)
        score[n >= pool.sizes] = -np.inf
        score[n < np.minimum(pool.sizes, 2)] = np.inf
        chosen = masa_order(strata, counted(pool, asked, weights), 1)[0, 0]
        if np.isfinite(score.max()):
            assert score[chosen] == pytest.approx(score.max())


def test_static_weights_are_those_of_the_old_predictions_in_the_cells():
    for seed in range(10):
        _, pool, strata, weights = weighted_pool(seed)
        frame = frame_of(replace(pool, new=pool.old), list(pool.items), weights).drop(columns="sum")
        variance = frame.groupby("stratum").var(ddof=0).sum(axis=1).to_numpy()
        p = np.array(pool.sizes) / len(pool.items)
        unit = np.array([sum(sorted(weights[row] ** 2)[-2:]) / 2 for row in pool.rows])
        shared = (p * variance).sum() / (p * unit).sum() * unit
        expected = p * np.sqrt((variance + shared) / 2)
        np.testing.assert_allclose(static_weights("plus", strata), expected)
        np.testing.assert_allclose(static_weights("proportional", strata), p * np.sqrt(unit))


def test_equal_weights_change_nothing_but_the_scale():
    rng, pool, _, _ = weighted_pool(8)
    _, _, sample = sampled(rng, pool)
    plain, twice = pool.strata(), replace(pool.strata(), weights=np.full(pool.shape, 2.0))
    one, other = estimate(plain, sample), estimate(twice, sample)
    assert other.reliance == pytest.approx(one.reliance)
    assert error_bound(other) == pytest.approx(2 * error_bound(one))
    halves = (sample.halves, one.reliance)
    np.testing.assert_allclose(adapted_weights(twice, *halves), adapted_weights(plain, *halves))


def test_where_no_cell_counts_nothing_is_asked_beyond_what_an_estimate_needs():
    pool = oracle.random_pool(np.random.default_rng(1), largest=60)
    weights = np.zeros(pool.shape)
    weights[1, 2] = 1
    strata = replace(pool.strata(), weights=weights)
    items = pool.random_items()
    relevant = np.array(pool.rows) == 1
    calls = int(np.minimum(pool.sizes, 2).sum()) + 12
    assert strata.sizes[relevant].sum() >= 14
    for method in ("masa", "proportional"):
        (checked,) = simulate(strata, items, method, [calls], 3, 0)
        assert (checked.sample.asked[:, ~relevant] == np.minimum(strata.sizes, 2)[~relevant]).all()


def test_the_optimum_is_in_proportion_to_share_times_deviation():
    share, variance = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.04, 0.25, 0.0, np.nan])
    wanted = 100 * np.array([0.1, 0.15, 0.0]) / 0.25
    np.testing.assert_allclose(optimal_calls(share, variance, 100), [*wanted, np.nan])
    assert np.isnan(optimal_calls(share, np.zeros(4), 100)).all()
    # No other allocation of as many calls has a smaller error.
    p, v = share[:2], variance[:2]
    best = optimal_calls(p, v, 100)
    for n in 100 * np.random.default_rng(0).dirichlet([1, 1], 200):
        assert (p**2 * v / best).sum() <= (p**2 * v / n).sum() + 1e-12


def test_the_error_of_a_study_is_weighted():
    _, pool, strata, weights = weighted_pool(2, largest=60)
    items = pool.random_items()
    (found,) = qualities(strata, items, "proportional", [60], 4, 0)
    (checked,) = simulate(strata, items, "proportional", [60], 4, 0)
    off = estimate(strata, checked.sample, control=False).matrix - true_matrices(strata, items)
    np.testing.assert_allclose(found.errors, ((weights * off) ** 2).sum(axis=(1, 2)) ** 0.5)


def slow_bound(slow, confidence):
    z = optimize.brentq(lambda x: stats.norm.cdf(x) - confidence, -9, 9, xtol=1e-13)
    squares = float(np.square(slow.variance).sum())
    h = max(0.5, slow.loss**2 / (2 * squares)) if squares > 0 else 0.5
    # A chi-squared variable is a gamma variable, whose quantile comes by another way.
    quantile = stats.gamma(h / 2, scale=2).isf(1 - confidence)
    scale = slow.loss + z * slow.loss_error + z**2 * slow.loss_unseen
    return math.sqrt(scale * quantile / h)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("control", [False, True])
def test_error_bound_is_the_formula(control, confidence):
    rng = np.random.default_rng(1)
    for _ in range(25):
        pool = oracle.random_pool(rng, largest=20, agreement=rng.random())
        asked = oracle.random_asked(rng, pool)
        found = estimate(pool.strata(), oracle.sample_of(pool, [asked]), control=control)
        slow = oracle.estimate(pool, asked, found.reliance[0])
        bound = error_bound(found, confidence)
        assert bound.shape == (1,)
        assert bound[0] == pytest.approx(slow_bound(slow, confidence), rel=1e-7)


def test_numbers_of_the_rule_at_95_percent():
    found = MatrixEstimate(
        matrix=np.zeros((1, 1, 2)),
        variance=np.full((1, 1, 2), 2e-5),
        unseen=np.zeros((1, 1)),
        label_share=np.ones((1, 1)),
        accuracy=np.zeros(1),
        accuracy_variance=np.zeros(1),
        accuracy_unseen=np.zeros(1),
        reliance=np.zeros(1),
        loss=np.array([4e-5]),
        loss_error=np.array([1e-5]),
        loss_unseen=np.array([2e-6]),
        loss_spread=np.array([2 * 2 * 4e-10]),
    )
    # h = 16e-10/(2·8e-10) = 1, of which χ² is 3.841.
    wanted = (4e-5 + 1.645 * 1e-5 + 2.706 * 2e-6) * 3.8415
    assert error_bound(found)[0] ** 2 == pytest.approx(wanted, rel=1e-3)


def test_nothing_that_varied_leaves_what_was_not_seen():
    pool = oracle.random_pool(np.random.default_rng(2), largest=20)
    pool.old = pool.new = [0] * len(pool.items)
    n = [min(2, size) for size in pool.sizes]
    asked = [i for s, m in enumerate(n) for i in np.flatnonzero(np.array(pool.stratum) == s)[:m]]
    found = estimate(pool.strata(), oracle.sample_of(pool, [asked]))
    assert found.loss[0] == 0
    unseen = sum(
        2 * (size / len(pool.items)) ** 3 * (1 - m / size) / m**2
        for size, m in zip(pool.sizes, n, strict=True)
    )
    chi2 = stats.chi2.ppf(0.95, 0.5) / 0.5
    assert error_bound(found)[0] ** 2 == pytest.approx(1.6448536**2 * unseen * chi2, rel=1e-6)


def test_nothing_is_left_to_err_when_every_item_was_asked():
    pool = oracle.random_pool(np.random.default_rng(3))
    everything = oracle.sample_of(pool, [list(pool.items)])
    for method in ("plus", "proportional"):
        assert error_bound(summarise(method, pool.strata(), everything))[0] == 0


def test_more_confidence_takes_more():
    rng = np.random.default_rng(4)
    pool = oracle.random_pool(rng, largest=40)
    found = estimate(pool.strata(), oracle.sample_of(pool, [oracle.random_asked(rng, pool)]))
    bounds = [error_bound(found, confidence)[0] for confidence in (0.6, 0.8, 0.9, 0.95, 0.99)]
    assert (np.diff(bounds) > 0).all()


def test_first_check():
    assert [first_check(S) for S in (1, 49, 50, 51, 93)] == [100, 100, 100, 102, 186]
