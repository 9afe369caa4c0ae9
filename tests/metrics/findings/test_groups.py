"""P-values of groups of examples that depend on each other."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from slicebeam.metrics.findings.groups import group_p_value
from tests.metrics.findings.test_conditional import holds


def grouped(rng, groups, inside, spread):
    """Excess, sums of the model's column and sizes by group, with no finding."""
    sizes = np.repeat([4, 6, 8], groups // 3)
    group = np.repeat(np.arange(sizes.size), sizes)
    x = rng.normal(0, 1, group.size) + spread * rng.normal(0, 1, sizes.size)[group]
    d = x - x.mean()
    own = inside[group]
    return (
        np.bincount(group, d * own),
        np.bincount(group, d)[:, None],
        np.bincount(group, own),
        d[own].sum() / np.sqrt(own.sum() * (1 - own.mean()) * d.var()),
        own.mean(),
    )


def test_groups_that_depend_on_each_other_are_one_observation_each():
    rng = np.random.default_rng(3)
    inside = np.arange(240) % 3 == 0
    robust, plain = [], []
    for _ in range(3000):
        excess, of_model, sizes, z, share = grouped(rng, 240, inside, 1.0)
        robust.append(group_p_value(excess, of_model, [share], sizes, "upper"))
        plain.append(ndtr(-z))
    holds(((np.array(robust) <= 0.05).mean(), (np.array(robust) <= 0.01).mean()), 3000)
    assert (np.array(plain) <= 0.01).mean() > 0.05


def test_few_groups_say_little():
    few, many = np.ones(29), np.ones(40)
    assert group_p_value(few, np.zeros((29, 1)), [0.0], few, "upper") == 1.0
    # All groups have the same excess: no smaller than that all signs agree.
    assert group_p_value(many, np.zeros((40, 1)), [0.0], many, "upper") == 2.0**-40
    assert group_p_value(-many, np.zeros((40, 1)), [0.0], many, "upper") == 1.0 - 2.0**-40


@pytest.mark.parametrize("tail", ["upper", "lower", "both"])
def test_groups_of_equal_size_have_students_p_value(tail):
    side = {"upper": "greater", "lower": "less", "both": "two-sided"}[tail]
    rng = np.random.default_rng(8)
    for mean in (-0.4, 0.0, 0.3):
        excess = rng.normal(mean, 1, 50)
        p = group_p_value(excess, np.zeros((50, 1)), [0.0], np.full(50, 3.0), tail)
        assert p == pytest.approx(stats.ttest_1samp(excess, 0, alternative=side).pvalue, rel=1e-9)


@pytest.mark.parametrize("tail", ["upper", "lower", "both"])
def test_no_excess_in_any_group_says_nothing(tail):
    none, sizes = np.zeros(40), np.ones(40)
    side = {"upper": "greater", "lower": "less", "both": "two-sided"}[tail]
    # Every assignment of signs to the groups has the same mean: the exact test of signs.
    signs = stats.permutation_test(
        (none,), np.mean, permutation_type="samples", n_resamples=99, alternative=side
    )
    assert group_p_value(none, np.zeros((40, 1)), [0.0], sizes, tail) == signs.pvalue
