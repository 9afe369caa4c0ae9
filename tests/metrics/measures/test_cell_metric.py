"""Weighted counts and two models: tests by contributions, equal weights, levels and intervals."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance.outcome_codes import Method
from tests.metrics.measures.test_metric import Examples, by_sklearn, random_members
from tests.option_words import ALTERNATIVES
from tests.random_subsets import subset_tails

N = 20_000
SLICES = 2000


def weighted(*, errors_weigh):
    """Examples with a label, a score, the class it predicts, and weights."""
    rng = np.random.default_rng(1)
    positive = rng.random(N) < 0.3
    score = np.where(positive, rng.beta(4, 2, N), rng.beta(2, 4, N))
    predicted = score > 0.5
    weight = rng.lognormal(0, 0.7, N) * np.where(predicted != positive, errors_weigh, 1.0)
    pairs = [(column, column) for column in (predicted * 1, score, score)]
    return Examples(positive * 1, *pairs[:2], score, pairs[2], score, weight)


@pytest.mark.parametrize("errors_weigh", [1.0, 2.0])
@pytest.mark.parametrize("name", ["accuracy", "recall", "f1", "mcc", "log_loss"])
def test_random_slices(name, errors_weigh):
    own = metric(name)
    examples = weighted(errors_weigh=errors_weigh)
    space = examples.space([name], "overall")
    columns = examples.matrix(space)
    totals = columns.sum(axis=0)
    whole = own.value(Slices(totals[None, : space.columns], space))[0]
    rng = np.random.default_rng(2)
    for n in (50, 200):
        rows = np.stack([rng.choice(N, n, replace=False) for _ in range(SLICES)])
        sums = np.stack([columns[row, : space.columns].sum(axis=0) for row in rows])
        slices = Slices(sums, space, totals)
        p = own.test(slices, "both").p
        # Three standard errors of the simulation above 0.013.
        assert (p <= 0.01).mean() <= 0.013 + 3 * 0.0023
        assert (p <= 0.2).mean() <= 1.15 * 0.2 + 3 * 0.009
        low, high = own.value_interval(slices, 0.95)
        assert ((low <= whole) & (whole <= high)).mean() >= 0.93 - 2 * 0.005
        low, high = own.delta_interval(slices, 0.95)
        assert ((low <= 0) & (high >= 0)).mean() >= 0.93 - 2 * 0.005


def test_slices_that_are_worse_are_found():
    """Slices of 60 examples that err four times as often as all."""
    rng, examples = np.random.default_rng(3), weighted(errors_weigh=1.0)
    wrong = rng.random(N) < 0.05
    predicted = np.where(wrong, 1 - examples.label, examples.label)
    examples = replace(examples, predicted=(predicted, predicted))
    space = examples.space(["accuracy"], "overall")
    columns = examples.matrix(space)
    of = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    rows = [np.where(rng.random(60) < 0.2, *(rng.choice(x, 60) for x in of)) for _ in range(1000)]
    sums = np.stack([columns[some, : space.columns].sum(axis=0) for some in rows])
    p = metric("accuracy").test(Slices(sums, space, columns.sum(axis=0)), "worse").p
    # The exact law, simulated, finds .65.
    assert (p <= 0.005).mean() > 0.62


def test_equal_weights_by_hand():
    """The linearised variance of a share with weights 1 is p(1 − p)/n, of the delta less."""
    own = metric("accuracy")
    examples = replace(weighted(errors_weigh=1.0), weight=np.ones(N))
    space, n = examples.space(["accuracy"], "overall"), 400
    sums = examples.matrix(space)[:n].sum(axis=0)[None, :]
    share = (examples.predicted[0] == examples.label)[:n].mean()
    variance = own.value_variance(Slices(sums, space))
    assert variance[0] == pytest.approx(share * (1 - share) / n, rel=1e-12)
    assert own.value(Slices(sums, space))[0] == pytest.approx(share, rel=1e-12)


def test_a_slice_that_is_all_right_has_an_interval():
    """Its variance is 0, not what rounding leaves of it, beside which no example would count."""
    examples = weighted(errors_weigh=1.0)
    right = examples.predicted[0] == examples.label
    for name in ("accuracy", "recall", "f1"):
        space = examples.space([name], "overall")
        columns = examples.matrix(space)
        rows = np.flatnonzero(right & (examples.label == 1))[:600].reshape(10, 60)
        sums = np.stack([columns[some].sum(axis=0) for some in rows])
        low, high = metric(name).value_interval(Slices(sums, space, columns.sum(axis=0)), 0.95)
        assert (low > 0.8).all()
        assert (high == 1).all()


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
        slices = examples.of([name], comparison, random_members(22, 12, 900))
        tested = metric(name).test(slices, "both")
        found.append((*map(np.ndarray.tolist, tested), metric(name).inputs(slices.rows([1]))))
    assert found[0] == found[1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["precision", "f1", "fbeta:2", "balanced_accuracy", "mcc"])
def test_two_models_by_halls_t_of_contributions(name, *, weighted):
    """The printed formula, with scikit-learn's metric, of which cells of examples are made heavier."""
    examples, inside = Examples.random(41, 900, weighted=weighted), np.arange(900) < 90
    own, slices = metric(name), examples.of([name], "baseline", inside[None, :])
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
        tested = own.test(slices, alternative)
        assert tested.methods.tolist() == [Method.HALL_PAIRED]
        assert tested.p[0] == pytest.approx(expected, rel=1e-4)


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
            slices = some.of([name], "baseline", inside[None])
            tested = metric(name).test(slices, "better")
            assert tested.methods.tolist() == [method], name
            assert tested.p[0] == pytest.approx(flipped, rel=1e-9)
