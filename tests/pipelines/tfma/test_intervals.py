"""Intervals of metrics that TFMA computes, without TFMA: means of few queries."""

import numpy as np
import pytest

from slicebeam.metrics.randomness import poisson_weights
from slicebeam.pipelines.tfma import found_metrics

DRAWS, REPLICATES = 2000, 20


def first_gains(random, shape):
    """NDCG@1 of queries with four documents each: a share, mostly 1."""
    score = random.uniform(size=(*shape, 4))
    gain = random.integers(1, 5, score.shape) + 2.0 * (random.uniform(size=score.shape) < score)
    first = np.take_along_axis(gain, score.argmax(-1)[..., None], -1)[..., 0]
    return first / gain.max(-1)


@pytest.mark.parametrize("queries", [8, 15, 60])
def test_intervals_of_few_queries_cover_the_truth(queries):
    random = np.random.default_rng(11)
    truth = first_gains(random, (400_000,)).mean()
    found = first_gains(random, (DRAWS, queries))
    ids = random.integers(0, 2**63, found.size).astype(np.uint64)
    drawn = [poisson_weights(0, b, ids).reshape(found.shape) for b in range(REPLICATES)]
    weights = np.stack([np.ones_like(drawn[0]), *drawn]).astype(float)
    with np.errstate(invalid="ignore"):
        values = (weights * found).sum(2) / weights.sum(2)
    estimates = [found_metrics.tested(one, queries)[0] for one in values.T]
    covered = [one.lo is not None and one.lo <= truth <= one.hi for one in estimates]
    assert 0.93 <= np.mean(covered) <= 0.97


def test_what_does_not_vary_has_no_interval():
    estimate, p = found_metrics.tested(np.ones(21), 12)
    assert (estimate.value, estimate.lo, p) == (1.0, None, None)
    assert found_metrics.tested(np.zeros(21), 12)[1] == 1.0
    one = np.random.default_rng(1).normal(0.0, 1.0, 21)
    assert found_metrics.tested(one, 1)[0].lo is None
    few, many = (found_metrics.tested(one, units)[0] for units in (3, 1000))
    assert few.hi - few.value > 1.5 * (many.hi - many.value)
