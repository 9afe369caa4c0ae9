"""The delta method against simulated variances, and the paired test's false-positive rate."""

import numpy as np
import pytest
from scipy import optimize, stats

from slicebeam.metrics.registry import metric, statistic_space
from slicebeam.metrics.significance import count_tests, delta_method
from tests.conftest import slow

# Joint cells of (label, new prediction, old prediction): label is the highest bit.
LABEL = np.arange(8) >> 2
NEW = (np.arange(8) >> 1) & 1
OLD = np.arange(8) & 1
SPACE = statistic_space(["mcc"], "baseline")
PLACE = (
    LABEL * SPACE.stride("positive")
    + NEW * SPACE.stride("predicted")
    + OLD * SPACE.stride("predicted", old=True)
)


def metric_of(name, cells, prediction):
    """Return the metric and its gradient [..., 8] at joint counts."""
    counts = np.atleast_2d(np.asarray(cells, dtype=float))
    placed, old = np.empty(counts.shape), prediction is OLD
    placed[:, PLACE] = counts
    value = metric(name).of_cells(placed, SPACE, old=old)
    gradient = metric(name).gradient(placed, SPACE, old=old)[:, PLACE]
    return (value, gradient) if np.ndim(cells) == 2 else (value[0], gradient[0])


def equal_models(name, prevalence, recall, fall_out, flips):
    """Return cell probabilities of two models with equal metric and unlike positive rates."""
    lost, removed, added = flips

    def cells(won):
        rates = [
            (1 - prevalence) * (1 - fall_out) * (1 - added),
            (1 - prevalence) * fall_out * removed,
            (1 - prevalence) * (1 - fall_out) * added,
            (1 - prevalence) * fall_out * (1 - removed),
            prevalence * (1 - recall) * (1 - won),
            prevalence * recall * lost,
            prevalence * (1 - recall) * won,
            prevalence * recall * (1 - lost),
        ]
        return np.array(rates)

    def difference(won):
        return float(metric_of(name, cells(won), NEW)[0] - metric_of(name, cells(won), OLD)[0])

    if difference(0.0) * difference(1.0) > 0:
        return None
    return cells(optimize.brentq(difference, 0.0, 1.0))


def tails_of(name, cells):
    """Return the one-sided p-values of the draws whose denominators are at least 10."""
    denominator = {
        "precision": [cells @ NEW, cells @ OLD],
        "fbeta:2": [cells @ (LABEL | NEW), cells @ (LABEL | OLD)],
        "balanced_accuracy": [cells @ LABEL, cells @ (1 - LABEL)],
        "mcc": [cells @ LABEL, cells @ (1 - LABEL), cells @ NEW, cells @ OLD],
    }[name]
    cells = cells[np.min(denominator, axis=0) >= 10]
    new, gradient_new = metric_of(name, cells, NEW)
    old, gradient_old = metric_of(name, cells, OLD)
    return {
        tail: delta_method.paired_p_value(new - old, gradient_new, gradient_old, cells, tail)
        for tail in ("lower", "upper", "both")
    }


METRICS = ("precision", "fbeta:2", "balanced_accuracy", "mcc")
LAWS = [
    (0.1, 0.6, 0.1, (0.03, 0.03, 0.03)),
    (0.1, 0.6, 0.1, (0.05, 0.02, 0.06)),
    (0.3, 0.6, 0.1, (0.03, 0.03, 0.03)),
    (0.5, 0.6, 0.1, (0.1, 0.1, 0.08)),
]


@pytest.mark.parametrize("name", METRICS)
def test_variance_of_a_slice_against_all_examples(name):
    rng = np.random.default_rng(4)
    shares = np.array([0.05, 0.02, 0.03, 0.1, 0.06, 0.04, 0.05, 0.65])
    inside, outside = 2000 * shares, 3000 * shares[::-1]
    own, rest = (rng.poisson(mean, (60_000, 8)) for mean in (inside, outside))
    simulated = metric_of(name, own, NEW)[0] - metric_of(name, own + rest, NEW)[0]
    gradient = metric_of(name, inside, NEW)[1]
    whole = metric_of(name, inside + outside, NEW)[1]
    variance = delta_method.variance(gradient[None], whole, inside[None], inside + outside)
    assert variance.shape == (1,)
    assert variance[0] == pytest.approx(simulated.var(), rel=0.03)
    alone = delta_method.variance(gradient[None], np.zeros(8), inside[None], inside + outside)
    assert alone[0] == pytest.approx(metric_of(name, own, NEW)[0].var(), rel=0.03)


@pytest.mark.parametrize("name", METRICS)
def test_variance_of_two_models_on_the_same_slice(name):
    rng = np.random.default_rng(5)
    counts = 2000 * equal_models(name, *LAWS[0])
    draws = rng.poisson(counts, (60_000, 8))
    simulated = metric_of(name, draws, NEW)[0] - metric_of(name, draws, OLD)[0]
    new, old = metric_of(name, counts, NEW)[1], metric_of(name, counts, OLD)[1]
    variance = delta_method.paired_variance(new[None], old[None], counts[None])
    assert variance[0] == pytest.approx(simulated.var(), rel=0.03)


def test_weights_enter_as_sums_of_squares():
    gradient = np.array([[0.2, -0.1]])
    weights = np.array([1.5, 0.5, 2.0])
    squares = np.array([[weights[0] ** 2, (weights[1:] ** 2).sum()]])
    expected = (0.2 * 1.5) ** 2 + (0.1 * 0.5) ** 2 + (0.1 * 2.0) ** 2
    zero = np.zeros(2)
    assert delta_method.variance(gradient, zero, squares, squares[0])[0] == pytest.approx(expected)
    assert delta_method.paired_variance(gradient, [zero], squares)[0] == pytest.approx(expected)


def test_wald_equals_scipy():
    delta, freedom = np.array([-0.3, 0.1, 2.0, 40.0]), np.array([3.0, 20.0, 1e6, np.inf])
    t = delta / np.sqrt(0.25)
    upper, lower, both = (
        delta_method.wald_p_value(delta, 0.25, freedom, tail) for tail in ("upper", "lower", "both")
    )
    np.testing.assert_allclose(upper, stats.t.sf(t, freedom), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(lower, stats.t.cdf(t, freedom), rtol=1e-9)
    np.testing.assert_allclose(both, np.minimum(1, 2 * np.minimum(upper, lower)))


def test_nothing_to_test_has_p_1():
    delta = [0.1, np.nan, 0.1, 0.1, 0.1, 0.1]
    variance = [0.0, 1.0, np.nan, np.inf, -1.0, 1.0]
    p = delta_method.wald_p_value(delta, variance, [5.0, 5, 5, 5, 5, 0], "both")
    np.testing.assert_array_equal(p, 1.0)


@pytest.mark.parametrize("tail", ["lower", "upper", "both"])
def test_equal_models_and_undefined_metrics_have_p_1(tail):
    gradient = np.array([[0.1, -0.1], [0.1, -0.1], [np.nan, np.nan], [0.1, -0.1]])
    other = np.array([[0.1, -0.1], [-0.1, -0.1], [0.1, -0.1], [np.inf, 0.1]])
    counts = np.array([[5, 5], [0, 9], [5, 5], [5, 5]])
    delta = [0.0, 0.0, np.nan, 0.2]
    p = delta_method.paired_p_value(delta, gradient, other, counts, tail)
    np.testing.assert_array_equal(p, 1.0)
    assert delta_method.paired_p_value([], gradient[:0], other[:0], counts[:0], tail).shape == (0,)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("n", [50, *(slow(n) for n in (100, 500)), 5000])
def test_paired_false_positive_rate(name, n):
    possible = [law for law in LAWS if equal_models(name, *law) is not None]
    assert len(possible) >= 2
    for at, law in enumerate(possible):
        draws = np.random.default_rng(n + at).multinomial(n, equal_models(name, *law), 12_000)
        p = tails_of(name, draws)
        if p["both"].size < 1_000:
            continue
        rate = {tail: (values <= 0.01).mean() for tail, values in p.items()}
        one_sided = {tail: (p[tail] <= 0.005).mean() for tail in ("lower", "upper")}
        assert rate["both"] <= 0.013, law
        assert max(one_sided.values()) <= 0.0085, law
        if n == 5000:
            assert rate["both"] >= 0.006, law


def test_paired_test_of_accuracy_is_near_mcnemar():
    # Gradients of accuracy at n examples: ±1/n on the cells on which the models disagree.
    n, b, c = 2000, np.array([60, 90, 120, 80]), np.array([50, 60, 60, 140])
    counts = np.stack([n - b - c, b, c], axis=1)
    new = np.tile([0.4, 0.8, -0.2], (4, 1)) / n
    old = np.tile([0.4, -0.2, 0.8], (4, 1)) / n
    p = delta_method.paired_p_value((b - c) / n, new, old, counts, "both")
    exact = count_tests.mcnemar_mid_p(b, c, "both")
    np.testing.assert_allclose(np.log(p), np.log(exact), rtol=0.06)
    assert (p >= exact * 0.95).all()


@pytest.mark.parametrize(
    ("name", "least"),
    [("precision", 0.85), ("fbeta:2", 0.88), ("balanced_accuracy", 0.95), ("mcc", 0.95)],
)
def test_paired_power(name, least):
    # A new model that loses a fifth of the true positives and raises as many false alarms.
    worse = equal_models(name, *LAWS[2])
    moved = 0.2 * worse[7]
    worse[[0, 2, 7, 5]] += [-moved, moved, -moved, moved]
    draws = np.random.default_rng(6).multinomial(500, worse, 2_000)
    power = (tails_of(name, draws)["lower"] <= 0.005).mean()
    assert power >= least
