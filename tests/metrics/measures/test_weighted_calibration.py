"""Tests and intervals of weighted examples hold their level, also where errors weigh more."""

import numpy as np
import pytest

from slicebeam.metrics.counting.statistic_space import Range, fixed_point
from slicebeam.metrics.registry import metric, statistic_space
from tests.deviations import with_deviations

N = 20_000
SLICES = 2000


class Population:
    """Examples with weights, a label, a score and the class it predicts."""

    def __init__(self, *, errors_weigh):
        rng = np.random.default_rng(1)
        self.positive = rng.random(N) < 0.3
        score = np.where(self.positive, rng.beta(4, 2, N), rng.beta(2, 4, N))
        self.predicted = score > 0.5
        self.wrong = self.predicted != self.positive
        self.loss = -np.log(np.where(self.positive, score, 1 - score))
        self.weight = rng.lognormal(0, 0.7, N) * np.where(self.wrong, errors_weigh, 1.0)

    def columns(self, name):
        """What is summed of each example [examples, columns and total terms]."""
        space = statistic_space([name], "overall", weighted=True)
        ranges = {("log_loss", False): Range(self.loss.min(), self.loss.max())}
        space = space.scaled(ranges if space.terms else {}, self.weight.max(), N)
        if space.terms:
            space = with_deviations(space, name, self.loss, self.weight)
        cell = np.zeros(N, np.int64)
        for indicator in space.indicators:
            cell += getattr(self, indicator) * space.stride(indicator)
        sums = np.zeros((N, space.raw_columns + len(space.total_terms)), np.int64)
        rows = np.arange(N)
        sums[rows, cell] = 1
        for power in (1, 2):
            scaled = fixed_point(self.weight**power, space.weight_scales[power - 1])
            sums[rows, power * space.cells + cell] = scaled
        for at, term in enumerate((*space.terms, *space.total_terms)):
            value = self.loss**term.power * self.weight**term.weight_power
            sums[:, space.cell_columns + at] = fixed_point(value, space.scales[at])
        return space, sums


@pytest.mark.parametrize("errors_weigh", [1.0, 2.0])
@pytest.mark.parametrize("name", ["accuracy", "recall", "f1", "mcc", "log_loss"])
def test_random_slices(name, errors_weigh):
    own = metric(name)
    space, columns = Population(errors_weigh=errors_weigh).columns(name)
    totals = columns.sum(axis=0)
    whole = own.value(totals[None, : space.columns], space)[0]
    rng = np.random.default_rng(2)
    for n in (50, 200):
        rows = np.stack([rng.choice(N, n, replace=False) for _ in range(SLICES)])
        sums = np.stack([columns[row, : space.columns].sum(axis=0) for row in rows])
        p = own.test(sums, totals, space, "both").p
        # Three standard errors of the simulation above 0.013.
        assert (p <= 0.01).mean() <= 0.013 + 3 * 0.0023
        assert (p <= 0.2).mean() <= 0.2 + 3 * 0.009
        low, high = own.value_interval(sums, totals, space, 0.95)
        assert ((low <= whole) & (whole <= high)).mean() >= 0.93 - 2 * 0.005
        low, high = own.delta_interval(sums, totals, space, 0.95)
        assert ((low <= 0) & (high >= 0)).mean() >= 0.93 - 2 * 0.005


def test_equal_weights_by_hand():
    """The linearised variance of a share with weights 1 is p(1 − p)/n, of the delta less."""
    own = metric("accuracy")
    people = Population(errors_weigh=1.0)
    people.weight = np.ones(N)
    space, columns = people.columns("accuracy")
    sums = columns[:400].sum(axis=0)[None, :]
    share, n = 1 - people.wrong[:400].mean(), 400
    variance = own.value_variance(sums, space)  # type: ignore[attr-defined]
    assert variance[0] == pytest.approx(share * (1 - share) / n, rel=1e-12)
    assert own.value(sums, space)[0] == pytest.approx(share, rel=1e-12)
