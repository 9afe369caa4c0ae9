"""Principal components, and Ward's clusters, against their definitions."""

import itertools
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.decomposition import PCA

from slicebeam.metrics.discovery import pca as module
from slicebeam.metrics.discovery.mixture import ward
from slicebeam.metrics.discovery.pca import Pca, PcaSums, components, projected, sums
from slicebeam.metrics.errors import InputError
from tests.refusals import refuses

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def points(seed, n=500, D=12, offset=0.0, dtype=np.float64):
    """Correlated dimensions, of which the variances along the axes are well apart."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(D, D)))[0]
    z = rng.normal(size=(n, D)) * 1.5 ** -np.arange(D) @ turn
    return (z + offset).astype(dtype)


def assert_same_sums(found, wanted, rtol=1e-10):
    assert found.n == wanted.n
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=rtol, atol=1e-13)
    largest = np.abs(wanted.scatter).max()
    np.testing.assert_allclose(found.scatter, wanted.scatter, rtol=0, atol=rtol * largest)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize("d", [1, 5, 12])
def test_components_are_those_of_scikit_learn(d, offset, dtype):
    z = points(1, offset=offset, dtype=dtype)
    theirs = PCA(d, svd_solver="full").fit(z.astype(np.float64))
    found = components(sums(z), d)
    signs = np.sign((found.axes * theirs.components_).sum(axis=1))
    np.testing.assert_allclose(found.axes, signs[:, None] * theirs.components_, atol=1e-8)
    np.testing.assert_allclose(found.mean, theirs.mean_, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.variances, theirs.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(
        found.variances / found.total_variance, theirs.explained_variance_ratio_, rtol=1e-8
    )
    coordinates = projected(z, found)
    assert coordinates.dtype == np.float32
    wanted = theirs.transform(z.astype(np.float64)) * signs
    np.testing.assert_allclose(coordinates, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_sums_do_not_depend_on_how_rows_are_cut(offset, dtype):
    n = 2 * module._BLOCK + 333
    z = points(2, n, 6, offset, dtype)
    exact = z.astype(np.longdouble)
    mean = exact.mean(axis=0)
    direct = PcaSums(n, mean.astype(float), ((exact - mean).T @ (exact - mean)).astype(float))
    whole = sums(z)
    assert_same_sums(whole, direct, 1e-12)
    rng = np.random.default_rng(0)
    cuts = [[1], [module._BLOCK], [0, 5, 5, n]]
    cuts += [np.sort(rng.integers(0, n, size)).tolist() for size in (3, 10, 100)]
    for cut in cuts:
        parts = [sums(z[a:b]) for a, b in pairwise([0, *cut, n])]
        joined = reduce(add, parts, PcaSums.zero(6))
        assert_same_sums(joined, direct, 1e-12)
        np.testing.assert_array_equal(joined.scatter, reduce(add, parts, PcaSums.zero(6)).scatter)
        assert_same_sums(reduce(add, parts[::-1]), direct, 1e-12)
        a, b = components(joined, 4), components(whole, 4)
        np.testing.assert_allclose(a.axes, b.axes, atol=1e-9)
    np.testing.assert_allclose(whole.scatter / (n - 1), np.cov(z.T.astype(float)), rtol=1e-8)


def test_points_in_other_directions_get_the_same_signs():
    z = points(3)
    found = components(sums(z), 12)
    assert (found.axes[np.arange(12), np.abs(found.axes).argmax(axis=1)] > 0).all()
    # The eigenvectors of the same covariance, so but for their signs.
    np.testing.assert_allclose(components(sums(-z), 12).axes, found.axes, atol=1e-9)
    for order in (slice(None, None, -1), np.random.default_rng(0).permutation(len(z))):
        np.testing.assert_allclose(components(sums(z[order]), 12).axes, found.axes, atol=1e-9)
    # Of two entries alike in size the first decides, also where rounding made the other larger.
    line = np.arange(-5.0, 6.0)
    for slope in (1.0, 1 + 1e-13, 1 - 1e-13):
        axis = components(sums(np.outer(line, [1.0, -slope])), 1).axes[0]
        np.testing.assert_allclose(axis, [np.sqrt(0.5), -np.sqrt(0.5)], atol=1e-12)


def test_coordinates_are_the_same_to_the_byte_however_rows_are_cut():
    rng = np.random.default_rng(5)
    turn = np.linalg.qr(rng.normal(size=(37, 37)))[0]
    # Far out along an axis that is left out: so much cancels that single precision shows the order
    # in which products are added.
    z = rng.normal(size=(6000, 36)) @ turn[1:] + 3e7 * rng.normal(size=(6000, 1)) * turn[0]
    found = Pca(np.zeros(37), turn[1:12], np.ones(11), 37.0)
    whole = projected(z, found)
    for edges in ([0, 1, 2050, 6000], [0, *np.sort(rng.choice(6000, 40)).tolist(), 6000]):
        cut = [projected(z[a:b], found) for a, b in pairwise(edges)]
        assert np.concatenate(cut).tobytes() == whole.tobytes()


def test_directions_in_which_nothing_varies_are_left_out():
    z = points(5, D=5)
    wide = np.hstack([z, np.full((500, 3), 7.7), z[:, :1] + z[:, 1:2]])
    found = components(sums(wide), 9)
    assert found.axes.shape == (5, 9)
    assert found.variances.sum() == pytest.approx(found.total_variance)
    np.testing.assert_allclose(found.axes[:, 5:8], 0, atol=1e-12)
    back = projected(wide, found) @ found.axes + found.mean
    np.testing.assert_allclose(back, wide, atol=1e-6)
    assert components(sums(z[:3]), 5).axes.shape == (2, 5)


@pytest.mark.parametrize("z", [np.zeros((9, 4)), np.full((9, 4), 0.1, np.float32), points(6, n=1)])
def test_points_that_do_not_vary_have_one_axis_and_no_variance(z):
    found = components(sums(z), 3)
    assert found.axes.shape == (1, z.shape[1])
    assert np.linalg.norm(found.axes) == pytest.approx(1)
    assert found.total_variance == pytest.approx(0, abs=1e-16)
    np.testing.assert_allclose(projected(z, found), 0, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_with_its_row(wrong, dtype):
    z = points(7, module._BLOCK + 60, 4, dtype=dtype)
    fitted = components(sums(z), 2)
    row = module._BLOCK + 50
    z[row, 3] = wrong
    for call in (lambda: sums(z, first_row=1000), lambda: projected(z, fitted, first_row=1000)):
        refuses(InputError, f"row {1000 + row} has {wrong} in dimension 3; emb", call)
    large = points(7, 50, 4)
    large[20, 1] = -1e200
    refuses(InputError, r"row 20 has -1e\+200 in dimension 1", sums, large)


def groups(labels):
    return {frozenset(np.flatnonzero(labels == one).tolist()) for one in np.unique(labels)}


def within(points, weights):
    """Return the weighted sum of squares about the weighted mean."""
    mean = np.average(points, axis=0, weights=weights)
    return float((weights[:, None] * (points - mean) ** 2).sum())


def by_definition(centres, sizes, clusters):
    """Merge the pair whose union has the least more squares within, of all pairs, again and again."""
    sets = [frozenset([number]) for number in range(len(centres))]

    def squares(one):
        rows = sorted(one)
        return within(centres[rows], sizes[rows])

    while len(sets) > clusters:
        a, b = min(
            itertools.combinations(sets, 2),
            key=lambda pair: squares(pair[0] | pair[1]) - squares(pair[0]) - squares(pair[1]),
        )
        sets = [one for one in sets if one not in (a, b)] + [a | b]
    return set(sets)


@pytest.mark.parametrize("clusters", [1, 2, 5, 9, 13, 14])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cheapest_pair_is_merged_each_time(seed, clusters):
    rng = np.random.default_rng(seed)
    centres, sizes = rng.normal(size=(14, 3)), rng.gamma(0.5, 40, 14) + 0.5
    found = ward(centres, sizes, clusters)
    assert groups(found) == by_definition(centres, sizes, clusters)
    # Sizes decide: without them it is another clustering, but near the ends.
    if clusters == 5:
        assert groups(found) != by_definition(centres, np.ones(14), clusters)


@pytest.mark.parametrize("seed", range(4))
def test_of_integer_sizes_it_is_that_of_scipy_on_repeated_points(seed):
    rng = np.random.default_rng(seed)
    centres, sizes = rng.normal(size=(40, 5)), np.floor(rng.gamma(0.6, 15, 40)) + 1
    tree = linkage(np.repeat(centres, sizes.astype(int), axis=0), "ward")
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int)
    for clusters in (2, 10, 20, 33):
        wanted = fcluster(tree, clusters, "maxclust")
        assert np.unique(wanted).size == clusters
        assert groups(ward(centres, sizes, clusters)) == groups(wanted[first])
    assert groups(ward(centres, sizes, 10)) != groups(ward(centres, np.ones(40), 10))


def test_clusters_are_numbered_by_their_first_groups_and_nothing_given_is_changed():
    centres = np.array([[5.0], [0], [9], [0.1], [5.1]])
    sizes = np.array([1.0, 2, 3, 4, 5])
    before = centres.copy(), sizes.copy()
    assert ward(centres, sizes, 3).tolist() == [0, 1, 2, 1, 0]
    np.testing.assert_array_equal(centres, before[0])
    np.testing.assert_array_equal(sizes, before[1])
    for clusters in (5, 6, 100):
        assert ward(centres, sizes, clusters).tolist() == [0, 1, 2, 3, 4]
    assert ward(centres[:1], sizes[:1], 1).tolist() == [0]
    assert (
        ward(np.zeros((4, 2)), np.ones(4), 2).tolist()
        == ward(np.zeros((4, 2)), np.ones(4), 2).tolist()
    )
    assert np.unique(ward(np.zeros((4, 2)), np.ones(4), 2)).tolist() == [0, 1]
