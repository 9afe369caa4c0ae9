"""Simulated runs: what their intervals and losses are, and that MASA's accuracy covers its bias."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.shift import simulation
from slicebeam.metrics.shift.allocation import (
    batch_size,
    masa_order,
    smallest_budget,
    static_order,
    static_weights,
)
from slicebeam.metrics.shift.estimates import error_bound, estimate, starved_variance, summarise
from slicebeam.metrics.shift.simulation import item_order, qualities, simulate
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
METHODS = ("plus", "masa", "proportional")


def items_asked(pool, items, method, seed, calls):
    """The items that an assessment with this seed asks, one after the other."""
    strata = pool.strata()
    order = item_order(seed, items.identity, pool.starts())
    waiting = [[i for i in order.tolist() if pool.stratum[i] == s] for s in range(strata.count)]
    asked = []
    if method != "masa":
        order = static_order(static_weights(method, strata), strata.sizes, calls)
        return [waiting[s].pop(0) for s in order.tolist()]
    while len(asked) < calls:
        size = min(batch_size(len(asked)), calls - len(asked))
        chosen = masa_order(strata, oracle.sample_of(pool, [asked]), size)[0]
        asked += [waiting[s].pop(0) for s in chosen.tolist()]
    return asked


def assert_same(sample, run, other, other_run):
    for field in ("asked", "new", "old", "both", "squares"):
        np.testing.assert_array_equal(
            getattr(sample, field)[run], getattr(other, field)[other_run], err_msg=field
        )


def assert_runs_are_assessments(pool, method, checks):
    items = pool.random_items()
    found = list(simulate(pool.strata(), items, method, checks, 3, 50))
    assert [(each.calls, each.runs) for each in found] == [(c, slice(0, 3)) for c in checks]
    for checked in simulate(pool.strata(), items, method, checks, 3, 50):
        for r in range(3):
            asked = items_asked(pool, items, method, 50 + r, checks[-1])[: checked.calls]
            assert_same(checked.sample, r, oracle.sample_of(pool, [asked]), 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_what_an_assessment_with_its_seed_asks_wherever_one_looks(method):
    for seed in range(4):
        pool = oracle.random_pool(np.random.default_rng(seed), largest=60, strata=7)
        least = smallest_budget(pool.strata())
        assert_runs_are_assessments(pool, method, [min(90, len(pool.items))])
        assert_runs_are_assessments(pool, method, [least, least + 9, 41, len(pool.items)])


def test_a_batch_of_one_is_the_published_algorithm():
    pool = oracle.random_pool(np.random.default_rng(8), largest=60, strata=7)
    items, strata = pool.random_items(), pool.strata()
    order = item_order(4, items.identity, pool.starts())
    waiting = [[k for k in order.tolist() if pool.stratum[k] == s] for s in range(7)]
    slow, asked = oracle.AlgorithmOne(pool), []
    while len(asked) < 100:
        s = slow.best([0] * 7)[0]
        item = waiting[s].pop(0)
        slow.update(s, pool.new[item])
        asked.append(item)
    (checked,) = simulate(strata, items, "masa", [100], 1, 4, batch=1)
    assert_same(checked.sample, 0, oracle.sample_of(pool, [asked]), 0)


class Traced(NamedTuple):
    pool: oracle.Pool
    items: simulation.Items
    starts: np.ndarray


def traced_pool(sizes=(1, 3, 40, 40, 7, 20)):
    """A pool in which each item's prediction is a class of its own, so that counts name items."""
    stratum = np.repeat(np.arange(len(sizes)), sizes).tolist()
    M, rows = len(stratum), [0, 0, 0, 1, 1, 2]
    pool = oracle.Pool(stratum, [k % 3 for k in range(M)], list(range(M)), rows, (3, M), [0, 1, 2])
    return Traced(pool, pool.random_items(), pool.starts())


@pytest.mark.parametrize("method", METHODS)
def test_only_items_of_the_stratum_are_asked_and_none_twice(method):
    pool, items, starts = traced_pool()
    for checked in simulate(pool.strata(), items, method, [30, 70, 111], 8, 3):
        new = checked.sample.new
        assert new.max() == 1
        np.testing.assert_array_equal(checked.sample.asked.sum(axis=1), checked.calls)
        for s in range(6):
            outside = np.ones(len(pool.items), bool)
            outside[starts[s] : starts[s + 1]] = False
            assert not new[:, s, outside].any()
            np.testing.assert_array_equal(new[:, s].sum(axis=1), checked.sample.asked[:, s])
    assert new.sum() == 8 * 111


@pytest.mark.parametrize("method", METHODS)
def test_how_many_runs_go_together_changes_nothing(method, monkeypatch):
    pool = oracle.random_pool(np.random.default_rng(11), largest=60, strata=7)
    items = pool.random_items()
    own = np.random.default_rng(0).integers(0, 4, (10, len(pool.items)))
    items = replace(items, new=own)
    checks = [smallest_budget(pool.strata()), 60, 100]

    def all_runs():
        found = {}
        for checked in simulate(pool.strata(), items, method, checks, 10, 5):
            for place, run in enumerate(range(10)[checked.runs]):
                found[checked.calls, run] = checked.sample.new[place].copy()
        return found

    whole = all_runs()
    blocks = []
    for most in (1, 3 * len(pool.items), 4 * len(pool.items) + 7):
        monkeypatch.setattr(simulation, "_MOST_NUMBERS", most)
        parts = list(simulate(pool.strata(), items, method, checks, 10, 5))
        blocks.append(len({each.runs.start for each in parts}))
        some = all_runs()
        assert some.keys() == whole.keys()
        for key, counts in some.items():
            np.testing.assert_array_equal(counts, whole[key])
    assert blocks == [10, 4, 3]


def test_each_run_counts_its_own_answers():
    pool, items, _ = traced_pool()
    own = np.array([[0] * len(pool.items), [5] * len(pool.items), [9] * len(pool.items)])
    (checked,) = simulate(pool.strata(), replace(items, new=own), "plus", [50], 3, 0)
    for run, answer in enumerate((0, 5, 9)):
        assert checked.sample.new[run, :, answer].sum() == 50


def test_item_order_is_a_permutation_within_each_stratum_that_others_do_not_change():
    rng = np.random.default_rng(12)
    starts = np.concatenate([[0], np.cumsum([5, 1, 30, 12])])
    identity = rng.integers(0, 2**64, 48, dtype=np.uint64)
    order = item_order(3, identity, starts)
    for begin, end in pairwise(starts):
        np.testing.assert_array_equal(np.sort(order[begin:end]), np.arange(begin, end))
    assert not np.array_equal(order, item_order(4, identity, starts))
    # Without one item the others stay in their order.
    without = np.delete(identity, 20)
    fewer = item_order(3, without, np.array([0, 5, 6, 35, 47]))
    np.testing.assert_array_equal(without[fewer], identity[order[order != 20]])
    # Where an item stands does not matter either.
    shuffled = identity.copy()
    shuffled[6:36] = rng.permutation(shuffled[6:36])
    np.testing.assert_array_equal(
        shuffled[item_order(3, shuffled, starts)][6:36], identity[order][6:36]
    )


def test_item_order_puts_every_item_everywhere():
    # Ids that are not random, and seeds that follow each other.
    identity, starts = np.arange(6, dtype=np.uint64), np.array([0, 6])
    places = np.array([item_order(seed, identity, starts) for seed in range(1200)])
    for k in range(6):
        assert stats.chisquare(np.bincount(places[:, k], minlength=6)).pvalue > 1e-4


def label_pool(rng, sizes, shares):
    label = np.repeat(np.arange(len(sizes)), sizes)
    old = np.array([rng.choice(len(shares[0]), p=shares[i]) for i in label])
    counts = np.zeros((len(sizes), len(shares[0])))
    np.add.at(counts, (label, old), 1)
    return label, old, counts / counts.sum(axis=1, keepdims=True)


SHARES = [[0.7, 0.2, 0.1, 0.0], [0.05, 0.9, 0.0, 0.05], [0.25, 0.25, 0.25, 0.25]]


@pytest.mark.parametrize("churn", [0.0, 0.013, 0.05, 0.5, 1.0])
def test_churn_changes_exactly_its_share_to_other_classes(churn):
    label, old, shares = label_pool(np.random.default_rng(1), [301, 200, 150], SHARES)
    new = simulation.churned(old, label, shares, churn, 7, 3)
    assert new.shape == (7, 651)
    assert new.dtype == np.int16
    np.testing.assert_array_equal((new != old).sum(axis=1), round(churn * 651))
    assert new.min() >= 0
    assert new.max() < 4
    # Only to classes that the old API had predicted for the label.
    assert (shares[np.broadcast_to(label, new.shape), new] > 0).all()
    np.testing.assert_array_equal(new, simulation.churned(old, label, shares, churn, 7, 3))
    if 0 < churn < 1:
        assert len({tuple(row) for row in (new != old).tolist()}) == 7
        assert not np.array_equal(new, simulation.churned(old, label, shares, churn, 7, 4))


def test_churn_changes_any_item_and_in_proportion_to_the_other_classes():
    label, old, shares = label_pool(np.random.default_rng(2), [300, 200, 150], SHARES)
    new = simulation.churned(old, label, shares, 0.2, 400, 3)
    changed = new != old
    assert stats.chisquare(changed.sum(axis=0)).pvalue > 1e-4
    for i in range(3):
        for was in np.flatnonzero(shares[i]):
            some = (label == i) & (old == was)
            counts = np.bincount(new[:, some][changed[:, some]], minlength=4)
            others = shares[i].copy()
            others[was] = 0
            expected = counts.sum() * others / others.sum()
            assert counts[was] == 0
            kept = others > 0
            assert not counts[~kept].any()
            if kept.sum() > 1:
                assert stats.chisquare(counts[kept], expected[kept]).pvalue > 1e-4


def test_churn_of_a_label_that_had_one_prediction_goes_to_another():
    label, old = np.zeros(100, np.int64), np.full(100, 2)
    new = simulation.churned(old, label, np.array([[0.0, 0.0, 1.0]]), 0.3, 50, 0)
    np.testing.assert_array_equal((new != old).sum(axis=1), 30)
    assert stats.chisquare(np.bincount(new[new != 2], minlength=2)).pvalue > 1e-4


def whole_new_api(shares, runs=40):
    label, old, found = label_pool(np.random.default_rng(4), [300, 200, 150], shares)
    return label, old, found, simulation.churned(old, label, found, None, runs, 6)


def test_a_whole_new_api_predicts_each_label_as_the_old_one_did_but_other_items():
    label, old, shares, new = whole_new_api(SHARES)
    for i in range(3):
        counts = np.bincount(new[:, label == i].ravel(), minlength=4)
        kept = shares[i] > 0
        assert not counts[~kept].any()
        assert stats.chisquare(counts[kept], counts.sum() * shares[i][kept]).pvalue > 1e-4
        # Whatever the item's own prediction was.
        for was in np.flatnonzero(kept):
            counts = np.bincount(new[:, (label == i) & (old == was)].ravel(), minlength=4)[kept]
            assert stats.chisquare(counts, counts.sum() * shares[i][kept]).pvalue > 1e-4


def test_a_whole_new_api_predicts_alike_a_label_that_had_one_prediction():
    label, _, _, new = whole_new_api([[1.0, 0.0, 0.0, 0.0], *SHARES[1:]])
    np.testing.assert_array_equal(new[:, label == 0], 0)


def quality(calls, errors):
    return simulation.Quality(calls, np.asarray(errors, float), 0.0, 0.95, 0.95, 0.1, 0.1)


def test_calls_for_a_target_are_interpolated_on_logarithmic_scales():
    # On a line: error = 1/√calls.
    exact = [quality(n, [n**-0.5]) for n in (100, 400, 1000, 5000)]
    for calls in (100, 150, 399, 400, 401, 2345, 5000):
        assert simulation.calls_for_target(exact, calls**-0.5 * (1 + 1e-12)) == pytest.approx(calls)
    # Between two checks, of which only these count.
    found = [quality(100, [0.1]), quality(200, [0.08]), quality(800, [0.02]), quality(900, [0.01])]
    assert simulation.calls_for_target(found, 0.04) == pytest.approx(400)
    assert simulation.calls_for_target(found, 0.1) == 100
    assert simulation.calls_for_target(found, 0.5) == 100
    assert simulation.calls_for_target(found, 0.01) == pytest.approx(900)
    assert simulation.calls_for_target(found, 0.0099) is None


def test_calls_for_a_target_are_of_the_share_of_runs():
    runs = np.linspace(0, 1, 101)
    found = [quality(100, 0.1 * runs), quality(400, 0.05 * runs)]
    assert found[0].quantile(0.95) == pytest.approx(0.095)
    assert found[0].mean_squared == pytest.approx(np.mean((0.1 * runs) ** 2))
    assert simulation.calls_for_target(found, 0.095 / 2**0.5) == pytest.approx(200)
    assert simulation.calls_for_target(found, 0.08 / 2**0.5, 0.8) == pytest.approx(200)
    assert simulation.calls_for_target([quality(100, [0.1]), quality(400, [0.0])], 0.05) == 400


@pytest.mark.parametrize("method", METHODS)
def test_quality_is_counted_over_the_runs(method):
    pool = oracle.random_pool(np.random.default_rng(14), largest=60, strata=7, agreement=0.8)
    strata, items = pool.strata(), pool.random_items()
    rng = np.random.default_rng(1)
    own = np.where(rng.random((6, len(pool.items))) < 0.7, items.old, rng.integers(0, 4))
    items = replace(items, new=own)
    truths = simulation.true_matrices(strata, items)
    (found,) = qualities(strata, items, method, [70], 6, 2, confidence=0.9)
    (checked,) = simulate(strata, items, method, [70], 6, 2)
    estimates = summarise(method, strata, checked.sample)
    low, high = estimates.cells(0.9)
    lowest, highest = estimates.accuracies(0.9)
    bias, covered, cells, width = [], [], [], []
    occurs = sum(pool.matrix(own[r]) for r in range(6)) + pool.matrix(pool.old) > 0
    for r in range(6):
        truth, accuracy = pool.matrix(own[r]), pool.accuracy(own[r])
        np.testing.assert_allclose(truths[r], truth, atol=1e-12)
        assert found.errors[r] == pytest.approx(np.linalg.norm(estimates.matrix[r] - truth))
        bias.append(estimates.accuracy[r] - accuracy)
        covered.append(lowest[r] <= accuracy <= highest[r])
        for i, j in zip(*np.nonzero(occurs), strict=True):
            cells.append(low[r, i, j] - 1e-12 <= truth[i, j] <= high[r, i, j] + 1e-12)
            width.append(high[r, i, j] - low[r, i, j])
    assert found.calls == 70
    assert found.accuracy_bias == pytest.approx(np.mean(bias))
    assert found.accuracy_coverage == pytest.approx(np.mean(covered))
    assert found.cell_coverage == pytest.approx(np.mean(cells))
    assert found.accuracy_width == pytest.approx(np.mean(highest - lowest))
    assert found.cell_width == pytest.approx(np.mean(width))


def test_true_matrix_of_one_set_of_answers():
    pool = oracle.random_pool(np.random.default_rng(15))
    found = simulation.true_matrices(pool.strata(), pool.random_items())
    assert found.shape == (1, *pool.shape)
    np.testing.assert_allclose(found[0], pool.matrix(pool.new), atol=1e-12)


@pytest.fixture(scope="module")
def large_pool():
    """Three labels in three strata each, from sure to unsure, in which unsure items changed."""
    rng, stratum = np.random.default_rng(20), np.repeat(np.arange(9), 400)
    label, unsure = stratum // 3, stratum % 3
    wrong = rng.random(3600) < np.array([0.04, 0.15, 0.45])[unsure]
    old = np.where(wrong, (label + rng.integers(1, 4, 3600)) % 4, label)
    change = rng.random(3600) < np.array([0.02, 0.08, 0.25])[unsure]
    new = np.where(change, rng.integers(0, 4, 3600), old)
    rows = np.repeat(np.arange(3), 3).tolist()
    return oracle.Pool(stratum.tolist(), old.tolist(), new.tolist(), rows, (3, 4), [0, 1, 2])


RUNS = 400


@pytest.fixture(scope="module")
def course(large_pool):
    """What many runs of a method estimate of the pool, simulated once."""

    @cache
    def estimates(method, calls):
        strata, items = large_pool.strata(), large_pool.random_items()
        (checked,) = simulate(strata, items, method, [calls], RUNS, 1)
        return summarise(method, strata, checked.sample)

    return estimates


def complaints(pool, found):
    """What is wrong with the intervals and losses of these runs."""
    truth, accuracy = pool.matrix(pool.new), pool.accuracy(pool.new)
    low, high = found.accuracies()
    of_accuracy = np.mean((low <= accuracy) & (accuracy <= high))
    low, high = found.cells()
    of_cells = np.mean(((low <= truth) & (truth <= high))[:, truth > 0])
    squared = np.square(found.matrix - truth)
    wrong = {
        "coverage of the accuracy": not 0.92 <= of_accuracy <= 0.995,
        "coverage of the cells": not 0.92 <= of_cells <= 0.995,
        # Of 400 squares of normal variables the mean is within 0.2 of 1 in all but 5 of 1,000 cases.
        "variance of the accuracy": not 0.8 < np.square(found.accuracy - accuracy).mean() / found.accuracy_variance.mean() < 1.2,
        "variance of the cells": not 0.85 < squared.mean(axis=0).sum() / found.variance.mean(axis=0).sum() < 1.15,
        "loss": not 0.85 < squared.sum(axis=(1, 2)).mean() / found.loss.mean() < 1.15,
        "bias of the accuracy": abs(np.mean(found.accuracy) - accuracy) > 4 * np.sqrt(found.accuracy_variance.mean() / RUNS),
    }  # fmt: skip
    return [name for name, is_wrong in wrong.items() if is_wrong]


@pytest.mark.parametrize("method", ["plus", "proportional"])
def test_intervals_cover_as_often_as_they_say(large_pool, course, method):
    found = course(method, 700)
    assert complaints(large_pool, found) == []
    # And would be found out if a variance were wrong by a factor of two.
    for factor in (0.5, 2.0):
        wrong = replace(found, accuracy_variance=found.accuracy_variance * factor)
        assert "variance of the accuracy" in complaints(large_pool, wrong)
        wrong = replace(found, variance=found.variance * factor, loss=found.loss * factor)
        assert {"variance of the cells", "loss"} <= set(complaints(large_pool, wrong))
    halved = replace(found, accuracy_variance=found.accuracy_variance / 2)
    assert "coverage of the accuracy" in complaints(large_pool, halved)


@pytest.mark.parametrize("method", ["plus", "proportional"])
@pytest.mark.parametrize("calls", [150, 700])
def test_errors_are_below_their_bound_as_often_as_it_says(large_pool, course, method, calls):
    found = course(method, calls)
    errors = np.sqrt(np.square(found.matrix - large_pool.matrix(large_pool.new)).sum(axis=(1, 2)))
    assert np.mean(errors <= error_bound(found)) >= 0.93
    # Not by a bound that is far from what it bounds.
    assert np.median(error_bound(found)) < 2 * np.quantile(errors, 0.95)


def test_old_predictions_halve_the_loss_where_few_changed(course):
    plus, proportional = (course(m, 700).loss.mean() for m in ("plus", "proportional"))
    assert plus < 0.6 * proportional


def test_the_error_of_the_accuracy_is_the_formula():
    rng = np.random.default_rng(1)
    for _ in range(30):
        pool = oracle.random_pool(rng, labels=int(rng.integers(2, 6)), strata=8, largest=15)
        asked = oracle.random_asked(rng, pool, least=1)
        strata, sample = pool.strata(), oracle.sample_of(pool, [asked, asked])
        found = estimate(strata, sample, control=False)
        slow = oracle.starved_variance(pool, asked)
        fast = starved_variance(strata, sample, found.accuracy_unseen)
        assert fast == pytest.approx([slow, slow], rel=1e-9, abs=1e-15)
        whole = summarise("masa", strata, sample)
        np.testing.assert_array_equal(whole.accuracy_variance, fast)
        np.testing.assert_array_equal(whole.matrix, found.matrix)
        np.testing.assert_array_equal(whole.variance, found.variance)


# Without the widening: 0.85, 0.87, 0.88 and 0.91.
@pytest.mark.parametrize(("name", "api", "rows", "calls", "most_width"), [
    ("digit", "ibm", 2000, 200, 0.18),
    ("digit", "ibm", 2000, 500, 0.08),
    ("imdb", "amazon", 500, 50, 0.31),
    ("imdb", "amazon", 500, 250, 0.08),
])  # fmt: skip
def test_intervals_of_small_pools_cover(name, api, rows, calls, most_width):
    strata, items = oracle.recorded(name, api, rows=rows)
    (found,) = qualities(strata, items, "masa", [calls], 1000, 1)
    # Of a true .95 fewer than this come by chance three times of ten thousand.
    assert found.accuracy_coverage >= 0.95 - 3.4 * (0.95 * 0.05 / 1000) ** 0.5
    assert found.accuracy_width < most_width
