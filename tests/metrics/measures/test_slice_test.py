"""Every metric by every test: probabilities, reasons, methods, and replicates of examples."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slicebeam.metrics.measures import cell_metric
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.measures.registry import metric, metrics, statistic_space
from slicebeam.metrics.measures.slice_test import SliceTest
from slicebeam.metrics.significance.outcome_codes import REASONS, Method, Reason
from tests.metrics.measures.test_metric import CASES, Examples, by_sklearn, random_members
from tests.option_words import ALTERNATIVES, COMPARISONS, TESTS


def fits(name, comparison):
    return comparison == "overall" or metric(name).compares_models


REPLICATES = 20
# Metrics of counts; the others have no counts to make up.
EVERY = [
    (name, comparison, test, alternative)
    for name, comparison, test, alternative in itertools.product(
        metrics(), COMPARISONS, TESTS, ALTERNATIVES
    )
    if isinstance(metric(name), CellMetric) and fits(name, comparison)
]
SHARES = ("accuracy", "error_rate")


def run(test, counts, totals):
    """Test counts [slices, cells]; the replicates of examples are drawn cell by cell."""
    layers, all_layers = counts[:, None, :], totals[None, :]
    if test.test != "auto":
        rng = np.random.default_rng(0)
        outside = totals - counts
        inside = rng.poisson(np.repeat(layers, REPLICATES, axis=1))
        # All examples are resampled once, for all slices; here for the first of them.
        drawn = rng.poisson(np.repeat(outside[:1, None], REPLICATES, axis=1))[0] + inside[0]
        layers = np.concatenate([layers, inside], axis=1)
        all_layers = np.concatenate([all_layers, drawn], axis=0)
    tested, errors = test.run(layers, all_layers)
    return tested.p, tested.reasons, errors


def made(name, comparison, test, alternative):
    return SliceTest(name, statistic_space([name], comparison), test, alternative)


@pytest.mark.parametrize(("name", "comparison", "test"), sorted({one[:3] for one in EVERY}))
def test_p_is_a_probability_whatever_the_counts(monkeypatch, name, comparison, test):
    monkeypatch.setattr(cell_metric, "_PERMUTATIONS", 200)
    rng = np.random.default_rng(3)
    size = statistic_space([name], comparison).cells
    for scale in (1, 4, 300, 10**6):
        totals = rng.integers(0, 3 * scale, size) * rng.integers(0, 2, size) + (scale > 1)
        totals[0] += 1
        counts = rng.binomial(totals, rng.choice([0.0, 0.05, 0.5, 1.0], (40, size)))
        counts[0], counts[1] = totals, 0
        counts = counts[counts.sum(axis=1) > 0]
        for alternative in ALTERNATIVES:
            with np.errstate(all="raise", under="ignore"):
                p, reasons, errors = run(made(name, comparison, test, alternative), counts, totals)
            assert p.shape == reasons.shape == errors.shape == (len(counts),)
            assert not np.isnan(p).any()
            assert ((p > 0) & (p <= 1)).all()
            assert (p[reasons != 0] == 1).all()
            assert set(reasons.tolist()) <= set(range(len(REASONS)))
            drawn = errors[(reasons == 0) & ~np.isnan(errors)]
            assert (drawn > 0).all()
            if test == "auto":
                assert drawn.size == 0
            elif comparison == "overall" or test == "paper":
                # Of two models a change that does not vary has the metric's own test.
                assert drawn.size == np.count_nonzero(reasons == 0)


@pytest.mark.parametrize(
    ("name", "comparison", "test", "alternative"), [one for one in EVERY if one[0] in SHARES]
)
def test_degenerate_slices_say_why(name, comparison, test, alternative):
    if comparison == "overall":
        totals = np.array([80, 20])
        cases = [(totals, totals, {Reason.WHOLE})]
        # All are right, or all wrong.
        for constant in (np.array([100, 0]), np.array([0, 100])):
            wanted = {Reason.CONSTANT} if test == "auto" else {Reason.NO_VARIANCE}
            cases.append((constant // 4, constant, wanted))
            cases.append((constant, constant, {Reason.WHOLE, Reason.CONSTANT}))
    else:
        totals = np.array([50, 20, 10, 20])
        wanted = {Reason.UNCHANGED} if test == "auto" else {Reason.NO_VARIANCE}
        cases = [
            (np.array([30, 0, 0, 0]), totals, wanted),
            (np.array([30, 0, 0, 9]), totals, wanted),
            (np.array([0, 0, 0, 9]), np.array([0, 0, 0, 100]), wanted),
        ]
    for counts, of_all, wanted in cases:
        p, reasons, _ = run(made(name, comparison, test, alternative), counts[None, :], of_all)
        assert p.tolist() == [1.0]
        assert reasons[0] in wanted


@pytest.mark.parametrize(
    ("name", "comparison", "test"), list(itertools.product(SHARES, COMPARISONS, TESTS))
)
def test_directions(name, comparison, test):
    """More errors are worse, whether right or wrong examples are counted."""
    if comparison == "overall":
        totals = np.array([8000, 2000])
        worse, better = np.array([60, 40]), np.array([98, 2])
    else:
        # Cells: both right, new wrong, old wrong, both wrong.
        totals = np.array([7000, 1000, 1000, 1000])
        worse, better = np.array([60, 30, 4, 6]), np.array([60, 4, 30, 6])
    p = {}
    for alternative in ALTERNATIVES:
        tested = made(name, comparison, test, alternative)
        p[alternative] = run(tested, np.stack([worse, better]), totals)[0]
    assert p["worse"][0] < 0.01
    assert p["worse"][1] > 0.9
    assert p["better"][1] < 0.01
    assert p["better"][0] > 0.9
    np.testing.assert_allclose(p["both"], 2 * np.minimum(p["worse"], p["better"]), rtol=1e-9)


def test_no_slices():
    for test in TESTS:
        tested = made("accuracy", "overall", test, "worse")
        layers = 1 if test == "auto" else 1 + REPLICATES
        found, errors = tested.run(np.zeros((0, layers, 2), np.int64), np.full((layers, 2), 5))
        assert found.p.size == found.reasons.size == found.methods.size == errors.size == 0


def test_many_slices_are_tested_in_pieces(monkeypatch):
    from slicebeam.metrics.measures import slice_test

    rng, totals = np.random.default_rng(2), np.array([400, 100])
    counts = rng.binomial(totals, rng.random((50, 1)))
    for test in TESTS:
        tested = made("accuracy", "overall", test, "both")
        whole = run(tested, counts, totals)
        with monkeypatch.context() as patch:
            patch.setattr(slice_test, "_SLICES_AT_A_TIME", 7)
            patch.setattr(slice_test, "_NUMBERS_AT_A_TIME", 7)
            for one, other in zip(whole, run(tested, counts, totals), strict=True):
                np.testing.assert_array_equal(one, other)


def test_the_method_is_named():
    """A slice says which test it had, by its size where there are two."""
    totals = np.array([800_000, 200_000])
    counts = np.array([[60, 40], [60_000, 16_000], [800_000, 200_000]])
    tested = made("accuracy", "overall", "auto", "worse")
    methods = tested.run(counts[:, None], totals[None]).tested.methods
    assert methods.tolist() == [Method.HYPERGEOMETRIC, Method.LIKELIHOOD_RATIO, 0]
    by_name = {
        ("mcc", "overall", "auto"): Method.FEW_CELLS,
        ("f1_macro", "overall", "auto"): Method.CELL_PERMUTATION,
        ("mcc", "baseline", "auto"): Method.HALL_PAIRED,
        ("accuracy", "baseline", "auto"): Method.MCNEMAR,
        ("precision", "baseline", "auto"): Method.HALL_PAIRED,
        ("accuracy", "overall", "bootstrap-rows"): Method.BOOTSTRAP_ROWS,
        ("accuracy", "overall", "paper"): Method.PAPER,
    }
    for (name, comparison, test), method in by_name.items():
        size = statistic_space([name], comparison).cells
        everything = np.arange(1, size + 1) * 1000
        own = made(name, comparison, test, "worse")
        layers = 1 if test == "auto" else 1 + REPLICATES
        weights = np.random.default_rng(0).poisson(100, (layers, size)) / 100
        weights[0] = 1
        all_layers = np.rint(everything * weights).astype(np.int64)
        some = (all_layers * np.linspace(0.1, 0.2, size)).astype(np.int64)[None]
        assert own.run(some, all_layers).tested.methods.tolist() == [method]


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_p_is_never_zero(comparison):
    """Slices that no float64 can say how unlikely they are still have a p-value above 0."""
    totals = np.array([10**6, 10**5]) if comparison == "overall" else np.array([10**6, 10**5, 0, 0])
    counts = np.zeros((1, totals.size), np.int64)
    # All the slice's examples are wrong: for baseline, wrong now and right before.
    counts[0, 1] = 50_000
    p, reasons, _ = run(made("accuracy", comparison, "auto", "worse"), counts, totals)
    assert p[0] == np.nextafter(0.0, 1.0)
    assert reasons[0] == 0


# One of each kind.
RESAMPLED = ("accuracy", "precision", "f1", "mcc", "f1_macro", "auc", "log_loss", "mse", "mean:x")


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
