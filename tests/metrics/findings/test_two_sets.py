import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.findings.two_sets import (
    Nested,
    TwoSets,
    best,
    changed_more_p,
    difference_p,
    differences,
    log_odds_p,
    part_alone,
    sharpened,
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


@pytest.mark.parametrize("are_counts", [True, False])
def test_a_part_alone_is_likelier_by_two_normal_laws(are_counts):
    """All of a slice changed alike, by the best common change, or its rest did not change at all."""
    rng = np.random.default_rng(6)
    inside, stratum, then, wrong = drawn(rng, fall=0.2)
    part = inside & (rng.random(inside.size) < 0.6)
    if not are_counts:
        wrong = wrong * rng.gamma(2.0, 1.0, wrong.size)
    sets = []
    for some in (inside, part):
        columns = [np.ones(some.sum()), wrong[some], wrong[some] ** 2]
        sides = (
            [np.bincount(stratum[some], one * (then[some] == side), 2) for one in columns]
            for side in (False, True)
        )
        sets.append(TwoSets(*(column[None] for side in sides for column in side)))
    expected = np.array([0.01, -0.02])
    changes, errors = [], []
    for some in (part, inside & ~part):
        weights, apart = [], []
        for at in range(2):
            now, before = (wrong[some & (stratum == at) & (then == side)] for side in (False, True))
            weights.append(len(now) * len(before) / (len(now) + len(before)))
            apart.append(now.mean() - before.mean() - expected[at])
        changes.append(np.average(apart, weights=weights))
        sides = [wrong[some & (then == side)] for side in (False, True)]
        shares = [(side.sum() + 0.5) / (side.size + 1) for side in sides]
        spreads = [p * (1 - p) for p in shares] if are_counts else [side.var() for side in sides]
        errors.append(sum(v / side.size for v, side in zip(spreads, sides, strict=True)) ** 0.5)
    common = np.average(changes, weights=np.array(errors) ** -2.0)
    alone = stats.norm.logpdf(changes, [changes[0], 0.0], errors).sum()
    alike = stats.norm.logpdf(changes, common, errors).sum()
    found = part_alone(*sets, expected, are_counts=are_counts)
    assert found == pytest.approx([alone - alike], rel=1e-9)
    # Without a rest nothing speaks for either.
    assert part_alone(sets[0], sets[0], expected, are_counts=are_counts) == pytest.approx([0.0])


def test_the_slice_that_changed_is_looked_for_below_and_above():
    #  0 holds 1, which holds 2; 3 holds 2 as well.
    pairs = Nested(np.array([1, 2, 2, 2]), np.array([0, 0, 1, 3]), np.array([4.0, 8.0, 4.0, 4.0]))

    def chosen_of(start, *likelier):
        return sharpened(start, pairs, lambda at: np.array(likelier)[at])

    assert chosen_of(0, 3.0, 7.0, 3.0, 3.0) == 0
    assert chosen_of(0, 9.0, 9.0, 3.0, 3.0) == 1
    assert chosen_of(0, 9.0, 9.0, 5.0, 3.0) == 2
    assert chosen_of(2, 3.0, 3.0, 3.0, -1.0) == 3
    assert chosen_of(2, 3.0, 3.0, -2.0, -1.0) == 1
    assert chosen_of(2, 3.0, 3.0, 3.0, 0.0) == 2
