"""Ward's merging of weighted centres: against its definition, and against scipy."""

import itertools

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from slicebeam.metrics.discovery.mixture import ward

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


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
def test_of_equal_sizes_it_is_that_of_scipy(seed):
    centres = np.random.default_rng(seed).normal(size=(120, 4)) * 100 + 1e4
    tree = linkage(centres, "ward")
    for clusters in (1, 2, 17, 60, 119, 120):
        wanted = groups(fcluster(tree, clusters, "maxclust"))
        assert groups(ward(centres, np.ones(120), clusters)) == wanted
        assert groups(ward(centres, np.full(120, 7.5), clusters)) == wanted


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
