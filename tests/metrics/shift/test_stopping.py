import math

import numpy as np
import pytest
from scipy import optimize, stats

from slicebeam.metrics.shift.estimates import MatrixEstimate, estimate, summarise
from slicebeam.metrics.shift.stopping import error_bound, first_check
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def slow_bound(slow, confidence):
    z = optimize.brentq(lambda x: stats.norm.cdf(x) - confidence, -9, 9, xtol=1e-13)
    squares = float(np.square(slow.variance).sum())
    h = max(0.5, slow.loss**2 / (2 * squares)) if squares > 0 else 0.5
    # A chi-squared variable is a gamma variable, whose quantile comes by another way.
    quantile = stats.gamma(h / 2, scale=2).isf(1 - confidence)
    scale = slow.loss + z * slow.loss_error + z**2 * slow.loss_unseen
    return math.sqrt(scale * quantile / h)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("control", [False, True])
def test_error_bound_is_the_formula(control, confidence):
    rng = np.random.default_rng(1)
    for _ in range(25):
        pool = oracle.random_pool(rng, largest=20, agreement=rng.random())
        asked = oracle.random_asked(rng, pool)
        found = estimate(pool.strata(), oracle.sample_of(pool, [asked]), control=control)
        slow = oracle.estimate(pool, asked, found.reliance[0])
        bound = error_bound(found, confidence)
        assert bound.shape == (1,)
        assert bound[0] == pytest.approx(slow_bound(slow, confidence), rel=1e-7)


def test_numbers_of_the_rule_at_95_percent():
    found = MatrixEstimate(
        matrix=np.zeros((1, 1, 2)),
        variance=np.full((1, 1, 2), 2e-5),
        unseen=np.zeros((1, 1)),
        label_share=np.ones((1, 1)),
        accuracy=np.zeros(1),
        accuracy_variance=np.zeros(1),
        accuracy_unseen=np.zeros(1),
        reliance=np.zeros(1),
        loss=np.array([4e-5]),
        loss_error=np.array([1e-5]),
        loss_unseen=np.array([2e-6]),
        loss_spread=np.array([2 * 2 * 4e-10]),
    )
    # h = 16e-10/(2·8e-10) = 1, of which χ² is 3.841.
    wanted = (4e-5 + 1.645 * 1e-5 + 2.706 * 2e-6) * 3.8415
    assert error_bound(found)[0] ** 2 == pytest.approx(wanted, rel=1e-3)


def test_nothing_that_varied_leaves_what_was_not_seen():
    rng = np.random.default_rng(2)
    pool = oracle.random_pool(rng, largest=20)
    pool.old = pool.new = [0] * len(pool.items)
    n = [min(2, size) for size in pool.sizes]
    asked = [
        item for s, m in enumerate(n) for item in np.flatnonzero(np.array(pool.stratum) == s)[:m]
    ]
    found = estimate(pool.strata(), oracle.sample_of(pool, [asked]))
    assert found.loss[0] == 0
    unseen = sum(
        2 * (size / len(pool.items)) ** 3 * (1 - m / size) / m**2
        for size, m in zip(pool.sizes, n, strict=True)
    )
    chi2 = stats.chi2.ppf(0.95, 0.5) / 0.5
    assert error_bound(found)[0] ** 2 == pytest.approx(1.6448536**2 * unseen * chi2, rel=1e-6)


def test_nothing_is_left_to_err_when_every_item_was_asked():
    pool = oracle.random_pool(np.random.default_rng(3))
    everything = oracle.sample_of(pool, [list(pool.items)])
    for method in ("plus", "proportional"):
        found = summarise(method, pool.strata(), everything)
        assert error_bound(found)[0] == 0


def test_more_confidence_takes_more():
    rng = np.random.default_rng(4)
    pool = oracle.random_pool(rng, largest=40)
    found = estimate(pool.strata(), oracle.sample_of(pool, [oracle.random_asked(rng, pool)]))
    bounds = [error_bound(found, confidence)[0] for confidence in (0.6, 0.8, 0.9, 0.95, 0.99)]
    assert (np.diff(bounds) > 0).all()


def test_first_check():
    assert [first_check(S) for S in (1, 49, 50, 51, 93)] == [100, 100, 100, 102, 186]
