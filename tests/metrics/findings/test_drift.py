import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.findings.drift import drift


def test_it_is_twice_the_smaller_of_both_tests():
    now, then = np.array([300, 500, 200]), np.array([340, 480, 180])
    table = np.array([now, then])
    chi = stats.chi2_contingency(table, correction=False).statistic * 1999 / 2000
    broad = stats.chi2.sf(chi, 2)
    singles = []
    for a, b in zip(now, then, strict=True):
        law = stats.hypergeom(2000, a + b, 1000)
        upper, lower = law.sf(a) + law.pmf(a) / 2, law.cdf(a) - law.pmf(a) / 2
        singles.append(2 * min(upper, lower))
    found = drift(now, then)
    assert found.p == pytest.approx(min(1.0, 2 * min(broad, 3 * min(singles))), rel=1e-9)
    q, r = (now + 0.5) / (now + 0.5).sum(), (then + 0.5) / (then + 0.5).sum()
    index = ((q - r) * np.log(q / r)).sum() - 2 * (1 / 1000 + 1 / 1000)
    assert found.stability_index == pytest.approx(index)
    assert found.value == 0


def test_without_a_change_it_is_seldom_significant_and_the_index_is_small():
    rng = np.random.default_rng(0)
    chances = np.array([0.4, 0.3, 0.2, 0.06, 0.03, 0.009, 0.001])
    found = [
        drift(rng.multinomial(800, chances), rng.multinomial(6000, chances)) for _ in range(1500)
    ]
    share = np.mean([one.p <= 0.05 for one in found])
    assert 0.02 < share < 0.06
    assert np.mean([one.stability_index for one in found]) < 0.005


def test_a_new_value_and_a_broad_change_are_seen():
    assert drift(np.array([900, 100]), np.array([1000, 0])).p < 1e-20
    values = np.arange(10)
    now, then = 1000 + 20 * values, 1180 - 20 * values
    found = drift(now, then)
    assert found.p < 1e-3
    assert 0 < found.stability_index < 0.01
