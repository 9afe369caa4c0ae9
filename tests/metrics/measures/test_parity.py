"""The largest gap between groups, against definitions in pandas, SciPy's law and all tables."""

from itertools import combinations, product
from math import comb

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, studentized_range

from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.measures import parity
from slicebeam.metrics.measures.parity import critical_value, largest_gap, p_value, shares


def test_gaps_are_those_of_demographic_parity_and_equalised_odds():
    rng, space = np.random.default_rng(3), StatisticSpace(("positive", "predicted"), "overall")
    data = pd.DataFrame({one: rng.integers(0, 2, 900) for one in ("label", "predicted")})
    data["group"] = rng.choice(["a", "b", "c"], 900, p=[0.2, 0.5, 0.3])
    data["right"] = data.label == data.predicted
    rates = {
        "prediction_rate": data.groupby("group").predicted.mean(),
        "true_positive_rate": data[data.label == 1].groupby("group").predicted.mean(),
        "false_positive_rate": data[data.label == 0].groupby("group").predicted.mean(),
        "accuracy": data.groupby("group").right.mean(),
    }
    cell = data.label * space.stride("positive") + data.predicted * space.stride("predicted")
    counts = pd.crosstab(data.group, cell).reindex(columns=range(space.cells)).to_numpy()
    found = shares(counts, space.holds("positive"), space.holds("predicted"))
    assert list(found) == list(rates)
    for name, rate in rates.items():
        gap = largest_gap(*found[name], 0.95)
        assert gap.gap == pytest.approx(rate.max() - rate.min())
        assert [gap.lowest, gap.highest] == [rate.argmin(), rate.argmax()]
        assert gap.low < gap.gap < gap.high


@pytest.mark.parametrize("rates", [(0.01, 0.01), (0.03, 0.95), (0.2, 0.3), (0.5, 0.5)])
def test_intervals_of_two_groups_cover(rates, monkeypatch):
    """Over all tables; there is no pair to choose but by its sign."""
    monkeypatch.setattr(parity, "p_value", lambda *_: 1.0)
    sizes, covered = np.array([30, 40]), 0.0
    for table in product(range(31), range(41)):
        found = largest_gap(np.array(table), sizes, 0.95)
        if found.low <= rates[found.highest] - rates[found.lowest] <= found.high:
            covered += np.prod(binom.pmf(table, sizes, rates))
    assert covered > 0.945


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_critical_value_is_tukeys(confidence):
    values = [critical_value(groups, confidence) * 2**0.5 for groups in (2, 5, 20)]
    assert values == pytest.approx(studentized_range.ppf(confidence, [2, 5, 20], np.inf), abs=1e-6)


@pytest.mark.parametrize("marked", [(3, 0, 2), (0, 5, 1), (1, 2, 2), (0, 0, 0), (4, 6, 3)])
def test_p_is_the_share_of_tables_as_far_apart(marked):
    sizes = (4, 6, 3)

    def apart(table):
        rates = [x / n for x, n in zip(table, sizes, strict=True)]
        return max(
            abs(rates[i] - rates[j]) / (1 / sizes[i] + 1 / sizes[j]) ** 0.5
            for i, j in combinations(range(3), 2)
        )

    tables = [one for one in product(*(range(n + 1) for n in sizes)) if sum(one) == sum(marked)]
    ways = [np.prod([comb(n, x) for n, x in zip(sizes, table, strict=True)]) for table in tables]
    extreme = [apart(table) >= apart(marked) - 1e-9 for table in tables]
    exact = np.dot(ways, extreme) / sum(ways)
    assert p_value(np.array(marked), np.array(sizes)) == pytest.approx(exact, abs=0.02)


def test_p_of_more_examples_than_can_be_drawn_from():
    sizes, marked = np.array([2 * 10**9, 10**9]), np.array([10**9, 5 * 10**8 + 3 * 10**4])
    # The difference is 1.55 standard errors.
    assert p_value(marked, sizes) == pytest.approx(0.12, abs=0.02)
