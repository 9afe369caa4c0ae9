"""Slices that have nothing to test: p is 1 with a reason, or a proper p; never NaN, never 0."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.kinds import (
    ALTERNATIVES,
    COMPARISONS,
    OF_ROWS,
    TESTS,
    Alternative,
    Comparison,
    Test,
)
from slicebeam.metrics.measures import cell_metric
from slicebeam.metrics.registry import metric, metrics
from slicebeam.metrics.significance import outcome_codes
from slicebeam.metrics.testing.slice_test import SliceTest, check_test
from slicebeam.transforms.encode.extract_predictions import Outcome, Predictor, extract_predictions
from slicebeam.transforms.encode.sources import Chunk
from tests.metrics.test_metric_values import Examples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.statistic_space import StatisticSpace

NAMES = (*metrics(), "fbeta:2", "mean:x")
ROWS = 160
REPLICATES = 20
WORLDS = (
    "mixed",
    "all right",
    "all wrong",
    "no positives",
    "all positive",
    "none predicted",
    "constant",
    "same models",
    "infinite scores",
    "two examples",
)
EVERY = [
    (name, comparison, weighted)
    for name, comparison, weighted in itertools.product(NAMES, COMPARISONS, [False, True])
    if comparison == "overall" or metric(name).compares_models
]


@cache
def world(kind: str, *, weighted: bool) -> Examples:
    """Examples of which something is degenerate for all of them."""
    some = Examples.random(17, ROWS, weighted=weighted)
    zeros, half = np.zeros(ROWS, np.int64), np.full(ROWS, 0.5)
    everything = {
        "all right": {
            "predicted": (some.label, some.label),
            "score": (some.label * 1.0, some.label * 1.0),
            "guess": (some.truth, some.truth),
        },
        "all wrong": {
            "predicted": (1 - some.label, 1 - some.label),
            "score": (1.0 - some.label, 1.0 - some.label),
        },
        "no positives": {"label": zeros},
        "all positive": {"label": zeros + 1},
        "none predicted": {"predicted": (zeros, zeros)},
        "constant": {
            "score": (half, half),
            "truth": half,
            "guess": (half * 3, half * 3),
            "column": half / 3,
        },
        "same models": {
            "predicted": (some.predicted[0],) * 2,
            "score": (some.score[0],) * 2,
            "guess": (some.guess[0],) * 2,
        },
        "infinite scores": {
            "score": tuple(
                np.where(some.score[0] > edge, np.inf, np.where(some.score[1] > 0.5, 0.3, -np.inf))
                for edge in (0.4, 0.6)
            )
        },
    }
    if kind == "two examples":
        return some.take(np.array([0, int(np.argmax(some.label != some.label[0]))]))
    return replace(some, **everything.get(kind, {}))  # type: ignore[arg-type]


def members_of(some: Examples) -> NDArray[np.bool_]:
    """Slices [slices, rows] of which something is degenerate."""
    rows = np.arange(some.rows)
    new, old = some.predicted
    right, positive = new == some.label, some.label == 1
    members = [
        rows >= 0,
        rows == 0,
        rows < 1 + (rows.size > 2),
        rows > 0,
        rows % 2 == 0,
        positive,
        ~positive,
        right,
        ~right,
        positive & right,
        ~positive & ~right,
        new == 1,
        new == 0,
        new == old,
        (new == old) & (rows < 40),
        some.score[0] == some.score[0][0],
        some.score[0] == some.score[1],
        some.truth == some.truth[0],
        (positive & (rows < 8)) | (~positive & (rows < 90)),
        rows < 60,
    ]
    return np.array([one for one in members if one.any()])


def without_some_weights(some: Examples) -> Examples:
    assert some.weight is not None
    return replace(some, weight=np.where(np.arange(some.rows) % 9 == 8, 0.0, some.weight))


@cache
def case(
    kind: str, name: str, comparison: Comparison, *, weighted: bool
) -> tuple[StatisticSpace, Any, Any]:
    some = world(kind, weighted=weighted)
    if some.weight is not None:
        some = without_some_weights(some)
    if kind == "infinite scores" and name in ("log_loss", "brier"):
        some = world("mixed", weighted=weighted)
    space = some.space([name], comparison)
    times = np.random.default_rng(5).poisson(1, (REPLICATES, some.rows))
    return (space, *some.sums(space, members_of(some), times))


@pytest.fixture(autouse=True)
def _few_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of the permutations is tested elsewhere."""
    monkeypatch.setattr(cell_metric, "_PERMUTATIONS", 300)


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def is_allowed(test: Test, name: str, comparison: Comparison, *, weighted: bool) -> bool:
    """Whether a test fits; a refusal says what and why in a sentence."""
    message = ""
    try:
        check_test(test, name, comparison, weighted=weighted)
    except InputError as error:
        message = str(error)
        assert_sentence(message, test, name)
    return not message


def assert_sentence(message: str, test: Test, name: str) -> None:
    assert len(message) > 40
    assert f"--test {test}" in message or f"--metric {name}" in message


def check_p(test: SliceTest, sums: NDArray[np.int64], totals: NDArray[np.int64]) -> None:
    layers = 1 + REPLICATES if test.needs_rows() and test.test in OF_ROWS else 1
    tested, errors = test.run(sums[:, :layers], totals[:layers])
    p, reasons, methods = tested
    assert p.shape == reasons.shape == methods.shape == errors.shape == (len(sums),)
    assert not np.isnan(p).any()
    assert (p > 0).all()
    assert (p <= 1).all()
    assert (p[reasons != 0] == 1).all()
    assert ((reasons >= 0) & (reasons < len(outcome_codes.REASONS))).all()
    assert ((methods == 0) == (reasons != 0)).all()
    assert (errors[~np.isnan(errors)] >= 0).all()
    own, space = metric(test.metric), test.space
    of_all = space.reduce(totals[:1], totals[:1])[0]
    delta = own.delta(space.reduce(sums[:, 0], totals[:1]), of_all, space)
    assert (reasons[np.isnan(delta)] != 0).all()


@pytest.mark.parametrize(
    ("test", "name", "comparison", "weighted"),
    [
        # What weights change is known of the metric's own test; the others take longer.
        pytest.param(test, *one, marks=pytest.mark.slow if one[-1] and test != TESTS[0] else ())
        for test in TESTS
        for one in EVERY
    ],
)
@pytest.mark.slow
def test_p_is_one_for_a_reason_or_proper(
    name: str, comparison: Comparison, test: Test, *, weighted: bool
) -> None:
    if not is_allowed(test, name, comparison, weighted=weighted):
        return
    for kind, alternative in itertools.product(WORLDS, ALTERNATIVES):
        space, sums, totals = case(kind, name, comparison, weighted=weighted)
        check_p(SliceTest(name, space, test, alternative, REPLICATES, 3), sums, totals)


@pytest.mark.parametrize(
    ("name", "comparison"),
    [(name, comparison) for name, comparison, is_weighted in EVERY if is_weighted],
)
def test_slices_of_no_weight(name: str, comparison: Comparison) -> None:
    """Examples of weight 0 are in the slice's size, and in nothing else."""
    own = metric(name)
    some = without_some_weights(world("mixed", weighted=True))
    space = some.space([name], comparison)
    sums, totals = some.sums(space, (some.weight == 0)[None])
    of_all, reduced = space.reduce(totals, totals)[0], space.reduce(sums[:, 0], totals)
    assert np.isnan(own.value(reduced, space)).all()
    for interval in (own.value_interval, own.delta_interval):
        assert not np.isnan(interval(reduced, of_all, space, 0.95)).any()
    tested, _ = SliceTest(name, space, "auto", "worse", 1, 0).run(sums, totals)
    assert tested.p.tolist() == [1.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_of_two_models_by_replicates(*, weighted: bool) -> None:
    """Its default test resamples, after the quick one."""
    for kind, alternative in itertools.product(WORLDS, ALTERNATIVES):
        space, sums, totals = case(kind, "auc", "baseline", weighted=weighted)
        test = SliceTest("auc", space, "auto", alternative, REPLICATES, 3)
        assert test.needs_rows()
        tested, errors = test.run(sums, totals)
        assert ((tested.p > 0) & (tested.p <= 1)).all()
        assert (tested.p[tested.reasons != 0] == 1).all()
        assert (errors[tested.reasons == 0] > 0).all()


def test_what_is_refused() -> None:
    """All metrics have the calibrated test and the two of resampled examples."""
    for name, comparison, weighted in EVERY:
        allowed = {test for test in TESTS if is_allowed(test, name, comparison, weighted=weighted)}
        assert {"auto", "bootstrap-rows", "paper"} <= allowed
        of_counts = metric(name).needs.values == () and name != "auc"
        assert ("bootstrap-cells" in allowed) == (of_counts and not weighted)
        assert ("paper-cells" in allowed) == (of_counts and not weighted)
        by_subsets = comparison == "overall" and name != "auc" and not weighted
        assert ("permutation" in allowed) == by_subsets
    with pytest.raises(InputError, match="--metric mean:x is the same for every model"):
        check_test("auto", "mean:x", "baseline", weighted=False)


@pytest.mark.parametrize(("name", "comparison", "weighted"), EVERY)
@pytest.mark.slow
def test_intervals_hold_the_estimate(name: str, comparison: Comparison, *, weighted: bool) -> None:
    own = metric(name)
    for kind in WORLDS:
        space, sums, totals = case(kind, name, comparison, weighted=weighted)
        of_all = space.reduce(totals[:1], totals[:1])
        reduced = space.reduce(sums[:, 0], totals[:1])
        pairs = [(own.delta_interval, own.delta(reduced, of_all[0], space), {})]
        for old in (False, True)[: space.sides]:
            estimate = own.value(reduced, space, old=old)
            pairs.append((own.value_interval, estimate, {"old": old}))
        for interval, estimate, which in pairs:
            for confidence in (0.5, 0.95):
                low, high = interval(reduced, of_all[0], space, confidence, **which)
                assert low.shape == high.shape == (len(sums),)
                assert not np.isnan(low).any(), kind
                assert not np.isnan(high).any(), kind
                assert (low <= high).all(), kind
                known = ~np.isnan(estimate)
                room = 1e-9 * np.maximum(np.abs(estimate[known]), 1)
                assert (low[known] <= estimate[known] + room).all(), kind
                assert (high[known] >= estimate[known] - room).all(), kind
        assert own.reference(reduced, of_all[0], space).shape == (len(sums),)
        assert own.complement(reduced, of_all[0], space).shape == (len(sums),)


@pytest.mark.parametrize(("name", "comparison", "weighted"), EVERY)
@pytest.mark.slow
def test_refinement_of_any_parent(name: str, comparison: Comparison, *, weighted: bool) -> None:
    own = metric(name)
    for kind in WORLDS:
        space, sums, totals = case(kind, name, comparison, weighted=weighted)
        some = world(kind, weighted=weighted)
        members = members_of(some)[: len(sums)]
        inside = (members[:, None] <= members[None]).all(axis=2)
        child, parent = np.nonzero(inside)
        of_all = space.reduce(totals[:1], totals[:1])
        reduced = space.reduce(sums[:, 0], totals[:1])
        for worse in (False, True):
            p = own.p_refine(reduced[child], reduced[parent], of_all[0], space, worse=worse)
            assert p.shape == child.shape
            assert ((p >= 0) & (p <= 1)).all(), kind
        smallest = own.smallest_p(reduced, of_all[0], space, "worse")
        assert ((smallest >= 0) & (smallest <= 1)).all()
        if own.target(space) is not None:
            assert np.isfinite(own.target_sums(reduced, space)).all()
        for one in reduced:
            inputs = own.inputs(one, of_all[0], space)
            assert all(isinstance(number, int | float) for number in inputs.values())


@pytest.mark.parametrize(("name", "comparison", "weighted"), EVERY)
def test_nothing_to_test_is_said(name: str, comparison: Comparison, *, weighted: bool) -> None:
    """All examples, and two models that agree everywhere, are never significant."""
    for alternative in ALTERNATIVES:
        check_nothing_to_test_is_said(name, comparison, alternative, weighted=weighted)


def check_nothing_to_test_is_said(
    name: str, comparison: Comparison, alternative: Alternative, *, weighted: bool
) -> None:
    space, sums, totals = case("same models", name, comparison, weighted=weighted)
    test = SliceTest(name, space, "auto", alternative, 1, 0)
    # Against all examples only they themselves have nothing to test: the first slice.
    tested, _ = test.run(sums[: None if comparison == "baseline" else 1, :1], totals[:1])
    if comparison == "baseline":
        assert (tested.p == 1).all()
        assert (tested.reasons != 0).all()
    else:
        assert tested.p[0] == 1
        assert tested.reasons[0] == outcome_codes.WHOLE
    if metric(name).needs.indicators and comparison == "overall" and "rate" not in name:
        space, sums, totals = case("all right", name, comparison, weighted=weighted)
        tested, _ = replace(test, space=space).run(sums[:, :1], totals[:1])
        if name == "mcc" and weighted:
            # Its gradient is 0 but for rounding, which is a variance of 1e-34.
            assert (tested.p >= 0.5).all()
        else:
            assert (tested.reasons != 0).all()


def chunk(**columns: list[Any]) -> Chunk:
    return Chunk(0, 0, "data.csv", 40, 40, pa.table(columns))


def outcome(name: str, *, weight: str | None = None) -> Outcome:
    score = name in ("auc", "log_loss", "brier")
    new = Predictor(score="s") if score else Predictor(column="p")
    return Outcome(
        "y",
        "int64",
        new,
        positive_class=1 if score else None,
        needs=metric(name).needs,
        weight=weight,
    )


@pytest.mark.parametrize("name", ["auc", "log_loss", "brier"])
def test_scores_that_are_no_numbers_are_refused(name: str) -> None:
    data = chunk(y=[0, 1, 1], s=[0.1, float("nan"), 0.7])
    with pytest.raises(InputError, match=r"'s' has no value in row 42 of data\.csv"):
        extract_predictions(data, outcome(name))


def test_infinite_scores_have_ranks_but_no_losses() -> None:
    data = chunk(y=[0, 1, 1], s=[-np.inf, np.inf, 0.7])
    assert extract_predictions(data, outcome("auc")).scores["prediction"].tolist() == [
        -np.inf,
        np.inf,
        0.7,
    ]
    for name in ("log_loss", "brier"):
        with pytest.raises(InputError, match=r"'s' holds -inf in row 41 .*probabilities, 0 to 1"):
            extract_predictions(data, outcome(name))


def test_the_log_loss_of_certain_scores_is_finite() -> None:
    data = chunk(y=[0, 1, 0, 1], s=[0.0, 1.0, 1.0, 0.0])
    losses = extract_predictions(data, outcome("log_loss")).values["log_loss", False]
    assert np.isfinite(losses).all()
    assert (losses >= 0).all()
    np.testing.assert_allclose(losses[2:], -np.log(np.finfo(float).eps))


@pytest.mark.parametrize("name", ["mse", "mae", "bias"])
def test_infinite_errors_are_refused(name: str) -> None:
    for columns, what in (
        ({"y": [1.0, 2.0], "p": [0.5, np.inf]}, "'p' holds inf in row 42"),
        ({"y": [1.0, -np.inf], "p": [0.5, 1.0]}, "'y' holds -inf in row 42"),
        ({"y": [1.0, 2.0], "p": [1e80, 1.0]}, r"'p' holds 1e\+80 in row 41"),
        ({"y": [1.0, 2.0], "p": [1.0, float("nan")]}, "'p' has no value in row 42"),
    ):
        with pytest.raises(InputError, match=what):
            extract_predictions(chunk(**columns), outcome(name))


def test_columns_that_have_no_mean_are_refused() -> None:
    for value, what in ((np.inf, "'x' holds inf"), (np.nan, "'x' has no value")):
        with pytest.raises(InputError, match=what):
            extract_predictions(chunk(x=[1.0, value]), outcome("mean:x"))


@pytest.mark.parametrize(("weight", "what"), [(-1.0, "holds -1"), (np.inf, "holds inf")])
def test_wrong_weights_are_refused(weight: float, what: str) -> None:
    data = chunk(y=[0, 1], p=[0, 1], w=[1.0, weight])
    with pytest.raises(InputError, match=f"'w' {what} in row 42"):
        extract_predictions(data, outcome("accuracy", weight="w"))
