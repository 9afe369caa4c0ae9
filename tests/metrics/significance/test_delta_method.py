"""The delta method against simulated variances, and the false-positive rate of two models' change."""

import numpy as np
import pytest
from scipy import optimize, stats

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.significance import hall
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
    slices = Slices(placed, SPACE, is_old=old)
    value, gradient = metric(name).value(slices), metric(name).gradient(slices)[:, PLACE]
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
            prevalence * (1 - recall) * (1 - won), prevalence * recall * lost,
            prevalence * (1 - recall) * won, prevalence * recall * (1 - lost),
        ]  # fmt: skip
        return np.array(rates)

    def difference(won):
        return float(metric_of(name, cells(won), NEW)[0] - metric_of(name, cells(won), OLD)[0])

    if difference(0.0) * difference(1.0) > 0:
        return None
    return cells(optimize.brentq(difference, 0.0, 1.0))


def placed(cells):
    """Joint counts [..., 8] as the space has them."""
    counts = np.empty_like(cells)
    counts[..., PLACE] = cells
    return counts


def tails_of(name, cells, law, alternatives=("worse", "better")):
    """Return p-values of the draws that are tested, where all examples have this law."""
    own, counts = metric(name), placed(cells)
    totals = placed(np.rint(1e6 * law / law.sum()).astype(np.int64))
    counts = counts[own.untestable(Slices(counts, SPACE, totals)) == 0]
    return [own.test(Slices(counts, SPACE, totals), alternative).p for alternative in alternatives]


METRICS = ("precision", "fbeta:2", "balanced_accuracy", "mcc")
LAWS = [
    (0.1, 0.6, 0.1, (0.03, 0.03, 0.03)), (0.1, 0.6, 0.1, (0.05, 0.02, 0.06)),
    (0.3, 0.6, 0.1, (0.03, 0.03, 0.03)), (0.5, 0.6, 0.1, (0.1, 0.1, 0.08)),
]  # fmt: skip


@pytest.mark.parametrize("name", METRICS)
def test_variance_of_a_slice_against_all_examples(name):
    rng = np.random.default_rng(4)
    shares = np.array([0.05, 0.02, 0.03, 0.1, 0.06, 0.04, 0.05, 0.65])
    inside, outside = 2000 * shares, 3000 * shares[::-1]
    own, rest = (rng.poisson(mean, (60_000, 8)) for mean in (inside, outside))
    simulated = metric_of(name, own, NEW)[0] - metric_of(name, own + rest, NEW)[0]
    gradient = metric_of(name, inside, NEW)[1]
    whole = metric_of(name, inside + outside, NEW)[1]
    variance = hall.ahead_variance(gradient[None], whole, inside[None], inside + outside)
    assert variance.shape == (1,)
    assert variance[0] == pytest.approx(simulated.var(), rel=0.03)
    alone = hall.ahead_variance(gradient[None], np.zeros(8), inside[None], inside + outside)
    assert alone[0] == pytest.approx(metric_of(name, own, NEW)[0].var(), rel=0.03)


@pytest.mark.parametrize("name", METRICS)
def test_variance_of_two_models_on_the_same_slice(name):
    rng = np.random.default_rng(5)
    counts = np.rint(2000 * equal_models(name, *LAWS[0])).astype(np.int64)
    draws = rng.poisson(counts, (60_000, 8))
    gaps = metric_of(name, draws, NEW)[0] - metric_of(name, draws, OLD)[0]
    whole = Slices(placed(counts)[None], SPACE, placed(counts))
    assert metric(name).change(whole)[0].error[0] ** 2 == pytest.approx(gaps.var(), rel=0.03)


def test_weights_enter_as_sums_of_squares():
    gradient, weights = np.array([[0.2, -0.1]]), np.array([1.5, 0.5, 2.0])
    squares = np.array([[weights[0] ** 2, (weights[1:] ** 2).sum()]])
    expected = (0.2 * 1.5) ** 2 + (0.1 * 0.5) ** 2 + (0.1 * 2.0) ** 2
    zero = np.zeros(2)
    assert hall.ahead_variance(gradient, zero, squares, squares[0])[0] == pytest.approx(expected)


def test_wald_equals_scipy():
    delta, freedom = np.array([-0.3, 0.1, 2.0, 40.0]), np.array([3.0, 20.0, 1e6, np.inf])
    t = delta / np.sqrt(0.25)
    upper, lower, both = (
        hall.wald_p_value(delta, 0.25, freedom, tail) for tail in ("upper", "lower", "both")
    )
    np.testing.assert_allclose(upper, stats.t.sf(t, freedom), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(lower, stats.t.cdf(t, freedom), rtol=1e-9)
    np.testing.assert_allclose(both, np.minimum(1, 2 * np.minimum(upper, lower)))


def test_nothing_to_test_has_p_1():
    delta = [0.1, np.nan, 0.1, 0.1, 0.1, 0.1]
    variance = [0.0, 1.0, np.nan, np.inf, -1.0, 1.0]
    p = hall.wald_p_value(delta, variance, [5.0, 5, 5, 5, 5, 0], "both")
    np.testing.assert_array_equal(p, 1.0)


def paired_rates(name, law, n, draws=10_000):
    """Return rates of worse and better at .01, over the nominal one; nothing where there is no such law."""
    cells = equal_models(name, *law)
    if cells is None:
        return []
    drawn = np.random.default_rng([n, LAWS.index(law)]).multinomial(n, cells, draws)
    return [(p <= 0.01).mean() / 0.01 for p in tails_of(name, drawn, cells)]


@pytest.mark.parametrize(
    ("n", "median"), [slow(100, 0.35), (200, 0.6), slow(500, 0.8), slow(2000, 0.8)]
)
def test_false_positives_of_two_models(n, median):
    """At .01 never more than 1.15 times the nominal rate; the median is of sides and laws."""
    rates = [rate for name in METRICS for law in LAWS for rate in paired_rates(name, law, n)]
    assert len(rates) == 30
    # Three standard errors of 10,000 draws.
    assert max(rates) <= 1.15 + 0.3
    assert np.median(rates) >= median


@pytest.mark.parametrize(("name", "least"), [
    ("precision", 0.85), ("fbeta:2", 0.88), ("balanced_accuracy", 0.95), ("mcc", 0.95),
])  # fmt: skip
def test_paired_power(name, least):
    # A new model that loses a fifth of the true positives and raises as many false alarms.
    worse = equal_models(name, *LAWS[2])
    moved = 0.2 * worse[7]
    worse[[0, 2, 7, 5]] += [-moved, moved, -moved, moved]
    draws = np.random.default_rng(6).multinomial(500, worse, 2_000)
    p = tails_of(name, draws, equal_models(name, *LAWS[2]), ("worse",))[0]
    assert (p <= 0.005).mean() >= least
