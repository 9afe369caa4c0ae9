"""Differences corrected for selection: by integration, and in draws with a known truth."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from slicebeam.metrics.findings import groups

NORMAL = stats.norm()
OFF = NORMAL.isf(0.025)


def selected(theta, c):
    return NORMAL.sf(c - theta) + NORMAL.cdf(-c - theta)


def error_at(theta, z, null, far):
    """In units of the error at z: 1 from the lower end of the interval to z."""
    knots = [0.0, max(z - OFF, z / 2), z, z + OFF * far]
    return np.sqrt(np.interp(theta, knots, [null**2, 1.0, 1.0, far**2]))


@pytest.mark.parametrize(("z", "c", "null", "far"), [
    *[(3.1, 3.0, 1, 1), (4.5, 4.2, 1, 1), (5.5, 4.2, 1, 1), (9.0, 4.2, 1, 1), (1.0, 0.2, 1, 1)],
    *[(4.5, 4.2, 0.5, 1), (5.5, 4.2, 1.3, 1), (4.5, 4.2, 1, 2), (5.0, 4.0, 0.6, 1.5)],
])  # fmt: skip
def test_mean_and_end_by_integration(z, c, null, far):
    estimate, low = groups.corrected_standardised(z, c, null, far)

    def passes(theta):
        error = error_at(theta, z, null, far)
        return NORMAL.sf((c - theta) / error) + NORMAL.cdf((-c - theta) / error)

    def likelihood(theta, power):
        error = error_at(theta, z, null, far)
        return theta**power * NORMAL.pdf((z - theta) / error) / error / passes(theta)

    def excess(theta):
        return NORMAL.sf((z - theta) / error_at(theta, z, null, far)) / passes(theta) - 0.025

    edges = [-8 * null, 0, max(z - OFF, z / 2), z, z + OFF * far, z + 8 * far]
    first, whole = (
        sum(integrate.quad(likelihood, *ends, power)[0] for ends in pairwise(edges))
        for power in (1, 0)
    )
    assert estimate == pytest.approx(min(first / whole, z), abs=1e-6 if null == far else 1e-4)
    assert low == pytest.approx(optimize.brentq(excess, -c - 2 * null, z), abs=1e-8)


def test_errors_that_grow_with_the_difference():
    """As of losses: near the threshold one error for all differences takes off far too much."""
    rng, c = np.random.default_rng(3), 4.0
    delta = rng.uniform(0.0, 25.0, 2_000)
    error = np.sqrt(1.0 + delta)
    d = delta + error * NORMAL.isf(rng.random(delta.size) * NORMAL.sf((c - delta) / error))
    # Where (d - end)^2 is 1.96^2 times the variance at the end.
    middle = d + OFF**2 / 2
    reach = np.sqrt(middle**2 - d**2 + OFF**2)
    near, far = (d - (middle - reach)) / OFF, (middle + reach - d) / OFF
    estimate, low = near * groups.corrected_standardised(d / near, c / near, 1 / near, far / near)
    held = (low <= delta) & (delta <= d + OFF * far)
    assert held.mean() == pytest.approx(coverage(delta / error, c / error).mean(), abs=0.01)
    # θ by the error at 0, and then taken to the ends of the interval.
    theta, lower = groups.corrected_standardised(d, c)[0], d - OFF * near
    inner = lower + (theta - (d - OFF)) * near
    by_test = np.where(theta > d - OFF, inner, theta * lower / (d - OFF))
    for begin, end in ((4, 5), (5, 7)):
        of = (d >= begin) & (d < end)
        assert (delta - estimate)[of].mean() == pytest.approx(0.0, abs=0.5), begin
        assert (delta - d)[of].mean() < 0.6
    just = d < 5
    assert (delta - d)[just].mean() < -1.3
    assert (delta - by_test)[just].mean() > 1.0


def drawn(theta, c, rng):
    """Values of Z given that abs(Z) > c, by inverting its distribution."""
    below, whole = NORMAL.cdf(-c - theta), selected(theta, c)
    u = rng.random(theta.size) * whole
    lower, upper = np.minimum(u, below), np.minimum(whole - u, NORMAL.sf(c - theta))
    return theta + np.where(u < below, NORMAL.ppf(lower), NORMAL.isf(upper))


def coverage(theta, c):
    """Share of intervals that hold θ: 2.5 % are above it, and below it those that still pass."""
    passes, wrong = selected(theta, c), NORMAL.cdf(-c - theta)
    below = np.maximum(0.025 - NORMAL.cdf(c - theta), 0.0)
    return 0.975 - (np.minimum(0.025 * passes, wrong) + below) / passes


def test_coverage_and_bias_of_what_was_selected():
    rng, c = np.random.default_rng(5), 3.0
    theta = rng.uniform(-12.0, 12.0, 6_000)
    z = drawn(theta, c, rng)
    sign = np.sign(z)
    estimate, low = groups.corrected_standardised(np.abs(z), c)
    held = (low <= theta * sign) & (theta * sign <= np.abs(z) + OFF)
    for least in range(0, 12, 3):
        size = np.abs(theta)
        of = (size > least) & (size <= least + 3)
        assert held[of].mean() == pytest.approx(coverage(size[of], c).mean(), abs=0.01), least
    theta, z = theta * sign, np.abs(z)
    for begin, end in pairwise([3.0, 3.2, 3.5, 4.0, 5.0, 7.0, 10.0]):
        of = (z >= begin) & (z < end)
        assert (theta - estimate)[of].mean() == pytest.approx(0.0, abs=0.2), begin
    # What is observed is too large by far.
    assert (theta - z)[z < 3.2].mean() < -1.5


def test_a_search_for_one_direction():
    """Where only Z > c is listed, the interval holds of all differences worth the name."""
    rng, c = np.random.default_rng(6), 4.0
    for theta in (1.0, 3.0, 5.0, 8.0):
        u = rng.random(3_000) * NORMAL.sf(c - theta)
        z = theta + NORMAL.isf(u)
        _, low = groups.corrected_standardised(z, c)
        held = (low <= theta) & (theta <= z + OFF)
        assert held.mean() == pytest.approx(coverage(theta, c), abs=0.01), theta


def test_the_threshold_itself():
    """What just passed may be nothing, and as much as was observed."""
    middle, low, high = groups.corrected_difference(0.4, (0.2, 0.7), 4.0, 4.0, 0.1)
    assert low < 0 < middle < 0.4
    assert high == 0.7


@pytest.mark.parametrize("ends", [(-0.25, -0.17), (-0.24, -0.18)])
def test_differences_far_above_the_threshold_are_as_observed(ends):
    found = groups.corrected_difference(-0.2, ends, 15.0, 4.0, 0.015)
    assert found == pytest.approx((-0.2, *ends), abs=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_near_the_threshold(sign):
    """In units of the nearer end's error, with the threshold in proportion; the other end stays."""
    ends = sorted((sign * 0.1, sign * 0.6))
    middle, low, high = groups.corrected_difference(sign * 0.3, tuple(ends), 5.0, 4.5, 0.08)
    unit = 0.2 / OFF
    wanted = unit * np.array(
        groups.corrected_standardised(0.3 / unit, 0.27 / unit, 0.08 / unit, 1.5)
    )
    assert sign * middle == pytest.approx(wanted[0])
    assert sorted((sign * low, sign * high)) == pytest.approx([wanted[1], 0.6])
    assert low < middle < high
    assert abs(middle) < 0.3


@pytest.mark.parametrize(
    ("ends", "z", "error"), [((0.2, 0.2), 5.0, 0.1), ((0.1, 0.3), 0.0, 0.1), ((0.1, 0.3), 5.0, 0.0)]
)
def test_what_has_no_error_is_as_observed(ends, z, error):
    assert groups.corrected_difference(0.2, ends, z, 4.0, error) == (0.2, *ends)


def test_the_threshold_is_the_stricter_one():
    assert groups.selected_above(1e-9, 1e-5, 30.0, 2.0) == pytest.approx(NORMAL.isf(1e-5))
    of_gain = groups.selected_above(1e-9, 1e-5, 1.0, 15.0)
    assert of_gain == pytest.approx(NORMAL.isf(1e-9) * np.sqrt(15 / 16))
