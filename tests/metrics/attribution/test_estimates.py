"""Precision and recall of words, by enumeration, by scipy's distributions and by simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.attribution.estimates import (
    NO,
    UNSURE,
    YES,
    Alignment,
    Answers,
    Draws,
    Interval,
    Proposal,
    alignment,
    decision,
    fay_feuer,
    jeffreys,
    missed_share,
    precision,
    proposal,
    simple_random_sample,
    split_labels,
)
from slicebeam.metrics.errors import InputError
from tests.attribution_populations import PROPOSALS, population, simulate
from tests.conftest import slow
from tests.refusals import refuses

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def labels(text):
    return np.array([{"y": YES, "n": NO, "?": UNSURE}[each] for each in text], np.int8)


def draws(text, weight, item=None, least=None):
    weight = np.broadcast_to(np.asarray(weight, dtype=np.float64), (len(text),)).copy()
    items = np.arange(len(text)) if item is None else np.array(item, np.int64)
    return Draws(items, weight, labels(text), float(weight.min() if least is None else least))


NOTHING = Draws(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int8), 0.2)


# The proposal


def slow_proposal(similarity, r, u):
    size = len(similarity[0])
    q = [u / size] * size
    for query in similarity:
        least, most = min(query), max(query)
        scaled = [((s - least) / (most - least)) ** r if most > least else 1.0 for s in query]
        for x in range(size):
            q[x] += (1 - u) / len(similarity) * scaled[x] / sum(scaled)
    return q


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("r", [0.0, 0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("queries", [1, 3])
def test_the_proposal_is_the_formula(dtype, r, queries):
    similarity = np.random.default_rng(1).standard_normal((queries, 40)).astype(dtype)
    similarity[0, 3] = similarity[0].min()
    for u in (0.05, 0.2, 1.0):
        found = proposal(similarity, exponent=r, uniform_share=u)
        slow = slow_proposal(similarity.astype(float).tolist(), r, u)
        np.testing.assert_allclose(found.probability, slow, rtol=1e-12)
        assert found.probability.sum() == pytest.approx(1, abs=1e-12)
        assert found.least_weight == pytest.approx(40 * min(slow), rel=1e-12)
        assert found.least_weight >= u * (1 - 1e-12)
        np.testing.assert_allclose(found.weight([3, 0]), [40 * slow[3], 40 * slow[0]], rtol=1e-12)


def test_a_fifth_is_uniform_unless_another_share_is_given():
    similarity = np.random.default_rng(2).random(30)
    found = proposal(similarity, exponent=3.0)
    np.testing.assert_allclose(found.probability, slow_proposal([similarity.tolist()], 3.0, 0.2))
    assert found.least_weight == pytest.approx(0.2)


def test_a_query_that_is_as_similar_to_all_as_to_any_is_uniform():
    equal = proposal(np.full(7, 0.3), exponent=8.0)
    np.testing.assert_allclose(equal.probability, 1 / 7, rtol=1e-14)
    other = np.linspace(-1, 1, 7)
    mixed = proposal([other, np.zeros(7)], exponent=2.0)
    slow = slow_proposal([other.tolist(), [0.0] * 7], 2.0, 0.2)
    np.testing.assert_allclose(mixed.probability, slow)
    one = proposal([[0.7]], exponent=2.0)
    assert one.probability.tolist() == [1.0]
    assert one.draw(5, seed=3).tolist() == [0] * 5


def test_draws_have_the_chances_of_the_proposal():
    found = proposal(np.random.default_rng(4).standard_normal((2, 25)), exponent=3.0)
    for round_number in (0, 1):
        drawn = found.draw(200_000, seed=5, round_number=round_number)
        counts = np.bincount(drawn, minlength=25)
        assert stats.chisquare(counts, 200_000 * found.probability).pvalue > 0.001
        # Independent, one after the other.
        pairs = np.bincount(drawn[1:] * 25 + drawn[:-1], minlength=625)
        chance = np.outer(found.probability, found.probability).ravel()
        assert stats.chisquare(pairs, chance * 199_999).pvalue > 0.001


def test_draws_are_a_function_of_seed_round_and_number():
    found = proposal(np.random.default_rng(6).random(1000), exponent=2.0)
    drawn = found.draw(60, seed=7, round_number=2)
    assert drawn.dtype == np.int64
    np.testing.assert_array_equal(drawn[:25], found.draw(25, seed=7, round_number=2))
    for seed, number in ((8, 2), (7, 3)):
        assert (found.draw(60, seed=seed, round_number=number) == drawn).mean() < 0.2
    assert found.draw(0, seed=7).size == 0


def test_a_sample_of_the_slice_is_the_same_whatever_the_order_and_can_be_added_to():
    ids = np.random.default_rng(8).permutation(5000).astype(np.uint64)
    first = simple_random_sample(ids, 80, seed=9)
    assert np.unique(first).size == 80
    more = simple_random_sample(ids, 40, seed=9, start=80)
    np.testing.assert_array_equal(np.r_[first, more], simple_random_sample(ids, 120, seed=9))
    order = np.argsort(ids)
    np.testing.assert_array_equal(
        ids[order][simple_random_sample(ids[order], 80, seed=9)], ids[first]
    )
    everything = simple_random_sample(ids, 10_000, seed=9)
    np.testing.assert_array_equal(np.sort(everything), np.arange(5000))
    assert simple_random_sample(ids, 10, seed=9, start=5000).size == 0
    assert simple_random_sample(ids[:0], 10, seed=9).size == 0


def test_every_sample_of_the_slice_is_as_likely():
    ids = np.array([3, 14, 15, 92, 65], np.uint64)
    drawn = np.array([simple_random_sample(ids, 2, seed=s) for s in range(6000)])
    # Ordered pairs, so that the first of a sample is one too.
    counts = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25).reshape(5, 5)
    assert not counts.diagonal().any()
    assert stats.chisquare(counts[~np.eye(5, dtype=bool)]).pvalue > 0.001


@pytest.mark.parametrize(("similarity", "message"), [
    ([[0.1, np.nan, 0.2]], "example 1 to query 0 is nan"),
    ([[0.1, 0.2], [0.3, -np.inf]], "example 1 to query 1 is -inf"),
])  # fmt: skip
def test_a_wrong_proposal_is_an_error_that_says_where(similarity, message):
    refuses(InputError, message, proposal, similarity, exponent=2.0)


# Unbiased over everything that can be drawn


def test_precision_is_unbiased_over_all_samples():
    truth = labels("ynyyn?n")
    found = [precision(truth[list(at)], 7).estimate for at in itertools.combinations(range(7), 3)]
    assert np.mean(found) == pytest.approx(3 / 7, abs=1e-13)


def outside_of(text, q):
    """Chance and draws of every sequence of m draws."""
    found, size = labels(text), len(text)
    weight = np.array(q) * size

    def of(items):
        items = np.array(items, np.int64)
        return Draws(items, weight[items], found[items], float(weight.min()))

    return lambda m: [
        (math.prod(q[i] for i in items), of(items))
        for items in itertools.product(range(size), repeat=m)
    ]


@pytest.mark.parametrize("m", [1, 2, 4])
def test_the_missed_share_is_unbiased_over_all_draws(m):
    q = proposal([[0.9, 0.1, -0.4, 0.0, 0.5]], exponent=3.0).probability.tolist()
    everything = outside_of("ynny?", q)(m)
    assert sum(chance for chance, _ in everything) == pytest.approx(1)
    assert sum(chance * each.share() for chance, each in everything) == pytest.approx(2 / 5)
    # Of its variance too nothing is left to chance.
    variance = sum(chance * (each.share() - 2 / 5) ** 2 for chance, each in everything)
    assert variance == pytest.approx((sum(1 / (25 * q[i]) for i in (0, 3)) - 0.16) / m)


def test_merged_rounds_are_unbiased_even_if_the_second_is_chosen_by_the_first():
    first = [0.4, 0.3, 0.2, 0.1]
    chosen = {True: [0.1, 0.1, 0.1, 0.7], False: [0.25, 0.25, 0.4, 0.1]}
    own, balanced, total = 0.0, 0.0, 0.0
    for chance, one in outside_of("ynny", first)(2):
        second = chosen[bool((one.label == YES).any())]
        for then, two in outside_of("ynny", second)(1):
            merged = Draws.merged([one, two])
            total += chance * then
            own += chance * then * merged.share()
            mixture = (2 * np.array(first) + np.array(second)) / 3 * 4
            hits = merged.item[merged.label == YES]
            balanced += chance * then * (1 / mixture[hits]).sum() / 3
    assert total == pytest.approx(1)
    assert own == pytest.approx(0.5, abs=1e-12)
    # What weights by the mixture would have done.
    assert abs(balanced - 0.5) > 0.015


def test_merging_adds_up_draws():
    one, two = draws("yn", [0.5, 2.0], [4, 1], least=0.3), draws("y?n", 1.5, [4, 2, 3], least=0.2)
    merged = Draws.merged([one, two])
    assert merged.item.tolist() == [4, 1, 4, 2, 3]
    assert merged.weight.tolist() == [0.5, 2.0, 1.5, 1.5, 1.5]
    assert merged.label.tolist() == labels("yny?n").tolist()
    assert merged.least_weight == 0.2
    assert merged.share() == pytest.approx((1 / 0.5 + 1 / 1.5) / 5)
    assert merged.share() == pytest.approx(2 / 5 * one.share() + 3 / 5 * two.share())


def test_recall_is_consistent_and_its_bias_is_the_one_that_is_said():
    # Hits are a tenth of 10⁶ and drawn with chance .3; the slice is wholly labelled.
    size, Q, q, inside = 10**6, 0.1, 0.3, labels("y" * 30 + "n" * 10)
    slice_size, ratios = 40, []
    for slice_part in (1, 2500):
        # P̂ of a labelled part is P, and counts as given here.
        n_S = slice_size * slice_part
        truth = 0.75 * n_S / (0.75 * n_S + Q * size)
        for m in (50, 200, 800):
            mean = 0.0
            for k in range(m + 1):
                text = np.repeat([YES, NO], [k, m - k]).astype(np.int8)
                found = Draws(np.where(text == YES, 0, 1), np.full(m, q / Q), text, 0.2)
                estimate = alignment(inside, n_S, found, size).recall.estimate
                mean += stats.binom.pmf(k, m, q) * estimate
            variance = Q * Q * (1 - q) / q / m
            ratios.append((mean - truth) / (truth * (1 - truth) ** 2 * variance / Q**2))
    for small, middle, large in (ratios[:3], ratios[3:]):
        assert abs(large - 1) < abs(middle - 1) < abs(small - 1) < 0.2
        assert large == pytest.approx(1, abs=0.015)


# Intervals


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize("n", [20, 137])
def test_jeffreys_is_scipys_beta(confidence, n):
    tail, size = (1 - confidence) / 2, 10**12
    x = np.arange(n + 1)
    low, high = jeffreys(x, n, size, confidence)
    law = stats.beta(x[2:-2] + 0.5, n - x[2:-2] + 0.5)
    np.testing.assert_allclose(low[2:-2], law.ppf(tail), atol=3e-12)
    np.testing.assert_allclose(high[2:-2], law.isf(tail), atol=3e-12)
    assert low[:2].tolist() == [x[0] / size, x[1] / size]
    np.testing.assert_allclose(high[-2:], 1, atol=2e-12)
    exact = [stats.binomtest(int(k), n).proportion_ci(confidence, "exact") for k in (0, 1)]
    np.testing.assert_allclose(high[:2], [each.high for each in exact], atol=3e-12)
    # Yes and no change places.
    np.testing.assert_allclose(low, 1 - high[::-1], atol=3e-12)
    assert (np.diff(low) >= 0).all()
    assert (np.diff(high) >= 0).all()


def test_jeffreys_of_a_finite_population_is_narrowed_and_keeps_what_is_known():
    for n, N in ((5, 9), (12, 17), (50, 80), (100, 2000)):
        for x in range(2, n - 1):
            tails = stats.beta.ppf([0.025, 0.975], x + 0.5, n - x + 0.5)
            narrowed = x / n + math.sqrt((N - n) / (N - 1)) * (tails - x / n)
            low, high = jeffreys(x, n, N)
            assert low == max(math.floor(narrowed[0] * N), x) / N
            assert high == min(math.ceil(narrowed[1] * N), N - n + x) / N
    for n, N in ((50, 50), (49, 50), (1, 1), (1, 2), (2, 3)):
        x = np.arange(n + 1)
        low, high = jeffreys(x, n, N)
        assert (low >= x / N - 1e-15).all()
        assert (high <= (N - n + x) / N + 1e-15).all()
        assert (low <= x / n).all()
        assert (x / n <= high).all()
        if n == N:
            np.testing.assert_array_equal(low, x / n)
            np.testing.assert_array_equal(high, x / n)
    assert jeffreys(0, 0, 40) == (0, 1)


def enumerated_coverage(size, n):
    marked, x = np.arange(size + 1)[:, None], np.arange(n + 1)
    low, high = jeffreys(x, n, size)
    holds = (low <= marked / size + 1e-12) & (marked / size <= high + 1e-12)
    # Elsewhere the probability counts for nothing, and takes as long.
    rows, columns = np.nonzero(holds)
    return np.bincount(rows, stats.hypergeom.pmf(columns, size, rows, n), minlength=size + 1)


@pytest.mark.parametrize(("size", "n"), [
    *[(60, 50), (120, 50), (120, 100), (400, 50), (400, 100), (400, 300)],
    *[slow(size, n) for size in (2000, 5000) for n in (50, 59, 100, 150, 300)],
])  # fmt: skip
def test_jeffreys_covers_every_share_of_a_finite_population(size, n):
    coverage = enumerated_coverage(size, n)
    assert coverage.min() >= 0.915
    # The lattice of few labels lets it dip a little below at single shares.
    assert (coverage >= 0.92).mean() > 0.995
    assert 0.95 <= coverage.mean() <= (0.98 if n < 0.5 * size else 0.995)


def test_equal_weights_give_the_exact_interval_of_a_poisson_count():
    for u in (1.0, 0.02, 7.5):
        for confidence in (0.8, 0.95, 0.99):
            tail = (1 - confidence) / 2
            k = np.arange(60)
            low, high = fay_feuer(k * u, k * u * u, u, confidence)
            np.testing.assert_allclose(low[1:], u * stats.chi2.ppf(tail, 2 * k[1:]) / 2, rtol=1e-10)
            np.testing.assert_allclose(high, u * stats.chi2.isf(tail, 2 * k + 2) / 2, rtol=1e-10)
            assert low[0] == 0


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_fay_and_feuers_interval_is_their_definition(confidence):
    rng, tail = np.random.default_rng(10), (1 - confidence) / 2
    for _ in range(30):
        u, x = rng.exponential(size=8), rng.poisson(1.0, 8)
        y, v, w = (u * x).sum(), (u * u * x).sum(), u.max()
        if y == 0:
            continue
        low, high = fay_feuer(y, v, w, confidence)
        assert low == pytest.approx(v / (2 * y) * stats.chi2.ppf(tail, 2 * y * y / v), rel=1e-10)
        above = (v + w * w) / (2 * (y + w))
        degrees = 2 * (y + w) ** 2 / (v + w * w)
        assert high == pytest.approx(above * stats.chi2.isf(tail, degrees), rel=1e-10)
        # The gamma distributions have these means and variances.
        of_low = stats.gamma(y * y / v, scale=v / y)
        assert of_low.stats() == pytest.approx((y, v))
        assert of_low.cdf(low) == pytest.approx(tail)
        assert low < y < high


def slow_missed(found, size, confidence):
    yes, no = (found.label == label for label in (YES, NO))
    each, w = 1 / found.weight / len(yes), 1 / found.least_weight / len(yes)
    low_sum, low_square = each[yes].sum(), (each[yes] ** 2).sum()
    tail = (1 - confidence) / 2
    low = 0.0
    if low_sum:
        low = stats.gamma.ppf(tail, low_sum**2 / low_square, scale=low_square / low_sum)
    mean, variance = each[~no].sum() + w, (each[~no] ** 2).sum() + w * w
    high = stats.gamma.isf(tail, mean**2 / variance, scale=variance / mean)
    hits, misses = (np.unique(found.item[some]).size for some in (yes, no))
    return [float(np.clip(value, hits / size, 1 - misses / size)) for value in (low_sum, low, high)]


def test_the_interval_of_what_was_missed_is_the_formula():
    rng, unsure = np.random.default_rng(11), 0
    for number in range(60):
        size, m = int(rng.integers(5, 300)), int(rng.integers(1, 80))
        chances = proposal(rng.standard_normal((2, size)), exponent=float(rng.integers(0, 9)))
        item = chances.draw(m, seed=number)
        truth = rng.choice([YES, NO, UNSURE], size, p=[0.15, 0.75, 0.1]).astype(np.int8)
        found = Draws(item, chances.weight(item), truth[item], chances.least_weight)
        for confidence in (0.8, 0.95):
            each = missed_share(found, size, confidence)
            slow = slow_missed(found, size, confidence)
            assert [each.estimate, each.low, each.high] == pytest.approx(slow, abs=1e-10)
            assert each.low <= each.estimate <= each.high
        unsure += (found.label == UNSURE).any()
    assert unsure > 20


def test_without_a_hit_the_upper_bound_is_that_of_the_least_likely_example():
    found = missed_share(draws("n" * 60, 4.0, least=0.2), 10_000)
    assert found == Interval(0.0, 0.0, pytest.approx(math.log(40) / 60 / 0.2))
    both = alignment(labels("y" * 60), 500, draws("n" * 60, 4.0, least=0.2), 10_000)
    assert both.recall.estimate == both.recall.high == 1
    assert both.recall.low == pytest.approx(
        500 * both.precision.low / (500 * both.precision.low + 10_000 * both.missed.high)
    )
    assert both.recall.low < 0.2


def test_what_is_wholly_labelled_is_exact():
    chances = proposal(np.arange(6.0), exponent=1.0)
    item, truth = np.array([0, 1, 2, 3, 4, 5, 5, 0]), labels("ynnyyn")
    found = Draws(item, chances.weight(item), truth[item], chances.least_weight)
    assert missed_share(found, 6) == Interval(0.5, 0.5, 0.5)
    both = alignment(labels("yyny"), 4, found, 6)
    assert both.precision == Interval(0.75, 0.75, 0.75)
    assert both.recall == Interval(0.5, 0.5, 0.5)
    assert both.recall.estimate == 3 / (3 + 3)


def test_unsure_is_no_in_estimates_and_moves_both_bounds_out():
    inside = precision(labels("y" * 30 + "?" * 10 + "n" * 10), 400)
    low, high = jeffreys([30, 40], 50, 400)
    assert inside == Interval(0.6, low[0], high[1])
    as_no, as_yes = draws("y" * 4 + "n" * 46, 1.0), draws("y" * 9 + "n" * 41, 1.0)
    outside = missed_share(draws("y" * 4 + "?" * 5 + "n" * 41, 1.0), 4000)
    assert outside.low == missed_share(as_no, 4000).low
    assert outside.high == missed_share(as_yes, 4000).high
    assert outside.estimate == pytest.approx(4 / 50)
    both = alignment(labels("y?n"), 3, draws("y?n", 1.0), 3)
    assert both.inside == both.outside == Answers(1, 1, 1)
    # Either is a truth that the bounds hold.
    assert both.precision == Interval(pytest.approx(1 / 3), 1 / 3, pytest.approx(2 / 3))
    assert both.recall.low == pytest.approx(1 / 3)
    assert both.recall.high == pytest.approx(2 / 3)


def test_recall_combines_the_ends():
    rng = np.random.default_rng(12)
    for _ in range(40):
        size, outside = int(rng.integers(30, 400)), int(rng.integers(50, 4000))
        answers = rng.choice([YES, NO], 30, p=[0.7, 0.3]).astype(np.int8)
        chosen = rng.choice(outside, 40)
        found = Draws(chosen, np.full(40, 1.7), np.where(chosen % 5, NO, YES).astype(np.int8), 0.2)
        for looks, confidence in ((1, 0.95), (4, 0.8)):
            both = alignment(answers, size, found, outside, confidence=confidence, looks=looks)
            level = 1 - (1 - confidence) / looks
            P, Q = precision(answers, size, level), missed_share(found, outside, level)
            assert (both.precision, both.missed) == (P, Q)
            for ours, p, q in (
                (both.recall.estimate, P.estimate, Q.estimate),
                (both.recall.low, P.low, Q.high),
                (both.recall.high, P.high, Q.low),
            ):
                assert ours == pytest.approx(size * p / (size * p + outside * q))


def test_where_there_is_nothing_to_find_or_nothing_outside():
    nowhere = alignment(labels("n" * 40), 40, draws("n" * 60, 1.0), 60)
    assert nowhere.precision == nowhere.missed == Interval(0.0, 0.0, 0.0)
    assert math.isnan(nowhere.recall.estimate)
    assert (nowhere.recall.low, nowhere.recall.high) == (1, 1)
    everything = alignment(labels("yny"), 40, NOTHING, 0)
    assert everything.missed == Interval(0.0, 0.0, 0.0)
    assert everything.recall == Interval(1.0, 1.0, 1.0)
    unknown = alignment(labels(""), 40, NOTHING, 60)
    for each in (unknown.precision, unknown.missed, unknown.recall):
        assert math.isnan(each.estimate)
        assert (each.low, each.high) == (0, 1)
    assert alignment(labels("n" * 40), 40, draws("yn", 1.0), 60).recall == Interval(0.0, 0.0, 0.0)


def test_an_estimate_above_one_is_brought_within_what_is_known():
    found = draws("yyn", [0.3, 0.3, 5.0], least=0.2)
    assert found.share() == pytest.approx(2 / 0.3 / 3)
    assert missed_share(found, 100).estimate == 0.99
    assert missed_share(found, 100).high == 0.99


def test_the_decision_is_that_of_the_bounds():
    def of(P, R):
        return Alignment(
            Interval(np.mean(P), *P),
            Interval(0.1, 0, 1),
            Interval(np.mean(R), *R),
            *[Answers(1, 1, 1)] * 2,
        )

    wanted = {"precision": 0.7, "recall": 0.5}
    assert decision(of((0.7, 0.9), (0.5, 0.8)), **wanted) == "accept"
    assert decision(of((0.69, 0.9), (0.5, 0.8)), **wanted) == "label more"
    assert decision(of((0.7, 0.9), (0.49, 0.8)), **wanted) == "label more"
    assert decision(of((0.6, 0.69), (0.5, 0.8)), **wanted) == "update"
    assert decision(of((0.9, 0.95), (0.1, 0.49)), **wanted) == "update"


# Coverage


def check_coverage(size, share, missed, kind, count, runs, seed):
    """At least .92, where a simulation of so many runs can tell."""
    pool = population(size, share, missed, kind, seed=seed)
    found, error = simulate(pool, count, runs, seed), math.sqrt(0.92 * 0.08 / runs)
    # P is enumerated above.
    for what, truth, slack in (
        ("precision", pool.precision, 3 * error),
        ("missed", pool.missed, 0.0),
        ("recall", pool.recall, 0.0),
    ):
        covers = found.covers(what, truth)
        assert covers.mean() >= 0.92 - slack, (what, kind, covers.mean())
        if what != "precision" and found.no_hit.mean() > 0.05:
            assert covers[found.no_hit].mean() >= 0.92 - slack
    weights = [each.weight(np.arange(pool.outside.size)) for each in pool.rounds]
    part = np.mean([(pool.outside / each).mean() for each in weights])
    deviation = math.sqrt((part - pool.missed**2) / count / runs)
    # A mean of few and heavy hits is skewed.
    assert abs(found.missed.mean() - pool.missed) <= 5 * deviation
    return found


@pytest.mark.parametrize("kind", PROPOSALS)
@pytest.mark.parametrize(("missed", "count"), [(0.002, 100), slow(0.05, 50)])
def test_intervals_cover(kind, missed, count):
    found = check_coverage(400, 0.9, missed, kind, count, 250, 13)
    if missed == 0.002 and kind not in {"half hidden", "two queries"}:
        assert found.no_hit.any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROPOSALS)
@pytest.mark.parametrize("size", [60, 2000])
@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("missed", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("count", [50, 300])
def test_intervals_cover_all_over(kind, size, share, missed, count):
    check_coverage(size, share, missed, kind, count, 300, 14)


def test_ten_million_examples_need_no_loop():
    # A tenth of them here; time is linear.
    similarity = np.random.default_rng(18).random((2, 1_000_000), dtype=np.float32)
    found = proposal(similarity, exponent=4.0)
    assert isinstance(found, Proposal)
    assert found.probability.sum() == pytest.approx(1, abs=1e-9)
    assert np.unique(found.draw(300, seed=1)).size > 290


@pytest.mark.parametrize("budget", [1, 2, 7, 50, 400, 3000])
@pytest.mark.parametrize("sizes", [(300, 3700), (20, 100_000), (50, 0), (50, 3), (1000, 1000)])
def test_a_budget_is_divided_within_what_there_is(budget, sizes):
    size, outside = sizes
    for labelled in (0, size // 2, size):
        found = split_labels(budget, size=size, size_outside=outside, labelled=labelled, drawn=9)
        assert 0 <= found[0] <= size - labelled
        assert 0 <= found[1] <= outside
        assert sum(found) == min(budget, size - labelled + outside)


def expected_width(inside, outside, size, size_outside):
    """The widths of both intervals where a quarter of the draws hit, and both shares are 0.8."""
    labels = np.zeros(inside, np.int8)
    labels[: round(0.8 * inside)] = 1
    hits = round(outside / 4)
    share = 0.8 * size * 0.25 / size_outside
    weight = np.full(outside, 1.0)
    weight[:hits] = hits / outside / share
    answers = (np.arange(outside) < hits).astype(np.int8)
    # There are but so many to be hit.
    item = np.arange(outside)
    item[:hits] %= round(share * size_outside)
    item[hits:] += size_outside // 2
    found = alignment(labels, size, Draws(item, weight, answers, 0.2), size_outside)
    return found.precision.high - found.precision.low + found.recall.high - found.recall.low


@pytest.mark.parametrize("budget", [200, 400, 800])
def test_the_division_is_about_the_best_of_all(budget):
    size, size_outside = 500, 4000
    inside, outside = split_labels(budget, size=size, size_outside=size_outside)
    found = expected_width(inside, outside, size, size_outside)
    quarter = budget // 4
    every = [
        expected_width(one, budget - one, size, size_outside)
        for one in range(quarter, min(size, budget - quarter) + 1, 5)
    ]
    assert found < 1.05 * min(every)
    # It matters: half of the way to an end is worse.
    assert max(every) > 1.1 * found
