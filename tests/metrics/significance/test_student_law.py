"""Student's t by the law of all values: normal tables, the equations solved anew, error rates, degenerate slices."""

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.significance.hall import student_p
from slicebeam.metrics.significance.random_subset import Population
from tests.conftest import slow
from tests.deviations import compressed
from tests.metrics.significance.test_hall import log_losses
from tests.random_subsets import student_root

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
N = 20_000


def changes(spread):
    """Changes of log losses between a model and one that is noisier and too cautious."""
    rng = np.random.default_rng(12)
    z = rng.normal(-2, 2, N)
    wrong = np.where(rng.random(N) < 1 / (1 + np.exp(-z)), -1, 1)
    return np.logaddexp(0, wrong * (z + rng.normal(0, spread, N))) - np.logaddexp(
        0, wrong * 0.8 * z
    )


LAWS = {
    "normal": np.random.default_rng(1).normal(size=N),
    "exponential": np.random.default_rng(2).exponential(size=N),
    "lognormal": np.random.default_rng(3).lognormal(size=N),
    "log losses": log_losses(np.random.default_rng(4), N),
    "changes": changes(0.3),
    "larger changes": changes(1.0),
    "two values": np.where(np.random.default_rng(5).random(N) < 0.3, 1.0, 0.0),
}


def rates(values, n, draws, level=0.01, weights=None):
    """Return the rates over nominal of upper, lower and both, where random slices have the mean of all."""
    w = np.ones(len(values)) if weights is None else weights
    x = w * (values - np.average(values, weights=w))
    of, rng = compressed(x), np.random.default_rng(n)
    first, second = np.empty((2, draws))
    for start in range(0, draws, 2000):
        drawn = x[rng.integers(0, len(x), (min(2000, draws - start), n))]
        first[start : start + 2000], second[start : start + 2000] = drawn.sum(1), (drawn**2).sum(1)
    tails = (student_p(n, first, second, of, 0.0, tail) for tail in ("upper", "lower", "both"))
    return [float((p <= level).mean() / level) for p in tails]


@pytest.mark.parametrize(("n", "draws"), [(25, 10_000), *(slow(n, 60_000) for n in (25, 50, 100))])
@pytest.mark.parametrize("name", LAWS)
def test_random_slices_are_called_as_often_as_the_level_says(name, n, draws):
    """Hall's t, with its raised variance, calls none for the better at 25, or 2.1 times as many of the lognormal at 50."""
    upper, lower, both = rates(LAWS[name], n, draws)
    # Three standard errors at 10,000 draws; a lattice has no more values than it has.
    assert max(upper, lower, both) <= (1.15 + 0.3 if draws == 10_000 else 1.2)
    assert name == "two values" or min(upper, lower, both) >= (0.7 if draws == 10_000 else 0.8)
    assert draws == 10_000 or max(rates(LAWS[name], n, draws, 0.001)) <= 1.5


def test_lumps_make_a_side_at_most_twice_as_frequent():
    """Nearly all values are alike, and 2 % far off: with the whole correction one side has 29 times the level."""
    rng = np.random.default_rng(9)
    values = np.where(rng.random(N) < 0.02, -1 - 0.1 * rng.random(N), 0.001 * rng.normal(size=N))
    assert max(rates(values, 25, 10_000)) <= 2.0


@pytest.mark.parametrize("spread", [0.7, 1.0])
def test_weights_count_as_a_part_of_the_values(spread):
    weights = np.random.default_rng(6).lognormal(0, spread, N)
    found = rates(LAWS["exponential"], 25, 10_000, weights=weights)
    assert 0.7 <= min(found) <= max(found) <= 1.15 + 0.3


@pytest.mark.parametrize("n", [20, 60, 400])
def test_of_normal_values_it_is_students_law(n):
    of = compressed(stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000))
    t = np.linspace(-5, 5, 21)
    total, squares = t, np.full(21, (n - 1 + t**2) / n)
    np.testing.assert_allclose(student_p(n, total, squares, of, 0.0, "upper"), stats.t.sf(t, n - 1), rtol=0.03, atol=1e-5)  # fmt: skip
    np.testing.assert_allclose(student_p(n, total, squares, of, 0.0, "lower"), stats.t.cdf(t, n - 1), rtol=0.03, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("theta", [-0.7, -0.2, 0.3, 0.8])
@pytest.mark.parametrize("mean", [0.0, 0.4])
def test_tails_are_the_equations_solved_anew(theta, mean):
    of = compressed(LAWS["exponential"] - LAWS["exponential"].mean())
    x, chance = np.array(of.points), np.array(of.counts) / N
    for n in (20, 500):
        w = student_root(x, chance, theta, n, mean)
        p = student_p(n, theta * np.sqrt(n * 7.0), 7.0, of, mean, "upper" if w > 0 else "lower")
        assert stats.norm.isf(p) == pytest.approx(abs(w), rel=0.001)


def test_values_of_0_stay_there_where_the_mean_of_all_is_not_0():
    """Most examples change by exactly 0, and all by .05 on average: the slice has the mean 0."""
    rng = np.random.default_rng(7)
    values = np.where(rng.random(N) < 0.8, 0.0, rng.normal(0.25, 1.0, N))
    of = compressed(values)
    drawn = np.where(rng.random((20_000, 40)) < 0.8, 0.0, rng.normal(0, 1.0, (20_000, 40)))
    total, squares = drawn.sum(1), (drawn**2).sum(1)
    for tail in ("upper", "lower"):
        assert 0.7 <= (student_p(40, total, squares, of, 0.0, tail) <= 0.01).mean() / 0.01 <= 1.45
        # About the mean that all have.
        about = squares - 2 * 0.05 * total + 40 * 0.05**2
        assert (student_p(40, total - 2.0, about, of, 0.05, tail) <= 0.01).mean() <= 0.03


@pytest.mark.parametrize("tail", ["upper", "lower", "both"])
@pytest.mark.parametrize("values", [LAWS["exponential"], LAWS["two values"], LAWS["changes"] ** 2])
def test_tails_of_any_slice(values, tail):
    of = compressed(values - values.mean())
    n, total = 30, np.linspace(-30, 30, 401)
    p = student_p(n, total, np.full(401, 30.0), of, 0.0, tail)
    assert ((p > 0) & (p <= 1)).all()
    if tail != "both" and not of.span:
        assert (np.diff(p) * (1 if tail == "lower" else -1) >= -1e-12).all()
    # Nothing changes at all; values that are all the same; a mean that no example goes beyond.
    assert student_p(n, 0.0, 0.0, of, 0.0, tail) > 0.2
    assert 0 < student_p(n, 30.0, 30.0, of, 0.0, tail) <= 1
    assert 0 < student_p(n, 30.0, 60.0, compressed(np.abs(values)), 0.0, tail) <= 1


def test_what_rounding_leaves_of_zero_is_zero():
    first, second = np.array([3.0, 9.0]), np.array([0.9, 2.7])
    laws = [Population((least, 0.1), (727.0, 273.0)) for least in (0.0, -1e-19, 1e-19)]
    exact, *others = (student_p(100, first, second, law, 0.0, "both").tolist() for law in laws)
    assert others == [exact, exact]
    assert 0 < exact[1] < exact[0] < 1
