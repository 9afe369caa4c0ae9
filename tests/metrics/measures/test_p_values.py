"""How the metrics are tested: by the law of counts, random subsets, flips of signs and replicates."""

import itertools
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.kinds import ALTERNATIVES
from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance import student_law
from slicebeam.metrics.significance.hall import Moments
from slicebeam.metrics.significance.outcome_codes import Method, Reason
from slicebeam.metrics.testing.slice_test import SliceTest
from tests.deviations import compressed
from tests.metrics.measures.test_metric_values import CASES, Examples, by_sklearn, random_members
from tests.metrics.significance.test_few_cells import enumerated
from tests.random_subsets import saddle_point, subset_tails

# One of each kind.
RESAMPLED = ("accuracy", "precision", "f1", "mcc", "f1_macro", "auc", "log_loss", "mse", "mean:x")


def inputs_and_p(name, comparison, *, weighted=False):
    """Inputs and two-sided p of random slices."""
    examples = Examples.random(21, 900, weighted=weighted)
    members = random_members(22, 12, examples.rows)[1:]
    space = examples.space([name], comparison)
    sums, totals = examples.reduced(space, members)
    tested = metric(name).test(Slices(sums, space, totals), "both")
    assert not tested.reasons.any()
    inputs = [metric(name).inputs(Slices(one[None], space, totals)) for one in sums]
    return list(zip(inputs, tested.p.tolist(), strict=True))


def marks(name, examples, *, old=False):
    """Which examples a share counts, and which are in its denominator."""
    y, p = examples.label == 1, examples.predicted[old] == 1
    every = np.ones(examples.rows, bool)
    return {
        "accuracy": (y == p, every),
        "error_rate": (y != p, every),
        "precision": (y & p, p),
        "recall": (y & p, y),
        "fnr": (y & ~p, y),
        "fpr": (p & ~y, ~y),
        "specificity": (~p & ~y, ~y),
        "f1": (y & p, y | p),
        "prediction_rate": (p, every),
        "label_rate": (y, every),
    }[name]


def mid_p(law, x, name, alternative):
    tails = law.sf(x) + law.pmf(x) / 2, law.cdf(x) - law.pmf(x) / 2
    both = min(1, 2 * min(tails))
    worse, better = tails[::-1] if metric(name).higher_is_better else tails
    return {"worse": worse, "better": better, "both": both}[alternative]


SHARES = "accuracy error_rate precision recall fnr fpr specificity f1 prediction_rate label_rate"


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("name", SHARES.split())
def test_shares_are_tested_by_the_mid_p_within_the_denominator(name, alternative):
    examples, members = Examples.random(21, 900), random_members(22, 12, 900)
    marked, within = marks(name, examples)
    # All of the denominator, a few of it, and none.
    few = np.flatnonzero(within)[:5]
    members[1] |= within
    members[2, few] = members[3] = False
    members[2:4] &= ~within
    members[2, few] = True
    space = examples.space([name], "overall")
    sums, totals = examples.reduced(space, members)
    tested = metric(name).test(Slices(sums, space, totals), alternative)
    N, K = int(within.sum()), int((within & marked).sum())
    for held, p, reason, one in zip(members, tested.p, tested.reasons, sums, strict=True):
        n, x = int((held & within).sum()), int((held & marked).sum())
        assert metric(name).inputs(Slices(one[None], space, totals)) == {
            "n": n,
            "x": x,
            "N": N,
            "K": K,
        }
        is_small = n == 0 or (n < 10 and n < held.sum())
        assert (reason != 0) == (is_small or n == N)
        expected = 1 if reason else mid_p(stats.hypergeom(N, K, n), x, name, alternative)
        assert p == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert (tested.reasons == 0).sum() >= 8


FIXED = ["accuracy", "error_rate", "recall", "fnr", "fpr", "specificity", "prediction_rate"]


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("name", FIXED)
def test_shares_of_two_models_are_tested_by_mcnemars_mid_p(name, alternative):
    examples, members = Examples.random(21, 900), random_members(22, 12, 900)
    (new, within), (old, _) = (marks(name, examples, old=side) for side in (False, True))
    space = examples.space([name], "baseline")
    sums, totals = examples.reduced(space, members)
    tested = metric(name).test(Slices(sums, space, totals), alternative)
    assert not tested.reasons.any()
    for held, p, one in zip(members, tested.p, sums, strict=True):
        b, c = int((held & new & ~old).sum()), int((held & old & ~new).sum())
        counts = {"n": int((held & within).sum()), "b (only new marked)": b, "c (only old)": c}
        assert metric(name).inputs(Slices(one[None], space, totals)) == counts
        expected = mid_p(stats.binom(b + c, 0.5), b, name, alternative)
        assert p == pytest.approx(expected, rel=1e-7, abs=1e-12)


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


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("name", ["recall", "f1", "fbeta:2", "balanced_accuracy", "mcc"])
def test_weighted_counts_are_tested_by_what_an_example_moves(name, alternative):
    """Scikit-learn's metric, with the weight of a cell's examples a little larger."""
    examples, members = Examples.random(21, 900, weighted=True), random_members(22, 12, 900)[1:]
    members &= np.random.default_rng(23).random(900) < 0.4
    y, p, w = examples.label == 1, examples.predicted[0] == 1, examples.weight
    cells = [y & p, y & ~p, ~y & p, ~y & ~p]
    influence, whole, step = np.zeros(900), by_sklearn(name, examples), 1e-6
    for cell in cells:
        weights = (w * (1 + sign * step * cell) for sign in (1, -1))
        heavier, lighter = (by_sklearn(name, replace(examples, weight=one)) for one in weights)
        influence += cell * w / w[cell].sum() * (heavier - lighter) / (2 * step)
    strata = {"recall": [y], "f1": [y | p], "fbeta:2": [y | p], "balanced_accuracy": [y, ~y]}
    space = examples.space([name], "overall")
    tested = metric(name).test(examples.slices(space, members), alternative)
    for held, found, reason in zip(members, tested.p, tested.reasons, strict=True):
        delta = by_sklearn(name, examples.take(held)) - whole if name == "mcc" else None
        tails = subset_tails(influence, w, cells, held, strata=strata.get(name), delta=delta)
        both = min(1, 2 * min(tails))
        expected = {"worse": tails[1], "better": tails[0], "both": both}[alternative]
        assert reason == 0
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("comparison", ["overall", "baseline"])
@pytest.mark.parametrize("weight", [0.3, 7.0])
@pytest.mark.parametrize("name", ["accuracy", "precision", "f1", "mcc", "f1_macro"])
def test_equal_weights_are_none(name, weight, comparison):
    """The same test, numbers and method, to the last bit."""
    found = []
    for weights in (None, np.full(900, weight)):
        examples = replace(Examples.random(21, 900), weight=weights)
        space = examples.space([name], comparison)
        sums, totals = examples.reduced(space, random_members(22, 12, 900))
        tested = metric(name).test(Slices(sums, space, totals), "both")
        found.append(
            (
                *map(np.ndarray.tolist, tested),
                metric(name).inputs(Slices(sums[1][None], space, totals)),
            )
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["precision", "f1", "fbeta:2", "balanced_accuracy", "mcc"])
def test_two_models_by_halls_t_of_contributions(name, *, weighted):
    """The printed formula, with scikit-learn's metric, of which cells of examples are made heavier."""
    examples, inside = Examples.random(41, 900, weighted=weighted), np.arange(900) < 90
    space, own = examples.space([name], "baseline"), metric(name)
    sums, totals = examples.reduced(space, inside[None, :])
    weight = np.ones(900) if examples.weight is None else examples.weight
    y, new, old = (some == 1 for some in (examples.label, *examples.predicted))
    cells = [(y == a) & (new == b) & (old == c) for a, b, c in itertools.product([0, 1], repeat=3)]
    denominators = {
        "precision": [(new, old)],
        "f1": [(y | new, y | old)],
        "balanced_accuracy": [(y, y), (~y, ~y)],
    }
    denominators |= {"fbeta:2": denominators["f1"], "mcc": [(y | True, y | True)]}

    def contributions(held):
        """What an example of each cell adds to the change, for one of weight 1."""
        found, step = [], 1e-5
        for cell in cells:
            moved = [
                replace(examples, weight=weight * (1 + sign * step * cell)).take(held)
                for sign in (1, -1)
            ]
            ends = [by_sklearn(name, some) - by_sklearn(name, some, old=True) for some in moved]
            found.append((ends[0] - ends[1]) / (2 * step) / (weight[cell & held].sum() or 1))
        return np.array(found)

    def sums_of(held, power):
        return np.array([(weight[cell & held] ** power).sum() for cell in cells])

    def kish(held):
        return weight[held].sum() ** 2 / (weight[held] ** 2).sum()

    every, squares = np.ones(900, bool), sums_of(y | True, 2)
    d, D = contributions(inside), contributions(every)
    counts, first = sums_of(every, 0), sums_of(every, 1)
    cubes = squares**2 / first * (2 - first**2 / (counts * squares))
    V, spread, n, N = (sums_of(inside, 2) * d**2).sum(), squares * D**2, kish(inside), kish(every)
    kappa = (cubes**2 / squares * D**4).sum() / spread.sum() ** 2 * N
    pooled = 0
    for pair in denominators[name]:
        either = pair[0] | pair[1]
        part = sum(v for cell, v in zip(cells, spread, strict=True) if (cell & either).any())
        pooled += part * kish(either) / kish(either & inside)
    V += kappa / (kappa + n) * max(pooled - V, 0)
    G = (cubes * D**3).sum() / spread.sum() ** 1.5 * (N / n) ** 0.5
    smallest = [side for pair in denominators[name] for side in pair]
    if name == "mcc":
        smallest += [side for pair in ((y, new), (y, old)) for a in pair for side in (a, ~a)]
    fewest = min((side & inside).sum() for side in smallest) * n / inside.sum()
    changed = [by_sklearn(name, examples.take(inside), old=side) for side in (False, True)]
    t = (changed[0] - changed[1]) / V**0.5
    T = t + G * t**2 / 3 + G**2 * t**3 / 27 + G / 6
    law = stats.t(min(2 * fewest, n) - 1)
    for alternative, expected in (("worse", law.cdf(T)), ("better", law.sf(T))):
        tested = own.test(Slices(sums, space, totals), alternative)
        assert tested.methods.tolist() == [Method.HALL_PAIRED]
        assert tested.p[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_constants_are_the_most_extreme_subset(*, weighted):
    """Of the C(N, n) subsets of n examples one has all the ones."""
    N, n = 40, 13
    column = (np.arange(N) < n) * 1.0
    weight = np.full(N, 3.0) if weighted else None
    examples = replace(Examples.random(3, N), column=column, weight=weight)
    space = examples.space(["mean:x"], "overall")
    sums, totals = examples.reduced(space, np.stack([column == 1, column == 0, column >= 0]))
    own, one = metric("mean:x"), 1 / comb(N, n)
    for alternative, expected in (
        ("worse", [0.8 * one, 1, 1]),
        ("better", [1, 0.8 * one, 1]),
        ("both", [1.6 * one, 1.6 * one, 1]),
    ):
        tested = own.test(Slices(sums, space, totals), alternative)
        np.testing.assert_allclose(tested.p, expected, rtol=1e-9)
        assert tested.reasons.tolist() == [0, 0, Reason.WHOLE]
    low, high = own.delta_interval(Slices(sums, space, totals), 0.95)
    assert np.isinf(low[:2]).all()
    assert np.isinf(high[:2]).all()
    assert (low[2], high[2]) == (0, 0)
    # As part of all examples it is the same subset.
    parents = sums[[2, 2]]
    for worse, expected in ((True, [one, 1]), (False, [1, one])):
        p = own.p_refine(
            Slices(sums[:2], space, totals), Slices(parents, space, totals), worse=worse
        )
        np.testing.assert_allclose(p, expected, rtol=1e-9)


def test_rmse_is_the_root_of_mse():
    """Tests are those of the mean; intervals its roots, or of the width of a jackknife's."""
    examples, members = Examples.random(21, 900), random_members(22, 6, 900)[1:]
    of = {}
    for comparison in ("overall", "baseline"):
        for name in ("mse", "rmse"):
            space = examples.space([name], comparison)
            given = examples.slices(space, members)
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


@pytest.mark.parametrize("weighted", [False, True])
def test_f1_of_two_models_against_the_parent_is_by_the_delta_method(*, weighted):
    """The gradient by each example's weight is taken numerically."""
    examples, parent = Examples.random(5, 300, weighted=weighted), np.arange(300) < 200
    child = np.arange(300) < 60
    weight = examples.weight if weighted else np.ones(300)

    def gap(weights):
        """F1 of the new model less that of the old."""
        found = []
        for old in (False, True):
            marked, within = marks("f1", examples, old=old)
            # 2·TP / (2·TP + FP + FN)
            found.append(2 * weights @ marked / (weights @ marked + weights @ within))
        return found[0] - found[1]

    def slopes(held):
        step = np.eye(300) * 1e-5
        return (gap(weight * held + step) - gap(weight * held - step)) / 2e-5

    own, above = slopes(child), slopes(parent)
    space, f1 = examples.space(["f1"], "baseline"), metric("f1")
    sums, totals = examples.reduced(space, np.stack([child, parent]))
    freedom = f1.effective_n(Slices(sums[:1], space))[0] - 1
    # The interval of the difference of the models, by the same gradient; Wilson's where that is wider.
    every = np.ones(300, bool)
    sums_of_all, _ = examples.reduced(space, every[None])
    size, z2 = f1.effective_n(Slices(sums_of_all, space))[0], stats.norm.ppf(0.975) ** 2
    arm = stats.t.ppf(0.975, size - 1) * np.linalg.norm(slopes(every) * weight)
    assert arm > 2 * z2 / (size + z2)
    ends = np.ravel(f1.delta_interval(Slices(sums_of_all, space, totals), 0.95))
    np.testing.assert_allclose(ends, [gap(weight) - arm, gap(weight) + arm], rtol=1e-3)
    terms = child * (own - above) ** 2 + (parent & ~child) * above**2
    t = (gap(weight * child) - gap(weight * parent)) / (terms @ weight**2) ** 0.5
    for worse, expected in ((True, stats.t.cdf(t, freedom)), (False, stats.t.sf(t, freedom))):
        p = f1.p_refine(
            Slices(sums[:1], space, totals), Slices(sums[1:], space, totals), worse=worse
        )
        assert p == pytest.approx(expected, rel=1e-3)


def test_auc_of_two_models_against_the_parent_varies_by_what_is_outside_of_the_child():
    examples, rows = Examples.random(41, 300), np.arange(300)
    space, auc = examples.space(["auc"], "baseline"), metric("auc")
    sums, totals = examples.reduced(space, np.stack([rows < 80, rows < 200]))
    parts = [examples.take(rows < size) for size in (80, 200)]
    gain = [by_sklearn("auc", some) - by_sklearn("auc", some, old=True) for some in parts]
    fewest = [np.bincount(examples.label[:size]).min() for size in (80, 200)]
    variance = auc.inputs(Slices(sums[0][None], space, totals))["variance of the delta"]
    t = (gain[0] - gain[1]) / (variance * (1 - fewest[0] / fewest[1])) ** 0.5
    law = stats.t(fewest[0] - 1)
    for worse, expected in ((True, law.cdf(t)), (False, law.sf(t))):
        p = auc.p_refine(
            Slices(sums[:1], space, totals), Slices(sums[1:], space, totals), worse=worse
        )
        assert p == pytest.approx(expected, rel=1e-6)


def test_shares_against_the_parent_are_random_subsets_of_it():
    examples, parent = Examples.random(5, 300), np.arange(300) < 200
    child = np.arange(300) < 60
    counts = []
    (new, _), (old, _) = (marks("accuracy", examples, old=side) for side in (False, True))
    for held in (child, parent):
        counts += [held.sum(), (held & old & ~new).sum(), (held & new & ~old).sum()]
    marked, within = marks("precision", examples)
    N, K, n, x = (
        int(some.sum())
        for some in (parent & within, parent & marked, child & within, child & marked)
    )
    exact = mid_p(stats.hypergeom(N, K, n), x, "precision", "worse")
    for name, comparison, expected in (
        ("accuracy", "baseline", pytest.approx(enumerated(*counts), rel=0.02)),
        ("precision", "overall", pytest.approx(exact, rel=1e-9)),
    ):
        space, own = examples.space([name], comparison), metric(name)
        sums, totals = examples.reduced(space, np.stack([child, parent]))
        assert (
            own.p_refine(
                Slices(sums[:1], space, totals), Slices(sums[1:], space, totals), worse=True
            )[0]
            == expected
        )
    space = examples.space(["accuracy"], "baseline")
    sums, _ = examples.reduced(space, np.stack([child, parent]))
    change = new.astype(float) - old
    varied = [change[child].var(), change[parent].var()]
    np.testing.assert_allclose(metric("accuracy").change_variance(Slices(sums, space)), varied)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_change_that_nothing_varies_with(*, weighted):
    """The new model is right everywhere, the old nowhere: p is that of 2ⁿ flips, and no t is below it."""
    examples, inside = Examples.random(3, 60, weighted=weighted), np.arange(60) < 20
    label = np.where(inside, 1, examples.label)
    everywhere = replace(examples, label=label, predicted=(label, 1 - label))
    here = replace(examples, label=label, predicted=(label, np.where(inside, 0, label)))
    weight = np.ones(20) if examples.weight is None else examples.weight[:20]
    flipped = 2.0 ** -(weight.sum() ** 2 / (weight**2).sum())
    for name in ("f1", "fbeta:2") + (("accuracy",) if weighted else ()):
        for some, method in ((everywhere, Method.SIGN_FLIP), (here, Method.HALL_PAIRED)):
            space = some.space([name], "baseline")
            sums, totals = some.reduced(space, inside[None])
            tested = metric(name).test(Slices(sums, space, totals), "better")
            assert tested.methods.tolist() == [method], name
            assert tested.p[0] == pytest.approx(flipped, rel=1e-9)


def changed(change, weight=None):
    """Examples whose bias changes by so much."""
    zero = np.zeros(change.size)
    some = Examples.random(3, change.size)
    return replace(some, truth=zero, guess=(zero + change, zero), weight=weight)


@pytest.mark.parametrize("size", [1.0, -1 / 3, 1e-5])
@pytest.mark.parametrize("weighted", [False, True])
def test_constant_changes_are_tested_by_all_flips_of_signs(size, *, weighted):
    n = 10
    # As many examples go the other way, so that changes are not skewed.
    change = np.repeat([size, -size], n)
    weight = np.full(2 * n, 0.7) if weighted else None
    examples = changed(change, weight)
    space = examples.space(["bias"], "baseline")
    sums, totals = examples.reduced(space, (change == size)[None])
    means = np.array(list(itertools.product([1, -1], repeat=n))).mean(axis=1) * size
    upper = (means >= size - 1e-12).mean()
    lower = (means <= size + 1e-12).mean()
    own = metric("bias")
    both = min(1, 2 * min(upper, lower))
    for alternative, p in (("worse", upper), ("better", lower), ("both", both)):
        tested = own.test(Slices(sums, space, totals), alternative)
        assert tested.p[0] == pytest.approx(p, rel=1e-9)
        assert tested.methods.tolist() == [Method.SIGN_FLIP]


def test_weighted_constant_changes_count_as_effective_examples():
    weight = np.random.default_rng(8).gamma(2, 1, 60)
    examples = changed(np.repeat([1.0, -1.0], 30), weight)
    space = examples.space(["bias"], "baseline")
    sums, totals = examples.reduced(space, (np.arange(60) < 30)[None])
    effective = weight[:30].sum() ** 2 / (weight[:30] ** 2).sum()
    p = metric("bias").test(Slices(sums, space, totals), "worse").p[0]
    assert p == pytest.approx(2**-effective, rel=1e-9)


def test_flipped_hard_scores_are_seen():
    """Right before, wrong now: the loss of every example of the slice grows by as much."""
    rows, inside = 400, np.arange(400) < 150
    some = Examples.random(6, rows)
    label = some.label * 1.0
    examples = replace(some, score=(np.where(inside, 1 - label, label), label))
    for name in ("brier", "log_loss"):
        space = examples.space([name], "baseline")
        sums, totals = examples.reduced(space, np.stack([inside, ~inside, inside | True]))
        tested = metric(name).test(Slices(sums, space, totals), "worse")
        assert tested.p[0] == pytest.approx(2.0**-150, rel=1e-9)
        assert tested.reasons.tolist() == [0, Reason.UNCHANGED, 0]


def test_a_constant_change_that_may_lack_what_is_rare():
    """Large changes the other way are rare: a slice of the others alone is no evidence."""
    change = np.where(np.arange(4000) % 100 == 0, -99.0, 1.0)
    common = np.flatnonzero(change == 1)
    examples = changed(change)
    space = examples.space(["bias"], "baseline")
    members = np.zeros((2, change.size), bool)
    for row, n in enumerate((60, 160)):
        members[row, common[:n]] = True
    sums, totals = examples.reduced(space, members)
    tested = metric("bias").test(Slices(sums, space, totals), "worse")
    assert tested.reasons.tolist() == [Reason.TOO_SKEWED, 0]
    # A random subset of 160 has none of them in a fifth of cases, and 2⁻¹⁶⁰ says nothing of that.
    assert tested.p[1] > 1e-3
    # On the side of the rare ones there is nothing to lack.
    opposite = changed(-change)
    space = opposite.space(["bias"], "baseline")
    sums, totals = opposite.reduced(space, (change == -99)[None])
    tested = metric("bias").test(Slices(sums, space, totals), "worse")
    assert tested.p[0] == pytest.approx(2.0**-40, rel=1e-9)


def test_changes_that_are_lost_beside_the_largest_are_not_called():
    """Fixed point holds the squares of 10⁻¹¹ and 3·10⁻¹¹ as nothing beside that of 1."""
    rng = np.random.default_rng(2)
    small = np.arange(100) < 50
    change = np.where(small, rng.choice([-1e-11, 3e-11], 100), rng.choice([-1.0, 1.0], 100))
    examples = changed(change)
    space = examples.space(["bias"], "baseline")
    sums, totals = examples.reduced(space, small[None])
    assert metric("bias").test(Slices(sums, space, totals), "both").reasons.tolist() == [
        Reason.UNVARYING
    ]


def test_auc_that_is_turned_over_is_not_called_unchanged():
    some = Examples.random(9, 200)
    label, inside = some.label * 1.0, np.arange(200) < 90
    for new, reason in ((1 - label, Reason.UNVARYING), (label, Reason.UNCHANGED)):
        examples = replace(some, score=(new, label))
        space = examples.space(["auc"], "baseline")
        sums, totals = examples.reduced(space, inside[None])
        tested = metric("auc").test(Slices(sums, space, totals), "worse")
        assert tested.reasons.tolist() == [reason]
        assert tested.p.tolist() == [1.0]


def test_the_paired_t_follows_from_its_inputs():
    examples = Examples.random(21, 900)
    of = compressed(examples.value("log_loss", old=False) - examples.value("log_loss", old=True))
    for inputs, p in inputs_and_p("log_loss", "baseline"):
        n, mean, variance = (
            inputs[f"change on the slice {field}"] for field in Moments._fields[:3]
        )
        squares = (n - 1) * variance + n * mean**2
        assert student_law.p_value(n, n * mean, squares, of, 0.0, "both") == pytest.approx(
            p, rel=1e-6
        )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "comparison"), [case for case in CASES if case[0] in RESAMPLED])
def test_replicates_are_resampled_examples(name, comparison, *, weighted):
    """The bootstrap's error is that of scikit-learn's metric of examples drawn again."""
    examples = Examples.random(31, 120, weighted=weighted)
    members = random_members(32, 3, examples.rows)[1:]
    space = examples.space([name], comparison)
    times = np.random.default_rng(33).poisson(1, (9, examples.rows))
    sums, totals = examples.sums(space, members, times)
    tested, errors = SliceTest(name, space, "bootstrap-rows", "both").run(sums, totals)
    assert not tested.reasons.any()
    weight = np.ones(examples.rows) if examples.weight is None else examples.weight
    deltas = []
    for drawn in (np.ones(examples.rows), *times):
        again = replace(examples, weight=weight * drawn)
        slices = [again.take(some) for some in members]
        values = np.array([by_sklearn(name, some) for some in slices])
        if comparison == "baseline":
            references = np.array([by_sklearn(name, some, old=True) for some in slices])
        else:
            references = np.full(len(slices), by_sklearn(name, again))
        deltas.append(values - references)
    sd = np.std(deltas[1:], axis=0, ddof=1)
    np.testing.assert_allclose(errors, sd, rtol=1e-9)
    p = 2 * stats.t.sf(np.abs(deltas[0]) / sd, len(times) - 1)
    np.testing.assert_allclose(tested.p, p, rtol=1e-8)
