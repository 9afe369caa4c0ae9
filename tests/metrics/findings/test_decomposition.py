import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.findings.decomposition import Decomposition, Indicators, drift


def of_rows(Z, y):
    return Indicators(float(len(y)), Z.T @ Z, float(y.sum()), float((y**2).sum()), Z.T @ y)


def drawn(rng, n, shares, chances):
    """Examples with two independent features of three values, whose chances of an error add up."""
    codes = [rng.choice(3, n, p=of) for of in shares]
    chance = 0.05 + sum(np.array(of)[code] for of, code in zip(chances, codes, strict=True))
    Z = np.column_stack([code == value for code in codes for value in (1, 2)]).astype(float)
    return Z, (rng.random(n) < chance).astype(float)


CHANCES = ((0.0, 0.1, 0.3), (0.0, 0.05, 0.0))
THEN, NOW = ((0.5, 0.3, 0.2), (0.4, 0.3, 0.3)), ((0.35, 0.3, 0.35), (0.4, 0.3, 0.3))


def test_mix_and_model_are_told_apart_and_add_up():
    """More of a hard kind, and all of them worse by two points: both parts are covered by their intervals."""
    rng, held = np.random.default_rng(0), np.zeros(3)
    true_mix = 0.15 * 0.3
    for _ in range(200):
        then = of_rows(*drawn(rng, 6000, THEN, CHANCES))
        Z, y = drawn(rng, 4000, NOW, CHANCES)
        y = np.maximum(y, rng.random(y.size) < 0.02)
        now = of_rows(Z, y)
        split = Decomposition(now, then)
        residual = (y - split.constant - Z @ split.coefficients).var()
        mix, model = split.mix, split.model(residual)
        assert mix.value + model.value == pytest.approx(split.whole, abs=1e-12)
        of_first = split.part(np.array([0, 1]))
        held += [
            abs(part.value - true) <= 1.96 * part.variance**0.5
            for part, true in (
                (mix, true_mix),
                (of_first, true_mix),
                (model, split.whole - true_mix),
            )
        ]
        assert split.distance < 0.25
    # The mix is off by as much as the model is, the other way round.
    assert (held / 200 > 0.9).all()


def test_coefficients_are_those_of_least_squares():
    rng = np.random.default_rng(1)
    Z, y = drawn(rng, 3000, THEN, CHANCES)
    split = Decomposition(of_rows(*drawn(rng, 3000, NOW, CHANCES)), of_rows(Z, y))
    fitted = np.linalg.lstsq(np.column_stack([np.ones(len(y)), Z]), y, rcond=None)[0]
    assert split.coefficients == pytest.approx(fitted[1:], abs=1e-3)
    assert split.residual == pytest.approx((y - Z @ fitted[1:] - fitted[0]).var(), rel=1e-4)


def test_parts_that_say_the_same_are_one_line():
    rng = np.random.default_rng(2)

    def twice(shares, n):
        Z, y = drawn(rng, n, shares, CHANCES)
        copy = Z[:, :2].copy()
        some = rng.random(n) < 0.02
        copy[some] = rng.permutation(copy[some])
        return np.column_stack([Z, copy]), y

    split = Decomposition(of_rows(*twice(NOW, 5000)), of_rows(*twice(THEN, 5000)))
    lines = split.together([np.array([0, 1]), np.array([2, 3]), np.array([4, 5])])
    assert sorted(map(sorted, lines)) == [[0, 2], [1]]


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
