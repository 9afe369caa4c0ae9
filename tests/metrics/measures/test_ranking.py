"""AUC: against the parent, turned over, and of more scores than buckets."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.counting.statistic_space import BUCKETS
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.significance.auc import discretisation_error
from slicebeam.metrics.significance.outcome_codes import Reason
from tests.metrics.measures.test_metric import Examples, by_sklearn, random_members


def test_auc_of_two_models_against_the_parent_varies_by_what_is_outside_of_the_child():
    examples, rows = Examples.random(41, 300), np.arange(300)
    auc, slices = metric("auc"), examples.of(["auc"], "baseline", np.stack([rows < 80, rows < 200]))
    parts = [examples.take(rows < size) for size in (80, 200)]
    gain = [by_sklearn("auc", some) - by_sklearn("auc", some, old=True) for some in parts]
    fewest = [np.bincount(examples.label[:size]).min() for size in (80, 200)]
    variance = auc.inputs(slices.rows([0]))["variance of the delta"]
    t = (gain[0] - gain[1]) / (variance * (1 - fewest[0] / fewest[1])) ** 0.5
    law = stats.t(fewest[0] - 1)
    for worse, expected in ((True, law.cdf(t)), (False, law.sf(t))):
        p = auc.p_refine(
            slices.rows([0]), slices.rows([1]), auc.tail("worse" if worse else "better")
        )
        assert p == pytest.approx(expected, rel=1e-6)


def test_auc_that_is_turned_over_is_not_called_unchanged():
    some = Examples.random(9, 200)
    label, inside = some.label * 1.0, np.arange(200) < 90
    for new, reason in ((1 - label, Reason.UNVARYING), (label, Reason.UNCHANGED)):
        slices = replace(some, score=(new, label)).of(["auc"], "baseline", inside[None])
        tested = metric("auc").test(slices, "worse")
        assert tested.reasons.tolist() == [reason]
        assert tested.p.tolist() == [1.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_of_many_scores_is_near(*, weighted):
    examples = Examples.random(1, 3000, weighted=weighted)
    rng = np.random.default_rng(2)
    examples = replace(examples, score=(rng.normal(examples.label), rng.normal(examples.label)))
    members = random_members(6, 5, examples.rows)
    space = examples.space(["auc"], "baseline")
    raw, _ = examples.sums(space, members)
    for old in (False, True):
        expected = [by_sklearn("auc", examples.take(some), old=old) for some in members]
        error = discretisation_error(space.histogram(raw[:, 0], old=old))
        found = metric("auc").value_of_raw(Slices(raw[:, 0], space, is_old=old))
        assert (np.abs(found - expected) <= error + 1e-12).all()
        assert error.max() < 0.003


@pytest.mark.parametrize(
    ("n", "prevalence", "apart"), [(60, 0.3, 1.5), (200, 0.1, 0.5), (200, 0.5, 3)]
)
def test_intervals_of_average_precision_hold_that_of_all(n, prevalence, apart):
    own, rng = metric("average_precision"), np.random.default_rng(8)
    label = (rng.random(4000) < prevalence).astype(np.int64)
    score = rng.normal(apart * label)
    examples = replace(Examples.random(1, 4000), label=label, score=(score, score))
    members = np.argsort(rng.random((400, 4000)), axis=1) < n
    slices = examples.of(["average_precision"], "overall", members)
    whole = float(own.value(slices.total)[0])
    few = slices.count("positive") < 10
    for ends, centre, at in (
        (own.value_interval(slices, 0.95), own.value(slices), whole),
        (own.delta_interval(slices, 0.95), own.delta(slices), 0.0),
    ):
        low, high = ends
        assert (np.isnan(low) == few).all()
        assert (np.isnan(high) == few).all()
        low, high = low[~few], high[~few]
        assert ((low <= centre[~few]) & (centre[~few] <= high)).all()
        assert ((low <= at) & (at <= high)).mean() > 0.915
    if n == 60:
        p = own.p_refine(slices, slices.rows(np.zeros(400, np.int64)).total, own.tail("worse"))
        assert abs((p < 0.05).mean() - 0.05) < 0.04


def test_average_precision_is_not_tested_where_few_of_a_class_are_expected():
    examples = Examples.random(4, 400)
    label = (np.arange(400) % 10 == 0).astype(np.int64)
    members = np.arange(400) < np.array([[90], [110], [400], [1]])
    members[3] = np.arange(400) == 1
    own = metric("average_precision")
    slices = replace(examples, label=label).of([own.name], "overall", members)
    reasons = own.test(slices, "worse").reasons.tolist()
    assert reasons == [Reason.SMALL_DENOMINATOR, 0, Reason.WHOLE, Reason.UNDEFINED]


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_ends_of_bounds_are_values_too(name):
    own, counts = metric(name), np.zeros((3, 2, BUCKETS), np.int64)
    # Of all positives, which tie with a few negatives, not all may be below these.
    counts[:, 0, 0], counts[:, 0, -1], counts[:, 1, -1] = [300, 500, 900], [1, 2, 2], [90, 200, 300]
    space = statistic_space(["auc", "average_precision"], "overall")
    space = replace(space, by_score=tuple(map(tuple, counts[2].tolist())))
    raw = np.concatenate([counts.sum(axis=2), counts.reshape(3, -1)], axis=1)
    sums = space.reduce(raw, raw[2:])
    slices = Slices(sums[:2], space, sums[2])
    for side in (-1, 1):
        moved = replace(slices, sums=slices.space.moved(slices.sums, side))
        ends = np.clip(own.value(slices) + side * own.value_error(slices), 0, 1)
        np.testing.assert_allclose(own.value(moved), ends, atol=1e-15)
        p = own.p_refine(slices.rows([0]), moved.rows([1]), own.tail("worse"))
        assert 0 < p[0] < 1
        assert own.value_error(slices).min() > 0
        for alternative in ("worse", "better"):
            tested = own.test(slices, alternative)
            least = own.least_test_p(slices, alternative, tested)
            assert (own.test(moved, alternative).p >= least).all()
            assert (least <= tested.p).all()
