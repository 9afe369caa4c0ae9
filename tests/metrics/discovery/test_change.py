from functools import reduce
from itertools import pairwise, permutations
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import jaccard_score

from slicebeam.metrics.discovery import change as module
from slicebeam.metrics.discovery.change import (
    ChangeSums,
    OverlapSums,
    of_partition,
    of_slices,
    z_score,
)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
KINDS = ("zero-one", "real", "offset", "constant")
CONSTANT_SHARE = 0.1


def changes(rng, n, kind):
    if kind == "zero-one":
        return rng.integers(-1, 2, n).astype(np.float64)
    if kind == "constant":
        return np.full(n, CONSTANT_SHARE)
    return rng.normal(size=n) + (1e4 if kind == "offset" else 0.0)


def population(seed, n, S, kind="real"):
    """Slices of all sizes, of which the first is empty and the second is all examples."""
    rng = np.random.default_rng(seed)
    members = rng.random((S, n)) < rng.random((S, 1))
    members[:1] = False
    members[1:2] = True
    return members, changes(rng, n, kind), rng


def pieces(rng, n):
    """Borders of chunks, some of them of no example."""
    return pairwise([0, *np.sort(rng.integers(0, n + 1, rng.integers(0, 9))).tolist(), n])


def assessed(members, D):
    """Return the sums of slices, and of all examples as the last one."""
    return ChangeSums.of(np.concatenate([members, np.ones((1, D.size), bool)]), D)


def of_components(components, K, D):
    return ChangeSums.of(components == np.arange(K)[:, None], D)


def assert_are(found, groups):
    """Compare sums with those of the values in each slice, in extended precision."""
    for s, D in enumerate(groups):
        exact = D.astype(np.longdouble)
        mean = exact.mean() if D.size else 0.0
        size = np.abs(D).max(initial=0.0)
        assert found.n[s] == D.size
        assert found.improved[s] == (D > 0).sum()
        assert found.degraded[s] == (D < 0).sum()
        assert found.n[s] - found.improved[s] - found.degraded[s] == (D == 0).sum()
        assert found.total[s] == pytest.approx(float(exact.sum()), abs=1e-12 * size * D.size)
        scatter = float(np.square(exact - mean).sum())
        assert found.scatter[s] == pytest.approx(scatter, rel=1e-10, abs=1e-20 * size**2 * D.size)
        assert found.mean[s] == pytest.approx(float(mean), abs=1e-12 * size)
        variance = float(np.var(exact)) if D.size else 0.0
        assert found.variance[s] == pytest.approx(variance, rel=1e-10, abs=1e-20 * size**2)


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 60), st.integers(0, 7), st.sampled_from(KINDS))
def test_sums_are_those_of_each_slice_however_rows_are_cut(seed, n, S, kind):
    members, D, rng = population(seed, n, S, kind)
    groups = [D[inside] for inside in members]
    assert_are(ChangeSums.of(members, D), groups)
    parts = [ChangeSums.of(members[:, a:b], D[a:b]) for a, b in pieces(rng, n)]
    assert_are(reduce(add, parts, ChangeSums.zero(S)), groups)
    assert_are(reduce(add, parts[::-1]), groups)


@pytest.mark.parametrize("kind", KINDS)
def test_large_chunks_lose_no_more_digits_than_small_ones(kind):
    n = 100_000
    members, D, rng = population(3, n, 4, kind)
    groups = [D[inside] for inside in members]
    assert_are(ChangeSums.of(members, D), groups)
    parts = [ChangeSums.of(members[:, a : a + 97], D[a : a + 97]) for a in range(0, n, 97)]
    assert_are(reduce(add, parts), groups)
    components = rng.integers(0, 5, n)
    assert_are(of_components(components, 5, D), [D[components == k] for k in range(5)])


def test_of_zero_one_losses_totals_are_exact():
    D = np.tile([1.0, -1.0, 0.0, 1.0, 1.0, -1.0, -1.0], 31)
    members = np.vstack([D > 0, D < 0, D == 0])
    found = reduce(add, [assessed(members[:, i : i + 3], D[i : i + 3]) for i in range(0, 217, 3)])
    assert found.total[-1] == 0.0


def test_of_one_model_the_difference_is_that_of_the_mean_loss_less_the_loss():
    members, loss, _ = population(5, 200, 6)
    found = assessed(members, -loss)
    wanted = [(loss.mean() - loss[inside]).mean() if inside.any() else 0.0 for inside in members]
    np.testing.assert_allclose(found.difference[:-1], wanted, atol=1e-14)
    assert found.difference[0] == 0
    variance = [np.var(loss[inside]) if inside.any() else 0.0 for inside in members]
    np.testing.assert_allclose(found.variance[:-1], variance, rtol=1e-12)


def test_the_z_score_is_the_formula():
    # McNemar-like counts by hand: 30 improved, 10 degraded of 100; σ² = .4 − .04.
    found = ChangeSums.of(np.ones((1, 100), bool), np.repeat([1.0, -1.0, 0.0], [30, 10, 60]))
    z = z_score(found.mean, found.variance, found.n)
    np.testing.assert_allclose(z, 0.2 / ((0.36 + 0.05) / 100) ** 0.5, rtol=1e-13)
    np.testing.assert_allclose(z_score(-found.mean, found.variance, found.n), z)
    np.testing.assert_array_equal(z_score([0.0, 1.0], [0.0, 0.0], [0, 20]), [0.0, 20.0])


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 80), st.integers(0, 6))
def test_overlaps_are_scikit_learns_jaccard(seed, n, S):
    members, _, rng = population(seed, n, S)
    parts = [OverlapSums.of(members[:, a:b]) for a, b in pieces(rng, n)]
    found = reduce(add, parts, OverlapSums.zero(S))
    np.testing.assert_array_equal(found.both, members.astype(int) @ members.T.astype(int))
    for s in range(S):
        for t in range(s + 1):
            union = (members[s] | members[t]).any()
            wanted = jaccard_score(members[s], members[t]) if union else 0.0
            assert found.jaccard[s, t] == pytest.approx(wanted, abs=1e-15)
    np.testing.assert_array_equal(found.jaccard, found.jaccard.T)


def test_overlaps_are_counted_beyond_a_block():
    members = np.random.default_rng(0).random((3, 2 * module._BLOCK + 5)) < 0.5
    wanted = members.astype(np.int64) @ members.T.astype(np.int64)
    np.testing.assert_array_equal(OverlapSums.of(members).both, wanted)


def regression(columns, D):
    """r² of least squares with an intercept, and the rank without it: directly on the examples."""
    X = np.column_stack([np.ones(D.size), *columns])
    fitted, _, rank, _ = np.linalg.lstsq(X, D, rcond=1e-10)
    residual = D - X @ fitted
    total = np.square(D - D.mean()).sum()
    return 1 - (residual @ residual) / total if np.ptp(D) else np.nan, rank - 1


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(3, 80), st.integers(1, 9), st.sampled_from(KINDS[:3]))
def test_coverage_of_a_partition_is_that_of_a_regression(seed, n, K, kind):
    _, D, rng = population(seed, n, 1, kind)
    D[0] += 1
    components = rng.integers(0, K, n)
    r2, rank = regression((components == np.arange(K)[:, None]).astype(float), D)
    parts = [of_components(components[a:b], K + 2, D[a:b]) for a, b in pieces(rng, n)]
    found = of_partition(reduce(add, parts))
    assert found.r2 == pytest.approx(r2, abs=1e-9, nan_ok=True)
    assert not found.r2 > 1
    assert found.expected == pytest.approx(rank / (n - 1), abs=1e-15)


def explained(found, overlap):
    n, total, scatter = int(found.n[-1]), float(found.total[-1]), float(found.scatter[-1])
    return of_slices(overlap.both, found.total[:-1], n, total, scatter)


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(3, 80), st.integers(0, 9), st.sampled_from(KINDS[:3]))
def test_coverage_of_overlapping_slices_is_that_of_a_regression(seed, n, S, kind):
    members, D, rng = population(seed, n, S, kind)
    D[0] += 1
    if S > 4:
        # One slice twice, and one that follows from two others.
        members[3], members[4] = members[2], members[2] ^ members[1]
    r2, rank = regression(members.astype(float), D)
    cut = list(pieces(rng, n))
    both = reduce(add, [assessed(members[:, a:b], D[a:b]) for a, b in cut])
    found = explained(both, reduce(add, [OverlapSums.of(members[:, a:b]) for a, b in cut]))
    assert found.r2 == pytest.approx(r2, abs=1e-9, nan_ok=True)
    assert found.expected == pytest.approx(rank / (n - 1), abs=1e-15)


def test_the_null_expectation_is_the_mean_over_all_orders():
    orders = np.array(list(permutations(np.array([0.0, 1.0, 1.0, -2.0, 0.5, 7.0]))))
    components = np.array([0, 0, 3, 3, 3, 1])
    found = [of_partition(of_components(components, 4, order)) for order in orders]
    assert np.mean([each.r2 for each in found]) == pytest.approx(2 / 5, abs=1e-12)
    assert found[0].expected == pytest.approx(2 / 5)
    members = np.array([[1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [1, 0, 1, 0, 1, 1], [0] * 6], bool)
    overlap = OverlapSums.of(members)
    each = [explained(assessed(members, order), overlap) for order in orders]
    # The third is what the second is not.
    assert np.mean([one.r2 for one in each]) == pytest.approx(2 / 5, abs=1e-12)
    assert each[0].expected == pytest.approx(2 / 5)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9, 1e-9, -1 / 3])
def test_without_variance_there_is_no_coverage(value):
    n = 10_001
    components = np.arange(n) % 3
    D = np.full(n, value)
    parts = [of_components(components[a:][:77], 3, D[a:][:77]) for a in range(0, n, 77)]
    assert np.isnan(of_partition(reduce(add, parts)).r2)
    members = components == np.arange(3)[:, None]
    both = reduce(add, [assessed(members[:, a:][:, :77], D[a:][:77]) for a in range(0, n, 77)])
    found = explained(both, OverlapSums.of(members))
    assert np.isnan(found.r2)
    assert found.expected == pytest.approx(2 / (n - 1))


def test_coverage_of_few_examples():
    for n in (0, 1):
        D, components, members = np.ones(n), np.zeros(n, np.int64), np.ones((2, n), bool)
        for found in (
            of_partition(of_components(components, 3, D)),
            explained(assessed(members, D), OverlapSums.of(members)),
        ):
            assert np.isnan(found.r2)
            assert found.expected == 0
    two = of_partition(of_components(np.array([0, 1]), 2, np.array([0.0, 1.0])))
    assert two == (1.0, 1.0)
