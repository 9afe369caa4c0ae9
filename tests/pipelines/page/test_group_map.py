"""The map of a discovery's groups."""

from types import SimpleNamespace

import numpy as np

from slicebeam.pipelines.page.group_map import centres


def mixture(components, dimensions):
    rng = np.random.default_rng(4)
    return SimpleNamespace(
        weights=rng.random(components),
        means=rng.normal(size=(components, dimensions)) * np.arange(1, dimensions + 1),
        variances=rng.random((components, dimensions)),
    )


def test_centres_lie_along_the_axes_that_hold_most():
    given = mixture(12, 5)
    places, shown = centres(given)
    # Examples drawn from the mixture have the variance that the share is of.
    rng = np.random.default_rng(5)
    weights = given.weights / given.weights.sum()
    drawn = rng.choice(12, 400_000, p=weights)
    examples = rng.normal(given.means[drawn], np.sqrt(given.variances[drawn]))
    between = np.cov(given.means.T, aweights=weights, bias=True)
    values = np.linalg.eigvalsh(between)[::-1]
    assert np.isclose(shown, values[:2].sum() / examples.var(axis=0).sum(), rtol=0.01)
    own = np.cov(places.T, aweights=weights, bias=True)
    assert np.allclose(own, np.diag(values[:2]), atol=1e-9)


def test_a_map_of_one_dimension_is_a_line():
    places, shown = centres(mixture(4, 1))
    assert places.shape == (4, 2)
    assert not places[:, 1].any()
    assert 0 < shown < 1
