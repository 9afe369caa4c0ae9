import numpy as np
import pytest

from slicebeam.metrics.significance import few_cells
from slicebeam.metrics.significance.random_subset import BINS, add_bin_sums

RNG = np.random.default_rng(5)
LAWS = {
    "lognormal": (RNG.lognormal(0, 1.5, 250), 200),
    "few today": (RNG.lognormal(0, 1, 520), 20),
    "exponential": (RNG.exponential(1, 70), 50),
    "integers": (RNG.poisson(1, 400).astype(float), 100),
}


def bin_values(z, slices, number):
    sums = np.zeros((number, 3, BINS), np.int64)
    add_bin_sums(sums, z, few_cells.EDGES, few_cells.UNIT, slices)
    return sums


def binned(values, slices=None):
    """Counts by bin of standardized values, and these."""
    z = (values - values.mean()) / values.std()
    slices = np.zeros(values.size, int) if slices is None else slices
    return bin_values(z, slices, int(slices.max()) + 1), z


@pytest.mark.parametrize("law", LAWS)
def test_tails_are_the_share_of_random_subsets(law):
    """Within four standard errors of 40,000 draws and a tenth of the rate."""
    values, drawn = LAWS[law]
    bins, z = binned(values)
    rng = np.random.default_rng(0)
    order = rng.permuted(np.tile(z, (40_000, 1)), axis=1)
    totals = order[:, :drawn].sum(axis=1)
    ends = np.quantile(totals, [0.002, 0.01, 0.05, 0.5, 0.95, 0.99, 0.998])
    many = np.repeat(bins, ends.size, axis=0)
    for tail, beyond in (("upper", 1), ("lower", -1)):
        p = few_cells.own_values_p(many, np.full(ends.size, drawn), ends, tail)
        apart = beyond * (totals[None, :] - ends[:, None])
        # Of the sums that are equal, half, as a mid-p has it.
        share = (apart > 1e-9).mean(axis=1) + 0.5 * (np.abs(apart) <= 1e-9).mean(axis=1)
        error = 4 * np.sqrt(share * (1 - share) / 40_000) + 0.1 * np.minimum(share, 1 - share)
        assert (np.abs(p - share) <= error).all(), (tail, p, share)
    both = few_cells.own_values_p(many, np.full(ends.size, drawn), ends, "both")
    upper, lower = (
        few_cells.own_values_p(many, np.full(ends.size, drawn), ends, tail)
        for tail in ("upper", "lower")
    )
    assert both == pytest.approx(np.minimum(1, 2 * np.minimum(upper, lower)))


def test_bins_keep_number_mean_and_variance_and_add_up():
    values = RNG.lognormal(0, 2, 3000)
    slices = RNG.integers(0, 3, 3000)
    bins, z = binned(values, slices)
    points, counts = few_cells.points(bins)
    for at in range(3):
        mine = z[slices == at]
        assert counts[at].sum() == mine.size
        assert (counts[at] * points[at]).sum() == pytest.approx(mine.sum(), abs=1e-3)
        assert (counts[at] * points[at] ** 2).sum() == pytest.approx((mine**2).sum(), rel=1e-4)
    half = np.arange(3000) < 1000
    parts = [bin_values(z[some], slices[some], 3) for some in (half, ~half)]
    assert (bins == parts[0] + parts[1]).all()


def test_ends_of_the_support_are_exact_and_a_constant_says_nothing():
    bins, z = binned(np.arange(8.0))
    top = np.sort(z)[-3:].sum()
    p = few_cells.own_values_p(
        np.repeat(bins, 2, axis=0), np.array([3, 3]), top * np.array([1, -1]), "upper"
    )
    # One of the 56 subsets is the largest; a mid-p has half of it.
    assert p == pytest.approx([0.5 / 56, 1 - 0.5 / 56], rel=1e-6)
    same = bin_values(np.zeros(30), np.zeros(30, int), 1)
    assert few_cells.own_values_p(same, np.array([10]), np.zeros(1), "upper").tolist() == [1.0]
