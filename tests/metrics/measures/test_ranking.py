"""AUC: against the parent, turned over, and of more scores than buckets."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.auc import discretisation_error
from slicebeam.metrics.significance.outcome_codes import Reason
from tests.metrics.test_metric import Examples, by_sklearn, random_members


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
        p = auc.p_refine(slices.rows([0]), slices.rows([1]), worse=worse)
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
