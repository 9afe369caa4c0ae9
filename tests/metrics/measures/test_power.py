"""The smallest fall that a test notices with probability .8, by drawing slices that fall by as much."""

import numpy as np
import pytest
from scipy.optimize import brentq

from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.measures.slice_test import smallest_fall
from tests.metrics.measures.test_metric import Examples

DRAWS, ALPHA = 3000, 1e-4
# Cells of correct and wrong; of two models correct by both, wrong by the new, by the old, by both.
ACCURACY = StatisticSpace(("wrong",), "overall"), np.array([87_000, 13_000])
TWO_MODELS = StatisticSpace(("wrong",), "baseline"), np.array([84_000, 4000, 5000, 7000])
# True negatives, false negatives, false alarms, true positives.
CLASSES = (
    StatisticSpace(("positive", "predicted"), "overall"),
    np.array([60_000, 6000, 9000, 25_000]),
)
CONTRIBUTIONS = {
    "accuracy": [0, -1],
    "recall": [0, -25, 0, 6],
    "precision": [0, 0, -25, 9],
    # ∂F1 of 2tp / (2tp + fp + fn).
    "f1": [0, -50_000, -50_000, 30_000],
}


def whole(space, totals):
    return Slices(totals[None, : space.columns], space, totals)


def called(name, slices):
    return np.mean(metric(name).test(slices, "worse").p <= ALPHA)


def tilted(totals, contributions, fall, worse_by):
    """The nearest law of the cells, in relative entropy, of which the metric is worse by the fall."""
    slopes = np.array(contributions) / np.ptp(contributions)

    def law(strength):
        weights = totals * np.exp(-strength * slopes)
        return weights / weights.sum()

    return law(brentq(lambda strength: worse_by(law(strength)) - fall, -5, 14))


@pytest.mark.parametrize("n", [100, 1000, 10_000])
@pytest.mark.parametrize("name", CONTRIBUTIONS)
def test_counts(name, n):
    space, totals = ACCURACY if name == "accuracy" else CLASSES
    own, rng = metric(name), np.random.default_rng(1)
    fall = smallest_fall(own, whole(space, totals), n, ALPHA, "worse")

    def worse_by(law):
        return -own.delta(Slices(np.rint(law * 1e12).astype(np.int64)[None], space, totals))[0]

    law = tilted(totals, CONTRIBUTIONS[name], fall, worse_by)
    counted = {"recall": 0.31, "precision": 0.34, "f1": 0.40}.get(name, 1.0)
    draws = rng.multinomial(round(n / counted), law, DRAWS)
    assert called(name, Slices(draws, space, totals)) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("n", [200, 1000, 10_000])
def test_two_models(n):
    space, totals = TWO_MODELS
    fall = smallest_fall(metric("accuracy"), whole(space, totals), n, ALPHA, "worse")
    law = tilted(totals, [0, -1, 1, 0], fall, lambda law: law[1] - law[2])
    draws = np.random.default_rng(2).multinomial(n, law, DRAWS)
    assert called("accuracy", Slices(draws, space, totals)) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(("name", "n", "comparison"), [
    ("bias", 100, "overall"), ("mae", 400, "overall"), ("mean:x", 1000, "overall"),
    ("bias", 100, "baseline"), ("mae", 400, "baseline"),
])  # fmt: skip
def test_means(name, n, comparison):
    examples, rng = Examples.random(4, 8000), np.random.default_rng(3)
    everything = examples.of([name], comparison, np.ones((1, examples.rows), bool))
    fall = smallest_fall(metric(name), everything, n, ALPHA, "worse")
    space = everything.space
    old = examples.value(name, old=comparison == "baseline")
    new = examples.value(name, old=False)
    # All values are worse by as much, from where nothing has changed.
    new = new + fall - (np.mean(new - old) if comparison == "baseline" else 0.0)
    sums = np.zeros((DRAWS, space.columns), np.int64)
    for draw in range(DRAWS):
        rows = rng.choice(examples.rows, n, replace=False)
        values = {"new": new[rows] - space.shift(name), "old": old[rows] - space.shift(name)}
        values["change"] = new[rows] - old[rows]
        sums[draw, 0] = n
        for at, term in enumerate(space.terms):
            total = np.sum(values[term.source] ** term.power) / space.scales[at]
            sums[draw, space.cell_columns + at] = round(total)
    slices = Slices(sums, space, everything.totals)
    assert called(name, slices) == pytest.approx(0.8, abs=0.05)


def test_nothing_is_said_where_nothing_holds():
    space, totals = ACCURACY
    own, everything = metric("accuracy"), whole(space, totals)
    assert smallest_fall(own, everything, 100_001, ALPHA, "worse") is None
    assert smallest_fall(own, everything, 3, ALPHA, "worse") is None
    assert smallest_fall(metric("recall"), whole(*CLASSES), 31_001, ALPHA, "worse") is None
    perfect = whole(space, np.array([1000, 0]))
    assert smallest_fall(own, perfect, 100, ALPHA, "worse") is None
    weighted = StatisticSpace(("wrong",), "overall", weighted=True)
    assert smallest_fall(own, whole(weighted, np.full(6, 500)), 100, ALPHA, "worse") is None


def test_a_stricter_threshold_or_a_smaller_slice_needs_a_larger_fall():
    falls = [
        smallest_fall(metric("accuracy"), whole(*ACCURACY), n, alpha, "worse")
        for n, alpha in [(10_000, 1e-4), (1000, 1e-4), (1000, 1e-6), (100, 1e-6)]
    ]
    assert falls == sorted(falls)
    assert len(set(falls)) == len(falls)


def test_macro_averages():
    classes, n = 4, 1000
    space = StatisticSpace((), "overall", classes=classes)
    label, predicted = space.code("label_class"), space.code("predicted_class")
    totals = np.where(label == predicted, 8000, 800)
    own = metric("f1_macro")
    fall = smallest_fall(own, whole(space, totals), n, ALPHA, "worse")

    # By symmetry all mistakes become more frequent alike.
    def law(times):
        weights = totals * np.where(label == predicted, 1.0, times)
        return weights / weights.sum()

    def worse_by(times):
        counts = np.rint(law(times) * 1e12).astype(np.int64)[None]
        return -own.delta(Slices(counts, space, totals))[0] - fall

    draws = np.random.default_rng(5).multinomial(n, law(brentq(worse_by, 1, 10)), 400)
    assert called("f1_macro", Slices(draws, space, totals)) == pytest.approx(0.8, abs=0.06)
