"""The items of a prompt against the paper's rule, written down sentence by sentence."""

from fractions import Fraction
from statistics import NormalDist, pstdev

import numpy as np
import pytest

from slicebeam.metrics.randomness import hash64, uniform
from slicebeam.pipelines.adaptive.prompt_items import (
    IN_SUBTOPIC,
    IN_TOPIC,
    ONE_FURTHER,
    OUTSIDE,
    repetitions,
    select_items,
)


def by_the_paper(scores, membership, similarities, ids, seed, repetition):
    """Appendix A, row by row, with numbers of Python; what it leaves open is as documented."""

    def draw(stream, row):
        word = hash64(seed, stream, np.array([ids[row]], np.uint64))
        return float(uniform(word)[0])

    best = max(membership)
    # "we add one standard deviation of random Gaussian noise to the test scores"
    focus = [score for score, factor in zip(scores, membership, strict=True) if factor == best]
    spread = max(pstdev(focus), 1e-6)
    noisy = [
        max(score + NormalDist(0, spread).inv_cdf(draw(2 * repetition, row)), 1e-3)
        for row, score in enumerate(scores)
    ]
    # A quarter of the tests is skipped: "by penalizing their score".
    skip = [0.01 if draw(2 * repetition + 1, row) < 0.25 else 1.0 for row in range(len(scores))]
    chosen = []
    # "selecting the highest scoring test and adding it to the prompt list. This process is iterated"
    while len(chosen) < 7:
        products = {}
        for row in set(range(len(scores))) - set(chosen):
            # "we penalize each test score by the cosine similarity of that test's embedding to the
            # closest embedding of a test that has already been selected"
            closest = max((similarities[row][other] for other in chosen), default=0.0)
            if 1 - closest > 1e-9:
                products[row] = noisy[row] * membership[row] * skip[row] * (1 - closest)
        if not products or max(products.values()) <= 0:
            break
        chosen.append(max(products, key=products.__getitem__))
    # "This list is then reversed"
    return chosen[::-1]


@pytest.mark.parametrize("seed", range(40))
def test_the_items_are_those_of_the_paper_in_its_order(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    factors = [IN_TOPIC, IN_SUBTOPIC, OUTSIDE * ONE_FURTHER, 0.0]
    shares = [(0.6, 0.2, 0.1, 0.1), (0.05, 0.1, 0.75, 0.1), (0, 0, 1, 0)][seed % 3]
    membership = rng.choice(factors, n, p=shares)
    membership[0] = OUTSIDE
    scores = rng.random(n) if seed % 4 else np.full(n, 0.5)
    vectors = rng.normal(size=(n, 3))
    vectors[n // 2] = vectors[0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = vectors @ vectors.T
    ids = rng.integers(0, 2**63, n).astype(np.uint64)
    for repetition in range(3):
        given = scores, membership, similarities, ids
        found = select_items(*given, seed=seed, repetition=repetition)
        expected = by_the_paper(*(one.tolist() for one in given), seed, repetition)
        assert found.tolist() == expected
        backwards = scores[::-1], membership[::-1], similarities[::-1, ::-1], ids[::-1]
        turned = select_items(*backwards, seed=seed, repetition=repetition)
        assert (n - 1 - turned).tolist() == expected


def shares_of_prompts(scores, membership=None):
    """How often each of unlike items is in a prompt, over 2,000 seeds."""
    n = len(scores)
    ids = np.arange(n, dtype=np.uint64)
    factors = np.ones(n) if membership is None else np.array(membership)
    counts = np.zeros(n)
    for seed in range(2000):
        counts[select_items(np.array(scores), factors, np.eye(n), ids, seed=seed)] += 1
    return counts / 2000


def test_failures_come_most_often_and_a_quarter_of_them_is_passed_over():
    # With no spread noise decides nothing but the order, and only a skip keeps one of the 7 out.
    certain = shares_of_prompts([1.0] * 7 + [0.0] * 20)
    assert certain[:7].min() > 0.6
    assert certain[7:].max() < 0.25
    assert shares_of_prompts([0.5] * 14) == pytest.approx(np.full(14, 0.5), abs=0.04)


def test_outside_tests_fill_only_what_the_topic_leaves_empty():
    membership = [IN_TOPIC] * 3 + [IN_SUBTOPIC] * 2 + [OUTSIDE] * 4
    found = shares_of_prompts([0.0] * 5 + [1.0] * 4, membership)
    assert found[:5].tolist() == [1.0] * 5
    assert found[5:].sum() == pytest.approx(2.0)


@pytest.mark.parametrize("size", [3, 7])
def test_prompts_are_as_many_as_half_more_cost_allows(size):
    for proposals in range(1, 200):
        most = repetitions(proposals, size)
        costs = [Fraction(number * size + proposals) for number in (most, most + 1)]
        limit = Fraction(3, 2) * (size + proposals)
        assert costs[0] <= limit
        assert costs[1] > limit or most == proposals


def test_without_a_candidate_there_are_no_items():
    ids = np.ones(1, np.uint64)
    assert select_items(np.ones(1), np.zeros(1), np.eye(1), ids, seed=0).tolist() == []
