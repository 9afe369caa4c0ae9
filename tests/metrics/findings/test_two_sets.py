import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.findings.two_sets import (
    TwoSets,
    best,
    changed_more_p,
    difference_p,
    differences,
    log_odds_p,
    worse_p,
)
from slicebeam.metrics.measures.target_sums import design


def of_rows(inside, stratum, then, wrong):
    """Tables of a slice, and of all examples, by stratum."""
    strata = stratum.max() + 1

    def counted(some):
        columns = [np.ones(some.sum()), wrong[some], wrong[some]]
        return [np.bincount(stratum[some], one, strata) for one in columns]

    slices = [counted(inside & (then == side)) for side in (False, True)]
    whole = [counted(then == side) for side in (False, True)]
    return (
        TwoSets(*(column[None] for side in slices for column in side)),
        TwoSets(*(column for side in whole for column in side)),
    )


def drawn(rng, n=4000, fall=0.0, base=(0.05, 0.3)):
    """Examples of two strata; today's of the slice are worse by some points."""
    stratum, inside = rng.integers(0, 2, n), rng.random(n) < 0.15
    then = rng.random(n) < 0.5
    chance = np.array(base)[stratum] + fall * (inside & ~then)
    return inside, stratum, then, (rng.random(n) < chance).astype(float)


def test_without_strata_both_tests_are_those_of_one_table():
    rng = np.random.default_rng(0)
    inside, _, then, wrong = drawn(rng, fall=0.05)
    slices, everything = of_rows(inside, np.zeros(inside.size, int), then, wrong)
    of_slice = [(inside & (then == side)) for side in (False, True)]
    x, n = [wrong[some].sum() for some in of_slice], [some.sum() for some in of_slice]
    law = stats.hypergeom(sum(n), int(sum(x)), n[0])
    # Nothing is explained: a design without columns that matter.
    nothing = np.zeros((1, 1))
    for p in (
        log_odds_p(slices, everything, nothing),
        difference_p(slices, everything, nothing, are_counts=True),
    ):
        assert p[0] == pytest.approx(law.sf(x[0]) + law.pmf(x[0]) / 2, rel=0.15)


def test_a_general_change_is_not_one_of_the_slice():
    """Everything is worse by four points: of slices not more than α are said to be worse still."""
    rng, called = np.random.default_rng(1), 0
    for _ in range(300):
        inside, stratum, then, wrong = drawn(rng)
        wrong = np.where(then, wrong, np.maximum(wrong, rng.random(wrong.size) < 0.04))
        slices, everything = of_rows(inside, stratum, then, wrong)
        ones = np.ones((2, 1))
        called += changed_more_p(slices, everything, ones, are_counts=True)[0] <= 0.05
    assert called / 300 < 0.075


def test_a_slice_that_changed_is_told_and_explains_itself():
    rng = np.random.default_rng(2)
    inside, stratum, then, wrong = drawn(rng, n=20000, fall=0.12)
    slices, everything = of_rows(inside, stratum, then, wrong)
    assert changed_more_p(slices, everything, np.ones((2, 1)), are_counts=True)[0] < 1e-8
    # The strata crossed with the slice itself: nothing is left.
    crossed = stratum * 2 + inside
    slices, everything = of_rows(inside, crossed, then, wrong)
    columns = design(np.array([0, 1, 0, 1]), 1)
    assert changed_more_p(slices, everything, columns, are_counts=True)[0] > 0.01
    general, own = differences(everything, columns)
    assert abs(general) < 0.02
    assert own == pytest.approx(0.12, abs=0.03)


def test_strata_are_slices_that_are_worse_whenever():
    rng = np.random.default_rng(3)
    inside, stratum, then, wrong = drawn(rng)
    hard = TwoSets(*of_rows(stratum == 1, np.zeros(stratum.size, int), then, wrong)[0])
    everything = of_rows(inside, np.zeros(stratum.size, int), then, wrong)[1]
    assert worse_p(hard, everything)[0] < 1e-50
    easy = of_rows(stratum == 0, np.zeros(stratum.size, int), then, wrong)[0]
    assert worse_p(easy, everything)[0] == 1.0


def test_the_best_gains_most_and_its_like_are_named():
    p, tests = (
        np.array([1e-9, 1e-10, 1e-10, 0.5, 1e-30]),
        np.array([10.0, 10.0, 1000.0, 10.0, 10.0]),
    )
    threshold, sizes = np.array([1e-3] * 4 + [1e-40]), np.array([5.0, 6.0, 7.0, 8.0, 9.0])
    step = best(p, tests, threshold, sizes)
    assert (step.chosen, step.p) == (1, 1e-10)
    assert step.near == (0,)
    assert best(p[3:], tests[3:], threshold[3:], sizes[3:]) is None
