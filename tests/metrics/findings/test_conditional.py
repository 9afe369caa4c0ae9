"""Conditional p-values against exact laws by brute force, and their rates in simulation."""

from collections import defaultdict
from itertools import product
from math import comb

import numpy as np
import pytest
from scipy.stats import binom, norm

from slicebeam.metrics.findings import conditional
from slicebeam.metrics.findings.conditional import (
    DeviationLaw,
    change_p_value,
    influence,
    pattern_variances,
    rate_p_value,
    rate_variances,
    sum_p_value,
)
from slicebeam.metrics.findings.model import fit
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.metrics.significance import count_tests, random_subset
from slicebeam.metrics.significance.random_subset import Population
from tests.encoded_table import deviation_law, target_columns


def exact_law(masks, findings, inside, outside, totals):
    """The upper mid-p by count of exact conditional logistic regression: all tables with these sums.

    A table's probability given the sums of all examples and of each finding does not depend on the
    model: it is the product of the binomial coefficients of its cells.
    """
    ways = {(0,) * (findings + 2): 1}
    for mask, n_in, n_out in zip(masks, inside, outside, strict=True):
        bits = [mask >> k & 1 for k in range(findings)]
        fresh = defaultdict(int)
        for (all_of, *of_finding, own), number in ways.items():
            for j, i in product(range(n_out + 1), range(n_in + 1)):
                sums = [s + bit * (i + j) for s, bit in zip(of_finding, bits, strict=True)]
                key = (all_of + i + j, *sums, own + i)
                if all(k <= most for k, most in zip(key[:-1], totals, strict=True)):
                    fresh[key] += number * comb(n_out, j) * comb(n_in, i)
        ways = fresh
    law = {key[-1]: number for key, number in ways.items() if key[:-1] == tuple(totals)}
    everything = 2 * sum(law.values())
    return {
        observed: (2 * sum(m for own, m in law.items() if own > observed) + number) / everything
        for observed, number in law.items()
    }


def model_of(masks, findings, inside, outside, errors):
    n = np.asarray(inside) + np.asarray(outside)
    return fit("rate", masks, findings, n, errors), n


def test_with_no_finding_it_is_the_test_of_one_slice():
    for N, K, n in ((1000, 100, 20), (30000, 600, 40), (400, 60, 200), (500, 450, 60)):
        model, x = fit("rate", [0], 0, [N], [K]), np.arange(min(n, K) + 1)
        exact = count_tests.mid_p(np.full(x.size, n), x, N, K, "upper")
        for count, p in zip(x[exact < 0.2], exact[exact < 0.2], strict=True):
            assert rate_p_value(model, [N], [n], count, "upper") == pytest.approx(p, rel=0.07)
            # The other tail of what is right is the same.
            mirrored = fit("rate", [0], 0, [N], [N - K])
            assert rate_p_value(mirrored, [N], [n], n - count, "lower") == pytest.approx(
                p, rel=0.07
            )
    N, K, n = 400_000, 80_000, 30_000
    model = fit("rate", [0], 0, [N], [K])
    for x in (5800, 6300, 7500):
        for tail in ("upper", "lower", "both"):
            p = float(count_tests.likelihood_mid_p(n, x, N, K, tail))
            assert rate_p_value(model, [N], [n], x, tail) == pytest.approx(p, rel=1e-6)


def test_with_findings_it_is_exact_conditional_logistic_regression():
    # Two findings that overlap; the candidate has a different share of each pattern.
    masks, inside, outside = [0, 1, 2, 3], [6, 5, 3, 4], [30, 12, 9, 4]
    model, n = model_of(masks, 2, inside, outside, [4, 6, 3, 5])
    law = exact_law(masks, 2, inside, outside, (18, 11, 8))
    tested = 0
    for observed, exact in law.items():
        if 1e-8 < exact < 0.3:
            p = rate_p_value(model, n, inside, observed, "upper")
            assert p == pytest.approx(exact, rel=0.1 if exact < 1e-5 else 0.05)
            tested += 1
    assert tested >= 6


def test_a_candidate_that_holds_all_errors_of_a_finding():
    masks, inside, outside, errors = [0, 1], [0, 8], [60, 12], [10, 6]
    model, n = model_of(masks, 1, inside, outside, errors)
    exact = exact_law(masks, 1, inside, outside, (16, 6))[6]
    assert rate_p_value(model, n, inside, 6, "upper") == pytest.approx(exact, rel=0.06)
    # All of it wrong, and nobody else: the patterns around have errors left.
    model, n = model_of([0, 1], 1, [5, 5], [200, 60], [20, 12])
    exact = exact_law([0, 1], 1, [5, 5], [200, 60], (32, 12))[10]
    assert rate_p_value(model, n, [5, 5], 10, "upper") == pytest.approx(exact, rel=0.1)


def test_small_tables_of_any_kind_are_near_the_exact_law():
    # Patterns that are all right or all wrong, candidates that fill them, counts at the very end.
    rng, near = np.random.default_rng(5), 0
    for _ in range(150):
        findings = int(rng.integers(0, 3))
        masks = np.sort(rng.choice(2**findings, int(rng.integers(1, 2**findings + 1)), False))
        inside, outside = rng.integers(0, 5, masks.size), rng.integers(1, 9, masks.size)
        rate = rng.choice([0.0, 0.2, 0.5, 1.0], masks.size)
        own = rng.binomial(inside, np.clip(1.7 * rate, 0, 1))
        errors = own + rng.binomial(outside, rate)
        model, n = model_of(masks, findings, inside, outside, errors)
        if not inside.any():
            continue
        observed = int(own.sum())
        p = rate_p_value(model, n, inside, observed, "upper")
        in_findings = [int(errors[masks >> k & 1 == 1].sum()) for k in range(findings)]
        totals = (int(errors.sum()), *in_findings)
        law = exact_law(masks.tolist(), findings, inside.tolist(), outside.tolist(), totals)
        if len(law) == 1:
            assert p == 1.0
        elif law[observed] < 0.2:
            assert p == pytest.approx(law[observed], rel=0.15)
            near += 1
    assert near >= 15


def test_a_small_part_of_large_patterns_has_the_law_of_independent_outcomes():
    masks, n, errors = (
        [0, 1, 2, 3], [400_000, 90_000, 60_000, 20_000], [8_000, 9_000, 12_000, 9_000],
    )  # fmt: skip
    model, part = fit("rate", masks, 2, n, errors), [12, 7, 9, 3]
    law = np.ones(1)
    for size, rate in zip(part, model.expected, strict=True):
        law = np.convolve(law, binom.pmf(np.arange(size + 1), size, rate))
    for observed in range(5, 31):
        exact = law[observed + 1 :].sum() + law[observed] / 2
        assert rate_p_value(model, n, part, observed, "upper") == pytest.approx(exact, rel=0.03)
    assert rate_p_value(model, n, part, 31, "upper") == pytest.approx(law[31] / 2, rel=0.1)


def test_what_the_findings_determine_is_no_surprise():
    model = fit("rate", [0, 1, 2], 2, [100, 40, 30], [10, 20, 9])
    n = [100, 40, 30]
    # The first finding itself, the union of both, and what is outside of both.
    for part in ([0, 40, 0], [0, 40, 30], [100, 0, 0]):
        assert rate_p_value(model, n, part, float(np.dot(part, model.expected)), "upper") == 1.0
    layout = TargetSums("mean")
    sums = np.array([[100, 10, 30], [40, 20, 50], [30, 9, 30.0]])
    means = fit("mean", [0, 1, 2], 2, sums[:, 0], sums[:, 1])
    variances = pattern_variances(means, sums, layout)
    part = np.array([[0], [40], [30.0]])
    law = DeviationLaw(Population((-1.0, 0.0, 1.0), (20.0, 91.0, 59.0), 1.0))
    assert sum_p_value(means, variances, sums, part, 29.0, layout, law, "upper") == 1.0
    assert sum_p_value(means, variances, sums, part / 2, 29.0, layout, law, "upper") < 0.01
    # Where all are wrong, nothing is uncertain.
    pure = fit("rate", [0, 1], 1, [100, 20], [10, 20])
    assert rate_p_value(pure, [100, 20], [0, 7], 7, "upper") == 1.0


def test_sure_patterns_leave_the_others_as_they_are():
    model = fit("rate", [0, 1], 1, [500, 20], [60, 20])
    alone = fit("rate", [0], 0, [500], [60])
    with_sure = rate_p_value(model, [500, 20], [40, 7], 12 + 7, "upper")
    assert with_sure == pytest.approx(rate_p_value(alone, [500], [40], 12, "upper"), rel=1e-9)


@pytest.mark.parametrize("values", ["skewed", "changes", "heavy"])
def test_a_mean_with_no_finding_has_the_law_of_random_subsets(values):
    rng, N = np.random.default_rng(1), 4000
    x = {
        "skewed": rng.gamma(0.5, 1.0, N),
        "changes": rng.choice([-1.0, 0.0, 1.0], N, p=[0.06, 0.91, 0.03]),
        "heavy": rng.standard_t(3, N) * (rng.random(N) < 0.3),
    }[values]
    layout, law = TargetSums("mean"), deviation_law(x, np.ones(N))
    sums = target_columns(layout, x).sum(axis=0)[None]
    model = fit("mean", [0], 0, sums[:, 0], sums[:, 1])
    variances = pattern_variances(model, sums, layout)
    assert variances[0] == pytest.approx(x.var(ddof=1), rel=1e-12)
    counts = tuple((law.chances * N).tolist())
    span = 1.0 if values == "changes" else 0.0
    population = Population(tuple(law.points.tolist()), counts, span)
    for n in (20, 60, 400):
        for z in (-3.5, 2.0, 3.5, 5.0):
            total = z * np.sqrt(n) * x.std()
            if values == "changes":
                total = np.rint(total + n * x.mean()) - n * x.mean()
            if z < 0 and values == "skewed" and n < 100:
                continue
            tail = "upper" if z > 0 else "lower"
            exact = random_subset.sum_p_value(n, total, population, tail)
            args = model, variances, sums, np.array([[float(n)]]), total + n * x.mean()
            # A tenth of all examples, drawn without replacement, has shorter tails than the law.
            low, high = (0.75, 1.4) if n < 400 else (0.95, 2.0)
            assert low < sum_p_value(*args, layout, law, tail) / float(exact) < high


def test_rare_changes_both_ways_are_not_normal():
    # 6 of 22 changed for the worse where 1.7 % do, and as many for the better.
    N, each = 10_000, 170
    law = DeviationLaw(Population((-1.0, 0.0, 1.0), (3.0 * each, N - 4.0 * each, each), 1.0))
    model = fit("mean", [0], 0, [N], [-2 * each])
    sums = np.array([[N, -2.0 * each, 4.0 * each]])
    variances = pattern_variances(model, sums, TargetSums("mean"))
    p = sum_p_value(model, variances, sums, np.array([[22.0]]), 6, TargetSums("mean"), law, "upper")
    chances, exact = np.array([0.051, 0.932, 0.017]), np.ones(1)
    for _ in range(22):
        exact = np.convolve(exact, chances)
    assert p == pytest.approx(exact[29:].sum() + exact[28] / 2, rel=0.1)
    assert p > 1e-7


def test_patterns_are_merged_without_changing_the_tail():
    rng = np.random.default_rng(4)
    law = deviation_law(rng.gamma(0.5, 1.0, 3000), np.ones(3000))
    number, second = np.ones(300) * 2, law.variance * rng.uniform(0.2, 3.0, 300)
    influence_of = rng.uniform(0.8, 1.0, 300)
    for excess in (20.0, 60.0, 100.0):
        args = excess, number, influence_of, second, 5.0, "upper"
        merged = law.p_value(*args)
        assert merged < 0.2
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conditional, "_CLASSES", 300)
            assert merged == pytest.approx(law.p_value(*args), rel=0.02)
    with pytest.raises(ValueError, match="have the same deviation"):
        DeviationLaw(Population((2.0,), (10.0,)))


def test_variances_of_counts_are_those_of_the_exact_law():
    masks, inside, outside, errors = [0, 1, 2, 3], [6, 5, 3, 4], [30, 12, 9, 4], [4, 6, 3, 5]
    model, n = model_of(masks, 2, inside, outside, errors)
    law = exact_law(masks, 2, inside, outside, (18, 11, 8))
    counts = np.array(sorted(law))
    upper = np.array([law[count] for count in counts])
    # Of mid-p tails: chances are differences of the strict ones.
    chances, above = np.zeros(counts.size), 0.0
    for at in range(counts.size - 1, -1, -1):
        chances[at] = 2 * (upper[at] - above)
        above += chances[at]
    variance = chances @ (counts - (chances @ counts)) ** 2
    (found,) = rate_variances(model, n, np.array([inside], float))
    assert found == pytest.approx(variance, rel=0.07)


def test_influence_is_what_the_fit_leaves_of_a_deviation():
    rng = np.random.default_rng(2)
    masks, n = np.array([0, 1, 2, 3]), np.array([40.0, 20, 15, 9])
    part, total = np.array([9.0, 11, 3, 4]), rng.normal(0, 9, 4)
    model = fit("mean", masks, 2, n, total)
    acts = influence(model, n, part)
    # One target inside the candidate and one outside, each raised by one in each pattern.
    for pattern in range(4):
        raised = total.copy()
        raised[pattern] += 1.0
        moved = part @ (fit("mean", masks, 2, n, raised).expected - model.expected)
        assert acts.outside[pattern] == pytest.approx(-moved, abs=1e-12)


def rows_of(rng, N, findings):
    inside = rng.random((N, findings)) < np.linspace(0.05, 0.4, findings)
    masks = (inside << np.arange(findings)).sum(axis=1)
    distinct, pattern = np.unique(masks, return_inverse=True)
    return inside, distinct, pattern


def by_pattern(pattern, values):
    return np.stack([np.bincount(pattern, column) for column in np.atleast_2d(values)], axis=1)


def false_rates_of_rates(seed, draws, size, base, findings=3, N=1200):
    """How often mid-p of candidates that the findings explain is at most .05 and .01, both tails."""
    rng = np.random.default_rng(seed)
    inside, distinct, pattern = rows_of(rng, N, findings)
    truth = 1 / (1 + np.exp(-(base + inside @ np.linspace(1.2, -0.8, findings))))
    n = np.bincount(pattern)
    # The candidate leans towards the findings.
    own = rng.permutation(N)[np.argsort(-rng.random(N) - 0.3 * inside.any(axis=1))[:size]]
    part = np.bincount(pattern[own], minlength=n.size)
    p = np.empty((2, draws))
    for draw in range(draws):
        y = rng.random(N) < truth
        model = fit("rate", distinct, findings, n, np.bincount(pattern, y))
        for at, tail in enumerate(("upper", "lower")):
            p[at, draw] = rate_p_value(model, n, part, float(y[own].sum()), tail)
    expected = truth[own].sum()
    assert min(expected, size - expected) >= 10
    return (p <= 0.05).mean(axis=1), (p <= 0.01).mean(axis=1)


def false_rates_of_means(seed, draws, size, weighted, kind, findings=3, N=1200):
    rng = np.random.default_rng(seed)
    inside, distinct, pattern = rows_of(rng, N, findings)
    layout = TargetSums(kind, weighted=weighted)
    weight = rng.integers(1, 10, N) if weighted else np.ones(N)
    own = rng.permutation(N)[:size]
    sizes = np.stack([weight, weight**2]) if weighted else weight[None]
    part = by_pattern(pattern[own], sizes[:, own])
    part = np.concatenate([part, np.zeros((distinct.size - len(part), len(sizes)))])
    effects = inside @ np.linspace(1.2, -0.8, findings)
    p = np.empty((2, draws))
    for draw in range(draws):
        if kind == "rate":
            x = (rng.random(N) < 1 / (1 + np.exp(1.2 - effects))) * 1.0
        else:
            x = effects + rng.gamma(0.7, 1.0, N)
        sums = by_pattern(pattern, target_columns(layout, x, weight).T)
        first = layout.moment(sums, 1, 0), layout.moment(sums, 1, 1)
        model = fit(kind, distinct, findings, *first)
        variances, law = pattern_variances(model, sums, layout), deviation_law(x, weight)
        observed = float((weight * x)[own].sum())
        for at, tail in enumerate(("upper", "lower")):
            args = model, variances, sums, part, observed, layout, law, tail
            p[at, draw] = sum_p_value(*args)
    return (p <= 0.05).mean(axis=1), (p <= 0.01).mean(axis=1)


def holds(rates, draws):
    """Say whether rates are within the bars, and as near as the number of draws can show."""
    for rate, level, part in zip(rates, (0.05, 0.01), (0.2, 0.3), strict=True):
        error = 3 * np.sqrt(level * (1 - level) / draws)
        assert (np.abs(rate - level) <= part * level + error).all(), (rate, level)


def test_rates_and_weights_are_calibrated_a_few_draws():
    holds(false_rates_of_rates(1, 500, 60, -1.2), 500)
    holds(false_rates_of_means(2, 700, 60, True, "rate"), 700)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "base"), [(40, -0.6), (60, -1.2), (500, -1.2)])
def test_rates_are_calibrated(size, base):
    for rates in np.transpose(false_rates_of_rates(11, 6000, size, base)):
        assert 0.045 <= rates[0] <= 0.055
        assert 0.007 <= rates[1] <= 0.013


@pytest.mark.slow
@pytest.mark.parametrize(("weighted", "kind"), [(False, "mean"), (True, "mean"), (True, "rate")])
def test_means_and_weights_are_calibrated(weighted, kind):
    upper, lower = np.transpose(false_rates_of_means(12, 6000, 60, weighted, kind))
    assert 0.044 <= upper[0] <= 0.056
    assert 0.007 <= upper[1] <= 0.013
    # Away from the long tail of skewed values the law is cautious.
    assert 0.040 <= lower[0] <= 0.056
    assert 0.004 <= lower[1] <= 0.013


def test_a_change_of_counts_is_mcnemars_and_of_others_normal():
    """Of 30 examples 12 became wrong and 2 right."""
    mid_p = binom.sf(12, 14, 0.5) + 0.5 * binom.pmf(12, 14, 0.5)
    assert change_p_value(10.0, 14.0, "upper", counts=True) == pytest.approx(mid_p)
    normal = norm.sf(10 / np.sqrt(14))
    assert change_p_value(10.0, 14.0, "upper", counts=False) == pytest.approx(normal)
    assert change_p_value(10.0, 14.0, "lower", counts=False) == pytest.approx(1 - normal)
    assert change_p_value(0.0, 0.0, "upper", counts=True) == 1.0
