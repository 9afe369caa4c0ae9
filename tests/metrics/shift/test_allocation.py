"""The order and the number of calls: allocation to strata, and halves of a pool."""

import math

import numpy as np
import pytest

from slicebeam.metrics.shift import allocation as module
from slicebeam.metrics.shift.allocation import (
    batch_size,
    masa_order,
    smallest_budget,
    static_order,
    static_weights,
)
from slicebeam.metrics.shift.estimates import Sample, Strata, estimate, half_sizes, reliance
from slicebeam.metrics.shift.simulation import item_order, qualities, simulate
from tests.metrics.shift.test_strata import halves_of, sampled
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def adapted_order(weights, halves, sizes, calls):
    return module.weighted_order(weights, halves.asked, np.minimum(sizes, 1), sizes, calls)


def strata_of_sizes(sizes, predictions=3):
    sizes = np.asarray(sizes, np.int64)
    labels = np.arange(sizes.size)
    return Strata(labels, sizes, (sizes.size, predictions), np.full(sizes.size, -1, np.int64))


def whole_run(pool, rng, calls, *, batch):
    """Follow masa_order, each choice held against the published rule; the strata in order."""
    strata, slow = pool.strata(), oracle.AlgorithmOne(pool)
    sample = Sample.empty(1, strata.count, pool.shape[1])
    left = [list(rng.permutation(np.flatnonzero(np.array(pool.stratum) == s))) for s in range(10)]
    taken = []
    while len(taken) < calls:
        order = masa_order(strata, sample, batch)
        assert order.shape == (1, batch)
        assert order.dtype == np.int64
        ahead = [0] * strata.count
        answers = []
        for s in order[0].tolist():
            best = slow.best(ahead)
            if not best:
                assert s == -1
                answers.append(-1)
                continue
            assert s in best, (s, best, slow.N, ahead)
            ahead[s] += 1
            answers.append(pool.new[left[s].pop()])
        for s, answer in zip(order[0].tolist(), answers, strict=True):
            if s >= 0:
                slow.update(s, answer)
        sample.add(order, np.array([answers]))
        taken += order[0].tolist()
        assert sample.asked[0].tolist() == slow.N
        assert sample.new[0].tolist() == slow.H
        if max(slow.best([0] * strata.count), default=-1) == -1:
            break
    return taken, sample, slow


def test_incremental_rules_of_the_paper_are_the_closed_form_and_the_sample_variances():
    rng = np.random.default_rng(1)
    for _ in range(30):
        pool = oracle.random_pool(rng)
        # Items may be there twice: two answers a stratum at least.
        asked = oracle.random_asked(rng, pool) + list(pool.items)
        rng.shuffle(asked)
        slow = oracle.AlgorithmOne(pool)
        for item in asked:
            slow.update(pool.stratum[item], pool.new[item])
        sample = oracle.sample_of(pool, [asked])
        for s, items in enumerate(oracle.by_stratum(pool, asked)):
            answers = [pool.new[item] for item in items]
            each = [oracle.indicator(answers, j) for j in range(pool.shape[1])]
            N, squares = int(sample.asked[0, s]), int(sample.squares[0, s])
            assert len(items) == N
            assert squares == sum(sum(one) ** 2 for one in each)
            closed = (N - squares / N) / (N - 1)
            assert closed == pytest.approx(sum(map(oracle.variance, each)), abs=1e-12)
            assert slow.uncertainty[s] == pytest.approx(closed, abs=1e-12)
            np.testing.assert_allclose(slow.mean[s], np.mean(each, axis=1), atol=1e-12)
            # Equation 3.1: the share of ordered pairs that differ.
            pairs = sum(answers[a] != answers[b] for a in range(N) for b in range(N) if a != b) / (
                N * (N - 1)
            )
            assert closed == pytest.approx(pairs, abs=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 5, 64])
def test_masa_takes_every_step_of_algorithm_one(batch):
    for seed in range(12):
        rng = np.random.default_rng([batch, seed])
        pool = oracle.random_pool(rng, largest=25, agreement=rng.random())
        taken, sample, _ = whole_run(pool, rng, len(pool.items) + 3, batch=batch)
        # All items were asked, each once, and only then is there nothing left.
        np.testing.assert_array_equal(sample.asked[0], pool.sizes)
        made = [s for s in taken if s >= 0]
        assert len(made) == len(pool.items)
        assert taken[: len(made)] == made


def test_masa_in_runs_side_by_side_is_each_run_alone():
    rng = np.random.default_rng(3)
    pool = oracle.random_pool(rng, largest=30, strata=8)
    strata = pool.strata()
    runs = [oracle.random_asked(rng, pool, least=int(rng.integers(0, 4))) for _ in range(20)]
    together = masa_order(strata, oracle.sample_of(pool, runs), 40)
    for row, run in zip(together, runs, strict=True):
        alone = masa_order(strata, oracle.sample_of(pool, [run]), 40)
        np.testing.assert_array_equal(row, alone[0])


def test_a_shorter_batch_of_masa_is_the_beginning_of_a_longer_one_and_changes_nothing():
    rng = np.random.default_rng(4)
    pool = oracle.random_pool(rng, largest=30, strata=8)
    sample = oracle.sample_of(pool, [oracle.random_asked(rng, pool)])
    before = sample.asked.copy(), sample.squares.copy()
    long = masa_order(pool.strata(), sample, 60)
    np.testing.assert_array_equal(masa_order(pool.strata(), sample, 23), long[:, :23])
    np.testing.assert_array_equal(sample.asked, before[0])
    np.testing.assert_array_equal(sample.squares, before[1])


def test_batch_size_and_smallest_budget():
    assert [batch_size(n) for n in (0, 1, 255, 271, 272, 1600, 4095, 4096, 10**6)] == [
        *(16, 16, 16, 16, 17, 100, 255, 256, 256)
    ]
    assert smallest_budget(strata_of_sizes([1, 2, 3, 1, 50])) == 1 + 2 + 2 + 1 + 2


def greedy_step_is_right(weights, sizes, N, s):
    first = [t for t, n in enumerate(N) if n < min(2, sizes[t])]
    if first:
        return s in first
    score = [weights[t] / n if n < sizes[t] else -1.0 for t, n in enumerate(N)]
    return score[s] > 0 and score[s] >= max(score) * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_static_order_is_greedy(seed):
    rng = np.random.default_rng(seed)
    S = int(rng.integers(1, 9))
    sizes = rng.integers(1, 30, S)
    weights = rng.random(S) if seed % 3 else rng.integers(1, 4, S).astype(float)
    order = static_order(weights, sizes, int(sizes.sum()) + 10)
    assert order.size == sizes.sum()
    N = [0] * S
    for s in order.tolist():
        assert greedy_step_is_right(weights, sizes, N, s)
        N[s] += 1
    np.testing.assert_array_equal(N, sizes)
    for calls in (0, 1, S, 2 * S + 1, int(sizes.sum()) // 2, int(sizes.sum()) - 1):
        if 0 <= calls <= sizes.sum():
            np.testing.assert_array_equal(static_order(weights, sizes, calls), order[:calls])


def test_static_weights_are_the_formula():
    rng = np.random.default_rng(7)
    for _ in range(20):
        pool = oracle.random_pool(rng)
        M, sizes = len(pool.items), pool.sizes
        variances = []
        for s in range(len(sizes)):
            old = [pool.old[item] for item in pool.items if pool.stratum[item] == s]
            same = sum(a == b for a in old for b in old) / len(old) ** 2
            variances.append(1 - same)
        average = sum(m / M * v for m, v in zip(sizes, variances, strict=True))
        slow = [
            m / M * (0.5 * v + 0.5 * average) ** 0.5 for m, v in zip(sizes, variances, strict=True)
        ]
        found = static_weights("plus", pool.strata())
        np.testing.assert_allclose(found / found.sum(), np.array(slow) / sum(slow), rtol=1e-12)
        shares = np.array(sizes) / M
        found = static_weights("proportional", pool.strata(old=False))
        np.testing.assert_allclose(found / found.sum(), shares, rtol=1e-12)


def test_static_weights_of_old_predictions_that_never_vary_are_the_shares():
    pool = oracle.Pool([0, 0, 0, 1], [2, 2, 2, 1], [0, 1, 2, 1], [0, 1], (2, 3), [0, 1])
    found = static_weights("plus", pool.strata())
    assert (found > 0).all()
    np.testing.assert_allclose(found / found.sum(), [0.75, 0.25])


def test_looks_double():
    assert [module.next_look(s, 0) for s in (1, 32, 33, 100)] == [128, 128, 132, 400]
    assert [module.next_look(3, n) for n in (0, 127, 128, 255, 256, 5000)] == [
        *(128, 128, 256, 256, 512, 8192)
    ]


def test_halves_are_cut_alternately():
    assert half_sizes(np.array([1, 2, 5])).tolist() == [1, 0, 1, 1, 3, 2]
    # Of each stratum five items are at hand, in the order in which they are asked.
    assert module.half_limits(np.array([1, 2, 50]), 5).tolist() == [1, 0, 1, 1, 3, 2]


def test_the_first_calls_ask_as_the_static_order_does_by_turns_of_the_halves():
    pool = oracle.random_pool(np.random.default_rng(1), largest=30, strata=7)
    strata = pool.strata()
    found = module.static_halves(strata, strata.sizes, 70)
    order = module.static_order(module.static_weights("plus", strata), strata.sizes, 70)
    np.testing.assert_array_equal(found // 2, order)
    for s in range(strata.count):
        mine = found[order == s] % 2
        np.testing.assert_array_equal(mine, np.arange(mine.size) % 2)


def slow_weights(pool, asked, place, factor):
    """p·√(shrunk variance of the other half), item by item."""
    M = len(pool.items)
    shares = []
    for s, size in enumerate(pool.sizes):
        olds = [pool.old[i] for i in pool.items if pool.stratum[i] == s]
        shares.append(1 - sum((olds.count(j) / size) ** 2 for j in set(olds)))
    mean = sum(size / M * v for size, v in zip(pool.sizes, shares, strict=True))
    expected = [0.5 * v + 0.5 * mean for v in shares]
    variance = {}
    for s in range(len(pool.rows)):
        for h in (0, 1):
            mine = [i for i in asked if pool.stratum[i] == s and place[i] % 2 == h]
            values = [
                [(pool.new[i] == j) - factor * (pool.old[i] == j) for i in mine]
                for j in range(pool.shape[1])
            ]
            total = sum(float(np.var(v, ddof=1)) for v in values) if len(mine) > 1 else 0.0
            variance[s, h] = (max(len(mine) - 1, 0), total)
    weights = np.zeros((len(pool.rows), 2))
    adapted = min(1, max(0, (0.7 - factor) / 0.3))
    for h in (0, 1):
        told = [s for s in range(len(pool.rows)) if variance[s, h][0] > 0]
        seen = sum(pool.sizes[s] * variance[s, h][1] for s in told)
        ratio = seen / sum(pool.sizes[s] * expected[s] for s in told)
        for s in range(len(pool.rows)):
            degrees, own = variance[s, h]
            prior = (ratio or 1) * expected[s]
            shrunk = (degrees * own + 20 * prior) / (degrees + 20)
            used = adapted if ratio > 0 else 0
            weights[s, 1 - h] = pool.sizes[s] / M * math.sqrt(used * shrunk + (1 - used) * prior)
    return (weights / weights.sum(axis=0)).ravel()


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.5, 0.69, 0.9])
def test_weights_are_those_of_the_other_half_shrunk(factor):
    for seed in range(15):
        rng = np.random.default_rng(seed)
        pool = oracle.random_pool(rng, largest=20, strata=7, agreement=rng.random())
        asked, place, sample = sampled(rng, pool)
        found = module.adapted_weights(pool.strata(), sample.halves, np.array([factor]))
        np.testing.assert_allclose(found[0], slow_weights(pool, asked, place, factor), rtol=1e-10)


def test_weights_are_the_static_ones_where_no_answer_differs():
    pool = oracle.random_pool(np.random.default_rng(3), largest=20, strata=7, agreement=1.0)
    _, _, sample = sampled(np.random.default_rng(4), pool)
    found = module.adapted_weights(pool.strata(), sample.halves, np.ones(1))[0]
    static = module.static_weights("plus", pool.strata())
    np.testing.assert_allclose(found, np.repeat(static / static.sum(), 2))


def test_the_order_is_of_the_largest_weight_by_calls():
    rng = np.random.default_rng(5)
    for _ in range(10):
        pool = oracle.random_pool(rng, largest=25, strata=6)
        _, _, sample = sampled(rng, pool)
        limits = half_sizes(np.array(pool.sizes))
        weights = rng.random((1, limits.size)) + 0.01
        calls = int((limits - sample.halves.asked[0]).sum()) + 2
        order = adapted_order(weights, sample.halves, limits, calls)[0].tolist()
        counts = sample.halves.asked[0].astype(float).tolist()
        for chosen in order[:-2]:
            scores = [
                weights[0, c] / counts[c] if 0 < counts[c] < limits[c] else -1
                for c in range(limits.size)
            ]
            assert scores[chosen] == max(scores) > 0
            counts[chosen] += 1
        assert order[-2:] == [-1, -1]


def uneven_pool():
    """Strata with rare and frequent errors, which the old predictions tell nothing of."""
    rng = np.random.default_rng(9)
    rates = (0.03, 0.1, 0.5, 0.04)
    stratum = np.repeat(np.arange(4), 150)
    new = np.where(rng.random(600) < np.array(rates)[stratum], 1, 0)
    old = rng.integers(0, 2, 600)
    return oracle.Pool(stratum.tolist(), old.tolist(), new.tolist(), [0] * 4, (1, 2), [0])


@pytest.fixture
def early(monkeypatch):
    """Look at the answers early, and go by them wholly, so that a bias would show."""
    monkeypatch.setattr(module, "_FIRST_LOOK", 40)
    monkeypatch.setattr(module, "_PER_STRATUM", 1)
    monkeypatch.setattr(module, "_PRIOR_ANSWERS", 5)


def test_the_estimate_is_unbiased_where_that_of_a_rule_by_its_own_answers_is_not(early):
    pool, runs = uneven_pool(), 3000
    (checked,) = simulate(pool.strata(), pool.random_items(), "plus", [160], runs, 1)
    found = estimate(pool.strata(), checked.sample, control=False)
    truth = pool.accuracy(pool.new)
    error = found.accuracy.std() / runs**0.5
    assert abs(found.accuracy.mean() - truth) < 3.5 * error
    # The items went to the strata that vary, and each half by the other's answers.
    assert checked.sample.asked[:, 2].mean() > 1.5 * checked.sample.asked[:, 0].mean()
    # Its variance is about as large as it says, though both halves tell of it together.
    assert 0.9 < found.accuracy.var() / found.accuracy_variance.mean() < 1.2
    # What the same rule would do whose strata go by their own answers.
    own = estimate(pool.strata(), swapped(pool, runs), control=False)
    assert abs(own.accuracy.mean() - truth) > 5 * own.accuracy.std() / runs**0.5


def swapped(pool, runs):
    """Samples of which each half was asked by its own answers."""
    strata, new = pool.strata(), np.array(pool.new)
    random = np.random.default_rng(2)
    order = np.array(
        [np.concatenate([s * 150 + random.permutation(150) for s in range(4)]) for _ in range(runs)]
    )
    halves = Sample.empty(runs, 8, 2)

    def ask(chosen):
        for column in chosen.T:
            place = np.take_along_axis(halves.asked, column[:, None], axis=1)[:, 0]
            at = column // 2 * 150 + 2 * place + column % 2
            item = np.take_along_axis(order, at[:, None], axis=1)
            halves.add(column[:, None], new[item], np.array(pool.old)[item])

    ask(np.tile(module.static_halves(strata, strata.sizes, 40), (runs, 1)))
    for size in (40, 80):
        weights = module.adapted_weights(strata, halves, np.zeros(runs))
        own = weights.reshape(runs, 4, 2)[:, :, ::-1].reshape(runs, 8)
        ask(adapted_order(own, halves, half_sizes(strata.sizes), size))
    sample = Sample.empty(runs, 4, 2)
    for name in ("asked", "new", "old", "both"):
        counts = getattr(halves, name)
        getattr(sample, name)[:] = counts.reshape(runs, 4, 2, *counts.shape[2:]).sum(axis=2)
    return sample


def test_runs_side_by_side_are_each_run_by_itself(early):
    pool = uneven_pool()
    strata, items = pool.strata(), pool.random_items()
    starts = pool.starts()
    for checked in simulate(strata, items, "plus", [30, 40, 65, 100, 170], 3, 5):
        for r in range(3):
            order = item_order(5 + r, items.identity, starts)
            place = np.empty(600, int)
            place[order] = np.concatenate([np.arange(150)] * 4)
            asked, taken = [], [0] * 8

            def ask(parts, asked=asked, taken=taken, order=order):
                for part in parts:
                    asked.append(int(order[starts[part // 2] + 2 * taken[part] + part % 2]))
                    taken[part] += 1

            ask(module.static_halves(strata, strata.sizes, 40).tolist())
            for size in (40, 80, 10):
                sample = oracle.sample_of(pool, [asked])
                halves = halves_of(pool, asked, place)
                # At the first look the estimate is that of the halves too.
                sample.halves = halves
                weights = module.adapted_weights(strata, halves, reliance(strata, sample))
                limits = module.half_limits(strata.sizes, 170)
                ask(adapted_order(weights, halves, limits, size)[0].tolist())
            slow = oracle.sample_of(pool, [asked[: checked.calls]])
            for field in ("asked", "new", "old", "both", "squares"):
                np.testing.assert_array_equal(
                    getattr(checked.sample, field)[r], getattr(slow, field)[0], err_msg=field
                )
            if checked.calls > 40:
                own = halves_of(pool, asked[: checked.calls], place)
                np.testing.assert_array_equal(checked.sample.halves.new[r], own.new[0])
            else:
                assert checked.sample.halves is None


def test_a_whole_new_api_costs_no_more_than_by_masa():
    plus = oracle.recorded("digit", "google", "ibm", signed=True)
    masa = oracle.recorded("digit", "google", "ibm")
    (found,) = qualities(*plus, "plus", [1000], 250, 1)
    (other,) = qualities(*masa, "masa", [1000], 250, 1)
    # A static allocation errs by an eighth more.
    assert math.sqrt(found.mean_squared / other.mean_squared) < 1.05
    assert found.accuracy_coverage > 0.915
    assert found.cell_coverage > 0.95
