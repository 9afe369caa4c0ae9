from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.counting.statistic_space import THEN
from slicebeam.metrics.measures.earlier import Earlier, of_set
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, metric_on, statistic_space
from slicebeam.metrics.significance.outcome_codes import Reason


def of_counts(name, tables):
    """Slices of the counts (right, wrong) today and then."""
    space = statistic_space([name], "earlier")
    assert space.indicators == ("wrong", THEN)
    sums = np.array([[a, b, c, d] for a, b, c, d in tables])
    return metric_on(name, space), Slices(sums, space, sums.sum(axis=0))


TABLES = [(160, 40, 720, 80), (30, 2, 300, 60), (20, 0, 20, 0), (50, 50, 10, 9), (400, 90, 35, 5)]


def test_shares_are_tested_by_the_mid_p_of_fishers_test():
    own, slices = of_counts("accuracy", TABLES)
    tested = own.test(slices, "worse")
    for (right, wrong, right_then, wrong_then), p, reason in zip(
        TABLES, tested.p, tested.reasons, strict=True
    ):
        if right_then + wrong_then < 20:
            assert (p, reason) == (1.0, Reason.FEW_EARLIER)
            continue
        if not wrong + wrong_then:
            assert p == 1.0
            continue
        law = stats.hypergeom(
            right + wrong + right_then + wrong_then, wrong + wrong_then, right + wrong
        )
        assert p == pytest.approx(law.sf(wrong) + law.pmf(wrong) / 2, rel=1e-9)
    both = own.test(slices, "both").p
    assert both[0] == pytest.approx(2 * tested.p[0])


def test_intervals_of_shares_are_newcombes():
    own, slices = of_counts("accuracy", TABLES)
    low, high = own.delta_interval(slices, 0.95)

    def wilson(x, n):
        z = stats.norm.ppf(0.975)
        centre, half = x + z * z / 2, z * np.sqrt(x * (n - x) / n + z * z / 4)
        return (centre - half) / (n + z * z), (centre + half) / (n + z * z)

    for at, (a, b, c, d) in enumerate(TABLES):
        p, q = a / (a + b), c / (c + d)
        (l1, u1), (l0, u0) = wilson(a, a + b), wilson(c, c + d)
        assert low[at] == pytest.approx(p - q - np.hypot(p - l1, u0 - q), abs=1e-12)
        assert high[at] == pytest.approx(p - q + np.hypot(u1 - p, q - l0), abs=1e-12)
    assert own.value(slices)[0] == 0.8
    assert own.value(slices.old)[0] == 0.9
    assert own.delta(slices)[0] == pytest.approx(-0.1)


def test_a_margin_is_taken_off():
    own, slices = of_counts("accuracy", TABLES)
    none, some = (own.margin_p(slices, margin, "lower")[0] for margin in (0.0, -0.05))
    # Without a margin it is nearly the test of no difference.
    assert none == pytest.approx(own.test(slices, "worse").p[0], rel=0.2)
    assert none < some < 0.1


@pytest.mark.parametrize("name", ["f1", "mcc", "balanced_accuracy", "recall"])
def test_other_counts_say_nothing_too_often_where_nothing_changed(name):
    """Two samples of one law: p of at most .05 in about as many draws."""
    rng = np.random.default_rng(1)
    space = statistic_space([name], "earlier")
    own = metric_on(name, space)
    chances = np.array([0.6, 0.08, 0.07, 0.25])
    now = rng.multinomial(150, chances, 4000)
    then = rng.multinomial(600, chances, 4000)
    sums = np.concatenate([now, then], axis=1)
    p = own.test(Slices(sums, space, sums.sum(axis=0)), "worse").p
    share = (p <= 0.05).mean()
    assert 0.03 < share < 0.06
    worse = rng.multinomial(150, [0.5, 0.18, 0.17, 0.15], 500)
    sums = np.concatenate([worse, then[:500]], axis=1)
    assert (own.test(Slices(sums, space, sums.sum(axis=0)), "worse").p <= 0.05).mean() > 0.9


def of_means(*values):
    """Slices of the errors today and then [slices, examples]."""
    space = statistic_space(["mse"], "earlier")
    names = [(term.source, term.power) for term in space.all_terms]
    assert names == [("new", 1), ("new", 2), ("old", 1), ("old", 2), ("new", 3), ("old", 3)]
    scale = 2.0**-30
    space = replace(space, scales=(scale,) * len(names), shifts=(("mse", 0.0),))
    counts = [np.full(len(side), side.shape[1]) for side in values]
    powers = [np.rint((side**power).sum(axis=1) / scale) for side in values for power in (1, 2)]
    sums = np.stack([*counts, *powers], axis=1).astype(np.int64)
    thirds = [np.rint((side**3).sum() / scale) for side in values]
    totals = np.append(sums.sum(axis=0), np.array(thirds, np.int64))
    return metric_on("mse", space), Slices(sums, space, totals)


def test_means_are_tested_by_halls_t_of_welch():
    rng = np.random.default_rng(2)
    values = rng.gamma(4.0, 1.0, (3000, 60)), rng.gamma(4.0, 1.0, (3000, 90))
    own, slices = of_means(*values)
    assert own.value(slices) == pytest.approx(values[0].mean(axis=1))
    assert own.value(slices.old) == pytest.approx(values[1].mean(axis=1))
    p = own.test(slices, "worse").p
    welch = stats.ttest_ind(values[0], values[1], axis=1, equal_var=False, alternative="greater")
    assert np.corrcoef(np.log(p), np.log(welch.pvalue))[0, 1] > 0.98
    assert 0.035 < (p <= 0.05).mean() < 0.06
    low, high = own.delta_interval(slices, 0.95)
    assert ((low <= 0) & (high >= 0)).mean() > 0.93


def test_a_slice_that_holds_all_of_its_parent_is_not_ahead_of_it():
    rng = np.random.default_rng(3)
    values = [rng.lognormal(0.0, 1.0, (20, 60)) for _ in range(2)]
    values[0][3] += 5.0
    own, slices = of_means(*values)
    parents = slices.rows(np.array([0, 3]))
    parents = replace(parents, sums=np.stack([slices.sums[0], slices.sums[[3, 4, 5]].sum(axis=0)]))
    p = own.p_refine(slices.rows(np.array([0, 3])), parents, "upper")
    assert p[0] == 1.0
    assert p[1] < 0.01


def test_a_part_is_of_one_data_set():
    own, slices = of_counts("accuracy", TABLES)
    assert isinstance(own, Earlier)
    now, then = (of_set(slices, then=then) for then in (False, True))
    assert now.sums.tolist() == [list(one[:2]) for one in TABLES]
    assert then.sums.tolist() == [list(one[2:]) for one in TABLES]
    assert now.totals.tolist() == then.totals.tolist() == [1745, 336]
    assert slices.sizes.tolist() == now.sizes.tolist()
    assert metric_on("accuracy", now.space) is metric("accuracy")
