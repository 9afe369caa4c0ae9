"""Differences corrected for selection: against numeric integration, and in simulation."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from slicebeam.metrics.findings import corrected

NORMAL = stats.norm()


def selected(theta, c):
    return NORMAL.sf(c - theta) + NORMAL.cdf(-c - theta)


@pytest.mark.parametrize(("z", "c"), [(3.1, 3.0), (4.5, 4.2), (5.5, 4.2), (9.0, 4.2), (1.0, 0.2)])
def test_mean_and_ends_by_integration(z, c):
    estimate, low, high = corrected.standardised(z, c)

    def likelihood(theta, power):
        return theta**power * NORMAL.pdf(z - theta) / selected(theta, c)

    def excess(theta, chance):
        return NORMAL.sf(z - theta) / selected(theta, c) - chance

    sums = (integrate.quad(likelihood, -30, z + 12, power, limit=400)[0] for power in (1, 0))
    assert estimate == pytest.approx(np.divide(*sums), abs=1e-7)
    for end, chance in ((low, 0.025), (high, 0.975)):
        wanted = optimize.brentq(excess, -c - 3, z + 5, chance)
        assert end == pytest.approx(wanted, abs=1e-8)


def drawn(theta, c, rng):
    """Values of Z given that abs(Z) > c, by inverting its distribution."""
    below, whole = NORMAL.cdf(-c - theta), selected(theta, c)
    u = rng.random(theta.size) * whole
    lower, upper = np.minimum(u, below), np.minimum(whole - u, NORMAL.sf(c - theta))
    return theta + np.where(u < below, NORMAL.ppf(lower), NORMAL.isf(upper))


def check_coverage(held, theta, c):
    """Up to c the estimate near the threshold, which the interval holds, makes it wider."""
    assert 0.935 < held < (0.965 if theta >= c else 0.985), theta


def test_coverage_and_bias_of_what_was_selected():
    rng, c = np.random.default_rng(5), 3.0
    theta = rng.uniform(-12.0, 12.0, 6_000)
    z = drawn(theta, c, rng)
    sign = np.sign(z)
    estimate, low, high = corrected.standardised(np.abs(z), c)
    held = (low <= theta * sign) & (theta * sign <= high)
    for least in range(0, 12, 3):
        of = (np.abs(theta) > least) & (np.abs(theta) <= least + 3)
        check_coverage(held[of].mean(), least, c)
    theta, z = theta * sign, np.abs(z)
    edges = [3.0, 3.2, 3.5, 4.0, 5.0, 7.0, 10.0]
    for begin, end in pairwise(edges):
        of = (z >= begin) & (z < end)
        assert (theta - estimate)[of].mean() == pytest.approx(0.0, abs=0.2), begin
    # What is observed is too large by far.
    assert (theta - z)[z < 3.2].mean() < -1.5


def test_a_search_for_one_direction():
    """Where only Z > c is listed, the interval holds of all differences worth the name."""
    rng, c = np.random.default_rng(6), 4.0
    for theta in (1.0, 3.0, 5.0, 8.0):
        u = rng.random(4_000) * NORMAL.sf(c - theta)
        _, low, high = corrected.standardised(theta + NORMAL.isf(u), c)
        check_coverage(((low <= theta) & (theta <= high)).mean(), theta, c)


def test_the_threshold_itself():
    estimate, low, high = corrected.standardised(4.0, 4.0)
    assert low < 0 < estimate <= high


def test_differences_far_above_the_threshold_are_as_observed():
    assert corrected.difference(-0.2, (-0.25, -0.17), 15.0, 4.0) == pytest.approx(
        (-0.2, -0.25, -0.17), abs=1e-6
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_near_the_threshold(sign):
    """Between 0, the end of the interval and the difference θ is taken to them in straight lines."""
    ends = sorted((sign * 0.1, sign * 0.5))
    middle, low, high = corrected.difference(sign * 0.3, tuple(ends), 5.0, 4.5)
    theta = [float(one) for one in corrected.standardised(5.0, 4.5)]
    knots = [0.0, 5.0 - NORMAL.isf(0.025), 5.0, 5.0 + NORMAL.isf(0.025)]
    wanted = np.interp(theta, knots, [0.0, 0.1, 0.3, 0.5])
    wanted = np.where(np.array(theta) < 0, np.array(theta) * 0.06, wanted)
    assert sign * middle == pytest.approx(wanted[0])
    assert sorted((sign * low, sign * high)) == pytest.approx(wanted[1:])
    assert low < middle < high
    assert abs(middle) < 0.3


def test_the_threshold_is_the_stricter_one():
    of_p = corrected.selected_above(1e-9, 1e-5, 30.0, 2.0)
    assert of_p == pytest.approx(NORMAL.isf(1e-5))
    of_gain = corrected.selected_above(1e-9, 1e-5, 1.0, 15.0)
    assert of_gain == pytest.approx(NORMAL.isf(1e-9) * np.sqrt(15 / 16))
