import pickle
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from slicebeam.metrics.discovery import mixture as em
from slicebeam.metrics.discovery.mixture import (
    CategoricalHead,
    Mixture,
    MixtureSums,
    NormalHead,
    initial,
    is_converged,
    log_responsibilities,
    most_likely,
    sums,
    updated,
)
from slicebeam.metrics.errors import InputError
from tests.fitted_mixture import fit
from tests.oracles import mixture_oracle as oracle
from tests.refusals import refuses

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
HEADS = {"none": (), "zero-one": (2,), "three classes, real": (3, None), "real, real": (None, None)}


def points(seed, n=240, d=5, offset=0.0, dtype=np.float64, clusters=4):
    """Overlapping clusters, and a zero-one, a three-class and a real-valued loss that go with them."""
    rng = np.random.default_rng(seed)
    of = rng.integers(clusters, size=n)
    z = rng.normal(size=(clusters, d))[of] * 1.5 + rng.normal(size=(n, d)) + offset
    wrong = (rng.random(n) < 0.1 + 0.8 * of / clusters).astype(np.int64)
    classes = np.minimum(rng.integers(3, size=n), of)
    real = rng.normal(of, 0.5)
    return z.astype(dtype), {2: wrong, 3: classes, None: real}


def start(z, losses, classes, K=4, loss_weight=1.0, seed=0):
    """A start that k-means did not choose, in which all responsibilities are mixed."""
    rng = np.random.default_rng(seed)
    heads = [
        NormalHead(rng.normal(1, 1, K), rng.uniform(0.1, 2, K))
        if C is None
        else CategoricalHead(rng.dirichlet(np.ones(C), K))
        for C in classes
    ]
    return Mixture(
        rng.dirichlet(np.full(K, 5.0)),
        z[rng.choice(len(z), K, replace=False)].astype(float),
        rng.uniform(0.5, 3, (K, z.shape[1])),
        tuple(heads),
        loss_weight,
    )


def case(name, seed, loss_weight=1.0, **more):
    z, losses = points(seed, **more)
    chosen = [losses[C] for C in HEADS[name]]
    return z, chosen, start(z, chosen, HEADS[name], loss_weight=loss_weight)


def kept(heads, *names):
    """What the heads keep, under those of the names that each has."""
    values = [getattr(head, name, None) for head in heads for name in names]
    return [value for value in values if value is not None]


def fields(found):
    heads = kept(found.heads, "counts", "first", "second")
    return [found.n, found.log_likelihood, found.sizes, found.first, found.second, *heads]


def parameters(mixture):
    heads = kept(mixture.heads, "shares", "means", "variances")
    return [mixture.weights, mixture.means, mixture.variances, *heads]


def assert_close(found, wanted, rtol=1e-9, atol=1e-11):
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=str(number))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss_weight", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("name", HEADS)
def test_responsibilities_are_those_of_the_densities(name, loss_weight, dtype):
    z, losses, mixture = case(name, 1, loss_weight, n=60, dtype=dtype)
    r, ln = oracle.e_step(oracle.of(mixture), z, losses)
    found, likelihood = log_responsibilities(mixture, z, losses)
    assert found.shape == r.shape
    np.testing.assert_allclose(np.exp(found), r, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(likelihood, ln, rtol=1e-12)
    # Not all of one component: else a formula of half the terms would do.
    assert (r.max(axis=1) < 0.99).any()
    assert np.unique(r.argmax(axis=1)).size > 1


@pytest.mark.parametrize("name", HEADS)
def test_without_losses_the_embeddings_alone_decide(name):
    z, losses, mixture = case(name, 2, 10.0, n=80)
    bare = Mixture(mixture.weights, mixture.means, mixture.variances)
    r, ln = oracle.e_step(oracle.of(bare), z, [])
    for found, likelihood in (
        log_responsibilities(mixture, z),
        log_responsibilities(case(name, 2, 0.0, n=80)[2], z, losses),
    ):
        np.testing.assert_allclose(np.exp(found), r, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(likelihood, ln, rtol=1e-12)
    if losses:
        assert np.abs(np.exp(log_responsibilities(mixture, z, losses)[0]) - r).max() > 0.1


def test_a_point_far_from_all_components_still_belongs_to_one():
    mixture = Mixture(np.full(3, 1 / 3), np.eye(3), np.full((3, 3), 1e-6))
    log_r, ln = log_responsibilities(mixture, np.array([[1e6, 0, 0], [0, 0, 1e8]]))
    assert log_r.argmax(axis=1).tolist() == [0, 2]
    np.testing.assert_allclose(np.exp(log_r).sum(axis=1), 1)
    np.testing.assert_allclose(ln, [-0.5e18, -0.5e22], rtol=1e-5)


def test_odds_are_of_the_most_likely_component_against_all_others():
    z, losses, mixture = case("zero-one", 26)
    log_r = log_responsibilities(mixture, z, losses)[0]
    r = np.exp(log_r)
    component, odds = most_likely(log_r)
    np.testing.assert_array_equal(component, r.argmax(axis=1))
    assert np.unique(component).size == 4
    best = r.max(axis=1)
    others = r.sum(axis=1) - best
    assert odds.dtype == np.float64
    np.testing.assert_allclose(odds, np.log(best) - np.log(others), rtol=1e-7, atol=1e-12)
    assert odds.min() < 0 < odds.max()
    tied, none = most_likely(np.log(np.array([[0.2, 0.4, 0.4], [0.25, 0.5, 0.25]])))
    assert tied.tolist() == [1, 1]
    np.testing.assert_allclose(none, [np.log(0.4 / 0.6), 0], atol=1e-15)


def test_odds_tell_apart_what_has_a_responsibility_of_one():
    # Where r is 1 to the last digit, and that of the others below the least double.
    mixture = Mixture(np.array([0.5, 0.25, 0.25]), np.array([[0.0], [100], [100]]), np.ones((3, 1)))
    z = np.array([[0.0], [-10], [30], [49], [-1e-9]])
    log_r, _ = log_responsibilities(mixture, z)
    assert (np.exp(log_r[:, 0]) == 1).all()
    component, odds = most_likely(log_r)
    assert (component == 0).all()
    np.testing.assert_allclose(odds, 5000 - 100 * z[:, 0], rtol=1e-12)
    # Single precision would not know the first from the last.
    assert odds[0] != odds[4]
    assert np.float32(odds[0]) == np.float32(odds[4])


def test_odds_are_finite_also_of_one_component_and_beyond_all_doubles():
    largest = np.finfo(np.float64).max
    alone = Mixture(np.ones(1), np.zeros((1, 2)), np.ones((1, 2)))
    component, odds = most_likely(log_responsibilities(alone, np.array([[0.0, 1], [1e5, -3]]))[0])
    assert component.tolist() == [0, 0]
    assert odds.tolist() == [largest, largest]
    # Others whose density is no double, however it is written.
    component, odds = most_likely(np.array([[0.0, -np.inf, -np.inf], [-1e308, -np.inf, 0.0]]))
    assert component.tolist() == [0, 2]
    assert odds.tolist() == [largest, 1e308]
    none = most_likely(np.empty((0, 3)))
    assert [each.shape for each in none] == [(0,), (0,)]


@pytest.mark.parametrize(("K", "d"), [(2, 1), (5, 3), (7, 19), (50, 64)])
def test_what_a_point_belongs_to_is_the_same_to_the_byte_however_rows_are_cut(K, d):
    rng = np.random.default_rng(K)
    z = rng.normal(size=(5000, d)).astype(np.float32) * 2
    mixture = start(z, [], (), K=K)
    whole = log_responsibilities(mixture, z)
    wanted = most_likely(whole[0])
    for edges in (
        np.arange(0, 5001, 1000),
        np.r_[0, 1, 2, 1026, 5000],
        np.r_[0, np.sort(rng.choice(5000, 60)), 5000],
    ):
        cut = [log_responsibilities(mixture, z[a:b])[0] for a, b in pairwise(edges)]
        assert np.concatenate(cut).tobytes() == whole[0].tobytes()
        found = [most_likely(one) for one in cut]
        for number in range(2):
            joined = np.concatenate([one[number] for one in found])
            assert joined.tobytes() == wanted[number].tobytes()


@pytest.mark.parametrize("loss_weight", [0.0, 1.0])
@pytest.mark.parametrize("name", HEADS)
def test_sums_are_those_over_points(name, loss_weight):
    z, losses, mixture = case(name, 3, loss_weight, n=150)
    r, ln = oracle.e_step(oracle.of(mixture), z, losses)
    x = z - mixture.weights @ mixture.means
    wanted = [len(z), ln.sum(), r.sum(axis=0), r.T @ x, r.T @ x**2]
    for C, each, head in zip(HEADS[name], losses, mixture.heads, strict=True):
        if C is None:
            apart = (each - mixture.weights @ head.means)[:, None]
            wanted += [(r * apart).sum(axis=0), (r * apart**2).sum(axis=0)]
        else:
            wanted.append(np.array([[r[each == c, j].sum() for c in range(C)] for j in range(4)]))
    found = sums(mixture, z, losses)
    assert_close(fields(found), wanted, rtol=1e-10, atol=1e-10)
    assert found.mean_log_likelihood == pytest.approx(ln.mean(), rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["none", "three classes, real"])
def test_sums_do_not_depend_on_how_rows_are_cut(name, dtype):
    n = 2 * em._BLOCK + 517
    z, losses, mixture = case(name, 4, n=n, dtype=dtype)
    whole, rng = sums(mixture, z, losses), np.random.default_rng(0)
    cuts = [[1], [em._BLOCK], [em._BLOCK + 1], [0, 7, 7, n]]
    cuts += [np.sort(rng.integers(0, n, size)).tolist() for size in (3, 10, 100)]
    for cut in cuts:
        edges = [0, *cut, n]
        parts = [sums(mixture, z[a:b], [each[a:b] for each in losses]) for a, b in pairwise(edges)]
        joined = reduce(add, parts, MixtureSums.zero(mixture))
        assert_close(fields(joined), fields(whole), rtol=1e-10, atol=1e-10)
        assert_close(parameters(updated(joined)), parameters(updated(whole)), 1e-10, 1e-10)
        # The same order, the same bytes: parts may be computed twice, or elsewhere.
        again = reduce(add, parts, MixtureSums.zero(mixture))
        assert pickle.dumps(fields(joined)) == pickle.dumps(fields(again))
        assert_close(fields(parts[0] + parts[1]), fields(parts[1] + parts[0]), 0, 0)
    assert_close(fields(whole), fields(sums(mixture, z, losses)), 0, 0)


@pytest.mark.parametrize("loss_weight", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("name", HEADS)
def test_fit_is_em_by_its_definition(name, loss_weight):
    z, losses, mixture = case(name, 5, loss_weight, n=90)
    found = fit(z, losses, mixture, tolerance=0, most_iterations=5)
    slow, history = oracle.fit(oracle.of(mixture), z, losses, 5)
    assert_close(parameters(found.mixture), parameters(slow))
    np.testing.assert_allclose(found.mean_log_likelihoods, history, rtol=1e-11)
    assert not found.converged


def of_scikit_learn(mixture, **options):
    weights = mixture.weights / mixture.weights.sum()
    begin = {"weights_init": weights, "means_init": mixture.means}
    begin |= {"precisions_init": 1 / mixture.variances, "covariance_type": "diag"}
    return GaussianMixture(len(weights), **begin, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "K", "iterations"), [(400, 3, 3, 12), (3000, 16, 8, 25)])
def test_fit_is_that_of_scikit_learn(n, d, K, iterations, dtype):
    z, _ = points(6, n=n, d=d, dtype=dtype, clusters=K)
    mixture = start(z, [], (), K=K)
    theirs = of_scikit_learn(mixture, reg_covar=1e-6, tol=0, max_iter=iterations)
    with pytest.warns(ConvergenceWarning):
        theirs.fit(z.astype(np.float64))
    assert theirs.n_iter_ == iterations
    found = fit(z, [], mixture, tolerance=0, most_iterations=iterations)
    wanted = [theirs.weights_, theirs.means_, theirs.covariances_]
    assert_close(parameters(found.mixture), wanted, 1e-9, 1e-9)
    assert found.mean_log_likelihoods[-1] == pytest.approx(theirs.lower_bound_, rel=1e-11)
    log_r, ln = log_responsibilities(found.mixture, z)
    np.testing.assert_allclose(np.exp(log_r), theirs.predict_proba(z.astype(float)), atol=1e-9)
    np.testing.assert_allclose(ln, theirs.score_samples(z.astype(float)), rtol=1e-9)


def test_fit_stops_where_scikit_learn_stops():
    z, _ = points(7, n=1500, d=6)
    mixture = start(z, [], ())
    theirs = of_scikit_learn(mixture, tol=1e-3).fit(z)
    found = fit(z, [], mixture)
    assert found.converged
    assert len(found.mean_log_likelihoods) == theirs.n_iter_ > 5
    wanted = [theirs.weights_, theirs.means_, theirs.covariances_]
    assert_close(parameters(found.mixture), wanted, 1e-8, 1e-9)
    assert not fit(z, [], mixture, most_iterations=theirs.n_iter_ - 1).converged


def test_convergence_is_of_the_last_two():
    assert not is_converged([])
    assert not is_converged([-3.0])
    assert not is_converged([-3.0, -2.998])
    assert is_converged([-9.0, -2.9985, -2.998])
    assert is_converged([-2.998, -2.9985])
    assert not is_converged([-2.9985, -2.998, -9.0])
    assert is_converged([1.0, 1.5], tolerance=1)


def test_losses_that_do_not_count_shape_nothing_but_are_fitted():
    z, losses, mixture = case("three classes, real", 9, 0.0)
    bare = Mixture(mixture.weights, mixture.means, mixture.variances)
    headed = fit(z, losses, mixture, most_iterations=6).mixture
    assert_close(parameters(headed)[:3], parameters(fit(z, [], bare, most_iterations=6).mixture))
    r = np.exp(log_responsibilities(fit(z, losses, mixture, most_iterations=5).mixture, z)[0])
    np.testing.assert_allclose(headed.heads[1].means, r.T @ losses[1] / r.sum(axis=0), rtol=1e-10)


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_an_offset_that_all_points_share_costs_no_digits(offset):
    z, losses = points(10, n=400)
    # So that both are the same points to the last digit.
    z = np.round(z * 1024) / 1024
    mixture = start(z, [losses[None]], (None,))
    head = mixture.heads[0]
    means = np.round(mixture.means * 1024) / 1024
    here = Mixture(mixture.weights, means, mixture.variances, mixture.heads, 1.0)
    moved_head = NormalHead(head.means + offset, head.variances)
    there = Mixture(mixture.weights, means + offset, mixture.variances, (moved_head,), 1.0)
    a = fit(z, [losses[None]], here, tolerance=0, most_iterations=8)
    b = fit(z + offset, [losses[None] + offset], there, tolerance=0, most_iterations=8)
    np.testing.assert_allclose(b.mixture.variances, a.mixture.variances, rtol=1e-8)
    np.testing.assert_allclose(b.mixture.means - offset, a.mixture.means, atol=1e-9)
    np.testing.assert_allclose(b.mean_log_likelihoods, a.mean_log_likelihoods, rtol=1e-9)
    np.testing.assert_allclose(*(one.mixture.heads[0].variances for one in (b, a)), rtol=1e-8)


def test_real_losses_have_a_floor_under_their_variance():
    z, _ = points(11)
    piled = (z[:, 0] > 0).astype(float)
    begin = initial(z, [piled], components=4, seed=0, classes=(None,), loss_weight=1.0)
    head = fit(z, [piled], begin).mixture.heads[0]
    assert head.variances.min() == 0.05
    # The plain variance of what is nearly one value would be less.
    assert (np.abs(head.means - np.round(head.means)) < 0.01).any()


def merged_by_scipy(z, labels, clusters):
    """Ward's clusters of the points: each stands at the mean of its k-means cluster."""
    present, of = np.unique(labels, return_inverse=True)
    means = np.stack([z[of == j].astype(float).mean(axis=0) for j in range(len(present))])
    found = fcluster(linkage(means[of], "ward"), clusters, "maxclust")
    # Numbered by the first of k-means' clusters in them.
    first = [of[found == number].min() for number in np.unique(found)]
    return np.argsort(np.argsort(first))[np.unique(found, return_inverse=True)[1]]


def test_the_start_is_an_m_step_from_merged_clusters_of_k_means():
    z, losses = points(12, n=900, dtype=np.float32)
    chosen = [losses[2], losses[None]]
    found = initial(z, chosen, components=7, seed=3, classes=(2, None), loss_weight=0.5)
    of = merged_by_scipy(z, KMeans(14, n_init=1, random_state=3).fit(z).labels_, 7)
    assert np.unique(of).tolist() == list(range(7))
    for j in range(7):
        mine = z[of == j].astype(float)
        assert found.weights[j] == pytest.approx(len(mine) / 900)
        np.testing.assert_allclose(found.means[j], mine.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(found.variances[j], mine.var(axis=0) + 1e-6, rtol=1e-10)
        share = losses[2][of == j].mean()
        np.testing.assert_allclose(found.heads[0].shares[j], [1 - share, share], atol=1e-12)
        real = losses[None][of == j]
        assert found.heads[1].means[j] == pytest.approx(real.mean(), rel=1e-10)
        assert found.heads[1].variances[j] == pytest.approx(max(real.var() + 1e-6, 0.05), rel=1e-9)
    assert found.loss_weight == 0.5
    again = initial(z, chosen, components=7, seed=3, classes=(2, None))
    assert_close(parameters(found), parameters(again), 0, 0)
    assert np.abs(initial(z, components=7, seed=4).means - found.means).max() > 0.01


# Data at the edge


def all_sound(mixture, z, losses=None):
    for value in parameters(mixture):
        assert np.isfinite(value).all()
    assert mixture.weights.sum() == pytest.approx(1)
    assert (mixture.variances >= 1e-6).all()
    log_r, ln = log_responsibilities(mixture, z, losses)
    np.testing.assert_allclose(np.exp(log_r).sum(axis=1), 1)
    assert np.isfinite(ln).all()


def test_fewer_points_than_components_are_an_error_and_as_many_are_not():
    z = points(14, n=6)[0]
    with pytest.raises(InputError, match=r"7 components cannot be initialised from 6 points; give"):
        initial(z, components=7, seed=0)
    found = initial(z, components=6, seed=0)
    np.testing.assert_allclose(found.weights, 1 / 6)
    np.testing.assert_allclose(found.variances, 1e-6, rtol=1e-6)
    all_sound(fit(z, [], found).mixture, z)


@pytest.mark.parametrize("n", [7, 8, 13, 14, 15])
def test_fewer_points_than_centres_of_k_means_are_no_fault(n):
    z = points(14, n=n)[0]
    found = initial(z, components=7, seed=0)
    assert (found.weights > 0.9 / n).all()
    all_sound(fit(z, [], found).mixture, z)


@pytest.mark.parametrize("distinct", [1, 3, 6, 9, 11])
def test_fewer_distinct_points_than_centres_of_k_means_are_no_fault(distinct):
    z = np.repeat(points(14, n=distinct, dtype=np.float32)[0], 10, axis=0)
    found = initial(z, components=6, seed=0)
    sizes = np.sort(found.weights * len(z))[::-1]
    present = min(distinct, 6)
    assert (sizes[:present] > 9.9).all()
    np.testing.assert_allclose(sizes[present:], 0, atol=1e-12)
    # Empty ones come last.
    assert (found.weights[:present] > 0.01).all()
    all_sound(found, z)
    all_sound(fit(z, [], found).mixture, z)


def test_components_for_which_no_point_is_left_die_soundly():
    z = np.repeat(points(15, n=3)[0], 20, axis=0)
    found = initial(z, components=5, seed=0)
    np.testing.assert_allclose(np.sort(found.weights), [0, 0, 1 / 3, 1 / 3, 1 / 3], atol=1e-14)
    assert (found.weights > 0).all()
    all_sound(found, z)
    all_sound(fit(z, [], found).mixture, z)
    far = Mixture(np.full(2, 0.5), np.array([[0.0] * 5, [1e4] * 5]), np.ones((2, 5)))
    z, losses = points(15, n=60)
    found = sums(far, z)
    assert found.sizes[1] == 0
    after = updated(found)
    np.testing.assert_array_equal(after.means[1], far.centre)
    np.testing.assert_array_equal(after.variances[1], 1e-6)
    assert after.weights[1] == pytest.approx(10 * 2**-52 / 60, abs=0)
    all_sound(after, z)
    heads = (CategoricalHead(np.full((2, 2), 0.5)), NormalHead(np.zeros(2), np.ones(2)))
    with_heads = Mixture(far.weights, far.means, far.variances, heads, 1.0)
    chosen = [losses[2], losses[None]]
    after = fit(z, chosen, with_heads, most_iterations=3).mixture
    np.testing.assert_array_equal(after.heads[0].shares[1], 0)
    all_sound(after, z, chosen)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_dimensions_decide_nothing(dtype):
    z, _ = points(16, n=300, dtype=dtype)
    constant = np.hstack([z, np.full((300, 2), 12345.678, dtype)])
    mixture = start(z, [], ())
    wide = Mixture(
        mixture.weights,
        np.hstack([mixture.means, constant[:4, -2:].astype(float)]),
        np.hstack([mixture.variances, np.ones((4, 2))]),
    )
    plain = fit(z, [], mixture, tolerance=0, most_iterations=10)
    found = fit(constant, [], wide, tolerance=0, most_iterations=10)
    np.testing.assert_allclose(found.mixture.variances[:, -2:], 1e-6, rtol=1e-6)
    np.testing.assert_allclose(found.mixture.means[:, :-2], plain.mixture.means, rtol=1e-8)
    # Each adds the density of a normal at its mean, at the variance of 1e-6.
    more = -np.log(2 * np.pi * 1e-6)
    assert found.mean_log_likelihoods[-1] - plain.mean_log_likelihoods[-1] == pytest.approx(more)


def test_zero_vectors_and_points_all_alike_are_no_fault():
    z, _ = points(17, n=200)
    z[::3] = 0
    all_sound(fit(z, [], initial(z, components=5, seed=0)).mixture, z)
    for alike in (np.zeros((50, 4)), np.full((50, 4), 0.3, np.float32)):
        found = fit(alike, [], initial(alike, components=3, seed=0))
        all_sound(found.mixture, alike)
        assert found.converged


@pytest.mark.parametrize(("classes", "value"), [(1, 0), (2, 1), (None, 0.25)])
def test_losses_that_are_all_equal_decide_nothing(classes, value):
    z, _ = points(18)
    equal = np.full(len(z), value)
    begin = initial(z, [equal], components=4, seed=0, classes=(classes,), loss_weight=10.0)
    bare = Mixture(begin.weights, begin.means, begin.variances)
    a, b = fit(z, [equal], begin), fit(z, [], bare)
    assert_close(parameters(a.mixture)[:3], parameters(b.mixture), rtol=1e-8)
    all_sound(a.mixture, z, [equal])


# Wrong input


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_with_its_row(wrong, dtype):
    z, _ = points(19, n=5000, dtype=dtype)
    mixture = start(z, [], ())
    # Beyond the first block of whatever looks for it.
    z[4500, 3], z[4510, 1] = wrong, np.nan
    for call, row in (
        (lambda: sums(mixture, z, first_row=1000), 5500),
        (lambda: log_responsibilities(mixture, z, first_row=1000), 5500),
        (lambda: initial(z, components=3, seed=0), 4500),
        (lambda: fit(z, [], mixture), 4500),
    ):
        refuses(InputError, f"row {row} has {wrong} in dimension 3; emb", call)


def test_a_value_whose_square_is_not_finite_is_named():
    z, _ = points(20)
    mixture = start(z, [], ())
    z[7, 2] = -1e200
    for call in (lambda: sums(mixture, z), lambda: initial(z, components=3, seed=0)):
        refuses(InputError, r"row 7 has -1e\+200 in dimension 2", call)


@pytest.mark.parametrize("wrong", [2, -1, 0.5, np.nan, np.inf])
def test_a_class_that_there_is_not_is_named_with_its_row(wrong):
    z, losses, mixture = case("zero-one", 21)
    given = losses[0].astype(float)
    given[[17, 30]] = wrong
    with pytest.raises(InputError, match=f"loss 1 of row 117 is {float(wrong)}, not one of the 2"):
        sums(mixture, z, [given], first_row=100)
    with pytest.raises(InputError, match="loss 1 of row 17 is"):
        initial(z, [given], components=3, seed=0, classes=(2,))


@pytest.mark.parametrize("wrong", [np.nan, -np.inf, 1e200])
def test_a_real_loss_that_is_not_finite_is_named_with_its_row(wrong):
    z, losses, mixture = case("real, real", 22)
    given = losses[1].copy()
    given[17] = wrong
    for call in (
        lambda: sums(mixture, z, [losses[0], given]),
        lambda: log_responsibilities(mixture, z, [losses[0], given]),
        lambda: initial(z, [losses[0], given], components=3, seed=0, classes=(None, None)),
    ):
        refuses(InputError, r"loss 2 of row 17 is .*; losses must be finite", call)


def test_classes_may_be_booleans_or_whole_floats():
    z, losses, mixture = case("zero-one", 23)
    wanted = fields(sums(mixture, z, losses))
    for dtype in (bool, np.int8, np.float32, np.uint64):
        assert_close(fields(sums(mixture, z, [losses[0].astype(dtype)])), wanted, 0, 0)


def test_the_parts_of_a_mixture_fit_each_other():
    z, losses, mixture = case("zero-one", 24)
    weights, means, variances = mixture.weights, mixture.means, mixture.variances
    head = NormalHead(np.zeros(2), np.ones(2))
    added = sums(mixture, z, losses)
    for call, message in (
        (lambda: added + sums(updated(added), z, losses), "different centre"),
        (lambda: Mixture(weights[:3], means, variances), "do not fit 3 components"),
        (lambda: Mixture(weights, means, variances[:, 1:]), "do not fit"),
        (lambda: Mixture(weights, means, variances * 0), "not above 0"),
        (lambda: Mixture(weights, means, variances, (head,)), "a head does not have the 4"),
        (lambda: Mixture(weights, means, variances, loss_weight=-1), "not above 0"),
    ):  # fmt: skip
        refuses(ValueError, message, call)


def test_sums_and_mixtures_travel():
    z, losses, mixture = case("three classes, real", 25)
    found = sums(mixture, z, losses)
    sent = pickle.loads(pickle.dumps(found))
    assert_close(parameters(updated(sent)), parameters(updated(found)), 0, 0)
    there = pickle.loads(pickle.dumps(mixture))
    assert_close(fields(sums(there, z, losses)), fields(found), 0, 0)
    assert (sent + found).n == 2 * len(z)
