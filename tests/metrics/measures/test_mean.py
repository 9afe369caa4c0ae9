"""Means: random subsets, constant changes by flips of signs, the root of a mean."""

import itertools
from dataclasses import replace
from math import comb

import numpy as np
import pytest

from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance import hall
from slicebeam.metrics.significance.hall import Moments
from slicebeam.metrics.significance.outcome_codes import Method, Reason
from tests.deviations import compressed
from tests.metrics.measures.test_metric import Examples, random_members
from tests.random_subsets import saddle_point


def inputs_and_p(name, comparison, *, weighted=False):
    """Inputs and two-sided p of random slices."""
    examples = Examples.random(21, 900, weighted=weighted)
    slices = examples.of([name], comparison, random_members(22, 12, examples.rows)[1:])
    tested = metric(name).test(slices, "both")
    assert not tested.reasons.any()
    inputs = [metric(name).inputs(slices.rows([at])) for at in range(len(slices))]
    return list(zip(inputs, tested.p.tolist(), strict=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["log_loss", "brier", "bias"])
def test_random_subsets_follow_from_their_inputs(name, *, weighted):
    examples = Examples.random(21, 900, weighted=weighted)
    value = examples.value(name, old=False)
    for inputs, p in inputs_and_p(name, "overall", weighted=weighted):
        weight = np.ones(value.size) if examples.weight is None else examples.weight
        assert inputs["N"] == value.size
        assert inputs["mean of all"] == pytest.approx(np.average(value, weights=weight), rel=1e-9)
        deviations = weight * (value - inputs["mean of all"])
        tails = saddle_point(deviations, int(inputs["n"]), inputs["S"])
        np.testing.assert_allclose(p, min(1, 2 * min(tails)), rtol=0.01)


def test_the_paired_t_follows_from_its_inputs():
    examples = Examples.random(21, 900)
    of = compressed(examples.value("log_loss", old=False) - examples.value("log_loss", old=True))
    for inputs, p in inputs_and_p("log_loss", "baseline"):
        n, mean, variance = (inputs[f"change on the slice {one}"] for one in Moments._fields[:3])
        squares = (n - 1) * variance + n * mean**2
        assert hall.student_p(n, n * mean, squares, of, 0.0, "both") == pytest.approx(p, 1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_constants_are_the_most_extreme_subset(*, weighted):
    """Of the C(N, n) subsets of n examples one has all the ones."""
    N, n = 40, 13
    column = (np.arange(N) < n) * 1.0
    weight = np.full(N, 3.0) if weighted else None
    examples = replace(Examples.random(3, N), column=column, weight=weight)
    members = np.stack([column == 1, column == 0, column >= 0])
    slices = examples.of(["mean:x"], "overall", members)
    own, one = metric("mean:x"), 1 / comb(N, n)
    for alternative, expected in (
        ("worse", [0.8 * one, 1, 1]),
        ("better", [1, 0.8 * one, 1]),
        ("both", [1.6 * one, 1.6 * one, 1]),
    ):
        tested = own.test(slices, alternative)
        np.testing.assert_allclose(tested.p, expected, rtol=1e-9)
        assert tested.reasons.tolist() == [0, 0, Reason.WHOLE]
    low, high = own.delta_interval(slices, 0.95)
    assert np.isinf(low[:2]).all()
    assert np.isinf(high[:2]).all()
    assert (low[2], high[2]) == (0, 0)
    # As part of all examples it is the same subset.
    for worse, expected in ((True, [one, 1]), (False, [1, one])):
        p = own.p_refine(
            slices.rows([0, 1]), slices.rows([2, 2]), own.tail("worse" if worse else "better")
        )
        np.testing.assert_allclose(p, expected, rtol=1e-9)


def test_rmse_is_the_root_of_mse():
    """Tests are those of the mean; intervals its roots, or of the width of a jackknife's."""
    examples, members = Examples.random(21, 900), random_members(22, 6, 900)[1:]
    of = {}
    for comparison in ("overall", "baseline"):
        for name in ("mse", "rmse"):
            given = examples.slices(examples.space([name], comparison), members)
            ends = (metric(name).value_interval, metric(name).delta_interval)
            of[name] = [end(given, 0.95) for end in ends]
            of[name].append(metric(name).test(given, "both").p)
        np.testing.assert_array_equal(of["rmse"][2], of["mse"][2])
        np.testing.assert_allclose(np.square(of["rmse"][0]), of["mse"][0], rtol=1e-12)
        if comparison == "overall":
            whole = np.mean((examples.guess[0] - examples.truth) ** 2)
            of_all = np.square(np.add(of["rmse"][1], np.sqrt(whole))) - whole
            np.testing.assert_allclose(of_all, of["mse"][1], rtol=1e-9)
    squares = [(guess - examples.truth) ** 2 for guess in examples.guess]
    for held, low, high in zip(members, *of["rmse"][1], strict=True):
        n = held.sum()
        without = [np.sqrt((one[held].sum() - one[held]) / (n - 1)) for one in squares]
        error = np.sqrt((n - 1) * np.var(without[0] - without[1]))
        delta = np.diff([np.sqrt(one[held].mean()) for one in squares[::-1]])[0]
        assert high - low == pytest.approx(2 * 1.96 * error, rel=0.08)
        assert (low + high) / 2 == pytest.approx(delta, abs=error / 4)


def changed(change, weight=None):
    """Examples whose bias changes by so much."""
    zero, some = np.zeros(change.size), Examples.random(3, change.size)
    return replace(some, truth=zero, guess=(zero + change, zero), weight=weight)


@pytest.mark.parametrize("size", [1.0, -1 / 3, 1e-5])
@pytest.mark.parametrize("weighted", [False, True])
def test_constant_changes_are_tested_by_all_flips_of_signs(size, *, weighted):
    n = 10
    # As many examples go the other way, so that changes are not skewed.
    change = np.repeat([size, -size], n)
    weight = np.full(2 * n, 0.7) if weighted else None
    slices = changed(change, weight).of(["bias"], "baseline", (change == size)[None])
    means = np.array(list(itertools.product([1, -1], repeat=n))).mean(axis=1) * size
    upper, lower = (means >= size - 1e-12).mean(), (means <= size + 1e-12).mean()
    own, both = metric("bias"), min(1, 2 * min(upper, lower))
    for alternative, p in (("worse", upper), ("better", lower), ("both", both)):
        tested = own.test(slices, alternative)
        assert tested.p[0] == pytest.approx(p, rel=1e-9)
        assert tested.methods.tolist() == [Method.SIGN_FLIP]


def test_weighted_constant_changes_count_as_effective_examples():
    weight = np.random.default_rng(8).gamma(2, 1, 60)
    examples = changed(np.repeat([1.0, -1.0], 30), weight)
    slices = examples.of(["bias"], "baseline", (np.arange(60) < 30)[None])
    effective = weight[:30].sum() ** 2 / (weight[:30] ** 2).sum()
    assert metric("bias").test(slices, "worse").p[0] == pytest.approx(2**-effective, rel=1e-9)


def test_flipped_hard_scores_are_seen():
    """Right before, wrong now: the loss of every example of the slice grows by as much."""
    rows, inside = 400, np.arange(400) < 150
    some = Examples.random(6, rows)
    label = some.label * 1.0
    examples = replace(some, score=(np.where(inside, 1 - label, label), label))
    for name in ("brier", "log_loss"):
        slices = examples.of([name], "baseline", np.stack([inside, ~inside, inside | True]))
        tested = metric(name).test(slices, "worse")
        assert tested.p[0] == pytest.approx(2.0**-150, rel=1e-9)
        assert tested.reasons.tolist() == [0, Reason.UNCHANGED, 0]


def test_a_constant_change_that_may_lack_what_is_rare():
    """Large changes the other way are rare: a slice of the others alone is no evidence."""
    change = np.where(np.arange(4000) % 100 == 0, -99.0, 1.0)
    common, examples = np.flatnonzero(change == 1), changed(change)
    space = examples.space(["bias"], "baseline")
    members = np.zeros((2, change.size), bool)
    for row, n in enumerate((60, 160)):
        members[row, common[:n]] = True
    slices = examples.slices(space, members)
    tested = metric("bias").test(slices, "worse")
    assert tested.reasons.tolist() == [Reason.TOO_SKEWED, 0]
    # A random subset of 160 has none of them in a fifth of cases, and 2⁻¹⁶⁰ says nothing of that.
    assert tested.p[1] > 1e-3
    # On the side of the rare ones there is nothing to lack.
    opposite = changed(-change)
    space = opposite.space(["bias"], "baseline")
    slices = opposite.slices(space, (change == -99)[None])
    tested = metric("bias").test(slices, "worse")
    assert tested.p[0] == pytest.approx(2.0**-40, rel=1e-9)


def test_changes_that_are_lost_beside_the_largest_are_not_called():
    """Fixed point holds the squares of 10⁻¹¹ and 3·10⁻¹¹ as nothing beside that of 1."""
    rng = np.random.default_rng(2)
    small = np.arange(100) < 50
    change = np.where(small, rng.choice([-1e-11, 3e-11], 100), rng.choice([-1.0, 1.0], 100))
    slices = changed(change).of(["bias"], "baseline", small[None])
    assert metric("bias").test(slices, "both").reasons.tolist() == [Reason.UNVARYING]
