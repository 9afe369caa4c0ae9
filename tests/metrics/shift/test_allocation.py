import numpy as np
import pytest

from slicebeam.metrics.shift.allocation import (
    batch_size,
    masa_order,
    smallest_budget,
    static_order,
    static_weights,
)
from slicebeam.metrics.shift.strata import Sample, Strata
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def strata_of_sizes(sizes, predictions=3):
    sizes = np.asarray(sizes, np.int64)
    labels = np.arange(sizes.size)
    return Strata(labels, sizes, (sizes.size, predictions), np.full(sizes.size, -1, np.int64))


def whole_run(pool, rng, calls, *, batch):
    """Follow masa_order, each choice held against the published rule; the strata in order."""
    strata = pool.strata()
    slow = oracle.AlgorithmOne(pool)
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


def test_inside_a_batch_the_number_asked_is_counted_up():
    # With one size and nothing known, counting up is what makes a batch go round the strata.
    strata = strata_of_sizes([50, 50, 50])
    order = masa_order(strata, Sample.empty(1, 3, 3), 30)[0]
    np.testing.assert_array_equal(np.bincount(order), [10, 10, 10])
    assert set(order[:6].tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(np.bincount(order[:6]), [2, 2, 2])


def test_a_stratum_in_which_answers_vary_is_asked_more():
    strata = strata_of_sizes([1000, 1000])
    sample = Sample.empty(1, 2, 3)
    same, varied = np.zeros(30, np.int64), np.arange(30) % 3
    sample.add(np.repeat([[0, 1]], 30, axis=1), np.concatenate([same, varied])[None])
    order = masa_order(strata, sample, 20)[0]
    assert (order == 1).sum() > 15


@pytest.mark.parametrize("calls", [3, 9, 40])
def test_masa_without_replacement_goes_nowhere_beyond_what_there_is(calls):
    strata = strata_of_sizes([1, 4, 2, 9])
    order = masa_order(strata, Sample.empty(3, 4, 3), calls)
    for row in order:
        made = row[row >= 0]
        assert made.size == min(calls, 16)
        assert (np.bincount(made, minlength=4) <= strata.sizes).all()
        assert (row[made.size :] == -1).all()


@pytest.mark.slow
def test_masa_comes_near_to_the_best_allocation():
    rng = np.random.default_rng(5)
    p = np.array([0.5, 0.3, 0.2])
    shares = np.array([[0.98, 0.02, 0.0], [0.7, 0.2, 0.1], [0.34, 0.33, 0.33]])
    strata = strata_of_sizes((1e6 * p).astype(int))
    wanted = p * np.sqrt(1 - np.square(shares).sum(axis=1))
    wanted /= wanted.sum()
    sample = Sample.empty(1, 3, 3)
    apart = {}
    while sample.calls[0] < 40_000:
        size = max(6, int(sample.calls[0]) // 8)
        order = masa_order(strata, sample, size)
        sample.add(order, np.array([[rng.choice(3, p=shares[s]) for s in order[0]]]))
        apart[int(sample.calls[0])] = np.abs(sample.asked[0] / sample.calls[0] - wanted).max()
    early = apart[min(calls for calls in apart if calls >= 300)]
    late = apart[max(apart)]
    assert late < 0.5 * early
    assert late < 0.05
    # Where the rule itself is at rest: p/N·(σ + N^-¼) is the same everywhere.
    N = sample.asked[0]
    score = p / N * (np.sqrt(1 - np.square(shares).sum(axis=1)) + N**-0.25)
    np.testing.assert_allclose(score, score.mean(), rtol=0.05)


def test_batch_size():
    assert [batch_size(n) for n in (0, 1, 255, 271, 272, 1600, 4095, 4096, 10**6)] == [
        *(16, 16, 16, 16, 17, 100, 255, 256, 256)
    ]


def test_smallest_budget_is_two_a_stratum_or_all():
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


def test_static_order_gives_each_stratum_its_weight():
    weights, sizes = np.array([0.6, 0.3, 0.1]), np.array([10**6] * 3)
    N = np.bincount(static_order(weights, sizes, 1000))
    np.testing.assert_allclose(N, 1000 * weights, atol=2)


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


def test_methods_without_static_weights_say_so():
    pool = oracle.random_pool(np.random.default_rng(0))
    with pytest.raises(ValueError, match="masa"):
        static_weights("masa", pool.strata())
    with pytest.raises(ValueError, match="old predictions"):
        static_weights("plus", pool.strata(old=False))
