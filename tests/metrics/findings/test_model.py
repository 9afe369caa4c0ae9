"""The model of expectations against regressions on rows."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from slicebeam.metrics.findings import model
from slicebeam.metrics.findings.model import fit
from slicebeam.metrics.measures.target_sums import design


def rows(seed, count=3000, findings=6):
    """Overlapping findings of all sizes, and their patterns."""
    rng = np.random.default_rng(seed)
    inside = rng.random((count, findings)) < rng.uniform(0.02, 0.5, findings)
    return rng, inside, (inside << np.arange(findings)).sum(axis=1)


def summed(masks, *columns):
    distinct, pattern = np.unique(masks, return_inverse=True)
    return distinct, pattern, [np.bincount(pattern, column) for column in columns]


def regression(inside, y, weight=None):
    """Expected rates of rows by another library."""
    found = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=500)
    return found.fit(inside, y, weight).predict_proba(inside)[:, 1]


def test_rates_equal_an_unpenalised_logistic_regression_on_rows():
    for seed in range(3):
        rng, inside, masks = rows(seed)
        y = rng.random(len(masks)) < 1 / (1 + np.exp(2 - inside @ rng.normal(0, 1, 6)))
        distinct, pattern, (n, errors) = summed(masks, np.ones(len(masks)), y)
        model = fit("rate", distinct, 6, n, errors)
        np.testing.assert_allclose(model.expected[pattern], regression(inside, y), atol=1e-10)
        assert not model.unbounded.any()
        np.testing.assert_allclose(model.design.T @ (n * model.expected - errors), 0, atol=1e-9)


def test_weighted_rates_equal_a_weighted_logistic_regression_on_rows():
    rng, inside, masks = rows(7)
    y = rng.random(len(masks)) < 1 / (1 + np.exp(1 - inside @ rng.normal(0, 1, 6)))
    weight = rng.integers(1, 40, len(masks))
    distinct, pattern, (w, errors) = summed(masks, weight, weight * y)
    model = fit("rate", distinct, 6, w, errors)
    np.testing.assert_allclose(model.expected[pattern], regression(inside, y, weight), atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_means_equal_least_squares_on_rows(weighted):
    rng, inside, masks = rows(3)
    x = rng.gamma(0.3, 2.0, len(masks)) + inside @ rng.normal(0, 1, 6)
    weight = rng.integers(1, 40, len(masks)) if weighted else np.ones(len(masks))
    distinct, pattern, (w, total) = summed(masks, weight, weight * x)
    model = fit("mean", distinct, 6, w, total)
    X = np.column_stack([np.ones(len(x)), inside])
    root = np.sqrt(weight)
    slow = np.linalg.lstsq(X * root[:, None], x * root, rcond=None)[0]
    np.testing.assert_allclose(model.coefficients, slow, atol=1e-10)
    np.testing.assert_allclose(model.expected[pattern], X @ slow, atol=1e-10)
    np.testing.assert_allclose(model.design.T @ (w * model.expected - total), 0, atol=1e-8)


def test_findings_that_separate_have_no_finite_coefficient():
    for errors, rate, side in (([70, 50], 1.0, 1.0), ([70, 0], 0.0, -1.0)):
        model = fit("rate", [0, 1], 1, [950, 50], errors)
        assert model.expected[0] == pytest.approx(70 / 950, rel=1e-14)
        assert model.expected[1] == rate
        assert model.unbounded.tolist() == [0.0, side]
        assert model.varies.tolist() == [True, False]
    # All errors of the first finding are in the second, which lies within it.
    model = fit("rate", [0, 1, 3], 2, [900, 60, 40], [50, 0, 10])
    np.testing.assert_allclose(model.expected, [50 / 900, 0.0, 0.25], atol=1e-12)
    assert np.sign(model.design @ model.unbounded).tolist() == [0.0, -1.0, 0.0]


def ridged(X, n, errors, strength):
    """The slow limit: the likelihood with a penalty that vanishes."""

    def loss(beta):
        eta = X @ beta
        value = n @ np.logaddexp(0, eta) - errors @ eta + strength * beta @ beta
        return value, X.T @ (n / (1 + np.exp(-eta)) - errors) + 2 * strength * beta

    beta = minimize(loss, np.zeros(X.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    return 1 / (1 + np.exp(-X @ beta))


def test_separated_patterns_are_the_limit_of_a_vanishing_penalty():
    rng, separated = np.random.default_rng(5), 0
    for _ in range(40):
        findings = int(rng.integers(1, 5))
        masks = rng.choice(2**findings, int(rng.integers(1, 2**findings + 1)), replace=False)
        n = rng.integers(1, 6, masks.size)
        errors = rng.binomial(n, rng.choice([0.1, 0.5, 0.9]))
        model = fit("rate", masks, findings, n, errors)
        slow = ridged(design(masks, findings), n, errors, 1e-7)
        np.testing.assert_allclose(model.expected, slow, atol=2e-3)
        separated += bool(model.unbounded.any())
        known = model.design @ model.coefficients
        at = model.varies
        np.testing.assert_allclose(1 / (1 + np.exp(-known[at])), model.expected[at], atol=1e-12)
        np.testing.assert_allclose(model.design.T @ (n * model.expected - errors), 0, atol=1e-8)
    assert separated > 10


def test_all_right_everywhere():
    model = fit("rate", [0, 1], 1, [100, 20], [0, 0])
    assert model.expected.tolist() == [0.0, 0.0]
    assert not model.varies.any()


def test_a_finding_that_others_say_has_no_coefficient_of_its_own():
    # The third finding holds the examples of either of two that share none.
    for kind in ("rate", "mean"):
        model = fit(kind, [0, 0b101, 0b110], 3, [100, 50, 50], [10, 20, 30])
        np.testing.assert_allclose(model.expected, [0.1, 0.4, 0.6], atol=1e-12)
        assert model.coefficients[3] == 0.0


def test_the_order_of_patterns_and_those_without_weight_change_nothing():
    rng, inside, masks = rows(11)
    y = rng.random(len(masks)) < 0.2 + 0.3 * inside[:, 0]
    distinct, _, (n, errors) = summed(masks, np.ones(len(masks)), y)
    for kind in ("rate", "mean"):
        model = fit(kind, distinct, 6, n, errors)
        order = rng.permutation(distinct.size)
        other = fit(kind, distinct[order], 6, n[order], errors[order])
        np.testing.assert_allclose(other.expected, model.expected[order], atol=1e-13)
        empty = np.setdiff1d(np.arange(64), distinct)[:1]
        more = fit(kind, [*distinct, *empty], 6, [*n, 0], [*errors, 0])
        np.testing.assert_allclose(more.expected[:-1], model.expected, atol=1e-13)
        assert not more.varies[-1]


def test_findings_that_are_pure_need_no_linear_program(monkeypatch):
    """What is written down for them is what the linear program finds."""
    taken = 0
    for seed in range(40):
        rng, inside, masks = rows(seed, count=400)
        y = rng.random(len(masks)) < 1 / (1 + np.exp(2 - inside @ rng.normal(0, 1, 6)))
        # Some of the findings hold nothing but errors, or none.
        for finding in rng.choice(6, rng.integers(1, 4), replace=False):
            y[inside[:, finding]] = rng.random() < 0.5
        if seed % 2:
            # One that is as small as those get: pure in its patterns, on both sides.
            inside[np.flatnonzero(inside[:, 0])[3:], 0] = False
            masks = (inside << np.arange(6)).sum(axis=1)
        distinct, _, (n, errors) = summed(masks, np.ones(len(masks)), y)
        found = fit("rate", distinct, 6, n, errors)
        with monkeypatch.context() as patched:
            patched.setattr(model, "_one_sided", lambda *_: None)
            expected = fit("rate", distinct, 6, n, errors)
        np.testing.assert_allclose(found.expected, expected.expected, atol=1e-10)
        assert found.varies.tolist() == expected.varies.tolist()
        assert np.array_equal(
            np.sign(found.design @ found.unbounded), np.sign(expected.design @ expected.unbounded)
        )
        with monkeypatch.context() as patched:
            patched.setattr("scipy.optimize.linprog", None)
            try:
                taken += fit("rate", distinct, 6, n, errors).unbounded.any()
            except TypeError:
                continue
    assert taken >= 10
