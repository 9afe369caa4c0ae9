"""Slices that have nothing to test: p is 1 with a reason, or a proper p; never NaN, never 0."""

import itertools
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.kinds import OF_PROBABILITIES
from slicebeam.metrics.measures import cell_metric
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, metrics
from slicebeam.metrics.measures.slice_test import SliceTest, check_comparison
from slicebeam.metrics.significance.outcome_codes import REASONS, Reason, select_tail
from tests.metrics.measures.test_metric import OF_LISTS, Examples, weightings
from tests.option_words import ALTERNATIVES, COMPARISONS, TESTS
from tests.refusals import refuses

NAMES = (*(one for one in metrics() if one not in OF_LISTS), "fbeta:2", "mean:x")
ROWS = 160
REPLICATES = 20
WORLDS = (
    *("mixed", "all right", "all wrong", "no positives", "all positive", "none predicted"),
    *("constant", "same models", "infinite scores", "two examples"),
)
EVERY = [
    (name, comparison, weighted)
    for (name, weighted), comparison in itertools.product(weightings(NAMES), COMPARISONS)
    if comparison == "overall" or metric(name).compares_models
]


def test_tails():
    upper, lower = np.array([0.3, 0.9, 0.6]), np.array([0.8, 0.2, 0.5])
    assert select_tail(upper, lower, "upper") is upper
    assert select_tail(upper, lower, "lower") is lower
    assert select_tail(upper, lower, "both").tolist() == [0.6, 0.4, 1.0]


@cache
def world(kind, *, weighted):
    """Examples of which something is degenerate for all of them."""
    some = Examples.random(17, ROWS, weighted=weighted)
    zeros, half = np.zeros(ROWS, np.int64), np.full(ROWS, 0.5)
    everything = {
        "all right": {"predicted": (some.label, some.label), "score": (some.label * 1.0, some.label * 1.0), "guess": (some.truth, some.truth)},
        "all wrong": {"predicted": (1 - some.label, 1 - some.label), "score": (1.0 - some.label, 1.0 - some.label)},
        "no positives": {"label": zeros},
        "all positive": {"label": zeros + 1},
        "none predicted": {"predicted": (zeros, zeros)},
        "constant": {"score": (half, half), "truth": half, "guess": (half * 3, half * 3), "column": half / 3},
        "same models": {"predicted": (some.predicted[0],) * 2, "score": (some.score[0],) * 2, "guess": (some.guess[0],) * 2},
        "infinite scores": {
            "score": tuple(
                np.where(some.score[0] > edge, np.inf, np.where(some.score[1] > 0.5, 0.3, -np.inf))
                for edge in (0.4, 0.6)
            )
        },
    }  # fmt: skip
    if kind == "two examples":
        return some.take(np.array([0, int(np.argmax(some.label != some.label[0]))]))
    return replace(some, **everything.get(kind, {}))  # type: ignore[arg-type]


def members_of(some):
    """Slices [slices, rows] of which something is degenerate."""
    rows = np.arange(some.rows)
    new, old = some.predicted
    right, positive = new == some.label, some.label == 1
    members = [
        rows >= 0, rows == 0, rows < 1 + (rows.size > 2), rows > 0, rows % 2 == 0,
        positive, ~positive, right, ~right, positive & right, ~positive & ~right,
        new == 1, new == 0, new == old, (new == old) & (rows < 40),
        some.score[0] == some.score[0][0], some.score[0] == some.score[1],
        some.truth == some.truth[0],
        (positive & (rows < 8)) | (~positive & (rows < 90)), rows < 60,
    ]  # fmt: skip
    return np.array([one for one in members if one.any()])


def without_some_weights(some):
    assert some.weight is not None
    return replace(some, weight=np.where(np.arange(some.rows) % 9 == 8, 0.0, some.weight))


@cache
def case(kind, name, comparison, *, weighted):
    some = world(kind, weighted=weighted)
    if some.weight is not None:
        some = without_some_weights(some)
    if kind == "infinite scores" and name in (*OF_PROBABILITIES, "jaccard"):
        some = world("mixed", weighted=weighted)
    space = some.space([name], comparison)
    times = np.random.default_rng(5).poisson(1, (REPLICATES, some.rows))
    return (space, *some.sums(space, members_of(some), times))


@pytest.fixture(autouse=True)
def _few_permutations(monkeypatch):
    """The law of the permutations is tested elsewhere."""
    monkeypatch.setattr(cell_metric, "_PERMUTATIONS", 300)


@pytest.fixture(autouse=True)
def _no_warnings():
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def seen(space, sums, totals):
    return Slices(
        space.reduce(sums[:, 0], totals[:1]), space, space.reduce(totals[:1], totals[:1])[0]
    )


def check_p(test, sums, totals):
    layers = 1 + REPLICATES if test.test != "auto" else 1
    tested, errors = test.run(sums[:, :layers], totals[:layers])
    p, reasons, methods = tested
    assert p.shape == reasons.shape == methods.shape == errors.shape == (len(sums),)
    assert not np.isnan(p).any()
    assert (p > 0).all()
    assert (p <= 1).all()
    assert (p[reasons != 0] == 1).all()
    assert ((reasons >= 0) & (reasons < len(REASONS))).all()
    assert ((methods == 0) == (reasons != 0)).all()
    assert (errors[~np.isnan(errors)] >= 0).all()
    own, space = metric(test.metric), test.space
    assert (reasons[np.isnan(own.delta(seen(space, sums, totals)))] != 0).all()


@pytest.mark.parametrize(("test", "name", "comparison", "weighted"), [
    # What weights change is known of the metric's own test; the others take longer.
    pytest.param(test, *one, marks=pytest.mark.slow if one[-1] and test != TESTS[0] else ())
    for test in TESTS
    for one in EVERY
    # A metric that is not resampled refuses the other tests.
    if test == "auto" or metric(one[0]).resampled
])  # fmt: skip
@pytest.mark.slow
def test_p_is_one_for_a_reason_or_proper(name, comparison, test, *, weighted):
    for kind, alternative in itertools.product(WORLDS, ALTERNATIVES):
        space, sums, totals = case(kind, name, comparison, weighted=weighted)
        check_p(SliceTest(name, space, test, alternative), sums, totals)


@pytest.mark.parametrize(
    ("name", "comparison"),
    [(name, comparison) for name, comparison, is_weighted in EVERY if is_weighted],
)
def test_slices_of_no_weight(name, comparison):
    """Examples of weight 0 are in the slice's size, and in nothing else."""
    own = metric(name)
    some = without_some_weights(world("mixed", weighted=True))
    space = some.space([name], comparison)
    sums, totals = some.sums(space, (some.weight == 0)[None])
    slices = seen(space, sums, totals)
    assert np.isnan(own.value(slices)).all()
    for interval in (own.value_interval, own.delta_interval):
        # Two models' AUC has no interval with less than three of a class.
        is_unknown = (name, comparison) == ("auc", "baseline") and interval == own.delta_interval
        assert (np.isnan(interval(slices, 0.95)) == is_unknown).all()
    tested, _ = SliceTest(name, space, "auto", "worse").run(sums, totals)
    assert tested.p.tolist() == [1.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_of_two_models_by_replicates(*, weighted):
    """Its default test resamples, after the quick one."""
    for kind, alternative in itertools.product(WORLDS, ALTERNATIVES):
        space, sums, totals = case(kind, "auc", "baseline", weighted=weighted)
        test = SliceTest("auc", space, "auto", alternative)
        assert test.needs_rows()
        tested, errors = test.run(sums, totals)
        assert ((tested.p > 0) & (tested.p <= 1)).all()
        assert (tested.p[tested.reasons != 0] == 1).all()
        assert (errors[tested.reasons == 0] > 0).all()


def test_metrics_that_cannot_compare_two_models_are_refused():
    for name in ("mean:x", "label_rate"):
        with pytest.raises(InputError, match=f"--metric {name} is the same for every model"):
            check_comparison(name, "baseline")
    refuses(InputError, "--metric r2 has no test of two models", check_comparison, "r2", "baseline")
    with pytest.raises(InputError, match="--metric r2 takes no weights; leave out --weight"):
        check_comparison("r2", "overall", weighted=True)
    with pytest.raises(InputError, match="--metric disagreement is of both models at once"):
        check_comparison("disagreement", "baseline")
    for name, comparison, _ in EVERY:
        check_comparison(name, comparison)


@pytest.mark.parametrize(("name", "comparison", "weighted"), EVERY)
@pytest.mark.slow
def test_intervals_hold_the_estimate(name, comparison, *, weighted):
    own = metric(name)
    for kind in WORLDS:
        space, sums, totals = case(kind, name, comparison, weighted=weighted)
        slices = seen(space, sums, totals)
        pairs = [(own.delta_interval, own.delta(slices), slices)]
        models = (slices, slices.old)[: space.sides]
        pairs += [(own.value_interval, own.value(model), model) for model in models]
        for interval, estimate, model in pairs:
            for confidence in (0.5, 0.95):
                low, high = interval(model, confidence)
                assert low.shape == high.shape == (len(sums),)
                bounded = ~np.isnan(low)
                assert (bounded == ~np.isnan(high)).all(), kind
                # Two models' AUC has no interval with less than three of a class.
                may_lack = (name, comparison, interval) == ("auc", "baseline", own.delta_interval)
                if name == "average_precision":  # Ten positives bound it, and fewer do not.
                    assert (bounded == (model.count("positive") >= 10)).all(), kind
                else:
                    lacks = may_lack and (kind != "mixed" or bounded.any())
                    assert lacks or bounded.all(), kind
                assert (low <= high)[bounded].all(), kind
                known = bounded & ~np.isnan(estimate)
                room = 1e-9 * np.maximum(np.abs(estimate[known]), 1)
                assert (low[known] <= estimate[known] + room).all(), kind
                assert (high[known] >= estimate[known] - room).all(), kind
        assert own.reference(slices).shape == (len(sums),)
        assert own.complement(slices).shape == (len(sums),)


@pytest.mark.parametrize(("name", "comparison", "weighted"), EVERY)
@pytest.mark.slow
def test_refinement_of_any_parent(name, comparison, *, weighted):
    own = metric(name)
    for kind in WORLDS:
        space, sums, totals = case(kind, name, comparison, weighted=weighted)
        members = members_of(world(kind, weighted=weighted))[: len(sums)]
        child, parent = np.nonzero((members[:, None] <= members[None]).all(axis=2))
        slices = seen(space, sums, totals)
        for worse in (False, True):
            p = own.p_refine(
                slices.rows(child), slices.rows(parent), own.tail("worse" if worse else "better")
            )
            assert p.shape == child.shape
            assert ((p >= 0) & (p <= 1)).all(), kind
        if own.target(space) is not None:
            assert np.isfinite(own.target_sums(slices)).all()
        for at in range(len(slices)):
            inputs = own.inputs(slices.rows([at]))
            assert all(isinstance(number, int | float) for number in inputs.values())


@pytest.mark.parametrize(("name", "comparison", "weighted"), EVERY)
def test_nothing_to_test_is_said(name, comparison, *, weighted):
    """All examples, and two models that agree everywhere, are never significant."""
    for alternative in ALTERNATIVES:
        check_nothing_to_test_is_said(name, comparison, alternative, weighted=weighted)


def check_nothing_to_test_is_said(name, comparison, alternative, *, weighted):
    space, sums, totals = case("same models", name, comparison, weighted=weighted)
    test = SliceTest(name, space, "auto", alternative)
    # Against all examples only they themselves have nothing to test: the first slice.
    tested, _ = test.run(sums[: None if comparison == "baseline" else 1, :1], totals[:1])
    if comparison == "baseline":
        assert (tested.p == 1).all()
        assert (tested.reasons != 0).all()
    else:
        assert tested.p[0] == 1
        assert tested.reasons[0] == Reason.WHOLE
    if metric(name).needs.indicators and comparison == "overall" and "rate" not in name:
        space, sums, totals = case("all right", name, comparison, weighted=weighted)
        tested, _ = replace(test, space=space).run(sums[:, :1], totals[:1])
        if name == "mcc" and weighted:
            # Its gradient is 0 but for rounding, which is a variance of 1e-34.
            assert (tested.p >= 0.5).all()
        else:
            assert (tested.reasons != 0).all()
