"""Tests and intervals of weighted examples hold their level, also where errors weigh more."""

from dataclasses import replace

import numpy as np
import pytest

from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric
from tests.metrics.measures.test_metric_values import Examples

N = 20_000
SLICES = 2000


def weighted(*, errors_weigh):
    """Examples with a label, a score, the class it predicts, and weights."""
    rng = np.random.default_rng(1)
    positive = rng.random(N) < 0.3
    score = np.where(positive, rng.beta(4, 2, N), rng.beta(2, 4, N))
    predicted = score > 0.5
    weight = rng.lognormal(0, 0.7, N) * np.where(predicted != positive, errors_weigh, 1.0)
    pairs = [(column, column) for column in (predicted * 1, score, score)]
    return Examples(positive * 1, *pairs[:2], score, pairs[2], score, weight)


@pytest.mark.parametrize("errors_weigh", [1.0, 2.0])
@pytest.mark.parametrize("name", ["accuracy", "recall", "f1", "mcc", "log_loss"])
def test_random_slices(name, errors_weigh):
    own = metric(name)
    examples = weighted(errors_weigh=errors_weigh)
    space = examples.space([name], "overall")
    columns = examples.matrix(space)
    totals = columns.sum(axis=0)
    whole = own.value(Slices(totals[None, : space.columns], space))[0]
    rng = np.random.default_rng(2)
    for n in (50, 200):
        rows = np.stack([rng.choice(N, n, replace=False) for _ in range(SLICES)])
        sums = np.stack([columns[row, : space.columns].sum(axis=0) for row in rows])
        p = own.test(Slices(sums, space, totals), "both").p
        # Three standard errors of the simulation above 0.013.
        assert (p <= 0.01).mean() <= 0.013 + 3 * 0.0023
        assert (p <= 0.2).mean() <= 1.15 * 0.2 + 3 * 0.009
        low, high = own.value_interval(Slices(sums, space, totals), 0.95)
        assert ((low <= whole) & (whole <= high)).mean() >= 0.93 - 2 * 0.005
        low, high = own.delta_interval(Slices(sums, space, totals), 0.95)
        assert ((low <= 0) & (high >= 0)).mean() >= 0.93 - 2 * 0.005


def test_slices_that_are_worse_are_found():
    """Slices of 60 examples that err four times as often as all."""
    rng = np.random.default_rng(3)
    examples = weighted(errors_weigh=1.0)
    wrong = rng.random(N) < 0.05
    predicted = np.where(wrong, 1 - examples.label, examples.label)
    examples = replace(examples, predicted=(predicted, predicted))
    space = examples.space(["accuracy"], "overall")
    columns = examples.matrix(space)
    rows = [
        np.where(
            rng.random(60) < 0.2, *(rng.choice(np.flatnonzero(x), 60) for x in (wrong, ~wrong))
        )
        for _ in range(1000)
    ]
    sums = np.stack([columns[some, : space.columns].sum(axis=0) for some in rows])
    p = metric("accuracy").test(Slices(sums, space, columns.sum(axis=0)), "worse").p
    # The exact law, simulated, finds .65.
    assert (p <= 0.005).mean() > 0.62


def test_equal_weights_by_hand():
    """The linearised variance of a share with weights 1 is p(1 − p)/n, of the delta less."""
    own = metric("accuracy")
    examples = replace(weighted(errors_weigh=1.0), weight=np.ones(N))
    space, n = examples.space(["accuracy"], "overall"), 400
    sums = examples.matrix(space)[:n].sum(axis=0)[None, :]
    share = (examples.predicted[0] == examples.label)[:n].mean()
    variance = own.value_variance(Slices(sums, space))
    assert variance[0] == pytest.approx(share * (1 - share) / n, rel=1e-12)
    assert own.value(Slices(sums, space))[0] == pytest.approx(share, rel=1e-12)


def test_a_slice_that_is_all_right_has_an_interval():
    """Its variance is 0, not what rounding leaves of it, beside which no example would count."""
    examples = weighted(errors_weigh=1.0)
    right = examples.predicted[0] == examples.label
    for name in ("accuracy", "recall", "f1"):
        space = examples.space([name], "overall")
        columns = examples.matrix(space)
        rows = [
            np.flatnonzero(right & (examples.label == 1))[at : at + 60] for at in range(0, 600, 60)
        ]
        sums = np.stack([columns[some].sum(axis=0) for some in rows])
        low, high = metric(name).value_interval(Slices(sums, space, columns.sum(axis=0)), 0.95)
        assert (low > 0.8).all()
        assert (high == 1).all()
