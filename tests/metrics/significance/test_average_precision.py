"""Average precision: its value, bound and influences, and the law of random subsets."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from slicebeam.metrics.significance.auc import bucket_edges
from slicebeam.metrics.significance.average_precision import (
    PrecisionLaw,
    Ranks,
    log_odds,
    precisions,
)
from slicebeam.metrics.significance.permutation import p_of_draws
from tests.conftest import slow

BUCKETS = 256


def drawn(seed, rows, prevalence, apart, tied=5):
    """Labels, scores, buckets, their histogram, and which buckets hold several scores."""
    rng = np.random.default_rng(seed)
    label = (rng.random(rows) < prevalence).astype(np.int64)
    score = rng.normal(apart * label)
    # One score in five, or every one, is that of many others.
    score[::tied] = np.round(score[::tied])
    edges = bucket_edges(score, BUCKETS)
    bucket = np.searchsorted(edges, score, side="right")
    held = np.bincount(np.searchsorted(edges, np.unique(score), side="right"), minlength=BUCKETS)
    histogram = np.bincount(label * BUCKETS + bucket, minlength=2 * BUCKETS)
    return label, score, bucket, histogram.reshape(2, BUCKETS), held > 1


def test_value_is_that_of_scikit_learn_within_the_bound():
    label, score, bucket, _, coarse = drawn(1, 4000, 0.2, 1.5)
    members = np.random.default_rng(2).random((40, 4000)) < np.geomspace(0.01, 1, 40)[:, None]
    codes = label * BUCKETS + bucket
    counts = np.stack([np.bincount(codes[some], minlength=2 * BUCKETS) for some in members])
    counts = counts.reshape(-1, 2, BUCKETS)
    found = precisions(counts, counts[::-1], coarse)
    tied = [average_precision_score(label[some], bucket[some]) for some in members]
    np.testing.assert_allclose(found.value, tied, atol=1e-12)
    off = [average_precision_score(label[some], score[some]) for some in members] - found.value
    assert (np.abs(off) <= found.error + 1e-12).all()
    assert 0 < np.abs(off).max() < found.error.max() < 0.05
    assert found.complement.tolist() == found.value[::-1].tolist()
    assert precisions(counts, counts, np.zeros(BUCKETS, bool)).error.max() == 0
    # Without positives there is no value; with positives alone it is 1.
    alone = np.zeros((2, 2, BUCKETS), np.int64)
    alone[[0, 1], [0, 1]] = 3
    assert str(precisions(alone, alone, coarse).value.tolist()) == "[nan, 1.0]"


def test_value_in_random_order_is_the_mean_of_orders():
    label, _, bucket, histogram, coarse = drawn(6, 3000, 0.2, 1.0)
    rng = np.random.default_rng(7)
    orders = [
        average_precision_score(label, bucket + coarse[bucket] * rng.random(label.size))
        for _ in range(400)
    ]
    found = Ranks.of([histogram]).mixed(coarse)[0]
    assert found == pytest.approx(np.mean(orders), abs=4 * np.std(orders) / 20)
    tied = average_precision_score(label, bucket)
    assert abs(found - tied) > 20 * np.std(orders) / 20


def test_influence_is_the_derivative_of_the_value():
    histogram = np.random.default_rng(4).integers(0, 5, (2, 12)) * 1.0
    n, step = histogram.sum(), 1e-6
    coarse = np.zeros(12, bool)
    plain = precisions(*[histogram[None]] * 2, coarse)
    for cell in np.ndindex(2, 12):
        moved = histogram * (1 - step)
        moved[cell] += step * n
        slope = (precisions(*[moved[None]] * 2, coarse).value - plain.value) / step
        assert Ranks.of(histogram[None]).influence[0][cell] == pytest.approx(slope[0], abs=1e-4)
    variance = (Ranks.of(histogram[None]).influence[0] ** 2 * histogram).sum() / n
    assert plain.variance[0] == pytest.approx(variance * histogram[1].sum() / n)


@pytest.mark.parametrize(
    ("rows", "prevalence", "apart", "n", "tied"),
    [
        (300, 0.5, 1.0, 120, 5),
        slow(3000, 0.5, 0.5, 40, 1),
        slow(3000, 0.2, 1.5, 100, 5),
        slow(3000, 0.1, 2.0, 700, 5),
        # Of more than 2,000 examples, moments go on as they grew.
        slow(40_000, 0.1, 1.0, 6000, 5),
    ],
)
def test_p_values_are_those_of_permuted_examples(rows, prevalence, apart, n, tied):
    label, score, _, histogram, coarse = drawn(3, rows, prevalence, apart, tied)
    rng = np.random.default_rng(5)
    value = average_precision_score(label, score)
    law = PrecisionLaw(tuple(map(tuple, histogram.tolist())), tuple(coarse.tolist()), value)
    values = np.empty(6000)
    for at in range(values.size):
        some = rng.permutation(rows)[:n]
        values[at] = average_precision_score(label[some], score[some])
    for share in (0.5, 0.1, 0.02, 0.005):
        for tail, cut in (("lower", share), ("upper", 1 - share)):
            value = np.quantile(values, cut)
            observed = log_odds(np.array([value]), law.half(n))
            tested = p_of_draws(law.draws, np.array([n]), observed, tail, 2000)
            noise = 4 * np.sqrt(share / values.size + share / 5000)
            assert tested.p[0] == pytest.approx(share, abs=noise + 0.1 * share)
            assert tested.reasons.tolist() == [0]
    assert law.draws.of_size(n) is law.draws.of_size(n)
    both = p_of_draws(law.draws, np.array([n]), observed, "both", 2000).p
    assert both == pytest.approx(2 * tested.p)
