"""Whether something became more frequent, against scipy's binomial test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.drift import p_more_frequent


@pytest.mark.parametrize(("examples", "before"), [(4000, 4000), (100, 5000), (10**6, 300)])
@pytest.mark.parametrize("then", [0, 1, 40])
def test_against_the_conditional_binomial(examples: int, before: int, then: int) -> None:
    now = np.array([0, 1, 2, 20, 45, 90])
    expected = [
        stats.binomtest(k, k + then, examples / (examples + before), "greater").pvalue
        if k + then
        else 1.0
        for k in now.tolist()
    ]
    assert p_more_frequent(now, examples, then, before) == pytest.approx(expected, rel=1e-9)


def test_false_alarms_stay_below_the_level() -> None:
    rng = np.random.default_rng(6)
    now, then = rng.binomial(2000, 0.02, 20_000), rng.binomial(3000, 0.02, 20_000)
    p = p_more_frequent(now, 2000, then, 3000)
    for level in (0.05, 0.01, 0.001):
        # Three standard errors above the level at the most.
        assert (p <= level).mean() <= level + 3 * np.sqrt(level / p.size)
    assert (p <= 0.05).mean() > 0.03
