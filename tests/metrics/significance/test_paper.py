"""The published test: its formula, its degenerate cases, and how wrong it is on small slices."""

import numpy as np
from scipy import stats
from scipy.special import betainc

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


def test_false_positive_rate_of_small_slices_is_as_bad_as_documented():
    rng = np.random.default_rng(9)
    x = rng.hypergeometric(2000, 18_000, 10, 4000)
    atoms = np.stack([x, 10 - x, 2000 - x, 18_000 - 10 + x])
    wrong, right, other_wrong, other_right = rng.poisson(atoms[:, :, None], (4, 4000, 20))
    size = wrong + right
    share = np.divide(wrong, size, out=np.full(size.shape, np.nan), where=size > 0)
    deltas = share - (wrong + other_wrong) / (size + other_wrong + other_right)
    p = paper.t_p_value(x / 10 - 0.1, deltas, "both").p
    assert 0.3 < (p < 0.01).mean() < 0.4
