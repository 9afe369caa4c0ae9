"""AUC: placements against pairs and scikit-learn, the law's tails, coverage of the intervals."""

import itertools

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from sklearn.metrics import roc_auc_score

from slicebeam.metrics.significance import auc

pytestmark = pytest.mark.filterwarnings("error")
BUCKETS = 256


def bucketed(scores, labels, buckets=BUCKETS, edges=None):
    """Histogram [1, 2, buckets] of one slice."""
    if edges is None:
        edges = auc.bucket_edges(scores, buckets)
    at = np.searchsorted(edges, scores, side="right")
    return np.stack([np.bincount(at[labels == k], minlength=buckets) for k in (0, 1)])[None]


def population(true_auc, prevalence, size=20_000, seed=1, ratio=1.0):
    rng = np.random.default_rng(seed)
    labels = (np.arange(size) < prevalence * size).astype(np.int64)
    shift = np.sqrt(1.0 + ratio**2) * ndtri(true_auc)
    return bucketed(rng.normal(shift * labels, np.where(labels == 1, ratio, 1.0)), labels, 400)[0]


def joint_cells(true_auc, ratio=1.0):
    """Bucket shares of binormal scores and the exact AUC of them."""
    grid = np.linspace(-8.0, 12.0, 401)
    shift = np.sqrt(1.0 + ratio**2) * ndtri(true_auc)
    p0, p1 = np.diff(ndtr(grid)), np.diff(ndtr((grid - shift) / ratio))
    p0, p1 = p0 / p0.sum(), p1 / p1.sum()
    return p0, p1, float((p1 * (np.cumsum(p0) - 0.5 * p0)).sum())


def z_p(values, n1, n0, reference, N1, N0, tail):
    own = auc.Sides(reference._replace(auc=np.asarray(values)), n1, n0)
    return auc.z_p_value(own, auc.Sides(reference, N1, N0), tail)


@pytest.mark.parametrize("distinct", [2, 7, BUCKETS])
def test_auc_is_exact_when_each_score_has_a_bucket(distinct):
    rng = np.random.default_rng(distinct)
    scores = rng.choice(rng.normal(size=distinct), 3000)
    labels = (rng.random(3000) < ndtr(scores - 0.5)).astype(np.int64)
    ours = auc.placements(bucketed(scores, labels)).auc[0]
    assert ours == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize("buckets", [5, 40, 256])
def test_auc_of_buckets_is_within_its_error(buckets):
    rng = np.random.default_rng(buckets)
    labels = rng.integers(0, 2, 5000)
    scores = rng.normal(labels)
    histogram = bucketed(scores, labels, buckets)
    error = auc.discretisation_error(histogram)[0]
    assert abs(auc.placements(histogram).auc[0] - roc_auc_score(labels, scores)) <= error
    assert error < 1.0 / buckets


def test_placements_equal_all_pairs():
    histogram = np.random.default_rng(3).poisson(0.6, (5, 2, 30))
    ours = auc.placements(histogram)
    for row, (negatives, positives) in enumerate(histogram):
        s0, s1 = np.repeat(np.arange(30), negatives), np.repeat(np.arange(30), positives)
        phi = (s1[:, None] > s0) + 0.5 * (s1[:, None] == s0)
        a, b = phi.mean(1) - phi.mean(), phi.mean(0) - phi.mean()
        c = phi - phi.mean() - a[:, None] - b
        direct = auc.Placements(
            auc=phi.mean(),
            spread1=np.var(phi.mean(1)),
            spread0=np.var(phi.mean(0)),
            interaction=(c**2).mean(),
            skew1=(a**3).mean(),
            skew0=(b**3).mean(),
            mixed=(a[:, None] * b * c).mean(),
            mixed1=(a[:, None] * c**2).mean(),
            mixed0=(b * c**2).mean(),
        )
        for name, expected in direct._asdict().items():
            assert getattr(ours, name)[row] == pytest.approx(expected, abs=1e-13), name


def test_placements_do_not_depend_on_the_other_slices(monkeypatch):
    histogram = np.random.default_rng(4).poisson(0.3, (50, 2, 20))
    together = auc.placements(histogram)
    monkeypatch.setattr(auc, "ENTRIES_AT_ONCE", 100)
    for one, other in zip(together, auc.placements(histogram), strict=True):
        np.testing.assert_array_equal(one, other)
    assert auc.placements(histogram[:0]).auc.shape == (0,)


def edge_cases():
    rng = np.random.default_rng(5)
    normal = rng.normal(size=5000)
    yield "continuous", normal
    yield "infinite", np.concatenate([normal, [np.inf] * 40, [-np.inf] * 900])
    yield "constant", np.zeros(10)
    yield "one heavy value", np.where(rng.random(5000) < 0.7, 0.25, normal)
    yield "many heavy values", np.where(rng.random(5000) < 0.8, rng.integers(0, 90, 5000), normal)
    yield "skewed counts", rng.geometric(0.01, 5000).astype(float)
    yield "nothing", np.zeros(0)


@pytest.mark.parametrize("buckets", [1, 2, 3, 200, 256])
@pytest.mark.parametrize(("name", "scores"), list(edge_cases()))
def test_bucket_edges(name, scores, buckets):
    edges = auc.bucket_edges(scores, buckets)
    assert edges.size <= buckets - 1
    assert (edges[1:] > edges[:-1]).all()
    assert np.isin(edges, scores).all()
    values, counts = np.unique(scores, return_counts=True)
    if values.size <= buckets:
        assert edges.size == max(0, values.size - 1)
        return
    used = np.bincount(np.searchsorted(edges, scores, side="right"))
    assert (used > 0).all(), name
    if buckets >= 200:
        assert used.size >= 0.93 * buckets
        assert np.isin(counts[counts > 2 * scores.size / buckets], used).all()
    if name == "continuous":
        assert used.size == buckets
        assert used.max() - used.min() <= 2 or buckets <= 3


def test_heavy_values_leave_fine_buckets_to_the_others():
    rng = np.random.default_rng(6)
    scores = np.where(rng.random(20_000) < 0.7, 0.25, rng.normal(size=20_000))
    at = np.searchsorted(auc.bucket_edges(scores, BUCKETS), scores, side="right")
    assert np.bincount(at[scores != 0.25]).max() < 1.2 * 6000 / (BUCKETS - 2)


def test_far_tail_is_not_too_light():
    # A normal z has 5 and 20 times as many of these.
    p0, p1, _ = joint_cells(0.95)
    reference = auc.placements(np.rint(np.stack([p0, p1]) * 1e10).astype(np.int64)[None])
    rng = np.random.default_rng(7)
    found, draws = np.zeros(2), 60_000
    scores = np.arange(p0.size)
    for _ in range(6):
        ones = rng.choice(scores, (draws // 6, 10), p=p1)
        zeros = rng.choice(scores, (draws // 6, 60), p=p0)
        wins = sum(
            (ones[:, [k]] > zeros).sum(axis=1) + 0.5 * (ones[:, [k]] == zeros).sum(axis=1)
            for k in range(10)
        )
        p = z_p(wins / 600.0, 10, 60, reference, 10**10, 10**10, "lower")
        found += (p <= 1e-3).sum(), (p <= 1e-4).sum()
    assert 0.5 < found[0] / (draws * 1e-3) < 1.5
    assert found[1] / (draws * 1e-4) < 2.7


def test_moments_are_those_of_all_subsets_of_either_class(monkeypatch):
    """The variance is exact, the skewness to terms of 1/n³."""
    skewness = []
    monkeypatch.setattr(auc, "_beta_tails", lambda z, skew, *_: skewness.append(skew) or (z, z))
    ones, zeros = np.array([1, 2, 2, 5, 7, 7, 3, 0]), np.array([0, 1, 2, 3, 3, 6, 1])
    wins = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    subsets = [list(itertools.combinations(range(size), 3)) for size in wins.shape]
    values = [wins[np.ix_(*pair)].mean() for pair in itertools.product(*subsets)]
    whole = np.stack([np.bincount(scores, minlength=8) for scores in (zeros, ones)])
    z = z_p(values, 3, 3, auc.placements(whole[None]), 8, 7, "upper")
    assert (z.mean(), z.var()) == pytest.approx((0, 1), abs=1e-12)
    assert (z**3).mean() == pytest.approx(skewness[0], abs=0.02)


def test_large_slices_have_the_normal_z():
    whole = population(0.8, 0.4) * 5000
    N0, N1 = (int(size) for size in whole.sum(axis=1))
    reference = auc.placements(whole[None])
    n1 = n0 = 10**6
    variance = reference.spread1 / n1 * (1 - n1 / N1) + reference.spread0 / n0 * (1 - n0 / N0)
    z = np.array([-6.0, -3.0, 0.0, 2.0, 6.0])
    p = z_p(reference.auc + z * np.sqrt(variance), n1, n0, reference, N1, N0, "lower")
    np.testing.assert_allclose(p, ndtr(z), rtol=0.1)


@pytest.mark.parametrize(("true_auc", "prevalence", "n", "ratio"), [
    (0.55, 0.4, 20, 1.0), (0.75, 0.7, 20, 1.0), (0.9, 0.1, 100, 1.0), (0.98, 0.4, 50, 1.0),
    (0.75, 0.1, 200, 1.5), (0.9, 0.4, 1000, 0.6),
])  # fmt: skip
def test_coverage_of_the_value(true_auc, prevalence, n, ratio):
    rng = np.random.default_rng(10)
    p0, p1, truth = joint_cells(true_auc, ratio)
    n1 = round(n * prevalence)
    slices = np.stack([rng.multinomial(n - n1, p0, 2000), rng.multinomial(n1, p1, 2000)], axis=1)
    own = auc.placements(slices)
    low, high = auc.value_interval(auc.Sides(own, n1, n - n1), 0.95)
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert ((low <= own.auc) & (own.auc <= high)).all()
    assert 0.93 <= ((low <= truth) & (truth <= high)).mean() <= 0.995


@pytest.mark.parametrize(
    ("share", "slice_auc"), [(0.05, 0.7), (0.4, 0.85), (0.8, 0.75), (0.8, 0.97)]
)
def test_coverage_of_the_delta(share, slice_auc):
    # The positives of the slice score lower, or higher, than those outside.
    rng = np.random.default_rng(11)
    p0, p1, truth = joint_cells(slice_auc)
    _, outside1, _ = joint_cells(0.85)
    N1, N0 = 600, 1400
    n1, n0 = round(share * N1), round(share * N0)
    mixed1 = share * p1 + (1 - share) * outside1
    delta = truth - (mixed1 * (np.cumsum(p0) - 0.5 * p0)).sum()
    inside = np.stack([rng.multinomial(n0, p0, 1500), rng.multinomial(n1, p1, 1500)], axis=1)
    rest = [rng.multinomial(N0 - n0, p0, 1500), rng.multinomial(N1 - n1, outside1, 1500)]
    whole = auc.placements(inside + np.stack(rest, axis=1))
    own = auc.placements(inside)
    low, high = auc.delta_interval(auc.Sides(own, n1, n0), auc.Sides(whole, N1, N0), 0.95)
    observed = own.auc - whole.auc
    assert ((low <= observed) & (observed <= high)).all()
    assert 0.93 <= ((low <= delta) & (delta <= high)).mean() <= 0.98


def test_degenerate_slices():
    whole = np.zeros((2, 6), dtype=np.int64)
    whole[0, :4], whole[1, 2:] = 10, 10
    zeros, ones = np.zeros(6, dtype=np.int64), np.ones(6, dtype=np.int64)
    perfect0, perfect1 = np.repeat([3, 0], 3), np.repeat([0, 3], 3)
    constant = np.eye(6, dtype=np.int64)[2] * 5
    slices = [
        (zeros, zeros), (ones, zeros), (zeros, ones), (constant, constant),
        (perfect0, perfect1), (perfect1, perfect0), tuple(whole),
    ]  # fmt: skip
    histogram = np.array(slices)
    n0, n1 = histogram.sum(axis=2).T
    own, reference = auc.placements(histogram), auc.placements(whole[None])
    np.testing.assert_array_equal(own.auc[:6], [np.nan, np.nan, np.nan, 0.5, 1.0, 0.0])
    np.testing.assert_array_equal(own.spread1[3:6], 0.0)
    np.testing.assert_array_equal(np.isnan(auc.discretisation_error(histogram))[:4], [1, 1, 1, 0])
    for tail in ("both", "lower", "upper"):
        p = z_p(own.auc, n1, n0, reference, 40, 40, tail)
        assert ((p > 0) & (p <= 1)).all()
        np.testing.assert_array_equal(p[[0, 1, 2, 6]], 1.0)
    low, high = auc.value_interval(auc.Sides(own, n1, n0), 0.95)
    np.testing.assert_array_equal(low[[0, 1, 2, 5]], 0.0)
    np.testing.assert_array_equal(high[[0, 1, 2, 4]], 1.0)
    assert 0.4 < low[4] < 1.0
    assert high[5] == pytest.approx(1.0 - low[4])
    low, high = auc.delta_interval(auc.Sides(own, n1, n0), auc.Sides(reference, 40, 40), 0.95)
    np.testing.assert_array_equal([low[6], high[6]], 0.0)
    np.testing.assert_array_equal(low[:3], -1.0)
    np.testing.assert_array_equal(high[:3], 1.0)
    assert (low[3:6] < high[3:6]).all()


@pytest.mark.parametrize("row", [3, 4, 5])
def test_no_other_auc_is_possible(row):
    patterns = {3: ([0, 9, 0], [0, 4, 0]), 4: ([9, 0, 0], [0, 2, 2]), 5: ([0, 0, 9], [2, 2, 0])}
    whole = auc.placements(np.array([patterns[row]]))
    for tail in ("both", "lower", "upper"):
        assert z_p(whole.auc, 2, 3, whole, 4, 9, tail) == 1.0
    assert z_p(whole.auc, 2, 3, whole, 4, 9, "lower") == 1.0
    assert z_p(whole.auc, 4, 9, whole, 4, 9, "upper") == 1.0


def test_tiny_and_nearly_whole_slices_have_finite_p_values():
    whole = population(0.9, 0.3, size=60)
    N0, N1 = whole.sum(axis=1)
    n1, n0 = (grid.ravel() for grid in np.meshgrid(np.arange(N1 + 1), np.arange(N0 + 1)))
    reference = auc.placements(whole[None])
    for value in (0.0, 0.5, 1.0):
        values = np.full(n1.shape, value)
        for tail in ("both", "lower", "upper"):
            p = z_p(values, n1, n0, reference, N1, N0, tail)
            assert ((p >= 0) & (p <= 1)).all()
