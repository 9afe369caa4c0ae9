"""The published test: its formula, its degenerate cases, and the law of its replicate counts."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import betainc, pdtr

from slicebeam.metrics.significance import outcome_codes, paper


def test_p_is_scipys_t_on_the_replicates_left():
    rng = np.random.default_rng(1)
    replicates = rng.normal(0.02, 0.1, (40, 60))
    replicates[5, :3] = np.nan
    delta = rng.normal(0, 0.3, 40)
    for tail, factor in (("upper", 1), ("lower", -1)):
        p, reasons, error = paper.t_p_value(delta, replicates, tail)
        left = np.isfinite(replicates).sum(axis=1)
        sd = np.nanstd(replicates, axis=1, ddof=1)
        np.testing.assert_allclose(p, stats.t.sf(factor * delta / sd, left - 1), rtol=1e-10)
        np.testing.assert_allclose(error, sd, rtol=1e-12)
        assert not reasons.any()
    both = paper.t_p_value(delta, replicates, "both").p
    np.testing.assert_allclose(both, 2 * stats.t.sf(np.abs(delta / sd), left - 1), rtol=1e-10)


def test_far_tails_rank():
    delta = np.array([100.0, 150.0, 200.0, 250.0])
    replicates = np.tile(np.linspace(-1, 1, 200), (4, 1))
    p, _, error = paper.t_p_value(delta, replicates, "upper")
    # Student's tail by the incomplete beta function, another formula than scipy's own.
    expected = 0.5 * betainc(199 / 2, 0.5, 199 / (199 + np.square(delta / error)))
    np.testing.assert_allclose(p, expected, rtol=1e-9)
    assert 0 < p[-1] < 1e-280


def test_degenerate_slices_have_p_one_and_a_reason():
    replicates = np.random.default_rng(2).normal(size=(6, 20))
    replicates[0, 0] = np.nan  # 5 %: still tested
    replicates[1, :2] = np.nan
    replicates[2] = 0.1
    replicates[4] = np.nan
    delta = np.array([5.0, 5.0, 5.0, np.nan, 5.0, 5.0])
    p, reasons, error = paper.t_p_value(delta, replicates, "upper")
    undefined, constant = outcome_codes.UNDEFINED_REPLICATES, outcome_codes.NO_VARIANCE
    assert reasons.tolist() == [0, undefined, constant, undefined, undefined, 0]
    assert reasons.dtype == np.int8
    assert (p == 1.0).tolist() == [False, True, True, True, True, False]
    assert np.isnan(error).tolist() == [False, True, False, True, True, False]
    assert paper.t_p_value([1.0], [[0.3]], "both").reasons.tolist() == [undefined]
    assert paper.t_p_value([], np.empty((0, 20)), "both").p.shape == (0,)


@pytest.mark.parametrize("largest", [64, 400, 1_000_000])
def test_quantile_is_exact(largest):
    rng = np.random.default_rng(3)
    u = np.append(rng.random(100_000), [2.0**-53, 1 - 2.0**-53, 1e-9, 1 - 1e-9])
    mean = np.append(rng.integers(0, largest, 100_000), [largest] * 4)
    k = paper._poisson_quantile(u, mean)
    assert (pdtr(k, mean) >= u).all()
    assert ((k == 0) | (pdtr(np.maximum(k - 1, 0), mean) < u)).all()


def test_quantile_is_exact_at_its_steps():
    mean = np.repeat(np.arange(1, 300), 41)
    centre = np.tile(np.linspace(-3, 3, 41), 299)
    k = np.maximum(0, np.rint(mean + np.sqrt(mean) * centre))
    step = pdtr(k, mean)
    np.testing.assert_array_equal(paper._poisson_quantile(step * (1 - 1e-12), mean), k)
    above = step * (1 + 1e-12)
    kept = above < 1
    np.testing.assert_array_equal(paper._poisson_quantile(above, mean)[kept], k[kept] + 1)


def test_counts_do_not_depend_on_company_and_equal_rows_are_equal():
    rows = np.array([[3, 0, 500, 70], [9, 9, 9, 9], [3, 0, 500, 70], [3, 500, 0, 70]])
    drawn = paper.poisson_cell_counts(rows, 30, 1)
    assert drawn.shape == (4, 30, 4)
    assert drawn.dtype == np.int64
    np.testing.assert_array_equal(drawn[0], drawn[2])
    np.testing.assert_array_equal(paper.poisson_cell_counts(rows[[1]], 30, 1)[0], drawn[1])
    np.testing.assert_array_equal(paper.poisson_cell_counts(rows, 12, 1), drawn[:, :12])
    assert (drawn[0] != paper.poisson_cell_counts(rows[:1], 30, 2)[0]).any()
    assert (drawn[..., 1][0] == 0).all()
    assert (drawn[0, :, 3] != drawn[3, :, 3]).any()
    assert paper.poisson_cell_counts(np.empty((0, 4), int), 20, 1).shape == (0, 20, 4)


def test_counts_are_cut_without_a_seam(monkeypatch):
    rows = np.random.default_rng(4).integers(0, 300, (50, 4))
    drawn = paper.poisson_cell_counts(rows, 20, 1)
    monkeypatch.setattr(paper, "_DRAWS_AT_ONCE", 300)
    np.testing.assert_array_equal(paper.poisson_cell_counts(rows, 20, 1), drawn)


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="count of -2"):
        paper.poisson_cell_counts([[1, -2]], 5, 1)


@pytest.mark.parametrize("mean", [1, 7, 64, 65, 3000])
def test_counts_are_poisson(mean):
    drawn = paper.poisson_cell_counts([[mean, mean, 2]], 50_000, 5)[0]
    for atom in (0, 1):
        column = drawn[:, atom]
        assert column.mean() == pytest.approx(mean, abs=4 * np.sqrt(mean / 50_000))
        spread = np.sqrt(2 / 50_000 + 1 / mean / 50_000)
        assert column.var() / mean == pytest.approx(1.0, abs=4 * spread)
        edges = np.unique(stats.poisson.ppf(np.linspace(0.05, 0.95, 15), mean))
        shares = np.diff(stats.poisson.cdf(edges, mean), prepend=0.0, append=1.0)
        seen = np.bincount(np.searchsorted(edges, column), minlength=shares.size)
        assert stats.chisquare(seen, shares * column.size).pvalue > 1e-3


def test_counts_of_atoms_replicates_and_slices_are_independent():
    rows = np.column_stack([np.arange(100, 400), np.full(300, 50), np.full(300, 50)])
    drawn = paper.poisson_cell_counts(rows, 200, 6)
    z = (drawn - rows[:, None, :]) / np.sqrt(rows[:, None, :])
    limit = 4.5 / np.sqrt(300 * 200)
    atoms = np.corrcoef(z.reshape(-1, 3), rowvar=False)
    assert np.abs(atoms[np.triu_indices(3, 1)]).max() < limit
    for left, right in ((z[:, :-1], z[:, 1:]), (z[:-1], z[1:])):
        assert abs(np.corrcoef(left[..., 0].ravel(), right[..., 0].ravel())[0, 1]) < limit
        assert abs(np.corrcoef(left[..., 1].ravel(), right[..., 1].ravel())[0, 1]) < limit


@pytest.mark.slow
@pytest.mark.parametrize("n", [500, 5000])
def test_false_positive_rate_of_the_paper(n):
    rng = np.random.default_rng(7)
    N, K, slices = 20_000, 4000, 40_000
    x = rng.hypergeometric(K, N - K, n, slices)
    atoms = np.column_stack([x, n - x, K - x, N - K - n + x])
    # Slices with equal counts would share their draws: as many replicates are drawn for each.
    distinct, place, repeats = np.unique(atoms, axis=0, return_inverse=True, return_counts=True)
    draws = paper.poisson_cell_counts(distinct, 20 * int(repeats.max()), 8)
    turn = np.empty(slices, dtype=int)
    order = np.argsort(place, kind="stable")
    turn[order] = np.arange(slices) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    replicates = draws[place[:, None], 20 * turn[:, None] + np.arange(20)]
    wrong, right, other_wrong, other_right = np.moveaxis(replicates.astype(float), -1, 0)
    overall = (wrong + other_wrong) / (wrong + right + other_wrong + other_right)
    deltas = wrong / (wrong + right) - overall
    p = paper.t_p_value(x / n - K / N, deltas, "both").p
    # The published rates are .009 to .014; 40,000 draws have a standard error of .0006.
    assert 0.0085 <= (p < 0.01).mean() <= 0.0145


def test_false_positive_rate_of_small_slices_is_as_bad_as_documented():
    rng = np.random.default_rng(9)
    x = rng.hypergeometric(2000, 18_000, 10, 4000)
    distinct, repeats = np.unique(x, return_counts=True)
    replicate = 0
    called = 0
    for value, repeat in zip(distinct, repeats, strict=True):
        atoms = [[value, 10 - value, 2000 - value, 18_000 - 10 + value]]
        drawn = paper.poisson_cell_counts(atoms, 20 * int(repeat), 10)[0].astype(float)
        wrong, right, other_wrong, other_right = drawn.reshape(repeat, 20, 4).transpose(2, 0, 1)
        size = wrong + right
        share = np.divide(wrong, size, out=np.full(size.shape, np.nan), where=size > 0)
        deltas = share - (wrong + other_wrong) / (size + other_wrong + other_right)
        p = paper.t_p_value(np.full(repeat, value / 10 - 0.1), deltas, "both").p
        called += (p < 0.01).sum()
        replicate += repeat
    assert 0.3 < called / replicate < 0.4
