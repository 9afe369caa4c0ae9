import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from slicebeam.metrics.shift.estimates import (
    Sample,
    Strata,
    Subpools,
    cell_p_values,
    counts_of,
    estimate,
    reliance,
    summarise,
)
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
FIELDS = (
    *("matrix", "variance", "unseen", "accuracy", "accuracy_variance"),
    *("loss", "loss_error", "loss_unseen"),
)
# Strata of one, four, three and two items; class 1 is never predicted and class 3 never a label.
TINY = oracle.Pool(
    stratum=[0, 1, 1, 1, 1, 2, 2, 2, 3, 3],
    old=[0, 0, 0, 2, 3, 2, 2, 3, 0, 2],
    new=[2, 0, 2, 2, 0, 2, 3, 3, 0, 0],
    rows=[0, 0, 1, 2],
    shape=(3, 4),
    right=[0, 1, 2],
)


def pools(seed, count=40):
    rng = np.random.default_rng(seed)
    for number in range(count):
        labels, predictions = [(3, 4), (2, 2), (4, 3), (1, 3), (2, 6)][number % 5]
        pool = oracle.random_pool(
            rng,
            labels=labels,
            predictions=predictions,
            strata=labels + int(rng.integers(0, 5)),
            agreement=[0.0, 0.5, 0.9, 1.0][number % 4],
        )
        yield rng, pool


def assert_is(found, slow, run=0):
    for field in FIELDS:
        # Of a variance that is 0 but for rounding, the root is taken.
        atol = 1e-8 if field == "loss_error" else 1e-13
        np.testing.assert_allclose(
            getattr(found, field)[run], getattr(slow, field), rtol=1e-9, atol=atol, err_msg=field
        )


@pytest.mark.parametrize("control", [False, True])
def test_estimates_are_those_of_the_indicator_variables(control):
    relied = []
    for rng, pool in pools([control, False]):
        runs = [oracle.random_asked(rng, pool) for _ in range(3)]
        found = estimate(pool.strata(), oracle.sample_of(pool, runs), control=control)
        for run, asked in enumerate(runs):
            lam = oracle.reliance(pool, asked) if control else 0.0
            assert found.reliance[run] == pytest.approx(lam, abs=1e-12)
            assert_is(found, oracle.estimate(pool, asked, found.reliance[run]), run)
            relied.append(lam)
    if control:
        # The cases are not all of one kind.
        assert min(relied) == 0
        assert max(relied) == 1
        assert sum(0.05 < lam < 0.95 for lam in relied) > 20


def test_one_item_of_a_larger_stratum_has_no_variance_of_its_own():
    asked = [0, 1, 5, 8]
    found = estimate(TINY.strata(), oracle.sample_of(TINY, [asked]))
    assert_is(found, oracle.estimate(TINY, asked, 0.0))
    assert found.loss[0] == 0
    # What widens the intervals does not depend on a variance.
    assert (found.cell_errors()[0] > 0).all()


def test_without_old_predictions_nothing_is_relied_on():
    for rng, pool in pools(5, 10):
        asked = oracle.random_asked(rng, pool)
        found = estimate(pool.strata(old=False), oracle.sample_of(pool, [asked], old=False))
        assert found.reliance[0] == 0
        assert_is(found, oracle.estimate(pool, asked, 0.0))


def test_when_every_item_was_asked_the_matrix_is_the_true_one_and_certain():
    for _, pool in pools(6, 20):
        everything = oracle.sample_of(pool, [list(pool.items)])
        for method in ("plus", "proportional", "masa"):
            found = summarise(method, pool.strata(), everything)
            np.testing.assert_allclose(found.matrix[0], pool.matrix(pool.new), atol=1e-12)
            assert found.accuracy[0] == pytest.approx(pool.accuracy(pool.new), abs=1e-12)
            assert found.accuracy_variance[0] == found.loss[0] == found.loss_error[0] == 0
            assert found.loss_unseen[0] == 0
            assert not found.variance.any()
            assert not found.unseen.any()
            low, high = found.cells()
            np.testing.assert_allclose(low, high, atol=1e-15)


def test_parts_of_the_estimate_are_unbiased_over_all_samples():
    samples = oracle.all_samples(TINY, [1, 2, 2, 1])
    assert len(samples) == 6 * 3 * 2
    strata, counted = TINY.strata(), oracle.sample_of(TINY, samples)
    asked = counted.asked[:, :, None]
    new = (counted.new / asked).mean(axis=0)
    old = (counted.old / asked - strata.old_shares).mean(axis=0)
    for s in range(4):
        members = [i for i in TINY.items if TINY.stratum[i] == s]
        true = [np.mean(oracle.indicator([TINY.new[i] for i in members], j)) for j in range(4)]
        np.testing.assert_allclose(new[s], true, atol=1e-12)
    np.testing.assert_allclose(old, 0, atol=1e-12)
    # So with a λ that does not depend on the sample, whatever it is.
    for lam in (0.0, 0.3, 1.0):
        slow = [oracle.estimate(TINY, each, lam) for each in samples]
        mean = np.mean([each.matrix for each in slow], axis=0)
        np.testing.assert_allclose(mean, TINY.matrix(TINY.new), atol=1e-12)
        assert np.mean([each.accuracy for each in slow]) == pytest.approx(TINY.accuracy(TINY.new))


@pytest.mark.parametrize("sizes", [[1, 2, 2, 2], [1, 3, 2, 2], [1, 2, 3, 2]])
@pytest.mark.parametrize("control", [False, True])
def test_variances_are_unbiased_over_all_samples(sizes, control):
    samples = oracle.all_samples(TINY, sizes)
    strata, counted = TINY.strata(), oracle.sample_of(TINY, samples)
    found = estimate(strata, counted, control=control)
    if control:
        # λ varies from sample to sample: what is held fixed is its value in one of them.
        lam = 0.6
        slow = [oracle.estimate(TINY, each, lam) for each in samples]
        matrix, variance, accuracy, accuracy_variance, loss = (
            np.array([getattr(each, field) for each in slow])
            for field in ("matrix", "variance", "accuracy", "accuracy_variance", "loss")
        )
    else:
        matrix, variance, loss = found.matrix, found.variance, found.loss
        accuracy, accuracy_variance = found.accuracy, found.accuracy_variance
    truth = TINY.matrix(TINY.new)
    np.testing.assert_allclose(matrix.mean(axis=0), truth, atol=1e-12)
    np.testing.assert_allclose(variance.mean(axis=0), matrix.var(axis=0), atol=1e-12)
    assert accuracy_variance.mean() == pytest.approx(accuracy.var(), abs=1e-12)
    squared = np.square(matrix - truth).sum(axis=(1, 2))
    assert loss.mean() == pytest.approx(squared.mean(), abs=1e-12)
    assert loss.mean() > 1e-3


def exact_bias(pairs, shares, N):
    """Mean of Ĉ − C, and its root mean square, over all samples of N from pairs (old, new)."""
    counts = np.array(
        [
            (*each, N - sum(each))
            for each in itertools.product(range(N + 1), repeat=len(pairs) - 1)
            if sum(each) <= N
        ]
    )
    chance = stats.multinomial(N, shares).pmf(counts)
    assert chance.sum() == pytest.approx(1)
    sample = Sample.empty(len(counts), 1, 3)
    truth, known = np.zeros(3), np.zeros((1, 3), np.int64)
    for (old, new), share, count in zip(pairs, shares, counts.T, strict=True):
        sample.asked[:, 0] += count
        sample.old[:, 0, old] += count
        sample.new[:, 0, new] += count
        if old == new:
            sample.both[:, 0, old] += count
        truth[new] += share
        known[0, old] += round(1000 * share)
    sample.squares[:] = np.square(sample.new).sum(axis=2)
    zero = np.zeros(1, np.int64)
    strata = Strata(zero, known.sum(axis=1), (1, 3), zero, known)
    apart = estimate(strata, sample).matrix[:, 0] - truth
    return chance @ apart, np.sqrt(chance @ np.square(apart))


def test_estimating_the_reliance_biases_little_and_ever_less():
    found = [
        exact_bias([(0, 0), (1, 1), (1, 2), (2, 2)], [0.5, 0.1, 0.2, 0.2], N) for N in (8, 16, 32)
    ]
    biases = [np.linalg.norm(bias) for bias, _ in found]
    assert biases[0] > 0.01
    # As 1/N, where the error itself shrinks as 1/√N.
    assert 1.7 < biases[0] / biases[1] < 2.3
    assert 1.9 < biases[1] / biases[2] < 2.2
    assert all((np.abs(bias) < 0.13 * error).all() for bias, error in found)


def test_reliance_is_what_makes_the_estimated_loss_least():
    inside = 0
    for rng, pool in pools(9, 60):
        asked = oracle.random_asked(rng, pool)
        strata = pool.strata()
        lam = reliance(strata, counts_of(strata, oracle.sample_of(pool, [asked])))[0]
        found = optimize.minimize_scalar(
            lambda x, pool=pool, asked=asked: oracle.estimated_loss(pool, asked, x),
            bounds=(0, 1),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert oracle.estimated_loss(pool, asked, lam) <= found.fun + 1e-9
        if 0.01 < lam < 0.99:
            inside += 1
            assert lam == pytest.approx(found.x, abs=1e-5)
    assert inside > 15


def test_cell_intervals_are_the_formula():
    clipped = 0
    for rng, pool in pools(10, 20):
        runs = [oracle.random_asked(rng, pool) for _ in range(2)]
        found = estimate(pool.strata(), oracle.sample_of(pool, runs))
        for confidence in (0.8, 0.95, 0.999):
            z = stats.norm.ppf(1 - (1 - confidence) / 2)
            low, high = found.cells(confidence)
            lowest, highest = found.accuracies(confidence)
            for run, asked in enumerate(runs):
                slow = oracle.estimate(pool, asked, found.reliance[run])
                for i, j in np.ndindex(*pool.shape):
                    share = sum(pool.label(k) == i for k in pool.items) / len(pool.items)
                    half = z * math.sqrt(slow.variance[i, j] + 3 * slow.unseen[i] ** 2)
                    bounds = slow.matrix[i, j] - half, slow.matrix[i, j] + half
                    clipped += bounds[0] < 0 < bounds[1] < share
                    assert low[run, i, j] == pytest.approx(min(max(bounds[0], 0), share), abs=1e-9)
                    assert high[run, i, j] == pytest.approx(min(max(bounds[1], 0), share), abs=1e-9)
                variance = slow.accuracy_variance
                if variance < 1e-12:
                    variance = 3 * sum(c**2 for c in slow.unseen)
                half = z * math.sqrt(variance)
                # The root of what is 0 but for rounding.
                assert lowest[run] == pytest.approx(max(0, slow.accuracy - half), abs=1e-7)
                assert highest[run] == pytest.approx(min(1, slow.accuracy + half), abs=1e-7)
    assert clipped > 20


def test_a_cell_changed_exactly_where_its_interval_leaves_out_none():
    seen = set()
    for rng, pool in pools(11, 40):
        # Only what differs from an old API that was another one altogether is seen to change.
        pool.new = [(o + 1) % pool.shape[1] if rng.random() < 0.8 else o for o in pool.old]
        found = estimate(pool.strata(), oracle.sample_of(pool, [oracle.random_asked(rng, pool)]))
        shift = found.matrix - pool.strata().old_matrix
        errors = found.cell_errors()
        for level in (0.05, 0.5):
            half = stats.norm.isf(level / 2) * errors
            outside = (shift - half > 0) | (shift + half < 0)
            changed = cell_p_values(shift, errors) < level
            # Where an item of every stratum is left, errors are not zero.
            kept = errors > 1e-9
            np.testing.assert_array_equal(changed[kept], outside[kept])
            seen |= set(outside[kept].tolist())
    assert seen == {False, True}


def test_p_values_rank_far_out_and_are_one_where_nothing_is_left_to_change():
    p = cell_p_values(np.array([0.0, 0.0, 0.1, 30.0, -35.0]), np.array([0.0, 1.0, 0.0, 1.0, 1.0]))
    assert p[0] == p[1] == 1
    assert p[2] == 0
    assert 0 < p[4] < p[3] < 1e-190


def test_p_values_of_a_pool_asked_whole_in_which_nothing_changed_are_one():
    for _, pool in pools(12, 40):
        pool.new = list(pool.old)
        everything = oracle.sample_of(pool, [list(pool.items)])
        for method in ("plus", "proportional", "masa"):
            found = summarise(method, pool.strata(), everything)
            p = cell_p_values(found.matrix - pool.strata().old_matrix, found.cell_errors())
            np.testing.assert_array_equal(p, 1)


def slices_of(pool, groups):
    """Slices that are given as lists of items."""
    sizes = np.array([len(group) for group in groups])
    labels, old = np.zeros((len(groups), pool.shape[0])), np.zeros((len(groups), *pool.shape))
    for g, group in enumerate(groups):
        for item in group:
            labels[g, pool.label(item)] += 1 / sizes[g]
            old[g, pool.label(item), pool.old[item]] += 1 / sizes[g]
    return Subpools(sizes / len(pool.items), labels, old)


def sample_within(pool, asked, groups):
    """What one run counted of each slice, with the numbers asked of the whole pool."""
    within = oracle.sample_of(pool, [[item for item in asked if item in group] for group in groups])
    within.asked[:] = oracle.sample_of(pool, [asked]).asked
    return within


def matrix_within(pool, group, predictions):
    found = np.zeros(pool.shape)
    for item in group:
        found[pool.label(item), predictions[item]] += 1 / len(group)
    return found


@pytest.mark.parametrize("control", [False, True])
def test_slices_are_estimated_by_ratios_within_each_label(control):
    relied, unseen = [], 0
    for rng, pool in pools(14, 20):
        asked = oracle.random_asked(rng, pool)
        some = [k for k in pool.items if rng.random() < 0.5] or [0]
        groups = [list(pool.items), some, [k for k in pool.items if pool.old[k] == pool.old[0]]]
        within, given = sample_within(pool, asked, groups), slices_of(pool, groups)
        found = estimate(pool.strata(), within, slices=given, control=control)
        # A slice of all items is the whole pool.
        assert_is(found, oracle.estimate(pool, asked, found.reliance[0]))
        np.testing.assert_allclose(found.label_share, given.labels)
        for g, group in enumerate(groups):
            lam = found.reliance[g]
            relied.append(lam)
            slow = oracle.slice_estimate(pool, asked, set(group), lam)
            for field, value in vars(slow).items():
                np.testing.assert_allclose(
                    getattr(found, field)[g], value, atol=1e-12, err_msg=field
                )
            assert found.loss[g] == pytest.approx(slow.variance.sum(), abs=1e-12)
            labels = {pool.label(k) for k in group}
            unseen += len(labels - {pool.label(k) for k in asked if k in group})
    assert unseen > 0
    if control:
        assert sum(0.05 < lam < 0.95 for lam in relied) > 10
    else:
        assert not any(relied)


def test_slices_are_unbiased_over_all_samples_in_which_they_were_seen():
    group, truth = [1, 3, 5, 6, 8], matrix_within(TINY, [1, 3, 5, 6, 8], TINY.new)
    found = {1: [], 2: []}
    for asked in oracle.all_samples(TINY, [1, 2, 2, 1]):
        within, given = sample_within(TINY, asked, [group]), slices_of(TINY, [group])
        matrix = estimate(TINY.strata(), within, slices=given, control=False).matrix[0]
        # Labels of a single stratum: their ratios are means.
        for i, rows in found.items():
            if any(TINY.label(k) == i and k in group for k in asked):
                rows.append(matrix[i])
    assert [len(rows) for rows in found.values()] == [36, 18]
    for i, rows in found.items():
        np.testing.assert_allclose(np.mean(rows, axis=0), truth[i], atol=1e-12)


@pytest.mark.parametrize("control", [False, True])
def test_variances_of_slices_are_those_of_many_samples(control):
    rng, stratum = np.random.default_rng(15), np.repeat(np.arange(4), 300)
    old = np.where(rng.random(1200) < 0.3, rng.integers(0, 3, 1200), stratum // 2)
    new = np.where(rng.random(1200) < 0.15, rng.integers(0, 3, 1200), old)
    pool = oracle.Pool(stratum.tolist(), old.tolist(), new.tolist(), [0, 0, 1, 1], (2, 3), [0, 1])
    group = np.flatnonzero(rng.random(1200) < np.array([0.2, 0.6, 0.4, 0.3])[stratum]).tolist()
    truth, given = matrix_within(pool, group, pool.new), slices_of(pool, [group])
    squared, variance, accuracy, of_accuracy = [], [], [], []
    for _ in range(400):
        asked = np.concatenate(
            [300 * s + rng.choice(300, n, replace=False) for s, n in enumerate((90, 60, 60, 90))]
        ).tolist()
        within = sample_within(pool, asked, [set(group)])
        found = estimate(pool.strata(), within, slices=given, control=control)
        squared.append(np.square(found.matrix[0] - truth))
        variance.append(found.variance[0])
        accuracy.append(found.accuracy[0])
        of_accuracy.append(found.accuracy_variance[0])
    true_accuracy = truth[0, 0] + truth[1, 1]
    assert 0.85 < np.sum(squared) / np.sum(variance) < 1.15
    assert 0.8 < np.mean(np.square(np.array(accuracy) - true_accuracy)) / np.mean(of_accuracy) < 1.2
    assert abs(np.mean(accuracy) - true_accuracy) < 4 * np.sqrt(np.mean(of_accuracy) / 400)
