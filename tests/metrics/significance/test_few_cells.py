"""Metrics of few cells: enumeration, and false-positive rates."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import special

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.significance import count_tests, few_cells

SPACE = statistic_space(["mcc"], "overall")
TOTALS = np.array([15_000, 900, 1100, 3000])  # by cell: TN, FN, FP, TP
NAMES = ("fbeta:2", "fbeta:0.5", "balanced_accuracy", "mcc")


def p_of(name, counts, totals, tail):
    own = metric(name)
    return few_cells.p_value(
        lambda cells: (own.value(Slices(cells, SPACE)), own.gradient(Slices(cells, SPACE))),
        counts, totals, own.strata(Slices(counts, SPACE)), tail,
    )  # fmt: skip


def tables(n, totals):
    """All counts [tables, 4] of n examples of at least 1e-15, with their chance."""
    counts = np.stack(np.meshgrid(*[np.arange(n + 1)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    counts = counts[counts.sum(axis=1) <= n]
    counts = np.concatenate([n - counts.sum(axis=1, keepdims=True), counts], axis=1)
    counts = counts[(counts <= totals).all(axis=1)]

    def ways(of_all, taken):
        return -np.log(of_all + 1.0) - special.betaln(of_all - taken + 1.0, taken + 1.0)

    chance = np.exp(ways(totals, counts).sum(axis=1) - ways(totals.sum(), np.float64(n)))
    return counts[chance > 1e-15], chance[chance > 1e-15]


@pytest.mark.parametrize("tail", ["lower", "upper"])
@pytest.mark.parametrize("name", NAMES)
def test_rates_of_all_tables_of_60(name, tail):
    """At most 1.3 times the nominal rate down to 1e-4, and near it where tables are not too few."""
    counts, chance = tables(60, TOTALS)
    assert chance.sum() == pytest.approx(1, abs=1e-10)
    tested = metric(name).untestable(Slices(counts, SPACE, TOTALS)) == 0
    counts, chance = counts[tested], chance[tested]
    p = p_of(name, counts, TOTALS, tail)
    for level in (0.05, 0.01, 1e-3, 1e-4):
        assert (chance * (p <= level)).sum() <= 1.3 * level, level
    if name.startswith("fbeta"):
        assert (chance * (p <= 0.01)).sum() >= 0.009


@pytest.mark.parametrize("name", ["f1", "recall"])
def test_shares_have_their_hypergeometric_tail(name):
    """Of F1 and of recall the exact law is known."""
    counts = np.random.default_rng(1).multivariate_hypergeometric(TOTALS, 400, 600)
    counts[0] = [320, 0, 20, 60]
    counts[1] = [340, 60, 0, 0]
    within = metric(name).strata(Slices(TOTALS[None], SPACE))[0]
    n, N = counts[:, within].sum(axis=1), TOTALS[within].sum()
    for tail in ("lower", "upper"):
        exact = count_tests.mid_p(n, counts[:, 3], N, TOTALS[3], tail)
        p = p_of(name, counts, TOTALS, tail)
        ends = ((counts[:, 3] == 0) | (counts[:, 3] == n)) & (exact < 0.09)
        assert ends.any() == (name == "recall" or tail == "lower")
        np.testing.assert_allclose(p[ends], exact[ends], rtol=1e-9)
        some = (exact < 0.09) & ~ends
        assert some.sum() > 20
        # A continuous law beside a lattice.
        np.testing.assert_allclose(p[some], exact[some], rtol=0.08)


def net_p(n, b, c, n_parent, b_parent, c_parent):
    """Of a child with b examples for the worse and c for the better, of its parent."""
    own, above = (
        np.array([[n - b - c, b, c]]),
        [n_parent - b_parent - c_parent, b_parent, c_parent],
    )
    scores = np.array([0.0, 1.0, -1.0])
    return few_cells.p_value(
        lambda cells: (cells @ scores, np.broadcast_to(scores, cells.shape)),
        own, above, [np.ones(3, bool)], "upper", 1.0,
    )[0]  # fmt: skip


def enumerated(n, b, c, n_parent, b_parent, c_parent):
    """P(B − C > b − c) + ½P(B − C = b − c), in integers."""
    agreeing = n_parent - b_parent - c_parent
    twice = 0
    for more in range(min(b_parent, n) + 1):
        for less in range(max(0, n - more - agreeing), min(c_parent, n - more) + 1):
            ways = (
                math.comb(b_parent, more)
                * math.comb(c_parent, less)
                * math.comb(agreeing, n - more - less)
            )
            twice += ways * (1 + int(np.sign((more - less) - (b - c))))
    return float(Fraction(twice, 2 * math.comb(n_parent, n)))


def test_net_changes_equal_enumeration_in_integers():
    rng = np.random.default_rng(1)
    off = []
    for _ in range(250):
        n_parent = int(rng.integers(30, 200))
        b_parent, c_parent = (int(value) for value in rng.integers(3, n_parent // 3 + 2, 2))
        n = int(rng.integers(10, n_parent - 8))
        drawn = rng.multivariate_hypergeometric(
            [b_parent, c_parent, n_parent - b_parent - c_parent], n
        )
        row = (n, int(drawn[0]), int(drawn[1]), n_parent, b_parent, c_parent)
        exact = enumerated(*row)
        if exact < 0.09:
            off.append(net_p(*row) / exact)
    assert len(off) > 15
    np.testing.assert_allclose(off, 1.0, rtol=0.03)
    # 170 discordant examples where a random child has 12 ± 3, and all that there are.
    for row in ((300, 170, 0, 10_000, 300, 100), (40, 30, 0, 200, 30, 20)):
        exact = enumerated(*row)
        assert 0 < exact < 1e-15
        assert net_p(*row) == pytest.approx(exact, rel=0.03, abs=0)


def test_a_child_that_took_all_it_could():
    """The end of the support: every example for the worse and none for the better."""
    row = (12, 12, 0, 100, 20, 30)
    assert net_p(*row) == pytest.approx(enumerated(*row), rel=1e-9)


def test_nothing_to_vary_has_no_p_value():
    assert np.isnan(net_p(5, 0, 0, 10, 0, 0))
    assert np.isnan(net_p(5, 5, 0, 10, 10, 0))
    assert np.isnan(net_p(10, 3, 2, 10, 3, 2))
    everything = np.tile(TOTALS, (2, 1))
    for name in NAMES:
        assert np.isnan(p_of(name, everything, TOTALS, "both")).all()
        assert p_of(name, everything[:0], TOTALS, "both").shape == (0,)


def test_slices_do_not_depend_on_the_others():
    counts = np.random.default_rng(3).multivariate_hypergeometric(TOTALS, 300, 60)
    together = p_of("mcc", counts, TOTALS, "both")
    for at in range(0, 60, 12):
        alone = p_of("mcc", counts[at : at + 1], TOTALS, "both")
        np.testing.assert_allclose(alone, together[at], rtol=1e-6)


def test_billions_of_examples_do_not_overflow():
    counts, totals = np.array([[9_000_000, 149_500, 150_000, 700_500]]), TOTALS * 2_000_000
    for name in NAMES:
        p = p_of(name, counts, totals, "both")
        assert ((p > 0) & (p < 1)).all()
